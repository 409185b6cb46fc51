// peers.ts - the peer table of the engines: the peers' subnets, and the UDP endpoint that each subnet is reached
// through.
//
// weftd passes the table to C++ as an array of records of 64 bytes. It passes the whole table at the start, after
// missed changes and for a repair, otherwise only the changed records. The datagrams to a peer may have another family
// than its subnet. A record has these fields:
// - Offset 0, 1 byte: IP version of the subnet, 4 or 6.
// - Offset 1, 1 byte: prefix length of the subnet.
// - Offset 2, 1 byte: IP version of datagrams to the peer, 4 or 6.
// - Offset 3, 1 byte: flags. Flag 1: the subnet no longer has a peer; all fields except version, length and subnet are
//   0. Flag 2: datagrams to the peer must leave from the port of the network configuration.
// - Offset 4, 2 bytes: UDP port of the peer's host, big-endian.
// - Offset 6, 2 bytes: limit, the longest packet in bytes that reaches the peer, big-endian; 0 if it is not known.
// - Offset 8, 16 bytes: subnet, network order; an IPv4 address uses the first 4 bytes.
// - Offset 24, 16 bytes: IPv6 address of the peer's host, network order; 0 for none.
// - Offset 40, 16 bytes: the encapsulation's data about the peer: 0 for udp, the MAC for vxlan, the session number for
//   wireguard.
// - Offset 56, 4 bytes: slot that counts the peer's traffic, in the byte order of this host; 0 if the traffic is not
//   counted.
// - Offset 60, 4 bytes: IPv4 address of the peer's host, network order; 0 for none.

import {
  FAMILIES,
  addressKey,
  familyOf,
  isIpv4Net,
  netAround,
  type Address,
  type AddressKey,
  type Addresses,
  type Family,
  type Net,
} from '../../net/address.ts'

export const PEER_RECORD_BYTES = 64

export interface Peer {
  readonly subnet: Net
  /**
   * The addresses of the peer's host, from which the peer's datagrams may come. One of these addresses must have the
   * family `outer`.
   */
  readonly hosts: Addresses
  /** The family of datagrams to the peer. */
  readonly outer: Family
  readonly port: number
  /**
   * The encapsulation's data about the peer, such as its MAC, at most 16 bytes; left out if the encapsulation needs
   * none.
   */
  readonly encap?: Uint8Array
  /**
   * The length in bytes of the longest packet that reaches the peer, if the path MTU search found it to be less than
   * the kernel's path MTU allows.
   */
  readonly limit?: number
  /** The slot in which the engine counts the peer's traffic (traffic.ts); left out if the traffic is not counted. */
  readonly slot?: number
  /**
   * True if datagrams to this peer must leave from the port of the network configuration, because the peer replies to
   * the port from which it received a datagram.
   */
  readonly isFromKnownPort?: true
  /** True in a record that removes the subnet's peer from the table. */
  readonly isGone?: true
}

const GONE = 1
const FROM_KNOWN_PORT = 2
const SUBNET_OFFSET = 8
const IPV6_OFFSET = 24
const ENCAP_OFFSET = 40
const SLOT_OFFSET = 56
const IPV4_OFFSET = 60
/**
 * True on a little-endian host. The slot is written in the byte order of the host, because C++ reads it as a plain
 * integer.
 */
const IS_LITTLE_ENDIAN = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1

function setAddress(view: DataView, at: number, address: Address): void {
  if (typeof address === 'number') return view.setUint32(at, address)
  view.setBigUint64(at, address >> 64n)
  view.setBigUint64(at + 8, address & 0xffff_ffff_ffff_ffffn)
}

const ipv6At = (view: DataView, at: number): bigint => (view.getBigUint64(at) << 64n) | view.getBigUint64(at + 8)

/** Returns the address to which datagrams to a peer are sent; 0 in a record that removes the peer. */
export const hostOf = ({ hosts, outer }: Peer): Address => hosts[outer] ?? 0

