// network-config.ts - parses and checks the network configuration, with the keys, defaults, checks and messages of
// flannel (pkg/subnet/config.go).

import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { formatAddress, formatNet, netContains, netSize, type ByFamily, type Net } from '../../net/address.ts'
import { parseIpv4, parseIpv4Net, type Ipv4Net } from '../../net/ipv4.ts'
import { parseIpv6, parseIpv6Net, type Ipv6Net } from '../../net/ipv6.ts'
import { DEFAULT_TYPE } from '../../path/catalog.ts'
import { goJsonMembers, jsonKind, readGoJsonObject } from './go-json.ts'
import { hideSecrets, parseJson } from './hidden.ts'
import type { HeadKey } from './keys.ts'

/**
 * The range of node subnets of one family, from `subnetMin` to `subnetMax`, each with the prefix length `subnetLength`.
 */
export interface SubnetRange<N extends Net> {
  readonly network: N
  readonly subnetLength: number
  readonly subnetMin: N['address']
  readonly subnetMax: N['address']
}

export interface NetworkConfig extends ByFamily<SubnetRange<Ipv4Net>, SubnetRange<Ipv6Net>> {
  readonly enableNftables: boolean
  /**
   * The `Type` of the Backend object in lower case. It is `udp` if the configuration has no Backend object, and empty
   * if the Backend object has no Type.
   */
  readonly backendType: string
  /** The members of the Backend object by lower-case key. Each secret value is wrapped in a `Secret`. */
  readonly backend: Readonly<Record<string, unknown>>
}

const EXAMPLE = 'for example {"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'

function invalid(message: string, remedy = correct(EXAMPLE)): WeftError {
  return new WeftError('CONFIG', message, { remedy })
}
const correct = (example: string): string => `correct the network configuration, ${example}`

type Members = ReadonlyMap<string, unknown>

/**
 * Returns a member of the configuration, or `fallback` if the member is absent or null; Go treats null as absent too.
 * Throws WeftError CONFIG, which quotes `example`, if the member's type differs from that of `fallback`.
 */
function member<T>(
  members: Members,
  key: HeadKey | 'Type',
  kind: string,
  accepts: (value: unknown) => value is T,
  fallback: T,
  example = EXAMPLE,
): T {
  const value = members.get(key.toLowerCase())
  if (value === undefined || value === null) return fallback
  if (!accepts(value))
    throw invalid(`${key} is ${jsonKind(value)} ${JSON.stringify(value)}; it must be ${kind}`, correct(example))
  return value
}

const isString = (value: unknown): value is string => typeof value === 'string'
const isBoolean = (value: unknown): value is boolean => typeof value === 'boolean'
const isUint = (value: unknown): value is number =>
  typeof value === 'number' && Number.isSafeInteger(value) && value >= 0

/**
 * Parses and checks the text of a network configuration. Throws WeftError CONFIG. `areGiven` is true if a controller
 * assigns the subnets, as in Kubernetes. In that case weft, like flanneld, neither needs nor checks the range of
 * subnets.
 */
export function parseNetworkConfig(text: string, { areGiven = false } = {}): NetworkConfig {
  let members: Members
  try {
    members = readGoJsonObject(text, (json) => hideSecrets(parseJson(json)))
  } catch (error) {
    throw invalid(`the network configuration is not valid JSON: ${messageOf(error)}`)
  }
  const enableIpv4 = member(members, 'EnableIPv4', 'true or false', isBoolean, true)
  const enableIpv6 = member(members, 'EnableIPv6', 'true or false', isBoolean, false)
  const backendValue = members.get('backend')
  const backend = goJsonMembers(backendValue)
  if (backendValue !== undefined && backendValue !== null && !backend)
    throw invalid(`Backend is ${jsonKind(backendValue)}; it must be an object`)
  const backendType = backend ? member(backend, 'Type', 'a string', isString, '') : DEFAULT_TYPE

  return {
    enableNftables: member(members, 'EnableNFTables', 'true or false', isBoolean, false),
    ipv4: enableIpv4 ? subnetRange(members, areGiven, IPV4) : undefined,
    ipv6: enableIpv6 ? subnetRange(members, areGiven, IPV6) : undefined,
    backendType: backendType.toLowerCase(),
    backend: Object.fromEntries(backend ?? []),
  }
}

