// command.ts - defines a subcommand of `weft`, parses its command line, and prints its help.

import { WeftError } from '../../base/errors.ts'
import { applyEnvironment, parseFlags, type FlagTable, type Options } from '../../base/go-flags.ts'
import { Secret } from '../../base/secret.ts'
import { STORE_FLAGS, WEFT_FLAGS } from '../../options.ts'
import type { Screen } from './look.ts'

export const EXIT = {
  ok: 0,
  /** The exit code if the command failed because weftd, a store or a program did not answer. */
  failed: 1,
  usage: 2,
  /**
   * The exit code if the command worked and found a fault: a peer does not answer, weft doctor reports a failure, or a
   * configuration is invalid.
   */
  wrong: 3,
  /**
   * The exit codes if a signal interrupted the command. A shell reports 128 plus the number of the signal for a program
   * that a signal killed (POSIX, Shell Command Language, section 2.8.2; bash).
   */
  SIGINT: 130,
  SIGTERM: 143,
} as const

/** The signals that interrupt a command. */
export const INTERRUPTS = ['SIGINT', 'SIGTERM'] as const

/** The meaning of each exit code. */
export const EXIT_MEANINGS: Readonly<Record<number, string>> = {
  [EXIT.ok]: 'The command succeeded and found no problem.',
  [EXIT.failed]:
    'The command failed: a daemon, a store or a program does not answer, permission is missing, or weft config set refused a configuration.',
  [EXIT.usage]: 'The command line cannot be read, or names something that does not exist.',
  [EXIT.wrong]:
    'The command succeeded but found a problem: a peer does not answer, weft doctor found a failure, or a configuration is not valid.',
  [EXIT.SIGINT]: 'SIGINT (Ctrl-C) interrupted the command before it was done.',
  [EXIT.SIGTERM]: 'SIGTERM interrupted the command before it was done.',
}

export interface Call<Table extends FlagTable> {
  readonly options: Options<Table>
  /** The arguments of the command line that are not flags. weft has checked their number. */
  readonly args: readonly string[]
  readonly screen: Screen
  readonly signal: AbortSignal
}

export interface Command {
  /** The command's name after `weft`, such as `lease ls`. */
  readonly name: string
  /** The command's arguments as its help shows them, such as `SRC DST`. Brackets mark optional arguments. */
  readonly args: string
  readonly does: string
  readonly more: string
  readonly flags: FlagTable
  /**
   * Runs the command and returns its exit code. Throws WeftError USAGE if the command line cannot be parsed, and
   * HelpWanted for -h. Rejects with `signal.reason` if `signal` is aborted before the command is done.
   */
  run(words: readonly string[], environment: NodeJS.ProcessEnv, screen: Screen, signal: AbortSignal): Promise<number>
}

interface Definition<Table extends FlagTable> extends Pick<Command, 'name' | 'does'> {
  readonly args?: string
  readonly more?: string
  readonly flags: Table
  /**
   * Returns true if the command runs until SIGINT or SIGTERM ends it, as with --watch. Such an end is a success.
   * Without this member a signal always interrupts the command.
   */
  readonly isEndless?: (options: Options<Table>) => boolean
  readonly run: (call: Call<Table>) => Promise<number>
}

export function command<Table extends FlagTable>(definition: Definition<Table>): Command {
  const { name, does, args = '', more = '', flags, isEndless, run } = definition
  return {
    name,
    does,
    args,
    more,
    flags,
    run(words, environment, screen, signal) {
      const bad = (message: string): void => screen.warn(`weft ${name}: ${message}`)
      const parsed = parseWords(flags, words, environment, bad)
      const [least, most] = countOf(args)
      if (parsed.rest.length < least || parsed.rest.length > most) {
        throw new WeftError('USAGE', `weft ${name} takes ${args === '' ? 'no arguments' : args}`, {
          remedy: `see weft ${name} --help`,
        })
      }
      return run({ options: parsed.options, args: parsed.rest, screen, signal }).catch((error: unknown) => {
        if (signal.aborted && error === signal.reason && isEndless?.(parsed.options)) return EXIT.ok
        throw error
      })
    },
  }
}

