// report.ts - how a node is, in full: what /status.json has of it, from what its loops share.

import { hostname } from 'node:os'
import type { PathPeer } from '../backend/backend.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import { isWeftError } from '../errors.ts'
import { encodeLeaseValue, type Lease } from '../lease/lease.ts'
import { formatIpv4, formatIpv4Net } from '../net/ipv4.ts'
import { summaryOf, troubleOf } from '../status/snapshot.ts'
import { isHung } from '../status/threads.ts'
import { countPeers, dropsOf, withoutSecrets, type NodeReport, type PeerStatus } from '../status/status.ts'
import { snapshotOf, type Node } from './node.ts'

const iso = (ms: number): string => new Date(ms).toISOString()
/** With what a millisecond is to a person. */
const seconds = (ms: number): number => Math.round(ms) / 1000

export async function reportOf(node: Node): Promise<NodeReport> {
  const programmed = await programmedPeers(node)
  // Of one moment from here on.
  const snapshot = snapshotOf(node)
  const { at, comparedAt } = snapshot
  const { lease, following } = node
  const list = peersOf(node, programmed, at)
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
      subnet: formatIpv4Net(lease.subnet),
      publicIp: formatIpv4(node.attrs.publicIp),
      externalInterface: node.externalName ?? null,
    },
    config: configOf(node.config),
    lease: {
      key: lease.key,
      expiresAt: lease.expiresAt === undefined ? null : iso(lease.expiresAt),
      published: JSON.parse(encodeLeaseValue(node.attrs)) as Record<string, unknown>,
    },
    dataPath: pathOf(node, at),
    peers: countPeers(list, false),
    repairs: node.repaired,
    subnetFileWritten: node.isReady,
  }
}

function configOf(config: NetworkConfig): NodeReport['config'] {
  return {
    network: formatIpv4Net(config.network),
    subnetLength: config.subnetLength,
    ...{ subnetMin: formatIpv4(config.subnetMin), subnetMax: formatIpv4(config.subnetMax) },
    backendType: config.backendType,
    backend: withoutSecrets(config.backend),
  }
}

function pathOf({ dataPath, threads }: Node, at: number): NodeReport['dataPath'] {
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

function peersOf(node: Node, programmed: readonly PathPeer[], at: number): PeerStatus[] {
  const { view, lease: own, following } = node
  const set = new Map(programmed.map((peer) => [peer.key, peer]))
  const held = new Set(following.heldKeys ?? [])
  return [...view.values()]
    .filter(({ key }) => key !== own.key)
    .map((lease) => peerOf(node, lease, set.get(lease.key), held.has(lease.key), at))
}

/** None while the data path does not have them all, or is gone. */
async function programmedPeers({ dataPath, isUnapplied }: Node): Promise<readonly PathPeer[]> {
  if (!dataPath || isUnapplied) return []
  return dataPath.peers().catch((error: unknown) => {
    if (isWeftError(error)) return []
    throw error
  })
}

function peerOf(node: Node, lease: Lease, peer: PathPeer | undefined, held: boolean, at: number): PeerStatus {
  const { key, subnet, attrs } = lease
  const { txPackets, txBytes, rxPackets, rxBytes, heardAt } = peer?.traffic ?? {}
  const ago = (when: number | undefined): number | null => (when === undefined ? null : seconds(Math.max(0, at - when)))
  return {
    ...{ lease: key, subnet: formatIpv4Net(subnet), publicIp: formatIpv4(attrs.publicIp) },
    ...{ endpoint: peer?.endpoint ?? null, type: attrs.backendType },
    state: peer ? 'programmed' : 'stored',
    held,
    since: iso(node.cameAt.get(key) ?? Date.now()),
    ...{ txPackets: txPackets ?? null, txBytes: txBytes ?? null },
    ...{ rxPackets: rxPackets ?? null, rxBytes: rxBytes ?? null },
    heardSecondsAgo: ago(heardAt),
    ...{ roundTripMs: null, lossPercent: null, probedSecondsAgo: null, pathMtu: null },
  }
}