/** Throws WeftError CONFIG, with flanneld's words (main.go), if the configuration enables neither IPv4 nor IPv6. */
export function requireFamily({ ipv4, ipv6 }: NetworkConfig): void {
  if (!ipv4 && !ipv6)
    throw invalid('none defined stack', 'set "EnableIPv4": true, or "EnableIPv6": true, in the configuration')
}

/**
 * Returns the IPv4 value of `{ ipv4, ipv6 }`, for a backend that supports only IPv4. Throws WeftError CONFIG, which
 * names the backend `who`, if there is no IPv4 value.
 */
export function ipv4For<T>(who: string, { ipv4 }: ByFamily<T, unknown>): T {
  if (ipv4 === undefined)
    throw invalid(
      `${who} needs IPv4, and EnableIPv4 is false`,
      'set "EnableIPv4": true, or take udp, vxlan, host-gw or wireguard, which carry IPv6',
    )
  return ipv4
}

/**
 * Logs a warning if a backend that supports only IPv4 runs in a dual-stack network, because the backend does not carry
 * IPv6 packets. Throws WeftError CONFIG in an IPv6-only network. `who` is the backend's name.
 */
export function carryIpv4Alone(who: string, config: NetworkConfig, log: Pick<Log, 'warn'>): void {
  ipv4For(who, config)
  if (config.ipv6)
    log.warn(
      `${who} carries IPv4 alone: nothing carries ${formatNet(config.ipv6.network)} to other hosts; udp, vxlan, host-gw or wireguard would`,
    )
}

/**
 * Parses a member of the configuration with `parse`. Returns undefined if the member is absent or empty. Throws
 * WeftError CONFIG if `parse` refuses it.
 */
function parsed<T>(
  members: Members,
  key: HeadKey,
  kind: string,
  parse: (text: string) => T | undefined,
  example: string,
): T | undefined {
  const text = member(members, key, kind, isString, '', example)
  if (text === '') return undefined
  const value = parse(text)
  if (value === undefined) throw invalid(`${key} is "${text}"; it must be ${kind}`, correct(example))
  return value
}

/** flannel's names of configuration keys and flannel's limits for one address family. */
interface Rules<N extends Net> {
  readonly network: HeadKey
  /** The prefix of this family's keys, such as `IPv6` in IPv6SubnetMin. */
  readonly prefix: '' | 'IPv6'
  readonly kind: string
  readonly exampleNet: string
  /** An example of a configuration that enables the family, for error messages. */
  readonly example: string
  readonly parse: (text: string) => N['address'] | undefined
  readonly parseNet: (text: string) => N | undefined
  readonly at: (address: bigint) => N['address']
  /**
   * Address ranges that cannot be routed between hosts, each with the purpose for which it is reserved. weft refuses a
   * configuration whose network is in one of these ranges.
   */
  readonly useless: readonly (readonly [range: string, what: string])[]
  /** The words with which flannel's error message begins if the network is too small for four subnets. */
  readonly tooSmall: string
  /** The default prefix length of a node's subnet, if the network's prefix length is at most `usualUpTo`. */
  readonly usual: number
  readonly usualUpTo: number
  readonly longest: number
  readonly longestGiven: number
}

const IPV4: Rules<Ipv4Net> = {
  network: 'Network',
  prefix: '',
  kind: 'an IPv4',
  exampleNet: '10.5.0.0/16',
  example: EXAMPLE,
  parse: parseIpv4,
  parseNet: parseIpv4Net,
  at: Number,
  // These IPv4 ranges, which cannot be routed between hosts, are from RFC 1122 section 3.2.1.3 and RFC 5771.
  useless: [
    ['127.0.0.0/8', 'loopback'],
    ['224.0.0.0/4', 'multicast'],
  ],
  tooSmall: 'network',
  usual: 24,
  usualUpTo: 22,
  longest: 28,
  longestGiven: 30,
}

