// node.ts - a node in the network: what its loops share.

import type { Backend } from '../backend/backend.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { Firewall } from '../firewall/firewall.ts'
import { createBell, type Bell } from '../host/bell.ts'
import type { OpenEcho } from '../host/echo.ts'
import type { PeerView } from '../lease/fail-static.ts'
import type { FollowState } from '../lease/follow.ts'
import type { LeaseAttrs, OwnLease } from '../lease/lease.ts'
import type { SubnetManager } from '../lease/subnet-manager.ts'
import type { Log } from '../log.ts'
import type { DaemonOptions } from '../options.ts'
import type { Health } from '../status/health.ts'
import type { Probes } from '../status/probes.ts'
import type { Notifier } from '../status/notify.ts'
import type { Snapshot } from '../status/snapshot.ts'
import type { Threads } from '../status/threads.ts'
import type { Possession } from './possession.ts'

/** How often a loop looks at what it keeps, when nothing tells it to. */
export const RESYNC_MS = 5_000

/** What a node is made of. */
export interface NodeParts {
  readonly options: Pick<
    DaemonOptions,
    'subnet-file' | 'subnet-lease-renew-margin' | 'fail-static-hold' | 'ip-masq' | 'probe-interval'
  >
  readonly manager: SubnetManager
  readonly config: NetworkConfig
  readonly backend: Backend
  /** The external interface's, as it was chosen at the start. */
  readonly externalName?: string
  /** The rules, and how often they are looked at. */
  readonly firewall?: { readonly rules: Firewall; readonly resyncMs: number } | undefined
  /** Peers are not asked whether they answer where it is left out. */
  readonly openEcho?: OpenEcho
  readonly log: Log
  readonly signal: AbortSignal
  /** Where the node says how it is; nobody asks when it is left out. */
  readonly health?: Health
  /** What the process after this one goes on with; nothing outlives this one when it is left out. */
  readonly next?: Next | undefined
  /** The service manager, if there is one that wants to know. */
  readonly notifier?: Notifier | undefined
}

/** For the process after this one. */
export interface Next {
  /** The network configuration's text without its secrets, and which store's it is. */
  readonly config: string
  readonly store: string
  /** The file of what is known (restart/last-known.ts). */
  readonly lastKnown: string
}

/** The peers that somebody has not looked at since they were applied, by lease key; all, where `keys` is undefined. */
export interface Unseen {
  keys: Set<string> | undefined
}

export function touch(unseen: Unseen, keys: ReadonlySet<string> | undefined): void {
  if (!keys) unseen.keys = undefined
  else for (const key of keys) unseen.keys?.add(key)
}

/** What is still to be looked at, which is seen by that. */
export function takeUnseen(unseen: Unseen): ReadonlySet<string> | undefined {
  const { keys } = unseen
  unseen.keys = new Set()
  return keys
}

export interface Node extends NodeParts {
  readonly possession: Possession
  lease: OwnLease
  /** What the lease is to say; the next renewal writes it. */
  attrs: LeaseAttrs
  /** All leases that are believed, our own among them. */
  view: PeerView
  /** Whether the data path could not be given all of it; then it is given it again when it is looked at. */
  isUnapplied: boolean
  /** How well the leases are followed. */
  readonly following: FollowState
  /** When the node came to be, by performance.now(). */
  readonly since: number
  /** Rung when the store says that our own lease is not what we wrote. */
  readonly leaseDoubt: Bell
  /** Rung when there is something that the process after this one should know. */
  readonly learnt: Bell
  /** How many repairs there were since the start. */
  repaired: number
  /** Whether subnet.env stands as it was last to be written. */
  isPublished: boolean
  /** Whether it was written once; it never goes back, as flanneld's. */
  isReady: boolean
  threads: Threads
  /** What the peers answered; undefined while they are not asked. */
  probes: Pick<Probes, 'results' | 'intervalMs'> | undefined
  /** The peers that probes.ts and path-search.ts have still to look at. */
  readonly unprobed: Unseen
  readonly unsearched: Unseen
  /** The name of another host that uses our public IP, as it says itself. */
  twin: string | undefined
  /** When each lease of the view came, by its key, in ms since the epoch. */
  readonly cameAt: Map<string, number>
}

export function createNode(
  parts: NodeParts,
  lease: OwnLease,
  attrs: LeaseAttrs,
  possession: Possession,
  view: PeerView,
): Node {
  return {
    ...parts,
    ...{ possession, lease, attrs },
    ...{ view, isUnapplied: false, repaired: 0, isPublished: false, isReady: false, threads: new Map() },
    ...{ cameAt: new Map([...view.keys()].map((key) => [key, Date.now()])), probes: undefined, twin: undefined },
    ...{ unprobed: { keys: undefined }, unsearched: { keys: undefined } },
    following: { listedAt: undefined, failing: false, held: 0, holds: 0 },
    since: performance.now(),
    leaseDoubt: createBell(),
    learnt: createBell(),
  }
}

/** Whatever is told of the node is told from this. */
export function snapshotOf({ lease, view, possession, threads, following, ...node }: Node): Snapshot {
  return {
    at: performance.now(),
    subnet: lease.subnet,
    isOpen: possession.dataPath !== undefined,
    threads,
    peers: view.size - (view.has(lease.key) ? 1 : 0),
    held: following.held,
    holds: following.holds,
    store: node.manager.name,
    isFailing: following.failing,
    comparedAt: following.listedAt,
    followedSince: node.since,
    repaired: node.repaired,
    isReady: node.isReady,
    subnetFile: node.options['subnet-file'],
  }
}
