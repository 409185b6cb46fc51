// weft.ts - the operator's tool: the table of its subcommands, and from a command line to an exit code.

import { CLEANUP_HELP, cleanup } from '../cleanup/cleanup.ts'
import { describeError, isWeftError } from '../errors.ts'
import { HelpWanted } from '../go-flags.ts'
import { version } from '../version.ts'
import { benchCommand } from './bench.ts'
import { EXIT, EXIT_MEANINGS, helpOf, type Command } from './command.ts'
import { DOCKER_OPTS_HELP, dockerOpts } from './docker-opts.ts'
import { INSTALL_CONF_HELP, installConf } from './install-conf.ts'
import { captureCommand } from './capture.ts'
import { createScreen, type Screen } from './look.ts'
import { configCheckCommand, configGetCommand, configSetCommand } from './config.ts'
import { doctorCommand } from './doctor.ts'
import { leaseLsCommand, leaseReleaseCommand, leaseReserveCommand, leaseShowCommand } from './lease.ts'
import { explainCommand } from './explain.ts'
import { completion, manual, SHELLS, type Other } from './manual.ts'
import { pingCommand } from './ping.ts'
import { peersCommand, statusCommand } from './status.ts'

/** flannel's own programs, and what is as old here: they read their command lines themselves. */
interface OldCommand {
  readonly name: string
  readonly does: string
  readonly help: string
  /** Returns the exit code; what it throws becomes a line. */
  readonly run: (args: readonly string[], screen: Screen) => Promise<number>
}

const OLD: readonly OldCommand[] = [
  {
    name: 'cleanup',
    does: 'remove what weftd or a flanneld left on this host',
    help: CLEANUP_HELP,
    async run(args) {
      const say = (line: string): void => void process.stdout.write(`${line}\n`)
      const warn = (line: string): void => void process.stderr.write(`weft cleanup: ${line}\n`)
      return (await cleanup(args, { say, warn })) ? EXIT.ok : EXIT.failed
    },
  },
  {
    name: 'docker-opts',
    does: "write options for Docker's daemon from subnet.env, as mk-docker-opts.sh does",
    help: DOCKER_OPTS_HELP,
    async run(args) {
      await dockerOpts(args, process.env)
      return EXIT.ok
    },
  },
  {
    name: 'install-conf',
    does: 'copy a file to where a running program reads it, such as a CNI configuration',
    help: INSTALL_CONF_HELP,
    async run(args) {
      await installConf(args)
      return EXIT.ok
    },
  },
]

/** All others. */
export const COMMANDS: readonly Command[] = [
  statusCommand,
  peersCommand,
  pingCommand,
  explainCommand,
  doctorCommand,
  benchCommand,
  captureCommand,
  leaseLsCommand,
  leaseShowCommand,
  leaseReleaseCommand,
  leaseReserveCommand,
  configGetCommand,
  configSetCommand,
  configCheckCommand,
]

const isHelp = (word: string | undefined): boolean =>
  word !== undefined && ['-h', '-?', '-help', '--help'].includes(word)

/** What is told of those that are not in the table. */
const OTHERS: readonly Other[] = [
  ...OLD.map((old) => ({ ...old, follows: 'path' as const })),
  {
    name: 'completion',
    does: `print what completes a command line of weft in a shell: ${SHELLS.join(', ')}`,
    follows: SHELLS,
  },
  { name: 'man', does: 'print the manual page; see it with `weft man | man -l -`' },
  { name: 'version', does: 'print the version' },
  {
    name: 'help',
    does: 'print this text; with a command, its own',
    follows: [...new Set([...COMMANDS, ...OLD].map(({ name }) => name.split(' ')[0] ?? ''))],
  },
]

