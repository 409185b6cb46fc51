// old-routes.ts - warns at the start of routes that belong to an earlier network of this node.

import { isWeftError } from '../base/errors.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import { familyOf, formatNet, listed, netsOf, netsOverlap, type Nets } from '../net/address.ts'
import type { NewNode } from './node.ts'

/** The maximum number of routes that one log line names. */
const NAMED = 5

/** Returns those networks of an earlier run that do not overlap the network, such as that of a family switched off. */
export function pastNetworks(previous: Nets, config: NetworkConfig): Nets {
  const now: Nets = { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network }
  return netsOf(listed(previous).filter((network) => !netsOverlap(netsOf([network]), now)))
}

/**
 * Warns of routes to peers in networks of an earlier run. weftd removes a route only if its peer still has a lease
 * (leftovers.ts). weftd cannot distinguish the other routes from an operator's routes, so it only logs them.
 */
export async function warnOfRoutesLeft(
  past: Nets,
  { name }: Pick<ExternalInterface, 'name'>,
  { kernel, log }: Pick<NewNode, 'kernel' | 'log'>,
): Promise<void> {
  for (const network of listed(past)) {
    const routes = await kernel.routes({ family: familyOf(network), within: network }).catch((error: unknown) => {
      if (!isWeftError(error)) throw error
      return [] // a kernel without the family has no routes
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
