// snapshot.ts - the facts about a node at one moment, and the state (states.ts) and the texts that follow from them.
// Pure.

import { familiesOf, FAMILY_NAMES, netText, type ByFamily, type Family, type Nets } from '../net/address.ts'
import { readingOf, type Impairment, type State } from './states.ts'
import { hungThread, type Threads } from './threads.ts'

/**
 * If the last comparison of the leases with the store is older than this time, in seconds, the leases count as possibly
 * out of date. The time is three times the usual interval between comparisons.
 */
const UNFOLLOWED_S = 180

/**
 * The time in seconds from the first failed check of the data path until the node counts as impaired, unless a later
 * check succeeds. A single check may fail by chance, and weftd usually checks again after five seconds.
 */
const UNCHECKED_S = 10

/** The facts from which weftd derives the state of a node. Times are in ms of one monotonic clock. */
export interface Snapshot {
  readonly at: number
  readonly subnet: Nets
  readonly isOpen: boolean
  /** The enabled families that the data path does not carry, with the reason for each. */
  readonly lacking: ByFamily<string>
  /** The families whose address is missing from the external interface, with the missing address. */
  readonly gone: ByFamily<string>
  /**
   * Why the last check of the data path failed, and the time of the first of the checks in a row that failed. Undefined
   * if the last check succeeded. Only readers of the full status may read `why`.
   */
  readonly unchecked: { readonly why: string; readonly since: number } | undefined
  readonly threads: Threads
  /**
   * Why the node leaves the network: weftd stops, or another weftd takes over. Undefined if the node does not leave.
   */
  readonly leaving: string | undefined
  /** The problems of this host, such as disabled forwarding, each in a few words. */
  readonly host: readonly string[]
  /**
   * The routes of other programs that make packets for the network bypass the data path, and why each route matters.
   */
  readonly pastPath: readonly { readonly what: string; readonly why: string }[]
  /** Why weftd could not set or repair its firewall rules at the last check; undefined if the rules are set. */
  readonly rules: string | undefined
  readonly peers: number
  readonly silent: number
  /** The number of peers whose lease the data path cannot use. */
  readonly unusable: number
  /** The number of peers that the data path lacks although it can use their leases, for example for want of a route. */
  readonly unset: number
  /** The number of peers for which strongSwan's charon has no keys. `unusable` does not count these peers. */
  readonly keyless: number
  /**
   * The number of peers that answer short packets but not long ones, while the senders of long packets get no ICMP
   * error.
   */
  readonly narrow: number
  /** The number of peers that weftd keeps although the store no longer has their leases. */
  readonly held: number
  /** The number of times that peers' leases vanished from the store and weftd began to keep these peers. */
  readonly holds: number
  /** The kind of store, such as etcd. */
  readonly store: string
  /** True if the most recent call to the store failed. */
  readonly isFailing: boolean
  /**
   * When weftd last compared all leases with the store, in ms of a monotonic clock; undefined before the first
   * comparison.
   */
  readonly comparedAt: number | undefined
  /** When weftd began to compare its leases with the store, in ms of a monotonic clock. */
  readonly followedSince: number
  /**
   * Why no weftd can start with the network configuration in the store; undefined if a weftd can start. Only readers of
   * the full status may read `why`.
   */
  readonly configProblem: { readonly what: string; readonly why?: string } | undefined
  /**
   * Why the last try to renew this node's lease failed, or why the store does not have the lease now. Undefined if the
   * last try succeeded. Only readers of the full status may read this reason.
   */
  readonly unrenewed: string | undefined
  /**
   * How often since its start weftd repaired a device, address, route, firewall rule or file that another program had
   * changed.
   */
  readonly repaired: number
  /** True once weftd has written subnet.env. */
  readonly isReady: boolean
  /** True if subnet.env still has the content that weftd wrote last. */
  readonly isPublished: boolean
  readonly subnetFile: string
}

/**
 * A problem of the node. Every client may read `what`, which contains no values that change all the time, such as ages.
 * Only readers of the full status may read `why`.
 */
interface Problem extends Impairment {
  readonly why?: string | undefined
}

const UNRENEWED = "this node's lease cannot be renewed"

/** Lists all problems of the node, worst first. */
function problemsOf(node: Snapshot): readonly Problem[] {
  const { at, comparedAt, followedSince, store } = node
  const age = seconds(at - (comparedAt ?? followedSince))
  const all: readonly (Problem | false)[] = [
    ...(node.isOpen ? pathProblems(node) : [{ by: 'path', what: 'the data path is down' } as const]),
    ...node.pastPath.map(({ what, why }) => ({ by: 'bypass', what, why }) as const),
    !node.isPublished && { by: 'host', what: `${node.subnetFile} is not written` },
    ...node.host.map((what) => ({ by: 'host', what }) as const),
    node.rules !== undefined && { by: 'rules', what: 'the firewall rules cannot be set or repaired', why: node.rules },
    ...(node.isOpen ? peersText(node).map((what) => ({ by: 'peers', what }) as const) : []),
    node.isFailing && { by: 'store', what: `the ${store} store does not answer` },
    // If the store does not answer, leave out the failed renewal, because the store's silence is its cause.
    !node.isFailing && node.unrenewed !== undefined && { by: 'store', what: UNRENEWED, why: node.unrenewed },
    age > UNFOLLOWED_S && { by: 'store', what: 'the leases may be out of date', why: `last compared ${age} s ago` },
    node.configProblem !== undefined && { by: 'store', ...node.configProblem },
    node.held > 0 && { by: 'store', what: `${count(node.held, 'peer')} kept although the store lacks them` },
  ]
  return all.filter((each): each is Problem => each !== false)
}

