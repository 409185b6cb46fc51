// in-turn.ts - a data path that does one thing after another, in the order in which it was asked.

import { createTurn } from '../host/turn.ts'
import type { DataPath } from './contract.ts'

/**
 * Makes a data path that changes the kernel by many commands do one thing after another: who sets peers, who looks for
 * what is missing and who lends it know nothing of each other. Otherwise an older view could be set last, what is just
 * being set would be found missing, and what is being lent closed.
 */
export function inTurn(dataPath: DataPath): DataPath {
  const next = createTurn()
  /** True when it does not have all peers: then nobody knows which. */
  let isUnapplied = false
  return {
    ...dataPath,
    get isOutdated() {
      return dataPath.isOutdated === true
    },
    ...(dataPath.renew ? { renew: (attrs) => next(async () => dataPath.renew?.(attrs)) } : {}),
    apply: (leases, ownKey, touched) =>
      next(async () => {
        try {
          await dataPath.apply(leases, ownKey, touched)
          isUnapplied = false
        } catch (error) {
          isUnapplied = true
          throw error
        }
      }),
    peers: () => (isUnapplied ? [] : dataPath.peers()),
    resync: (late) => next(() => dataPath.resync(late)),
    ...(dataPath.leave ? { leave: () => next(async () => (await dataPath.leave?.()) ?? []) } : {}),
    ...(dataPath.takeBack ? { takeBack: () => next(async () => dataPath.takeBack?.()) } : {}),
    close: () => next(() => dataPath.close()),
  }
}
