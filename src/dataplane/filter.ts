// filter.ts - which packets from peers are let in: those that say truly whose they are, and are for us; as native/core/filter.h.

import type { TunnelSettings } from '../kinds.ts'
import { ipv4NetContains, isOneHost, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'
import type { PeerTable } from './peers.ts'

export interface FilterOptions {
  /**
   * `strict`: the datagram comes from the peer whose the inner source is; `inner`: the peer's datagrams may come from
   * another address; `off`: everything is let in, as by flanneld.
   */
  readonly verifySource: TunnelSettings['verifySource']
  /** The cluster's. */
  readonly network: Ipv4Net
  /** This node's part of it. */
  readonly subnet: Ipv4Net
}

export interface Addresses {
  /** The datagram's source. */
  readonly from: Ipv4
  /** The packet's; 0 of an IPv6 packet. */
  readonly source: Ipv4
  readonly destination: Ipv4
}

/** A sender of whom a packet was not let in. */
export interface Stranger extends Addresses {
  /** The counter that has it. */
  readonly reason: string
}

/** Why an IPv4 packet is not let in, as the name of a counter; undefined when it is. */
export function reasonToDrop(
  { verifySource, network, subnet }: FilterOptions,
  peers: PeerTable,
  { from, source, destination }: Addresses,
): string | undefined {
  if (verifySource === 'off') return undefined
  if (ipv4NetContains(subnet, source) || !isOneHost(source)) return 'rx_drop_spoofed_source'
  const peer = peers.find(source)
  if (peer && verifySource === 'strict' && peer.endpoint !== from) return 'rx_drop_spoofed_source'
  // Without a peer: a host that does not masquerade what it sends itself.
  if (!peer && (ipv4NetContains(network, source) || !peers.hasEndpointAt(from))) return 'rx_drop_unknown_sender'
  return ipv4NetContains(subnet, destination) ? undefined : 'rx_drop_destination'
}

/**
 * Whether a packet that came out of the TUN can be from this side. If not, what is said about it would go to a peer, who did
 * not send it and would not let it in.
 */
export function isFromHere({ verifySource, network, subnet }: FilterOptions, source: Ipv4): boolean {
  return verifySource === 'off' || ipv4NetContains(subnet, source) || !ipv4NetContains(network, source)
}
