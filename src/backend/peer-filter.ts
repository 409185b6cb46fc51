// peer-filter.ts - which leases are peers of a backend. What is none is named once, for as long as it is there.

import type { Lease, OwnLease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net, ipv4NetContains, isOneHost, type Ipv4Net } from '../net/ipv4.ts'

/** Why no host can have the address that a lease publishes, or undefined when one can. */
export function unusableReason({ attrs: { publicIp } }: Lease, own: OwnLease): string | undefined {
  if (!isOneHost(publicIp)) return `${formatIpv4(publicIp)} is no address of a host`
  if (publicIp === own.attrs.publicIp) return `${formatIpv4(publicIp)} is this node's own address`
  return undefined
}

export interface PeerFilterOptions {
  /** The backend type that a peer's lease must have; any, where it is not given. */
  readonly type?: string
  readonly lease: OwnLease
  /** Of the cluster: a subnet outside of it would take packets from the host's own routes. */
  readonly network: Ipv4Net
  readonly log: Log
  /** Why a lease that is otherwise a peer's is none. */
  readonly alsoUnusable?: (lease: Lease) => string | undefined
  readonly identity?: Identity | undefined
}

/**
 * What the kernel knows a host by, such as a MAC: of two hosts with the same, such as a virtual machine and its clone, one would get
 * the packets of both.
 */
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

/** Whose lease was written last: a host that is gone, or has another address now, renews its old one no more. */
const isNewer = (a: Lease, b: Lease): boolean => (a.revision ?? -1n) > (b.revision ?? -1n)

export function createPeerFilter(options: PeerFilterOptions): PeerFilter {
  const { type, lease: own, network, log, alsoUnusable, identity } = options
  let skipped = new Set<string>()
  const hostOf = ({ attrs }: Lease): string => formatIpv4(attrs.publicIp)
  function why(lease: Lease): string | undefined {
    const { subnet, attrs } = lease
    // flanneld's words (pkg/backend/route_network.go, vxlan_network.go).
    if (type !== undefined && attrs.backendType !== type)
      return `Ignoring non-${type} subnet: ${formatIpv4Net(subnet)}, type=${attrs.backendType}`
    const isWithin = ipv4NetContains(network, subnet.address) && subnet.prefixLength >= network.prefixLength
    const reason =
      unusableReason(lease, own) ??
      (isWithin ? undefined : `its subnet is not within the network ${formatIpv4Net(network)}`) ??
      alsoUnusable?.(lease) ??
      (identity && identity.of(lease) === identity.own
        ? `its ${identity.name} ${identity.own} is that of this node; ${identity.remedy}`
        : undefined)
    return reason === undefined ? undefined : `Lease ${lease.key} is not used: ${reason}`
  }
  /** Why, of leases that cannot be used beside each other, all but the newest are not; undefined for that. By lease. */
  function rivals(
    leases: readonly Lease[],
    what: string,
    nameOf: (lease: Lease) => string | undefined,
    remedy: string,
  ) {
    const newest = new Map<string, Lease>()
    for (const lease of leases) {
      const name = nameOf(lease)
      const other = name === undefined ? undefined : newest.get(name)
      if (name !== undefined && (!other || isNewer(lease, other))) newest.set(name, lease)
    }
    return (lease: Lease): string | undefined => {
      const name = nameOf(lease)
      const other = name === undefined ? undefined : newest.get(name)
      if (!other || other === lease) return undefined
      return `Lease ${lease.key} is not used: its ${what} ${name} is that of ${hostOf(other)} too, whose lease is newer${remedy}`
    }
  }
  return {
    usable(leases, ownKey) {
      const now = new Set<string>()
      const skip = (lease: Lease, reason: string | undefined): boolean => {
        if (reason === undefined) return false
        now.add(lease.key)
        if (!skipped.has(lease.key)) log.warn(reason)
        return true
      }
      let peers = [...leases.values()].filter((lease) => lease.key !== ownKey && !skip(lease, why(lease)))
      const sameSubnet = rivals(peers, 'subnet', ({ subnet }) => formatIpv4Net(subnet), '')
      peers = peers.filter((lease) => !skip(lease, sameSubnet(lease)))
      if (identity) {
        // One host may have several leases.
        const newest = rivals(peers, identity.name, identity.of, `; ${identity.remedy}`)
        const byHost = new Map<string, string>()
        for (const lease of peers) if (newest(lease) === undefined) byHost.set(identity.of(lease) ?? '', hostOf(lease))
        const isRefused = (lease: Lease): boolean =>
          byHost.get(identity.of(lease) ?? '') !== hostOf(lease) && skip(lease, newest(lease))
        peers = peers.filter((lease) => !isRefused(lease))
      }
      skipped = now
      return peers
    },
    skipped: () => skipped.size,
  }
}
