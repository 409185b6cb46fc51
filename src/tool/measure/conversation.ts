// conversation.ts - the protocol between the two hosts of `weft bench`, and the validation of its messages. Pure.
//
// All TCP connections go to one port of the listener. Messages are lines of JSON, and the first line says what the
// connection is for. One leading connection carries the requests and their answers. The other connections carry the
// measured data: streams that the listener discards, and on each path one echo connection whose data the listener sends
// back. UDP datagrams go to the same port number, and begin with the run's identifier and a sequence number.

/** The version of the protocol of `weft bench`. A message of another version counts as unreadable. */
const VERSION = 1
export const DEFAULT_PORT = 8286
/** The largest values that a run may request from a listener. */
export const LIMITS = { seconds: 60, streams: 64, datagrams: 2 ** 26 } as const

/** The facts about a host's data path that explain the measured figures. */
export interface InUse {
  readonly subnet: string
  readonly backendType: string
  readonly device: string | null
  readonly engine: string | null
  readonly mtu: number | null
  /** The MTU in bytes of the path to the other host, if this MTU is smaller than `mtu`; else null. */
  readonly pathMtu: number | null
  readonly features: readonly string[]
}

export type Counts = Readonly<Record<string, number>>

export type Greeting =
  | { readonly wants: 'run'; readonly inside: string }
  | { readonly wants: 'stream' | 'echo'; readonly run: string }

export type Request =
  | { readonly ask: 'tcp'; readonly streams: number; readonly seconds: number }
  /**
   * The request to count at most `datagrams` UDP datagrams, with sequence numbers from `first`. The numbers increase
   * over the whole run, so that a late datagram is not counted in a later sample.
   */
  | { readonly ask: 'udp'; readonly first: number; readonly datagrams: number }
  | { readonly ask: 'sent'; readonly datagrams: number }
  | { readonly ask: 'end' }

/** The listener's last message before it closes a connection: why it refuses the connection. */
export interface Refusal {
  readonly refused: string
}
interface Welcome {
  /** The run's identifier: 16 random hexadecimal digits. */
  readonly run: string
  /** The facts about the listener's data path; null if no weftd answers on the listener's host. */
  readonly inUse: InUse | null
}
export interface Received {
  readonly bytes: number
  /** The seconds from the first received byte to the end of the sample. */
  readonly seconds: number
  /** The fraction of a CPU core that the listener used during `seconds`. */
  readonly busy: number
}
export interface Arrived {
  readonly datagrams: number
  /** The number of datagrams that arrived after a datagram with a higher sequence number. */
  readonly reordered: number
  /**
   * The number of datagrams that reached the listener's host but were discarded because the listener's socket buffer
   * was full. `datagrams` does not count these.
   */
  readonly overflowed: number
}
interface Ended {
  /** The packets dropped on the listener's host during the run, by reason; null if no weftd answers on that host. */
  readonly drops: Counts | null
}

type Fields = Readonly<Record<string, unknown>>

/** Parses a message of this protocol version; returns undefined for any other text. */
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
/** Replaces control characters in a text from the other host, because `weft bench` shows the text on a terminal. */
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
  const valid = counts?.filter((each): each is [string, number] => isAmount(each[1]))
  return { drops: valid ? Object.fromEntries(valid.map(([name, count]) => [shown(name), count])) : null }
}

/** The length in bytes of the header of a datagram: the run's identifier (8) and the sequence number (4). */
export const DATAGRAM_HEADER_BYTES = 12

export function writeDatagramHeader(datagram: Uint8Array, run: string, number: number): void {
  const view = new DataView(datagram.buffer, datagram.byteOffset, datagram.byteLength)
  view.setBigUint64(0, BigInt(`0x${run}`))
  view.setUint32(8, number)
}

/** Returns the sequence number in a datagram; undefined if the datagram does not belong to the run `run`. */
export function readDatagramNumber(datagram: Uint8Array, run: string): number | undefined {
  if (datagram.byteLength < DATAGRAM_HEADER_BYTES) return undefined
  const view = new DataView(datagram.buffer, datagram.byteOffset, datagram.byteLength)
  return view.getBigUint64(0) === BigInt(`0x${run}`) ? view.getUint32(8) : undefined
}
