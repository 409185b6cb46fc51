// threads.ts - detects threads of the data path that hang. Each thread counts the iterations of its loop (rounds).
//
// Each check requests one more round from every thread, and the next check verifies that the round happened. The limit
// is a number of checks, not a time. Otherwise all threads would seem to hang after the process was stopped or the
// machine was suspended.

/**
 * A thread counts as hung after HUNG_LOOKS consecutive checks that found no new iteration of its loop. The number must
 * be large enough for a thread that sends a batch to a full queue: one iteration can then take 2.5 s (native/io/udp.h).
 */
const HUNG_LOOKS = 5

interface ThreadState {
  /** The number of iterations that the thread's loop had completed at the last check. */
  readonly rounds: number
  /** The number of consecutive checks that found no new iteration of the thread's loop. */
  readonly silentLooks: number
  /** When weftd requested the oldest iteration that the loop has not made yet, in ms of the caller's clock. */
  readonly requestedAt: number
}

export type Threads = ReadonlyMap<string, ThreadState>

/**
 * Returns the new states by thread name, after a check that found `rounds`, the number of loop iterations of each
 * thread. A thread that is not in `rounds` has ended and is removed.
 */
export function lookAtThreads(before: Threads, rounds: Readonly<Record<string, number>>, now: number): Threads {
  return new Map(
    Object.entries(rounds).map(([name, count]) => {
      const known = before.get(name)
      const isSilent = known?.rounds === count
      return [
        name,
        {
          rounds: count,
          silentLooks: isSilent ? known.silentLooks + 1 : 0,
          requestedAt: isSilent ? known.requestedAt : now,
        },
      ]
    }),
  )
}

export const isHung = ({ silentLooks }: ThreadState): boolean => silentLooks >= HUNG_LOOKS

/**
 * Returns the name of the thread that has hung longest, and since when it hangs, in ms of the caller's clock. Returns
 * undefined if no thread hangs.
 */
export function hungThread(threads: Threads): { readonly name: string; readonly since: number } | undefined {
  const hung = [...threads].filter(([, thread]) => isHung(thread))
  const [first] = hung.toSorted(([, a], [, b]) => a.requestedAt - b.requestedAt)
  return first && { name: first[0], since: first[1].requestedAt }
}
