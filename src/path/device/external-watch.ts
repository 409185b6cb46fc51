// external-watch.ts - whether the external interface is still what a data path was made for.

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
  /** Resolves with what changed, once that was seen; stays pending otherwise. */
  readonly moved: Promise<Error>
  /** Looks. True when the data path has to be opened again: its sockets, routes, sizes and lease are made for what was. */
  hasMoved(): Promise<boolean>
  /** As a data path's, by the last look. */
  readonly gone: () => ByFamily<string>
  /** What peers are to be told: the address of another family is another one, by which nothing is open. Undefined when there is nothing. */
  readonly news: string | undefined
  /** As of the last look. */
  now(): ExternalInterface
  /** Peers are told of it, as of the last look. */
  told(): void
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
  let tell!: (reason: Error) => void
  let gone: ByFamily<string> = {}
  const others = FAMILIES.filter((family) => !families.includes(family))
  /** By the last look, and by which peers know this node. */
  let [last, published] = [external, external]
  const moved = new Promise<Error>((resolve) => (tell = resolve))
  return {
    moved,
    async hasMoved() {
      const seen = await seeExternal(run, external)
      gone = onlyOf(families, seen.gone)
      last = seen.now
      const renamed = isByName ? nameChange(external, seen.now) : undefined
      const change = changeOf(external, seen.now, families) ?? renamed
      if (change === undefined) return false
      tell(new Error(change))
      return true
    },
    gone: () => gone,
    get news() {
      return others.map((family) => addressChange(published, last, family)).find((change) => change !== undefined)
    },
    now: () => last,
    told: () => void (published = last),
  }
}
