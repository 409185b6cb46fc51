// lease.ts - a lease: the subnets that a node holds, and the address at which the node is reached.
//
// The key and the value are byte for byte those of flannel, so that weft and flanneld can share a store
// (pkg/subnet/subnet.go, pkg/subnet/etcd/registry.go).

import type { Address, Addresses, Family, Net, Nets } from '../../net/address.ts'
import { formatIpv4, formatIpv4Net, ipv4Net, parseIpv4 } from '../../net/ipv4.ts'
import { formatIpv6, formatIpv6Net, ipv6Net, parseIpv6 } from '../../net/ipv6.ts'

/** The data that a node publishes about itself in its lease. */
export interface LeaseAttrs {
  /** The addresses at which other nodes reach this node. */
  readonly publicIp: Addresses
  /**
   * The type of the node's backend, such as `vxlan`. Empty for the backends udp and alloc, because flannel publishes no
   * type for these two.
   */
  readonly backendType: string
  /**
   * The data of the node's backend for IPv4; `backendV6Data` has the data for IPv6. Both are JSON values as in the
   * store, and undefined if the store has none.
   */
  readonly backendData?: unknown
  readonly backendV6Data?: unknown
}

export interface Lease {
  /**
   * The identity of the lease. In a store it is the last component of the key, such as `10.5.1.0-24` or
   * `10.5.1.0-24&fc00::-64`.
   */
  readonly key: string
  /** The node's subnets. A lease has a subnet of at least one family. */
  readonly subnet: Nets
  readonly attrs: LeaseAttrs
  /** The name of the node, if the source of the lease knows it, as Kubernetes does. leasesEqual ignores the name. */
  readonly name?: string
  /**
   * A number that is higher for a lease written later. In a store `revision` is the revision of the key; a reservation
   * by an operator has no number. In Kubernetes it is the creation time of the node, in ms since 1970.
   */
  readonly revision?: bigint
}

/** The lease of this node, with the data that a renewal needs. */
export interface OwnLease extends Lease {
  /** The time when the lease expires, in ms since 1970; undefined for a reservation, which never expires. */
  readonly expiresAt: number | undefined
  /**
   * The time when the lease expires, in ms of the monotonic clock, which does not jump if the time of day is set.
   * node/loops/lease.ts computes this time.
   */
  readonly endsAt?: number | undefined
  /**
   * The revision of the lease's key in the store when this process last wrote or read the lease. A renewal succeeds
   * only if the key still has this revision.
   */
  readonly revision: bigint
  /**
   * The reason why the last renewal only extended the lease and did not write the lease's value, for example that the
   * store is full. Undefined if the value was written.
   */
  readonly unwritten?: string | undefined
  /** True if `obtain` created this lease because the node had none. */
  readonly isNew?: boolean | undefined
}

/** The type of a lease that has a subnet and a public IP of the family `F`. */
export type FamilyLease<F extends Family> = Lease & {
  readonly subnet: { readonly [K in F]: NonNullable<Nets[K]> }
  readonly attrs: { readonly publicIp: { readonly [K in F]: NonNullable<Addresses[K]> } }
}
export type Ipv4Lease = FamilyLease<'ipv4'>

export const hasFamily = <F extends Family>(lease: Lease, family: F): lease is FamilyLease<F> =>
  lease.subnet[family] !== undefined && lease.attrs.publicIp[family] !== undefined

/**
 * Returns the part of a lease for the IP family `family`: the subnet, the node's public IP and the data of the node's
 * backend. The lease must have a subnet of this family.
 */
export function sideOf({ subnet, attrs }: Lease, family: Family): LeaseSide {
  return {
    subnet: subnet[family] as Net,
    host: attrs.publicIp[family] as Address,
    data: family === 'ipv4' ? attrs.backendData : attrs.backendV6Data,
  }
}
interface LeaseSide {
  readonly subnet: Net
  readonly host: Address
  readonly data: unknown
}

/**
 * Returns true if two leases belong to the same node: they have the same public IPv4 address or, if one of the leases
 * has no IPv4, the same public IPv6 address.
 */
