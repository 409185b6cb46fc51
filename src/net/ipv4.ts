// ipv4.ts - parses and formats IPv4 addresses and networks. An IPv4 address is an unsigned 32-bit number.

/** An IPv4 address as a number from 0 to 4294967295; the first octet of its text is the highest byte. */
export type Ipv4 = number

/** An IPv4 network. The host bits of `address` are zero; `prefixLength` is 0 to 32. */
export interface Ipv4Net {
  readonly address: Ipv4
  readonly prefixLength: number
}

/**
 * Parses an IPv4 address such as `10.5.1.0`. Returns undefined unless the text is four decimal octets without leading
 * zeros (RFC 6943 section 3.1.1).
 */
export function parseIpv4(text: string): Ipv4 | undefined {
  const match = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(text)
  if (!match) return undefined
  let address = 0
  for (const octet of match.slice(1)) {
    if (Number(octet) > 255 || (octet.length > 1 && octet.startsWith('0'))) return undefined
    address = address * 256 + Number(octet)
  }
  return address
}

export function formatIpv4(address: Ipv4): string {
  return `${address >>> 24}.${(address >>> 16) & 255}.${(address >>> 8) & 255}.${address & 255}`
}

/** Returns the netmask for a prefix length: 0xffffff00 for 24. */
function ipv4Mask(prefixLength: number): number {
  return prefixLength === 0 ? 0 : (0xffffffff << (32 - prefixLength)) >>> 0
}

export function ipv4Net(address: Ipv4, prefixLength: number): Ipv4Net {
  return { address: (address & ipv4Mask(prefixLength)) >>> 0, prefixLength }
}

/**
 * Parses an IPv4 network, and clears its host bits as Go's net.ParseCIDR does: `10.5.1.7/24` becomes 10.5.1.0/24.
 * Returns undefined for any other text.
 */
export function parseIpv4Net(text: string): Ipv4Net | undefined {
  const slash = text.indexOf('/')
  if (slash < 0 || !/^\d{1,2}$/.test(text.slice(slash + 1))) return undefined
  const address = parseIpv4(text.slice(0, slash))
  const prefixLength = Number(text.slice(slash + 1))
  if (address === undefined || prefixLength > 32) return undefined
  return ipv4Net(address, prefixLength)
}

export function formatIpv4Net(net: Ipv4Net): string {
  return `${formatIpv4(net.address)}/${net.prefixLength}`
}

export function ipv4NetContains(net: Ipv4Net, address: Ipv4): boolean {
  return (address & ipv4Mask(net.prefixLength)) >>> 0 === net.address
}

/** Returns true if two networks overlap, that is, one network contains the other. */
export function ipv4NetsOverlap(a: Ipv4Net, b: Ipv4Net): boolean {
  return a.prefixLength <= b.prefixLength ? ipv4NetContains(a, b.address) : ipv4NetContains(b, a.address)
}

/**
 * Returns true if the address can belong to a single host (RFC 1122 section 3.2.1.3). An address in 240.0.0.0/4 can
 * belong to a host: the range is reserved, but Linux supports it since 2.6.25, and clouds use it.
 */
export function isOneHost(address: Ipv4): boolean {
  const top = address >>> 24
  return top !== 0 && top !== 127 && (top < 224 || top >= 240) && address !== 0xffffffff
}
