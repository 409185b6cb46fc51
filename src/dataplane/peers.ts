// peers.ts - the peer table as the engines take it: which subnet is reached at which UDP endpoint.
//
// The table crosses into C++ as one array of fixed records: all of it at the start, after a gap and for a repair, else those that
// differ from what was said before. The record has room for IPv6 on both sides and for what an encapsulation must know of a peer, so
// that neither needs another layout.
//
//   offset size
//        0    1  address family of the subnet: 4 or 6
//        1    1  prefix length of the subnet
//        2    1  address family of the endpoint: 4 or 6
//        3    1  flags: 1 where the subnet has no peer any more, of which all else but family, length and subnet is 0
//        4    2  UDP port of the endpoint, big-endian
//        6    2  limit: the longest packet that reaches the peer, big-endian; 0 where none is known
//        8   16  subnet, network order; an IPv4 address stands in the first 4
//       24   16  endpoint address, likewise
//       40   16  what the encapsulation needs to know of the peer; 0 for flannel's udp, its MAC for vxlan
//       56    4  slot in which what passes to and from the peer is counted, in the order of this host; 0 for none

import { ipv4Mask, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'

export const PEER_RECORD_BYTES = 60

export interface Peer {
  readonly subnet: Ipv4Net
  readonly endpoint: Ipv4
  readonly port: number
  /** What the encapsulation needs to know of the peer, at most 16 bytes; nothing where it is left out. */
  readonly encap?: Uint8Array
  /** The longest packet that reaches it, in bytes, beside what the kernel knows of the path; none where it is left out. */
  readonly limit?: number
  /** Where what passes to and from it is counted (traffic.ts); nowhere where it is left out. */
  readonly slot?: number
  /** Of a change: the subnet has no peer any more. */
  readonly isGone?: true
}

const GONE = 1
const ENCAP_OFFSET = 40
const SLOT_OFFSET = 56
/** C++ reads it as it stands. */
const IS_LITTLE_ENDIAN = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1

export function encodePeers(peers: readonly Peer[]): Uint8Array {
  const records = new Uint8Array(peers.length * PEER_RECORD_BYTES)
  const view = new DataView(records.buffer)
  peers.forEach((peer, index) => {
    const at = index * PEER_RECORD_BYTES
    view.setUint8(at, 4)
    view.setUint8(at + 1, peer.subnet.prefixLength)
    view.setUint8(at + 2, 4)
    view.setUint8(at + 3, peer.isGone ? GONE : 0)
    view.setUint16(at + 4, peer.port)
    view.setUint16(at + 6, peer.limit ?? 0)
    view.setUint32(at + 8, peer.subnet.address)
    view.setUint32(at + 24, peer.endpoint)
    view.setUint32(at + SLOT_OFFSET, peer.slot ?? 0, IS_LITTLE_ENDIAN)
    if (peer.encap) records.set(peer.encap, at + ENCAP_OFFSET)
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
    peers.push({
      subnet: { address: view.getUint32(at + 8), prefixLength: view.getUint8(at + 1) },
      endpoint: view.getUint32(at + 24),
      port: view.getUint16(at + 4),
      ...(limit === 0 ? {} : { limit }),
      ...(slot === 0 ? {} : { slot }),
      ...(view.getUint8(at + 3) & GONE ? { isGone: true as const } : {}),
    })
  }
  return peers
}

/** Peers by address: as native/core/peers.h. */
export interface PeerTable {
  /** The peer whose subnet has an address; of several the one with the longest prefix. */
  find(address: Ipv4): Peer | undefined
  /** Whether any peer's endpoint is at an address. */
  hasEndpointAt(address: Ipv4): boolean
  /** Puts these peers, or takes those away that are gone; all others stay. */
  change(peers: readonly Peer[]): void
}

/** Of two peers for one subnet the last counts. */
export function createPeerTable(peers: readonly Peer[]): PeerTable {
  /** By the length of their prefixes, the longest first. */
  let lengths: readonly { readonly bits: number; readonly mask: number; readonly subnets: Map<Ipv4, Peer> }[] = []
  /** How many have their endpoint at an address. */
  const endpoints = new Map<Ipv4, number>()
  function subnetsOf(bits: number): Map<Ipv4, Peer> {
    const known = lengths.find((length) => length.bits === bits)
    if (known) return known.subnets
    const length = { bits, mask: ipv4Mask(bits), subnets: new Map<Ipv4, Peer>() }
    lengths = [...lengths, length].toSorted((a, b) => b.bits - a.bits)
    return length.subnets
  }
  function count(endpoint: Ipv4, change: number): void {
    const now = (endpoints.get(endpoint) ?? 0) + change
    if (now === 0) endpoints.delete(endpoint)
    else endpoints.set(endpoint, now)
  }
  const table: PeerTable = {
    find(address) {
      for (const { mask, subnets } of lengths) {
        const peer = subnets.get((address & mask) >>> 0)
        if (peer) return peer
      }
      return undefined
    },
    hasEndpointAt: (address) => endpoints.has(address),
    change(changes) {
      for (const peer of changes) {
        const subnets = subnetsOf(peer.subnet.prefixLength)
        const before = subnets.get(peer.subnet.address)
        if (before) count(before.endpoint, -1)
        if (peer.isGone) {
          subnets.delete(peer.subnet.address)
        } else {
          subnets.set(peer.subnet.address, peer)
          count(peer.endpoint, 1)
        }
      }
    },
  }
  table.change(peers)
  return table
}
