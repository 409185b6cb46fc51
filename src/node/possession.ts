// possession.ts - who has this host's data path: this process, or one that takes over from it; and what becomes of it at the end.
//
// Opening, lending and closing are done in turn: no two of them at once, and each sees what the one before has left.

import type { DataPath } from '../backend/backend.ts'
import type { OpenPath } from '../dataplane/engine.ts'
import { describeError, messageOf } from '../errors.ts'
import { addon } from '../host/addon.ts'
import { createBell, type Bell } from '../host/bell.ts'
import { createTurn, type Turn } from '../host/turn.ts'
import { closeAll } from '../host/unix-socket.ts'
import type { Log } from '../log.ts'
import type { Estate } from '../restart/predecessor.ts'
import { keptName } from '../restart/kept.ts'
import { fdsOf, packPath } from '../restart/open-path.ts'
import type { Notifier } from '../status/notify.ts'

export interface Possession {
  /** Undefined while none is open here. */
  dataPath: DataPath | undefined
  /** Set while another process forwards: what it was lent, which is open here too, or nothing where all was closed for it. */
  lent: { readonly dataPath?: DataPath | undefined; readonly path?: OpenPath | undefined } | undefined
  readonly inTurn: Turn
  /** Rung when the data path died, the host changed, the node has another lease, or the data path was lent or came back. */
  readonly dataPathDoubt: Bell
}

export const createPossession = (dataPathDoubt = createBell()): Possession => ({
  dataPath: undefined,
  lent: undefined,
  inTurn: createTurn(),
  dataPathDoubt,
})

/** Resolves when no other process has the data path. Rejects with the signal's reason. */
export async function untilOurs(held: Possession, signal: AbortSignal): Promise<void> {
  while (held.lent) await held.dataPathDoubt.wait(signal)
}

/** What a successor asks of whoever has the data path then: `held` is asked for each time. */
export function estateOf(held: () => Possession, log: Log): Pick<Estate, 'lend' | 'release' | 'takeBack'> {
  const inTurn = <T>(work: (at: Possession) => Promise<T>): Promise<T> => {
    const at = held()
    // A node takes over from what forwarded before there was one in a turn of its own.
    return at.inTurn(() => work(held()))
  }
  return {
    lend: () => inTurn((at) => lend(at, log)),
    release: () => inTurn((at) => release(at, log)),
    takeBack(why) {
      log.warn(`The weftd that was to take over ${why}; forwarding again`)
      return inTurn(takeBack)
    },
  }
}

async function lend(held: Possession, log: Log): Promise<OpenPath | undefined> {
  const { dataPath } = held
  if (held.lent || !dataPath?.leave || !dataPath.takeBack) return undefined
  held.lent = { dataPath }
  try {
    const path = await dataPath.leave()
    if (path) held.lent = { dataPath, path }
    else {
      held.lent = undefined
      held.dataPathDoubt.ring() // it may be waited for that it is ours, to open it again
    }
    return path
  } catch (error) {
    // It forwards no more, and has nothing to lend: it is opened again.
    log.error(`The data path cannot be handed over: ${describeError(error)}`)
    await dataPath.close().catch(() => {})
    held.lent = undefined
    held.dataPath = undefined
    held.dataPathDoubt.ring()
    return undefined
  }
}

/** Stops forwarding for the predecessor, which goes on: nothing is written, and nothing given to a service manager. */
export const giveBack = (held: Possession, log: Log): Promise<void> => held.inTurn(() => release(held, log))

/** What cannot be closed is for whoever opens the next to deal with: this process may be the one that goes on. */
async function release(held: Possession, log: Log): Promise<void> {
  const { dataPath, lent } = held
  held.lent = {}
  held.dataPath = undefined
  held.dataPathDoubt.ring()
  try {
    if (!lent && !dataPath?.leave) return await dataPath?.close()
    const path = lent ? lent.path : await dataPath?.leave?.()
    if (path) closeAll(fdsOf(path))
  } catch (error) {
    log.error(`Cannot close the data path: ${describeError(error)}`)
  }
}

async function takeBack(held: Possession): Promise<void> {
  const { lent } = held
  held.lent = undefined
  await lent?.dataPath?.takeBack?.()
  held.dataPathDoubt.ring()
}

/** Leaves a data path, that of `held` when its turn comes, to the next process: what packets wait in meanwhile in the service manager's keeping, and what is known written. */
export function leaveDataPath(
  held: () => Possession,
  write: (path: unknown) => Promise<void>,
  notifier: Notifier | undefined,
  log: Log,
): Promise<void> {
  return held().inTurn(async () => {
    const last = held()
    const { dataPath, lent } = last
    last.lent = {} // nobody opens another one
    // The successor has its own of the same. This process may go on for a while, and would hold device and port.
    if (lent) return closeAll(lent.path ? fdsOf(lent.path) : [])
    if (!dataPath?.leave) return dataPath?.close()
    const path = await dataPath.leave()
    const kept = path && (await giveToManager(path, notifier))
    await write(kept).catch((error: unknown) =>
      log.warn(`Cannot write what is known for the next start: ${messageOf(error)}`),
    )
  })
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
