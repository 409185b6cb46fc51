// links.ts - follows network interfaces by their index, and classifies interfaces and routes of the kernel.

import type { Log } from '../base/log.ts'
import { isLinkLocal, parseAddress, parseNet, type Address, type Family, type Net } from '../net/address.ts'
import type { Change, HostKernel, Link, Route } from './kernel.ts'

/**
 * Finds an interface again: by its index, because it may have been renamed, or else by its name. Returns undefined if
 * the interface is gone.
 */
export async function linkAgain(
  kernel: HostKernel,
  name: string,
  index: number | undefined,
): Promise<Link | undefined> {
  return (index ? await kernel.link(index) : undefined) ?? kernel.link(name)
}

/**
 * Returns true if a process has the TUN device open. An interface that is not up counts as not open, because no packets
 * pass through it.
 */
export const isTunInUse = ({ up, hasCarrier }: Link): boolean => up && hasCarrier

/** Returns a device's addresses, except the link-local IPv6 address that the kernel gives to each device. */
export const givenTo = ({ addresses: { ipv4, ipv6 } }: Link): readonly Address[] =>
  [...ipv4, ...ipv6.filter(({ address }) => !isLinkLocal(address))].map(({ address }) => address)

/** The number of the main routing table (RT_TABLE_MAIN in linux/rtnetlink.h). */
const MAIN_TABLE = 254
const DEFAULT_ROUTES: Readonly<Record<Family, Net>> = {
  ipv4: { address: 0, prefixLength: 0 },
  ipv6: { address: 0n, prefixLength: 0 },
}

/** Returns the change that deletes exactly this route. */
export function deletionOf(route: Route, family: Family): Change {
  const { destination, type, device, deviceIndex, metric, table, nextHopObject } = route
  const gateway = route.gateway === undefined ? undefined : parseAddress(route.gateway)
  const byDevice = {
    ...(gateway === undefined ? {} : { gateway }),
    ...(deviceIndex === 0 ? {} : { device: { name: device, index: deviceIndex } }),
  }
  return {
    kind: 'delete route',
    destination: parseNet(destination) ?? DEFAULT_ROUTES[family],
    ...(type === 'unicast' ? {} : { type }),
    ...(table === MAIN_TABLE ? {} : { table }),
    // The kernel finds no IPv4 route with a next hop object by a gateway or a device (net/ipv4/fib_semantics.c,
    // fib_nh_match). Without all three the kernel may delete a different route with the same destination and metric.
    ...(nextHopObject === undefined ? byDevice : { nextHopObject }),
    // Leave out the metric 0: without a metric, the kernel deletes the route with the lowest metric, which is 0 in this
    // case. No IPv6 route has the metric 0.
    ...(metric === 0 ? {} : { metric }),
  }
}

/** The present name of an interface, which another program may change at any time. */
export interface Named {
  readonly name: string
}

/**
 * An interface that weftd follows by the kernel's index, because another program may rename the interface. If the
 * interface was deleted, an interface with the same name and another index takes its place.
 */
export class FollowedLink implements Named {
  /** The name of the interface when `find` found it last. */
  name: string
  /** The kernel's index of the interface; undefined until `find` has found the interface. */
  index: number | undefined
  /** The name under which the caller creates the interface again after it was deleted. */
  readonly #firstName: string

  constructor(name: string, index?: number) {
    this.name = name
    this.index = index
    this.#firstName = name
  }

  /** Looks up the interface and remembers its present name and index. Returns undefined if the interface is gone. */
  async find(kernel: HostKernel): Promise<Link | undefined> {
    const link = await linkAgain(kernel, this.name, this.index)
    if (!link) return undefined
    this.name = link.name
    this.index = link.index
    return link
  }

  /** Records that the interface is gone, and that the caller will create the interface again under its first name. */
  forget(): void {
    this.name = this.#firstName
    this.index = undefined
  }

  /** Finds the interface as `find` does, and logs the new name if the name has changed. */
  async follow(kernel: HostKernel, log: Pick<Log, 'info'>): Promise<Link | undefined> {
    const before = this.name
    const link = await this.find(kernel)
    if (this.name !== before) log.info(renamed(before, this.name))
    return link
  }
}

export const renamed = (before: string, now: string): string =>
  `The interface ${before} is called ${now} now; weftd goes on with it under the new name`

/** The metric that the kernel gives a route which was created without a metric (net/ipv6/route.c, IP6_RT_PRIO_USER). */
export const USUAL_METRIC: Readonly<Record<Family, number>> = { ipv4: 0, ipv6: 1024 }

/**
 * Returns true if a route that weftd makes to the same destination replaces this route, because both have the same
 * metric and are for the same packets.
 */
export const isReplaceable = ({ metric, isPartial }: Route, family: Family): boolean =>
  metric === USUAL_METRIC[family] && !isPartial

/**
 * Returns true if the kernel has policy rules in addition to the three rules that every host has, so that the main
 * table alone does not determine the route of a packet. Ignores rules that drop packets, such as weft's own rule for
 * unencrypted packets, because these rules give no packet another route. Returns false if the kernel is built without
 * policy routing or without the family.
 */
export async function hasPolicyRules(kernel: HostKernel, family: Family): Promise<boolean> {
  const rules = (await kernel.rules(family)) ?? []
  return rules.some(({ priority, table, action }) => {
    const usual = USUAL_RULES.get(priority)
    return !DROPPING.has(action) && (usual === undefined || table !== usual)
  })
}
const DROPPING: ReadonlySet<string> = new Set(['blackhole', 'unreachable', 'prohibit'])
/**
 * The priorities of the rules that every host has, and the numbers of the tables local, main and default that the rules
 * select (net/ipv4/fib_rules.c, net/ipv6/fib6_rules.c).
 */
const USUAL_RULES: ReadonlyMap<number, number> = new Map([
  [0, 255],
  [32_766, MAIN_TABLE],
  [32_767, 253],
])
