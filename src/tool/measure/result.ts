// result.ts - what samples come to: medians, ratios, losses, and what must be known to believe them. Pure.

import type { Arrived, Counts } from './conversation.ts'
import { PATHS, type Both, type PathName } from './plan.ts'

export interface TcpSample {
  readonly bitsPerSecond: number
  /** The part of a core that each end of the bench itself took, 1 for a whole one. */
  readonly busy: { readonly here: number; readonly there: number }
}
export interface UdpSample extends Arrived {
  readonly sent: number
  readonly seconds: number
}
export interface Samples {
  /** The round trip of each request; those that were not answered are left out. */
  readonly roundTripsMs: Both<readonly number[]>
  readonly tcp: Both<readonly TcpSample[]>
  readonly udp: Both<readonly UdpSample[]>
  /** Payload of a datagram. */
  readonly datagramBytes: number
}

/** Null: there is none, since nothing came through. */
export interface Compared {
  readonly outside: number | null
  readonly inside: number | null
  /** Inside to outside. */
  readonly ratio: number | null
}
interface UdpTotal {
  readonly sent: number
  readonly sentBitsPerSecond: number
  readonly lost: number
  readonly lossPercent: number
  readonly reordered: number
  /** Arrived when the listener's own socket was full, and not lost on the way. */
  readonly overflowed: number
}
export interface Result {
  /** Bits a second; the ratio is the median of the pairs' own. */
  readonly tcp: Compared & { readonly leastRatio: number | null; readonly mostRatio: number | null }
  readonly udp: Both<UdpTotal> & { readonly datagramBytes: number }
  readonly roundTripMs: Compared
  /** True when a stream was not carried at all. */
  readonly isBroken: boolean
  /** Sentences to know before the figures are believed. */
  readonly notes: readonly string[]
}

/** The middle value; undefined of none. */
export function median(values: readonly number[]): number | undefined {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  const [below, above] = [sorted[sorted.length % 2 === 1 ? middle : middle - 1], sorted[middle]]
  return below === undefined || above === undefined ? undefined : (below + above) / 2
}

/** What came back of echo requests inside: one as long as containers may send, or the longest that did. */
export interface Length {
  readonly asked: number
  /** The same where that one came back; null where no long one did. */
  readonly longest: number | null
}

/** The facts beside the samples, where they are known: what passes inside, and the MTU of each end. */
interface Beside {
  readonly length?: Length | undefined
  readonly mtu?: { readonly here: number | null; readonly there: number | null }
}

/** Whose side it is that takes less. */
function lengthNotes({ length, mtu }: Beside): string[] {
  const { here = null, there = null } = mtu ?? {}
  const differs = here !== null && there !== null && here !== there
  const mismatch = differs
    ? [`the MTU of the data path is ${here} here and ${there} there: give the external interfaces of all nodes one MTU`]
    : []
  if (!length || length.longest === length.asked) return mismatch
  const found = length.longest === null ? '' : `, of up to ${length.longest} they do`
  const whose =
    here !== null && there !== null && there < here
      ? "it is the other end's interface that takes less"
      : 'something between the hosts takes less'
  return [`inside packets of ${length.asked} bytes do not come back${found}: ${whose}`, ...mismatch]
}

/** From this part of a core on an end can hardly do more. */
const FULLY_BUSY = 0.9

