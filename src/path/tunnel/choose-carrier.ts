// choose-carrier.ts - the ways by which packets of a family travel to peers, in order: each takes the peers that it can and leaves the rest to the
// next. The last takes all that are left.

import { sideOf, type Lease } from '../../control/lease/lease.ts'
import type { Family } from '../../net/address.ts'
import type { PathSide } from '../contract.ts'
import type { PeerTraffic } from '../engine/engine.ts'

type Peers = ReadonlyMap<string, Lease>
/** The peers that were before, by each key whose peer came, changed or went. */
export type PeerChanges = ReadonlyMap<string, Lease | undefined>

/** A way that has every peer, whichever way packets go to it: whoever made it gives it the peers of all families. */
export interface LastWay {
  readonly name: NonNullable<PathSide['way']>
  /** The destination of packets to a peer. */
  endpointOf(peer: Lease): string
  /** The traffic that it counted of peers, also of others than it takes; left out when nobody counts by peer. */
  traffic?(): ReadonlyMap<string, PeerTraffic>
  /** The path MTU of a peer, as a data path tells it. */
  pathMtu?(peer: Lease): number | undefined
}

export interface Way extends LastWay {
  /** True when packets to a peer go this way, of those peers that no way before it takes. */
  takes(peer: Lease): boolean
  /** Takes of all peers what it can. No other key differs from the last time than those of `changed`; all may where it is left out. */
  apply(peers: Peers, changed: PeerChanges | undefined): Promise<void>
  /** True when it has a route of its own to this part of the network, beside the tunnel's; left out when it makes none. */
  hasRoute?(destination: string): boolean
  resync(): Promise<readonly string[]>
}

/** `peers` are those that all ways were given last. */
export function createWays(family: Family, ways: readonly Way[], last: LastWay, peers: () => Peers) {
  // A peer that changes its way has the new one before the old one goes, since the last has every peer.
  const lastFirst = ways.toReversed()
  const of = (peer: Lease): LastWay => ways.find((way) => way.takes(peer)) ?? last
  return {
    of,
    side(peer: Lease): PathSide {
      const way = of(peer)
      return { endpoint: way.endpointOf(peer), probe: sideOf(peer, family).subnet.address, way: way.name }
    },
    /** After the last way has them. */
    async apply(changed: PeerChanges | undefined): Promise<void> {
      for (const way of lastFirst) await way.apply(peers(), changed)
    },
    /** The traffic of each peer, as its way counted it. */
    traffic(): ReadonlyMap<string, PeerTraffic> {
      const counted = [...ways, last].flatMap((way) =>
        [...(way.traffic?.() ?? [])].filter(([key]) => {
          const peer = peers().get(key)
          return peer !== undefined && of(peer) === way
        }),
      )
      return new Map(counted)
    },
    pathMtu: (peer: Lease): number | undefined => of(peer).pathMtu?.(peer),
    async resync(): Promise<readonly string[]> {
      const mended: string[] = []
      for (const way of lastFirst) mended.push(...(await way.resync()))
      return mended
    },
  }
}
export type Ways = ReturnType<typeof createWays>
