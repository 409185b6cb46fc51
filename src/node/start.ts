// start.ts - waits for the facts that a node needs first: the network configuration and the external interface.

import { isDeepStrictEqual } from 'node:util'
import { describeError, isWeftError, WeftError } from '../base/errors.ts'
import { seldom, type Log } from '../base/log.ts'
import { unknownKeys } from '../control/config/keys.ts'
import { parseNetworkConfig, requireFamily, type NetworkConfig } from '../control/config/network-config.ts'
import type { LeaseAttrs } from '../control/lease/lease.ts'
import type { SubnetManager } from '../control/lease/subnet-manager.ts'
import { pause, type Bell } from '../host/bell.ts'
import { run } from '../host/command.ts'
import {
  chooseExternalInterface,
  chooseForSome,
  defaultRoute,
  seeExternal,
  type Earlier,
  type ExternalInterface,
  type ReadSysctl,
} from '../host/external-interface.ts'
import { routesWithin } from '../host/links.ts'
import { dotted, FORWARDING, getSysctl } from '../host/sysctl.ts'
import {
  addressText,
  FAMILIES,
  familiesOf,
  formatAddress,
  formatNet,
  listed,
  netsOf,
  netsOverlap,
  type Family,
  type Nets,
} from '../net/address.ts'
import { interfaceWishes, type DaemonOptions } from '../options.ts'
import { askPatiently } from './loops/lease.ts'

const CONFIG_RETRY_MS = 1_000
/** The interval of the checks of the host's interfaces if the kernel reports no change. */
const LOOK_MS = 5_000
/** How long the start waits for a default route and an address of each family of the network, before it continues with fewer families. */
const ALL_FAMILIES_MS = 10_000
/** The pause after a report of the kernel, because reports come in bursts. */
const SETTLE_MS = 200

interface FoundConfig {
  readonly config: NetworkConfig
  /** The text that the configuration was read from. */
  readonly configText: string
}

interface Waiting {
  readonly options: DaemonOptions
  readonly manager: SubnetManager
  /** Returns the lease of the predecessor; undefined if there is none. */
  readonly leaseNow: () => Promise<KeyAndIp | undefined>
  /** Starts to watch the host's changes for these families. */
  readonly follow: (families: readonly Family[]) => void
  readonly hostChanged: Bell
  readonly before?: InterfaceBefore
  /** Reports the missing fact. */
  readonly tell: (waitsFor: string) => void
  readonly log: Log
  readonly signal: AbortSignal
}

/** Waits for the network configuration and the external interface. */
export async function waitForNetwork({
  options,
  manager,
  leaseNow,
  follow,
  hostChanged,
  before = {},
  tell,
  log,
  signal,
}: Waiting) {
  tell(`waiting for the network configuration in the ${manager.name} store`)
  const found = await waitForConfig(manager, log, signal)
  requireFamily(found.config)
  const families = familiesOf(found.config)
  follow(families)
  await waitForSameNetwork(manager, leaseNow, log, signal)
  tell('waiting for the external interface')
  const given = await withGivenIp(options, manager, log, signal)
  const external = await waitForInterface(given, families, hostChanged, log, signal, before)
  await warnOfForwarding(families, log)
  return { ...found, external }
}

