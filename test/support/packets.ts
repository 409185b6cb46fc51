// packets.ts - builds packets for tests.

import { internetChecksum } from '../../src/path/engine/reference/packet.ts'

interface PacketFields {
  readonly source: number
  readonly destination: number
  readonly protocol?: number
  readonly ttl?: number
  readonly tos?: number
  readonly id?: number
  /** The 16 bits of flags and fragment offset. */
  readonly fragment?: number
  /** IP options; a whole number of 4 bytes. */
  readonly options?: Buffer
  readonly payload?: Buffer
}

/** Returns a packet with a right header checksum. */
export function ipv4Packet(fields: PacketFields): Buffer {
  const {
    source,
    destination,
    protocol = 17,
    ttl = 64,
    tos = 0,
    id = 0,
    fragment = 0,
    options = Buffer.alloc(0),
    payload = Buffer.alloc(0),
  } = fields
  const header = Buffer.alloc(20 + options.length)
  header.writeUInt8(0x40 | (header.length / 4), 0)
  header.writeUInt8(tos, 1)
  header.writeUInt16BE(header.length + payload.length, 2)
  header.writeUInt16BE(id, 4)
  header.writeUInt16BE(fragment, 6)
  header.writeUInt8(ttl, 8)
  header.writeUInt8(protocol, 9)
  header.writeUInt32BE(source, 12)
  header.writeUInt32BE(destination, 16)
  options.copy(header, 20)
  header.writeUInt16BE(internetChecksum(header), 10)
  return Buffer.concat([header, payload])
}

/** Returns an IPv6 packet with `protocol` after its fixed header (RFC 8200 section 3). */
export function ipv6Packet(
  source: bigint,
  destination: bigint,
  payload: Buffer,
  { protocol = 17, hopLimit = 64 }: { protocol?: number; hopLimit?: number } = {},
): Buffer {
  const header = Buffer.alloc(40)
  header.writeUInt8(0x60, 0)
  header.writeUInt16BE(payload.length, 4)
  header.writeUInt8(protocol, 6)
  header.writeUInt8(hopLimit, 7)
  for (const [at, address] of [
    [8, source],
    [24, destination],
  ] as const) {
    header.writeBigUInt64BE(address >> 64n, at)
    header.writeBigUInt64BE(address & 0xffff_ffff_ffff_ffffn, at + 8)
  }
  return Buffer.concat([header, payload])
}

/** Returns a UDP datagram with its checksum. */
export function udpDatagram(
  source: number,
  destination: number,
  sourcePort: number,
  destinationPort: number,
  payload: Buffer,
): Buffer {
  const datagram = Buffer.alloc(8 + payload.length)
  datagram.writeUInt16BE(sourcePort, 0)
  datagram.writeUInt16BE(destinationPort, 2)
  datagram.writeUInt16BE(datagram.length, 4)
  payload.copy(datagram, 8)
  const pseudo = Buffer.alloc(12)
  pseudo.writeUInt32BE(source, 0)
  pseudo.writeUInt32BE(destination, 4)
  pseudo.writeUInt8(17, 9)
  pseudo.writeUInt16BE(datagram.length, 10)
  datagram.writeUInt16BE(internetChecksum(Buffer.concat([pseudo, datagram])) || 0xffff, 6)
  return datagram
}
