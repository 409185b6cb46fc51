// address.ts - addresses and networks of either family: a number is of IPv4, a bigint of IPv6. ipv4.ts and ipv6.ts are their codecs.

import {
  formatIpv4,
  formatIpv4Net,
  ipv4Net,
  ipv4NetContains,
  ipv4NetsOverlap,
  parseIpv4,
  parseIpv4Net,
  type Ipv4,
  type Ipv4Net,
} from './ipv4.ts'
import {
  formatIpv6,
  formatIpv6Net,
  ipv6Net,
  ipv6NetContains,
  ipv6NetsOverlap,
  parseIpv6,
  parseIpv6Net,
  type Ipv6,
  type Ipv6Net,
} from './ipv6.ts'

export type Address = Ipv4 | Ipv6
export type Net = Ipv4Net | Ipv6Net

/** What there is of each family; undefined, or left out, where there is none. */
export interface ByFamily<Of4, Of6 = Of4> {
  readonly ipv4?: Of4 | undefined
  readonly ipv6?: Of6 | undefined
}
export type Addresses = ByFamily<Ipv4, Ipv6>
export type Nets = ByFamily<Ipv4Net, Ipv6Net>

/** The one by which something is known that may have both: that of IPv4, if there is one. */
export const primary = <Of4, Of6>({ ipv4, ipv6 }: ByFamily<Of4, Of6>): Of4 | Of6 | undefined => ipv4 ?? ipv6

export const isIpv4Net = (net: Net): net is Ipv4Net => typeof net.address === 'number'

/** Undefined for what is an address of neither family. */
export const parseAddress = (text: string): Address | undefined => parseIpv4(text) ?? parseIpv6(text)
export const formatAddress = (address: Address): string =>
  typeof address === 'number' ? formatIpv4(address) : formatIpv6(address)

/** The network of so many bits that has an address; an IPv4 address has 32 at most. */
export const netAround = (address: Address, prefixLength: number): Net =>
  typeof address === 'number' ? ipv4Net(address, Math.min(prefixLength, 32)) : ipv6Net(address, prefixLength)

/** Host bits cleared; undefined for what is a CIDR of neither family. */
export const parseNet = (text: string): Net | undefined => parseIpv4Net(text) ?? parseIpv6Net(text)
export const formatNet = (net: Net): string => (isIpv4Net(net) ? formatIpv4Net(net) : formatIpv6Net(net))

/** No network has an address of the other family. */
export function netContains(net: Net, address: Address): boolean {
  if (isIpv4Net(net)) return typeof address === 'number' && ipv4NetContains(net, address)
  return typeof address === 'bigint' && ipv6NetContains(net, address)
}

/** Whether what two have of a family shares an address. */
export function netsOverlap(a: Nets, b: Nets): boolean {
  if (a.ipv4 && b.ipv4 && ipv4NetsOverlap(a.ipv4, b.ipv4)) return true
  return a.ipv6 !== undefined && b.ipv6 !== undefined && ipv6NetsOverlap(a.ipv6, b.ipv6)
}

/** In the order of the addresses, IPv4 first. */
export function compareAddresses(a: Address, b: Address): number {
  if (typeof a !== typeof b) return typeof a === 'number' ? -1 : 1
  return a < b ? -1 : a > b ? 1 : 0
}

/** The primary one, as Go prints it: 0.0.0.0 stands for none. */
export const addressText = (addresses: Addresses): string => formatAddress(primary(addresses) ?? 0)
/** The primary one, as Go prints it: 0.0.0.0/0 stands for none. */
export const netText = (nets: Nets): string => formatNet(primary(nets) ?? { address: 0, prefixLength: 0 })
