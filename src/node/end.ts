// end.ts - what becomes of the data path, and of the node, when the process ends: it stays for the next process, or nothing of it does.

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

/** The store may take this long to take the lease back. */
const RELEASE_MS = 3_000

const isLeaving = (reason: unknown): boolean => reason instanceof Superseded && reason.how === 'leave'

/** The node that ends, and what the next process is to know of it. */
interface Ending {
  readonly ownership: Ownership
  /** The node, or what forwards as last known; undefined where neither is. */
  readonly forwarding: Knowing | undefined
  readonly notifier?: Notifier | undefined
  readonly log: Log
}

/** Ends the data path: it is for the next process, the open paths in the service manager's keeping. Again it changes nothing. */
export async function endDataPath({ ownership, forwarding, notifier, log }: Ending, reason: unknown): Promise<void> {
  if (isLeaving(reason)) {
    await ownership.close()
    if (forwarding?.next) await removeLastKnown(forwarding.next.lastKnown)
    return
  }
  await ownership.end(async (paths) => {
    const kept = await giveToManager(paths, notifier)
    await (forwarding && writeKnown(forwarding, kept))?.catch((error: unknown) =>
      log.warn(`Cannot write what is known for the next start: ${messageOf(error)}`),
    )
  })
}

/** Closes paths; their descriptions if the service manager keeps them open. */
async function giveToManager(
  paths: readonly OpenPath[],
  notifier: Notifier | undefined,
): Promise<readonly OpenPath[] | undefined> {
  const { descriptions, fds } = packPaths(paths)
  try {
    if (fds.length === 0 || !notifier || notifier.keeps < fds.length) return undefined
    if (!(await notifier.keep(fds.map((fd, place) => ({ fd, name: keptName(place) }))))) return undefined
    // The device lasts for as long as its queues are kept: over a restart, and not when the service is stopped.
    for (const { tun } of paths.flatMap(({ loops }) => loops)) addon.setTunPersistent(tun, false)
    return descriptions
  } catch {
    return undefined // the device was deleted
  } finally {
    closeAll(fds)
  }
}

/** Ends a node, which leaves its network where that is the reason. */
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
    // What two hosts with one public IP notice each other by; what stays of it is nobody's.
    if (claimed) await manager.unclaim?.(claimed.address, claimed.value, late.signal)
    log.info('This node has left the network')
  } catch (error) {
    log.error(`The lease cannot be given back, and ends by itself: ${messageOf(error)}`)
  } finally {
    clearTimeout(timer)
  }
}
