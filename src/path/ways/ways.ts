// ways.ts - the ways by which packets travel to peers, in order: each takes the peers that it can and leaves the rest to the next. The
// last takes all that are left.

import type { PeerTraffic } from '../engine/engine.ts'
import type { Ipv4Lease } from '../../control/lease/lease.ts'
import type { PathPeer, PathSide } from '../backend.ts'

type Peers = ReadonlyMap<string, Ipv4Lease>
/** The peers that were before, by each key whose peer came, changed or went. */
export type PeerChanges = ReadonlyMap<string, Ipv4Lease | undefined>

export interface Way {
  readonly name: NonNullable<PathSide['way']>
  /** True when packets to a peer go this way, of those peers that no way before it takes. */
  takes(peer: Ipv4Lease): boolean
  /** Takes of all peers what it can. No other key differs from the last time than those of `changed`; all may where it is left out. */
  apply(peers: Peers, changed: PeerChanges | undefined): Promise<void>
  /** True when it has a route of its own to this part of the network, beside the tunnel's; left out when it makes none. */
  hasRoute?(destination: string): boolean
  /** The destination of packets to a peer. */
  endpointOf(peer: Ipv4Lease): string
  /** The traffic that it counted of peers, also of others than it takes; left out when nobody counts by peer. */
  traffic?(): ReadonlyMap<string, PeerTraffic>
  /** The path MTU of a peer, as a data path tells it. */
  pathMtu?(peer: Ipv4Lease): number | undefined
  resync(): Promise<readonly string[]>
}

/** `peers` are those that all ways were given last. */
export function createWays(ways: readonly Way[], last: Way, peers: () => Peers) {
  const all = [...ways, last]
  // A peer that changes its way has the new one before the old one goes, since the last can carry every peer.
  const lastFirst = all.toReversed()
  const of = (peer: Ipv4Lease): Way => ways.find((way) => way.takes(peer)) ?? last
  return {
    of,
    pathPeer(peer: Ipv4Lease): PathPeer {
      const way = of(peer)
      const probe = peer.subnet.ipv4.address
      return { key: peer.key, ipv4: { endpoint: way.endpointOf(peer), probe, way: way.name } }
    },
    async apply(changed: PeerChanges | undefined): Promise<void> {
      for (const way of lastFirst) await way.apply(peers(), changed)
    },
    /** The traffic of each peer, as its way counted it. */
    traffic(): ReadonlyMap<string, PeerTraffic> {
      const counted = all.flatMap((way) =>
        [...(way.traffic?.() ?? [])].filter(([key]) => {
          const peer = peers().get(key)
          return peer !== undefined && of(peer) === way
        }),
      )
      return new Map(counted)
    },
    pathMtu: (peer: Ipv4Lease): number | undefined => of(peer).pathMtu?.(peer),
    async resync(): Promise<readonly string[]> {
      const mended: string[] = []
      for (const way of lastFirst) mended.push(...(await way.resync()))
      return mended
    },
  }
}
