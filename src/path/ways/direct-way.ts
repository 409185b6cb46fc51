// direct-way.ts - direct routing: to peers that are reached without a router packets are routed as host-gw does, past any tunnel.

import type { Run } from '../../host/command.ts'
import { routesFor } from '../../host/links.ts'
import { sideOf, type Lease } from '../../control/lease/lease.ts'
import type { Log } from '../../base/log.ts'
import { familyOf, formatAddress, formatNet, type Family, type Net } from '../../net/address.ts'
import { createRouteSync, type NextHop, type NextHops } from '../device/route-sync.ts'
import type { Way } from './ways.ts'

export interface DirectHops {
  /** Asks the kernel how peers' hosts are reached: of those alone that may differ, where they are named. */
  look(peers: ReadonlyMap<string, Lease>, changed?: ReadonlyMap<string, Lease | undefined>): Promise<void>
  /** The next hops to peers that need no tunnel, by subnet. */
  hops(): NextHops
  has(peer: Lease): boolean
}

/** For peers of one family. */
export function createDirectHops(run: Run, family: Family): DirectHops {
  const hostOf = (peer: Lease): string => formatAddress(sideOf(peer, family).host)
  const subnetOf = (peer: Lease): string => formatNet(sideOf(peer, family).subnet)
  let hops: NextHops = new Map()
  async function hopsTo(peers: readonly Lease[]): Promise<(readonly [string, NextHop])[]> {
    const routes = await routesFor(run, family, peers.map(hostOf))
    return peers.flatMap((peer) => {
      const route = routes.get(hostOf(peer))
      if (!route || route.gateway !== undefined) return []
      return [[subnetOf(peer), { gateway: hostOf(peer), device: route.device }] as const]
    })
  }
  return {
    async look(peers, changed) {
      if (!changed) {
        hops = new Map(await hopsTo([...peers.values()]))
        return
      }
      const found = await hopsTo([...changed.keys()].flatMap((key) => peers.get(key) ?? []))
      const next = new Map(hops)
      // Peers that go come first: the subnet of one that goes may be another's from now on.
      for (const [key, before] of changed)
        for (const peer of [before, peers.get(key)]) if (peer) next.delete(subnetOf(peer))
      for (const [subnet, hop] of found) next.set(subnet, hop)
      hops = next
    },
    hops: () => hops,
    has: (peer) => hops.has(subnetOf(peer)),
  }
}

export interface DirectWayOptions {
  readonly network: Net
  readonly run: Run
  readonly log: Log
}

/** Beside a tunnel that takes the whole network. */
export function createDirectWay({ network, run, log }: DirectWayOptions): Way {
  const family = familyOf(network)
  const direct = createDirectHops(run, family)
  const routes = createRouteSync({ network, run, log })
  return {
    name: 'direct',
    // A route that the kernel refuses leaves the packets to that of the tunnel.
    takes: (peer) => routes.isSet(formatNet(sideOf(peer, family).subnet)),
    async apply(peers, changed) {
      if (changed?.size === 0) return
      await direct.look(peers, changed)
      await routes.apply(direct.hops())
    },
    hasRoute: (destination) => direct.hops().has(destination),
    endpointOf: (peer) => formatAddress(sideOf(peer, family).host),
    resync: () => routes.resync(),
  }
}
