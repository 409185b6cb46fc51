// direct-routing.ts - direct routing: packets to a peer whose host is on the same link use a route to that host instead of the tunnel, as
// with host-gw.

import { isDeepStrictEqual } from 'node:util'
import type { Log } from '../../base/log.ts'
import { sideOf, type Lease } from '../../control/lease/lease.ts'
import type { Run } from '../../host/command.ts'
import { routesFor } from '../../host/links.ts'
import { familyOf, formatAddress, formatNet, type Family, type Net } from '../../net/address.ts'
import { createRouteSync, type NextHop, type NextHops, type RouteSync } from '../device/route-sync.ts'
import type { Carrier } from './choose-carrier.ts'

export interface DirectHops {
  /** Looks up which peers' hosts the kernel reaches without a router. With `changed` it looks up only the peers with those lease keys. */
  lookUp(peers: ReadonlyMap<string, Lease>, changed?: ReadonlyMap<string, Lease | undefined>): Promise<void>
  hops(): NextHops
  has(peer: Lease): boolean
  /**
   * Looks up the next hop again for each peer whose direct route the kernel refused, because the peer's host may now be behind a router.
   * `routes` says which routes the kernel has accepted. Later calls look up the same peer until the kernel accepts its route. Returns, by
   * lease key, the peers whose next hop has changed; the caller must set the routes of these peers.
   */
  lookUpAgain(peers: ReadonlyMap<string, Lease>, routes: Pick<RouteSync, 'isSet'>): Promise<ReadonlyMap<string, Lease>>
}

export function createDirectHops(run: Run, family: Family): DirectHops {
  const hostOf = (peer: Lease): string => formatAddress(sideOf(peer, family).host)
  const subnetOf = (peer: Lease): string => formatNet(sideOf(peer, family).subnet)
  let hops: NextHops = new Map()
  const refused = new Set<string>()
  async function hopsTo(peers: readonly Lease[]): Promise<(readonly [string, NextHop])[]> {
    const routes = await routesFor(run, family, peers.map(hostOf))
    return peers.flatMap((peer) => {
      const route = routes.get(hostOf(peer))
      if (!route || route.gateway !== undefined) return []
      return [[subnetOf(peer), { gateway: hostOf(peer), device: route.device }] as const]
    })
  }
  const direct: DirectHops = {
    async lookUp(peers, changed) {
      if (!changed) {
        hops = new Map(await hopsTo([...peers.values()]))
        return
      }
      const found = await hopsTo([...changed.keys()].flatMap((key) => peers.get(key) ?? []))
      const next = new Map(hops)
      // Removals come first, because a removed peer's subnet may now belong to another peer, whose hop is added below.
      for (const [key, before] of changed)
        for (const peer of [before, peers.get(key)]) if (peer) next.delete(subnetOf(peer))
      for (const [subnet, hop] of found) next.set(subnet, hop)
      hops = next
    },
    hops: () => hops,
    has: (peer) => hops.has(subnetOf(peer)),
    async lookUpAgain(peers, routes) {
      for (const [key, peer] of peers) {
        if (!direct.has(peer)) continue
        if (routes.isSet(subnetOf(peer))) refused.delete(key)
        else refused.add(key)
      }
      const doubtful = new Map<string, Lease>()
      for (const key of refused) {
        const peer = peers.get(key)
        if (peer) doubtful.set(key, peer)
        else refused.delete(key)
      }
      if (doubtful.size === 0) return doubtful
      const before = hops
      await direct.lookUp(peers, doubtful)
      const isOther = (peer: Lease): boolean => !isDeepStrictEqual(before.get(subnetOf(peer)), hops.get(subnetOf(peer)))
      return new Map([...doubtful].filter(([, peer]) => isOther(peer)))
    },
  }
  return direct
}

interface DirectCarrierOptions {
  readonly network: Net
  readonly run: Run
  readonly log: Log
}

/** Returns the carrier that sends packets over direct routes. It is tried before a tunnel that has a route to the whole network. */
export function createDirectCarrier({ network, run, log }: DirectCarrierOptions): Carrier {
  const family = familyOf(network)
  const direct = createDirectHops(run, family)
  const routes = createRouteSync({ network, run, log })
  return {
    name: 'direct',
    // Only peers whose route the kernel accepted count, because packets to all others still follow the tunnel's route.
    takes: (peer) => routes.isSet(formatNet(sideOf(peer, family).subnet)),
    async apply(peers, changed) {
      if (changed?.size === 0) return
      await direct.lookUp(peers, changed)
      await routes.apply(direct.hops())
    },
    hasRoute: (destination) => direct.hops().has(destination),
    endpointOf: (peer) => formatAddress(sideOf(peer, family).host),
    resync: () => routes.resync(),
  }
}
