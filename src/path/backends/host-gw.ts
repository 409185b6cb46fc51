// host-gw.ts - the host-gw backend, without a tunnel: a route to each peer's subnet through the peer's host. All hosts must be on one link.
//
// The routes, the lease and the error texts are those of flanneld (pkg/backend/hostgw, pkg/backend/route_network.go).

import { WeftError } from '../../base/errors.ts'
import { sideOf, type Lease, type LeaseAttrs, type OwnLease } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { familiesOf, formatAddress, formatNet, type Family } from '../../net/address.ts'
import type { Backend, BackendParts, DataPath } from '../contract.ts'
import { RouteSync, ROUTE_WORDS, type NextHops } from '../device/route-sync.ts'
import { inTurn } from '../in-turn.ts'
import { openFamilies } from '../tunnel/both-families.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'

const TYPE = 'host-gw'
const PUBLIC_FLAG: Readonly<Record<Family, string>> = { ipv4: '--public-ip', ipv6: '--public-ipv6' }

export function createHostGwBackend({ config, external: found, run, log }: BackendParts<'host-gw'>): Backend {
  let external = found
  return {
    name: TYPE,
    devices: [],
    routesToHosts: true,
    get external() {
      return external
    },
    words: ROUTE_WORDS,
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      const behindNat = familiesOf(config).find(
        (family) => external.address[family] !== undefined && external.publicIp[family] !== external.address[family],
      )
      if (behindNat) {
        throw new WeftError(
          'CONFIG',
          "your PublicIP differs from interface IP, meaning that probably you're on a NAT, which is not supported by host-gw backend",
          { remedy: `remove ${PUBLIC_FLAG[behindNat]}, or use a backend with a tunnel` },
        )
      }
      return { publicIp: external.publicIp, backendType: TYPE }
    },
    open: (lease) =>
      openFamilies({ of: config, lease, mtu: external.mtu, external: () => external, open: openFamily, run, log }),
  }

  async function openFamily(family: Family, own: OwnLease): Promise<DataPath> {
    const { name: device, mtu, address } = external
    const network = config[family]?.network
    if (!network) throw new Error(`${family} is none of the network's families`)
    const routes = new RouteSync({ network, run, log })
    const isOneOfTwo = familiesOf(config).length === 2
    const filter = new PeerFilter({ type: TYPE, lease: own, network, isOneOfTwo, log })
    const subnetOf = (peer: Lease): string => formatNet(sideOf(peer, family).subnet)
    const hostOf = (peer: Lease): string => formatAddress(sideOf(peer, family).host)
    let hops: NextHops = new Map()
    return inTurn({
      mtu,
      fault: new Promise(() => {}),
      async apply(leases, ownKey, touched) {
        const changed = filter.take(leases, ownKey, touched)
        const peers = filter.peers()
        const next = new Map(changed && hops)
        const subnets = new Set<string>()
        for (const [key, was] of changed ?? [])
          for (const peer of [was, peers.get(key)]) if (peer) subnets.add(subnetOf(peer))
        for (const subnet of subnets) next.delete(subnet)
        for (const key of (changed ?? peers).keys()) {
          const peer = peers.get(key)
          if (peer) next.set(subnetOf(peer), { gateway: hostOf(peer), device })
        }
        hops = next
        await routes.apply(hops, changed && subnets)
      },
      resync: () => routes.resync(),
      carrier: () => ({ engine: 'kernel', features: [] }),
      // Probes go from host to host, because a host without containers may have no address in its subnet.
      probeSource: { [family]: address[family] },
      peers: () =>
        [...filter.peers().values()]
          .filter((peer) => routes.isSet(subnetOf(peer)))
          .map((peer) => ({
            key: peer.key,
            [family]: { endpoint: hostOf(peer), probe: sideOf(peer, family).host, way: 'direct' },
          })),
      counters: () => ({ peers_unusable: BigInt(filter.skipped()) }),
      threads: () => ({}),
      // Like flanneld, weftd keeps the routes, so that the kernel forwards while the daemon is stopped.
      close: async () => {},
    })
  }
}
