// host-gw.ts - the host-gw backend, which has no tunnel: the route to each peer's subnet leads through the peer's host.
// All hosts must be on one link.
//
// The routes, the lease and the error texts are those of flanneld (pkg/backend/hostgw, pkg/backend/route_network.go).

import { WeftError } from '../../base/errors.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { FollowedLink } from '../../host/links.ts'
import { familiesOf, type Family, type Net } from '../../net/address.ts'
import type { Backend, BackendParts, DataPath, PathSide } from '../contract.ts'
import type { NextHop } from '../device/route-sync.ts'
import { checkFamily } from '../device/tun-device.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'
import { hostWords } from './peer-words.ts'
import { RoutedPath, type RoutedParts } from './routed-path.ts'

const TYPE = 'host-gw'
const PUBLIC_FLAG: Readonly<Record<Family, string>> = { ipv4: '--public-ip', ipv6: '--public-ipv6' }

export function createHostGwBackend({ config, external: found, kernel, log }: BackendParts<'host-gw'>): Backend {
  let external = found
  return {
    name: TYPE,
    devices: [],
    routesToHosts: true,
    get external() {
      return external
    },
    words: hostWords(familiesOf(config)),
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(kernel, external)
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
    plan: () =>
      familiesOf(config).map((family) => ({
        families: [family],
        mtu: external.mtu,
        external: { families: [family], isBound: true },
        open: (own) => openFamily(family, own),
      })),
  }

  async function openFamily(family: Family, own: OwnLease): Promise<DataPath> {
    const { name, index, address } = external
    checkFamily(family, external.mtu, external)
    const network = config[family]?.network
    const local = address[family]
    if (!network || local === undefined) throw new Error(`${family} is none of the network's families`)
    const isOneOfTwo = familiesOf(config).length === 2
    const filter = new PeerFilter<Net>({ type: TYPE, lease: own, network, isOneOfTwo, log })
    // Send probes from the host's own address, because a host without containers may have no address in its subnet.
    return new HostGwPath({ family, network, probeSource: local, filter, kernel, log }, new FollowedLink(name, index))
  }
}

/** The data path of one family, in which the next hop to each peer's subnet is the peer's host. */
class HostGwPath extends RoutedPath {
  /** The external interface, through which the routes lead. */
  readonly #device: FollowedLink

  constructor(parts: RoutedParts, device: FollowedLink) {
    super(parts)
    this.#device = device
  }

  protected hopTo(peer: Lease): NextHop {
    return { gateway: this.hostOf(peer), device: this.#device }
  }

  protected sideTo(peer: Lease): PathSide {
    return { endpoint: this.hostOf(peer), probe: this.sideOf(peer).host, way: 'direct' }
  }
}
