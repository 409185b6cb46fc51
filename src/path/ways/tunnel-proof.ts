// tunnel-proof.ts - shows, before a node takes a lease, that this host lets weftd make a TUN: a node that cannot forward must not have one.

import { open, readFile } from 'node:fs/promises'
import { engineStartError } from '../engine/start-error.ts'

/** The bit of CAP_NET_ADMIN in a set of capabilities (linux/capability.h). */
const NET_ADMIN = 1n << 12n

export interface ProofParts {
  readonly tunName: string
  readonly device?: string
  readonly status?: string
}

/** Makes nothing. Throws WeftError NO_TUN or PERMISSION, as the start of an engine does. */
export async function proveTunnel({
  tunName,
  device = '/dev/net/tun',
  status = '/proc/self/status',
}: ProofParts): Promise<void> {
  const refuse = (code: string | undefined, syscall: string): never => {
    const error = Object.assign(new Error(`${syscall}: ${code}`), { code, syscall })
    throw engineStartError(error, { tunName, bindAddress: '', port: 0 })
  }
  try {
    await (await open(device, 'r+')).close()
  } catch (error) {
    refuse((error as NodeJS.ErrnoException).code, 'open /dev/net/tun')
  }
  const text = await readFile(status, 'utf8').catch(() => '')
  const [, effective] = /^CapEff:\s*([\da-f]+)$/m.exec(text) ?? []
  if (effective !== undefined && (BigInt(`0x${effective}`) & NET_ADMIN) === 0n) refuse('EPERM', 'ioctl TUNSETIFF')
}
