// weft.ts - the program `weft`: its table of subcommands, and the code that runs one subcommand.

import { runtime, version } from '../../base/assets.ts'
import { describeError, isWeftError } from '../../base/errors.ts'
import { flagHint, HelpWanted, nameIn } from '../../base/go-flags.ts'
import { printable } from '../../base/text.ts'
import { FLAGS, FLANNEL_FLAGS, WEFT_FLAGS } from '../../options.ts'
import { EXIT, EXIT_MEANINGS, groupHelp, helpOf, INTERRUPTS, type Command } from './command.ts'
import { createScreen, type Screen } from './look.ts'
import { completion, daemonCompletion, daemonManual, manual, SHELLS, type Other } from './manual.ts'

/** A command that parses its command line itself: a replacement of one of flannel's own programs, or `weft cleanup`. */
interface OldCommand {
  readonly name: string
  readonly does: string
  readonly load: () => Promise<{
    readonly help: string
    /** Runs the command and returns its exit code. If `run` throws an error, weft prints the error's message. */
    readonly run: (args: readonly string[], screen: Screen) => Promise<number>
  }>
}

const OLD: readonly OldCommand[] = [
  {
    name: 'cleanup',
    does: 'remove what weftd or flanneld left on this host',
    async load() {
      const { CLEANUP_HELP, cleanup } = await import('../cleanup/cleanup.ts')
      const run = async (args: readonly string[], screen: Screen): Promise<number> => {
        const say = (line: string): void => screen.write(`${printable(line)}\n`)
        return (await cleanup(args, { say, warn: (line) => screen.warn(line) })) ? EXIT.ok : EXIT.failed
      }
      return { help: CLEANUP_HELP, run }
    },
  },
  {
    name: 'docker-opts',
    does: "write options for Docker's daemon from subnet.env, like flannel's mk-docker-opts.sh",
    async load() {
      const { DOCKER_OPTS_HELP, dockerOpts } = await import('./docker-opts.ts')
      const run = async (args: readonly string[]) => dockerOpts(args, process.env).then(() => EXIT.ok)
      return { help: DOCKER_OPTS_HELP, run }
    },
  },
  {
    name: 'install-conf',
    does: 'copy a file atomically, such as a CNI configuration that a running program reads',
    async load() {
      const { INSTALL_CONF_HELP, installConf } = await import('./install-conf.ts')
      const run = async (args: readonly string[]) => installConf(args).then(() => EXIT.ok)
      return { help: INSTALL_CONF_HELP, run }
    },
  },
]

/**
 * The commands of `weft` that use the common parser, in the order of the help. weft loads only the code of the command
 * that it runs, because some scripts run `weft status` every second and should use little CPU time.
 */
const COMMANDS: Readonly<Record<string, () => Promise<Command>>> = {
  status: async () => (await import('./status.ts')).statusCommand,
  peers: async () => (await import('./status.ts')).peersCommand,
  wg: async () => (await import('./wg.ts')).wgCommand,
  ready: async () => (await import('./ready.ts')).readyCommand,
  network: async () => (await import('./network.ts')).networkCommand,
  events: async () => (await import('./events.ts')).eventsCommand,
  ping: async () => (await import('./ping.ts')).pingCommand,
  explain: async () => (await import('./explain.ts')).explainCommand,
  doctor: async () => (await import('./doctor.ts')).doctorCommand,
  bench: async () => (await import('./bench.ts')).benchCommand,
  capture: async () => (await import('./capture.ts')).captureCommand,
  'lease ls': async () => (await import('./lease.ts')).leaseLsCommand,
  'lease show': async () => (await import('./lease.ts')).leaseShowCommand,
  'lease release': async () => (await import('./lease.ts')).leaseReleaseCommand,
  'lease reserve': async () => (await import('./lease.ts')).leaseReserveCommand,
  'config get': async () => (await import('./config.ts')).configGetCommand,
  'config set': async () => (await import('./config.ts')).configSetCommand,
  'config check': async () => (await import('./config.ts')).configCheckCommand,
  'config schema': async () => (await import('./config.ts')).configSchemaCommand,
}

