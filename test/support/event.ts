// event.ts - how a test waits: for an event, as long as a slow and busy machine may need for it.

import { setTimeout as pause } from 'node:timers/promises'
import { EVENT_MS } from '../../lab/lab.ts'

const LOOK_MS = 50

/**
 * Resolves with what `check` returns as soon as it does not throw; rejects with its last error after a minute. Between two looks
 * it waits for twice as long as one takes: looks that start programs must not keep busy what they wait for.
 */
export async function eventually<T>(check: () => T | Promise<T>, { everyMs = LOOK_MS } = {}): Promise<T> {
  const begun = performance.now()
  for (;;) {
    const looked = performance.now()
    try {
      return await check()
    } catch (error) {
      const now = performance.now()
      if (now - begun > EVENT_MS) throw error
      await pause(Math.max(everyMs, 2 * (now - looked)))
    }
  }
}
