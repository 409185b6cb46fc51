// weftd.ts - parses weftd's command line, runs the daemon, and turns the daemon's result into an exit code.

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
import { afterRunning } from './host/bell.ts'
import type { Superseded as SupersededType } from './node/restart/lender.ts'
import {
  checkFeatures,
  checkMargin,
  checkOptions,
  cutOptions,
  FLAGS,
  FLANNEL_FLAGS,
  WEFT_FLAGS,
  WITHOUT_EFFECT,
  type CutOptions,
  type DaemonOptions,
  type NodeOptions,
} from './options.ts'
import type { Events } from './report/events.ts'
import type { Notifier } from './report/notify.ts'

const EXIT_FAILED = 1
/**
 * The exit code for a command line that cannot be parsed. flanneld exits with 0 in this case, which hides the mistake
 * from a service manager.
 */
const EXIT_USAGE = 2
/**
 * How long in ms weftd may take to stop. This time is shorter than the time after which Docker (10 s), weft's systemd
 * unit (10 s) or Kubernetes (30 s) kills a stopping process. It is longer than the 7 s for which the kernel held its
 * lock of all network devices (RTNL) during the deletion of a bridge, because weftd cannot delete its devices and
 * routes during that time.
 */
export const STOP_MS = 9_000
/**
 * How long in ms weftd may take to leave the network for `weftd --leave`. weftd first removes its route from a cloud or
 * a switch, and then deletes its lease. This time equals LEAVE_MS (node/restart/protocol.ts), for which `weftd --leave`
 * waits.
 */
const LEAVING_MS = 15_000

/**
 * How long in ms weftd waits for Node.js to end by itself. If Node.js takes longer, a system call hangs, and weftd
 * kills the process.
 */
const LINGER_MS = 200

export function usage(program: string): string {
  return `Usage: ${program} [OPTION]...\n${describeFlags(FLANNEL_FLAGS)}\nweft's own:\n${describeFlags(WEFT_FLAGS)}\n`
}

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
  const log = createLog(options.v, undefined, (level, message) => events.add(level, message))
  for (const message of badVariables) log.error(`Failed to set flag FLANNELD from env: ${message}`)
  await warnOfUnread(parsed, environment, log)
  for (const name of WITHOUT_EFFECT) {
    if (options[name] !== '') log.warn(`-${name} does nothing: -v alone decides which lines are logged`)
  }
  const cut = cutOptions(options)
  if (options.leave) return leaveWith(cut, log)
  try {
    checkMargin(options)
  } catch (error) {
    log.error(describeError(error))
    return EXIT_FAILED
  }
  log.info(`CLI flags config: ${formatOptions(options)}`)
  const context: Context = {
    options: cut,
    log,
    calm: seldom(log),
    events,
    environment,
    notifier: undefined,
    unlisten: () => {},
  }
  for (;;) {
    const how = await runOnce(context)
    if (how !== 'alone') return how
    log.warn('The weftd that had taken over has ended, and nobody forwards: this one goes on')
  }
}

/**
 * The state that consecutive runs of the daemon in one process share. The process runs its daemon again if the process
 * that took over from it (its successor) has ended.
 */
interface Context {
  readonly options: CutOptions
  readonly log: Log
  /** The log that drops lines which repeat an earlier line. */
  readonly calm: Log
  readonly events: Events
  readonly environment: NodeJS.ProcessEnv
  notifier: Notifier | undefined
  /** Removes the signal handlers that the previous run of the daemon installed. */
  unlisten: () => void
}

/**
 * Runs the daemon until it ends. Returns the exit code, or `alone` if a successor took over and has ended since, so
 * that this process must run the daemon again.
 */
