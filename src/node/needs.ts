// needs.ts - checks, before weftd writes the lease, that the data path can have its ports, its devices and its routes.
// Peers send packets to every node with a lease, so a node that cannot forward must not have a lease.

import { isWeftError, WeftError } from '../base/errors.ts'
import type { HostKernel, Link } from '../host/kernel.ts'
import { isTunInUse } from '../host/links.ts'
import { ownerOfSockets, socketsAt, socketsOf, tryUdpPort } from '../host/udp-ports.ts'
import { familyOf, type Family } from '../net/address.ts'
import { parseIpv4 } from '../net/ipv4.ts'
import { hasBackendName, isNamedBy } from '../path/catalog.ts'
import type { Backend, NeededDevice, NeededPart, NeededPort, NeededSide } from '../path/contract.ts'
import { findRenamed } from '../path/device/flannel-devices.ts'
import { checkForeignRoute, checkMtu } from '../path/device/tun-device.ts'
import { engineStartError } from '../path/engine/start-error.ts'

/** The facts about other processes of this host that the checks need. */
export interface NeedsHost {
  readonly kernel: HostKernel
  /**
   * The process id of the running predecessor; 0 if a predecessor runs but its id is not known; undefined if none runs.
   */
  readonly predecessor?: number | undefined
  /** True if this process or its predecessor forwards, so that devices and routes in use are this node's. */
  readonly isForwarding: boolean
  /** The TUN devices of the earlier run, whose descriptors the service manager kept open. */
  readonly tunNames: readonly string[]
}

/**
 * Throws WeftError if `open` of a prepared backend would fail because of other programs, devices or routes of this
 * host. Changes nothing on the host.
 */
export async function requireNeeds({ needs }: Pick<Backend, 'needs'>, host: NeedsHost): Promise<void> {
  const parts = needs?.() ?? []
  const failures = await failuresOf(parts, (part) => requirePart(part, host))
  if (parts.length > 0 && failures.length === parts.length) throw failures[0]
}

async function failuresOf<T>(all: readonly T[], check: (each: T) => Promise<void>): Promise<readonly WeftError[]> {
  const failures: WeftError[] = []
  for (const each of all)
    try {
      await check(each)
    } catch (error) {
      if (!isWeftError(error)) throw error
      failures.push(error)
    }
  return failures
}

async function requirePart({ ports = [], device: needed, sides = [] }: NeededPart, host: NeedsHost): Promise<void> {
  const devices = await host.kernel.links()
  const device = needed && (await presentDevice(needed, devices, host))
  if (device) await requireDevice(device, devices, host)
  for (const port of ports) {
    requireVni(port, device, devices)
    await requirePort(port, device, devices, host)
  }
  const failures = await failuresOf(sides, (side) => requireSide(side, device, host))
  if (sides.length > 0 && failures.length === sides.length) throw failures[0]
}

async function requireSide(
  { family, network, mtu, external }: NeededSide,
  device: NeededDevice | undefined,
  { kernel, isForwarding, tunNames }: NeedsHost,
): Promise<void> {
  checkMtu(family, mtu, external)
  // A route through a TUN device that this process inherited from its earlier run is this node's own route.
  const isOwn = (name: string): boolean =>
    tunNames.includes(name) || (device !== undefined && !device.name.includes('%d') && name === device.name)
  if (network && !isForwarding) await checkForeignRoute(kernel, network, isOwn)
}

/**
 * Returns the needed device with its present name, because another program may have renamed the device of an earlier
 * run.
 */
async function presentDevice(
  device: NeededDevice,
  devices: readonly Link[],
  { kernel }: NeedsHost,
): Promise<NeededDevice> {
  const { name, type, networks } = device
  const isRenamed = (link: Link): boolean => link.type === type && !hasBackendName(link.name)
  if (devices.some((link) => isNamedBy(name, link.name)) || !devices.some(isRenamed)) return device
  return { ...device, name: (await findRenamed(kernel, type, networks)) ?? name }
}

/** Returns the type of a device as a text for messages; `none` for a physical interface, which has no type. */
const kindOf = ({ type }: Link): string => type || 'none'

/**
 * Checks that the name of the device is free, or that this backend uses or deletes the existing device with the name.
 */
async function requireDevice(
  { name, type, replaces, local, refusal }: NeededDevice,
  devices: readonly Link[],
  { isForwarding, tunNames }: NeedsHost,
): Promise<void> {
  const twin = devices.find((each) => each.name !== name && local !== undefined && isSameIpip(each, local))
  const found = devices.find((link) => link.name === name)
  if (twin && !found)
    throw new WeftError(
      'DEVICE',
      `${name} cannot be made, since the device ${twin.name} is of the same kind and addresses`,
      {
        remedy: `remove that device if nothing needs it (\`ip link del ${twin.name}\`), or take another backend`,
      },
    )
  if (!found || replaces === 'any') return
  const kind = kindOf(found)
  if (replaces.includes(kind)) return
  if (kind !== type || (type === 'tun' && found.tun?.mode !== 'tun'))
    throw new WeftError(
      'DEVICE',
      refusal ??
        `${name} is a device of another program, of the type ${kind}; the backend needs a device ${name} of the type ${type}`,
      { remedy: `it is of type ${kind}: remove it with \`ip link del ${name}\`` },
    )
  if (type !== 'tun' || isForwarding || tunNames.includes(name)) return
  if (isTunInUse(found))
    throw new WeftError('DEVICE', `another process forwards through ${name}`, {
      remedy:
        'stop that process; if it is the weftd of another network on this host, give one of the two networks a backend of another type',
    })
}

