// audience.ts - who is told what at the health port: anybody how the probes go, and all there is only whoever asks where the status is
// told, by a name that is this host's, and for no other site's sake. Pure.

import { parseAddress, type Address } from '../net/address.ts'
import { parseIpv4 } from '../net/ipv4.ts'
import { parseIpv6 } from '../net/ipv6.ts'

/** A request, as far as it says who asks. */
export interface Asking {
  /** The connection's addresses: of this host, and of who asks. */
  readonly local: string | undefined
  readonly remote: string | undefined
  /**
   * The host that a request names: the target's authority where the target has one, else the Host header (RFC 9112,
   * section 3.2.2).
   */
  readonly host: string | undefined
  /** Headers that the browser sets, and lets no page change. */
  readonly origin: string | undefined
  readonly site: string | undefined
  readonly dest: string | undefined
}

export interface Refusal {
  readonly status: number
  readonly why: string
}

const ANY = new Set(['0.0.0.0', '::'])

/**
 * The reason why the whole status may not be told; undefined when it may. It is told on this host (at loopback, from
 * loopback: with net.ipv4.route_localnet, which kube-proxy sets, others reach 127.0.0.1 as well) and at `statusIp`;
 * nowhere when that is empty.
 */
export function refusalOf(
  { local, remote, host, ...browser }: Asking,
  statusIp: string,
  ownName: string,
): Refusal | undefined {
  const isHere = isLoopback(local) && isLoopback(remote)
  const isThere = ANY.has(statusIp) || (!isLoopback(local) && keyOf(local) === keyOf(statusIp))
  if (statusIp === '' || !(isHere || isThere))
    return {
      status: 403,
      why: 'only the health checks are answered at this address; the page and the status are at 127.0.0.1 of the host itself, or where --status-ip says',
    }
  // Only the host's own names are taken: by a name that its owner lets point here (DNS rebinding), a page of another
  // site would be of the same origin as this.
  if (!isThisHost(host, ownName))
    return { status: 421, why: "ask by an address, as localhost, or by this host's own name" }
  if (isOtherSite({ host, ...browser })) return { status: 403, why: 'not for another site' }
  return undefined
}

/**
 * True when a page of another origin asks. Whoever follows a link from there (Fetch Metadata: a document) shows it to
 * nobody but the person.
 */
function isOtherSite({ host, origin, site, dest }: Pick<Asking, 'host' | 'origin' | 'site' | 'dest'>): boolean {
  if (site !== undefined && !['same-origin', 'none'].includes(site) && dest !== 'document') return true
  return origin !== undefined && origin !== `http://${host}`
}

/** An address can be nobody else's name, and a name without a dot nobody's in the DNS. */
function isThisHost(host: string | undefined, ownName: string): boolean {
  const [, bracketed, plain = ''] = /^(?:\[([^\]]*)\]|([^:]*))(?::\d*)?$/.exec(host ?? '') ?? []
  if (bracketed !== undefined) return parseIpv6(bracketed) !== undefined
  const name = plain.toLowerCase()
  const own = ownName.toLowerCase()
  return parseIpv4(name) !== undefined || (name !== '' && ['localhost', own, own.split('.')[0]].includes(name))
}

/** A key that is equal for two texts of one address; an IPv4 address that came over IPv6 is itself. */
function keyOf(address: string | undefined): Address | undefined {
  const plain = (address ?? '').replace(/^::ffff:(?=\d+\.)/, '')
  return parseAddress(plain)
}

/** False for an address, of those at which the status is to be told, that is none of this host's `own`: nobody reaches it by that. */
export const isToldAt = (statusIp: string, own: readonly string[]): boolean =>
  statusIp === '' ||
  ANY.has(statusIp) ||
  isLoopback(statusIp) ||
  own.some((address) => keyOf(address) === keyOf(statusIp))

function isLoopback(address: string | undefined): boolean {
  const key = keyOf(address)
  return typeof key === 'number' ? key >>> 24 === 127 : key === 1n
}

/**
 * The addresses to listen at, so that probes are answered at `ip` and the status can be told at `statusIp`: one socket
 * where one has both.
 */
export function listenAt(ip: string, statusIp: string): readonly string[] {
  if (statusIp === '' || covers(ip, statusIp)) return [ip]
  return covers(statusIp, ip) ? [statusIp] : [ip, statusIp]
}

/** An empty address is every one, as for Go. */
const covers = (one: string, other: string): boolean =>
  one === other || one === '' || one === '::' || (one === '0.0.0.0' && !other.includes(':'))
