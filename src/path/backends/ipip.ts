// ipip.ts - the ipip backend: IP in IP (RFC 2003) carried by the kernel, with one device and a route to each peer's
// subnet through the peer's host.
//
// The device, the routes, the lease and the error texts are those of flanneld (pkg/backend/ipip). ipip uses no UDP
// port; firewalls between the hosts must let IP protocol 4 pass.

import { carryIpv4Alone, ipv4For } from '../../control/config/network-config.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { FollowedLink } from '../../host/links.ts'
import type { Net } from '../../net/address.ts'
import { formatIpv4 } from '../../net/ipv4.ts'
import { KINDS } from '../catalog.ts'
import type { Backend, BackendParts, DataPath, PathSide } from '../contract.ts'
import { deviceState } from '../device/device-state.ts'
import { findEarlier } from '../device/flannel-devices.ts'
import type { NextHop } from '../device/route-sync.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'
import { IpipDevice, OTHER_TYPE } from './ipip-device.ts'
import { hostWords } from './peer-words.ts'
import { RoutedPath, type RoutedParts } from './routed-path.ts'

const TYPE = 'ipip'
const NEEDS = `the ${TYPE} backend`
const { overhead, devices } = KINDS.ipip
const [[, NAME]] = devices

export function createIpipBackend({ config, settings, external: found, kernel, log }: BackendParts<'ipip'>): Backend {
  let external = found
  const { directRouting } = settings
  log.info(`IPIP config: DirectRouting=${directRouting}`)
  return {
    name: TYPE,
    devices: [NAME],
    routesToHosts: directRouting,
    get external() {
      return external
    },
    words: hostWords(['ipv4']),
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(kernel, external)
      carryIpv4Alone(NEEDS, config, log)
      return { publicIp: external.publicIp, backendType: TYPE }
    },
    needs: () => [
      {
        device: {
          name: NAME,
          type: TYPE,
          networks: { ipv4: config.ipv4?.network },
          replaces: [],
          local: formatIpv4(ipv4For(NEEDS, external.address)),
          refusal: OTHER_TYPE,
        },
      },
    ],
    plan: () => [
      {
        families: ['ipv4'],
        mtu: external.mtu - overhead,
        external: { families: ['ipv4'], isBound: true },
        open,
      },
    ],
  }

  async function open(own: OwnLease): Promise<DataPath> {
    const mtu = external.mtu - overhead
    const { network } = ipv4For(NEEDS, config)
    const { address } = ipv4For(NEEDS, own.subnet)
    const link = new FollowedLink(NAME)
    await findEarlier(link, kernel, TYPE, [address], log)
    const local = ipv4For(NEEDS, external.address)
    const device = new IpipDevice(link, local, deviceState(kernel, link, mtu, address, network), kernel, log)
    await device.open()
    const filter = new PeerFilter<Net>({ type: TYPE, lease: own, network, log })
    const parts = { network, device: link, probeSource: address, filter, directRouting, kernel, log }
    return new IpipPath({ family: 'ipv4', ...parts }, link, device)
  }
}

/** The data path of ipip: the route to each peer's subnet leads through the ipip device to the peer's host. */
class IpipPath extends RoutedPath {
  readonly #link: FollowedLink
  readonly #device: IpipDevice

  constructor(parts: RoutedParts, link: FollowedLink, device: IpipDevice) {
    super(parts)
    this.#link = link
    this.#device = device
  }

  protected override repairDevice(): Promise<readonly string[]> {
    return this.#device.repair()
  }

  protected hopTo(peer: Lease): NextHop {
    return { gateway: this.hostOf(peer), device: this.#link, onlink: true }
  }

  protected sideTo(peer: Lease): PathSide {
    return { endpoint: this.hostOf(peer), probe: this.sideOf(peer).subnet.address, way: 'kernel' }
  }
}
