// host-gw.ts - no tunnel: a route to each peer's subnet by way of its host, for hosts on one link.
//
// Routes, lease and refusals are flanneld's (pkg/backend/hostgw, pkg/backend/route_network.go).

import { ipv4For } from '../config/network-config.ts'
import { WeftError } from '../errors.ts'
import { currentExternal } from '../host/external-interface.ts'
import type { Ipv4Lease, LeaseAttrs } from '../lease/lease.ts'
import { formatIpv4, formatIpv4Net } from '../net/ipv4.ts'
import type { Backend, BackendParts, DataPath } from './backend.ts'
import { watchExternal } from './external-watch.ts'
import { inTurn } from './in-turn.ts'
import { createPeerFilter } from './peer-filter.ts'
import { createRouteSync, ROUTE_WORDS, type NextHop } from './route-sync.ts'

const TYPE = 'host-gw'

export function createHostGwBackend({ config, external: found, run, log }: BackendParts<'host-gw'>): Backend {
  let external = found
  return {
    name: TYPE,
    words: ROUTE_WORDS,
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      if (external.publicIp !== external.address) {
        throw new WeftError(
          'CONFIG',
          "your PublicIP differs from interface IP, meaning that probably you're on a NAT, which is not supported by host-gw backend",
          { remedy: 'leave --public-ip out, or take the udp backend' },
        )
      }
      return { publicIp: { ipv4: external.publicIp }, backendType: TYPE }
    },
    async open(own): Promise<DataPath> {
      const { name: device, mtu } = external
      const { network } = ipv4For(`the ${TYPE} backend`, config)
      const routes = createRouteSync({ network, run, log })
      const filter = createPeerFilter({ type: TYPE, lease: own, network, log })
      const watch = watchExternal(run, external)
      let applied: readonly Ipv4Lease[] = []
      return inTurn({
        mtu,
        fault: watch.moved,
        async apply(leases, ownKey) {
          const peers = filter.usable(leases, ownKey)
          applied = peers
          const hopOf = (lease: Ipv4Lease): NextHop => ({ gateway: formatIpv4(lease.attrs.publicIp.ipv4), device })
          await routes.apply(new Map(peers.map((lease) => [formatIpv4Net(lease.subnet.ipv4), hopOf(lease)])))
        },
        resync: async () => ((await watch.hasMoved()) ? [] : routes.resync()),
        carrier: () => ({ engine: 'kernel', features: [] }),
        // No address of the overlay is each host's: what can be asked is the host that routes to it.
        probeSource: external.address,
        peers: () =>
          applied
            .filter(({ subnet }) => routes.isSet(formatIpv4Net(subnet.ipv4)))
            .map(({ key, attrs }) => ({
              ...{ key, probe: attrs.publicIp.ipv4, endpoint: formatIpv4(attrs.publicIp.ipv4) },
              way: 'direct',
            })),
        counters: () => ({ peers_unusable: BigInt(filter.skipped()) }),
        threads: () => ({}),
        // As flanneld's: the routes stay, and carry on while the daemon is away.
        close: async () => {},
      })
    },
  }
}
