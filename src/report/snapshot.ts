// snapshot.ts - how a node is at one moment: which of the states (states.ts) that is, and the words for it. Pure.

import { familiesOf, FAMILY_NAMES, netText, type ByFamily, type Family, type Nets } from '../net/address.ts'
import { readingOf, type Impairment, type State } from './states.ts'
import { hungThread, type Threads } from './threads.ts'

/** A store that was not compared with what is known for this long, three times what following takes, is not followed. */
const UNFOLLOWED_S = 180

/** The facts that are told of a node. Times are in milliseconds by one clock that never goes back. */
export interface Snapshot {
  /** The moment. */
  readonly at: number
  readonly subnet: Nets
  /** True while the data path is up. */
  readonly isOpen: boolean
  /** The families that it does not carry though it is to, each with the reason. */
  readonly lacking: ByFamily<string>
  /** The families whose address on the external interface is gone, each with what is gone. */
  readonly gone: ByFamily<string>
  readonly threads: Threads
  /** Why it does not go on: it stops, or another weftd takes over. */
  readonly leaving: string | undefined
  /** What is wrong on this host, each in a few words. */
  readonly host: readonly string[]
  /** The routes that wrongly lead packets past the data path. */
  readonly pastPath: readonly { readonly what: string; readonly why: string }[]
  /** The reason why the firewall's rules could not be kept right at the last look. */
  readonly rules: string | undefined
  readonly peers: number
  /** The peers that did not answer the last probes, and those that the data path does not have. */
  readonly silent: number
  readonly unusable: number
  /** Those that answer, and long packets to them do not come back, of which nobody tells whoever sends them. */
  readonly narrow: number
  /** The number of peers that are kept though the store lacks them. */
  readonly held: number
  /** The number of times that peers began to be kept so. */
  readonly holds: number
  /** The store's name. */
  readonly store: string
  /** True when the last call to the store failed. */
  readonly isFailing: boolean
  /** The time when all leases were last compared with the store. */
  readonly comparedAt: number | undefined
  /** The time since when they are compared. */
  readonly followedSince: number
  /** True while the store has no network configuration, though this node has one from there. */
  readonly isConfigGone: boolean
  /** The number of repairs since the start. */
  readonly repaired: number
  /** True once subnet.env was written, and while it stands as it was last to be written. */
  readonly isReady: boolean
  readonly isPublished: boolean
  readonly subnetFile: string
}

/** `what` is for whoever reaches the port, and changes only when something happened; `why` for whoever may hear all. */
interface Known extends Impairment {
  readonly why?: string | undefined
}

/** All that is in the way, the worst first. */
function knownOf(node: Snapshot): readonly Known[] {
  const { at, comparedAt, followedSince, store } = node
  const age = seconds(at - (comparedAt ?? followedSince))
  const all: readonly (Known | false)[] = [
    ...(node.isOpen ? pathTroubles(node) : [{ by: 'path', what: 'the data path is down' } as const]),
    ...node.pastPath.map(({ what, why }) => ({ by: 'bypass', what, why }) as const),
    !node.isPublished && { by: 'host', what: `${node.subnetFile} is not written` },
    ...node.host.map((what) => ({ by: 'host', what }) as const),
    node.rules !== undefined && { by: 'rules', what: 'the firewall rules cannot be kept right', why: node.rules },
    ...(node.isOpen ? peersText(node).map((what) => ({ by: 'peers', what }) as const) : []),
    node.isFailing && { by: 'store', what: `the ${store} store does not answer` },
    age > UNFOLLOWED_S && { by: 'store', what: 'the leases may be out of date', why: `last compared ${age} s ago` },
    node.isConfigGone && { by: 'store', what: 'the network configuration is gone from the store' },
    node.held > 0 && { by: 'store', what: `${count(node.held, 'peer')} kept though the store lacks them` },
  ]
  return all.filter((each): each is Known => each !== false)
}

