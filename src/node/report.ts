// report.ts - makes the status of a node for /status.json from the state that its loops share.

import { hostname, uptime } from 'node:os'
import { resolve } from 'node:path'
import { isWeftError } from '../base/errors.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import { encodeLeaseValue, type Lease } from '../control/lease/lease.ts'
import {
  addressText,
  familiesOf,
  FAMILY_NAMES,
  formatAddress,
  formatEndpoint,
  formatNet,
  listed,
  netText,
  onlyOf,
  primary,
  type Addresses,
  type ByFamily,
  type Family,
  type Nets,
} from '../net/address.ts'
import { storeKindOf, type CutOptions, type StoreOptions } from '../options.ts'
import type { PathSide, PathTraffic, PeerSession } from '../path/contract.ts'
import type { Health } from '../report/health.ts'
import { isReached, stateOf, summaryOf, troubleInFull, type Snapshot } from '../report/snapshot.ts'
import type { Beginning } from '../report/states.ts'
import {
  conditionOf,
  countPeers,
  dropsOf,
  startingReport,
  worstOf,
  type Condition,
  type DaemonStatus,
  type NodeReport,
  type PeerSide,
  type PeerStatus,
  type SessionStatus,
} from '../report/status.ts'
import { isHung, type Threads } from '../report/threads.ts'
import type { DataPaths } from './data-paths.ts'
import type { PathLength } from './loops/path-lengths.ts'
import type { Probed } from './loops/probe-schedule.ts'
import type { NewNode, Node } from './node.ts'
import type { Ownership } from './ownership.ts'
import type { Handover } from './restart/handover.ts'

/** The maximum number of peers whose path MTUs weftd reads from the kernel, with one system call for each peer. */
const MOST_PATHS = 500

/** If the host's clock is set by more than CLOCK_STEP_MS milliseconds, weftd corrects the time of its start. */
const CLOCK_STEP_MS = 1_000

/**
 * Makes a function that returns the time at which this process started, in ms since 1970, by the present setting of the
 * host's clock. A host without a battery for its clock sets the clock only some time after weftd has started. `now` is
 * the host's clock in ms, and `up` the time since the boot in seconds, which also counts while the host is suspended.
 */
export function startTime(now: () => number = Date.now, up: () => number = uptime): () => number {
  const began = up() * 1000 - performance.now()
  let known = performance.timeOrigin
  return () => {
    const startedAt = now() - (up() * 1000 - began)
    // Keep the known time unless the clock was set, because both clocks are rounded.
    if (Math.abs(startedAt - known) > CLOCK_STEP_MS) known = startedAt
    return known
  }
}

/**
 * Returns the part of the status that stays the same while the daemon runs, except that `startedAt` follows the host's
 * clock if the clock is set. `version` is the version of weft.
 */
export function daemonStatusOf(
  { store, node: options }: Pick<CutOptions, 'store' | 'node'>,
  version: string,
  startedAt: () => number = startTime(),
): DaemonStatus {
  return {
    version,
    pid: process.pid,
    get startedAt() {
      return iso(startedAt())
    },
    subnetFile: options['subnet-file'],
    leases: leasesOf(store),
    etcdFiles: etcdFilesOf(store),
    network:
      options['status-network'] === 0 ? 'off' : options['status-token-file'] === '' ? ('open' as const) : 'guarded',
  }
}

function etcdFilesOf(options: StoreOptions): NonNullable<DaemonStatus['etcdFiles']> | null {
  if (options['kube-subnet-mgr'] || storeKindOf(options) !== 'etcd') return null
  const files = {
    caFile: options['etcd-cafile'],
    certFile: options['etcd-certfile'],
    keyFile: options['etcd-keyfile'],
  }
  const given = Object.entries(files).filter(([, path]) => path !== '')
  return given.length === 0 ? null : Object.fromEntries(given.map(([name, path]) => [name, resolve(path)]))
}

function leasesOf(options: StoreOptions): string {
  if (options['kube-subnet-mgr']) return `nodes, annotations ${options['kube-annotation-prefix']}`
  switch (storeKindOf(options)) {
    case 'directory':
      return options['lease-dir']
    case 'etcd':
      return `${String(options['etcd-endpoints'])} ${options['etcd-prefix']}`
  }
}

