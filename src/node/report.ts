// report.ts - how a node is, in full: what /status.json has of it, from what its loops share.

import { hostname } from 'node:os'
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
  primary,
  type Addresses,
  type ByFamily,
  type Family,
  type Nets,
} from '../net/address.ts'
import { storeKindOf, type DaemonOptions } from '../options.ts'
import type { DataPath, PathSide, PathTraffic, PeerSession } from '../path/contract.ts'
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
import type { PathLength } from './loops/path-lengths.ts'
import type { Probed } from './loops/probe-schedule.ts'
import type { Node } from './node.ts'
import type { Possession } from './possession.ts'

/** The kernel is asked for each path: not for thousands. */
const MOST_PATHS = 500

/** The part of the status that does not change; `version` is weft's. */
export function daemonStatusOf(options: DaemonOptions, version: string): DaemonStatus {
  return {
    version,
    pid: process.pid,
    startedAt: new Date(performance.timeOrigin).toISOString(),
    subnetFile: options['subnet-file'],
    leases: leasesOf(options),
    etcdFiles: etcdFilesOf(options),
    network:
      options['status-network'] === 0 ? 'off' : options['status-token-file'] === '' ? ('open' as const) : 'guarded',
  }
}

function etcdFilesOf(options: DaemonOptions): NonNullable<DaemonStatus['etcdFiles']> | null {
  if (options['kube-subnet-mgr'] || storeKindOf(options) !== 'etcd') return null
  const files = {
    caFile: options['etcd-cafile'],
    certFile: options['etcd-certfile'],
    keyFile: options['etcd-keyfile'],
  }
  const given = Object.entries(files).filter(([, path]) => path !== '')
  return given.length === 0 ? null : Object.fromEntries(given.map(([name, path]) => [name, resolve(path)]))
}

function leasesOf(options: DaemonOptions): string {
  if (options['kube-subnet-mgr']) return `nodes, annotations ${options['kube-annotation-prefix']}`
  switch (storeKindOf(options)) {
    case 'directory':
      return options['lease-dir']
    case 'etcd':
      return `${String(options['etcd-endpoints'])} ${options['etcd-prefix']}`
  }
}

/** A daemon that has no node yet, and waits for this. */
export const beginningOf = (waitsFor: string, possession: Possession, signal: AbortSignal): Beginning => ({
  isForwarding: possession.dataPath !== undefined,
  leaving: leavingOf(possession, signal),
  waitsFor,
})

/** The report of a daemon that has no node yet: what it waits for, and what forwards meanwhile. */
export const startingReportOf = (store: string, beginning: Beginning, possession: Possession): NodeReport =>
  startingReport(store, beginning, beginning.isForwarding ? pathOf(possession, new Map(), 0) : null)

/** Why this daemon does not go on; undefined while it does. */
function leavingOf({ state }: Possession, signal: AbortSignal): string | undefined {
  if (state.is === 'lent' || state.is === 'released') return 'another weftd takes over'
  return signal.aborted || state.is === 'ended' ? 'it stops' : undefined
}

