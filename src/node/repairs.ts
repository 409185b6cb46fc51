// repairs.ts - counts the repairs that weftd makes, and logs them.

import type { Log } from '../base/log.ts'

const LOGGED_A_MINUTE = 6

export interface RepairLog {
  add(repaired: string): void
  lastMinute(): number
}

/**
 * Creates a log of repairs, which also adds each repair to `total`, the number of repairs of all loops. If there are
 * many repairs, it logs only some of them, so that a conflict with another program does not fill the disk.
 */
export function createRepairLog(total: { repaired: number }, log: Log): RepairLog {
  let repairs: number[] = []
  const lastMinute = (): number => {
    repairs = repairs.filter((at) => performance.now() - at < 60_000)
    return repairs.length
  }
  const add = (repaired: string): void => {
    repairs.push(performance.now())
    total.repaired++
    const times = lastMinute()
    if (times <= LOGGED_A_MINUTE) log.warn(`Repaired: ${repaired} (repair ${total.repaired} since the start)`)
    if (times === LOGGED_A_MINUTE + 1)
      log.warn(
        `Repaired: ${repaired}. That is ${times} repairs in a minute, and no more are logged: another program may be undoing them`,
      )
  }
  return { add, lastMinute }
}
