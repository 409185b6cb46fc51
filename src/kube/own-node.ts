// own-node.ts - this node of the Kubernetes API: what it was given, what it says of itself, what is said of it.
//
// Nobody else writes its annotations, so that a patch of what differs is enough and no version is compared. The subnet is a
// controller's to give: it is waited for, and when another comes, by the node being made anew, the lease is lost.

import { ipv4For, type NetworkConfig } from '../config/network-config.ts'
import { describeError, isWeftError, messageOf, WeftError } from '../errors.ts'
import { pause } from '../host/bell.ts'
import type { LeaseAttrs, OwnLease } from '../lease/lease.ts'
import type { LeaseHolder } from '../lease/subnet-manager.ts'
import type { Log } from '../log.ts'
import { netText } from '../net/address.ts'
import { formatIpv4, formatIpv4Net, ipv4NetContains, type Ipv4 } from '../net/ipv4.ts'
import { printable } from '../text.ts'
import type { KubeClient } from './api-client.ts'
import {
  annotationsPatch,
  createdAt,
  givenAddress,
  readAttrs,
  subnetsOf,
  type AnnotationNames,
  type NodeObject,
  type NodeSubnets,
} from './node-lease.ts'
import { NODES, nodeListOf } from './node-source.ts'

/** How long one watch waits for our node to change. */
const WAIT_S = 60
/** One that brought nothing is not followed by another at once: a server may end them as they come. */
const AGAIN_MS = 1_000
/** The same event is made anew after this time: the API server keeps one for an hour. */
const EVENT_AGAIN_MS = 3_600_000
const PATCH = 'application/strategic-merge-patch+json'

interface OwnNodeOptions {
  readonly client: KubeClient
  readonly names: AnnotationNames
  readonly name: string
  readonly log: Log
}

type Given =
  | { readonly node: NodeObject; readonly subnets: NodeSubnets }
  | { readonly subnets?: undefined; readonly why: string; readonly isFinal: boolean }

