// tai64n.test.ts - timestamps in the format of other implementations, which never decrease.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  createStamps,
  orderOf,
  stampOf,
  STRETCH_TICKS,
  tickOf,
} from '../../../../../src/path/backends/wireguard/tai64n.ts'

const hexOf = (tick: number): string => Buffer.from(stampOf(tick)).toString('hex')

describe('a timestamp', () => {
  it('has the TAI64N format, with the lower 24 bits of the nanoseconds zero', () => {
    expect(hexOf(tickOf(0))).toBe('400000000000000a00000000')
    // The time is 2026-11-25T03:00:00.500Z; 500,000,000 ns are 0x1dcd6500.
    expect(hexOf(tickOf(1_795_575_600_500))).toBe(
      `4000000${(1_795_575_600 + 10).toString(16).padStart(9, '0')}1d000000`,
    )
    expect(hexOf(tickOf(999.999))).toBe('400000000000000a3b000000')
    expect(hexOf(tickOf(1_000))).toBe('400000000000000b00000000')
  })

  it('is greater when its tick is, as bytes and as a number', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 2 ** 40 }), fc.integer({ min: 1, max: 2 ** 20 }), (tick, more) => {
        expect(orderOf(stampOf(tick + more))).toBeGreaterThan(orderOf(stampOf(tick)))
        expect(Buffer.compare(stampOf(tick + more), stampOf(tick))).toBe(1)
      }),
    )
  })

  it('is never later than the clock, and less than a tick earlier', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 4e12 }), (ms) => {
        const stamp = Buffer.from(stampOf(tickOf(ms)))
        const at = Number(stamp.readBigUInt64BE() - 2n ** 62n - 10n) * 1_000 + stamp.readUInt32BE(8) / 1e6
        expect(at).toBeLessThanOrEqual(ms)
        expect(ms - at).toBeLessThan(2 ** 24 / 1e6)
      }),
    )
  })

  it('is ordered by seconds, then by nanoseconds, for every implementation', () => {
    const of = (seconds: bigint, nanoseconds: number): bigint => {
      const stamp = Buffer.alloc(12)
      stamp.writeBigUInt64BE(seconds)
      stamp.writeUInt32BE(nanoseconds, 8)
      return orderOf(stamp)
    }
    expect(of(2n, 0)).toBeGreaterThan(of(1n, 0xffff_ffff))
    expect(of(1n, 2)).toBeGreaterThan(of(1n, 1))
    // The timestamp may be part of a larger buffer.
    expect(orderOf(Buffer.concat([Buffer.alloc(3), stampOf(77)]).subarray(3))).toBe(orderOf(stampOf(77)))
  })
})

describe('timestamps', () => {
  const hour = tickOf(3_600_000)

  it('follow the clock, and increase even if the clock stops or is set back', () => {
    const stamps = createStamps(-1, () => {})
    expect(stamps.next(-1, 3_600_000)).toBe(hour)
    expect(stamps.next(-1, 3_600_000)).toBe(hour) // of another peer
    expect(stamps.next(hour, 3_600_000)).toBe(hour + 1)
    expect(stamps.next(hour + 1, 0)).toBe(hour + 2)
    expect(stamps.next(hour + 2, 7_200_000)).toBe(2 * hour)
  })

  it('store the end of a reserved period before its first use, and rarely', () => {
    const kept: number[] = []
    const stamps = createStamps(-1, (tick) => kept.push(tick))
    let last = -1
    for (let ms = 3_600_000; ms < 3_700_000; ms += 100) {
      last = stamps.next(last, ms)
      expect(kept.at(-1)).toBeGreaterThanOrEqual(last)
    }
    expect(kept).toHaveLength(10)
    expect(kept[0]).toBe(hour + STRETCH_TICKS)
  })

  it('use the whole reserved period before the next one is stored', () => {
    const kept: number[] = []
    const stamps = createStamps(-1, (tick) => kept.push(tick))
    stamps.next(-1, 3_600_000)
    const end = hour + STRETCH_TICKS
    expect(stamps.next(end - 1, 3_600_000)).toBe(end)
    expect([kept, stamps.end]).toEqual([[end], end])
    expect(stamps.next(end, 3_600_000)).toBe(end + 1)
    expect(kept).toEqual([end, end + 1 + STRETCH_TICKS])
  })

  it('end at the latest tick that may be used, also if another process used it', () => {
    const stamps = createStamps(-1, () => {})
    expect(stamps.end).toBe(-1)
    stamps.passed(hour)
    expect(stamps.end).toBe(hour)
    expect(stamps.next(-1, 0)).toBe(hour + 1)
    expect(stamps.end).toBe(hour + 1 + STRETCH_TICKS)
    stamps.passed(5)
    expect(stamps.next(-1, 0)).toBe(hour + 1)
  })

  it('continue after the stored timestamp in another process, regardless of the clock', () => {
    fc.assert(
      fc.property(
        fc.array(
          fc.oneof(
            fc.constant('restart' as const),
            fc.record({ peer: fc.nat(2), wall: fc.integer({ min: 0, max: 1e7 }) }),
            fc.record({ removed: fc.nat(2) }),
          ),
          { maxLength: 60 },
        ),
        (events) => {
          let kept = -1
          const begin = () => createStamps(kept, (tick) => (kept = tick))
          let stamps = begin()
          const last = new Map<number, number>()
          const greatest = new Map<number, number>()
          for (const event of events) {
            if (event === 'restart') {
              stamps = begin()
              last.clear()
            } else if ('removed' in event) {
              stamps.passed(last.get(event.removed) ?? -1)
              last.delete(event.removed)
            } else {
              const tick = stamps.next(last.get(event.peer) ?? -1, event.wall)
              expect(tick).toBeGreaterThan(greatest.get(event.peer) ?? -1)
              last.set(event.peer, tick)
              greatest.set(event.peer, tick)
            }
          }
        },
      ),
    )
  })
})
