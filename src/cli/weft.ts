// weft.ts - the operator's tool. It grows a subcommand with each thing that an operator asks.

import { describeError, isWeftError } from '../errors.ts'
import { CLEANUP_HELP, cleanup } from './cleanup.ts'
import { DOCKER_OPTS_HELP, dockerOpts } from './docker-opts.ts'
import { INSTALL_CONF_HELP, installConf } from './install-conf.ts'
import { version } from './version.ts'

const HELP = `Usage: weft COMMAND

  cleanup       remove what weftd or a flanneld left on this host
  docker-opts   write options for Docker's daemon from subnet.env, as mk-docker-opts.sh does
  install-conf  copy a file to where a running program reads it, such as a CNI configuration
  version       print the version
  help          print this text

The daemon is weftd; see weftd --help.
`

/** Runs a subcommand and returns the exit code. */
export async function main(args: readonly string[]): Promise<number> {
  const [command, ...rest] = args
  switch (command) {
    case 'cleanup':
      if (['-h', '--help'].includes(rest[0] ?? '')) {
        process.stdout.write(CLEANUP_HELP)
        return 0
      }
      try {
        const say = (line: string): void => void process.stdout.write(`${line}\n`)
        const warn = (line: string): void => void process.stderr.write(`weft cleanup: ${line}\n`)
        return (await cleanup(rest, { say, warn })) ? 0 : 1
      } catch (error) {
        process.stderr.write(`weft cleanup: ${describeError(error)}\n`)
        return isWeftError(error, 'USAGE') ? 2 : 1
      }
    case 'docker-opts':
      if (['-h', '-?', '--help'].includes(rest[0] ?? '')) {
        process.stdout.write(DOCKER_OPTS_HELP)
        return 0
      }
      try {
        await dockerOpts(rest, process.env)
        return 0
      } catch (error) {
        process.stderr.write(`weft docker-opts: ${describeError(error)}\n`)
        return 1 // as the script, whatever it was
      }
    case 'install-conf':
      if (['-h', '--help'].includes(rest[0] ?? '')) {
        process.stdout.write(INSTALL_CONF_HELP)
        return 0
      }
      try {
        await installConf(rest)
        return 0
      } catch (error) {
        process.stderr.write(`weft install-conf: ${describeError(error)}\n`)
        return 1 // as the program, whatever it was
      }
    case 'version':
    case '--version':
      process.stdout.write(`${version()}\n`)
      return 0
    case undefined:
    case 'help':
    case '--help':
    case '-h':
      process.stdout.write(HELP)
      return 0
    default:
      process.stderr.write(`weft: there is no command ${command}; see weft help\n`)
      return 2
  }
}
