// bridge-probes.ts - lists the echo requests between the bridges of containers, by which weft doctor checks that packets
// with addresses of containers cross the underlay if the backend routes them without a tunnel. Pure.

import type { Link } from '../../host/kernel.ts'
import { netContains, type Address, type Family } from '../../net/address.ts'
import { placeIn, type Status } from '../../report/status.ts'
import { addressesIn, peersOf } from './route-queries.ts'
import { bridgeOf, kindIn, ownSides, type SeenSide } from './sides.ts'

/** The maximum number of peers whose bridges weft doctor probes. */
const PROBED_BRIDGES = 4

/** An echo request to the bridge of a peer's containers, from the bridge of this node's containers and from this host. */
interface BridgeProbe {
  readonly family: Family
  readonly lease: string
  readonly to: Address
  readonly fromBridge: Address
  readonly fromHost: Address
}

export interface BridgeAnswer extends BridgeProbe {
  /** True if the peer's bridge answered the request from the bridge of this node. */
  readonly isBridgeAnswered: boolean
  /** True if the peer's bridge answered the request from this host. */
  readonly isHostAnswered: boolean
}

/** Returns true if the underlay carries packets with the addresses of containers, and weftd probes only hosts. */
export function isCrossing(status: Pick<Status, 'config'>): boolean {
  const kind = kindIn(status)
  return kind !== undefined && (kind.probe === 'host' || kind.publishesRoute === true)
}

/**
 * Lists the probes. The list is empty if this node has no bridge of containers. Peers whose hosts answer come first,
 * because the lease of a host that is gone remains for a day.
 */
export function bridgeProbes(status: Status, links: readonly Link[]): readonly BridgeProbe[] {
  if (!isCrossing(status)) return []
  return ownSides(status).flatMap((side) => {
    const { family, subnet } = side
    const bridge = links.find(({ name }) => name === bridgeOf(links, subnet, status))
    const fromBridge = addressesIn(bridge, family).find(({ address }) => netContains(subnet, address))?.address
    const fromHost = status.node ? placeIn(status.node, family).publicIp : undefined
    if (fromBridge === undefined || fromHost === undefined) return []
    return peersOf(side, status)
      .toSorted((a, b) => Number(isAnswering(b)) - Number(isAnswering(a)))
      .slice(0, PROBED_BRIDGES)
      .flatMap(({ peer: { lease }, subnet: there }) =>
        there ? [{ family, lease, to: nextOf(there.address), fromBridge, fromHost }] : [],
      )
  })
}

const isAnswering = ({ state }: SeenSide): boolean => state === 'answering'
const nextOf = (address: Address): Address => (typeof address === 'bigint' ? address + 1n : address + 1)
