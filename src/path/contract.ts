// contract.ts - the interface of a backend, which carries packets between the nodes of a network.
//
// The daemon calls `prepare`, acquires the lease with the returned attributes, and then opens the data paths that
// `plan` lists. The daemon passes the peers to the data paths; a backend has no timers.

import type { Log } from '../base/log.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../control/lease/lease.ts'
import type { Run } from '../host/command.ts'
import type { Watched } from '../host/events.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import type { HostKernel } from '../host/kernel.ts'
import type { Address, Addresses, ByFamily, Family, Net, Nets } from '../net/address.ts'
import type { BackendType, Settings } from './catalog.ts'
import type { Engine, PeerTraffic, UdpEndpoint } from './engine/engine.ts'
import type { OpenPath } from './engine/engine.ts'

export interface BackendParts<T extends BackendType = BackendType> {
  readonly config: NetworkConfig
  readonly settings: Settings<T>
  readonly external: ExternalInterface
  readonly run: Run
  readonly kernel: HostKernel
  readonly log: Log
}

/** flanneld's log lines for peers. */
export interface PeerWords {
  /** The line that weftd logs before it follows the leases. */
  readonly watching: string
  /** Returns the lines for a lease of a peer that was added or has changed. */
  readonly added: (lease: Lease) => readonly string[]
  readonly removed: (lease: Lease) => readonly string[]
}

export interface Backend {
  /** The backend's type as in the network configuration, such as `udp`. */
  readonly name: string
  /**
   * The names or name patterns of the TUN devices that an earlier weftd may have left or passed on, and that this
   * backend can use. Left out if the kernel carries the packets: a TUN device is then a leftover, whose name may
   * prevent the creation of the kernel's device.
   */
  readonly tunNames?: readonly string[] | undefined
  /**
   * The names or name patterns of the devices that the backend's data path has or may have. All other devices of weft's
   * and flannel's backends are leftovers. Left out by a backend that does not look for leftovers.
   */
  readonly devices?: readonly string[]
  /**
   * True if weftd must not remove routes to peers' subnets through the peers' hosts, because this backend or another
   * program makes these routes on purpose.
   */
  readonly routesToHosts?: boolean
  /**
   * True if other programs make all routes to the network, including the route to this node's own subnet. In that case
   * weftd removes leftovers only once: when this node's lease shows that weftd's previous run used another backend.
   */
  readonly routesByOthers?: boolean
  /** True if the backend makes IPsec policies in the kernel. */
  readonly usesIpsec?: boolean
  /**
   * True if packets to peers must leave this host only through the backend's device, because only that device encrypts
   * them.
   */
  readonly isSealed?: boolean
  /** The external interface as the last `prepare` found it. */
  readonly external: ExternalInterface
  /**
   * The external interface with the addresses from which the data paths send, as the last `prepare` found it
   * (sendingFromPublicIp); left out if the data paths always send from the addresses of `external`.
   */
  readonly sending?: ExternalInterface | undefined
  /** flanneld's log lines for peers, if they differ from those that flanneld logs with most backends. */
  readonly words?: Partial<PeerWords>
  /**
   * Returns the attributes that this node publishes in its lease, for the current state of the host. The daemon calls
   * `prepare` again each time before it opens the data path. `prepare` must not change a device or route with which an
   * earlier process may still forward.
   */
  prepare(signal: AbortSignal): Promise<LeaseAttrs>
  /**
   * Lists the ports, devices and families that `open` will use, in the state that the last `prepare` found. If the
   * families are opened separately, the list has one part for each family. `open` succeeds if at least one part is
   * available. Left out by a backend that uses no ports, devices or families.
   */
  needs?(): readonly NeededPart[]
  /**
   * Lists the data paths for this node's lease, as of the last `prepare`: one, or one for each family of the network if
   * the families are opened separately. The node opens each data path. If a data path fails, the node opens it again,
   * while any other data path continues.
   */
  plan(lease: OwnLease): readonly PlannedPath[]
  /**
   * Removes the objects outside of this host that this node published for a lease, such as a route in a cloud, and
   * returns descriptions of the removed objects. Called when the node leaves the network, after the data path was
   * closed. Throws WeftError. Left out if the backend publishes nothing.
   */
  withdraw?(lease: Lease, signal: AbortSignal): Promise<readonly string[]>
}

