// start-error.ts - what the kernel refused when an engine started, as a sentence and a remedy.

import { WeftError } from '../../base/errors.ts'
import type { EngineConfig } from './engine.ts'

/** `error` is what the addon or node:dgram threw: an Error with `code` and `syscall`. */
export function engineStartError(
  error: unknown,
  config: Pick<EngineConfig, 'bindAddress' | 'port' | 'tunName'>,
): WeftError {
  const { code, syscall } = error as { code?: string; syscall?: string }
  const where = `${config.bindAddress}:${config.port}`
  const fail = (kind: WeftError['code'], message: string, remedy: string): WeftError =>
    new WeftError(kind, message, { remedy, cause: error })
  if (syscall === 'open /dev/net/tun') {
    return code === 'EPERM' || code === 'EACCES'
      ? fail(
          'NO_TUN',
          `/dev/net/tun may not be opened (${code})`,
          'run as root, as the unit does; in a container, allow the device too: --device /dev/net/tun',
        )
      : fail(
          'NO_TUN',
          `/dev/net/tun cannot be opened (${code})`,
          'load the module with `modprobe tun`, or mount the device into the container',
        )
  }
  if (syscall === 'ioctl TUNSETIFF') {
    if (code === 'EPERM') {
      return fail(
        'PERMISSION',
        `the TUN device ${config.tunName} may not be created (EPERM)`,
        'run as root or with the capability CAP_NET_ADMIN',
      )
    }
    return fail(
      'DEVICE',
      `the TUN device ${config.tunName} cannot be created (${code})`,
      `if it is in use by another process, stop that; see \`ip link show\``,
    )
  }
  if (syscall === 'pthread_create') {
    return fail(
      'DEVICE',
      `the data path gets no thread (${code})`,
      'raise the limit of tasks: TasksMax= of the unit, the pids limit of the container, `ulimit -u`',
    )
  }
  // The native engine's word for what it lacks (native/engine.cc), of encapsulations that encrypt.
  if (syscall === 'ChaCha20-Poly1305 of OpenSSL') {
    return fail(
      'DEVICE',
      'this Node.js has no ChaCha20-Poly1305, with which WireGuard encrypts',
      'run weftd with a Node.js whose OpenSSL has it (3.x, not in FIPS mode), or set "DataPath": "kernel" in Backend',
    )
  }
  if (code === 'EADDRINUSE') {
    return fail(
      'PORT_IN_USE',
      `UDP port ${where} is taken`,
      `stop what holds it (\`ss -ulnp sport = :${config.port}\`; flanneld perhaps, or a vxlan device), or set another Backend.Port for all nodes (of wireguard ListenPort, or ListenPortV6)`,
    )
  }
  if (code === 'EADDRNOTAVAIL') {
    return fail('ADDRESS', `${config.bindAddress} is not an address of this host`, 'choose the interface with --iface')
  }
  return fail('DEVICE', `the data path cannot start: ${(error as Error).message}`, 'see the kernel log (`dmesg`)')
}
