// result.ts - the result file of a benchmark run, and the few statistics made of it.

import { median } from '../lab/measure.ts'
import type { Metric } from './cases.ts'
import type { Link } from './paths.ts'

export interface Machine {
  readonly kernel: string
  readonly cpu: string
  readonly cores: number
  readonly memoryGiB: number
  readonly node: string
  readonly congestionControl: string
}

export interface Series extends Metric {
  readonly case: string
  readonly metric: string
  /** By path: one value a round, round for round comparable across paths. */
  readonly values: Readonly<Record<string, readonly number[]>>
}

export interface Result {
  readonly schema: 1
  readonly date: string
  readonly commit: string
  readonly machine: Machine
  readonly link: Link
  readonly rounds: number
  readonly seconds: number
  /** How each case is measured. */
  readonly method: Readonly<Record<string, string>>
  readonly series: readonly Series[]
}

/** Half the distance from least to most, as a share of the median: what the `+-` of a table says. */
export function spread(values: readonly number[]): number {
  return (Math.max(...values) - Math.min(...values)) / 2 / median(values)
}

/**
 * How many times `a` is of `b`: the median of the rounds' ratios, so that what slows a whole round (a noisy
 * neighbour) cancels. Undefined when a round is missing or was 0.
 */
export function ratio(a: readonly number[] | undefined, b: readonly number[] | undefined): number | undefined {
  if (!a || !b || a.length === 0 || a.length !== b.length) return undefined
  const value = median(a.map((each, round) => each / (b[round] ?? Number.NaN)))
  return Number.isFinite(value) ? value : undefined
}
