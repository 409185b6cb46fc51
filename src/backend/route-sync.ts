// route-sync.ts - makes the kernel's routes to peers' subnets equal a set, and keeps them so.
//
// All that differs goes to one `ip -batch`, so that thousands of peers cost one process. Routes of others are left alone, also
// those that an earlier process left: nothing tells them from an operator's.

import { isWeftError, messageOf } from '../errors.ts'
import type { Run } from '../host/command.ts'
import { routesWithin, type Route } from '../host/links.ts'
import type { Log } from '../log.ts'
import type { Ipv4Net } from '../net/ipv4.ts'

/** So many routes that the kernel refuses are each tried alone, to hear why; so many strange ones are named. */
const NAMED = 5

export interface RouteSyncOptions {
  /** Within which all the routes are. */
  readonly network: Ipv4Net
  /** Of the routes. */
  readonly device: string
  readonly run: Run
  readonly log: Log
}

/** Gateways by destination: `10.5.2.0/24` to `192.0.2.2`. */
export type Gateways = ReadonlyMap<string, string>

export interface RouteSync {
  /** Makes our routes equal these. What the kernel refuses is named, and tried again by resync. */
  apply(gateways: Gateways): Promise<void>
  /** Puts back what others took away; says what. */
  resync(): Promise<readonly string[]>
}

export function createRouteSync({ network, device, run, log }: RouteSyncOptions): RouteSync {
  let wanted: Gateways = new Map()
  let refused: Gateways = new Map()
  let isFirst = true

  const mainRoutes = async (): Promise<Map<string, Route>> =>
    new Map(
      (await routesWithin(run, network)).filter(({ metric }) => metric === 0).map((each) => [each.destination, each]),
    )
  const isThere = (route: Route | undefined, gateway: string): boolean =>
    route?.gateway === gateway && route.device === device
  const missing = (routes: ReadonlyMap<string, Route>): (readonly [string, string])[] =>
    [...wanted].filter(([destination, gateway]) => !isThere(routes.get(destination), gateway))
  const replacing = (destination: string, gateway: string): string[] => [
    ...['route', 'replace', destination, 'via', gateway, 'dev', device],
  ]

  /** Does all of it, also what comes after a line that the kernel refuses: those are looked for afterwards. */
  async function change(lines: readonly string[]): Promise<void> {
    if (lines.length === 0) return
    try {
      await run('ip', ['-force', '-batch', '-'], { input: `${lines.join('\n')}\n` })
    } catch (error) {
      if (!isWeftError(error, 'COMMAND')) throw error
    }
    const still = missing(await mainRoutes())
    const news = still.filter(([destination, gateway]) => refused.get(destination) !== gateway)
    for (const [destination, gateway] of news.slice(0, NAMED)) {
      const why = await run('ip', replacing(destination, gateway)).then(() => undefined, messageOf)
      if (why !== undefined) log.error(`Error adding route to ${destination} via ${gateway} dev ${device}: ${why}`)
    }
    if (news.length > NAMED) log.error(`Error adding routes to ${news.length - NAMED} more subnets`)
    refused = new Map(still)
  }

  /** Names once what an earlier process, or somebody else, has there. */
  function nameStrange(routes: ReadonlyMap<string, Route>): void {
    const strange = [...routes.values()].filter(
      ({ destination, gateway, device: on }) => gateway !== undefined && on === device && !wanted.has(destination),
    )
    const names = strange.slice(0, NAMED).map(({ destination, gateway }) => `${destination} via ${gateway}`)
    if (strange.length > 0)
      log.warn(
        `Routes into the network that belong to no node: ${names.join(', ')}${strange.length > NAMED ? ', ...' : ''}; ` +
          'remove them with `ip route del` unless they are wanted',
      )
  }

  return {
    async apply(gateways) {
      const routes = await mainRoutes()
      const gone = [...wanted].filter(
        ([destination, gateway]) => !gateways.has(destination) && isThere(routes.get(destination), gateway),
      )
      wanted = gateways
      if (isFirst) nameStrange(routes)
      isFirst = false
      const adding = missing(routes)
      for (const [destination] of adding) {
        const other = routes.get(destination)
        if (other) log.warn(`Replacing existing route to ${destination} via ${other.gateway ?? other.device}`)
      }
      await change([
        ...gone.map(([destination, gateway]) => `route del ${destination} via ${gateway} dev ${device}`),
        ...adding.map(([destination, gateway]) => replacing(destination, gateway).join(' ')),
      ])
    },
    async resync() {
      const lost = missing(await mainRoutes())
      await change(lost.map(([destination, gateway]) => replacing(destination, gateway).join(' ')))
      return lost
        .filter(([destination, gateway]) => refused.get(destination) !== gateway)
        .map(([destination, gateway]) => `the route to ${destination} via ${gateway} was gone`)
    },
  }
}