/** Returns true for an ipip device that accepts packets from any remote address to the local address `address`. */
function isSameIpip({ ipip }: Link, address: string): boolean {
  if (!ipip || ipip.external || ipip.remote !== undefined || ipip.underlay) return false
  return ipip.local === parseIpv4(address)
}

/** Checks that no other vxlan device has the same VNI and port, because the kernel does not allow two such devices. */
function requireVni(
  { family, port, vxlan }: NeededPort,
  device: NeededDevice | undefined,
  devices: readonly Link[],
): void {
  if (!vxlan) return
  const other = devices.find(
    (each) =>
      each.name !== device?.name &&
      isOnPort(each, family, port) &&
      each.vxlan?.vni === vxlan.vni &&
      isShared(each, vxlan),
  )
  if (other)
    throw new WeftError(
      'DEVICE',
      `${device?.name} cannot be made, since the device ${other.name} has its VNI ${vxlan.vni} and its UDP port ${port}`,
      {
        remedy: `remove that device if nothing needs it (\`ip link del ${other.name}\`), or set another "VNI" in Backend for all nodes`,
      },
    )
}

/** Returns true if a vxlan device uses the UDP port `port` over the address family `family`. */
function isOnPort({ vxlan }: Link, family: Family, port: number): boolean {
  return vxlan?.port === port && (vxlan.local === undefined ? 'ipv4' : familyOf(vxlan.local)) === family
}

/**
 * Checks that the UDP port that the backend needs is free, or in use by this process, by its predecessor, or by a
 * device that this backend uses or deletes.
 */
async function requirePort(
  needed: NeededPort,
  device: NeededDevice | undefined,
  devices: readonly Link[],
  { kernel, predecessor }: NeedsHost,
): Promise<void> {
  const { family, address, port, vxlan } = needed
  const code = await tryUdpPort(family, address, port)
  if (code === 'EACCES')
    throw engineStartError({ code, message: `UDP port ${port}: ${code}` }, portConfig(needed, device))
  // Ignore errors other than EACCES and EADDRINUSE, for example that the address does not exist yet. If the error
  // persists, opening the port will report the error.
  if (code !== 'EADDRINUSE') return
  const sockets = await socketsAt(family, address, port)
  const own = await socketsOf(process.pid)
  const before = predecessor === undefined ? new Set<number>() : await socketsOf(predecessor)
  const isKnown = (inode: number): boolean => own?.has(inode) === true || before?.has(inode) === true
  // A socket of this process or of its predecessor on the port explains EADDRINUSE. Any further socket, such as an IPv6
  // socket on the same port, need not conflict.
  if (sockets.length === 0 || sockets.some(({ inode }) => isKnown(inode))) return
  const foreign = new Set(sockets.map(({ inode }) => inode))
  const owner = await ownerOfSockets(foreign)
  if (owner !== undefined) throw portError(needed, owner)
  // The port's socket belongs to the kernel, or to a process that is not visible to this process.
  const holders = devices.filter((each) => isOnPort(each, family, port) && each.up)
  const other = holders.find((each) => !isReplaced(each, device) && !(vxlan && isShared(each, vxlan)))
  if (other) throw portError(needed, `the device ${other.name} (${kindOf(other)})`, `ip link del ${other.name}`)
  if (holders.length > 0) return
  const wireguard = devices.find((each) => kindOf(each) === 'wireguard' && isReplaced(each, device))
  const listens = wireguard && (await portOf(wireguard, kernel))
  // The WireGuard device whose port the kernel does not report may have the needed port. If the predecessor runs in
  // another container, this process cannot see the predecessor's sockets, so the predecessor may have the port.
  if (listens !== port && listens !== 'unknown' && before !== undefined) throw portError(needed, undefined)
}

/**
 * Returns the UDP port of a WireGuard device; `unknown` if the kernel does not report it, for example because the
 * device is gone.
 */
const portOf = (device: Link, kernel: HostKernel): Promise<number | 'unknown'> =>
  kernel.wireguard(device).then(
    ({ port }) => port,
    () => 'unknown',
  )

/**
 * Returns true if the kernel lets a new vxlan device share the socket of this vxlan device (drivers/net/vxlan,
 * VXLAN_F_RCV_FLAGS).
 */
function isShared({ vxlan }: Link, { gbp }: { readonly gbp: boolean }): boolean {
  return vxlan?.gbp === gbp && !vxlan.external && !vxlan.zeroChecksumIpv6Rx
}

const portConfig = ({ address, port }: NeededPort, device: NeededDevice | undefined) => ({
  bindAddress: address,
  port,
  tunName: device?.name ?? '',
})

/** Returns true if the backend's `open` will use the existing device `each`, or delete and replace it. */
const isReplaced = (each: Link, device: NeededDevice | undefined): boolean =>
  device !== undefined &&
  isNamedBy(device.name, each.name) &&
  (device.replaces === 'any' || kindOf(each) === device.type || device.replaces.includes(kindOf(each)))

function portError(
  { family, address, port, option }: NeededPort,
  holder: string | undefined,
  removal?: string,
): WeftError {
  const where = family === 'ipv6' ? `[${address}]:${port}` : `${address}:${port}`
  const by = holder === undefined ? '' : ` by ${holder}`
  const way =
    removal === undefined
      ? `stop what holds it (\`ss -ulnp sport = :${port}\`; a device: \`ip -d link\`)`
      : `remove that device if nothing needs it (\`${removal}\`)`
  return new WeftError('PORT_IN_USE', `UDP port ${where} is taken${by}`, {
    remedy: `${way}, or set another "${option}" in Backend for all nodes`,
  })
}
