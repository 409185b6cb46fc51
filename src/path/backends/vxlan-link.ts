// vxlan-link.ts - reads the kernel's vxlan devices, and checks whether the kernel supports vxlan.

import { randomBytes } from 'node:crypto'
import type { HostKernel, Link } from '../../host/kernel.ts'
import { formatAddress, netsOf, type Address, type Net } from '../../net/address.ts'
import { findRenamed } from '../device/flannel-devices.ts'

export interface VxlanOptions {
  readonly name: string
  /** The device's address, which is the first address of this node's subnet. */
  readonly own: Address
  readonly vni: number
  readonly port: number
  readonly learning: boolean
  readonly gbp: boolean
  /**
   * The outer source address of datagrams; weftd reaches all peers over the family of this address. `underlay` names
   * the external interface, which has the address.
   */
  readonly local: Address
  readonly underlay: string
  /**
   * The kernel's index of the external interface to which the device is bound. By the index weftd recognises a renamed
   * interface. Left out if the index is not known.
   */
  readonly underlayIndex?: number | undefined
  readonly mtu: number
}

/** Returns a random MAC whose first byte marks a locally administered unicast address (IEEE 802). */
export function randomMac(): string {
  const bytes = [...randomBytes(6)].map((byte, index) => (index === 0 ? (byte & 0xfc) | 0x02 : byte))
  return bytes.map((byte) => byte.toString(16).padStart(2, '0')).join(':')
}

/**
 * Describes how an existing device differs from the wanted options, without comparing its external interface; undefined
 * if it does not differ.
 */
export function differenceOf({ type, vxlan }: Link, options: VxlanOptions): string | undefined {
  if (type !== 'vxlan' || !vxlan) return `it is a device of type ${type || 'none'}`
  const { vni, local, port, learning, gbp } = vxlan
  const pairs = [
    ['VNI', vni, options.vni],
    ['local address', local === undefined ? undefined : formatAddress(local), formatAddress(options.local)],
    ['port', port, options.port],
    ['learning', learning, options.learning],
    ['GBP', gbp, options.gbp],
  ] as const
  const other = pairs.find(([, is, wanted]) => is !== wanted)
  return other && `${other[0]}: ${String(other[1])} vs ${String(other[2])}`
}

/**
 * Returns the present name of the vxlan device of an earlier run, which another program may have renamed. If there is
 * no such device, returns the name that a new device will have.
 */
export async function vxlanName(kernel: HostKernel, name: string, vni: number, network: Net): Promise<string> {
  if (await kernel.link(name)) return name
  return (await findRenamed(kernel, 'vxlan', netsOf([network]), vni)) ?? name
}

/** Returns the MAC of the vxlan device called `name`; undefined if no vxlan device has that name. */
export async function vxlanMac(kernel: HostKernel, name: string): Promise<string | undefined> {
  const found = await kernel.link(name)
  return found?.type === 'vxlan' ? found.mac : undefined
}

/**
 * A device that `checkVxlan` creates and deletes. Its VNI is larger than the VNI of any flannel network, so that it
 * cannot conflict with another device.
 */
const PROBE = { name: 'flannel.probe', type: 'vxlan', vxlan: { vni: 0xff_ffff, port: 0 } } as const

/**
 * Checks that the kernel supports vxlan devices, without changing existing devices. Throws WeftError NO_DEVICE_TYPE if
 * the kernel does not support them.
 */
export async function checkVxlan(kernel: HostKernel, name: string): Promise<void> {
  if ((await vxlanMac(kernel, name)) !== undefined) return
  const [error] = await kernel.change([
    { kind: 'add link', link: PROBE },
    { kind: 'delete link', device: { name: PROBE.name } },
  ])
  if (error && error.code !== 'KERNEL') throw error // any other refusal shows that the kernel knows the type
}
