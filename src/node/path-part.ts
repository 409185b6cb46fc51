// path-part.ts - one planned data path of a node: the open path, the peers that it lacks, and its running check.

import { prefixed } from '../base/errors.ts'
import type { Lease } from '../control/lease/lease.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import { FAMILY_NAMES, type Family } from '../net/address.ts'
import type { DataPath, PlannedPath } from '../path/contract.ts'

/** The leases that a data path must have as peers, and the key of this node's own lease. */
export interface Applied {
  readonly leases: ReadonlyMap<string, Lease>
  readonly ownKey: string
}

/** A started piece of work; `result` is set when the promise `done` resolves. */
export interface Work<T> {
  readonly done: Promise<void>
  result?: PromiseSettledResult<T>
}

export class PathPart {
  readonly plan: PlannedPath
  /** The families of the plan in which the node has a subnet. */
  readonly families: readonly Family[]
  /** The text before error messages and names of threads; empty if the node has only one data path. */
  readonly prefix: string
  /** The open data path, even if it has failed and is not closed yet; undefined if there is none. */
  path: DataPath | undefined
  /** The external interface for which `path` was opened. */
  external: ExternalInterface | undefined
  /** Why the families are not carried; undefined if they are. */
  lacking: string | undefined
  /** The number of entries that this path has in the list `next` of `drops`. */
  places = 0
  #check: Work<readonly string[]> | undefined
  #transfer: Promise<void> | undefined
  /** The lease keys that may differ from the last transfer; `all` if every key may, undefined if the path has all peers. */
  #pending: ReadonlySet<string> | 'all' | undefined

  constructor(plan: PlannedPath, families: readonly Family[], isOnly: boolean) {
    this.plan = plan
    this.families = families
    this.prefix = isOnly ? '' : `${this.name}: `
  }

  get name(): string {
    return this.families.map((family) => FAMILY_NAMES[family]).join(' and ')
  }

  /** The open data path if it has not failed. */
  get carried(): DataPath | undefined {
    return this.lacking === undefined ? this.path : undefined
  }

  /** True while the path lacks applied peers, because it is slow or failed. */
  get isBehind(): boolean {
    return this.#transfer !== undefined || this.#pending !== undefined
  }

  /** Forgets the closed path. */
  clear(): void {
    this.path = undefined
    this.#check = undefined
    this.#transfer = undefined
    this.#pending = undefined
  }

  /**
   * Gives the applied peers to the path. `wanted` returns the peers of the last `apply`. If this is called again while a transfer runs,
   * another transfer follows it.
   */
  transfer(wanted: () => Applied | undefined, touched: ReadonlySet<string> | undefined): Work<void> {
    const pending = this.#pending ?? new Set<string>()
    this.#pending = touched && pending !== 'all' ? new Set([...pending, ...touched]) : 'all'
    return begin(prefixed(this.prefix, (this.#transfer ??= this.#transferAll(wanted))))
  }

  async #transferAll(wanted: () => Applied | undefined): Promise<void> {
    const { path } = this
    try {
      for (let pending = this.#pending; pending !== undefined; pending = this.#pending) {
        this.#pending = undefined
        const applied = wanted()
        const touched = pending === 'all' ? undefined : pending
        if (applied) await path?.apply(applied.leases, applied.ownKey, touched)
      }
    } catch (error) {
      if (this.path === path) this.#pending = 'all' // it is not known which peers the path has
      throw error
    } finally {
      if (this.path === path) this.#transfer = undefined
    }
  }

  /** Starts a check of the path, or returns the one whose result `takeCheck` has not returned yet. */
  check(path: DataPath, late: Promise<unknown> | undefined): Work<readonly string[]> {
    return (this.#check ??= begin(prefixed(this.prefix, path.resync(late))))
  }

  /** Returns the result of the check, once; undefined while it runs. */
  takeCheck(): PromiseSettledResult<readonly string[]> | undefined {
    const result = this.#check?.result
    if (result) this.#check = undefined
    return result
  }

  /** The check and the transfer that are running. */
  running(): readonly Promise<unknown>[] {
    const check = this.#check && !this.#check.result ? [this.#check.done] : []
    return this.#transfer ? [...check, this.#transfer] : check
  }
}

export function begin<T>(work: Promise<T>): Work<T> {
  const running: Work<T> = { done: Promise.allSettled([work]).then(([result]) => void (running.result = result)) }
  return running
}

/** Waits until all works are done. After `late` has resolved, it waits only until one work is done. */
export async function untilLate(works: readonly Work<unknown>[], late: Promise<unknown> | undefined): Promise<void> {
  const all = Promise.all(works.map(({ done }) => done))
  const one = Promise.race(works.map(({ done }) => done))
  await (late ? Promise.race([all, Promise.all([one, late])]) : all)
}
