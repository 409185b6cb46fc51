// in-turn.ts - serialises the operations of a data path.

import { createTurn } from '../host/turn.ts'
import type { DataPath } from './contract.ts'

/**
 * Makes the operations of a data path run one after another, in the order of the calls. Their callers (setting peers,
 * repairing, lending) do not know of each other. Overlapping operations could set an older list of peers last, report
 * as missing what is just being set, or close what is being lent.
 */
export function inTurn(dataPath: DataPath): DataPath {
  const next = createTurn()
  /** True if the last `apply` failed, so that it is not known which peers are set. */
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
