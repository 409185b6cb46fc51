// host-gw.ts - no tunnel: a route to each peer's subnet by way of its host, for hosts on one link.
//
// Routes, lease and refusals are flanneld's (pkg/backend/hostgw, pkg/backend/route_network.go).

import { WeftError } from '../errors.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { Run } from '../host/command.ts'
import { changeOf, currentExternal, type ExternalInterface } from '../host/external-interface.ts'
import type { LeaseAttrs } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net } from '../net/ipv4.ts'
import type { Backend, DataPath } from './backend.ts'
import { createPeerFilter } from './peer-filter.ts'
import { createRouteSync } from './route-sync.ts'

const TYPE = 'host-gw'

export interface HostGwOptions {
  readonly config: NetworkConfig
  readonly external: ExternalInterface
  readonly run: Run
  readonly log: Log
}

export function createHostGwBackend({ config, external: found, run, log }: HostGwOptions): Backend {
  let external = found
  return {
    name: TYPE,
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      if (external.publicIp !== external.address) {
        throw new WeftError(
          'CONFIG',
          "your PublicIP differs from interface IP, meaning that probably you're on a NAT, which is not supported by host-gw backend",
          { remedy: 'leave --public-ip out, or take the udp backend' },
        )
      }
      return { publicIp: external.publicIp, backendType: TYPE }
    },
    async open(lease): Promise<DataPath> {
      const { name: device, mtu } = external
      const routes = createRouteSync({ network: config.network, device, run, log })
      const filter = createPeerFilter({ type: TYPE, lease, log })
      let moved!: (reason: Error) => void
      const fault = new Promise<Error>((resolve) => (moved = resolve))
      return {
        mtu,
        fault,
        async apply(leases, ownKey) {
          const peers = filter.usable(leases, ownKey)
          await routes.apply(
            new Map(peers.map(({ subnet, attrs }) => [formatIpv4Net(subnet), formatIpv4(attrs.publicIp)])),
          )
        },
        async resync() {
          const change = changeOf(external, await currentExternal(run, external))
          if (change === undefined) return routes.resync()
          moved(new Error(change)) // the routes and the lease are made for what was
          return []
        },
        counters: () => ({ peers_unusable: BigInt(filter.skipped()) }),
        threads: () => ({}),
        // As flanneld's: the routes stay, and carry on while the daemon is away.
        close: async () => {},
      }
    },
  }
}
