// engine.ts - the interface of an engine, which moves the packets between the TUN and the UDP sockets.

import type { Descriptors, Drops, Mail, SessionKeys, UdpEndpoint } from '../../../native/addon.d.ts'
import type { Address, Addresses, Family, Nets } from '../../net/address.ts'
import type { TunnelSettings } from '../catalog.ts'
import type { EncapsulationName } from './encapsulation.ts'
import type { UnknownSender } from './filter.ts'

export type { SessionKeys, UdpEndpoint }

/** The counters of an engine since its start, by name. `native/core/counters.h` explains each counter. */
export type Counters = Readonly<Record<string, bigint>>

/** The traffic between this host and a peer. A member is undefined if the kernel or the engine does not count it. */
export interface PeerTraffic {
  readonly txPackets: number | undefined
  readonly txBytes: number | undefined
  /**
   * The number of packets received from the peer. Refused packets do not count, and `rxBytes` does not include their
   * bytes.
   */
  readonly rxPackets: number | undefined
  readonly rxBytes: number | undefined
  /** The time in ms of performance.now() at which the last accepted packet from the peer arrived. */
  readonly lastReceivedAt: number | undefined
}

export interface EngineConfig {
  readonly encapsulation: EncapsulationName
  /**
   * This host's own data for the encapsulation, such as a MAC, in the layout that the encapsulation's file in
   * native/encap documents. Left out if the encapsulation needs none.
   */
  readonly ownEnd?: Uint8Array
  readonly tunName: string
  /**
   * The addresses of the external interface from which the engine sends and on which it receives, as text, at most one
   * of each family. If the engine cannot bind the first address, it does not start. If it cannot bind a later address,
   * it runs without that address until `Engine.rebind`, and adds a message to `Engine.notes`.
   */
  readonly bindAddresses: readonly string[]
  readonly port: number
  readonly mtu: number
  /** The TUN's own addresses, which are the source addresses of ICMP errors to peers. */
  readonly tunAddress: Addresses
  /**
   * The source addresses of ICMP errors that the engine writes into the TUN. The IPv4 address must not belong to this
   * host, because the kernel drops packets that arrive with a source address of the host.
   */
  readonly networkAddress: Addresses
  readonly network: Nets
  readonly subnet: Nets
  readonly settings: TunnelSettings
  /**
   * Returns the encoded peer table (peers.ts). The engine calls this function at the start and after each `takeBack`.
   * Left out if there are no peers.
   */
  readonly peers?: () => Uint8Array
  /** True if the TUN device, with its addresses and routes, must stay when this process ends without calling `stop`. */
  readonly persistent?: boolean
  /**
   * Called when `sessions.takeMail` has messages to return, and not again before the next call of `sessions.takeMail`.
   * An encapsulation without sessions never calls this function.
   */
  readonly onMail?: () => void
  /**
   * The open descriptors that `lend` returned in another process with the same options. The engine runs on these
   * descriptors and opens no others.
   */
  readonly inherited?: OpenPath | undefined
  /** True if the engine must continue the encrypted sessions of the process that passed on `inherited`. */
  readonly keepsSessions?: boolean | undefined
}

/**
 * The encrypted sessions of an engine. In the peer table, the record of each peer contains the number of the peer's
 * session.
 */
export interface EngineSessions {
  /** True if the running engine continues the encrypted sessions of the previous engine. */
  readonly areKept: boolean
  setKeys(session: number, keys: SessionKeys): void
  /** Erases the keys of a session and drops the packets that wait for new keys. */
  forget(session: number): void
  /**
   * Returns the messages and events since the last call, with at most `mostOfOthers` messages from unknown hosts.
   * Discards all other messages from unknown hosts.
   */
  takeMail(mostOfOthers: number): Mail
  /**
   * Sends a datagram from the port that the network configuration names. Returns false if the kernel refused the
   * datagram.
   */
  send(to: UdpEndpoint, datagram: Uint8Array): boolean
}

/**
 * The open descriptors of an engine, with the options with which they were opened, so that another process can continue
 * to use them.
 */
