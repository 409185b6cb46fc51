// node.ts - the node: one object that represents this host in the network during the whole life of the process. All
// loops share the object.
//
// At first the node knows nothing. It gets its facts from the file of the last known state (begin.ts), and later from
// the store (daemon.ts).

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
import type { HostKernel } from '../host/kernel.ts'
import type { ByFamily, Family, Net, Nets } from '../net/address.ts'
import type { NodeOptions } from '../options.ts'
import type { Backend } from '../path/contract.ts'
import type { OtherDaemon } from '../path/device/leftovers.ts'
import type { Firewall } from '../path/firewall/firewall.ts'
import type { Health, Memory } from '../report/health.ts'
import type { Notifier } from '../report/notify.ts'
import type { Snapshot } from '../report/snapshot.ts'
import type { Threads } from '../report/threads.ts'
import type { PathSearch } from './loops/path-lengths.ts'
import type { ProbeSchedule } from './loops/probe-schedule.ts'
import { Ownership } from './ownership.ts'
import type { LastKnown, Next } from './restart/last-known.ts'

/** The interval in ms at which a loop checks its part of the node if no event makes it check earlier. */
export const RESYNC_MS = 5_000
/**
 * How long, in ms, a slow step may delay the steps after it. Slow steps are, for example, opening the device of one
 * family, or the firewall at the start.
 */
export const LATE_MS = 1_000

/** Functions that list or remove weftd's connections in charon for some networks. Both return the connections' names. */
interface CharonCleaning {
  readonly listConnections: (networks: readonly Net[], signal: AbortSignal) => Promise<readonly string[]>
  readonly leaveCharon: (networks: readonly Net[], signal: AbortSignal) => Promise<readonly string[]>
}

/** The parts that a node has from the start of its process. */
interface NodeBase {
  readonly options: NodeOptions
  /** A name that identifies the store (storeNameOf). */
  readonly store: string
  readonly kernel: HostKernel
  readonly log: Log
  /** Aborts when the process must stop. */
  readonly stopping: AbortController
  /** The service manager, if it requested notifications of the node's state. */
  readonly notifier?: Notifier | undefined
}

/**
 * The facts that a node needs to forward. At first they come from the file of the last known state, later from the
 * store.
 */
export interface PathFacts {
  readonly config: NetworkConfig
  readonly backend: Backend
  readonly external?: ExternalInterface | undefined
  lease: OwnLease
  /** The attributes that the lease must have; the next renewal writes them. */
  attrs: LeaseAttrs
  /**
   * The file paths and facts that weftd needs to write the file of the last known state; left out with
   * `--persist=false`.
   */
  readonly next?: Next | undefined
}

/** The parts that a node has as soon as it knows its store. */
interface Membership {
  readonly manager: SubnetManager
  /** Returns true if a lease with the given public IP belongs to this node, which may have another public IP now. */
  readonly isMine?: IsMine
  /**
   * The firewall's rules, the interval of their checks in ms, and a promise that resolves when no earlier process
   * changes the rules any more.
   */
  readonly firewall?: { readonly rules: Firewall; readonly resyncMs: number; readonly free?: Promise<void> } | undefined
  /**
   * The facts about an earlier run that the search for leftovers needs; without them weftd does not search. `earlier`
   * has the subnets of the earlier run. `past` has those networks of the earlier run that are not a part of this node's
   * networks. `formerRoutes` has the routes through hosts that the earlier run may have made (Surroundings), until the
   * node is ready. `others` lists the other daemons of this host.
   */
  readonly leftovers?:
    | {
        readonly earlier: Nets
        readonly past: Nets
        formerRoutes?: ReadonlySet<string> | undefined
        readonly run: Run
        readonly others?: () => Promise<readonly OtherDaemon[]>
        /** Returns the functions that list and remove weftd's connections in this host's charon. */
        readonly charon?: () => Promise<CharonCleaning>
      }
    | undefined
  /** Opens a socket for echo requests. If left out, the node sends no probes. */
  readonly openEcho?: OpenEcho
  readonly readSysctl?: ReadSysctl
  /** Returns to the kernel the memory that only the start needed. */
  readonly giveBackMemory?: () => void
  /** The object through which the HTTP server gets the node's state. */
  readonly health?: Health
}

/** The parts of a node that weftd determines at its start before the node acquires its lease. */
export type NodeParts = Membership & Omit<PathFacts, 'lease' | 'attrs'>

