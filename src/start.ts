// start.ts - what a daemon waits for before it is a node: the network configuration and the external interface.

import { parseNetworkConfig, type NetworkConfig } from './config/network-config.ts'
import { describeError, isWeftError } from './errors.ts'
import { pause, type Bell } from './host/bell.ts'
import { run } from './host/command.ts'
import { chooseExternalInterface, type ExternalInterface, type InterfaceWishes } from './host/external-interface.ts'
import type { SubnetManager } from './lease/subnet-manager.ts'
import { seldom, type Log } from './log.ts'
import type { DaemonOptions } from './options.ts'

const CONFIG_RETRY_MS = 1_000
/** How often the host is looked at though it reports nothing. */
const LOOK_MS = 5_000
/** What the kernel reports comes in bursts. */
const SETTLE_MS = 200

export interface FoundConfig {
  readonly config: NetworkConfig
  /** What it was read from. */
  readonly configText: string
}

/** Asks every second until there is a configuration, as flanneld does. A wrong one is named and asked for again. */
export async function waitForConfig(manager: SubnetManager, log: Log, signal: AbortSignal): Promise<FoundConfig> {
  const calm = seldom(log)
  for (;;) {
    try {
      const configText = await manager.config(signal)
      const config = parseNetworkConfig(configText, { areGiven: manager.givesSubnets })
      log.info(`Found network config - Backend type: ${config.backendType}`)
      return { config, configText }
    } catch (error) {
      signal.throwIfAborted()
      const mayPass = (['CONFIG', 'CONFIG_MISSING', 'STORE_UNAVAILABLE'] as const).some((code) =>
        isWeftError(error, code),
      )
      if (!mayPass) throw error
      calm.error(`Couldn't fetch network config: ${describeError(error)}`)
    }
    await pause(signal, CONFIG_RETRY_MS * (0.5 + Math.random() / 2))
  }
}

/** What the flags say of the external interface. */
export function interfaceWishes(options: DaemonOptions): InterfaceWishes {
  return {
    ifaces: options.iface,
    patterns: options['iface-regex'],
    canReach: options['iface-can-reach'],
    publicIp: options['public-ip'],
  }
}

/** The external interface. At boot its route, its address or the device itself may come later than this daemon. */
export async function waitForInterface(
  options: DaemonOptions,
  hostChanged: Bell,
  log: Log,
  signal: AbortSignal,
): Promise<ExternalInterface> {
  const wishes = interfaceWishes(options)
  const waitS = options['iface-wait']
  const end = performance.now() + waitS * 1000
  const said = new Set<string>()
  const once = (message: string): void => void (said.has(message) || log.info(message), said.add(message))
  for (let tries = 1; ; tries++) {
    try {
      return await chooseExternalInterface(run, wishes, { ...log, info: once })
    } catch (error) {
      const leftMs = end - performance.now()
      if (!isWeftError(error, 'INTERFACE') || leftMs <= 0) throw error
      if (tries === 1) log.warn(`${error.message}; waiting up to ${waitS} s for one`)
      await hostChanged.wait(signal, Math.min(leftMs, LOOK_MS))
      await pause(signal, Math.min(leftMs, SETTLE_MS))
    }
  }
}
