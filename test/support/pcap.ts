// pcap.ts - reads a capture of the underlay and checks every checksum of every packet that the datagrams carry.

import type { Readable } from 'node:stream'

export interface Checked {
  /** The inner packets, and those of them with a wrong IPv4 header, TCP or UDP checksum. */
  packets: number
  bad: number
  /** The outer datagrams (with UDP_SEGMENT a captured one holds many packets), and those with a wrong UDP checksum. */
  datagrams: number
  badDatagrams: number
}

const UDP = 17
const TCP = 6

/** The 16-bit ones' complement sum of bytes at an offset (RFC 1071), not inverted. */
function sum16(bytes: Buffer, from: number, to: number, start: number): number {
  let sum = start
  let at = from
  for (; at + 1 < to; at += 2) sum += (bytes[at]! << 8) | bytes[at + 1]!
  if (at < to) sum += bytes[at]! << 8
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16)
  return sum
}

/** The layout of an IP packet of either version without extension headers, from its own header. */
interface Shape {
  readonly isIpv4: boolean
  readonly header: number
  readonly length: number
  readonly protocol: number
}

/** Returns the layout of the packet at `from`; undefined if there is none. */
function shapeOf(bytes: Buffer, from: number, to: number): Shape | undefined {
  const version = bytes[from]! >> 4
  if (version === 4 && to - from >= 20) {
    const [header, length] = [(bytes[from]! & 15) * 4, bytes.readUInt16BE(from + 2)]
    return { isIpv4: true, header, length, protocol: bytes[from + 9]! }
  }
  if (version !== 6 || to - from < 40) return undefined
  return { isIpv4: false, header: 40, length: 40 + bytes.readUInt16BE(from + 4), protocol: bytes[from + 6]! }
}

/** True if the transport checksum of the packet at `from` is right. Over IPv4 a UDP checksum of 0 means none. */
function transportIsRight(bytes: Buffer, from: number, { isIpv4, header, length, protocol }: Shape): boolean {
  const [transport, to] = [from + header, from + length]
  if (protocol === UDP && bytes.readUInt16BE(transport + 6) === 0) return isIpv4
  const [first, last] = isIpv4 ? [12, 20] : [8, 40]
  const pseudo = sum16(bytes, from + first, from + last, protocol + (to - transport))
  return sum16(bytes, transport, to, pseudo) === 0xffff
}

/** Checks the packets in one datagram's payload. They follow each other, each as long as its header says. */
function checkInner(bytes: Buffer, from: number, to: number, checked: Checked): void {
  for (let at = from; at < to;) {
    const shape = shapeOf(bytes, at, to)
    checked.packets++
    if (!shape || shape.length < shape.header || at + shape.length > to) {
      checked.bad++
      return
    }
    const { isIpv4, header, protocol } = shape
    const right =
      (!isIpv4 || sum16(bytes, at, at + header, 0) === 0xffff) &&
      ((protocol !== TCP && protocol !== UDP) || transportIsRight(bytes, at, shape))
    if (!right) checked.bad++
    at += shape.length
  }
}

/**
 * Yields the frames of `tcpdump -w -` on an Ethernet device until it ends (pcap format of draft-ietf-opsawg-pcap in this machine's byte
 * order).
 */
export async function* frames(stream: Readable): AsyncGenerator<Buffer> {
  let pending: Buffer = Buffer.alloc(0)
  let started = false
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    pending = pending.length > 0 ? Buffer.concat([pending, chunk]) : chunk
    let at = 0
    if (!started && pending.length >= 24) {
      if (pending.readUInt32LE(0) !== 0xa1b2c3d4 || pending.readUInt32LE(20) !== 1)
        throw new Error('this is no little-endian pcap of an Ethernet device')
      at = 24
      started = true
    }
    if (!started) continue
    for (;;) {
      if (pending.length - at < 16) break
      const captured = pending.readUInt32LE(at + 8)
      if (captured !== pending.readUInt32LE(at + 12))
        throw new Error('the capture cut a packet: it needs --snapshot-length 0')
      if (pending.length - at - 16 < captured) break
      yield pending.subarray(at + 16, at + 16 + captured)
      at += 16 + captured
    }
    pending = pending.subarray(at)
  }
}

/** Returns the offset of the UDP header in a frame with an IPv4 packet. */
export const udpOf = (frame: Buffer): number => 14 + (frame[14]! & 15) * 4

/** True if the UDP checksum of a frame with an IPv6 packet without extension headers is present and right (RFC 8200 section 8.1). */
export function udp6IsRight(frame: Buffer): boolean {
  const length = frame.readUInt16BE(14 + 4)
  const pseudo = sum16(frame, 14 + 8, UDP6, UDP + length)
  return frame.readUInt16BE(UDP6 + 6) !== 0 && sum16(frame, UDP6, UDP6 + length, pseudo) === 0xffff
}
/** The offset of the UDP header in such a frame. */
export const UDP6 = 14 + 40

/**
 * Reads a capture with the filter `udp port PORT` until it ends. With `outer` the outer UDP checksums are checked too; on a device with
 * checksum offload they are not computed yet. The counts in `checked` grow meanwhile.
 */
export async function checkCapture(stream: Readable, checked: Checked, { outer = false } = {}): Promise<void> {
  for await (const frame of frames(stream)) {
    checked.datagrams++
    const shape = shapeOf(frame, 14, frame.length)
    if (!shape || (outer && !transportIsRight(frame, 14, shape))) checked.badDatagrams++
    if (shape) checkInner(frame, 14 + shape.header + 8, frame.length, checked)
  }
}
