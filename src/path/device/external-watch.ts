// external-watch.ts - checks if the external interface has changed since a data path was opened on it.

import type { Log } from '../../base/log.ts'
import type { Run } from '../../host/command.ts'
import { addressChange, changeOf, seeExternal, type ExternalInterface } from '../../host/external-interface.ts'
import { FAMILIES, onlyOf, type ByFamily, type Family } from '../../net/address.ts'

/**
 * Watches the external interface's addresses in the families of a data path, because the data path uses no others. A new name of the
 * interface does not harm the data path, whose sockets, routes and devices refer to the interface by its index or its address.
 */
export class ExternalWatch {
  /** Resolves with an Error that describes the change of the external interface; pending while there is none. */
  readonly moved: Promise<Error>
  #resolveMoved!: (reason: Error) => void
  readonly #run: Run
  /** The external interface when the data path was opened. */
  readonly #opened: ExternalInterface
  readonly #families: readonly Family[]
  /** The external interface as of the last `hasMoved`. */
  #last: ExternalInterface
  /** The external interface as the node last published it to the peers. */
  #published: ExternalInterface
  #gone: ByFamily<string> = {}

  constructor(run: Run, external: ExternalInterface, families: readonly Family[] = FAMILIES) {
    this.moved = new Promise<Error>((resolve) => (this.#resolveMoved = resolve))
    this.#run = run
    this.#opened = external
    this.#families = families
    this.#last = external
    this.#published = external
  }

  /**
   * Checks the external interface. Returns true if the data path must be opened again, because its sockets, routes, MTU and lease match the
   * interface's earlier state.
   */
  async hasMoved(): Promise<boolean> {
    const { now, gone } = await seeExternal(this.#run, {
      ...this.#opened,
      name: this.#last.name,
      index: this.#last.index,
    })
    this.#gone = onlyOf(this.#families, gone)
    this.#last = now
    const change = changeOf(this.#opened, now, this.#families)
    if (change === undefined) return false
    this.#resolveMoved(new Error(change))
    return true
  }

  /**
   * Returns the families whose address is missing from the external interface as of the last `hasMoved`, each with the reason
   * (DataPath.gone).
   */
  gone(): ByFamily<string> {
    return this.#gone
  }

  /**
   * True if the node must prepare the backend again (DataPath.isOutdated), because the external interface has another name, or another
   * address in a family that the data path does not use.
   */
  get isOutdated(): boolean {
    return this.#last.name !== this.#published.name || this.#news !== undefined
  }

  /** Describes a changed address in a family that the data path does not use; undefined if there is none. */
  get #news(): string | undefined {
    return FAMILIES.filter((family) => !this.#families.includes(family))
      .map((family) => addressChange(this.#published, this.#last, family))
      .find((change) => change !== undefined)
  }

  /** Returns the external interface as of the last `hasMoved`. */
  now(): ExternalInterface {
    return this.#last
  }

  /** Records that the node published the state of the last `hasMoved` to the peers, and logs a changed address. */
  markPublished(log: Pick<Log, 'info'>): void {
    if (this.#news !== undefined) log.info(`Publishing a change to the peers: ${this.#news}`)
    this.#published = this.#last
  }
}