function pathProblems({ at, threads, lacking, gone, unchecked }: Snapshot): readonly Problem[] {
  const hung = hungThread(threads)
  return [
    ...(hung
      ? [{ by: 'thread', what: `the thread ${hung.name} hangs`, why: `for ${seconds(at - hung.since)} s` } as const]
      : []),
    ...(unchecked && seconds(at - unchecked.since) >= UNCHECKED_S
      ? [{ by: 'path', what: 'the data path cannot be checked or repaired', why: unchecked.why } as const]
      : []),
    ...familiesOf(lacking).map((family) => lackedOf(family, lacking[family])),
    ...familiesOf(gone).map((family) => goneOf(family, gone[family])),
  ]
}

const lackedOf = (family: Family, why: string | undefined): Problem => ({
  by: 'family',
  what: `${FAMILY_NAMES[family]} is not carried`,
  why,
})

/** Name the interface only in `why`, because every client may read `what`. */
const goneOf = (family: Family, why: string | undefined): Problem => ({
  by: 'host',
  what: `${FAMILY_NAMES[family]} has no address on the external interface`,
  why,
})

function peersText({ peers, silent, unusable, unset, keyless, narrow }: Snapshot): readonly string[] {
  const of = peers === 1 ? 'the only peer' : undefined
  const verb = (number: number, one: string, many: string): string => (number === 1 ? one : many)
  return [
    ...(silent > 0 ? [`${of ?? `${silent} of ${peers} peers`} ${verb(silent, 'does', 'do')} not answer`] : []),
    ...(unusable > 0
      ? [`the ${verb(unusable, 'lease', 'leases')} of ${of ?? `${unusable} of ${peers} peers`} cannot be used`]
      : []),
    ...(unset > 0 ? [`the data path lacks ${of ?? `${unset} of ${peers} peers`}`] : []),
    ...(keyless > 0 ? [`charon has no keys for ${of ?? `${keyless} of ${peers} peers`}`] : []),
    ...(narrow > 0 ? [`long packets do not reach ${of ?? `${narrow} of ${peers} peers`}`] : []),
  ]
}

/** Returns the node's state with all reasons, for readers of the full status. */
export function stateOf(node: Snapshot): State {
  if (node.leaving !== undefined) return { state: 'leaving', impairments: [] }
  const impairments = problemsOf(node).map(({ by, what, why }) => ({
    by,
    what: why === undefined ? what : `${what}: ${why}`,
  }))
  return { state: impairments.length === 0 ? 'working' : 'impaired', impairments }
}

/**
 * Returns why the node is not in the state `working`, in words that every client may read. Returns undefined if the
 * node is in the state `working`.
 */
export function troubleOf(node: Snapshot): string | undefined {
  return node.leaving ?? joined(problemsOf(node))
}

export function troubleInFull(node: Snapshot): string | undefined {
  return node.leaving ?? joined(stateOf(node).impairments)
}

const joined = (all: readonly Impairment[]): string | undefined =>
  all.length === 0 ? undefined : all.map(({ what }) => what).join('; ')

/**
 * Returns true if subnet.env was written, so that containers can start on this host, and the node's state counts as
 * ready in /readyz.
 */
export const isReadyNow = (node: Snapshot): boolean => node.isReady && readingOf(stateOf(node)).readyz === 'written'

/** Returns true if the store answered the last call and the leases are not out of date. */
export const isReached = ({ at, isFailing, comparedAt, followedSince }: Snapshot): boolean =>
  !isFailing && (comparedAt !== undefined || seconds(at - followedSince) <= UNFOLLOWED_S)

/** Returns the node's state as one line without values that change all the time, such as ages. */
export function summaryOf(node: Snapshot): string {
  const trouble = troubleOf(node)
  const state = trouble === undefined ? '' : `${readingOf(stateOf(node)).words}: ${trouble}; `
  const store = `${node.store} store ${isReached(node) ? 'reachable' : 'unreachable'}`
  return `${state}subnet ${netText(node.subnet)}, ${count(node.peers, 'peer')}, ${store}`
}

/** Returns the one-line summary of the node's state, followed by values that change all the time. */
export function detailsOf(node: Snapshot): string {
  const { at, comparedAt, repaired } = node
  const compared = comparedAt === undefined ? 'not yet compared' : `compared ${seconds(at - comparedAt)} s ago`
  return `${summaryOf(node)}; leases ${compared}; ${count(repaired, 'repair')} since the start`
}

const seconds = (ms: number): number => Math.floor(ms / 1000)
const count = (number: number, what: string): string => `${number} ${what}${number === 1 ? '' : 's'}`
