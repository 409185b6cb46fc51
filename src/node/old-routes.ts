// old-routes.ts - finds out which networks and routes an earlier run had, and warns at the start of routes that belong to
// an earlier network of this node.

import { isWeftError } from '../base/errors.ts'
import { parseNetworkConfig, type NetworkConfig } from '../control/config/network-config.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import {
  FAMILIES,
  familyOf,
  formatNet,
  isPartOf,
  listed,
  netsOf,
  parseNet,
  type Net,
  type Nets,
} from '../net/address.ts'
import { routesThroughHosts } from '../path/device/leftovers.ts'
import { unreachableRoutes } from '../path/device/userspace-guard.ts'
import type { PreviousNets } from './loops/subnet-env-file.ts'
import type { ForwardingNode, NewNode } from './node.ts'
import { isSubnetEnvForeign, lastKnownFile, readLastKnown } from './restart/last-known.ts'

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
 * Adds the network and the subnet of a family that the earlier run omitted from subnet.env, because containers could
 * not use the family then. Takes them from the file of the last known state, unless another program has written
 * subnet.env since.
 */
export async function withOmitted(
  previous: PreviousNets,
  { options, log }: Pick<NewNode, 'options' | 'log'>,
): Promise<PreviousNets> {
  const omitted = FAMILIES.filter((family) => previous.network[family] === undefined)
  if (omitted.length !== 1) return previous // subnet.env has both families, or there is no subnet.env
  const known = await readLastKnown(lastKnownFile(options), { ...log, warn: () => {} })
  if (known?.subnetEnv === undefined || (await isSubnetEnvForeign(options['subnet-file'], known))) return previous
  const config = configOf(known.config)
  const lost = omitted.flatMap((family): readonly (readonly [Net, Net])[] => {
    const [network, subnet] = [config?.[family]?.network, known.lease.subnet[family]]
    return network && subnet ? [[network, subnet]] : []
  })
  return {
    network: netsOf([...listed(previous.network), ...lost.map(([network]) => network)]),
    subnet: netsOf([...listed(previous.subnet), ...lost.map(([, subnet]) => subnet)]),
  }
}

/** Parses the configuration in the file of the last known state. Returns undefined if it is invalid. */
function configOf(text: string): NetworkConfig | undefined {
  try {
    // The lease comes from the same file, so the configuration need not say from which range nodes take their subnets.
    return parseNetworkConfig(text, { areGiven: true })
  } catch (error) {
    if (!isWeftError(error)) throw error
    return undefined
  }
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
 * (leftovers.ts). weftd cannot distinguish the other routes from an operator's routes, so it only logs them. Also warns
 * of unreachable routes to these networks, which weftd keeps on purpose.
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
    // An unreachable route of a backend that encrypts stays, because containers may still have addresses of the
    // network. The route also keeps this host from addresses of the network that other hosts have now.
    const blocking = unreachableRoutes(routes)
    const left = routes.filter(
      (route) =>
        isOutside(route.destination) &&
        ((route.gateway !== undefined && route.device === name) || blocking.includes(route)),
    )
    const names = left
      .slice(0, NAMED)
      .map(({ type, destination, gateway, metric }) =>
        gateway === undefined ? `${type} ${destination} metric ${metric}` : `${destination} via ${gateway}`,
      )
    if (left.length > 0)
      log.warn(
        `Routes into ${formatNet(network)} remain, which is not part of this network any more: ${names.join(', ')}` +
          `${left.length > NAMED ? `, ... (${left.length})` : ''}; remove them with \`ip route del\` unless they are wanted`,
      )
  }
}
