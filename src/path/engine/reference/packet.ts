// packet.ts - operations on inner IPv4 packets for the dgram engine. Their results equal those of native/ byte for
// byte.

import { LRUCache } from 'lru-cache'
import { isOneHost, type Ipv4 } from '../../../net/ipv4.ts'
import { createBucket, type Bucket } from './bucket.ts'

const MIN_IPV4_HEADER_BYTES = 20
const IPV6_HEADER_BYTES = 40
const PROTOCOL_ICMP = 1
const PROTOCOL_TCP = 6
const DONT_FRAGMENT = 0x4000
const MORE_FRAGMENTS = 0x2000
const OPTION_COPIED = 0x80
const OPTION_END = 0
const OPTION_NOTHING = 1
const OPTION_MSS = 2
const TCP_HEADER_BYTES = 20
const TCP_CHECKSUM = 16
const TCP_SYN = 2
const OPTION_LOOSE_ROUTE = 131
const OPTION_STRICT_ROUTE = 137
const ICMP_ECHO_REQUEST = 8
const ICMP_TTL = 8
/** The maximum length in bytes of an ICMP error about an IPv4 packet (RFC 1812, section 4.3.2.3). */
const MAX_ICMP_ERROR_BYTES = 576
/**
 * The number of ICMP errors that may go out in one burst to all senders outside this node's subnet together. After the
 * burst, one error may follow in each interval of ICMP_EVERY_MS. native/core/icmp.h has the same limits.
 */
const ICMP_BURST = 500
const ICMP_EVERY_MS = 1
/**
 * The number of ICMP errors that may go out in one burst to one sender. After the burst, one error may follow in each
 * interval of ICMP_SENDER_EVERY_MS. native/core/icmp.h has the same limits.
 */
const ICMP_SENDER_BURST = 50
const ICMP_SENDER_EVERY_MS = 10
/** The maximum number of senders whose rate of ICMP errors is tracked. */
const ICMP_SENDERS = 1024

/**
 * Returns the length of the IPv4 packet at the start of `bytes`; undefined if `bytes` does not start with a complete
 * IPv4 packet.
 */
export function ipv4PacketBytes(bytes: Buffer): number | undefined {
  if (bytes.length < MIN_IPV4_HEADER_BYTES || bytes.readUInt8(0) >> 4 !== 4) return undefined
  const headerBytes = ipv4HeaderBytes(bytes)
  const total = bytes.readUInt16BE(2)
  if (headerBytes < MIN_IPV4_HEADER_BYTES || headerBytes > total || total > bytes.length) return undefined
  return total
}

/**
 * Returns the name of the counter that counts an invalid IPv4 packet from a peer as dropped; undefined if the packet is
 * valid. native/core/inspect.h explains the rules.
 */
export function reasonMalformed(packet: Buffer): string | undefined {
  const headerBytes = ipv4HeaderBytes(packet)
  const header = packet.subarray(0, headerBytes)
  if (internetChecksum(header) !== 0) return 'rx_drop_checksum'
  if (!isSoundFragment(packet, packet.length - headerBytes)) return 'rx_drop_fragment'
  return areSoundOptions(header.subarray(MIN_IPV4_HEADER_BYTES)) ? undefined : 'rx_drop_options'
}

/**
 * Returns true unless the packet, with a payload of `size` bytes, is an invalid fragment (RFC 791, section 3.2; RFC
 * 3128, section 3).
 */
function isSoundFragment(packet: Buffer, size: number): boolean {
  const word = packet.readUInt16BE(6) & 0x3fff
  if (word === 0) return true
  const offset = (word & 0x1fff) * 8
  const hasMore = (word & 0x2000) !== 0
  if (size === 0 || (hasMore && size % 8 !== 0) || packet.length + offset > 0xffff) return false
  return packet.readUInt8(9) !== PROTOCOL_TCP || (offset === 0 ? size >= 16 : offset > 8)
}

/** Returns true if the IPv4 options end within the header and contain no source route (RFC 791, section 3.1). */
function areSoundOptions(options: Buffer): boolean {
  for (let at = 0; at < options.length && options[at] !== OPTION_END;) {
    const [type, size = 0] = options.subarray(at)
    if (type === OPTION_LOOSE_ROUTE || type === OPTION_STRICT_ROUTE) return false
    if (type === OPTION_NOTHING) at++
    else if (size < 2 || at + size > options.length) return false
    else at += size
  }
  return true
}

export const mayFragment = (packet: Buffer): boolean => (packet.readUInt16BE(6) & DONT_FRAGMENT) === 0

/** Returns true if the IPv4 packet is an ICMP echo request from `source` and not a fragment. */
export const isEchoRequestFrom = (source: Ipv4, packet: Buffer): boolean =>
  packet.readUInt8(9) === PROTOCOL_ICMP &&
  (packet.readUInt16BE(6) & ~DONT_FRAGMENT) === 0 &&
  packet[ipv4HeaderBytes(packet)] === ICMP_ECHO_REQUEST &&
  packet.readUInt32BE(12) === source

