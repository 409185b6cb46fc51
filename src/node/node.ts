// node.ts - a node in the network: what its loops share.

import type { Log } from '../base/log.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import type { PeerView } from '../control/lease/fail-static.ts'
import type { FollowState } from '../control/lease/follow.ts'
import type { LeaseAttrs, OwnLease } from '../control/lease/lease.ts'
import type { IsMine, SubnetManager } from '../control/lease/subnet-manager.ts'
import { createBell, type Bell } from '../host/bell.ts'
import type { Run } from '../host/command.ts'
import type { OpenEcho } from '../host/echo.ts'
import type { ReadSysctl } from '../host/external-interface.ts'
import type { ByFamily, Family, Nets } from '../net/address.ts'
import type { DaemonOptions } from '../options.ts'
import type { Backend } from '../path/contract.ts'
import type { OtherDaemon } from '../path/device/leftovers.ts'
import type { Firewall } from '../path/firewall/firewall.ts'
import type { Health, Memory } from '../report/health.ts'
import type { Notifier } from '../report/notify.ts'
import type { Threads } from '../report/threads.ts'
import type { PathSearch } from './loops/path-lengths.ts'
import type { Probes } from './loops/probe-schedule.ts'
import type { Ownership } from './ownership.ts'

/** A loop checks what it keeps this often when nothing tells it to. */
export const RESYNC_MS = 5_000
/** How long a slow step, such as the device of one family or the firewall at the start, delays the other steps. */
export const LATE_MS = 1_000

/** The parts that a node is made of. */
export interface NodeParts {
  readonly options: Pick<
    DaemonOptions,
    | 'subnet-file'
    | 'subnet-lease-renew-margin'
    | 'fail-static-hold'
    | 'ip-masq'
    | 'probe-interval'
    | 'status-network'
    | 'status-token-file'
  >
  readonly manager: SubnetManager
  readonly config: NetworkConfig
  readonly backend: Backend
  /** The external interface's, as it was chosen at the start. */
  readonly externalName?: string
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
  /** Peers are not asked whether they answer where it is left out. */
  readonly openEcho?: OpenEcho
  /** Reads the kernel's settings, which are not looked at where it is left out. */
  readonly readSysctl?: ReadSysctl
  /** Gives memory back that the start alone needed. */
  readonly giveBackMemory?: () => void
  readonly log: Log
  readonly signal: AbortSignal
  /** The place where the node reports its state; left out when nobody asks. */
  readonly health?: Health
  /** The state for the process after this one; left out when nothing outlives this one. */
  readonly next?: Next | undefined
  /** The service manager, if there is one that wants to know. */
  readonly notifier?: Notifier | undefined
}

/** The state that is kept for the process after this one. */
export interface Next {
  /** The network configuration's text without its secrets, and which store's it is. */
  readonly config: string
  readonly store: string
  /** The flags about the external interface, as text. */
  readonly wishes: string
  /** The file of what is known (node/restart/last-known.ts), and of what befell the peers. */
  readonly lastKnown: string
  readonly events: string
  /** Resolves when no process before this one writes them any more. */
  readonly free: Promise<void>
}

/** The peers that somebody has not looked at since they were applied, by lease key; all, where `keys` is undefined. */
interface Unseen {
  keys: Set<string> | undefined
}

export function touch(unseen: Unseen, keys: ReadonlySet<string> | undefined): void {
  if (!keys) unseen.keys = undefined
  else for (const key of keys) unseen.keys?.add(key)
}

/** Takes the keys that are still to be looked at: they count as seen from here on. */
export function takeUnseen(unseen: Unseen): ReadonlySet<string> | undefined {
  const { keys } = unseen
  unseen.keys = new Set()
  return keys
}

