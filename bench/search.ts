// search.ts - searches for the highest packet rate at which at most 1% of the packets are lost. The caller provides the
// function that sends and counts packets; search.ts does no I/O.

export interface Trial {
  /**
   * The number of datagrams per second that were sent. This number is below the requested rate if the sender was too
   * slow.
   */
  readonly sent: number
  readonly received: number
}

export const MAX_LOSS = 0.01
/** The factor between two neighbouring rates that the search can try. */
const STEP = 1.05
/**
 * The lowest rate that the search tries, as a fraction of a rate in the first trial, in which the sender sends as fast
 * as it can. `ofReceived` applies to the rate that arrived. If almost nothing arrived, `ofSent` applies to the rate
 * that was sent.
 */
const LOWEST = { ofReceived: 1 / 16, ofSent: 1 / 1000 }

const isClean = ({ sent, received }: Trial): boolean => received >= sent * (1 - MAX_LOSS)

/**
 * Returns the trial with the highest rate that loses at most 1% of the datagrams. The search first tries rate 0 (as
 * fast as the sender can), then bisects the lower rates. A rate is accepted if two of at most three trials lose at most
 * 1%, so that one disturbance does not decide. Returns undefined if even the lowest rate loses more.
 */
export async function highestCleanRate<T extends Trial>(attempt: (rate: number) => Promise<T>): Promise<T | undefined> {
  /**
   * Tries a rate two or three times. After two trials with at most 1% loss, returns the trial that received less. After
   * two trials with more loss, returns undefined.
   */
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
  // The search counts in steps below the rate of the flood (the trial at full speed): at step `rung` the rate is
  // flood.sent / STEP ** rung. Step 0 is known to lose too much.
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
