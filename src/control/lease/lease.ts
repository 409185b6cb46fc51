// lease.ts - a lease: which subnet which node holds, and how to reach the node.
//
// The key and the value are flannel's, byte for byte, so that weft and flanneld can share a store
// (upstream pkg/subnet/subnet.go and pkg/subnet/etcd/registry.go).

import type { Address, Addresses, Family, Net, Nets } from '../../net/address.ts'
import { formatIpv4, formatIpv4Net, ipv4Net, parseIpv4 } from '../../net/ipv4.ts'
import { formatIpv6, formatIpv6Net, ipv6Net, parseIpv6 } from '../../net/ipv6.ts'

/** The data that a node publishes about itself. */
export interface LeaseAttrs {
  /** The address at which other nodes reach it. */
  readonly publicIp: Addresses
  /** Empty for udp and alloc, which publish no type. */
  readonly backendType: string
  /** JSON values as they stand in the store; absent when they are. */
  readonly backendData?: unknown
  readonly backendV6Data?: unknown
}

export interface Lease {
  /** The lease's identity; in a store the last component of its key: `10.5.1.0-24` or `10.5.1.0-24&fc00::-64`. */
  readonly key: string
  /** Has at least one family. */
  readonly subnet: Nets
  readonly attrs: LeaseAttrs
  /** The name of its node, where the source tells that with the lease: of a node of Kubernetes. Not a part of what a lease says. */
  readonly name?: string
  /**
   * Higher where it was written later: the store's, if its node wrote it, not of a reservation, which an operator did. Of a node of
   * Kubernetes when that was made, in ms since the epoch.
   */
  readonly revision?: bigint
}

/** A lease of our own: what renewing needs besides. */
export interface OwnLease extends Lease {
  /** The end of the lease, in ms since the epoch; undefined for a reservation, which never ends. */
  readonly expiresAt: number | undefined
  /** The end of the lease by the monotonic clock, which nobody sets; as `node/loops/lease` found it. */
  readonly endsAt?: number | undefined
  /** The store's revision when we last wrote or read it: a renewal is conditional on it. */
  readonly revision: bigint
  /** The store's reason, as last given, why it could not write the lease and only kept it alive. */
  readonly unwritten?: string | undefined
  /** True if `obtain` created the lease, and this node had none before. */
  readonly isNew?: boolean | undefined
}

/** A lease of a node that has a subnet of the family, and is reached by the family. */
export type FamilyLease<F extends Family> = Lease & {
  readonly subnet: { readonly [K in F]: NonNullable<Nets[K]> }
  readonly attrs: { readonly publicIp: { readonly [K in F]: NonNullable<Addresses[K]> } }
}
export type Ipv4Lease = FamilyLease<'ipv4'>

export const hasFamily = <F extends Family>(lease: Lease, family: F): lease is FamilyLease<F> =>
  lease.subnet[family] !== undefined && lease.attrs.publicIp[family] !== undefined

/** A lease that has the family: its subnet, where its node is reached, and what that publishes for the backend. */
export function sideOf({ subnet, attrs }: Lease, family: Family): LeaseSide {
  return {
    subnet: subnet[family] as Net,
    host: attrs.publicIp[family] as Address,
    data: family === 'ipv4' ? attrs.backendData : attrs.backendV6Data,
  }
}
export interface LeaseSide {
  readonly subnet: Net
  readonly host: Address
  readonly data: unknown
}

/** Whether two leases are of one node, which has one address: of IPv4, and of IPv6 where one of them has that alone. */
export function isOfOneNode(
  { publicIp: a }: Pick<LeaseAttrs, 'publicIp'>,
  { publicIp: b }: Pick<LeaseAttrs, 'publicIp'>,
): boolean {
  if (a.ipv4 !== undefined && b.ipv4 !== undefined) return a.ipv4 === b.ipv4
  return a.ipv6 !== undefined && a.ipv6 === b.ipv6
}

/** flannel's name for a subnet that there is none of. */
const NO_IPV4 = '0.0.0.0-0'

export function leaseKey({ ipv4, ipv6 }: Nets): string {
  const key = ipv4 ? `${formatIpv4(ipv4.address)}-${ipv4.prefixLength}` : NO_IPV4
  return ipv6 ? `${key}&${formatIpv6(ipv6.address)}-${ipv6.prefixLength}` : key
}

/**
 * The subnets that a key names, whatever stands before them; undefined when it names none. As upstream reads it
 * (ParseSubnetKey), lengths too: 0 to 31 and 0 to 127, of which 0 is none.
 */
export function parseLeaseKey(key: string): Nets | undefined {
  // Nothing is looked for in the middle of a number, which would take the square of a long key's time.
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

/** The value's bytes, in the order of upstream's Go struct: `{"PublicIP":"1.2.3.4","PublicIPv6":null}`. */
export function encodeLeaseValue(attrs: LeaseAttrs): string {
  return goJsonText({
    PublicIP: formatIpv4(attrs.publicIp.ipv4 ?? 0),
    PublicIPv6: attrs.publicIp.ipv6 === undefined ? null : formatIpv6(attrs.publicIp.ipv6),
    ...(attrs.backendType === '' ? {} : { BackendType: attrs.backendType }),
    BackendData: attrs.backendData,
    BackendV6Data: attrs.backendV6Data,
  })
}

/** A JSON value's bytes as Go's json.Marshal writes them: five characters as escapes, wherever they stand in a string. */
export function goJsonText(value: unknown): string {
  const escape = (letter: string): string => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`
  return JSON.stringify(value).replaceAll(/[<>&\u2028\u2029]/g, escape)
}

/** True when two leases say the same: key and every published value. */
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

/** The subnets in Go's words for log lines: `ip: 10.5.1.0/24 ipv6: ::/0`. */
export function describeSubnets({ ipv4, ipv6 }: Nets): string {
  return `ip: ${ipv4 ? formatIpv4Net(ipv4) : '0.0.0.0/0'} ipv6: ${ipv6 ? formatIpv6Net(ipv6) : '::/0'}`
}
