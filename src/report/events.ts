// events.ts - keeps the most recent lines of weftd's log in memory, for the status.

import type { StatusEvent } from './status.ts'

/**
 * The maximum number of warnings and errors that are kept. The same limit applies to info lines separately, so that
 * info lines do not displace warnings.
 */
const KEPT = 50

export interface Events {
  add(level: StatusEvent['level'], text: string): void
  /** Returns the kept log lines, oldest first. */
  last(): readonly StatusEvent[]
}

/** Creates the memory of log lines. `now` returns the wall-clock time in ms since 1970. */
export function createEvents(now: () => number = Date.now): Events {
  let added = 0
  const infos: [number, StatusEvent][] = []
  const problems: [number, StatusEvent][] = []
  return {
    add(level, text) {
      const list = level === 'info' ? infos : problems
      list.push([added++, { at: new Date(now()).toISOString(), level, text }])
      if (list.length > KEPT) list.shift()
    },
    last: () => [...infos, ...problems].toSorted(([a], [b]) => a - b).map(([, event]) => event),
  }
}
