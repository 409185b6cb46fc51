// peer-events.ts - what befell the peers: what is told of it, kept in a fixed number, as /events.json and the file beside subnet.env have
// it; docs/status.md has every field. Pure.
//
// As with the status, a field may be added under the same version, and what is not known is null.

import { FAMILIES, FAMILY_NAMES, type Family } from '../net/address.ts'

export const EVENTS_SCHEMA = 1

/** What can befall a peer: each that ends something stands after what it ends. */
export const PEER_EVENTS = [
  'silent',
  'one-way',
  'back',
  'moved',
  'narrow',
  'whole',
  'slow',
  'usual',
  'rerouted',
] as const
export type PeerEventKind = (typeof PEER_EVENTS)[number]

export interface PeerEvent {
  /** By the clock of the day. */
  readonly at: string
  readonly what: PeerEventKind
  /** The peer's subnet and address of the family. */
  readonly peer: string
  readonly publicIp: string
  readonly family: Family
  /** The time that what ends by it has lasted; null of what begins, and where a clock that was set says nothing of it. */
  readonly afterSeconds: number | null
  /** The address before, of a peer that moved; or by which it was reached, of one that is rerouted. */
  readonly movedFrom: string | null
  /** The longest packet that comes back, of a path that is narrow. */
  readonly bytes: number | null
  /** The round trip, and the usual one, of a peer that is slow or is no more. */
  readonly roundTripMs: number | null
  readonly usualMs: number | null
}

export interface EventsReport {
  readonly schema: typeof EVENTS_SCHEMA
  readonly at: string
  /** In the order in which they came to be known. */
  readonly events: readonly PeerEvent[]
}

/** The answer of a daemon without a node. */
export const eventsReport = (at: string, events: readonly PeerEvent[] = []): EventsReport => ({
  schema: EVENTS_SCHEMA,
  at,
  events,
})

/** So many events are kept. */
export const MOST_EVENTS = 1_000

/** Which peer and family an event is of. */
export const placeOf = ({ peer, family }: Pick<PeerEvent, 'peer' | 'family'>): string => `${family} ${peer}`

export interface PeerEvents {
  add(event: PeerEvent): void
  /** Takes over those of a process before this one: they stand before all that were added here, in place of what was taken over before. */
  adopt(older: readonly PeerEvent[]): void
  /** The oldest first. */
  list(): readonly PeerEvent[]
  /** The last one of a peer by a family, of these kinds. */
  last(place: Pick<PeerEvent, 'peer' | 'family'>, kinds: readonly PeerEventKind[]): PeerEvent | undefined
  /** The number of those that were added here, kept or not. */
  counts(): Readonly<Record<PeerEventKind, number>>
}

/** When there are more than `most`, the oldest of whichever peer has most goes: one that comes and goes pushes no other out. */
export function createPeerEvents(most = MOST_EVENTS): PeerEvents {
  let older: PeerEvent[] = []
  const own: PeerEvent[] = []
  const counts = Object.fromEntries(PEER_EVENTS.map((kind) => [kind, 0])) as Record<PeerEventKind, number>
  function bound(): void {
    while (older.length + own.length > most) {
      const numbers = new Map<string, number>()
      for (const event of [...older, ...own]) numbers.set(placeOf(event), (numbers.get(placeOf(event)) ?? 0) + 1)
      const [busiest] = [...numbers].reduce((a, b) => (b[1] > a[1] ? b : a))
      const isIts = (event: PeerEvent): boolean => placeOf(event) === busiest
      const list = older.some(isIts) ? older : own
      list.splice(list.findIndex(isIts), 1)
    }
  }
  return {
    add(event) {
      counts[event.what]++
      own.push(event)
      bound()
    },
    adopt(events) {
      older = events.slice(-most)
      bound()
    },
    list: () => [...older, ...own],
    last({ peer, family }, kinds) {
      const isIt = (event: PeerEvent): boolean =>
        event.peer === peer && event.family === family && kinds.includes(event.what)
      return own.findLast(isIt) ?? older.findLast(isIt)
    },
    counts: () => ({ ...counts }),
  }
}

/** The file's text: an event a line, after a line with the version. */
export const eventsText = (events: readonly PeerEvent[]): string =>
  [{ version: EVENTS_SCHEMA }, ...events].map((each) => `${JSON.stringify(each)}\n`).join('')

/** Reads such a text; lines that are no events are left out. Throws Error when it is of another version, or no such text at all. */
export function parseEvents(text: string): PeerEvent[] {
  const [first = '', ...lines] = text.split('\n')
  const version = fieldsOf(first)?.['version']
  if (version !== EVENTS_SCHEMA)
    throw new Error(`its version is ${String(version)}, and this weft knows ${EVENTS_SCHEMA}`)
  return lines.flatMap((line) => eventOf(fieldsOf(line)) ?? []).slice(-MOST_EVENTS)
}

type Fields = Readonly<Record<string, unknown>>

function fieldsOf(line: string): Fields | undefined {
  try {
    const value = JSON.parse(line) as unknown
    return typeof value === 'object' && value !== null ? (value as Fields) : undefined
  } catch {
    return undefined
  }
}

/** No text of an event is longer. */
const MOST_TEXT = 100

function eventOf(fields: Fields | undefined): PeerEvent | undefined {
  if (!fields) return undefined
  const text = (name: string): string | undefined => {
    const value = fields[name]
    return typeof value === 'string' && value.length <= MOST_TEXT ? value : undefined
  }
  const number = (name: string): number | null => {
    const value = fields[name]
    return typeof value === 'number' && Number.isFinite(value) && value >= 0 ? value : null
  }
  const [at, peer, publicIp] = [text('at'), text('peer'), text('publicIp')]
  const what = PEER_EVENTS.find((kind) => kind === fields['what'])
  const family = FAMILIES.find((each) => each === fields['family'])
  if (at === undefined || Number.isNaN(Date.parse(at)) || !peer || publicIp === undefined || !what || !family)
    return undefined
  return {
    at,
    what,
    peer,
    publicIp,
    family,
    afterSeconds: number('afterSeconds'),
    movedFrom: text('movedFrom') ?? null,
    bytes: number('bytes'),
    roundTripMs: number('roundTripMs'),
    usualMs: number('usualMs'),
  }
}

/** What befell a peer, in words for a person. */
export function peerEventText(event: PeerEvent, duration: (seconds: number) => string): string {
  const { what, publicIp, family, afterSeconds, movedFrom, bytes, roundTripMs, usualMs } = event
  const after = afterSeconds === null ? '' : `, after ${duration(afterSeconds)}`
  const by = family === 'ipv4' ? '' : ` by ${FAMILY_NAMES[family]}`
  switch (what) {
    case 'silent':
      return `does not answer${by} any more`
    case 'one-way':
      return `sends${by}, but what is sent to it is lost`
    case 'back':
      return `answers${by} again${after}`
    case 'moved':
      return `moved from ${movedFrom} to ${publicIp}`
    case 'rerouted':
      return `is reached at ${publicIp} now, and no more at ${movedFrom}`
    case 'narrow':
      return `packets${by} of more than ${bytes} bytes do not come back`
    case 'whole':
      return `long packets${by} come back again${after}`
    case 'slow':
      return `round trip${by} ${roundTripMs} ms, usually ${usualMs} ms`
    case 'usual':
      return `round trip${by} as usual again, ${roundTripMs} ms${after}`
  }
}