/** A data path that the node opens for its lease. */
export interface PlannedPath {
  /**
   * The families of the inner packets that the data path carries. The node opens this data path if it has a subnet in
   * at least one of these families.
   */
  readonly families: readonly Family[]
  /**
   * The length in bytes of the longest packet that containers may send through this data path. If there are several
   * data paths, the smallest length applies to all.
   */
  readonly mtu: number
  /** How the data path depends on the external interface; left out if it does not depend on it. */
  readonly external?: ExternalUse
  /**
   * Kernel objects that the data path uses, apart from links, addresses and routes. When one of these objects changes,
   * weftd checks and repairs the data path. Several data paths may have the same `Watched` object.
   */
  readonly watched?: Watched
  /**
   * True if the data path depends on kernel objects whose changes the kernel does not report. The node then checks the
   * data path more often.
   */
  readonly isUnreported?: boolean
  /**
   * Opens the data path. If the backend can set peers before the first packet, the data path starts with the peers of
   * `leases`. `others` lists the lease keys of the peers that are reached over the second family of the underlay. When
   * the node publishes new attributes, the node replaces `own.attrs`.
   */
  open(
    own: OwnLease,
    leases: ReadonlyMap<string, Lease>,
    signal: AbortSignal,
    others?: readonly string[],
  ): Promise<DataPath>
}

/** How a data path depends on the external interface, which the node watches. */
interface ExternalUse {
  /**
   * The families of the interface's addresses that the data path uses. weftd reports if the address of a family is
   * missing.
   */
  readonly families: readonly Family[]
  /**
   * True if the node must open the data path again when the interface's address in one of `families` changes. If false,
   * the node only publishes the changed address to the peers.
   */
  readonly isBound: boolean
}

/**
 * The ports, device and families that a data path uses when it is opened. weftd checks beforehand whether the ports,
 * the device and the families are available.
 */
export interface NeededPart {
  readonly ports?: readonly NeededPort[]
  readonly device?: NeededDevice
  /**
   * The families of inner packets that use these ports and this device. weftd can open the data path if at least one of
   * these families can be carried.
   */
  readonly sides?: readonly NeededSide[]
}

export interface NeededPort {
  readonly family: Family
  /**
   * The local address as text; `0.0.0.0` or `::` if the kernel, or a program other than weftd, binds the port on all
   * addresses.
   */
  readonly address: string
  readonly port: number
  /** The name of the option in the `Backend` object that sets the port. */
  readonly option: string
  /**
   * The vxlan device that uses the port; left out for other ports. vxlan devices can share a port if their `gbp` is
   * equal and their VNIs differ.
   */
  readonly vxlan?: { readonly vni: number; readonly gbp: boolean }
}

export interface NeededDevice {
  /** The device's name, or a pattern such as `flannel%d`, for which the kernel chooses a free number. */
  readonly name: string
  /** The link type in the kernel's terms, such as `vxlan` or `tun`. */
  readonly type: string
  /**
   * The networks that contain the device's addresses. By these networks weftd recognises a renamed device of an earlier
   * run.
   */
  readonly networks: Nets
  /**
   * The types of existing devices with the name `name` that `open` deletes; `any` if it deletes a device of any type.
   */
  readonly replaces: readonly string[] | 'any'
  /**
   * flanneld's error message for an existing device of another type with this name. If it is left out, weft uses its
   * own message.
   */
  readonly refusal?: string
  /**
   * The outer source address of an ipip device, as text. Of the ipip devices without a remote address, the kernel
   * allows only one for each source address.
   */
  readonly local?: string
}

export interface NeededSide {
  readonly family: Family
  /** The network, if the backend routes the whole network to the device; undefined for other backends. */
  readonly network?: Net | undefined
  /**
   * The length in bytes of the longest inner packet that containers may send. `external` is the name of the interface
   * that limits this length.
   */
  readonly mtu: number
  readonly external: string
}

export interface PathSide {
  /**
   * The address to which datagrams for the peer are sent, such as `192.0.2.1:8285`; without a port if the backend uses
   * no port.
   */
  readonly endpoint: string
  /**
   * An address on the peer's node that answers probes sent through the data path; left out if no such address is known.
   */
  readonly probe?: Address
  /**
   * How packets reach the peer. `direct`: by a route to the peer's host, without a tunnel. `tunnel`: in datagrams of
   * weftd. `kernel`: through a tunnel or a program of the kernel. Left out if weftd does not know.
   */
  readonly way?: 'direct' | 'tunnel' | 'kernel'
}

export interface PathPeer extends ByFamily<PathSide> {
  readonly key: string
}

/**
 * The state of the encryption with a peer, for backends that negotiate keys. A member that weftd does not know is
 * undefined.
 */
