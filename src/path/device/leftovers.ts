// leftovers.ts - what other backends, of weft or of flannel, left on this host: devices, and routes to other nodes' subnets.
//
// A route to one subnet comes before the route to the whole network. So packets would go on by the old way, which may be unencrypted,
// while the new data path carries nothing. Whatever is certainly flannel's is removed; every other route past the data path is named.

import { readFile } from 'node:fs/promises'
import { parseEnv } from 'node:util'
import { describeError, isWeftError } from '../../base/errors.ts'
import type { Run } from '../../host/command.ts'
import { filesOf, identityOf, listDaemons } from '../../host/daemons.ts'
import {
  hasPolicyRules,
  ipFlag,
  isNamedBy,
  listLinks,
  routesFor,
  routesWithin,
  USUAL_METRIC,
  type Link,
  type Route,
} from '../../host/links.ts'
import type { Lease } from '../../control/lease/lease.ts'
import {
  familiesOf,
  familyOf,
  formatAddress,
  formatNet,
  listed,
  netContains,
  netsOf,
  netsOverlap,
  parseAddress,
  parseNet,
  type Address,
  type ByFamily,
  type Family,
  type Net,
  type Nets,
} from '../../net/address.ts'
import { listDevices, type Devices } from './flannel-devices.ts'

/** The facts by which a leftover is told from what belongs here. */
export interface Surroundings {
  readonly networks: Nets
  /** This node's subnets. */
  readonly subnets: Nets
  /** The subnets that this host had in an earlier run. */
  readonly earlier: Nets
  /** The devices, by name or pattern, that the data path of this node has or may have. */
  readonly ownDevices: readonly string[]
  /** True if routes to subnets by way of their hosts are this data path's own, or are made by others on purpose. */
  readonly routesToHosts: boolean
  /** True if other programs make all routes to the network: each of them is right. */
  readonly routesByOthers?: boolean
  /** The name of the external interface; left out if it is not known. */
  readonly external?: string | undefined
  /** The range from which subnets are leased, by family; left out if another program gives out the subnets. */
  readonly ranges?: ByFamily<SubnetRange | undefined>
  readonly leases: readonly Lease[]
}

/** The subnets that may be leased, by their length, and by the first and the last of them. */
export interface SubnetRange {
  readonly subnetLength: number
  readonly subnetMin: Address
  readonly subnetMax: Address
}

/** A daemon of flannel's kind that runs beside this one. */
export interface OtherDaemon {
  readonly name: string
  readonly pid: number
  /** The networks that its subnet file names; undefined if the file cannot be read. */
  readonly networks: Nets | undefined
}

/** Something that is to go. */
export interface Leftover {
  /** In words, such as `the device flannel.1 (vxlan)`. */
  readonly what: string
  readonly command: readonly string[]
}

/** A device or a route of another backend that belongs to a process which runs. */
export interface Held {
  /** The device, such as `flannel.1`, or the route in words. */
  readonly device: string
  readonly by: string
  /** The command that removes a route; left out for a device. */
  readonly command?: string
}

/** A route past the data path that nobody knows to be flannel's. */
export interface Bypass {
  readonly family: Family
  /** In words, such as `10.5.2.0/24 via 192.0.2.9 to eth0`. */
  readonly route: string
  /** True if it leads away from this node's own subnet, and not from those of other nodes. */
  readonly isOfOwn: boolean
}

export interface Found {
  readonly leftovers: readonly Leftover[]
  readonly held: readonly Held[]
  readonly bypasses: readonly Bypass[]
  /** True if there are routes to hosts that might be leftovers: only the leases tell. */
  readonly needsLeases: boolean
}

