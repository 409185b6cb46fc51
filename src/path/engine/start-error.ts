// start-error.ts - turns the error of an engine that could not start into a WeftError with a remedy.

import { WeftError } from '../../base/errors.ts'
import { selinuxRemedy } from '../../host/kernel-errors.ts'
import type { EngineConfig } from './engine.ts'

const isRoot = (): boolean => process.getuid?.() === 0

export function noTun(error: NodeJS.ErrnoException): WeftError {
  const { code } = error
  const isForbidden = code === 'EPERM' || code === 'EACCES'
  const what = isForbidden ? `/dev/net/tun may not be opened (${code})` : `/dev/net/tun cannot be opened (${code})`
  const inContainer = 'in a container, `docker run --cap-add NET_ADMIN --device /dev/net/tun`'
  const usual = isForbidden
    ? `${isRoot() ? 'allow the device' : 'run as root, as the unit does'}; ${inContainer}`
    : `load the module with \`modprobe tun\`; ${inContainer}`
  // SELinux denies with EACCES. The cgroup of a container, which can deny devices, denies with EPERM.
  const remedy = [(code === 'EACCES' ? selinuxRemedy() : undefined) ?? [], usual].flat().join('; otherwise ')
  return new WeftError('NO_TUN', what, { remedy, cause: error })
}

/**
 * Returns the error for the missing capability CAP_NET_ADMIN. root lacks this capability only in a container or a
 * restricted systemd unit, so root gets a different remedy than other users.
 */
export const noNetAdmin = (what: string, cause?: unknown): WeftError =>
  new WeftError('PERMISSION', what, {
    remedy: isRoot()
      ? 'give it to the container: `docker run --cap-add NET_ADMIN --device /dev/net/tun`; in a unit, CapabilityBoundingSet=CAP_NET_ADMIN'
      : 'run as root, as the unit does, or give it with `setpriv --inh-caps +net_admin --ambient-caps +net_admin` or AmbientCapabilities= of a unit',
    cause,
  })

/**
 * Returns the error with a remedy for an engine that could not start. `error` is the Error, with `code` and `syscall`,
 * that the addon or node:dgram threw.
 */
export function engineStartError(
  error: unknown,
  config: Pick<EngineConfig, 'port' | 'tunName'> & { readonly bindAddress: string },
): WeftError {
  const { code, syscall } = error as { code?: string; syscall?: string }
  const where = `${config.bindAddress}:${config.port}`
  const fail = (kind: WeftError['code'], message: string, remedy: string): WeftError =>
    new WeftError(kind, message, { remedy, cause: error })
  if (syscall === 'open /dev/net/tun') return noTun(error as NodeJS.ErrnoException)
  if (syscall === 'ioctl TUNSETIFF') {
    if (code === 'EPERM')
      return noNetAdmin(`the TUN device ${config.tunName.replace('%d', '0')} may not be created (EPERM)`, error)
    return fail(
      'DEVICE',
      `the TUN device ${config.tunName} cannot be created (${code})`,
      `if another process uses the device, stop that process; see \`ip link show\``,
    )
  }
  if (syscall === 'pthread_create') {
    return fail(
      'DEVICE',
      `cannot create a thread for the data path (${code})`,
      'raise the limit of tasks: TasksMax= of the unit, the pids limit of the container, `ulimit -u`',
    )
  }
  // If OpenSSL lacks this cipher, which encapsulations with encryption need, native/engine.cc throws an error with this
  // text in place of the name of a system call.
  if (syscall === 'ChaCha20-Poly1305 of OpenSSL') {
    return fail(
      'DEVICE',
      'this Node.js has no ChaCha20-Poly1305, with which WireGuard encrypts',
      'run weftd with a Node.js whose OpenSSL has the cipher (3.x, not in FIPS mode), or set "DataPath": "kernel" in Backend',
    )
  }
  if (code === 'EADDRINUSE') {
    return fail(
      'PORT_IN_USE',
      `UDP port ${where} is taken`,
      `stop the program that uses it (\`ss -ulnp sport = :${config.port}\`; perhaps flanneld or a vxlan device), or set another Backend.Port for all nodes (for wireguard ListenPort or ListenPortV6)`,
    )
  }
  if (code === 'EADDRNOTAVAIL') {
    return fail('ADDRESS', `${config.bindAddress} is not an address of this host`, 'choose the interface with --iface')
  }
  return fail('DEVICE', `the data path cannot start: ${(error as Error).message}`, 'see the kernel log (`dmesg`)')
}
