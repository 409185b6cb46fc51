// peers.ts - the peer table of the engines: the peers' subnets, and the UDP endpoint that each subnet is reached through.
//
// The table is passed to C++ as an array of records of fixed length. weftd passes the whole table at the start, after missed changes and
// for a repair, otherwise only the changed records. A record's subnet and endpoint may have different families. The layout of a record:
//
//   offset size
//        0    1  address family of the subnet: 4 or 6
//        1    1  prefix length of the subnet
//        2    1  address family of the endpoint: 4 or 6
//        3    1  flags. 1: the subnet no longer has a peer; all fields except family, length and subnet are 0.
//                2: datagrams to the peer must leave from the port of the network configuration.
//        4    2  UDP port of the endpoint, big-endian
//        6    2  limit: the longest packet in bytes that reaches the peer, big-endian; 0 if it is not known
//        8   16  subnet, network order; an IPv4 address uses the first 4 bytes
//       24   16  endpoint address, in the same format
//       40   16  the encapsulation's data about the peer: 0 for udp, the MAC for vxlan, the session number for wireguard
//       56    4  slot that counts the peer's traffic, in the byte order of this host; 0 if the traffic is not counted
//       60   16  second address from which the peer's datagrams may come: IPv6, or IPv4 as ::ffff:a.b.c.d; 0 for none

import { familyOf, isIpv4Net, netAround, type Address, type Family, type Net } from '../../net/address.ts'

export const PEER_RECORD_BYTES = 76

export interface Peer {
  readonly subnet: Net
  readonly endpoint: Address
  readonly port: number
  /** A second address of the peer's host, in the other family, from which the peer's datagrams may come. */
  readonly other?: Address | undefined
  /** The encapsulation's data about the peer, such as its MAC, at most 16 bytes; left out if the encapsulation needs none. */
  readonly encap?: Uint8Array
  /** The longest packet in bytes that reaches the peer, if a search found it to be shorter than the kernel's path MTU allows. */
  readonly limit?: number
  /** The slot in which the engine counts the peer's traffic (traffic.ts); left out if the traffic is not counted. */
  readonly slot?: number
  /**
   * True if datagrams to this peer must leave from the port of the network configuration, because the peer replies to the port from which
   * it received a datagram.
   */
  readonly isFromKnownPort?: true
  /** True in a change that removes the subnet's peer from the table. */
  readonly isGone?: true
}

const GONE = 1
const FROM_KNOWN_PORT = 2
const SUBNET_OFFSET = 8
const ENDPOINT_OFFSET = 24
const ENCAP_OFFSET = 40
const SLOT_OFFSET = 56
const OTHER_OFFSET = 60
/** The upper 96 bits of an IPv4 address that is written as IPv6 address, ::ffff:a.b.c.d (RFC 4291, section 2.5.5.2). */
const MAPPED = 0xffffn << 32n
/** True on a little-endian host. The slot is written in the byte order of the host, because C++ reads it as a plain integer. */
const IS_LITTLE_ENDIAN = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1

function setAddress(view: DataView, at: number, address: Address): void {
  if (typeof address === 'number') return view.setUint32(at, address)
  view.setBigUint64(at, address >> 64n)
  view.setBigUint64(at + 8, address & 0xffff_ffff_ffff_ffffn)
}

const asIpv6 = (address: Address): bigint => (typeof address === 'number' ? MAPPED | BigInt(address) : address)
const ofIpv6 = (address: bigint): Address => (address >> 32n === 0xffffn ? Number(address & 0xffff_ffffn) : address)

const addressAt = (view: DataView, at: number, family: number): Address =>
  family === 4 ? view.getUint32(at) : (view.getBigUint64(at) << 64n) | view.getBigUint64(at + 8)

