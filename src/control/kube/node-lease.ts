// node-lease.ts - converts between nodes of the Kubernetes API and leases. Pure.
//
// The subnet is the podCIDR that a controller assigned to the node, and never changes in the life of a node
// (ValidateNodeUpdate of the API server). A lease's other data are annotations with flannel's names and bytes
// (pkg/subnet/kube/annotations.go, kube.go). weftd removes the annotations of an address family without a public IP,
// because with the old annotations peers would send packets to an address that the node no longer has.

import { messageOf, WeftError } from '../../base/errors.ts'
import {
  FAMILIES,
  isLinkLocal,
  isOneHost,
  netsOf,
  parseNet,
  type Address,
  type Addresses,
  type ByFamily,
  type Family,
} from '../../net/address.ts'
import { formatIpv4, parseIpv4 } from '../../net/ipv4.ts'
import { formatIpv6, parseIpv6 } from '../../net/ipv6.ts'
import { parseJson } from '../config/hidden.ts'
import { shortened } from '../lease/host-name.ts'
import { goJsonText, leaseKey, parseLeaseKey, type Lease, type LeaseAttrs } from '../lease/lease.ts'
import type { Entry } from '../lease/subnet-manager.ts'

export interface NodeObject {
  readonly metadata?: {
    readonly name?: string | undefined
    readonly uid?: string | undefined
    readonly resourceVersion?: string | undefined
    readonly creationTimestamp?: string | undefined
    readonly annotations?: Readonly<Record<string, string>>
  }
  readonly spec?: { readonly podCIDR?: string | undefined; readonly podCIDRs?: readonly string[] }
}

const isText = (value: unknown): value is string => typeof value === 'string'
const textOf = (value: unknown): string | undefined => (isText(value) ? value : undefined)
/** Returns `value` if it is a JSON object; an empty object for any other value. */
export const membersOf = (value: unknown): Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}

/** Reads a Kubernetes Node object from untrusted JSON. A member of the wrong type counts as missing. */
export function nodeOf(value: unknown): NodeObject {
  const { metadata, spec } = membersOf(value)
  const { name, uid, resourceVersion, creationTimestamp, annotations } = membersOf(metadata)
  const { podCIDR, podCIDRs } = membersOf(spec)
  return {
    metadata: {
      name: textOf(name),
      uid: textOf(uid),
      resourceVersion: textOf(resourceVersion),
      creationTimestamp: textOf(creationTimestamp),
      annotations: Object.fromEntries(
        Object.entries(membersOf(annotations)).filter((each): each is [string, string] => isText(each[1])),
      ),
    },
    ...(typeof spec === 'object' && spec !== null
      ? { spec: { podCIDR: textOf(podCIDR), podCIDRs: Array.isArray(podCIDRs) ? podCIDRs.filter(isText) : [] } }
      : {}),
  }
}

/**
 * Returns the time when a Kubernetes node was created, in ms since 1970. If two nodes describe one host, the node that
 * was created later is valid. The resourceVersion does not show which node that is, because each heartbeat increases
 * it.
 */
export function createdAt({ metadata }: NodeObject): bigint | undefined {
  const at = Date.parse(metadata?.creationTimestamp ?? '')
  return Number.isNaN(at) ? undefined : BigInt(at)
}

export type NodeSubnets = Pick<Lease, 'key' | 'subnet'>

export interface AnnotationNames {
  readonly managed: string
  readonly backendType: string
  readonly ipv4: FamilyNames
  readonly ipv6: FamilyNames
}

interface FamilyNames {
  readonly backendData: string
  readonly publicIp: string
  /** The annotation by which an operator sets the public IP that the node publishes instead of its own address. */
  readonly publicIpOverwrite: string
  /** The annotation by which an operator sets the value of --public-ip or --public-ipv6 for this node. */
  readonly nodePublicIp: string
}

/**
 * Returns the annotation names with the prefix of --kube-annotation-prefix. Throws WeftError USAGE, with flannel's
 * words, if Kubernetes would refuse the prefix.
 */
