// start.ts - what a daemon waits for before it is a node: the network configuration and the external interface.

import { parseNetworkConfig, refuseIpv6, type NetworkConfig } from './config/network-config.ts'
import { describeError, isWeftError, WeftError } from './errors.ts'
import { pause, type Bell } from './host/bell.ts'
import { run } from './host/command.ts'
import { chooseExternalInterface, type ExternalInterface } from './host/external-interface.ts'
import { getSysctl } from './host/sysctl.ts'
import type { LeaseAttrs } from './lease/lease.ts'
import type { SubnetManager } from './lease/subnet-manager.ts'
import { seldom, type Log } from './log.ts'
import { addressText } from './net/address.ts'
import { formatIpv4 } from './net/ipv4.ts'
import { askPatiently } from './node/lease.ts'
import { interfaceWishes, type DaemonOptions } from './options.ts'

const CONFIG_RETRY_MS = 1_000
/** How often the host is looked at though it reports nothing. */
const LOOK_MS = 5_000
/** What the kernel reports comes in bursts. */
const SETTLE_MS = 200

/** flanneld does not set net.ipv4.ip_forward either. */
const NOT_FORWARDING =
  'net.ipv4.ip_forward is 0: no packet of a container leaves this host until it is 1; Docker and the bridge plugin of CNI set it'

interface FoundConfig {
  readonly config: NetworkConfig
  /** What it was read from. */
  readonly configText: string
}

export interface Waiting {
  readonly options: DaemonOptions
  readonly manager: SubnetManager
  /** The lease of the daemon that is to be succeeded. */
  readonly leaseNow: () => Promise<KeyAndIp | undefined>
  readonly hostChanged: Bell
  /** Is told what is waited for. */
  readonly tell: (waitsFor: string) => void
  readonly log: Log
  readonly signal: AbortSignal
}

/** The network that this host is to be in, and by which interface. */
export async function waitForNetwork({ options, manager, leaseNow, hostChanged, tell, log, signal }: Waiting) {
  tell(`waiting for the network configuration in the ${manager.name} store`)
  const found = await waitForConfig(manager, log, signal)
  if (!found.config.ipv4) refuseIpv6(found.config)
  if (found.config.ipv6) log.warn('weft has no IPv6 yet: "EnableIPv6" of the network configuration is passed over')
  await waitForSameNetwork(manager, leaseNow, log, signal)
  tell('waiting for the external interface')
  const external = await waitForInterface(await withGivenIp(options, manager, log, signal), hostChanged, log, signal)
  if ((await getSysctl('net/ipv4/ip_forward')) === '0') log.warn(NOT_FORWARDING)
  return { ...found, external }
}

/** Asks every second until there is a configuration, as flanneld does. A wrong one is named and asked for again. */
async function waitForConfig(manager: SubnetManager, log: Log, signal: AbortSignal): Promise<FoundConfig> {
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

/** Of a lease. */
interface KeyAndIp {
  readonly key: string
  readonly publicIp: string
}

/** A lease that a running daemon lost comes back within this time, or its store is another one. */
const SAME_NETWORK_MS = 15_000

/**
 * Resolves when the store has the lease of the daemon that is to be succeeded, `leaseNow`, or that one has none or is gone. Throws
 * WeftError DEVICE where it does not: it is another network's, and succeeding would cut the node off from its own.
 */
async function waitForSameNetwork(
  manager: SubnetManager,
  leaseNow: () => Promise<KeyAndIp | undefined>,
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

/** Throws WeftError DEVICE where the lease of the daemon that is to be succeeded, `before`, is not what this one would find for itself. */
export function refuseToMove({ publicIp }: LeaseAttrs, before: KeyAndIp | undefined): void {
  const own = addressText(publicIp)
  if (!before || before.publicIp === own) return
  throw new WeftError(
    'DEVICE',
    `the weftd that runs on this host has the public IP ${before.publicIp}, and this one has ${own}: the node would move to ` +
      'another subnet, and its containers be cut off',
    { remedy: 'name the same one with --public-ip or --iface; or stop the other one first' },
  )
}

/** The flags, with the public IP that an operator gave this node where its lease is kept. */
async function withGivenIp(
  options: DaemonOptions,
  manager: SubnetManager,
  log: Log,
  signal: AbortSignal,
): Promise<DaemonOptions> {
  const publicIp = await askPatiently("this node's public IP", async (till) => manager.publicIp?.(till), log, signal)
  return publicIp === undefined ? options : { ...options, 'public-ip': formatIpv4(publicIp) }
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
