// rights.ts - checks this process's rights on the host before it acquires a lease, because the lease of a node that
// cannot forward would stay in the store for a day.

import { constants } from 'node:fs'
import { open, readFile } from 'node:fs/promises'
import { kindOf } from '../path/catalog.ts'
import type { Backend } from '../path/contract.ts'
import { noNetAdmin, noTun } from '../path/engine/start-error.ts'
import { requireNeeds, type NeedsHost } from './needs.ts'

/** The bit of the capability CAP_NET_ADMIN (linux/capability.h). */
const NET_ADMIN = 1n << 12n

/** The functions with which weftd examines its rights; tests replace them. */
export interface Rights {
  /** Returns the text of /proc/self/status. */
  status(): Promise<string>
  /** Opens and closes /dev/net/tun. Rejects with the file system's error. */
  openTun(): Promise<void>
}

const HOST: Rights = {
  status: () => readFile('/proc/self/status', 'utf8'),
  openTun: async () => (await open('/dev/net/tun', constants.O_RDWR)).close(),
}

/**
 * Checks, before weftd writes the lease, that this node will be able to forward. Checks the rights, unless this process
 * or its predecessor already forwards, and then the ports, devices and routes. Throws WeftError for the first obstacle.
 */
export async function permit(backend: Backend, host: NeedsHost): Promise<void> {
  if (!host.isForwarding) await requireRights(backend)
  await requireNeeds(backend, host)
}

/**
 * Checks that this process may make the devices and routes of a prepared backend. Throws WeftError PERMISSION or
 * NO_TUN. Must not be called for a process that already forwards.
 */
export async function requireRights(
  { name, tunNames }: Pick<Backend, 'name' | 'tunNames'>,
  host = HOST,
): Promise<void> {
  // If other programs make the routes, skip the check, because weftd does not know the rights of these programs.
  if (kindOf(name)?.routes === 'none') return
  // If /proc/self/status cannot be read, skip the check. If a right is missing, the kernel later returns an error for
  // the operation.
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
