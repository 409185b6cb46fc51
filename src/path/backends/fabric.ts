// fabric.ts - the backend of routes that others keep: a cloud or a switch routes each node's subnet to the node.
//
// On the host flannel's cloud backends did nothing but write subnet.env with the MTU of the external interface (v0.13,
// backend/simple_network.go), and neither does this one. Types differ in their publisher (fabric/publisher.ts) alone. An outage of the API
// ends no data path, because existing routes stay.

import { hostname } from 'node:os'
import { carryIpv4Alone } from '../../control/config/network-config.ts'
import type { LeaseAttrs, Lease, OwnLease } from '../../control/lease/lease.ts'
import { hasFamily, sideOf } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { familiesOf, formatAddress, type Family } from '../../net/address.ts'
import { isIpv4Alone, KINDS, type BackendType } from '../catalog.ts'
import type { Backend, BackendParts, DataPath } from '../contract.ts'
import { watchExternal } from '../device/external-watch.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'
import { ApiClient } from './fabric/api-client.ts'
import type { MakePublisher } from './fabric/publisher.ts'
import { RouteKeeper } from './fabric/route-keeper.ts'

/** How long the start waits for the first attempt to publish the route. */
const FIRST_MS = 5_000

/** Makes the backend of a type by its publisher. `make` is called before each attempt after a failure. */
export function createFabricBackend<T extends BackendType>(
  type: T,
  { config, external: found, run, log }: BackendParts<T>,
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
      external = await currentExternal(run, external)
      if (isIpv4Alone(type)) carryIpv4Alone(`the ${type} backend`, config, log)
      return { publicIp: external.publicIp, backendType: KINDS[type].published }
    },
    open: (own, signal) => openFabric(own, signal, keepersFor(own)),
    async withdraw(lease, signal) {
      const removed = await Promise.all(keepersFor(lease).map((keeper) => keeper.withdraw(signal)))
      return removed.flat()
    },
  }

  async function openFabric(own: OwnLease, signal: AbortSignal, keepers: readonly RouteKeeper[]): Promise<DataPath> {
    const isOneOfTwo = familiesOf(config).length === 2
    const filters = families.flatMap((family) => {
      const network = config[family]?.network
      if (!network) return []
      const filter = new PeerFilter({ type: KINDS[type].published, lease: own, network, isOneOfTwo, log })
      return [{ family, filter }]
    })
    const watch = watchExternal(run, external)
    const check = async (): Promise<readonly string[]> =>
      (await Promise.all(keepers.map((keeper) => keeper.check()))).flat()
    /** The check that the last `resync` did not wait for. */
    let running: Promise<readonly string[]> | undefined
    /** Waits for the running check, or starts one. Returns the repairs if the check ends before `late` resolves. */
    async function checkUntil(late: Promise<unknown> | undefined): Promise<readonly string[]> {
      const checking = (running ??= check())
      const repairs = await (late ? Promise.race([checking, late.then(() => undefined)]) : checking)
      if (repairs) running = undefined
      return repairs ?? []
    }
    const first = new AbortController()
    const timer = setTimeout(() => first.abort(), FIRST_MS)
    const isLate = new Promise<void>((resolve) => {
      first.signal.addEventListener('abort', () => resolve())
      signal.addEventListener('abort', () => resolve())
    })
    await checkUntil(isLate).finally(() => clearTimeout(timer))
    return {
      mtu: external.mtu,
      fault: watch.moved,
      // No kernel reports a change of the routes, so the caller calls `resync` often, and the keeper decides whether a check is due.
      unreported: true,
      async apply(leases, ownKey, touched) {
        for (const { filter } of filters) filter.take(leases, ownKey, touched)
      },
      async resync(late) {
        await watch.hasMoved()
        return checkUntil(late)
      },
      gone: watch.gone,
      carrier: () => ({ engine: 'none', features: [] }),
      families,
      peers() {
        const peers = new Map<string, Lease>()
        for (const { filter } of filters) for (const [key, peer] of filter.peers()) peers.set(key, peer)
        return [...peers.values()].map((peer) => ({
          key: peer.key,
          ...Object.fromEntries(
            families
              .filter((family) => hasFamily(peer, family))
              .map((family) => [family, { endpoint: formatAddress(sideOf(peer, family).host) }]),
          ),
        }))
      },
      counters: () => ({
        peers_unusable: BigInt(filters.reduce((sum, { filter }) => sum + filter.skipped(), 0)),
        ...sumOf(keepers.map((keeper) => keeper.counters())),
      }),
      threads: () => ({}),
      // The route stays, as flanneld's did, so that packets arrive while the daemon restarts.
      async close() {
        await Promise.all(keepers.map((keeper) => keeper.close()))
      },
    }
  }
}

function sumOf(all: readonly Readonly<Record<string, bigint>>[]): Readonly<Record<string, bigint>> {
  const sum: Record<string, bigint> = {}
  for (const counters of all)
    for (const [name, value] of Object.entries(counters)) sum[name] = (sum[name] ?? 0n) + value
  return sum
}
