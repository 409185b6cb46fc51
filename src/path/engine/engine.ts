// engine.ts - what a data path offers, whichever way it moves the packets.

import type { Descriptors, Drops, Mail, SessionKeys, UdpEndpoint } from '../../../native/addon.d.ts'
import type { Address, Addresses, Nets } from '../../net/address.ts'
import type { TunnelSettings } from '../catalog.ts'
import type { EncapsulationName } from './encapsulation.ts'
import type { Stranger } from './filter.ts'

export type { SessionKeys, UdpEndpoint }

/** Counters since the engine started, by name; `native/core/counters.h` lists them with what each counts. */
export type Counters = Readonly<Record<string, bigint>>

/** The traffic between this host and a peer. A member is undefined when nobody counts it. */
export interface PeerTraffic {
  /** Inner packets, and their bytes. */
  readonly txPackets: number | undefined
  readonly txBytes: number | undefined
  /** Counts packets that were let in. */
  readonly rxPackets: number | undefined
  readonly rxBytes: number | undefined
  /** The time by performance.now() when the last of them came. */
  readonly heardAt: number | undefined
}

export interface EngineConfig {
  /** The encapsulation of inner packets. */
  readonly encapsulation: EncapsulationName
  /** The encapsulation's facts about this host, as its file in native/encap has them; none when left out. */
  readonly ownEnd?: Uint8Array
  /** Interface name or a pattern such as `flannel%d`. */
  readonly tunName: string
  /** Address of the external interface, of either family, as text. */
  readonly bindAddress: string
  /** Its address of the other family, for peers that are sent to by that; none where all datagrams are of one. */
  readonly otherAddress?: string | undefined
  readonly port: number
  /** The MTU of the TUN, in bytes. */
  readonly mtu: number
  /** The TUN's own addresses, sources of ICMP errors to peers. */
  readonly tunAddress: Addresses
  /** The sources of ICMP errors into the TUN: of IPv4 none of this host's addresses, which the kernel takes for forged there. */
  readonly networkAddress: Addresses
  /** The cluster's network, and this node's part of it. */
  readonly network: Nets
  readonly subnet: Nets
  /** The tunnel's options in the network configuration. */
  readonly settings: TunnelSettings
  /** The peer table to begin with, and to go on with after `takeBack`, by encoded records (peers.ts); empty where it is left out. */
  readonly peers?: () => Uint8Array
  /** True when the device stays, with its address and routes, when this process ends without stopping the engine. */
  readonly persistent?: boolean
  /** Called when there is mail for `sessions`; where the encapsulation has none, never. */
  readonly onMail?: () => void
  /** The path that another process opened for the same, to go on with instead of opening one; from an engine that lends. */
  readonly inherited?: OpenPath | undefined
  /** True when the sessions that it brings are to be gone on with. */
  readonly keepsSessions?: boolean | undefined
}

/** The sessions of an encapsulation with keys, by the numbers that peers' records have. */
export interface EngineSessions {
  /** True when the engine that runs now goes on with those of the one before. */
  readonly areKept: boolean
  setKeys(session: number, keys: SessionKeys): void
  /** Wipes the keys of a session, and what waits in it. */
  forget(session: number): void
  /** What was said since the last call; of messages of hosts that are no peers at most so many, and the others are gone. */
  takeMail(mostOfOthers: number): Mail
  /** Sends one datagram from the port that peers know; false when the kernel refused. */
  send(to: UdpEndpoint, datagram: Uint8Array): boolean
}

/** The descriptors through which an engine moves packets, and what they were opened for: enough for another process to go on. */
export interface OpenPath extends Descriptors {
  readonly bindAddress: string
  /** That of the sockets of the other family; left out where there are none. */
  readonly otherAddress?: string | undefined
  readonly port: number
  /** Kernel features that were not asked for, of `addon.featureNames`. */
  readonly without: readonly string[]
}

export interface Engine {
  readonly kind: 'native' | 'dgram'
  readonly tunName: string
  /** Kernel features in use at this moment. */
  readonly offloads: readonly string[]
  /** Facts about how the engine started that the operator should know: a smaller buffer, a feature refused. */
  readonly notes: readonly string[]
  /** Facts that could be better, for those who ask (-v 1). */
  readonly details: readonly string[]
  /** Resolves with the reason if the data path can no longer forward; stays pending otherwise. */
  readonly fault: Promise<Error>
  /** Makes the peer table equal these encoded records (peers.ts). Idempotent. */
  setPeers(records: Uint8Array): void
  /** Puts these peers, or takes away those that are gone; all others stay. Idempotent. */
  changePeers(records: Uint8Array): void
  /** True when it has the sockets of the other family that it was to have. */
  readonly hasOther?: boolean
  /**
   * Binds the sockets of the other family to another address; packets wait meanwhile. Rejects when that cannot be had: the engine goes
   * on with one family then.
   */
  bindOther?(address: string): Promise<void>
  /** Sends a datagram from the port that peers know, of either family that it has sockets of; left out where it cannot. */
  send?(to: Address, port: number, datagram: Uint8Array): void
  /** Reads the device's offload switches and joins received packets accordingly; left out if the engine joins no packets. */
  followSwitches?(): void
  counters(): Counters
  /**
   * Traffic to and from each peer since the engine started, by the slot that its record names, five numbers a slot:
   * packets and bytes sent, packets and bytes let in, and the milliseconds since the last of those came, -1 when none
   * did. One slot alone, when it is given.
   */
  traffic(slot?: number): Float64Array
  /**
   * The packets that were dropped last, with their headers, as far as they are kept: a few hundred of each loop and direction. Only
   * later ones than what was told before, where its `next` is given: it holds for an engine after this one too.
   */
  drops(after?: Drops['next']): Drops
  /**
   * The rounds that each forwarding thread has gone, by its name; asks each for one more round, which a live thread has
   * gone a moment later. Empty when the event loop forwards.
   */
  threads(): Readonly<Record<string, number>>
  /** Of an encapsulation with keys. */
  readonly sessions?: EngineSessions
  /** Senders of whom a packet was not let in since the last call, as far as there is room for them: a few dozen. */
  takeStrangers(): readonly Stranger[]
  /**
   * Stops forwarding and lends what it forwards through, which stays open here, to be sent to another process: packets wait
   * in it meanwhile. Sessions go with it, and `head` for whoever goes on with those: that is one process, the other or this one.
   * Undefined when there is nothing to lend: it is lent, or stopped, or could not be taken back. Left out where another process could
   * not go on with it.
   */
  lend?(head?: Uint8Array): Promise<OpenPath | undefined>
  /** Forwards again, after `lend`. */
  takeBack?(): void
  /** Stops forwarding and closes the TUN and the socket. Idempotent. */
  stop(): Promise<void>
}
