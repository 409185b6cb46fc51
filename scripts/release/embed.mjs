// embed.mjs - puts weft into the program of Node.js, in place of ICU's tables for most languages and encodings.
//
// Only the English tables stay, as in a Node.js configured with --with-intl=small-icu. weft follows them, and the rest of that space is cut
// out. Node.js finds its application as a note of the ELF program (postject's postject-api.h). elf(5) describes the program headers,
// source/common/ucmndata.h of ICU describes its tables.

const PT = { LOAD: 1, NOTE: 4, PHDR: 6 }
const ENTRY_SIZE = 56
/** The largest memory page of the supported architectures. */
const PAGE = 0x10000
const NAME = 'NODE_SEA_BLOB'
/** Marks whether the program contains an application: the next character is 0 or 1. */
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2:'

const roundUp = (value, unit) => Math.ceil(value / unit) * unit

/** Reads the program headers. Throws if it is not a little-endian ELF program of 64 bits. */
function segmentsOf(program) {
  if (program.toString('latin1', 0, 6) !== '\x7fELF\x02\x01') throw new Error('it is not a 64-bit ELF program')
  const [table, count] = [Number(program.readBigUInt64LE(32)), program.readUInt16LE(56)]
  return Array.from({ length: count }, (_, index) => {
    const at = table + index * ENTRY_SIZE
    const [offset, address, , size, memory, alignment] = [8, 16, 24, 32, 40, 48].map((field) =>
      Number(program.readBigUInt64LE(at + field)),
    )
    return {
      type: program.readUInt32LE(at),
      flags: program.readUInt32LE(at + 4),
      offset,
      address,
      size,
      memory,
      alignment,
    }
  })
}

function writeSegments(program, segments) {
  const table = Number(program.readBigUInt64LE(32))
  for (const [index, { type, flags, offset, address, size, memory, alignment }] of segments.entries()) {
    const at = table + index * ENTRY_SIZE
    program.writeUInt32LE(type, at)
    program.writeUInt32LE(flags, at + 4)
    for (const [place, value] of [offset, address, address, size, memory, alignment].entries())
      program.writeBigUInt64LE(BigInt(value), at + 8 + place * 8)
  }
  // Remove the table of sections, because it would be wrong. Only debuggers need it.
  program.writeBigUInt64LE(0n, 40)
  program.writeUInt16LE(0, 60)
  program.writeUInt16LE(0, 62)
}

/** True for tables of other languages, of encodings other than Unicode, and of dictionaries for languages without spaces. */
const isForeign = (name) =>
  /\/(?!root\.|en[._])[a-z]{2,3}(?:_\w+)?\.res$/.test(name) || /\.(?:cnv|dict)$|\/translit\/|_cj\.brk$/.test(name)

/** Returns ICU's tables without those of `isForeign`. The format is a header, the offsets sorted by name, the names, and the tables. */
export function english(tables) {
  const start = tables.readUInt16LE(0)
  if (tables.toString('latin1', 12, 16) !== 'CmnD') throw new Error("these are not ICU's tables")
  const count = tables.readUInt32LE(start)
  const [nameAt, dataAt] = [0, 4].map((field) => (index) => tables.readUInt32LE(start + 4 + index * 8 + field))
  const all = Array.from({ length: count }, (_, index) => {
    const name = tables.toString('latin1', start + nameAt(index), tables.indexOf(0, start + nameAt(index)))
    const end = index + 1 < count ? start + dataAt(index + 1) : tables.length
    return { name, data: tables.subarray(start + dataAt(index), end) }
  })
  const kept = all.filter(({ name }) => !isForeign(name))
  const names = Buffer.from(kept.map(({ name }) => `${name}\0`).join(''), 'latin1')
  const head = Buffer.alloc(roundUp(4 + kept.length * 8 + names.length, 16))
  head.writeUInt32LE(kept.length, 0)
  let [name, data] = [4 + kept.length * 8, head.length]
  names.copy(head, name)
  for (const [index, each] of kept.entries()) {
    head.writeUInt32LE(name, 4 + index * 8)
    head.writeUInt32LE(data, 8 + index * 8)
    name += each.name.length + 1
    data += each.data.length
  }
  return Buffer.concat([tables.subarray(0, start), head, ...kept.map((each) => each.data)])
}

function noteOf(blob) {
  const name = Buffer.alloc(roundUp(NAME.length + 1, 4))
  name.write(NAME)
  const head = Buffer.alloc(12)
  head.writeUInt32LE(NAME.length + 1, 0)
  head.writeUInt32LE(blob.length, 4)
  return Buffer.concat([head, name, blob])
}

/**
 * Returns the program with the application inside.
 * @param {Buffer} node The program of Node.js, which must not be relocatable.
 * @param {{ address: number, size: number }} icu The address and the size of ICU's tables in its memory.
 * @param {Buffer} blob The output of --experimental-sea-config.
 */
export function embed(node, icu, blob) {
  const segments = segmentsOf(node)
  const one = (type) => {
    const found = segments.filter((each) => each.type === type)
    if (found.length !== 1) throw new Error(`it has ${found.length} segments of type ${type} instead of one`)
    return found[0]
  }
  const holds = ({ type, address, size }) =>
    type === PT.LOAD && address <= icu.address && icu.address + icu.size <= address + size
  const load = segments.find(holds)
  if (!load) throw new Error("no segment contains all of ICU's tables")
  const place = icu.address - load.address + load.offset
  const tables = english(node.subarray(place, place + icu.size))
  const note = noteOf(blob)
  const noteAt = roundUp(icu.address + tables.length, 16) + 4
  const from = roundUp(noteAt + note.length, PAGE)
  const to = icu.address + icu.size - ((icu.address + icu.size) % PAGE)
  if (from > to) throw new Error("it does not fit into the space of ICU's tables")
  const offsetOf = (address) => address - load.address + load.offset

  const program = Buffer.from(node)
  program.fill(0, place, place + icu.size)
  tables.copy(program, place)
  note.copy(program, offsetOf(noteAt))
  const fuse = program.indexOf(`${FUSE}0`, 0, 'latin1')
  if (fuse < 0 || program.includes(`${FUSE}0`, fuse + 1, 'latin1')) throw new Error('it does not have exactly one fuse')
  program.write('1', fuse + FUSE.length)

  const cut = to - from
  const moved = (segment) => (segment.offset >= offsetOf(to) ? { ...segment, offset: segment.offset - cut } : segment)
  const [ofTable, ofNotes] = [one(PT.PHDR), one(PT.NOTE)]
  // The second half gets the entry of the program header table itself, which a program at a fixed address does not need.
  const changed = segments
    .filter((segment) => segment !== ofTable)
    .flatMap((segment) => {
      if (segment === ofNotes)
        return [{ ...segment, offset: offsetOf(noteAt), address: noteAt, size: note.length, memory: note.length }]
      if (segment !== load) return [moved(segment)]
      const [first, second] = [from - load.address, load.address + load.size - to]
      return [
        { ...load, size: first, memory: first },
        { ...load, offset: offsetOf(from), address: to, size: second, memory: second },
      ]
    })
  writeSegments(program, changed)
  const end = Math.max(...segments.map(({ offset, size }) => offset + size))
  return Buffer.concat([program.subarray(0, offsetOf(from)), program.subarray(offsetOf(to), end)])
}
