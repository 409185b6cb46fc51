// bell.ts - lets a loop wait for an event, a time limit or the signal to stop, and runs work in sequence.

/** Wakes a waiting loop. If no loop waits when the bell rings, the next wait ends immediately. */
export interface Bell {
  ring(): void
  /**
   * Waits until the bell rings, for at most `ms` milliseconds; without `ms` the wait has no time limit. Resolves with
   * true if the bell rang. Rejects with the signal's reason. Only one caller may wait at a time.
   */
  wait(signal: AbortSignal, ms?: number): Promise<boolean>
}

/** The longest delay that setTimeout accepts, in ms (24 days). A longer wait ends after this delay. */
const LONGEST_MS = 2 ** 31 - 1

export function createBell(): Bell {
  let rung = false
  let wake: (() => void) | undefined
  return {
    ring() {
      rung = true
      wake?.()
    },
    async wait(signal, ms) {
      signal.throwIfAborted()
      if (!rung) {
        let timer: NodeJS.Timeout | undefined
        let onAbort!: () => void
        try {
          await new Promise<void>((resolve, reject) => {
            wake = resolve
            onAbort = () => reject(signal.reason as Error)
            signal.addEventListener('abort', onAbort)
            if (ms !== undefined) timer = setTimeout(resolve, Math.min(Math.max(ms, 0), LONGEST_MS))
          })
        } finally {
          wake = undefined
          clearTimeout(timer)
          signal.removeEventListener('abort', onAbort)
        }
      }
      const did = rung
      rung = false
      return did
    },
  }
}

export async function pause(signal: AbortSignal, ms: number): Promise<void> {
  await createBell().wait(signal, ms)
}

/**
 * Runs `work` with a time limit of `ms` milliseconds. `work` gets its own signal. This signal aborts after `ms` with
 * the error that `late` returns, or earlier if `signal` aborts, with the reason of `signal`. If `work` fails after its
 * signal has aborted, the returned promise rejects with the reason of that signal.
 */
export async function limited<T>(
  signal: AbortSignal,
  ms: number,
  late: () => Error,
  work: (limit: AbortSignal) => Promise<T>,
): Promise<T> {
  signal.throwIfAborted()
  // Use a timer and not AbortSignal.timeout. If only AbortSignal.any refers to the timeout signal, Node.js 20 may
  // collect the timeout signal as garbage. Then the combined signal never aborts.
  const limit = new AbortController()
  const onAbort = (): void => limit.abort(signal.reason)
  signal.addEventListener('abort', onAbort)
  const timer = setTimeout(() => limit.abort(late()), ms)
  try {
    return await work(limit.signal)
  } catch (error) {
    throw limit.signal.aborted ? limit.signal.reason : error
  } finally {
    clearTimeout(timer)
    signal.removeEventListener('abort', onAbort)
  }
}

/** How often, in ms, `afterRunning` looks at the clock, and the longest step in ms that it counts. */
const COUNT_MS = 100
const MOST_STEP_MS = 1_000

/**
 * Calls `late` after `ms` milliseconds in which this process could run. If the whole host stands still, for example
 * while its virtual machine is moved, that time counts as at most MOST_STEP_MS, because no other process could run either.
 * clearTimeout cancels the returned timer.
 */
export function afterRunning(ms: number, late: () => void): NodeJS.Timeout {
  let leftMs = ms
  let before = performance.now()
  // After a standstill of the host, Node.js calls this function once, however many intervals the standstill took.
  const timer = setInterval(() => {
    const now = performance.now()
    leftMs -= Math.min(now - before, MOST_STEP_MS)
    before = now
    if (leftMs > 0) return
    clearInterval(timer)
    late()
  }, COUNT_MS)
  return timer
}

/**
 * Calls `work` with a promise that resolves after `ms` milliseconds. With this promise `work` can notice that it takes
 * long, and postpone its remaining steps.
 */
export async function withLatePromise<T>(ms: number, work: (late: Promise<void>) => Promise<T>): Promise<T> {
  const over = new AbortController()
  return work(pause(over.signal, ms).catch(() => {})).finally(() => over.abort())
}

type Turn = <T>(work: () => Promise<T>) => Promise<T>

/**
 * Makes a function that runs asynchronous work in sequence: each work starts when all earlier work has ended or failed.
 */
export function createTurn(): Turn {
  let last: Promise<unknown> = Promise.resolve()
  return (work) => {
    const done = last.then(work)
    last = done.catch(() => {})
    return done
  }
}
