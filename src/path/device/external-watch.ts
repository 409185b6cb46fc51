// external-watch.ts - checks if the external interface has changed since a data path was opened on it.

import type { Run } from '../../host/command.ts'
import {
  addressChange,
  changeOf,
  nameChange,
  seeExternal,
  type ExternalInterface,
} from '../../host/external-interface.ts'
import { FAMILIES, onlyOf, type ByFamily, type Family } from '../../net/address.ts'

export interface ExternalWatch {
  /** Resolves with an Error that describes the change of the external interface; pending while there is none. */
  readonly moved: Promise<Error>
  /**
   * Checks the external interface. Returns true if the data path must be opened again, because its sockets, routes, MTU and lease match the
   * interface's earlier state.
   */
  hasMoved(): Promise<boolean>
  /**
   * Returns the families whose address is missing from the external interface as of the last `hasMoved`, each with the reason
   * (DataPath.gone).
   */
  readonly gone: () => ByFamily<string>
  /**
   * Describes a changed address in a family that the data path does not use, which must be published to the peers; undefined if there is
   * none.
   */
  readonly news: string | undefined
  /** Returns the external interface as of the last `hasMoved`. */
  now(): ExternalInterface
  /** Records that the state of the last `hasMoved` was published to the peers, so that `news` is undefined until the next change. */
  markPublished(): void
}

/**
 * Watches the external interface's addresses in `families` only, because the data path uses no others. A renaming counts as a change if
 * `isByName`, that is, if the caller made a route or device that refers to the interface by its name.
 */
export function watchExternal(
  run: Run,
  external: ExternalInterface,
  families: readonly Family[] = FAMILIES,
  isByName = false,
): ExternalWatch {
  let resolveMoved!: (reason: Error) => void
  let gone: ByFamily<string> = {}
  const others = FAMILIES.filter((family) => !families.includes(family))
  /** The external interface as of the last `hasMoved`, and as it was last published to the peers. */
  let [last, published] = [external, external]
  const moved = new Promise<Error>((resolve) => (resolveMoved = resolve))
  return {
    moved,
    async hasMoved() {
      const seen = await seeExternal(run, external)
      gone = onlyOf(families, seen.gone)
      last = seen.now
      const renamed = isByName ? nameChange(external, seen.now) : undefined
      const change = changeOf(external, seen.now, families) ?? renamed
      if (change === undefined) return false
      resolveMoved(new Error(change))
      return true
    },
    gone: () => gone,
    get news() {
      return others.map((family) => addressChange(published, last, family)).find((change) => change !== undefined)
    },
    now: () => last,
    markPublished: () => void (published = last),
  }
}
