// threads.test.ts - a thread counts as hung after five checks without a round, independently of the clock.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { hungThread, lookAtThreads, type Threads } from '../../../src/report/threads.ts'

/** Checks these rounds every 2 s; returns the final states. */
const look = (looks: readonly Record<string, number>[], before: Threads = new Map()): Threads =>
  looks.reduce((threads, rounds, index) => lookAtThreads(threads, rounds, index * 2_000), before)

describe('a thread', () => {
  it('with a new round at every check does not hang', () => {
    expect(hungThread(look([1, 2, 3, 4, 5, 6, 7, 8].map((loop) => ({ loop }))))).toBeUndefined()
  })

  it('hangs after five checks without a round, since the first request for the missing round', () => {
    const still = [1, 2, 3, 3, 3, 3, 3].map((loop) => ({ loop }))
    expect(hungThread(look(still))).toBeUndefined()
    expect(hungThread(look([...still, { loop: 3 }]))).toEqual({ name: 'loop', since: 4_000 })
    expect(hungThread(look([...still, { loop: 3 }, { loop: 4 }]))).toBeUndefined()
  })

  it('does not count as hung after the whole process was stopped for an hour', () => {
    const before = lookAtThreads(new Map(), { loop: 7 }, 0)
    expect(hungThread(lookAtThreads(before, { loop: 7 }, 3_600_000))).toBeUndefined()
  })

  it('is removed with its data path', () => {
    const hung = look(Array.from({ length: 9 }, () => ({ loop: 1 })))
    expect(hungThread(hung)).toBeDefined()
    expect(hungThread(lookAtThreads(hung, {}, 20_000))).toBeUndefined()
    expect(hungThread(lookAtThreads(lookAtThreads(hung, {}, 20_000), { loop: 1 }, 22_000))).toBeUndefined()
  })

  it('is named if it alone hangs, or if it was the first to hang', () => {
    const both = Array.from({ length: 9 }, (_, at) => ({ loop: at < 3 ? at : 3, tun: at < 2 ? at : 2, other: at }))
    expect(hungThread(look(both))).toEqual({ name: 'tun', since: 4_000 })
  })

  it('hangs exactly if the last five checks found the same round as the check before them', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(1), { minLength: 1, maxLength: 40 }), (steps) => {
        let count = 0
        const counts = steps.map((step) => (count += step))
        const last = counts.slice(-6)
        const expected = last.length === 6 && new Set(last).size === 1
        expect(hungThread(look(counts.map((loop) => ({ loop })))) !== undefined).toBe(expected)
      }),
    )
  })
})
