// route-sync.ts - makes the kernel's routes to peers' subnets equal a set, and keeps them so.
//
// All that differs goes to one `ip -batch`, so that thousands of peers cost one process. Routes by a device of our own are
// ours, also those of an earlier process; by another device only those are that we made: nothing tells the rest from an operator's.

import { messageOf } from '../errors.ts'
import { runBatch } from '../host/batch.ts'
import type { Run } from '../host/command.ts'
import { routesWithin, type Route } from '../host/links.ts'
import type { Lease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { addressText, netText } from '../net/address.ts'
import type { Ipv4Net } from '../net/ipv4.ts'

/** So many routes that the kernel refuses are each tried alone, to hear why; so many strange ones are named. */
const NAMED = 5

export interface NextHop {
  readonly gateway: string
  readonly device: string
  /** The gateway is taken to be on the device's link, whatever its addresses say. */
  readonly onlink?: boolean
}

/** By destination: `10.5.2.0/24`. */
export type NextHops = ReadonlyMap<string, NextHop>

export interface RouteSyncOptions {
  /** Within which all the routes are. */
  readonly network: Ipv4Net
  /** The device that is a backend's own, if it has one. */
  readonly ownDevice?: string
  readonly run: Run
  readonly log: Log
}

export interface RouteSync {
  /** Makes our routes equal these. What the kernel refuses is named, and tried again by resync. */
  apply(hops: NextHops): Promise<void>
  /** Whether the kernel has taken the route to this destination. */
  isSet(destination: string): boolean
  /** Puts back what others took away; says what. */
  resync(): Promise<readonly string[]>
}

const say = (destination: string, { gateway, device }: NextHop): string => `${destination} via ${gateway} dev ${device}`
const isSame = (a: NextHop | undefined, b: NextHop): boolean => a?.gateway === b.gateway && a.device === b.device
const wordsFor = (destination: string, hop: NextHop): string[] => [
  ...['route', 'replace', ...say(destination, hop).split(' ')],
  ...(hop.onlink ? ['onlink'] : []),
]

/** What backends that route to a peer's host say of it (pkg/backend/route_network.go). */
export const ROUTE_WORDS = {
  added: ({ subnet, attrs }: Lease): string => `Subnet added: ${netText(subnet)} via ${addressText(attrs.publicIp)}`,
}

export function createRouteSync({ network, ownDevice, run, log }: RouteSyncOptions): RouteSync {
  let wanted: NextHops = new Map()
  let refused: NextHops = new Map()
  let isFirst = true

  const mainRoutes = async (): Promise<Map<string, Route>> =>
    new Map(
      (await routesWithin(run, network)).filter(({ metric }) => metric === 0).map((each) => [each.destination, each]),
    )
  const isThere = (route: Route | undefined, { gateway, device }: NextHop): boolean =>
    route?.gateway === gateway && route.device === device
  const missing = (routes: ReadonlyMap<string, Route>): (readonly [string, NextHop])[] =>
    [...wanted].filter(([destination, hop]) => !isThere(routes.get(destination), hop))

  async function change(lines: readonly string[]): Promise<void> {
    if (await runBatch(run, 'ip', lines)) {
      refused = new Map()
      return
    }
    const still = new Map(missing(await mainRoutes()))
    const news = [...still].filter(([destination, hop]) => !isSame(refused.get(destination), hop))
    for (const [destination, hop] of news.slice(0, NAMED)) {
      const why = await run('ip', wordsFor(destination, hop)).then(() => undefined, messageOf)
      if (why === undefined) still.delete(destination) // somebody took it meanwhile
      else log.error(`Error adding route to ${say(destination, hop)}: ${why}`)
    }
    if (news.length > NAMED) log.error(`Error adding routes to ${news.length - NAMED} more subnets`)
    refused = still
  }

  /** Names once what an earlier process, or somebody else, has there by the devices that we use. */
  function nameStrange(routes: ReadonlyMap<string, Route>): void {
    const devices = new Set([...wanted.values()].map(({ device }) => device))
    const strange = [...routes.values()].filter(
      ({ destination, gateway, device }) =>
        gateway !== undefined && device !== ownDevice && devices.has(device) && !wanted.has(destination),
    )
    const names = strange.slice(0, NAMED).map(({ destination, gateway }) => `${destination} via ${gateway}`)
    if (strange.length > 0)
      log.warn(
        `Routes into the network that belong to no node: ${names.join(', ')}${strange.length > NAMED ? ', ...' : ''}; ` +
          'remove them with `ip route del` unless they are wanted',
      )
  }

  return {
    async apply(hops) {
      const routes = await mainRoutes()
      const known = wanted
      wanted = hops
      if (isFirst) nameStrange(routes)
      isFirst = false
      const gone = [...routes].filter(([destination, { device, gateway }]) => {
        const ours = known.get(destination)
        const isOurs =
          (ours && isThere(routes.get(destination), ours)) || (device === ownDevice && gateway !== undefined)
        return isOurs && !wanted.has(destination)
      })
      const adding = missing(routes)
      for (const [destination] of adding) {
        const other = routes.get(destination)
        if (other && !isThere(other, known.get(destination) ?? { gateway: '', device: '' }))
          log.warn(`Replacing existing route to ${destination} via ${other.gateway ?? other.device}`)
      }
      await change([
        ...gone.map(([destination, { gateway, device }]) => `route del ${destination} via ${gateway} dev ${device}`),
        ...adding.map(([destination, hop]) => wordsFor(destination, hop).join(' ')),
      ])
    },
    isSet: (destination) => wanted.has(destination) && !refused.has(destination),
    async resync() {
      const lost = missing(await mainRoutes())
      await change(lost.map(([destination, hop]) => wordsFor(destination, hop).join(' ')))
      return lost
        .filter(([destination, hop]) => !isSame(refused.get(destination), hop))
        .map(([destination, hop]) => `the route to ${destination} via ${hop.gateway} was gone`)
    },
  }
}
