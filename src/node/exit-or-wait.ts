// exit-or-wait.ts - decides whether weftd exits after a failure or waits until the failure is over, and waits for facts
// that a node needs.
//
// The start and the loops use the same rule. An operator's mistake ends the process, as it ends flanneld, but only
// while weftd forwards no packets. While weftd forwards packets, it logs the mistake and tries again, because the
// packets would stop if weftd ended.

import { describeError, isWeftError, messageOf, type ErrorCode, type WeftError } from '../base/errors.ts'
import { seldom, type Log } from '../base/log.ts'
import { pause } from '../host/bell.ts'
import { hasTimedOut } from '../host/command.ts'
import { canForward, type NewNode } from './node.ts'

/** How long weftd waits for a condition, in ms, before it logs the name of the condition. */
const LATE_MS = 5_000
const RETRY_MS = 1_000
/** The longest pause, in ms, before another try after a failure that only an operator can repair. */
const RETRY_MAX_MS = 30_000
const PASSING: readonly ErrorCode[] = ['STORE_UNAVAILABLE']

/**
 * Decides whether a failure ends the process (`exit`), or whether weftd tries again later (`wait`). A failure is
 * temporary if its code is in `passing`, or if a program did not answer in time. An error that is not a WeftError is a
 * defect of weft.
 */
export function exitOrWait(error: unknown, isForwarding: boolean, passing = PASSING): 'exit' | 'wait' {
  if (!isWeftError(error)) return 'exit'
  return isForwarding || passing.includes(error.code) || hasTimedOut(error) ? 'wait' : 'exit'
}

/**
 * Returns if a running node must try again after the failure. Throws `error` if the failure must end the process. After
 * a stop, throws the signal's reason.
 */
export function throwUnlessWaiting(error: unknown, signal: AbortSignal): asserts error is WeftError {
  signal.throwIfAborted()
  if (exitOrWait(error, true) === 'exit') throw error
}

export interface Waiter {
  readonly log: Log
  readonly signal: AbortSignal
  /**
   * Returns true if packets would stop if this process ended now. If `isForwarding` is left out, weftd forwards no
   * packets.
   */
  readonly isForwarding?: () => boolean
  /** Publishes the name of the fact for which weftd waits, in the status and to the service manager. */
  readonly publish?: (waitsFor: string) => void
}

interface Task<T> {
  /** The beginning of the log line about a failure. */
  readonly failure: string
  readonly find: () => Promise<T>
  /** The codes of the errors that count as temporary. */
  readonly passing?: readonly ErrorCode[]
  readonly onFailure?: (error: WeftError) => void
}

/** Repeats a task until the task succeeds. Logs each failure. Rejects if the failure ends the process. */
export async function retry<T>(
  { failure, find, passing = PASSING, onFailure = () => {} }: Task<T>,
  { log, signal, isForwarding = () => false }: Waiter,
): Promise<T> {
  const calm = seldom(log)
  for (let nextMs = RETRY_MS / 2; ;) {
    try {
      return await find()
    } catch (error) {
      signal.throwIfAborted()
      if (exitOrWait(error, isForwarding(), passing) === 'exit') throw error
      calm.error(failure + describeError(error))
      onFailure(error as WeftError)
      nextMs = passing.includes((error as WeftError).code) ? RETRY_MS : Math.min(2 * nextMs, RETRY_MAX_MS)
    }
    // Make the pause random, so that nodes do not all query a store at the same moment when it returns.
    await pause(signal, nextMs * (0.5 + Math.random() / 2))
  }
}

/**
 * Repeats a task until the task succeeds. `name` says which fact the task finds. Until then the status shows that the
 * fact is missing, and why. Rejects under the same conditions as `retry`.
 */
export async function waitFor<T>(name: string, task: Omit<Task<T>, 'onFailure'>, waiter: Waiter): Promise<T> {
  const { log, publish = () => {} } = waiter
  const late = setTimeout(() => log.info(`Waiting for ${name}`), LATE_MS)
  publish(`waiting for ${name}`)
  const onFailure = (error: WeftError): void => {
    clearTimeout(late) // the failure is logged
    // The status needs no reason for the wait if the store has no configuration: `name` (`the network configuration in
    // ...`) says that already.
    if (error.code !== 'CONFIG_MISSING') publish(`waiting for ${name}: ${messageOf(error)}`)
  }
  return retry({ ...task, onFailure }, waiter).finally(() => clearTimeout(late))
}

/**
 * Runs a step of weftd's start. If the step fails while the node forwards with the last known state, or still tries to
 * do this, runs the step again. Otherwise rejects.
 */
export function whileForwarding<T>(
  node: NewNode,
  find: () => Promise<T>,
  say = (_why: string): void => {},
): Promise<T> {
  const failure = 'This weftd forwards with the last known state, and tries again: '
  const onFailure = ({ message }: Error): void => say(message)
  const { log, signal } = node
  return retry({ failure, find, passing: [], onFailure }, { log, signal, isForwarding: () => canForward(node) })
}
