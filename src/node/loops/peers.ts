// peers.ts - the loop that follows the leases of the peers, and passes the accepted leases to the data path.

import { describeError } from '../../base/errors.ts'
import { followLeases } from '../../control/lease/follow.ts'
import { isOfOneNode, leasesEqual, type Lease } from '../../control/lease/lease.ts'
import { withLatePromise } from '../../host/bell.ts'
import { addressText, netsOverlap, netText } from '../../net/address.ts'
import type { PeerWords } from '../../path/contract.ts'
import { LATE_MS, touch, type Node } from '../node.ts'

const WORDS: PeerWords = {
  watching: 'Watching for new subnet leases',
  added: ({ subnet }) => [`Subnet added: ${netText(subnet)}`],
  removed: ({ subnet }) => [`Subnet removed: ${netText(subnet)}`],
}

export async function keepPeers(node: Node): Promise<never> {
  const { options, manager, log, signal } = node
  // A lease with a different key is this node's own too if it has this node's public IP and overlaps this node's
  // subnet. While the node gets a subnet of a second family, its old lease and its new lease have different keys and a
  // common subnet.
  const isOwn = ({ key, attrs, subnet }: Lease): boolean =>
    key === node.lease.key || (isOfOneNode(attrs, node.attrs) && netsOverlap(subnet, node.lease.subnet))
  const say = { ...WORDS, ...node.backend.words }
  log.info(say.watching)
  signal.addEventListener('abort', () => log.info('evts chan closed'), { once: true }) // flanneld logs this at its end
  const following = followLeases(manager.source, {
    log,
    signal,
    ownKey: () => node.lease.key,
    holdMs: options['fail-static-hold'] * 1000,
    state: node.following,
  })
  const overlaps = createOverlaps(node)
  /**
   * The keys of the leases that may have changed since the data path's peers were last set; undefined if all leases may
   * have changed.
   */
  let touched: Set<string> | undefined
  for await (const { leases, added, changed, removed, renewed, isListing, isOwnUnreadable } of following) {
    node.view = leases
    // After a complete listing, pass all leases to the data path, so that errors of earlier changes are corrected.
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
      // Log the changes of leases only after the data path has them, because a program that reads such a log line may
      // send packets to the peer immediately.
      const peers = (some: readonly Lease[]) => some.filter((lease) => !isOwn(lease))
      for (const line of peers([...added, ...changed]).flatMap(say.added)) log.info(line)
      for (const line of peers(removed).flatMap(say.removed)) log.info(line)
      node.learnt.ring()
    }
    // Compare this node's own lease with the store's after every report, even if the report does not name the lease.
    // The lease may have been deleted before the first listing, or the store may lack its new attributes.
    const own = leases.get(node.lease.key)
    const isAsWritten = own && !isOwnUnreadable && leasesEqual(own, { ...node.lease, attrs: node.attrs })
    if (!isAsWritten || hasOtherEnd(node, own)) node.leaseDoubt.ring()
  }
  throw signal.reason
}

/**
 * Returns true if an operator has turned this node's lease into a reservation, or the reservation into a lease that
 * expires. `own` is this node's lease as the store reported it. Returns false in Kubernetes, where no lease expires.
 */
const hasOtherEnd = ({ lease, manager }: Node, own: Lease): boolean =>
  !manager.givesSubnets && (own.revision === undefined) !== (lease.expiresAt === undefined)

/** Stores the host names that come with the leases. The loop in names.ts reads names that are stored separately. */
function nameHosts({ names }: Node, there: readonly Lease[], removed: readonly Lease[]): void {
  for (const { name, attrs } of removed) {
    const address = addressText(attrs.publicIp)
    // A node that replaced the removed node may have the same public IP. Keep the name of this new node.
    if (name !== undefined && names.get(address) === name) names.delete(address)
  }
  for (const { name, attrs } of there) if (name !== undefined) names.set(addressText(attrs.publicIp), name)
}

/**
 * Returns a function that logs each lease that overlaps this node's own lease, once for as long as the overlap lasts.
 * The function gets the keys whose lease may have changed since the last call; undefined means all keys.
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
        `Two nodes have one subnet: ${addressText(attrs.publicIp)} leases ${key}, and this node ${lease.key}. Packets to addresses ` +
          'in both subnets reach only one of the nodes; delete the lease whose length is not that of the network configuration, ' +
          'and restart its node',
      )
    }
  }
}

type Applying = Pick<
  Node,
  | 'ownership'
  | 'view'
  | 'lease'
  | 'log'
  | 'signal'
  | 'unapplied'
  | 'ownApplied'
  | 'unprobed'
  | 'unsearched'
  | 'unchosen'
>

/**
 * Makes the data path's peers equal to all accepted leases except this node's own. Logs a failure once; the next check
 * tries again. `touched` has the keys of the leases that may have changed since the data path's peers were last set. If
 * `touched` is left out, or if this node's own lease changed, all leases may have changed.
 */
export async function applyPeers(node: Applying, touched?: ReadonlySet<string>): Promise<void> {
  const { ownership, view, lease, log, signal } = node
  const before = node.unapplied
  const where = before === 'all' || node.ownApplied !== lease.key ? undefined : touched
  node.ownApplied = lease.key
  if (ownership.state.is === 'lent') {
    node.unapplied = 'all' // the successor owns the routes to the peers, so they are applied if the data path comes back
    return
  }
  try {
    const { dataPath } = ownership
    await withLatePromise(LATE_MS, async (late) => dataPath?.apply(view, lease.key, where, late))
    const isBehind = dataPath?.isBehind === true
    // If the data path did not get the last complete set of peers, it still lacks peers after this call, because this
    // call passes only the changed peers.
    if (!where || node.unapplied !== 'all') node.unapplied = isBehind ? 'rest' : undefined
    if (isBehind && before !== 'rest') ownership.recheck.ring()
    const news = before === 'rest' && !isBehind ? undefined : where
    for (const unseen of [node.unprobed, node.unsearched, node.unchosen]) touch(unseen, news)
  } catch (error) {
    signal.throwIfAborted()
    if (node.unapplied === 'all') return
    node.unapplied = 'all'
    log.error(`Cannot set the peers of the data path: ${describeError(error)}; trying again`)
    ownership.recheck.ring()
  }
}
