// vxlan-userspace.ts - VXLAN carried by weftd's engine, for hosts whose kernel does not support VXLAN. Each family has
// a TUN device with the name that the kernel's vxlan device would have. The engine's datagrams equal those of a kernel
// device.

import { messageOf } from '../../base/errors.ts'
import type { Lease, OwnLease } from '../../control/lease/lease.ts'
import { applyChange } from '../../host/kernel-errors.ts'
import { FAMILIES, familiesOf, FAMILY_NAMES, formatAddress, listed, type Family } from '../../net/address.ts'
import { KINDS, overheadBy } from '../catalog.ts'
import type { DataPath } from '../contract.ts'
import { checkFamily } from '../device/tun-device.ts'
import type { TunnelOptions } from '../tunnel/tunnel-options.ts'
import { Tunnel } from '../tunnel/tunnel.ts'
import { namesOf, peersOf, TYPE, vtepMacOf, type VxlanCarrier, type VxlanSetup } from './vxlan-config.ts'
import { vxlanMac } from './vxlan-link.ts'

const macBytes = (mac: string): number[] => mac.split(':').map((byte) => Number.parseInt(byte, 16))

/** Returns the data that the encapsulation needs about a peer (native/encap/vxlan.h): the peer's MAC. */
const endOf = ({ attrs }: Lease, family: Family): Uint8Array =>
  Uint8Array.from(macBytes(vtepMacOf(attrs, family) ?? ''))
const ownEnd = (mac: string, vni: number): Uint8Array =>
  Uint8Array.from([...macBytes(mac), vni >>> 16, (vni >>> 8) & 0xff, vni & 0xff])

/**
 * Returns weftd's engine as the carrier of the packets. Changes nothing on the host, because a kernel device with the
 * TUN's name may still carry the packets. `setup` returns the result of the last `prepare`.
 */
export function prepareUserspaceVxlan(setup: () => VxlanSetup, options: TunnelOptions<'vxlan'>): VxlanCarrier {
  const { config } = options
  const families = familiesOf(config)
  const leastMtu = (): number => Math.min(...families.map((family) => setup().mtus[family]))
  return {
    tunNames: listed(setup().names),
    needs(family) {
      const { names, port, external } = setup()
      const address = formatAddress(external.address[family] ?? 0)
      return {
        ports: [{ family, address, port, option: KINDS.vxlan.options.port.name }],
        device: {
          name: names[family] ?? '',
          type: 'tun',
          networks: { [family]: config[family]?.network },
          replaces: ['vxlan'],
        },
        sides: [{ family, network: config[family]?.network, mtu: leastMtu(), external: external.name }],
      }
    },
    plan: () =>
      families.map((family) => ({
        families: [family],
        mtu: setup().mtus[family],
        external: { families: [family], isBound: true },
        async open(own, leases) {
          checkFamily(family, leastMtu(), setup().external)
          const opened = await openFamily(family, setup(), options, own, leases)
          await removeOthers(setup(), families, options)
          return opened
        },
      })),
  }
}

async function openFamily(
  family: Family,
  { names, options: { vni, directRouting }, port, mtus, macs, external }: VxlanSetup,
  options: TunnelOptions<'vxlan'>,
  lease: OwnLease,
  leases: ReadonlyMap<string, Lease>,
): Promise<DataPath> {
  const { kernel, log } = options
  const [tunName, mac] = [names[family], macs[family]]
  if (tunName === undefined || mac === undefined) throw new Error(`${family} is none of this node's families`)
  const clear = async (): Promise<void> => {
    if ((await vxlanMac(kernel, tunName)) === undefined) return
    log.info(`Deleting the kernel's device ${tunName}, which weftd replaces`)
    await applyChange(kernel, { kind: 'delete link', device: { name: tunName } })
  }
  const ends = {
    ownEnd: ownEnd(mac, vni),
    endOf: (peer: Lease) => endOf(peer, family),
    filter: peersOf(family),
  }
  const carried = { families: [family], outer: family, overhead: overheadBy(TYPE, family), mtu: mtus[family] }
  const kind = { encapsulation: 'vxlan', ...carried, ...ends, tunName, port, directRouting, clear } as const
  return Tunnel.open({ ...options, external }, kind, lease, leases)
}

/**
 * Deletes the TUN of a family that the network no longer has. Only logs a failure, because the data path of the other
 * family is already open, and the caller could not close this data path if `open` rejected.
 */
async function removeOthers(
  { options: { vni } }: VxlanSetup,
  families: readonly Family[],
  { kernel, log }: TunnelOptions<'vxlan'>,
): Promise<void> {
  for (const family of FAMILIES.filter((each) => !families.includes(each))) {
    const name = namesOf(vni)[family]
    try {
      const link = await kernel.link(name)
      if (link?.type !== 'tun') continue
      log.info(`Deleting the device ${name}: the network has no ${FAMILY_NAMES[family]} any more`)
      await applyChange(kernel, { kind: 'delete link', device: link })
    } catch (error) {
      log.warn(`Cannot delete the device ${name}: ${messageOf(error)}`)
    }
  }
}