const IPV6: Rules<Ipv6Net> = {
  network: 'IPv6Network',
  prefix: 'IPv6',
  kind: 'an IPv6',
  exampleNet: 'fc00::/48',
  example: 'for example "IPv6Network":"fd00:5::/48"',
  parse: parseIpv6,
  parseNet: parseIpv6Net,
  at: (address) => address,
  // These IPv6 ranges, which cannot be routed between hosts, are from RFC 4291 sections 2.5.5 to 2.7.
  useless: [
    ['::/96', 'for embedded IPv4 addresses'],
    ['::ffff:0:0/96', 'for embedded IPv4 addresses'],
    ['fe80::/10', 'link-local'],
    ['ff00::/8', 'multicast'],
  ],
  tooSmall: 'IPv6Network',
  usual: 64,
  usualUpTo: 62,
  longest: 124,
  longestGiven: 126,
}

function subnetRange<N extends Net>(members: Members, areGiven: boolean, rules: Rules<N>): SubnetRange<N> {
  const { network: name, prefix, kind, at, example } = rules
  const network = parsed(members, name, `${kind} network such as ${rules.exampleNet}`, rules.parseNet, example)
  // Go uses 0.0.0.0/0 and ::/0 for a network that is not set. So flannel treats a configured 0.0.0.0/0 or ::/0 as a
  // missing network.
  if (!network?.prefixLength)
    throw invalid(
      `please define a correct ${name} parameter in the flannel config`,
      `add the parameter, ${rules.example}`,
    )
  for (const [range, what] of rules.useless) {
    const around = rules.parseNet(range)
    if (around && around.prefixLength <= network.prefixLength && netContains(around, network.address))
      throw invalid(
        `${name} is ${formatNet(network)}, which is ${what} (${range}): no container is reached there`,
        correct(example),
      )
  }
  if (areGiven) return { network, subnetLength: 0, subnetMin: at(0n), subnetMax: at(0n) }
  const given = member(members, `${prefix}SubnetLen`, 'a whole number', isUint, 0, example)
  const subnetLength = subnetLengthFor(network.prefixLength, given, rules)
  const first = BigInt(network.address)
  const end = first + netSize(network)
  const step = netSize(network, subnetLength)
  const bound = (key: 'SubnetMin' | 'SubnetMax', usual: bigint): N['address'] => {
    // Go uses 0.0.0.0 and :: for an address that is not set. So the default applies to a configured 0.0.0.0 or :: as
    // well as to an absent key.
    const address = parsed(members, `${prefix}${key}`, `${kind} address`, rules.parse, example) || at(usual)
    const value = BigInt(address)
    if (value < first || value >= end)
      throw invalid(`${prefix}${key} is not in the range of the ${name}`, correct(example))
    if (value % step !== 0n)
      throw invalid(`${prefix}${key} is not on a SubnetLen boundary: ${formatAddress(address)}`, correct(example))
    return address
  }
  return {
    network,
    subnetLength,
    subnetMin: bound('SubnetMin', first + step),
    subnetMax: bound('SubnetMax', end - step),
  }
}

/**
 * Returns the prefix length of node subnets: the configured length, or the default. The length must leave room for at
 * least four subnets in the network.
 */
function subnetLengthFor(networkLength: number, given: number, rules: Rules<Net>): number {
  const remedy = correct(rules.example)
  if (given > 0) {
    if (given > rules.longestGiven) throw invalid(`SubnetLen must be less than /${rules.longestGiven + 1}`, remedy)
    if (given < networkLength + 2) throw invalid('network must be able to accommodate at least four subnets', remedy)
    return given
  }
  if (networkLength > rules.longest)
    throw invalid(`${rules.tooSmall} is too small. Minimum useful network prefix is /${rules.longest}`, remedy)
  return networkLength <= rules.usualUpTo ? rules.usual : networkLength + 2
}