function pathTroubles({ at, threads, lacking, gone }: Snapshot): readonly Known[] {
  const hung = hungThread(threads)
  return [
    ...(hung
      ? [{ by: 'thread', what: `the thread ${hung.name} hangs`, why: `for ${seconds(at - hung.since)} s` } as const]
      : []),
    ...familiesOf(lacking).map((family) => lackedOf(family, lacking[family])),
    ...familiesOf(gone).map((family) => goneOf(family, gone[family])),
  ]
}

/** `IPv6 is not carried`. */
const lackedOf = (family: Family, why: string | undefined): Known => ({
  by: 'family',
  what: `${FAMILY_NAMES[family]} is not carried`,
  why,
})

/** `IPv6 has no address on the external interface`, and no name of it. */
const goneOf = (family: Family, why: string | undefined): Known => ({
  by: 'host',
  what: `${FAMILY_NAMES[family]} has no address on the external interface`,
  why,
})

function peersText({ peers, silent, unusable, narrow }: Snapshot): readonly string[] {
  const of = peers === 1 ? 'the only peer' : undefined
  const verb = (number: number, one: string, many: string): string => (number === 1 ? one : many)
  return [
    ...(silent > 0 ? [`${of ?? `${silent} of ${peers} peers`} ${verb(silent, 'does', 'do')} not answer`] : []),
    ...(unusable > 0
      ? [`the ${verb(unusable, 'lease', 'leases')} of ${of ?? `${unusable} of ${peers} peers`} cannot be used`]
      : []),
    ...(narrow > 0 ? [`long packets do not reach ${of ?? `${narrow} of ${peers} peers`}`] : []),
  ]
}

/** The state, for whoever may hear all. */
export function stateOf(node: Snapshot): State {
  if (node.leaving !== undefined) return { state: 'leaving', impairments: [] }
  const impairments = knownOf(node).map(({ by, what, why }) => ({
    by,
    what: why === undefined ? what : `${what}: ${why}`,
  }))
  return { state: impairments.length === 0 ? 'working' : 'impaired', impairments }
}

/** The reason why a node is not `working`, as anybody may read it; undefined when it is. */
export function troubleOf(node: Snapshot): string | undefined {
  return node.leaving ?? joined(knownOf(node))
}

/** The trouble with the reasons, where they are known. */
export function troubleInFull(node: Snapshot): string | undefined {
  return node.leaving ?? joined(stateOf(node).impairments)
}

const joined = (all: readonly Impairment[]): string | undefined =>
  all.length === 0 ? undefined : all.map(({ what }) => what).join('; ')

/** True once containers can be started here, and where the state does not speak against it. */
export const isReadyNow = (node: Snapshot): boolean => node.isReady && readingOf(stateOf(node)).readyz === 'written'

/** The last call to the store worked: the lease is from there. */
export const isReached = ({ at, isFailing, comparedAt, followedSince }: Snapshot): boolean =>
  !isFailing && (comparedAt !== undefined || seconds(at - followedSince) <= UNFOLLOWED_S)

/** One line that changes only when something happened. */
export function summaryOf(node: Snapshot): string {
  const trouble = troubleOf(node)
  const state = trouble === undefined ? '' : `${readingOf(stateOf(node)).words}: ${trouble}; `
  const store = `${node.store} store ${isReached(node) ? 'reachable' : 'unreachable'}`
  return `${state}subnet ${netText(node.subnet)}, ${count(node.peers, 'peer')}, ${store}`
}

/** The summary, and what changes all the time. */
export function detailsOf(node: Snapshot): string {
  const { at, comparedAt, repaired } = node
  const compared = comparedAt === undefined ? 'not yet compared' : `compared ${seconds(at - comparedAt)} s ago`
  return `${summaryOf(node)}; leases ${compared}; ${count(repaired, 'repair')} since the start`
}

const seconds = (ms: number): number => Math.floor(ms / 1000)
const count = (number: number, what: string): string => `${number} ${what}${number === 1 ? '' : 's'}`
