// view.ts - the view: the part of a node's status that the node serves to its peers, and the schema of /view.json.
// Pure. docs/status.md describes every field.
//
// A view contains neither lines of the log nor facts about the store. A view from another node is untrusted input.

import { conditionOf, type PeerStatus, type Status } from './status.ts'

const VIEW_SCHEMA = 1

/**
 * The maximum number of peers in a view, the part of a node's status that its peers may read. If the node has more
 * peers, peers with problems are included first.
 */
export const MOST_SEEN = 2_000
/** The maximum number of characters of a text in a view, the part of a node's status that its peers may read. */
const LONGEST = 300
/**
 * The maximum number of members of the network configuration in a view, the part of a node's status that its peers may
 * read.
 */
const MOST_MEMBERS = 64

/**
 * How a node reaches a peer, worst first. `stored`: the store has the peer's lease, but the node cannot send packets to
 * the peer; `silent`: the peer did not answer the last probe; `unknown`: the node did not probe the peer; `reached`:
 * the peer answered the last probe.
 */
const REACHES = ['stored', 'silent', 'unknown', 'reached'] as const
export type Reach = (typeof REACHES)[number]

/**
 * Returns the node's state, and in `trouble` the problems that explain the state. The problems of peers are left out,
 * because the member `seen` shows them; `trouble` is null if the node has no problem of its own.
 */
function ownState({ state, impairments, trouble }: Status): Pick<NodeView, 'state' | 'trouble'> {
  if (state !== 'impaired') return { state, trouble }
  const own = impairments.filter(({ by }) => by !== 'peers')
  return { state, trouble: own.length === 0 ? null : own.map(({ what }) => what).join('; ') }
}

/** How well the node that serves this JSON view reaches one of its peers. */
export interface Sight {
  /** The key of the peer's lease. */
  readonly lease: string
  readonly reach: Reach
  readonly roundTripMs: number | null
  readonly lossPercent: number | null
  /**
   * The length in bytes of the longest packet that reaches the peer. Null if this length is unknown, or if long packets
   * do not reach the peer but their senders get an ICMP error, so that no connection stalls.
   */
  readonly passesBytes: number | null
}

export interface NodeView {
  readonly schema: typeof VIEW_SCHEMA
  /** The time at which the node made this report, by the node's own clock. */
  readonly at: string
  readonly version: string
  readonly hostname: string | null
  readonly lease: string | null
  readonly state: string
  readonly trouble: string | null
  readonly mtu: number | null
  /** The network configuration that the node uses, each member as text, with secrets hidden. */
  readonly config: Readonly<Record<string, string>>
  /** The number of the node's peers. If there are more than MOST_SEEN, `seen` does not list all of them. */
  readonly peers: number
  readonly seen: readonly Sight[]
}

export function viewOf(status: Status, at: string): NodeView {
  const { daemon, node, lease, dataPath, config, peers } = status
  const seen = (peers?.list ?? []).map(sightOf)
  const most = seen.length > MOST_SEEN ? seen.toSorted((a, b) => rankOf(a) - rankOf(b)).slice(0, MOST_SEEN) : seen
  return {
    schema: VIEW_SCHEMA,
    at,
    version: daemon.version,
    hostname: node?.hostname ?? null,
    lease: lease?.key ?? null,
    ...ownState(status),
    mtu: dataPath?.mtu ?? null,
    config: config ? flat(config) : {},
    peers: seen.length,
    seen: most,
  }
}

const rankOf = ({ reach }: Sight): number => REACHES.indexOf(reach)

function sightOf(peer: PeerStatus): Sight {
  const { lease, state, roundTripMs, lossPercent, path } = peer
  const condition = conditionOf(peer)
  const reach =
    state === 'answering' ? 'reached' : state === 'stored' ? 'stored' : condition === 'silent' ? 'silent' : 'unknown'
  const isReported = path === 'narrow' && condition === 'answering'
  const passesBytes = isReported ? null : peer.passesBytes
  return { lease, reach, roundTripMs, lossPercent, passesBytes }
}

/** Flattens the network configuration: the member `Type` of the backend becomes `backend.Type`. */
function flat(config: NonNullable<Status['config']>): Record<string, string> {
  // Convert the configuration to JSON and parse it again, because the conversion replaces its secrets by placeholders.
  const { backend, ...members } = JSON.parse(JSON.stringify(config)) as typeof config
  const textOf = (value: unknown): string =>
    (typeof value === 'string' ? value : JSON.stringify(value)).slice(0, LONGEST)
  const all = [
    ...Object.entries(members),
    ...Object.entries(backend).map(([name, value]) => [`backend.${name}`, value] as const),
  ]
  // Omit `backend.type`, because the member `backendType` has the same value, and is set even if the configuration
  // names no type.
  const known = all.filter(([name, value]) => value !== null && name !== 'backend.type')
  return Object.fromEntries(
    known.slice(0, MOST_MEMBERS).map(([name, value]) => [name.slice(0, LONGEST), textOf(value)]),
  )
}

type Members = Readonly<Record<string, unknown>>
const isMembers = (value: unknown): value is Members =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const textOr = (value: unknown): string | null => (typeof value === 'string' ? value.slice(0, LONGEST) : null)
const numberOr = (value: unknown): number | null =>
  typeof value === 'number' && Number.isFinite(value) && value >= 0 ? value : null

/** Parses the state (view) that another node returned. Throws an Error with the reason if the text is invalid. */
export function readView(text: string): NodeView {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw new Error('its view is not JSON')
  }
  if (!isMembers(value)) throw new Error('its answer is not a view of a node')
  const { schema, at, version, hostname, lease, state, trouble, mtu, config, peers, seen } = value
  if (schema !== VIEW_SCHEMA) throw new Error(`its view does not have version ${VIEW_SCHEMA}`)
  const time = textOr(at)
  if (time === null || Number.isNaN(Date.parse(time))) throw new Error('its view has no valid time')
  const members = isMembers(config) ? Object.entries(config).slice(0, MOST_MEMBERS) : []
  const sights = Array.isArray(seen) ? seen.slice(0, MOST_SEEN).flatMap((each) => readSight(each) ?? []) : []
  return {
    schema: VIEW_SCHEMA,
    at: time,
    version: textOr(version) ?? '',
    hostname: textOr(hostname),
    lease: textOr(lease),
    state: textOr(state) ?? '',
    trouble: textOr(trouble),
    mtu: numberOr(mtu),
    config: Object.fromEntries(members.map(([name, each]) => [name.slice(0, LONGEST), textOr(each) ?? ''])),
    peers: numberOr(peers) ?? sights.length,
    seen: sights,
  }
}

function readSight(value: unknown): Sight | undefined {
  if (!isMembers(value)) return undefined
  const lease = textOr(value['lease'])
  const reach = REACHES.find((each) => each === value['reach'])
  if (lease === null || reach === undefined) return undefined
  const [roundTripMs, lossPercent] = [numberOr(value['roundTripMs']), numberOr(value['lossPercent'])]
  return { lease, reach, roundTripMs, lossPercent, passesBytes: numberOr(value['passesBytes']) }
}
