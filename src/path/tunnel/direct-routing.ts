// direct-routing.ts - direct routing: packets to peers that are reached without a router use a route to the peer's
// host, like those of host-gw, instead of the tunnel.

import { isDeepStrictEqual } from 'node:util'
import type { Log } from '../../base/log.ts'
import { sideOf, type Lease } from '../../control/lease/lease.ts'
import type { Run } from '../../host/command.ts'
import { routesFor } from '../../host/links.ts'
import { familyOf, formatAddress, formatNet, type Family, type Net } from '../../net/address.ts'
import { createRouteSync, type NextHop, type NextHops, type RouteSync } from '../device/route-sync.ts'
import type { Carrier } from './choose-carrier.ts'

interface DirectHops {
  /** Looks up the kernel's routes to peers' hosts: of all peers, or only of those in `changed`. */
  lookUp(peers: ReadonlyMap<string, Lease>, changed?: ReadonlyMap<string, Lease | undefined>): Promise<void>
  hops(): NextHops
  has(peer: Lease): boolean
  /**
   * Looks up the next hops again of peers whose direct route the kernel refused, as `routes` reports, until it accepts one. After a change
   * of address or interface their hosts may be beyond a router. Returns the peers whose next hop changed, by key; the caller routes them.
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
      // Removals come first, because the subnet of a removed peer may belong to another peer now.
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

/** Returns the carrier with direct routes, for use before a tunnel that carries the whole network. */
export function createDirectCarrier({ network, run, log }: DirectCarrierOptions): Carrier {
  const family = familyOf(network)
  const direct = createDirectHops(run, family)
  const routes = createRouteSync({ network, run, log })
  return {
    name: 'direct',
    // If the kernel refuses a route, packets to the peer continue to use the tunnel's route.
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
