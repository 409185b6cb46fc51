// userspace-guard.ts - makes the kernel drop unencrypted packets of the network, if charon carries the ESP packets, or
// with the backend wireguard.
//
// An unreachable route drops outgoing packets. With the backend wireguard it takes the packets of a family while the
// WireGuard device has no route for that family. charon routes each peer's subnet to its own device in table 220, which
// the kernel looks up before the main table (strongSwan: charon.routing_table). Without the unreachable route packets
// to a peer without keys would leave unencrypted by the default route.
//
// A routing rule drops incoming packets that the kernel would forward to containers. Decrypted packets come from charon's
// own device or from the WireGuard device. So a packet from the external interface whose source and destination are in
// the network was not encrypted. Packets to other destinations must pass, because this host may be the router of another
// node.

import { applyChange, removeAll } from '../../host/kernel-errors.ts'
import type { Change, HostKernel, Route } from '../../host/kernel.ts'
import {
  familyOf,
  formatNet,
  isPartOf,
  isPartOfEither,
  netKey,
  parseNet,
  type Family,
  type Net,
} from '../../net/address.ts'

/**
 * The highest metric, so that the kernel prefers every other route, such as that of a bridge with this node's own
 * subnet.
 */
const METRIC = 0xff_ff_ff_ff
/** The priority of the rule. The kernel applies the rule before charon's rule, which has the priority 220. */
const PRIORITY = 219
/**
 * The name of the loopback device. To a rule, the packets that this host itself sends come from this device
 * (ip_route_output_key in net/ipv4/route.c), so a rule for it would drop the host's own packets to containers.
 */
const LOOPBACK = 'lo'

/** Returns true if the route is the unreachable route to the network, as `apply` makes it. */
const isUnreachableNetwork = ({ type, destination, metric }: Route, network: Net): boolean =>
  type === 'unreachable' && destination === formatNet(network) && metric === METRIC

/** Lists the unreachable routes that weft made for any network. No other program is known to use this metric. */
export const unreachableRoutes = (routes: readonly Route[]): readonly Route[] =>
  routes.filter(
    ({ type, destination, metric, protocol }) =>
      type === 'unreachable' &&
      metric === METRIC &&
      protocol === 'boot' &&
      (parseNet(destination)?.prefixLength ?? 0) > 0,
  )

const unreachableNets = (routes: readonly Route[]): readonly Net[] =>
  unreachableRoutes(routes).flatMap(({ destination }) => parseNet(destination) ?? [])

/** Returns the change that adds or deletes the unreachable route. */
const routeChange = (kind: 'add route' | 'delete route', network: Net): Change => ({
  kind,
  destination: network,
  type: 'unreachable',
  metric: METRIC,
})

/**
 * Returns the change that adds or deletes the rule that drops packets within the network if they come from the device.
 */
const ruleChange = (kind: 'add rule' | 'delete rule', network: Net, device: string): Change => ({
  kind,
  family: familyOf(network),
  priority: PRIORITY,
  iif: device,
  from: network,
  to: network,
  action: 'blackhole',
})

/** A rule that drops packets within the network `whole` that come from the device. */
interface GuardRule {
  readonly device: string
  readonly whole: Net
}

/**
 * Lists the rules that weft made for any network of the family. The list is empty on a kernel without policy routing.
 */
async function allGuardRules(kernel: HostKernel, family: Family): Promise<readonly GuardRule[]> {
  const rules = (await kernel.rules(family)) ?? []
  return rules.flatMap(({ priority, from, to, iif, action }) => {
    if (priority !== PRIORITY || action !== 'blackhole' || !from || !to || iif === undefined) return []
    return formatNet(from) === formatNet(to) && from.prefixLength > 0 ? [{ device: iif, whole: from }] : []
  })
}

/** Lists the rules that weft made for networks that overlap the given network. */
const guardRules = async (kernel: HostKernel, network: Net): Promise<readonly GuardRule[]> =>
  (await allGuardRules(kernel, familyOf(network))).filter(({ whole }) => isPartOfEither(whole, network))

/** A rule or a route that must be removed, with a description. */
interface Removal {
  readonly what: string
  readonly change: Change
}

const ruleRemoval = ({ device, whole }: GuardRule): Removal => ({
  what: `the rule for unencrypted packets from ${device}`,
  change: ruleChange('delete rule', whole, device),
})

