// in-turn.ts - runs the operations of a data path one after another.

import { createTurn } from '../host/turn.ts'
import type { DataPath } from './contract.ts'

/**
 * Runs the operations of a data path one after another, in the order of the calls. The callers, which set peers, repair objects or pass on
 * descriptors, do not coordinate. Without this order an older list of peers could be set last, a repair could report objects as missing
 * while they are being created, and `close` could close descriptors that are being passed on.
 */
export function inTurn(dataPath: DataPath): DataPath {
  const next = createTurn()
  /** True if the last `apply` failed, so that it is unknown which peers are set. `peers` then lists none. */
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
