// peer-filter.ts - which leases are peers of a backend. What is none is named once, for as long as it is there.

import type { Lease, OwnLease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net } from '../net/ipv4.ts'

const BROADCAST = 0xffffffff

/** Why no host can have the address that a lease publishes, or undefined when one can. */
export function unusableReason({ attrs: { publicIp } }: Lease, own: OwnLease): string | undefined {
  const top = publicIp >>> 24
  // 240.0.0.0/4 is a host's: the kernel sends there since 2.6.25, and clouds lease it.
  const isMulticast = top >= 224 && top < 240
  if (top === 0 || top === 127 || isMulticast || publicIp === BROADCAST)
    return `${formatIpv4(publicIp)} is no address of a host`
  if (publicIp === own.attrs.publicIp) return `${formatIpv4(publicIp)} is this node's own address`
  return undefined
}

export interface PeerFilterOptions {
  /** The backend type that a peer's lease must have; any, where it is not given. */
  readonly type?: string
  readonly lease: OwnLease
  readonly log: Log
  /** Why a lease that is otherwise a peer's is none. */
  readonly alsoUnusable?: (lease: Lease) => string | undefined
  readonly identity?: Identity | undefined
}

/** What the kernel knows a peer by: of two with the same, such as a virtual machine and its clone, one would get the packets of both. */
export interface Identity {
  /** `MAC` */
  readonly name: string
  readonly own: string
  readonly of: (lease: Lease) => string | undefined
  /** What to do about it, on one of the two. */
  readonly remedy: string
}

export interface PeerFilter {
  /** Of the leases by key, those of peers; our own is none. */
  usable(leases: ReadonlyMap<string, Lease>, ownKey: string): readonly Lease[]
  /** How many were none at the last call. */
  skipped(): number
}

export function createPeerFilter({ type, lease: own, log, alsoUnusable, identity }: PeerFilterOptions): PeerFilter {
  let skipped = new Set<string>()
  /** Takes what the lease is known by, or says who has it. */
  function twin(lease: Lease, known: Map<string, string>): string | undefined {
    const value = identity?.of(lease)
    if (!identity || value === undefined) return undefined
    const host = known.get(value)
    if (host === undefined) known.set(value, formatIpv4(lease.attrs.publicIp))
    return host && `its ${identity.name} ${value} is that of ${host}; ${identity.remedy}`
  }
  function why(lease: Lease, known: Map<string, string>): string | undefined {
    const { backendType } = lease.attrs
    // flanneld's words (pkg/backend/route_network.go, vxlan_network.go).
    if (type !== undefined && backendType !== type)
      return `Ignoring non-${type} subnet: ${formatIpv4Net(lease.subnet)}, type=${backendType}`
    const reason = unusableReason(lease, own) ?? alsoUnusable?.(lease) ?? twin(lease, known)
    return reason === undefined ? undefined : `Lease ${lease.key} is not used: ${reason}`
  }
  return {
    usable(leases, ownKey) {
      const peers: Lease[] = []
      const now = new Set<string>()
      const known = new Map(identity ? [[identity.own, 'this node']] : [])
      for (const lease of leases.values()) {
        if (lease.key === ownKey) continue
        const reason = why(lease, known)
        if (reason === undefined) {
          peers.push(lease)
          continue
        }
        now.add(lease.key)
        if (!skipped.has(lease.key)) log.warn(reason)
      }
      skipped = now
      return peers
    },
    skipped: () => skipped.size,
  }
}
