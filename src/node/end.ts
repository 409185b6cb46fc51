// end.ts - ends the data path and the node. It either leaves the data path and the lease to the next process, or
// removes the node from the network.

import { describeError, messageOf } from '../base/errors.ts'
import type { OwnLease } from '../control/lease/lease.ts'
import { addon } from '../host/addon.ts'
import { limited } from '../host/bell.ts'
import { closeAll } from '../host/unix-socket.ts'
import type { OpenPath } from '../path/engine/engine.ts'
import type { Notifier } from '../report/notify.ts'
import { writeKnown } from './loops/last-known.ts'
import { canForward, type ForwardingNode, type NewNode, type Node } from './node.ts'
import { keptName } from './restart/earlier-run.ts'
import { removeLastKnown } from './restart/last-known.ts'
import { Superseded } from './restart/lender.ts'
import { packPaths } from './restart/open-path.ts'

/** The time limit in ms for the store to delete the lease. */
const RELEASE_MS = 3_000
/**
 * The time limit in ms to withdraw a published route. The sum of WITHDRAW_MS and RELEASE_MS is less than LEAVE_MS of
 * restart/protocol.ts.
 */
const WITHDRAW_MS = 10_000

const isLeaving = (reason: unknown): boolean => reason instanceof Superseded && reason.how === 'leave'

/**
 * Ends the data path and writes the last known state. If possible, the service manager keeps the descriptors of the
 * open data paths. A second call has no effect.
 */
export async function endDataPath(node: NewNode, reason: unknown): Promise<void> {
  if (isLeaving(reason)) return closeDataPath(node)
  await loopEnded(node)
  await node.ownership.end(async (paths) => {
    const kept = await giveToManager(paths, node.notifier)
    const notWritten = (error: unknown): void =>
      node.log.warn(`Cannot write the last known state for the next start: ${messageOf(error)}`)
    if (canForward(node)) await writeKnown(node, kept).catch(notWritten)
  })
}

/**
 * Resolves when the loop in loops/data-path.ts has ended, because that loop must not use a data path that ends. The
 * caller must have aborted the node's signal.
 */
const loopEnded = async ({ keepingPath }: NewNode): Promise<void> => keepingPath?.catch(() => {})

/**
 * The running or completed withdrawal of each node's published route. When a node leaves, endDataPath runs twice, and
 * the second run must use the stored result.
 */
const withdrawals = new WeakMap<NewNode, Promise<boolean>>()

/**
 * Removes the route that the backend published in a cloud or a switch. Returns false if the route cannot be removed;
 * the node then leaves the network without removing the route.
 */
function withdraw(node: ForwardingNode): Promise<boolean> {
  const withdrawal = withdrawals.get(node) ?? withdrawOnce(node)
  withdrawals.set(node, withdrawal)
  return withdrawal
}

async function withdrawOnce({ backend, lease, log }: ForwardingNode): Promise<boolean> {
  if (!backend.withdraw) return true
  const late = () => new Error(`no answer within ${WITHDRAW_MS / 1000} s`)
  try {
    const removed = await limited(new AbortController().signal, WITHDRAW_MS, late, async (signal) =>
      backend.withdraw?.(lease, signal),
    )
    for (const each of removed ?? []) log.info(`removed ${each}`)
    return true
  } catch (error) {
    log.error(`The route to this node's subnet cannot be withdrawn, and stays: ${describeError(error)}`)
    return false
  }
}

/** Closes the data path, and leaves nothing of it to the next process. */
async function closeDataPath(node: NewNode): Promise<void> {
  await loopEnded(node)
  await node.ownership.close()
  // If the published route could not be withdrawn, keep the file of the last known state, because `weft cleanup` needs
  // the file to try again.
  const isWithdrawn = !canForward(node) || (await withdraw(node))
  if (node.next && isWithdrawn) await removeLastKnown(node.next.lastKnown)
}

/**
 * Gives the descriptors of the open data paths to the service manager, and closes the data paths in this process.
 * Returns the descriptions of the data paths that the service manager keeps.
 */