/** Looks at the host. `others` is asked only if there is a device that another daemon might have. */
export async function findLeftovers(
  run: Run,
  surroundings: Surroundings,
  others: () => Promise<readonly OtherDaemon[]>,
): Promise<Found> {
  const { networks, ownDevices } = surroundings
  const isOwn = (device: string): boolean => ownDevices.some((name) => isNamedBy(name, device))
  const families = familiesOf(networks)
  const [{ flannels, bridges }, ...routesByFamily] = await Promise.all([
    listDevices(run),
    ...listed(networks).map((network) => routesWithin(run, network)),
  ])
  const strange = flannels.filter(({ name }) => !isOwn(name))
  const all = families.flatMap((family, at) => (routesByFamily[at] ?? []).map((route) => ({ family, route })))
  const here = { ...surroundings, bridges }
  const sides = families.map((family) => sideOf(family, surroundings))

  const leftovers: Leftover[] = []
  const held: Held[] = []
  const doomed = new Set<string>()
  let running: Promise<readonly OtherDaemon[]> | undefined
  for (const { name, kind, inUse, addresses } of strange) {
    const via = all.filter(({ route }) => route.device === name)
    if (!isOfThisNode(addresses, via, sides, surroundings)) continue
    const owner = inUse ? undefined : ownerOf(addresses, networks, await (running ??= others()))
    if (inUse) held.push({ device: name, by: 'a process forwards through it' })
    else if (owner) held.push({ device: name, by: `${owner.name} runs (pid ${owner.pid})` })
    else {
      leftovers.push({ what: `the device ${name} (${kind})`, command: ['link', 'del', 'dev', name] })
      doomed.add(name)
    }
  }
  const bypasses: Bypass[] = []
  let needsLeases = false
  for (const side of sides) {
    for (const { family, route } of all) {
      if (family !== side.family || isOwn(route.device) || doomed.has(route.device)) continue
      const kind = kindOf(route, side, here)
      const words = `${route.destination}${route.gateway === undefined ? '' : ` via ${route.gateway}`} to ${route.device}`
      if (kind === 'left') {
        const command = [ipFlag(family), 'route', 'del', ...wordsOf(route, family)]
        const owner = routeOwnerOf(route, side, await (running ??= others()))
        if (owner)
          held.push({
            ...{ device: words, by: `${owner.name} runs (pid ${owner.pid})` },
            command: ['ip', ...command].join(' '),
          })
        else leftovers.push({ what: `the route ${words}`, command })
      } else if (kind === 'own' || kind === 'peers') bypasses.push({ family, route: words, isOfOwn: kind === 'own' })
      needsLeases ||= kind === 'unknown' || kind === 'peers'
    }
  }
  return { leftovers, held, bypasses, needsLeases }
}

/** One family, as this node and the others have it. */
interface Side {
  readonly family: Family
  readonly network: Net
  readonly subnet: Net | undefined
  /** The subnets of other nodes, and the address of each node's host by its subnet. */
  readonly peers: readonly Net[]
  readonly hosts: ReadonlyMap<string, Address | undefined>
  readonly addresses: ReadonlySet<Address>
}

function sideOf(family: Family, { networks, subnets, leases }: Surroundings): Side {
  const [network, subnet] = [networks[family] as Net, subnets[family]]
  const peers: Net[] = []
  const hosts = new Map<string, Address | undefined>()
  const own = subnet && formatNet(subnet)
  for (const lease of leases) {
    const net = lease.subnet[family]
    if (!net || formatNet(net) === own) continue
    peers.push(net)
    hosts.set(formatNet(net), lease.attrs.publicIp[family])
  }
  return {
    ...{ family, network, subnet, peers, hosts },
    addresses: new Set([...hosts.values()].filter((each) => each !== undefined)),
  }
}

/** True if a device of another backend was made for this node's network: by its addresses, or by the routes that use it. */
function isOfThisNode(
  addresses: readonly Address[],
  via: readonly { readonly family: Family; readonly route: Route }[],
  sides: readonly Side[],
  { networks, subnets, earlier }: Surroundings,
): boolean {
  const ours = new Set([...listed(subnets), ...listed(earlier)].map(({ address }) => address))
  if (addresses.some((address) => ours.has(address))) return true
  const leads = via.some(({ family, route: { destination } }) =>
    sides.some(
      (side) => side.family === family && (side.hosts.has(destination) || formatNet(side.network) === destination),
    ),
  )
  const isInside = (address: Address): boolean => {
    const network = networks[familyOf(address)]
    return network !== undefined && netContains(network, address)
  }
  return leads || (addresses.length > 0 && addresses.every(isInside))
}

/** The daemon that runs for the same network, or for one that nobody can tell. */
function ownerOf(
  addresses: readonly Address[],
  networks: Nets,
  others: readonly OtherDaemon[],
): OtherDaemon | undefined {
  return others.find(
    (other) =>
      other.networks === undefined ||
      netsOverlap(other.networks, networks) ||
      listed(other.networks).some((net) => addresses.some((address) => netContains(net, address))),
  )
}

/**
 * The daemon that runs and may have made a route to a host. A daemon whose network nobody can tell made none to the very subnet of a lease
 * of this network.
 */
function routeOwnerOf(
  { destination }: Route,
  { hosts, subnet }: Side,
  others: readonly OtherDaemon[],
): OtherDaemon | undefined {
  const net = parseNet(destination)
  const isOfThis = hosts.has(destination) || (subnet !== undefined && formatNet(subnet) === destination)
  return others.find(({ networks }) =>
    networks === undefined ? !isOfThis : net !== undefined && netsOverlap(networks, netsOf([net])),
  )
}

