// ownership.ts - tracks whether this process owns the host's data path. The ownership is always in one of these states:
// - closed: no data path is open in this process, and one may be opened.
// - forwarding: this process forwards.
// - lent: a successor forwards through the data path, which is open in both processes.
// - released: a successor forwards through a data path of its own, or is about to open one.
// - ended: this process opens no data path any more.
//
// `open` and `replace` lead to `forwarding`, `close` leads from `forwarding` to `closed`, `lend` and `release` lead to
// `lent` and `released`. `takeBack` leads from `lent` to `forwarding` and from `released` to `closed`. `end` leads from
// every state to `ended`. Transitions run one after another. If a state does not have a transition, calling the
// transition changes nothing.

import { describeError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { type Bell, createBell, createTurn } from '../host/bell.ts'
import { closeAll } from '../host/unix-socket.ts'
import type { OpenPath } from '../path/engine/engine.ts'
import type { DataPaths } from './data-paths.ts'
import { fdsOf } from './restart/open-path.ts'

type OwnershipState =
  | { readonly is: 'closed' }
  | { readonly is: 'forwarding'; readonly dataPath: DataPaths }
  /** `paths` is empty until the data path has stopped in this process. */
  | { readonly is: 'lent'; readonly dataPath: DataPaths; readonly paths: readonly OpenPath[] }
  | { readonly is: 'released' }
  | { readonly is: 'ended' }

export class Ownership {
  /**
   * True while a successor is about to take over, or has taken over. The successor may have written the node's lease
   * already.
   */
  hasSuccessor = false
  /**
   * The wake-up signal (host/bell.ts) of the loop in loops/data-path.ts. It rings when another process changed the
   * ownership, the data path died, the host's addresses or devices changed, or the node got another lease.
   */
  readonly recheck: Bell
  readonly #log: Log
  readonly #inTurn = createTurn()
  /**
   * The wake-up signals (host/bell.ts) of the callers of `untilOurs`, which wait until this process owns the data path
   * again.
   */
  readonly #waiting = new Set<Bell>()
  #state: OwnershipState = { is: 'closed' }

  constructor(log: Log, recheck = createBell()) {
    this.#log = log
    this.recheck = recheck
  }

  get state(): OwnershipState {
    return this.#state
  }

  /**
   * True if no other process owns the data path, so that this process may change the data path's device, routes,
   * firewall rules and files.
   */
  get isOurs(): boolean {
    return this.#state.is === 'closed' || this.#state.is === 'forwarding'
  }

  /**
   * The data path that is open in this process: this process forwards through the data path, or has lent it to a
   * successor.
   */
  get dataPath(): DataPaths | undefined {
    return 'dataPath' in this.#state ? this.#state.dataPath : undefined
  }

  /** Resolves when no other process owns the data path. Rejects with the signal's reason when the signal aborts. */
  async untilOurs(signal: AbortSignal): Promise<void> {
    const bell = createBell()
    this.#waiting.add(bell)
    try {
      while (!this.isOurs) await bell.wait(signal)
    } finally {
      this.#waiting.delete(bell)
    }
  }

  /**
   * Opens a data path with `make` if the state is `closed`. If `make` rejects, this function rejects too, and the state
   * stays `closed`.
   */
  open(make: () => Promise<DataPaths>): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#state.is === 'closed') this.#state = { is: 'forwarding', dataPath: await make() }
    })
  }

  /**
   * Opens a data path with `make` in place of the open data path, and logs a failure to close the open data path.
   * Otherwise works as `open`.
   */
  replace(make: () => Promise<DataPaths>): Promise<void> {
    return this.#inTurn(async () => {
      // Only log a failure to close the data path. If the cause of the failure persists, opening the next data path
      // fails too, and that failure is reported.
      await this.#close().catch((error: unknown) =>
        this.#log.error(`Cannot close the data path: ${describeError(error)}`),
      )
      if (this.#state.is === 'closed') this.#state = { is: 'forwarding', dataPath: await make() }
    })
  }

  /**
   * Closes the data path; does nothing if `only` is given and is not the open data path. The state is `closed`
   * afterwards, even if this function rejects.
   */
  close(only?: DataPaths): Promise<void> {
    return this.#inTurn(() => this.#close(only))
  }

  /**
   * Stops forwarding, and returns the open data paths for a successor. Returns an empty list if this process has no
   * data path to lend.
   */
  lend(): Promise<readonly OpenPath[]> {
    return this.#forOther(() => this.#lend())
  }

  /**
   * Stops forwarding, and closes the paths for a successor that opens its own paths. The network device stays. Logs a
   * failure to close a path.
   */
  release(): Promise<void> {
    return this.#forOther(() => this.#release())
  }

  takeBack(): Promise<void> {
    return this.#forOther(() => this.#takeBack())
  }

  /**
   * Stops forwarding for good. If this process forwards and its data path can be handed over, calls `keep` with the
   * descriptors of the open data paths. `keep` may give copies of the descriptors to the next process, and must close
   * the descriptors in this process.
   */
  end(keep: (paths: readonly OpenPath[]) => Promise<void>): Promise<void> {
    return this.#inTurn(() => this.#end(keep))
  }

  /** Runs a state change that another process requested. */
  #forOther<T>(work: () => Promise<T>): Promise<T> {
    const ring = (): void => [this.recheck, ...this.#waiting].forEach((bell) => bell.ring())
    return this.#inTurn(() => work().finally(ring))
  }

  async #close(only?: DataPaths): Promise<void> {
    if (this.#state.is !== 'forwarding' || (only && this.#state.dataPath !== only)) return
    const { dataPath } = this.#state
    this.#state = { is: 'closed' }
    await dataPath.close()
  }

  async #lend(): Promise<readonly OpenPath[]> {
    if (this.#state.is !== 'forwarding') return []
    const { dataPath } = this.#state
    const { handover } = dataPath
    if (!handover?.isLendable) return []
    this.#state = { is: 'lent', dataPath, paths: [] } // from here on no loop repairs the data path
    try {
      const paths = await handover.leave()
      // If the list of paths is empty, the data path has died, and its `fault` reports the reason.
      this.#state = paths.length > 0 ? { is: 'lent', dataPath, paths } : { is: 'forwarding', dataPath }
      return paths
    } catch (error) {
      // The data path has stopped and cannot be handed over, so the loop in loops/data-path.ts opens a new data path.
      this.#log.error(`The data path cannot be handed over: ${describeError(error)}`)
      await dataPath.close().catch(() => {})
      this.#state = { is: 'closed' }
      return []
    }
  }

  async #release(): Promise<void> {
    const before = this.#state
    if (before.is === 'ended') return
    this.#state = { is: 'released' }
    try {
      if (before.is === 'lent') return closeAll(fdsOf(before.paths))
      if (before.is !== 'forwarding') return
      const { dataPath } = before
      if (!dataPath.handover) return await dataPath.close()
      closeAll(fdsOf(await dataPath.handover.leave()))
    } catch (error) {
      // Only log the failure, because this process must be able to continue. If the cause persists, opening the next
      // data path fails too, and that failure is reported.
      this.#log.error(`Cannot close the data path: ${describeError(error)}`)
      // If one of several paths could not be stopped, the remaining paths still have descriptors, which would block the
      // successor's ports.
      if (before.is === 'forwarding' && before.dataPath.handover) await before.dataPath.close().catch(() => {})
    }
  }

  async #takeBack(): Promise<void> {
    if (this.#state.is === 'released') return void (this.#state = { is: 'closed' })
    if (this.#state.is !== 'lent') return
    const { dataPath } = this.#state
    await dataPath.handover?.takeBack()
    this.#state = { is: 'forwarding', dataPath }
  }

  async #end(keep: (paths: readonly OpenPath[]) => Promise<void>): Promise<void> {
    try {
      // Close the descriptors in this process. The successor has copies of them. This process may run for a while, and
      // its descriptors would block the device and the port.
      if (this.#state.is === 'lent') return closeAll(fdsOf(this.#state.paths))
      if (this.#state.is !== 'forwarding') return
      const { dataPath } = this.#state
      if (!dataPath.handover) return await dataPath.close()
      await keep(await dataPath.handover.leave())
    } finally {
      this.#state = { is: 'ended' }
    }
  }
}
