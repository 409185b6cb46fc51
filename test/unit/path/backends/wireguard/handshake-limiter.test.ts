// handshake-limiter.test.ts - a flood uses up only its rates, and senders that proved their address have another rate.

import { describe, expect, it } from 'vitest'
import type { Cookies } from '../../../../../src/path/backends/wireguard/cookie.ts'
import { createHandshakeLimiter } from '../../../../../src/path/backends/wireguard/handshake-limiter.ts'
import { MAX_SOURCES, RATES } from '../../../../../src/path/backends/wireguard/limits.ts'

const message = Buffer.alloc(148)
const cookiesThat = (isProved: boolean): Pick<Cookies, 'isProved'> => ({ isProved: () => isProved })
const v4 = (address: number) => ({ address, port: 1 })
const v6 = (address: bigint) => ({ address, port: 1 })
/** Counts the verdicts about `count` messages at this time. */
function verdicts(
  limiter: ReturnType<typeof createHandshakeLimiter>,
  count: number,
  now: number,
  of: (at: number) => ReturnType<typeof v4> | ReturnType<typeof v6>,
) {
  const found = { process: 0, challenge: 0, drop: 0 }
  for (let at = 0; at < count; at += 1) found[limiter.judge(message, of(at), now)] += 1
  return found
}

describe('the handshake limiter', () => {
  it('accepts messages up to a rate, then sends cookies up to another, then drops', () => {
    const limiter = createHandshakeLimiter(cookiesThat(false))
    const { free, cookies } = RATES
    expect(verdicts(limiter, 1_000, 0, v4)).toEqual({
      process: free.burst,
      challenge: cookies.burst,
      drop: 1_000 - free.burst - cookies.burst,
    })
    let [processed, challenged] = [0, 0]
    for (let now = 1; now <= 1_000; now += 1) {
      const found = verdicts(limiter, 5, now, v4)
      processed += found.process
      challenged += found.challenge
    }
    expect([processed, challenged]).toEqual([free.perSecond, cookies.perSecond])
  })

  it('above the free rate accepts proved senders by their own rate, with a share for each address', () => {
    const { free, proved, source } = RATES
    const one = createHandshakeLimiter(cookiesThat(true))
    expect(verdicts(one, 200, 0, () => v4(1)).process).toBe(free.burst + source.burst)
    const many = createHandshakeLimiter(cookiesThat(true))
    expect(verdicts(many, 1_000, 0, v4)).toEqual({
      process: free.burst + proved.burst,
      challenge: 0,
      drop: 1_000 - free.burst - proved.burst,
    })
    // A share is 20 messages per second. The free rate applies in addition.
    let through = 0
    for (let now = 1; now <= 1_000; now += 1) through += verdicts(one, 5, now, () => v4(1)).process
    expect(through).toBe(free.perSecond + source.perSecond)
  })

  it('counts each /64 as one address', () => {
    const { free, source } = RATES
    const same = createHandshakeLimiter(cookiesThat(true))
    expect(verdicts(same, 200, 0, (at) => v6((0xfd00n << 112n) | BigInt(at))).process).toBe(free.burst + source.burst)
    const apart = createHandshakeLimiter(cookiesThat(true))
    verdicts(apart, free.burst, 0, () => v4(1))
    expect(verdicts(apart, 10, 0, (at) => v6(BigInt(at) << 64n)).process).toBe(10)
  })

  it('works with any number of addresses', () => {
    const limiter = createHandshakeLimiter(cookiesThat(true))
    for (let now = 0; now < 20_000; now += 1) verdicts(limiter, 10, now, (at) => v4(now * 10 + at))
    // After the flood every address has a share again, beside the free rate.
    const { free, source } = RATES
    expect(verdicts(limiter, 100, 40_000, () => v4(1)).process).toBe(free.burst + source.burst)
  })

  describe('that remembers MAX_SOURCES addresses', () => {
    const { free, source } = RATES
    const everyMs = 1_000 / source.perSecond
    /** Returns a limiter that remembers MAX_SOURCES addresses, each of which has sent one message at 0 ms. */
    function full() {
      const limiter = createHandshakeLimiter(cookiesThat(true))
      verdicts(limiter, free.burst, 0, () => v4(1))
      verdicts(limiter, MAX_SOURCES, 0, (at) => v4(1_000 + at))
      return limiter
    }
    it('drops messages of further addresses, and not of the known ones', () => {
      // At 30 ms the rate for proved senders allows messages again, and no address has its whole burst again.
      for (const [address, verdict] of [
        [1_001, 'process'],
        [1_000 + MAX_SOURCES, 'drop'],
      ] as const) {
        const limiter = full()
        verdicts(limiter, 3, 30, () => v4(1))
        expect(limiter.judge(message, v4(address), 30)).toBe(verdict)
      }
    })

    it('accepts further addresses when the known ones have their whole burst again', () => {
      for (const [now, verdict] of [
        [everyMs - 1, 'drop'],
        [everyMs, 'process'],
      ] as const) {
        const limiter = full()
        verdicts(limiter, 5, now, () => v4(1_000_000))
        expect(limiter.judge(message, v4(1_000 + MAX_SOURCES), now)).toBe(verdict)
      }
    })
  })

  it('limits the rate of all messages', () => {
    const limiter = createHandshakeLimiter(cookiesThat(true))
    let received = 0
    for (let now = 0; now < 1_000; now += 1)
      for (let at = 0; at < 20; at += 1) if (limiter.mayReceive(now)) received += 1
    expect(received).toBeGreaterThanOrEqual(RATES.received.perSecond + RATES.received.burst - 2)
    expect(received).toBeLessThanOrEqual(RATES.received.perSecond + RATES.received.burst)
  })
})
