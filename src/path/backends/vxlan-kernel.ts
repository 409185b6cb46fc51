// vxlan-kernel.ts - VXLAN carried by the kernel: one device for each family; for each peer a neighbour entry, a
// forwarding entry and a route.
//
// The devices, entries and routes are those of flanneld (pkg/backend/vxlan).

import type { Lease, OwnLease } from '../../control/lease/lease.ts'
import type { Watched } from '../../host/events.ts'
import { familiesOf, listed, type Family, type Net } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import { checkFamily } from '../device/tun-device.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'
import type { TunnelOptions } from '../tunnel/tunnel-options.ts'
import { peersOf, vtepMacOf, type VxlanCarrier, type VxlanSetup } from './vxlan-config.ts'
import { openVxlanDevice } from './vxlan-device.ts'
import { isAsWanted } from './vxlan-entries.ts'
import { checkVxlan } from './vxlan-link.ts'
import { VxlanPath } from './vxlan-path.ts'

type Parts = Pick<TunnelOptions<'vxlan'>, 'config' | 'kernel' | 'log'>

/**
 * Checks that the kernel supports vxlan, and returns the kernel as the carrier of the packets. Changes no device,
 * because an earlier weftd may still carry the packets itself. `setup` returns the result of the last `prepare`. Throws
 * WeftError NO_DEVICE_TYPE if the kernel does not support vxlan.
 */
export async function prepareKernelVxlan(setup: () => VxlanSetup, parts: Parts): Promise<VxlanCarrier> {
  const { names, mtus } = setup()
  const { config, kernel } = parts
  const families = familiesOf(config)
  const leastMtu = (): number => Math.min(...families.map((family) => setup().mtus[family]))
  const devices = families.flatMap((family) => names[family] ?? [])
  const [first = ''] = devices
  await checkVxlan(kernel, first)
  return {
    needs(family) {
      const { options, port, external } = setup()
      return {
        // The kernel binds a vxlan port on all addresses of the family. So weftd checks that the port is free on the
        // wildcard address.
        ports: [
          {
            family,
            address: family === 'ipv4' ? '0.0.0.0' : '::',
            port,
            option: KINDS.vxlan.options.port.name,
            vxlan: { vni: options.vni, gbp: options.gbp },
          },
        ],
        device: {
          name: names[family] ?? '',
          type: 'vxlan',
          networks: { [family]: config[family]?.network },
          replaces: 'any',
        },
        sides: [{ family, mtu: leastMtu(), external: external.name }],
      }
    },
    plan() {
      const open: { [F in Family]?: VxlanPath } = {}
      const watched: Watched = {
        topics: ['neighbours'],
        // Ignore the kernel's reports about entries that have the wanted values, because every other report starts a
        // check of all entries. The kernel does not report whether weftd itself changed a forwarding entry.
        matters: (event) => listed(open).some((path) => path.owns(event) && !isAsWanted(event, path.entries())),
      }
      return families.map((family) => ({
        families: [family],
        mtu: mtus[family],
        external: { families: [family], isBound: true },
        watched,
        async open(own) {
          checkFamily(family, leastMtu(), setup().external)
          const path = await openFamily(family, setup(), parts, own)
          open[family] = path
          return path
        },
      }))
    },
  }
}

async function openFamily(
  family: Family,
  { names, options, port, mtus, macs, external }: VxlanSetup,
  { config, kernel, log }: Parts,
  lease: OwnLease,
): Promise<VxlanPath> {
  const { vni, learning, gbp, directRouting } = options
  const [name, mac, local] = [names[family], macs[family], external.address[family]]
  const [network, subnet] = [config[family]?.network, lease.subnet[family]]
  if (name === undefined || mac === undefined || local === undefined || !network || !subnet)
    throw new Error(`${family} is none of this node's families`)
  const mtu = mtus[family]
  const link = { local, underlay: external.name, underlayIndex: external.index, port, mtu }
  const opened = await openVxlanDevice({ name, own: subnet.address, vni, learning, gbp, ...link }, mac, kernel, log)
  await opened.configure(subnet.address, network)
  const identity = {
    name: 'MAC',
    own: mac,
    of: ({ attrs }: Lease) => vtepMacOf(attrs, family),
    remedy: `if both hosts exist, delete ${opened.link.name} on one of the two and restart its daemon`,
  }
  const isOneOfTwo = familiesOf(config).length === 2
  const filter = new PeerFilter<Net>({ ...peersOf(family), lease, network, isOneOfTwo, log, identity })
  const parts = {
    family,
    network,
    device: opened.link,
    probeSource: subnet.address,
    filter,
    directRouting,
    kernel,
    log,
  }
  return new VxlanPath(parts, opened, port)
}
