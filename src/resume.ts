// resume.ts - goes on as the daemon before did, before the store was asked: the same lease, peers and device.

import type { Backend } from './backend/backend.ts'
import { createBackend } from './choose.ts'
import { ipv4For, parseNetworkConfig, type NetworkConfig } from './config/network-config.ts'
import { isWeftError, messageOf } from './errors.ts'
import { createBell } from './host/bell.ts'
import { run } from './host/command.ts'
import { lookAhead, type LookAhead } from './host/look-ahead.ts'
import { chooseExternalInterface, type ExternalInterface } from './host/external-interface.ts'
import { leasesEqual } from './lease/lease.ts'
import type { Log } from './log.ts'
import type { Forwarding } from './node/data-path.ts'
import type { Possession } from './node/possession.ts'
import type { DaemonOptions } from './options.ts'
import { storeNameOf, type LastKnown } from './restart/last-known.ts'
import type { Inheritance } from './restart/succession.ts'
import { interfaceWishes } from './start.ts'

/** What forwards by what was last known, and all that it was opened with. */
export interface Resumed extends Forwarding {
  readonly config: NetworkConfig
  readonly external: ExternalInterface
  readonly backend: Backend
  /** Ends its being looked after, for a node that has it from then on. */
  hand(): Promise<void>
}

/**
 * `nothing` where the store has to be waited for: nothing is known, or it is of another store, host or time; `failed` where the host
 * does not let it forward now. What is in the way is said. Until it is handed on, its device and its data path are kept right. Called in the turn of `held`.
 */
export async function resume(
  known: LastKnown | undefined,
  options: DaemonOptions,
  inheritance: Inheritance,
  held: Possession,
  log: Log,
  stopping: AbortSignal,
): Promise<Resumed | 'nothing' | 'failed'> {
  if (!known || known.store !== storeNameOf(options) || (known.expiresAt ?? Infinity) <= Date.now()) return 'nothing'
  let look: LookAhead | undefined
  const ended = new AbortController()
  const { signal } = ended
  const stop = (): void => ended.abort(stopping.reason)
  stopping.addEventListener('abort', stop, { once: true })
  try {
    stopping.throwIfAborted()
    const config = parseNetworkConfig(known.config, { areGiven: options['kube-subnet-mgr'] })
    look = lookAhead(run, ipv4For('weftd', config).network)
    const runFirst = look.run
    const external = await chooseExternalInterface(runFirst, interfaceWishes(options), { ...log, info: () => {} })
    const publishedBefore = async () => known.lease.attrs
    const backend = await createBackend(config, external, options, log, publishedBefore, inheritance, runFirst)
    const attrs = await backend.prepare(signal)
    const lease = { ...known.lease, attrs, expiresAt: known.expiresAt, revision: 0n }
    if (!leasesEqual(lease, known.lease)) {
      stopping.removeEventListener('abort', stop)
      return 'nothing'
    }
    const view = new Map(known.leases.map((each) => [each.key, each]))
    const dataPath = await backend.open(lease, signal, view)
    const peers = view.size - (view.has(lease.key) ? 1 : 0)
    log.info(`Forwarding to ${peers} peers as last known, until the store says what they are`)
    const forwarding: Forwarding = {
      ...held,
      ...{ backend, log, signal, lease, attrs, view, dataPath },
      ...{ isUnapplied: false, repaired: 0, leaseDoubt: createBell(), learnt: createBell() },
      ...{ unprobed: { keys: undefined }, unsearched: { keys: undefined } },
    }
    const resumed: Resumed = Object.assign(forwarding, {
      config,
      external,
      async hand() {
        stopping.removeEventListener('abort', stop)
        ended.abort(new Error('a node has the data path'))
        await kept
      },
    })
    const lookAfter = async (): Promise<never> => {
      const { keepForwarding } = await import('./node/data-path.ts') // not before packets pass
      return keepForwarding(resumed, async () => {})
    }
    const kept = lookAfter().catch((error: unknown) => {
      if (!signal.aborted) log.error(`Nobody looks after the data path until the store answers: ${messageOf(error)}`)
    })
    return resumed
  } catch (error) {
    stopping.removeEventListener('abort', stop)
    stopping.throwIfAborted()
    // Also what no version of weft should have written there.
    log.warn(`Cannot go on as the daemon before did: ${messageOf(error)}; the store is waited for`)
    return isWeftError(error) && error.code !== 'CONFIG' ? 'failed' : 'nothing'
  } finally {
    look?.forget()
  }
}
