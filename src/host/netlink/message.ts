// message.ts - encodes and decodes the messages and attributes of netlink (netlink(7), rtnetlink(7)).
//
// Numbers are in the byte order of the host, unless a name says network order. Each message and each attribute begins
// at a multiple of 4 bytes. The decoders never throw: they end at the first length that does not fit, and the readers
// of a missing or truncated attribute return undefined.

import { endianness } from 'node:os'
import type { Address, Family } from '../../net/address.ts'

/** Flags of a request (nlmsg_flags in linux/netlink.h). */
export const NLM_F = { REQUEST: 1, ACK: 4, DUMP: 0x300, REPLACE: 0x100, EXCL: 0x200, CREATE: 0x400 } as const

const MESSAGE_HEADER = 16
const ATTRIBUTE_HEADER = 4
/**
 * The flag of an attribute that contains attributes, and the mask that removes the two flag bits from an attribute's
 * type.
 */
const NESTED = 0x8000
const TYPE_BITS = 0x3fff
const MAX_ATTRIBUTE = 0xffff

const isLittle = endianness() === 'LE'
const aligned = (bytes: number): number => (bytes + 3) & ~3

const readU16 = (from: Buffer, at: number): number => (isLittle ? from.readUInt16LE(at) : from.readUInt16BE(at))
const readU32 = (from: Buffer, at: number): number => (isLittle ? from.readUInt32LE(at) : from.readUInt32BE(at))

/** A request under construction: first the fixed header of its kind, such as `struct ifinfomsg`, then attributes. */
export class MessageWriter {
  #bytes: Buffer
  /** The number of bytes written. */
  #length = MESSAGE_HEADER

  /** Begins a request of the given type. The flags of the request are NLM_F.REQUEST and `flags`. */
  constructor(type: number, flags = 0) {
    this.#bytes = Buffer.alloc(128)
    this.#setU16(4, type)
    this.#setU16(6, NLM_F.REQUEST | flags)
  }

  /** The number of bytes of the message so far. */
  get length(): number {
    return this.#length
  }

  u8(value: number): this {
    const at = this.#room(1)
    this.#bytes[at] = value
    return this
  }

  u16(value: number): this {
    const at = this.#room(2)
    this.#setU16(at, value)
    return this
  }

  u32(value: number): this {
    const at = this.#room(4)
    this.#setU32(at, value)
    return this
  }

  /** Appends bytes to the fixed header. */
  raw(bytes: Uint8Array): this {
    const at = this.#room(bytes.length)
    this.#bytes.set(bytes, at)
    return this
  }

  /** Appends an attribute whose value is the given bytes. */
  bytes(type: number, value: Uint8Array): this {
    const at = this.#attribute(type, value.length)
    this.#bytes.set(value, at)
    return this
  }

  /** Appends an attribute without a value, whose presence is the information. */
  flag(type: number): this {
    this.#attribute(type, 0)
    return this
  }

  attributeU8(type: number, value: number): this {
    const at = this.#attribute(type, 1)
    this.#bytes[at] = value
    return this
  }

  attributeU16(type: number, value: number): this {
    const at = this.#attribute(type, 2)
    this.#setU16(at, value)
    return this
  }

  /** Appends a number of 16 bits in network order, such as a port. */
  networkU16(type: number, value: number): this {
    const at = this.#attribute(type, 2)
    this.#bytes.writeUInt16BE(value & 0xffff, at)
    return this
  }

  attributeU32(type: number, value: number): this {
    const at = this.#attribute(type, 4)
    this.#setU32(at, value)
    return this
  }

  attributeU64(type: number, value: bigint): this {
    const at = this.#attribute(type, 8)
    const bits = BigInt.asUintN(64, value)
    if (isLittle) this.#bytes.writeBigUInt64LE(bits, at)
    else this.#bytes.writeBigUInt64BE(bits, at)
    return this
  }

  /** Appends a text with the zero byte that the kernel expects at its end. */
  text(type: number, value: string): this {
    return this.bytes(type, Buffer.from(`${value}\0`, 'utf8'))
  }

