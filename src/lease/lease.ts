// lease.ts - a lease: which subnet which node holds, and how to reach the node.
//
// The key and the value are flannel's, byte for byte, so that weft and flanneld can share a store
// (upstream pkg/subnet/subnet.go and pkg/subnet/etcd/registry.go).

import type { Ipv4, Ipv4Net } from '../net/ipv4.ts'
import type { Ipv6, Ipv6Net } from '../net/ipv6.ts'

/** What a node publishes about itself. */
export interface LeaseAttrs {
  readonly publicIp: Ipv4
  readonly publicIpv6?: Ipv6
  /** Empty for udp and alloc, which publish no type. */
  readonly backendType: string
  /** JSON values as they stand in the store; undefined when absent. */
  readonly backendData?: unknown
  readonly backendV6Data?: unknown
}

export interface Lease {
  /** The last component of the key: `10.5.1.0-24` or `10.5.1.0-24&fc00::-64`. The lease's identity. */
  readonly key: string
  readonly subnet: Ipv4Net
  readonly subnet6?: Ipv6Net
  readonly attrs: LeaseAttrs
}

/** A lease of our own: what renewing needs besides. */
export interface OwnLease extends Lease {
  /** When the store drops it, in ms since the epoch; undefined for a reservation, which never ends. */
  readonly expiresAt: number | undefined
  /** The store's revision of the key when we last wrote or read it: a renewal is conditional on it. */
  readonly revision: bigint
}
