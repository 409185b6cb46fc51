// in-turn.ts - a data path that does one thing after another, in the order in which it was asked.

import { createTurn } from '../host/turn.ts'
import type { DataPath } from './backend.ts'

/**
 * For data paths that change the kernel by many commands: who sets peers, who looks for what is missing and who lends it know nothing
 * of each other. Else an older view could be set last, what is just being set would be found missing, and what is being lent closed.
 */
export function inTurn(dataPath: DataPath): DataPath {
  const next = createTurn()
  return {
    ...dataPath,
    apply: (leases, ownKey, touched) => next(() => dataPath.apply(leases, ownKey, touched)),
    resync: () => next(() => dataPath.resync()),
    ...(dataPath.leave ? { leave: () => next(async () => dataPath.leave?.()) } : {}),
    ...(dataPath.takeBack ? { takeBack: () => next(async () => dataPath.takeBack?.()) } : {}),
    close: () => next(() => dataPath.close()),
  }
}
