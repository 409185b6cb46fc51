// external-watch.ts - whether the external interface is still what a data path was made for.

import type { Run } from '../../host/command.ts'
import { changeOf, seeExternal, type ExternalInterface } from '../../host/external-interface.ts'
import { FAMILIES, onlyOf, type ByFamily, type Family } from '../../net/address.ts'

export interface ExternalWatch {
  /** Resolves with what changed, once that was seen; stays pending otherwise. */
  readonly moved: Promise<Error>
  /** Looks. True when the data path has to be opened again: its sockets, routes, sizes and lease are made for what was. */
  hasMoved(): Promise<boolean>
  /** As a data path's, by the last look. */
  readonly gone: () => ByFamily<string>
}

/** Of these families: nothing is made for another one's address. */
export function watchExternal(
  run: Run,
  external: ExternalInterface,
  families: readonly Family[] = FAMILIES,
): ExternalWatch {
  let tell!: (reason: Error) => void
  let gone: ByFamily<string> = {}
  const moved = new Promise<Error>((resolve) => (tell = resolve))
  return {
    moved,
    async hasMoved() {
      const seen = await seeExternal(run, external)
      gone = onlyOf(families, seen.gone)
      const change = changeOf(external, seen.now, families)
      if (change === undefined) return false
      tell(new Error(change))
      return true
    },
    gone: () => gone,
  }
}
