// tun-device.ts - configures a TUN or WireGuard device for a network (address, MTU, queue, route), and repairs the
// configuration.
//
// flannel uses the same name, address, MTU and route for the device (pkg/backend/udp, pkg/backend/wireguard).

import { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Run } from '../../host/command.ts'
import type { ExternalInterface } from '../../host/external-interface.ts'
import type { HostKernel } from '../../host/kernel.ts'
import {
  findLink,
  ipJson,
  isTunOpen,
  routesTo,
  routesWithin,
  USUAL_METRIC,
  type Link,
  type Named,
  type Route,
} from '../../host/links.ts'
import {
  familyOf,
  FAMILY_NAMES,
  formatNet,
  hostNet,
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
  readonly device: Named
  readonly network: Net
  /** This node's subnet, which is a part of `network`. */
  readonly subnet: Net
  readonly mtu: number
  /** The scope of the kernel's route to the network (rtnetlink(7)); defaults to `global`. */
  readonly scope?: 'global' | 'link'
  readonly run: Run
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
   * because only the caller that opened the device can create it again.
   */
  resync(): Promise<readonly string[]>
}

interface JsonTun {
  flags?: string[]
  linkinfo?: { info_kind?: string; info_data?: { type?: string; multi_queue?: boolean; numqueues?: number } }
}

/**
 * Returns the name of a TUN device of an earlier process that no process has open, if its queues and addresses are
 * right; undefined if there is none. Tries the devices of the last process first, then the device to which the network
 * is routed. Deletes an unused device whose queues or addresses are wrong, because it would be in the way. Recognises a
 * device that another program has renamed by this node's address.
 */
export async function adoptTun(
  run: Run,
  { name: pattern, last, networks, subnets, isMultiQueue }: AdoptOptions,
): Promise<string | undefined> {
  const routed = (await Promise.all(listed(networks).map((network) => routesTo(run, network))))
    .flat()
    .map(({ device }) => device)
  // A renamed device is a candidate too, although its name does not match `pattern`.
  const isCandidate = (name: string): boolean => isNamedBy(pattern, name) || !hasBackendName(name)
  const names = [...last, pattern, ...routed].filter((name) => name !== '' && !name.includes('%d') && isCandidate(name))
  for (const name of new Set(names)) {
    const tun = await findIdleTun(run, name)
    // A TUN with an address outside the network belongs to another daemon and must stay. Addresses in a family that the
    // network lacks do not count.
    if (!tun || tun.addresses.some((address) => isElsewhere(networks, address))) continue
    const isOwn = (address: Address): boolean => subnets[familyOf(address)]?.address === address
    if (!hasBackendName(name) && !tun.addresses.some(isOwn)) continue
    if (tun.isMultiQueue === isMultiQueue && tun.addresses.every(isOwn)) return name
    await run('ip', ['link', 'del', 'dev', name])
  }
  return undefined
}

/**
 * Throws WeftError DEVICE if another process has the TUN open. Each process that opens a TUN with several queues by its
 * name gets a part of the packets (drivers/net/tun.c, tun_set_iff), so two daemons would take each other's packets. If
 * the name is a pattern, there is no such conflict, because the kernel creates a new device.
 */
export async function refuseSharedTun(run: Run, name: string): Promise<void> {
  if (name.includes('%d') || !(await findLink(run, name))) return
  const [json] = await ipJson<JsonTun>(run, ['-d', 'link', 'show', 'dev', name])
  const queues = json?.linkinfo?.info_data?.numqueues ?? 0
  if (queues === 0) return
  throw new WeftError('DEVICE', `another process forwards through ${name}`, {
    remedy:
      'stop that process; if it is the weftd of another network on this host, give one of the two networks a backend of another type',
  })
}

/**
 * Returns the addresses of the TUN called `name`, and whether it has several queues. Returns undefined if there is no
 * such TUN, or if a process has the TUN open.
 */
async function findIdleTun(
  run: Run,
  name: string,
): Promise<{ readonly addresses: readonly Address[]; readonly isMultiQueue: boolean } | undefined> {
  const link = await findLink(run, name)
  if (!link) return undefined
  const [json] = await ipJson<JsonTun>(run, ['-d', 'link', 'show', 'dev', name])
  const { info_kind: kind, info_data: data } = json?.linkinfo ?? {}
  if (kind !== 'tun' || data?.type !== 'tun' || (await isTunOpen(name, link.index, json?.flags ?? []))) return undefined
  return { addresses: givenTo(link), isMultiQueue: data.multi_queue === true }
}

/** Returns a device's addresses, except the link-local IPv6 address that the kernel gives to each device. */
const givenTo = ({ addresses: { ipv4, ipv6 } }: Link): readonly Address[] =>
  [...ipv4, ...ipv6.filter(({ address }) => !isLinkLocal(address))].map(({ address }) => address)

const isElsewhere = (networks: Nets, address: Address): boolean => {
  const network = networks[familyOf(address)]
  return network !== undefined && !netContains(network, address)
}

/**
 * Deletes the TUN called `name` if no process has it open and all its addresses are within `networks`. If no backend
 * uses the name, deletes the TUN only if it has an address within `networks`.
 */
export async function removeIdleTun(run: Run, name: string, networks: Nets): Promise<void> {
  const tun = await findIdleTun(run, name)
  const isOurs = tun !== undefined && (hasBackendName(name) || tun.addresses.length > 0)
  if (isOurs && !tun.addresses.some((address) => isElsewhere(networks, address)))
    await run('ip', ['link', 'del', 'dev', name])
}

