// rights.ts - what this process may do on the host, tried before it takes a lease: the lease of a node that cannot forward would stay a day.

import { constants } from 'node:fs'
import { open, readFile } from 'node:fs/promises'
import type { Backend } from '../path/backend.ts'
import { noNetAdmin, noTun } from '../path/engine/start-error.ts'
import { kindOf } from '../path/kinds.ts'

/** CAP_NET_ADMIN's bit (linux/capability.h). */
const NET_ADMIN = 1n << 12n

/** The parts of the host that are asked. */
export interface Rights {
  /** The text of /proc/self/status. */
  status(): Promise<string>
  /** Rejects with the file system's error. */
  openTun(): Promise<void>
}

const HOST: Rights = {
  status: () => readFile('/proc/self/status', 'utf8'),
  openTun: async () => (await open('/dev/net/tun', constants.O_RDWR)).close(),
}

/**
 * Checks that this process may make the devices and routes of a backend that is prepared. Throws WeftError PERMISSION or NO_TUN. Not for a
 * process that forwards already.
 */
export async function requireRights(
  { name, tunNames }: Pick<Backend, 'name' | 'tunNames'>,
  host = HOST,
): Promise<void> {
  // Commands and routes of others need what they need.
  if (kindOf(name)?.routes === 'none') return
  // Where it cannot be read, the kernel says later what it refuses.
  const status = await host.status().catch(() => '')
  const effective = /^CapEff:\s*([\da-f]+)$/m.exec(status)?.[1]
  if (effective !== undefined && (BigInt(`0x${effective}`) & NET_ADMIN) === 0n)
    throw noNetAdmin(
      'this process may not make network devices and routes (EPERM): it lacks the capability CAP_NET_ADMIN',
    )
  if ((tunNames ?? []).length === 0) return
  try {
    await host.openTun()
  } catch (error) {
    throw noTun(error as NodeJS.ErrnoException)
  }
}
