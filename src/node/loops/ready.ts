// ready.ts - the loop that reports to the subnet manager that this node is in the network.

import { describeError } from '../../base/errors.ts'
import { seldom } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { throwUnlessWaiting } from '../exit-or-wait.ts'
import { RESYNC_MS, type Node } from '../node.ts'

/**
 * Reports repeatedly that the node is ready. flanneld reports once, at its start, and does not check whether the report
 * succeeded.
 */
export async function keepReady(node: Node): Promise<never> {
  const { manager, signal } = node
  const calm = seldom(node.log)
  for (;;) {
    try {
      if (node.isReady) await manager.ready?.(signal)
    } catch (error) {
      throwUnlessWaiting(error, signal)
      calm.error(`Cannot report to Kubernetes that the network of this node is up: ${describeError(error)}`)
    }
    await pause(signal, RESYNC_MS)
  }
}