export function annotationNames(given: string): AnnotationNames {
  const slashes = given.split('/').length - 1
  const remedy = { remedy: 'give --kube-annotation-prefix a domain, a slash and a prefix of names' }
  if (slashes > 1) throw new WeftError('USAGE', 'subnet/kube: prefix can contain at most single slash', remedy)
  const withSlash = slashes === 0 ? `${given}/` : given
  const prefix = /[/-]$/.test(withSlash) ? withSlash : `${withSlash}-`
  if (!/^(?:[a-z0-9_-]+\.)+[a-z0-9_-]+\/(?:[a-z0-9_-]+-)?$/.test(prefix))
    throw new WeftError('USAGE', 'subnet/kube: prefix must be in a format: fqdn/[0-9a-z-_]*', remedy)
  return {
    managed: `${prefix}kube-subnet-manager`,
    backendType: `${prefix}backend-type`,
    ipv4: {
      backendData: `${prefix}backend-data`,
      publicIp: `${prefix}public-ip`,
      publicIpOverwrite: `${prefix}public-ip-overwrite`,
      nodePublicIp: `${prefix}node-public-ip`,
    },
    ipv6: {
      backendData: `${prefix}backend-v6-data`,
      publicIp: `${prefix}public-ipv6`,
      publicIpOverwrite: `${prefix}public-ipv6-overwrite`,
      nodePublicIp: `${prefix}node-public-ipv6`,
    },
  }
}

/**
 * Returns the subnets (podCIDRs) that a controller assigned to a node. If the podCIDRs are invalid, returns a text with
 * the reason. Returns undefined if the node has no podCIDR yet.
 */
export function subnetsOf({ metadata, spec }: NodeObject): NodeSubnets | string | undefined {
  if (!spec?.podCIDR) return undefined
  const cidrs = spec.podCIDRs?.length ? spec.podCIDRs : [spec.podCIDR]
  const name = JSON.stringify(metadata?.name ?? '')
  if (cidrs.length > 2) return `node ${name} pod cidrs should be IPv4/IPv6 only or dualstack` // flannel's words
  const subnet = netsOf(cidrs.flatMap((cidr) => parseNet(cidr) ?? []))
  const key = leaseKey(subnet)
  // Refuse podCIDRs that are invalid, or from which no valid lease key can be made.
  if (!parseLeaseKey(key)) return `node ${name} has no pod cidr that can be a subnet: ${cidrs.join(', ')}`
  return { key, subnet }
}

/** True if the node's annotation says that flannel or weft manages it. */
export const isManaged = ({ metadata }: NodeObject, names: AnnotationNames): boolean =>
  metadata?.annotations?.[names.managed] === 'true'

/**
 * Converts a Node object to the entry of its lease, with the subnets `subnet`. The node must be managed by flannel or
 * weft. If the node's annotations are invalid, the entry has the reason instead of a lease. If only the annotations of
 * one family are invalid, the lease lacks this family, and the entry has the reason too.
 */
export function entryOf(node: NodeObject, { key, subnet }: NodeSubnets, names: AnnotationNames): Entry {
  const { metadata } = node
  const revision = createdAt(node)
  const of = `node ${metadata?.name ?? ''}: `
  try {
    const { attrs, problems } = readAttrs(metadata?.annotations ?? {}, names)
    const named = metadata?.name ? { name: shortened(metadata.name) } : {}
    const lease = { key, subnet, attrs, ...named, ...(revision === undefined ? {} : { revision }) }
    const family = FAMILIES.find((each) => subnet[each] && problems[each] !== undefined)
    return { key, lease, ...(family && { invalid: { family, problem: `${of}${problems[family]}` } }) }
  } catch (error) {
    return { key, problem: `${of}${messageOf(error)}` }
  }
}

/**
 * Reads from a node's annotations the data that the node publishes. A family whose annotations are missing or invalid
 * is left out; `problems` says why the annotations of a family are invalid. Throws an Error with the reason if neither
 * IPv4 nor IPv6 is valid.
 */
export function readAttrs(
  annotations: Readonly<Record<string, string>>,
  names: AnnotationNames,
): { readonly attrs: LeaseAttrs; readonly problems: ByFamily<string> } {
  const ipv4 = readFamily(annotations, names.ipv4, parseIpv4)
  const ipv6 = readFamily(annotations, names.ipv6, parseIpv6)
  if ('problem' in ipv4 && 'problem' in ipv6) throw new Error((annotations[names.ipv6.publicIp] ? ipv6 : ipv4).problem)
  const [of4, of6] = ['problem' in ipv4 ? undefined : ipv4, 'problem' in ipv6 ? undefined : ipv6]
  const attrs = {
    publicIp: { ipv4: of4?.address || undefined, ipv6: of6?.address || undefined },
    backendType: annotations[names.backendType] ?? '',
    backendData: of4?.data,
    backendV6Data: of6?.data,
  }
  const problemOf = (read: FamilyData): string | undefined =>
    'problem' in read && !read.isMissing ? read.problem : undefined
  return { attrs, problems: { ipv4: problemOf(ipv4), ipv6: problemOf(ipv6) } }
}

