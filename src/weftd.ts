// weftd.ts - from the command line to the daemon, and from its end to an exit code.

import { version } from './base/assets.ts'
import { describeError, isWeftError, messageOf } from './base/errors.ts'
import {
  applyEnvironment,
  describeFlags,
  flagHint,
  HelpWanted,
  parseFlags,
  unknownVariables,
  variableOf,
  type ParsedFlags,
} from './base/go-flags.ts'
import type { Log } from './base/log.ts'
import { printable } from './base/text.ts'
import {
  checkFeatures,
  checkMargin,
  checkOptions,
  FLAGS,
  FLANNEL_FLAGS,
  WEFT_FLAGS,
  WITHOUT_EFFECT,
  type DaemonOptions,
} from './options.ts'
import type { Events } from './report/events.ts'
import type { Notifier } from './report/notify.ts'

const EXIT_FAILED = 1
/**
 * The exit code for a command line that cannot be read. flanneld exits with 0, which hides the mistake from a service
 * manager.
 */
const EXIT_USAGE = 2
/** Stopping may take this long: less than service managers and Docker wait before they kill. */
const STOP_MS = 5_000

/** A call that still runs when all has ended hangs. */
const LINGER_MS = 200

export function usage(program: string): string {
  return `Usage: ${program} [OPTION]...\n${describeFlags(FLANNEL_FLAGS)}\nweft's own:\n${describeFlags(WEFT_FLAGS)}\n`
}

/** Runs weftd and returns its exit code. */
export async function main(program: string, args: readonly string[], environment: NodeJS.ProcessEnv): Promise<number> {
  let options: DaemonOptions
  let parsed: ParsedFlags<typeof FLAGS>
  const badVariables: string[] = []
  try {
    parsed = parseFlags(FLAGS, args)
    if (parsed.options.version) {
      process.stderr.write(`${version()}\n`)
      return 0
    }
    options = applyEnvironment(FLAGS, parsed, 'FLANNELD', environment, (message) => badVariables.push(message))
    checkOptions(options)
    if (options.without.length > 0) checkFeatures(options, (await import('./host/addon.ts')).addon.featureNames)
  } catch (error) {
    if (error instanceof HelpWanted) {
      process.stderr.write(usage(program))
      return 0
    }
    if (!isWeftError(error)) throw error
    process.stderr.write(`${program}: ${printable(describeError(error) + (await flagHint(error, FLAGS)))}\n`)
    return error.code === 'USAGE' ? EXIT_USAGE : EXIT_FAILED
  }

  const { createLog, seldom } = await import('./base/log.ts')
  const { createEvents } = await import('./report/events.ts')
  const events = createEvents()
  const log = createLog(options.v, undefined, (level, message) => events.hear(level, message))
  for (const message of badVariables) log.error(`Failed to set flag FLANNELD from env: ${message}`)
  await warnOfUnread(parsed, environment, log)
  for (const name of WITHOUT_EFFECT) {
    if (options[name] !== '') log.warn(`-${name} does nothing: -v alone decides which lines are logged`)
  }
  if (options.leave) return leaveWith(options, log)
  try {
    checkMargin(options)
  } catch (error) {
    log.error(describeError(error))
    return EXIT_FAILED
  }
  log.info(`CLI flags config: ${formatOptions(options)}`)
  const life: Life = { options, log, calm: seldom(log), events, environment, notifier: undefined, unlisten: () => {} }
  for (;;) {
    const how = await live(life)
    if (how !== 'alone') return how
    log.warn('The weftd that had taken over has ended, and nobody forwards: this one goes on')
  }
}

/** The resources that a process has for one daemon after another. */
interface Life {
  readonly options: DaemonOptions
  readonly log: Log
  /** For what may come again and again. */
  readonly calm: Log
  readonly events: Events
  readonly environment: NodeJS.ProcessEnv
  notifier: Notifier | undefined
  /** Has the daemon before hear no more signals. */
  unlisten: () => void
}