export function createOwnNode({ client, names, name, log }: OwnNodeOptions) {
  const path = `${NODES}/${name}`
  /** The subnet that was last held. */
  let held: NodeSubnets | undefined
  /** The node's uid as it was last read, and that of the one whose condition was set: one that is made anew has none. */
  let seen: string | undefined
  let told: string | undefined
  const eventAt = new Map<string, number>()

  /** The node, if it is there, and the version up to which that is so. */
  async function read(signal: AbortSignal): Promise<{ node: NodeObject | undefined; version: string }> {
    const query = { fieldSelector: `metadata.name=${name}` }
    const { nodes, version } = nodeListOf(await client.ask({ method: 'GET', path: NODES, query }, signal))
    const [node] = nodes
    seen = node?.metadata?.uid ?? seen
    return { node, version: String(version) }
  }

  /** Resolves when the node was changed after `version`, or a minute is over. */
  async function changed(version: string, signal: AbortSignal): Promise<void> {
    const query = { fieldSelector: `metadata.name=${name}`, resourceVersion: version }
    try {
      for await (const events of client.watch(NODES, query, WAIT_S, signal)) if (events.length > 0) return
    } catch (error) {
      if (!isWeftError(error, 'GAP')) throw error // it is read again, and that is all
    }
    await pause(signal, AGAIN_MS)
  }

  /** Tells the node's owner by an Event; that nobody must know of it is fine, and flannel's rights allow none. */
  async function tell(reason: string, message: string, signal: AbortSignal): Promise<void> {
    const now = performance.now()
    if (now - (eventAt.get(message) ?? -Infinity) < EVENT_AGAIN_MS) return
    eventAt.set(message, now)
    const time = goSeconds()
    const body = {
      apiVersion: 'v1',
      kind: 'Event',
      // Of what has no namespace events lie in this one (Kubernetes, ValidateEvent).
      metadata: { generateName: `${name}.`, namespace: 'default' },
      // kubelet's uid of a node in events is its name, and `kubectl describe node` looks for that.
      involvedObject: { kind: 'Node', apiVersion: 'v1', name, uid: name },
      ...{ reason, message: printable(message), type: 'Warning', count: 1 },
      ...{ firstTimestamp: time, lastTimestamp: time, source: { component: 'weftd', host: name } },
    }
    try {
      await client.ask({ method: 'POST', path: '/api/v1/namespaces/default/events', body }, signal)
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error
      if (log.v(1)) log.info(`No Event could be made of this: ${describeError(error)}`)
    }
  }

  /** Makes the annotations say this; whether they did not. */
  async function publish(node: NodeObject, attrs: LeaseAttrs, signal: AbortSignal): Promise<boolean> {
    const annotations = annotationsPatch(annotationsOf(node), attrs, names)
    if (!annotations) return false
    const ask = { method: 'PATCH', path: `${path}/status`, contentType: PATCH } as const
    await client.ask({ ...ask, body: { metadata: { annotations } } }, signal)
    return true
  }

  const leaseFrom = (node: NodeObject, subnets: NodeSubnets, attrs: LeaseAttrs): OwnLease => ({
    ...subnets,
    attrs,
    expiresAt: undefined, // as long as the node
    revision: createdAt(node) ?? 0n,
  })

  /** What the node was given, or why it has nothing: it may come still, or not in this node's life. */
  function given(node: NodeObject | undefined): Given {
    const quoted = JSON.stringify(name)
    if (!node) return { why: `node ${quoted} is not there`, isFinal: false }
    const found = subnetsOf(node)
    if (found === undefined) return { why: `node ${quoted} pod cidr not assigned`, isFinal: false }
    return typeof found === 'string' ? { why: found, isFinal: true } : { node, subnets: found }
  }

  const holder = (config: NetworkConfig): LeaseHolder => ({
    async obtain(attrs, _previous, calm, signal) {
      for (;;) {
        const { node: present, version } = await read(signal)
        const now = given(present)
        if (!now.subnets) {
          const { why, isFinal } = now
          if (present)
            await tell(isFinal ? 'BadPodCIDR' : 'NoPodCIDR', isFinal ? why : `${why}: ${WITHOUT_SUBNET}`, signal)
          if (isFinal) throw new WeftError('CONFIG', why, { remedy: 'make the node anew with other pod CIDRs' })
          calm.error(`${why}: it is waited for; ${WITHOUT_SUBNET}`)
          await changed(version, signal)
          continue
        }
        const { node, subnets: found } = now
        const { network } = ipv4For('a lease', config)
        const { ipv4 } = found.subnet
        if (network.prefixLength > ipv4.prefixLength || !ipv4NetContains(network, ipv4.address)) {
          const why =
            `subnet ${JSON.stringify(formatIpv4Net(network))} specified in the flannel net config doesn't contain ` +
            `${JSON.stringify(formatIpv4Net(ipv4))} PodCIDR of the ${JSON.stringify(name)} node`
          await tell('PodCIDROutsideNetwork', why, signal)
          throw new WeftError('CONFIG', why, {
            remedy: "set Network to the cluster's pod network, kube-controller-manager's --cluster-cidr",
          })
        }
        log.info(
          `Creating the node lease for IPv4. This is the n.Spec.PodCIDRs: [${(node.spec?.podCIDRs ?? []).join(' ')}]`,
        )
        await publish(node, attrs, signal)
        if (held && held.key !== found.key) {
          const [from, to] = [held.subnet, found.subnet].map(netText)
          await tell(
            'PodCIDRChanged',
            `The pod CIDR changed from ${from} to ${to}: pods of the old one must be started again`,
            signal,
          )
        }
        held = found
        return leaseFrom(node, found, attrs)
      }
    },

    async renew(lease, attrs, calm, signal) {
      const now = given((await read(signal)).node)
      if (!now.subnets) throw new WeftError('LEASE_LOST', now.why)
      const { node, subnets } = now
      if (subnets.key !== lease.key)
        throw new WeftError('LEASE_LOST', `node ${JSON.stringify(name)} has ${netText(subnets.subnet)} now`)
      const wasOurs = annotationsPatch(annotationsOf(node), lease.attrs, names) === undefined
      if ((await publish(node, attrs, signal)) && !wasOurs) {
        const why = 'The annotations of this node were no longer what weftd wrote, and are written again'
        calm.warn(`${why}: ${JSON.stringify(annotationsOf(node))}`)
        await tell('AnnotationsRestored', why, signal)
      }
      return leaseFrom(node, subnets, attrs)
    },
  })

  return {
    holder,

    async published(signal: AbortSignal): Promise<LeaseAttrs | undefined> {
      const { node } = await read(signal)
      try {
        return node && readAttrs(annotationsOf(node), names)
      } catch {
        return undefined // junk, or nothing yet
      }
    },

    /** The address that an operator gave this node by one of the annotations. */
    async givenAddress(which: 'nodePublicIp' | 'publicIpOverwrite', signal: AbortSignal): Promise<Ipv4 | undefined> {
      const { node } = await read(signal)
      try {
        return node && givenAddress(node, names[which])
      } catch (error) {
        const why = `An annotation of this node is no IPv4 address, and is passed over: ${messageOf(error)}`
        log.warn(why)
        await tell('BadAnnotation', why, signal)
        return undefined
      }
    },

    async amend(attrs: LeaseAttrs, signal: AbortSignal): Promise<LeaseAttrs> {
      const ipv4 = await this.givenAddress('publicIpOverwrite', signal)
      if (ipv4 === undefined || ipv4 === attrs.publicIp.ipv4) return attrs
      log.info(`Overriding public ip with '${formatIpv4(ipv4)}' from node annotation '${names.publicIpOverwrite}'`)
      return { ...attrs, publicIp: { ...attrs.publicIp, ipv4 } }
    },

    /** The condition with which a cloud's controller keeps pods from a node until its network is there; flannel's words. */
    async ready(signal: AbortSignal): Promise<void> {
      const uid = seen
      if (uid === told) return
      const time = goSeconds()
      const condition = {
        ...{ type: 'NetworkUnavailable', status: 'False', lastHeartbeatTime: time, lastTransitionTime: time },
        ...{ reason: 'FlannelIsUp', message: 'Flannel is running on this node' },
      }
      const body = { status: { conditions: [condition] } }
      await client.ask({ method: 'PATCH', path: `${path}/status`, contentType: PATCH, body }, signal)
      told = uid
    },
  }
}

const annotationsOf = ({ metadata }: NodeObject): Readonly<Record<string, string>> => metadata?.annotations ?? {}
const WITHOUT_SUBNET = 'kube-controller-manager gives it with --allocate-node-cidrs and --cluster-cidr'

/** Now, as Kubernetes writes a time. */
const goSeconds = (): string => new Date().toISOString().replace(/\.\d+Z$/, 'Z')
