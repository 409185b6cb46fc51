// carrier.ts - the interface of a carrier. A carrier moves packets to a peer's host in a certain way, such as by a
// direct route or by the tunnel.

import type { Lease } from '../../control/lease/lease.ts'
import type { PathSide } from '../contract.ts'
import type { PeerTraffic } from '../engine/engine.ts'

type Peers = ReadonlyMap<string, Lease>
/**
 * The lease keys of peers that were added, changed or removed, each with the peer's earlier lease; the lease is
 * undefined for an added peer.
 */
export type PeerChanges = ReadonlyMap<string, Lease | undefined>

/**
 * The carrier that is tried last: the engine's tunnel. The tunnel knows all peers, including peers whose packets
 * another carrier moves.
 */
export interface FallbackCarrier {
  readonly name: NonNullable<PathSide['way']>
  /** Returns the address to which packets or datagrams for the peer are sent, as text for reports. */
  endpointOf(peer: Lease): string
  /**
   * Returns the traffic by lease key. The result may include peers whose packets another carrier moves. Left out if the
   * carrier does not count the traffic per peer. If `keys` is given, the caller needs only the peers with these lease keys.
   */
  traffic?(keys?: ReadonlySet<string>): ReadonlyMap<string, PeerTraffic>
  /**
   * Returns the length in bytes of the longest packet that reaches the peer; undefined if this length is the MTU of the
   * tunnel.
   */
  pathMtu?(peer: Lease): number | undefined
}

/** A carrier that moves the packets to some of the peers, such as those with a direct route. */
export interface Carrier extends FallbackCarrier {
  /** Returns true if this carrier can move the packets to `peer`. Called only if no earlier carrier can move them. */
  takes(peer: Lease): boolean
  /**
   * Sets the peers. The carrier uses the peers that it can reach. Only peers with a key in `changed` differ from the
   * last call; if `changed` is undefined, all may differ.
   */
  apply(peers: Peers, changed: PeerChanges | undefined): Promise<void>
  /**
   * Returns true if this carrier has made a route to `destination`, which is a subnet of the network as text; left out
   * if the carrier makes no routes.
   */
  hasRoute?(destination: string): boolean
  /** Repairs the carrier's routes, and returns a description of each repair. */
  resync(): Promise<readonly string[]>
}
