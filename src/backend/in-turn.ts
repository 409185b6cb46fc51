// in-turn.ts - a data path that does one thing after another, in the order in which it was asked.

import type { DataPath } from './backend.ts'

/**
 * For data paths that change the kernel by many commands: who sets peers and who looks for what is missing know nothing of each
 * other. Else an older view could be set last, and what is just being set would be found missing.
 */
export function inTurn(dataPath: DataPath): DataPath {
  let last: Promise<unknown> = Promise.resolve()
  function next<T>(work: () => Promise<T>): Promise<T> {
    const done = last.then(work)
    last = done.catch(() => {})
    return done
  }
  return {
    ...dataPath,
    apply: (leases, ownKey) => next(() => dataPath.apply(leases, ownKey)),
    resync: () => next(() => dataPath.resync()),
    close: () => next(() => dataPath.close()),
  }
}
