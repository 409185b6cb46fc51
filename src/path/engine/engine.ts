// engine.ts - the interface of an engine, which moves the packets between the TUN and the UDP sockets.

import type { Descriptors, Drops, Mail, SessionKeys, UdpEndpoint } from '../../../native/addon.d.ts'
import type { Address, Addresses, Nets } from '../../net/address.ts'
import type { TunnelSettings } from '../catalog.ts'
import type { EncapsulationName } from './encapsulation.ts'
import type { UnknownSender } from './filter.ts'

export type { SessionKeys, UdpEndpoint }

/** Counters since the engine started, by name. `native/core/counters.h` explains each of them. */
export type Counters = Readonly<Record<string, bigint>>

/** The traffic between this host and a peer. Members that are not counted are undefined. */
export interface PeerTraffic {
  readonly txPackets: number | undefined
  readonly txBytes: number | undefined
  /** Only accepted packets count. */
  readonly rxPackets: number | undefined
  readonly rxBytes: number | undefined
  /** The time by performance.now() at which the last accepted packet came. */
  readonly lastReceivedAt: number | undefined
}

export interface EngineConfig {
  readonly encapsulation: EncapsulationName
  /**
   * The encapsulation's facts about this host, in the layout of its file in native/encap; left out if it needs none.
   */
  readonly ownEnd?: Uint8Array
  readonly tunName: string
  /** The address of the external interface, of either family, as text. */
  readonly bindAddress: string
  /**
   * The address of the external interface in the other family, for peers that are reached over it; left out if all
   * datagrams have one family.
   */
  readonly otherAddress?: string | undefined
  readonly port: number
  readonly mtu: number
  /** The source addresses of ICMP errors to peers: the TUN's own addresses. */
  readonly tunAddress: Addresses
  /**
   * The source addresses of ICMP errors into the TUN. The IPv4 address must not be this host's own, because the kernel
   * would refuse it.
   */
  readonly networkAddress: Addresses
  readonly network: Nets
  readonly subnet: Nets
  readonly settings: TunnelSettings
  /**
   * Returns the encoded peer table (peers.ts) for the start, and for each restart after `takeBack`; left out if there
   * are no peers.
   */
  readonly peers?: () => Uint8Array
  /**
   * True if the device, with its addresses and routes, must survive this process when it ends without stopping the
   * engine.
   */
  readonly persistent?: boolean
  /** Called when `sessions.takeMail` has something to return; never for an encapsulation without sessions. */
  readonly onMail?: () => void
  /**
   * The open path of another process with the same options, on which the engine runs instead of opening one. It comes
   * from an engine with `lend`.
   */
  readonly inherited?: OpenPath | undefined
  /** True if the engine must continue the sessions that came with the inherited path. */
  readonly keepsSessions?: boolean | undefined
}

/** The sessions of an encapsulation with keys, by the session numbers in the peers' records. */
export interface EngineSessions {
  /** True if the running engine continues the sessions of the previous engine. */
  readonly areKept: boolean
  setKeys(session: number, keys: SessionKeys): void
  /** Wipes the keys of a session and drops its waiting packets. */
  forget(session: number): void
  /**
   * Returns everything since the last call. Of the messages from unknown hosts it returns at most `mostOfOthers` and
   * discards the rest.
   */
  takeMail(mostOfOthers: number): Mail
  /** Sends one datagram from the well-known port. Returns false if the kernel refused it. */
  send(to: UdpEndpoint, datagram: Uint8Array): boolean
}

/** The open descriptors of an engine with their options, with which another process can continue. */
export interface OpenPath extends Descriptors {
  readonly bindAddress: string
  readonly otherAddress?: string | undefined
  readonly port: number
  /** The kernel features that were not requested, from `addon.featureNames`. */
  readonly without: readonly string[]
}

export interface Engine {
  readonly kind: 'native' | 'dgram'
  readonly tunName: string
  readonly offloads: readonly string[]
  /** Facts about the start that the operator should know, such as a smaller buffer or a refused feature. */
  readonly notes: readonly string[]
  /** Facts that could be better, which are logged with -v 1. */
  readonly details: readonly string[]
  /** Resolves with the reason if the engine can no longer forward; pending until then. */
  readonly fault: Promise<Error>
  /** Makes the peer table equal these encoded records (peers.ts). Idempotent. */
  setPeers(records: Uint8Array): void
  /** Adds, changes or removes the peers of these records; all others stay. Idempotent. */
  changePeers(records: Uint8Array): void
  /** True if the engine has the sockets of the other family that were requested. */
  readonly hasOther?: boolean
  /**
   * Binds the sockets of the other family to another address, while packets wait. Rejects if that fails; the engine
   * then continues with one family.
   */
  bindOther?(address: string): Promise<void>
  /** Sends a datagram from the well-known port, over any family with sockets; left out if the engine cannot. */
  send?(to: Address, port: number, datagram: Uint8Array): void
  /** Reads the device's offload switches and joins received packets accordingly; left out if the engine joins no packets. */
  followSwitches?(): void
  counters(): Counters
  /**
   * Returns five numbers for each slot since the engine started: packets and bytes sent, packets and bytes received,
   * and the milliseconds since the last packet was received, -1 for never. It covers all slots, or only `slot`. Peer
   * records name the slots.
   */
  traffic(slot?: number): Float64Array
  /**
   * Returns the last dropped packets with their headers, of which the engine keeps a few hundred per loop and
   * direction. `after` is the `next` of an earlier result, also of an earlier engine: only later packets are returned.
   */
  drops(after?: Drops['next']): Drops
  /**
   * Returns the number of rounds of each forwarding thread so far, by thread name, and wakes each thread, so that a
   * live thread soon goes round once more. Empty if the event loop forwards.
   */
  threads(): Readonly<Record<string, number>>
  readonly sessions?: EngineSessions
  /** Returns the senders of packets that were refused since the last call; a few dozen are kept. */
  takeUnknownSenders(): readonly UnknownSender[]
  /**
   * Stops forwarding and returns the descriptors, which stay open here, to be sent to another process. Packets wait in
   * them meanwhile. The sessions are saved with them, and `head` describes the sessions to the process that continues:
   * the other process, or this one. Resolves with undefined if there is nothing to lend, because it is lent already,
   * stopped, or could not be taken back. Left out if another process cannot continue.
   */
  lend?(head?: Uint8Array): Promise<OpenPath | undefined>
  takeBack?(): void
  /** Stops forwarding and closes the TUN and the sockets. Idempotent. */
  stop(): Promise<void>
}
