// config.ts - compares the network configuration in the store with the one in use, and logs a difference.

import { isDeepStrictEqual } from 'node:util'
import { describeError, isWeftError } from '../../base/errors.ts'
import { withoutSecrets } from '../../control/config/hidden.ts'
import { parseNetworkConfig } from '../../control/config/network-config.ts'
import type { Node } from '../node.ts'

const COMPARE_MS = 60_000
/** The interval of the checks while the configuration is missing. */
const GONE_MS = 5_000

/**
 * A node uses the configuration that it started with, as flanneld does. Logs when the store gets another one, or has none, because then no
 * weftd can start.
 */
export async function watchConfig(node: Node): Promise<never> {
  const { manager, config, log, signal } = node
  const areGiven = manager.givesSubnets
  let named: string | undefined
  // The first check is at a random time, so that nodes which started together do not query the store together.
  for (let waitMs = Math.random() * COMPARE_MS; ; waitMs = node.isConfigGone ? GONE_MS : COMPARE_MS) {
    await node.configDoubt.wait(signal, waitMs)
    try {
      const text = await manager.config(signal)
      if (node.isConfigGone) log.info('The network configuration is in the store again')
      node.isConfigGone = false
      if (text === named) continue
      const isOurs = isDeepStrictEqual(parseNetworkConfig(text, { areGiven }), config)
      if (!isOurs)
        log.warn(`The network configuration changed, and takes effect when weftd restarts: ${withoutSecrets(text)}`)
      else if (node.isConfigOther) log.info('The network configuration is that of this node again')
      node.isConfigOther = !isOurs
      named = isOurs ? undefined : text
    } catch (error) {
      signal.throwIfAborted()
      if (isWeftError(error, 'CONFIG_MISSING')) {
        if (!node.isConfigGone)
          log.error(
            `The network configuration is gone; this node continues, but no weftd can start: ${describeError(error)}`,
          )
        node.isConfigGone = true
        node.isConfigOther = false
        named = undefined
      } else if (!isWeftError(error)) throw error // an unreachable store comes back, and a weftd that starts logs what is wrong with the configuration
    }
  }
}
