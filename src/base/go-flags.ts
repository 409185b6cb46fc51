// go-flags.ts - parses command lines by the rules of Go's package flag (go.dev/src/flag/flag.go). A table lists the
// flags of a program.
//
// A command line may set the flag `f` to `v` by `-f v`, `--f v`, `-f=v` or `--f=v`. A boolean flag takes no separate
// value. The flags end at `--` or at the first argument that is not a flag.

import { WeftError } from './errors.ts'
import { Secret } from './secret.ts'

/**
 * The value of a flag. If a flag's default is a Secret, a value that the user gives becomes a Secret too, and is
 * printed by the same rule as the default.
 */
export type FlagValue = string | boolean | number | readonly string[] | Secret

interface Flag<Value extends FlagValue = FlagValue> {
  readonly default: Value
  readonly help: string
  /**
   * The word that stands for the flag's value in the usage text. Defaults to the word that Go prints for the type of
   * the flag's value.
   */
  readonly placeholder?: string
}

export type FlagTable = Readonly<Record<string, Flag>>
export type Options<Table extends FlagTable> = { readonly [Name in keyof Table]: Widen<Table[Name]['default']> }
type Widen<Value> = Value extends boolean
  ? boolean
  : Value extends number
    ? number
    : Value extends string
      ? string
      : Value extends Secret
        ? Secret
        : readonly string[]

export interface ParsedFlags<Table extends FlagTable> {
  readonly options: Options<Table>
  readonly given: ReadonlySet<string>
  readonly rest: readonly string[]
  readonly last: (keyof Table & string) | undefined
}

const BOOLEANS: ReadonlyMap<string, boolean> = new Map([
  ...['1', 't', 'T', 'true', 'TRUE', 'True'].map((text): [string, boolean] => [text, true]),
  ...['0', 'f', 'F', 'false', 'FALSE', 'False'].map((text): [string, boolean] => [text, false]),
])

/**
 * Parses an integer as Go's strconv.ParseInt does with base 0: decimal, 0x, 0o or a leading 0, 0b, with underscores
 * between digits. Returns undefined if the text is invalid.
 */
export function parseGoInt(text: string): number | undefined {
  const match =
    /^([+-]?)(0[xX]_?[0-9a-fA-F](?:_?[0-9a-fA-F])*|0[bB]_?[01](?:_?[01])*|0[oO]?_?[0-7](?:_?[0-7])*|[1-9](?:_?[0-9])*|0)$/.exec(
      text,
    )
  if (!match) return undefined
  let digits = (match[2] ?? '').replaceAll('_', '')
  if (/^0[0-7]/.test(digits)) digits = `0o${digits}`
  const value = Number(digits)
  if (!Number.isSafeInteger(value)) return undefined
  return match[1] === '-' ? -value : value
}

/**
 * Parses the text that was given for a flag. Returns the flag's value, or `problem`, which says why the text is
 * invalid.
 */
function readValue(flag: Flag, text: string): FlagValue | { readonly problem: string } {
  switch (typeof flag.default) {
    case 'boolean':
      return BOOLEANS.get(text) ?? { problem: 'it takes true or false' }
    case 'number':
      return parseGoInt(text) ?? { problem: 'it takes a whole number' }
    default:
      return flag.default instanceof Secret ? flag.default.with(text) : text
  }
}

function isProblem(value: ReturnType<typeof readValue>): value is { readonly problem: string } {
  return typeof value === 'object' && 'problem' in value
}

/**
 * Returns a command line argument with the text after `=` replaced by `...` if the argument is a flag, because that
 * text may be a secret.
 */
export const nameIn = (word: string): string => word.replace(/(?<=^-.*=).*/s, '...')

const UNDEFINED = 'flag provided but not defined: -'
/**
 * Returns a hint such as `; did you mean --lease-dir?` if `error` reports an unknown flag, else an empty text. Loads
 * the search for similar words (nearest.ts) only if a flag is unknown.
 */
export async function flagHint(error: unknown, table: FlagTable): Promise<string> {
  if (!(error instanceof WeftError) || !error.message.startsWith(UNDEFINED)) return ''
  const { meant } = await import('./nearest.ts')
  return meant(error.message.slice(UNDEFINED.length), Object.keys(table), '--')
}

/** The error that parseFlags throws for -h, -help and --help, which Go defines for every program. */
export class HelpWanted extends Error {
  override readonly name = 'HelpWanted'
}

/**
 * Parses a command line. Throws WeftError USAGE for an unknown flag or an invalid value, and HelpWanted for -h, -help
 * or --help.
 */