/** Removes from a tunnel's device the addresses and routes of the families that the tunnel no longer carries. */
export async function removeFamilies(run: Run, device: string, families: readonly Family[]): Promise<void> {
  const link = families.length > 0 ? await findLink(run, device) : undefined
  for (const family of families) {
    if (!link || !givenTo(link).some((address) => familyOf(address) === family)) continue
    const flag = family === 'ipv4' ? '-4' : '-6'
    // Delete only routes with the protocol `boot`, which `ip route` records for routes whose command names no protocol,
    // such as weftd's.
    await run('ip', [flag, 'route', 'flush', 'dev', device, 'proto', 'boot'])
    await run('ip', [flag, 'address', 'flush', 'dev', device, 'scope', 'global'])
  }
}

interface AdoptOptions {
  /** `networks` are the networks to carry, and `subnets` this node's subnets in them. */
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
 * Checks that weftd can open a data path of this family alone on the external interface. `mtu` is the longest packet in
 * bytes that containers may send. Throws WeftError.
 */
export function checkFamily(family: Family, mtu: number, external: ExternalInterface): void {
  if (external.address[family] === undefined)
    throw new WeftError('ADDRESS', `${external.name} has no ${FAMILY_NAMES[family]} address`, {
      remedy: 'give the interface an address of that family',
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
 * Returns the route of a foreign device to network `to` that weftd's own route would replace because both have the same
 * metric. Returns undefined if there is no such route.
 */
async function findForeignRoute(run: Run, to: Net, isOwn: (device: string) => boolean): Promise<Route | undefined> {
  return (await routesTo(run, to)).find(({ metric, device }) => metric === USUAL_METRIC[familyOf(to)] && !isOwn(device))
}

/** Returns the link types, in the kernel's terms, of the backends' devices that may have this name. */
const typesNamed = (device: string): readonly string[] =>
  DEVICES.flatMap(([type, pattern]) => (isNamedBy(pattern, device) ? [type] : []))

/**
 * Returns true for a TUN that has the first address of this node's subnet. An earlier process made such a TUN, whatever
 * its name is now.
 */
async function isRenamedTun(run: Run, name: string, subnet: Net | undefined): Promise<boolean> {
  if (!subnet || hasBackendName(name)) return false
  const link = await findLink(run, name)
  if (!link?.addresses[familyOf(subnet)].some(({ address }) => address === subnet.address)) return false
  const [json] = await ipJson<JsonTun>(run, ['-d', 'link', 'show', 'dev', name])
  return json?.linkinfo?.info_kind === 'tun' && json.linkinfo.info_data?.type === 'tun'
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
  run: Run,
  to: Net,
  isOwn: (device: string) => boolean,
  subnet?: Net,
): Promise<void> {
  const first = await findForeignRoute(run, to, isOwn)
  if (!first || (await isRenamedTun(run, first.device, subnet))) return
  const types = typesNamed(first.device)
  if (types.includes('tun')) await removeIdleTun(run, first.device, netsOf([to]))
  if (types.some((type) => type !== 'tun')) {
    const { removeKernelDevice } = await import('./leftovers.ts') // loaded only if needed, since packets wait for this code
    await removeKernelDevice(run, first.device, netsOf([to]))
  }
  const foreign = types.length > 0 ? await findForeignRoute(run, to, isOwn) : first
  if (foreign) throw foreignRouteError(to, foreign)
}

/**
 * Throws WeftError DEVICE in the cases in which `refuseForeignRoute` would throw it, but changes nothing on the host.
 * `isOwn` returns true for a device whose route may stay.
 */
export async function checkForeignRoute(run: Run, to: Net, isOwn: (device: string) => boolean): Promise<void> {
  const foreign = await findForeignRoute(run, to, isOwn)
  if (!foreign) return
  const types = typesNamed(foreign.device)
  const nets = netsOf([to])
  if (types.includes('tun')) {
    const tun = await findIdleTun(run, foreign.device)
    if (tun && !tun.addresses.some((address) => isElsewhere(nets, address))) return
  }
  if (types.some((type) => type !== 'tun')) {
    const { isRemovableKernelDevice } = await import('./leftovers.ts')
    if (await isRemovableKernelDevice(run, foreign.device, nets)) return
  }
  throw foreignRouteError(to, foreign)
}

export function createTunDevice(options: TunOptions): TunDevice {
  const { device, network, subnet, mtu, run, log, scope = 'global', isOwnRoute = () => false } = options
  const family = familyOf(network)
  const route = formatNet(network)
  // Switch duplicate address detection (RFC 4862) off (`nodad`), because no other node has an address of this node's
  // subnet.
  const nodad = family === 'ipv6' ? ['nodad'] : []
  let hidden = new Set<string>()

  async function configure(): Promise<void> {
    // Leave gso_max_size at its default, although superpackets of 64 KiB do not fit into one datagram. With a smaller
    // value the kernel would split longer superpackets of containers in software (gso_features_check in
    // net/core/dev.c).
    await run('ip', ['link', 'set', 'dev', device.name, 'mtu', String(mtu), 'txqueuelen', String(QUEUE_LENGTH), 'up'])
    await run('ip', ['address', 'replace', formatNet(hostNet(subnet.address)), 'dev', device.name, ...nodad])
    // Give the scope for IPv4, because otherwise `ip` gives a route without a gateway the scope `link` (iproute2,
    // ip/iproute.c).
    await run('ip', ['route', 'replace', route, 'dev', device.name, ...(family === 'ipv4' ? ['scope', scope] : [])])
  }

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
      // Read the routes before the device. If the device goes down between these two commands, weft then reports only
      // the device, and not the route that went with it.
      const within = await routesWithin(run, network)
      const link = await findLink(run, device.name)
      if (!link) return []
      logBypassing(within)
      const routes = within.filter(
        ({ destination, metric }) => destination === route && metric === USUAL_METRIC[family],
      )
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
