// firewall.ts - makes the kernel's rules equal the wish, by iptables or by nft, and says when they had to be mended.
//
// What the kernel shows right after the rules were applied is what it must show from then on, rule by rule and in
// order: versions of iptables and nft spell one rule in several ways. The log's texts are flanneld's.

import { describeError, prefixed } from '../../base/errors.ts'
import type { Nets } from '../../net/address.ts'
import { createBlackhole } from './blackhole.ts'
import { ensureEach, partsOf, type Ensured, type Firewall, type FirewallOptions } from './families.ts'
import { createIptables } from './iptables.ts'
import { createNftables } from './nftables.ts'

export type { Firewall } from './families.ts'

/**
 * The firewall by the tool that the network configuration names. There is work for it also when nothing is wanted: an earlier
 * run may have left some rules.
 */
export function createFirewall(
  tool: 'iptables' | 'nftables',
  options: FirewallOptions & { readonly blackhole: boolean },
): Firewall {
  const rules = tool === 'nftables' ? createNftables(options) : createIptables(options)
  return options.blackhole ? withBlackhole(rules, options) : rules
}

/** The rules, and the route beside them: what cannot be had of it at the start is only said. */
function withBlackhole(rules: Firewall, options: FirewallOptions): Firewall {
  const { run, log } = options
  const routes = partsOf(options).map(({ network, wishFor }) => {
    const blackhole = createBlackhole(run, network)
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
      return { mended: both.flatMap(({ mended }) => mended), failures: both.flatMap(({ failures }) => failures) }
    },
  }
}
