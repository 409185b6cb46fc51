// end.ts - ends the data path and the node: leaves them to the next process, or removes the node from the network.

import { messageOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { addon } from '../host/addon.ts'
import { closeAll } from '../host/unix-socket.ts'
import type { OpenPath } from '../path/engine/engine.ts'
import type { Notifier } from '../report/notify.ts'
import { writeKnown, type Knowing } from './loops/last-known.ts'
import type { Node } from './node.ts'
import type { Ownership } from './ownership.ts'
import { keptName } from './restart/earlier-run.ts'
import { removeLastKnown } from './restart/last-known.ts'
import { Superseded } from './restart/lender.ts'
import { packPaths } from './restart/open-path.ts'

/** The time limit for the store to delete the lease. */
const RELEASE_MS = 3_000

const isLeaving = (reason: unknown): boolean => reason instanceof Superseded && reason.how === 'leave'

/** The data path that ends, and the facts for the last-known file. */
interface Ending {
  readonly ownership: Ownership
  /** The node, or the node that forwards with the last known state; undefined if there is neither. */
  readonly forwarding: Knowing | undefined
  readonly notifier?: Notifier | undefined
  readonly log: Log
}

/** Ends the data path and writes the last known state. If possible, the service manager keeps the open paths. Idempotent. */
export async function endDataPath({ ownership, forwarding, notifier, log }: Ending, reason: unknown): Promise<void> {
  if (isLeaving(reason)) {
    await ownership.close()
    if (forwarding?.next) await removeLastKnown(forwarding.next.lastKnown)
    return
  }
  await ownership.end(async (paths) => {
    const kept = await giveToManager(paths, notifier)
    await (forwarding && writeKnown(forwarding, kept))?.catch((error: unknown) =>
      log.warn(`Cannot write the last known state for the next start: ${messageOf(error)}`),
    )
  })
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
  await endDataPath({ ...node, forwarding: node }, reason)
  if (isLeaving(reason)) await giveLeaseBack(node)
}

async function giveLeaseBack({ manager, config, lease, claimed, log }: Node): Promise<void> {
  const holder = manager.holder(config)
  if (!holder.release) return log.info('This node has left; its lease ends with the node of the cluster')
  const late = new AbortController()
  const timer = setTimeout(() => late.abort(new Error(`no answer within ${RELEASE_MS / 1000} s`)), RELEASE_MS)
  try {
    await holder.release(lease, late.signal)
    // A claim that remains in the store does no harm.
    if (claimed) await manager.unclaim?.(claimed.address, claimed.value, late.signal)
    log.info('This node has left the network')
  } catch (error) {
    log.error(`The lease cannot be given back, and ends by itself: ${messageOf(error)}`)
  } finally {
    clearTimeout(timer)
  }
}
