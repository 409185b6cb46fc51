// weftd.ts - from the command line to the daemon and from its end to an exit code.

import { readFileSync } from 'node:fs'
import { ENGINES } from '../choose.ts'
import { describeError, isWeftError, WeftError } from '../errors.ts'
import { createLog } from '../log.ts'
import { applyEnvironment, describeFlags, HelpWanted, parseFlags } from './go-flags.ts'
import { FLAGS, FLAGS_TO_COME, FLANNEL_FLAGS, WEFT_FLAGS, type DaemonOptions } from './options.ts'

const EXIT_FAILED = 1
const EXIT_USAGE = 2

/** The package's version. */
export function version(): string {
  const file = new URL('../../package.json', import.meta.url)
  const fromDist = new URL('../../../package.json', import.meta.url)
  for (const url of [file, fromDist]) {
    try {
      return (JSON.parse(readFileSync(url, 'utf8')) as { version: string }).version
    } catch {
      // The other one: src/ and dist/src/ differ by a folder.
    }
  }
  return 'unknown'
}

export function usage(program: string): string {
  return `Usage: ${program} [OPTION]...\n${describeFlags(FLANNEL_FLAGS)}\nweft's own:\n${describeFlags(WEFT_FLAGS)}\n`
}

/** Checks what the flags' types do not say. Throws WeftError USAGE. */
export function checkOptions(options: DaemonOptions): void {
  const margin = options['subnet-lease-renew-margin']
  if (margin < 1 || margin > 1439) {
    throw new WeftError('USAGE', 'Invalid subnet-lease-renew-margin option, out of acceptable range', { remedy: 'give it 1 to 1439 minutes' })
  }
  if (!(ENGINES as readonly string[]).includes(options.engine)) {
    throw new WeftError('USAGE', `unknown engine: ${options.engine}`, { remedy: `choose one of ${ENGINES.join(', ')}` })
  }
  if (options.workers < 1 || options.workers > 16) {
    throw new WeftError('USAGE', `--workers is ${options.workers}`, { remedy: 'give it 1 to 16' })
  }
}

/** Runs weftd and returns its exit code. */
export async function main(program: string, args: readonly string[], environment: NodeJS.ProcessEnv): Promise<number> {
  let parsed
  try {
    parsed = parseFlags(FLAGS, args)
  } catch (error) {
    if (error instanceof HelpWanted) {
      process.stderr.write(usage(program))
      return 0
    }
    if (!isWeftError(error, 'USAGE')) throw error
    const name = /^flag provided but not defined: -(.*)$/.exec(error.message)?.[1]
    const text = name !== undefined && FLAGS_TO_COME.has(name) ? `weft does not have flanneld's flag -${name} yet; leave it out` : describeError(error)
    process.stderr.write(`${program}: ${text}\n`)
    return EXIT_USAGE
  }
  if (parsed.options.version) {
    process.stderr.write(`${version()}\n`)
    return 0
  }
  const badVariables: string[] = []
  const options = applyEnvironment(FLAGS, parsed, 'FLANNELD', environment, (message) => badVariables.push(message))
  const log = createLog(options.v)
  for (const message of badVariables) log.error(`Failed to set flag FLANNELD from env: ${message}`)
  try {
    checkOptions(options)
  } catch (error) {
    log.error(describeError(error))
    return EXIT_FAILED
  }
  log.info(`CLI flags config: ${formatOptions(options)}`)

  const stopping = new AbortController()
  log.info('Installing signal handlers')
  const stop = (): void => {
    log.info('shutdownHandler sent cancel signal...')
    process.off('SIGINT', stop).off('SIGTERM', stop) // a second signal kills at once
    stopping.abort(new Error('stopped by a signal'))
  }
  process.on('SIGINT', stop).on('SIGTERM', stop)
  try {
    const { runDaemon } = await import('../daemon.ts')
    await runDaemon(options, log, stopping.signal)
  } catch (error) {
    if (!stopping.signal.aborted) {
      log.error(describeError(error))
      return EXIT_FAILED
    }
  }
  return 0
}

/** The options on one line, the password hidden. */
function formatOptions(options: DaemonOptions): string {
  const shown = Object.entries(options).map(([name, value]) => {
    const text = name === 'etcd-password' && value !== '' ? '<hidden>' : Array.isArray(value) ? `[${value.join(' ')}]` : String(value)
    return `${name}:${text}`
  })
  return `{${shown.join(' ')}}`
}
