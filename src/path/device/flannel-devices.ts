// flannel-devices.ts - finds the network devices on this host that backends of weft and flannel make.

import type { Run } from '../../host/command.ts'
import { ipJson, isNamedBy, isTunOpen } from '../../host/links.ts'
import { isLinkLocal, parseAddress, type Address } from '../../net/address.ts'
import { KINDS, type Kind } from '../catalog.ts'

interface JsonLink {
  ifindex?: number
  ifname?: string
  flags?: string[]
  linkinfo?: { info_kind?: string; info_data?: { id?: number; external?: boolean; type?: string; persist?: boolean } }
  addr_info?: { local?: string }[]
}

interface FlannelDevice {
  readonly name: string
  /** The kernel's type, such as `vxlan`. */
  readonly kind: string
  /** True if a process forwards packets through the device. */
  readonly inUse: boolean
}

const DEVICES = Object.values<Kind>(KINDS).flatMap(({ devices }) => devices)

/** Returns the device if a backend made it, by its type and its name; a name alone does not prove that. */
async function deviceOf({ ifindex = 0, ifname: name = '', flags = [], linkinfo }: JsonLink): Promise<FlannelDevice[]> {
  const kind = linkinfo?.info_kind ?? ''
  const data = linkinfo?.info_data ?? {}
  const isOurs =
    DEVICES.some(([type, pattern]) => type === kind && isNamedBy(pattern, name)) &&
    (kind !== 'tun' || data.type === 'tun') &&
    // The name ends with the VNI, and flannel's devices never take the VNI from each packet (`external`).
    !data.external &&
    (data.id === undefined || name.endsWith(`.${data.id}`))
  if (!isOurs) return []
  // A TUN that is not persistent ends with its process; a persistent one has a carrier while a process has it open.
  const inUse = kind === 'tun' && (data.persist === false || (await isTunOpen(name, ifindex, flags)))
  return [{ name, kind, inUse }]
}

/** Finds all devices of flannel and weft on this host. */
export async function findDevices(run: Run): Promise<FlannelDevice[]> {
  const links = await ipJson<JsonLink>(run, ['-d', 'link', 'show'])
  return (await Promise.all(links.map(deviceOf))).flat()
}

interface AddressedDevice extends FlannelDevice {
  /** The device's addresses, without the link-local IPv6 address that the kernel gives every device. */
  readonly addresses: readonly Address[]
}

/** The kernel's types of a bridge. */
const BRIDGES = new Set(['bridge', 'openvswitch'])

/** The devices of flannel and weft on a host with their addresses, and the names of all bridges. */
export interface Devices {
  readonly flannels: readonly AddressedDevice[]
  readonly bridges: ReadonlySet<string>
}

/** Lists the devices of this host. */
export async function listDevices(run: Run): Promise<Devices> {
  const links = await ipJson<JsonLink>(run, ['-d', 'address', 'show'])
  const found = await Promise.all(
    links.map(async (link) => {
      const all = (link.addr_info ?? []).flatMap(({ local }) => parseAddress(local ?? '') ?? [])
      const addresses = all.filter((address) => typeof address === 'number' || !isLinkLocal(address))
      return (await deviceOf(link)).map((device) => ({ ...device, addresses }))
    }),
  )
  const bridges = links.filter(({ linkinfo }) => BRIDGES.has(linkinfo?.info_kind ?? ''))
  return { flannels: found.flat(), bridges: new Set(bridges.map(({ ifname = '' }) => ifname)) }
}
