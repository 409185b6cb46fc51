// snapshot.ts - how a node is at one moment, and the words for it of /livez and of `systemctl status`. Pure.

import { netText, type Nets } from '../net/address.ts'
import { hungThread, type Threads } from './threads.ts'

/** A store that was not compared with what is known for this long, three times what following takes, is not followed. */
const UNFOLLOWED_S = 180

/** What is told of a node. Times are in milliseconds by one clock that never goes back. */
export interface Snapshot {
  /** The moment. */
  readonly at: number
  readonly subnet: Nets
  /** Whether the data path is up. */
  readonly isOpen: boolean
  readonly threads: Threads
  readonly peers: number
  /** Of the peers, those that are kept though the store lacks them. */
  readonly held: number
  /** How often peers began to be kept so. */
  readonly holds: number
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
  /** Whether subnet.env was written once. */
  readonly isReady: boolean
  readonly subnetFile: string
}

/** Why the node does not do its work; undefined when it does. */
export function troubleOf({ at, isOpen, threads, comparedAt, followedSince }: Snapshot): string | undefined {
  if (!isOpen) return 'the data path is down'
  const hung = hungThread(threads)
  if (hung) return `the thread ${hung.name} has hung for ${seconds(at - hung.since)} s`
  const age = seconds(at - (comparedAt ?? followedSince))
  return age > UNFOLLOWED_S ? `the leases were last compared ${age} s ago` : undefined
}

/** One line that changes only when something happened. */
export function summaryOf(node: Snapshot): string {
  const hung = hungThread(node.threads)
  const held = node.held > 0 ? `, ${node.held} of them kept though the store lacks them` : ''
  const peers = `${count(node.peers, 'peer')}${held}`
  const path = !node.isOpen ? 'the data path is down' : hung ? `the thread ${hung.name} hangs` : peers
  const isReached = node.comparedAt !== undefined && !node.isFailing
  const store = `${node.store} store ${isReached ? 'reachable' : 'unreachable'}`
  const unwritten = node.isReady ? '' : `, ${node.subnetFile} is not written`
  return `subnet ${netText(node.subnet)}, ${path}, ${store}${unwritten}`
}

/** The summary, and what changes all the time. */
export function detailsOf(node: Snapshot): string {
  const { at, comparedAt, repaired } = node
  const compared = comparedAt === undefined ? 'not yet compared' : `compared ${seconds(at - comparedAt)} s ago`
  return `${summaryOf(node)}; leases ${compared}; ${count(repaired, 'repair')} since the start`
}

const seconds = (ms: number): number => Math.floor(ms / 1000)
const count = (number: number, what: string): string => `${number} ${what}${number === 1 ? '' : 's'}`
