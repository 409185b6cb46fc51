// audience.ts - decides which HTTP requests at the health port may read the full status. Pure.
//
// Every client may read the health checks. A request for the full status must arrive at an allowed address, name this
// host in its Host header, and not come from a page of another web site.

import { parseAddress, type Address } from '../net/address.ts'
import { parseIpv4 } from '../net/ipv4.ts'
import { parseIpv6 } from '../net/ipv6.ts'

/** The parts of an HTTP request that show from which host and which web page the request came. */
export interface Sender {
  /** The IP address of this host at which the connection arrived; `remote` is the address of the client. */
  readonly local: string | undefined
  readonly remote: string | undefined
  /**
   * The host name in the request: from the request target if it is a whole URL, else from the Host header (RFC 9112,
   * section 3.2.2).
   */
  readonly host: string | undefined
  /**
   * The value of the header Origin; `site` is that of Sec-Fetch-Site, and `dest` that of Sec-Fetch-Dest. Browsers set
   * these headers, and scripts of a page cannot change them.
   */
  readonly origin: string | undefined
  readonly site: string | undefined
  readonly dest: string | undefined
}

export interface Refusal {
  readonly status: number
  readonly why: string
}

/** Returns true for `0.0.0.0` and `::`. A socket that is bound to one of them listens at all addresses. */
const isAny = (address: string): boolean => {
  const key = keyOf(address)
  return key === 0 || key === 0n
}

/**
 * Returns why an HTTP request may not read the full status; undefined if it may. weftd serves the full status at
 * loopback and at `statusIp`, or only at the Unix socket if `statusIp` is empty. At loopback the client's address must
 * be loopback too, because other hosts reach 127.0.0.1 if net.ipv4.route_localnet is set, which kube-proxy does.
 */
export function refusalOf(
  { local, remote, host, ...browser }: Sender,
  statusIp: string,
  ownName: string,
): Refusal | undefined {
  const isHere = isLoopback(local) && isLoopback(remote)
  const isThere = isAny(statusIp) || (!isLoopback(local) && keyOf(local) === keyOf(statusIp))
  if (statusIp === '' || !(isHere || isThere))
    return {
      status: 403,
      why: 'this address serves only the health checks; the page and the status are served at 127.0.0.1 on the host itself, and at the address of --status-ip',
    }
  // Accept only the host's own names. Otherwise an attacker could make a domain name resolve to this host's address
  // (DNS rebinding). A page under that name would have the same origin as this server, and could read the status.
  if (!isThisHost(host, ownName))
    return { status: 421, why: "use an IP address, localhost or this host's own name in the URL" }
  if (isOtherSite({ host, ...browser })) return { status: 403, why: 'requests from pages of other sites are refused' }
  return undefined
}

/**
 * Returns true if a page of another web site sent the request. A followed link (Sec-Fetch-Dest: document) is allowed,
 * because the page with the link cannot read the answer.
 */
function isOtherSite({ host, origin, site, dest }: Pick<Sender, 'host' | 'origin' | 'site' | 'dest'>): boolean {
  if (site !== undefined && !['same-origin', 'none'].includes(site) && dest !== 'document') return true
  return origin !== undefined && origin !== `http://${host}`
}

/**
 * Returns true if the Host header has an IP address or one of this host's own names. A DNS rebinding attacker cannot
 * use an IP address or a name without a dot, because neither can be registered in the DNS.
 */
function isThisHost(host: string | undefined, ownName: string): boolean {
  const [, bracketed, plain = ''] = /^(?:\[([^\]]*)\]|([^:]*))(?::\d*)?$/.exec(host ?? '') ?? []
  if (bracketed !== undefined) return parseIpv6(bracketed) !== undefined
  const name = plain.toLowerCase()
  const own = ownName.toLowerCase()
  return parseIpv4(name) !== undefined || (name !== '' && ['localhost', own, own.split('.')[0]].includes(name))
}

/**
 * Returns a key that is equal for all spellings of an IP address. An IPv4-mapped IPv6 address gets the key of its IPv4
 * address.
 */
function keyOf(address: string | undefined): Address | undefined {
  const key = parseAddress(address ?? '')
  return typeof key === 'bigint' && key >> 32n === 0xffffn ? Number(key & 0xffff_ffffn) : key
}

/**
 * Returns true if requests can reach this host at `statusIp`. This is so if `statusIp` is empty or unspecified (all
 * addresses), a loopback address, or one of the host's addresses `own`.
 */
export const isReachableAt = (statusIp: string, own: readonly string[]): boolean =>
  statusIp === '' ||
  isAny(statusIp) ||
  isLoopback(statusIp) ||
  own.some((address) => keyOf(address) === keyOf(statusIp))

function isLoopback(address: string | undefined): boolean {
  const key = keyOf(address)
  return typeof key === 'number' ? key >>> 24 === 127 : key === 1n
}

/**
 * Returns the addresses to listen at: `ip` for the health checks and `statusIp` for the full status. Returns a single
 * address if one socket receives the connections to both addresses. Neither argument may be a host name.
 */
export function listenAt(ip: string, statusIp: string): readonly string[] {
  if (statusIp === '' || covers(ip, statusIp)) return [ip]
  return covers(statusIp, ip) ? [statusIp] : [ip, statusIp]
}

/**
 * Returns true if a socket bound to `one` also receives connections to `other`. An empty address means all addresses,
 * as in Go.
 */
function covers(one: string, other: string): boolean {
  const [bound, wanted] = [keyOf(one), keyOf(other)]
  if (one === '' || one === other || bound === 0n) return true
  return bound !== undefined && (bound === wanted || (bound === 0 && typeof wanted === 'number'))
}
