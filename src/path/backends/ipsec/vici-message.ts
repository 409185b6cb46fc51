// vici-message.ts - encodes and decodes the messages of VICI, the control protocol of strongSwan's charon (strongSwan:
// src/libcharon/plugins/vici/README.md).

import { WeftError } from '../../../base/errors.ts'

/** A message or section: each key has a value, a list of values, or a section. */
export interface ViciSection {
  readonly [key: string]: ViciValue
}
export type ViciValue = string | readonly string[] | ViciSection

/** The element types of a VICI message (strongSwan: src/libcharon/plugins/vici/README.md, "Message types"). */
const SECTION_START = 1
const SECTION_END = 2
const KEY_VALUE = 3
const LIST_START = 4
const LIST_ITEM = 5
const LIST_END = 6

/** The deepest nesting that `decodeMessage` accepts. charon's messages have at most four levels. */
const MOST_DEPTH = 16
const MOST_NAME = 0xff
const MOST_VALUE = 0xffff

/** Encodes a message. Throws RangeError if a name has more than 255 bytes, or a value more than 65,535 bytes. */
export function encodeMessage(message: ViciSection): Buffer {
  return Buffer.concat(elements(message))
}

function elements(section: ViciSection): Buffer[] {
  return Object.entries(section).flatMap(([key, value]) => {
    if (typeof value === 'string') return [type(KEY_VALUE), name(key), text(value)]
    if (isList(value))
      return [type(LIST_START), name(key), ...value.flatMap((item) => [type(LIST_ITEM), text(item)]), type(LIST_END)]
    return [type(SECTION_START), name(key), ...elements(value), type(SECTION_END)]
  })
}

const isList = (value: ViciValue): value is readonly string[] => Array.isArray(value)
const type = (number: number): Buffer => Buffer.of(number)

/** Encodes a name as one byte with its length, followed by the bytes of the name. */
export function name(value: string): Buffer {
  const bytes = Buffer.from(value)
  if (bytes.length > MOST_NAME) throw new RangeError(`a VICI name has at most ${MOST_NAME} bytes`)
  return Buffer.concat([Buffer.of(bytes.length), bytes])
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value)
  if (bytes.length > MOST_VALUE) throw new RangeError(`a VICI value has at most ${MOST_VALUE} bytes`)
  const length = Buffer.alloc(2)
  length.writeUInt16BE(bytes.length)
  return Buffer.concat([length, bytes])
}

/** Decodes a message. Throws WeftError COMMAND if the bytes are not a message. */
export function decodeMessage(bytes: Buffer): ViciSection {
  const reader = new Reader(bytes)
  const message = readSection(reader, 0)
  if (!reader.isAtEnd) throw invalid()
  return message
}

/** Reads elements up to the end of a section, or up to the end of the message if `depth` is 0. */
function readSection(reader: Reader, depth: number): ViciSection {
  if (depth > MOST_DEPTH) throw invalid()
  const entries: [string, ViciValue][] = []
  while (!reader.isAtEnd) {
    const element = reader.byte()
    if (element === SECTION_END && depth > 0) return Object.fromEntries(entries)
    if (element === SECTION_START) entries.push([reader.name(), readSection(reader, depth + 1)])
    else if (element === KEY_VALUE) entries.push([reader.name(), reader.text()])
    else if (element === LIST_START) entries.push([reader.name(), readList(reader)])
    else throw invalid()
  }
  if (depth > 0) throw invalid()
  return Object.fromEntries(entries)
}

function readList(reader: Reader): readonly string[] {
  const items: string[] = []
  for (;;) {
    const element = reader.byte()
    if (element === LIST_END) return items
    if (element !== LIST_ITEM) throw invalid()
    items.push(reader.text())
  }
}

class Reader {
  readonly #bytes: Buffer
  #at = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }

  get isAtEnd(): boolean {
    return this.#at === this.#bytes.length
  }

  byte(): number {
    return this.#take(1).readUInt8()
  }

  name(): string {
    return this.#take(this.byte()).toString()
  }

  text(): string {
    return this.#take(this.#take(2).readUInt16BE()).toString()
  }

  #take(length: number): Buffer {
    if (this.#at + length > this.#bytes.length) throw invalid()
    this.#at += length
    return this.#bytes.subarray(this.#at - length, this.#at)
  }
}

const invalid = (): WeftError => new WeftError('COMMAND', 'charon sent an invalid VICI message')
