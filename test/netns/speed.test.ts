// speed.test.ts - a guard, not a benchmark: the native engine is clearly faster than one packet a system call.

import { expect, it } from 'vitest'
import { CASES } from '../../bench/cases.ts'
import { measure } from '../../bench/measure.ts'
import { ratio } from '../../bench/result.ts'

/** Far below what is measured on a quiet machine (7 and 2), far above what a lost offload leaves (1 to 3). */
const TCP_AT_LEAST = 4
const SMALL_PACKETS_AT_LEAST = 1.2

it('the native engine beats the naive one in the same run', async () => {
  const cases = (['tcp', 'udp64-flood'] as const).map((name) => [name, CASES[name]!] as const)
  const { series } = await measure({
    name: 'guard',
    link: 'plain',
    cases,
    paths: ['native', 'naive'],
    rounds: 3,
    seconds: 1,
  })
  const timesNaive = (metric: string): number => {
    const { values } = series.find((each) => `${each.case} ${each.metric}` === metric)!
    return ratio(values['native'], values['naive'])!
  }
  expect(timesNaive('tcp throughput')).toBeGreaterThan(TCP_AT_LEAST)
  expect(timesNaive('udp64-flood received')).toBeGreaterThan(SMALL_PACKETS_AT_LEAST)
})
