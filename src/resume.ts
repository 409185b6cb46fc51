// resume.ts - goes on as the daemon before did, before the store was asked: the same lease, peers and device.

import type { Backend, DataPath } from './backend/backend.ts'
import { createBackend } from './choose.ts'
import { parseNetworkConfig, type NetworkConfig } from './config/network-config.ts'
import { describeError, isWeftError } from './errors.ts'
import { run } from './host/command.ts'
import { chooseExternalInterface, type ExternalInterface } from './host/external-interface.ts'
import { leasesEqual, type Lease, type OwnLease } from './lease/lease.ts'
import type { Log } from './log.ts'
import type { DaemonOptions } from './options.ts'
import type { Inheritance } from './restart/inheritance.ts'
import { storeNameOf, type LastKnown } from './restart/last-known.ts'
import { interfaceWishes } from './start.ts'

/** A data path that forwards by what was last known, and all that it was opened with. */
export interface Resumed {
  readonly config: NetworkConfig
  readonly external: ExternalInterface
  readonly backend: Backend
  readonly lease: OwnLease
  readonly leases: ReadonlyMap<string, Lease>
  readonly dataPath: DataPath
}

/** Undefined where the store has to be waited for: nothing is known, or it is of another store, host or time. What is in the way is said. */
export async function resume(
  known: LastKnown | undefined,
  options: DaemonOptions,
  inheritance: Inheritance,
  log: Log,
  signal: AbortSignal,
): Promise<Resumed | undefined> {
  if (!known || known.store !== storeNameOf(options) || (known.expiresAt ?? Infinity) <= Date.now()) return undefined
  try {
    const config = parseNetworkConfig(known.config, { areGiven: options['kube-subnet-mgr'] })
    const external = await chooseExternalInterface(run, interfaceWishes(options), { ...log, info: () => {} })
    const publishedBefore = async () => known.lease.attrs
    const backend = await createBackend(config, external, options, log, publishedBefore, inheritance)
    const lease = { ...known.lease, attrs: await backend.prepare(signal), expiresAt: known.expiresAt, revision: 0n }
    if (!leasesEqual(lease, known.lease)) return undefined
    const leases = new Map(known.leases.map((each) => [each.key, each]))
    const dataPath = await backend.open(lease, signal, leases)
    const peers = leases.size - (leases.has(lease.key) ? 1 : 0)
    log.info(`Forwarding to ${peers} peers as last known, until the store says what they are`)
    await inheritance.settle()
    return { config, external, backend, lease, leases, dataPath }
  } catch (error) {
    signal.throwIfAborted()
    if (!isWeftError(error)) throw error
    log.warn(`Cannot go on as the daemon before did: ${describeError(error)}; the store is waited for`)
    return undefined
  }
}
