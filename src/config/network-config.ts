// network-config.ts - the cluster's network configuration: upstream's keys, defaults, checks and messages
// (pkg/subnet/config.go).

import { messageOf, WeftError } from '../errors.ts'
import { DEFAULT_TYPE } from '../kinds.ts'
import type { ByFamily, Net } from '../net/address.ts'
import { formatIpv4, ipv4Net, ipv4NetSize, parseIpv4, parseIpv4Net, type Ipv4Net } from '../net/ipv4.ts'
import { formatIpv6, ipv6Net, ipv6NetSize, parseIpv6, parseIpv6Net, type Ipv6Net } from '../net/ipv6.ts'
import { goJsonMembers, jsonKind, readGoJsonObject } from './go-json.ts'
import { hideSecrets, parseJson } from './hidden.ts'

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

/** Of a network that has IPv4. */
export type Ipv4Config = NetworkConfig & { readonly ipv4: SubnetRange<Ipv4Net> }

const EXAMPLE = 'for example {"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'

function invalid(message: string, remedy = `mend the network configuration, ${EXAMPLE}`): WeftError {
  return new WeftError('CONFIG', message, { remedy })
}

type Members = ReadonlyMap<string, unknown>

/** A member of the wanted type; `fallback` when absent or null, as in Go. */
function member<T>(
  members: Members,
  key: string,
  kind: string,
  accepts: (value: unknown) => value is T,
  fallback: T,
): T {
  const value = members.get(key.toLowerCase())
  if (value === undefined || value === null) return fallback
  if (!accepts(value)) throw invalid(`${key} is ${jsonKind(value)} ${JSON.stringify(value)}; it must be ${kind}`)
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
  const backend = backendValue === undefined || backendValue === null ? undefined : goJsonMembers(backendValue)
  if (backendValue !== undefined && backendValue !== null && !backend)
    throw invalid(`Backend is ${jsonKind(backendValue)}; it must be an object`)
  const backendType = backend ? member(backend, 'Type', 'a string', isString, '') : DEFAULT_TYPE

  return {
    enableNftables: member(members, 'EnableNFTables', 'true or false', isBoolean, false),
    ipv4: enableIpv4 ? ipv4Range(members, areGiven) : undefined,
    ipv6: enableIpv6 ? ipv6Range(members, areGiven) : undefined,
    backendType: backendType.toLowerCase(),
    backend: Object.fromEntries(backend ?? []),
  }
}

/**
 * Refuses a configuration that asks for IPv6, which weft has not, or for neither family. weftd itself goes on where IPv4 is asked for
 * too. Throws WeftError CONFIG.
 */
export function refuseIpv6(config: NetworkConfig): asserts config is Ipv4Config {
  if (config.ipv6)
    throw invalid(
      'weft has no IPv6 yet, and "EnableIPv6" of the network configuration is true',
      'take "EnableIPv6" out, and stay with flannel where pods use IPv6',
    )
  if (!config.ipv4) throw invalid('none defined stack', 'set "EnableIPv4": true in the configuration')
}

/** What there is of IPv4, for what knows no other family: `who`, such as `the udp backend`. Throws WeftError CONFIG where there is none. */
export function ipv4For<T>(who: string, { ipv4 }: ByFamily<T, unknown>): T {
  if (ipv4 === undefined) throw invalid(`${who} needs IPv4, and EnableIPv4 is false`, 'set "EnableIPv4": true')
  return ipv4
}

/** A member that `parse` understands; undefined when absent or empty. */
function parsed<T>(members: Members, key: string, kind: string, parse: (text: string) => T | undefined): T | undefined {
  const text = member(members, key, kind, isString, '')
  if (text === '') return undefined
  const value = parse(text)
  if (value === undefined) throw invalid(`${key} is "${text}"; it must be ${kind}`)
  return value
}

