// embed.mjs - puts weft's application into the executable file of Node.js, in the space of ICU's data tables for most
// languages and encodings.
//
// Only ICU's English tables stay, as in a Node.js that was configured with --with-intl=small-icu. The application is
// placed after them, and the rest of the space is removed. At start Node.js finds the application as an ELF note
// (postject-api.h of the project postject). For the formats see elf(5), and source/common/ucmndata.h of ICU.

const PT = { LOAD: 1, NOTE: 4, PHDR: 6 }
const ENTRY_SIZE = 56
/**
 * The largest size of a memory page on the supported architectures, in bytes. Segments must be aligned to this size.
 */
const PAGE = 0x10000
const NAME = 'NODE_SEA_BLOB'
/**
 * The text in the Node.js executable before the character that says whether the executable contains an application: `1`
 * if it contains one, else `0`.
 */
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2:'

const roundUp = (value, unit) => Math.ceil(value / unit) * unit

/** Reads the program headers of an ELF file. Throws if the file is not a little-endian 64-bit ELF program. */
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
  // Remove the reference to the table of sections, because embedding makes the table wrong. Only debuggers need this
  // table.
  program.writeBigUInt64LE(0n, 40)
  program.writeUInt16LE(0, 60)
  program.writeUInt16LE(0, 62)
}

/**
 * True for an ICU table that weft does not need: a table for a language other than English, for an encoding other than
 * Unicode, or a dictionary for a language without spaces.
 */
const isForeign = (name) =>
  /\/(?!root\.|en[._])[a-z]{2,3}(?:_\w+)?\.res$/.test(name) || /\.(?:cnv|dict)$|\/translit\/|_cj\.brk$/.test(name)

/**
 * Returns ICU's data without the tables that `isForeign` selects. The data consist of a header, the offsets sorted by
 * name, the names, and the tables.
 */
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
 * Returns the Node.js executable with the application inside.
 * @param {Buffer} node The executable file of Node.js. It must be linked to fixed addresses (not position-independent).
 * @param {{ address: number, size: number }} icu The address of ICU's tables when the program is loaded, and their size
 * in bytes.
 * @param {Buffer} blob The application, as `node --experimental-sea-config` wrote it.
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
  // The segment with ICU's tables is split in two. The second half needs an entry in the program header table. The new
  // entry replaces the entry PT_PHDR, which describes the table itself and which a program at a fixed address does not
  // need.
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