export interface OpenPath extends Descriptors {
  /**
   * The address to which the sockets of each family are bound, as text, in the order of `EngineConfig.bindAddresses`.
   */
  readonly bindAddresses: readonly string[]
  readonly port: number
  /** The kernel features that the engine must not use, by their names in `addon.featureNames`. */
  readonly without: readonly string[]
  /**
   * The value of the kernel's counter of packets dropped at the TUN (HostKernel.sendDrops) that the previous process
   * read last. Undefined if the previous process never read the counter; older versions omit it.
   */
  readonly queueDrops?: number | undefined
}

export interface Engine {
  readonly kind: 'native' | 'dgram'
  /**
   * The present name of the TUN, which another program may rename. If the TUN was deleted, the last name that the TUN
   * had.
   */
  readonly tunName: string
  readonly offloads: readonly string[]
  /**
   * Messages for the operator about the start, such as a receive buffer that is smaller than requested, or a feature
   * that the kernel refused.
   */
  readonly notes: readonly string[]
  /** Less important messages about the start; weftd logs them only with -v 1 or higher. */
  readonly details: readonly string[]
  /** Resolves with the reason if the engine can no longer forward; never resolves otherwise. */
  readonly fault: Promise<Error>
  /** Replaces the peer table with the encoded records `records` (peers.ts). */
  setPeers(records: Uint8Array): void
  /** Adds, changes or removes the peers that the encoded records `records` name. All peers without a record stay. */
  changePeers(records: Uint8Array): void
  /** The outer families for which the engine has sockets now. */
  readonly outers: readonly Family[]
  /**
   * Opens sockets of the second outer family at a new address, and closes the family's earlier sockets. Packets wait
   * meanwhile. If the sockets cannot be opened, the promise rejects and the engine keeps the earlier sockets. Resolves
   * with false, and changes nothing, if the engine does not forward now.
   */
  rebind?(address: string): Promise<boolean>
  /**
   * Sends a datagram from the port of the network configuration, over IPv4 or IPv6; left out if the engine cannot send
   * single datagrams.
   */
  send?(to: Address, port: number, datagram: Uint8Array): void
  /**
   * Makes the engine read the TUN device's offload settings, which decide whether the engine may coalesce received
   * packets. Left out if the engine never coalesces packets.
   */
  followSwitches?(): Promise<void>
  counters(): Counters
  /**
   * Returns five numbers for each traffic slot since the engine started: packets and bytes sent, packets and bytes
   * received, and the milliseconds since the last packet was received (-1 if none was). If `slot` is given, returns the
   * five numbers of that slot only. The record of each peer in the peer table names the peer's slot.
   */
  traffic(slot?: number): Float64Array
  /**
   * Returns the last dropped packets with their headers. The engine keeps a few hundred dropped packets for each thread
   * and direction. If `after` is the member `next` of an earlier result, returns only later packets; the earlier result
   * may come from an earlier engine.
   */
  drops(after?: Drops['next']): Drops
  /**
   * Returns how many loop iterations each forwarding thread has completed, by thread name, and wakes each thread. A
   * thread that does not hang then soon completes another iteration. The result is empty if the engine has no threads.
   */
  threads(): Readonly<Record<string, number>>
  readonly sessions?: EngineSessions
  /** Returns the senders whose packets were refused since the last call. The engine keeps only a few dozen senders. */
  takeUnknownSenders(): readonly UnknownSender[]
  /**
   * Stops forwarding and returns the descriptors, so that the caller can pass them to another process. The descriptors
   * also stay open in this process, and packets wait in them. `head`, a description of the encrypted sessions for the
   * next process, is saved together with the sessions. Resolves with undefined if the engine is stopped, has already
   * passed on its descriptors, or failed to take them back. Left out if another process cannot use the descriptors.
   */
  lend?(head?: Uint8Array): Promise<OpenPath | undefined>
  takeBack?(): void
  /** Stops forwarding and closes the TUN and the sockets. A second call has no effect. */
  stop(): Promise<void>
}
