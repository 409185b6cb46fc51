// successor.ts - keeps the way open for the weftd that takes over from this one, and ends this one's data path as its end asks.

import type { DataPath } from '../backend/backend.ts'
import { messageOf } from '../errors.ts'
import { addon } from '../host/addon.ts'
import { closeAll, listen, type Listener } from '../host/unix-socket.ts'
import type { Log } from '../log.ts'
import { serveHeirs, Superseded } from '../restart/handover.ts'
import { keptName } from '../restart/inheritance.ts'
import { removeLastKnown } from '../restart/last-known.ts'
import { fdsOf, packPath } from '../restart/open-path.ts'
import type { Notifier } from '../status/notify.ts'
import { writeKnown } from './last-known.ts'
import type { Node } from './node.ts'

/** For the store to take the lease back. */
const RELEASE_MS = 3_000

/** Ends with Superseded when another weftd has taken over, or wants this node to leave. */
export async function serveSuccessor(node: Node): Promise<never> {
  const { log, next, signal } = node
  let listener: Listener | undefined
  try {
    listener = next && listen(next.handover)
  } catch (error) {
    log.warn(`The next weftd cannot take over from this one while it runs: ${messageOf(error)}`)
  }
  if (!listener) return ended(signal)
  const estate = {
    // What stands in the way of that was said by whoever keeps it written.
    write: () => writeKnown(node).catch(() => {}),
    async lend() {
      const { dataPath, lent } = node
      if (lent || !dataPath?.leave || !dataPath.takeBack) return undefined
      node.lent = { dataPath, path: undefined }
      const path = await dataPath.leave()
      node.lent = { dataPath, path }
      return path
    },
    takeBack() {
      log.warn('The weftd that was to take over went away; forwarding again')
      node.lent?.dataPath.takeBack?.()
      node.lent = undefined
    },
  }
  try {
    return await serveHeirs(listener, estate, signal)
  } finally {
    listener.close()
  }
}

async function ended(signal: AbortSignal): Promise<never> {
  await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
  throw signal.reason
}

/** What becomes of the data path when the process ends for `reason`: it stays for the next process, or nothing does. */
export async function endDataPath(node: Node, reason: unknown): Promise<void> {
  const { dataPath, next, notifier, log } = node
  const isLeaving = reason instanceof Superseded && reason.how === 'leave'
  if (isLeaving) return leaveNetwork(node)
  // The successor has its own of the same. This process may go on for a while, and would hold device and port.
  if (node.lent) return closeAll(node.lent.path ? fdsOf(node.lent.path) : [])
  if (!next) return dataPath?.close()
  if (dataPath) await leaveDataPath(dataPath, (path) => writeKnown(node, path), notifier, log)
}

/** Leaves a data path to the next process: what packets wait in meanwhile in the service manager's keeping, and what is known written. */
export async function leaveDataPath(
  dataPath: DataPath,
  write: (path: unknown) => Promise<void>,
  notifier: Notifier | undefined,
  log: Log,
): Promise<void> {
  if (!dataPath.leave) return dataPath.close()
  const path = await dataPath.leave()
  const { description, fds } = path ? packPath(path) : { description: undefined, fds: [] }
  if (path && notifier) {
    // The device lasts for as long as its queues are kept: over a restart, and not when the service is stopped.
    for (const { tun } of path.loops) addon.setTunPersistent(tun, false)
    notifier.keep(fds.map((fd, place) => ({ fd, name: keptName(place) })))
  }
  closeAll(fds)
  await write(description).catch((error: unknown) =>
    log.warn(`Cannot write what is known for the next start: ${messageOf(error)}`),
  )
}

async function leaveNetwork({ dataPath, next, manager, config, lease, log }: Node): Promise<void> {
  await dataPath?.close()
  if (next) await removeLastKnown(next.lastKnown)
  try {
    await manager.holder(config).release?.(lease, AbortSignal.timeout(RELEASE_MS))
    log.info('This node has left the network')
  } catch (error) {
    log.error(`The lease cannot be given back, and ends by itself: ${messageOf(error)}`)
  }
}