/** The data that a node publishes for a family, or the reason why its annotations are missing or invalid. */
type FamilyData<A = Address> =
  | { readonly address: A; readonly data: unknown }
  | { readonly problem: string; readonly isMissing: boolean }

function readFamily<A extends Address>(
  annotations: Readonly<Record<string, string>>,
  names: FamilyNames,
  parse: (text: string) => A | undefined,
): FamilyData<A> {
  const text = annotations[names.publicIp]
  if (!text) return { problem: `it has no ${names.publicIp}`, isMissing: true }
  const address = parse(text)
  if (address === undefined) return { problem: `${names.publicIp} is ${JSON.stringify(text)}`, isMissing: false }
  try {
    return { address, data: readBackendData(annotations[names.backendData], names.backendData) }
  } catch (error) {
    return { problem: messageOf(error), isMissing: false }
  }
}

/**
 * The maximum number of characters that a message quotes from an invalid annotation. An annotation can be 256 KiB long.
 */
const SHOWN_TEXT = 200

/** Parses the JSON annotation with the data of a node's backend. flannel writes `null` if the backend has no data. */
function readBackendData(text: string | undefined, name: string): unknown {
  try {
    return parseJson(text || 'null') ?? undefined
  } catch (error) {
    const shown = JSON.stringify(text?.slice(0, SHOWN_TEXT))
    throw new Error(`${name} cannot be read (${messageOf(error)}): ${shown}`, { cause: error })
  }
}

/**
 * Returns the JSON merge patch that makes a node's annotations publish `attrs`; a null in the patch removes an
 * annotation. Returns undefined if the annotations already publish `attrs`; in that case weftd, like flannel, writes
 * nothing.
 */
export function annotationsPatch(
  present: Readonly<Record<string, string>>,
  attrs: LeaseAttrs,
  names: AnnotationNames,
): Readonly<Record<string, string | null>> | undefined {
  const { ipv4, ipv6 } = attrs.publicIp
  const family = (of: FamilyNames, address: string | undefined, data: unknown): readonly [string, string | null][] => [
    [of.backendData, address === undefined ? null : goJsonText(data ?? null)],
    [of.publicIp, address ?? null],
  ]
  const wanted: readonly (readonly [string, string | null])[] = [
    ...family(names.ipv4, ipv4 === undefined ? undefined : formatIpv4(ipv4), attrs.backendData),
    ...family(names.ipv6, ipv6 === undefined ? undefined : formatIpv6(ipv6), attrs.backendV6Data),
    [names.backendType, attrs.backendType],
    [names.managed, 'true'],
  ]
  const different = wanted.filter(([name, value]) => (present[name] ?? null) !== value)
  return different.length === 0 ? undefined : Object.fromEntries(different)
}

/**
 * Returns the addresses that an operator set by annotations of the node. Calls `onBad` with the family's name for each
 * text that is not an address, or is an address at which peers cannot reach this host.
 */
export function givenAddresses(
  { metadata }: NodeObject,
  names: Pick<AnnotationNames, Family>,
  which: 'nodePublicIp' | 'publicIpOverwrite',
  onBad: (family: string, problem: string) => void,
): Addresses {
  const read = <A extends Address>(name: string, family: string, parse: (text: string) => A | undefined) => {
    const text = metadata?.annotations?.[name] ?? ''
    const given = parse(text)
    const isGood = given !== undefined && isOneHost(given) && !(typeof given === 'bigint' && isLinkLocal(given))
    const address = isGood ? given : undefined
    if (text !== '' && address === undefined) onBad(family, `${name} is ${JSON.stringify(text)}`)
    return address
  }
  return { ipv4: read(names.ipv4[which], 'IPv4', parseIpv4), ipv6: read(names.ipv6[which], 'IPv6', parseIpv6) }
}
