// recent.ts - what the data path counted lately: its counters of now, less those of a minute ago. Pure.
//
// A counter since the start says that something was wrong once; whether it is wrong now is judged by this.

import { dropsOf, type RecentCounts } from './status.ts'

/** The time that counts as lately; the step in which the counters are kept comes on top of it at most. */
export const RECENT_MS = 60_000

type Counters = Readonly<Record<string, number>>

export interface Recent {
  /** Keeps the counters as they are `now`, in ms by a clock that never goes back. */
  keep(counters: Counters, now: number): void
  /** What came since about a minute ago, or since the first that were kept; undefined where none were. */
  until(counters: Counters, now: number): RecentCounts | undefined
}

export function createRecent(): Recent {
  let kept: { readonly counters: Counters; readonly at: number }[] = []
  return {
    keep(counters, now) {
      // The newest of those that are old enough is the one to compare with.
      const first = kept.findLastIndex(({ at }) => now - at >= RECENT_MS)
      kept = [...kept.slice(Math.max(0, first)), { counters, at: now }]
    },
    until(counters, now) {
      const then = kept.findLast(({ at }) => now - at >= RECENT_MS) ?? kept[0]
      if (!then) return undefined
      const increases = Object.fromEntries(
        Object.entries(counters).map(([name, count]) => {
          const before = then.counters[name] ?? 0
          // One that went back began anew, with a data path that was opened since.
          return [name, count >= before ? count - before : count]
        }),
      )
      const packets = (increases['rx_packets'] ?? 0) + (increases['tx_packets'] ?? 0)
      return { seconds: Math.round(now - then.at) / 1000, packets, drops: dropsOf(increases) }
    },
  }
}
