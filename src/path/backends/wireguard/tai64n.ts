// tai64n.ts - the timestamps of our initiations. For each peer they strictly increase, even across restarts.
//
// A responder refuses an initiation unless its timestamp is greater than all accepted ones from this node, which an
// earlier process may have sent, and the clock may be set back. So timestamps are taken from a reserved period whose
// end was stored before. A new process begins after the stored end, whatever the clock says. The period is short: each
// restart within it moves the timestamps ahead of the clock by the rest of the period, and a node that loses the file
// must wait for its clock to catch up.
//
// Timestamps are counted in ticks: sixty per second, one for each value of the upper bits of the nanoseconds. The lower
// 24 bits are zero, to reveal little about our clock, as in other implementations of WireGuard.

/**
 * The TAI64N label of 1970-01-01 (https://cr.yp.to/libtai/tai64.html). All implementations of WireGuard use an offset
 * of ten seconds.
 */
const EPOCH = 2n ** 62n + 10n
const TICKS_PER_SECOND = 60
/** The nanoseconds of a tick, 2^24. */
const TICK_NS = 0x100_0000
/** The length of the reserved period in ticks. Its end is stored at most once per period. */
export const STRETCH_TICKS = 10 * TICKS_PER_SECOND

export const STAMP_BYTES = 12

/** Returns the tick of a time in ms since 1970, which must not be negative. */
export function tickOf(ms: number): number {
  const seconds = Math.floor(ms / 1_000)
  return seconds * TICKS_PER_SECOND + Math.floor(((ms - seconds * 1_000) * 1e6) / TICK_NS)
}

/** Returns the transmitted form: 64 bits of seconds and 32 bits of nanoseconds, big-endian. */
export function stampOf(tick: number): Uint8Array {
  const stamp = Buffer.alloc(STAMP_BYTES)
  stamp.writeBigUInt64BE(EPOCH + BigInt(Math.floor(tick / TICKS_PER_SECOND)))
  stamp.writeUInt32BE((tick % TICKS_PER_SECOND) * TICK_NS, 8)
  return stamp
}

/** Returns a number by which timestamps of any implementation can be compared. */
export function orderOf(stamp: Uint8Array): bigint {
  const bytes = Buffer.from(stamp.buffer, stamp.byteOffset, stamp.length)
  return (bytes.readBigUInt64BE() << 32n) | BigInt(bytes.readUInt32BE(8))
}

interface Stamps {
  /**
   * Returns the tick of a new timestamp, which is greater than `last`, the peer's latest one. `wall` is the time in ms
   * since 1970.
   */
  next(last: number, wall: number): number
  /** Excludes all ticks up to this one: ticks of a removed peer, or of another process. */
  passed(tick: number): void
  /** The greatest tick that may have been used. */
  readonly end: number
}

/**
 * `kept` is the tick that was stored last, by this or an earlier process; -1 if none is known. `keep` stores a tick and
 * returns when a later process would read it. It reports its own failures, because a timestamp may be good without it.
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
