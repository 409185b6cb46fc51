// backend.ts - a backend: how packets travel between the nodes of a network.
//
// The daemon calls prepare, acquires the lease with what it returned, then calls open. Backends are told what the
// peers are and start no timer of their own.

import type { NetworkConfig } from '../config/network-config.ts'
import type { Engine, PeerTraffic } from '../dataplane/engine.ts'
import type { Run } from '../host/command.ts'
import type { OpenPath } from '../dataplane/engine.ts'
import type { Watched } from '../host/events.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import type { BackendType, Settings } from '../kinds.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import type { Ipv4 } from '../net/ipv4.ts'

/** What a backend is made of. */
export interface BackendParts<T extends BackendType = BackendType> {
  readonly config: NetworkConfig
  /** Its options, read. */
  readonly settings: Settings<T>
  readonly external: ExternalInterface
  readonly run: Run
  readonly log: Log
}

export interface Backend {
  /** The type in the network configuration: `udp`. */
  readonly name: string
  /**
   * The TUN device, by name or pattern, that its data path can go on with where a process before this one left or lends it; left out
   * where the kernel carries the packets, and a TUN that is left would be in the way.
   */
  readonly tunName?: string | undefined
  /** What the log says when a peer's lease comes, or changes, and when it goes; flanneld's words, `Subnet added: ...` where left out. */
  readonly words?: { readonly added: (lease: Lease) => string; readonly removed?: (lease: Lease) => string }
  /**
   * What this node publishes in its lease, by the host as it is now; called again before the data path is opened again. Changes
   * nothing that a process before this one may forward through.
   */
  prepare(signal: AbortSignal): Promise<LeaseAttrs>
  /** Brings the data path up for this node's lease, with peers of `leases` from its first packet on if it can. */
  open(lease: OwnLease, signal: AbortSignal, leases: ReadonlyMap<string, Lease>): Promise<DataPath>
}

/** A peer that packets can go to. */
export interface PathPeer {
  /** Its lease's. */
  readonly key: string
  /** Where they go: `192.0.2.1:8285`, or the address alone where there is no port. */
  readonly endpoint: string
  /** An address of its host's that answers by way of the data path; left out where none is known. */
  readonly probe?: Ipv4
  /**
   * How its packets travel: `direct`, routed to its host without a tunnel; `tunnel`, in datagrams of weftd's; `kernel`, through a tunnel
   * of the kernel's. Left out where that is not ours to know.
   */
  readonly way?: 'direct' | 'tunnel' | 'kernel'
}

/** What carries packets. */
export interface Carrier {
  /** Left out where there is no device of a backend's own. */
  readonly device?: string
  /** `none`: something that is not ours to know. */
  readonly engine: 'native' | 'naive' | 'dgram' | 'kernel' | 'none'
  /** Kernel features in use at this moment, of those that an engine asks for. */
  readonly features: readonly string[]
}

/** How the longest packet that reaches a peer is looked for where the kernel knows of none (docs/path-mtu.md). */
export interface PathSearching {
  /** What stands before a packet on its way to a peer, in bytes. */
  readonly overhead: number
  /** What no packet may be longer than by what the kernel knows, by the peer's lease key; undefined for one that is routed to. */
  knownMtu(key: string): number | undefined
  /** Sets the longest that reaches each peer, for all that there is one for. */
  limit(bytes: ReadonlyMap<string, number>): void
}

/** A data path that is open. */
export interface DataPath {
  /** What containers may send, in bytes; written to subnet.env. */
  readonly mtu: number
  /** The TUN device of the engine that carries it; undefined where the kernel carries it. */
  readonly tunName?: string
  /** What it has at the kernel beside links, addresses and routes, to be looked at when it changes. */
  readonly watched?: Watched
  /** Whether it has something there whose changes nobody reports: it is looked at more often. */
  readonly unreported?: boolean
  /** Resolves with the reason if the data path dies; stays pending otherwise. */
  readonly fault: Promise<Error>
  /**
   * Makes the data path equal this whole set, by lease key, less our own lease. One that cannot be used is skipped and counted. `touched`
   * says where to look: no other key differs from what was applied last; all may where it is left out.
   */
  apply(leases: ReadonlyMap<string, Lease>, ownKey: string, touched?: ReadonlySet<string>): Promise<void>
  /** Makes what the kernel holds for us (device, address, route) right again; says what it had to mend. */
  resync(): Promise<readonly string[]>
  carrier(): Carrier
  /** This host's address that peers may be asked from whether they answer; left out where none can be. */
  readonly probeSource?: Ipv4
  /** The peers that it was given, can use, and has set. */
  peers(): readonly PathPeer[]
  /** One of them; left out where that costs as much as all, or where peers come and go without `apply`. */
  peer?(key: string): PathPeer | undefined
  /** What passed to and from each of them, by the key of its lease; left out where nobody counts by peer. */
  traffic?(): Promise<ReadonlyMap<string, PeerTraffic>>
  /** The largest packet that goes whole to this peer's host, where the path to it is known to take less than `mtu`. */
  pathMtu?(peer: Lease): number | undefined
  /** What it takes to look for the longest packet that reaches each peer; left out where nobody is to. */
  readonly pathSearch?: PathSearching
  counters(): Readonly<Record<string, bigint>>
  /** The packets that it dropped last, as an engine's; left out where nobody knows which they were. */
  readonly drops?: Engine['drops']
  /** How often each forwarding thread has gone round its loop, by its name; asks each for one more round. */
  threads(): Readonly<Record<string, number>>
  /** Says what it has noticed since the last call; called every few seconds. */
  look?(): void
  /**
   * Stops forwarding, and leaves what a process after this one goes on with: the device with its address and route; returns what
   * packets wait in meanwhile, open, if it can be lent. Left out where `close` leaves as much.
   */
  leave?(): Promise<OpenPath | undefined>
  /** Forwards again, after `leave`; left out where it cannot. */
  takeBack?(): Promise<void>
  /** Ends it for good. */
  close(): Promise<void>
}