/** Splits an IPv4 packet into fragments of at most `mtu` bytes (RFC 791, section 3.2), like native/core/fragment.h. */
export function fragmentsOf(packet: Buffer, mtu: number): Buffer[] {
  const headerBytes = ipv4HeaderBytes(packet)
  const word = packet.readUInt16BE(6)
  const payload = packet.subarray(headerBytes)
  const size = Math.floor((mtu - headerBytes) / 8) * 8
  const fragments: Buffer[] = []
  for (let at = 0; at < payload.length; at += size) {
    const fragment = Buffer.concat([packet.subarray(0, headerBytes), payload.subarray(at, at + size)])
    const header = fragment.subarray(0, headerBytes)
    const hasMore = at + size < payload.length
    if (at > 0) keepCopiedOptions(header.subarray(MIN_IPV4_HEADER_BYTES))
    header.writeUInt16BE(fragment.length, 2)
    header.writeUInt16BE((word + at / 8) | (hasMore ? MORE_FRAGMENTS : 0), 6)
    header.writeUInt16BE(0, 10)
    header.writeUInt16BE(internetChecksum(header), 10)
    fragments.push(fragment)
  }
  return fragments
}

/**
 * Overwrites the IPv4 options that lack the copied flag with no-operations, because only the first fragment may contain
 * them (RFC 791, section 3.1).
 */
function keepCopiedOptions(options: Buffer): void {
  for (let at = 0; at < options.length && options[at] !== OPTION_END;) {
    const [type = OPTION_END, length = 0] = options.subarray(at)
    const size = type === OPTION_NOTHING ? 1 : length
    if (size === 0 || at + size > options.length) return
    if ((type & OPTION_COPIED) === 0) options.fill(OPTION_NOTHING, at, at + size)
    at += size
  }
}

/**
 * Returns true if the packet is a TCP segment with the SYN flag, with which both ends of a connection announce their
 * MSS.
 */
export function isTcpSyn(packet: Buffer): boolean {
  const at = ipv4HeaderBytes(packet)
  const isFirst = (packet.readUInt16BE(6) & 0x1fff) === 0
  const isTcp = packet.readUInt8(9) === PROTOCOL_TCP && packet.length >= at + TCP_HEADER_BYTES
  return isTcp && isFirst && (packet.readUInt8(at + 13) & TCP_SYN) !== 0
}

/**
 * Lowers the maximum segment size (MSS) in a SYN packet to what fits into packets of `mtu` bytes (RFC 9293, section
 * 3.7.1), like native/core/mss.h.
 */
export function clampMss(packet: Buffer, mtu: number): void {
  const tcp = packet.subarray(ipv4HeaderBytes(packet))
  const headerBytes = (tcp.readUInt8(12) >> 4) * 4
  const most = mtu - MIN_IPV4_HEADER_BYTES - TCP_HEADER_BYTES
  for (let at = TCP_HEADER_BYTES; at < headerBytes && headerBytes <= tcp.length;) {
    const [kind, size = 0] = tcp.subarray(at, headerBytes)
    if (kind === OPTION_END || (kind !== OPTION_NOTHING && (size < 2 || at + size > headerBytes))) return
    if (kind === OPTION_MSS && size === 4) {
      const before = tcp.readUInt16BE(at + 2)
      if (before <= most) return
      tcp.writeUInt16BE(most, at + 2)
      // If the MSS option is at an odd offset, the two bytes of the MSS belong to different 16-bit words of the
      // checksum. So swap these bytes, which changes the sum by the same amount.
      const asSummed = (value: number): number => (at % 2 === 0 ? value : ((value & 0xff) << 8) | (value >> 8))
      tcp.writeUInt16BE(updatedChecksum(tcp.readUInt16BE(TCP_CHECKSUM), asSummed(before), asSummed(most)), TCP_CHECKSUM)
      return
    }
    at += kind === OPTION_NOTHING ? 1 : size
  }
}

/** Returns the checksum of a header in which one 16-bit word changed from `before` to `now` (RFC 1624, equation 3). */
function updatedChecksum(checksum: number, before: number, now: number): number {
  let sum = (~checksum & 0xffff) + (~before & 0xffff) + now
  sum = (sum & 0xffff) + (sum >>> 16)
  sum = (sum & 0xffff) + (sum >>> 16)
  return ~sum & 0xffff
}

export function isIpv6Packet(bytes: Buffer): boolean {
  return (
    bytes.length >= IPV6_HEADER_BYTES &&
    bytes.readUInt8(0) >> 4 === 6 &&
    IPV6_HEADER_BYTES + bytes.readUInt16BE(4) <= bytes.length
  )
}

