// peers.ts - the peer table as the engines take it: which subnet is reached at which UDP endpoint.
//
// The table crosses into C++ as one array of fixed records: all of it at the start, after a gap and for a repair, else those that
// differ from what was said before. Subnet and endpoint may be of different families.
//
//   offset size
//        0    1  address family of the subnet: 4 or 6
//        1    1  prefix length of the subnet
//        2    1  address family of the endpoint: 4 or 6
//        3    1  flags: 1 where the subnet has no peer any more, of which all else but family, length and subnet is 0;
//                2 where datagrams to the peer leave from the port that peers know
//        4    2  UDP port of the endpoint, big-endian
//        6    2  limit: the longest packet that reaches the peer, big-endian; 0 where none is known
//        8   16  subnet, network order; an IPv4 address stands in the first 4
//       24   16  endpoint address, likewise
//       40   16  what the encapsulation needs to know of the peer; 0 for flannel's udp, its MAC for vxlan
//       56    4  slot in which what passes to and from the peer is counted, in the order of this host; 0 for none
//       60   16  another address that its datagrams may come from: IPv6, or IPv4 as ::ffff:a.b.c.d; 0 for none

import { familyOf, isIpv4Net, netAround, type Address, type Family, type Net } from '../../net/address.ts'

export const PEER_RECORD_BYTES = 76

export interface Peer {
  readonly subnet: Net
  readonly endpoint: Address
  readonly port: number
  /** Another address of the peer's host, of another family, that its datagrams may come from. */
  readonly other?: Address | undefined
  /** The encapsulation's facts about the peer, at most 16 bytes; none when left out. */
  readonly encap?: Uint8Array
  /** The longest packet that reaches it, in bytes, beside what the kernel knows of the path; none where it is left out. */
  readonly limit?: number
  /** The slot in which the peer's traffic is counted (traffic.ts); it is not counted when left out. */
  readonly slot?: number
  /** Its datagrams leave from the port that peers know, since it answers to where they come from. */
  readonly isFromKnownPort?: true
  /** Set in a change: the subnet has no peer any more. */
  readonly isGone?: true
}

const GONE = 1
const FROM_KNOWN_PORT = 2
const SUBNET_OFFSET = 8
const ENDPOINT_OFFSET = 24
const ENCAP_OFFSET = 40
const SLOT_OFFSET = 56
const OTHER_OFFSET = 60
/** IPv4 among the addresses of IPv6 (RFC 4291 section 2.5.5.2). */
const MAPPED = 0xffffn << 32n
/** C++ reads it as it stands. */
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

/** The records read back, for the dgram engine and for tests. */
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

/** Peers by address: as native/core/peers.h. */
export interface PeerTable {
  /** The peer whose subnet has an address; of several the one with the longest prefix. */
  find(address: Address): Peer | undefined
  /** True when any peer with a subnet of the family is at an address, by its endpoint or the other one. */
  hasEndpointAt(address: Address, family: Family): boolean
  /** Puts these peers, or takes those away that are gone; all others stay. */
  change(peers: readonly Peer[]): void
}

/** The last of two peers for one subnet counts. */
export function createPeerTable(peers: readonly Peer[]): PeerTable {
  interface Length {
    readonly family: Family
    readonly bits: number
    readonly subnets: Map<Address, Peer>
  }
  /** The subnets by the length of their prefixes, the longest first. */
  let lengths: readonly Length[] = []
  /** The number of peers at each address, by the family of their subnets. */
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