function ipv4Range(members: Members, areGiven: boolean): SubnetRange<Ipv4Net> {
  const network = parsed(members, 'Network', 'an IPv4 network such as 10.5.0.0/16', parseIpv4Net)
  // 0.0.0.0/0 and ::/0 are Go's empty networks.
  if (!network?.prefixLength)
    throw invalid('please define a correct Network parameter in the flannel config', `add it, ${EXAMPLE}`)
  if (areGiven) return { network, subnetLength: 0, subnetMin: 0, subnetMax: 0 }
  const subnetLength = subnetLengthFor(
    network.prefixLength,
    member(members, 'SubnetLen', 'a whole number', isUint, 0),
    {
      name: 'Network',
      usual: 24,
      usualUpTo: 22,
      longest: 28,
      longestGiven: 30,
    },
  )
  const step = ipv4NetSize(subnetLength)
  const end = network.address + ipv4NetSize(network.prefixLength)
  // 0.0.0.0 and :: are Go's empty addresses: the default holds, as for an absent one.
  const subnetMin = parsed(members, 'SubnetMin', 'an IPv4 address', parseIpv4) || network.address + step
  const subnetMax = parsed(members, 'SubnetMax', 'an IPv4 address', parseIpv4) || end - step
  for (const [name, address] of [
    ['SubnetMin', subnetMin],
    ['SubnetMax', subnetMax],
  ] as const) {
    if (address < network.address || address >= end) throw invalid(`${name} is not in the range of the Network`)
    if (ipv4Net(address, subnetLength).address !== address) {
      throw invalid(`${name} is not on a SubnetLen boundary: ${formatIpv4(address)}`)
    }
  }
  return { network, subnetLength, subnetMin, subnetMax }
}

function ipv6Range(members: Members, areGiven: boolean): SubnetRange<Ipv6Net> {
  const network = parsed(members, 'IPv6Network', 'an IPv6 network such as fc00::/48', parseIpv6Net)
  if (!network?.prefixLength) throw invalid('please define a correct IPv6Network parameter in the flannel config')
  if (areGiven) return { network, subnetLength: 0, subnetMin: 0n, subnetMax: 0n }
  const subnetLength = subnetLengthFor(
    network.prefixLength,
    member(members, 'IPv6SubnetLen', 'a whole number', isUint, 0),
    {
      name: 'IPv6Network',
      usual: 64,
      usualUpTo: 62,
      longest: 124,
      longestGiven: 126,
    },
  )
  const step = ipv6NetSize(subnetLength)
  const end = network.address + ipv6NetSize(network.prefixLength)
  const subnetMin = parsed(members, 'IPv6SubnetMin', 'an IPv6 address', parseIpv6) || network.address + step
  const subnetMax = parsed(members, 'IPv6SubnetMax', 'an IPv6 address', parseIpv6) || end - step
  for (const [name, address] of [
    ['IPv6SubnetMin', subnetMin],
    ['IPv6SubnetMax', subnetMax],
  ] as const) {
    if (address < network.address || address >= end) throw invalid(`${name} is not in the range of the IPv6Network`)
    if (ipv6Net(address, subnetLength).address !== address) {
      throw invalid(`${name} is not on a SubnetLen boundary: ${formatIpv6(address)}`)
    }
  }
  return { network, subnetLength, subnetMin, subnetMax }
}

interface LengthRules {
  readonly name: string
  readonly usual: number
  readonly usualUpTo: number
  readonly longest: number
  readonly longestGiven: number
}

/** The subnets' prefix length: as given, or a usual one that leaves room for four subnets. */
function subnetLengthFor(networkLength: number, given: number, rules: LengthRules): number {
  if (given > 0) {
    if (given > rules.longestGiven) throw invalid(`SubnetLen must be less than /${rules.longestGiven + 1}`)
    if (given < networkLength + 2) throw invalid('network must be able to accommodate at least four subnets')
    return given
  }
  if (networkLength > rules.longest) {
    throw invalid(
      `${rules.name === 'Network' ? 'network' : rules.name} is too small. Minimum useful network prefix is /${rules.longest}`,
    )
  }
  return networkLength <= rules.usualUpTo ? rules.usual : networkLength + 2
}