export interface Node extends NodeParts {
  readonly ownership: Ownership
  lease: OwnLease
  /** The attributes that the lease is to have; the next renewal writes them. */
  attrs: LeaseAttrs
  /** All leases that are believed, our own among them. */
  view: PeerView
  /** What is given again at the next look: `all` where the data path could not take it, `rest` where a part of it is behind. */
  unapplied: 'all' | 'rest' | undefined
  /** The key of our own lease when peers were given last, which is none of theirs; undefined until then, when there is no view to give. */
  ownApplied: string | undefined
  /** The state of following the leases. */
  readonly following: FollowState
  /** The time by performance.now() when the node came to be. */
  readonly since: number
  /** Rung when the store says that our own lease is not what we wrote. */
  readonly leaseDoubt: Bell
  /** Rung when our own lease was lost: with it the configuration may be gone. */
  readonly configDoubt: Bell
  /** True while the store has no network configuration, though this node has one from there. */
  isConfigGone: boolean
  /** True while the store has another network configuration than the one that this node runs by, its secrets among what is compared. */
  isConfigOther: boolean
  /** Rung when there is something that the process after this one should know. */
  readonly learnt: Bell
  /** The longest packet that containers might send when the node came to be. */
  readonly mtuAtStart: number | undefined
  /** The number of repairs since the start. */
  repaired: number
  /** The time, by performance.now(), since when the data path has lacked each missing family. */
  readonly lackingSince: Map<Family, number>
  /** The families that subnet.env omits although the node has a subnet of them. */
  leftOut: string
  /** The text of subnet.env as it was last written. */
  published: string | undefined
  /** True while subnet.env stands as it was last to be written. */
  isPublished: boolean
  /** True once the file was written; it never goes back, as flanneld's. */
  isReady: boolean
  threads: Threads
  /** The peers' answers by the families that they are asked by; undefined while they are not asked. */
  probes: ByFamily<Pick<Probes, 'results' | 'result' | 'takeNews' | 'intervalMs'>> | undefined
  /** What befell the peers, and the last hour; undefined until it is remembered. */
  memory: Memory | undefined
  /** The longest packets that reach the peers, by the families that they are searched by. */
  lengths: ByFamily<Pick<PathSearch, 'lengths' | 'length' | 'takeNews'>>
  /** The peers that probes.ts and path-search.ts have still to look at. */
  readonly unprobed: Unseen
  readonly unsearched: Unseen
  /** The keys of leases that were written since the last probes, which shows that their hosts live. */
  readonly written: Set<string>
  /** What this node has claimed of its public IP (loops/duplicate-node.ts). */
  claimed: { readonly address: string; readonly value: string } | undefined
  /** The name of another host that uses our public IP, as it says itself. */
  duplicate: string | undefined
  /** The families that this host does not forward, whatever weftd does. */
  unforwarded: readonly Family[]
  /** The routes that wrongly lead packets past the data path: each with its log line, the public part of that line, and the reason. */
  pastPath: readonly { readonly line: string; readonly what: string; readonly why: string }[]
  /** Resolves when the firewall's rules were set for the first time, or could not be. */
  raising: Promise<void>
  /** The reason why the firewall's rules could not be kept right at the last look. */
  rulesTrouble: string | undefined
  /** The names of hosts by their public IPs, as they say themselves. */
  readonly names: Map<string, string>
  /** Rung when a lease came whose host may have a name. */
  readonly newcomers: Bell
  /** The time when each lease of the view came, by its key, in ms since the epoch. */
  readonly cameAt: Map<string, number>
}

export function createNode(
  parts: NodeParts,
  lease: OwnLease,
  attrs: LeaseAttrs,
  ownership: Ownership,
  view: PeerView,
): Node {
  return {
    ...parts,
    ownership,
    lease,
    attrs,
    view,
    unapplied: undefined,
    ownApplied: undefined,
    repaired: 0,
    lackingSince: new Map(),
    leftOut: '',
    published: undefined,
    isPublished: false,
    isReady: false,
    threads: new Map(),
    cameAt: new Map([...view.keys()].map((key) => [key, Date.now()])),
    probes: undefined,
    lengths: {},
    memory: undefined,
    duplicate: undefined,
    pastPath: [],
    unforwarded: [],
    rulesTrouble: undefined,
    claimed: undefined,
    mtuAtStart: ownership.dataPath?.mtu,
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
