// bell.test.ts - rings are not lost, and each wait ends with the signal.

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { afterRunning, createBell, pause } from '../../../src/host/bell.ts'

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

describe('a limit of the time in which the process runs', () => {
  it('does not count a standstill of the process', async () => {
    vi.useRealTimers()
    let isLate = false
    const timer = afterRunning(1_500, () => (isLate = true))
    const ordinary = new Promise((resolve) => setTimeout(resolve, 1_500))
    // Blocks the only thread for longer than the limit.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_800)
    await ordinary
    expect(isLate).toBe(false)
    await expect.poll(() => isLate).toBe(true)
    clearTimeout(timer)
  })

  it('can be cancelled, and calls once', async () => {
    const late = vi.fn<() => void>()
    clearTimeout(afterRunning(1000, late))
    afterRunning(1000, late)
    await vi.advanceTimersByTimeAsync(900)
    expect(late).toHaveBeenCalledTimes(0)
    await vi.advanceTimersByTimeAsync(5000)
    expect(late).toHaveBeenCalledTimes(1)
    expect(vi.getTimerCount()).toBe(0)
  })
})