function help(): string {
  const all = [...COMMANDS.map(({ name, args, does }) => ({ name: `${name} ${args}`.trim(), does })), ...OTHERS]
  const width = Math.max(...all.map(({ name }) => name.length))
  const lines = all.map(({ name, does }) => `  ${name.padEnd(width)}  ${does}\n`).join('')
  return `Usage: weft COMMAND [OPTION]... [ARGUMENT]...\n\n${lines}\nThe daemon is weftd; see weftd --help.\n`
}

/** The command that the words begin with: of one word or two. */
function find(words: readonly string[]): { readonly found: Command; readonly rest: readonly string[] } | undefined {
  for (const length of [2, 1]) {
    const found = COMMANDS.find(({ name }) => name === words.slice(0, length).join(' '))
    if (found) return { found, rest: words.slice(length) }
  }
  return undefined
}

/** Runs a subcommand and returns the exit code. */
export async function main(
  words: readonly string[],
  screen: Screen = createScreen(process.stdout, process.stderr, process.env),
): Promise<number> {
  const [name = 'help', ...rest] = words
  if (name === 'version' || name === '--version') {
    screen.write(`${version()}\n`)
    return EXIT.ok
  }
  if (name === 'man') {
    screen.write(manual(COMMANDS, OTHERS, version(), EXIT_MEANINGS))
    return EXIT.ok
  }
  if (name === 'completion' && !isHelp(rest[0])) {
    const shell = SHELLS.find((each) => each === rest[0])
    if (shell) screen.write(completion(shell, COMMANDS, OTHERS))
    else screen.warn(`weft completion: give it one of ${SHELLS.join(', ')}`)
    return shell ? EXIT.ok : EXIT.usage
  }
  if (name === 'help' && rest.length > 0) return main([...rest, '--help'], screen)
  if (name === 'help' || isHelp(name)) {
    screen.write(help())
    return EXIT.ok
  }
  const old = OLD.find((each) => each.name === name)
  if (old) return runOld(old, rest, screen)
  const wanted = find(words)
  if (wanted) return runCommand(wanted.found, wanted.rest, screen)
  const group = COMMANDS.filter((each) => each.name.startsWith(`${name} `))
  if (group.length > 0 && (rest.length === 0 || isHelp(rest[0]))) {
    screen.write(group.map((each) => helpOf(each)).join('\n'))
    return rest.length === 0 ? EXIT.usage : EXIT.ok
  }
  screen.warn(`weft: there is no command ${group.length > 0 ? `${name} ${rest[0]}` : name}; see weft help`)
  return EXIT.usage
}

async function runCommand(command: Command, words: readonly string[], screen: Screen): Promise<number> {
  const stopping = new AbortController()
  const stop = (): void => stopping.abort()
  process.once('SIGINT', stop).once('SIGTERM', stop)
  try {
    return await command.run(words, process.env, screen, stopping.signal)
  } catch (error) {
    if (error instanceof HelpWanted) {
      screen.write(helpOf(command))
      return EXIT.ok
    }
    if (stopping.signal.aborted) return EXIT.ok // who watches ends it so
    screen.warn(`weft ${command.name}: ${describeError(error)}`)
    return isWeftError(error, 'USAGE') ? EXIT.usage : EXIT.failed
  } finally {
    process.off('SIGINT', stop).off('SIGTERM', stop)
  }
}

async function runOld({ name, help: text, run }: OldCommand, rest: readonly string[], screen: Screen): Promise<number> {
  // The script exits with 1 for its -h, and so ends whoever asks by it whether it worked; --help is ours.
  if (name === 'docker-opts' && ['-h', '-?'].includes(rest[0] ?? '')) {
    process.stderr.write(text)
    return EXIT.failed
  }
  if (isHelp(rest[0])) {
    screen.write(text)
    return EXIT.ok
  }
  try {
    return await run(rest, screen)
  } catch (error) {
    process.stderr.write(`weft ${name}: ${describeError(error)}\n`)
    // The other two are flannel's programs, which exit with 1 whatever it was.
    return name === 'cleanup' && isWeftError(error, 'USAGE') ? EXIT.usage : EXIT.failed
  }
}
