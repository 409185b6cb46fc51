// node.ts - the node. There is one object from the first millisecond of the process to its last, and all loops share it.
//
// At first the node knows nothing. It gets its facts from the file of the last known state (begin.ts), and from the store (daemon.ts).

import type { Log } from '../base/log.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import type { PeerView } from '../control/lease/fail-static.ts'
import type { FollowState } from '../control/lease/follow.ts'
import type { LeaseAttrs, OwnLease } from '../control/lease/lease.ts'
import type { IsMine, SubnetManager } from '../control/lease/subnet-manager.ts'
import { createBell, type Bell } from '../host/bell.ts'
import type { ReadSysctl } from '../host/choose-interface.ts'
import type { Run } from '../host/command.ts'
import type { OpenEcho } from '../host/echo.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import type { ByFamily, Family, Nets } from '../net/address.ts'
import type { NodeOptions } from '../options.ts'
import type { Backend } from '../path/contract.ts'
import type { OtherDaemon } from '../path/device/leftovers.ts'
import type { Firewall } from '../path/firewall/firewall.ts'
import type { Health, Memory } from '../report/health.ts'
import type { Notifier } from '../report/notify.ts'
import type { Threads } from '../report/threads.ts'
import type { PathSearch } from './loops/path-lengths.ts'
import type { ProbeSchedule } from './loops/probe-schedule.ts'
import { Ownership } from './ownership.ts'
import type { LastKnown, Next } from './restart/last-known.ts'

/** The interval at which a loop checks its fact if no event makes it check earlier. */
export const RESYNC_MS = 5_000
/** How long a slow step, such as the device of one family or the firewall at the start, delays the other steps. */
export const LATE_MS = 1_000

/** The parts that a node has from the first millisecond of its process. */
interface NodeBase {
  readonly options: NodeOptions
  /** The name of the store (storeNameOf). */
  readonly store: string
  readonly log: Log
  /** Stops the process. */
  readonly stopping: AbortController
  /** The service manager, if it asked for notifications. */
  readonly notifier?: Notifier | undefined
}

/** The facts by which a node forwards. They come from the file of the last known state at first, and from the store later. */
export interface PathFacts {
  readonly config: NetworkConfig
  readonly backend: Backend
  /** The external interface that was chosen at the start. */
  readonly external?: ExternalInterface | undefined
  lease: OwnLease
  /** The attributes that the lease must have; the next renewal writes them. */
  attrs: LeaseAttrs
  /** The facts that the last-known file needs; left out with `--persist=false`. */
  readonly next?: Next | undefined
}

/** The parts that a node has from the time when it knows its store. */
interface Membership {
  readonly manager: SubnetManager
  /** Checks whether this node had an address, because a lease with such a public IP may be its own. */
  readonly isMine?: IsMine
  /** The rules, the interval of checks, and a promise that resolves when no earlier process changes the rules any more. */
  readonly firewall?: { readonly rules: Firewall; readonly resyncMs: number; readonly free?: Promise<void> } | undefined
  /**
   * The facts about an earlier run that the search for other backends' leftovers needs; without them there is no search. `others` lists
   * the other daemons, by default those of this host.
   */
  readonly leftovers?:
    | { readonly earlier: Nets; readonly run: Run; readonly others?: () => Promise<readonly OtherDaemon[]> }
    | undefined
  /** Opens a socket for echo requests. If left out, the node sends no probes. */
  readonly openEcho?: OpenEcho
  /** Reads the kernel's settings. If left out, the node does not check them. */
  readonly readSysctl?: ReadSysctl
  /** Returns memory to the kernel that only the start needed. */
  readonly giveBackMemory?: () => void
  /** The object through which the HTTP server gets the node's state. */
  readonly health?: Health
}

/** The facts that the start finds before the node takes its lease. */
export type NodeParts = Membership & Omit<PathFacts, 'lease' | 'attrs'>

/** The lease keys of the applied peers that a loop has not handled yet. If `keys` is undefined, that is all peers. */
interface Unseen {
  keys: Set<string> | undefined
}

export function touch(unseen: Unseen, keys: ReadonlySet<string> | undefined): void {
  if (!keys) unseen.keys = undefined
  else for (const key of keys) unseen.keys?.add(key)
}

/** Returns the keys that are not handled yet, and marks them as handled. */
export function takeUnseen(unseen: Unseen): ReadonlySet<string> | undefined {
  const { keys } = unseen
  unseen.keys = new Set()
  return keys
}

