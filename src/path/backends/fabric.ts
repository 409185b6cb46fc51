// fabric.ts - the backend whose routes are in a cloud or a switch: the cloud or the switch routes each node's subnet to
// the node.
//
// flannel's cloud backends changed nothing on the host, and only wrote subnet.env with the MTU of the external
// interface (v0.13, backend/simple_network.go); this backend does the same. Each cloud has a publisher of its own
// (fabric/publisher.ts), which calls the cloud's API. If that API fails, packets still flow, because the routes stay in
// the cloud.

import { hostname } from 'node:os'
import { carryIpv4Alone } from '../../control/config/network-config.ts'
import type { LeaseAttrs, Lease, OwnLease } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { FAMILIES, familiesOf, type Family, type Net } from '../../net/address.ts'
import { isIpv4Alone, KINDS, type BackendType } from '../catalog.ts'
import type { Backend, BackendParts, DataPath, PathPeer } from '../contract.ts'
import { sumCounters } from '../sums.ts'
import { PeerFilter, unusableIn } from '../tunnel/peer-filter.ts'
import { ApiClient } from './fabric/api-client.ts'
import type { MakePublisher } from './fabric/publisher.ts'
import { RouteKeeper } from './fabric/route-keeper.ts'
import { peerAtHost } from './peer-at-host.ts'

/** How long, in ms, the start waits for the first attempt to publish the route. */
const FIRST_MS = 5_000

/**
 * Creates the backend of type T, which writes its routes through a publisher, the client of a cloud's API. `make`
 * creates the publisher at the start, and again after each failure to publish.
 */
export function createFabricBackend<T extends BackendType>(
  type: T,
  { config, external: found, kernel, log }: BackendParts<T>,
  make: MakePublisher,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): Backend {
  let external = found
  const client = new ApiClient()
  const nodeName = environment['NODE_NAME'] ?? hostname()
  const families = isIpv4Alone(type) ? (['ipv4'] as const) : familiesOf(config)

  function keeperFor(lease: Lease, family: Family): RouteKeeper[] {
    const network = config[family]?.network
    const subnet = lease.subnet[family]
    const [address, publicIp] = [external.address[family], external.publicIp[family]]
    if (!network || !subnet || address === undefined || publicIp === undefined) return []
    const place = { subnet, address, publicIp, nodeName, environment, client, log }
    return [new RouteKeeper({ subnet, network, make: () => make(place), log })]
  }
  const keepersFor = (lease: Lease): RouteKeeper[] => families.flatMap((family) => keeperFor(lease, family))

  return {
    name: type,
    devices: [],
    get external() {
      return external
    },
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(kernel, external)
      if (isIpv4Alone(type)) carryIpv4Alone(`the ${type} backend`, config, log)
      return { publicIp: external.publicIp, backendType: KINDS[type].published }
    },
    plan: () => [
      {
        families,
        mtu: external.mtu,
        external: { families: FAMILIES, isBound: true },
        // The kernel does not report changes of routes outside of this host. So weftd calls `resync` often; a
        // RouteKeeper (fabric/route-keeper.ts) sends requests to the API only if a check of its route is due.
        isUnreported: true,
        async open(own, _leases, signal) {
          const path = new FabricPath(keepersFor(own), filtersFor(own))
          await path.checkFirst(signal)
          return path
        },
      },
    ],
    async withdraw(lease, signal) {
      // Wait until the removal of both families' routes has ended, because the process may exit after the first error.
      const results = await Promise.allSettled(keepersFor(lease).map((keeper) => keeper.withdraw(signal)))
      return results.flatMap((result) => {
        if (result.status === 'rejected') throw result.reason
        return result.value
      })
    },
  }

  function filtersFor(own: OwnLease): ReadonlyMap<Family, PeerFilter> {
    const isOneOfTwo = familiesOf(config).length === 2
    const filters = new Map<Family, PeerFilter>()
    for (const family of families) {
      const network = config[family]?.network
      const published = KINDS[type].published
      if (network) filters.set(family, new PeerFilter<Net>({ type: published, lease: own, network, isOneOfTwo, log }))
    }
    return filters
  }
}

class FabricPath implements DataPath {
  readonly families: readonly Family[]
  readonly fault: Promise<Error> = new Promise(() => {})
  readonly #keepers: readonly RouteKeeper[]
  readonly #filters: ReadonlyMap<Family, PeerFilter>
  /**
   * The running or completed check of the routes, until `resync` has returned the check's repairs; undefined if there
   * is no such check.
   */
  #running: Promise<readonly string[]> | undefined

  constructor(keepers: readonly RouteKeeper[], filters: ReadonlyMap<Family, PeerFilter>) {
    this.families = [...filters.keys()]
    this.#keepers = keepers
    this.#filters = filters
  }

  /**
   * Publishes this node's routes. Stops waiting after FIRST_MS, or when `signal` aborts; then publishing continues in
   * the background.
   */
  async checkFirst(signal: AbortSignal): Promise<void> {
    const first = new AbortController()
    const timer = setTimeout(() => first.abort(), FIRST_MS)
    const isLate = new Promise<void>((resolve) => {
      first.signal.addEventListener('abort', () => resolve())
      signal.addEventListener('abort', () => resolve())
    })
    await this.resync(isLate).finally(() => clearTimeout(timer))
  }

  async apply(leases: ReadonlyMap<string, Lease>, ownKey: string, touched?: ReadonlySet<string>): Promise<void> {
    for (const filter of this.#filters.values()) filter.take(leases, ownKey, touched)
  }

  /**
   * Waits for the running check of the routes, or starts a check. Returns the repairs. Returns an empty list if `late`
   * resolves before the check ends.
   */
  async resync(late?: Promise<unknown>): Promise<readonly string[]> {
    const checking = (this.#running ??= this.#check())
    const repairs = await (late ? Promise.race([checking, late.then(() => undefined)]) : checking)
    if (repairs) this.#running = undefined
    return repairs ?? []
  }

  carrier(): ReturnType<DataPath['carrier']> {
    return { engine: 'none', features: [] }
  }

  peers(): readonly PathPeer[] {
    const peers = new Map<string, Lease>()
    for (const filter of this.#filters.values()) for (const [key, peer] of filter.peers()) peers.set(key, peer)
    return [...peers.values()].map((peer) => peerAtHost(peer, this.families))
  }

  unusable(): ReadonlySet<string> {
    return unusableIn(this.#filters.values())
  }

  counters(): Readonly<Record<string, bigint>> {
    return sumCounters(this.#keepers.map((keeper) => keeper.counters()))
  }

  /**
   * Stops the checks and keeps the published route, as flanneld does, so that packets still arrive while weftd
   * restarts.
   */
  async close(): Promise<void> {
    await Promise.all(this.#keepers.map((keeper) => keeper.close()))
  }

  async #check(): Promise<readonly string[]> {
    return (await Promise.all(this.#keepers.map((keeper) => keeper.check()))).flat()
  }
}
