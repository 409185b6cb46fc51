// result.ts - the result file of a benchmark run, and the few statistics made of it. Pure.

import { median } from '../lab/measure.ts'
import type { Metric } from './cases.ts'
import type { Ends, Link } from './paths.ts'

export interface Machine {
  readonly kernel: string
  readonly cpu: string
  readonly cores: number
  readonly memoryGiB: number
  readonly node: string
  /** The system's own; a case that uses another one says so in its method. */
  readonly congestionControl: string
}

export interface Series extends Metric {
  readonly case: string
  readonly metric: string
  /** The values of each path: one a round, comparable across paths round for round. */
  readonly values: Readonly<Record<string, readonly number[]>>
}

/** Cases on paths that were measured round by round in turn: only within a part are rounds comparable. */
export interface Part {
  readonly name: string
  readonly link?: Link
  /** Hosts, where it does not say. */
  readonly ends?: Ends
  /** The commit of the part, when it is not the result's. */
  readonly commit?: string
  /** The paths that the others are held against, where they are not the usual ones. */
  readonly references?: readonly string[]
  /** By path the bytes that a full packet carries for TCP, as far as the path says it. */
  readonly payloadBytes?: Readonly<Record<string, number>>
  readonly rounds: number
  readonly seconds: number
  /** The method of each case. */
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

/** Chance that an interval has the true median in it. */
const CONFIDENCE = 0.9

/**
 * The median, and between which two samples the true one lies with a chance of at least 90%, whatever the
 * distribution: the k-th from either end, by the binomial distribution (order statistics). For 5 to 7 samples these
 * are the least and the most. Undefined below 5: too few to say.
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

/** Half the distance from least to most, as a share of the median: what the `+-` of a table says. */
export function spread(values: readonly number[]): number {
  return (Math.max(...values) - Math.min(...values)) / 2 / median(values)
}

/**
 * The ratios of `a` to `b`, round by round, so that what slows a whole round (a noisy neighbour) cancels. Undefined
 * when a round is missing or was 0.
 */
export function ratios(
  a: readonly number[] | undefined,
  b: readonly number[] | undefined,
): readonly number[] | undefined {
  if (!a || !b || a.length === 0 || a.length !== b.length) return undefined
  const each = a.map((value, round) => value / (b[round] ?? Number.NaN))
  return each.every(Number.isFinite) ? each : undefined
}

/** The median of `ratios`. */
export function ratio(a: readonly number[] | undefined, b: readonly number[] | undefined): number | undefined {
  const each = ratios(a, b)
  return each && median(each)
}

type Verdict = 'more' | 'less' | 'unresolved'

/** The verdict on two runs: they differ by more than chance when their intervals do not overlap. */
export function verdict(before: readonly number[], after: readonly number[]): Verdict {
  const [a, b] = [interval(before), interval(after)]
  if (!a || !b) return 'unresolved'
  if (b.low > a.high) return 'more'
  return b.high < a.low ? 'less' : 'unresolved'
}

export function findSeries({ series }: Part, name: string, metric: string): Series | undefined {
  return series.find((each) => each.case === name && each.metric === metric)
}