/** Runs a daemon until it ends. Returns the exit code, or `alone` where the one that had taken over from it has ended since. */
async function live(life: Life): Promise<number | 'alone'> {
  const { options, log, calm, events, environment } = life
  const stopping = new AbortController()
  const stopped = new Error('stopped by a signal')
  let tellSignalled!: () => void
  const signalled = new Promise<void>((resolve) => (tellSignalled = resolve))
  // Errors that nobody caught, rejections of promises too (Node.js, uncaughtException): the first ends the daemon as a
  // loop's error does. Later ones are logged and change nothing: the stop has its time.
  const uncaught = new Set<unknown>()
  const fail = (error: unknown): void => {
    uncaught.add(error)
    calm.error(`Stopping for an error that nobody caught: ${describeError(error)}`)
    stopping.abort(error)
  }
  process.on('uncaughtException', fail)
  try {
    const unlisten = (): void => void process.off('SIGINT', stop).off('SIGTERM', stop)
    const stop = (): void => {
      tellSignalled()
      unlisten() // a second signal kills at once
      log.info('shutdownHandler sent cancel signal...')
      stopping.abort(stopped)
      log.info('Waiting for all goroutines to exit') // flanneld's words, which scripts look for
    }
    let killing: NodeJS.Timeout | undefined
    const kill = (): void => {
      const reason = messageOf(stopping.signal.reason)
      log.error(`Stopping took longer than ${STOP_MS / 1000} s; the process is killed. It stops for this: ${reason}`)
      // process.exit is not used: it joins libuv's threads, one of which may hang (a file lock on a dead server).
      process.kill(process.pid, 'SIGKILL')
    }
    stopping.signal.addEventListener('abort', () => (killing = setTimeout(kill, STOP_MS).unref()))
    process.on('SIGINT', stop).on('SIGTERM', stop)
    life.unlisten()
    life.unlisten = unlisten
    log.info('Installing signal handlers') // whoever reads it may send one
    const { runDaemon } = await import('./begin.ts')
    const { takeNotifier } = await import('./report/notify.ts')
    life.notifier ??= await takeNotifier(environment, process.pid, log, async () => {
      const { addon } = await import('./host/addon.ts')
      return addon.notify
    })
    const { takeKept } = await import('./node/restart/kept.ts')
    const kept = takeKept(environment, process.pid)
    await runDaemon(options, log, stopping, life.notifier, kept, events).finally(() => clearTimeout(killing))
  } catch (error) {
    const { Superseded } = await import('./node/restart/predecessor.ts')
    if (error instanceof Superseded) {
      log.info(`Ending: ${error.message}`)
      error.tell()
      if (process.pid === 1 || life.notifier) {
        log.info('Waiting to be stopped: whoever started this process would start it again')
        const free = error.how === 'end' ? untilFree(options, log) : new Promise<never>(() => {})
        if ((await untilStopped(error.message, life.notifier, signalled, free)) === 'alone') return 'alone'
      }
    } else if (error !== stopped && !uncaught.has(error)) {
      log.error(describeError(error))
      return EXIT_FAILED
    }
  } finally {
    process.off('uncaughtException', fail)
  }
  if (uncaught.size > 0) return EXIT_FAILED
  log.info('Exiting cleanly...')
  return 0
}

/** Warns of what was given and is not read, as flanneld reads none of it either: it would be missed. No value is shown, which may be secret. */
async function warnOfUnread(
  { rest, last }: ParsedFlags<typeof FLAGS>,
  environment: NodeJS.ProcessEnv,
  log: Log,
): Promise<void> {
  const [first] = rest
  if (first !== undefined) {
    const lost = Object.keys(FLAGS).filter((name) => rest.some((word) => /^--?([^=]+)/.exec(word)?.[1] === name))
    const named = lost.map((name) => `--${name}`).join(', ')
    const isValue =
      /^(true|false|t|f|0|1)$/i.test(first) && last !== undefined && typeof FLAGS[last].default === 'boolean'
    const hint = isValue ? `write --${last}=${first}` : 'write flags before all other words, or leave these out'
    const where = last === undefined ? 'which is the first' : `after --${last}`
    log.warn(
      `Flags end at the first word that is none, ${where}: ${named === '' ? 'what follows' : named} ${lost.length > 1 ? 'have' : 'has'} no effect; ${hint}`,
    )
  }
  const unknown = unknownVariables(FLAGS, 'FLANNELD', environment)
  if (unknown.length === 0) return
  const { meant } = await import('./base/nearest.ts')
  // What all have at their heads tells none from another.
  const known = Object.keys(FLAGS).map((name) => variableOf('', name))
  for (const name of unknown)
    log.warn(`No flag has the variable ${name}${meant(name.slice('FLANNELD'.length), known, 'FLANNELD')}`)
}

/**
 * The service manager hears that the process lives, and why it has nothing to do. Resolves with `alone` when nobody forwards any more,
 * which `free` tells.
 */
async function untilStopped(
  why: string,
  notifier: Notifier | undefined,
  signalled: Promise<void>,
  free: Promise<void>,
): Promise<'stopped' | 'alone'> {
  notifier?.tell({ ready: true, status: `${why}; waiting to be stopped` })
  // Signals alone do not keep a process.
  const alive = setInterval(() => notifier?.alive(), notifier?.aliveMs ?? 86_400_000)
  const how = await Promise.race([signalled.then(() => 'stopped' as const), free.then(() => 'alone' as const)])
  clearInterval(alive)
  if (how === 'stopped') notifier?.stopping()
  return how
}

/** Resolves when no weftd forwards for this subnet file; never where that cannot be told. */
async function untilFree(options: DaemonOptions, log: Log): Promise<void> {
  const { rendezvousAt } = await import('./node/restart/rendezvous.ts')
  await rendezvousAt(options, (message) => log.warn(message))
    .untilFree()
    .catch(async (error: unknown) => {
      log.warn(`Cannot watch whether the other weftd ends: ${describeError(error)}`)
      await new Promise(() => {})
    })
}

/** `weftd --leave`: 0 when nothing of this node is left. */
async function leaveWith(options: DaemonOptions, log: Log): Promise<number> {
  const { leave } = await import('./tool/cleanup/leave.ts')
  try {
    return (await leave(options, log)) ? 0 : EXIT_FAILED
  } catch (error) {
    log.error(describeError(error))
    return EXIT_FAILED
  }
}

/** Ends the process with this code: by itself, or over a call to a file server that is gone, which nothing else can end. */
export function end(code: number): void {
  process.exitCode = code
  const leave = async (): Promise<void> => (await import('./host/addon.ts')).addon.exitNow(code)
  setTimeout(() => void leave(), LINGER_MS).unref()
}

/** The options on one line. */
function formatOptions(options: DaemonOptions): string {
  return `{${Object.entries(options)
    .map(([name, value]) => `${name}:${String(value)}`)
    .join(' ')}}`
}
