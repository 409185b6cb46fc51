// node-state.ts - how a node is, in the words of /livez and of `systemctl status`. Pure.

import { formatIpv4Net, type Ipv4Net } from '../net/ipv4.ts'
import { hungThread, type Threads } from './threads.ts'

/** A store that was not compared with what is known for this long, three times what following takes, is not followed. */
const UNFOLLOWED_S = 180

/** What is told of a node. Times are in milliseconds by one clock that never goes back. */
export interface NodeState {
  readonly subnet: Ipv4Net
  /** Whether the data path is up. */
  readonly isOpen: boolean
  readonly threads: Threads
  readonly peers: number
  /** Of the peers, those that are kept though the store lacks them. */
  readonly held: number
  /** The store's name. */
  readonly store: string
  /** Whether the last call to the store failed. */
  readonly isFailing: boolean
  /** When all leases were compared with the store. */
  readonly comparedAt: number | undefined
  /** When they began to be. */
  readonly followedSince: number
  /** How many repairs there were since the start. */
  readonly repaired: number
  /** The subnet.env that could not be written yet. */
  readonly unwritten: string | undefined
}

/** Why the node does not do its work; undefined when it does. */
export function troubleOf(state: NodeState, now: number): string | undefined {
  if (!state.isOpen) return 'the data path is down'
  const hung = hungThread(state.threads)
  if (hung) return `the thread ${hung.name} has hung for ${seconds(now - hung.since)} s`
  const age = seconds(now - (state.comparedAt ?? state.followedSince))
  return age > UNFOLLOWED_S ? `the leases were last compared ${age} s ago` : undefined
}

/** One line that changes only when something happened. */
export function summaryOf({
  subnet,
  isOpen,
  threads,
  store,
  isFailing,
  comparedAt,
  unwritten,
  ...state
}: NodeState): string {
  const hung = hungThread(threads)
  const held = state.held > 0 ? `, ${state.held} of them kept though the store lacks them` : ''
  const peers = `${count(state.peers, 'peer')}${held}`
  const path = !isOpen ? 'the data path is down' : hung ? `the thread ${hung.name} hangs` : peers
  const reach = comparedAt !== undefined && !isFailing ? 'in' : 'out of'
  const told = unwritten === undefined ? '' : `, ${unwritten} is not written`
  return `subnet ${formatIpv4Net(subnet)}, ${path}, ${store} store ${reach} reach${told}`
}

/** The summary, and what changes all the time. */
export function detailsOf(state: NodeState, now: number): string {
  const { comparedAt, repaired } = state
  const compared = comparedAt === undefined ? 'not yet compared' : `compared ${seconds(now - comparedAt)} s ago`
  return `${summaryOf(state)}; leases ${compared}; ${count(repaired, 'repair')} since the start`
}

const seconds = (ms: number): number => Math.floor(ms / 1000)
const count = (number: number, what: string): string => `${number} ${what}${number === 1 ? '' : 's'}`
