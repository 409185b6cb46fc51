// bell.ts - waiting for a time or for an event, whichever comes first, and for the signal to stop.

/** A loop sleeps on a bell. A ring that comes while nobody waits is kept for the next wait. */
export interface Bell {
  ring(): void
  /**
   * Waits for a ring, for at most `ms` milliseconds (for ever when undefined). Resolves with whether it rang; rejects
   * with the signal's reason. For one waiter at a time.
   */
  wait(signal: AbortSignal, ms?: number): Promise<boolean>
}

/** The longest time that setTimeout takes (2^31 - 1 ms, 24 days). A wait that is longer ends early. */
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

/** Waits `ms` milliseconds; rejects with the signal's reason. */
export async function pause(signal: AbortSignal, ms: number): Promise<void> {
  await createBell().wait(signal, ms)
}

/** Runs `work` with a signal that aborts with `signal`, or after so many ms with what `late` makes; then rejects with that. */
export async function limited<T>(
  signal: AbortSignal,
  ms: number,
  late: () => Error,
  work: (limit: AbortSignal) => Promise<T>,
): Promise<T> {
  signal.throwIfAborted()
  // AbortSignal.timeout within AbortSignal.any is not used: Node.js 20 forgets it once it collects garbage.
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

/** Runs `work` with a promise that resolves after so many ms, so that what can be left for later is. */
export async function tellingLate<T>(ms: number, work: (late: Promise<void>) => Promise<T>): Promise<T> {
  const over = new AbortController()
  return work(pause(over.signal, ms).catch(() => {})).finally(() => over.abort())
}
