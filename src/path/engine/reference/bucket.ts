// bucket.ts - a rate limiter that allows a burst, and then one event per interval. native/core/bucket.h does the same.

/** Returns true if one more event is allowed at this time, and counts it. */
export type Bucket = (now: number) => boolean

/**
 * Returns a limiter by the generic cell rate algorithm (ITU-T I.371). Its only state is the time at which the bucket
 * will be full again. All times have the same unit.
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
