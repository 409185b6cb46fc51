// pcapng.ts - writes the blocks of a capture file for Wireshark, tshark and tcpdump, in the pcapng format. Pure.
//
// Section numbers in this file are those of draft-ietf-opsawg-pcapng. All numbers are little-endian, which the first
// block of the file declares (3.6.1, 4.1).

/** LINKTYPE_RAW: each packet begins with an IPv4 or an IPv6 header (draft-ietf-opsawg-pcaplinktype). */
const LINK_RAW = 101

const BLOCK = { section: 0x0a0d0d0a, interface: 1, packet: 6 } as const
const BYTE_ORDER = 0x1a2b3c4d
/**
 * The codes of the pcapng options, from section 3.5 (all blocks), 4.1 (section header), 4.2 (interface) and 4.3
 * (packet) of draft-ietf-opsawg-pcapng.
 */
const OPTION = { end: 0, comment: 1, application: 4, name: 2, flags: 2 } as const
/** The direction of a packet: the lowest two bits of its pcapng flags (draft-ietf-opsawg-pcapng, section 4.3.1). */
const DIRECTION = { in: 1, out: 2 } as const

/** Pads bytes with zeros to a multiple of four bytes (draft-ietf-opsawg-pcapng, section 3.6.2). */
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

/**
 * Builds a pcapng block, which has its own length before and after its body (draft-ietf-opsawg-pcapng, section 3.1).
 */
function block(type: number, ...parts: readonly Uint8Array[]): Buffer {
  const body = Buffer.concat(parts)
  const length = uint32s(body.length + 12)
  return Buffer.concat([uint32s(type), length, body, length])
}

function options(...all: readonly (readonly [code: number, value: Uint8Array])[]): Buffer {
  const each = all.map(([code, value]) => Buffer.concat([uint16s(code, value.length), padded(value)]))
  return Buffer.concat([...each, uint16s(OPTION.end, 0)])
}

/**
 * Builds the section header with which a capture file begins: version 1.0, unknown length (draft-ietf-opsawg-pcapng,
 * section 4.1).
 */
export function sectionHeader(application: string): Buffer {
  const unknown = uint32s(0xffffffff, 0xffffffff)
  const by = options([OPTION.application, Buffer.from(application)])
  return block(BLOCK.section, uint32s(BYTE_ORDER), uint16s(1, 0), unknown, by)
}

/**
 * Builds the description of the capture file's only interface (draft-ietf-opsawg-pcapng, section 4.2). The packets of
 * the interface are raw IP packets of at most `mostBytes` bytes, and times are in microseconds, the default. Sent and
 * received packets use the same interface, because libpcap 1.10 cannot read a file with a second interface of this link
 * type.
 */
export function interfaceDescription(name: string, mostBytes: number): Buffer {
  return block(BLOCK.interface, uint16s(LINK_RAW, 0), uint32s(mostBytes), options([OPTION.name, Buffer.from(name)]))
}

interface CapturedPacket {
  /** When the packet was captured, in microseconds since 1970. */
  readonly timeUs: number
  readonly bytes: Uint8Array
  readonly length: number
  readonly direction: 'in' | 'out'
  readonly comment: string
}

/**
 * Builds the pcapng block of one packet of the first interface (Enhanced Packet Block; draft-ietf-opsawg-pcapng,
 * section 4.3).
 */
export function packetBlock({ timeUs, bytes, length, direction, comment }: CapturedPacket): Buffer {
  const time = uint32s(Math.floor(timeUs / 2 ** 32), timeUs % 2 ** 32)
  const sizes = uint32s(bytes.length, Math.max(length, bytes.length))
  const about = options([OPTION.comment, Buffer.from(comment)], [OPTION.flags, uint32s(DIRECTION[direction])])
  return block(BLOCK.packet, uint32s(0), time, sizes, padded(bytes), about)
}
