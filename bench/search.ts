// search.ts - searches the highest rate that arrives without loss. The caller runs the trials; this file does no I/O.

export interface Trial {
  /** Sent datagrams a second; below the requested rate if the sender was too slow. */
  readonly sent: number
  readonly received: number
}

export const MAX_LOSS = 0.01
/** The ratio of two neighbouring rates. */
const STEP = 1.05
/** The lowest rate of the search: a share of the received rate of a flood, or of its sent rate if almost nothing arrived. */
const LOWEST = { ofReceived: 1 / 16, ofSent: 1 / 1000 }

const isClean = ({ sent, received }: Trial): boolean => received >= sent * (1 - MAX_LOSS)

/**
 * Returns the trial with the highest rate that loses at most 1%. It first tries rate 0 (as fast as the sender can), then
 * bisects the lower rates. Two of at most three trials decide for each rate, so that one hiccup does not matter. Returns undefined if even the
 * lowest rate loses more.
 */
export async function highestCleanRate<T extends Trial>(attempt: (rate: number) => Promise<T>): Promise<T | undefined> {
  /** Returns the slower of two clean trials, or undefined after two trials with loss. */
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
  // The rate is flood.sent / STEP ** rung. Rung 0 is too fast.
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
