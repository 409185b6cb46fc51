// start.ts - what a daemon waits for before it is a node: the network configuration and the external interface.

import { parseNetworkConfig, type NetworkConfig } from './config/network-config.ts'
import { describeError, isWeftError, WeftError } from './errors.ts'
import { pause, type Bell } from './host/bell.ts'
import { run } from './host/command.ts'
import { chooseExternalInterface, type ExternalInterface, type InterfaceWishes } from './host/external-interface.ts'
import type { SubnetManager } from './lease/subnet-manager.ts'
import { seldom, type Log } from './log.ts'
import { addressText } from './net/address.ts'
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

/** A lease that a running daemon lost comes back within this time, or its store is another one. */
const SAME_NETWORK_MS = 15_000

/**
 * Resolves when the store has the lease of the daemon that is to be succeeded, `leaseNow`, or that one has none or is gone. Throws
 * WeftError DEVICE where it does not: it is another network's, and succeeding would cut the node off from its own.
 */
export async function waitForSameNetwork(
  manager: SubnetManager,
  leaseNow: () => Promise<{ readonly key: string; readonly publicIp: string } | undefined>,
  log: Log,
  signal: AbortSignal,
): Promise<void> {
  const until = performance.now() + SAME_NETWORK_MS
  const calm = seldom(log)
  for (;;) {
    const own = await leaseNow()
    if (!own) return
    try {
      const { entries } = await manager.source.list(signal)
      const there = entries.find(({ key }) => key === own.key)?.lease
      if (there && addressText(there.attrs.publicIp) === own.publicIp) return
      calm.info(
        `The ${manager.name} store has no lease ${own.key} for ${own.publicIp}, as the weftd that runs has: looking for up to ${SAME_NETWORK_MS / 1000} s`,
      )
      if (performance.now() > until)
        throw new WeftError(
          'DEVICE',
          `the weftd that runs on this host has the lease ${own.key} for ${own.publicIp}, which the ${manager.name} store of this one does not have`,
          { remedy: 'name the store of the network that this host is in; or stop the other one first' },
        )
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error, 'STORE_UNAVAILABLE')) throw error
      calm.error(`failed to look for the lease of the weftd that runs: ${describeError(error)}`)
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
