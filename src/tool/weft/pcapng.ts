// pcapng.ts - writes the blocks of a capture file that Wireshark, tshark and tcpdump read: draft-ietf-opsawg-pcapng. Pure.
//
// Sections are those of that draft. All is little-endian, which the first block says (3.6.1, 4.1).

/** LINKTYPE_RAW: packets begin with an IPv4 or an IPv6 header (draft-ietf-opsawg-pcaplinktype). */
const LINK_RAW = 101

const BLOCK = { section: 0x0a0d0d0a, interface: 1, packet: 6 } as const
const BYTE_ORDER = 0x1a2b3c4d
/** The codes of options: of every block (3.5), of the section's header (4.1), of an interface (4.2), of a packet (4.3). */
const OPTION = { end: 0, comment: 1, application: 4, name: 2, flags: 2 } as const
/** The two bits of a packet's flags for its direction (4.3.1). */
const DIRECTION = { in: 1, out: 2 } as const

/** Pads to a multiple of four bytes (3.6.2). */
const padded = (bytes: Uint8Array): Buffer => Buffer.concat([bytes, Buffer.alloc(-bytes.length & 3)])

function uint16s(...values: readonly number[]): Buffer {
  const bytes = Buffer.alloc(values.length * 2)
  values.forEach((value, at) => bytes.writeUInt16LE(value, at * 2))
  return bytes
}
function uint32s(...values: readonly number[]): Buffer {
  const bytes = Buffer.alloc(values.length * 4)
  values.forEach((value, at) => bytes.writeUInt32LE(value, at * 4))
  return bytes
}

/** A block; its length stands before and behind it (3.1). */
function block(type: number, ...parts: readonly Uint8Array[]): Buffer {
  const body = Buffer.concat(parts)
  const length = uint32s(body.length + 12)
  return Buffer.concat([uint32s(type), length, body, length])
}

function options(...all: readonly (readonly [code: number, value: Uint8Array])[]): Buffer {
  const each = all.map(([code, value]) => Buffer.concat([uint16s(code, value.length), padded(value)]))
  return Buffer.concat([...each, uint16s(OPTION.end, 0)])
}

/** The beginning of a file: version 1.0, of a length that is not known (4.1). */
export function sectionHeader(application: string): Buffer {
  const unknown = uint32s(0xffffffff, 0xffffffff)
  const by = options([OPTION.application, Buffer.from(application)])
  return block(BLOCK.section, uint32s(BYTE_ORDER), uint16s(1, 0), unknown, by)
}

/**
 * The interface that all packets are of: IP packets, of which at most so many bytes are kept (4.2). Times count microseconds, since
 * nothing else is said. It is one for both directions, which packets have in their flags: libpcap 1.10 reads no second one of this
 * link, which it takes for another than the first one's.
 */
export function interfaceDescription(name: string, mostBytes: number): Buffer {
  return block(BLOCK.interface, uint16s(LINK_RAW, 0), uint32s(mostBytes), options([OPTION.name, Buffer.from(name)]))
}

interface CapturedPacket {
  /** Counted since 1970. */
  readonly timeUs: number
  /** The bytes that are kept of it, and its full length. */
  readonly bytes: Uint8Array
  readonly length: number
  readonly direction: 'in' | 'out'
  readonly comment: string
}

/** An Enhanced Packet Block of the first interface (4.3). */
export function packetBlock({ timeUs, bytes, length, direction, comment }: CapturedPacket): Buffer {
  const time = uint32s(Math.floor(timeUs / 2 ** 32), timeUs % 2 ** 32)
  const sizes = uint32s(bytes.length, Math.max(length, bytes.length))
  const about = options([OPTION.comment, Buffer.from(comment)], [OPTION.flags, uint32s(DIRECTION[direction])])
  return block(BLOCK.packet, uint32s(0), time, sizes, padded(bytes), about)
}
