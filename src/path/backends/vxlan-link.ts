// vxlan-link.ts - reads the kernel's vxlan devices, and checks whether the kernel supports vxlan.

import { randomBytes } from 'node:crypto'
import { isWeftError } from '../../base/errors.ts'
import type { Run } from '../../host/command.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { addDevice, findLink, ipJson } from '../../host/links.ts'
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

export interface JsonVxlan {
  address?: string
  linkinfo?: {
    info_kind?: string
    info_data?: {
      id?: number
      local?: string
      local6?: string
      link?: string
      port?: number
      learning?: boolean
      gbp?: boolean
    }
  }
}

/** Returns a random MAC whose first byte marks a locally administered unicast address (IEEE 802). */
export function randomMac(): string {
  const bytes = [...randomBytes(6)].map((byte, index) => (index === 0 ? (byte & 0xfc) | 0x02 : byte))
  return bytes.map((byte) => byte.toString(16).padStart(2, '0')).join(':')
}

/** Describes how the existing device differs from the wanted options; undefined if it does not differ. */
export function differenceOf({ linkinfo }: JsonVxlan, options: VxlanOptions): string | undefined {
  if (linkinfo?.info_kind !== 'vxlan') return `it is a device of type ${linkinfo?.info_kind ?? 'none'}`
  const { id, local, local6, link, port, learning = true, gbp = false } = linkinfo.info_data ?? {}
  const pairs = [
    ['VNI', id, options.vni],
    ['local address', local ?? local6, formatAddress(options.local)],
    ['interface', link, options.underlay],
    ['port', port, options.port],
    ['learning', learning, options.learning],
    ['GBP', gbp, options.gbp],
  ] as const
  const other = pairs.find(([, is, wanted]) => is !== wanted)
  return other && `${other[0]}: ${String(other[1])} vs ${String(other[2])}`
}

async function show(run: Run, name: string): Promise<JsonVxlan | undefined> {
  return (await findLink(run, name)) ? describeVxlan(run, name) : undefined
}

export const describeVxlan = async (run: Run, name: string): Promise<JsonVxlan | undefined> =>
  (await ipJson<JsonVxlan>(run, ['-d', 'link', 'show', 'dev', name]))[0]

/**
 * Returns the present name of the vxlan device of an earlier run, which another program may have renamed. If there is
 * no such device, returns the name that a new device will have.
 */
export async function vxlanName(kernel: HostKernel, name: string, vni: number, network: Net): Promise<string> {
  if (await kernel.link(name)) return name
  return (await findRenamed(kernel, 'vxlan', netsOf([network]), vni)) ?? name
}

/** Returns the MAC of the vxlan device called `name`; undefined if no vxlan device has that name. */
export async function vxlanMac(run: Run, name: string): Promise<string | undefined> {
  const found = await show(run, name)
  return found?.linkinfo?.info_kind === 'vxlan' ? found.address : undefined
}

/**
 * A device that `checkVxlan` creates and deletes. Its VNI is larger than the VNI of any flannel network, so that it
 * cannot conflict with another device.
 */
const PROBE = { name: 'flannel.probe', vni: 0xff_ffff }

/**
 * Checks that the kernel supports vxlan devices, without changing existing devices. Throws WeftError NO_DEVICE_TYPE if
 * it does not.
 */
export async function checkVxlan(run: Run, name: string): Promise<void> {
  if ((await vxlanMac(run, name)) !== undefined) return
  try {
    await addDevice(run, PROBE.name, 'vxlan', [], ['id', String(PROBE.vni), 'dstport', '0'])
  } catch (error) {
    if (!isWeftError(error, 'COMMAND')) throw error // any other refusal shows that the kernel knows the type
  }
  if (await findLink(run, PROBE.name)) await run('ip', ['link', 'del', PROBE.name])
}
