// possession.ts - who has this host's data path, as this process sees it: one state, and what leads from one to another.
//
//   closed      none is open here, and one may be opened        open -> forwarding
//   forwarding  this process forwards                           close -> closed, lend -> lent, release -> released
//   lent        a successor forwards through the open path,     takeBack -> forwarding, release -> released
//               which is open here too
//   released    a successor forwards through what it opened     takeBack -> closed
//               itself, or is about to
//   ended       this process opens none any more                from each, by end
//
// One transition after another: each sees what the one before has left. One that its state does not have changes nothing.

import { describeError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { createBell, type Bell } from '../host/bell.ts'
import { createTurn } from '../host/turn.ts'
import { closeAll } from '../host/unix-socket.ts'
import type { DataPath } from '../path/contract.ts'
import type { OpenPath } from '../path/engine/engine.ts'
import { fdsOf } from './restart/open-path.ts'

type PossessionState =
  | { readonly is: 'closed' }
  | { readonly is: 'forwarding'; readonly dataPath: DataPath }
  /** There are no `paths` until the data path stands still. */
  | { readonly is: 'lent'; readonly dataPath: DataPath; readonly paths: readonly OpenPath[] }
  | { readonly is: 'released' }
  | { readonly is: 'ended' }

export interface Possession {
  readonly state: PossessionState
  /** True while a successor prepares, or has taken over: by then it writes the lease of the node that it is to be. */
  hasSuccessor: boolean
  /** The one that is open here: this process forwards through it, or has lent it. */
  readonly dataPath: DataPath | undefined
  /** Rung when another process had a part in a change of the state, the data path died, the host changed, or the node has another lease. */
  readonly doubt: Bell
  /** Opens by `make`, which it does not call in another state. Rejects as `make` does, and stays closed. */
  open(make: () => Promise<DataPath>): Promise<void>
  /** Rejects where the data path cannot be closed; nothing is open here any more all the same. */
  close(): Promise<void>
  /** Stops forwarding; nothing where there is nothing to lend. */
  lend(): Promise<readonly OpenPath[]>
  /** Stops forwarding and closes all, for another process that forwards; the device stays. What cannot be closed is said. */
  release(): Promise<void>
  takeBack(): Promise<void>
  /** Stops forwarding. `keep` is given the open paths, if there are any, and closes them; it is not called where nothing forwards here. */
  end(keep: (paths: readonly OpenPath[]) => Promise<void>): Promise<void>
}

export function createPossession(log: Log, doubt = createBell()): Possession {
  const inTurn = createTurn()
  let state: PossessionState = { is: 'closed' }
  /** Work that another process asks for. */
  const asked = <T>(work: () => Promise<T>): Promise<T> => inTurn(() => work().finally(() => doubt.ring()))

  async function lend(): Promise<readonly OpenPath[]> {
    if (state.is !== 'forwarding') return []
    const { dataPath } = state
    if (!dataPath.leave || !dataPath.takeBack) return []
    state = { is: 'lent', dataPath, paths: [] } // nobody mends it any more
    try {
      const paths = await dataPath.leave()
      // A data path that has nothing to lend has died, and its fault tells of that.
      state = paths.length > 0 ? { is: 'lent', dataPath, paths } : { is: 'forwarding', dataPath }
      return paths
    } catch (error) {
      // The data path forwards no more, and has nothing to lend: it is opened again.
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
      // Whoever opens the next has to deal with it: this process is to be able to go on.
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
      // The successor has its own of the same. This process may go on for a while, and would keep device and port from others.
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
    get dataPath() {
      return 'dataPath' in state ? state.dataPath : undefined
    },
    doubt,
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
    lend: () => asked(lend),
    release: () => asked(release),
    takeBack: () => asked(takeBack),
    end: (keep) => inTurn(() => end(keep)),
  }
}

/** Resolves when no other process forwards. Rejects with the signal's reason. */
export async function untilOurs(possession: Possession, signal: AbortSignal): Promise<void> {
  while (!['closed', 'forwarding'].includes(possession.state.is)) await possession.doubt.wait(signal)
}