export function parseFlags<Table extends FlagTable>(table: Table, args: readonly string[]): ParsedFlags<Table> {
  const options: Record<string, FlagValue> = {}
  for (const [name, flag] of Object.entries(table)) options[name] = flag.default
  const given = new Set<string>()
  const usage = (message: string): WeftError => new WeftError('USAGE', message, { remedy: 'see --help' })

  let last: string | undefined
  let index = 0
  for (; index < args.length; index++) {
    const argument = args[index] ?? ''
    if (argument === '--') {
      index++
      break
    }
    if (!argument.startsWith('-') || argument === '-') break
    const body = argument.replace(/^--?/, '')
    if (body.startsWith('-') || body.startsWith('=')) throw usage(`bad flag syntax: ${nameIn(argument)}`)
    const equals = body.indexOf('=')
    const name = equals < 0 ? body : body.slice(0, equals)
    const flag = Object.hasOwn(table, name) ? table[name] : undefined
    if (!flag) {
      if (name === 'h' || name === 'help') throw new HelpWanted()
      throw usage(`${UNDEFINED}${name}`)
    }
    let text = equals < 0 ? undefined : body.slice(equals + 1)
    if (text === undefined) {
      if (typeof flag.default === 'boolean') text = 'true'
      else {
        index++
        text = args[index]
        if (text === undefined) throw usage(`flag needs an argument: -${name}`)
      }
    }
    const value = readValue(flag, text)
    if (isProblem(value)) throw usage(`invalid value "${text}" for flag -${name}: ${value.problem}`)
    options[name] = Array.isArray(flag.default)
      ? [...(given.has(name) ? (options[name] as string[]) : []), text]
      : value
    given.add(name)
    last = name
  }
  return { options: options as Options<Table>, given, rest: args.slice(index), last }
}

export const variableOf = (prefix: string, name: string): string =>
  `${prefix}_${name.toUpperCase().replaceAll('-', '_')}`

/**
 * Lists the environment variables that begin with the prefix of weft's variables and are not empty, but set no flag of
 * the table. These variables are probably mistyped.
 */
export function unknownVariables(
  table: FlagTable,
  prefix: string,
  environment: Readonly<Record<string, string | undefined>>,
): readonly string[] {
  const known = new Set(Object.keys(table).map((name) => variableOf(prefix, name)))
  return Object.keys(environment).filter(
    (name) => name.startsWith(`${prefix}_`) && environment[name] && !known.has(name),
  )
}

/**
 * Sets each flag that is missing on the command line from the variable `PREFIX_NAME`, in which NAME is the flag's name
 * in upper case with `_` for `-`. An empty variable counts as unset. Calls `onBad` for an invalid value; the flag then
 * keeps its default.
 */
export function applyEnvironment<Table extends FlagTable>(
  table: Table,
  parsed: ParsedFlags<Table>,
  prefix: string,
  environment: Readonly<Record<string, string | undefined>>,
  onBad: (message: string) => void,
): Options<Table> {
  const options: Record<string, FlagValue> = { ...parsed.options }
  for (const [name, flag] of Object.entries(table)) {
    const variable = variableOf(prefix, name)
    const text = environment[variable]
    if (parsed.given.has(name) || !text) continue
    const value = readValue(flag, text)
    if (isProblem(value)) onBad(`invalid value "${text}" for ${variable}: ${value.problem}`)
    else options[name] = Array.isArray(flag.default) ? [text] : value
  }
  return options as Options<Table>
}

/** Returns the word that stands for a flag's value in the usage text; an empty text if the flag takes no value. */
export function valueWordOf({ default: value, placeholder }: Flag): string {
  if (placeholder !== undefined) return placeholder
  if (typeof value === 'boolean') return ''
  if (typeof value === 'number') return 'int'
  return typeof value === 'string' || value instanceof Secret ? 'string' : 'value'
}

/**
 * Returns the default of a flag as Go prints it, without secret parts; undefined if Go prints none because the default
 * is empty.
 */
export function shownDefault({ default: value }: Flag): string | number | true | undefined {
  if (Array.isArray(value)) return undefined
  return (value instanceof Secret ? String(value) : (value as string | number | boolean)) || undefined
}

/** Returns the text that describes all flags in a usage text, in the format of Go's PrintDefaults. */
export function describeFlags(table: FlagTable): string {
  return Object.entries(table)
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, flag]) => {
      const word = valueWordOf(flag)
      const head = word === '' ? `  -${name}` : `  -${name} ${word}`
      const value = shownDefault(flag)
      const shown = value === undefined ? '' : ` (default ${JSON.stringify(value)})`
      // Like Go, put the description on the flag's own line if the flag has one letter and takes no value, otherwise on
      // the next line.
      const gap = head.length <= 4 ? '\t' : '\n    \t'
      return `${head}${gap}${flag.help}${shown}`
    })
    .join('\n')
}
