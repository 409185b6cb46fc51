// bell.ts - waits for a time or an event, whichever comes first, or for the signal to stop.

/** Wakes a loop that waits. A ring while no loop waits is kept for the next wait. */
export interface Bell {
  ring(): void
  /**
   * Waits for a ring, for at most `ms` milliseconds, or without a limit. Resolves with true if it rang. Rejects with the signal's reason.
   * Only one caller may wait at a time.
   */
  wait(signal: AbortSignal, ms?: number): Promise<boolean>
}

/** The longest delay of setTimeout (2^31 - 1 ms, 24 days). A longer wait ends early. */
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

/** Runs `work` with a signal that aborts when `signal` does, or after `ms` milliseconds with the error of `late`. Rejects with the reason. */
export async function limited<T>(
  signal: AbortSignal,
  ms: number,
  late: () => Error,
  work: (limit: AbortSignal) => Promise<T>,
): Promise<T> {
  signal.throwIfAborted()
  // Node.js 20 may collect an AbortSignal.timeout inside AbortSignal.any as garbage, so a timer aborts the signal.
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

/** Runs `work` with a promise that resolves after `ms` milliseconds, so that it can postpone its remaining steps. */
export async function withLatePromise<T>(ms: number, work: (late: Promise<void>) => Promise<T>): Promise<T> {
  const over = new AbortController()
  return work(pause(over.signal, ms).catch(() => {})).finally(() => over.abort())
}