/** Publishes, in the status and to the service manager, which fact a node waits for before it joins its network. */
export function reportWaiting(
  node: NewNode,
  health: Health,
  store: string,
  waitsFor: string,
  handover: Pick<Handover, 'isOnLoan' | 'predecessorPid'>,
): void {
  const { ownership, signal } = node
  const beginning = (): Beginning => {
    const { isOnLoan, predecessorPid: pid } = handover
    const isForwarding = ownership.dataPath !== undefined
    const other = isOnLoan && !isForwarding ? `another weftd${pid ? ` (pid ${pid})` : ''} forwards; ` : ''
    return { isForwarding, leaving: leavingOf(ownership, signal), waitsFor: other + waitsFor }
  }
  const report = (): NodeReport =>
    startingReport(store, beginning(), ownership.dataPath ? pathOf(ownership, new Map(), performance.now()) : null)
  Object.assign(health, { beginning, report: async () => report() })
  node.notifier?.report({ ready: false, status: report().summary })
}

/** Returns why this daemon is ending or has ended; undefined while the daemon works. */
function leavingOf({ state }: Ownership, signal: AbortSignal): string | undefined {
  if (state.is === 'lent' || state.is === 'released') return 'another weftd takes over'
  return signal.aborted || state.is === 'ended' ? 'it stops' : undefined
}

/** Returns the state of the node at this moment, from which weftd makes all reports about the node. */
export function snapshotOf(node: Node, peers = peersSeen(node)): Snapshot {
  const { lease, view, ownership, threads, following, manager, options } = node
  return {
    at: performance.now(),
    subnet: usedSubnet(node),
    isOpen: ownership.dataPath !== undefined,
    lacking: ownership.dataPath?.lacking ?? {},
    gone: ownership.dataPath?.gone() ?? {},
    unchecked: node.unchecked,
    threads,
    leaving: leavingOf(ownership, node.signal),
    host: hostTroubles(node),
    pastPath: node.pastPath,
    rules: node.rulesTrouble,
    peers: view.size - (view.has(lease.key) ? 1 : 0),
    ...peers,
    held: following.held,
    holds: following.holds,
    configProblem: node.configProblem,
    unrenewed: node.unrenewed,
    store: manager.name,
    isFailing: following.failing,
    comparedAt: following.listedAt,
    followedSince: node.since,
    repaired: node.repaired,
    isReady: node.isReady,
    isPublished: node.isPublished,
    subnetFile: options['subnet-file'],
  }
}

const hostTroubles = ({ duplicate, unforwarded, ownership }: Node): readonly string[] => [
  ...(ownership.dataPath && countersOf(ownership)['route_missing'] ? ['no route to this node is published'] : []),
  ...(duplicate === undefined ? [] : [`${duplicate} uses the same public IP`]),
  ...unforwarded.map((family) => `the kernel does not forward ${FAMILY_NAMES[family]}`),
]

type PeersSeen = Pick<Snapshot, 'silent' | 'unusable' | 'unset' | 'keyless' | 'narrow'>

/**
 * Counting thousands of peers takes a while. So weftd reuses a count for this time in ms for each peer. The time must
 * not depend on the duration of the count: after a pause of the process weftd would report an old state for long.
 */
const SEEN_FOR_MS = 1
const seen = new WeakMap<Node, PeersSeen & { readonly until: number }>()

/**
 * Returns the numbers of peers that have a problem. With thousands of peers the numbers are cached for some seconds.
 */
function peersSeen(node: Node): PeersSeen {
  const known = seen.get(node)
  const began = performance.now()
  if (known && began < known.until) return known
  const list = peersOf(node, new Map(), began, { mostPaths: 0 })
  const counts = countOf(node, list)
  seen.set(node, { ...counts, until: began + list.length * SEEN_FOR_MS })
  return counts
}

function countOf({ ownership }: Node, list: readonly PeerStatus[]): PeersSeen {
  const conditions = list.map(conditionOf)
  const number = (of: Condition): number => conditions.filter((each) => each === of).length
  const stored = number('stored')
  const counters = countersOf(ownership)
  const keyless = Math.min(stored, counters['peers_without_keys'] ?? 0)
  const unusable = list.filter((peer) => peer.unusable && conditionOf(peer) === 'stored').length
  return {
    silent: number('silent'),
    unusable,
    // These peers are stored although their leases are usable: the kernel refused the route, or another program's route
    // has its place.
    unset: Math.max(0, stored - keyless - unusable),
    keyless,
    narrow: number('narrow'),
  }
}

const iso = (ms: number): string => new Date(ms).toISOString()
const seconds = (ms: number): number => Math.round(ms) / 1000

