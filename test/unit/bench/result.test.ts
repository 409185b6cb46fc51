// result.test.ts - the statistics of the benchmark, and the search for the highest rate.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { interval, ratio, ratios, spread, verdict } from '../../../bench/result.ts'
import { highestCleanRate, MAX_LOSS, type Trial } from '../../../bench/search.ts'

describe('interval', () => {
  it('is from the least to the most of five to seven, and undefined of fewer', () => {
    expect(interval([3, 1, 2, 5])).toBeUndefined()
    expect(interval([3, 1, 2, 5, 4])).toEqual({ low: 1, middle: 3, high: 5 })
    expect(interval([7, 3, 1, 2, 5, 4, 6])).toEqual({ low: 1, middle: 4, high: 7 })
  })

  // Tables of the binomial distribution: the k-th from either end covers the median with at least 90%.
  it.each([
    [8, 2],
    [10, 2],
    [11, 3],
    [15, 4],
    [20, 6],
  ])('of %i samples leaves out what is beyond the %i-th from either end', (count, k) => {
    const samples = Array.from({ length: count }, (_, index) => index + 1)
    expect(interval(samples)).toMatchObject({ low: k, high: count + 1 - k })
  })
})

describe('ratios', () => {
  it('are computed for each round, so a disturbance of a whole round cancels out', () => {
    expect(ratios([10, 2, 6], [5, 1, 3])).toEqual([2, 2, 2])
    expect(ratio([10, 2, 6], [5, 1, 2])).toBe(2)
  })

  it('are undefined without a partner, with a missing round, or with a zero', () => {
    expect(ratio([1, 2], undefined)).toBeUndefined()
    expect(ratio([1, 2], [1])).toBeUndefined()
    expect(ratio([1, 2], [1, 0])).toBeUndefined()
    expect(ratio([], [])).toBeUndefined()
  })

  it('spread is half the distance from least to most, of the median', () => {
    expect(spread([8, 10, 12])).toBeCloseTo(0.2)
  })
})

describe('verdict', () => {
  it('is given only where the intervals lie apart', () => {
    const before = [10, 11, 12, 13, 14]
    expect(verdict(before, [15, 16, 17, 18, 19])).toBe('more')
    expect(verdict(before, [5, 6, 7, 8, 9])).toBe('less')
    expect(verdict(before, [14, 16, 17, 18, 19])).toBe('unresolved')
    expect(verdict([1, 1, 1], [9, 9, 9])).toBe('unresolved')
  })
})

describe('highestCleanRate', () => {
  const FLOOD = 1_000_000

  /** A path that carries every packet up to `capacity`, and half of the packets above it. */
  const path =
    (capacity: number, hiccup: (call: number) => boolean = () => false) =>
    (): ((rate: number) => Promise<Trial>) => {
      let calls = 0
      return (rate) => {
        const sent = rate === 0 ? FLOOD : Math.min(rate, FLOOD)
        const carried = Math.min(sent, capacity + Math.max(0, sent - capacity) / 2)
        return Promise.resolve({ sent, received: hiccup(calls++) ? carried / 2 : carried })
      }
    }

  it('finds the capacity of any path to a step of the ladder', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 50_000, max: FLOOD }), async (capacity) => {
        const best = await highestCleanRate(path(capacity)())
        // Slightly above capacity the loss is still below 1%, because only half of the excess is lost.
        expect(best!.received).toBeGreaterThan(capacity * 0.95)
        expect(best!.received).toBeLessThan((capacity * (1 + 1 / (1 - 2 * MAX_LOSS))) / 2 + 1)
      }),
    )
  })

  it('is not misled by a single bad trial at a rate', async () => {
    const best = await highestCleanRate(path(300_000, (call) => call % 3 === 2)())
    expect(best!.received).toBeGreaterThan(300_000 * 0.95)
  })

  it('finds the rate of a path that carries nothing during a flood', async () => {
    const best = await highestCleanRate((rate) =>
      Promise.resolve({ sent: rate || FLOOD, received: rate > 0 && rate <= 90_000 ? rate : 10 }),
    )
    expect(best!.received).toBeGreaterThan(90_000 * 0.95)
  })

  it('accepts a flood that arrives completely, and returns nothing if nothing arrives', async () => {
    expect((await highestCleanRate(path(FLOOD)()))!.received).toBe(FLOOD)
    expect(await highestCleanRate(() => Promise.resolve({ sent: 100, received: 0 }))).toBeUndefined()
  })
})
