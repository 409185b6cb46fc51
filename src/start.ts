// start.ts - what a daemon waits for before it is a node: the network configuration and the external interface.

import type { DaemonOptions } from './cli/options.ts'
import { parseNetworkConfig, type NetworkConfig } from './config/network-config.ts'
import { describeError, isWeftError, WeftError } from './errors.ts'
import { pause, type Bell } from './host/bell.ts'
import { run } from './host/command.ts'
import { chooseExternalInterface, type ExternalInterface } from './host/external-interface.ts'
import type { Store } from './lease/store.ts'
import { seldom, type Log } from './log.ts'

const CONFIG_RETRY_MS = 1_000
/** How often the host is looked at though it reports nothing. */
const LOOK_MS = 5_000
/** What the kernel reports comes in bursts. */
const SETTLE_MS = 200

/** Asks every second until there is a configuration, as flanneld does. A wrong one is named and asked for again. */
export async function waitForConfig(
  store: Store,
  places: ConfigPlaces,
  log: Log,
  signal: AbortSignal,
): Promise<NetworkConfig> {
  const calm = seldom(log)
  for (;;) {
    try {
      const text = await store.config(signal)
      if (text === undefined) throw configMissing(places)
      const config = parseNetworkConfig(text)
      log.info(`Found network config - Backend type: ${config.backendType}`)
      return config
    } catch (error) {
      signal.throwIfAborted()
      const mayPass = (['CONFIG', 'CONFIG_MISSING', 'STORE_UNAVAILABLE'] as const).some((code) =>
        isWeftError(error, code),
      )
      if (!mayPass) throw error
      calm.error(`Couldn't fetch network config: ${describeError(error)}`)
    }
    await pause(signal, CONFIG_RETRY_MS)
  }
}

type ConfigPlaces = Pick<DaemonOptions, 'lease-dir' | 'etcd-prefix'>

function configMissing({ 'lease-dir': directory, 'etcd-prefix': prefix }: ConfigPlaces): WeftError {
  const example = '{"Network":"10.5.0.0/16"}'
  if (directory === '') {
    const told = 'flannel config not found in etcd store. Did you create your config using etcdv3 API?'
    const remedy = `put it with \`etcdctl put ${prefix}/config '${example}'\`, or see whether --etcd-prefix is right`
    return new WeftError('CONFIG_MISSING', told, { remedy })
  }
  return new WeftError('CONFIG_MISSING', `there is no network configuration in ${directory}`, {
    remedy: `write one such as ${example} to ${directory}/config, or see whether --lease-dir is right`,
  })
}

/** The external interface. At boot its route, its address or the device itself may come later than this daemon. */
export async function waitForInterface(
  options: DaemonOptions,
  hostChanged: Bell,
  log: Log,
  signal: AbortSignal,
): Promise<ExternalInterface> {
  const wishes = {
    ifaces: options.iface,
    patterns: options['iface-regex'],
    canReach: options['iface-can-reach'],
    publicIp: options['public-ip'],
  }
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
