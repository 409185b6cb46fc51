// recent.ts - computes how much the data path's counters grew over the last minute. Pure.
//
// A count since the start shows that a problem occurred at some time; the growth over the last minute shows whether it
// persists.

import { dropsOf, type RecentCounts } from './status.ts'

/**
 * The minimum time over which weftd computes the growth, in ms. The actual time can be longer by the interval between
 * calls of `keep`.
 */
export const RECENT_MS = 60_000

type Counters = Readonly<Record<string, number>>

export interface Recent {
  /** Records the counters as they are now. `now` is the time in ms of a monotonic clock. */
  keep(counters: Counters, now: number): void
  /**
   * Returns how much the counters grew over about the last minute, or since the first record if that is less than a
   * minute old. Returns undefined if `keep` was never called.
   */
  until(counters: Counters, now: number): RecentCounts | undefined
}

export function createRecent(): Recent {
  let kept: { readonly counters: Counters; readonly at: number }[] = []
  return {
    keep(counters, now) {
      // Keep the newest record that is at least a minute old, and delete the records before it.
      const first = kept.findLastIndex(({ at }) => now - at >= RECENT_MS)
      kept = [...kept.slice(Math.max(0, first)), { counters, at: now }]
    },
    until(counters, now) {
      const then = kept.findLast(({ at }) => now - at >= RECENT_MS) ?? kept[0]
      if (!then) return undefined
      const increases = Object.fromEntries(
        Object.entries(counters).map(([name, count]) => {
          const before = then.counters[name] ?? 0
          // If a counter decreased, the data path was opened again and the counter restarted at 0. So the counter's new
          // value is its growth.
          return [name, count >= before ? count - before : count]
        }),
      )
      const packets = (increases['rx_packets'] ?? 0) + (increases['tx_packets'] ?? 0)
      return { seconds: Math.round(now - then.at) / 1000, packets, drops: dropsOf(increases) }
    },
  }
}