/**
 * The lease keys of peers that were set in the data path, and that a loop has not handled yet. If `keys` is undefined,
 * the loop must handle all peers.
 */
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
  /** The last known state, as the file had it when the process started; undefined if there was none. */
  known: LastKnown | undefined
  view: PeerView
  /**
   * Says which peers the next check must apply again: `all` if setting the peers of the data path failed, `rest` if one
   * of several data paths still lacks some peers.
   */
  unapplied: 'all' | 'rest' | undefined
  /** The key of this node's own lease when weftd last set the data path's peers; undefined before the first time. */
  ownApplied: string | undefined
  /** The state of the loop that follows the leases in the store, such as the time of the last listing (FollowState). */
  readonly following: FollowState
  /** The time, in ms of performance.now(), when the node joined its network. */
  since: number
  /** Rings when this node's own lease in the store has a value that this node did not write. */
  readonly leaseDoubt: Bell
  /** Rings when this node's own lease was lost, because the network configuration may be gone too. */
  readonly configDoubt: Bell
  /**
   * Why no weftd can start with the network configuration in the store: the configuration is missing, although the
   * store had one before, or it is invalid. Undefined if a weftd can start.
   */
  configProblem: Snapshot['configProblem']
  /**
   * True while the store's network configuration differs from the configuration that this node uses, even if only a
   * secret differs.
   */
  isConfigOther: boolean
  /**
   * Why the last try to renew this node's lease failed, or why the store does not have the lease now. Undefined if the
   * last try succeeded.
   */
  unrenewed: string | undefined
  /** Rings when the last known state has changed, so that it must be written to its file. */
  readonly learnt: Bell
  mtuAtStart: number | undefined
  pathLease: OwnLease | undefined
  /**
   * The promise of the loop in loops/data-path.ts; undefined before that loop runs. The loop starts when the node first
   * forwards.
   */
  keepingPath: Promise<never> | undefined
  isRunning: boolean
  /**
   * Why the last check of the data path failed, and the time of the first of the checks in a row that failed, in ms of
   * performance.now(). Undefined if the last check succeeded.
   */
  unchecked: Snapshot['unchecked']
  /** The number of repairs that weftd made since the node was created. */
  repaired: number
  /** For each missing family, the time since which the data path has lacked it, in ms of performance.now(). */
  readonly lackingSince: Map<Family, number>
  /** The families, as text, that subnet.env omits although the node has subnets of them. */
  leftOut: string
  published: string | undefined
  /** True if the last write of subnet.env succeeded. */
  isPublished: boolean
  /** True once subnet.env was written. As with flanneld, `isReady` never becomes false again. */
  isReady: boolean
  threads: Threads
  /** The results of the probes for each inner family; undefined while the node sends no probes. */
  probes: ByFamily<Pick<ProbeSchedule, 'results' | 'result' | 'takeNews' | 'intervalMs'>> | undefined
  /**
   * The peers' events, and the traffic and round-trip times of the last hour; undefined until the loop in memory.ts
   * runs.
   */
  memory: Memory | undefined
  /** The lengths of the longest packets that reach the peers, for each inner family. */
  lengths: ByFamily<Pick<PathSearch, 'lengths' | 'length' | 'takeNews'>>
  /** The peers that the loops in probes.ts, path-search.ts and underlays.ts have not handled yet. */
  readonly unprobed: Unseen
  readonly unsearched: Unseen
  readonly unchosen: Unseen
  /** The keys of leases that were written since the last probes. A written lease shows that its host is up. */
  readonly written: Set<string>
  /**
   * The entry with this host's name that this node wrote into the store, under its public IP (loops/duplicate-node.ts).
   */
  claimed: { readonly address: string; readonly value: string } | undefined
  /** The name of another host that uses this node's public IP, as that host wrote it into the store. */
  duplicate: string | undefined
  /** The families for which this host's kernel does not forward packets. */
  unforwarded: readonly Family[]
  /**
   * The routes that wrongly bypass the data path. Each has its log line, the part of that line that everyone may see,
   * and the reason.
   */
  pastPath: readonly { readonly line: string; readonly what: string; readonly why: string }[]
  /** The packets that policy rules of others divert from the data path, as text by sender and interface. */
  diverted: ReadonlyMap<string, string>
  /** Settles when the firewall's rules were set for the first time, or could not be set. */
  raising: Promise<void>
  /** Why the last check could not set the firewall's rules; undefined if the rules are set. */
  rulesTrouble: string | undefined
  /** The host names, by public IP, as the hosts wrote them into the store. */
  readonly names: Map<string, string>
  /** Rings when a new lease appeared, because its host may have written its name. */
  readonly newcomers: Bell
  /** For each lease key, the time when this node first saw the lease, in ms since 1970. */
  readonly cameAt: Map<string, number>
}

/** A node that may still lack its network configuration, lease and store. */
export interface NewNode extends NodeBase, NodeState, Partial<PathFacts>, Partial<Membership> {}

/** A node that knows enough to forward. */
export interface ForwardingNode extends NodeBase, NodeState, PathFacts, Partial<Membership> {}

/** A node that has joined its network, so that all loops can run. */
export interface Node extends NodeBase, NodeState, PathFacts, Membership {}

export const canForward = (node: NewNode): node is ForwardingNode => node.lease !== undefined

/** Creates the node of this process, without network configuration and lease. */
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
    unchecked: undefined,
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
    diverted: new Map(),
    unforwarded: [],
    rulesTrouble: undefined,
    claimed: undefined,
    mtuAtStart: undefined,
    unprobed: { keys: undefined },
    unsearched: { keys: undefined },
    unchosen: { keys: undefined },
    written: new Set(),
    following: { listedAt: undefined, failing: false, held: 0, holds: 0 },
    since: performance.now(),
    raising: Promise.resolve(),
    leaseDoubt: createBell(),
    configDoubt: createBell(),
    configProblem: undefined,
    isConfigOther: false,
    unrenewed: undefined,
    learnt: createBell(),
    names: new Map(),
    newcomers: createBell(),
  }
}

/** Adds to a forwarding node the parts that its other loops need. */
export function joinNetwork(node: ForwardingNode, membership: Membership): Node {
  for (const key of node.view.keys()) node.cameAt.set(key, Date.now())
  const { ownership } = node
  return Object.assign(node, membership, { mtuAtStart: ownership.dataPath?.mtu, since: performance.now() })
}
