// tai64n.ts - the timestamps of our initiations: for each peer strictly greater than the one before, over a restart too.
//
// A responder refuses an initiation whose timestamp is not greater than the greatest that it has accepted from us, which may have been sent
// by the process before this one, and a clock may go back. So all stamps are taken from a stretch of time whose end was written down
// first: a new process begins behind that end, whatever its clock says. The stretch is short, since each restart within it puts
// the stamps ahead of the clock by what was left of it, and a node that loses the note has to wait for its clock to catch up.
//
// A stamp is counted in ticks: sixty to the second, one for each value of the nanoseconds' upper bits. Its lower 24 bits are zero, so
// that it tells little of our clock, as with other WireGuards.

/** Of TAI64N: the label of 1970-01-01 (https://cr.yp.to/libtai/tai64.html), by whose ten seconds every WireGuard is agreed. */
const EPOCH = 2n ** 62n + 10n
const TICKS_PER_SECOND = 60
/** 2^24 ns. */
const TICK_NS = 0x100_0000
/** A stretch: how often its end is written down at most, while there are initiations. */
export const STRETCH_TICKS = 10 * TICKS_PER_SECOND

export const STAMP_BYTES = 12

/** The tick of a time in ms since 1970, which is not negative. */
export function tickOf(ms: number): number {
  const seconds = Math.floor(ms / 1_000)
  return seconds * TICKS_PER_SECOND + Math.floor(((ms - seconds * 1_000) * 1e6) / TICK_NS)
}

/** As it is sent: 64 bits of seconds and 32 of nanoseconds, big-endian. */
export function stampOf(tick: number): Uint8Array {
  const stamp = Buffer.alloc(STAMP_BYTES)
  stamp.writeBigUInt64BE(EPOCH + BigInt(Math.floor(tick / TICKS_PER_SECOND)))
  stamp.writeUInt32BE((tick % TICKS_PER_SECOND) * TICK_NS, 8)
  return stamp
}

/** A stamp of any WireGuard as a number that is greater if it is. */
export function orderOf(stamp: Uint8Array): bigint {
  const bytes = Buffer.from(stamp.buffer, stamp.byteOffset, stamp.length)
  return (bytes.readBigUInt64BE() << 32n) | BigInt(bytes.readUInt32BE(8))
}

interface Stamps {
  /** The tick of a new stamp: greater than `last`, the peer's latest one. `wall` is the time in ms since 1970. */
  next(last: number, wall: number): number
  /** No tick up to this one is given out any more: that of a peer of whom nothing else is kept, or another process's. */
  passed(tick: number): void
  /** None that was given out is greater. */
  readonly end: number
}

/**
 * `kept` is the tick that was last written down, by this process or one before, -1 if none is known. `keep` writes one down, and returns
 * when a process that begins later would read it; it tells of its failures itself, since a stamp may be good without it.
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
