// filter.ts - decides which packets from peers enter: those with a true source address and a destination on this node.
// native/core/filter.h has the same rules.

import { familyOf, isLinkLocal, isOneHost, netContains, type Address, type Nets } from '../../net/address.ts'
import type { TunnelSettings } from '../catalog.ts'
import type { PeerTable } from './peers.ts'

export interface FilterOptions {
  /**
   * `strict`: the datagram must come from the peer that has the inner source address. `inner`: the datagram may come
   * from any address. `off`: all packets enter, as in flanneld.
   */
  readonly verifySource: TunnelSettings['verifySource']
  readonly network: Nets
  readonly subnet: Nets
  /**
   * True if the sender has proved its identity by a key. Such a peer may send only from its own subnet, as with WireGuard's AllowedIPs
   * (native/core/filter.h, `session_`).
   */
  readonly provesSender?: boolean
}

export interface PacketAddresses {
  readonly from: Address
  readonly source: Address
  readonly destination: Address
}

export interface UnknownSender extends PacketAddresses {
  readonly reason: string
}

const isOf = (nets: Nets, address: Address): boolean => {
  const net = nets[familyOf(address)]
  return net !== undefined && netContains(net, address)
}

/** Returns the name of the counter if the packet must be refused; undefined if it enters. */
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
  // A source without a peer may be a host that does not masquerade its own packets. Without a network of its family it
  // cannot be one.
  const family = familyOf(source)
  const mayBeAHost = !provesSender && network[family] && !isOf(network, source) && peers.hasEndpointAt(from, family)
  if (!peer && !mayBeAHost) return 'rx_drop_unknown_sender'
  return isOf(subnet, destination) ? undefined : 'rx_drop_destination'
}

/**
 * True if a packet from the TUN can originate on this host. Otherwise no ICMP error is sent, because it would go to a
 * peer that did not send the packet and would refuse the error.
 */
export function isFromHere({ verifySource, network, subnet }: FilterOptions, source: Address): boolean {
  return verifySource === 'off' || isOf(subnet, source) || !isOf(network, source)
}
