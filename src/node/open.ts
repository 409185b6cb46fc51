// open.ts - opens the data path of a node, or continues with the data path that this process opened with the last known
// state.

import { isDeepStrictEqual } from 'node:util'
import { isWeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { withoutSecrets } from '../control/config/hidden.ts'
import { parseNetworkConfig, type NetworkConfig } from '../control/config/network-config.ts'
import { leasesEqual, type Lease, type LeaseAttrs, type OwnLease } from '../control/lease/lease.ts'
import { run } from '../host/command.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import { hasBackendName, isNamedBy } from '../path/catalog.ts'
import type { Backend } from '../path/contract.ts'
import { removeIdleTun } from '../path/device/tun-device.ts'
import { openDataPaths } from './data-paths.ts'
import type { ForwardingNode } from './loops/data-path.ts'
import type { NeedsHost } from './needs.ts'
import { createNode, type Node, type NodeParts } from './node.ts'
import { untilOurs, type Ownership } from './ownership.ts'
import type { Handover } from './restart/handover.ts'
import { lastKnownFile, readLastKnown } from './restart/last-known.ts'

/** The node that forwards with the last known state, and the facts with which its data path was opened. */
export interface ResumedNode extends ForwardingNode {
  readonly config: NetworkConfig
  readonly external: ExternalInterface
  /** Ends the temporary loop that repairs the data path, because from now on the node's own loop repairs it. */
  hand(): Promise<void>
  /**
   * Opens the data path of the last known state again and repairs it as before, because the node could not open its
   * own.
   */
  again(): Promise<void>
}

/** The objects that the start has before there is a node. */
export interface StartParts {
  readonly ownership: Ownership
  readonly handover: Omit<Handover<ResumedNode>, 'free' | 'resumed' | 'close' | 'enter' | 'predecessorPid'>
  /**
   * Returns the backend with the public IP that an operator set (lease.ts). The result is always the same for the same
   * backend.
   */
  readonly amend: (backend: Backend) => Backend
  /** A name that identifies the store (storeNameOf). */
  readonly store: string
  /**
   * True if the node that forwards with the last known state has the present network configuration and external
   * interface.
   */
  readonly fits: (resumed: ResumedNode | undefined) => boolean
  /** Checks that a prepared backend can be opened on this host. Throws WeftError with the obstacle. */
  readonly permit: (backend: Backend, host: Omit<NeedsHost, 'run'>) => Promise<void>
  /** Publishes the fact for which the start waits. */
  readonly publish?: (waitsFor: string) => void
  /** Called once with the node. After that the node answers a newer weftd that wants to take over the data path. */
  readonly onNode: (node: Node) => void
}

/** Returns the interface without its name if its index identifies it, because the name may change. */
const unnamed = (external: ExternalInterface | undefined): Partial<ExternalInterface> | undefined =>
  external?.index === undefined ? external : { ...external, name: '' }

/**
 * Returns a function that checks whether a node that forwards with the last known state has this network configuration
 * and external interface.
 */
export function fitsTo(configText: string, external: ExternalInterface, { givesSubnets }: NodeParts['manager']) {
  // The last known configuration has no secrets. weftd never forwards with the last known state if the configuration
  // has a secret.
  const known = parseNetworkConfig(withoutSecrets(configText), { areGiven: givesSubnets })
  return (resumed: ResumedNode | undefined): resumed is ResumedNode =>
    isDeepStrictEqual(resumed?.config, known) &&
    isDeepStrictEqual(unnamed(resumed?.backend.external ?? resumed?.external), unnamed(external))
}

/**
 * True if the backend can use this TUN, which may have been renamed since the earlier run. Any other TUN would block the backend and keep
 * the route.
 */
export const goesOnWith = ({ tunNames }: Backend, left: string): boolean =>
  tunNames?.some((name) => isNamedBy(name, left) || !hasBackendName(left)) === true

/**
 * Opens the data path for this lease, or continues with the data path that was opened with the last known state.
 * Returns the node. `clear` removes obstacles when no process forwards any more.
 */
export async function openNode(
  parts: NodeParts,
  lease: OwnLease,
  attrs: LeaseAttrs,
  resumed: ResumedNode | undefined,
  before: StartParts,
  clear: () => Promise<void> = async () => {},
): Promise<Node> {
  const { config, options, signal, log } = parts
  const { ownership, handover, fits, amend } = before
  await resumed?.hand()
  const known = resumed ? undefined : await knownBefore(options, lease, before, log)
  const view = resumed?.view ?? known?.view ?? new Map()
  for (;;) {
    await untilOurs(ownership, signal)
    const goesOn = resumed && ownership.dataPath && fits(resumed) && leasesEqual(resumed.lease, { ...lease, attrs })
    const backend = goesOn ? amend(resumed.backend) : parts.backend
    if (!goesOn) {
      if (resumed) log.warn('The last known state is out of date; the data path is opened again')
      await ownership.close()
      if (ownership.state.is !== 'closed') continue // a successor came first, and the lent path is open here
      try {
        await ownership.open(async () => {
          for (const left of handover.tunNames)
            if (!goesOnWith(backend, left))
              await removeIdleTun(run, left, { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network })
          await clear()
          return openDataPaths({
            backend,
            lease: { ...lease, attrs },
            leases: view,
            others: known?.others,
            signal,
            log,
          })
        })
      } catch (error) {
        // While the node tries again to open its own data path, let the last known data path forward, so that packets
        // are not lost.
        if (isWeftError(error)) await resumed?.again()
        throw error
      }
    }
    // If there is no data path any more, a successor has taken it over.
    if (ownership.dataPath) return createNode({ ...parts, backend }, lease, attrs, ownership, view)
  }
}

/**
 * Reads the leases and the underlay choices that the predecessor writes to the file of the last known state when it
 * receives `meet`. Also reads those of an ended process whose descriptors are kept, because the sessions and packets in
 * these descriptors belong to its peers. Returns undefined in any other case.
 */
async function knownBefore(
  options: NodeParts['options'],
  { key }: OwnLease,
  { store, handover: { isOnLoan, tunNames } }: Pick<StartParts, 'store' | 'handover'>,
  log: Log,
): Promise<{ readonly view: ReadonlyMap<string, Lease>; readonly others: readonly string[] } | undefined> {
  if (!isOnLoan && tunNames.length === 0) return undefined
  const known = await readLastKnown(lastKnownFile(options), log)
  const isSame = (): boolean =>
    known?.store === store && known.lease.key === key && (known.expiresAt ?? Infinity) > Date.now()
  if (!known || !(isOnLoan || isSame())) return undefined
  return { view: new Map(known.leases.map((each) => [each.key, each])), others: known.others ?? [] }
}
