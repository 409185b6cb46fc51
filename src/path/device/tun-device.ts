// tun-device.ts - configures a TUN or WireGuard device for a network (address, MTU, queue, route), and repairs the
// configuration.
//
// flannel uses the same name, address, MTU and route for the device (pkg/backend/udp, pkg/backend/wireguard).

import { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { ExternalInterface } from '../../host/external-interface.ts'
import { applyChanges, removeAll } from '../../host/kernel-errors.ts'
import type { Device, HostKernel, Link, Route } from '../../host/kernel.ts'
import { deletionOf, givenTo, isReplaceable, isTunInUse } from '../../host/links.ts'
import {
  ADDRESS_BITS,
  familyOf,
  FAMILY_NAMES,
  formatNet,
  isLinkLocal,
  listed,
  netContains,
  netsOf,
  parseNet,
  type Address,
  type Family,
  type Net,
  type Nets,
} from '../../net/address.ts'
import { hasBackendName, isNamedBy, KINDS } from '../catalog.ts'

/**
 * The length of the TUN's queue in packets. In a measurement with this length, 290,000 packets of 64 bytes per second
 * passed without loss, against 155,000 with the kernel's default of 500.
 */
const QUEUE_LENGTH = 4000
/** The maximum number of routes that one log line names. */
const HIDING_NAMED = 5

interface TunOptions {
  readonly device: Device
  readonly network: Net
  /** This node's subnet, which is a part of `network`. */
  readonly subnet: Net
  readonly mtu: number
  /** The scope of the kernel's route to the network (rtnetlink(7)); defaults to `global`. */
  readonly scope?: 'global' | 'link'
  readonly kernel: HostKernel
  readonly log: Log
  /**
   * Returns true if weftd itself made the route to `destination`, a part of the network, although the route does not
   * use this device.
   */
  readonly isOwnRoute?: ((destination: string) => boolean) | undefined
}

export interface TunDevice {
  /** Sets address, MTU, queue length and route of the existing device. A repeated call changes nothing. */
  configure(): Promise<void>
  /**
   * Repairs the device's configuration and returns a description of each repair. Does nothing if the device is missing,
   * because then the caller, which opened the device, must create it again.
   */
  resync(): Promise<readonly string[]>
}

/**
 * Returns the name of a TUN device of an earlier process that the engine can use; undefined if there is none. No
 * process may have the device open, and its queues and addresses must be as wanted. Tries the devices of the last
 * process first, then the device to which the network is routed. Deletes an unused device whose queues or addresses
 * differ, because it would prevent the creation of a new device. Recognises a renamed device by this node's address.
 */
export async function adoptTun(
  kernel: HostKernel,
  { name: pattern, last, networks, subnets, isMultiQueue }: AdoptOptions,
): Promise<string | undefined> {
  const routed = (await Promise.all(listed(networks).map((network) => routesTo(kernel, network))))
    .flat()
    .map(({ device }) => device)
  // A device that has no backend's name may be weft's TUN device, renamed by an operator. So this device is a candidate
  // although its name does not match `pattern`.
  const isCandidate = (name: string): boolean => isNamedBy(pattern, name) || !hasBackendName(name)
  const names = [...last, pattern, ...routed].filter((name) => name !== '' && !name.includes('%d') && isCandidate(name))
  for (const name of new Set(names)) {
    const link = await findIdleTun(kernel, name)
    const addresses = link ? givenTo(link) : []
    // A TUN with an address outside the network belongs to another daemon and must stay. Addresses in a family that the
    // network lacks do not count.
    if (!link || addresses.some((address) => isElsewhere(networks, address))) continue
    const isOwn = (address: Address): boolean => subnets[familyOf(address)]?.address === address
    if (!hasBackendName(name) && !addresses.some(isOwn)) continue
    if (link.tun?.isMultiQueue === isMultiQueue && addresses.every(isOwn)) return name
    await removeAll(kernel, [{ kind: 'delete link', device: link }])
  }
  return undefined
}

/**
 * Throws WeftError DEVICE if another process has the TUN open. Each process that opens a TUN with several queues by its
 * name gets a part of the packets (drivers/net/tun.c, tun_set_iff), so two daemons would take each other's packets. If
 * the name is a pattern, there is no such conflict, because the kernel creates a new device.
 */
export async function refuseSharedTun(kernel: HostKernel, name: string): Promise<void> {
  if (name.includes('%d')) return
  const queues = (await kernel.link(name))?.tun?.openQueues ?? 0
  if (queues === 0) return
  throw new WeftError('DEVICE', `another process forwards through ${name}`, {
    remedy:
      'stop that process; if it is the weftd of another network on this host, give one of the two networks a backend of another type',
  })
}

const routesTo = (kernel: HostKernel, network: Net): Promise<readonly Route[]> =>
  kernel.routes({ family: familyOf(network), exactly: [network] })

/** Returns the TUN called `name`. Returns undefined if there is no such TUN, or if a process has the TUN open. */
async function findIdleTun(kernel: HostKernel, name: string): Promise<Link | undefined> {
  const link = await kernel.link(name)
  return link?.tun?.mode === 'tun' && !isTunInUse(link) ? link : undefined
}

const isElsewhere = (networks: Nets, address: Address): boolean => {
  const network = networks[familyOf(address)]
  return network !== undefined && !netContains(network, address)
}

/**
 * Deletes the TUN called `name` if no process has it open and all its addresses are within `networks`. If no backend
 * uses the name, deletes the TUN only if it has an address within `networks`.
 */
export async function removeIdleTun(kernel: HostKernel, name: string, networks: Nets): Promise<void> {
  const link = await findIdleTun(kernel, name)
  const addresses = link ? givenTo(link) : []
  const isOurs = link !== undefined && (hasBackendName(name) || addresses.length > 0)
  if (isOurs && !addresses.some((address) => isElsewhere(networks, address)))
    await removeAll(kernel, [{ kind: 'delete link', device: link }])
}

/** Removes from a tunnel's device the addresses and routes of the families that the tunnel no longer carries. */
export async function removeFamilies(kernel: HostKernel, device: string, families: readonly Family[]): Promise<void> {
  const link = families.length > 0 ? await kernel.link(device) : undefined
  for (const family of families) {
    const addresses = link?.addresses[family].filter(({ address }) => !isLinkLocal(address)) ?? []
    if (!link || addresses.length === 0) continue
    // Delete only routes with the protocol `boot`, which the kernel records for routes whose maker names no protocol,
    // such as weftd's.
    const routes = (await kernel.routes({ family, device: link })).filter(({ protocol }) => protocol === 'boot')
    await removeAll(kernel, [
      ...routes.map((route) => deletionOf(route, family)),
      ...addresses.map(({ address, prefixLength }) => {
        return { kind: 'delete address', device: link, address, prefixLength } as const
      }),
    ])
  }
}

interface AdoptOptions {
  /** `networks` are the networks whose packets the device must carry, and `subnets` are this node's subnets in them. */
  readonly networks: Nets
  readonly subnets: Nets
  /**
   * `name` is the device's name, or a pattern such as `flannel%d`. The member `last` lists the names of the earlier
   * process's devices.
   */
  readonly name: string
  readonly last: readonly string[]
  readonly isMultiQueue: boolean
}

/** The link types, in the kernel's terms, and the name patterns of all backends' devices. */
const DEVICES = Object.values(KINDS).flatMap(({ devices }) => devices as readonly (readonly [string, string])[])

const ownerOf = ({ device }: Route): string => (device === '' ? 'nowhere (a blackhole or the like)' : device)

/**
 * The minimum MTU in bytes of a link with IPv6 (RFC 8200, section 5). The kernel disables IPv6 on a device with a
 * smaller MTU.
 */
export const LEAST_MTU = 1280

/**
 * The minimum MTU in bytes for each family. 68 is the minimum for IPv4 (RFC 791, section 3.2), and the kernel refuses a
 * smaller MTU.
 */
const LEAST = { ipv4: 68, ipv6: LEAST_MTU } as const

/**
 * Checks that the external interface has an address of this family, and that the MTU is large enough for the family.
 * `mtu` is the longest packet in bytes that containers may send. Throws WeftError.
 */
export function checkFamily(family: Family, mtu: number, external: ExternalInterface): void {
  if (external.address[family] === undefined)
    throw new WeftError('ADDRESS', `${external.name} has no ${FAMILY_NAMES[family]} address`, {
      remedy: 'give the interface an address of that family, or choose another interface with --iface',
    })
  checkMtu(family, mtu, external.name)
}

/**
 * Throws WeftError CONFIG if `mtu`, the longest packet in bytes that containers may send, is too small for the family.
 */
export function checkMtu(family: Family, mtu: number, external: string): void {
  const least = LEAST[family]
  if (mtu >= least) return
  throw new WeftError(
    'CONFIG',
    `${FAMILY_NAMES[family]} needs an MTU of ${least}, and containers would have ${mtu} here`,
    {
      remedy: `raise the MTU of ${external}, or the one in the network configuration's Backend, by ${least - mtu} on every node`,
    },
  )
}

/**
 * Returns true for a route whose device has been deleted since the kernel listed the route, so that the device's index
 * has no name. The kernel deletes the route with the device. The device may be the TUN of the earlier run, which the
 * kernel deletes when this process closes the queues that the service manager kept but this process cannot use.
 */
const isOnGoneDevice = ({ device, deviceIndex }: Route): boolean => device === '' && deviceIndex !== 0

/**
 * Returns the route of a foreign device to the network `to` that weftd's own route would replace, because the two
 * routes have the same metric. Returns undefined if there is no such route.
 */
async function findForeignRoute(
  kernel: HostKernel,
  to: Net,
  isOwn: (device: string) => boolean,
): Promise<Route | undefined> {
  const routes = await routesTo(kernel, to)
  return routes.find((route) => isReplaceable(route, familyOf(to)) && !isOwn(route.device) && !isOnGoneDevice(route))
}

/** Returns the link types, in the kernel's terms, of the backends' devices that may have this name. */
const typesNamed = (device: string): readonly string[] =>
  DEVICES.flatMap(([type, pattern]) => (isNamedBy(pattern, device) ? [type] : []))

/**
 * Returns true for a TUN that has the first address of this node's subnet. An earlier process made such a TUN, whatever
 * its name is now.
 */
async function isRenamedTun(kernel: HostKernel, name: string, subnet: Net | undefined): Promise<boolean> {
  if (!subnet || hasBackendName(name)) return false
  const link = await kernel.link(name)
  const has = link?.addresses[familyOf(subnet)].some(({ address }) => address === subnet.address) === true
  return has && link?.tun?.mode === 'tun'
}

function foreignRouteError(to: Net, foreign: Route): WeftError {
  const network = formatNet(to)
  return new WeftError('DEVICE', `${network} is already routed to ${ownerOf(foreign)}`, {
    remedy: `stop the daemon that made the route, or remove the route with \`ip route del ${network}\``,
  })
}

/**
 * Throws WeftError DEVICE if a foreign device has a route to the network with the same metric, because weftd's route
 * would silently replace that route. Before that, deletes an unused device whose name and type show that another
 * backend left it. If `subnet` is given, a renamed TUN with the first address of this subnet is not foreign.
 */
export async function refuseForeignRoute(
  kernel: HostKernel,
  to: Net,
  isOwn: (device: string) => boolean,
  subnet?: Net,
): Promise<void> {
  const first = await findForeignRoute(kernel, to, isOwn)
  if (!first || (await isRenamedTun(kernel, first.device, subnet))) return
  const types = typesNamed(first.device)
  if (types.includes('tun')) await removeIdleTun(kernel, first.device, netsOf([to]))
  if (types.some((type) => type !== 'tun')) {
    const { removeKernelDevice } = await import('./leftovers.ts') // packets wait, so import it only if needed
    await removeKernelDevice(kernel, first.device, netsOf([to]))
  }
  const foreign = types.length > 0 ? await findForeignRoute(kernel, to, isOwn) : first
  if (foreign) throw foreignRouteError(to, foreign)
}

/**
 * Throws WeftError DEVICE in the cases in which `refuseForeignRoute` would throw it, but changes nothing on the host.
 * `isOwn` returns true for a device whose route may stay.
 */
export async function checkForeignRoute(
  kernel: HostKernel,
  to: Net,
  isOwn: (device: string) => boolean,
): Promise<void> {
  const foreign = await findForeignRoute(kernel, to, isOwn)
  if (!foreign) return
  const types = typesNamed(foreign.device)
  const nets = netsOf([to])
  if (types.includes('tun')) {
    const link = await findIdleTun(kernel, foreign.device)
    if (link && !givenTo(link).some((address) => isElsewhere(nets, address))) return
  }
  if (types.some((type) => type !== 'tun')) {
    const { findRemovable } = await import('./leftovers.ts')
    if (await findRemovable(kernel, foreign.device, nets)) return
  }
  throw foreignRouteError(to, foreign)
}

export function createTunDevice(options: TunOptions): TunDevice {
  const { device, network, subnet, mtu, kernel, log, scope = 'global', isOwnRoute = () => false } = options
  const family = familyOf(network)
  const route = formatNet(network)
  let hidden = new Set<string>()

  const configure = (): Promise<void> =>
    applyChanges(kernel, [
      // Leave gso_max_size at its default, although superpackets of 64 KiB do not fit into one datagram. With a smaller
      // value the kernel would split longer superpackets of containers in software (gso_features_check in
      // net/core/dev.c).
      { kind: 'set link', device, mtu, queueLength: QUEUE_LENGTH, up: true },
      {
        kind: 'replace address',
        device,
        address: subnet.address,
        prefixLength: ADDRESS_BITS[family],
        // Switch duplicate address detection (RFC 4862) off, because no other node has an address of this node's
        // subnet.
        noDad: family === 'ipv6',
      },
      // Set the scope of an IPv4 route, because the kernel gives an IPv4 route without a gateway the scope `link`
      // otherwise.
      { kind: 'replace route', destination: network, device, ...(family === 'ipv4' ? { scope } : {}) },
    ])

  /**
   * Logs routes to parts of the network that do not use the device, because the kernel prefers them to weftd's route to
   * the whole network. Does not log routes to this node's containers, which are needed. weftd does not remove the
   * logged routes, because an operator may want their packets to bypass the tunnel.
   */
  function logBypassing(routes: readonly Route[]): void {
    const hiding = new Set<string>()
    for (const each of routes) {
      const net = parseNet(each.destination)
      const isOwn =
        isOwnRoute(each.destination) ||
        (net && net.prefixLength >= subnet.prefixLength && netContains(subnet, net.address))
      if (net && !isOwn && net.prefixLength > network.prefixLength && each.device !== device.name)
        hiding.add(`${each.destination} to ${ownerOf(each)}`)
    }
    const name = (found: string[]): string =>
      found.slice(0, HIDING_NAMED).join(', ') + (found.length > HIDING_NAMED ? `, ... (${found.length})` : '')
    const came = [...hiding].filter((each) => !hidden.has(each))
    const went = [...hidden].filter((each) => !hiding.has(each))
    if (came.length > 0)
      log.warn(`Packets bypass the tunnel by routes that others made: ${name(came)}; remove them unless that is wanted`)
    if (went.length > 0) log.info(`Routes that bypassed the tunnel are gone: ${name(went)}`)
    hidden = hiding
  }

  return {
    configure,
    async resync() {
      // Read the routes before the device. If the device goes down between these two requests, weft then reports only
      // the device, and not the route that the kernel removed with it.
      const within = await kernel.routes({ family, within: network })
      const link = await kernel.link(device.index ?? device.name)
      if (!link) return []
      logBypassing(within)
      const routes = within.filter((each) => each.destination === route && isReplaceable(each, family))
      const wrong: string[] = []
      if (!link.up) wrong.push(`${device.name} was down`)
      if (link.mtu !== mtu) wrong.push(`${device.name} had MTU ${link.mtu}`)
      if (!link.addresses[family].some((each) => each.address === subnet.address))
        wrong.push(`${device.name} had lost its address`)
      const other = routes.find((each) => each.device !== device.name)
      if (other) wrong.push(`${route} was routed to ${ownerOf(other)}`)
      else if (routes.length === 0) wrong.push(`the route to ${route} was gone`)
      if (wrong.length > 0) await configure()
      return wrong
    },
  }
}
