// route-sync.ts - makes the kernel's routes to peers' subnets equal a given set, and repairs them.
//
// One `ip -batch` process makes all changes, so that thousands of peers cost one process. All routes through the
// backend's own device belong to weftd, including those of an earlier process. Through other devices only the routes
// that this process made belong to weftd, because an operator may have made the rest.

import { messageOf } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Lease } from '../../control/lease/lease.ts'
import { runBatch } from '../../host/batch.ts'
import type { Run } from '../../host/command.ts'
import type { HostKernel } from '../../host/kernel.ts'
import {
  routesExactly,
  routesWithin,
  USUAL_METRIC,
  type FollowedLink,
  type Named,
  type Route,
} from '../../host/links.ts'
import { addressText, familyOf, netText, type Net } from '../../net/address.ts'

/**
 * The maximum number of refused routes that weftd tries again one by one to get the kernel's reason. Also the maximum
 * number of routes that weftd names in log lines about other programs' routes.
 */
const NAMED = 5

export interface NextHop {
  readonly gateway: string
  /** The interface of the route. `RouteSync` looks up its present name if a route through the interface is missing. */
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
  readonly ownDevice?: Named
  readonly run: Run
  readonly kernel: HostKernel
  readonly log: Log
}

const say = (destination: string, { gateway, device }: NextHop): string =>
  `${destination} via ${gateway} dev ${device.name}`
const isThere = (route: Route | undefined, { gateway, device }: NextHop): boolean =>
  route?.gateway === gateway && route.device === device.name
const isSame = (a: NextHop | undefined, b: NextHop): boolean =>
  a?.gateway === b.gateway && a.device.name === b.device.name
const wordsFor = (destination: string, hop: NextHop): string[] => [
  'route',
  'replace',
  ...say(destination, hop).split(' '),
  ...(hop.onlink ? ['onlink'] : []),
]

const linesFor = (hops: Iterable<readonly [string, NextHop]>): string[] =>
  [...hops].map(([destination, hop]) => wordsFor(destination, hop).join(' '))
const devicesOf = (hops: NextHops): ReadonlySet<FollowedLink> => new Set([...hops.values()].map(({ device }) => device))

/**
 * The functions that make the log lines for peers in backends that route to the peer's host; the text is flanneld's
 * (pkg/backend/route_network.go).
 */
export const ROUTE_WORDS = {
  added: ({ subnet, attrs }: Lease): string => `Subnet added: ${netText(subnet)} via ${addressText(attrs.publicIp)}`,
}

export class RouteSync {
  readonly #network: Net
  readonly #ownDevice: Named | undefined
  readonly #run: Run
  readonly #log: Log
  #wanted: NextHops = new Map()
  /** The wanted routes that the kernel refused. */
  #refused: NextHops = new Map()
  /**
   * The destinations that already have a route to a link of this host, made by another program or by the kernel for a
   * bridge. weftd never replaces such a route.
   */
  #taken: ReadonlySet<string> = new Set()
  #isFirst = true

  constructor({ network, ownDevice, run, log }: RouteSyncOptions) {
    this.#network = network
    this.#ownDevice = ownDevice
    this.#run = run
    this.#log = log
  }

