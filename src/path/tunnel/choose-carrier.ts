// choose-carrier.ts - chooses what carries each peer's packets, such as a direct route or the tunnel. The carriers are tried in order: each
// takes the peers that it can reach, and the last carrier takes the remaining peers.

import { sideOf, type Lease } from '../../control/lease/lease.ts'
import type { Family } from '../../net/address.ts'
import type { PathSide } from '../contract.ts'
import type { PeerTraffic } from '../engine/engine.ts'

type Peers = ReadonlyMap<string, Lease>
/** The lease keys of peers that were added, changed or removed, each with the peer's earlier lease; undefined for an added peer. */
export type PeerChanges = ReadonlyMap<string, Lease | undefined>

/**
 * The carrier that is tried last, such as the tunnel. A carrier is a way for packets to reach a peer's host. The caller passes all peers to
 * this carrier, including peers whose packets an earlier carrier takes.
 */
export interface FallbackCarrier {
  readonly name: NonNullable<PathSide['way']>
  endpointOf(peer: Lease): string
  /**
   * Returns the traffic by lease key, which may include peers of other carriers. Left out if the carrier does not count the traffic per
   * peer.
   */
  traffic?(): ReadonlyMap<string, PeerTraffic>
  pathMtu?(peer: Lease): number | undefined
}

export interface Carrier extends FallbackCarrier {
  /** True if this carrier can take the packets to `peer`. It is called only for peers that no earlier carrier takes. */
  takes(peer: Lease): boolean
  /**
   * Sets the peers; the carrier takes those that it can reach. Only peers with a key in `changed` differ from the last call; if `changed`
   * is undefined, all may differ.
   */
  apply(peers: Peers, changed: PeerChanges | undefined): Promise<void>
  /** True if this carrier has a route to `destination`, a subnet of the network, as text; left out if the carrier makes no routes. */
  hasRoute?(destination: string): boolean
  resync(): Promise<readonly string[]>
}

/** Returns the functions that use the right carrier for each peer. `peers` returns the peers that were last given to all carriers. */
export function createCarriers(
  family: Family,
  carriers: readonly Carrier[],
  last: FallbackCarrier,
  peers: () => Peers,
) {
  // The fallback carrier always has every peer. Applying in reverse order gives a peer to its new carrier, if that is a later one, before
  // the earlier carrier drops it.
  const lastFirst = carriers.toReversed()
  const of = (peer: Lease): FallbackCarrier => carriers.find((carrier) => carrier.takes(peer)) ?? last
  return {
    of,
    side(peer: Lease): PathSide {
      const carrier = of(peer)
      return { endpoint: carrier.endpointOf(peer), probe: sideOf(peer, family).subnet.address, way: carrier.name }
    },
    /** Gives the peers to all carriers except the fallback carrier, which must already have them. */
    async apply(changed: PeerChanges | undefined): Promise<void> {
      for (const carrier of lastFirst) await carrier.apply(peers(), changed)
    },
    traffic(): ReadonlyMap<string, PeerTraffic> {
      const counted = [...carriers, last].flatMap((carrier) =>
        [...(carrier.traffic?.() ?? [])].filter(([key]) => {
          const peer = peers().get(key)
          return peer !== undefined && of(peer) === carrier
        }),
      )
      return new Map(counted)
    },
    pathMtu: (peer: Lease): number | undefined => of(peer).pathMtu?.(peer),
    async resync(): Promise<readonly string[]> {
      const repaired: string[] = []
      for (const carrier of lastFirst) repaired.push(...(await carrier.resync()))
      return repaired
    },
  }
}
export type Carriers = ReturnType<typeof createCarriers>
