// direct-routing.ts - direct routing: if a peer's host is on the same link as this host, a route sends the peer's
// packets to the peer's host without the tunnel. The backend host-gw makes the same routes.

import { isDeepStrictEqual } from 'node:util'
import type { Log } from '../../base/log.ts'
import { sideOf, type Lease } from '../../control/lease/lease.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { FollowedLink } from '../../host/links.ts'
import { familyOf, formatAddress, formatNet, type Address, type Family, type Net } from '../../net/address.ts'
import { RouteSync, type NextHop, type NextHops } from '../device/route-sync.ts'
import type { Carrier } from './carrier.ts'

/** The next hops of the peers whose hosts the kernel reaches without a router. */
export class DirectHops {
  readonly #kernel: HostKernel
  readonly #family: Family
  /** The next hop of each subnet, by the subnet as text. */
  #hops: NextHops = new Map()
  /**
   * The lease keys of the peers whose direct route the kernel refused. weftd looks up the next hop of these peers again
   * until the kernel accepts their route.
   */
  readonly #refused = new Set<string>()

  constructor(kernel: HostKernel, family: Family) {
    this.#kernel = kernel
    this.#family = family
  }

  /**
   * Queries the kernel's routes to the peers' hosts, and records the peers whose hosts the kernel reaches without a
   * router. If `changed` is given, queries only the routes to the peers with these lease keys.
   */
  async lookUp(peers: ReadonlyMap<string, Lease>, changed?: ReadonlyMap<string, Lease | undefined>): Promise<void> {
    if (!changed) {
      this.#hops = new Map(await this.#hopsTo([...peers.values()]))
      return
    }
    const found = await this.#hopsTo([...changed.keys()].flatMap((key) => peers.get(key) ?? []))
    const next = new Map(this.#hops)
    // Remove the changed peers first, because a removed peer's subnet may now belong to another peer, whose next hop is
    // added next.
    for (const [key, before] of changed)
      for (const peer of [before, peers.get(key)]) if (peer) next.delete(this.#subnetOf(peer))
    for (const [subnet, hop] of found) next.set(subnet, hop)
    this.#hops = next
  }

  /** Returns the next hop of each subnet with a direct route, by the subnet as text. */
  hops(): NextHops {
    return this.#hops
  }

  /** Returns true if the kernel reaches the peer's host without a router. */
  has(peer: Lease): boolean {
    return this.#hops.has(this.#subnetOf(peer))
  }

  /**
   * Looks up the next hop again for each peer whose direct route the kernel refused, because the peer's host may now be
   * behind a router. `routes` shows which routes the kernel has accepted. Each call looks up such a peer until the
   * kernel has accepted the peer's route. Returns, by lease key, the peers whose next hop has changed; the caller must
   * set the routes of these peers.
   */
  async lookUpAgain(
    peers: ReadonlyMap<string, Lease>,
    routes: Pick<RouteSync, 'isSet'>,
  ): Promise<ReadonlyMap<string, Lease>> {
    for (const [key, peer] of peers) {
      if (!this.has(peer)) continue
      if (routes.isSet(this.#subnetOf(peer))) this.#refused.delete(key)
      else this.#refused.add(key)
    }
    const doubtful = new Map<string, Lease>()
    for (const key of this.#refused) {
      const peer = peers.get(key)
      if (peer) doubtful.set(key, peer)
      else this.#refused.delete(key)
    }
    if (doubtful.size === 0) return doubtful
    const before = this.#hops
    await this.lookUp(peers, doubtful)
    const isOther = (peer: Lease): boolean =>
      !isDeepStrictEqual(before.get(this.#subnetOf(peer)), this.#hops.get(this.#subnetOf(peer)))
    return new Map([...doubtful].filter(([, peer]) => isOther(peer)))
  }

  async #hopsTo(peers: readonly Lease[]): Promise<(readonly [string, NextHop])[]> {
    const queries = peers.map((peer) => ({ to: this.#hostOf(peer) }))
    const answers = await this.#kernel.lookUp(this.#family, queries)
    // Let all next hops through the same interface share one object, which keeps track of the interface when another
    // program renames it.
    const links = new Map([...this.#hops.values()].map(({ device }) => [device.index, device] as const))
    const linkAt = (index: number, name: string): FollowedLink => {
      const link = links.get(index) ?? new FollowedLink(name, index)
      links.set(index, link)
      return link
    }
    return peers.flatMap((peer, at) => {
      const answer = answers[at]
      if (!answer || 'refused' in answer || answer.route.gateway !== undefined) return []
      const { device, deviceIndex } = answer.route
      const hop = { gateway: formatAddress(this.#hostOf(peer)), device: linkAt(deviceIndex, device) }
      return [[this.#subnetOf(peer), hop] as const]
    })
  }

  #hostOf(peer: Lease): Address {
    return sideOf(peer, this.#family).host
  }

  #subnetOf(peer: Lease): string {
    return formatNet(sideOf(peer, this.#family).subnet)
  }
}

interface DirectCarrierOptions {
  readonly network: Net
  readonly kernel: HostKernel
  readonly log: Log
}

/**
 * Returns the carrier that sends packets over direct routes. This carrier is tried before the tunnel, which has a route
 * to the whole network.
 */
export function createDirectCarrier({ network, kernel, log }: DirectCarrierOptions): Carrier {
  const family = familyOf(network)
  const direct = new DirectHops(kernel, family)
  const routes = new RouteSync({ network, kernel, log })
  const subnetOf = (peer: Lease): string => formatNet(sideOf(peer, family).subnet)
  return {
    name: 'direct',
    // Accept only peers whose route the kernel accepted, because packets to all other peers still follow the tunnel's
    // route.
    takes: (peer) => routes.isSet(subnetOf(peer)),
    async apply(peers, changed) {
      if (changed?.size === 0) return
      await direct.lookUp(peers, changed)
      const both = changed && [...changed].flatMap(([key, before]) => [before, peers.get(key)])
      const subnets = both && new Set(both.flatMap((peer) => (peer ? [subnetOf(peer)] : [])))
      await routes.apply(direct.hops(), subnets)
    },
    hasRoute: (destination) => direct.hops().has(destination),
    endpointOf: (peer) => formatAddress(sideOf(peer, family).host),
    resync: () => routes.resync(),
  }
}
