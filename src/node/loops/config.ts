// config.ts - keeps an eye on the network configuration: one that is no longer the one in use is named.

import { isDeepStrictEqual } from 'node:util'
import { describeError, isWeftError } from '../../base/errors.ts'
import { withoutSecrets } from '../../control/config/hidden.ts'
import { parseNetworkConfig } from '../../control/config/network-config.ts'
import type { Node } from '../node.ts'

const COMPARE_MS = 60_000
/** One that is gone is looked for this often. */
const GONE_MS = 5_000

/**
 * A node works by the configuration that it started with, as flanneld does; here the log says so when another one is put, and when there is
 * none: no weftd could start then.
 */
export async function watchConfig(node: Node): Promise<never> {
  const { manager, config, log, signal } = node
  const areGiven = manager.givesSubnets
  let named: string | undefined
  // The first somewhere in the minute: nodes that started together are not to ask together for ever.
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
          log.error(`The network configuration is gone; this node goes on, and none can start: ${describeError(error)}`)
        node.isConfigGone = true
        node.isConfigOther = false
        named = undefined
      } else if (!isWeftError(error)) throw error // a store that is away comes back, and a broken text is named by whoever starts
    }
  }
}