export interface PeerSession {
  readonly publicKey: string
  /** The time, in ms since 1970, of the last handshake that made keys; undefined if there was none. */
  readonly handshakeAt: number | undefined
  /** The age of the current keys in ms; undefined if the session has no valid keys. */
  readonly ageMs: number | undefined
  /**
   * The number of handshake initiations sent to the peer since the last handshake that made keys. This member,
   * `failure`, `stale` and `unconfirmed` are undefined if the kernel carries the packets.
   */
  readonly attempts?: number | undefined
  /**
   * Why the last initiation made no keys. `no-answer`: the peer sent no response. `not-authentic`: the response was
   * encrypted with another PSK or key. `bad-key`: no shared secret can be computed from the peer's public key.
   */
  readonly failure?: 'no-answer' | 'not-authentic' | 'bad-key' | undefined
  /**
   * The number of initiations from the peer that this host refused as replays, because their timestamp was not newer
   * than that of an earlier initiation.
   */
  readonly stale?: number | undefined
  /**
   * The number of initiations from the peer that this host answered, but after which the peer sent no packet with the
   * new keys.
   */
  readonly unconfirmed?: number | undefined
  readonly txBytes: number | undefined
  readonly rxBytes: number | undefined
}

/** The traffic between this host and a peer, and the state of the encryption in each family that has a session. */
export interface PathTraffic extends PeerTraffic {
  readonly sessions?: ByFamily<PeerSession>
}

/** A handshake message whose sender used a public key that no lease publishes. */
export interface UnknownKey {
  /**
   * The sender's public key in base64. The key does not prove who the sender is: every host that knows this node's
   * public key can send a handshake with any key.
   */
  readonly publicKey: string
  readonly from: UdpEndpoint
  /** The time of the last handshake with this key, in ms of performance.now(). */
  readonly at: number
}

interface Carrier {
  /**
   * The device's name. If each family has a device, the name of the first family's device. Left out if the backend
   * creates no device.
   */
  readonly device?: string
  /** The device's name for each family; left out if all families share one device. */
  readonly devices?: ByFamily<string>
  /**
   * The program that carries the packets: an engine of weftd (`native` or `dgram`), the kernel, or (`none`) another
   * program that weftd does not know.
   */
  readonly engine: 'native' | 'dgram' | 'kernel' | 'none'
  /** The kernel features (offloads) that the engine requested and that are in use now. */
  readonly features: readonly string[]
}

/**
 * The functions of a data path that weftd uses when it searches for the longest packet that reaches a peer
 * (docs/path-mtu.md).
 */
export interface PathSearching {
  /**
   * The number of bytes that the encapsulation adds to a packet to a peer. If it is left out, the path MTU search uses
   * the backend's overhead with an outer header of the packet's own family.
   */
  readonly overhead?: number
  /**
   * Returns the length in bytes of the longest packet that the kernel sends to the peer with the lease key `key`;
   * undefined if the peer has a direct route.
   */
  knownMtu(key: string, family: Family): number | undefined
  /**
   * Limits the length of packets to each peer. `bytes` maps a peer's lease key to the length in bytes that the path MTU
   * search found. Left out if the data path must not use the search's results.
   */
  limit?(bytes: ReadonlyMap<string, number>, family: Family): void
}

/**
 * Chooses, for each peer, the family of the underlay over which packets are sent, whatever the family of the inner
 * packets. Packets from peers are accepted over both families.
 */
export interface Underlays {
  /** The outer family that is used by default; `other` is the second outer family. */
  readonly first: Family
  readonly other: Family
  others(): readonly string[]
  /** True if the peer with this lease key can be reached over both families. */
  has(key: string): boolean
  choose(key: string, by: Family): void
  send(key: string, by: Family, packet: Uint8Array): void
}

/** An open data path. Each optional member is an interface that a data path implements completely or not at all. */
export interface DataPath {
  /** The families that the data path can carry, including a family that it does not carry now. */
  readonly families: readonly Family[]
  /** Resolves with the reason if the data path stops working; never resolves otherwise. */
  readonly fault: Promise<Error>
  /**
   * Makes the peers equal to `leases` (by lease key), except this node's own lease. Skips and counts unusable leases.
   * `touched` lists the keys that may differ from the last call; if it is left out, all keys may differ.
   */
  apply(leases: ReadonlyMap<string, Lease>, ownKey: string, touched?: ReadonlySet<string>): Promise<void>
  /**
   * Repairs this data path's device, addresses and routes in the kernel, and returns a description of each repair.
   * After `late` resolves, the call need not wait for a slow repair; in that case the next call returns the description
   * of this repair.
   */
  resync(late?: Promise<unknown>): Promise<readonly string[]>
  close(): Promise<void>
  carrier(): Carrier
  /** Lists the peers that the data path has. Leaves out leases that are unusable, and peers that could not be set. */
  peers(): readonly PathPeer[]
  /** Returns the keys of the leases that are unusable in at least one family. */
  unusable(): ReadonlySet<string>
  counters(): Readonly<Record<string, bigint>>
  /** The source of probes; left out if weftd cannot probe peers over this data path. */
  readonly probing?: Probing
  /** Adapts the open data path to changes of the host; left out if that is never necessary. */
  readonly adapting?: Adapting
  /** Counts the traffic of each peer; left out if the data path does not count it. */
  readonly counting?: Counting
  /** Observes weftd's engine; left out if another program carries the packets. */
  readonly observing?: Observing
  /** Reports handshakes; left out if the data path does not see handshakes. */
  readonly handshakes?: Handshakes
  /**
   * Chooses the underlay's family for each peer; left out if there is only one family, or if weftd does not choose the
   * family.
   */
  readonly underlays?: Underlays | undefined
  /**
   * Passes the open data path on to the next process; left out if the device stays after `close`, so that the next
   * process can use it.
   */
  readonly handover?: HandoverSide
}

