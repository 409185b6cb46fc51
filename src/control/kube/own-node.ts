// own-node.ts - this node of the Kubernetes API: what it was given, what it says of itself, what is said of it.
//
// Nobody else writes its annotations, so that a patch of what differs is enough and no version is compared. The subnet is a
// controller's to give: it is waited for, and when another comes, by the node being made anew, the lease is lost.

import { describeError, isWeftError, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { printable } from '../../base/text.ts'
import { pause } from '../../host/bell.ts'
import {
  familiesOf,
  formatAddress,
  formatNet,
  netContains,
  netsText,
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
  readAttrs,
  subnetsOf,
  type AnnotationNames,
  type NodeObject,
  type NodeSubnets,
} from './node-lease.ts'
import { NODES, nodeListOf } from './node-source.ts'

/** The length of one watch for a change of our node. */
const WAIT_S = 60
/** A watch that brought nothing is not followed by another at once: a server may end them as they come. */
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
      // Events about objects without a namespace lie in this one (Kubernetes, ValidateEvent).
      metadata: { generateName: `${name}.`, namespace: 'default' },
      // kubelet's uid of a node in events is its name, and `kubectl describe node` looks for that.
      involvedObject: { kind: 'Node', apiVersion: 'v1', name, uid: name },
      reason,
      message: printable(message),
      type: 'Warning',
      count: 1,
      firstTimestamp: time,
      lastTimestamp: time,
      source: { component: 'weftd', host: name },
    }
    try {
      const ask = { method: 'POST', path: '/api/v1/namespaces/default/events', body, isDispensable: true } as const
      await client.ask(ask, signal)
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

  /** The subnets that the node was given, or why it has none: they may come still, or not in this node's life. */
  function given(node: NodeObject | undefined): Given {
    const quoted = JSON.stringify(name)
    if (!node) return { why: `node ${quoted} is not there`, isFinal: false }
    const found = subnetsOf(node)
    if (found === undefined) return { why: `node ${quoted} pod cidr not assigned`, isFinal: false }
    return typeof found === 'string' ? { why: found, isFinal: true } : { node, subnets: found }
  }

  /** Of each family that is enabled. Rejects with WeftError CONFIG where the node cannot be in the network. */
  async function checkSubnet(
    { subnet }: NodeSubnets,
    { spec }: NodeObject,
    config: NetworkConfig,
    calm: Pick<Log, 'warn'>,
    signal: AbortSignal,
  ): Promise<void> {
    const quoted = JSON.stringify(name)
    const families = familiesOf(config)
    const lacking = families.filter((family) => subnet[family] === undefined)
    for (const family of lacking) {
      const why = `node ${quoted}: missing ${WORD[family]} address on n.Spec.PodCIDRs`
      await tell('BadPodCIDR', why, signal)
      if (lacking.length === families.length)
        throw new WeftError('CONFIG', why, {
          remedy: 'enable the family that it has, or make the node anew with pod CIDRs of this one',
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
        await tell('PodCIDROutsideNetwork', why, signal)
        const key = family === 'ipv6' ? 'IPv6Network' : 'Network'
        throw new WeftError('CONFIG', why, {
          remedy: `set ${key} to the cluster's pod network, kube-controller-manager's --cluster-cidr`,
        })
      }
      log.info(
        `Creating the node lease for ${WORD[family]}. This is the n.Spec.PodCIDRs: [${(spec?.podCIDRs ?? []).join(' ')}]`,
      )
    }
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
          if (isFinal)
            throw new WeftError('CONFIG', why, {
              remedy: 'delete the node and let it register again with other pod CIDRs',
            })
          calm.error(`${why}: waiting for it; ${present ? WITHOUT_SUBNET : WITHOUT_NODE}`)
          await changed(version, signal)
          continue
        }
        const { node, subnets: found } = now
        await checkSubnet(found, node, config, calm, signal)
        await publish(node, attrs, signal)
        if (held && held.key !== found.key) {
          const [from, to] = [held.subnet, found.subnet].map(netsText)
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
        throw new WeftError('LEASE_LOST', `node ${JSON.stringify(name)} has ${netsText(subnets.subnet)} now`)
      const wasOurs = annotationsPatch(annotationsOf(node), lease.attrs, names) === undefined
      if ((await publish(node, attrs, signal)) && !wasOurs) {
        const why = 'The annotations of this node were no longer what weftd wrote, and were written again'
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

    /** The addresses that an operator gave this node by annotations. */
    async addressesGiven(which: 'nodePublicIp' | 'publicIpOverwrite', signal: AbortSignal): Promise<Addresses> {
      const { node } = await read(signal)
      const bad: string[] = []
      const addresses = givenAddresses(node ?? {}, names, which, (family, problem) => {
        bad.push(`An annotation of this node is not an ${family} address of a host, and is ignored: ${problem}`)
      })
      for (const why of bad) {
        log.warn(why)
        await tell('BadAnnotation', why, signal)
      }
      return addresses
    },

    async amend(publicIp: Addresses, signal: AbortSignal): Promise<Addresses> {
      const by = await this.addressesGiven('publicIpOverwrite', signal)
      const overwritten = <A extends Address>(what: string, own: A | undefined, other: A | undefined, from: string) => {
        if (own === undefined || other === undefined || other === own) return own
        log.info(`Overriding public ${what} with '${formatAddress(other)}' from node annotation '${from}'`)
        return other
      }
      return {
        ipv4: overwritten('ip', publicIp.ipv4, by.ipv4, names.ipv4.publicIpOverwrite),
        ipv6: overwritten('ipv6', publicIp.ipv6, by.ipv6, names.ipv6.publicIpOverwrite),
      }
    },

    /** The condition with which a cloud's controller keeps pods from a node until its network is there; flannel's words. */
    async ready(signal: AbortSignal): Promise<void> {
      const uid = seen
      if (uid === told) return
      const time = goSeconds()
      const condition = {
        type: 'NetworkUnavailable',
        status: 'False',
        lastHeartbeatTime: time,
        lastTransitionTime: time,
        reason: 'FlannelIsUp',
        message: 'Flannel is running on this node',
      }
      const body = { status: { conditions: [condition] } }
      await client.ask({ method: 'PATCH', path: `${path}/status`, contentType: PATCH, body }, signal)
      told = uid
    },
  }
}

const WORD = { ipv4: 'IPv4', ipv6: 'IPv6' } as const
const annotationsOf = ({ metadata }: NodeObject): Readonly<Record<string, string>> => metadata?.annotations ?? {}
const WITHOUT_NODE = 'a kubelet registers it; NODE_NAME must be its name as `kubectl get nodes` has it'
const WITHOUT_SUBNET = 'kube-controller-manager gives it with --allocate-node-cidrs and --cluster-cidr'

/** Now, as Kubernetes writes a time. */
const goSeconds = (): string => new Date().toISOString().replace(/\.\d+Z$/, 'Z')
