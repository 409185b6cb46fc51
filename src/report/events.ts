// events.ts - the last lines of the log, for whoever asks how the node is.

import type { StatusEvent } from './status.ts'

/** Warnings and errors, and as many of the rest: what goes on all the time must not push out what matters. */
const KEPT = 50

export interface Events {
  /** Is told each line of the log. */
  hear(level: StatusEvent['level'], text: string): void
  /** The last of them, the oldest first. */
  last(): readonly StatusEvent[]
}

/** `now` is the clock of the day in ms. */
export function createEvents(now: () => number = Date.now): Events {
  let heard = 0
  const usual: [number, StatusEvent][] = []
  const troubles: [number, StatusEvent][] = []
  return {
    hear(level, text) {
      const list = level === 'info' ? usual : troubles
      list.push([heard++, { at: new Date(now()).toISOString(), level, text }])
      if (list.length > KEPT) list.shift()
    },
    last: () => [...usual, ...troubles].toSorted(([a], [b]) => a - b).map(([, event]) => event),
  }
}
