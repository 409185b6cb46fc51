// kernel-way-object.ts - reads the ELF object file that clang compiles from native/bpf/kernel_way.bpf.c. Pure.
//
// The file has a section for each eBPF program, and for each program a list of the instructions that refer to a map.
// `instructionsOf` writes the map's descriptor into these instructions, as a loader does
// (Documentation/bpf/llvm_reloc.rst of Linux).

const SYMBOL_TABLE = 2
const RELOCATIONS = 9
const SECTION_BYTES = 64
const SYMBOL_BYTES = 24
const RELOCATION_BYTES = 16
/**
 * The value in the source register field of a 64-bit load instruction if the instruction loads a map's address
 * (BPF_PSEUDO_MAP_FD of linux/bpf.h).
 */
const PSEUDO_MAP_FD = 1

interface Section {
  readonly name: string
  readonly type: number
  readonly bytes: Buffer
  /** If this section has relocations: the index of the section that the relocations change. */
  readonly info: number
}

interface ObjectProgram {
  readonly instructions: Buffer
  /** The names of the maps, each with the offset of an instruction that refers to the map. */
  readonly references: readonly (readonly [offset: number, map: string])[]
}

/** Reads an object file in the byte order of this machine. Returns its programs by the names of their sections. */
export function programsIn(object: Buffer, isLittle: boolean): ReadonlyMap<string, ObjectProgram> {
  const view = new DataView(object.buffer, object.byteOffset, object.byteLength)
  const number = (at: number, bytes: 2 | 4 | 8): number => {
    if (bytes === 2) return view.getUint16(at, isLittle)
    return bytes === 4 ? view.getUint32(at, isLittle) : Number(view.getBigUint64(at, isLittle))
  }
  const textAt = (bytes: Buffer, at: number): string => bytes.toString('latin1', at, bytes.indexOf(0, at))
  if (view.getUint32(0) !== 0x7f454c46) throw new Error('the object file of the eBPF programs is not an ELF file')
  const [sectionsAt, count, namesIn] = [number(40, 8), number(60, 2), number(62, 2)]
  const rowAt = (index: number): number => sectionsAt + index * SECTION_BYTES
  const bytesOf = (index: number): Buffer => {
    const [at, size] = [number(rowAt(index) + 24, 8), number(rowAt(index) + 32, 8)]
    return object.subarray(at, at + size)
  }
  const names = bytesOf(namesIn)
  const sections: Section[] = Array.from({ length: count }, (_, index) => ({
    name: textAt(names, number(rowAt(index), 4)),
    type: number(rowAt(index) + 4, 4),
    bytes: bytesOf(index),
    info: number(rowAt(index) + 44, 4),
  }))
  const symbols = sections.find(({ type }) => type === SYMBOL_TABLE)?.bytes ?? Buffer.alloc(0)
  const wordIn = (bytes: Buffer, at: number): number => (isLittle ? bytes.readUInt32LE(at) : bytes.readUInt32BE(at))
  const symbolName = (index: number): string => textAt(names, wordIn(symbols, index * SYMBOL_BYTES))
  const references = (of: number): [number, string][] =>
    sections
      .filter(({ type, info }) => type === RELOCATIONS && info === of)
      .flatMap(({ bytes }) =>
        Array.from({ length: bytes.length / RELOCATION_BYTES }, (_, index): [number, string] => {
          const at = index * RELOCATION_BYTES
          // The upper half of the 64-bit member `r_info` is the symbol's index. On a little-endian machine the upper
          // half is stored second.
          return [wordIn(bytes, at + (isLittle ? 0 : 4)), symbolName(wordIn(bytes, at + (isLittle ? 12 : 8)))]
        }),
      )
  return new Map(
    sections.flatMap(({ name, bytes }, index) =>
      name.startsWith('tc/') ? [[name, { instructions: bytes, references: references(index) }] as const] : [],
    ),
  )
}

/**
 * Returns the program's instructions after writing the maps' descriptors into them. `maps` has the descriptors by the
 * maps' names.
 */
export function instructionsOf(
  { instructions, references }: ObjectProgram,
  maps: Readonly<Record<string, number>>,
  isLittle: boolean,
): Buffer {
  const linked = Buffer.from(instructions)
  for (const [at, name] of references) {
    const fd = maps[name]
    if (fd === undefined) throw new Error(`the eBPF programs refer to an unknown map ${name}`)
    // The source and destination registers share a byte. The source register is the byte's upper half on a
    // little-endian machine, and its lower half on a big-endian machine.
    const registers = linked.readUInt8(at + 1)
    linked.writeUInt8(isLittle ? (registers & 15) | (PSEUDO_MAP_FD << 4) : (registers & 0xf0) | PSEUDO_MAP_FD, at + 1)
    if (isLittle) linked.writeInt32LE(fd, at + 4)
    else linked.writeInt32BE(fd, at + 4)
  }
  return linked
}
