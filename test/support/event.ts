// event.ts - how a test waits: for an event, as long as a slow and busy machine may need for it.

import { vi } from 'vitest'
import { EVENT_MS } from '../../lab/lab.ts'

const LOOK_MS = 50

/** Resolves with what `check` returns as soon as it does not throw; rejects with its last error after a minute. */
export const eventually = <T>(check: () => T | Promise<T>, { everyMs = LOOK_MS } = {}): Promise<T> =>
  vi.waitFor(check, { timeout: EVENT_MS, interval: everyMs })