/** Lists the words that may follow `weft` on the command line, such as `status` or `lease`. */
const topNames = (): readonly string[] => [
  ...new Set(
    [...Object.keys(COMMANDS), ...OLD.map(({ name }) => name), ...OTHERS.map(({ name }) => name)].map(
      (name) => name.split(' ')[0] ?? '',
    ),
  ),
]

export const loadCommands = (start = ''): Promise<readonly Command[]> =>
  Promise.all(
    Object.entries(COMMANDS)
      .filter(([name]) => name.startsWith(start))
      .map(([, load]) => load()),
  )

const isHelp = (word: string | undefined): boolean =>
  word !== undefined && ['-h', '-?', '-help', '--help'].includes(word)

const OTHERS: readonly Other[] = [
  ...OLD.map(({ name, does }) => ({ name, does, follows: 'path' as const })),
  {
    name: 'completion',
    does: `print the completion script of weft for a shell: ${SHELLS.join(', ')}; with weftd after the shell, that of weftd`,
    follows: SHELLS,
  },
  {
    name: 'man',
    does: 'print the manual page of weft or weftd; show it with `weft man | man -l -`',
    follows: ['weftd'],
  },
  {
    name: 'version',
    does: 'print the version; with --json also Node.js, the platform and the C library',
    follows: ['--json'],
  },
  {
    name: 'help',
    does: 'print this text, or the help of a command',
    follows: [
      ...new Set([...Object.keys(COMMANDS), ...OLD.map(({ name }) => name)].map((name) => name.split(' ')[0] ?? '')),
    ],
  },
]

async function help(): Promise<string> {
  const commands = await loadCommands()
  const all = [...commands.map(({ name, args, does }) => ({ name: `${name} ${args}`.trim(), does })), ...OTHERS]
  const width = Math.max(...all.map(({ name }) => name.length))
  const lines = all.map(({ name, does }) => `  ${name.padEnd(width)}  ${does}\n`).join('')
  return `Usage: weft COMMAND [OPTION]... [ARGUMENT]...\n\n${lines}\nThe daemon is weftd; see weftd --help.\n`
}

/**
 * Returns the C library and its version, such as `glibc 2.36`. The report of Node.js has no version of a C library
 * other than glibc.
 */
function libc(): string {
  const { header } = process.report.getReport() as { readonly header: { readonly glibcVersionRuntime?: string } }
  return header.glibcVersionRuntime === undefined ? 'musl' : `glibc ${header.glibcVersionRuntime}`
}

function writeVersion(rest: readonly string[], screen: Screen): number {
  if (isHelp(rest[0])) {
    screen.write('Usage: weft version [--json]\n')
    return EXIT.ok
  }
  const unknown = rest.find((word) => word !== '--json')
  if (unknown !== undefined) {
    screen.warn(`weft version: unknown argument ${nameIn(unknown)}; the only option is --json`)
    return EXIT.usage
  }
  const all = {
    version: version(),
    node: process.versions.node,
    platform: process.platform,
    arch: process.arch,
    libc: libc(),
    runtime: runtime(),
  }
  screen.write(rest.length > 0 ? `${JSON.stringify(all)}\n` : `${all.version}\n`)
  return EXIT.ok
}

async function find(
  words: readonly string[],
): Promise<{ readonly found: Command; readonly rest: readonly string[] } | undefined> {
  for (const length of [2, 1]) {
    const name = words.slice(0, length).join(' ')
    const load = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
    if (load) return { found: await load(), rest: words.slice(length) }
  }
  return undefined
}