/**
 * Returns true if the complete packet has a link-local, multicast or broadcast destination, as native/core/packet.h
 * explains.
 */
export function isForLink(packet: Buffer): boolean {
  if (packet.readUInt8(0) >> 4 === 6)
    return packet.readUInt8(24) === 0xff || (packet.readUInt16BE(24) & 0xffc0) === 0xfe80
  return packet.readUInt8(16) >> 4 === 0xe || packet.readUInt32BE(16) === 0xffffffff
}

function ipv4HeaderBytes(bytes: Buffer): number {
  return (bytes.readUInt8(0) & 15) * 4
}

/** Returns the complemented Internet checksum of `bytes` (RFC 1071). */
export function internetChecksum(bytes: Buffer): number {
  let sum = 0
  for (let at = 0; at + 1 < bytes.length; at += 2) sum += bytes.readUInt16BE(at)
  if (bytes.length % 2 === 1) sum += bytes.readUInt8(bytes.length - 1) << 8
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16)
  return ~sum & 0xffff
}

/**
 * Decrements the TTL in the packet and updates the header checksum. Returns false if the TTL has expired, so that the
 * packet must be dropped.
 */
export function decrementTtl(bytes: Buffer): boolean {
  const ttl = bytes.readUInt8(8)
  if (ttl <= 1) return false
  const before = bytes.readUInt16BE(8)
  bytes.writeUInt8(ttl - 1, 8)
  bytes.writeUInt16BE(updatedChecksum(bytes.readUInt16BE(10), before, bytes.readUInt16BE(8)), 10)
  return true
}

export interface IcmpError {
  readonly type: number
  readonly code: number
  /** The MTU of the next hop in bytes, for a fragmentation-needed error (RFC 1191, section 4). */
  readonly mtu?: number
}
export const NET_UNREACHABLE: IcmpError = { type: 3, code: 0 }
export const TIME_EXCEEDED: IcmpError = { type: 11, code: 0 }
export const fragmentationNeeded = (mtu: number): IcmpError => ({ type: 3, code: 4, mtu })

/**
 * Returns an ICMP error about `packet` from the IPv4 address `source`. Returns undefined if the standards forbid an
 * error about the packet (RFC 1122, section 3.2.2; RFC 1812, section 4.3.2.7). The TTL of the ICMP error is 8, as in
 * flanneld's errors (pkg/backend/udp/proxy_amd64.c). The error quotes as much of the packet as fits, like
 * native/core/icmp.h.
 */
export function icmpError({ type, code, mtu = 0 }: IcmpError, source: number, packet: Buffer): Buffer | undefined {
  const headerBytes = ipv4HeaderBytes(packet)
  if ((packet.readUInt16BE(6) & 0x1fff) !== 0) return undefined
  if (packet.readUInt8(9) === PROTOCOL_ICMP && packet[headerBytes] !== ICMP_ECHO_REQUEST) return undefined
  if (!isOneHost(packet.readUInt32BE(12)) || !isOneHost(packet.readUInt32BE(16))) return undefined
  const quote = packet.subarray(0, MAX_ICMP_ERROR_BYTES - MIN_IPV4_HEADER_BYTES - 8)
  const error = Buffer.alloc(MIN_IPV4_HEADER_BYTES + 8 + quote.length)
  error.writeUInt8(0x45, 0)
  error.writeUInt16BE(error.length, 2)
  error.writeUInt8(ICMP_TTL, 8)
  error.writeUInt8(PROTOCOL_ICMP, 9)
  error.writeUInt32BE(source, 12)
  packet.copy(error, 16, 12, 16)
  error.writeUInt16BE(internetChecksum(error.subarray(0, MIN_IPV4_HEADER_BYTES)), 10)
  const icmp = error.subarray(MIN_IPV4_HEADER_BYTES)
  icmp.writeUInt8(type, 0)
  icmp.writeUInt8(code, 1)
  icmp.writeUInt16BE(mtu, 6)
  quote.copy(icmp, 8)
  icmp.writeUInt16BE(internetChecksum(icmp), 2)
  return error
}

/**
 * Returns a rate limiter for one type of ICMP error (RFC 1812, section 4.3.2.8), like native/core/icmp.h. Each sender
 * gets 100 errors per second in bursts of 50. All senders outside this node's subnet together get 1,000 per second in
 * bursts of 500.
 */
export function icmpLimit(): (sender: Ipv4, isOurs: boolean, nowMs: number) => boolean {
  const senders = new LRUCache<Ipv4, Bucket>({ max: ICMP_SENDERS })
  const others = createBucket(ICMP_EVERY_MS, ICMP_BURST)
  return (sender, isOurs, nowMs) => {
    let own = senders.get(sender)
    if (!own) senders.set(sender, (own = createBucket(ICMP_SENDER_EVERY_MS, ICMP_SENDER_BURST)))
    return own(nowMs) && (isOurs || others(nowMs))
  }
}
