// result.ts - computes medians, ratios and losses from the samples of `weft bench`, and notes on how far the figures
// can be trusted. Pure.

import type { Arrived, Counts } from './conversation.ts'
import { PATHS, type Both, type PathName } from './plan.ts'

export interface TcpSample {
  readonly bitsPerSecond: number
  /** The fraction of a CPU core that `weft bench` used on this host and on the listener's host. */
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

/** A figure measured outside and inside the tunnel; null for a path on which no data arrived. */
export interface Compared {
  readonly outside: number | null
  readonly inside: number | null
  /** The figure inside the tunnel divided by the figure outside the tunnel; null if one of them is missing. */
  readonly ratio: number | null
}
interface UdpTotal {
  readonly sent: number
  readonly sentBitsPerSecond: number
  readonly lost: number
  readonly lossPercent: number
  readonly reordered: number
  /**
   * The number of datagrams that reached the listener's host but found the listener's socket buffer full. These
   * datagrams do not count as lost.
   */
  readonly overflowed: number
}
export interface Result {
  /**
   * The TCP rates in bits per second. `ratio` is the median of the ratios of all pairs of samples; `leastRatio` and
   * `mostRatio` are the lowest and highest ratio.
   */
  readonly tcp: Compared & { readonly leastRatio: number | null; readonly mostRatio: number | null }
  readonly udp: Both<UdpTotal> & { readonly datagramBytes: number }
  readonly roundTripMs: Compared
  /** True if at least one of TCP, UDP and long packets did not pass a path at all. */
  readonly isBroken: boolean
  /** Sentences for the user about faults and about the limits of the figures. */
  readonly notes: readonly string[]
}

export function median(values: readonly number[]): number | undefined {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  const [below, above] = [sorted[sorted.length % 2 === 1 ? middle : middle - 1], sorted[middle]]
  return below === undefined || above === undefined ? undefined : (below + above) / 2
}

export interface Length {
  /** The length in bytes of the longest packet that containers may send. */
  readonly asked: number
  /** The length in bytes of the longest packet that was answered; null if only short packets were answered. */
  readonly longest: number | null
}

/**
 * Facts that the samples do not show: the longest packet that passes inside the tunnel, and the MTU of each host. An
 * unknown fact is left out.
 */
interface Beside {
  readonly length?: Length | undefined
  readonly mtu?: { readonly here: number | null; readonly there: number | null }
}

/** Returns notes on what limits the length of packets: an MTU that differs between the hosts, or the path. */
function lengthNotes({ length, mtu }: Beside): string[] {
  const { here = null, there = null } = mtu ?? {}
  const differs = here !== null && there !== null && here !== there
  const mismatch = differs
    ? [`the MTU of the data path is ${here} here and ${there} there: give the external interfaces of all nodes one MTU`]
    : []
  if (!length || length.longest === length.asked) return mismatch
  const found = length.longest === null ? '' : `, packets of up to ${length.longest} do`
  const whose =
    differs && there < here
      ? 'the cause is the smaller MTU of the other host'
      : 'the cause is a smaller MTU between the hosts'
  return [`inside the tunnel packets of ${length.asked} bytes get no answer${found}: ${whose}`, ...mismatch]
}

/**
 * The fraction of a CPU core above which a host's `weft bench` counts as fully busy, so that it limits the measured
 * rate.
 */
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
  // The overflow counter of the socket includes datagrams from other senders. So count at most as many overflows as
  // datagrams of this run did not arrive.
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

/**
 * Returns notes that name each path on which `weft bench` itself was fully busy. Such a path may carry more than was
 * measured.
 */
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

/**
 * Returns how much each counter increased from `before` to `after`. A counter that decreased was reset to 0, so its
 * increase is its new value.
 */
export function increase(before: Counts, after: Counts): Counts {
  const grown = Object.entries(after).map(([name, count]): [string, number] => {
    const earlier = before[name] ?? 0
    return [name, count >= earlier ? count - earlier : count]
  })
  return Object.fromEntries(grown.filter(([, count]) => count > 0))
}
