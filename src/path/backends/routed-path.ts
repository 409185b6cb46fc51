// routed-path.ts - the common part of the data paths in the kernel that have a route to each peer's subnet: host-gw,
// ipip and vxlan.

import type { Log } from '../../base/log.ts'
import { sideOf, type Lease } from '../../control/lease/lease.ts'
import type { HostKernel } from '../../host/kernel.ts'
import type { FollowedLink } from '../../host/links.ts'
import { formatAddress, formatNet, type Family, type Net } from '../../net/address.ts'
import type { PathPeer, PathSide } from '../contract.ts'
import { partOf, RouteSync, type NextHop } from '../device/route-sync.ts'
import { DirectHops } from '../tunnel/direct-routing.ts'
import type { PeerFilter } from '../tunnel/peer-filter.ts'
import { KernelPath } from './kernel-path.ts'
export interface RoutedParts {
  readonly family: Family
  readonly network: Net
  /** The backend's own device; left out if the backend routes through the external interface. */
  readonly device?: FollowedLink
  /** This host's address from which the daemon sends probes. */
  readonly probeSource: Net['address']
  readonly filter: PeerFilter
  /**
   * True if packets to peers on the same link as this host use a route to the peer's host instead of the tunnel device.
   */
  readonly directRouting?: boolean
  readonly kernel: HostKernel
  readonly log: Log
}

/**
 * A data path of one family with a route to each peer's subnet. It does not count the traffic of a peer, because the
 * kernel counts packets only for the whole device.
 */
export abstract class RoutedPath extends KernelPath {
  readonly #family: Family
  readonly #filter: PeerFilter
  readonly #routes: RouteSync
  /** The next hops of the peers on the same link as this host; undefined without direct routing. */
  readonly #direct: DirectHops | undefined
  #hops = new Map<string, NextHop>()
  /** The peers without a direct route, by subnet. Packets to these peers use the tunnel. */
  protected tunnelled = new Map<string, Lease>()

  constructor({ family, network, device, probeSource, filter, directRouting, kernel, log }: RoutedParts) {
    super({
      families: [family],
      ...(device === undefined ? {} : { device }),
      probeSource: { [family]: probeSource },
      filters: [filter],
    })
    this.#family = family
    this.#filter = filter
    this.#routes = new RouteSync({ network, ...(device === undefined ? {} : { ownDevice: device }), kernel, log })
    this.#direct = directRouting ? new DirectHops(kernel, family) : undefined
  }

  /** Returns the next hop for a peer without a direct route. */
  protected abstract hopTo(peer: Lease): NextHop
  /** Describes how packets reach a peer without a direct route. */
  protected abstract sideTo(peer: Lease): PathSide
  /** Repairs the backend's device, and returns a description of each repair. */
  protected async repairDevice(): Promise<readonly string[]> {
    return []
  }

  protected hostOf(peer: Lease): string {
    return formatAddress(this.sideOf(peer).host)
  }

  protected sideOf(peer: Lease): ReturnType<typeof sideOf> {
    return sideOf(peer, this.#family)
  }

  protected async setPeers(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: ReadonlySet<string>,
  ): Promise<void> {
    const changed = this.#filter.take(leases, ownKey, touched)
    await this.#direct?.lookUp(this.#filter.peers(), changed)
    await this.#assign(changed)
  }

  protected async repair(): Promise<readonly string[]> {
    const repaired = await this.repairDevice()
    const routed = await this.#routes.resync()
    const moved = await this.#direct?.lookUpAgain(this.#filter.peers(), this.#routes)
    if (moved && moved.size > 0) await this.#assign(moved)
    // If the device was repaired, report only that repair. The kernel removed the routes together with the device, so
    // they are not separate faults.
    return repaired.length > 0 ? repaired : routed
  }

  protected listPeers(): readonly PathPeer[] {
    return [...this.#filter.peers().values()]
      .filter((peer) => this.#routes.isSet(this.#subnetOf(peer)))
      .map((peer) => ({
        key: peer.key,
        [this.#family]: this.#direct?.has(peer) ? this.#directSide(peer) : this.sideTo(peer),
      }))
  }

  /**
   * Sets the wanted next hops for the routes to `subnets`, or for all routes if `subnets` is left out. `before` has the
   * peers of these subnets that were in `tunnelled` before the change.
   */
  protected async setRoutes(
    subnets: ReadonlySet<string> | undefined,
    _before: ReadonlyMap<string, Lease>,
  ): Promise<void> {
    await this.#routes.apply(this.#hops, subnets)
  }

  /** Chooses the next hops of the peers in `changed`, or of all peers if `changed` is left out. */
  async #assign(changed: ReadonlyMap<string, Lease | undefined> | undefined): Promise<void> {
    const peers = this.#filter.peers()
    const subnets = new Set<string>()
    for (const [key, was] of changed ?? [])
      for (const peer of [was, peers.get(key)]) if (peer) subnets.add(this.#subnetOf(peer))
    const before = changed ? partOf(this.tunnelled, subnets) : this.tunnelled
    const hops = changed ? this.#hops : new Map<string, NextHop>()
    const tunnelled = changed ? this.tunnelled : new Map<string, Lease>()
    for (const subnet of subnets) {
      hops.delete(subnet)
      tunnelled.delete(subnet)
    }
    for (const key of (changed ?? peers).keys()) {
      const peer = peers.get(key)
      if (!peer) continue
      const subnet = this.#subnetOf(peer)
      const direct = this.#direct?.hops().get(subnet)
      if (!direct) tunnelled.set(subnet, peer)
      hops.set(subnet, direct ?? this.hopTo(peer))
    }
    this.#hops = hops
    this.tunnelled = tunnelled
    await this.setRoutes(changed && subnets, before)
  }

  #subnetOf(peer: Lease): string {
    return formatNet(this.sideOf(peer).subnet)
  }

  #directSide(peer: Lease): PathSide {
    return { endpoint: this.hostOf(peer), probe: this.sideOf(peer).subnet.address, way: 'direct' }
  }
}