  /** Appends an IP address in network order. */
  address(type: number, address: Address): this {
    const at = this.#attribute(type, typeof address === 'number' ? 4 : 16) // may replace #bytes by a larger buffer
    writeAddress(this.#bytes, at, address)
    return this
  }

  /** Appends a link-layer address such as `02:11:22:33:44:55`. */
  mac(type: number, mac: string): this {
    return this.bytes(type, macBytes(mac))
  }

  /** Appends an attribute that contains the attributes which `write` appends. */
  nested(type: number, write: (inner: this) => void): this {
    return this.nestedRaw(type | NESTED, write)
  }

  /**
   * Works like `nested`, but does not set the flag NLA_F_NESTED, because the kernel does not accept the flag in some
   * older attributes.
   */
  nestedRaw(type: number, write: (inner: this) => void): this {
    const value = this.#attribute(type, 0)
    write(this)
    const length = this.#length - value + ATTRIBUTE_HEADER
    if (length > MAX_ATTRIBUTE) throw new RangeError(`a netlink attribute of ${length} bytes`)
    this.#setU16(value - ATTRIBUTE_HEADER, length)
    return this
  }

  /** Returns the complete message. */
  finish(): Buffer {
    this.#room(0)
    this.#setU32(0, this.#length)
    return this.#bytes.subarray(0, aligned(this.#length))
  }

  /** Appends the header of an attribute with room for its value, and returns the position of the value. */
  #attribute(type: number, bytes: number): number {
    const length = ATTRIBUTE_HEADER + bytes
    if (length > MAX_ATTRIBUTE) throw new RangeError(`a netlink attribute of ${length} bytes`)
    this.#length = aligned(this.#length)
    const at = this.#room(aligned(length))
    this.#setU16(at, length)
    this.#setU16(at + 2, type)
    return at + ATTRIBUTE_HEADER
  }

  /** Makes room for more bytes, all zero, and returns their position. */
  #room(bytes: number): number {
    const at = this.#length
    this.#length += bytes
    const needed = aligned(this.#length)
    if (needed > this.#bytes.length) {
      const larger = Buffer.alloc(Math.max(needed, this.#bytes.length * 2))
      larger.set(this.#bytes)
      // Overwrite the old bytes with zeros, because the message may contain a key.
      this.#bytes.fill(0)
      this.#bytes = larger
    }
    return at
  }

  #setU16(at: number, value: number): void {
    if (isLittle) this.#bytes.writeUInt16LE(value & 0xffff, at)
    else this.#bytes.writeUInt16BE(value & 0xffff, at)
  }

  #setU32(at: number, value: number): void {
    if (isLittle) this.#bytes.writeUInt32LE(value >>> 0, at)
    else this.#bytes.writeUInt32BE(value >>> 0, at)
  }
}

/** Returns an IP address in network order. */
export function addressBytes(address: Address): Buffer {
  const bytes = Buffer.alloc(typeof address === 'number' ? 4 : 16)
  writeAddress(bytes, 0, address)
  return bytes
}

/** Writes an IP address in network order at a position. */
function writeAddress(bytes: Buffer, at: number, address: Address): void {
  if (typeof address === 'number') {
    bytes.writeUInt32BE(address, at)
  } else {
    bytes.writeBigUInt64BE(address >> 64n, at)
    bytes.writeBigUInt64BE(address & 0xffff_ffff_ffff_ffffn, at + 8)
  }
}

/** Reads the IP address of 4 or 16 bytes between two positions; undefined for any other length. */
export function addressIn(bytes: Buffer, from = 0, end = bytes.length): Address | undefined {
  if (end - from === 4) return bytes.readUInt32BE(from)
  if (end - from === 16) return (bytes.readBigUInt64BE(from) << 64n) | bytes.readBigUInt64BE(from + 8)
  return undefined
}

const macBytes = (mac: string): Buffer => Buffer.from(mac.replaceAll(':', ''), 'hex')

const HEX_DIGITS = Buffer.from('0123456789abcdef')
const COLON = 0x3a

/**
 * Formats a link-layer address. Makes the text from one buffer, because Node.js finds such a text faster in a map than
 * a text of joined parts.
 */
function macText(bytes: Buffer): string {
  const text = Buffer.allocUnsafe(3 * bytes.length)
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at] ?? 0
    text[3 * at] = HEX_DIGITS[byte >> 4] ?? 0
    text[3 * at + 1] = HEX_DIGITS[byte & 15] ?? 0
    text[3 * at + 2] = COLON
  }
  return text.toString('latin1', 0, Math.max(0, text.length - 1))
}

/** A message that the kernel sent. The methods that read its fixed header return 0 beyond the end of the message. */
export class ReceivedMessage {
  readonly type: number
  readonly flags: number
  /** The message without its `struct nlmsghdr`. */
  readonly body: Buffer
  /** The port of the socket whose request caused the message (nlmsg_pid); 0 if no request caused it. */
  readonly port: number

  constructor(type: number, flags: number, body: Buffer, port = 0) {
    this.type = type
    this.flags = flags
    this.body = body
    this.port = port
  }

  u8(at: number): number {
    return this.body[at] ?? 0
  }

  u16(at: number): number {
    return at + 2 <= this.body.length ? readU16(this.body, at) : 0
  }

  u32(at: number): number {
    return at + 4 <= this.body.length ? readU32(this.body, at) : 0
  }

  /** Reads the attributes after a fixed header of the given length. */
  attributes(headerLength: number): Attributes {
    return new Attributes(this.body, aligned(headerLength))
  }
}

/** Yields the messages in a buffer, which share the buffer's memory. */
export function* messagesIn(buffer: Buffer): Generator<ReceivedMessage, void> {
  for (let at = 0; at + MESSAGE_HEADER <= buffer.length;) {
    const length = readU32(buffer, at)
    if (length < MESSAGE_HEADER || at + length > buffer.length) return
    const body = buffer.subarray(at + MESSAGE_HEADER, at + length)
    yield new ReceivedMessage(readU16(buffer, at + 4), readU16(buffer, at + 6), body, readU32(buffer, at + 12))
    at += aligned(length)
  }
}

