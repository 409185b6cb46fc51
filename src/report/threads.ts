// threads.ts - which thread of the data path hangs, judged by how often each has gone round its loop.
//
// Each look asks every thread for one more round, and the next look sees whether it came. Looks are counted, not time:
// a process that was stopped as a whole, or a machine that slept, must not make its threads look hung.

/** Looks without a round after which a thread counts as hung. A batch into a full queue takes 2.5 s (native/io/udp.h). */
const HUNG_LOOKS = 5

/** The state of one thread, as known. */
interface ThreadState {
  /** The rounds of its loop, at the last look. */
  readonly rounds: number
  /** Looks since it has not moved. */
  readonly silentLooks: number
  /** The time when it was first asked for the round that did not come, by the caller's clock in milliseconds. */
  readonly askedAt: number
}

export type Threads = ReadonlyMap<string, ThreadState>

/** The states after a look that found these rounds, by thread name. Threads that are no longer there are forgotten. */
export function lookAtThreads(before: Threads, rounds: Readonly<Record<string, number>>, now: number): Threads {
  return new Map(
    Object.entries(rounds).map(([name, count]) => {
      const known = before.get(name)
      const isSilent = known?.rounds === count
      return [
        name,
        { rounds: count, silentLooks: isSilent ? known.silentLooks + 1 : 0, askedAt: isSilent ? known.askedAt : now },
      ]
    }),
  )
}

export const isHung = ({ silentLooks }: ThreadState): boolean => silentLooks >= HUNG_LOOKS

/** The thread that hangs for the longest time, with the moment since which it does; undefined when all move. */
export function hungThread(threads: Threads): { readonly name: string; readonly since: number } | undefined {
  const hung = [...threads].filter(([, thread]) => isHung(thread))
  const [first] = hung.toSorted(([, a], [, b]) => a.askedAt - b.askedAt)
  return first && { name: first[0], since: first[1].askedAt }
}
