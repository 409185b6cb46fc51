// session-numbers.test.ts - no two sessions share a number, and a released number stays unused for a minute.

import { describe, expect, it } from 'vitest'
import { SessionNumbers } from '../../../../../src/path/backends/wireguard/session-numbers.ts'

const REUSE_MS = 60_000
const MOST = 2 ** 20

describe('session numbers', () => {
  it('count from 1, and are reused after a minute, in the order of their release', () => {
    const numbers = new SessionNumbers()
    expect([numbers.assign(0), numbers.assign(0), numbers.assign(0)]).toEqual([1, 2, 3])
    numbers.release(2, 1_000)
    numbers.release(1, 2_000)
    expect(numbers.assign(999 + REUSE_MS)).toBe(4)
    expect(numbers.assign(1_000 + REUSE_MS)).toBe(2)
    expect(numbers.assign(1_000 + REUSE_MS)).toBe(5)
    expect(numbers.assign(2_000 + REUSE_MS)).toBe(1)
    expect(numbers.last).toBe(5)
  })

  it('of an earlier process are not assigned while they have a session, nor in the first minute', () => {
    const numbers = new SessionNumbers()
    numbers.resume(4, new Set([2, 3]), 1_000)
    expect(numbers.last).toBe(4)
    expect(numbers.assign(999 + REUSE_MS)).toBe(5)
    const later = 1_000 + REUSE_MS
    expect([numbers.assign(later), numbers.assign(later), numbers.assign(later)]).toEqual([1, 4, 6])
  })

  it('are below the number of sessions that the engine has room for', () => {
    const numbers = new SessionNumbers()
    const used = new Set(Array.from({ length: MOST }, (_, number) => number))
    numbers.resume(MOST - 2, used, 0)
    expect(numbers.assign(0)).toBe(MOST - 1)
    expect(() => numbers.assign(0)).toThrow('more than 1048576 peers with keys')
    expect(numbers.last).toBe(MOST - 1)
    numbers.release(5, 0)
    expect(numbers.assign(REUSE_MS)).toBe(5)
    const next = new SessionNumbers()
    next.resume(MOST + 2, used, 0) // an earlier version counted failed attempts
    expect(next.last).toBe(MOST - 1)
    expect(() => next.assign(REUSE_MS)).toThrow('more than 1048576 peers with keys')
  })
})
