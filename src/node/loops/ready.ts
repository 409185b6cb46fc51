// ready.ts - keeps the subnet manager told that this node is in the network.

import { describeError, isWeftError } from '../../base/errors.ts'
import { seldom } from '../../base/log.ts'
import { pause } from '../../host/bell.ts'
import { RESYNC_MS, type Node } from '../node.ts'

/** flanneld says it once, at its start, whether it is heard or not. */
export async function keepReady(node: Node): Promise<never> {
  const { manager, signal } = node
  const calm = seldom(node.log)
  for (;;) {
    try {
      if (node.isReady) await manager.ready?.(signal)
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error
      calm.error(`Cannot tell Kubernetes that the network of this node is up: ${describeError(error)}`)
    }
    await pause(signal, RESYNC_MS)
  }
}
