// carrier.ts - the interface of a carrier, which is a way for packets to reach a peer's host, such as a direct route or the tunnel.

import type { Lease } from '../../control/lease/lease.ts'
import type { PathSide } from '../contract.ts'
import type { PeerTraffic } from '../engine/engine.ts'

type Peers = ReadonlyMap<string, Lease>
/** The lease keys of peers that were added, changed or removed, each with the peer's earlier lease; undefined for an added peer. */
export type PeerChanges = ReadonlyMap<string, Lease | undefined>

/**
 * The carrier that is tried last, such as the tunnel. A carrier is a way for packets to reach a peer's host. The caller passes all peers to
 * this carrier, including peers whose packets an earlier carrier takes.
 */
export interface FallbackCarrier {
  readonly name: NonNullable<PathSide['way']>
  endpointOf(peer: Lease): string
  /**
   * Returns the traffic by lease key, which may include peers of other carriers. Left out if the carrier does not count the traffic per
   * peer.
   */
  traffic?(): ReadonlyMap<string, PeerTraffic>
  pathMtu?(peer: Lease): number | undefined
}

export interface Carrier extends FallbackCarrier {
  /** True if this carrier can take the packets to `peer`. It is called only for peers that no earlier carrier takes. */
  takes(peer: Lease): boolean
  /**
   * Sets the peers; the carrier takes those that it can reach. Only peers with a key in `changed` differ from the last call; if `changed`
   * is undefined, all may differ.
   */
  apply(peers: Peers, changed: PeerChanges | undefined): Promise<void>
  /** True if this carrier has a route to `destination`, a subnet of the network, as text; left out if the carrier makes no routes. */
  hasRoute?(destination: string): boolean
  resync(): Promise<readonly string[]>
}
