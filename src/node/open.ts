// open.ts - a node comes to forward: it goes on with what forwards as last known, or opens its own.

import { isDeepStrictEqual } from 'node:util'
import { isWeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { withoutSecrets } from '../control/config/hidden.ts'
import { parseNetworkConfig, type NetworkConfig } from '../control/config/network-config.ts'
import { leasesEqual, type Lease, type LeaseAttrs, type OwnLease } from '../control/lease/lease.ts'
import { run } from '../host/command.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import { isNamedBy } from '../host/links.ts'
import type { Backend } from '../path/contract.ts'
import { removeIdleTun } from '../path/device/tun-device.ts'
import type { Forwarding } from './loops/data-path.ts'
import type { NeedsHost } from './needs.ts'
import { createNode, type Node, type NodeParts } from './node.ts'
import { untilOurs, type Possession } from './possession.ts'
import { lastKnownFile, readLastKnown } from './restart/last-known.ts'
import type { Succession } from './restart/succession.ts'

/** The data path that forwards as last known, and all that it was opened with. */
export interface Resumed extends Forwarding {
  readonly config: NetworkConfig
  readonly external: ExternalInterface
  /** Ends its being looked after, for a node that does so from then on. */
  hand(): Promise<void>
  /** Reopens the resumed data path and looks after it again, because the node could not open its own. */
  again(): Promise<void>
}

/** The state before a node exists: whoever forwards until then. */
export interface Before {
  readonly possession: Possession
  readonly succession: Omit<Succession<Resumed>, 'free' | 'resumed' | 'close'>
  /** A backend of this node, always the same one for the same. */
  readonly amend: (backend: Backend) => Backend
  /** The store's name, as storeNameOf gives it. */
  readonly store: string
  /** True when what was resumed is for the present network configuration and external interface. */
  readonly fits: (resumed: Resumed | undefined) => boolean
  /** Checks that a prepared backend can be opened on this host. Throws WeftError with the obstacle. */
  readonly permit: (backend: Backend, host: Omit<NeedsHost, 'run'>) => Promise<void>
  /** Is given the node, which answers to successors from then on. */
  readonly onNode: (node: Node) => void
}

/** True when what was resumed is for this network configuration and this external interface. */
export function fitsTo(configText: string, external: ExternalInterface, { givesSubnets }: NodeParts['manager']) {
  // Compares with the configuration as last known, which is without secrets: a start with one waits for the store, and resumes nothing.
  const known = parseNetworkConfig(withoutSecrets(configText), { areGiven: givesSubnets })
  return (resumed: Resumed | undefined): resumed is Resumed =>
    isDeepStrictEqual(resumed?.config, known) &&
    isDeepStrictEqual(resumed?.backend.external ?? resumed?.external, external)
}

/** A backend goes on with a TUN that it has a name for; any other would be in its way, and keep the route. */
export const goesOnWith = ({ tunNames }: Backend, left: string): boolean =>
  tunNames?.some((name) => isNamedBy(name, left)) === true

/** Returns a node that forwards, for this lease. `clear` removes what is in the way, once nothing forwards any more. */
export async function openNode(
  parts: NodeParts,
  lease: OwnLease,
  attrs: LeaseAttrs,
  resumed: Resumed | undefined,
  before: Before,
  clear: () => Promise<void> = async () => {},
): Promise<Node> {
  const { config, options, signal, log } = parts
  const { possession, succession, fits, amend } = before
  await resumed?.hand()
  const known = resumed ? undefined : await knownBefore(options, lease, before, log)
  const view = resumed?.view ?? known?.view ?? new Map()
  for (;;) {
    await untilOurs(possession, signal)
    const goesOn = resumed && possession.dataPath && fits(resumed) && leasesEqual(resumed.lease, { ...lease, attrs })
    const backend = goesOn ? amend(resumed.backend) : parts.backend
    if (!goesOn) {
      if (resumed) log.warn(`What was last known is out of date; the data path is opened again`)
      await possession.close()
      if (possession.state.is !== 'closed') continue // a successor came first, and what it was lent is open here
      try {
        await possession.open(async () => {
          for (const left of succession.tunNames)
            if (!goesOnWith(backend, left))
              await removeIdleTun(run, left, { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network })
          await clear()
          return backend.open({ ...lease, attrs }, signal, view, known?.others)
        })
      } catch (error) {
        // The last known data path forwards, instead of none, while the node tries again to open its own.
        if (isWeftError(error)) await resumed?.again()
        throw error
      }
    }
    // Otherwise a successor came first.
    if (possession.dataPath) return createNode({ ...parts, backend }, lease, attrs, possession, view)
  }
}

/**
 * The leases that the weftd before believes, or believed, and by what it reaches them: one that runs writes it when it is asked what it is.
 * One that has ended left it, and what it left open too, where the start had to wait for the store, as with a secret in the configuration:
 * sessions and packets in it are these peers'.
 */
async function knownBefore(
  options: NodeParts['options'],
  { key }: OwnLease,
  { store, succession: { isOnLoan, tunNames } }: Pick<Before, 'store' | 'succession'>,
  log: Log,
): Promise<{ readonly view: ReadonlyMap<string, Lease>; readonly others: readonly string[] } | undefined> {
  if (!isOnLoan && tunNames.length === 0) return undefined
  const known = await readLastKnown(lastKnownFile(options), log)
  const isSame = (): boolean =>
    known?.store === store && known.lease.key === key && (known.expiresAt ?? Infinity) > Date.now()
  if (!known || !(isOnLoan || isSame())) return undefined
  return { view: new Map(known.leases.map((each) => [each.key, each])), others: known.others ?? [] }
}
