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

/** Chooses the carrier of each peer's packets, for the peers of one family. */
export class Carriers {
  readonly #family: Family
  /** The carriers that are tried before the fallback carrier, in this order. */
  readonly #carriers: readonly Carrier[]
  /** The fallback carrier, which always has every peer. */
  readonly #last: FallbackCarrier
  /** Returns the peers that were last given to all carriers. */
  readonly #peers: () => Peers

  constructor(family: Family, carriers: readonly Carrier[], last: FallbackCarrier, peers: () => Peers) {
    this.#family = family
    this.#carriers = carriers
    this.#last = last
    this.#peers = peers
  }

  /** Returns the carrier of the packets to this peer. */
  of(peer: Lease): FallbackCarrier {
    return this.#carriers.find((carrier) => carrier.takes(peer)) ?? this.#last
  }

  side(peer: Lease): PathSide {
    const carrier = this.of(peer)
    return { endpoint: carrier.endpointOf(peer), probe: sideOf(peer, this.#family).subnet.address, way: carrier.name }
  }

  /** Gives the peers to all carriers except the fallback carrier, which must already have them. */
  async apply(changed: PeerChanges | undefined): Promise<void> {
    for (const carrier of this.#lastFirst()) await carrier.apply(this.#peers(), changed)
  }

  traffic(): ReadonlyMap<string, PeerTraffic> {
    const counted = [...this.#carriers, this.#last].flatMap((carrier) =>
      [...(carrier.traffic?.() ?? [])].filter(([key]) => {
        const peer = this.#peers().get(key)
        return peer !== undefined && this.of(peer) === carrier
      }),
    )
    return new Map(counted)
  }

  pathMtu(peer: Lease): number | undefined {
    return this.of(peer).pathMtu?.(peer)
  }

  async resync(): Promise<readonly string[]> {
    const repaired: string[] = []
    for (const carrier of this.#lastFirst()) repaired.push(...(await carrier.resync()))
    return repaired
  }

  /**
   * Returns the carriers in reverse order. A peer that moves to a later carrier gets the later carrier before the earlier carrier drops the
   * peer.
   */
  #lastFirst(): readonly Carrier[] {
    return this.#carriers.toReversed()
  }
}
