// sums.ts - combines the peers, the traffic and the counters that several data paths, or several parts of one data
// path, report.

import type { PathPeer, PathTraffic } from './contract.ts'

/**
 * Merges the lists of peers of several data paths, by lease key. Each data path lists a peer only with the families
 * that this data path carries.
 */
export function mergePeers(lists: readonly (readonly PathPeer[])[]): readonly PathPeer[] {
  const [first = [], ...others] = lists
  if (others.length === 0) return first
  const byKey = new Map<string, PathPeer>()
  for (const peer of lists.flat()) byKey.set(peer.key, { ...byKey.get(peer.key), ...peer })
  return [...byKey.values()]
}

/**
 * Adds up the traffic that several data paths counted for the same peer, by lease key. The `lastReceivedAt` of the sum
 * is the latest one that any of the data paths reports.
 */
export function sumTraffic(counted: readonly (readonly [string, PathTraffic])[]): ReadonlyMap<string, PathTraffic> {
  const sums = new Map<string, PathTraffic>()
  for (const [key, one] of counted) {
    const other = sums.get(key)
    sums.set(key, other ? sumOfTwo(one, other) : one)
  }
  return sums
}

function sumOfTwo(one: PathTraffic, other: PathTraffic): PathTraffic {
  return {
    txPackets: plus(one.txPackets, other.txPackets),
    txBytes: plus(one.txBytes, other.txBytes),
    rxPackets: plus(one.rxPackets, other.rxPackets),
    rxBytes: plus(one.rxBytes, other.rxBytes),
    lastReceivedAt: latest(one.lastReceivedAt, other.lastReceivedAt),
    ...(one.sessions || other.sessions ? { sessions: { ...other.sessions, ...one.sessions } } : {}),
  }
}

const plus = (a: number | undefined, b: number | undefined): number | undefined =>
  a === undefined ? b : b === undefined ? a : a + b

const latest = (a: number | undefined, b: number | undefined): number | undefined =>
  a === undefined || b === undefined ? (a ?? b) : Math.max(a, b)

const COUNTS = ['txPackets', 'txBytes', 'rxPackets', 'rxBytes'] as const
type Counts = { readonly [Name in (typeof COUNTS)[number]]?: number | undefined }

const sumOfCounts = (one: Counts, other: Counts): Counts =>
  Object.fromEntries(COUNTS.map((name) => [name, plus(one[name], other[name])]))

/**
 * The traffic counts of one of several data paths for each peer, which do not decrease if the data path is opened
 * again, although the new data path counts from 0. If the sum over all data paths decreased, Prometheus would take the whole
 * remaining sum for new traffic, because it expects a counter that decreases to restart at 0.
 */
export class SteadyTraffic {
  /**
   * By lease key, the traffic that the data path reported last, the number of that report, and the counts of the earlier
   * data paths in its place.
   */
  readonly #known = new Map<string, { readonly last: PathTraffic; readonly at: number; readonly before: Counts }>()

  /**
   * Records the traffic that the data path reports. If `isComplete` is true, `now` has all peers. `at` numbers the
   * reports in the order of their requests: a report may arrive after a newer one, and its lower counts do not show a reset.
   */
  take(now: ReadonlyMap<string, PathTraffic>, isComplete: boolean, at: number): void {
    if (isComplete) for (const [key, known] of this.#known) if (!now.has(key) && known.at < at) this.#known.delete(key)
    for (const [key, last] of now) {
      const known = this.#known.get(key)
      if (known && known.at > at) continue
      const isReset = known && COUNTS.some((name) => (last[name] ?? 0) < (known.last[name] ?? 0))
      const before = isReset ? sumOfCounts(known.before, known.last) : (known?.before ?? {})
      this.#known.set(key, { last, at, before })
    }
  }

  /**
   * Lists the traffic of the peers, by lease key; only of the peers `keys` if they are given. Leaves out the sessions
   * if the data path does not report them now.
   */
  list(keys: ReadonlySet<string> | undefined, isReported: boolean): readonly (readonly [string, PathTraffic])[] {
    // Look up only the wanted peers, because the caller asks for few of thousands of peers each second.
    return [...(keys ?? this.#known.keys())].flatMap((key) => {
      const known = this.#known.get(key)
      if (!known) return []
      const { last, before } = known
      const { sessions, ...counted } = last
      const traffic = { ...counted, ...sumOfCounts(counted, before) }
      return [[key, { ...traffic, ...(sessions && isReported ? { sessions } : {}) }] as const]
    })
  }
}

export function sumCounters(all: readonly Readonly<Record<string, bigint>>[]): Readonly<Record<string, bigint>> {
  const sums: Record<string, bigint> = {}
  for (const counters of all)
    for (const [name, count] of Object.entries(counters)) sums[name] = (sums[name] ?? 0n) + count
  return sums
}
