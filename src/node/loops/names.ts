// names.ts - keeps the names of the other hosts: what each wrote beside its lease, under its public IP (duplicate-node.ts).
//
// Where the source of the leases tells a node's name with its lease, as Kubernetes does, nothing is asked. A flanneld writes no name.

import { isWeftError } from '../../base/errors.ts'
import { hostNameIn } from '../../control/lease/host-name.ts'
import { pause } from '../../host/bell.ts'
import type { Node } from '../node.ts'

/** Between two looks, and for each name besides: the store of very many nodes has other work. */
const LOOK_MS = 60_000
const LOOK_MS_A_NAME = 3
/** A host that is new writes its name when it has its lease. */
const NEW_MS = 2_000
/** All is asked for this often where else only news are: what has gone is not among them. */
const WHOLE_MS = 3_600_000

export async function keepNames(node: Node): Promise<never> {
  const { manager, signal } = node
  let since: bigint | undefined
  let wholeAt = 0
  for (;;) {
    try {
      if (performance.now() - wholeAt >= WHOLE_MS) since = undefined
      const found = await manager.claims?.(since, signal)
      // A store that was restored has gone back: what it had before is not known.
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
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error // the loop that follows the store reports its failures
    }
    const many = node.names.size * LOOK_MS_A_NAME
    // The random factor is for nodes that started together.
    const isNew = await node.newcomers.wait(signal, (LOOK_MS + many) * (0.5 + Math.random() / 2))
    if (isNew) await pause(signal, (NEW_MS + many) * (0.5 + Math.random() / 2))
  }
}
