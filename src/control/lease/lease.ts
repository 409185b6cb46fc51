// lease.ts - a lease: the subnets that a node holds, and the address at which the node is reached.
//
// The key and the value are byte for byte those of flannel, so that weft and flanneld can share a store (pkg/subnet/subnet.go,
// pkg/subnet/etcd/registry.go).

import type { Address, Addresses, Family, Net, Nets } from '../../net/address.ts'
import { formatIpv4, formatIpv4Net, ipv4Net, parseIpv4 } from '../../net/ipv4.ts'
import { formatIpv6, formatIpv6Net, ipv6Net, parseIpv6 } from '../../net/ipv6.ts'

/** The data that a node publishes about itself. */
export interface LeaseAttrs {
  /** The addresses at which other nodes reach this node. */
  readonly publicIp: Addresses
  /** Empty for udp and alloc, which publish no type. */
  readonly backendType: string
  /** JSON values as in the store; undefined if the store has none. */
  readonly backendData?: unknown
  readonly backendV6Data?: unknown
}

export interface Lease {
  /** The identity of the lease. In a store it is the last component of the key: `10.5.1.0-24` or `10.5.1.0-24&fc00::-64`. */
  readonly key: string
  /** Has at least one family. */
  readonly subnet: Nets
  readonly attrs: LeaseAttrs
  /** The name of the node, if the source has it with the lease, as Kubernetes has. leasesEqual ignores it. */
  readonly name?: string
  /**
   * A number that is higher for a lease written later. In a store it is the key's revision; a reservation, which an operator wrote, has
   * none. In Kubernetes it is the node's creation time in ms since the epoch.
   */
  readonly revision?: bigint
}

/** This node's own lease, with the data that renewing needs. */
export interface OwnLease extends Lease {
  /** The time when the lease expires, in ms since the epoch; undefined for a reservation, which never expires. */
  readonly expiresAt: number | undefined
  /** The same time by the monotonic clock, which is not adjusted. node/loops/lease.ts sets it. */
  readonly endsAt?: number | undefined
  /** The store's revision when this process last wrote or read the lease. A renewal is conditional on it. */
  readonly revision: bigint
  /** The store's reason why the last renewal extended the lease but could not write it. */
  readonly unwritten?: string | undefined
  /** True if `obtain` created the lease, and this node had none before. */
  readonly isNew?: boolean | undefined
}

/** A lease that has a subnet and a public IP of the family. */
export type FamilyLease<F extends Family> = Lease & {
  readonly subnet: { readonly [K in F]: NonNullable<Nets[K]> }
  readonly attrs: { readonly publicIp: { readonly [K in F]: NonNullable<Addresses[K]> } }
}
export type Ipv4Lease = FamilyLease<'ipv4'>

export const hasFamily = <F extends Family>(lease: Lease, family: F): lease is FamilyLease<F> =>
  lease.subnet[family] !== undefined && lease.attrs.publicIp[family] !== undefined

/** Returns one family of a lease that has it: the subnet, the node's public IP, and the data that the node publishes for its backend. */
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

/** True if two leases belong to one node: they have the same public IPv4, or the same IPv6 if one of them is IPv6-only. */
export function isOfOneNode(
  { publicIp: a }: Pick<LeaseAttrs, 'publicIp'>,
  { publicIp: b }: Pick<LeaseAttrs, 'publicIp'>,
): boolean {
  if (a.ipv4 !== undefined && b.ipv4 !== undefined) return a.ipv4 === b.ipv4
  return a.ipv6 !== undefined && a.ipv6 === b.ipv6
}

/** The IPv4 part of the key of a lease without IPv4. */
const NO_IPV4 = '0.0.0.0-0'

export function leaseKey({ ipv4, ipv6 }: Nets): string {
  const key = ipv4 ? `${formatIpv4(ipv4.address)}-${ipv4.prefixLength}` : NO_IPV4
  return ipv6 ? `${key}&${formatIpv6(ipv6.address)}-${ipv6.prefixLength}` : key
}

/**
 * Returns the subnets that a key ends with, or undefined if it has none. Like flannel's ParseSubnetKey it accepts any text before them, and
 * the lengths 0 to 31 (IPv4) and 0 to 127 (IPv6); length 0 means no subnet.
 */
export function parseLeaseKey(key: string): Nets | undefined {
  // A match must not start inside a number: that would take quadratic time with a long key.
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

/** Returns the value of a lease, with its members in the order of flannel's Go struct: `{"PublicIP":"1.2.3.4","PublicIPv6":null}`. */
export function encodeLeaseValue(attrs: LeaseAttrs): string {
  return goJsonText({
    PublicIP: formatIpv4(attrs.publicIp.ipv4 ?? 0),
    PublicIPv6: attrs.publicIp.ipv6 === undefined ? null : formatIpv6(attrs.publicIp.ipv6),
    ...(attrs.backendType === '' ? {} : { BackendType: attrs.backendType }),
    BackendData: attrs.backendData,
    BackendV6Data: attrs.backendV6Data,
  })
}

/** Returns a JSON text as Go's json.Marshal writes it, which escapes five more characters than JSON.stringify. */
export function goJsonText(value: unknown): string {
  const escape = (letter: string): string => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`
  return JSON.stringify(value).replaceAll(/[<>&\u2028\u2029]/g, escape)
}

/** True if two leases have the same key and the same published values. */
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

/** Returns the subnets as flanneld's log lines print them: `ip: 10.5.1.0/24 ipv6: ::/0`. */
export function describeSubnets({ ipv4, ipv6 }: Nets): string {
  return `ip: ${ipv4 ? formatIpv4Net(ipv4) : '0.0.0.0/0'} ipv6: ${ipv6 ? formatIpv6Net(ipv6) : '::/0'}`
}
