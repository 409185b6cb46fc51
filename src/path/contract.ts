// contract.ts - the interface of a backend, which carries packets between the nodes of a network.
//
// The daemon calls `prepare`, acquires the lease with the returned attributes, and then calls `open`. The daemon gives
// the backend its peers; a backend has no timers.

import type { Log } from '../base/log.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../control/lease/lease.ts'
import type { Run } from '../host/command.ts'
import type { Watched } from '../host/events.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import type { Address, Addresses, ByFamily, Family, Net } from '../net/address.ts'
import type { BackendType, Settings } from './catalog.ts'
import type { Engine, PeerTraffic, UdpEndpoint } from './engine/engine.ts'
import type { OpenPath } from './engine/engine.ts'

/** The parts that a backend is made of. */
export interface BackendParts<T extends BackendType = BackendType> {
  readonly config: NetworkConfig
  readonly settings: Settings<T>
  readonly external: ExternalInterface
  readonly run: Run
  readonly log: Log
}

export interface Backend {
  /** The type in the network configuration: `udp`. */
  readonly name: string
  /**
   * The TUN devices, by name or pattern, with which the data path can continue after an earlier process left or lent
   * them. Left out if the kernel carries the packets, since a TUN with such a name would be in the way.
   */
  readonly tunNames?: readonly string[] | undefined
  /**
   * The devices, by name or pattern, that its data path has or may have. Every other device of weft's and flannel's backends is a leftover.
   * Left out by a backend that does not look for leftovers.
   */
  readonly devices?: readonly string[]
  /** True if routes to peers' subnets through their hosts belong to this backend, or if other programs make them on purpose. */
  readonly routesToHosts?: boolean
  /**
   * True if other programs make all routes to the network, including those to this node's own subnet. Then leftovers are removed once, if
   * this node's lease shows that the earlier run had another backend.
   */
  readonly routesByOthers?: boolean
  /** True if packets to peers must not leave this host past its device, since nothing else encrypts them. */
  readonly isSealed?: boolean
  /** The external interface as of the last `prepare`; left out if it is not known. */
  readonly external?: ExternalInterface | undefined
  /**
   * The log lines for a peer's lease that comes, changes or goes; by default those of flanneld, such as `Subnet added:
   * ...`.
   */
  readonly words?: { readonly added: (lease: Lease) => string; readonly removed?: (lease: Lease) => string }
  /**
   * Returns the attributes that this node publishes in its lease, for the current state of the host. It is called again
   * before the data path is opened again. It must not change anything through which an earlier process may forward.
   */
  prepare(signal: AbortSignal): Promise<LeaseAttrs>
  /**
   * The parts of the host that `open` will take, as of the last `prepare`: one for each family if the families are opened separately. The
   * data path can be opened if it gets at least one of them. Left out by a backend that takes nothing.
   */
  needs?(): readonly NeededPart[]
  /**
   * Opens the data path for this node's lease, with peers of `leases` from the first packet on if it can. `others`
   * lists, by lease key, the peers that are reached over the other family of the underlay.
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

/** A part of the host that a data path takes when it is opened. */
export interface NeededPart {
  /** The UDP ports, all of which it needs. */
  readonly ports?: readonly NeededPort[]
  readonly device?: NeededDevice
  /** The families that it carries. It can be opened if at least one of them can be carried. */
  readonly sides?: readonly NeededSide[]
  /** The programs that make the device, beside `ip`. */
  readonly programs?: readonly string[]
}

export interface NeededPort {
  readonly family: Family
  /** The local address as text; `0.0.0.0` or `::` for a port that the kernel or another program opens for all addresses. */
  readonly address: string
  readonly port: number
  /** The option of the `Backend` object that sets the port. */
  readonly option: string
  /** Left out if the port is not a vxlan device's. Such devices share a port if their `gbp` is the same and their VNIs differ. */
  readonly vxlan?: { readonly vni: number; readonly gbp: boolean }
}

export interface NeededDevice {
  /** The name, or a pattern such as `flannel%d`, of which the kernel takes a free name. */
  readonly name: string
  /** The kernel's type of the device. */
  readonly type: string
  /** The types of existing devices with this name that `open` deletes; `any` if it deletes every device. */
  readonly replaces: readonly string[] | 'any'
  /** flanneld's words for a device of another type with this name; left out if weft's own words are used. */
  readonly refusal?: string
  /** The outer source address of an ipip device, as text. The kernel allows one such device without a remote address. */
  readonly local?: string
}

export interface NeededSide {
  readonly family: Family
  /** The network, if all of it is routed to the device. */
  readonly network?: Net | undefined
  /** The largest packet that containers may send, in bytes, and the interface that limits it. */
  readonly mtu: number
  readonly external: string
}

export interface PathSide {
  /** The destination of datagrams: `192.0.2.1:8285`, or only the address if there is no port. */
  readonly endpoint: string
  /** An address of the peer's node that answers through the data path; left out if none is known. */
  readonly probe?: Address
  /**
   * `direct`: by a route to the peer's host, without a tunnel. `tunnel`: in datagrams of weftd. `kernel`: through a
   * tunnel of the kernel. Left out if weftd cannot know.
   */
  readonly way?: 'direct' | 'tunnel' | 'kernel'
}

export interface PathPeer extends ByFamily<PathSide> {
  readonly key: string
}

/** The session with a peer, if packets are encrypted with negotiated keys. Unknown members are undefined. */
export interface PeerSession {
  readonly publicKey: string
  /** The time of the last handshake that gave keys, in ms since 1970; undefined if there was none. */
  readonly handshakeAt: number | undefined
  /** The age of the keys in ms; undefined if there are no valid keys. */
  readonly ageMs: number | undefined
  /**
   * The initiations sent since that handshake. This and the next members are known only if weftd carries the packets.
   */
  readonly attempts?: number | undefined
  /**
   * Why the last initiation gave no keys: no response came (`no-answer`); the response was sealed with another psk or
   * by another key (`not-authentic`); or the peer's public key gives no shared secret (`bad-key`).
   */
  readonly failure?: 'no-answer' | 'not-authentic' | 'bad-key' | undefined
  /** The number of the peer's initiations whose timestamp was not newer than that of an earlier one. */
  readonly stale?: number | undefined
  /** The number of the peer's initiations that were answered without a packet under the new keys. */
  readonly unconfirmed?: number | undefined
  readonly txBytes: number | undefined
  readonly rxBytes: number | undefined
}

/** The traffic between this host and a peer, and the sessions of the families that have one. */
export interface PathTraffic extends PeerTraffic {
  readonly sessions?: ByFamily<PeerSession>
}

/** A handshake with a public key that belongs to no peer. */
export interface UnknownKey {
  /** The key in base64. Every host that knows this node's public key can send a handshake with any key of its own. */
  readonly publicKey: string
  readonly from: UdpEndpoint
  /** The time by performance.now(). */
  readonly at: number
}

interface Carrier {
  /** The device of the first family; left out if the backend has no device of its own. */
  readonly device?: string
  /** The device of each family; left out if all families have the same one. */
  readonly devices?: ByFamily<string>
  /** `none`: packets are moved by something that weftd does not know. */
  readonly engine: 'native' | 'dgram' | 'kernel' | 'none'
  /** The kernel features in use now, of those that the engine requested. */
  readonly features: readonly string[]
}

/** The interface for the search of the longest packet that reaches a peer (docs/path-mtu.md). */
export interface PathSearching {
  /**
   * The bytes that are added around a packet to a peer; defaults to those of the backend with an outer header of the
   * packet's family.
   */
  readonly overhead?: number
  /**
   * The longest packet of a family to a peer (by lease key) that the kernel sends; undefined for a peer with a direct
   * route.
   */
  knownMtu(key: string, family: Family): number | undefined
  /**
   * Sets the longest packet of a family for each peer for which the search found one. Left out if the data path must
   * not use the result.
   */
  limit?(bytes: ReadonlyMap<string, number>, family: Family): void
}

/**
 * The choice of the underlay's family for each peer, independent of the family of inner packets. Packets from peers are
 * accepted over both families.
 */
export interface Underlays {
  /** The family that is used by default, and the other one. */
  readonly first: Family
  readonly other: Family
  others(): readonly string[]
  /** True if the peer with this lease key can be reached over both families. */
  has(key: string): boolean
  choose(key: string, by: Family): void
  send(key: string, by: Family, packet: Uint8Array): void
}

export interface DataPath {
  /** The longest packet that containers may send, in bytes; written to subnet.env. */
  readonly mtu: number
  /** The TUN devices of the engines; left out if the kernel carries the packets. */
  readonly tunNames?: readonly string[] | undefined
  /** Kernel objects, besides links, addresses and routes, whose changes require a check. */
  readonly watched?: Watched
  /**
   * True if the data path uses kernel objects whose changes the kernel does not report. It is then checked more often.
   */
  readonly unreported?: boolean
  /** Resolves with the reason if the data path dies; stays pending otherwise. */
  readonly fault: Promise<Error>
  /** The wanted families that are not carried while another family is, each with the reason. */
  readonly lacking?: ByFamily<string>
  /**
   * The families whose address is missing from the external interface as of the last `resync`, each with the reason.
   * Their sockets stay open, because they work again when the address returns.
   */
  gone?(): ByFamily<string>
  /** True if `renew` is needed: a family is not carried, or the node's address has changed. */
  readonly isOutdated?: boolean
  /**
   * Adapts the open data path to the backend's last `prepare`, for a lease that publishes `attrs`. It opens the missing
   * families and leaves the others unchanged. A family that cannot be opened is logged and stays missing.
   */
  renew?(attrs: LeaseAttrs): Promise<void>
  /**
   * Makes the peers equal to these leases, by key, without our own. Unusable leases are skipped and counted. `touched`
   * lists the keys that may differ from the last call; all may differ if it is left out. After `late` resolves, a slow
   * part no longer delays the result; it completes later, and `isBehind` is true until then.
   */
  apply(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: ReadonlySet<string>,
    late?: Promise<unknown>,
  ): Promise<void>
  /**
   * True while a part has not taken all applied peers, or failed to. The next `apply` gives it the missing peers too.
   */
  readonly isBehind?: boolean
  /**
   * Repairs the kernel's objects of this data path (device, addresses, routes), and returns the repairs in words. After
   * `late` resolves, a slow part no longer delays the result; the next call returns its repairs.
   */
  resync(late?: Promise<unknown>): Promise<readonly string[]>
  carrier(): Carrier
  /** This host's address of each family from which peers can be probed; left out if none can. */
  readonly probeSource?: Addresses
  /** The families that the data path can carry, even if one is missing now. Defaults to those of the network. */
  readonly families?: readonly Family[]
  /** The applied peers that are usable and set. */
  peers(): readonly PathPeer[]
  /** One peer by lease key; left out if that costs as much as listing all, or if peers change without `apply`. */
  peer?(key: string): PathPeer | undefined
  /** The traffic to and from each peer, by lease key; left out if it is not counted by peer. */
  traffic?(): Promise<ReadonlyMap<string, PathTraffic>>
  /**
   * Some of the unknown keys in handshakes, each with its last handshake; left out if the data path cannot know them.
   */
  unknownKeys?(): readonly UnknownKey[]
  /**
   * The longest packet of a family that reaches this peer's host without fragmentation, if the path MTU is known to be
   * below `mtu`.
   */
  pathMtu?(peer: Lease, family: Family): number | undefined
  /** Left out if peers are reached over one family only, or if weftd does not choose the family. */
  readonly underlays?: Underlays
  /** Left out if the kernel does not report the longest packet that it would send. */
  readonly pathSearch?: PathSearching
  counters(): Readonly<Record<string, bigint>>
  /** The last dropped packets (Engine.drops); left out if the data path does not know them. */
  readonly drops?: Engine['drops']
  /**
   * The number of rounds of each forwarding thread so far, by name. Wakes each thread, so that it goes round once more.
   */
  threads(): Readonly<Record<string, number>>
  /** Logs what was noticed since the last call. It is called every few seconds. */
  look?(): void
  /**
   * Stops forwarding, and leaves the device with its address and route for the successor. Returns the open descriptors
   * in which packets wait meanwhile, if they can be lent. Left out if `close` leaves the same.
   */
  leave?(): Promise<readonly OpenPath[]>
  takeBack?(): Promise<void>
  close(): Promise<void>
}