/** The part of a data path from which the daemon sends probes to peers. */
export interface Probing {
  /** This host's address in each family, which is the source of the probes. */
  readonly source: Addresses
}

/** The part of a data path that adapts to changes of the host while the data path is open. */
export interface Adapting {
  /**
   * The families that the network has but this data path does not carry, each with the reason. At least one other
   * family is carried.
   */
  readonly lacking: ByFamily<string>
  /** True if the node must call `renew`, because a family is missing that `renew` can open. */
  readonly isOutdated: boolean
  /**
   * Adapts the open data path to the external interface, and to the attributes that the node's lease now publishes.
   * Opens missing families and leaves open families unchanged. If a family cannot be opened, logs the reason; that
   * family stays missing.
   */
  renew(external: ExternalInterface): Promise<void>
}

/** The part of a data path that counts the packets of each peer. */
export interface Counting {
  /**
   * Returns the traffic with each peer, by lease key, counted since the peer was added. If `keys` is given, the caller
   * needs only the peers with these lease keys, and the result may lack the others.
   */
  traffic(keys?: ReadonlySet<string>): Promise<ReadonlyMap<string, PathTraffic>>
}

/** The part of a data path that shows the state of weftd's engine. */
export interface Observing {
  /** The names of the engine's TUN devices. */
  readonly tunNames: readonly string[]
  readonly pathSearch: PathSearching
  /** Returns the peer with this lease key; undefined if the data path does not have the peer. */
  peer(key: string): PathPeer | undefined
  /**
   * Returns the length in bytes of the longest packet of a family that reaches this peer's host without fragmentation.
   * Returns undefined unless the known path MTU makes this length less than the MTU of the containers.
   */
  pathMtu(peer: Lease, family: Family): number | undefined
  /** Returns the packets that were dropped last, with their headers (see Engine.drops). */
  drops(after?: readonly number[]): ReturnType<Engine['drops']>
  /**
   * Returns how many loop iterations each forwarding thread has completed, by thread name, and wakes each thread. A
   * thread that does not hang then soon completes another iteration.
   */
  threads(): Readonly<Record<string, number>>
  /**
   * Logs problems that are new since the last call, such as unknown senders. The daemon calls `look` every few seconds.
   */
  look(): void
  /** The state of the eBPF programs (FastPath); undefined if the network configuration does not allow them. */
  readonly fastPath?: FastPath | undefined
}

/** The functions of a data path that report the handshakes of its encryption. */
export interface Handshakes {
  /**
   * Returns a sample of the public keys that hosts used in handshakes but that belong to no peer, each with the time of
   * the key's last handshake.
   */
  unknownKeys(): readonly UnknownKey[]
}

/** The state of the eBPF programs (FastPath) that carry packets in the kernel, in place of weftd's engine. */
export interface FastPath {
  /** True if the eBPF programs are attached, so that they can carry packets to peers. */
  readonly isActive: boolean
  /** Why the eBPF programs are not attached; null if they are. */
  readonly reason: string | null
  /** The number of peers' subnets to which the eBPF programs carry the packets now. */
  readonly promoted: number
  /**
   * The number of times that weftd took the packets to a peer's subnet away from the eBPF programs and gave them to the
   * engine, which carried them from then on. `lastTakenBack` has the subnet and the reason of the last time.
   */
  readonly takenBack: number
  readonly lastTakenBack: { readonly subnet: string; readonly reason: string } | null
}

/** The part of a data path that passes the open data path on to the next process. */
export interface HandoverSide {
  /**
   * True if the next process can use the descriptors that `leave` returns, and if this process can use them again after
   * `takeBack`.
   */
  readonly isLendable: boolean
  /**
   * Stops forwarding, but keeps the device with its address and routes for the next process. Returns the open
   * descriptors, in which packets wait until a process forwards again; returns an empty list if they cannot be passed
   * on.
   */
  leave(): Promise<readonly OpenPath[]>
  /** Continues to forward packets with the descriptors that `leave` returned. */
  takeBack(): Promise<void>
}
