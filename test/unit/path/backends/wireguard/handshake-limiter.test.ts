// handshake-limiter.test.ts - a flood takes its rates, and who proved its address has another one.

import { describe, expect, it } from 'vitest'
import type { Cookies } from '../../../../../src/path/backends/wireguard/cookie.ts'
import { createGate, RATES } from '../../../../../src/path/backends/wireguard/handshake-limiter.ts'

const message = Buffer.alloc(148)
const cookiesThat = (isProved: boolean): Cookies => ({ isProved: () => isProved, reply: () => Buffer.alloc(64) })
const v4 = (address: number) => ({ address, port: 1 })
const v6 = (address: bigint) => ({ address, port: 1 })
/** Verdicts of so many messages at that time, counted. */
function verdicts(
  gate: ReturnType<typeof createGate>,
  count: number,
  now: number,
  of: (at: number) => ReturnType<typeof v4> | ReturnType<typeof v6>,
) {
  const found = { process: 0, ask: 0, drop: 0 }
  for (let at = 0; at < count; at += 1) found[gate.judge(message, of(at), now)] += 1
  return found
}

describe('the gate', () => {
  it('lets all through up to a rate, then asks up to another, then drops', () => {
    const gate = createGate(cookiesThat(false))
    const { free, cookies } = RATES
    expect(verdicts(gate, 1_000, 0, v4)).toEqual({
      process: free.burst,
      ask: cookies.burst,
      drop: 1_000 - free.burst - cookies.burst,
    })
    let [processed, asked] = [0, 0]
    for (let now = 1; now <= 1_000; now += 1) {
      const found = verdicts(gate, 5, now, v4)
      processed += found.process
      asked += found.ask
    }
    expect([processed, asked]).toEqual([free.perSecond, cookies.perSecond])
  })

  it('lets who proved its address through after that, by a rate of its own and a share of each address', () => {
    const { free, proved, source } = RATES
    const one = createGate(cookiesThat(true))
    expect(verdicts(one, 200, 0, () => v4(1)).process).toBe(free.burst + source.burst)
    const many = createGate(cookiesThat(true))
    expect(verdicts(many, 1_000, 0, v4)).toEqual({
      process: free.burst + proved.burst,
      ask: 0,
      drop: 1_000 - free.burst - proved.burst,
    })
    // A share is 20 a second; the free rate goes on beside it.
    let through = 0
    for (let now = 1; now <= 1_000; now += 1) through += verdicts(one, 5, now, () => v4(1)).process
    expect(through).toBe(free.perSecond + source.perSecond)
  })

  it('takes a /64 for one address, and another for another', () => {
    const { free, source } = RATES
    const same = createGate(cookiesThat(true))
    expect(verdicts(same, 200, 0, (at) => v6((0xfd00n << 112n) | BigInt(at))).process).toBe(free.burst + source.burst)
    const apart = createGate(cookiesThat(true))
    verdicts(apart, free.burst, 0, () => v4(1))
    expect(verdicts(apart, 10, 0, (at) => v6(BigInt(at) << 64n)).process).toBe(10)
  })

  it('is held up by no number of addresses', () => {
    const gate = createGate(cookiesThat(true))
    for (let now = 0; now < 20_000; now += 1) verdicts(gate, 10, now, (at) => v4(now * 10 + at))
    // After the flood everybody has a share again.
    expect(verdicts(gate, 3, 40_000, () => v4(1)).process).toBe(3)
  })

  it('hears a rate of messages at all', () => {
    const gate = createGate(cookiesThat(true))
    let heard = 0
    for (let now = 0; now < 1_000; now += 1) for (let at = 0; at < 20; at += 1) if (gate.mayBeHeard(now)) heard += 1
    expect(heard).toBeGreaterThanOrEqual(RATES.heard.perSecond + RATES.heard.burst - 2)
    expect(heard).toBeLessThanOrEqual(RATES.heard.perSecond + RATES.heard.burst)
  })
})
