// result.ts - the result file of a benchmark run and its statistics. No I/O.

import { median } from '../lab/measure.ts'
import type { Metric } from './cases.ts'
import type { Ends, Link } from './paths.ts'

export interface Machine {
  readonly kernel: string
  readonly cpu: string
  readonly cores: number
  readonly memoryGiB: number
  readonly node: string
  /** The system's default. A case that uses another congestion control says so in its method. */
  readonly congestionControl: string
}

export interface Series extends Metric {
  readonly case: string
  readonly metric: string
  /** The values of each path, one for each round. Values of one round are comparable between paths. */
  readonly values: Readonly<Record<string, readonly number[]>>
}

/** Cases on paths that were measured in the same rounds. Rounds are comparable only within a part. */
export interface Part {
  readonly name: string
  readonly link?: Link
  /** Default: hosts. */
  readonly ends?: Ends
  readonly commit?: string
  /** The paths that ratios refer to, if they differ from the usual ones (report.ts). */
  readonly references?: readonly string[]
  /** The TCP payload of a full packet on each path, in bytes. */
  readonly payloadBytes?: Readonly<Record<string, number>>
  readonly rounds: number
  readonly seconds: number
  readonly method: Readonly<Record<string, string>>
  readonly series: readonly Series[]
}

export interface Result {
  readonly schema: 2
  readonly date: string
  readonly commit: string
  readonly machine: Machine
  readonly parts: readonly Part[]
}

interface Interval {
  readonly low: number
  readonly middle: number
  readonly high: number
}

/** The minimum probability that an interval contains the true median. */
const CONFIDENCE = 0.9

/**
 * Returns the median, and an interval that contains the true median with a probability of at least 90%, for any distribution. Its ends are
 * the k-th samples from either end (order statistics, binomial distribution); for 5 to 7 samples the lowest and the highest.
 * Returns undefined for fewer than 5 samples.
 */
export function interval(values: readonly number[]): Interval | undefined {
  const sorted = values.toSorted((a, b) => a - b)
  // outside = P(fewer than k + 1 of the samples are below the true median), on both sides
  let term = 2 * 0.5 ** sorted.length
  let outside = term
  if (!(outside <= 1 - CONFIDENCE)) return undefined
  let k = 0
  for (;;) {
    term *= (sorted.length - k) / (k + 1)
    if (outside + term > 1 - CONFIDENCE) break
    outside += term
    k++
  }
  return { low: sorted[k] ?? Number.NaN, middle: median(sorted), high: sorted.at(-1 - k) ?? Number.NaN }
}

/** Returns half of the distance from the lowest to the highest value, as a share of the median. Tables show it after `+-`. */
export function spread(values: readonly number[]): number {
  return (Math.max(...values) - Math.min(...values)) / 2 / median(values)
}

/**
 * Returns the ratios of `a` to `b` for each round, so a disturbance that slows a whole round cancels out. Returns undefined if a
 * round is missing or is 0.
 */
export function ratios(
  a: readonly number[] | undefined,
  b: readonly number[] | undefined,
): readonly number[] | undefined {
  if (!a || !b || a.length === 0 || a.length !== b.length) return undefined
  const each = a.map((value, round) => value / (b[round] ?? Number.NaN))
  return each.every(Number.isFinite) ? each : undefined
}

export function ratio(a: readonly number[] | undefined, b: readonly number[] | undefined): number | undefined {
  const each = ratios(a, b)
  return each && median(each)
}

type Verdict = 'more' | 'less' | 'unresolved'

/** Compares two runs. They differ by more than chance if their intervals do not overlap. */
export function verdict(before: readonly number[], after: readonly number[]): Verdict {
  const [a, b] = [interval(before), interval(after)]
  if (!a || !b) return 'unresolved'
  if (b.low > a.high) return 'more'
  return b.high < a.low ? 'less' : 'unresolved'
}

export function findSeries({ series }: Part, name: string, metric: string): Series | undefined {
  return series.find((each) => each.case === name && each.metric === metric)
}
