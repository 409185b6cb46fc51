// view.ts - what a node tells the other nodes of itself: the schema of /view.json; docs/status.md has every field. Pure.
//
// Less than the status: nothing of the log, nothing of the store. Whoever reads one that another node wrote believes none of it.

import { conditionOf, type PeerStatus, type Status } from './status.ts'

const VIEW_SCHEMA = 1

/** The peers that are told of; of more those with a problem. */
export const MOST_SEEN = 2_000
/** The longest text that is read, and the most members of a configuration. */
const LONGEST = 300
const MOST_MEMBERS = 64

/** `reached`: it answered the last probe; `silent`: it did not; `stored`: no packet can go to it; `unknown`: it was not asked. */
const REACHES = ['stored', 'silent', 'unknown', 'reached'] as const
export type Reach = (typeof REACHES)[number]

/** The node's state. The trouble of an impaired node leaves its peers out, because `seen` has them; null if there is no other trouble. */
function ownState({ state, impairments, trouble }: Status): Pick<NodeView, 'state' | 'trouble'> {
  if (state !== 'impaired') return { state, trouble }
  const own = impairments.filter(({ by }) => by !== 'peers')
  return { state, trouble: own.length === 0 ? null : own.map(({ what }) => what).join('; ') }
}

/** A peer, as the node that tells it sees it. */
export interface Sight {
  /** The key of its lease. */
  readonly lease: string
  readonly reach: Reach
  readonly roundTripMs: number | null
  readonly lossPercent: number | null
  /** The longest packet that reaches it; null where that is not known. */
  readonly passesBytes: number | null
}

export interface NodeView {
  readonly schema: typeof VIEW_SCHEMA
  /** The time by its clock when it told this. */
  readonly at: string
  readonly version: string
  readonly hostname: string | null
  readonly lease: string | null
  readonly state: string
  readonly trouble: string | null
  readonly mtu: number | null
  /** The network configuration that it runs, each member as text; what is secret is hidden. */
  readonly config: Readonly<Record<string, string>>
  /** The number of peers; `seen` may have fewer. */
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
  const { lease, state, roundTripMs, lossPercent, passesBytes } = peer
  const reach =
    state === 'answering'
      ? 'reached'
      : state === 'stored'
        ? 'stored'
        : conditionOf(peer) === 'silent'
          ? 'silent'
          : 'unknown'
  return { lease, reach, roundTripMs, lossPercent, passesBytes }
}

/** `{"Type":"udp"}` of the backend as `backend.Type`. */
function flat(config: NonNullable<Status['config']>): Record<string, string> {
  // What is secret prints as hidden.
  const { backend, ...members } = JSON.parse(JSON.stringify(config)) as typeof config
  const textOf = (value: unknown): string =>
    (typeof value === 'string' ? value : (JSON.stringify(value) ?? '')).slice(0, LONGEST)
  const all = [
    ...Object.entries(members),
    ...Object.entries(backend).map(([name, value]) => [`backend.${name}`, value] as const),
  ]
  // The backend's type stands among the other members too, where it is the default as well.
  const known = all.filter(([name, value]) => value !== null && value !== undefined && name !== 'backend.type')
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

/** A view that another node wrote. Throws an Error that says why it is none. */
export function readView(text: string): NodeView {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw new Error('what it tells is no JSON')
  }
  if (!isMembers(value)) throw new Error('what it tells is no view of a node')
  const { schema, at, version, hostname, lease, state, trouble, mtu, config, peers, seen } = value
  if (schema !== VIEW_SCHEMA) throw new Error(`it speaks another version than ${VIEW_SCHEMA} of its view`)
  const told = textOr(at)
  if (told === null || Number.isNaN(Date.parse(told))) throw new Error('it tells no time')
  const members = isMembers(config) ? Object.entries(config).slice(0, MOST_MEMBERS) : []
  const sights = Array.isArray(seen) ? seen.slice(0, MOST_SEEN).flatMap((each) => readSight(each) ?? []) : []
  return {
    schema: VIEW_SCHEMA,
    at: told,
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
