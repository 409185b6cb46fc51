// peer-events.ts - the events of the peers: a list of limited length, the schema of /events.json, and the format of the
// events file next to subnet.env. Pure. docs/status.md describes every field.
//
// Later versions of weft may add fields without a new schema version. Unknown values are null.

import { FAMILIES, FAMILY_NAMES, type Family } from '../net/address.ts'

export const EVENTS_SCHEMA = 1

/**
 * The kinds of events of a peer. Each kind that begins a condition of a peer is followed by the kind that ends this
 * condition.
 */
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
  /** When the event happened by the wall clock, ISO 8601 in UTC. */
  readonly at: string
  readonly what: PeerEventKind
  /** The peer's subnet in the event's family; `publicIp` is the peer's underlay address. */
  readonly peer: string
  readonly publicIp: string
  readonly family: Family
  /**
   * The duration, in seconds, of the condition that this event ends. Null if the event begins a condition, or if the
   * clock was set during the condition.
   */
  readonly afterSeconds: number | null
  /** The peer's previous address, if the event is `moved` or `rerouted`; else null. */
  readonly movedFrom: string | null
  /** The longest packet in bytes that the peer still answers, if the event is `narrow`; else null. */
  readonly bytes: number | null
  /** The measured round trip in ms, if the event is `slow` or `usual`; else null. `usualMs` is the usual round trip. */
  readonly roundTripMs: number | null
  readonly usualMs: number | null
}

export interface EventsReport {
  readonly schema: typeof EVENTS_SCHEMA
  readonly at: string
  /** The events of the peers, in the order in which weftd noticed them. */
  readonly events: readonly PeerEvent[]
}

/** Makes the report of peers' events. If weftd has no lease yet, the report has no events. */
export const eventsReport = (at: string, events: readonly PeerEvent[] = []): EventsReport => ({
  schema: EVENTS_SCHEMA,
  at,
  events,
})

export const MOST_EVENTS = 1_000

/** Returns a key that identifies the peer and the family of an event. */
export const placeOf = ({ peer, family }: Pick<PeerEvent, 'peer' | 'family'>): string => `${family} ${peer}`

export interface PeerEvents {
  add(event: PeerEvent): void
  /**
   * Puts the events of earlier processes, read from the events file, before all events of this process. Replaces the
   * events that an earlier call of `adopt` put there.
   */
  adopt(older: readonly PeerEvent[]): void
  /** Returns the recorded events of earlier processes and of this process, oldest first. */
  list(): readonly PeerEvent[]
  /** Returns the latest event of the given kinds for a peer in a family; undefined if there is none. */
  last(place: Pick<PeerEvent, 'peer' | 'family'>, kinds: readonly PeerEventKind[]): PeerEvent | undefined
  /**
   * The number of events of each kind that were added in this process, including events that the list has deleted
   * since.
   */
  counts(): Readonly<Record<PeerEventKind, number>>
}

/**
 * Creates a list of at most `most` events. When the list is full, it deletes the oldest event of the peer with the most
 * events. So an unstable peer does not displace the events of other peers.
 */
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

/** Formats the events file: a line with the version of the format, then one line per event. */
export const eventsText = (events: readonly PeerEvent[]): string =>
  [{ version: EVENTS_SCHEMA }, ...events].map((each) => `${JSON.stringify(each)}\n`).join('')

/**
 * Parses the events file and skips invalid lines. Throws Error if the first line has no version, or not EVENTS_SCHEMA.
 */
export function parseEvents(text: string): PeerEvent[] {
  const [first = '', ...lines] = text.split('\n')
  const version = fieldsOf(first)?.['version']
  if (version !== EVENTS_SCHEMA)
    throw new Error(`its version is ${String(version)}, and this weft reads version ${EVENTS_SCHEMA}`)
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

/** Describes an event by words that are printed after the name of the peer. */
export function peerEventText(event: PeerEvent, duration: (seconds: number) => string): string {
  const { what, publicIp, family, afterSeconds, movedFrom, bytes, roundTripMs, usualMs } = event
  const after = afterSeconds === null ? '' : `, after ${duration(afterSeconds)}`
  const by = family === 'ipv4' ? '' : ` over ${FAMILY_NAMES[family]}`
  switch (what) {
    case 'silent':
      return `no longer answers${by}`
    case 'one-way':
      return `sends packets${by}, but does not answer: packets to it are lost, or its firewall drops the echo requests`
    case 'back':
      return `answers${by} again${after}`
    case 'moved':
      return `moved from ${movedFrom} to ${publicIp}`
    case 'rerouted':
      return `is now reached at ${publicIp} instead of ${movedFrom}`
    case 'narrow':
      return `packets longer than ${bytes} bytes do not come back${by}`
    case 'whole':
      return `long packets come back${by} again${after}`
    case 'slow':
      return `round trip${by} of ${roundTripMs} ms, usually ${usualMs} ms`
    case 'usual':
      return `round trip${by} as usual again, ${roundTripMs} ms${after}`
  }
}