/** The number of peers of whom the kernel is asked where it sends their packets. */
const ASKED = 100
/** The number of bridges for which it is asked: one that each container has for itself is as good as any. */
const ASKED_BRIDGES = 4

/**
 * The peers to whom rules of policy routing lead past our devices, by what the kernel itself says; none if there are no such rules. It is
 * asked about packets of this host, and about those of its containers by each bridge that has an address of this node's subnet.
 */
export async function findDiverted(run: Run, surroundings: Surroundings): Promise<readonly Bypass[]> {
  const { ownDevices } = surroundings
  const isOwn = (device: string): boolean => ownDevices.some((name) => isNamedBy(name, device))
  const found: Bypass[] = []
  for (const family of familiesOf(surroundings.networks)) {
    if (!(await hasPolicyRules(run, family))) continue
    const side = sideOf(family, surroundings)
    // A lease of another network, such as one of before a change, is no peer: its packets go anywhere.
    const peers = side.peers.filter((peer) => isPartOf(peer, side.network)).slice(0, ASKED)
    const ways = await waysOfOwn(run, side, isOwn)
    for (const way of ways) {
      const asked = peers.map(({ address }) => `${formatAddress(address)}${way}`)
      const routes = await routesFor(run, family, asked)
      for (const peer of peers) {
        const route = routes.get(formatAddress(peer.address))
        if (!route || route.type !== 'unicast' || isOwn(route.device)) continue
        const words = `${formatNet(peer)} to ${route.device}, by a rule of \`ip rule\``
        if (!found.some((each) => each.route === words)) found.push({ family, route: words, isOfOwn: false })
      }
    }
  }
  return found
}

/** What distinguishes packets of this node, in words of `ip route get`: nothing of the host's, source and device of a container's. */
async function waysOfOwn(
  run: Run,
  { family, subnet }: Side,
  isOwn: (device: string) => boolean,
): Promise<readonly string[]> {
  if (!subnet) return ['']
  const container = typeof subnet.address === 'number' ? subnet.address + 2 : subnet.address + 2n
  const isInside = ({ addresses, name }: Link): boolean =>
    !isOwn(name) && addresses[family].some(({ address }) => netContains(subnet, address) && address !== container)
  const bridges = (await listLinks(run)).filter(isInside)
  return ['', ...bridges.slice(0, ASKED_BRIDGES).map(({ name }) => ` from ${formatAddress(container)} iif ${name}`)]
}

const isPartOf = (net: Net, of: Net): boolean =>
  familyOf(net) === familyOf(of) && net.prefixLength >= of.prefixLength && netContains(of, net.address)

type RouteKind = 'right' | 'left' | 'own' | 'peers' | 'unknown'

/**
 * Says what a route within the network is: a leftover; one that leads away from our own containers, or from peers; or `unknown`, which
 * more leases may explain.
 */
function kindOf(route: Route, side: Side, here: Surroundings & Pick<Devices, 'bridges'>): RouteKind {
  const { network, subnet, peers, hosts, addresses, family } = side
  const net = parseNet(route.destination)
  if (!net || route.type !== 'unicast' || here.routesByOthers) return 'right'
  // Packets to a bridge of containers, or of virtual machines, stay within this host.
  const isInner = here.bridges.has(route.device) && route.device !== here.external
  if (route.protocol === 'kernel' && (isInner || route.gateway !== undefined)) return 'right'
  // The kernel takes the route of the least metric among those to one destination.
  const isWhole = net.prefixLength <= network.prefixLength
  if (isWhole && route.metric >= USUAL_METRIC[family]) return 'right'
  const gateway = route.gateway === undefined ? undefined : parseAddress(route.gateway)
  const isToHost = gateway !== undefined && addresses.has(gateway)
  // weftd and flanneld give the kernel no protocol: it takes them for `boot`, as `ip route add` by hand.
  const isMadeByHand = route.protocol === undefined || route.protocol === 'boot'
  if (subnet && isPartOf(net, subnet)) {
    if (route.isMultipath) return 'own'
    // A route by way of a container stays within this host.
    if (route.gateway === undefined || (gateway !== undefined && netContains(subnet, gateway))) return 'right'
    if (isInner && !isToHost) return 'right'
    // Backends' routes leave by the external interface, which may have been another one, or lead to the host of a node.
    const isLikeOurs = isToHost || here.external === undefined || route.device === here.external
    const isWhollyAway = net.prefixLength === subnet.prefixLength
    return isMadeByHand && isLikeOurs && (isWhollyAway || isToHost) ? 'left' : 'own'
  }
  if (here.routesToHosts) return 'right'
  const isLikeOurs = hosts.has(route.destination) || mayBeLeased(net, side, here.ranges?.[family])
  if (isToHost && isLikeOurs && isMadeByHand && !isWhole) return 'left'
  if (peers.some((peer) => netsOverlap(netsOf([peer]), netsOf([net])))) return 'peers'
  return route.gateway === undefined ? 'right' : 'unknown'
}

