// udp.ts - the udp backend, which is the default: it moves IP packets between a TUN device and UDP sockets, and adds no
// header except IP and UDP.
//
// The port and the wire format are those of flanneld (pkg/backend/udp), so that nodes with weftd and with flanneld can
// form one network. The receiver reads the family of an inner packet from the packet's version field. A datagram has
// the family over which weftd reaches the peer. In a dual-stack network weftd changes a peer's outer family if the path
// over the first family fails, so the MTU must fit both outer families.

import { WeftError } from '../../base/errors.ts'
import type { LeaseAttrs } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { familiesOf, FAMILY_NAMES, formatAddress, isLinkLocal, type Address, type Family } from '../../net/address.ts'
import { KINDS, overheadBy, underlaysOf } from '../catalog.ts'
import type { Backend } from '../contract.ts'
import type { TunnelOptions } from '../tunnel/tunnel-options.ts'
import { checkNetwork, Tunnel } from '../tunnel/tunnel.ts'

const { outside, devices, options: OPTIONS } = KINDS.udp
const [[, TUN_NAME]] = devices

/** Returns true for an address of this host to which peers on other links can send. */
const isUsable = (address: Address | undefined): boolean => address !== undefined && !isLinkLocal(address)
const overheadOf = (family: Family): number => overheadBy('udp', family)

export function createUdpBackend(options: TunnelOptions<'udp'>): Backend {
  const { config, settings, log, kernel } = options
  let { external } = options
  const port = settings.port || outside.port
  const [preferred, second] = underlaysOf(settings.underlay, familiesOf(config))
  const overhead = Math.max(...[preferred, second ?? preferred].map((family) => overheadBy('udp', family)))
  /**
   * Returns the outer families in which this host has a usable address now, the preferred family first. If the host has
   * no usable address, returns only the preferred family.
   */
  const underlays = (): readonly Family[] => {
    const has = [preferred, second].filter((family) => family !== undefined && isUsable(external.address[family]))
    return has.length > 0 ? (has as Family[]) : [preferred]
  }
  function checkUnderlay(): void {
    const [outer = preferred] = underlays()
    const local = external.address[outer]
    if (local === undefined && config[outer])
      throw new WeftError('ADDRESS', `${external.name} has no ${FAMILY_NAMES[outer]} address`, {
        remedy: 'give the interface an address of that family, or choose another interface with --iface',
      })
    if (local === undefined)
      throw new WeftError(
        'CONFIG',
        `Backend.${OPTIONS.underlay.name} is "${outer}", and the network has no ${FAMILY_NAMES[outer]}`,
        { remedy: `set "Enable${FAMILY_NAMES[outer]}": true, or leave it out` },
      )
    if (outer === 'ipv6' && isLinkLocal(local))
      throw new WeftError('ADDRESS', `${formatAddress(local)} of ${external.name} is valid only on its own link`, {
        remedy: 'give the interface a global or unique local IPv6 address, or choose another with --iface',
      })
  }
  return {
    name: 'udp',
    tunNames: [TUN_NAME],
    devices: [TUN_NAME],
    get external() {
      return external
    },
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(kernel, external)
      checkUnderlay()
      checkNetwork(config, external.address, log)
      // Publish an empty backend type as flanneld's udp backend does, because weft's leases must equal flanneld's byte
      // for byte.
      return { publicIp: external.publicIp, backendType: '' }
    },
    needs() {
      const [outer = preferred] = underlays()
      const address = external.address[outer]
      const { name } = external
      const mtu = external.mtu - overhead
      const families = familiesOf(config).filter((family) => external.publicIp[family] !== undefined)
      const networks = { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network }
      if (address === undefined) return []
      return [
        {
          ports: [{ family: outer, address: formatAddress(address), port, option: OPTIONS.port.name }],
          device: { name: TUN_NAME, type: 'tun', networks, replaces: [] },
          sides: families.map((family) => ({ family, network: config[family]?.network, mtu, external: name })),
        },
      ]
    },
    plan() {
      const mtu = external.mtu - overhead
      const [outer = preferred, other] = underlays()
      // The outer family, if any, in which this host has no address yet. When the host gets an address of this family,
      // weftd opens the data path again.
      const awaited = [preferred, second].find((family) => family !== undefined && family !== outer && family !== other)
      const families = familiesOf(config)
      const carried = { families, outer, other, overheadOf } as const
      const fastPath = settings.fastPath === 'auto'
      const kind = { encapsulation: 'udp', ...carried, overhead, tunName: TUN_NAME, port, mtu, fastPath } as const
      const now = { ...options, external }
      return [
        {
          families,
          mtu,
          external: { families: awaited ? [outer, awaited] : [outer], isBound: true },
          open: (own, leases, _signal, others) => Tunnel.open(now, kind, own, leases, others),
        },
      ]
    },
  }
}