function countOf(args: string): readonly [number, number] {
  const words = args.split(' ').filter((word) => word !== '')
  return [words.filter((word) => !word.startsWith('[')).length, words.length]
}

/**
 * Parses the command line. Unlike in Go's programs, flags may follow arguments, so that `weft ping PEER -count 1`
 * works.
 */
function parseWords<Table extends FlagTable>(
  table: Table,
  words: readonly string[],
  environment: NodeJS.ProcessEnv,
  onBad: (message: string) => void,
) {
  let ordered: string[] = []
  const rest: string[] = []
  for (let left = words; ;) {
    const { rest: after } = parseFlags(table, left)
    const isEnded = left[left.length - after.length - 1] === '--'
    ordered = [...ordered, ...left.slice(0, left.length - after.length)].filter((word) => word !== '--')
    if (isEnded) rest.push(...after)
    const [argument, ...more] = after
    if (isEnded || argument === undefined) break
    rest.push(argument)
    left = more
  }
  const parsed = parseFlags(table, ordered)
  return { rest, options: applyEnvironment(table, parsed, 'FLANNELD', environment, onBad) }
}

export const JSON_FLAG = { json: { default: false, help: 'print JSON, for programs' } } as const
export const SOCKET_FLAG = {
  'status-socket': { ...WEFT_FLAGS['status-socket'], help: 'Unix socket of the daemon' },
} as const

/**
 * Returns the help of a group of commands. The flags for the store, which most commands of the group have, are at the
 * end.
 */
export function groupHelp(commands: readonly Command[]): string {
  const shared = Object.entries({ ...SOCKET_FLAG, ...STORE_FLAGS })
  const names = new Set(shared.map(([name]) => name))
  const users = commands.filter(({ flags }) => shared.every(([name]) => Object.hasOwn(flags, name)))
  if (users.length < 2) return commands.map((each) => helpOf(each)).join('\n')
  const heads = commands.map((each) => helpOf(each, users.includes(each) ? names : undefined))
  const all = users.map(({ name }) => name).join(', ')
  return `${heads.join('\n')}\nOptions of ${all}:\n\n${flagLines(shared)}\n`
}

const flagLines = (flags: readonly [string, FlagTable[string]][]): string => {
  const width = Math.max(0, ...flags.map((flag) => wordsOf(flag).length))
  return flags
    .map((flag) => `  ${wordsOf(flag).padEnd(width)}  ${flag[1].help}${defaultText(flag[1].default, 'default ')}`)
    .join('\n')
}

/** Returns the help of a command, without the flags in `without`. */
export function helpOf({ name, args, does, more, flags }: Command, without: ReadonlySet<string> = new Set()): string {
  const usage = `Usage: weft ${[name, ...(Object.keys(flags).length > 0 ? ['[OPTION]...'] : []), args].join(' ').trim()}`
  const lines = flagLines(Object.entries(flags).filter(([flag]) => !without.has(flag)))
  const sentence = `${does[0]?.toUpperCase()}${does.slice(1)}.`
  return `${[usage, [sentence, more].filter((text) => text !== '').join(' '), lines].filter((part) => part !== '').join('\n\n')}\n`
}

/**
 * Returns the default value of a flag in brackets, for the help. Returns an empty text if the flag has no default or if
 * the default is false.
 */
export function defaultText(value: FlagTable[string]['default'], before = ''): string {
  const isNone = value instanceof Secret ? value.isEmpty : value === '' || value === false || Array.isArray(value)
  return isNone ? '' : ` (${before}${String(value)})`
}

/** Returns the placeholder that stands for a flag's value in the help; undefined for a flag that takes no value. */
export function valueWord({ default: value, placeholder }: FlagTable[string]): string | undefined {
  return typeof value === 'boolean' ? undefined : (placeholder ?? (typeof value === 'number' ? 'N' : 'TEXT'))
}

const wordsOf = ([name, flag]: [string, FlagTable[string]]): string =>
  [`--${name}`, valueWord(flag) ?? []].flat().join(' ')