export function encodePeers(peers: readonly Peer[]): Uint8Array {
  const records = new Uint8Array(peers.length * PEER_RECORD_BYTES)
  const view = new DataView(records.buffer)
  peers.forEach((peer, index) => {
    const at = index * PEER_RECORD_BYTES
    view.setUint8(at, isIpv4Net(peer.subnet) ? 4 : 6)
    view.setUint8(at + 1, peer.subnet.prefixLength)
    view.setUint8(at + 2, typeof peer.endpoint === 'number' ? 4 : 6)
    view.setUint8(at + 3, (peer.isGone ? GONE : 0) | (peer.isFromKnownPort ? FROM_KNOWN_PORT : 0))
    view.setUint16(at + 4, peer.port)
    view.setUint16(at + 6, peer.limit ?? 0)
    setAddress(view, at + SUBNET_OFFSET, peer.subnet.address)
    setAddress(view, at + ENDPOINT_OFFSET, peer.endpoint)
    view.setUint32(at + SLOT_OFFSET, peer.slot ?? 0, IS_LITTLE_ENDIAN)
    if (peer.encap) records.set(peer.encap, at + ENCAP_OFFSET)
    if (peer.other !== undefined) setAddress(view, at + OTHER_OFFSET, asIpv6(peer.other))
  })
  return records
}

export function decodePeers(records: Uint8Array): Peer[] {
  if (records.byteLength % PEER_RECORD_BYTES !== 0) throw new RangeError('peer records: not a whole number of records')
  const view = new DataView(records.buffer, records.byteOffset, records.byteLength)
  const peers: Peer[] = []
  for (let at = 0; at < records.byteLength; at += PEER_RECORD_BYTES) {
    const limit = view.getUint16(at + 6)
    const slot = view.getUint32(at + SLOT_OFFSET, IS_LITTLE_ENDIAN)
    const other = addressAt(view, at + OTHER_OFFSET, 6) as bigint
    peers.push({
      subnet: netAround(addressAt(view, at + SUBNET_OFFSET, view.getUint8(at)), view.getUint8(at + 1)),
      endpoint: addressAt(view, at + ENDPOINT_OFFSET, view.getUint8(at + 2)),
      port: view.getUint16(at + 4),
      ...(limit === 0 ? {} : { limit }),
      ...(slot === 0 ? {} : { slot }),
      ...(other === 0n ? {} : { other: ofIpv6(other) }),
      ...(view.getUint8(at + 3) & FROM_KNOWN_PORT ? { isFromKnownPort: true as const } : {}),
      ...(view.getUint8(at + 3) & GONE ? { isGone: true as const } : {}),
    })
  }
  return peers
}

/** A peer table that finds peers by address, with the same rules as native/core/peers.h. */
export interface PeerTable {
  find(address: Address): Peer | undefined
  /** True if a peer with a subnet of this family has `address` as its endpoint or second address. */
  hasEndpointAt(address: Address, family: Family): boolean
  change(peers: readonly Peer[]): void
}

/** Returns a peer table with these peers. If two peers have the same subnet, the later one replaces the earlier. */
export function createPeerTable(peers: readonly Peer[]): PeerTable {
  interface Length {
    readonly family: Family
    readonly bits: number
    readonly subnets: Map<Address, Peer>
  }
  let lengths: readonly Length[] = []
  const endpoints = { ipv4: new Map<Address, number>(), ipv6: new Map<Address, number>() }
  function subnetsOf({ subnet }: Peer): Map<Address, Peer> {
    const [family, bits] = [familyOf(subnet), subnet.prefixLength]
    const known = lengths.find((length) => length.family === family && length.bits === bits)
    if (known) return known.subnets
    const length = { family, bits, subnets: new Map<Address, Peer>() }
    lengths = [...lengths, length].toSorted((a, b) => b.bits - a.bits)
    return length.subnets
  }
  function count({ subnet, endpoint, other }: Peer, change: number): void {
    const of = endpoints[familyOf(subnet)]
    for (const address of other === undefined ? [endpoint] : [endpoint, other]) {
      const now = (of.get(address) ?? 0) + change
      if (now === 0) of.delete(address)
      else of.set(address, now)
    }
  }
  const table: PeerTable = {
    find(address) {
      const family = familyOf(address)
      for (const length of lengths) {
        const peer = length.family === family && length.subnets.get(netAround(address, length.bits).address)
        if (peer) return peer
      }
      return undefined
    },
    hasEndpointAt: (address, family) => endpoints[family].has(address),
    change(changes) {
      for (const peer of changes) {
        const subnets = subnetsOf(peer)
        const before = subnets.get(peer.subnet.address)
        if (before) count(before, -1)
        if (peer.isGone) {
          subnets.delete(peer.subnet.address)
        } else {
          subnets.set(peer.subnet.address, peer)
          count(peer, 1)
        }
      }
    },
  }
  table.change(peers)
  return table
}
