// flannel-devices.ts - finds the network devices on this host that backends of weft and flannel created.

import type { Log } from '../../base/log.ts'
import type { HostKernel, Link } from '../../host/kernel.ts'
import { givenTo, isTunInUse, renamed, type FollowedLink } from '../../host/links.ts'
import {
  addressKey,
  familyOf,
  hostNet,
  netContains,
  netsOf,
  type Address,
  type AddressKey,
  type Net,
  type Nets,
} from '../../net/address.ts'
import { hasBackendName, isNamedBy, KINDS, type Kind } from '../catalog.ts'

interface FlannelDevice {
  readonly link: Link
  /** True if a running process has the TUN open; always false for a device whose packets the kernel forwards. */
  readonly inUse: boolean
}

const DEVICES = Object.values<Kind>(KINDS).flatMap(({ devices }) => devices)

/**
 * Returns true if the link type and the name of an interface match those of a backend's device. A matching name alone
 * does not prove that a backend created the device.
 */
function isOfBackend({ name, type, tun, vxlan }: Link): boolean {
  return (
    DEVICES.some(([kind, pattern]) => kind === type && isNamedBy(pattern, name)) &&
    (type !== 'tun' || tun?.mode === 'tun') &&
    // flannel's vxlan devices have a fixed VNI, with which their name ends. A vxlan device with the kernel's flag
    // `external` is not flannel's, because it has no fixed VNI: routes or programs set the VNI of each packet.
    !vxlan?.external &&
    (vxlan === undefined || name.endsWith(`.${vxlan.vni}`))
  )
}

/** Lists the devices on this host that backends of weft and flannel created. */
export const findDevices = async (kernel: HostKernel): Promise<FlannelDevice[]> => devicesAmong(await kernel.links())

const devicesAmong = (links: readonly Link[]): FlannelDevice[] =>
  links.filter(isOfBackend).map((link) => {
    // A TUN that is not persistent exists only while a process has it open. For a persistent TUN, `isTunInUse` finds
    // out whether a process has it open.
    return { link, inUse: link.tun !== undefined && (!link.tun.persist || isTunInUse(link)) }
  })

/**
 * Returns the name of a device that an earlier run made and that another program has renamed since; undefined if there
 * is none. The device must have the link type of the backend's device, a name that no backend uses, and addresses in
 * all families of `networks`, each within these networks. `vni` is the VNI of a vxlan device. A TUN that a process has
 * open does not count.
 */
export async function findRenamed(
  kernel: HostKernel,
  type: string,
  networks: Nets,
  vni?: number,
): Promise<string | undefined> {
  const isEarlier = (link: Link): boolean => {
    if (link.type !== type || hasBackendName(link.name) || (vni !== undefined && link.vxlan?.vni !== vni)) return false
    const addresses = givenTo(link).filter((address) => networks[familyOf(address)])
    const isInside = (address: Address): boolean => netContains(networks[familyOf(address)] as Net, address)
    if (addresses.length === 0 || !addresses.every(isInside)) return false
    return type !== 'tun' || (link.tun?.mode === 'tun' && !isTunInUse(link))
  }
  return (await kernel.links()).find(isEarlier)?.name
}

/**
 * Looks up the device of an earlier run by its name, or else by its type and this node's addresses `own`. It compares
 * the addresses, because the caller may delete the device, and must not delete another program's. If another program
 * has renamed the device, logs its new name. If there is no such device, `device.index` is undefined afterwards.
 */
export async function findEarlier(
  device: FollowedLink,
  kernel: HostKernel,
  type: string,
  own: readonly Address[],
  log: Pick<Log, 'info'>,
): Promise<void> {
  if (await device.find(kernel)) return
  const name = await findRenamed(kernel, type, netsOf(own.map(hostNet)))
  if (name === undefined) return
  log.info(renamed(device.name, name))
  device.name = name
  await device.find(kernel)
}

const TYPES = new Set(DEVICES.map(([type]) => type))

/**
 * Lists the devices of backends that another program renamed. A renamed device has a backend's link type, and only
 * addresses from `own`, the first addresses of this node's subnets. Leaves out a TUN that a process has open.
 */
export function renamedAmong(links: readonly Link[], own: ReadonlySet<AddressKey>): readonly Link[] {
  return links.filter((link) => {
    if (!TYPES.has(link.type) || hasBackendName(link.name)) return false
    const addresses = givenTo(link)
    if (addresses.length === 0 || !addresses.every((address) => own.has(addressKey(address)))) return false
    return link.type !== 'tun' || (link.tun?.mode === 'tun' && !isTunInUse(link))
  })
}

/** Returns the link types of the devices with these names or name patterns. */
export const typesOf = (names: readonly string[]): ReadonlySet<string> =>
  new Set(
    DEVICES.filter(([, pattern]) => names.some((name) => name === pattern || isNamedBy(pattern, name))).map(
      ([type]) => type,
    ),
  )

const BRIDGES = new Set(['bridge', 'openvswitch'])

/** The devices of weft's and flannel's backends on this host, all links, and the names of all bridges. */
export interface Devices {
  readonly links: readonly Link[]
  readonly flannels: readonly FlannelDevice[]
  readonly bridges: ReadonlySet<string>
}

/** Lists the devices of weft's and flannel's backends, and the bridges, on this host. */
export async function listDevices(kernel: HostKernel): Promise<Devices> {
  const links = await kernel.links()
  const bridges = links.filter(({ type }) => BRIDGES.has(type))
  return { links, flannels: devicesAmong(links), bridges: new Set(bridges.map(({ name }) => name)) }
}
