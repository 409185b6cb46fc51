// conversation.ts - what the two ends of `weft bench` say to each other, and what of it each believes. Pure.
//
// A line of JSON each, on connections that all go to the listener's one TCP port. What a connection is for stands in its first
// line. One leads the run: it asks, and is answered, in turn. The others carry what is measured: streams that are read and thrown
// away, and one on each path whose bytes come back. UDP datagrams go to the same port and begin with the run's mark and a number.

/** The version of the conversation; another one is not understood. */
const VERSION = 1
export const DEFAULT_PORT = 8286
/** The most that a run may ask of a listener. */
export const LIMITS = { seconds: 60, streams: 64, datagrams: 2 ** 26 } as const

/** The carrier of packets on a host, as far as it explains a figure. */
export interface InUse {
  readonly subnet: string
  readonly backendType: string
  readonly device: string | null
  readonly engine: string | null
  readonly mtu: number | null
  /** The MTU of the path to the other end, where it is less. */
  readonly pathMtu: number | null
  readonly features: readonly string[]
}

export type Counts = Readonly<Record<string, number>>

/** The first line of a connection. */
export type Greeting =
  | { readonly wants: 'run'; readonly inside: string }
  | { readonly wants: 'stream' | 'echo'; readonly run: string }

/** The requests of the leading connection. */
export type Request =
  | { readonly ask: 'tcp'; readonly streams: number; readonly seconds: number }
  /**
   * Datagrams from `first` on are to be counted, so many at most; the numbers go on through a run, so that a late one
   * counts nowhere else.
   */
  | { readonly ask: 'udp'; readonly first: number; readonly datagrams: number }
  /** Says how many were sent. */
  | { readonly ask: 'sent'; readonly datagrams: number }
  | { readonly ask: 'end' }

/** The reason why a connection is of no use; it is closed then. */
export interface Refusal {
  readonly refused: string
}
interface Welcome {
  /** The mark of the run: 16 hexadecimal digits. */
  readonly run: string
  /** Null where no weftd could be asked. */
  readonly inUse: InUse | null
}
export interface Received {
  readonly bytes: number
  /** The time from the first byte on. */
  readonly seconds: number
  /** The part of a core that the listener itself took meanwhile, 1 for a whole one. */
  readonly busy: number
}
export interface Arrived {
  /** Each counted once. */
  readonly datagrams: number
  /** The datagrams that came after a later one. */
  readonly reordered: number
  /** The datagrams that arrived besides when the listener's own socket was full. */
  readonly overflowed: number
}
interface Ended {
  /** The packets that were dropped on the listener's host during the run, by reason; null when no weftd could be asked. */
  readonly drops: Counts | null
}

type Fields = Readonly<Record<string, unknown>>

/** The fields of a line in our version; undefined for anything else. */
function fieldsOf(line: string): Fields | undefined {
  try {
    const value = JSON.parse(line) as unknown
    return typeof value === 'object' && value !== null && 'weftBench' in value && value.weftBench === VERSION
      ? { ...value }
      : undefined
  } catch {
    return undefined
  }
}

export const lineOf = (message: object): string => `${JSON.stringify({ weftBench: VERSION, ...message })}\n`

const isMark = (value: unknown): value is string => typeof value === 'string' && /^[0-9a-f]{16}$/.test(value)
const isWhole = (value: unknown, most: number): value is number =>
  Number.isInteger(value) && Number(value) >= 0 && Number(value) <= most
const isAmount = (value: unknown): value is number => Number.isFinite(value) && Number(value) >= 0
/** Cleans a text that is shown on a terminal, which must not be written to by another host. */
const shown = (value: unknown): string => (typeof value === 'string' ? value.replaceAll(/[^\x20-\x7e]/g, '?') : '')

export function readGreeting(line: string): Greeting | undefined {
  const { wants, inside, run } = fieldsOf(line) ?? {}
  if (wants === 'run' && typeof inside === 'string') return { wants, inside }
  return (wants === 'stream' || wants === 'echo') && isMark(run) ? { wants, run } : undefined
}

