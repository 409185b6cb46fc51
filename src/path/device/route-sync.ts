// route-sync.ts - makes the kernel's routes to peers' subnets equal a given set, and repairs them.
//
// All changes are passed to one `ip -batch` process, so that thousands of peers cost one process. All routes through the backend's own
// device belong to weftd, including those of an earlier process. Through other devices only the routes that this process made belong to
// weftd, because an operator may have made the others.

import { messageOf } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Lease } from '../../control/lease/lease.ts'
import { runBatch } from '../../host/batch.ts'
import type { Run } from '../../host/command.ts'
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
 * The maximum number of refused routes that are tried again one by one to get the kernel's reason; also the maximum number of unknown
 * routes that one log line names.
 */
const NAMED = 5

export interface NextHop {
  readonly gateway: string
  /** The interface of the route. `RouteSync` looks up its present name if a route through the interface is missing. */
  readonly device: FollowedLink
  /** True if the kernel must treat the gateway as directly reachable on the device, even if no address of the device covers it. */
  readonly onlink?: boolean
}

/** The next hops by destination, which is text such as `10.5.2.0/24`. */
export type NextHops = ReadonlyMap<string, NextHop>

interface RouteSyncOptions {
  /** The network that contains the destinations of all routes. */
  readonly network: Net
  /** The backend's own device; left out if the backend routes through the external interface. */
  readonly ownDevice?: Named
  readonly run: Run
  readonly log: Log
}

export interface RouteSync {
  /**
   * Makes weftd's routes equal `hops`. Routes that the kernel refuses are logged, and `resync` tries them again. With `touched`, only
   * routes to these destinations differ from the last call, so that only they are read.
   */
  apply(hops: NextHops, touched?: ReadonlySet<string>): Promise<void>
  /** True if the route to this destination was requested, the kernel accepted it, and no other program's route has its place. */
  isSet(destination: string): boolean
  /** Restores missing routes and returns a description of each restored route. */
  resync(): Promise<readonly string[]>
}

const say = (destination: string, { gateway, device }: NextHop): string =>
  `${destination} via ${gateway} dev ${device.name}`
const isSame = (a: NextHop | undefined, b: NextHop): boolean =>
  a?.gateway === b.gateway && a.device.name === b.device.name
const wordsFor = (destination: string, hop: NextHop): string[] => [
  'route',
  'replace',
  ...say(destination, hop).split(' '),
  ...(hop.onlink ? ['onlink'] : []),
]

/**
 * The functions that make the log lines for peers in backends that route to the peer's host; the text is flanneld's
 * (pkg/backend/route_network.go).
 */
export const ROUTE_WORDS = {
  added: ({ subnet, attrs }: Lease): string => `Subnet added: ${netText(subnet)} via ${addressText(attrs.publicIp)}`,
}

