// tai64n.ts - the timestamps in this node's initiations. For each peer they strictly increase, even after restarts.
//
// A responder accepts an initiation only if its timestamp is greater than the timestamps of all earlier initiations
// from this node. An earlier process may have sent these initiations, and the clock may have been set back since. So
// weftd takes timestamps from a reserved period, whose end it stores in a file before it uses the period. A new process
// begins after the stored end, whatever the clock shows. The period is short for two reasons. Each restart moves the
// timestamps ahead of the clock by the unused rest of the period. And a node that loses the file must wait until its
// clock has passed the end of the period.
//
// Timestamps are counted in ticks, about sixty per second: one tick for each value of the upper bits of the
// nanoseconds. The lower 24 bits are zero, to reveal little about the clock, as in other implementations of WireGuard.

/**
 * The TAI64N seconds of 1970-01-01 (https://cr.yp.to/libtai/tai64.html): 2^62 and ten seconds, which all
 * implementations of WireGuard add.
 */
const EPOCH = 2n ** 62n + 10n
const TICKS_PER_SECOND = 60
/** The number of nanoseconds in a tick (the unit of weft's timestamps): 2^24, about 17 ms. */
const TICK_NS = 0x100_0000
/**
 * The length, in ticks, of the period for which weftd reserves timestamps in advance. weftd writes the end of each
 * period to a file before it uses the period.
 */
export const STRETCH_TICKS = 10 * TICKS_PER_SECOND

export const STAMP_BYTES = 12

/**
 * Returns the number of the tick (2^24 ns of TAI64N time) that contains `ms`, a time in ms since 1970 that must not be
 * negative.
 */
export function tickOf(ms: number): number {
  const seconds = Math.floor(ms / 1_000)
  return seconds * TICKS_PER_SECOND + Math.floor(((ms - seconds * 1_000) * 1e6) / TICK_NS)
}

/**
 * Returns the timestamp of a tick in the format of TAI64N: 8 bytes of seconds and 4 bytes of nanoseconds, big-endian.
 */
export function stampOf(tick: number): Uint8Array {
  const stamp = Buffer.alloc(STAMP_BYTES)
  stamp.writeBigUInt64BE(EPOCH + BigInt(Math.floor(tick / TICKS_PER_SECOND)))
  stamp.writeUInt32BE((tick % TICKS_PER_SECOND) * TICK_NS, 8)
  return stamp
}

/**
 * Returns a number that orders timestamps: a later timestamp has a greater number. Accepts the timestamps of other
 * implementations too.
 */
export function orderOf(stamp: Uint8Array): bigint {
  const bytes = Buffer.from(stamp.buffer, stamp.byteOffset, stamp.length)
  return (bytes.readBigUInt64BE() << 32n) | BigInt(bytes.readUInt32BE(8))
}

export interface Stamps {
  /**
   * Returns the tick for a new timestamp. The tick is greater than `last`, the tick of the last timestamp for the same
   * peer. `wall` is the time in ms since 1970.
   */
  next(last: number, wall: number): number
  /**
   * Makes sure that new timestamps are later than `tick`, because a removed peer or another process may have used this
   * tick and earlier ticks.
   */
  passed(tick: number): void
  /** The last tick that this process or an earlier process may have used for a timestamp. */
  readonly end: number
}

/**
 * Returns the source of timestamps. `kept` is the tick that was stored last; -1 if none is known. `keep` stores a tick,
 * and must return only when the tick is stored durably. If `keep` fails, it must report the failure itself, because
 * weftd continues.
 */
export function createStamps(kept: number, keep: (tick: number) => void): Stamps {
  let floor = kept
  let end = kept
  return {
    next(last, wall) {
      const tick = Math.max(tickOf(wall), floor + 1, last + 1)
      if (tick > end) {
        end = tick + STRETCH_TICKS
        keep(end)
      }
      return tick
    },
    passed(tick) {
      floor = Math.max(floor, tick)
    },
    get end() {
      return Math.max(end, floor)
    },
  }
}
