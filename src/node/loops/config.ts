// config.ts - reads the network configuration at the start, and later logs when the configuration in the store has
// changed.

import { isDeepStrictEqual } from 'node:util'
import { describeError, isWeftError } from '../../base/errors.ts'
import { checkedConfig } from '../../control/config/check.ts'
import { withoutSecrets } from '../../control/config/hidden.ts'
import { unknownKeys } from '../../control/config/keys.ts'
import { parseNetworkConfig, requireFamily, type NetworkConfig } from '../../control/config/network-config.ts'
import type { SubnetManager } from '../../control/lease/subnet-manager.ts'
import { throwUnlessWaiting, waitFor, type Waiter } from '../exit-or-wait.ts'
import type { Node } from '../node.ts'

const COMPARE_MS = 60_000
/** The interval, in ms, of the checks while no weftd can start with the configuration in the store. */
const PROBLEM_MS = 5_000

interface FoundConfig {
  readonly config: NetworkConfig
  /** The text from which the configuration was parsed, without its secrets. */
  readonly configText: string
}

/**
 * Reads the configuration every second until it is valid, as flanneld does. Throws WeftError CONFIG if the
 * configuration has no network.
 */
export async function findConfig(manager: SubnetManager, waiter: Waiter): Promise<FoundConfig> {
  const { log, signal } = waiter
  let named: string | undefined
  const find = async (): Promise<FoundConfig> => {
    const configText = await manager.config(signal)
    // weftd ignores unknown keys in the network configuration, as flanneld does, but logs them.
    if (configText !== named) for (const unknown of unknownKeys(configText)) log.warn(`Without effect: ${unknown}`)
    named = configText
    const config = parseNetworkConfig(configText, { areGiven: manager.givesSubnets })
    log.info(`Found network config - Backend type: ${config.backendType}`)
    return { config, configText: withoutSecrets(configText) }
  }
  const name = `the network configuration in the ${manager.name} store`
  const passing = ['CONFIG', 'CONFIG_MISSING', 'STORE_UNAVAILABLE'] as const
  const found = await waitFor(name, { failure: "Couldn't fetch network config: ", find, passing }, waiter)
  requireFamily(found.config)
  return found
}

const GONE = { what: 'the network configuration is gone from the store' }
const UNUSABLE = 'no weftd can start with the network configuration in the store'

/**
 * Logs when the network configuration in the store differs from the configuration with which this node started. Like
 * flanneld, the node continues to use the configuration with which it started. Also logs when the store has no
 * configuration, or an invalid configuration, because no weftd can start then.
 */
export async function watchConfig(node: Node): Promise<never> {
  const { manager, log, signal } = node
  let compared: string | undefined
  // Make the first check at a random time, so that nodes which started simultaneously do not query the store
  // simultaneously.
  for (let waitMs = Math.random() * COMPARE_MS; ; waitMs = node.configProblem ? PROBLEM_MS : COMPARE_MS) {
    await node.configDoubt.wait(signal, waitMs)
    try {
      const text = await manager.config(signal)
      if (node.configProblem === GONE) {
        log.info('The network configuration is in the store again')
        node.configProblem = undefined
      }
      if (text !== compared) compare(node, text)
      compared = text
    } catch (error) {
      throwUnlessWaiting(error, signal) // if the store does not answer, the next round tries again
      if (isWeftError(error, 'CONFIG_MISSING')) {
        if (node.configProblem !== GONE)
          log.error(
            `The network configuration is gone; this node continues, but no weftd can start: ${describeError(error)}`,
          )
        node.configProblem = GONE
        node.isConfigOther = false
        compared = undefined
      }
    }
  }
}

/** Compares the text of the configuration in the store with the configuration with which this node started. */
function compare(node: Node, text: string): void {
  const { manager, config, log } = node
  try {
    const isOurs = isDeepStrictEqual(checkedConfig(text, { warn: () => {} }, manager.givesSubnets), config)
    if (!isOurs)
      log.warn(`The network configuration changed, and takes effect when weftd restarts: ${withoutSecrets(text)}`)
    else if (node.isConfigOther) log.info('The network configuration is that of this node again')
    node.isConfigOther = !isOurs
    node.configProblem = undefined
  } catch (error) {
    if (!isWeftError(error, 'CONFIG')) throw error
    log.error(
      `The network configuration in the store is invalid; this node continues, but no weftd can start: ${describeError(error)}`,
    )
    node.isConfigOther = true
    node.configProblem = { what: UNUSABLE, why: error.message }
  }
}
