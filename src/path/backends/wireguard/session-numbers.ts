// session-numbers.ts - assigns numbers to the sessions; the engine finds a session by its number.
//
// The number of a removed session stays unused for NUMBER_REUSE_MS, because the engine's threads and waiting messages
// may still refer to it.

import { NUMBER_REUSE_MS } from './limits.ts'

/** All session numbers are less than MOST_SESSIONS; kMaxSessions in native/core/sessions.h has the same value. */
const MOST_SESSIONS = 1 << 20

export class SessionNumbers {
  /** The greatest session number that was assigned. */
  #last = 0
  /** The free session numbers, the oldest first. weftd may assign a number again from the time `from`. */
  readonly #free: { readonly number: number; readonly from: number }[] = []

  get last(): number {
    return this.#last
  }

  assign(now: number): number {
    const [first] = this.#free
    if (first && first.from <= now) {
      this.#free.shift()
      return first.number
    }
    if (this.#last + 1 >= MOST_SESSIONS) throw new Error(`more than ${MOST_SESSIONS} peers with keys`)
    return ++this.#last
  }

  release(number: number, now: number): void {
    this.#free.push({ number, from: now + NUMBER_REUSE_MS })
  }

  /**
   * Continues the numbering of an earlier process. That process assigned numbers up to `last`; the numbers in `used`
   * have a session.
   */
  resume(last: number, used: ReadonlySet<number>, now: number): void {
    this.#last = Math.min(last, MOST_SESSIONS - 1)
    for (let number = 1; number <= this.#last; number++) if (!used.has(number)) this.release(number, now)
  }
}