/** True if this could be the subnet of a node whose lease is gone: an operator may use the rest of the network otherwise. */
function mayBeLeased(net: Net, { subnet }: Side, range: SubnetRange | undefined): boolean {
  if (net.prefixLength !== subnet?.prefixLength) return false
  return !range || range.subnetLength === 0 || (net.address >= range.subnetMin && net.address <= range.subnetMax)
}

/** The words by which `ip route del` finds a route and no other. */
const wordsOf = ({ destination, gateway, device, metric }: Route, family: Family): string[] => [
  ...[destination, ...(gateway === undefined ? [] : ['via', gateway]), 'dev', device],
  ...(metric === USUAL_METRIC[family] ? [] : ['metric', String(metric)]),
]

/** More routes than these are removed by one command: a command for each of thousands takes minutes. */
const ONE_BY_ONE = 20

/**
 * Removes leftovers, and returns what could not be removed, each with the reason. Of many routes that are removed together only a look at
 * the host tells which are still there. Stops when `mayGo` says that the host is not this process's any more.
 */
export async function removeLeftovers(
  run: Run,
  leftovers: readonly Leftover[],
  removed: (what: string) => void,
  mayGo: () => boolean = () => true,
): Promise<readonly (readonly [what: string, why: string])[]> {
  const failures: (readonly [string, string])[] = []
  const isRoute = ({ command }: Leftover): boolean => command[1] === 'route'
  const routes = leftovers.filter(isRoute)
  const together = routes.length > ONE_BY_ONE ? routes : []
  for (const { what, command } of leftovers.filter((each) => !together.includes(each))) {
    if (!mayGo()) return failures
    try {
      await run('ip', command)
      removed(what)
    } catch (error) {
      if (!isWeftError(error)) throw error
      // Somebody else was faster.
      if (/cannot find device|no such (process|device)|does not exist/i.test(error.message)) continue
      failures.push([what, describeError(error)])
    }
  }
  for (const flag of ['-4', '-6']) {
    const some = together.filter(({ command }) => command[0] === flag)
    if (some.length === 0 || !mayGo()) continue
    const input = some.map(({ command }) => `${command.slice(1).join(' ')}\n`).join('')
    try {
      await run('ip', [flag, '-force', '-batch', '-'], { input })
      removed(`${some.length} routes to subnets of nodes, such as ${some[0]?.what}`)
    } catch (error) {
      if (!isWeftError(error)) throw error
      const why = describeError(error)
      failures.push(...some.map(({ what }) => [what, why] as const))
    }
  }
  return failures
}

/** Removes a kernel device of another backend that is in the way of a route to these networks, unless another daemon has it. */
export async function removeKernelDevice(run: Run, name: string, networks: Nets): Promise<void> {
  const device = (await listDevices(run)).flannels.find((each) => each.name === name)
  if (!device || device.inUse || device.kind === 'tun') return
  const isElsewhere = (address: Address): boolean => {
    const network = networks[familyOf(address)]
    return network !== undefined && !netContains(network, address)
  }
  if (device.addresses.some(isElsewhere)) return
  if (ownerOf(device.addresses, networks, await otherDaemons())) return
  await run('ip', ['link', 'del', 'dev', name])
}

/**
 * The daemons of other networks, and flanneld of this one, that run in this network namespace. A weftd that holds the lock `lockFile`,
 * if that is given, is the predecessor or the successor of this one, and is left out.
 */
export async function otherDaemons(lockFile?: string, proc?: string): Promise<OtherDaemon[]> {
  const own = lockFile === undefined ? undefined : await identityOf(lockFile)
  const found = await Promise.all(
    (await listDaemons(proc)).map(async ({ name, pid }): Promise<OtherDaemon[]> => {
      const files = await filesOf({ name, pid }, proc)
      if (!files || (files.lock !== undefined && files.lock === own)) return []
      return [{ name, pid, networks: await networksIn(files.subnetFile) }]
    }),
  )
  return found.flat()
}

/** The networks and subnets that a subnet file names; undefined if it cannot be read or names none. */
async function networksIn(path: string): Promise<Nets | undefined> {
  const text = await readFile(path, 'utf8').catch(() => '')
  const values = parseEnv(text)
  const nets = ['FLANNEL_NETWORK', 'FLANNEL_IPV6_NETWORK'].flatMap(
    (key) => parseNet(values[key]?.split(',')[0] ?? '') ?? [],
  )
  return nets.length === 0 ? undefined : netsOf(nets)
}
