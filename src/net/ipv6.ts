// ipv6.ts - parses and formats IPv6 addresses and networks. An IPv6 address is a 128-bit bigint.

import { parseIpv4 } from './ipv4.ts'

export type Ipv6 = bigint

/** An IPv6 network. The host bits of `address` are zero; `prefixLength` is 0 to 128. */
export interface Ipv6Net {
  readonly address: Ipv6
  readonly prefixLength: number
}

const GROUPS = 8
/** The 16 bytes of an address in network order, for the conversion between a bigint and its groups of 16 bits. */
const scratch = new DataView(new ArrayBuffer(2 * GROUPS))

/**
 * Parses an IPv6 address such as `fc00::1` (RFC 4291 section 2.2). Returns undefined for any other text, such as an
 * address with a zone or a prefix length.
 */
export function parseIpv6(text: string): Ipv6 | undefined {
  const [head = '', tail, ...more] = text.split('::')
  if (more.length > 0) return undefined
  const before = groupsOf(head, tail === undefined)
  const after = tail === undefined ? [] : groupsOf(tail, true)
  if (!before || !after) return undefined
  const missing = GROUPS - before.length - after.length
  if (tail === undefined ? missing !== 0 : missing < 1) return undefined
  for (let at = 0; at < GROUPS; at++)
    scratch.setUint16(
      2 * at,
      before[at] ?? (at < before.length + missing ? 0 : (after[at - before.length - missing] ?? 0)),
    )
  return (scratch.getBigUint64(0) << 64n) | scratch.getBigUint64(8)
}

/**
 * Parses the 16-bit groups of a part of an address, which must not contain `::`. If `isEnd` is true, an IPv4 address
 * may take the place of the last two groups.
 */
function groupsOf(text: string, isEnd: boolean): number[] | undefined {
  if (text === '') return []
  const parts = text.split(':')
  const groups: number[] = []
  for (const [at, part] of parts.entries()) {
    const ipv4 = isEnd && at === parts.length - 1 ? parseIpv4(part) : undefined
    if (ipv4 !== undefined) groups.push(ipv4 >>> 16, ipv4 & 0xffff)
    else if (/^[\da-f]{1,4}$/i.test(part)) groups.push(Number.parseInt(part, 16))
    else return undefined
  }
  return groups
}

/**
 * Formats an IPv6 address in the canonical form (RFC 5952 section 4): lower case, and `::` for the longest run of two
 * or more zero groups. If several runs are equally long, `::` replaces the first of them.
 */
export function formatIpv6(address: Ipv6): string {
  scratch.setBigUint64(0, address >> 64n)
  scratch.setBigUint64(8, address) // setBigUint64 stores only the low 64 bits
  const groups: number[] = []
  for (let at = 0; at < GROUPS; at++) groups.push(scratch.getUint16(2 * at))
  let [from, length] = [0, 1]
  for (let at = 0; at < GROUPS; at++) {
    let end = at
    while (groups[end] === 0) end++
    if (end - at > length) [from, length] = [at, end - at]
  }
  if (length < 2) return textOf(groups, 0, GROUPS)
  return `${textOf(groups, 0, from)}::${textOf(groups, from + length, GROUPS)}`
}

/** Formats the groups from the place `from` to the place before `end`, with colons between the groups. */
function textOf(groups: readonly number[], from: number, end: number): string {
  let text = ''
  for (let at = from; at < end; at++) text += at === from ? groups[at]?.toString(16) : `:${groups[at]?.toString(16)}`
  return text
}

function ipv6Mask(prefixLength: number): bigint {
  return ((1n << BigInt(prefixLength)) - 1n) << BigInt(128 - prefixLength)
}

export function ipv6Net(address: Ipv6, prefixLength: number): Ipv6Net {
  return { address: address & ipv6Mask(prefixLength), prefixLength }
}

/**
 * Parses an IPv6 network, and clears its host bits: `fc00::1/48` becomes fc00::/48. Returns undefined for any other
 * text.
 */
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

export function ipv6NetContains(net: Ipv6Net, address: Ipv6): boolean {
  return (address & ipv6Mask(net.prefixLength)) === net.address
}

/** Returns true if two networks overlap, that is, one network contains the other. */
export function ipv6NetsOverlap(a: Ipv6Net, b: Ipv6Net): boolean {
  return a.prefixLength <= b.prefixLength ? ipv6NetContains(a, b.address) : ipv6NetContains(b, a.address)
}