export function createRouteSync({ network, ownDevice, run, log }: RouteSyncOptions): RouteSync {
  let wanted: NextHops = new Map()
  let refused: NextHops = new Map()
  /**
   * The destinations that already have a route to a link of this host, made by another program or by the kernel for a bridge. weftd never
   * replaces these routes.
   */
  let taken: ReadonlySet<string> = new Set()
  let isFirst = true

  const mainRoutes = async (of?: ReadonlySet<string>): Promise<Map<string, Route>> =>
    new Map(
      (await (of ? routesExactly(run, familyOf(network), [...of]) : routesWithin(run, network)))
        .filter(({ metric }) => metric === USUAL_METRIC[familyOf(network)])
        .map((each) => [each.destination, each]),
    )
  const isThere = (route: Route | undefined, { gateway, device }: NextHop): boolean =>
    route?.gateway === gateway && route.device === device.name
  /**
   * True if the route leads to a link of this host, that is, without a gateway through a device that is not the backend's own, such as a
   * bridge.
   */
  const isAnothers = (route: Route | undefined): boolean =>
    route !== undefined &&
    route.gateway === undefined &&
    !route.isMultipath &&
    route.type === 'unicast' &&
    route.device !== ownDevice?.name
  /**
   * Records in `taken` which of these destinations have a route that `isAnothers` accepts, and logs those that were not recorded before.
   */
  function noteTaken(routes: ReadonlyMap<string, Route>, where: Iterable<string> = wanted.keys()): void {
    const looked = [...where]
    const theirs = looked.filter((destination) => wanted.has(destination) && isAnothers(routes.get(destination)))
    const fresh = theirs.filter((destination) => !taken.has(destination))
    for (const destination of fresh.slice(0, NAMED))
      log.error(
        `The route to ${destination}, a peer's subnet, leads to ${routes.get(destination)?.device} on this host, and weftd keeps this route: ` +
          'packets to that peer do not reach it; remove the device or program with that subnet on this host, or give the peer another subnet',
      )
    taken = new Set([...[...taken].filter((each) => wanted.has(each) && !looked.includes(each)), ...theirs])
  }
  const missing = (
    routes: ReadonlyMap<string, Route>,
    where: Iterable<string> = wanted.keys(),
  ): (readonly [string, NextHop])[] =>
    [...where].flatMap((destination) => {
      const hop = wanted.get(destination)
      const route = routes.get(destination)
      return hop && !isThere(route, hop) && !isAnothers(route) ? [[destination, hop] as const] : []
    })

  const devices = (of = wanted): ReadonlySet<FollowedLink> => new Set([...of.values()].map(({ device }) => device))
  /** Looks up the present names of the interfaces of these routes. Returns true if an interface has a new name. */
  async function followDevices(of = wanted): Promise<boolean> {
    let isRenamed = false
    for (const device of devices(of)) {
      const before = device.name
      await device.find(run)
      isRenamed ||= device.name !== before
    }
    return isRenamed
  }
  /** Remembers the index of each interface while its name is known to be right. */
  async function noteDevices(): Promise<void> {
    for (const device of devices()) if (device.index === undefined) await device.find(run)
  }

  const lines = (hops: Iterable<readonly [string, NextHop]>): string[] =>
    [...hops].map(([destination, hop]) => wordsFor(destination, hop).join(' '))
  /**
   * Passes these lines to `ip -batch` and records which routes the kernel refused. `touched` lists the lines' destinations; if it is left
   * out, the lines may concern all destinations.
   */
  async function change(changes: readonly string[], touched?: ReadonlySet<string>): Promise<void> {
    if (await runBatch(run, 'ip', changes)) {
      refused = new Map(touched ? [...refused].filter(([destination]) => !touched.has(destination)) : [])
      return
    }
    if (await followDevices()) return change(lines(missing(await mainRoutes())))
    const still = new Map(missing(await mainRoutes()))
    const news = [...still].filter(([destination, hop]) => !isSame(refused.get(destination), hop))
    for (const [destination, hop] of news.slice(0, NAMED)) {
      const why = await run('ip', wordsFor(destination, hop)).then(() => undefined, messageOf)
      if (why === undefined) still.delete(destination) // the kernel accepts it now
      else log.error(`Error adding route to ${say(destination, hop)}: ${why}`)
    }
    if (news.length > NAMED) log.error(`Error adding routes to ${news.length - NAMED} more subnets`)
    refused = still
  }

  /**
   * Logs the routes within the network that no peer needs, through devices of peers' routes. An earlier process or another program made
   * them, so they are not removed.
   */
  function warnOfUnknown(routes: ReadonlyMap<string, Route>): void {
    const names = new Set([...devices()].map(({ name }) => name))
    const strange = [...routes.values()].filter(
      ({ destination, gateway, device }) =>
        gateway !== undefined && device !== ownDevice?.name && names.has(device) && !wanted.has(destination),
    )
    const some = strange.slice(0, NAMED).map(({ destination, gateway }) => `${destination} via ${gateway}`)
    if (strange.length > 0)
      log.warn(
        `Routes into the network that belong to no node: ${some.join(', ')}${strange.length > NAMED ? ', ...' : ''}; ` +
          'remove them with `ip route del` unless they are wanted',
      )
  }

  return {
    async apply(hops, touched) {
      if (touched?.size === 0) return
      const where = isFirst ? undefined : touched
      const routes = await mainRoutes(where)
      const known = wanted
      wanted = hops
      await noteDevices()
      const isOld = ([destination, route]: readonly [string, Route]): boolean => {
        const hop = known.get(destination)
        return hop !== undefined && !isThere(route, hop)
      }
      if ([...routes].some(isOld)) await followDevices(known)
      if (isFirst) warnOfUnknown(routes)
      isFirst = false
      const gone = [...routes].filter(([destination, { device, gateway }]) => {
        const ours = known.get(destination)
        const isOurs =
          (ours && isThere(routes.get(destination), ours)) || (device === ownDevice?.name && gateway !== undefined)
        return isOurs && !wanted.has(destination)
      })
      noteTaken(routes, where)
      const adding = missing(routes, where)
      for (const [destination] of adding) {
        const other = routes.get(destination)
        const before = known.get(destination)
        if (other && !(before && isThere(other, before)))
          log.warn(`Replacing existing route to ${destination} via ${other.gateway ?? other.device}`)
      }
      await change(
        [
          ...gone.map(([destination, { gateway, device }]) => `route del ${destination} via ${gateway} dev ${device}`),
          ...lines(adding),
        ],
        where,
      )
    },
    isSet: (destination) => wanted.has(destination) && !refused.has(destination) && !taken.has(destination),
    async resync() {
      const routes = await mainRoutes()
      if (missing(routes).length > 0) await followDevices() // the kernel's routes follow a new name by themselves
      noteTaken(routes)
      const lost = missing(routes)
      await change(lines(lost))
      return lost
        .filter(([destination, hop]) => !isSame(refused.get(destination), hop))
        .map(([destination, hop]) => `the route to ${destination} via ${hop.gateway} was gone`)
    },
  }
}
