// result.ts - computes medians, ratios and losses from the samples, and notes on how far the figures can be trusted. Pure.

import type { Arrived, Counts } from './conversation.ts'
import { PATHS, type Both, type PathName } from './plan.ts'

export interface TcpSample {
  readonly bitsPerSecond: number
  /** The fraction of a core that the bench itself used on each host. */
  readonly busy: { readonly here: number; readonly there: number }
}
export interface UdpSample extends Arrived {
  readonly sent: number
  readonly seconds: number
}
export interface Samples {
  readonly roundTripsMs: Both<readonly number[]>
  readonly tcp: Both<readonly TcpSample[]>
  readonly udp: Both<readonly UdpSample[]>
  readonly datagramBytes: number
}

/** A figure for both paths; null if no data arrived. */
export interface Compared {
  readonly outside: number | null
  readonly inside: number | null
  /** The inside figure divided by the outside figure. */
  readonly ratio: number | null
}
interface UdpTotal {
  readonly sent: number
  readonly sentBitsPerSecond: number
  readonly lost: number
  readonly lossPercent: number
  readonly reordered: number
  /** The number of datagrams that arrived while the listener's socket buffer was full. They are not counted as lost. */
  readonly overflowed: number
}
export interface Result {
  /** The rates in bit/s. The ratio is the median of the ratios of the pairs. */
  readonly tcp: Compared & { readonly leastRatio: number | null; readonly mostRatio: number | null }
  readonly udp: Both<UdpTotal> & { readonly datagramBytes: number }
  readonly roundTripMs: Compared
  /** True if a path did not carry TCP, UDP or long packets. */
  readonly isBroken: boolean
  /** Sentences about faults and about limits of the figures. */
  readonly notes: readonly string[]
}

export function median(values: readonly number[]): number | undefined {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  const [below, above] = [sorted[sorted.length % 2 === 1 ? middle : middle - 1], sorted[middle]]
  return below === undefined || above === undefined ? undefined : (below + above) / 2
}

export interface Length {
  /** The length of the longest packet that containers may send. */
  readonly asked: number
  /** The longest packet that was answered; null if only short ones were. */
  readonly longest: number | null
}

/** Further facts, if they are known: the longest packet that passes inside, and the MTU of each host. */
interface Beside {
  readonly length?: Length | undefined
  readonly mtu?: { readonly here: number | null; readonly there: number | null }
}

/** Notes which side limits the length of packets. */
function lengthNotes({ length, mtu }: Beside): string[] {
  const { here = null, there = null } = mtu ?? {}
  const differs = here !== null && there !== null && here !== there
  const mismatch = differs
    ? [`the MTU of the data path is ${here} here and ${there} there: give the external interfaces of all nodes one MTU`]
    : []
  if (!length || length.longest === length.asked) return mismatch
  const found = length.longest === null ? '' : `, packets of up to ${length.longest} do`
  const whose =
    here !== null && there !== null && there < here
      ? 'the cause is the smaller MTU of the other host'
      : 'the cause is a smaller MTU between the hosts'
  return [`inside the tunnel packets of ${length.asked} bytes get no answer${found}: ${whose}`, ...mismatch]
}

/** An end that uses more than this fraction of a core can hardly do more. */
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
        `${path}: connections open but no data arrives, so long packets are lost on that path; run weft doctor on both hosts`,
    ),
    ...deaf.map((path) =>
      silent.includes(path)
        ? `${path}: no datagram arrives either`
        : `${path}: TCP arrives but UDP does not; a firewall drops UDP${
            beside.length && !isNarrow
              ? ''
              : `, or datagrams of ${samples.datagramBytes} bytes are too long for that path`
          }`,
    ),
    ...busyNotes(samples.tcp),
    ...PATHS.filter((path) => udp[path].overflowed > 0).map(
      (path) =>
        `${path}: ${udp[path].overflowed} datagrams arrived, but the other host was too slow to read them; they are not counted as lost`,
    ),
    ...PATHS.filter((path) => udp[path].reordered > 0).map(
      (path) => `${path}: ${udp[path].reordered} datagrams arrived after a later one`,
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
  // The socket also counts foreign datagrams that arrived while its buffer was full. No more of this run's can have arrived than were sent.
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

/** Notes on which paths the bench itself was the limit, so that the path may carry more. */
function busyNotes(tcp: Both<readonly TcpSample[]>): string[] {
  return PATHS.flatMap((path) => {
    const ends = (['here', 'there'] as const).filter(
      (end) => (median(tcp[path].map(({ busy }) => busy[end])) ?? 0) >= FULLY_BUSY,
    )
    return ends.length === 0
      ? []
      : [`${path}: weft bench itself used a whole core ${ends.join(' and ')}, so the path may carry more`]
  })
}

/** Returns the increase of each counter. A counter that restarted at zero counts with its new value. */
export function increase(before: Counts, after: Counts): Counts {
  const grown = Object.entries(after).map(([name, count]): [string, number] => {
    const earlier = before[name] ?? 0
    return [name, count >= earlier ? count - earlier : count]
  })
  return Object.fromEntries(grown.filter(([, count]) => count > 0))
}