async function giveToManager(
  paths: readonly OpenPath[],
  notifier: Notifier | undefined,
): Promise<readonly OpenPath[] | undefined> {
  const { descriptions, fds } = packPaths(paths)
  try {
    if (fds.length === 0 || !notifier || notifier.keeps < fds.length) return undefined
    if (!(await notifier.keep(fds.map((fd, place) => ({ fd, name: keptName(place) }))))) return undefined
    // Make the TUN device exist only as long as the service manager keeps its descriptors, that is, until the service
    // is stopped.
    for (const { tun } of paths.flatMap(({ loops }) => loops)) addon.setTunPersistent(tun, false)
    return descriptions
  } catch {
    return undefined // the device was deleted
  } finally {
    closeAll(fds)
  }
}

/** Ends a node. If the reason is `weftd --leave`, the node leaves its network. */
export async function endNode(node: Node, reason: unknown): Promise<void> {
  if (isLeaving(reason)) await leaveNetwork(node, node, reason)
  else await endDataPath(node, reason)
}

/** The nodes that have begun to leave their network. */
const left = new WeakSet<NewNode>()

/**
 * If `reason` is the request `weftd --leave`, ends the node's data path and deletes the node's lease. If weftd is still
 * starting and does not know the lease yet, this function deletes no lease. A second call for the same node has no
 * effect.
 */
export async function leaveNetwork(
  node: NewNode,
  { manager, config, lease }: Pick<Node, 'manager'> & Partial<Pick<Node, 'config' | 'lease'>>,
  reason: unknown,
): Promise<void> {
  if (!isLeaving(reason) || left.has(node)) return
  left.add(node)
  await endDataPath(node, reason)
  const { claimed, log } = node
  if (config && lease)
    (reason as Superseded).isLeaseBack = await giveLeaseBack({ manager, config, lease, claimed, log })
  else if (manager.givesSubnets) (reason as Superseded).isLeaseBack = undefined
}

/** Ends a node that could not become ready, and deletes the lease that this process created for the node. */
export async function endUnusedNode(node: Node): Promise<void> {
  await closeDataPath(node).catch((error: unknown) =>
    node.log.error(`Cannot close the data path: ${describeError(error)}`),
  )
  await giveNewLeaseBack(node, node.lease)
}

/**
 * Deletes this node's lease from the store. Returns true if the store deleted the lease, false if it did not, and
 * undefined if the subnet manager cannot delete leases.
 */
async function giveLeaseBack({
  manager,
  config,
  lease,
  claimed,
  log,
}: Releasing & Pick<Node, 'lease' | 'claimed'>): Promise<boolean | undefined> {
  if (!manager.holder(config).release) {
    log.info('This node has left; its lease ends with the node of the cluster')
    return undefined
  }
  const isBack = await isReleased({ manager, config, log }, lease, async (signal) => {
    // Ignore a failure, because a host name (claim) that remains in the store does no harm.
    if (claimed) await manager.unclaim?.(claimed.address, claimed.value, signal)
  })
  if (isBack) log.info('This node has left the network')
  return isBack
}

/**
 * Deletes a lease that this process has just created, because the node cannot forward. Otherwise other nodes would send
 * packets to this node until the lease expires after a day.
 */
export async function giveNewLeaseBack(parts: Releasing, lease: OwnLease): Promise<void> {
  if (!parts.manager.holder(parts.config).release) return
  if (await isReleased(parts, lease)) parts.log.info('The new lease is given back, because this node cannot forward')
}

type Releasing = Pick<Node, 'manager' | 'config' | 'log'>

/** Deletes the lease from the store within RELEASE_MS. If that fails, logs the failure and returns false. */
async function isReleased(
  { manager, config, log }: Releasing,
  lease: OwnLease,
  after: (signal: AbortSignal) => Promise<void> = async () => {},
): Promise<boolean> {
  const late = new AbortController()
  const timer = setTimeout(() => late.abort(new Error(`no answer within ${RELEASE_MS / 1000} s`)), RELEASE_MS)
  try {
    await manager.holder(config).release?.(lease, late.signal)
    await after(late.signal)
    return true
  } catch (error) {
    log.error(`The lease cannot be given back, and ends by itself: ${messageOf(error)}`)
    return false
  } finally {
    clearTimeout(timer)
  }
}
