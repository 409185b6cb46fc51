// session-manager.ts - the interface between a tunnel and the object that negotiates keys with peers for an encrypting
// encapsulation.

import type { Lease } from '../../control/lease/lease.ts'
import type { PeerSession, UnknownKey } from '../contract.ts'
import type { EngineSessions, UdpEndpoint } from '../engine/engine.ts'

/** Negotiates keys with peers, and gives the keys to the engine. */
export interface SessionManager {
  /**
   * Continues the sessions of the previous process from the bytes that `pause` returned in that process. Returns false
   * if the bytes are invalid, or if a process with another private key or PSK made them. Must be called before all
   * other functions.
   */
  inherit(head: Uint8Array): boolean
  /** Starts to work with a running engine, which may have continued the sessions of an earlier engine. */
  begin(sessions: EngineSessions): void
  /**
   * Stops all work until `begin` is called. Returns the state, without secret keys, from which another process can
   * continue.
   */
  pause(): Uint8Array
  /** Handles the engine's control messages and events. Called when the engine's `takeMail` has new messages. */
  onMail(): void
  /**
   * Sets the peers. Must be called before the engine gets the peers' records, because the records contain the session
   * numbers.
   */
  setPeers(peers: ReadonlyMap<string, Lease>): void
  /**
   * Returns the destination of datagrams to a peer: the address in the peer's lease, or a newer address from which the
   * peer has sent authentic packets.
   */
  endpointOf(peer: Lease): UdpEndpoint
  /**
   * Returns true if datagrams to this peer must leave from the port on which this host listens, because the peer
   * replies to the port from which it received a datagram.
   */
  isFromKnownPort(peer: Lease): boolean
  /**
   * Returns the state of the session with a peer, without the byte counts, which the engine has; undefined for a peer
   * without a key.
   */
  stateOf(peer: Lease): Omit<PeerSession, 'txBytes' | 'rxBytes'> | undefined
  /** Returns a sample of the public keys that hosts used in handshakes but that belong to no peer. */
  unknownKeys(): readonly UnknownKey[]
  /**
   * Sets the function that is called with a peer's lease key when the destination of datagrams to this peer has
   * changed.
   */
  listen(moved: (key: string) => void): void
  /** Stops all work permanently, and erases the keys. */
  stop(): void
}
