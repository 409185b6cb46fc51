// result.ts - defines the result file of a benchmark run, and computes statistics of the results. Does no I/O.

import { median } from '../lab/measure.ts'
import type { Metric } from './cases.ts'
import type { Ends, Link } from './paths.ts'

export interface Machine {
  readonly kernel: string
  readonly cpu: string
  readonly cores: number
  readonly memoryGiB: number
  readonly node: string
  /**
   * The TCP congestion control that the system uses by default. If a case uses a different one, the case's `method`
   * names it.
   */
  readonly congestionControl: string
}

export interface Series extends Metric {
  readonly case: string
  readonly metric: string
  /**
   * The measured values by path, one value per round. Values at the same index come from the same round, so they can be
   * compared between paths.
   */
  readonly values: Readonly<Record<string, readonly number[]>>
}

/**
 * A part of a result: measurements that were made in the same rounds. Values of different parts come from different
 * rounds, so they must not be compared round by round.
 */
export interface Part {
  readonly name: string
  readonly link?: Link
  /** The ends of the paths: the hosts (default) or containers on them. */
  readonly ends?: Ends
  readonly commit?: string
  /**
   * The data paths whose results are the denominators of this part's ratios. If `references` is missing, report.ts uses
   * its REFERENCES.
   */
  readonly references?: readonly string[]
  /** The number of bytes of TCP payload in a full packet, by path. */
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

/** The minimum probability with which a confidence interval must contain the true median. */
const CONFIDENCE = 0.9

/**
 * Returns the median, and a confidence interval that contains the true median with a probability of at least 90%, for
 * any distribution of the values. The ends of the interval are the k-th smallest and the k-th largest value (order
 * statistics, binomial distribution). With 5 to 7 values they are the smallest and the largest value. Returns undefined
 * for fewer than 5 values.
 */
export function interval(values: readonly number[]): Interval | undefined {
  const sorted = values.toSorted((a, b) => a - b)
  // The probability that the true median is outside the interval, on both sides together. The loop starts with the
  // interval from the smallest to the largest value (k = 0).
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

/**
 * Returns half of the distance from the lowest to the highest value, divided by the median. Tables show the spread
 * after `+-`.
 */
export function spread(values: readonly number[]): number {
  return (Math.max(...values) - Math.min(...values)) / 2 / median(values)
}

/**
 * Returns the ratio of `a` to `b` for each round. A disturbance that slows a whole round affects both values, so the
 * ratio hardly changes. Returns undefined if a value is missing or 0.
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

/**
 * Compares the values of two runs. The values count as different only if their confidence intervals do not overlap,
 * because a smaller difference may be chance.
 */
export function verdict(before: readonly number[], after: readonly number[]): Verdict {
  const [a, b] = [interval(before), interval(after)]
  if (!a || !b) return 'unresolved'
  if (b.low > a.high) return 'more'
  return b.high < a.low ? 'less' : 'unresolved'
}

export function findSeries({ series }: Part, name: string, metric: string): Series | undefined {
  return series.find((each) => each.case === name && each.metric === metric)
}
