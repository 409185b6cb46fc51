// plan.test.ts - the plan for a command line, the order of the paths, and the length and rate of datagrams.

import { describe, expect, it } from 'vitest'
import { datagramBytes, datagramRate, orderOf, planOf } from '../../../../src/tool/measure/plan.ts'

const USUAL = { streams: 8, seconds: '2', pairs: 3, rate: 0 }
const PLAN = { streams: 8, seconds: 2, pairs: 3, bitsPerSecond: 0 }

/** Returns the beginning of the remedy of a refusal. */
const LEAST = { streams: 1, seconds: 0.01, pairs: 1, rate: 1 } as const

describe('a plan', () => {
  it('has the requested values', () => {
    expect(planOf(USUAL)).toEqual(PLAN)
    expect(planOf({ streams: 1, seconds: '0.05', pairs: 1, rate: 5 })).toEqual({
      streams: 1,
      seconds: 0.05,
      pairs: 1,
      bitsPerSecond: 5e6,
    })
  })

  it.each([
    [{ streams: 0 }, '--streams is 0'],
    [{ streams: 65 }, '--streams is 65'],
    [{ seconds: 'long' }, '--seconds is long'],
    [{ seconds: '' }, '--seconds is '],
    [{ seconds: '0' }, '--seconds is 0'],
    [{ seconds: '61' }, '--seconds is 61'],
    [{ pairs: 0 }, '--pairs is 0'],
    [{ pairs: 51 }, '--pairs is 51'],
    [{ rate: -1 }, '--rate is -1'],
    [{ rate: 100_001 }, '--rate is 100001'],
  ])('refuses %j with the problem %s', (wrong, problem) => {
    const given = Object.keys(wrong)[0] as keyof typeof LEAST
    const remedy = expect.stringMatching(new RegExp(`^give ${LEAST[given]} to \\d+`))
    expect(planOf({ ...USUAL, ...wrong })).toEqual({ problem, remedy })
  })

  it('accepts the documented maxima', () => {
    expect(planOf({ streams: 64, seconds: '60', pairs: 50, rate: 100_000 })).toEqual({
      streams: 64,
      seconds: 60,
      pairs: 50,
      bitsPerSecond: 1e11,
    })
    expect(planOf({ ...USUAL, seconds: '0.01' })).toMatchObject({ seconds: 0.01 })
  })

  it('alternates which path comes first', () => {
    expect([0, 1, 2].map(orderOf)).toEqual([
      ['outside', 'inside'],
      ['inside', 'outside'],
      ['outside', 'inside'],
    ])
  })

  it.each([
    [1472, null, 'ipv4', 1444],
    [1472, 1372, 'ipv4', 1344],
    [1450, 1472, 'ipv4', 1422],
    [30, null, 'ipv4', 12],
    [1430, null, 'ipv6', 1382],
    [50, null, 'ipv6', 12],
  ] as const)('with MTU %d, path MTU %j and %s, sends datagrams of %d bytes', (mtu, pathMtu, family, bytes) =>
    expect(datagramBytes(mtu, pathMtu, family)).toBe(bytes),
  )

  it.each([
    [0, 10e9, 5e9, 200e6],
    [0, 100e6, 80e6, 40e6],
    [0, 100e6, 0, 50e6],
    [0, 0, 0, 200e6],
    [0, 1e6, 1e6, 1e6],
    [900e6, 10e6, 10e6, 900e6],
  ])('at rate %d, after TCP rates %d and %d, sends %d', (bitsPerSecond, outside, inside, rate) =>
    expect(datagramRate({ ...PLAN, bitsPerSecond }, { outside, inside })).toBe(rate),
  )
})
