// node-lease.ts - a node of the Kubernetes API as a lease, and what our own node is to say. Pure.
//
// The subnet is the podCIDR that a controller gave the node, once and for its life (ValidateNodeUpdate of the API server lets
// nobody change it). All else are annotations, in flannel's names and bytes (pkg/subnet/kube/annotations.go and kube.go).

import { jsonKind } from '../config/go-json.ts'
import { messageOf, WeftError } from '../errors.ts'
import { goJsonText, leaseKey, type Lease, type LeaseAttrs } from '../lease/lease.ts'
import type { Entry } from '../lease/subnet-manager.ts'
import { formatIpv4, parseIpv4, parseIpv4Net, type Ipv4 } from '../net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../net/ipv6.ts'

/** Of a node what weft reads. */
export interface NodeObject {
  readonly metadata?: {
    readonly name?: string
    readonly uid?: string
    readonly resourceVersion?: string
    readonly annotations?: Readonly<Record<string, string>>
  }
  readonly spec?: { readonly podCIDR?: string; readonly podCIDRs?: readonly string[] }
}

export type NodeSubnets = Pick<Lease, 'key' | 'subnet' | 'subnet6'>

/** The annotations by what they are for. */
export interface AnnotationNames {
  readonly managed: string
  readonly backendType: string
  readonly backendData: string
  readonly backendV6Data: string
  readonly publicIp: string
  readonly publicIpv6: string
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
    backendV6Data: `${prefix}backend-v6-data`,
    publicIp: `${prefix}public-ip`,
    publicIpv6: `${prefix}public-ipv6`,
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
  const subnet = cidrs.map(parseIpv4Net).find((net) => net !== undefined)
  const subnet6 = cidrs
    .filter((cidr) => cidr.includes(':'))
    .map(parseIpv6Net)
    .find((net) => net !== undefined)
  if (!subnet || subnet.prefixLength > 31) return `node ${name} has no IPv4 pod cidr: ${cidrs.join(', ')}`
  return { key: leaseKey(subnet, subnet6), subnet, ...(subnet6 ? { subnet6 } : {}) }
}

/** Whether it is flannel's or weft's node: it says so itself. */
export const isManaged = ({ metadata }: NodeObject, names: AnnotationNames): boolean =>
  metadata?.annotations?.[names.managed] === 'true'

/** The lease that a managed node with these subnets publishes. */
export function entryOf({ metadata }: NodeObject, { key, ...subnets }: NodeSubnets, names: AnnotationNames): Entry {
  try {
    return { key, lease: { key, ...subnets, attrs: readAttrs(metadata?.annotations ?? {}, names) } }
  } catch (error) {
    return { key, problem: `node ${metadata?.name ?? ''}: ${messageOf(error)}` }
  }
}

/** What annotations say of their node. Throws an Error that says why they say nothing. */
export function readAttrs(annotations: Readonly<Record<string, string>>, names: AnnotationNames): LeaseAttrs {
  const address = <T>(name: string, parse: (text: string) => T | undefined): T | undefined => {
    const text = annotations[name]
    if (text === undefined || text === '') return undefined
    const parsed = parse(text)
    if (parsed === undefined) throw new Error(`${name} is ${JSON.stringify(text)}`)
    return parsed
  }
  const data = (name: string): unknown => {
    // flannel writes null for what there is none of.
    try {
      return JSON.parse(annotations[name] || 'null') ?? undefined
    } catch {
      throw new Error(`${name} is not JSON: ${JSON.stringify(annotations[name])}`)
    }
  }
  const publicIp = address(names.publicIp, parseIpv4)
  if (publicIp === undefined) throw new Error(`it has no ${names.publicIp}`)
  const publicIpv6 = address(names.publicIpv6, parseIpv6)
  const [backendData, backendV6Data] = [data(names.backendData), data(names.backendV6Data)]
  return {
    publicIp,
    ...(publicIpv6 === undefined ? {} : { publicIpv6 }),
    backendType: annotations[names.backendType] ?? '',
    ...(backendData === undefined ? {} : { backendData }),
    ...(backendV6Data === undefined ? {} : { backendV6Data }),
  }
}

/**
 * What must change in a node's annotations so that they say this; null for one that must go. Undefined when they do: nothing is
 * written then, as flannel writes nothing.
 */
export function annotationsPatch(
  present: Readonly<Record<string, string>>,
  attrs: LeaseAttrs,
  names: AnnotationNames,
): Readonly<Record<string, string | null>> | undefined {
  const wanted: readonly (readonly [string, string | null])[] = [
    [names.backendData, goJsonText(attrs.backendData ?? null)],
    // What a flannel with IPv6 left: others would send IPv6 to a node that has none.
    [names.backendV6Data, null],
    [names.backendType, attrs.backendType],
    [names.managed, 'true'],
    [names.publicIp, formatIpv4(attrs.publicIp)],
    [names.publicIpv6, null],
  ]
  const different = wanted.filter(([name, value]) => (present[name] ?? null) !== value)
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
