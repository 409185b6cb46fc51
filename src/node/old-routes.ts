// old-routes.ts - warns at the start of routes that belong to an earlier network of this node.

import { isWeftError } from '../base/errors.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import { familyOf, formatNet, listed, netsOf, netsOverlap, type Nets } from '../net/address.ts'
import type { NewNode } from './node.ts'

/** The maximum number of routes that one log line names. */
const NAMED = 5

/**
 * Warns of routes to peers in an earlier network of this node, such as the network of a family that was switched off.
 * weftd does not remove these routes, because it cannot distinguish them from an operator's.
 */
export async function warnOfRoutesLeft(
  previous: Nets,
  config: NetworkConfig,
  { name }: Pick<ExternalInterface, 'name'>,
  { kernel, log }: Pick<NewNode, 'kernel' | 'log'>,
): Promise<void> {
  const now: Nets = { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network }
  for (const network of listed(previous)) {
    if (netsOverlap(netsOf([network]), now)) continue
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
