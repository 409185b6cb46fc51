// threads.ts - detects threads of the data path that hang, from the number of rounds of each thread's loop.
//
// Each check requests one more round from every thread, and the next check verifies that it happened. Checks are counted instead of time,
// so that threads do not seem to hang after the whole process was stopped or the machine was suspended.

/** The number of checks without a round after which a thread counts as hung. A batch into a full queue takes 2.5 s (native/io/udp.h). */
const HUNG_LOOKS = 5

interface ThreadState {
  /** The number of rounds of the thread's loop, as of the last check. */
  readonly rounds: number
  /** The number of consecutive checks without a new round. */
  readonly silentLooks: number
  /** The time of the first request for the missing round, in ms of the caller's clock. */
  readonly requestedAt: number
}

export type Threads = ReadonlyMap<string, ThreadState>

/** Returns the states, by thread name, after a check that found these rounds. Threads that no longer exist are removed. */
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

/** Returns the thread that has hung longest and since when, in ms of the caller's clock. Returns undefined if no thread hangs. */
export function hungThread(threads: Threads): { readonly name: string; readonly since: number } | undefined {
  const hung = [...threads].filter(([, thread]) => isHung(thread))
  const [first] = hung.toSorted(([, a], [, b]) => a.requestedAt - b.requestedAt)
  return first && { name: first[0], since: first[1].requestedAt }
}
