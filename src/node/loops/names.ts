// names.ts - the loop that reads the names of the peers' hosts from the store. Each weftd writes its host's name next
// to its lease, under its public IP (duplicate-node.ts).
//
// In Kubernetes the names come with the leases, so this loop does nothing in Kubernetes. flanneld writes no name.

import { hostNameIn } from '../../control/lease/host-name.ts'
import { pause } from '../../host/bell.ts'
import { throwUnlessWaiting } from '../exit-or-wait.ts'
import type { Node } from '../node.ts'

/**
 * The interval of the queries in ms; LOOK_MS_A_NAME is added for each name, so that many nodes do not overload the
 * store.
 */
const LOOK_MS = 60_000
const LOOK_MS_A_NAME = 3
/**
 * The time in ms between the appearance of a new lease and the query for the name of its host. The host writes its name
 * after its lease.
 */
const NEW_MS = 2_000
/**
 * The interval in ms at which weftd reads all names. Between these reads weftd reads only the names that were written
 * since the last read, and does not notice deletions.
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
      // A smaller revision shows that the store was restored, so read all names again.
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
    // The pause is random, so that nodes that started simultaneously do not query the store simultaneously.
    const isNew = await node.newcomers.wait(signal, (LOOK_MS + many) * (0.5 + Math.random() / 2))
    if (isNew) await pause(signal, (NEW_MS + many) * (0.5 + Math.random() / 2))
  }
}