/** Whatever is told of the node is told from this. */
export function snapshotOf(node: Node, peers = peersSeen(node)): Snapshot {
  const { lease, view, possession, threads, following, manager, options } = node
  return {
    at: performance.now(),
    subnet: lease.subnet,
    isOpen: possession.dataPath !== undefined,
    lacking: possession.dataPath?.lacking ?? {},
    gone: possession.dataPath?.gone?.() ?? {},
    threads,
    leaving: leavingOf(possession, node.signal),
    host: hostTroubles(node),
    pastPath: node.pastPath,
    rules: node.rulesTrouble,
    peers: view.size - (view.has(lease.key) ? 1 : 0),
    ...peers,
    held: following.held,
    holds: following.holds,
    isConfigGone: node.isConfigGone,
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

const hostTroubles = ({ twin, unforwarded, possession }: Node): readonly string[] => [
  ...(possession.dataPath && countersOf(possession)['route_missing'] ? ['no route to this node is published'] : []),
  ...(twin === undefined ? [] : [`${twin} uses the same public IP`]),
  ...unforwarded.map((family) => `the kernel does not forward ${FAMILY_NAMES[family]}`),
]

type PeersSeen = Pick<Snapshot, 'silent' | 'unusable' | 'narrow'>

/** Looking at thousands of peers takes a while: what was seen counts for this many times as long. */
const SEEN_FOR = 1_000
const seen = new WeakMap<Node, PeersSeen & { readonly until: number }>()

/** The peers that are not reached, as they were a moment ago; beside thousands some seconds ago. */
function peersSeen(node: Node): PeersSeen {
  const known = seen.get(node)
  const began = performance.now()
  if (known && began < known.until) return known
  const counts = countOf(peersOf(node, new Map(), began, { mostPaths: 0 }))
  const now = performance.now()
  seen.set(node, { ...counts, until: now + (now - began) * SEEN_FOR })
  return counts
}

function countOf(list: readonly PeerStatus[]): PeersSeen {
  const conditions = list.map(conditionOf)
  const number = (of: Condition): number => conditions.filter((each) => each === of).length
  return { silent: number('silent'), unusable: number('stored'), narrow: number('narrow') }
}

const iso = (ms: number): string => new Date(ms).toISOString()
/** Rounds to the milliseconds that mean something to a person. */
const seconds = (ms: number): number => Math.round(ms) / 1000

export async function reportOf(node: Node): Promise<NodeReport> {
  // The kernel takes a while to say what passed. Who answered is looked at before, so that no peer answers from whom
  // nothing has come yet.
  const probed = probedOf(node)
  const traffic = await trafficOf(node)
  // From here on everything else is of one moment.
  const list = peersOf(node, traffic, performance.now(), { probed })
  const snapshot = snapshotOf(node, countOf(list))
  const { at, comparedAt } = snapshot
  const { lease, following } = node
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
      configGone: node.isConfigGone,
      configDiffers: node.isConfigOther,
    },
    node: {
      hostname: hostname(),
      subnet: netText(lease.subnet),
      publicIp: addressText(node.attrs.publicIp),
      ...ipv6Of(lease.subnet, node.attrs.publicIp),
      externalInterface: node.backend.external?.name ?? node.externalName ?? null,
      twin: node.twin ?? null,
    },
    config: configOf(node.config),
    lease: {
      key: lease.key,
      expiresAt: lease.expiresAt === undefined ? null : iso(lease.expiresAt),
      published: JSON.parse(encodeLeaseValue(node.attrs)) as Record<string, unknown>,
    },
    dataPath: pathOf(node.possession, node.threads, at, node),
    peers: countPeers(list, probeSecondsOf(node)),
    peerEvents: node.memory?.events.counts() ?? null,
    repairs: node.repaired,
    subnetFileWritten: node.isReady,
  }
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

/** The interval at which each peer is asked, in s; null while nobody is. */
function probeSecondsOf({ probes }: Node): number | null {
  const intervals = listed(probes ?? {}).map(({ intervalMs }) => intervalMs() / 1000)
  return intervals.length === 0 ? null : Math.max(...intervals)
}

/** The families that a data path is to carry of those that the network has. */
const carriedBy = (dataPath: DataPath | undefined, config: NetworkConfig | undefined): readonly Family[] =>
  dataPath?.families ?? familiesOf(config ?? {})

/** The device by which each family that is carried goes; null of one without. */
export function devicesOf(
  dataPath: DataPath | undefined,
  config: NetworkConfig | undefined,
): Readonly<Record<Family, string | null>> {
  const { device, devices } = dataPath?.carrier() ?? {}
  const of = (family: Family): string | null =>
    (devices ? devices[family] : carriedBy(dataPath, config).includes(family) ? device : undefined) ?? null
  return { ipv4: of('ipv4'), ipv6: of('ipv6') }
}

function pathOf(
  { dataPath }: Possession,
  threads: Threads,
  at: number,
  { config, mtuAtStart, memory }: Partial<Pick<Node, 'config' | 'mtuAtStart' | 'memory'>> = {},
): NodeReport['dataPath'] {
  const carrier = dataPath?.carrier()
  const counters = countersOf({ dataPath })
  return {
    open: dataPath !== undefined,
    families: carriedBy(dataPath, config),
    lacking: { ipv4: dataPath?.lacking?.ipv4 ?? null, ipv6: dataPath?.lacking?.ipv6 ?? null },
    addressGone: { ipv4: dataPath?.gone?.().ipv4 ?? null, ipv6: dataPath?.gone?.().ipv6 ?? null },
    mtu: dataPath?.mtu ?? null,
    mtuAtStart: mtuAtStart ?? null,
    devices: devicesOf(dataPath, config),
    device: carrier?.device ?? null,
    engine: carrier?.engine ?? null,
    features: [...(carrier?.features ?? [])],
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

/** The counters of the data path that is open; none while there is none. */
export const countersOf = ({ dataPath }: Pick<Possession, 'dataPath'>): Readonly<Record<string, number>> =>
  Object.fromEntries(Object.entries(dataPath?.counters() ?? {}).map(([name, count]) => [name, Number(count)]))

type AllProbed = ByFamily<ReadonlyMap<string, Probed>>
const probedOf = ({ probes }: Node): AllProbed => ({ ipv4: probes?.ipv4?.results(), ipv6: probes?.ipv6?.results() })

/** The kernel is asked for the paths of `mostPaths` peers at most. */
function peersOf(
  node: Node,
  traffic: Traffic,
  at: number,
  {
    probed = probedOf(node),
    mostPaths = MOST_PATHS,
  }: { readonly probed?: AllProbed; readonly mostPaths?: number } = {},
): PeerStatus[] {
  const { view, lease: own, following, possession } = node
  const { dataPath } = possession
  const set = new Map(dataPath?.peers().map((peer) => [peer.key, peer]))
  const held = new Set(following.heldKeys ?? [])
  const isFew = view.size <= mostPaths
  const lengths = { ipv4: node.lengths.ipv4?.lengths(), ipv6: node.lengths.ipv6?.lengths() }
  const families = new Set(carriedBy(dataPath, node.config))
  const seenOf = (lease: Lease): Seen => {
    const peer = set.get(lease.key)
    // Where the kernel carries packets it looks after their paths itself.
    const pathMtuOf = (family: Family): number | undefined => {
      const mayBeNarrow = lengths[family]?.get(lease.key)?.isWhole === false
      return (isFew || mayBeNarrow) && peer?.[family] ? dataPath?.pathMtu?.(lease, family) : undefined
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
      cameAt: node.cameAt.get(lease.key) ?? Date.now(),
    }
  }
  return [...view.values()].filter(({ key }) => key !== own.key).map((lease) => peerOf(lease, seenOf(lease), at))
}

type Traffic = ReadonlyMap<string, PathTraffic>

/** No traffic is known when the device that counted it is gone. */
async function trafficOf({ possession: { dataPath } }: Node): Promise<Traffic> {
  const nothing: Traffic = new Map()
  if (!dataPath?.traffic) return nothing
  return dataPath.traffic().catch((error: unknown) => {
    if (isWeftError(error)) return nothing
    throw error
  })
}

/** The facts about a peer beside its lease. */
interface Seen {
  readonly name: string | null
  readonly families: Readonly<Record<Family, PeerSide | null>>
  readonly traffic: PathTraffic | undefined
  readonly isHeld: boolean
  readonly cameAt: number
}

const ago = (when: number | undefined, at: number): number | null =>
  when === undefined ? null : seconds(Math.max(0, at - when))

/** One family's, by what the data path has of it; nothing passes without that. */
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

/** Of a peer that does not answer small requests nothing is said of long ones. */
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
    // By the clock of the day, as WireGuard's devices tell it: a clock that was set makes it another age.
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

/** Of a peer that nothing can go to. */
const NOTHING_KNOWN: PeerSide = {
  ...sideOf(undefined, undefined, undefined, 0),
  ...lengthOf(undefined, undefined, 0),
  session: null,
}

export function peerOf(
  { key, subnet, attrs }: Lease,
  { name, families, traffic, isHeld, cameAt }: Seen,
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
    since: iso(cameAt),
    txPackets: txPackets ?? null,
    txBytes: txBytes ?? null,
    rxPackets: rxPackets ?? null,
    rxBytes: rxBytes ?? null,
    heardSecondsAgo: ago(lastReceivedAt, at),
  }
}
