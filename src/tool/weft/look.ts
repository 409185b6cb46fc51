// look.ts - formats the output of the `weft` commands: tables, colours, times and sizes. All functions except
// createScreen are pure.

import { printable, printableLines } from '../../base/text.ts'
import type { Family } from '../../net/address.ts'
import { devicesText } from '../../report/status.ts'

export interface Screen {
  /** True if standard output is a terminal, so that a command may overwrite lines that it wrote. */
  readonly isTerminal: boolean
  /**
   * Returns true while standard output can be written, and false after a write failed, for example because the reader
   * closed it (EPIPE). Further output is then lost.
   */
  isRead(): boolean
  readonly colour: Colour
  /**
   * Writes bytes to standard output unchanged, or writes a text and escapes all its terminal sequences except those
   * that weft itself uses.
   */
  write(text: string | Uint8Array): void
  warn(line: string): void
}

export type Tone = 'good' | 'bad' | 'doubtful' | 'dim' | 'bold'
export type Colour = (tone: Tone, text: string) => string

/** The codes that set colours and fonts of a terminal (Select Graphic Rendition, ECMA-48, 8.3.117). */
const CODES: Readonly<Record<Tone, number>> = { good: 32, bad: 31, doubtful: 33, dim: 2, bold: 1 }

/** The exit code if the output cannot be written, for example to a full disk. */
const OUTPUT_LOST = 1

interface Stdout {
  readonly isTTY: boolean
  write(text: string | Uint8Array): boolean
  on(event: 'error', listener: (error: NodeJS.ErrnoException) => void): unknown
}

/**
 * Creates the screen for a command's output. Uses colours if standard output is a terminal and NO_COLOR is not set
 * (no-color.org). If the output cannot be written, writes the reason to `stderr` and calls `exit`, except if the reader
 * has closed it (EPIPE).
 */
export function createScreen(
  stdout: Stdout,
  stderr: { write(text: string): boolean },
  environment: NodeJS.ProcessEnv,
  exit: (code: number) => void = (code) => process.exit(code),
): Screen {
  const isTerminal = stdout.isTTY
  let isRead = true
  stdout.on('error', (error) => {
    isRead = false
    // Ignore EPIPE: it means that the program that reads the output has ended, as `head` does in `weft capture --follow
    // | head`.
    if (error.code === 'EPIPE') return
    const why = printable(error.message)
    stderr.write(`weft: the output cannot be written: ${why}; check that the disk of the output file is not full\n`)
    exit(OUTPUT_LOST)
  })
  const isColoured = isTerminal && !environment['NO_COLOR'] && environment['TERM'] !== 'dumb'
  return {
    isTerminal,
    isRead: () => isRead,
    colour: isColoured ? (tone, text) => `\u001B[${CODES[tone]}m${text}\u001B[0m` : (_tone, text) => text,
    write: (text) => void stdout.write(typeof text === 'string' ? withOurSequences(text) : text),
    warn: (line) => void stderr.write(`${printable(line)}\n`),
  }
}

/** Matches the terminal sequences for colours and the cursor that weft itself writes. `write` does not escape them. */
const OURS = new RegExp(String.raw`(\u001B\[(?:(?:0|${Object.values(CODES).join('|')})m|2J|[GHJK]))`)
const withOurSequences = (text: string): string =>
  text
    .split(OURS)
    .map((part, at) => (at % 2 === 1 ? part : printableLines(part)))
    .join('')

export type Cell = string | readonly [Tone, string]

const textOf = (cell: Cell): string => printable(typeof cell === 'string' ? cell : cell[1])

/** Formats a table. Each column is as wide as its widest cell; the first row is the heading. */
export function table(rows: readonly (readonly Cell[])[], colour: Colour): string {
  const widths = (rows[0] ?? []).map((_, column) =>
    rows.reduce((widest, row) => Math.max(widest, textOf(row[column] ?? '').length), 0),
  )
  return rows
    .map((row, at) =>
      row
        .map((cell, column) => {
          const isLast = column === row.length - 1
          const padded = isLast ? textOf(cell) : textOf(cell).padEnd(widths[column] ?? 0)
          if (at === 0) return colour('dim', padded)
          return typeof cell === 'string' ? padded : colour(cell[0], padded)
        })
        .join('  ')
        .trimEnd(),
    )
    .map((line) => `${line}\n`)
    .join('')
}

/** Formats a duration, such as `2 h`, `3 min` or `4.5 s`. */
export function duration(seconds: number): string {
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`
  if (seconds < 120) return `${Math.round(seconds)} s`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`
}

export function bytes(count: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']
  let [value, unit] = [count, 0]
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`
}

export function bitRate(bitsPerSecond: number): string {
  const units = ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s']
  let [value, unit] = [bitsPerSecond, 0]
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toPrecision(3)} ${units[unit]}`
}

export const milliseconds = (ms: number): string => `${ms >= 99.5 ? Math.round(ms) : ms.toPrecision(2)} ms`

/** Formats a fraction as a percentage, rounded down, so that `100%` appears only for exactly 1. */
export const percent = (part: number): string => `${Math.floor(part * 1000) / 10}%`

/** Formats a number with a noun, such as `1 peer` or `2 peers`. */
export const count = (number: number, what: string): string => `${number} ${what}${number === 1 ? '' : 's'}`

/**
 * Describes the data path: backend, device, engine, MTU and features, such as `udp by flannel0, the native engine, MTU
 * 1472; udp-gso`.
 */
export function carrierText(carrier: {
  readonly backendType: string
  readonly device: string | null
  readonly devices?: Readonly<Record<Family, string | null>>
  readonly engine: string | null
  readonly mtu: number | null
  readonly features: readonly string[]
  readonly fastPath?: { readonly isActive: boolean; readonly reason: string | null; readonly promoted: number } | null
}): string {
  const { backendType, engine, mtu, features, fastPath } = carrier
  const devices = devicesText(carrier)
  const by = `${backendType}${devices === null ? '' : ` by ${devices}`}, ${engine === 'kernel' ? 'the kernel' : `the ${engine} engine`}`
  const fast = fastPath?.isActive ? `FastPath to ${count(fastPath.promoted, 'subnet')}` : 'no FastPath'
  return [
    `${by}, MTU ${mtu}`,
    ...(features.length > 0 ? [features.join(', ')] : []),
    ...(fastPath ? [fastPath.reason === null ? fast : `${fast}: ${fastPath.reason}`] : []),
  ].join('; ')
}
