// filter.ts - decides which packets from peers the engine accepts: their source address must belong to the sender, and
// their destination to this node. native/core/filter.h has the same rules.

import { familyOf, isLinkLocal, isOneHost, netContains, type Address, type Nets } from '../../net/address.ts'
import type { TunnelSettings } from '../catalog.ts'
import type { PeerTable } from './peers.ts'

export interface FilterOptions {
  /**
   * `strict` accepts a packet only if its datagram came from the host of the peer whose subnet contains the inner
   * source address. `inner` accepts the datagram from any address, but still checks the inner addresses. `off` accepts
   * all packets, as flanneld does.
   */
  readonly verifySource: TunnelSettings['verifySource']
  readonly network: Nets
  readonly subnet: Nets
  /**
   * True if the encapsulation proves the sender by a key. In that case each peer may send only packets with a source in
   * its own subnet, as with WireGuard's AllowedIPs (native/core/filter.h, `session_`).
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

/** Returns the name of the counter that counts the packet as dropped; undefined if the packet is accepted. */
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
  if (peer && verifySource === 'strict' && peer.hosts[familyOf(from)] !== from) return 'rx_drop_spoofed_source'
  // Accept a source address outside the network if a peer's host sent the datagram, because such a host may send
  // packets from its own address without masquerading. If the network has no subnet of the source's family, weft cannot
  // tell which addresses are outside the network, so it drops the packet.
  const family = familyOf(source)
  const mayBeAHost = !provesSender && network[family] && !isOf(network, source) && peers.hasEndpointAt(from, family)
  if (!peer && !mayBeAHost) return 'rx_drop_unknown_sender'
  return isOf(subnet, destination) ? undefined : 'rx_drop_destination'
}

/**
 * Returns true if the source address of a packet from the TUN can be an address of this host or its containers.
 * Otherwise the engine sends no ICMP error, because the error would go to a peer that did not send the packet.
 */
export function isFromHere({ verifySource, network, subnet }: FilterOptions, source: Address): boolean {
  return verifySource === 'off' || isOf(subnet, source) || !isOf(network, source)
}
