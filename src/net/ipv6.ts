// ipv6.ts - IPv6 addresses as 128-bit bigints and networks as bigint and prefix length; text by ip-address.

import type * as IpAddress from 'ip-address'
import { loadIpAddress } from '../assets.ts'

/** Loaded when there is an IPv6 address: most networks have none, and a start does not wait for it. */
const address6 = (): typeof IpAddress.Address6 => loadIpAddress().Address6

/** An IPv6 address, 0 to 2^128 - 1. */
export type Ipv6 = bigint

/** An IPv6 network. `address` has no host bits set; `prefixLength` is 0 to 128. */
export interface Ipv6Net {
  readonly address: Ipv6
  readonly prefixLength: number
}

/** `fc00::1` to a bigint; undefined when it is no IPv6 address, or has a zone or a prefix length. */
export function parseIpv6(text: string): Ipv6 | undefined {
  if (!/^[0-9a-fA-F:.]+$/.test(text) || !address6().isValid(text)) return undefined
  const Address6 = address6()
  return new Address6(text).bigInt()
}

/** The canonical text (RFC 5952). */
export function formatIpv6(address: Ipv6): string {
  return address6().fromBigInt(address).correctForm()
}

function ipv6Mask(prefixLength: number): bigint {
  return ((1n << BigInt(prefixLength)) - 1n) << BigInt(128 - prefixLength)
}

/** A network with its host bits cleared. */
export function ipv6Net(address: Ipv6, prefixLength: number): Ipv6Net {
  return { address: address & ipv6Mask(prefixLength), prefixLength }
}

/** `fc00::1/48` to fc00::/48; undefined when it is not a CIDR. */
export function parseIpv6Net(text: string): Ipv6Net | undefined {
  const slash = text.indexOf('/')
  if (slash < 0 || !/^\d{1,3}$/.test(text.slice(slash + 1))) return undefined
  const address = parseIpv6(text.slice(0, slash))
  const prefixLength = Number(text.slice(slash + 1))
  if (address === undefined || prefixLength > 128) return undefined
  return ipv6Net(address, prefixLength)
}

export function formatIpv6Net(net: Ipv6Net): string {
  return `${formatIpv6(net.address)}/${net.prefixLength}`
}

/** The number of addresses in a network of this prefix length. */
export function ipv6NetSize(prefixLength: number): bigint {
  return 1n << BigInt(128 - prefixLength)
}

export function ipv6NetContains(net: Ipv6Net, address: Ipv6): boolean {
  return (address & ipv6Mask(net.prefixLength)) === net.address
}