async function runOnce(context: Context): Promise<number | 'alone'> {
  const { options, log, calm, events, environment } = context
  const stopping = new AbortController()
  const stopped = new Error('stopped by a signal')
  let tellSignalled!: () => void
  const signalled = new Promise<void>((resolve) => (tellSignalled = resolve))
  // The uncaught errors so far. Node.js reports unhandled rejections as uncaught errors too. The first uncaught error
  // stops the daemon, as an error of a loop does. Later uncaught errors are only logged, so that the stop can complete.
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
      unlisten() // without handlers, a second signal kills the process immediately
      log.info('shutdownHandler sent cancel signal...')
      stopping.abort(stopped)
      log.info('Waiting for all goroutines to exit') // flanneld's line, which scripts look for
    }
    let killing: NodeJS.Timeout | undefined
    const kill = (ms: number): void => {
      const reason = messageOf(stopping.signal.reason)
      log.error(`Stopping took longer than ${ms / 1000} s; the process is killed. It stops for this: ${reason}`)
      // Kill the process, because process.exit would wait for libuv's threads. A thread may hang in a system call, such
      // as a file lock on a dead server.
      process.kill(process.pid, 'SIGKILL')
    }
    stopping.signal.addEventListener('abort', () => {
      const ms = stopLimitOf(stopping.signal.reason)
      killing = afterRunning(ms, () => kill(ms)).unref()
    })
    process.on('SIGINT', stop).on('SIGTERM', stop)
    context.unlisten()
    context.unlisten = unlisten
    log.info('Installing signal handlers') // only after the handlers exist: a reader of this line may send a signal
    const { runDaemon } = await import('./begin.ts')
    const { takeNotifier } = await import('./report/notify.ts')
    context.notifier ??= await takeNotifier(environment, process.pid, log, async () => {
      const { addon } = await import('./host/addon.ts')
      return addon.notify
    })
    const { takeKept } = await import('./node/restart/earlier-run.ts')
    const kept = takeKept(environment, process.pid)
    await runDaemon(options, log, stopping, context.notifier, kept, events).finally(() => clearTimeout(killing))
  } catch (error) {
    const { Superseded } = await import('./node/restart/lender.ts')
    if (error instanceof Superseded) {
      log.info(`Ending: ${error.message}`)
      error.confirm()
      if (process.pid === 1 || context.notifier) {
        log.info('Waiting to be stopped: whoever started this process would start it again')
        const free = error.how === 'end' ? untilFree(options.node, log) : new Promise<never>(() => {})
        if ((await untilStopped(error.message, context.notifier, signalled, free)) === 'alone') return 'alone'
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

/** Returns how long in ms weftd may take to stop for `reason`. */
const stopLimitOf = (reason: unknown): number =>
  (reason as Partial<SupersededType> | null)?.how === 'leave' ? LEAVING_MS : STOP_MS

/**
 * Logs a warning about flags and variables that were given but that weftd does not read; flanneld ignores these
 * silently. Does not log their values, which may be secret.
 */
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
    const word = isValue ? `"${first}"` : last === undefined ? 'The first word' : `The word after --${last}`
    log.warn(
      `${word} is not a flag, so ${named === '' ? 'what follows' : named} ${lost.length > 1 ? 'have' : 'has'} no effect; ${hint}`,
    )
  }
  const unknown = unknownVariables(FLAGS, 'FLANNELD', environment)
  if (unknown.length === 0) return
  const { meant } = await import('./base/nearest.ts')
  // Compare the names of variables without their common prefix, which would make every name look similar to every
  // other.
  const known = Object.keys(FLAGS).map((name) => variableOf('', name))
  for (const name of unknown)
    log.warn(`No flag has the variable ${name}${meant(name.slice('FLANNELD'.length), known, 'FLANNELD')}`)
}

/**
 * Waits for a signal that stops weftd. Meanwhile reports to the service manager that the process is alive, and why it
 * is idle. Resolves with `alone` if `free` resolves before a signal arrives, because then no weftd process forwards
 * packets any more.
 */
async function untilStopped(
  why: string,
  notifier: Notifier | undefined,
  signalled: Promise<void>,
  free: Promise<void>,
): Promise<'stopped' | 'alone'> {
  notifier?.report({ ready: true, status: `${why}; waiting to be stopped` })
  notifier?.aliveMeanwhile() // continues while weftd starts again, because the start may wait for the store
  // Run a timer, because signal handlers alone do not keep Node.js running.
  const running = setInterval(() => {}, 86_400_000)
  const how = await Promise.race([signalled.then(() => 'stopped' as const), free.then(() => 'alone' as const)])
  clearInterval(running)
  if (how === 'stopped') notifier?.stopping()
  return how
}

/**
 * Resolves when no weftd forwards packets for this subnet file any more. Never resolves if weftd cannot determine that.
 */
async function untilFree(options: NodeOptions, log: Log): Promise<void> {
  const { rendezvousAt } = await import('./node/restart/rendezvous.ts')
  await rendezvousAt(options, (message) => log.warn(message))
    .untilFree()
    .catch(async (error: unknown) => {
      log.warn(`Cannot watch whether the other weftd ends: ${describeError(error)}`)
      await new Promise(() => {})
    })
}

/** Runs `weftd --leave`. Returns the exit code: 0 if weftd removed everything that belongs to this node. */
async function leaveWith(options: CutOptions, log: Log): Promise<number> {
  const { leave } = await import('./tool/cleanup/leave.ts')
  try {
    return (await leave(options, log)) ? 0 : EXIT_FAILED
  } catch (error) {
    log.error(describeError(error))
    return EXIT_FAILED
  }
}

/**
 * Ends the process with the exit code `code`, even if a system call to a dead file server still blocks one of its
 * threads.
 */
export function end(code: number): void {
  process.exitCode = code
  const leave = async (): Promise<void> => (await import('./host/addon.ts')).addon.exitNow(code)
  setTimeout(() => void leave(), LINGER_MS).unref()
}

/** Formats all options on one line, in the form in which flanneld logs them. */
function formatOptions(options: DaemonOptions): string {
  return `{${Object.entries(options)
    .map(([name, value]) => `${name}:${String(value)}`)
    .join(' ')}}`
}
