// events.ts - keeps the most recent lines of the log, for the status.

import type { StatusEvent } from './status.ts'

/** The maximum number of warnings and errors, and separately of other lines, so that routine lines do not displace warnings. */
const KEPT = 50

export interface Events {
  /** Adds a line of the log. */
  add(level: StatusEvent['level'], text: string): void
  /** Returns the lines, oldest first. */
  last(): readonly StatusEvent[]
}

/** `now` returns the wall-clock time in ms. */
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