/** Reads the configuration every second until it is valid, as flanneld does. Logs what is wrong. */
async function waitForConfig(manager: SubnetManager, log: Log, signal: AbortSignal): Promise<FoundConfig> {
  const calm = seldom(log)
  let named: string | undefined
  for (;;) {
    try {
      const configText = await manager.config(signal)
      // As flanneld, weftd ignores unknown keys; it logs them.
      if (configText !== named) for (const unknown of unknownKeys(configText)) log.warn(`Without effect: ${unknown}`)
      named = configText
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

/** The key and the public IP of a lease. */
interface KeyAndIp {
  readonly key: string
  readonly publicIp: string
}

/** The time within which a predecessor that lost its lease acquires it again. After that time its store must be another one. */
const SAME_NETWORK_MS = 15_000

/**
 * Resolves when the store has the predecessor's lease, `leaseNow`, or when there is no such lease. Throws WeftError DEVICE if the store does
 * not have it: it is the store of another network, and a hand-over would cut the node off from its own network.
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
        `The ${manager.name} store does not have the lease of the running weftd, ${own.key} for ${own.publicIp}; checking for up to ${SAME_NETWORK_MS / 1000} s`,
      )
      if (performance.now() > until)
        throw new WeftError(
          'DEVICE',
          `the weftd that runs on this host has the lease ${own.key} for ${own.publicIp}, which the ${manager.name} store of this one does not have`,
          { remedy: 'name the store of the network that this host is in, or stop the other one first' },
        )
    } catch (error) {
      signal.throwIfAborted()
      if (!isWeftError(error, 'STORE_UNAVAILABLE')) throw error
      calm.error(`failed to look for the lease of the weftd that runs: ${describeError(error)}`)
    }
    await pause(signal, CONFIG_RETRY_MS * (0.5 + Math.random() / 2))
  }
}

/** Throws WeftError DEVICE if the predecessor's lease, `before`, has another public IP than this process would publish. */
export function refuseToMove({ publicIp }: LeaseAttrs, before: KeyAndIp | undefined): void {
  const own = addressText(publicIp)
  // A node that had only IPv6 keeps its IPv6 subnet when it gets its first IPv4 subnet.
  if (!before || listed(publicIp).some((address) => formatAddress(address) === before.publicIp)) return
  throw new WeftError(
    'DEVICE',
    `the weftd that runs on this host has the public IP ${before.publicIp}, and this one has ${own}: the node would move to ` +
      'another subnet, and its containers would be cut off',
    { remedy: 'name the same one with --public-ip or --iface, or stop the other one first' },
  )
}

/** Returns the flags with the public IP that an operator gave this node in the store. */
async function withGivenIp(
  options: DaemonOptions,
  manager: SubnetManager,
  log: Log,
  signal: AbortSignal,
): Promise<DaemonOptions> {
  const given = await askPatiently("this node's public IP", async (till) => manager.publicIp?.(till), log, signal)
  const { ipv4, ipv6 } = given ?? {}
  return {
    ...options,
    'public-ip': ipv4 === undefined ? options['public-ip'] : formatAddress(ipv4),
    'public-ipv6': ipv6 === undefined ? options['public-ipv6'] : formatAddress(ipv6),
  }
}

/** The knowledge about the external interface of this node's earlier runs. */
interface InterfaceBefore {
  readonly earlier?: Earlier
  /** Returns the interface of the resumed data path, else the last known interface if the flags are the same. */
  readonly known?: () => Promise<ExternalInterface | undefined>
}

/**
 * Waits for the external interface, because at boot its route, its address or the device itself may appear later than this daemon. The
 * interface that the node used before needs no default route, and keeps its address, as while the node runs.
 */
export async function waitForInterface(
  options: DaemonOptions,
  families: readonly Family[],
  hostChanged: Bell,
  log: Log,
  signal: AbortSignal,
  { earlier, known = async () => undefined }: InterfaceBefore = {},
): Promise<ExternalInterface> {
  const wishes = interfaceWishes(options)
  for (const family of FAMILIES) {
    const address = wishes.publicIp[family]
    if (address !== '' && !families.includes(family))
      log.warn(`The public address ${address} is ignored: the network does not have its family`)
  }
  const waitS = options['iface-wait']
  const began = performance.now()
  const end = began + waitS * 1000
  const said = new Set<string>()
  const once = (message: string): void => void (said.has(message) || log.info(message), said.add(message))
  const quiet = { ...log, info: once }
  const silent = { ...log, info: () => {} }
  for (let tries = 1; ; tries++) {
    const now = performance.now()
    try {
      const found = await chooseExternalInterface(run, wishes, families, quiet, undefined, earlier)
      const before = await known()
      const same = await asBefore(before, families, found)
      if (same === undefined || (same === 'gone' && now >= end)) return found
      if (same !== 'gone') {
        // The log line above names the interface that would be chosen without knowledge of earlier runs.
        if (!isDeepStrictEqual(same.address, found.address))
          once(`Going on with ${textOf(same)}, as this node did before`)
        return same
      }
      once(`Waiting some seconds for ${textOf(before ?? found)}, which this node used before`)
    } catch (error) {
      if (!isWeftError(error, 'INTERFACE')) throw error
      const same = await asBefore(await known(), families)
      if (same !== undefined && same !== 'gone') {
        log.warn(`${error.message}; going on with ${same.name}, which this node used before`)
        return same
      }
      const isLate = now - began >= ALL_FAMILIES_MS || now >= end
      const some =
        isLate && families.length > 1
          ? await chooseForSome(run, wishes, families, silent, undefined, earlier).catch((failure: unknown) => {
              if (!isWeftError(failure, 'INTERFACE')) throw failure
            })
          : undefined
      if (some) {
        log.warn(`${error.message}; going on with ${textOf(some)}`)
        return some
      }
      if (now >= end) throw error
      if (tries === 1) log.warn(`${error.message}; waiting up to ${waitS} s for one`)
    }
    await hostChanged.wait(signal, Math.min(Math.max(0, end - now), LOOK_MS))
    await pause(signal, Math.min(Math.max(0, end - now), SETTLE_MS))
  }
}

const textOf = ({ name, address }: ExternalInterface): string =>
  `${name} and ${listed(address).map(formatAddress).join(' and ')}`

/**
 * Returns the earlier interface as a running node would see it now; `gone` if all its addresses are missing for the moment. Returns
 * undefined if there was none, if it was for another network, or if `found` is another interface or has other operator-given addresses.
 */
async function asBefore(
  before: ExternalInterface | undefined,
  families: readonly Family[],
  found?: ExternalInterface,
): Promise<ExternalInterface | 'gone' | undefined> {
  if (!before || !families.every((family) => before.families?.includes(family))) return undefined
  const { now, gone } = await seeExternal(run, before)
  if (found && (found.name !== now.name || !isDeepStrictEqual(namedIn(found), namedIn(now)))) return undefined
  return familiesOf(now.address).every((family) => gone[family] !== undefined) ? 'gone' : now
}

/** Returns the properties of an interface that the operator chose: the pattern and the given addresses. */
const namedIn = ({ named, pattern, address, publicIp }: ExternalInterface) => [
  pattern,
  ...FAMILIES.flatMap((family) => [
    named.address[family] ? address[family] : undefined,
    named.publicIp[family] ? publicIp[family] : undefined,
  ]),
]

/** Warns of kernel settings that prevent forwarding, or will. Like flanneld, weftd does not change them. */
export async function warnOfForwarding(
  families: readonly Family[],
  log: Log,
  readSysctl: ReadSysctl = getSysctl,
): Promise<void> {
  if (families.includes('ipv4') && (await readSysctl(FORWARDING.ipv4)) === '0')
    log.warn(
      'net.ipv4.ip_forward is 0: no packet of a container leaves this host until it is 1; Docker and the bridge plugin of CNI set it',
    )
  if (!families.includes('ipv6')) return
  const forwarding = await readSysctl(FORWARDING.ipv6)
  if (forwarding === '0')
    log.warn(
      'net.ipv6.conf.all.forwarding is 0: no packet of a container leaves this host by IPv6 until it is 1; the bridge plugin of CNI sets it',
    )
  const route = await defaultRoute(run, 'ipv6')
  if (route?.protocol !== 'ra') return
  // An interface that does not forward accepts advertisements. Setting `all` to 1 makes each interface forward (Linux, addrconf_fixup_forwarding).
  const forwards = forwarding === '0' || (await readSysctl(`net/ipv6/conf/${route.device}/forwarding`)) !== '0'
  // With 0 another program, such as systemd-networkd or NetworkManager, handles advertisements, and its route stays.
  const accepting = `net/ipv6/conf/${route.device}/accept_ra`
  if (forwards && (await readSysctl(accepting)) === '1')
    log.warn(
      `The IPv6 default route of ${route.device} comes from a router's advertisements, which the kernel ignores if it forwards IPv6: this host loses the route unless ${dotted(accepting)} is 2`,
    )
}

/** The number of routes that one line names. */
const NAMED = 5

/**
 * Warns of routes to other hosts in an earlier network that is not this node's any more, such as that of a family which was switched off. weftd
 * does not remove them, because it cannot distinguish them from an operator's routes.
 */
export async function warnOfRoutesLeft(
  previous: Nets,
  config: NetworkConfig,
  { name }: Pick<ExternalInterface, 'name'>,
  log: Log,
): Promise<void> {
  const now: Nets = { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network }
  for (const network of listed(previous)) {
    if (netsOverlap(netsOf([network]), now)) continue
    const routes = await routesWithin(run, network).catch((error: unknown) => {
      if (!isWeftError(error)) throw error
      return [] // a kernel without the family has none
    })
    const left = routes.filter(({ gateway, device }) => gateway !== undefined && device === name)
    const names = left.slice(0, NAMED).map(({ destination, gateway }) => `${destination} via ${gateway}`)
    if (left.length > 0)
      log.warn(
        `Routes into ${formatNet(network)} remain, which is not part of this network any more: ${names.join(', ')}` +
          `${left.length > NAMED ? `, ... (${left.length})` : ''}; remove them with \`ip route del\` unless they are wanted`,
      )
  }
}
