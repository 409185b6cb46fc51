// end.ts - ends the data path and the node: leaves them to the next process, or removes the node from the network.

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

/** The time limit for the store to delete the lease. */
const RELEASE_MS = 3_000
/** The time limit to withdraw a published route. With RELEASE_MS it is less than LEAVE_MS of restart/protocol.ts. */
const WITHDRAW_MS = 10_000

const isLeaving = (reason: unknown): boolean => reason instanceof Superseded && reason.how === 'leave'

/** Ends the data path and writes the last known state. If possible, the service manager keeps the open paths. Idempotent. */
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

/** Resolves when the loop of the data path has ended, because it must not use a data path that ends. Must be called after the stop. */
const loopEnded = async ({ keepingPath }: NewNode): Promise<void> => keepingPath?.catch(() => {})

/** The withdrawals so far, because the data path is ended twice when a node leaves. */
const withdrawals = new WeakMap<NewNode, Promise<boolean>>()

/** Removes the route that the backend published in a cloud or a switch. Returns false if it cannot. The node leaves in both cases. */
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

/** Ends the data path for good, and leaves nothing to the next process. */
async function closeDataPath(node: NewNode): Promise<void> {
  await loopEnded(node)
  await node.ownership.close()
  // The file stays if the route could not be withdrawn, because `weft cleanup` needs it to try again.
  const isWithdrawn = !canForward(node) || (await withdraw(node))
  if (node.next && isWithdrawn) await removeLastKnown(node.next.lastKnown)
}

/** Closes the paths in this process. Returns their descriptions if the service manager keeps them open. */
async function giveToManager(
  paths: readonly OpenPath[],
  notifier: Notifier | undefined,
): Promise<readonly OpenPath[] | undefined> {
  const { descriptions, fds } = packPaths(paths)
  try {
    if (fds.length === 0 || !notifier || notifier.keeps < fds.length) return undefined
    if (!(await notifier.keep(fds.map((fd, place) => ({ fd, name: keptName(place) }))))) return undefined
    // The device exists as long as its queues are kept, that is, until the service is stopped.
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
  await endDataPath(node, reason)
  if (isLeaving(reason)) (reason as Superseded).isLeaseBack = await giveLeaseBack(node)
}

/** Ends a node that could not become ready, and gives back its lease, which is new. */
export async function endUnusedNode(node: Node): Promise<void> {
  await closeDataPath(node).catch((error: unknown) =>
    node.log.error(`Cannot close the data path: ${describeError(error)}`),
  )
  await giveNewLeaseBack(node, node.lease)
}

/** Gives the lease back to the store. Returns the value for Superseded.isLeaseBack. */
async function giveLeaseBack({ manager, config, lease, claimed, log }: Node): Promise<boolean | undefined> {
  if (!manager.holder(config).release) {
    log.info('This node has left; its lease ends with the node of the cluster')
    return undefined
  }
  const isBack = await isReleased({ manager, config, log }, lease, async (signal) => {
    // A claim that remains in the store does no harm.
    if (claimed) await manager.unclaim?.(claimed.address, claimed.value, signal)
  })
  if (isBack) log.info('This node has left the network')
  return isBack
}

/** Gives back a lease that this process has just created, because the node cannot forward. The lease would attract packets for a day. */
export async function giveNewLeaseBack(parts: Releasing, lease: OwnLease): Promise<void> {
  if (!parts.manager.holder(parts.config).release) return
  if (await isReleased(parts, lease)) parts.log.info('The new lease is given back, because this node cannot forward')
}

type Releasing = Pick<Node, 'manager' | 'config' | 'log'>

/** Asks the store to take a lease back, within RELEASE_MS. Logs a failure and returns false then. */
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