/**
 * The attributes in a buffer, from a position on. If an attribute occurs several times, its last occurrence counts, as
 * in the kernel.
 */
export class Attributes {
  readonly #buffer: Buffer
  /** For each attribute three numbers: its type, and the positions of the beginning and the end of its value. */
  readonly #found: number[] = []

  constructor(buffer: Buffer, from = 0) {
    this.#buffer = buffer
    for (let at = from; at + ATTRIBUTE_HEADER <= buffer.length;) {
      const length = readU16(buffer, at)
      if (length < ATTRIBUTE_HEADER || at + length > buffer.length) return
      this.#found.push(readU16(buffer, at + 2) & TYPE_BITS, at + ATTRIBUTE_HEADER, at + length)
      at += aligned(length)
    }
  }

  has(type: number): boolean {
    return this.#find(type) >= 0
  }

  bytes(type: number): Buffer | undefined {
    const at = this.#find(type)
    return at < 0 ? undefined : this.#buffer.subarray(this.#found[at + 1], this.#found[at + 2])
  }

  u8(type: number): number | undefined {
    const at = this.#start(type, 1)
    return at < 0 ? undefined : this.#buffer[at]
  }

  u16(type: number): number | undefined {
    const at = this.#start(type, 2)
    return at < 0 ? undefined : readU16(this.#buffer, at)
  }

  /** Reads a number of 16 bits in network order, such as a port. */
  networkU16(type: number): number | undefined {
    const at = this.#start(type, 2)
    return at < 0 ? undefined : this.#buffer.readUInt16BE(at)
  }

  u32(type: number): number | undefined {
    const at = this.#start(type, 4)
    return at < 0 ? undefined : readU32(this.#buffer, at)
  }

  /** Reads a 64-bit number, which begins `from` bytes after the start of the attribute's value. */
  u64(type: number, from = 0): bigint | undefined {
    const begin = this.#start(type, from + 8)
    if (begin < 0) return undefined
    const at = begin + from
    return isLittle ? this.#buffer.readBigUInt64LE(at) : this.#buffer.readBigUInt64BE(at)
  }

  /** Reads a text up to its zero byte, or up to the end of the attribute. */
  text(type: number): string | undefined {
    const bytes = this.bytes(type)
    if (!bytes) return undefined
    const end = bytes.indexOf(0)
    return bytes.toString('utf8', 0, end < 0 ? bytes.length : end)
  }

  /** Reads an IP address; undefined if the value has neither 4 nor 16 bytes. */
  address(type: number): Address | undefined {
    const at = this.#find(type)
    return at < 0 ? undefined : addressIn(this.#buffer, this.#found[at + 1], this.#found[at + 2])
  }

  /** Reads a link-layer address of any length as lower-case text such as `02:11:22:33:44:55`. */
  mac(type: number): string | undefined {
    const bytes = this.bytes(type)
    return bytes && macText(bytes)
  }

  nested(type: number): Attributes | undefined {
    const bytes = this.bytes(type)
    return bytes && new Attributes(bytes)
  }

  /** Returns the attributes within each element of a list, which is an attribute whose elements are attributes. */
  elements(): Attributes[] {
    const all: Attributes[] = []
    for (let at = 0; at < this.#found.length; at += 3) {
      all.push(new Attributes(this.#buffer.subarray(this.#found[at + 1], this.#found[at + 2])))
    }
    return all
  }

  /** Returns the place in `#found` of the last attribute of a type; -1 if there is none. */
  #find(type: number): number {
    for (let at = this.#found.length - 3; at >= 0; at -= 3) if (this.#found[at] === type) return at
    return -1
  }

  /** Returns where the value of an attribute begins; -1 if the value has fewer than `bytes` bytes. */
  #start(type: number, bytes: number): number {
    const at = this.#find(type)
    if (at < 0) return -1
    const start = this.#found[at + 1] ?? 0
    return (this.#found[at + 2] ?? 0) - start < bytes ? -1 : start
  }
}

/** The kernel's numbers of the address families (linux/socket.h). */
export const FAMILY_NUMBERS: Readonly<Record<Family, number>> = { ipv4: 2, ipv6: 10 }
/** The family of forwarding entries of bridges and vxlan devices. */
export const AF_BRIDGE = 7

const familyOfNumber = (number: number): Family | undefined =>
  number === FAMILY_NUMBERS.ipv4 ? 'ipv4' : number === FAMILY_NUMBERS.ipv6 ? 'ipv6' : undefined

/**
 * Reads the family from the first byte of a message of rtnetlink(7); undefined for a family other than IPv4 and IPv6.
 */
export const familyIn = (message: ReceivedMessage): Family | undefined => familyOfNumber(message.u8(0))
