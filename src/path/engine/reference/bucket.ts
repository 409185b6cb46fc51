// bucket.ts - how often something may be done: a burst at once, and then one in so long; as native/core/bucket.h.

/** True when it may be done once more. */
export type Bucket = (now: number) => boolean

/** The generic cell rate algorithm (ITU-T I.371): a bucket is the time at which it will be full again. Times are of one unit. */
export function createBucket(every: number, burst: number): Bucket {
  let full = -Infinity
  return (now) => {
    const from = Math.max(full, now)
    if (from - now > (burst - 1) * every) return false
    full = from + every
    return true
  }
}