export function encodePeers(peers: readonly Peer[]): Uint8Array {
  const records = new Uint8Array(peers.length * PEER_RECORD_BYTES)
  const view = new DataView(records.buffer)
  peers.forEach((peer, index) => {
    const at = index * PEER_RECORD_BYTES
    view.setUint8(at, isIpv4Net(peer.subnet) ? 4 : 6)
    view.setUint8(at + 1, peer.subnet.prefixLength)
    view.setUint8(at + 2, peer.outer === 'ipv4' ? 4 : 6)
    view.setUint8(at + 3, (peer.isGone ? GONE : 0) | (peer.isFromKnownPort ? FROM_KNOWN_PORT : 0))
    view.setUint16(at + 4, peer.port)
    view.setUint16(at + 6, peer.limit ?? 0)
    setAddress(view, at + SUBNET_OFFSET, peer.subnet.address)
    view.setUint32(at + IPV4_OFFSET, peer.hosts.ipv4 ?? 0)
    setAddress(view, at + IPV6_OFFSET, peer.hosts.ipv6 ?? 0n)
    view.setUint32(at + SLOT_OFFSET, peer.slot ?? 0, IS_LITTLE_ENDIAN)
    if (peer.encap) records.set(peer.encap, at + ENCAP_OFFSET)
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
    const [ipv4, ipv6] = [view.getUint32(at + IPV4_OFFSET), ipv6At(view, at + IPV6_OFFSET)]
    const first = view.getUint8(at) === 4 ? view.getUint32(at + SUBNET_OFFSET) : ipv6At(view, at + SUBNET_OFFSET)
    peers.push({
      subnet: netAround(first, view.getUint8(at + 1)),
      hosts: { ...(ipv4 === 0 ? {} : { ipv4 }), ...(ipv6 === 0n ? {} : { ipv6 }) },
      outer: view.getUint8(at + 2) === 4 ? 'ipv4' : 'ipv6',
      port: view.getUint16(at + 4),
      ...(limit === 0 ? {} : { limit }),
      ...(slot === 0 ? {} : { slot }),
      ...(view.getUint8(at + 3) & FROM_KNOWN_PORT ? { isFromKnownPort: true as const } : {}),
      ...(view.getUint8(at + 3) & GONE ? { isGone: true as const } : {}),
    })
  }
  return peers
}

/** A peer table that finds peers by address, with the same rules as native/core/peers.h. */
export interface PeerTable {
  find(address: Address): Peer | undefined
  /** Returns true if `address` is the host address of a peer that has a subnet of the given family. */
  hasEndpointAt(address: Address, family: Family): boolean
  change(peers: readonly Peer[]): void
}

/** Returns a peer table with these peers. If two peers have the same subnet, the later one replaces the earlier. */
export function createPeerTable(peers: readonly Peer[]): PeerTable {
  interface Length {
    readonly family: Family
    readonly bits: number
    /** The peers by the key of their subnet's address. */
    readonly subnets: Map<AddressKey, Peer>
  }
  let lengths: readonly Length[] = []
  const endpoints = { ipv4: new Map<AddressKey, number>(), ipv6: new Map<AddressKey, number>() }
  function subnetsOf({ subnet }: Peer): Map<AddressKey, Peer> {
    const [family, bits] = [familyOf(subnet), subnet.prefixLength]
    const known = lengths.find((length) => length.family === family && length.bits === bits)
    if (known) return known.subnets
    const length = { family, bits, subnets: new Map<AddressKey, Peer>() }
    lengths = [...lengths, length].toSorted((a, b) => b.bits - a.bits)
    return length.subnets
  }
  function count({ subnet, hosts }: Peer, change: number): void {
    const of = endpoints[familyOf(subnet)]
    for (const family of FAMILIES) {
      const address = hosts[family]
      if (address === undefined) continue
      const key = addressKey(address)
      const now = (of.get(key) ?? 0) + change
      if (now === 0) of.delete(key)
      else of.set(key, now)
    }
  }
  const table: PeerTable = {
    find(address) {
      const family = familyOf(address)
      for (const length of lengths) {
        const peer = length.family === family && length.subnets.get(addressKey(netAround(address, length.bits).address))
        if (peer) return peer
      }
      return undefined
    },
    hasEndpointAt: (address, family) => endpoints[family].has(addressKey(address)),
    change(changes) {
      for (const peer of changes) {
        const subnets = subnetsOf(peer)
        const key = addressKey(peer.subnet.address)
        const before = subnets.get(key)
        if (before) count(before, -1)
        if (peer.isGone) {
          subnets.delete(key)
        } else {
          subnets.set(key, peer)
          count(peer, 1)
        }
      }
    },
  }
  table.change(peers)
  return table
}