export function readRequest(line: string): Request | undefined {
  const { ask, streams, seconds, first, datagrams } = fieldsOf(line) ?? {}
  const isCount = isWhole(datagrams, LIMITS.datagrams)
  switch (ask) {
    case 'tcp': {
      const isAllowed = isWhole(streams, LIMITS.streams) && streams > 0 && isAmount(seconds) && seconds > 0
      return isAllowed && seconds <= LIMITS.seconds ? { ask, streams, seconds } : undefined
    }
    case 'udp':
      return isCount && isWhole(first, 2 ** 32 - 1) ? { ask, first, datagrams } : undefined
    case 'sent':
      return isCount ? { ask, datagrams } : undefined
    case 'end':
      return { ask }
    default:
      return undefined
  }
}

export function readRefusal(line: string): Refusal | undefined {
  const { refused } = fieldsOf(line) ?? {}
  return refused === undefined ? undefined : { refused: shown(refused) }
}

export function readWelcome(line: string): Welcome | undefined {
  const { run, inUse } = fieldsOf(line) ?? {}
  return isMark(run) ? { run, inUse: readInUse(inUse) } : undefined
}

function readInUse(value: unknown): InUse | null {
  if (typeof value !== 'object' || value === null) return null
  const { subnet, backendType, device, engine, mtu, pathMtu, features } = value as Fields
  const orNull = (text: unknown): string | null => (typeof text === 'string' ? shown(text) : null)
  return {
    subnet: shown(subnet),
    backendType: shown(backendType),
    device: orNull(device),
    engine: orNull(engine),
    mtu: isAmount(mtu) ? mtu : null,
    pathMtu: isAmount(pathMtu) ? pathMtu : null,
    features: Array.isArray(features) ? features.map(shown) : [],
  }
}

/** True when the request may begin. */
export const isReady = (line: string): boolean => fieldsOf(line)?.['ready'] === true

export function readReceived(line: string): Received | undefined {
  const { bytes, seconds, busy } = fieldsOf(line) ?? {}
  return isAmount(bytes) && isAmount(seconds) && isAmount(busy) ? { bytes, seconds, busy } : undefined
}

export function readArrived(line: string): Arrived | undefined {
  const { datagrams, reordered, overflowed } = fieldsOf(line) ?? {}
  const isRead = isAmount(datagrams) && isAmount(reordered) && isAmount(overflowed)
  return isRead ? { datagrams, reordered, overflowed } : undefined
}

export function readEnded(line: string): Ended | undefined {
  const fields = fieldsOf(line)
  const drops = fields?.['drops']
  if (drops === undefined) return undefined
  const counts = typeof drops === 'object' && drops !== null ? Object.entries(drops as Fields) : undefined
  const believed = counts?.filter((each): each is [string, number] => isAmount(each[1]))
  return { drops: believed ? Object.fromEntries(believed.map(([name, count]) => [shown(name), count])) : null }
}

/** The bytes before a datagram's filling: the run's mark, its number. */
export const DATAGRAM_HEADER_BYTES = 12

export function writeDatagramHeader(datagram: Uint8Array, run: string, number: number): void {
  const view = new DataView(datagram.buffer, datagram.byteOffset, datagram.byteLength)
  view.setBigUint64(0, BigInt(`0x${run}`))
  view.setUint32(8, number)
}

/** The number of a datagram; undefined when it is none of this run. */
export function readDatagramNumber(datagram: Uint8Array, run: string): number | undefined {
  if (datagram.byteLength < DATAGRAM_HEADER_BYTES) return undefined
  const view = new DataView(datagram.buffer, datagram.byteOffset, datagram.byteLength)
  return view.getBigUint64(0) === BigInt(`0x${run}`) ? view.getUint32(8) : undefined
}
