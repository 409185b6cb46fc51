// node-lease.ts - a node of the Kubernetes API as a lease, and what our own node is to say. Pure.
//
// The subnet is the podCIDR that a controller gave the node, once and for its life (ValidateNodeUpdate of the API server lets
// nobody change it). All else are annotations, in flannel's names and bytes (pkg/subnet/kube/annotations.go and kube.go). Those for
// IPv6 (`public-ipv6`, `backend-v6-data`) are whoever's speaks it: not read, and never written or taken away.

import { jsonKind } from '../config/go-json.ts'
import { parseJson } from '../config/hidden.ts'
import { messageOf, WeftError } from '../errors.ts'
import { goJsonText, leaseKey, type Lease, type LeaseAttrs } from '../lease/lease.ts'
import type { Entry } from '../lease/subnet-manager.ts'
import type { Nets } from '../net/address.ts'
import { formatIpv4, parseIpv4, parseIpv4Net, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'
import { parseIpv6Net } from '../net/ipv6.ts'

/** Of a node what weft reads. */
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
/** Of a JSON value; none where it is no object. */
export const membersOf = (value: unknown): Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}

/** A node as it came, whatever that is: what is not of its type is not there. */
export function nodeOf(value: unknown): NodeObject {
  const { metadata, spec } = membersOf(value)
  const { name, uid, resourceVersion, creationTimestamp, annotations } = membersOf(metadata)
  const { podCIDR, podCIDRs } = membersOf(spec)
  return {
    metadata: {
      ...{ name: textOf(name), uid: textOf(uid), resourceVersion: textOf(resourceVersion) },
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
 * When a node was made, as a number that is higher for a later one. Its resourceVersion is none: a heartbeat makes that of a node which
 * is long gone from its host higher than that of the one which took its place.
 */
export function createdAt({ metadata }: NodeObject): bigint | undefined {
  const at = Date.parse(metadata?.creationTimestamp ?? '')
  return Number.isNaN(at) ? undefined : BigInt(at)
}

export type NodeSubnets = Pick<Lease, 'key'> & { readonly subnet: Nets & { readonly ipv4: Ipv4Net } }

/** The annotations by what they are for. */
export interface AnnotationNames {
  readonly managed: string
  readonly backendType: string
  readonly backendData: string
  readonly publicIp: string
  /** An operator's: what is published as public IP, whatever the node's is. */
  readonly publicIpOverwrite: string
  /** An operator's: what stands for --public-ip on this node. */
  readonly nodePublicIp: string
}

/** Names with this prefix. Throws WeftError USAGE, with flannel's words, for one that Kubernetes would not take. */
export function annotationNames(given: string): AnnotationNames {
  const slashes = given.split('/').length - 1
  const remedy = { remedy: 'give --kube-annotation-prefix a domain, and what is to stand behind a slash' }
  if (slashes > 1) throw new WeftError('USAGE', 'subnet/kube: prefix can contain at most single slash', remedy)
  const withSlash = slashes === 0 ? `${given}/` : given
  const prefix = /[/-]$/.test(withSlash) ? withSlash : `${withSlash}-`
  if (!/^(?:[a-z0-9_-]+\.)+[a-z0-9_-]+\/(?:[a-z0-9_-]+-)?$/.test(prefix))
    throw new WeftError('USAGE', 'subnet/kube: prefix must be in a format: fqdn/[0-9a-z-_]*', remedy)
  return {
    managed: `${prefix}kube-subnet-manager`,
    backendType: `${prefix}backend-type`,
    backendData: `${prefix}backend-data`,
    publicIp: `${prefix}public-ip`,
    publicIpOverwrite: `${prefix}public-ip-overwrite`,
    nodePublicIp: `${prefix}node-public-ip`,
  }
}

/** The subnets that a node was given; a text that says what is wrong with them; undefined when it has none yet. */
export function subnetsOf({ metadata, spec }: NodeObject): NodeSubnets | string | undefined {
  if (!spec?.podCIDR) return undefined
  const cidrs = spec.podCIDRs?.length ? spec.podCIDRs : [spec.podCIDR]
  const name = JSON.stringify(metadata?.name ?? '')
  if (cidrs.length > 2) return `node ${name} pod cidrs should be IPv4/IPv6 only or dualstack` // flannel's words
  const ipv4 = cidrs.map(parseIpv4Net).find((net) => net !== undefined)
  const ipv6 = cidrs.map(parseIpv6Net).find((net) => net !== undefined)
  if (!ipv4 || ipv4.prefixLength > 31) return `node ${name} has no IPv4 pod cidr: ${cidrs.join(', ')}`
  const subnet = { ipv4, ipv6 }
  return { key: leaseKey(subnet), subnet }
}

/** Whether it is flannel's or weft's node: it says so itself. */
export const isManaged = ({ metadata }: NodeObject, names: AnnotationNames): boolean =>
  metadata?.annotations?.[names.managed] === 'true'

/** The lease that a managed node with these subnets publishes. */
export function entryOf(node: NodeObject, { key, subnet }: NodeSubnets, names: AnnotationNames): Entry {
  const { metadata } = node
  const revision = createdAt(node)
  try {
    const attrs = readAttrs(metadata?.annotations ?? {}, names)
    return { key, lease: { key, subnet, attrs, ...(revision === undefined ? {} : { revision }) } }
  } catch (error) {
    return { key, problem: `node ${metadata?.name ?? ''}: ${messageOf(error)}` }
  }
}

/** What annotations say of their node. Throws an Error that says why they say nothing. */
export function readAttrs(annotations: Readonly<Record<string, string>>, names: AnnotationNames): LeaseAttrs {
  const address = annotations[names.publicIp]
  if (!address) throw new Error(`it has no ${names.publicIp}`)
  const ipv4 = parseIpv4(address)
  if (ipv4 === undefined) throw new Error(`${names.publicIp} is ${JSON.stringify(address)}`)
  const backendData = readBackendData(annotations[names.backendData], names.backendData)
  return {
    publicIp: { ipv4: ipv4 === 0 ? undefined : ipv4 },
    backendType: annotations[names.backendType] ?? '',
    ...(backendData === undefined ? {} : { backendData }),
  }
}

/** So much of an annotation that says nothing is shown; it may have 256 KiB. */
const SHOWN_TEXT = 200

/** flannel writes null for what there is none of. */
function readBackendData(text: string | undefined, name: string): unknown {
  try {
    return parseJson(text || 'null') ?? undefined
  } catch (error) {
    const shown = JSON.stringify(text?.slice(0, SHOWN_TEXT))
    throw new Error(`${name} cannot be read (${messageOf(error)}): ${shown}`, { cause: error })
  }
}

/**
 * What must change in a node's annotations so that they say this. Undefined when they do: nothing is written then, as flannel writes
 * nothing.
 */
export function annotationsPatch(
  present: Readonly<Record<string, string>>,
  attrs: LeaseAttrs,
  names: AnnotationNames,
): Readonly<Record<string, string>> | undefined {
  const wanted: readonly (readonly [string, string])[] = [
    [names.backendData, goJsonText(attrs.backendData ?? null)],
    [names.backendType, attrs.backendType],
    [names.managed, 'true'],
    [names.publicIp, formatIpv4(attrs.publicIp.ipv4 ?? 0)],
  ]
  const different = wanted.filter(([name, value]) => present[name] !== value)
  return different.length === 0 ? undefined : Object.fromEntries(different)
}

/** An address that an operator gave by annotation: undefined without one. Throws an Error for what is none. */
export function givenAddress({ metadata }: NodeObject, name: string): Ipv4 | undefined {
  const text = metadata?.annotations?.[name]
  if (text === undefined || text === '') return undefined
  const address = parseIpv4(text)
  if (address === undefined) throw new Error(`${name} is ${jsonKind(text)} ${JSON.stringify(text)}`)
  return address
}
