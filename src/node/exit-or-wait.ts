// exit-or-wait.ts - decides whether a failure ends the process or is waited out, and waits for facts that a node needs.
//
// The start and the loops use the same rule. An operator's mistake ends the process, as it ends flanneld, but only while nothing forwards.
// While something forwards, weftd logs the mistake and tries again, because packets would stop if it ended.

import { describeError, isWeftError, messageOf, type ErrorCode, type WeftError } from '../base/errors.ts'
import { seldom, type Log } from '../base/log.ts'
import { pause } from '../host/bell.ts'
import { hasTimedOut } from '../host/command.ts'
import { canForward, type NewNode } from './node.ts'

/** How long weftd waits for a condition, in ms, before it logs the name of the condition. */
const LATE_MS = 5_000
const RETRY_MS = 1_000
/** The longest pause before another try after a failure that only an operator can repair. */
const RETRY_MAX_MS = 30_000
const PASSING: readonly ErrorCode[] = ['STORE_UNAVAILABLE']

/**
 * Decides what a failure means. Failures with a code in `passing` end by themselves, and so does a program that did not answer in time. An
 * error that is not a WeftError is a defect.
 */
export function exitOrWait(error: unknown, isForwarding: boolean, passing = PASSING): 'exit' | 'wait' {
  if (!isWeftError(error)) return 'exit'
  return isForwarding || passing.includes(error.code) || hasTimedOut(error) ? 'wait' : 'exit'
}

/** Returns if a running node waits out the failure. Throws the failure if it ends the process, and the signal's reason after a stop. */
export function throwUnlessWaiting(error: unknown, signal: AbortSignal): asserts error is WeftError {
  signal.throwIfAborted()
  if (exitOrWait(error, true) === 'exit') throw error
}

export interface Waiter {
  readonly log: Log
  readonly signal: AbortSignal
  /** True if packets would stop when this process ended. If left out, nothing forwards. */
  readonly isForwarding?: () => boolean
  /** Publishes the missing fact in the status and to the service manager. */
  readonly publish?: (waitsFor: string) => void
}

/** Work that may fail. */
interface Task<T> {
  /** The beginning of the log line about a failure. */
  readonly failure: string
  readonly find: () => Promise<T>
  /** The codes of failures that end by themselves. */
  readonly passing?: readonly ErrorCode[]
  readonly onFailure?: (error: WeftError) => void
}

/** Repeats a task until it succeeds. Logs each failure. Rejects if the failure ends the process. */
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
    // A random pause keeps nodes from querying a store that is back at the same time.
    await pause(signal, nextMs * (0.5 + Math.random() / 2))
  }
}

/** Repeats a task until it finds the fact of this name. Publishes that the fact is missing, and why. Rejects as `retry` does. */
export async function waitFor<T>(name: string, task: Omit<Task<T>, 'onFailure'>, waiter: Waiter): Promise<T> {
  const { log, publish = () => {} } = waiter
  const late = setTimeout(() => log.info(`Waiting for ${name}`), LATE_MS)
  publish(`waiting for ${name}`)
  const onFailure = (error: WeftError): void => {
    clearTimeout(late) // the failure is logged
    // The name of the fact says as much as the reason that there is no configuration.
    if (error.code !== 'CONFIG_MISSING') publish(`waiting for ${name}: ${messageOf(error)}`)
  }
  return retry({ ...task, onFailure }, waiter).finally(() => clearTimeout(late))
}

/** Runs a part of the start. After a failure tries again if the node forwards with the last known state, or opens that data path again. */
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
