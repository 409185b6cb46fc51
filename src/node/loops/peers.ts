// peers.ts - keeps the data path's peers: what the other nodes lease, as far as it is believed.

import { describeError } from '../../base/errors.ts'
import { followLeases } from '../../control/lease/follow.ts'
import { isOfOneNode, leasesEqual, type Lease } from '../../control/lease/lease.ts'
import { withLatePromise } from '../../host/bell.ts'
import { addressText, netsOverlap, netText } from '../../net/address.ts'
import { LATE_MS, touch, type Node } from '../node.ts'

const WORDS = {
  added: ({ subnet }: Lease): string => `Subnet added: ${netText(subnet)}`,
  removed: ({ subnet }: Lease): string => `Subnet removed: ${netText(subnet)}`,
}

export async function keepPeers(node: Node): Promise<never> {
  const { options, manager, log, signal } = node
  // While the node gains a family, its old lease and its new one have different keys and a common subnet.
  const isOwn = ({ key, attrs, subnet }: Lease): boolean =>
    key === node.lease.key || (isOfOneNode(attrs, node.attrs) && netsOverlap(subnet, node.lease.subnet))
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
  const overlaps = createOverlaps(node)
  /** Keys whose lease may not be the one that was applied last; all, before there was one. */
  let touched: Set<string> | undefined
  for await (const { leases, added, changed, removed, renewed, isListing, isOwnUnreadable } of following) {
    node.view = leases
    // A whole listing is applied as a whole, so that nothing that went wrong stays so.
    if (isListing && added.length + changed.length + removed.length > 0) touched = undefined
    for (const { key } of [...added, ...changed, ...removed]) touched?.add(key)
    for (const key of renewed) touched?.add(key)
    for (const key of node.probes ? [...renewed, ...changed.map((lease) => lease.key)] : []) node.written.add(key)
    for (const { key } of added) node.cameAt.set(key, Date.now())
    for (const { key } of removed) node.cameAt.delete(key)
    nameHosts(node, [...added, ...changed, ...renewed.flatMap((key) => leases.get(key) ?? [])], removed)
    if (added.length > 0) node.newcomers.ring()
    if (added.length + changed.length + removed.length > 0) {
      overlaps(touched)
      const applying = touched
      touched = new Set()
      await applyPeers(node, applying)
      // Said once it is so: whoever reads it may send at once.
      for (const lease of [...added, ...changed]) if (!isOwn(lease)) log.info(say.added(lease))
      for (const lease of removed) if (!isOwn(lease)) log.info(say.removed(lease))
      node.learnt.ring()
    }
    // A deletion that came between acquiring and the first listing was never in the view. What the node has to publish since
    // then may wait for a store that was away.
    const own = leases.get(node.lease.key)
    if (!own || isOwnUnreadable || !leasesEqual(own, { ...node.lease, attrs: node.attrs })) node.leaseDoubt.ring()
  }
  throw signal.reason
}

/** Takes names over that a source tells with the leases; those that stand beside them are asked for. */
function nameHosts({ names }: Node, there: readonly Lease[], removed: readonly Lease[]): void {
  for (const { name, attrs } of removed) if (name !== undefined) names.delete(addressText(attrs.publicIp))
  for (const { name, attrs } of there) if (name !== undefined) names.set(addressText(attrs.publicIp), name)
}

/**
 * Says of each other lease that overlaps this node's that it does, once while it does; to be called with the keys whose lease may differ
 * from the last call, or for all of them.
 */
function createOverlaps(node: Node): (touched: ReadonlySet<string> | undefined) => void {
  const named = new Set<string>()
  let ownKey = ''
  return (touched) => {
    const { view, lease, log } = node
    const all = touched === undefined || lease.key !== ownKey
    ownKey = lease.key
    if (all) for (const key of named) if (!view.has(key)) named.delete(key)
    for (const key of all ? view.keys() : touched) {
      const { attrs, subnet } = view.get(key) ?? {}
      const isAcross =
        attrs && subnet && key !== lease.key && !isOfOneNode(attrs, lease.attrs) && netsOverlap(subnet, lease.subnet)
      if (!isAcross) named.delete(key)
      if (!isAcross || named.has(key)) continue
      named.add(key)
      log.error(
        `Two nodes have one subnet: ${addressText(attrs.publicIp)} leases ${key}, and this node ${lease.key}. Packets to what ` +
          'both have reach only one of them; delete the lease whose length is not that of the network configuration, and ' +
          'restart its node',
      )
    }
  }
}

type Applying = Pick<
  Node,
  'possession' | 'view' | 'lease' | 'log' | 'signal' | 'unapplied' | 'ownApplied' | 'unprobed' | 'unsearched'
>

/**
 * Makes the data path's peers equal the view, less our own lease. What is in the way is said once, and tried again. `touched` says where to
 * look: only these leases may differ from those that were applied last; all where it is left out, or where our own was another one then.
 */
export async function applyPeers(node: Applying, touched?: ReadonlySet<string>): Promise<void> {
  const { possession, view, lease, log, signal } = node
  const before = node.unapplied
  const where = before === 'all' || node.ownApplied !== lease.key ? undefined : touched
  node.ownApplied = lease.key
  try {
    const { dataPath } = possession
    await withLatePromise(LATE_MS, async (late) => dataPath?.apply(view, lease.key, where, late))
    const isBehind = dataPath?.isBehind === true
    // A data path that could not be given all is given all again, whatever was given meanwhile.
    if (!where || node.unapplied !== 'all') node.unapplied = isBehind ? 'rest' : undefined
    if (isBehind && before !== 'rest') possession.doubt.ring()
    const news = before === 'rest' && !isBehind ? undefined : where
    for (const unseen of [node.unprobed, node.unsearched]) touch(unseen, news)
  } catch (error) {
    signal.throwIfAborted()
    if (node.unapplied === 'all') return
    node.unapplied = 'all'
    log.error(`Cannot set the peers of the data path: ${describeError(error)}; trying again`)
    possession.doubt.ring()
  }
}
