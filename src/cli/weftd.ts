// weftd.ts - from the command line to the daemon, and from its end to an exit code.

import { version } from '../assets.ts'
import { describeError, isWeftError, messageOf } from '../errors.ts'
import { applyEnvironment, describeFlags, HelpWanted, parseFlags } from '../go-flags.ts'
import {
  checkFeatures,
  checkMargin,
  checkOptions,
  FLAGS,
  FLANNEL_FLAGS,
  refuseNotYet,
  WEFT_FLAGS,
  WITHOUT_EFFECT,
  type DaemonOptions,
} from '../options.ts'
import type { Log } from '../log.ts'
import type { Notifier } from '../status/notify.ts'
import { printable } from '../text.ts'

const EXIT_FAILED = 1
/** For a command line that cannot be read. flanneld exits with 0, which hides the mistake from a service manager. */
const EXIT_USAGE = 2
/** How long stopping may take: less than service managers and Docker wait before they kill. */
const STOP_MS = 5_000

/** What still runs when all has ended is a call that hangs. */
const LINGER_MS = 200

export function usage(program: string): string {
  return `Usage: ${program} [OPTION]...\n${describeFlags(FLANNEL_FLAGS)}\nweft's own:\n${describeFlags(WEFT_FLAGS)}\n`
}

/** Runs weftd and returns its exit code. */
export async function main(program: string, args: readonly string[], environment: NodeJS.ProcessEnv): Promise<number> {
  let options: DaemonOptions
  const badVariables: string[] = []
  try {
    const parsed = parseFlags(FLAGS, args)
    if (parsed.options.version) {
      process.stderr.write(`${version()}\n`)
      return 0
    }
    options = applyEnvironment(FLAGS, parsed, 'FLANNELD', environment, (message) => badVariables.push(message))
    refuseNotYet(options)
    checkOptions(options)
    if (options.without.length > 0) checkFeatures(options, (await import('../host/addon.ts')).addon.featureNames)
  } catch (error) {
    if (error instanceof HelpWanted) {
      process.stderr.write(usage(program))
      return 0
    }
    if (!isWeftError(error)) throw error
    process.stderr.write(`${program}: ${printable(describeError(error))}\n`)
    return error.code === 'USAGE' ? EXIT_USAGE : EXIT_FAILED
  }

  const { createLog, seldom } = await import('../log.ts')
  const { createEvents } = await import('../status/events.ts')
  const events = createEvents()
  const log = createLog(options.v, undefined, (level, message) => events.hear(level, message))
  for (const message of badVariables) log.error(`Failed to set flag FLANNELD from env: ${message}`)
  for (const name of WITHOUT_EFFECT) {
    if (options[name] !== '') log.warn(`-${name} does nothing: which lines are logged, -v alone says`)
  }
  if (options.leave) return leaveWith(options, log)
  let notifier: Notifier | undefined
  const stopping = new AbortController()
  const stopped = new Error('stopped by a signal')
  let tellSignalled!: () => void
  const signalled = new Promise<void>((resolve) => (tellSignalled = resolve))
  // What nobody caught, a promise's rejection too (Node.js, uncaughtException), ends the daemon as a loop's does. What more there
  // is while it stops is said and changes nothing: the stop has its time.
  const uncaught = new Set<unknown>()
  const calm = seldom(log)
  const fail = (error: unknown): void => {
    uncaught.add(error)
    calm.error(`Stopping for what nobody caught: ${describeError(error)}`)
    stopping.abort(error)
  }
  process.on('uncaughtException', fail)
  try {
    checkMargin(options)
    log.info(`CLI flags config: ${formatOptions(options)}`)
    const stop = (): void => {
      tellSignalled()
      process.off('SIGINT', stop).off('SIGTERM', stop) // a second signal kills at once
      log.info('shutdownHandler sent cancel signal...')
      stopping.abort(stopped)
      log.info('Waiting for all goroutines to exit') // flanneld's words, which scripts look for
    }
    let killing: NodeJS.Timeout | undefined
    const kill = (): void => {
      const reason = messageOf(stopping.signal.reason)
      log.error(`Stopping took longer than ${STOP_MS / 1000} s; the process is killed. It stops for this: ${reason}`)
      // Not process.exit: that joins libuv's threads, one of which may be what hangs (a file lock on a dead server).
      process.kill(process.pid, 'SIGKILL')
    }
    stopping.signal.addEventListener('abort', () => (killing = setTimeout(kill, STOP_MS).unref()))
    process.on('SIGINT', stop).on('SIGTERM', stop)
    log.info('Installing signal handlers') // whoever reads it may send one
    const { runDaemon } = await import('../begin.ts')
    const { takeNotifier } = await import('../status/notify.ts')
    notifier = await takeNotifier(environment, process.pid, log, async () => {
      const { addon } = await import('../host/addon.ts')
      return addon.notify
    })
    const { takeKept } = await import('../restart/kept.ts')
    const kept = takeKept(environment, process.pid)
    await runDaemon(options, log, stopping, notifier, kept, events).finally(() => clearTimeout(killing))
  } catch (error) {
    const { Superseded } = await import('../restart/predecessor.ts')
    if (error instanceof Superseded) {
      log.info(`Ending: ${error.message}`)
      error.tell()
      if (process.pid === 1 || notifier) {
        log.info('Waiting to be stopped: whoever started this process would start it again')
        const free = error.how === 'end' ? untilFree(options, log) : new Promise<never>(() => {})
        if ((await untilStopped(error.message, notifier, signalled, free)) === 'alone') {
          log.error('The weftd that had taken over has ended, and nobody forwards: this one ends, to be started again')
          return EXIT_FAILED
        }
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

/**
 * The service manager hears that the process lives, and why it has nothing to do. Resolves with `alone` when nobody forwards any more,
 * which `free` tells: then whoever started this one is to start it again.
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
  notifier?.stopping()
  return how
}

/** Resolves when no weftd forwards for this subnet file; never where that cannot be told. */
async function untilFree(options: DaemonOptions, log: Log): Promise<void> {
  const { rendezvousAt } = await import('../restart/rendezvous.ts')
  await rendezvousAt(options, (message) => log.warn(message))
    .untilFree()
    .catch(async (error: unknown) => {
      log.warn(`It will not be noticed here should the other weftd end: ${describeError(error)}`)
      await new Promise(() => {})
    })
}

/** `weftd --leave`: 0 when nothing of this node is left. */
async function leaveWith(options: DaemonOptions, log: Log): Promise<number> {
  const { leave } = await import('./leave.ts')
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
  const leave = async (): Promise<void> => (await import('../host/addon.ts')).addon.exitNow(code)
  setTimeout(() => void leave(), LINGER_MS).unref()
}

/** The options on one line. */
function formatOptions(options: DaemonOptions): string {
  return `{${Object.entries(options)
    .map(([name, value]) => `${name}:${String(value)}`)
    .join(' ')}}`
}
