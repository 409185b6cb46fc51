// bucket.ts - a rate limiter that allows a burst, and then one event per interval. native/core/bucket.h has the same
// rules.

/** Returns true and counts an event if one more event is allowed at the time `now`; otherwise returns false. */
export type Bucket = (now: number) => boolean

/**
 * Returns a rate limiter that allows `burst` events at a time and then one event per `every` (generic cell rate
 * algorithm, ITU-T I.371). Its only state, `full`, is the time at which a whole burst is allowed again. All times have
 * the same unit.
 */
export function createBucket(every: number, burst: number): Bucket {
  let full = -Infinity
  return (now) => {
    const from = Math.max(full, now)
    if (from - now > (burst - 1) * every) return false
    full = from + every
    return true
  }
}
