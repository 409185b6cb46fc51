// ownership.ts - whether this process owns the host's data path. It is one state with these transitions:
//
//   closed      no data path is open here, and one may be opened   open -> forwarding, replace -> forwarding
//   forwarding  this process forwards                               close -> closed, lend -> lent, release -> released,
//                                                                   replace -> forwarding
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
  /** True if no other process owns the data path, so that this one may change its device, routes, firewall rules and files. */
  readonly isOurs: boolean
  /** True while a successor prepares or has taken over. It may have written the node's lease already. */
  hasSuccessor: boolean
  /** The data path that is open here: this process forwards through it, or has lent it. */
  readonly dataPath: DataPaths | undefined
  /**
   * Rings when another process changed the state, the data path died, the host changed, or the node has another lease. Only the loop of the
   * data path waits for it.
   */
  readonly recheck: Bell
  /** Resolves when no other process owns the data path. Rejects with the signal's reason. */
  untilOurs(signal: AbortSignal): Promise<void>
  /** Opens a data path with `make`, if the state is `closed`. If `make` rejects, rejects too and stays closed. */
  open(make: () => Promise<DataPaths>): Promise<void>
  /** Opens a data path with `make` in place of the open one, and logs if that one cannot be closed. Else as `open`. */
  replace(make: () => Promise<DataPaths>): Promise<void>
  /** Closes the data path, or does nothing if `only` is another one. The state is `closed` even if this rejects. */
  close(only?: DataPaths): Promise<void>
  /** Stops forwarding and returns the open paths for a successor. Returns none if there is no path to lend. */
  lend(): Promise<readonly OpenPath[]>
  /** Stops forwarding and closes the paths for a successor that opens its own. The device remains. Logs paths that cannot be closed. */
  release(): Promise<void>
  takeBack(): Promise<void>
  /** Stops forwarding for good. Calls `keep` with the open paths if this process forwards; `keep` must close them. */
  end(keep: (paths: readonly OpenPath[]) => Promise<void>): Promise<void>
}

export function createOwnership(log: Log, recheck = createBell()): Ownership {
  const inTurn = createTurn()
  /** The bells of the callers that wait until this process owns the data path again. */
  const waiting = new Set<Bell>()
  let state: OwnershipState = { is: 'closed' }
  const isOurs = (): boolean => state.is === 'closed' || state.is === 'forwarding'
  /** Runs a transition that another process asked for. */
  const forOther = <T>(work: () => Promise<T>): Promise<T> =>
    inTurn(() => work().finally(() => [recheck, ...waiting].forEach((bell) => bell.ring())))

  async function lend(): Promise<readonly OpenPath[]> {
    if (state.is !== 'forwarding') return []
    const { dataPath } = state
    const { handover } = dataPath
    if (!handover?.isLendable) return []
    state = { is: 'lent', dataPath, paths: [] } // from here on no loop repairs the data path
    try {
      const paths = await handover.leave()
      // A data path without paths has died, and its `fault` reports that.
      state = paths.length > 0 ? { is: 'lent', dataPath, paths } : { is: 'forwarding', dataPath }
      return paths
    } catch (error) {
      // The data path has stopped and cannot be lent, so the loop opens another one.
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
      const { dataPath } = before
      if (!dataPath.handover) return await dataPath.close()
      closeAll(fdsOf(await dataPath.handover.leave()))
    } catch (error) {
      // This process must be able to continue. The next data path to be opened meets the cause again.
      log.error(`Cannot close the data path: ${describeError(error)}`)
    }
  }

  async function takeBack(): Promise<void> {
    if (state.is === 'released') return void (state = { is: 'closed' })
    if (state.is !== 'lent') return
    const { dataPath } = state
    await dataPath.handover?.takeBack()
    state = { is: 'forwarding', dataPath }
  }

  async function end(keep: (paths: readonly OpenPath[]) => Promise<void>): Promise<void> {
    try {
      // The successor has copies of these descriptors. This process may run for a while, and would block device and port.
      if (state.is === 'lent') return closeAll(fdsOf(state.paths))
      if (state.is !== 'forwarding') return
      const { dataPath } = state
      if (!dataPath.handover) return await dataPath.close()
      await keep(await dataPath.handover.leave())
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
      return isOurs()
    },
    get dataPath() {
      return 'dataPath' in state ? state.dataPath : undefined
    },
    recheck,
    async untilOurs(signal) {
      const bell = createBell()
      waiting.add(bell)
      try {
        while (!isOurs()) await bell.wait(signal)
      } finally {
        waiting.delete(bell)
      }
    },
    open: (make) =>
      inTurn(async () => {
        if (state.is === 'closed') state = { is: 'forwarding', dataPath: await make() }
      }),
    replace: (make) =>
      inTurn(async () => {
        if (state.is === 'forwarding') {
          const { dataPath } = state
          state = { is: 'closed' }
          // A data path that cannot be closed is left to the next one, which meets the cause again.
          await dataPath
            .close()
            .catch((error: unknown) => log.error(`Cannot close the data path: ${describeError(error)}`))
        }
        if (state.is === 'closed') state = { is: 'forwarding', dataPath: await make() }
      }),
    close: (only) =>
      inTurn(async () => {
        if (state.is !== 'forwarding' || (only && state.dataPath !== only)) return
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
