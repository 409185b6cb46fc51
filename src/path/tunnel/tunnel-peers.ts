// tunnel-peers.ts - the peers of a tunnel: decides which leases are usable peers, and gives the peers' records to the
// engine.

import { sideOf, type Lease } from '../../control/lease/lease.ts'
import { familyOf, type Family } from '../../net/address.ts'
import type { Engine } from '../engine/engine.ts'
import { encodePeers, type Peer } from '../engine/peers.ts'
import { addTraffic, type TrafficSlots } from '../engine/traffic.ts'
import type { PeerChanges } from './carrier.ts'
import type { InnerFamilies, InnerFamily } from './inner-families.ts'
import type { KernelWay } from './kernel-way.ts'
import type { TunnelKind } from './tunnel-options.ts'
import type { Underlay } from './underlay.ts'
import type { UnknownSenderLog } from './unknown-senders.ts'

export class TunnelPeers {
  /**
   * The function that returns the encapsulation's data about a peer, and the object that negotiates keys with peers.
   */
  readonly #kind: Pick<TunnelKind, 'endOf' | 'sessionManager'>
  readonly #innerFamilies: InnerFamilies
  /** The outer family, the endpoint and the limit of packet lengths for each peer. */
  readonly #underlay: Underlay
  readonly #slots: TrafficSlots
  /** The engine to which the peers' records are given; undefined until the engine runs. */
  #engine: Engine | undefined
  /** The eBPF programs, which get each peer's record too; undefined if there are none. */
  #kernelWay: Pick<KernelWay, 'setPeers' | 'change' | 'traffic'> | undefined
  /** The object that logs the senders of refused packets; undefined until the tunnel is open. */
  #unknownSenders: UnknownSenderLog | undefined

  constructor(
    kind: Pick<TunnelKind, 'endOf' | 'sessionManager'>,
    innerFamilies: InnerFamilies,
    underlay: Underlay,
    slots: TrafficSlots,
  ) {
    this.#kind = kind
    this.#innerFamilies = innerFamilies
    this.#underlay = underlay
    this.#slots = slots
  }

