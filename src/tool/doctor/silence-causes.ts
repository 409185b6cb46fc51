// silence-causes.ts - finds the finding about this host that explains why a peer does not answer over one family. Pure.

import { netContains, parseNet } from '../../net/address.ts'
import type { Facts } from './facts.ts'
import type { Finding, FindingName } from './findings.ts'
import { datagramFault, portPacket, sentBack } from './firewall.ts'
import { datagramFlow, ipsecDrop } from './ipsec.ts'
import { ipv6OffBetween } from './ipv6-off.ts'
import { faultsOfProbes } from './kernel-routes.ts'
import { dropsOfOwnProbes } from './probe-packets.ts'
import { checkRoutes } from './routes.ts'
import { outerIn, type SeenSide } from './sides.ts'
import { underlayFault } from './underlay.ts'

/**
 * Returns the finding that explains why a peer looks silent although its host may be well; undefined if the facts about
 * this host do not explain the silence. Evaluates the firewall rules only if `hasRules` is true.
 */
export function hiddenCause(
  side: SeenSide,
  facts: Facts,
  hasRules: boolean,
): 'underlay-route' | 'probes-dropped' | undefined {
  if (underlayFault(side, facts)) return 'underlay-route'
  return hasRules && dropsOfOwnProbes(side, facts).length > 0 ? 'probes-dropped' : undefined
}

/** Returns the finding about this host that explains why no packets pass to a peer over one family, if there is one. */
export function causeOf(side: SeenSide, facts: Facts): FindingName | undefined {
  const { status } = facts
  if (!status) return undefined
  const outer = outerIn(status, side.family, side.endpoint)
  if (ipv6OffBetween(facts, side).length > 0) return 'ipv6-disabled'
  if ((status.dataPath?.addressGone[outer] ?? null) !== null) return 'address-gone'
  if ((status.dataPath?.lacking[side.family] ?? null) !== null) return 'family-down'
  if (underlayFault(side, facts)) return 'underlay-route'
  const route = [...(checkRoutes(facts) ?? []), ...faultsOfProbes(side, facts)].find((one) => isAbout(one, side))
  const datagram = portPacket(status, side.peer, outer)
  const flows = datagram ? [datagram, sentBack(datagram)].map(datagramFlow) : []
  return (
    route?.name ??
    datagramFault(side, facts) ??
    (ipsecDrop(facts, flows)?.isCertain ? 'ipsec-blocked' : undefined) ??
    hiddenCause(side, facts, true)
  )
}

/** Returns true if a finding about a route names the subnet of the peer, or a network that contains the subnet. */
function isAbout({ detail }: Finding, { subnet }: SeenSide): boolean {
  const net = parseNet(/^(?:from )?([\d.a-f:]+\/\d+)/.exec(detail)?.[1] ?? '')
  return net !== undefined && subnet !== undefined && netContains(net, subnet.address)
}