export async function reportOf(node: Node): Promise<NodeReport> {
  // Read the probes first, because reading the traffic takes a while. If the traffic were read first, a peer could be
  // reported as answering before its packets are counted.
  const probed = probedOf(node)
  const traffic = await trafficOf(node)
  // Read all other facts without an `await` in between, so that these facts belong to the same moment.
  const list = peersOf(node, traffic, performance.now(), { probed })
  const snapshot = snapshotOf(node, countOf(node, list))
  const { at, comparedAt } = snapshot
  const { lease, following } = node
  const { subnet } = snapshot
  const trouble = troubleInFull(snapshot)
  return {
    ...stateOf(snapshot),
    trouble: trouble ?? null,
    summary: summaryOf(snapshot),
    store: {
      name: snapshot.store,
      reachable: isReached(snapshot),
      comparedSecondsAgo: comparedAt === undefined ? null : seconds(at - comparedAt),
      held: following.held,
      holds: following.holds,
      configGone: node.configProblem !== undefined,
      configDiffers: node.isConfigOther,
    },
    node: {
      hostname: hostname(),
      subnet: netText(subnet),
      publicIp: addressText(node.attrs.publicIp),
      ...ipv6Of(subnet, node.attrs.publicIp),
      externalInterface: (node.backend.external ?? node.external)?.name ?? null,
      twin: node.duplicate ?? null,
    },
    config: configOf(node.config),
    lease: {
      key: lease.key,
      expiresAt: lease.expiresAt === undefined ? null : iso(lease.expiresAt),
      renewMarginSeconds: node.options['subnet-lease-renew-margin'] * 60,
      unrenewed: node.unrenewed ?? null,
      published: JSON.parse(encodeLeaseValue(node.attrs)) as Record<string, unknown>,
    },
    dataPath: pathOf(node.ownership, node.threads, at, node),
    peers: countPeers(list, probeSecondsOf(node)),
    peerEvents: node.memory?.events.counts() ?? null,
    repairs: node.repaired,
    subnetFileWritten: node.isReady,
  }
}

/**
 * Returns the node's subnet of each family of the network configuration. In Kubernetes a lease may have the subnet of
 * another family too, because a node has a podCIDR of each family of the cluster.
 */
const usedSubnet = ({ config, lease }: Node): Nets => onlyOf(familiesOf(config), lease.subnet)

/**
 * Returns the subnets of a peer in the families of the network configuration, or all subnets of the peer if it has no
 * subnet in these families.
 */
export function subnetsIn(config: NetworkConfig, { subnet }: Pick<Lease, 'subnet'>): Nets {
  const used = onlyOf(familiesOf(config), subnet)
  return familiesOf(used).length > 0 ? used : subnet
}

const ipv6Of = ({ ipv6: subnet }: Nets, { ipv6: publicIp }: Addresses) => ({
  ipv6Subnet: subnet ? formatNet(subnet) : null,
  publicIpv6: publicIp === undefined ? null : formatAddress(publicIp),
})

export function configOf(config: NetworkConfig): NodeReport['config'] {
  const range = primary(config)
  if (!range) return null
  return {
    network: formatNet(range.network),
    ipv6Network: config.ipv6 ? formatNet(config.ipv6.network) : null,
    subnetLength: range.subnetLength,
    subnetMin: formatAddress(range.subnetMin),
    subnetMax: formatAddress(range.subnetMax),
    ipv6SubnetLength: config.ipv6?.subnetLength ?? null,
    ipv6SubnetMin: config.ipv6 ? formatAddress(config.ipv6.subnetMin) : null,
    ipv6SubnetMax: config.ipv6 ? formatAddress(config.ipv6.subnetMax) : null,
    backendType: config.backendType,
    backend: config.backend,
  }
}

/** Returns the interval between probes of one peer, in s; null if weftd probes no peer. */
function probeSecondsOf({ probes }: Node): number | null {
  const intervals = listed(probes ?? {}).map((schedule) => schedule.intervalMs() / 1000)
  return intervals.length === 0 ? null : Math.max(...intervals)
}

/** Returns the families of the network that a data path carries. */
const carriedBy = (dataPath: DataPaths | undefined, config: NetworkConfig | undefined): readonly Family[] =>
  dataPath?.families ?? familiesOf(config ?? {})

/** Returns the name of the device of each carried family; null for a family without a device. */
export function devicesOf(
  dataPath: DataPaths | undefined,
  config: NetworkConfig | undefined,
): Readonly<Record<Family, string | null>> {
  const { device, devices } = dataPath?.carrier() ?? {}
  const of = (family: Family): string | null =>
    (devices ? devices[family] : carriedBy(dataPath, config).includes(family) ? device : undefined) ?? null
  return { ipv4: of('ipv4'), ipv6: of('ipv6') }
}

