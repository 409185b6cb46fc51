// peers.ts - keeps the data path's peers: what the other nodes lease, as far as it is believed.

import { describeError } from '../errors.ts'
import { followLeases } from '../lease/follow.ts'
import { leasesEqual, type Lease } from '../lease/lease.ts'
import { formatIpv4, formatIpv4Net, ipv4NetsOverlap } from '../net/ipv4.ts'
import type { Node } from './node.ts'

const WORDS = {
  added: ({ subnet }: Lease): string => `Subnet added: ${formatIpv4Net(subnet)}`,
  removed: ({ subnet }: Lease): string => `Subnet removed: ${formatIpv4Net(subnet)}`,
}

export async function keepPeers(node: Node): Promise<never> {
  const { options, manager, log, signal } = node
  const isOwn = ({ key }: Lease): boolean => key === node.lease.key
  const say = { ...WORDS, ...node.backend.words }
  log.info('Watching for new subnet leases')
  signal.addEventListener('abort', () => log.info('evts chan closed'), { once: true }) // so flanneld calls its end
  const following = followLeases(manager.source, {
    log,
    signal,
    ownKey: () => node.lease.key,
    holdMs: options['fail-static-hold'] * 1000,
    state: node.following,
  })
  let named: ReadonlySet<string> = new Set()
  for await (const { leases, added, changed, removed, isOwnUnreadable } of following) {
    node.view = leases
    for (const { key } of added) node.cameAt.set(key, Date.now())
    for (const { key } of removed) node.cameAt.delete(key)
    for (const lease of [...added, ...changed]) if (!isOwn(lease)) log.info(say.added(lease))
    for (const lease of removed) if (!isOwn(lease)) log.info(say.removed(lease))
    if (added.length + changed.length + removed.length > 0) {
      named = nameOverlaps(node, named)
      await applyPeers(node)
      node.learnt.ring()
    }
    // A deletion that came between acquiring and the first listing was never in the view. What the node has to publish since
    // then may wait for a store that was away.
    const own = leases.get(node.lease.key)
    if (!own || isOwnUnreadable || !leasesEqual(own, { ...node.lease, attrs: node.attrs })) node.leaseDoubt.ring()
  }
  throw signal.reason
}

/** Says of each other lease that overlaps this node's that it does, once while it does. Returns their keys. */
function nameOverlaps({ view, lease, log }: Node, named: ReadonlySet<string>): ReadonlySet<string> {
  const across = [...view.values()].filter(
    ({ key, attrs, subnet }) =>
      key !== lease.key && attrs.publicIp !== lease.attrs.publicIp && ipv4NetsOverlap(subnet, lease.subnet),
  )
  for (const { key, attrs } of across) {
    if (named.has(key)) continue
    log.error(
      `Two nodes have one subnet: ${formatIpv4(attrs.publicIp)} leases ${key}, and this node ${lease.key}. Packets to what ` +
        'both have reach only one of them; delete the lease whose length is not that of the network configuration, and ' +
        'restart its node',
    )
  }
  return new Set(across.map(({ key }) => key))
}

/** Makes the data path's peers equal the view, less our own lease. What is in the way is said once, and tried again. */
export async function applyPeers(node: Node): Promise<void> {
  const { dataPath, view, lease, log, signal } = node
  try {
    await dataPath?.apply(view, lease.key)
    node.isUnapplied = false
    node.applied++
  } catch (error) {
    signal.throwIfAborted()
    if (node.isUnapplied) return
    node.isUnapplied = true
    log.error(`Cannot set the peers of the data path: ${describeError(error)}; trying again`)
    node.dataPathDoubt.ring()
  }
}
