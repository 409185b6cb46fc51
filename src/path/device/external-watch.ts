// external-watch.ts - checks whether the external interface is still the one for which a data path was opened.

import type { Run } from '../../host/command.ts'
import {
  addressChange,
  changeOf,
  nameChange,
  seeExternal,
  type ExternalInterface,
} from '../../host/external-interface.ts'
import { FAMILIES, onlyOf, type ByFamily, type Family } from '../../net/address.ts'

interface ExternalWatch {
  /** Resolves with the change when one is found; pending until then. */
  readonly moved: Promise<Error>
  /** Checks the interface. True if the data path must be reopened, because its sockets, routes, MTU and lease are for the earlier state. */
  hasMoved(): Promise<boolean>
  /** Returns the families whose address is missing from the interface, as of the last check, each with the reason (DataPath.gone). */
  readonly gone: () => ByFamily<string>
  /** A changed address of a family that the data path does not use. Peers must learn it; undefined if there is none. */
  readonly news: string | undefined
  /** Returns the interface as of the last check. */
  now(): ExternalInterface
  /** Marks the state of the last check as published to the peers. */
  markPublished(): void
}

/**
 * Watches the addresses of these families only, because no other address is in use. A rename counts as a change if `isByName`, that is, if
 * the caller made something by the name of the interface.
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
  /** The state as of the last check, and the state that peers know. */
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