function pathOf(
  { dataPath }: Ownership,
  threads: Threads,
  at: number,
  { config, mtuAtStart, memory }: Partial<Pick<Node, 'config' | 'mtuAtStart' | 'memory'>> = {},
): NodeReport['dataPath'] {
  const carrier = dataPath?.carrier()
  const counters = countersOf({ dataPath })
  return {
    open: dataPath !== undefined,
    families: carriedBy(dataPath, config),
    lacking: { ipv4: dataPath?.lacking.ipv4 ?? null, ipv6: dataPath?.lacking.ipv6 ?? null },
    addressGone: { ipv4: dataPath?.gone().ipv4 ?? null, ipv6: dataPath?.gone().ipv6 ?? null },
    mtu: dataPath?.mtu ?? null,
    mtuAtStart: mtuAtStart ?? null,
    devices: devicesOf(dataPath, config),
    device: carrier?.device ?? null,
    engine: carrier?.engine ?? null,
    features: [...(carrier?.features ?? [])],
    fastPath: dataPath?.fastPath ?? null,
    threads: [...threads].map(([name, thread]) => ({
      name,
      hungSeconds: isHung(thread) ? seconds(at - thread.requestedAt) : null,
    })),
    counters,
    drops: dropsOf(counters),
    recent: memory?.recent.until(counters, at) ?? null,
    unknownKeys:
      dataPath?.unknownKeys?.().map(({ publicKey, from, at: heardAt }) => ({
        publicKey,
        endpoint: formatEndpoint(from.address, from.port),
        secondsAgo: seconds(at - heardAt),
      })) ?? null,
  }
}

/** Returns the counters of the open data path; an empty object if no data path is open. */
export const countersOf = ({ dataPath }: Pick<Ownership, 'dataPath'>): Readonly<Record<string, number>> =>
  Object.fromEntries(Object.entries(dataPath?.counters() ?? {}).map(([name, count]) => [name, Number(count)]))

type AllProbed = ByFamily<ReadonlyMap<string, Probed>>
const probedOf = ({ probes }: Node): AllProbed => ({ ipv4: probes?.ipv4?.results(), ipv6: probes?.ipv6?.results() })

/**
 * Returns the status of each peer. Reads the path MTUs of all peers from the kernel if there are at most `mostPaths`
 * peers; otherwise reads only those of the peers that full-size packets do not reach.
 */
function peersOf(
  node: Node,
  traffic: Traffic,
  at: number,
  {
    probed = probedOf(node),
    mostPaths = MOST_PATHS,
  }: { readonly probed?: AllProbed; readonly mostPaths?: number } = {},
): PeerStatus[] {
  const { view, lease: own, following, ownership } = node
  const { dataPath } = ownership
  const set = new Map(dataPath?.peers().map((peer) => [peer.key, peer]))
  const held = new Set(following.heldKeys ?? [])
  const unusable = dataPath?.unusable() ?? new Set()
  const isFew = view.size <= mostPaths
  const lengths = { ipv4: node.lengths.ipv4?.lengths(), ipv6: node.lengths.ipv6?.lengths() }
  const families = new Set(carriedBy(dataPath, node.config))
  const seenOf = (lease: Lease): Seen => {
    const peer = set.get(lease.key)
    // If the kernel carries the packets, `dataPath.pathMtu` returns undefined, because weftd does not know the path
    // MTU.
    const pathMtuOf = (family: Family): number | undefined => {
      const mayBeNarrow = lengths[family]?.get(lease.key)?.isWhole === false
      return (isFew || mayBeNarrow) && peer?.[family] ? dataPath?.pathMtu(lease, family) : undefined
    }
    const side = (family: Family): PeerSide | null =>
      families.has(family) && lease.subnet[family]
        ? {
            ...sideOf(peer?.[family], probed[family]?.get(lease.key), pathMtuOf(family), at),
            ...lengthOf(peer?.[family] && lengths[family]?.get(lease.key), probed[family]?.get(lease.key), at),
            session: sessionOf(traffic.get(lease.key)?.sessions?.[family]),
          }
        : null
    return {
      families: { ipv4: side('ipv4'), ipv6: side('ipv6') },
      traffic: traffic.get(lease.key),
      name: node.names.get(addressText(lease.attrs.publicIp)) ?? null,
      isHeld: held.has(lease.key),
      isUnusable: unusable.has(lease.key),
      cameAt: node.cameAt.get(lease.key) ?? Date.now(),
    }
  }
  const peers = [...view.values()].filter(({ key }) => key !== own.key)
  return peers.map((lease) => peerOf({ ...lease, subnet: subnetsIn(node.config, lease) }, seenOf(lease), at))
}

