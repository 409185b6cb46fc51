// bell.test.ts - rings are not lost, and each wait ends with the signal.

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { createBell, pause } from '../../../src/host/bell.ts'

beforeEach(() => vi.useFakeTimers())
afterEach(() => vi.useRealTimers())

describe('bell', () => {
  const { signal } = new AbortController()

  it('wakes the next wait if it rang before', async () => {
    const bell = createBell()
    bell.ring()
    bell.ring()
    expect(await bell.wait(signal, 1000)).toBe(true)
    const second = bell.wait(signal, 1000)
    await vi.advanceTimersByTimeAsync(1000)
    expect(await second).toBe(false)
  })

  it('wakes immediately', async () => {
    const bell = createBell()
    const waiting = bell.wait(signal)
    bell.ring()
    expect(await waiting).toBe(true)
    expect(vi.getTimerCount()).toBe(0)
  })

  it.each([
    [-5, 1],
    [2 ** 40, 2 ** 31 - 1],
  ])('accepts %d ms as a time limit', async (ms, endsWithin) => {
    const waiting = createBell().wait(signal, ms)
    await vi.advanceTimersByTimeAsync(endsWithin)
    expect(await waiting).toBe(false)
  })

  it('rejects with the reason of the signal, and leaves no timer', async () => {
    const stopping = new AbortController()
    const reason = new Error('stop')
    const waiting = pause(stopping.signal, 1000)
    stopping.abort(reason)
    await expect(waiting).rejects.toBe(reason)
    expect(vi.getTimerCount()).toBe(0)
    await expect(pause(stopping.signal, 1000)).rejects.toBe(reason)
  })
})
