// ownership.ts - whether this process owns the host's data path. It is one state with these transitions:
//
//   closed      no data path is open here, and one may be opened   open -> forwarding
//   forwarding  this process forwards                               close -> closed, lend -> lent, release -> released
//   lent        a successor forwards through the open path, which   takeBack -> forwarding, release -> released
//               is open in both processes
//   released    a successor forwards through a path of its own,     takeBack -> closed
//               or is about to open one
//   ended       this process opens no data path any more            from each state, by end
//
// Transitions run one after another. A transition that its state does not have changes nothing.

import { describeError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { createBell, type Bell } from '../host/bell.ts'
import { createTurn } from '../host/turn.ts'
import { closeAll } from '../host/unix-socket.ts'
import type { OpenPath } from '../path/engine/engine.ts'
import type { DataPaths } from './data-paths.ts'
import { fdsOf } from './restart/open-path.ts'

type OwnershipState =
  | { readonly is: 'closed' }
  | { readonly is: 'forwarding'; readonly dataPath: DataPaths }
  /** `paths` is empty until the data path has stopped. */
  | { readonly is: 'lent'; readonly dataPath: DataPaths; readonly paths: readonly OpenPath[] }
  | { readonly is: 'released' }
  | { readonly is: 'ended' }

export interface Ownership {
  readonly state: OwnershipState
  /**
   * True if no other process owns the data path, so that this process may change its device, routes, firewall rules and
   * files.
   */
  readonly isOurs: boolean
  /**
   * True while a successor is about to take over, or has taken over. The successor may have written the node's lease
   * already.
   */
  hasSuccessor: boolean
  /** The data path that is open in this process: this process forwards through it, or has lent it to a successor. */
  readonly dataPath: DataPaths | undefined
  /**
   * Rings when another process changed the ownership, the data path died, the host changed, or the node got another
   * lease.
   */
  readonly recheck: Bell
  /**
   * Opens a data path with `make` if the state is `closed`. If `make` rejects, this function rejects too, and the state
   * stays `closed`.
   */
  open(make: () => Promise<DataPaths>): Promise<void>
  /** Closes the data path. The state is `closed` afterwards, even if this function rejects. */
  close(): Promise<void>
  /**
   * Stops forwarding, and returns the open paths for a successor. Returns an empty list if there is no path to lend.
   */
  lend(): Promise<readonly OpenPath[]>
  /**
   * Stops forwarding, and closes the paths for a successor that opens its own. The device stays. Logs a failure to
   * close a path.
   */
  release(): Promise<void>
  takeBack(): Promise<void>
  /** Stops forwarding for good. If this process forwards, calls `keep` with the open paths, which `keep` must close. */
  end(keep: (paths: readonly OpenPath[]) => Promise<void>): Promise<void>
}

export function createOwnership(log: Log, recheck = createBell()): Ownership {
  const inTurn = createTurn()
  let state: OwnershipState = { is: 'closed' }
  /** Runs a state change that another process requested. */
  const forOther = <T>(work: () => Promise<T>): Promise<T> => inTurn(() => work().finally(() => recheck.ring()))

  async function lend(): Promise<readonly OpenPath[]> {
    if (state.is !== 'forwarding') return []
    const { dataPath } = state
    if (!dataPath.leave || !dataPath.takeBack) return []
    state = { is: 'lent', dataPath, paths: [] } // from here on no loop repairs the data path
    try {
      const paths = await dataPath.leave()
      // If no paths are returned, the data path has died, and its `fault` reports that.
      state = paths.length > 0 ? { is: 'lent', dataPath, paths } : { is: 'forwarding', dataPath }
      return paths
    } catch (error) {
      // The data path has stopped and cannot be handed over, so the data path's loop opens another one.
      log.error(`The data path cannot be handed over: ${describeError(error)}`)
      await dataPath.close().catch(() => {})
      state = { is: 'closed' }
      return []
    }
  }

  async function release(): Promise<void> {
    const before = state
    if (before.is === 'ended') return
    state = { is: 'released' }
    try {
      if (before.is === 'lent') return closeAll(fdsOf(before.paths))
      if (before.is !== 'forwarding') return
      if (!before.dataPath.leave) return await before.dataPath.close()
      closeAll(fdsOf(await before.dataPath.leave()))
    } catch (error) {
      // Only log the failure, because this process must be able to continue. Opening the next data path meets the cause
      // again.
      log.error(`Cannot close the data path: ${describeError(error)}`)
    }
  }

  async function takeBack(): Promise<void> {
    if (state.is === 'released') return void (state = { is: 'closed' })
    if (state.is !== 'lent') return
    const { dataPath } = state
    await dataPath.takeBack?.()
    state = { is: 'forwarding', dataPath }
  }

  async function end(keep: (paths: readonly OpenPath[]) => Promise<void>): Promise<void> {
    try {
      // Close the descriptors. The successor has copies of them, and this process may run for a while, in which it
      // would block the device and the port.
      if (state.is === 'lent') return closeAll(fdsOf(state.paths))
      if (state.is !== 'forwarding') return
      if (!state.dataPath.leave) return await state.dataPath.close()
      await keep(await state.dataPath.leave())
    } finally {
      state = { is: 'ended' }
    }
  }

  return {
    hasSuccessor: false,
    get state() {
      return state
    },
    get isOurs() {
      return state.is === 'closed' || state.is === 'forwarding'
    },
    get dataPath() {
      return 'dataPath' in state ? state.dataPath : undefined
    },
    recheck,
    open: (make) =>
      inTurn(async () => {
        if (state.is === 'closed') state = { is: 'forwarding', dataPath: await make() }
      }),
    close: () =>
      inTurn(async () => {
        if (state.is !== 'forwarding') return
        const { dataPath } = state
        state = { is: 'closed' }
        await dataPath.close()
      }),
    lend: () => forOther(lend),
    release: () => forOther(release),
    takeBack: () => forOther(takeBack),
    end: (keep) => inTurn(() => end(keep)),
  }
}

/** Resolves when no other process owns the data path. Rejects with the signal's reason when the signal aborts. */
export async function untilOurs(ownership: Ownership, signal: AbortSignal): Promise<void> {
  while (!ownership.isOurs) await ownership.recheck.wait(signal)
}