/** The state that the loops of a node share. */
interface NodeState {
  readonly ownership: Ownership
  readonly signal: AbortSignal
  /** The last known state of the store, as the file had it at the start; undefined if there was none. */
  known: LastKnown | undefined
  /** All accepted leases, including this node's own. */
  view: PeerView
  /** The peers that the next check applies again: `all` if the data path refused them, `rest` if a part of the data path is behind. */
  unapplied: 'all' | 'rest' | undefined
  /** The key of this node's own lease when peers were last applied; undefined before the first time. */
  ownApplied: string | undefined
  /** The state of following the leases. */
  readonly following: FollowState
  /** The time, by performance.now(), when the node joined its network. */
  since: number
  /** Rings when the store's value of this node's own lease differs from the one that this node wrote. */
  readonly leaseDoubt: Bell
  /** Rings when this node's own lease was lost, because the configuration may be gone too. */
  readonly configDoubt: Bell
  /** True while the store has no network configuration, although this node got one from it. */
  isConfigGone: boolean
  /** True while the store's network configuration differs from the one that this node uses, secrets included. */
  isConfigOther: boolean
  /** Rings when the last known state has changed, so that its file must be written. */
  readonly learnt: Bell
  /** The MTU of the data path when the node joined its network. */
  mtuAtStart: number | undefined
  /** The lease for which the data path was opened last. */
  pathLease: OwnLease | undefined
  /** The loop of the data path, once it runs. It runs from the time when the node forwards first. */
  keepingPath: Promise<never> | undefined
  /** True once all loops run. */
  isRunning: boolean
  /** The number of repairs since the start. */
  repaired: number
  /** The time, by performance.now(), since when the data path has lacked each missing family. */
  readonly lackingSince: Map<Family, number>
  /** The families that subnet.env omits although the node has a subnet of them. */
  leftOut: string
  /** The text that was last written to subnet.env. */
  published: string | undefined
  /** True if the last write of subnet.env succeeded. */
  isPublished: boolean
  /** True once subnet.env was written; as with flanneld, it never becomes false again. */
  isReady: boolean
  threads: Threads
  /** The results of the probes, by inner family; undefined while the node sends no probes. */
  probes: ByFamily<Pick<ProbeSchedule, 'results' | 'result' | 'takeNews' | 'intervalMs'>> | undefined
  /** The peers' events and the last hour; undefined until the loop of the memory runs. */
  memory: Memory | undefined
  /** The longest packets that reach the peers, by inner family. */
  lengths: ByFamily<Pick<PathSearch, 'lengths' | 'length' | 'takeNews'>>
  /** The peers that probes.ts and path-search.ts have not handled yet. */
  readonly unprobed: Unseen
  readonly unsearched: Unseen
  /** The keys of leases that were written since the last probes. A written lease shows that its host lives. */
  readonly written: Set<string>
  /** The claim on the public IP that this node wrote into the store (loops/duplicate-node.ts). */
  claimed: { readonly address: string; readonly value: string } | undefined
  /** The name of another host that uses this node's public IP, as that host wrote it. */
  duplicate: string | undefined
  /** The families for which this host's kernel does not forward packets. */
  unforwarded: readonly Family[]
  /** The routes that wrongly bypass the data path, each with its log line, the public part of that line, and the reason. */
  pastPath: readonly { readonly line: string; readonly what: string; readonly why: string }[]
  /** Settles when the firewall's rules were set for the first time or could not be set. */
  raising: Promise<void>
  /** Why the last check could not set the firewall's rules; undefined if it could. */
  rulesTrouble: string | undefined
  /** The host names by public IP, as the hosts wrote them. */
  readonly names: Map<string, string>
  /** Rings when a new lease came, because its host may have a name. */
  readonly newcomers: Bell
  /** The time when each lease of the view was first seen, by its key, in ms since the epoch. */
  readonly cameAt: Map<string, number>
}

/** A node that may not know all facts yet. */
export interface NewNode extends NodeBase, NodeState, Partial<PathFacts>, Partial<Membership> {}

/** A node that knows enough to forward. */
export interface ForwardingNode extends NodeBase, NodeState, PathFacts, Partial<Membership> {}

/** A node that has joined its network, so that all loops can run. */
export interface Node extends NodeBase, NodeState, PathFacts, Membership {}

/** True if a node knows the facts with which it forwards, or tries to. */
export const canForward = (node: NewNode): node is ForwardingNode => node.lease !== undefined

/** Creates the node of this process, which knows no facts yet. */
export function createNode(base: NodeBase, ownership = new Ownership(base.log)): NewNode {
  return {
    ...base,
    ownership,
    signal: base.stopping.signal,
    known: undefined,
    view: new Map(),
    unapplied: undefined,
    ownApplied: undefined,
    pathLease: undefined,
    keepingPath: undefined,
    isRunning: false,
    repaired: 0,
    lackingSince: new Map(),
    leftOut: '',
    published: undefined,
    isPublished: false,
    isReady: false,
    threads: new Map(),
    cameAt: new Map(),
    probes: undefined,
    lengths: {},
    memory: undefined,
    duplicate: undefined,
    pastPath: [],
    unforwarded: [],
    rulesTrouble: undefined,
    claimed: undefined,
    mtuAtStart: undefined,
    unprobed: { keys: undefined },
    unsearched: { keys: undefined },
    written: new Set(),
    following: { listedAt: undefined, failing: false, held: 0, holds: 0 },
    since: performance.now(),
    raising: Promise.resolve(),
    leaseDoubt: createBell(),
    configDoubt: createBell(),
    isConfigGone: false,
    isConfigOther: false,
    learnt: createBell(),
    names: new Map(),
    newcomers: createBell(),
  }
}

/** Gives a node that forwards the parts that its loops need. */
export function joinNetwork(node: ForwardingNode, membership: Membership): Node {
  for (const key of node.view.keys()) node.cameAt.set(key, Date.now())
  const { ownership } = node
  return Object.assign(node, membership, { mtuAtStart: ownership.dataPath?.mtu, since: performance.now() })
}
