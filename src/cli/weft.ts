// weft.ts - the operator's tool. It grows a subcommand with each thing that an operator asks.

import { version } from './version.ts'

const HELP = `Usage: weft COMMAND

  version   print the version
  help      print this text

The daemon is weftd; see weftd --help.
`

/** Runs a subcommand and returns the exit code. */
export async function main(args: readonly string[]): Promise<number> {
  const [command] = args
  switch (command) {
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
