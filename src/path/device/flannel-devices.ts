// flannel-devices.ts - finds the network devices on this host that backends of weft and flannel created.

import type { Log } from '../../base/log.ts'
import type { Run } from '../../host/command.ts'
import { ipJson, isTunOpen, renamed, type FollowedLink } from '../../host/links.ts'
import {
  familyOf,
  hostNet,
  isLinkLocal,
  netContains,
  netsOf,
  parseAddress,
  type Address,
  type Net,
  type Nets,
} from '../../net/address.ts'
import { hasBackendName, isNamedBy, KINDS, type Kind } from '../catalog.ts'

interface JsonLink {
  ifindex?: number
  ifname?: string
  flags?: string[]
  linkinfo?: { info_kind?: string; info_data?: { id?: number; external?: boolean; type?: string; persist?: boolean } }
  addr_info?: { local?: string }[]
}

interface FlannelDevice {
  readonly name: string
  readonly kind: string
  /** True if a running process has the TUN open; always false for a device whose packets the kernel forwards. */
  readonly inUse: boolean
}

const DEVICES = Object.values<Kind>(KINDS).flatMap(({ devices }) => devices)

/**
 * Returns a list with the device if its link type and its name match those of a backend; an empty list otherwise. A
 * matching name alone does not prove that a backend created the device.
 */
async function deviceOf({ ifindex = 0, ifname: name = '', flags = [], linkinfo }: JsonLink): Promise<FlannelDevice[]> {
  const kind = linkinfo?.info_kind ?? ''
  const data = linkinfo?.info_data ?? {}
  const isOurs =
    DEVICES.some(([type, pattern]) => type === kind && isNamedBy(pattern, name)) &&
    (kind !== 'tun' || data.type === 'tun') &&
    // flannel's vxlan devices have a fixed VNI, with which their name ends. A device with `external` has no fixed VNI,
    // because it takes the VNI from each packet.
    !data.external &&
    (data.id === undefined || name.endsWith(`.${data.id}`))
  if (!isOurs) return []
  // A TUN that is not persistent exists only while a process has it open. For a persistent TUN, `isTunOpen` finds out
  // whether a process has it open.
  const inUse = kind === 'tun' && (data.persist === false || (await isTunOpen(name, ifindex, flags)))
  return [{ name, kind, inUse }]
}

/** Lists the devices on this host that backends of weft and flannel created. */
export async function findDevices(run: Run): Promise<FlannelDevice[]> {
  const links = await ipJson<JsonLink>(run, ['-d', 'link', 'show'])
  return (await Promise.all(links.map(deviceOf))).flat()
}

/** Returns a device's addresses, except the link-local IPv6 address that the kernel gives to each device. */
function globalOf({ addr_info: entries = [] }: JsonLink): readonly Address[] {
  const all = entries.flatMap(({ local }) => parseAddress(local ?? '') ?? [])
  return all.filter((address) => typeof address === 'number' || !isLinkLocal(address))
}

interface AddressedDevice extends FlannelDevice {
  /** The device's addresses, except the link-local IPv6 address that the kernel gives to each device. */
  readonly addresses: readonly Address[]
}

/**
 * Returns the name of a device that an earlier run made and that another program has renamed since; undefined if there
 * is none. The device must have the link type of the backend's device, a name that no backend uses, and addresses in
 * all families of `networks`, each within these networks. `vni` is the VNI of a vxlan device. A TUN that a process has
 * open does not count.
 */
export async function findRenamed(run: Run, type: string, networks: Nets, vni?: number): Promise<string | undefined> {
  for (const link of await ipJson<JsonLink>(run, ['-d', 'address', 'show'])) {
    const { ifindex = 0, ifname: name = '', flags = [], linkinfo } = link
    const { id, type: tunType } = linkinfo?.info_data ?? {}
    if (linkinfo?.info_kind !== type || hasBackendName(name) || (vni !== undefined && id !== vni)) continue
    const addresses = globalOf(link).filter((address) => networks[familyOf(address)])
    const isInside = (address: Address): boolean => netContains(networks[familyOf(address)] as Net, address)
    if (addresses.length === 0 || !addresses.every(isInside)) continue
    if (type === 'tun' && (tunType !== 'tun' || (await isTunOpen(name, ifindex, flags)))) continue
    return name
  }
  return undefined
}

/**
 * Looks up the device of an earlier run by its name, or else by its type and this node's addresses `own`. The addresses
 * ensure that the device is not another program's, because the caller may delete it. Logs the device's new name. If
 * there is no such device, `device.index` is undefined afterwards.
 */
export async function findEarlier(
  device: FollowedLink,
  run: Run,
  type: string,
  own: readonly Address[],
  log: Pick<Log, 'info'>,
): Promise<void> {
  if (await device.find(run)) return
  const name = await findRenamed(run, type, netsOf(own.map(hostNet)))
  if (name === undefined) return
  log.info(renamed(device.name, name))
  device.name = name
  await device.find(run)
}

const BRIDGES = new Set(['bridge', 'openvswitch'])

/** The devices of weft's and flannel's backends on this host, with their addresses, and the names of all bridges. */
export interface Devices {
  readonly flannels: readonly AddressedDevice[]
  readonly bridges: ReadonlySet<string>
}

/** Lists the flannel devices and the bridges of this host. */
export async function listDevices(run: Run): Promise<Devices> {
  const links = await ipJson<JsonLink>(run, ['-d', 'address', 'show'])
  const found = await Promise.all(
    links.map(async (link) => {
      return (await deviceOf(link)).map((device) => ({ ...device, addresses: globalOf(link) }))
    }),
  )
  const bridges = links.filter(({ linkinfo }) => BRIDGES.has(linkinfo?.info_kind ?? ''))
  return { flannels: found.flat(), bridges: new Set(bridges.map(({ ifname = '' }) => ifname)) }
}