/** Returns the changes that remove the rules for networks of the family that overlap none of `networks`. */
export async function otherRuleRemovals(
  kernel: HostKernel,
  family: Family,
  networks: readonly Net[],
): Promise<readonly Removal[]> {
  const rules = await allGuardRules(kernel, family)
  return rules.filter(({ whole }) => !networks.some((network) => isPartOfEither(whole, network))).map(ruleRemoval)
}

/**
 * Makes the rule that drops packets within the network if they come from the device `external`; no rule if `external` is
 * undefined or the loopback device. Returns true if the rule was missing. Removes the rules of other devices (such as an
 * earlier name of the device), the rules for other networks that overlap this network, and any duplicate that another
 * program added.
 */
export async function keepRule(kernel: HostKernel, network: Net, external: string | undefined): Promise<boolean> {
  const wanted = external === LOOPBACK ? undefined : external
  const rules = await guardRules(kernel, network)
  const isWanted = ({ device, whole }: GuardRule): boolean => device === wanted && netKey(whole) === netKey(network)
  const first = rules.findIndex(isWanted)
  const isMissing = wanted !== undefined && first === -1
  if (isMissing) await applyChange(kernel, ruleChange('add rule', network, wanted))
  const surplus = rules.filter((_, at) => at !== first)
  await removeAll(
    kernel,
    surplus.map((rule) => ruleRemoval(rule).change),
  )
  return isMissing
}

/**
 * Makes the unreachable route to the network if it is missing. Returns true if it was missing. Any other route to the
 * network has precedence. Removes the unreachable route to a part of the network, which weftd made while the network was
 * narrower, because the kernel prefers it to the data path's route to the network.
 */
export async function keepUnreachable(kernel: HostKernel, network: Net): Promise<boolean> {
  const routes = await kernel.routes({ family: familyOf(network), within: network })
  const isMissing = !routes.some((route) => isUnreachableNetwork(route, network))
  if (isMissing) await applyChange(kernel, routeChange('add route', network))
  const narrower = unreachableNets(routes).filter((net) => netKey(net) !== netKey(network))
  await removeAll(
    kernel,
    narrower.map((net) => routeChange('delete route', net)),
  )
  return isMissing
}

export class UserspaceGuard {
  readonly #network: Net
  /** Returns the name of the external interface. */
  readonly #device: () => string
  readonly #kernel: HostKernel

  constructor(network: Net, device: () => string, kernel: HostKernel) {
    this.#network = network
    this.#device = device
    this.#kernel = kernel
  }

  /** Makes the route and the rule that drop unencrypted packets. */
  async block(): Promise<void> {
    await this.resync()
  }

  /**
   * Makes the route and the rule that drop unencrypted packets. The peers are ignored, because charon has their
   * policies.
   */
  async apply(_peers: readonly unknown[]): Promise<void> {
    await this.resync()
  }

  /**
   * Makes the route and the rule that drop unencrypted packets, if they are missing. Returns a description of each
   * repair.
   */
  async resync(): Promise<readonly string[]> {
    const repaired: string[] = []
    if (await keepUnreachable(this.#kernel, this.#network))
      repaired.push(`the unreachable route to ${formatNet(this.#network)} was gone`)
    const wanted = this.#device()
    if (await keepRule(this.#kernel, this.#network, wanted))
      repaired.push(`the rule for unencrypted packets from ${wanted} was gone`)
    return repaired
  }

  /** Always true, because charon has the policies of the peers. */
  isSet(): boolean {
    return true
  }
}

/**
 * Returns the changes that remove the rules and the unreachable routes for the given network, each with a description.
 * These include the rules and routes that weftd made while the network was wider or narrower. `routes` has the host's
 * routes within the network. The rules are listed even if the route is missing, because an operator may have
 * removed only the route.
 */
export async function guardRemovals(
  kernel: HostKernel,
  network: Net,
  routes: readonly Route[],
): Promise<readonly Removal[]> {
  return [
    ...(await guardRules(kernel, network)).map(ruleRemoval),
    ...unreachableNets(routes)
      .filter((net) => isPartOf(net, network))
      .map((net) => ({
        what: `the unreachable route to ${formatNet(net)}`,
        change: routeChange('delete route', net),
      })),
  ]
}

/** Removes the rules and the unreachable routes for the given network, if the host has them. */
export async function removeUserspaceGuard(kernel: HostKernel, network: Net): Promise<void> {
  const routes = await kernel.routes({ family: familyOf(network), within: network })
  const removals = await guardRemovals(kernel, network, routes)
  await removeAll(
    kernel,
    removals.map(({ change }) => change),
  )
}