export function resultOf(samples: Samples, beside: Beside = {}): Result {
  const isNarrow = beside.length !== undefined && beside.length.longest !== beside.length.asked
  const rates = forBoth((path) => samples.tcp[path].map(({ bitsPerSecond }) => bitsPerSecond))
  const ratios = rates.outside
    .map((rate, at) => (rates.inside[at] ?? 0) / rate)
    .filter((ratio) => Number.isFinite(ratio))
  const [outside, inside] = PATHS.map((path) => median(rates[path]) ?? 0) as [number, number]
  const tcp = {
    outside,
    inside,
    ratio: median(ratios) ?? null,
    leastRatio: orNull(Math.min(...ratios)),
    mostRatio: orNull(Math.max(...ratios)),
  }
  const udp = {
    ...forBoth((path) => totalOf(samples.udp[path], samples.datagramBytes)),
    datagramBytes: samples.datagramBytes,
  }
  const trips = forBoth((path) => median(samples.roundTripsMs[path]) ?? null)
  const ratio = trips.outside !== null && trips.inside !== null ? trips.inside / trips.outside : null
  const silent = PATHS.filter((path) => tcp[path] === 0)
  const deaf = PATHS.filter((path) => udp[path].sent > 0 && udp[path].lost === udp[path].sent)
  const notes = [
    ...lengthNotes(beside),
    ...silent.map(
      (path) =>
        `${path} connections open and nothing more arrives: long packets are lost on that path; run weft doctor on both hosts`,
    ),
    ...deaf.map((path) =>
      silent.includes(path)
        ? `${path} no datagram arrives either`
        : `${path} TCP arrives and UDP does not: a firewall lets TCP through and not UDP${
            beside.length && !isNarrow
              ? ''
              : `, or datagrams of ${samples.datagramBytes} bytes are too long for that path`
          }`,
    ),
    ...busyNotes(samples.tcp),
    ...PATHS.filter((path) => udp[path].overflowed > 0).map(
      (path) =>
        `${path} ${udp[path].overflowed} datagrams arrived but the other end was too slow to take them; they are not counted as lost`,
    ),
    ...PATHS.filter((path) => udp[path].reordered > 0).map(
      (path) => `${path} ${udp[path].reordered} datagrams came after a later one`,
    ),
  ]
  return { tcp, udp, roundTripMs: { ...trips, ratio }, isBroken: silent.length + deaf.length > 0 || isNarrow, notes }
}

const forBoth = <Value>(of: (path: PathName) => Value): Both<Value> => ({
  outside: of('outside'),
  inside: of('inside'),
})
const orNull = (value: number): number | null => (Number.isFinite(value) ? value : null)

function totalOf(samples: readonly UdpSample[], bytes: number): UdpTotal {
  const sum = (of: (sample: UdpSample) => number): number => samples.reduce((total, sample) => total + of(sample), 0)
  const sent = sum((sample) => sample.sent)
  // Other datagrams that reached the listener's socket while it was full are counted with ours: no more can have
  // arrived than were sent.
  const overflowed = sum((sample) => Math.min(sample.overflowed, Math.max(0, sample.sent - sample.datagrams)))
  const lost = sum((sample) => Math.max(0, sample.sent - sample.datagrams - sample.overflowed))
  const seconds = sum((sample) => sample.seconds)
  return {
    sent,
    lost,
    overflowed,
    reordered: sum(({ reordered }) => reordered),
    sentBitsPerSecond: seconds > 0 ? (sent * bytes * 8) / seconds : 0,
    lossPercent: sent > 0 ? (100 * lost) / sent : 0,
  }
}

/** Says where an end of the bench itself was at its limit, so that the path might carry more. */
function busyNotes(tcp: Both<readonly TcpSample[]>): string[] {
  return PATHS.flatMap((path) => {
    const ends = (['here', 'there'] as const).filter(
      (end) => (median(tcp[path].map(({ busy }) => busy[end])) ?? 0) >= FULLY_BUSY,
    )
    return ends.length === 0
      ? []
      : [`${path} weft bench itself took a whole core ${ends.join(' and ')}: the path may carry more`]
  })
}

/** The increase of counters; one that began anew meanwhile counts in full. */
export function increase(before: Counts, after: Counts): Counts {
  const grown = Object.entries(after).map(([name, count]): [string, number] => {
    const earlier = before[name] ?? 0
    return [name, count >= earlier ? count - earlier : count]
  })
  return Object.fromEntries(grown.filter(([, count]) => count > 0))
}
