// contract.ts - a backend: how packets travel between the nodes of a network.
//
// The daemon calls prepare, acquires the lease with what it returned, then calls open. Backends are told what the
// peers are and start no timer of their own.

import type { Log } from '../base/log.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../control/lease/lease.ts'
import type { Run } from '../host/command.ts'
import type { Watched } from '../host/events.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import type { Address, Addresses, ByFamily, Family } from '../net/address.ts'
import type { BackendType, Settings } from './catalog.ts'
import type { Engine, PeerTraffic, UdpEndpoint } from './engine/engine.ts'
import type { OpenPath } from './engine/engine.ts'

/** The parts that a backend is made of. */
export interface BackendParts<T extends BackendType = BackendType> {
  readonly config: NetworkConfig
  /** The backend's options, as read. */
  readonly settings: Settings<T>
  readonly external: ExternalInterface
  readonly run: Run
  readonly log: Log
}

export interface Backend {
  /** The type in the network configuration: `udp`. */
  readonly name: string
  /**
   * The TUN devices, by name or pattern, that its data path can go on with where a process before this one left or lends them; left out
   * where the kernel carries the packets, and a TUN that is left would be in the way.
   */
  readonly tunNames?: readonly string[] | undefined
  /**
   * The devices, by name or pattern, that its data path has or may have. Every other device of weft's and flannel's backends is a leftover.
   * Left out by a backend that does not look for leftovers.
   */
  readonly devices?: readonly string[]
  /** True if routes to peers' subnets through their hosts belong to this backend, or if other programs make them on purpose. */
  readonly routesToHosts?: boolean
  /** True if other programs make all routes to the network, including those to this node's own subnet. */
  readonly routesByOthers?: boolean
  /** True if packets to peers must not leave this host past its device, since nothing else encrypts them. */
  readonly isSealed?: boolean
  /** The external interface as of the last `prepare`; left out if it is not known. */
  readonly external?: ExternalInterface | undefined
  /** The log's words when a peer's lease comes, changes or goes; flanneld's, `Subnet added: ...`, when left out. */
  readonly words?: { readonly added: (lease: Lease) => string; readonly removed?: (lease: Lease) => string }
  /**
   * The attributes that this node publishes in its lease, by the host as it is now; called again before the data path
   * is opened again. Changes nothing that a process before this one may forward through.
   */
  prepare(signal: AbortSignal): Promise<LeaseAttrs>
  /**
   * Brings the data path up for this node's lease, with peers of `leases` from its first packet on if it can; those of `others` are
   * reached by the other of two families between the hosts, by their leases' keys.
   */
  open(
    lease: OwnLease,
    signal: AbortSignal,
    leases: ReadonlyMap<string, Lease>,
    others?: readonly string[],
  ): Promise<DataPath>
  /**
   * Removes what this node published outside of the host for a lease, such as a route in a cloud. Returns the removed things in words. Called
   * when the node leaves the network, after the data path was closed. Throws WeftError. Left out if the backend publishes nothing.
   */
  withdraw?(lease: Lease, signal: AbortSignal): Promise<readonly string[]>
}

/** The way of packets of one family to a peer. */
export interface PathSide {
  /** The destination of its datagrams: `192.0.2.1:8285`, or the address alone where there is no port. */
  readonly endpoint: string
  /** An address of its host's that answers by way of the data path; left out where none is known. */
  readonly probe?: Address
  /**
   * The way of its packets: `direct`, routed to its host without a tunnel; `tunnel`, in datagrams of weftd's; `kernel`,
   * through a tunnel of the kernel's. Left out when that is not ours to know.
   */
  readonly way?: 'direct' | 'tunnel' | 'kernel'
}

/** A peer that packets of at least one family can go to. */
export interface PathPeer extends ByFamily<PathSide> {
  /** The key of its lease. */
  readonly key: string
}

/** The session with a peer, where packets are sealed by keys that both agreed on. A member is undefined where nobody knows it. */
export interface PeerSession {
  /** The peer's, in base64. */
  readonly publicKey: string
  /** When the last handshake gave keys, in ms since 1970; undefined when none did. */
  readonly handshakeAt: number | undefined
  /** The age of the keys, in ms; undefined when there are none that may be used. */
  readonly ageMs: number | undefined
  /** The rest is since that handshake, and known where weftd carries the packets: how many initiations were sent. */
  readonly attempts?: number | undefined
  /**
   * Why the last of them gave no keys: nothing came back; what came back was sealed with another psk, or by another key; the key is one
   * with which there is no secret.
   */
  readonly failure?: 'no-answer' | 'not-authentic' | 'bad-key' | undefined
  /** The peer's initiations that were as old as one before, or older. */
  readonly stale?: number | undefined
  /** Those that were answered, without a packet under the keys. */
  readonly unconfirmed?: number | undefined
  readonly txBytes: number | undefined
  readonly rxBytes: number | undefined
}

/** The traffic between this host and a peer, and its sessions, where there are such things: of each family that it has packets of. */
export interface PathTraffic extends PeerTraffic {
  readonly sessions?: ByFamily<PeerSession>
}

/** A handshake that came with a key which is no peer's. */
export interface UnknownKey {
  /** Base64. Whoever knows this node's key can send one with any key. */
  readonly publicKey: string
  readonly from: UdpEndpoint
  /** By performance.now(). */
  readonly at: number
}

/** A carrier moves packets: an engine of weft's, or the kernel. */
interface Carrier {
  /** That of the first family; left out where there is no device of a backend's own. */
  readonly device?: string
  /** Those of the families; left out where all that it carries have the one. */
  readonly devices?: ByFamily<string>
  /** `none`: something that is not ours to know. */
  readonly engine: 'native' | 'dgram' | 'kernel' | 'none'
  /** Kernel features in use at this moment, of those that an engine asks for. */
  readonly features: readonly string[]
}

