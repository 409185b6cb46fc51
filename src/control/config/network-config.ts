// network-config.ts - the cluster's network configuration: upstream's keys, defaults, checks and messages
// (pkg/subnet/config.go).

import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { formatAddress, formatNet, netContains, netSize, type ByFamily, type Net } from '../../net/address.ts'
import { parseIpv4, parseIpv4Net, type Ipv4Net } from '../../net/ipv4.ts'
import { parseIpv6, parseIpv6Net, type Ipv6Net } from '../../net/ipv6.ts'
import { DEFAULT_TYPE } from '../../path/catalog.ts'
import { goJsonMembers, jsonKind, readGoJsonObject } from './go-json.ts'
import { hideSecrets, parseJson } from './hidden.ts'
import type { HeadKey } from './keys.ts'

/** The node subnets of one address family: they have `subnetLength` and lie from `subnetMin` to `subnetMax`. */
export interface SubnetRange<N extends Net> {
  readonly network: N
  readonly subnetLength: number
  readonly subnetMin: N['address']
  readonly subnetMax: N['address']
}

/** The families that are enabled, each with its network and the subnets in it; and what holds for both. */
export interface NetworkConfig extends ByFamily<SubnetRange<Ipv4Net>, SubnetRange<Ipv6Net>> {
  readonly enableNftables: boolean
  /** Lower case; `udp` without a Backend object, empty for one without a Type. */
  readonly backendType: string
  /** The Backend object's members by lower-case key; what is secret of them is a `Secret`. */
  readonly backend: Readonly<Record<string, unknown>>
}

const EXAMPLE = 'for example {"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'

function invalid(message: string, remedy = correct(EXAMPLE)): WeftError {
  return new WeftError('CONFIG', message, { remedy })
}
const correct = (example: string): string => `correct the network configuration, ${example}`

type Members = ReadonlyMap<string, unknown>

/** A member of the wanted type; `fallback` when absent or null, as in Go. `example` is of a configuration that has it. */
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
 * Reads and checks a configuration. Throws WeftError CONFIG. Where the subnets are given (`givesSubnets` of the subnet manager) the
 * range to draw them from is not asked for, as flanneld asks for none in Kubernetes.
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

/** Throws WeftError CONFIG for a network of neither family, with flanneld's words (main.go). */
export function requireFamily({ ipv4, ipv6 }: NetworkConfig): void {
  if (!ipv4 && !ipv6)
    throw invalid('none defined stack', 'set "EnableIPv4": true, or "EnableIPv6": true, in the configuration')
}

/**
 * Returns the IPv4 part, for code that knows no other family: `who` is its name, such as `the udp backend`. Throws
 * WeftError CONFIG when there is none.
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
 * To be called by all that carries IPv4 alone, `who` as above: says so where the network has IPv6 too, of whose packets nobody takes care
 * then. Throws WeftError CONFIG where it has IPv6 alone.
 */
export function carryIpv4Alone(who: string, config: NetworkConfig, log: Pick<Log, 'warn'>): void {
  ipv4For(who, config)
  if (config.ipv6)
    log.warn(
      `${who} carries IPv4 alone: nothing carries ${formatNet(config.ipv6.network)} to other hosts; udp, vxlan, host-gw or wireguard would`,
    )
}

/** A member that `parse` understands; undefined when absent or empty. */
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

/** The keys of a family, in upstream's words, and what they may have. */
interface Rules<N extends Net> {
  readonly network: HeadKey
  /** Before the names of the other keys. */
  readonly prefix: '' | 'IPv6'
  readonly kind: string
  readonly exampleNet: string
  /** A configuration with such a network. */
  readonly example: string
  readonly parse: (text: string) => N['address'] | undefined
  readonly parseNet: (text: string) => N | undefined
  readonly at: (address: bigint) => N['address']
  /** Ranges by whose addresses no host is reached from another, and what they are for. */
  readonly useless: readonly (readonly [range: string, what: string])[]
  /** Whom upstream's words call too small. */
  readonly tooSmall: string
  /** The subnets' prefix length, where none is given, in a network of `usualUpTo` at most. */
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
  // RFC 1122 section 3.2.1.3, RFC 5771.
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
  // RFC 4291 sections 2.5.5 to 2.7.
  useless: [
    ['::/96', 'IPv4 in disguise'],
    ['::ffff:0:0/96', 'IPv4 in disguise'],
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
  // 0.0.0.0/0 and ::/0 are Go's empty networks.
  if (!network?.prefixLength)
    throw invalid(`please define a correct ${name} parameter in the flannel config`, `add it, ${rules.example}`)
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
    // 0.0.0.0 and :: are Go's empty addresses: the default holds, as for an absent one.
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

/** As given, or a usual one that leaves room for four subnets. */
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
