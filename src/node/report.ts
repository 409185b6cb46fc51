// report.ts - how a node is, in full: what /status.json has of it, from what its loops share.

import { hostname } from 'node:os'
import type { PathPeer } from '../backend/backend.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { PeerTraffic } from '../dataplane/engine.ts'
import { isWeftError } from '../errors.ts'
import { encodeLeaseValue, type Lease } from '../lease/lease.ts'
import { addressText, formatAddress, formatNet, netText, primary } from '../net/address.ts'
import type { DaemonOptions } from '../options.ts'
import type { Probed } from '../status/probes.ts'
import { summaryOf, troubleOf } from '../status/snapshot.ts'
import {
  countPeers,
  dropsOf,
  startingReport,
  type DaemonStatus,
  type NodeReport,
  type PeerStatus,
} from '../status/status.ts'
import { isHung, type Threads } from '../status/threads.ts'
import { snapshotOf, type Node } from './node.ts'
import type { Possession } from './possession.ts'

/** The kernel is asked for each path: not for thousands. */
const MOST_PATHS = 500

/** What does not change; `version` is of weft. */
export function daemonStatusOf(options: DaemonOptions, version: string): DaemonStatus {
  return {
    ...{ version, pid: process.pid },
    startedAt: new Date(performance.timeOrigin).toISOString(),
    subnetFile: options['subnet-file'],
    leases: leasesOf(options),
  }
}

function leasesOf(options: DaemonOptions): string {
  if (options['kube-subnet-mgr']) return `nodes, annotations ${options['kube-annotation-prefix']}`
  return options['lease-dir'] || `${String(options['etcd-endpoints'])} ${options['etcd-prefix']}`
}

/** Of a daemon that has no node yet: what it waits for, and what forwards meanwhile. */
export function startingReportOf(store: string, waitsFor: string, possession: Possession): NodeReport {
  const { dataPath } = possession
  return startingReport(store, waitsFor, dataPath ? pathOf(possession, new Map(), 0) : null)
}

const iso = (ms: number): string => new Date(ms).toISOString()
/** With what a millisecond is to a person. */
const seconds = (ms: number): number => Math.round(ms) / 1000

export async function reportOf(node: Node): Promise<NodeReport> {
  const traffic = await trafficOf(node)
  // Of one moment from here on.
  const snapshot = snapshotOf(node)
  const { at, comparedAt } = snapshot
  const { lease, following } = node
  const list = peersOf(node, traffic, at)
  const trouble = troubleOf(snapshot)
  return {
    state: trouble === undefined ? 'working' : 'impaired',
    trouble: trouble ?? null,
    summary: summaryOf(snapshot),
    store: {
      name: snapshot.store,
      reachable: comparedAt !== undefined && !snapshot.isFailing,
      comparedSecondsAgo: comparedAt === undefined ? null : seconds(at - comparedAt),
      ...{ held: following.held, holds: following.holds },
    },
    node: {
      hostname: hostname(),
      subnet: netText(lease.subnet),
      publicIp: addressText(node.attrs.publicIp),
      externalInterface: node.externalName ?? null,
      twin: node.twin ?? null,
    },
    config: configOf(node.config),
    lease: {
      key: lease.key,
      expiresAt: lease.expiresAt === undefined ? null : iso(lease.expiresAt),
      published: JSON.parse(encodeLeaseValue(node.attrs)) as Record<string, unknown>,
    },
    dataPath: pathOf(node.possession, node.threads, at),
    peers: countPeers(list, node.probes ? node.probes.intervalMs() / 1000 : null),
    repairs: node.repaired,
    subnetFileWritten: node.isReady,
  }
}

function configOf(config: NetworkConfig): NodeReport['config'] {
  const range = primary(config)
  if (!range) return null
  return {
    network: formatNet(range.network),
    subnetLength: range.subnetLength,
    subnetMin: formatAddress(range.subnetMin),
    subnetMax: formatAddress(range.subnetMax),
    backendType: config.backendType,
    backend: config.backend,
  }
}

function pathOf({ dataPath }: Possession, threads: Threads, at: number): NodeReport['dataPath'] {
  const carrier = dataPath?.carrier()
  const counters = Object.fromEntries(
    Object.entries(dataPath?.counters() ?? {}).map(([name, count]) => [name, Number(count)]),
  )
  return {
    open: dataPath !== undefined,
    mtu: dataPath?.mtu ?? null,
    ...{ device: carrier?.device ?? null, engine: carrier?.engine ?? null, features: [...(carrier?.features ?? [])] },
    threads: [...threads].map(([name, thread]) => ({
      name,
      hungSeconds: isHung(thread) ? seconds(at - thread.askedAt) : null,
    })),
    ...{ counters, drops: dropsOf(counters) },
  }
}

function peersOf(node: Node, traffic: Traffic, at: number): PeerStatus[] {
  const { view, lease: own, following, possession, isUnapplied } = node
  const { dataPath } = possession
  // None while the data path does not have them all.
  const set = new Map(isUnapplied ? [] : dataPath?.peers().map((peer) => [peer.key, peer]))
  const held = new Set(following.heldKeys ?? [])
  const probed = node.probes?.results()
  const isFew = view.size <= MOST_PATHS
  const seen = (lease: Lease): Seen => ({
    pathMtu: isFew && set.has(lease.key) ? dataPath?.pathMtu?.(lease) : undefined,
    ...{ peer: set.get(lease.key), traffic: traffic.get(lease.key), probed: probed?.get(lease.key) },
    ...{ isHeld: held.has(lease.key), cameAt: node.cameAt.get(lease.key) ?? Date.now() },
  })
  return [...view.values()].filter(({ key }) => key !== own.key).map((lease) => peerOf(lease, seen(lease), at))
}

type Traffic = ReadonlyMap<string, PeerTraffic>

/** None where the device is gone that counted it. */
async function trafficOf({ possession: { dataPath } }: Node): Promise<Traffic> {
  const nothing: Traffic = new Map()
  if (!dataPath?.traffic) return nothing
  return dataPath.traffic().catch((error: unknown) => {
    if (isWeftError(error)) return nothing
    throw error
  })
}

/** What is known of a peer beside its lease. */
interface Seen {
  readonly peer: PathPeer | undefined
  readonly traffic: PeerTraffic | undefined
  readonly probed: Probed | undefined
  readonly pathMtu: number | undefined
  readonly isHeld: boolean
  readonly cameAt: number
}

function peerOf(
  { key, subnet, attrs }: Lease,
  { peer, traffic, probed, pathMtu, isHeld, cameAt }: Seen,
  at: number,
): PeerStatus {
  const { txPackets, txBytes, rxPackets, rxBytes, heardAt } = traffic ?? {}
  const ago = (when: number | undefined): number | null => (when === undefined ? null : seconds(Math.max(0, at - when)))
  return {
    ...{ lease: key, subnet: netText(subnet), publicIp: addressText(attrs.publicIp) },
    ...{ endpoint: peer?.endpoint ?? null, way: peer?.way ?? null, type: attrs.backendType },
    state: !peer ? 'stored' : probed?.isAnswering ? 'answering' : 'programmed',
    ...{ held: isHeld, since: iso(cameAt) },
    ...{ txPackets: txPackets ?? null, txBytes: txBytes ?? null },
    ...{ rxPackets: rxPackets ?? null, rxBytes: rxBytes ?? null },
    heardSecondsAgo: ago(heardAt),
    ...{ roundTripMs: probed?.roundTripMs ?? null, lossPercent: probed?.lossPercent ?? null },
    ...{ probedSecondsAgo: ago(probed?.at), pathMtu: pathMtu ?? null },
  }
}
