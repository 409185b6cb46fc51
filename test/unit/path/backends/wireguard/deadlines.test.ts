// deadlines.test.ts - deadlines in slots: none is early, and none is lost.

import fc from 'fast-check'
import { expect, it } from 'vitest'
import { createDeadlines } from '../../../../../src/path/backends/wireguard/deadlines.ts'

it('returns no item if there are no deadlines', () => {
  const deadlines = createDeadlines<string>()
  expect(deadlines.next()).toBe(Infinity)
  expect(deadlines.take(1e12)).toEqual([])
})

it('returns each item once, never early and at most a slot late, in order of slots', () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 6_000 }), { minLength: 1 }), (times) => {
      const deadlines = createDeadlines<number>()
      for (const at of times) deadlines.add(at, at)
      const taken: number[] = []
      while (deadlines.next() < Infinity) {
        const now = deadlines.next()
        expect(deadlines.take(now - 1)).toEqual([])
        const items = deadlines.take(now)
        expect(items.length).toBeGreaterThan(0)
        for (const at of items) {
          expect(at).toBeLessThanOrEqual(now)
          expect(now - at).toBeLessThan(32)
        }
        taken.push(...items)
      }
      expect(taken.toSorted((a, b) => a - b)).toEqual(times.toSorted((a, b) => a - b))
    }),
  )
})

it('returns all overdue items, the earliest first', () => {
  const deadlines = createDeadlines<string>()
  deadlines.add('later', 5_000)
  deadlines.add('sooner', 100)
  deadlines.add('much later', 9_000)
  expect(deadlines.take(6_000)).toEqual(['sooner', 'later'])
  expect(deadlines.next()).toBe(9_024)
  deadlines.add('now', 6_000)
  expect(deadlines.next()).toBe(6_016)
})
