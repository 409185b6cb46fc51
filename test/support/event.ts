// event.ts - waits for an event as long as a slow and busy machine may need for it.

import { vi } from 'vitest'
import { EVENT_MS } from '../../lab/lab.ts'

const LOOK_MS = 50

/**
 * Resolves with the result of `check` as soon as it does not throw; rejects with its last error after a minute. The pause between two
 * checks is twice the duration of a check, so that checks that start programs do not keep the machine busy.
 */
export function eventually<T>(check: () => T | Promise<T>, { everyMs = LOOK_MS } = {}): Promise<T> {
  let before: unknown
  let next = 0
  const look = async (): Promise<T> => {
    const begun = performance.now()
    if (begun < next) throw before
    try {
      return await check()
    } catch (error) {
      before = error
      const now = performance.now()
      next = now + 2 * (now - begun)
      throw error
    }
  }
  return vi.waitFor(look, { timeout: EVENT_MS, interval: everyMs })
}
