// choose-carrier.ts - chooses the carrier of each peer's packets. The carriers are tried in order: each takes the peers
// that it can reach, and the last one takes the rest.

import { sideOf, type Lease } from '../../control/lease/lease.ts'
import type { Family } from '../../net/address.ts'
import type { PathSide } from '../contract.ts'
import type { PeerTraffic } from '../engine/engine.ts'

type Peers = ReadonlyMap<string, Lease>
/** The keys of peers that came, changed or went, each with the earlier lease. */
export type PeerChanges = ReadonlyMap<string, Lease | undefined>

/**
 * The last carrier. It knows every peer, even those whose packets another carrier has. The caller gives it the peers of
 * all families.
 */
export interface FallbackCarrier {
  readonly name: NonNullable<PathSide['way']>
  endpointOf(peer: Lease): string
  /**
   * The counted traffic by lease key, which may include peers of other carriers; left out if it is not counted by peer.
   */
  traffic?(): ReadonlyMap<string, PeerTraffic>
  pathMtu?(peer: Lease): number | undefined
}

export interface Carrier extends FallbackCarrier {
  /** True if this carrier takes the packets to a peer that no earlier carrier took. */
  takes(peer: Lease): boolean
  /**
   * Sets the peers, of which it takes those that it can reach. Only the keys of `changed` differ from the last call;
   * all may differ if it is undefined.
   */
  apply(peers: Peers, changed: PeerChanges | undefined): Promise<void>
  /** True if the carrier has its own route to this part of the network; left out if it makes no routes. */
  hasRoute?(destination: string): boolean
  resync(): Promise<readonly string[]>
}

/** Returns the choice between carriers. `peers` returns the peers that all carriers were given last. */
export function createCarriers(
  family: Family,
  carriers: readonly Carrier[],
  last: FallbackCarrier,
  peers: () => Peers,
) {
  // The last carrier has every peer. Applying in reverse order gives a peer its new carrier before it loses the old
  // one.
  const lastFirst = carriers.toReversed()
  const of = (peer: Lease): FallbackCarrier => carriers.find((carrier) => carrier.takes(peer)) ?? last
  return {
    of,
    side(peer: Lease): PathSide {
      const carrier = of(peer)
      return { endpoint: carrier.endpointOf(peer), probe: sideOf(peer, family).subnet.address, way: carrier.name }
    },
    /** Applies the peers. The last carrier must already have them. */
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
