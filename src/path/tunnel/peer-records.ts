// peer-records.ts - makes the engine's records of a tunnel's peers, and gives each peer a slot that counts its traffic.

import { sideOf, type Lease } from '../../control/lease/lease.ts'
import type { Family } from '../../net/address.ts'
import type { Peer } from '../engine/peers.ts'
import type { TrafficSlots } from '../engine/traffic.ts'
import type { PeerChanges } from './choose-carrier.ts'
import type { InnerFamilies, InnerFamily } from './inner-families.ts'
import type { TunnelKind } from './tunnel-options.ts'
import type { Underlay } from './underlay.ts'

export class PeerRecords {
  /** The encapsulation's own data about a peer, and the session keeper. */
  readonly #kind: Pick<TunnelKind, 'endOf' | 'keeper'>
  /** The families of inner packets, with the peers of each family. */
  readonly #innerFamilies: InnerFamilies
  /** The outer family, the endpoint and the limit of packet lengths for each peer. */
  readonly #underlay: Underlay
  /** The slots in which the engine counts each peer's traffic. */
  readonly #slots: TrafficSlots

  constructor(
    kind: Pick<TunnelKind, 'endOf' | 'keeper'>,
    innerFamilies: InnerFamilies,
    underlay: Underlay,
    slots: TrafficSlots,
  ) {
    this.#kind = kind
    this.#innerFamilies = innerFamilies
    this.#underlay = underlay
    this.#slots = slots
  }

  /** Returns the records of all peers. */
  all(): Peer[] {
    return this.#innerFamilies.all.flatMap((inner) =>
      [...inner.filter.peers().values()].map((peer) => this.#recordOf(inner, peer)),
    )
  }

  /** Returns the records of one peer, one for each family in which it is a peer. */
  ofPeer(key: string): Peer[] {
    return this.#innerFamilies.withPeer(key).map(([inner, peer]) => this.#recordOf(inner, peer))
  }

  /** Returns the records of the peers with these lease keys in one family of inner packets. */
  inFamily(family: Family, keys: readonly string[]): Peer[] {
    const inner = this.#innerFamilies.of(family)
    return inner ? keys.flatMap((key) => this.#recordsOf(inner, key)) : []
  }

  /** Gives a slot to each peer, and forgets the slots and outer families of all former peers. Returns the records of all peers. */
  updateAll(): Peer[] {
    this.#slots.keep(this.#innerFamilies.keys())
    for (const key of this.#underlay.chosen) if (!this.#innerFamilies.hasPeer(key)) this.#underlay.forgetChoice(key)
    return this.all()
  }

  /**
   * Gives a slot to each added peer, and forgets the slots and outer families of the removed peers. `changes` has the changes of the peers
   * of each family. Returns the records that make the same changes in the engine's peer table.
   */
  update(changes: readonly (readonly [InnerFamily, PeerChanges])[]): Peer[] {
    const keys = new Set(changes.flatMap(([, changed]) => [...changed.keys()]))
    for (const key of keys) {
      if (this.#innerFamilies.hasPeer(key)) continue
      this.#slots.remove(key)
      this.#underlay.forgetChoice(key)
    }
    for (const key of keys) if (this.#innerFamilies.hasPeer(key)) this.#slots.add(key)
    const gone = changes.flatMap(([{ family, filter }, changed]) =>
      [...changed].flatMap(([key, before]) =>
        before && !filter.peers().has(key) ? sideOf(before, family).subnet : [],
      ),
    )
    const came = changes.flatMap(([inner, changed]) =>
      [...changed.keys()].flatMap((key) => this.#recordsOf(inner, key)),
    )
    // Removals come first, because a removed peer's subnet may now belong to another peer.
    return [...gone.map((subnet): Peer => ({ subnet, endpoint: 0, port: 0, isGone: true })), ...came]
  }

  #recordsOf(inner: InnerFamily, key: string): Peer[] {
    const peer = inner.filter.peers().get(key)
    return peer ? [this.#recordOf(inner, peer)] : []
  }

  #recordOf({ family }: InnerFamily, peer: Lease): Peer {
    const { endOf, keeper } = this.#kind
    const { address, port } = this.#underlay.endpointOf(peer)
    return {
      subnet: sideOf(peer, family).subnet,
      endpoint: address,
      port,
      slot: this.#slots.slotOf(peer.key),
      limit: this.#underlay.limitOf(peer.key, family) ?? 0,
      ...(endOf ? { encap: endOf(peer) } : {}),
      ...(this.#underlay.families.length > 1 ? { other: this.#underlay.otherHostOf(peer) } : {}),
      ...(keeper?.isFromKnownPort(peer) ? { isFromKnownPort: true } : {}),
    }
  }
}
