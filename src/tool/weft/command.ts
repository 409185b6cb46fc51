// command.ts - what a subcommand of weft is, how its command line is read, and its help: one table, one parser, one look.

import { WeftError } from '../../base/errors.ts'
import { applyEnvironment, parseFlags, type FlagTable, type Options } from '../../base/go-flags.ts'
import { Secret } from '../../base/secret.ts'
import { WEFT_FLAGS } from '../../options.ts'
import type { Screen } from './look.ts'

/** The exit codes of weft. */
export const EXIT = {
  ok: 0,
  /** It could not be done: a daemon, a store or a command does not answer. */
  failed: 1,
  /** The command line cannot be read. */
  usage: 2,
  /** It was done, and something is wrong: a peer does not answer, a finding of the doctor's, a configuration that is not valid. */
  wrong: 3,
} as const

/** The meanings in the order of the codes. */
export const EXIT_MEANINGS = [
  'Done, and all is well.',
  'It could not be done: a daemon, a store or a command does not answer, or it is not allowed.',
  'The command line cannot be read, or names something that does not exist.',
  'Done, but something is wrong: a peer does not answer, the doctor found a failure, or a configuration is not valid.',
] as const

export interface Call<Table extends FlagTable> {
  readonly options: Options<Table>
  /** The arguments that are no flags, as many as the command takes. */
  readonly args: readonly string[]
  readonly screen: Screen
  readonly signal: AbortSignal
}

export interface Command {
  /** `lease ls` */
  readonly name: string
  /** Its arguments in the help: `SRC DST`; one in brackets may be left out. */
  readonly args: string
  /** One line that says what the command does. */
  readonly does: string
  /** More sentences for the help. */
  readonly more: string
  readonly flags: FlagTable
  /** Returns the exit code. Throws WeftError USAGE for a command line that cannot be read, HelpWanted for -h. */
  run(words: readonly string[], environment: NodeJS.ProcessEnv, screen: Screen, signal: AbortSignal): Promise<number>
}

interface Definition<Table extends FlagTable> extends Pick<Command, 'name' | 'does'> {
  readonly args?: string
  readonly more?: string
  readonly flags: Table
  readonly run: (call: Call<Table>) => Promise<number>
}

export function command<Table extends FlagTable>(definition: Definition<Table>): Command {
  const { name, does, args = '', more = '', flags, run } = definition
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
      return run({ options: parsed.options, args: parsed.rest, screen, signal })
    },
  }
}

/** The least and the greatest number of arguments. */
function countOf(args: string): readonly [number, number] {
  const words = args.split(' ').filter((word) => word !== '')
  return [words.filter((word) => !word.startsWith('[')).length, words.length]
}

/** Flags may stand anywhere, unlike with Go's programs: who types `weft ping PEER -count 1` means it. */
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

/** Flags that many commands have. */
export const JSON_FLAG = { json: { default: false, help: 'print JSON, for programs' } } as const
export const SOCKET_FLAG = {
  'status-socket': { ...WEFT_FLAGS['status-socket'], help: 'Unix socket of the daemon' },
} as const

/** The help of one. */
export function helpOf({ name, args, does, more, flags }: Command): string {
  const usage = `Usage: weft ${[name, ...(Object.keys(flags).length > 0 ? ['[OPTION]...'] : []), args].join(' ').trim()}`
  const width = Math.max(0, ...Object.entries(flags).map((flag) => wordsOf(flag).length))
  const lines = Object.entries(flags).map((flag) => {
    return `  ${wordsOf(flag).padEnd(width)}  ${flag[1].help}${defaultText(flag[1].default, 'default ')}`
  })
  const sentence = `${does[0]?.toUpperCase()}${does.slice(1)}.`
  return `${[usage, [sentence, more].filter((text) => text !== '').join(' '), lines.join('\n')].filter((part) => part !== '').join('\n\n')}\n`
}

/** A flag's default, in brackets; empty when that says nothing. */
export function defaultText(value: FlagTable[string]['default'], before = ''): string {
  const isNone = value instanceof Secret ? value.isEmpty : value === '' || value === false || Array.isArray(value)
  return isNone ? '' : ` (${before}${String(value)})`
}

/** The word for a flag's value in the help; undefined when it has none. */
export function valueWord({ default: value, placeholder }: FlagTable[string]): string | undefined {
  return typeof value === 'boolean' ? undefined : (placeholder ?? (typeof value === 'number' ? 'N' : 'TEXT'))
}

const wordsOf = ([name, flag]: [string, FlagTable[string]]): string =>
  [`--${name}`, valueWord(flag) ?? []].flat().join(' ')
