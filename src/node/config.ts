// config.ts - keeps an eye on the network configuration: one that is no longer the one in use is named.

import { isDeepStrictEqual } from 'node:util'
import { withoutSecrets } from '../config/hidden.ts'
import { parseNetworkConfig } from '../config/network-config.ts'
import { isWeftError } from '../errors.ts'
import { pause } from '../host/bell.ts'
import type { Node } from './node.ts'

const COMPARE_MS = 60_000

/** A node works by the configuration that it started with, as flanneld does; here the log says so when another one is put. */
export async function watchConfig({ manager, config, log, signal }: Node): Promise<never> {
  const areGiven = manager.givesSubnets
  let named: string | undefined
  // The first somewhere in the minute: nodes that started together are not to ask together for ever.
  for (let waitMs = Math.random() * COMPARE_MS; ; waitMs = COMPARE_MS) {
    await pause(signal, waitMs)
    try {
      const text = await manager.config(signal)
      if (text === named) continue
      const isOurs = isDeepStrictEqual(parseNetworkConfig(text, { areGiven }), config)
      if (!isOurs)
        log.warn(`The network configuration changed, and takes effect when weftd restarts: ${withoutSecrets(text)}`)
      named = isOurs ? undefined : text
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error)) throw error // a store that is away comes back, and a broken text is named by whoever starts
    }
  }
}
