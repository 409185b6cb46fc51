// direct-way.ts - direct routing: to peers that are reached without a router packets are routed as host-gw does, past any tunnel.

import type { Run } from '../host/command.ts'
import { routesFor } from '../host/links.ts'
import type { Ipv4Lease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net, type Ipv4Net } from '../net/ipv4.ts'
import { createRouteSync, type NextHop, type NextHops } from './route-sync.ts'
import type { PeerChanges, Way } from './ways.ts'

export interface DirectHops {
  /** Asks the kernel how peers' hosts are reached: of those alone that may differ, where they are named. */
  look(peers: ReadonlyMap<string, Ipv4Lease>, changed?: PeerChanges): Promise<void>
  /** To the peers that need no tunnel, by subnet. */
  hops(): NextHops
  has(peer: Ipv4Lease): boolean
}

const hostOf = ({ attrs }: Ipv4Lease): string => formatIpv4(attrs.publicIp.ipv4)
const subnetOf = ({ subnet }: Ipv4Lease): string => formatIpv4Net(subnet.ipv4)

export function createDirectHops(run: Run): DirectHops {
  let hops: NextHops = new Map()
  async function hopsTo(peers: readonly Ipv4Lease[]): Promise<(readonly [string, NextHop])[]> {
    const routes = await routesFor(run, peers.map(hostOf))
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
      // In this order: the subnet of one that goes may be another's from now on.
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
  readonly network: Ipv4Net
  readonly run: Run
  readonly log: Log
}

/** Beside a tunnel that takes the whole network. */
export function createDirectWay({ network, run, log }: DirectWayOptions): Way & Pick<DirectHops, 'hops'> {
  const direct = createDirectHops(run)
  const routes = createRouteSync({ network, run, log })
  return {
    name: 'direct',
    hops: () => direct.hops(),
    // Where the kernel refuses the route, the one of the tunnel takes the packets.
    takes: (peer) => routes.isSet(subnetOf(peer)),
    async apply(peers, changed) {
      if (changed?.size === 0) return
      await direct.look(peers, changed)
      await routes.apply(direct.hops())
    },
    endpointOf: hostOf,
    resync: () => routes.resync(),
  }
}