type Traffic = ReadonlyMap<string, PathTraffic>

/** Returns the traffic of each peer, or no traffic if the device that counts the traffic is gone. */
async function trafficOf({ ownership: { dataPath } }: Node): Promise<Traffic> {
  const nothing: Traffic = new Map()
  if (!dataPath) return nothing
  return dataPath.traffic().catch((error: unknown) => {
    if (isWeftError(error)) return nothing
    throw error
  })
}

/** The facts about a peer that come from sources other than its lease. */
interface Seen {
  readonly name: string | null
  readonly families: Readonly<Record<Family, PeerSide | null>>
  readonly traffic: PathTraffic | undefined
  readonly isHeld: boolean
  readonly isUnusable: boolean
  readonly cameAt: number
}

const ago = (when: number | undefined, at: number): number | null =>
  when === undefined ? null : seconds(Math.max(0, at - when))

/**
 * Returns the status of a peer over one family. `side` is undefined if the data path cannot send packets to the peer
 * over this family.
 */
function sideOf(
  side: PathSide | undefined,
  probed: Probed | undefined,
  pathMtu: number | undefined,
  at: number,
): Omit<PeerSide, 'path' | 'passesBytes' | 'pathSince' | 'session'> {
  return {
    endpoint: side?.endpoint ?? null,
    way: side?.way ?? null,
    state: !side ? 'stored' : probed?.isAnswering ? 'answering' : 'programmed',
    roundTripMs: probed?.roundTripMs ?? null,
    lossPercent: probed?.lossPercent ?? null,
    probedSecondsAgo: ago(probed?.at, at),
    unansweredSeconds: ago(probed?.unansweredSince, at),
    pathMtu: pathMtu ?? null,
  }
}

/**
 * Returns the length of the longest packet that reaches the peer. A peer that does not answer small requests has no
 * such length.
 */
function lengthOf(
  length: PathLength | undefined,
  probed: Probed | undefined,
  at: number,
): Pick<PeerSide, 'path' | 'passesBytes' | 'pathSince'> {
  if (!length || probed?.isAnswering === false) return { path: null, passesBytes: null, pathSince: null }
  const { isWhole, bytes, since } = length
  return { path: isWhole ? 'whole' : 'narrow', passesBytes: bytes ?? null, pathSince: iso(Date.now() - (at - since)) }
}

function sessionOf(session: PeerSession | undefined): SessionStatus | null {
  if (!session) return null
  const { publicKey, handshakeAt, ageMs, attempts, failure, stale, unconfirmed, txBytes, rxBytes } = session
  return {
    publicKey,
    // A WireGuard device reports the time of a handshake by the wall clock. So the age is wrong if the clock was set
    // after the handshake.
    handshakeSecondsAgo: ago(handshakeAt, Date.now()),
    ageSeconds: ageMs === undefined ? null : seconds(ageMs),
    attempts: attempts ?? null,
    failure: failure ?? null,
    stale: stale ?? null,
    unconfirmed: unconfirmed ?? null,
    txBytes: txBytes ?? null,
    rxBytes: rxBytes ?? null,
  }
}

/** The status of a peer to which no packet can be sent. */
const NOTHING_KNOWN: PeerSide = {
  ...sideOf(undefined, undefined, undefined, 0),
  ...lengthOf(undefined, undefined, 0),
  session: null,
}

export function peerOf(
  { key, subnet, attrs }: Lease,
  { name, families, traffic, isHeld, isUnusable, cameAt }: Seen,
  at: number,
): PeerStatus {
  const { txPackets, txBytes, rxPackets, rxBytes, lastReceivedAt } = traffic ?? {}
  const sides = [families.ipv4, families.ipv6].filter((side) => side !== null)
  return {
    lease: key,
    name,
    subnet: netText(subnet),
    publicIp: addressText(attrs.publicIp),
    ...ipv6Of(subnet, attrs.publicIp),
    ...(worstOf(sides) ?? NOTHING_KNOWN),
    families,
    type: attrs.backendType,
    held: isHeld,
    unusable: isUnusable,
    since: iso(cameAt),
    txPackets: txPackets ?? null,
    txBytes: txBytes ?? null,
    rxPackets: rxPackets ?? null,
    rxBytes: rxBytes ?? null,
    heardSecondsAgo: ago(lastReceivedAt, at),
  }
}
