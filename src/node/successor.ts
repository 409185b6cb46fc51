// successor.ts - keeps the way open for the weftd that takes over from this one, and ends this one's data path as its end asks.

import type { DataPath } from '../backend/backend.ts'
import { messageOf } from '../errors.ts'
import type { OpenPath } from '../dataplane/engine.ts'
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

/** What a successor takes over; a node, or what forwards before there is one. */
export interface Holding {
  readonly dataPath: DataPath | undefined
  /** The data path while another process has it, and what that one was sent, which is open here too. */
  lent: { readonly dataPath: DataPath; readonly path: OpenPath | undefined } | undefined
}

/** Ends with Superseded when another weftd has taken over, or wants this node to leave. */
export async function serveSuccessor(node: Node): Promise<never> {
  const { log, next, signal } = node
  if (!next) return ended(signal)
  // What stands in the way of writing was said by whoever keeps it written.
  const write = (): Promise<void> => writeKnown(node).catch(() => {})
  return serve(node, next.handover, write, () => node.dataPathDoubt.ring(), log, signal)
}

/** The same for a data path that forwards before there is a node. */
export function serveEarly(holding: Holding, handover: string, log: Log, signal: AbortSignal): Promise<never> {
  return serve(
    holding,
    handover,
    async () => {},
    () => {},
    log,
    signal,
  )
}

async function serve(
  holding: Holding,
  handover: string,
  write: () => Promise<void>,
  onReturn: () => void,
  log: Log,
  signal: AbortSignal,
): Promise<never> {
  let listener: Listener
  try {
    listener = listen(handover)
  } catch (error) {
    log.warn(`The next weftd cannot take over from this one while it runs: ${messageOf(error)}`)
    return ended(signal)
  }
  const estate = {
    write,
    async lend() {
      const { dataPath, lent } = holding
      if (lent || !dataPath?.leave || !dataPath.takeBack) return undefined
      holding.lent = { dataPath, path: undefined }
      const path = await dataPath.leave()
      holding.lent = { dataPath, path }
      return path
    },
    takeBack() {
      log.warn('The weftd that was to take over went away; forwarding again')
      const { lent } = holding
      holding.lent = undefined
      lent?.dataPath.takeBack?.()
      onReturn()
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
  if (reason instanceof Superseded && reason.how === 'leave') return leaveNetwork(node)
  if (!node.lent && !next) return dataPath?.close()
  await leaveDataPath(node, (path) => writeKnown(node, path), notifier, log)
}

/** Leaves a data path to the next process: what packets wait in meanwhile in the service manager's keeping, and what is known written. */
export async function leaveDataPath(
  { dataPath, lent }: Holding,
  write: (path: unknown) => Promise<void>,
  notifier: Notifier | undefined,
  log: Log,
): Promise<void> {
  // The successor has its own of the same. This process may go on for a while, and would hold device and port.
  if (lent) return closeAll(lent.path ? fdsOf(lent.path) : [])
  if (!dataPath?.leave) return dataPath?.close()
  const path = await dataPath.leave()
  const kept = path && (await giveToManager(path, notifier))
  await write(kept).catch((error: unknown) =>
    log.warn(`Cannot write what is known for the next start: ${messageOf(error)}`),
  )
}

/** Closes a path; its description if the service manager keeps it open. */
async function giveToManager(path: OpenPath, notifier: Notifier | undefined): Promise<OpenPath | undefined> {
  const { description, fds } = packPath(path)
  try {
    if (!notifier || notifier.keeps < fds.length) return undefined
    if (!(await notifier.keep(fds.map((fd, place) => ({ fd, name: keptName(place) }))))) return undefined
    // The device lasts for as long as its queues are kept: over a restart, and not when the service is stopped.
    for (const { tun } of path.loops) addon.setTunPersistent(tun, false)
    return description
  } catch {
    return undefined // the device was deleted
  } finally {
    closeAll(fds)
  }
}

async function leaveNetwork({ dataPath, next, manager, config, lease, log }: Node): Promise<void> {
  await dataPath?.close()
  if (next) await removeLastKnown(next.lastKnown)
  const holder = manager.holder(config)
  if (!holder.release) return log.info('This node has left; its lease ends with the node of the cluster')
  try {
    await holder.release(lease, AbortSignal.timeout(RELEASE_MS))
    log.info('This node has left the network')
  } catch (error) {
    log.error(`The lease cannot be given back, and ends by itself: ${messageOf(error)}`)
  }
}
