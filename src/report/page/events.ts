// events.ts - shows the most recent lines of the node's log and events of its peers, newest first.

import type { StatusEvent } from '../status.ts'
import { byId, createList, elementOf, h } from './dom.ts'
import { clockText } from './format.ts'

const SIGNS = { info: '·', warn: '!', error: '✕' } as const
const NAMES = { info: 'note', warn: 'warning', error: 'error' } as const

export function createEventList() {
  const isBrief = elementOf(HTMLInputElement, 'events-brief')
  let events: readonly StatusEvent[] = []
  const showLines = createList<StatusEvent & { readonly key: string }>(
    byId('event-list'),
    ({ key }) => key,
    ({ at, level, text }) => {
      const time = h('time', { datetime: at }, clockText(new Date(at)))
      const sign = h('span', { class: 'sign', 'aria-hidden': 'true' }, SIGNS[level])
      const name = h('span', { class: 'unseen' }, `${NAMES[level]}: `)
      const element = h('li', { 'data-level': level }, time, sign, h('span', {}, name, text))
      return { element, show: () => {} }
    },
  )
  function show(): void {
    const shown = events.filter(({ level }) => !isBrief.checked || level !== 'info')
    // The number of lines so far that have the same time and the same text. This number is a part of the line's key, so
    // that equal lines have different keys.
    const seen = new Map<string, number>()
    const keyed = shown.map((event) => {
      const same = `${event.at} ${event.level} ${event.text}`
      const number = (seen.get(same) ?? 0) + 1
      seen.set(same, number)
      return { ...event, key: `${number} ${same}` }
    })
    showLines(keyed.toReversed())
    byId('no-events').hidden = shown.length > 0
  }
  isBrief.addEventListener('change', show)
  return {
    show(now: readonly StatusEvent[]): void {
      events = now
      show()
    },
  }
}
