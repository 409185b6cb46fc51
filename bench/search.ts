// search.ts - the highest rate that still arrives, found by trials. Pure: what a trial does is the caller's.

/** One trial at one rate. */
export interface Trial {
  /** Datagrams a second that were sent; less than asked for when the sender could not. */
  readonly sent: number
  /** Datagrams a second that arrived. */
  readonly received: number
}

/** The most that may get lost on the way, of 1. */
export const MAX_LOSS = 0.01
/** Rates tried lie this far apart. */
const STEP = 1.05
/** The lowest rate tried, as a share of what arrives of a flood, and of what was sent where next to nothing did. */
const LOWEST = { ofReceived: 1 / 16, ofSent: 1 / 1000 }

const isClean = ({ sent, received }: Trial): boolean => received >= sent * (1 - MAX_LOSS)

/**
 * The trial with the highest rate that loses at most 1%: first as fast as the sender can (rate 0), then by halving a
 * ladder of rates below. The verdict on a rate is that of two trials out of up to three, so that no single
 * hiccup decides. Undefined when even the lowest rate loses more.
 */
export async function highestCleanRate<T extends Trial>(attempt: (rate: number) => Promise<T>): Promise<T | undefined> {
  /** The slower of two clean trials; undefined when two were not clean. */
  const clean = async (rate: number, first?: T): Promise<T | undefined> => {
    const good: T[] = []
    for (let failures = 0, next = first; failures < 2; next = undefined) {
      const trial = next ?? (await attempt(rate))
      if (isClean(trial)) good.push(trial)
      else failures++
      const [one, other] = good
      if (one && other) return one.received < other.received ? one : other
    }
    return undefined
  }

  const flood = await attempt(0)
  let best = await clean(0, flood)
  if (best) return best
  // Rung 0 is too fast; the rates fall with the rung.
  let tooFast = 0
  const lowest = Math.max(flood.received * LOWEST.ofReceived, flood.sent * LOWEST.ofSent)
  let slowEnough = Math.ceil(Math.log(flood.sent / lowest) / Math.log(STEP)) + 1
  while (slowEnough - tooFast > 1) {
    const rung = (tooFast + slowEnough) >> 1
    const trial = await clean(flood.sent / STEP ** rung)
    if (trial) [slowEnough, best] = [rung, trial]
    else tooFast = rung
  }
  return best
}
