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
  routesFor,
  routesWithin,
  USUAL_METRIC,
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
  type Family,
  type Net,
  type Nets,
} from '../../net/address.ts'
import { findAddressedDevices } from './flannel-devices.ts'

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
  readonly leases: Iterable<Lease>
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

/** A device of another backend that belongs to a process which runs. */
export interface Held {
  readonly device: string
  readonly by: string
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
  const [devices, ...routesByFamily] = await Promise.all([
    findAddressedDevices(run),
    ...listed(networks).map((network) => routesWithin(run, network)),
  ])
  const strange = devices.filter(({ name }) => !isOwn(name))
  const all = families.flatMap((family, at) => (routesByFamily[at] ?? []).map((route) => ({ family, route })))
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
      const kind = kindOf(route, side, surroundings.routesToHosts)
      const words = `${route.destination}${route.gateway === undefined ? '' : ` via ${route.gateway}`} to ${route.device}`
      if (kind === 'left')
        leftovers.push({
          what: `the route ${words}`,
          command: [ipFlag(family), 'route', 'del', ...wordsOf(route, family)],
        })
      else if (kind === 'own' || kind === 'peers') bypasses.push({ family, route: words, isOfOwn: kind === 'own' })
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

/** The number of peers of whom the kernel is asked where it sends their packets. */
const ASKED = 100

/** The peers to whom rules of policy routing lead past our devices, by what the kernel itself says; none where there are no such rules. */
export async function findDiverted(run: Run, surroundings: Surroundings): Promise<readonly Bypass[]> {
  const { ownDevices } = surroundings
  const found: Bypass[] = []
  for (const family of familiesOf(surroundings.networks)) {
    if (!(await hasPolicyRules(run, family))) continue
    const peers = sideOf(family, surroundings).peers.slice(0, ASKED)
    const routes = await routesFor(
      run,
      family,
      peers.map(({ address }) => formatAddress(address)),
    )
    for (const peer of peers) {
      const route = routes.get(formatAddress(peer.address))
      if (!route || route.type !== 'unicast' || ownDevices.some((name) => isNamedBy(name, route.device))) continue
      found.push({ family, route: `${formatNet(peer)} to ${route.device}, by a rule of \`ip rule\``, isOfOwn: false })
    }
  }
  return found
}

type RouteKind = 'right' | 'left' | 'own' | 'peers' | 'unknown'

/**
 * Says what a route within the network is: a leftover; one that leads away from our own containers, or from peers; or `unknown`, which
 * more leases may explain.
 */
function kindOf(route: Route, side: Side, routesToHosts: boolean): RouteKind {
  const { network, subnet, peers, hosts, addresses, family } = side
  const net = parseNet(route.destination)
  if (!net || route.type !== 'unicast' || route.protocol === 'kernel') return 'right'
  // The kernel takes the route of the least metric among those to one destination.
  const isWhole = net.prefixLength <= network.prefixLength
  if (isWhole && route.metric >= USUAL_METRIC[family]) return 'right'
  const gateway = route.gateway === undefined ? undefined : parseAddress(route.gateway)
  if (subnet && net.prefixLength >= subnet.prefixLength && netContains(subnet, net.address)) {
    if (route.isMultipath) return 'own'
    // A route by way of a container stays within this host.
    if (route.gateway === undefined || (gateway !== undefined && netContains(subnet, gateway))) return 'right'
    // Nobody can want the whole subnet of this node, or what a node of this network seems to have of it, to be elsewhere.
    const isWhollyAway = net.prefixLength === subnet.prefixLength
    return isWhollyAway || (gateway !== undefined && addresses.has(gateway)) ? 'left' : 'own'
  }
  if (routesToHosts) return 'right'
  const isToHost = gateway !== undefined && addresses.has(gateway)
  const isLikeOurs = hosts.has(route.destination) || net.prefixLength === subnet?.prefixLength
  // weftd and flanneld give the kernel no protocol: it takes them for `boot`, as `ip route add` by hand.
  const isMadeByHand = route.protocol === undefined || route.protocol === 'boot'
  if (isToHost && isLikeOurs && isMadeByHand && !isWhole) return 'left'
  if (peers.some((peer) => netsOverlap(netsOf([peer]), netsOf([net])))) return 'peers'
  return route.gateway === undefined ? 'right' : 'unknown'
}

/** The words by which `ip route del` finds a route and no other. */
const wordsOf = ({ destination, gateway, device, metric }: Route, family: Family): string[] => [
  ...[destination, ...(gateway === undefined ? [] : ['via', gateway]), 'dev', device],
  ...(metric === USUAL_METRIC[family] ? [] : ['metric', String(metric)]),
]

/** Removes them, and returns what could not be removed, each with the reason. */
export async function removeLeftovers(
  run: Run,
  leftovers: readonly Leftover[],
  removed: (what: string) => void,
): Promise<readonly (readonly [what: string, why: string])[]> {
  const failures: (readonly [string, string])[] = []
  for (const { what, command } of leftovers) {
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
  return failures
}

/** Removes a kernel device of another backend that is in the way of a route to these networks, unless another daemon has it. */
export async function removeKernelDevice(run: Run, name: string, networks: Nets): Promise<void> {
  const device = (await findAddressedDevices(run)).find((each) => each.name === name)
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
