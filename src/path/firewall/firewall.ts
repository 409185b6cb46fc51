// firewall.ts - creates the firewall that sets and repairs the rules with iptables or nft.
//
// Versions of iptables and nft print the same rule in different ways. So weftd stores the listing that the tool prints
// immediately after weftd has set the rules. Later weftd compares the present listing with the stored listing, rule by
// rule and in order. The log lines are those of flanneld.

import { describeError, prefixed } from '../../base/errors.ts'
import type { Nets } from '../../net/address.ts'
import { createBlackhole } from './blackhole.ts'
import { ensureEach, partsOf, type Ensured, type Firewall, type FirewallOptions } from './families.ts'
import { createIptables } from './iptables.ts'
import { createNftables } from './nftables.ts'

export type { Firewall } from './families.ts'

/**
 * Returns the firewall for the tool that the network configuration names. A node needs the firewall even if it wants no
 * rules, because rules of an earlier run may have to be removed.
 */
export function createFirewall(
  tool: 'iptables' | 'nftables',
  options: FirewallOptions & { readonly blackhole: boolean },
): Firewall {
  const rules = tool === 'nftables' ? createNftables(options) : createIptables(options)
  return options.blackhole ? withBlackhole(rules, options) : rules
}

/**
 * Returns a firewall that also sets the blackhole route. If the route cannot be set at the start, only logs the
 * failure.
 */
function withBlackhole(rules: Firewall, options: FirewallOptions): Firewall {
  const { kernel, log } = options
  const routes = partsOf(options).map(({ network, wishFor }) => {
    const blackhole = createBlackhole(kernel, network)
    return (nets: Nets) => () => {
      const { isOn, subnet } = wishFor(nets)
      return prefixed('Failed to setup blackhole route, ', blackhole.ensure(isOn ? subnet : undefined))
    }
  })
  const ensureRoutes = (subnet: Nets): Promise<Ensured> => ensureEach(routes.map((route) => route(subnet)))
  return {
    ...(rules.check ? { check: () => rules.check?.() ?? Promise.resolve() } : {}),
    lookAgain: () => rules.lookAgain?.(),
    async raise(subnet) {
      await rules.raise(subnet)
      const { failures } = await ensureRoutes(subnet)
      for (const failure of failures) log.error(describeError(failure))
    },
    async ensure(subnet) {
      const both = await Promise.all([rules.ensure(subnet), ensureRoutes(subnet)])
      return { repaired: both.flatMap(({ repaired }) => repaired), failures: both.flatMap(({ failures }) => failures) }
    },
  }
}
