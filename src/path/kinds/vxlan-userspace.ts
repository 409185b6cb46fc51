// vxlan-userspace.ts - VXLAN by the engine, for hosts whose kernel has none: a TUN of the device's name, and the datagrams
// that a kernel's device sends and takes.

import { KINDS, VXLAN_IN_USERSPACE } from '../kinds.ts'
import type { Lease } from '../../control/lease/lease.ts'
import { carryIpv4Alone, ipv4For } from '../../control/config/network-config.ts'
import { openTunnel, type TunnelOptions } from '../ways/tunnel.ts'
import { peersOf, vtepMacOf, type VxlanCarrier, type VxlanSetup } from './vxlan-config.ts'
import { vxlanMac } from './vxlan-device.ts'

const macBytes = (mac: string): number[] => mac.split(':').map((byte) => Number.parseInt(byte, 16))

/** The record of an end as native/encap/vxlan.h reads it: the MAC, and after our own the VNI. */
const endOf = ({ attrs }: Lease): Uint8Array => Uint8Array.from(macBytes(vtepMacOf(attrs, 'ipv4') ?? ''))
const ownEnd = (mac: string, vni: number): Uint8Array =>
  Uint8Array.from([...macBytes(mac), vni >>> 16, (vni >>> 8) & 0xff, vni & 0xff])

/** Opens nothing yet: the TUN takes the name of a device that carries on until then. */
export function prepareUserspaceVxlan(
  { names, options, port, mtus, macs, external }: VxlanSetup,
  tunnelOptions: TunnelOptions<'vxlan'>,
): VxlanCarrier {
  const { run, log } = tunnelOptions
  const { vni, directRouting } = options
  const { overhead } = KINDS.vxlan
  const who = VXLAN_IN_USERSPACE
  carryIpv4Alone(who, tunnelOptions.config, log)
  const [name, mac, mtu] = [ipv4For(who, names), ipv4For(who, macs), mtus.ipv4]
  const ends = { ownEnd: ownEnd(mac, vni), endOf, filter: peersOf('ipv4') }
  const carried = { families: ['ipv4'], outer: 'ipv4' } as const
  const kind = {
    encapsulation: 'vxlan',
    ...carried,
    overhead,
    ...ends,
    tunName: name,
    port,
    mtu,
    directRouting,
  } as const
  return {
    tunName: name,
    async open(lease, leases) {
      if ((await vxlanMac(run, name)) !== undefined) {
        log.info(`Deleting the kernel's device ${name}, whose place weftd takes`)
        await run('ip', ['link', 'del', name])
      }
      return openTunnel({ ...tunnelOptions, external }, kind, lease, leases)
    },
  }
}
