// address.ts - the types and functions for IPv4 and IPv6 addresses and networks. An IPv4 address is a number, an IPv6
// address a bigint.

import {
  formatIpv4,
  formatIpv4Net,
  ipv4Net,
  isOneHost as isOneIpv4Host,
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

export const FAMILIES = ['ipv4', 'ipv6'] as const
export type Family = (typeof FAMILIES)[number]
export const FAMILY_NAMES: Readonly<Record<Family, string>> = { ipv4: 'IPv4', ipv6: 'IPv6' }

/** A value for IPv4 and a value for IPv6. If a family has no value, its member is undefined or left out. */
export interface ByFamily<Of4, Of6 = Of4> {
  readonly ipv4?: Of4 | undefined
  readonly ipv6?: Of6 | undefined
}
export type Addresses = ByFamily<Ipv4, Ipv6>
export type Nets = ByFamily<Ipv4Net, Ipv6Net>

export const familiesOf = (of: ByFamily<unknown>): Family[] => FAMILIES.filter((family) => of[family] !== undefined)

export const onlyOf = <Of4, Of6>(
  families: readonly Family[],
  { ipv4, ipv6 }: ByFamily<Of4, Of6>,
): ByFamily<Of4, Of6> => ({
  ...(families.includes('ipv4') ? { ipv4 } : {}),
  ...(families.includes('ipv6') ? { ipv6 } : {}),
})

/**
 * Returns the IPv4 value if there is one, else the IPv6 value. The result identifies an object, such as a node, that
 * may have values for both families.
 */
export const primary = <Of4, Of6>({ ipv4, ipv6 }: ByFamily<Of4, Of6>): Of4 | Of6 | undefined => ipv4 ?? ipv6

export const familyOf = (value: Address | Net): Family =>
  typeof value === 'number' || (typeof value === 'object' && isIpv4Net(value)) ? 'ipv4' : 'ipv6'

/** Returns the family of an address in text form, without checking that the text is an address. */
export const familyOfText = (address: string): Family => (address.includes(':') ? 'ipv6' : 'ipv4')

export const ADDRESS_BITS: Readonly<Record<Family, number>> = { ipv4: 32, ipv6: 128 }

export const listed = <Of4, Of6>({ ipv4, ipv6 }: ByFamily<Of4, Of6>): readonly (Of4 | Of6)[] =>
  [ipv4, ipv6].filter((each) => each !== undefined)

export const isIpv4Net = (net: Net): net is Ipv4Net => typeof net.address === 'number'

export const parseAddress = (text: string): Address | undefined => parseIpv4(text) ?? parseIpv6(text)
export const formatAddress = (address: Address): string =>
  typeof address === 'number' ? formatIpv4(address) : formatIpv6(address)

/** Formats an address with a port, as in URLs (RFC 3986 section 3.2.2): `192.0.2.1:8472`, `[fd00::1]:8472`. */
export const formatEndpoint = (address: Address, port: number): string =>
  typeof address === 'number' ? `${formatIpv4(address)}:${port}` : `[${formatIpv6(address)}]:${port}`

/** Returns the network that consists of a single address, such as `10.5.1.0/32` or `fd00:5:1::/128`. */
export const hostNet = (address: Address): Net => netAround(address, ADDRESS_BITS[familyOf(address)])

/**
 * Returns the network with this prefix length that contains an address. For an IPv4 address a prefix length above 32
 * counts as 32.
 */
export const netAround = (address: Address, prefixLength: number): Net =>
  typeof address === 'number' ? ipv4Net(address, Math.min(prefixLength, 32)) : ipv6Net(address, prefixLength)

/** Parses an IPv4 or IPv6 network such as `10.5.1.7/24`, and clears its host bits; undefined for any other text. */
export const parseNet = (text: string): Net | undefined => parseIpv4Net(text) ?? parseIpv6Net(text)
export const formatNet = (net: Net): string => (isIpv4Net(net) ? formatIpv4Net(net) : formatIpv6Net(net))

/**
 * The key of an address in a Map or a Set: an IPv4 address itself, or the hexadecimal text of an IPv6 address.
 * scripts/lint-keys.mjs refuses bigints as keys, because V8 hashes only their low 64 bits. These bits are equal in the
 * first addresses of all IPv6 subnets, so the lookups in a large map would compare all keys.
 */
export type AddressKey = number | string
export const addressKey = (address: Address): AddressKey =>
  typeof address === 'number' ? address : address.toString(16)

/** Returns the key of a network in a Map or a Set. The keys of an IPv4 and of an IPv6 network always differ. */
export const netKey = ({ address, prefixLength }: Net): AddressKey =>
  typeof address === 'number' ? address * 64 + prefixLength : `${addressKey(address)}/${prefixLength}`

export const netSize = (net: Net, prefixLength = net.prefixLength): bigint =>
  1n << BigInt(ADDRESS_BITS[familyOf(net)] - prefixLength)

/**
 * Returns true if the network contains the address, and false if the network and the address are of different families.
 */
export function netContains(net: Net, address: Address): boolean {
  if (isIpv4Net(net)) return typeof address === 'number' && ipv4NetContains(net, address)
  return typeof address === 'bigint' && ipv6NetContains(net, address)
}

export const byFamily = (addresses: readonly Address[]): Addresses => ({
  ipv4: addresses.find((address) => typeof address === 'number'),
  ipv6: addresses.find((address) => typeof address === 'bigint'),
})
export const netsOf = (nets: readonly Net[]): Nets => ({
  ipv4: nets.find(isIpv4Net),
  ipv6: nets.find((net): net is Ipv6Net => !isIpv4Net(net)),
})
/** Returns true if `all` has each network of `some`. */
export const netsInclude = (all: Nets, some: Nets): boolean =>
  FAMILIES.every((family) => {
    const [one, other] = [all[family], some[family]]
    return other === undefined || (one !== undefined && netKey(one) === netKey(other))
  })

/** Returns true if the IPv4 networks of `a` and `b` overlap, or their IPv6 networks overlap. */
export function netsOverlap(a: Nets, b: Nets): boolean {
  if (a.ipv4 && b.ipv4 && ipv4NetsOverlap(a.ipv4, b.ipv4)) return true
  return a.ipv6 !== undefined && b.ipv6 !== undefined && ipv6NetsOverlap(a.ipv6, b.ipv6)
}

/** Returns true if the network `net` equals `whole` or is a part of it. */
export const isPartOf = (net: Net, whole: Net): boolean =>
  net.prefixLength >= whole.prefixLength && netContains(whole, net.address)

/** Returns true if one of the two networks is a part of the other. */
export const isPartOfEither = (a: Net, b: Net): boolean => isPartOf(a, b) || isPartOf(b, a)

/**
 * Returns true for an IPv6 address that contains an IPv4 address (RFC 4291 section 2.5.5) and that programs print with
 * dots, such as ::192.0.2.1. Returns false for ::2, which programs print without dots.
 */
const isIpv4Within = (address: Ipv6): boolean =>
  address >> 32n === 0xffffn || (address >> 32n === 0n && address > 0xffffn)

/**
 * Returns true if the address can belong to a single host, and false for ::, ::1, ff00::/8 and IPv6 addresses that
 * contain an IPv4 address (RFC 4291 section 2).
 */
export const isOneHost = (address: Address): boolean =>
  typeof address === 'number'
    ? isOneIpv4Host(address)
    : address > 1n && address >> 120n !== 0xffn && !isIpv4Within(address)

/** Returns true for a link-local address: 169.254.0.0/16 (RFC 3927) or fe80::/10 (RFC 4291 section 2.5.6). */
export const isLinkLocal = (address: Address): boolean =>
  typeof address === 'number' ? address >>> 16 === 0xa9fe : address >> 118n === 0x3fan

/** Compares two addresses for sorting: IPv4 before IPv6, then by numeric value. */
export function compareAddresses(a: Address, b: Address): number {
  if (typeof a !== typeof b) return typeof a === 'number' ? -1 : 1
  return a < b ? -1 : a > b ? 1 : 0
}

/**
 * Formats the IPv4 address or, if there is none, the IPv6 address. If there is none of either family, returns 0.0.0.0,
 * as flanneld prints an unset address.
 */
export const addressText = (addresses: Addresses): string => formatAddress(primary(addresses) ?? 0)
export const netsText = (nets: Nets): string => listed(nets).map(formatNet).join(' and ')
/**
 * Formats the IPv4 network or, if there is none, the IPv6 network. If there is none of either family, returns
 * 0.0.0.0/0, as flanneld prints an unset network.
 */
export const netText = (nets: Nets): string => formatNet(primary(nets) ?? { address: 0, prefixLength: 0 })
