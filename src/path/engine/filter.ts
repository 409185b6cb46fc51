// filter.ts - which packets from peers are let in: those that say truly whose they are, and are for us; as native/core/filter.h.

import { familyOf, isLinkLocal, isOneHost, netContains, type Address, type Nets } from '../../net/address.ts'
import type { TunnelSettings } from '../catalog.ts'
import type { PeerTable } from './peers.ts'

export interface FilterOptions {
  /**
   * `strict`: the datagram comes from the peer whose the inner source is; `inner`: the peer's datagrams may come from
   * another address; `off`: everything is let in, as by flanneld.
   */
  readonly verifySource: TunnelSettings['verifySource']
  /** The cluster's. */
  readonly network: Nets
  /** This node's part of it. */
  readonly subnet: Nets
  /**
   * True if the sender has proved its identity by a key. Such a peer may send only from its own subnet, as with WireGuard's AllowedIPs
   * (native/core/filter.h, `session_`).
   */
  readonly provesSender?: boolean
}

export interface PacketAddresses {
  /** The datagram's source. */
  readonly from: Address
  /** The packet's. */
  readonly source: Address
  readonly destination: Address
}

/** A sender of whom a packet was not let in. */
export interface Stranger extends PacketAddresses {
  /** The counter that has it. */
  readonly reason: string
}

/** False where there is nothing of that family. */
const isOf = (nets: Nets, address: Address): boolean => {
  const net = nets[familyOf(address)]
  return net !== undefined && netContains(net, address)
}

/** The reason why a packet is not let in, as the name of a counter; undefined when it is let in. */
export function reasonToDrop(
  { verifySource, network, subnet, provesSender = false }: FilterOptions,
  peers: PeerTable,
  { from, source, destination }: PacketAddresses,
): string | undefined {
  const isAsked = verifySource !== 'off'
  const isIpv6 = typeof source === 'bigint'
  if ((isAsked || isIpv6) && (!isOneHost(source) || (isIpv6 && isLinkLocal(source)))) return 'rx_drop_spoofed_source'
  if (!isAsked) return undefined
  if (isOf(subnet, source)) return 'rx_drop_spoofed_source'
  const peer = peers.find(source)
  if (peer && verifySource === 'strict' && peer.endpoint !== from && peer.other !== from)
    return 'rx_drop_spoofed_source'
  // A source without a peer may be a host that does not masquerade what it sends itself; one without a subnet of the family has no way here.
  const family = familyOf(source)
  const mayBeAHost = !provesSender && network[family] && !isOf(network, source) && peers.hasEndpointAt(from, family)
  if (!peer && !mayBeAHost) return 'rx_drop_unknown_sender'
  return isOf(subnet, destination) ? undefined : 'rx_drop_destination'
}

/**
 * True when a packet out of the TUN can be from this side. Otherwise an ICMP error about it would go to a peer, who did
 * not send it and would not let it in.
 */
export function isFromHere({ verifySource, network, subnet }: FilterOptions, source: Address): boolean {
  return verifySource === 'off' || isOf(subnet, source) || !isOf(network, source)
}
