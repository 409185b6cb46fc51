// weft.ts - the operator's tool. It grows a subcommand with each thing that an operator asks.

import { CLEANUP_HELP, cleanup } from '../cleanup/cleanup.ts'
import { describeError, isWeftError } from '../errors.ts'
import { DOCKER_OPTS_HELP, dockerOpts } from './docker-opts.ts'
import { INSTALL_CONF_HELP, installConf } from './install-conf.ts'
import { version } from '../version.ts'

const EXIT_FAILED = 1
const EXIT_USAGE = 2

const HELP = `Usage: weft COMMAND

  cleanup       remove what weftd or a flanneld left on this host
  docker-opts   write options for Docker's daemon from subnet.env, as mk-docker-opts.sh does
  install-conf  copy a file to where a running program reads it, such as a CNI configuration
  version       print the version
  help          print this text

The daemon is weftd; see weftd --help.
`

interface Command {
  readonly help: string
  /** Returns the exit code; what it throws becomes a line. */
  readonly run: (args: readonly string[]) => Promise<number>
}

const COMMANDS: Readonly<Record<string, Command>> = {
  cleanup: {
    help: CLEANUP_HELP,
    async run(args) {
      const say = (line: string): void => void process.stdout.write(`${line}\n`)
      const warn = (line: string): void => void process.stderr.write(`weft cleanup: ${line}\n`)
      return (await cleanup(args, { say, warn })) ? 0 : EXIT_FAILED
    },
  },
  'docker-opts': {
    help: DOCKER_OPTS_HELP,
    async run(args) {
      await dockerOpts(args, process.env)
      return 0
    },
  },
  'install-conf': {
    help: INSTALL_CONF_HELP,
    async run(args) {
      await installConf(args)
      return 0
    },
  },
}

/** Runs a subcommand and returns the exit code. */
export async function main([name = 'help', ...rest]: readonly string[]): Promise<number> {
  if (name === 'version' || name === '--version') {
    process.stdout.write(`${version()}\n`)
    return 0
  }
  if (['help', '-h', '--help'].includes(name)) {
    process.stdout.write(HELP)
    return 0
  }
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!command) {
    process.stderr.write(`weft: there is no command ${name}; see weft help\n`)
    return EXIT_USAGE
  }
  // The script exits with 1 for its -h, and so ends whoever asks by it whether it worked; --help is ours.
  if (name === 'docker-opts' && ['-h', '-?'].includes(rest[0] ?? '')) {
    process.stderr.write(command.help)
    return EXIT_FAILED
  }
  if (['-h', '-?', '--help'].includes(rest[0] ?? '')) {
    process.stdout.write(command.help)
    return 0
  }
  try {
    return await command.run(rest)
  } catch (error) {
    process.stderr.write(`weft ${name}: ${describeError(error)}\n`)
    // The other two are flannel's programs, which exit with 1 whatever it was.
    return name === 'cleanup' && isWeftError(error, 'USAGE') ? EXIT_USAGE : EXIT_FAILED
  }
}
