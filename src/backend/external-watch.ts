// external-watch.ts - whether the external interface is still what a data path was made for.

import type { Run } from '../host/command.ts'
import { changeOf, currentExternal, type ExternalInterface } from '../host/external-interface.ts'

export interface ExternalWatch {
  /** Resolves with what changed, once that was seen; stays pending otherwise. */
  readonly moved: Promise<Error>
  /** Looks. True when the data path has to be opened again: its sockets, routes, sizes and lease are made for what was. */
  hasMoved(): Promise<boolean>
}

export function watchExternal(run: Run, external: ExternalInterface): ExternalWatch {
  let tell!: (reason: Error) => void
  const moved = new Promise<Error>((resolve) => (tell = resolve))
  return {
    moved,
    async hasMoved() {
      const change = changeOf(external, await currentExternal(run, external))
      if (change === undefined) return false
      tell(new Error(change))
      return true
    },
  }
}
