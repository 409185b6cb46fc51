// embed.test.ts - embedding weft into Node.js: Node.js finds the application, and the rest of the program keeps its addresses.

import { describe, expect, it } from 'vitest'
import { embed, english } from '../../../scripts/release/embed.mjs'

const PAGE = 0x10000
const HEADER = 32

/** Makes ICU's tables from their names and contents. */
function tablesOf(all: Readonly<Record<string, string>>): Buffer {
  const entries = Object.entries(all)
  const parts: Buffer[] = []
  const toc = Buffer.alloc(4 + entries.length * 8)
  toc.writeUInt32LE(entries.length, 0)
  let [name, data] = [toc.length, toc.length + entries.reduce((sum, [text]) => sum + text.length + 1, 0)]
  for (const [index, [text, content]] of entries.entries()) {
    toc.writeUInt32LE(name, 4 + index * 8)
    toc.writeUInt32LE(data, 8 + index * 8)
    name += text.length + 1
    data += content.length
  }
  for (const [text] of entries) parts.push(Buffer.from(`${text}\0`))
  for (const [, content] of entries) parts.push(Buffer.from(content))
  const header = Buffer.alloc(HEADER)
  header.writeUInt16LE(HEADER, 0)
  header.write('CmnD', 12)
  return Buffer.concat([header, toc, ...parts])
}
function read(tables: Buffer): Record<string, string> {
  const at = (index: number, field: number): number => HEADER + tables.readUInt32LE(HEADER + 4 + index * 8 + field)
  const count = tables.readUInt32LE(HEADER)
  return Object.fromEntries(
    Array.from({ length: count }, (_, index) => {
      const name = tables.toString('latin1', at(index, 0), tables.indexOf(0, at(index, 0)))
      return [name, tables.toString('latin1', at(index, 4), index + 1 < count ? at(index + 1, 4) : tables.length)]
    }),
  )
}

const KEPT = { 'icu/coll/root.res': 'how', 'icu/en.res': 'words', 'icu/en_GB.res': 'w', 'icu/pool.res': 'keys' }
const FOREIGN = {
  'icu/de.res': 'foreign',
  'icu/ibm-37.cnv': 'x',
  'icu/lang/zh_Hant.res': 'y',
  'icu/thaidict.dict': 'z',
}
const sorted = (all: object): Record<string, string> =>
  Object.fromEntries(Object.entries(all).toSorted(([a], [b]) => (a < b ? -1 : 1)))

it("ICU's tables keep English and the tables that all languages share", () => {
  expect(read(english(tablesOf(sorted({ ...KEPT, ...FOREIGN }))))).toEqual(KEPT)
  expect(() => english(Buffer.alloc(64))).toThrow("not ICU's tables")
})

interface Segment {
  readonly type: number
  readonly offset: number
  readonly address: number
  readonly size: number
}
const [LOAD, NOTE, TABLE] = [1, 4, 6]
const BASE = 0x400000
/** Makes a program with a fuse, with ICU's tables inside a segment, and with `last` behind them in a second segment `data`. */
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2:'
const ICU = { address: BASE + 0x2340, size: 10 * PAGE }

function program(segments: readonly Segment[]): Buffer {
  const bytes = Buffer.alloc(12 * PAGE)
  bytes.write('\x7fELF\x02\x01', 'latin1')
  bytes.writeBigUInt64LE(64n, 32)
  bytes.writeUInt16LE(segments.length, 56)
  for (const [index, { type, offset, address, size }] of segments.entries()) {
    bytes.writeUInt32LE(type, 64 + index * 56)
    for (const [field, value] of [
      [8, offset],
      [16, address],
      [24, address],
      [32, size],
      [40, size],
    ] as const)
      bytes.writeBigUInt64LE(BigInt(value), 64 + index * 56 + field)
  }
  bytes.write(`${FUSE}0`, 0x1000)
  tablesOf(sorted({ ...KEPT, ...FOREIGN, 'icu/zz.res': 'x'.repeat(9 * PAGE) })).copy(bytes, ICU.address - BASE)
  bytes.write('behind', ICU.address - BASE + ICU.size)
  bytes.write('data', 11 * PAGE)
  return bytes
}
const SEGMENTS = [
  { type: TABLE, offset: 64, address: BASE + 64, size: 4 * 56 },
  { type: LOAD, offset: 0, address: BASE, size: 11 * PAGE },
  { type: LOAD, offset: 11 * PAGE, address: BASE + 20 * PAGE, size: PAGE },
  { type: NOTE, offset: 0x800, address: BASE + 0x800, size: 32 },
]
const segmentsIn = (bytes: Buffer): Segment[] =>
  Array.from({ length: bytes.readUInt16LE(56) }, (_, index) => {
    const [offset, address, size] = [8, 16, 32].map((at) => Number(bytes.readBigUInt64LE(64 + index * 56 + at)))
    return { type: bytes.readUInt32LE(64 + index * 56), offset: offset!, address: address!, size: size! }
  })
/** Returns the bytes that a process finds at an address. */
function mapped(bytes: Buffer, address: number, length: number): string {
  const segment = segmentsIn(bytes).find(
    (each) => each.type === LOAD && each.address <= address && address + length <= each.address + each.size,
  )!
  const at = address - segment.address + segment.offset
  return bytes.toString('latin1', at, at + length)
}

describe('a program', () => {
  const blob = Buffer.from('the application')

  it('has the application as a note, a set fuse, and everything else at its old address', () => {
    const made = embed(program(SEGMENTS), ICU, blob)
    const note = segmentsIn(made).find(({ type }) => type === NOTE)!
    expect(mapped(made, note.address, note.size).slice(12)).toBe(`NODE_SEA_BLOB\0\0\0${blob.toString()}`)
    expect((note.address + 28) % 16).toBe(0)
    expect(mapped(made, BASE + 0x1000, FUSE.length + 1)).toBe(`${FUSE}1`)
    expect(mapped(made, ICU.address + ICU.size, 6)).toBe('behind')
    expect(mapped(made, BASE + 20 * PAGE, 4)).toBe('data')
    const length = english(tablesOf(sorted({ ...KEPT, ...FOREIGN }))).length
    expect(read(Buffer.from(mapped(made, ICU.address, length), 'latin1'))).toEqual(KEPT)
    expect(made.length).toBe(3 * PAGE)
  })

  it('has segments in the order of their addresses, each with the same page offset in the file and in memory', () => {
    const loads = segmentsIn(embed(program(SEGMENTS), ICU, blob)).filter(({ type }) => type === LOAD)
    expect(loads).toHaveLength(3)
    expect(loads).toEqual(loads.toSorted((a, b) => a.address - b.address))
    for (const { address, offset } of loads) expect(address % PAGE).toBe(offset % PAGE)
  })

  it('is refused if its structure differs from that of Node.js', () => {
    const without = (type: number) => SEGMENTS.filter((each) => each.type !== type)
    expect(() => embed(Buffer.alloc(PAGE), ICU, blob)).toThrow('not a 64-bit ELF program')
    expect(() => embed(program(without(NOTE)), ICU, blob)).toThrow('0 segments of type 4')
    expect(() => embed(program(without(LOAD)), ICU, blob)).toThrow("no segment contains all of ICU's tables")
    expect(() => embed(program(SEGMENTS), ICU, Buffer.alloc(10 * PAGE))).toThrow('does not fit')
    const used = program(SEGMENTS)
    used.write('1', 0x1000 + FUSE.length)
    expect(() => embed(used, ICU, blob)).toThrow('exactly one fuse')
  })
})
