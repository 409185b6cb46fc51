// names.ts - reads the names of the other hosts. Each weftd writes its name next to its lease, under its public IP
// (duplicate-node.ts).
//
// In Kubernetes the names come with the leases, so this loop has no work there. flanneld writes no name.

import { hostNameIn } from '../../control/lease/host-name.ts'
import { pause } from '../../host/bell.ts'
import { throwUnlessWaiting } from '../exit-or-wait.ts'
import type { Node } from '../node.ts'

/**
 * LOOK_MS is the interval of the queries in ms. LOOK_MS_A_NAME is added for each name, so that many nodes do not
 * overload the store.
 */
const LOOK_MS = 60_000
const LOOK_MS_A_NAME = 3
/**
 * The time in ms between the appearance of a new lease and the query for the name of its host, which that host writes
 * after its lease.
 */
const NEW_MS = 2_000
/**
 * The interval in ms at which all names are read. Between these reads weftd reads only changes, which do not include
 * deletions.
 */
const WHOLE_MS = 3_600_000

export async function keepNames(node: Node): Promise<never> {
  const { manager, signal } = node
  let since: bigint | undefined
  let wholeAt = 0
  for (;;) {
    try {
      if (performance.now() - wholeAt >= WHOLE_MS) since = undefined
      const found = await manager.claims?.(since, signal)
      // A restored store has a smaller revision, so read all names again.
      if (found && since !== undefined && found.revision < since) {
        since = undefined
        continue
      }
      if (found) {
        if (found.isWhole) {
          wholeAt = performance.now()
          node.names.clear()
        }
        for (const [address, claim] of found.values) {
          const name = hostNameIn(claim)
          if (name === undefined) node.names.delete(address)
          else node.names.set(address, name)
        }
        since = found.revision
      }
    } catch (error) {
      throwUnlessWaiting(error, signal) // the loop that follows the store reports its failures
    }
    const many = node.names.size * LOOK_MS_A_NAME
    // The random factor keeps nodes that started together from querying the store together.
    const isNew = await node.newcomers.wait(signal, (LOOK_MS + many) * (0.5 + Math.random() / 2))
    if (isNew) await pause(signal, (NEW_MS + many) * (0.5 + Math.random() / 2))
  }
}
