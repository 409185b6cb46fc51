// route-sync.ts - makes the kernel's routes to peers' subnets equal a given set, and repairs them.
//
// weftd makes all changes in one call of the kernel, so that a network with thousands of peers costs little time. All
// routes through the backend's own device belong to weftd, including those of an earlier process. Of the routes through
// other devices, only those that this process made belong to weftd, because an operator may have made the others.
// Interfaces are compared by the kernel's index, because another program may rename an interface.

import type { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { errnoOf, isGone } from '../../host/kernel-errors.ts'
import type { Change, Device, HostKernel, Route } from '../../host/kernel.ts'
import { isReplaceable, USUAL_METRIC, type FollowedLink } from '../../host/links.ts'
import { familyOf, formatNet, parseAddress, parseNet, type Address, type Net } from '../../net/address.ts'

/** The maximum number of routes that weftd names when it logs several routes for one reason. */
const NAMED = 5

export interface NextHop {
  readonly gateway: string
  /** The interface that the route uses. `RouteSync` looks up the interface's present index if the route is missing. */
  readonly device: FollowedLink
  /**
   * True if the kernel must treat the gateway as directly reachable on the device, even if no address of the device
   * covers it.
   */
  readonly onlink?: boolean
}

/** The next hops by destination, which is text such as `10.5.2.0/24`. */
export type NextHops = ReadonlyMap<string, NextHop>

interface RouteSyncOptions {
  readonly network: Net
  /** The backend's own device; left out if the backend routes through the external interface. */
  readonly ownDevice?: Device
  readonly kernel: HostKernel
  readonly log: Log
}

/** A destination and its next hop. */
type Entry = readonly [destination: string, hop: NextHop]

/** A route that the kernel refused. */
interface Refusal {
  readonly entry: Entry
  readonly error: WeftError
}

const say = ([destination, { gateway, device }]: Entry): string => `${destination} via ${gateway} dev ${device.name}`
const isThere = (route: Route | undefined, { gateway, device }: NextHop): boolean =>
  route?.gateway === gateway && route.deviceIndex === device.index
const isSame = (a: NextHop | undefined, b: NextHop): boolean =>
  a?.gateway === b.gateway && a.device.index === b.device.index

/** Parses a destination and a gateway that weftd itself formatted. */
const partsOf = (destination: string, gateway: string): { readonly destination: Net; readonly gateway: Address } => ({
  destination: parseNet(destination) as Net,
  gateway: parseAddress(gateway) as Address,
})
const addition = (kind: 'add route' | 'replace route', [destination, hop]: Entry): Change => ({
  kind,
  ...partsOf(destination, hop.gateway),
  device: hop.device,
  onlink: hop.onlink ?? false,
})
type Deletion = Change & { readonly kind: 'delete route' }
function deletion(destination: string, gateway: string, device: Device): Deletion {
  const parts = partsOf(destination, gateway)
  // Name the metric, because a request without a metric would delete the route with the lowest metric, which may be
  // another program's.
  const metric = USUAL_METRIC[familyOf(parts.destination)]
  return { kind: 'delete route', ...parts, device, ...(metric === 0 ? {} : { metric }) }
}

/** Returns the entries of `all` whose keys are in `keys`. */
export function partOf<T>(all: ReadonlyMap<string, T>, keys: Iterable<string>): Map<string, T> {
  const part = new Map<string, T>()
  for (const key of keys) {
    const value = all.get(key)
    if (value !== undefined) part.set(key, value)
  }
  return part
}

const devicesOf = (hops: NextHops): ReadonlySet<FollowedLink> => new Set([...hops.values()].map(({ device }) => device))

export class RouteSync {
  readonly #network: Net
  readonly #ownDevice: Device | undefined
  readonly #kernel: HostKernel
  readonly #log: Log
  #wanted = new Map<string, NextHop>()
  /**
   * The next hops that were wanted before calls of `apply` that rejected: of each destination the first such next hop.
   * The kernel may still have routes via these next hops, so the next call of `apply` for all routes compares the
   * kernel's routes with these next hops too.
   */
  #former: NextHops = new Map()
  /** The wanted routes that the kernel refused. */
  #refused: NextHops = new Map()
  /**
   * The destinations that already have a route to a link of this host, made by another program or by the kernel for a
   * bridge. weftd never replaces such a route.
   */
  #taken: ReadonlySet<string> = new Set()
  /** The deletions that failed although the kernel may still have the route. `#change` tries them again. */
  #undeleted: readonly Deletion[] = []
  #isFirst = true

  constructor({ network, ownDevice, kernel, log }: RouteSyncOptions) {
    this.#network = network
    this.#ownDevice = ownDevice
    this.#kernel = kernel
    this.#log = log
  }

  /**
   * Makes weftd's routes equal to `hops`. Logs routes that the kernel refuses; `resync` tries them again. If `touched`
   * is given, only routes to these destinations differ from the last call, so `apply` changes only these routes. If
   * `apply` rejects, for example because the kernel does not answer in time, the caller must call it again for all
   * routes.
   */
  async apply(hops: NextHops, touched?: ReadonlySet<string>): Promise<void> {
    if (touched?.size === 0) return
    if (!touched || this.#isFirst) {
      const last = this.#wanted
      const known = new Map([...last, ...this.#former])
      this.#former = known
      this.#wanted = new Map(hops)
      await this.#noteDevices(hops)
      await this.#applyAll(known, last)
      this.#former = new Map()
      return
    }
    const before = partOf(this.#wanted, touched)
    const now = partOf(hops, touched)
    const { size } = this.#former
    this.#former = new Map([...before, ...this.#former])
    for (const destination of before.keys()) this.#wanted.delete(destination)
    for (const [destination, hop] of now) this.#wanted.set(destination, hop)
    await this.#noteDevices(now)
    await this.#applySome(before, touched)
    if (size === 0) this.#former = new Map()
  }

  /**
   * Returns true if weftd wants the route to this destination, the kernel accepted the route, and no route of another
   * program to the same destination prevents it.
   */
  isSet(destination: string): boolean {
    return this.#wanted.has(destination) && !this.#refused.has(destination) && !this.#taken.has(destination)
  }

  /** Restores missing routes and returns a description of each restored route. */
  async resync(): Promise<readonly string[]> {
    const all = new Set(this.#wanted.keys())
    const routes = await this.#mainRoutes()
    let lost = this.#missing(routes, all)
    if (lost.length > 0 && (await this.#followDevices())) lost = this.#missing(routes, all)
    this.#noteTaken(routes, all)
    this.#noteRefused(await this.#change([], 'replace route', lost), all)
    return lost
      .filter(([destination]) => !this.#refused.has(destination))
      .map(([destination, hop]) => `the route to ${destination} via ${hop.gateway} was gone`)
  }

  /**
   * Changes all routes. `known` has the next hops of the last call that succeeded, and `last` those of the last call, which
   * may have changed some routes before it rejected.
   */
  async #applyAll(known: NextHops, last: NextHops): Promise<void> {
    const routes = await this.#mainRoutes()
    if (this.#isFirst) this.#warnOfUnknown(routes)
    this.#isFirst = false
    const deletions = [...routes].flatMap(([destination, route]) => {
      const { gateway, deviceIndex, device } = route
      const isWeftd = [known, last].some((hops) => {
        const hop = hops.get(destination)
        return hop !== undefined && isThere(route, hop)
      })
      const isOurs = isWeftd || deviceIndex === this.#ownDevice?.index
      if (gateway === undefined || !isOurs || this.#wanted.has(destination)) return []
      return [deletion(destination, gateway, { name: device, index: deviceIndex })]
    })
    const all = new Set(this.#wanted.keys())
    this.#noteTaken(routes, all)
    const missing = this.#missing(routes, all)
    this.#logReplaced(missing, routes, known)
    const refusals = await this.#change(deletions, 'replace route', missing)
    await this.#deleteFormer(refusals, routes, known)
    this.#noteRefused(refusals, all)
  }

  /**
   * Changes only the routes to `touched`. Reads the kernel's routes only to those destinations to which the kernel may
   * already have a route.
   */
  async #applySome(known: NextHops, touched: ReadonlySet<string>): Promise<void> {
    const [deletions, fresh, doubtful]: [Deletion[], Entry[], Set<string>] = [[], [], new Set()]
    for (const destination of touched) {
      const [old, hop] = [known.get(destination), this.#wanted.get(destination)]
      if (old && hop && !(isSame(old, hop) && this.isSet(destination))) doubtful.add(destination)
      else if (hop && !old) fresh.push([destination, hop])
      else if (old && !hop) deletions.push(...this.#deletionsOf(destination, old))
    }
    const refusals = await this.#change(deletions, 'add route', fresh)
    for (const { entry, error } of refusals) if (errnoOf(error) === 'EEXIST') doubtful.add(entry[0])
    const routes = await this.#routesTo(doubtful, known)
    this.#noteTaken(routes, touched)
    const missing = this.#missing(routes, doubtful)
    this.#logReplaced(missing, routes, known)
    const others = refusals.filter(({ entry }) => !doubtful.has(entry[0]))
    const again = await this.#change([], 'replace route', missing)
    await this.#deleteFormer(again, routes, known)
    this.#noteRefused([...others, ...again], touched)
  }

  /**
   * Returns the deletions of the route to a peer that has left. If the kernel refused this route, it may still have the
   * former route to the same host through the backend's own device, which `#deleteFormer` keeps.
   */
  #deletionsOf(destination: string, { gateway, device }: NextHop): readonly Deletion[] {
    const own = this.#refused.has(destination) && device.index !== this.#ownDevice?.index ? this.#ownDevice : undefined
    return [device, ...(own ? [own] : [])].map((each) => deletion(destination, gateway, each))
  }

  /**
   * Deletes weftd's own former routes to the destinations whose new route the kernel refused, because a former route
   * may lead to a host that no longer has the subnet. Keeps a former route through the backend's own device to the same
   * host, because packets still reach the host by this route. `routes` has the kernel's routes before the refusals;
   * `known` has the former next hops.
   */
  async #deleteFormer(
    refusals: readonly Refusal[],
    routes: ReadonlyMap<string, Route>,
    known: NextHops,
  ): Promise<void> {
    const deletions = refusals.flatMap(({ entry: [destination, hop] }) => {
      const [route, former] = [routes.get(destination), known.get(destination)]
      if (route?.gateway === undefined) return []
      const isOwn = route.deviceIndex === this.#ownDevice?.index
      const isOurs = isOwn || (former !== undefined && isThere(route, former))
      if (!isOurs || (isOwn && route.gateway === hop.gateway)) return []
      return [deletion(destination, route.gateway, { name: route.device, index: route.deviceIndex })]
    })
    await this.#change(deletions, 'replace route', [])
  }

  /**
   * Returns the kernel's routes to `destinations`. First looks up each route singly. Lists the routes of the main table
   * only if a looked-up route differs from that in `known`, because the list may have thousands of routes.
   */
  async #routesTo(destinations: ReadonlySet<string>, known: NextHops): Promise<Map<string, Route>> {
    const all = [...destinations]
    const queries = all.map((destination) => ({ to: (parseNet(destination) as Net).address }))
    const answers = all.length > 0 ? await this.#kernel.lookUp(familyOf(this.#network), queries) : []
    const kept = new Map<string, Route>()
    for (const [at, destination] of all.entries()) {
      const [answer, hop] = [answers[at], known.get(destination)]
      if (answer && 'route' in answer && hop && isThere(answer.route, hop)) kept.set(destination, answer.route)
    }
    const others = new Set(all.filter((destination) => !kept.has(destination)))
    return others.size > 0 ? new Map([...kept, ...(await this.#mainRoutes(others))]) : kept
  }

  /**
   * Lists the routes of the main table to `destinations`, or, if `destinations` is left out, to all parts of the
   * network.
   */
  async #mainRoutes(destinations?: ReadonlySet<string>): Promise<Map<string, Route>> {
    const family = familyOf(this.#network)
    const exactly = destinations && [...destinations].map((each) => parseNet(each) as Net)
    const routes = await this.#kernel.routes({ family, ...(exactly ? { exactly } : { within: this.#network }) })
    return new Map(routes.filter((each) => isReplaceable(each, family)).map((each) => [each.destination, each]))
  }

  /**
   * Returns true if the route leads to a link of this host: it has no gateway, and its device is not the backend's own
   * device but, for example, a bridge.
   */
  #isAnothers(route: Route | undefined): boolean {
    return (
      route !== undefined &&
      route.gateway === undefined &&
      !route.isMultipath &&
      route.type === 'unicast' &&
      route.deviceIndex !== this.#ownDevice?.index
    )
  }

  /**
   * Records in `#taken` which destinations of `looked` have a route for which `#isAnothers` is true. Logs the
   * destinations that were not recorded before.
   */
  #noteTaken(routes: ReadonlyMap<string, Route>, looked: ReadonlySet<string>): void {
    const theirs: string[] = []
    for (const destination of looked)
      if (this.#isAnothers(routes.get(destination)) && this.#wanted.has(destination)) theirs.push(destination)
    const fresh = theirs.filter((destination) => !this.#taken.has(destination))
    for (const destination of fresh.slice(0, NAMED))
      this.#log.error(
        `The route to ${destination}, a peer's subnet, leads to ${routes.get(destination)?.device} on this host, and weftd keeps this route: ` +
          'packets to that peer do not reach it; remove the device or program with that subnet on this host, or give the peer another subnet',
      )
    const unlooked = [...this.#taken].filter((each) => this.#wanted.has(each) && !looked.has(each))
    this.#taken = new Set([...unlooked, ...theirs])
  }

  /** Looks up the present indexes of the routes' interfaces. Returns true if an interface has a new index. */
  async #followDevices(): Promise<boolean> {
    let isAnother = false
    for (const device of devicesOf(this.#wanted)) {
      const before = device.index
      await device.find(this.#kernel)
      isAnother ||= device.index !== before
    }
    return isAnother
  }

  /** Stores the index of each interface now, while the interface still has the given name. */
  async #noteDevices(hops: NextHops): Promise<void> {
    for (const device of devicesOf(hops)) if (device.index === undefined) await device.find(this.#kernel)
  }

  /** Lists the wanted routes to `destinations` that the kernel lacks and that weftd may set. */
  #missing(routes: ReadonlyMap<string, Route>, destinations: Iterable<string>): Entry[] {
    const missing: Entry[] = []
    for (const destination of destinations) {
      const hop = this.#wanted.get(destination)
      const route = routes.get(destination)
      if (hop && !isThere(route, hop) && !this.#isAnothers(route)) missing.push([destination, hop])
    }
    return missing
  }

  /**
   * Makes the given deletions, and then adds or replaces the routes `entries`. Returns the routes that the kernel
   * refused. Ignores failed deletions of routes that are gone, because a route that another program has changed or
   * removed is no longer weftd's. The next call tries the other failed deletions again.
   */
  async #change(
    given: readonly Deletion[],
    kind: 'add route' | 'replace route',
    entries: readonly Entry[],
  ): Promise<readonly Refusal[]> {
    const again = this.#undeleted.filter(
      ({ destination, gateway }) => this.#gatewayTo(formatNet(destination)) !== gateway, // the peer may have come back
    )
    const deletions = [...again, ...given]
    if (deletions.length + entries.length === 0) return []
    const errors = await this.#kernel.change([...deletions, ...entries.map((entry) => addition(kind, entry))])
    this.#undeleted = deletions.filter((_deletion, at) => errors[at] && !isGone(errors[at]))
    const fault = errors.find((error) => error && error.code !== 'KERNEL')
    if (fault) throw fault
    const refusals = entries.flatMap((entry, at) => {
      const error = errors[deletions.length + at]
      return error ? [{ entry, error }] : []
    })
    // Another program may have deleted the interface and made it again. The kernel then returns ENODEV for the old
    // index, so look up the new index and try again.
    const isOld = refusals.some(({ error }) => errnoOf(error) === 'ENODEV') && (await this.#followDevices())
    if (!isOld) return refusals
    return this.#change(
      [],
      kind,
      refusals.map(({ entry }) => entry),
    )
  }

  #gatewayTo(destination: string): Address | undefined {
    return parseAddress(this.#wanted.get(destination)?.gateway ?? '')
  }

  /**
   * Records which routes to the destinations `looked` the kernel refused, and logs the refusals that were not recorded
   * before.
   */
  #noteRefused(refusals: readonly Refusal[], looked: ReadonlySet<string>): void {
    const before = this.#refused
    const others = [...before].filter(([destination]) => this.#wanted.has(destination) && !looked.has(destination))
    this.#refused = new Map([...others, ...refusals.map(({ entry }) => entry)])
    const news = refusals.filter(({ entry: [destination, hop] }) => !isSame(before.get(destination), hop))
    for (const { entry, error } of news.slice(0, NAMED))
      this.#log.error(`Error adding route to ${say(entry)}: ${error.message}`)
    if (news.length > NAMED) this.#log.error(`Error adding routes to ${news.length - NAMED} more subnets`)
  }

  /** Logs the routes of other programs that weftd replaces. `known` has the next hops of the last call of `apply`. */
  #logReplaced(missing: readonly Entry[], routes: ReadonlyMap<string, Route>, known: NextHops): void {
    for (const [destination] of missing) {
      const other = routes.get(destination)
      const before = known.get(destination)
      if (other && !(before && isThere(other, before)))
        this.#log.warn(`Replacing existing route to ${destination} via ${other.gateway ?? other.device}`)
    }
  }

  /**
   * Logs routes within the network that no peer needs but that use the devices of peers' routes. weftd does not remove
   * these routes, because an earlier process or another program made them.
   */
  #warnOfUnknown(routes: ReadonlyMap<string, Route>): void {
    const indexes = new Set([...devicesOf(this.#wanted)].map(({ index }) => index))
    const strange = [...routes.values()].filter(
      ({ destination, gateway, deviceIndex }) =>
        gateway !== undefined &&
        deviceIndex !== this.#ownDevice?.index &&
        indexes.has(deviceIndex) &&
        !this.#wanted.has(destination),
    )
    const some = strange.slice(0, NAMED).map(({ destination, gateway }) => `${destination} via ${gateway}`)
    if (strange.length > 0)
      this.#log.warn(
        `Routes into the network that belong to no node: ${some.join(', ')}${strange.length > NAMED ? ', ...' : ''}; ` +
          'remove them with `ip route del` unless they are wanted',
      )
  }
}
