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
  return withBlackhole(rules, options)
}

/**
 * Returns a firewall that also sets the blackhole route. If the option `blackhole` is off, the firewall only removes at
 * the start the blackhole routes of earlier runs, because their subnets may be those of other nodes now. If a route
 * cannot be set or removed at the start, only logs the failure; `ensure` then tries again.
 */
function withBlackhole(rules: Firewall, options: FirewallOptions & { readonly blackhole: boolean }): Firewall {
  const { blackhole: isWanted, kernel, log, previous } = options
  const routes = partsOf(options).map(({ family, network, wishFor }) => {
    const blackhole = createBlackhole(kernel, network, previous.subnet[family])
    return (nets: Nets) => () => {
      const { isOn, subnet } = wishFor(nets)
      const own = isOn ? subnet : undefined
      if (!isWanted) return prefixed('Failed to remove blackhole route, ', blackhole.ensure(undefined, own))
      return prefixed('Failed to setup blackhole route, ', blackhole.ensure(own, own))
    }
  })
  const ensureRoutes = (subnet: Nets): Promise<Ensured> => ensureEach(routes.map((route) => route(subnet)))
  let isToLook = isWanted
  return {
    ...rules,
    lookAgain() {
      rules.lookAgain?.()
      isToLook = true
    },
    async raise(subnet) {
      isToLook = true // in case the next call rejects
      await rules.raise(subnet)
      isToLook = isWanted // set before `ensureRoutes`, because `lookAgain` may set it while `ensureRoutes` runs
      const { failures } = await ensureRoutes(subnet)
      isToLook ||= failures.length > 0
      for (const failure of failures) log.error(describeError(failure))
    },
    async ensure(subnet) {
      if (!isToLook) return rules.ensure(subnet)
      isToLook = isWanted
      const both = await Promise.all([rules.ensure(subnet), ensureRoutes(subnet)])
      isToLook ||= both[1].failures.length > 0
      return { repaired: both.flatMap(({ repaired }) => repaired), failures: both.flatMap(({ failures }) => failures) }
    },
  }
}
