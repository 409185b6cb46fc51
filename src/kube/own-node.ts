// own-node.ts - this node of the Kubernetes API: what it was given, what it says of itself, what is said of it.
//
// Nobody else writes its annotations, so that a patch of what differs is enough and no version is compared. The subnet is a
// controller's to give: it is waited for, and when another comes, by the node being made anew, the lease is lost.

import type { NetworkConfig } from '../config/network-config.ts'
import { describeError, isWeftError, messageOf, WeftError } from '../errors.ts'
import type { LeaseAttrs, OwnLease } from '../lease/lease.ts'
import type { LeaseHolder } from '../lease/subnet-manager.ts'
import { seldom, type Log } from '../log.ts'
import { formatIpv4, formatIpv4Net, ipv4NetContains, type Ipv4 } from '../net/ipv4.ts'
import type { KubeClient } from './api-client.ts'
import {
  annotationsPatch,
  givenAddress,
  readAttrs,
  subnetsOf,
  type AnnotationNames,
  type NodeObject,
  type NodeSubnets,
} from './node-lease.ts'
import { NODES, versionOf, type NodeList } from './node-source.ts'

/** How long one watch waits for our node to change. */
const WAIT_S = 60
/** The same event is made anew after this time: the API server keeps one for an hour. */
const EVENT_AGAIN_MS = 3_600_000
const PATCH = 'application/strategic-merge-patch+json'

interface OwnNodeOptions {
  readonly client: KubeClient
  readonly names: AnnotationNames
  readonly name: string
  readonly log: Log
}

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
    const list = await client.ask<NodeList>({ method: 'GET', path: NODES, query }, signal)
    const node = list?.items?.[0]
    seen = node?.metadata?.uid ?? seen
    return { node, version: String(versionOf(list?.metadata?.resourceVersion)) }
  }

  /** Resolves when the node was changed after `version`, or a minute is over. */
  async function changed(version: string, signal: AbortSignal): Promise<void> {
    const query = { fieldSelector: `metadata.name=${name}`, resourceVersion: version }
    try {
      for await (const events of client.watch(NODES, query, WAIT_S, signal)) if (events.length > 0) return
    } catch (error) {
      if (!isWeftError(error, 'GAP')) throw error // it is read again, and that is all
    }
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
      ...{ reason, message, type: 'Warning', count: 1 },
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

  /** Makes the annotations say this; undefined when they did, else what they said of it. */
  async function publish(
    node: NodeObject,
    attrs: LeaseAttrs,
    signal: AbortSignal,
  ): Promise<{ readonly before: LeaseAttrs | undefined } | undefined> {
    const present = node.metadata?.annotations ?? {}
    const annotations = annotationsPatch(present, attrs, names)
    if (!annotations) return undefined
    const ask = { method: 'PATCH', path: `${path}/status`, contentType: PATCH } as const
    await client.ask({ ...ask, body: { metadata: { annotations } } }, signal)
    return { before: attrsOrUndefined(present) }
  }

  function attrsOrUndefined(annotations: Readonly<Record<string, string>>): LeaseAttrs | undefined {
    try {
      return readAttrs(annotations, names)
    } catch {
      return undefined
    }
  }

  const leaseFrom = (node: NodeObject, subnets: NodeSubnets, attrs: LeaseAttrs): OwnLease => ({
    ...subnets,
    attrs,
    expiresAt: undefined, // as long as the node
    revision: versionOf(node.metadata?.resourceVersion),
  })

  /** Why this node has no subnet now; undefined when it has. */
  function missing(node: NodeObject | undefined): string | undefined {
    if (!node) return `node ${JSON.stringify(name)} is not there`
    const found = subnetsOf(node)
    return found === undefined ? `node ${JSON.stringify(name)} pod cidr not assigned` : undefined
  }

  const holder = (config: NetworkConfig): LeaseHolder => ({
    async obtain(attrs, _previous, calm, signal) {
      const patient = seldom(calm)
      for (;;) {
        const { node, version } = await read(signal)
        const found = node && subnetsOf(node)
        if (typeof found === 'string') {
          await tell('BadPodCIDR', found, signal)
          throw new WeftError('CONFIG', found, { remedy: 'make the node anew with other pod CIDRs' })
        }
        if (!node || !found) {
          const why = missing(node) ?? ''
          patient.error(`${why}: it is waited for; ${WITHOUT_SUBNET}`)
          if (node) await tell('NoPodCIDR', `${why}: ${WITHOUT_SUBNET}`, signal)
          await changed(version, signal)
          continue
        }
        const { network } = config
        if (network.prefixLength > found.subnet.prefixLength || !ipv4NetContains(network, found.subnet.address)) {
          const why =
            `subnet ${JSON.stringify(formatIpv4Net(network))} specified in the flannel net config doesn't contain ` +
            `${JSON.stringify(formatIpv4Net(found.subnet))} PodCIDR of the ${JSON.stringify(name)} node`
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
          const [from, to] = [held.subnet, found.subnet].map(formatIpv4Net)
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
      const { node } = await read(signal)
      const found = node && subnetsOf(node)
      if (!node || typeof found !== 'object' || found.key !== lease.key) {
        const now =
          typeof found === 'object' ? `node ${JSON.stringify(name)} has ${formatIpv4Net(found.subnet)} now` : found
        throw new WeftError('LEASE_LOST', now ?? missing(node) ?? '')
      }
      const written = await publish(node, attrs, signal)
      if (written && !written.before) {
        const why = 'The annotations of this node were no longer what weftd wrote, and are written again'
        calm.warn(`${why}: ${JSON.stringify(node.metadata?.annotations ?? {})}`)
        await tell('AnnotationsRestored', why, signal)
      }
      return { ...leaseFrom(node, found, attrs) }
    },
  })

  return {
    holder,

    async published(signal: AbortSignal): Promise<LeaseAttrs | undefined> {
      const { node } = await read(signal)
      return attrsOrUndefined(node?.metadata?.annotations ?? {})
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
      const publicIp = await this.givenAddress('publicIpOverwrite', signal)
      if (publicIp === undefined || publicIp === attrs.publicIp) return attrs
      log.info(`Overriding public ip with '${formatIpv4(publicIp)}' from node annotation '${names.publicIpOverwrite}'`)
      return { ...attrs, publicIp }
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

const WITHOUT_SUBNET = 'kube-controller-manager gives it with --allocate-node-cidrs and --cluster-cidr'

/** Now, as Kubernetes writes a time. */
const goSeconds = (): string => new Date().toISOString().replace(/\.\d+Z$/, 'Z')