  /**
   * Makes weftd's routes equal to `hops`. Logs routes that the kernel refuses; `resync` tries them again. If `touched`
   * is given, only routes to these destinations differ from the last call, so `apply` reads only these routes.
   */
  async apply(hops: NextHops, touched?: ReadonlySet<string>): Promise<void> {
    if (touched?.size === 0) return
    const where = this.#isFirst ? undefined : touched
    const routes = await this.#mainRoutes(where)
    const known = this.#wanted
    this.#wanted = hops
    await this.#noteDevices()
    const isOld = ([destination, route]: readonly [string, Route]): boolean => {
      const hop = known.get(destination)
      return hop !== undefined && !isThere(route, hop)
    }
    if ([...routes].some(isOld)) await this.#followDevices(known)
    if (this.#isFirst) this.#warnOfUnknown(routes)
    this.#isFirst = false
    const gone = [...routes].filter(([destination, { device, gateway }]) => {
      const ours = known.get(destination)
      const isOurs =
        (ours && isThere(routes.get(destination), ours)) || (device === this.#ownDevice?.name && gateway !== undefined)
      return isOurs && !hops.has(destination)
    })
    this.#noteTaken(routes, where)
    const adding = this.#missing(routes, where)
    for (const [destination] of adding) {
      const other = routes.get(destination)
      const before = known.get(destination)
      if (other && !(before && isThere(other, before)))
        this.#log.warn(`Replacing existing route to ${destination} via ${other.gateway ?? other.device}`)
    }
    await this.#change(
      [
        ...gone.map(([destination, { gateway, device }]) => `route del ${destination} via ${gateway} dev ${device}`),
        ...linesFor(adding),
      ],
      where,
    )
  }

  /**
   * Returns true if weftd wants the route to this destination, the kernel accepted the route, and no other program's
   * route has its place.
   */
  isSet(destination: string): boolean {
    return this.#wanted.has(destination) && !this.#refused.has(destination) && !this.#taken.has(destination)
  }

  /** Restores missing routes and returns a description of each restored route. */
  async resync(): Promise<readonly string[]> {
    const routes = await this.#mainRoutes()
    // Look up the interfaces' present names only if routes are missing, because the kernel changes the name in its
    // routes by itself.
    if (this.#missing(routes).length > 0) await this.#followDevices()
    this.#noteTaken(routes)
    const lost = this.#missing(routes)
    await this.#change(linesFor(lost))
    return lost
      .filter(([destination, hop]) => !isSame(this.#refused.get(destination), hop))
      .map(([destination, hop]) => `the route to ${destination} via ${hop.gateway} was gone`)
  }

  async #mainRoutes(of?: ReadonlySet<string>): Promise<Map<string, Route>> {
    const family = familyOf(this.#network)
    const routes = await (of ? routesExactly(this.#run, family, [...of]) : routesWithin(this.#run, this.#network))
    return new Map(
      routes.filter(({ metric }) => metric === USUAL_METRIC[family]).map((each) => [each.destination, each]),
    )
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
      route.device !== this.#ownDevice?.name
    )
  }

  /**
   * Records in `#taken` which destinations of `where` have a route for which `#isAnothers` is true. Logs the
   * destinations that were not recorded before.
   */
  #noteTaken(routes: ReadonlyMap<string, Route>, where: Iterable<string> = this.#wanted.keys()): void {
    const looked = [...where]
    const theirs = looked.filter(
      (destination) => this.#wanted.has(destination) && this.#isAnothers(routes.get(destination)),
    )
    const fresh = theirs.filter((destination) => !this.#taken.has(destination))
    for (const destination of fresh.slice(0, NAMED))
      this.#log.error(
        `The route to ${destination}, a peer's subnet, leads to ${routes.get(destination)?.device} on this host, and weftd keeps this route: ` +
          'packets to that peer do not reach it; remove the device or program with that subnet on this host, or give the peer another subnet',
      )
    const unlooked = [...this.#taken].filter((each) => this.#wanted.has(each) && !looked.includes(each))
    this.#taken = new Set([...unlooked, ...theirs])
  }

  /** Looks up the present names of the interfaces of the routes `of`. Returns true if an interface has a new name. */
  async #followDevices(of = this.#wanted): Promise<boolean> {
    let isRenamed = false
    for (const device of devicesOf(of)) {
      const before = device.name
      await device.find(this.#run)
      isRenamed ||= device.name !== before
    }
    return isRenamed
  }

  /** Stores the index of each interface now, while the interface still has the given name. */
  async #noteDevices(): Promise<void> {
    for (const device of devicesOf(this.#wanted)) if (device.index === undefined) await device.find(this.#run)
  }

  #missing(
    routes: ReadonlyMap<string, Route>,
    where: Iterable<string> = this.#wanted.keys(),
  ): (readonly [string, NextHop])[] {
    return [...where].flatMap((destination) => {
      const hop = this.#wanted.get(destination)
      const route = routes.get(destination)
      return hop && !isThere(route, hop) && !this.#isAnothers(route) ? [[destination, hop] as const] : []
    })
  }

  /**
   * Passes `lines` to `ip -batch`, and records which routes the kernel refused. `touched` lists the destinations of the
   * lines; if it is left out, the lines may concern all destinations.
   */
  async #change(lines: readonly string[], touched?: ReadonlySet<string>): Promise<void> {
    if (await runBatch(this.#run, 'ip', lines)) {
      this.#refused = new Map(touched ? [...this.#refused].filter(([destination]) => !touched.has(destination)) : [])
      return
    }
    if (await this.#followDevices()) return this.#change(linesFor(this.#missing(await this.#mainRoutes())))
    const still = new Map(this.#missing(await this.#mainRoutes()))
    const news = [...still].filter(([destination, hop]) => !isSame(this.#refused.get(destination), hop))
    for (const [destination, hop] of news.slice(0, NAMED)) {
      const why = await this.#run('ip', wordsFor(destination, hop)).then(() => undefined, messageOf)
      if (why === undefined) still.delete(destination) // the kernel accepts it now
      else this.#log.error(`Error adding route to ${say(destination, hop)}: ${why}`)
    }
    if (news.length > NAMED) this.#log.error(`Error adding routes to ${news.length - NAMED} more subnets`)
    this.#refused = still
  }

  /**
   * Logs routes within the network that no peer needs but that use the devices of peers' routes. weftd does not remove
   * these routes, because an earlier process or another program made them.
   */
  #warnOfUnknown(routes: ReadonlyMap<string, Route>): void {
    const names = new Set([...devicesOf(this.#wanted)].map(({ name }) => name))
    const strange = [...routes.values()].filter(
      ({ destination, gateway, device }) =>
        gateway !== undefined &&
        device !== this.#ownDevice?.name &&
        names.has(device) &&
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
