// old-routes.ts - finds out which networks and routes an earlier run had, and warns at the start of routes that belong to
// an earlier network of this node.

import { isWeftError } from '../base/errors.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import { familyOf, formatNet, isPartOf, listed, netsOf, parseNet, type Net, type Nets } from '../net/address.ts'
import { routesThroughHosts } from '../path/device/leftovers.ts'
import type { ForwardingNode, NewNode } from './node.ts'
import { lastKnownFile, readLastKnown } from './restart/last-known.ts'

/** The maximum number of routes that one log line names. */
const NAMED = 5

/** Returns true if the network is a part of a network of the configuration. */
const isPresent = (network: Net, { ipv4, ipv6 }: NetworkConfig): boolean =>
  listed({ ipv4: ipv4?.network, ipv6: ipv6?.network }).some((each) => isPartOf(network, each))

/**
 * Returns those networks of an earlier run that are not a part of the present network, such as that of a family
 * switched off, or a wider network.
 */
export function pastNetworks(previous: Nets, config: NetworkConfig): Nets {
  return netsOf(listed(previous).filter((network) => !isPresent(network, config)))
}

/**
 * Returns the routes through hosts that an earlier run may have made for the leases of the last known state. That run may
 * have used another store.
 */
export async function formerRoutes({
  known,
  options,
  log,
}: Pick<NewNode, 'known' | 'options' | 'log'>): Promise<ReadonlySet<string>> {
  const { leases = [] } = known ?? (await readLastKnown(lastKnownFile(options), { ...log, warn: () => {} })) ?? {}
  return routesThroughHosts(leases)
}

/**
 * Warns of routes to peers in networks of an earlier run. weftd removes the routes that it certainly made
 * (leftovers.ts). weftd cannot distinguish the other routes from an operator's routes, so it only logs them.
 */
export async function warnOfRoutesLeft(
  past: Nets,
  { name }: Pick<ExternalInterface, 'name'>,
  { config, kernel, log }: Pick<ForwardingNode, 'config' | 'kernel' | 'log'>,
): Promise<void> {
  const isOutside = (destination: string): boolean => {
    const net = parseNet(destination)
    return net !== undefined && !isPresent(net, config)
  }
  for (const network of listed(past)) {
    const routes = await kernel.routes({ family: familyOf(network), within: network }).catch((error: unknown) => {
      if (!isWeftError(error)) throw error
      return [] // a kernel without the family has no routes
    })
    const left = routes.filter(
      ({ destination, gateway, device }) => gateway !== undefined && device === name && isOutside(destination),
    )
    const names = left.slice(0, NAMED).map(({ destination, gateway }) => `${destination} via ${gateway}`)
    if (left.length > 0)
      log.warn(
        `Routes into ${formatNet(network)} remain, which is not part of this network any more: ${names.join(', ')}` +
          `${left.length > NAMED ? `, ... (${left.length})` : ''}; remove them with \`ip route del\` unless they are wanted`,
      )
  }
}
