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

export function sumCounters(all: readonly Readonly<Record<string, bigint>>[]): Readonly<Record<string, bigint>> {
  const sums: Record<string, bigint> = {}
  for (const counters of all)
    for (const [name, count] of Object.entries(counters)) sums[name] = (sums[name] ?? 0n) + count
  return sums
}