  /** Decides which of the leases that are known before the engine starts are usable peers. */
  takeFirst(leases: ReadonlyMap<string, Lease>, ownKey: string): void {
    for (const { filter } of this.#innerFamilies.all) filter.take(leases, ownKey)
    this.#slots.keep(this.#innerFamilies.keys())
  }

  /**
   * Gives the peers to the object that negotiates keys. Must be called before peers' records are made, because the
   * records contain the numbers of the sessions.
   */
  informSessionManager(): void {
    this.#kind.sessionManager?.setPeers(this.#innerFamilies.peers())
  }

  /** Returns the encoded records of all peers. */
  encoded(): Uint8Array {
    return encodePeers(this.#all())
  }

  /** From now on gives all changes of the peers to this engine, which already has the records of all peers. */
  follow(engine: Engine): void {
    this.#engine = engine
    this.#slots.counted = (slot) => engine.traffic(slot)
  }

  /**
   * Gives the records of all peers, and all further changes, to the eBPF programs too. Adds the programs' traffic to
   * that of the engine.
   */
  followKernelWay(to: Pick<KernelWay, 'setPeers' | 'change' | 'traffic'>): void {
    this.#kernelWay = to
    to.setPeers(this.#all())
    const { counted } = this.#slots
    this.#slots.counted = (slot) => addTraffic(counted(slot), to.traffic(slot))
  }

  /** From now on logs the senders of refused packets. */
  logUnknownSenders(to: UnknownSenderLog): void {
    to.setPeers(() => this.#all())
    this.#unknownSenders = to
  }

  reportUnknownSenders(): void {
    if (this.#engine) this.#unknownSenders?.report(this.#engine.takeUnknownSenders())
  }

  /**
   * Makes the peers equal to the usable leases of `leases`. If `touched` is given, only leases whose key is in
   * `touched` differ from the last call.
   */
  async apply(leases: ReadonlyMap<string, Lease>, ownKey: string, touched?: ReadonlySet<string>): Promise<void> {
    const changes = this.#innerFamilies.all.map((inner) => [inner, inner.filter.take(leases, ownKey, touched)] as const)
    this.informSessionManager()
    const known = changes.flatMap(([inner, changed]) => (changed ? [[inner, changed] as const] : []))
    // Give the engine every peer, including a peer with a direct route, because the engine must accept packets that
    // this peer sends through the tunnel.
    if (known.length === changes.length) this.#change(this.#update(known))
    else this.#replaceAll()
    for (const [inner, changed] of changes) await inner.applyPeers(changed)
  }

  /** Gives the engine the new record of a peer whose endpoint has changed. */
  redirect(key: string): void {
    this.#change(this.#innerFamilies.withPeer(key).map(([inner, peer]) => this.#recordOf(inner, peer)))
  }

  /** Makes the tunnel use the default outer family for all peers again. */
  forgetChoices(): void {
    for (const key of this.#underlay.chosen) {
      this.#underlay.forgetChoice(key)
      this.redirect(key)
    }
  }

  /** Limits packets to each peer to the length in bytes that the search for the path MTU found. */
  limit(bytes: ReadonlyMap<string, number>, family: Family): void {
    const changed = this.#underlay.setLimits(bytes, family)
    const inner = this.#innerFamilies.of(family)
    const records = inner ? changed.flatMap((key) => this.#recordsOf(inner, key)) : []
    if (inner) this.#engine?.changePeers(encodePeers(records))
    this.#kernelWay?.change(records)
  }

  #change(records: readonly Peer[]): void {
    this.#engine?.changePeers(encodePeers(records))
    this.#kernelWay?.change(records)
    this.#unknownSenders?.changePeers(records)
  }

  /**
   * Gives a slot to each peer, forgets the slots and outer families of all former peers, and replaces the engine's
   * table.
   */
  #replaceAll(): void {
    this.#slots.keep(this.#innerFamilies.keys())
    for (const key of this.#underlay.chosen) if (!this.#innerFamilies.hasPeer(key)) this.#underlay.forgetChoice(key)
    this.#engine?.setPeers(this.encoded())
    this.#kernelWay?.setPeers(this.#all())
    this.#unknownSenders?.setPeers(() => this.#all())
  }

  /**
   * Gives a slot to each added peer, and forgets the slots and outer families of the removed peers. `changes` has the
   * changes of the peers of each family. Returns the records that make the same changes in the engine's peer table.
   */
  #update(changes: readonly (readonly [InnerFamily, PeerChanges])[]): Peer[] {
    const keys = new Set(changes.flatMap(([, changed]) => [...changed.keys()]))
    for (const key of keys) {
      if (this.#innerFamilies.hasPeer(key)) continue
      this.#slots.remove(key)
      this.#underlay.forgetChoice(key)
    }
    for (const key of keys) if (this.#innerFamilies.hasPeer(key)) this.#slots.add(key)
    const gone = changes.flatMap(([inner, changed]) =>
      [...changed].flatMap(([key, before]) =>
        before && !inner.peers().has(key) ? sideOf(before, inner.family).subnet : [],
      ),
    )
    const came = changes.flatMap(([inner, changed]) =>
      [...changed.keys()].flatMap((key) => this.#recordsOf(inner, key)),
    )
    // List the removals first, because a removed peer's subnet may now belong to another peer.
    return [...gone.map((subnet): Peer => ({ subnet, hosts: {}, outer: 'ipv4', port: 0, isGone: true })), ...came]
  }

  #all(): Peer[] {
    return this.#innerFamilies.all.flatMap((inner) =>
      [...inner.peers().values()].map((peer) => this.#recordOf(inner, peer)),
    )
  }

  #recordsOf(inner: InnerFamily, key: string): Peer[] {
    const peer = inner.peers().get(key)
    return peer ? [this.#recordOf(inner, peer)] : []
  }

  #recordOf({ family }: InnerFamily, peer: Lease): Peer {
    const { endOf, sessionManager } = this.#kind
    const { address, port } = this.#underlay.endpointOf(peer)
    return {
      subnet: sideOf(peer, family).subnet,
      hosts: this.#underlay.hostsOf(peer),
      outer: familyOf(address),
      port,
      slot: this.#slots.slotOf(peer.key),
      limit: this.#underlay.limitOf(peer.key, family) ?? 0,
      ...(endOf ? { encap: endOf(peer) } : {}),
      ...(sessionManager?.isFromKnownPort(peer) ? { isFromKnownPort: true } : {}),
    }
  }
}