export function isOfOneNode(
  { publicIp: a }: Pick<LeaseAttrs, 'publicIp'>,
  { publicIp: b }: Pick<LeaseAttrs, 'publicIp'>,
): boolean {
  if (a.ipv4 !== undefined && b.ipv4 !== undefined) return a.ipv4 === b.ipv4
  return a.ipv6 !== undefined && a.ipv6 === b.ipv6
}

/** The IPv4 part of a key whose lease has only an IPv6 subnet. */
const NO_IPV4 = '0.0.0.0-0'

export function leaseKey({ ipv4, ipv6 }: Nets): string {
  const key = ipv4 ? `${formatIpv4(ipv4.address)}-${ipv4.prefixLength}` : NO_IPV4
  return ipv6 ? `${key}&${formatIpv6(ipv6.address)}-${ipv6.prefixLength}` : key
}

/**
 * Parses the end of a lease's key, and returns the subnets in it. Returns undefined if the key has no subnet. Any text
 * may precede the subnets, as in flannel's ParseSubnetKey. Prefix lengths are 0 to 31 (IPv4) and 0 to 127 (IPv6); 0
 * means that the family has no subnet.
 */
export function parseLeaseKey(key: string): Nets | undefined {
  // The lookbehind keeps a match from starting inside a number. Otherwise matching a long key would take quadratic
  // time.
  const match = /(?<!\d)(\d+\.\d+\.\d+\.\d+)-(\d+)(?:&([a-f\d:]+)-(\d+))?$/.exec(key)
  const address = parseIpv4(match?.[1] ?? '')
  const length = Number(match?.[2])
  if (!match || address === undefined || length > 31) return undefined
  const ipv4 = length === 0 ? undefined : ipv4Net(address, length)
  if (match[3] === undefined) return ipv4 && { ipv4 }
  const address6 = parseIpv6(match[3])
  const length6 = Number(match[4])
  if (address6 === undefined || length6 > 127) return undefined
  const ipv6 = length6 === 0 ? undefined : ipv6Net(address6, length6)
  return ipv4 || ipv6 ? { ipv4, ipv6 } : undefined
}

/**
 * Returns the text that weft stores for a lease, such as `{"PublicIP":"1.2.3.4","PublicIPv6":null}`. The members have
 * the order of flannel's Go struct.
 */
export function encodeLeaseValue(attrs: LeaseAttrs): string {
  return goJsonText({
    PublicIP: formatIpv4(attrs.publicIp.ipv4 ?? 0),
    PublicIPv6: attrs.publicIp.ipv6 === undefined ? null : formatIpv6(attrs.publicIp.ipv6),
    ...(attrs.backendType === '' ? {} : { BackendType: attrs.backendType }),
    BackendData: attrs.backendData,
    BackendV6Data: attrs.backendV6Data,
  })
}

/** Formats a value as JSON like Go's json.Marshal, which escapes five more characters than JSON.stringify. */
export function goJsonText(value: unknown): string {
  const escape = (letter: string): string => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`
  return JSON.stringify(value).replaceAll(/[<>&\u2028\u2029]/g, escape)
}

/** Returns true if two leases have the same key and publish the same data. */
export function leasesEqual(a: Lease, b: Lease): boolean {
  if (a.key !== b.key) return false
  const [x, y] = [a.attrs, b.attrs]
  const isSameText = (one: unknown, other: unknown): boolean =>
    one === other || (one !== undefined && other !== undefined && goJsonText(one) === goJsonText(other))
  return (
    x === y ||
    (x.publicIp.ipv4 === y.publicIp.ipv4 &&
      x.publicIp.ipv6 === y.publicIp.ipv6 &&
      x.backendType === y.backendType &&
      isSameText(x.backendData, y.backendData) &&
      isSameText(x.backendV6Data, y.backendV6Data))
  )
}

export function describeSubnets({ ipv4, ipv6 }: Nets): string {
  return `ip: ${ipv4 ? formatIpv4Net(ipv4) : '0.0.0.0/0'} ipv6: ${ipv6 ? formatIpv6Net(ipv6) : '::/0'}`
}