export async function main(
  words: readonly string[],
  screen: Screen = createScreen(process.stdout, process.stderr, process.env),
): Promise<number> {
  const [name = 'help', ...rest] = words
  if (name === 'version' || name === '--version') return writeVersion(rest, screen)
  if (name === 'man' && rest[0] === 'weftd') {
    const groups = [
      ["FLANNELD'S OPTIONS", FLANNEL_FLAGS],
      ["WEFT'S OWN OPTIONS", WEFT_FLAGS],
    ] as const
    screen.write(daemonManual(groups, version()))
    return EXIT.ok
  }
  if (name === 'man') {
    screen.write(manual(await loadCommands(), OTHERS, version(), EXIT_MEANINGS))
    return EXIT.ok
  }
  if (name === 'completion' && !isHelp(rest[0])) {
    const shell = SHELLS.find((each) => each === rest[0])
    if (shell && rest[1] === 'weftd') screen.write(daemonCompletion(shell, FLAGS))
    else if (shell) screen.write(completion(shell, await loadCommands(), OTHERS))
    else screen.warn(`weft completion: name a shell: ${SHELLS.join(', ')}`)
    return shell ? EXIT.ok : EXIT.usage
  }
  if (name === 'help' && rest.length > 0) return main([...rest, '--help'], screen)
  if (name === 'help' || isHelp(name)) {
    screen.write(await help())
    return EXIT.ok
  }
  const other = OTHERS.find((each) => each.name === name && !OLD.some((old) => old.name === name))
  if (other && isHelp(rest[0])) {
    const follows = Array.isArray(other.follows) ? ` ${other.follows.join('|')}` : ''
    screen.write(
      `Usage: weft ${other.name}${follows}\n\n${other.does.charAt(0).toUpperCase()}${other.does.slice(1)}.\n`,
    )
    return EXIT.ok
  }
  const old = OLD.find((each) => each.name === name)
  if (old) return runOld(old, rest, screen)
  const wanted = await find(words)
  if (wanted) return runCommand(wanted.found, wanted.rest, screen)
  const group = await loadCommands(`${name} `)
  if (group.length > 0 && (rest.length === 0 || isHelp(rest[0]))) {
    screen.write(groupHelp(group))
    return rest.length === 0 ? EXIT.usage : EXIT.ok
  }
  const { meant } = await import('../../base/nearest.ts')
  const typed = group.length > 0 ? [name, rest[0] ?? ''] : [name]
  screen.warn(
    `weft: there is no command ${typed.map(nameIn).join(' ')}${meant(typed.join(' '), group.length > 0 ? Object.keys(COMMANDS) : topNames(), 'weft ')}; see weft help`,
  )
  return EXIT.usage
}

/**
 * Ends the process with the exit code that `main` returned. If a signal interrupted the command, the process sends that
 * signal to itself, because bash ends a script after Ctrl-C only if SIGINT killed the program that the script ran.
 */
export function end(code: number): void {
  process.exitCode = code // needed if this is the init process of a container, which these signals do not kill
  for (const name of INTERRUPTS) if (code === EXIT[name]) process.kill(process.pid, name)
}

async function runCommand(command: Command, words: readonly string[], screen: Screen): Promise<number> {
  const stopping = new AbortController()
  let interrupt: (typeof INTERRUPTS)[number] | undefined
  const stops = INTERRUPTS.map((name) => {
    const stop = (): void => {
      interrupt ??= name
      stopping.abort()
    }
    process.once(name, stop)
    return { name, stop }
  })
  try {
    return await command.run(words, process.env, screen, stopping.signal)
  } catch (error) {
    if (error instanceof HelpWanted) {
      screen.write(helpOf(command))
      return EXIT.ok
    }
    if (interrupt !== undefined) {
      screen.warn(`weft ${command.name}: ${interrupt} interrupted the command before it was done`)
      return EXIT[interrupt]
    }
    screen.warn(`weft ${command.name}: ${describeError(error)}${await flagHint(error, command.flags)}`)
    return isWeftError(error, 'USAGE') ? EXIT.usage : EXIT.failed
  } finally {
    for (const { name, stop } of stops) process.off(name, stop)
  }
}

async function runOld({ name, load }: OldCommand, rest: readonly string[], screen: Screen): Promise<number> {
  const { help: text, run } = await load()
  // Exit with 1 for -h, as flannel's mk-docker-opts.sh does. For --help, which the script does not have, weft exits
  // with 0.
  if (name === 'docker-opts' && ['-h', '-?'].includes(rest[0] ?? '')) {
    process.stderr.write(text)
    return EXIT.failed
  }
  if (isHelp(rest[0])) {
    screen.write(text)
    return EXIT.ok
  }
  const warn = (line: string): void => screen.warn(`weft ${name}: ${line}`)
  try {
    return await run(rest, { ...screen, warn })
  } catch (error) {
    warn(describeError(error))
    // Only `weft cleanup` has an exit code for wrong usage. All other commands that parse their command line themselves
    // replace flannel's programs, which exit with 1 for every error.
    return name === 'cleanup' && isWeftError(error, 'USAGE') ? EXIT.usage : EXIT.failed
  }
}
