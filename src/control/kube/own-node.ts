// own-node.ts - this node in the Kubernetes API: its subnet, its annotations, its condition and its Events.
//
// Only weftd writes these annotations, so weftd patches the differences without a check of the resourceVersion. weftd
// waits until a controller assigns the subnet. If the node is deleted and created again with another subnet, the lease
// is lost.

import { describeError, isWeftError, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { printable } from '../../base/text.ts'
import { pause } from '../../host/bell.ts'
import {
  familiesOf,
  formatAddress,
  formatNet,
  netContains,
  netsInclude,
  netsText,
  onlyOf,
  type Address,
  type Addresses,
} from '../../net/address.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { LeaseAttrs, OwnLease } from '../lease/lease.ts'
import type { LeaseHolder } from '../lease/subnet-manager.ts'
import type { KubeClient } from './api-client.ts'
import {
  annotationsPatch,
  createdAt,
  givenAddresses,
  membersOf,
  readAttrs,
  subnetsOf,
  type AnnotationNames,
  type NodeObject,
  type NodeSubnets,
} from './node-lease.ts'
import { NODES, nodeListOf } from './node-source.ts'

/** The duration of one watch of this node's object, in seconds. */
const WAIT_S = 60
/**
 * The pause in ms before the next watch of this node's object. Without the pause weftd would send requests in a busy
 * loop to a server that ends each watch immediately.
 */
const AGAIN_MS = 1_000
/**
 * The interval, in ms, at which weftd creates an Event again while the Event's reason persists. The API server deletes
 * an Event after an hour.
 */
const EVENT_AGAIN_MS = 3_600_000
const PATCH = 'application/strategic-merge-patch+json'
/** The condition that flanneld sets (pkg/subnet/kube/kube.go, CompleteLease), without the times. */
const NETWORK_IS_UP = {
  type: 'NetworkUnavailable',
  status: 'False',
  reason: 'FlannelIsUp',
  message: 'Flannel is running on this node',
} as const

interface OwnNodeOptions {
  readonly client: KubeClient
  readonly names: AnnotationNames
  readonly name: string
  readonly log: Log
}

type Given =
  | { readonly node: NodeObject; readonly subnets: NodeSubnets }
  | { readonly subnets?: undefined; readonly why: string; readonly isFinal: boolean }

export class OwnNode {
  readonly #client: KubeClient
  readonly #names: AnnotationNames
  readonly #name: string
  readonly #log: Log
  readonly #path: string
  #held: NodeSubnets | undefined
  /** The uid of this node's object as it was last read. */
  #seenUid: string | undefined
  /**
   * The uid of the node object whose condition NetworkUnavailable weftd has set. If the node is deleted and created
   * again, it has a new uid, and weftd must set the condition again.
   */
  #readyUid: string | undefined
  /** For each message, the time in ms of performance.now() when weftd last created an Event with this message. */
  readonly #eventAt = new Map<string, number>()

  constructor({ client, names, name, log }: OwnNodeOptions) {
    this.#client = client
    this.#names = names
    this.#name = name
    this.#log = log
    this.#path = `${NODES}/${name}`
  }

  holder(config: NetworkConfig): LeaseHolder {
    return {
      obtain: (attrs, _previous, calm, signal) => this.#obtain(config, attrs, calm, signal),
      renew: (lease, attrs, calm, signal) => this.#renew(lease, attrs, calm, signal),
    }
  }

  /** Returns the attributes in this node's annotations; undefined if the annotations are missing or invalid. */
  async published(signal: AbortSignal): Promise<LeaseAttrs | undefined> {
    const { node } = await this.#read(signal)
    try {
      return node && readAttrs(annotationsOf(node), this.#names).attrs
    } catch {
      return undefined // the annotations are invalid or missing
    }
  }

  /** Returns the addresses that an operator set by the annotation `which` of this node. */
  async addressesGiven(which: 'nodePublicIp' | 'publicIpOverwrite', signal: AbortSignal): Promise<Addresses> {
    const { node } = await this.#read(signal)
    const bad: string[] = []
    const addresses = givenAddresses(node ?? {}, this.#names, which, (family, problem) => {
      bad.push(`An annotation of this node is not an ${family} address of a host, and is ignored: ${problem}`)
    })
    for (const why of bad) {
      this.#log.warn(why)
      await this.#tell('BadAnnotation', why, signal)
    }
    return addresses
  }

  /**
   * Returns the public IPs that this node must publish: `publicIp`, except the addresses that an operator replaced by
   * annotations of this node.
   */
  async amend(publicIp: Addresses, signal: AbortSignal): Promise<Addresses> {
    const by = await this.addressesGiven('publicIpOverwrite', signal)
    const overwritten = <A extends Address>(what: string, own: A | undefined, other: A | undefined, from: string) => {
      if (own === undefined || other === undefined || other === own) return own
      this.#log.info(`Overriding public ${what} with '${formatAddress(other)}' from node annotation '${from}'`)
      return other
    }
    return {
      ipv4: overwritten('ip', publicIp.ipv4, by.ipv4, this.#names.ipv4.publicIpOverwrite),
      ipv6: overwritten('ipv6', publicIp.ipv6, by.ipv6, this.#names.ipv6.publicIpOverwrite),
    }
  }

  /**
   * Sets the condition NetworkUnavailable of this node to false, with flannel's reason and message. A cloud controller
   * sets the condition to true to keep pods off a node until its network works. If the condition is set already, weftd
   * writes nothing, because the API server sends each change of a node to the weftd of each node.
   */
  async ready(signal: AbortSignal): Promise<void> {
    const uid = this.#seenUid
    if (uid === this.#readyUid) return
    if (!isUp(await this.#client.ask({ method: 'GET', path: this.#path }, signal))) await this.#setUp(signal)
    this.#readyUid = uid
  }

  async #setUp(signal: AbortSignal): Promise<void> {
    const time = goSeconds()
    const condition = { ...NETWORK_IS_UP, lastHeartbeatTime: time, lastTransitionTime: time }
    const body = { status: { conditions: [condition] } }
    await this.#client.ask({ method: 'PATCH', path: `${this.#path}/status`, contentType: PATCH, body }, signal)
  }

  /** Waits until this node has a valid subnet, and writes `attrs` to its annotations. */
  async #obtain(config: NetworkConfig, attrs: LeaseAttrs, calm: Log, signal: AbortSignal): Promise<OwnLease> {
    for (;;) {
      const { node: present, version } = await this.#read(signal)
      const now = this.#given(present)
      if (!now.subnets) {
        const { why, isFinal } = now
        if (present)
          await this.#tell(isFinal ? 'BadPodCIDR' : 'NoPodCIDR', isFinal ? why : `${why}: ${WITHOUT_SUBNET}`, signal)
        if (isFinal)
          throw new WeftError('CONFIG', why, {
            remedy: 'delete the node and let it register again with other pod CIDRs',
          })
        calm.error(`${why}: waiting for it; ${present ? WITHOUT_SUBNET : WITHOUT_NODE}`)
        await this.#changed(version, signal)
        continue
      }
      const { node, subnets: found } = now
      await this.#checkSubnet(found, node, config, calm, signal)
      await this.#publish(node, attrs, signal)
      if (this.#held && this.#held.key !== found.key) {
        const [from, to] = [this.#held.subnet, found.subnet].map(netsText)
        const used = familiesOf(config)
        const effect = netsInclude(onlyOf(used, found.subnet), onlyOf(used, this.#held.subnet))
          ? 'pods keep their addresses'
          : 'pods of the old one must be started again'
        await this.#tell('PodCIDRChanged', `The pod CIDR changed from ${from} to ${to}: ${effect}`, signal)
      }
      this.#held = found
      return leaseFrom(node, found, attrs)
    }
  }

  /**
   * Checks that this node still has the subnets of `lease`, and repairs its annotations. Rejects with WeftError
   * LEASE_LOST if the node has different subnets.
   */
  async #renew(lease: OwnLease, attrs: LeaseAttrs, calm: Log, signal: AbortSignal): Promise<OwnLease> {
    const now = this.#given((await this.#read(signal)).node)
    if (!now.subnets) throw new WeftError('LEASE_LOST', now.why)
    const { node, subnets } = now
    if (subnets.key !== lease.key)
      throw new WeftError('LEASE_LOST', `node ${JSON.stringify(this.#name)} has ${netsText(subnets.subnet)} now`)
    const wasOurs = annotationsPatch(annotationsOf(node), lease.attrs, this.#names) === undefined
    if ((await this.#publish(node, attrs, signal)) && !wasOurs) {
      const why = 'The annotations of this node were no longer what weftd wrote, and were written again'
      calm.warn(`${why}: ${JSON.stringify(annotationsOf(node))}`)
      await this.#tell('AnnotationsRestored', why, signal)
    }
    return leaseFrom(node, subnets, attrs)
  }

  /** Reads this node's object from the API server. Also returns the resourceVersion of the server's answer. */
  async #read(signal: AbortSignal): Promise<{ node: NodeObject | undefined; version: string }> {
    const query = { fieldSelector: `metadata.name=${this.#name}` }
    const { nodes, version } = nodeListOf(await this.#client.ask({ method: 'GET', path: NODES, query }, signal))
    const [node] = nodes
    this.#seenUid = node?.metadata?.uid ?? this.#seenUid
    return { node, version: String(version) }
  }

  async #changed(version: string, signal: AbortSignal): Promise<void> {
    const query = { fieldSelector: `metadata.name=${this.#name}`, resourceVersion: version }
    try {
      for await (const events of this.#client.watch(NODES, query, WAIT_S, signal)) if (events.length > 0) return
    } catch (error) {
      if (!isWeftError(error, 'GAP')) throw error // after a gap the caller reads the node again
    }
    await pause(signal, AGAIN_MS)
  }

  /**
   * Creates a Kubernetes Event about this node. A failure is ignored, because weftd may run with flannel's RBAC rules,
   * which do not allow it to create Events.
   */
  async #tell(reason: string, message: string, signal: AbortSignal): Promise<void> {
    const now = performance.now()
    if (now - (this.#eventAt.get(message) ?? -Infinity) < EVENT_AGAIN_MS) return
    this.#eventAt.set(message, now)
    const time = goSeconds()
    const body = {
      apiVersion: 'v1',
      kind: 'Event',
      // Events about objects without a namespace must be in the namespace `default` (Kubernetes, ValidateEvent).
      metadata: { generateName: `${this.#name}.`, namespace: 'default' },
      // kubelet uses the node's name as the node's uid in Events, and `kubectl describe node` searches for that uid.
      involvedObject: { kind: 'Node', apiVersion: 'v1', name: this.#name, uid: this.#name },
      reason,
      message: printable(message),
      type: 'Warning',
      count: 1,
      firstTimestamp: time,
      lastTimestamp: time,
      source: { component: 'weftd', host: this.#name },
    }
    try {
      const ask = { method: 'POST', path: '/api/v1/namespaces/default/events', body, isDispensable: true } as const
      await this.#client.ask(ask, signal)
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error
      if (this.#log.v(1)) this.#log.info(`No Event could be made of this: ${describeError(error)}`)
    }
  }

  /**
   * Writes `attrs` to this node's annotations if the annotations differ from `attrs`. Returns true if they differed.
   */
  async #publish(node: NodeObject, attrs: LeaseAttrs, signal: AbortSignal): Promise<boolean> {
    const annotations = annotationsPatch(annotationsOf(node), attrs, this.#names)
    if (!annotations) return false
    const ask = { method: 'PATCH', path: `${this.#path}/status`, contentType: PATCH } as const
    await this.#client.ask({ ...ask, body: { metadata: { annotations } } }, signal)
    return true
  }

  /**
   * Returns this node's subnets, or the reason why the node has none. `isFinal` in the result means that this node
   * object can never get valid subnets.
   */
  #given(node: NodeObject | undefined): Given {
    const quoted = JSON.stringify(this.#name)
    if (!node) return { why: `node ${quoted} is not there`, isFinal: false }
    const found = subnetsOf(node)
    if (found === undefined) return { why: `node ${quoted} pod cidr not assigned`, isFinal: false }
    return typeof found === 'string' ? { why: found, isFinal: true } : { node, subnets: found }
  }

  /**
   * Checks the assigned subnet of each enabled family. Rejects with WeftError CONFIG if the node cannot join the
   * network with its subnet.
   */
  async #checkSubnet(
    { subnet }: NodeSubnets,
    { spec }: NodeObject,
    config: NetworkConfig,
    calm: Pick<Log, 'warn'>,
    signal: AbortSignal,
  ): Promise<void> {
    const quoted = JSON.stringify(this.#name)
    const families = familiesOf(config)
    const lacking = families.filter((family) => subnet[family] === undefined)
    for (const family of lacking) {
      const why = `node ${quoted}: missing ${WORD[family]} address on n.Spec.PodCIDRs`
      await this.#tell('BadPodCIDR', why, signal)
      if (lacking.length === families.length)
        throw new WeftError('CONFIG', why, {
          remedy: 'enable the family that the node has, or create the node again with pod CIDRs of this family',
        })
      calm.warn(`${why}; it is in the network without ${WORD[family]}`)
    }
    for (const family of families) {
      const [network, own] = [config[family]?.network, subnet[family]]
      if (!network || !own) continue
      if (network.prefixLength > own.prefixLength || !netContains(network, own.address)) {
        const why =
          `subnet ${JSON.stringify(formatNet(network))} specified in the flannel net config doesn't contain ` +
          `${JSON.stringify(formatNet(own))} ${family === 'ipv6' ? 'IPv6 ' : ''}PodCIDR of the ${quoted} node`
        await this.#tell('PodCIDROutsideNetwork', why, signal)
        const key = family === 'ipv6' ? 'IPv6Network' : 'Network'
        throw new WeftError('CONFIG', why, {
          remedy: `set ${key} to the cluster's pod network, kube-controller-manager's --cluster-cidr`,
        })
      }
      this.#log.info(
        `Creating the node lease for ${WORD[family]}. This is the n.Spec.PodCIDRs: [${(spec?.podCIDRs ?? []).join(' ')}]`,
      )
    }
  }
}

const WORD = { ipv4: 'IPv4', ipv6: 'IPv6' } as const
/** True if a Node object has the condition NETWORK_IS_UP. The object is untrusted JSON. */
function isUp(node: unknown): boolean {
  const { conditions } = membersOf(membersOf(node)['status'])
  const wanted = Object.entries(NETWORK_IS_UP)
  return (
    Array.isArray(conditions) &&
    conditions.some((each) => wanted.every(([name, value]) => membersOf(each)[name] === value))
  )
}
const annotationsOf = ({ metadata }: NodeObject): Readonly<Record<string, string>> => metadata?.annotations ?? {}
const leaseFrom = (node: NodeObject, subnets: NodeSubnets, attrs: LeaseAttrs): OwnLease => ({
  ...subnets,
  attrs,
  expiresAt: undefined, // the lease lives as long as the node
  revision: createdAt(node) ?? 0n,
})
const WITHOUT_NODE = 'a kubelet registers it; NODE_NAME must be its name as `kubectl get nodes` has it'
const WITHOUT_SUBNET = 'kube-controller-manager gives it with --allocate-node-cidrs and --cluster-cidr'

/** Returns the current time as Kubernetes writes it, without fractions of a second. */
const goSeconds = (): string => new Date().toISOString().replace(/\.\d+Z$/, 'Z')
