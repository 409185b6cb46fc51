// recent.ts - the increase of the data path's counters over the last minute. Pure.
//
// A counter since the start shows that there was a problem at some time; the recent increase shows whether it persists.

import { dropsOf, type RecentCounts } from './status.ts'

/** The minimum period of the increase. It can be longer by the interval of `keep`. */
export const RECENT_MS = 60_000

type Counters = Readonly<Record<string, number>>

export interface Recent {
  /** Records the counters. `now` is in ms of a monotonic clock. */
  keep(counters: Counters, now: number): void
  /** Returns the increase over about the last minute, or since the first record. Returns undefined without a record. */
  until(counters: Counters, now: number): RecentCounts | undefined
}

export function createRecent(): Recent {
  let kept: { readonly counters: Counters; readonly at: number }[] = []
  return {
    keep(counters, now) {
      // Keep the newest record that is old enough, and drop the older ones.
      const first = kept.findLastIndex(({ at }) => now - at >= RECENT_MS)
      kept = [...kept.slice(Math.max(0, first)), { counters, at: now }]
    },
    until(counters, now) {
      const then = kept.findLast(({ at }) => now - at >= RECENT_MS) ?? kept[0]
      if (!then) return undefined
      const increases = Object.fromEntries(
        Object.entries(counters).map(([name, count]) => {
          const before = then.counters[name] ?? 0
          // A counter that decreased was reset, because the data path was opened again.
          return [name, count >= before ? count - before : count]
        }),
      )
      const packets = (increases['rx_packets'] ?? 0) + (increases['tx_packets'] ?? 0)
      return { seconds: Math.round(now - then.at) / 1000, packets, drops: dropsOf(increases) }
    },
  }
}