/** The means to search for the longest packet that reaches a peer, and to go by it (docs/path-mtu.md). */
export interface PathSearching {
  /** The bytes that stand around a packet on its way to a peer; left out where they are those of the backend with the packet's family outside. */
  readonly overhead?: number
  /** The longest packet of a family that the kernel takes for a peer, by its lease key; undefined for a peer that is routed to. */
  knownMtu(key: string, family: Family): number | undefined
  /**
   * Sets the longest packet of a family that reaches each peer, for all that there is one for; left out where the data path is not to go
   * by that.
   */
  limit?(bytes: ReadonlyMap<string, number>, family: Family): void
}

/**
 * The means to reach a peer by one family of the network between the hosts or by the other, whichever family its packets are of. Packets
 * from peers are taken by both.
 */
export interface Underlays {
  /** The family that is chosen until another is, and the other one. */
  readonly first: Family
  readonly other: Family
  /** The peers for which the other one is chosen, by their leases' keys. */
  others(): readonly string[]
  /** True of a peer that can be reached by both, by its lease key. */
  has(key: string): boolean
  /** Packets to a peer go by this family from now on. */
  choose(key: string, by: Family): void
  /** Sends one packet to a peer by a family, whichever is chosen. */
  send(key: string, by: Family, packet: Uint8Array): void
}

/** A data path that is open. */
export interface DataPath {
  /** The longest packet that containers may send, in bytes; written to subnet.env. */
  readonly mtu: number
  /** The TUN devices of the engines that carry it; left out where the kernel carries it. */
  readonly tunNames?: readonly string[] | undefined
  /** Objects of the kernel's beside links, addresses and routes, to be looked at when they change. */
  readonly watched?: Watched
  /** True when it has something in the kernel whose changes nobody reports: it is looked at more often. */
  readonly unreported?: boolean
  /** Resolves with the reason if the data path dies; stays pending otherwise. */
  readonly fault: Promise<Error>
  /** The families that it is to carry and does not, while it carries another, each with the reason. */
  readonly lacking?: ByFamily<string>
  /**
   * The families whose address on the external interface is gone for the moment, each with what is gone, by the last `resync`. What is open
   * for it stays so: it is good again as soon as the address is back.
   */
  gone?(): ByFamily<string>
  /** True when it is not as the backend would prepare now, and can be made so while it carries on: it lacks a family, or the node has moved. */
  readonly isOutdated?: boolean
  /**
   * Goes on as the backend has prepared by now, for a lease that publishes `attrs`: opens the families that it lacks, and leaves the others
   * as they are. What is in the way is said, and stays lacking.
   */
  renew?(attrs: LeaseAttrs): Promise<void>
  /**
   * Makes the data path equal this whole set, by lease key, less our own lease. One that cannot be used is skipped and counted. `touched`
   * says where to look: no other key differs from what was applied last; all may where it is left out. Once `late` resolves, a part that
   * takes its time keeps the others no longer, and is behind.
   */
  apply(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: ReadonlySet<string>,
    late?: Promise<unknown>,
  ): Promise<void>
  /** True while a part of it has not all that was applied, or could not take it: whatever is applied next, it is given that too. */
  readonly isBehind?: boolean
  /**
   * Makes what the kernel holds for us (device, address, route) right again; says what it had to mend. Once `late` resolves, a part that
   * takes its time keeps the others no longer: it is told of the next time.
   */
  resync(late?: Promise<unknown>): Promise<readonly string[]>
  carrier(): Carrier
  /** This host's address of each family that peers may be asked from whether they answer; none where none can be. */
  readonly probeSource?: Addresses
  /** The families that it carries, whether or not they can be had now; left out where it carries all of the network's. */
  readonly families?: readonly Family[]
  /** The peers that it was given, can use, and has set. */
  peers(): readonly PathPeer[]
  /** One of the peers; left out where that costs as much as all, or where peers come and go without `apply`. */
  peer?(key: string): PathPeer | undefined
  /** Traffic to and from each peer, by the key of its lease; left out when nobody counts by peer. */
  traffic?(): Promise<ReadonlyMap<string, PathTraffic>>
  /** The keys of handshakes that are no peer's, some of them, each with its last handshake; left out where nobody knows. */
  unknownKeys?(): readonly UnknownKey[]
  /** The largest packet of a family that goes whole to this peer's host, where the path to it is known to take less than `mtu`. */
  pathMtu?(peer: Lease, family: Family): number | undefined
  /** Left out where peers are reached by one family of the network between the hosts, or it is not ours to choose. */
  readonly underlays?: Underlays
  /** What the search for the longest packet that reaches each peer needs to know; left out where the kernel knows of no limit that it tells. */
  readonly pathSearch?: PathSearching
  counters(): Readonly<Record<string, bigint>>
  /** The packets that it dropped last, as an engine's; left out where nobody knows which they were. */
  readonly drops?: Engine['drops']
  /** The rounds that each forwarding thread has gone, by its name; asks each for one more. */
  threads(): Readonly<Record<string, number>>
  /** Says what it has noticed since the last call; called every few seconds. */
  look?(): void
  /**
   * Stops forwarding, and leaves what a process after this one goes on with: the device with its address and route; returns what
   * packets wait in meanwhile, open, as far as it can be lent. Left out where `close` leaves as much.
   */
  leave?(): Promise<readonly OpenPath[]>
  /** Forwards again, after `leave`; left out where it cannot. */
  takeBack?(): Promise<void>
  /** Ends it for good. */
  close(): Promise<void>
}
