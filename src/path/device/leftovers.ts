// leftovers.ts - finds and removes devices, and routes to other nodes' subnets, that other backends of weft or flannel
// left on this host.
//
// The kernel prefers a leftover route to one node's subnet over the new route to the whole network. So packets would
// still use the old path, which may be unencrypted. weftd removes devices and routes that are certainly flannel's or
// its own, and reports every other route that bypasses the data path.

import { parseEnv } from 'node:util'
import { describeError, isWeftError } from '../../base/errors.ts'
import type { Lease } from '../../control/lease/lease.ts'
import type { Run } from '../../host/command.ts'
import { filesOf, identityOf, listDaemons } from '../../host/daemons.ts'
import { MAIN_TABLE, wordsOf } from '../../host/ip-words.ts'
import { isGone, removeAll } from '../../host/kernel-errors.ts'
import type { Change, HostKernel, Link, LinkAddress, Route, RouteQuery } from '../../host/kernel.ts'
import { deletionOf, givenTo, hasPolicyRules, USUAL_METRIC } from '../../host/links.ts'
import { readPlainFile } from '../../host/read-plain-file.ts'
import {
  addressKey,
  familiesOf,
  FAMILIES,
  familyOf,
  formatAddress,
  formatNet,
  isPartOf,
  listed,
  netContains,
  netKey,
  netsOf,
  netsOverlap,
  parseAddress,
  parseNet,
  type Address,
  type AddressKey,
  type ByFamily,
  type Family,
  type Net,
  type Nets,
} from '../../net/address.ts'
import { isNamedBy } from '../catalog.ts'
import { listDevices, renamedAmong, typesOf, type Devices } from './flannel-devices.ts'
import { concerns, listPolicies } from './ipsec-policies.ts'
import { guardRemovals } from './userspace-guard.ts'

/** The facts by which `findLeftovers` distinguishes leftovers from routes and devices that are in use. */
export interface Surroundings {
  readonly networks: Nets
  /** This node's current subnets; `earlier` has the subnets of earlier runs. */
  readonly subnets: Nets
  /** The subnets that this host had in earlier runs of weftd or flanneld. */
  readonly earlier: Nets
  /** The names or name patterns of the devices that this node's data path has or may have. */
  readonly ownDevices: readonly string[]
  /**
   * True if routes to subnets through the nodes' hosts must stay, because this node's data path or another program
   * makes these routes on purpose.
   */
  readonly routesToHosts: boolean
  /** True if another program makes all routes to the network, so that no route counts as a leftover. */
  readonly routesByOthers?: boolean
  /** True if this node's backend makes IPsec policies, so that weftd must not remove IPsec policies. */
  readonly ownPolicies?: boolean
  /**
   * True if this node makes the unreachable routes to its networks, and the rules for unencrypted packets, so that weftd
   * must not remove these routes and rules.
   */
  readonly isSealed?: boolean
  /** The name of the external interface; left out if it is not known. */
  readonly external?: string | undefined
  /**
   * The ranges from which nodes lease subnets, by family; left out if another program, such as Kubernetes, assigns the
   * subnets.
   */
  readonly ranges?: ByFamily<SubnetRange | undefined>
  readonly leases: readonly Lease[]
  /**
   * The routes through hosts that an earlier run may have made, as `routeWords` writes them without the interface. The
   * lease of such a route may be gone, or may have another public IP now.
   */
  readonly formerRoutes?: ReadonlySet<string>
}

/** The subnets that may be leased: their prefix length, and the addresses of the first and the last subnet. */
interface SubnetRange {
  readonly subnetLength: number
  readonly subnetMin: Address
  readonly subnetMax: Address
}

/** A running weftd or flanneld other than this process. */
export interface OtherDaemon {
  readonly name: string
  readonly pid: number
  /** The networks in the daemon's subnet file (subnet.env); undefined if the file cannot be read. */
  readonly networks: Nets | undefined
}

/**
 * An object that an earlier backend left and that weftd must remove: an IPsec policy, or a device, a route or a rule,
 * which `change` removes.
 */
type Leftover = {
  /** The object as text, such as `the device flannel.1 (vxlan)`. */
  readonly what: string
} & (
  | { readonly change: Change }
  /** The selector of the policy, as `ip xfrm policy` writes it. */
  | { readonly selector: string }
)

/** A device or route of another backend that weftd must not remove, because a running process uses it. */
interface Held {
  /** The device's name, such as `flannel.1`, or the route as text. */
  readonly device: string
  readonly by: string
  /** The command with which an operator can remove the route; left out for a device. */
  readonly command?: string
}

/**
 * A route by which packets bypass the data path. weftd does not remove the route, because a program other than flannel
 * may have made it.
 */
export interface Bypass {
  readonly family: Family
  /** The route as text, such as `10.5.2.0/24 via 192.0.2.9 to eth0`. */
  readonly route: string
  /** True if the route diverts packets for this node's own subnet; false if it diverts packets for other nodes. */
  readonly isOfOwn: boolean
}

export interface Found {
  readonly leftovers: readonly Leftover[]
  readonly held: readonly Held[]
  readonly bypasses: readonly Bypass[]
  /** True if weftd must read the leases of all nodes to find out whether some routes are leftovers. */
  readonly needsLeases: boolean
}

/** How weftd reads and changes the host. Only IPsec policies need the program `ip`. */
export interface HostAccess {
  readonly kernel: HostKernel
  readonly run: Run
}

/**
 * Searches this host for leftovers, and for routes that bypass the data path. `others` lists the other running daemons;
 * it is called only if one of these daemons may own a device or route.
 */
export async function findLeftovers(
  { kernel, run }: HostAccess,
  surroundings: Surroundings,
  others: () => Promise<readonly OtherDaemon[]>,
): Promise<Found> {
  const { networks, ownDevices } = surroundings
  const isOwn = (device: string): boolean => ownDevices.some((name) => isNamedBy(name, device))
  const families = familiesOf(networks)
  const [{ links, flannels, bridges }, ...routesByFamily] = await Promise.all([
    listDevices(kernel),
    ...listed(networks).map((network) => kernel.routes({ family: familyOf(network), within: network })),
  ])
  const foreign = [...flannels, ...renamedOf(links, surroundings)].filter(({ link }) => !isOwn(link.name))
  const all = families.flatMap((family, at) => (routesByFamily[at] ?? []).map((route) => ({ family, route })))
  const here = { ...surroundings, bridges }
  const sides = families.map((family) => sideOf(family, surroundings))

  const leftovers: Leftover[] = []
  const held: Held[] = []
  const toRemove = new Set<string>()
  let running: Promise<readonly OtherDaemon[]> | undefined
  for (const { link, inUse } of foreign) {
    const { name } = link
    const addresses = givenTo(link)
    const via = all.filter(({ route }) => route.device === name)
    if (!isOfThisNode(addresses, via, sides, surroundings)) continue
    // A device of a family that the network no longer has is not in the way. A process still uses this device, such as
    // the weftd from which this weftd took over. weftd removes the device after that process has ended.
    if (inUse && addresses.length > 0 && addresses.every((address) => networks[familyOf(address)] === undefined))
      continue
    const owner = inUse ? undefined : ownerOf(addresses, networks, await (running ??= others()))
    if (inUse) held.push({ device: name, by: 'a process forwards through it' })
    else if (owner) held.push({ device: name, by: `${owner.name} runs (pid ${owner.pid})` })
    else {
      leftovers.push(deviceLeftover(link))
      toRemove.add(name)
    }
  }
  const blocking = surroundings.ownPolicies
    ? []
    : await findBlockingIpsec(
        { kernel, run },
        listed(networks),
        surroundings.isSealed ? undefined : all.map(({ route }) => route),
      )
  if (blocking.length > 0) {
    const owner = ownerOf([], networks, await (running ??= others()))
    if (owner) held.push({ device: 'the IPsec policies', by: `${owner.name} runs (pid ${owner.pid})` })
    else leftovers.push(...blocking)
  }
  const bypasses: Bypass[] = []
  let needsLeases = false
  for (const side of sides) {
    for (const { family, route } of all) {
      if (family !== side.family || isOwn(route.device) || toRemove.has(route.device)) continue
      const kind = kindOf(route, side, here)
      const words = routeWords(route)
      if (kind === 'left') {
        const change = deletionOf(route, family)
        const owner = routeOwnerOf(route, side, await (running ??= others()))
        if (owner) held.push({ device: words, by: `${owner.name} runs (pid ${owner.pid})`, command: wordsOf(change) })
        else leftovers.push({ what: `the route ${words}`, change })
      } else if (kind === 'own' || kind === 'peers') bypasses.push({ family, route: words, isOfOwn: kind === 'own' })
      needsLeases ||= kind === 'unknown' || kind === 'peers'
    }
  }
  return { leftovers, held, bypasses, needsLeases }
}

/**
 * Finds the leftovers of an earlier run for networks that are not a part of this node's present networks: routes through
 * hosts that a backend certainly made, unused devices, and the addresses and routes of this node's own device. The kernel
 * would choose such an address as the source of packets to peers. Also finds what blocks unencrypted packets of the
 * network, unless this node's backend encrypts: containers that still have addresses of that network must not send
 * unencrypted packets. Returns nothing if another running daemon may need these objects.
 */
export async function findPast(
  host: HostAccess,
  past: Nets,
  surroundings: Surroundings,
  others: () => Promise<readonly OtherDaemon[]>,
): Promise<readonly Leftover[]> {
  const { links, bridges, flannels } = await listDevices(host.kernel)
  const here = { ...surroundings, bridges, networks: past, subnets: {}, ranges: {}, routesToHosts: false }
  const present = listed(surroundings.networks)
  const isPresent = ({ destination }: Route): boolean => {
    const net = parseNet(destination)
    return net !== undefined && present.some((network) => isPartOf(net, network))
  }
  const isEarlier = earlierAddresses(surroundings, past)
  const own = links.filter(({ name }) => surroundings.ownDevices.some((each) => isNamedBy(each, name)))
  const found: Leftover[] = surroundings.routesByOthers
    ? []
    : [
        ...flannels.flatMap((device) => spareDevice(device, isEarlier)),
        ...own.flatMap((link) => oldAddresses(link, isEarlier)),
      ]
  const ownNames = new Set(own.map(({ name }) => name))
  for (const network of listed(past)) {
    const family = familyOf(network)
    const routes = await host.kernel.routes({ family, within: network }).catch((error: unknown) => {
      if (!isWeftError(error)) throw error
      return [] // a kernel without the family has no routes
    })
    if (!here.isSealed && !here.ownPolicies) found.push(...(await findBlockingIpsec(host, [network], routes)))
    const side = sideOf(family, here)
    const left = routes.filter((route) => {
      const isOnOwn = ownNames.has(route.device) && route.type === 'unicast' && route.protocol === 'boot'
      return !isPresent(route) && (isOnOwn || kindOf(route, side, here) === 'left')
    })
    found.push(...left.map((route) => ({ what: `the route ${routeWords(route)}`, change: deletionOf(route, family) })))
  }
  return found.length > 0 && ownerOf([], past, await others()) ? [] : found
}

type IsEarlier = (address: Address) => boolean

/** Returns a function that finds out whether an address is the first address of an earlier subnet in `past`. */
const earlierAddresses =
  ({ subnets, earlier }: Surroundings, past: Nets): IsEarlier =>
  (address) => {
    const [network, before, now] = [past, earlier, subnets].map((nets) => nets[familyOf(address)])
    return network !== undefined && before?.address === address && now?.address !== address
  }

/**
 * Returns the device as a leftover if no process uses it and it only has addresses of earlier subnets. The present
 * backend does not use such a device, for example because it made a new TUN device.
 */
function spareDevice({ link, inUse }: Devices['flannels'][number], isEarlier: IsEarlier): readonly Leftover[] {
  const addresses = givenTo(link)
  return !inUse && addresses.length > 0 && addresses.every(isEarlier) ? [deviceLeftover(link)] : []
}

/** Returns the addresses of earlier subnets on this node's own device, if the device also has other addresses. */
function oldAddresses(link: Link, isEarlier: IsEarlier): readonly Leftover[] {
  const addresses = FAMILIES.flatMap((family): readonly LinkAddress[] => link.addresses[family])
  const old = addresses.filter(({ address }) => isEarlier(address))
  if (givenTo(link).every(isEarlier)) return [] // see `spareDevice`
  return old.map(({ address, prefixLength }) => ({
    what: `the address ${formatAddress(address)} of ${link.name}`,
    change: { kind: 'delete address', device: link, address, prefixLength },
  }))
}

const deviceLeftover = (link: Link): Leftover => ({
  what: `the device ${link.name} (${link.type})`,
  change: { kind: 'delete link', device: link },
})

/** Returns the route through the host of each lease, as `routeWords` writes it without the interface. */
export const routesThroughHosts = (leases: readonly Lease[]): ReadonlySet<string> =>
  new Set(
    leases.flatMap(({ subnet, attrs: { publicIp } }) =>
      FAMILIES.flatMap((family) => {
        const [net, host] = [subnet[family], publicIp[family]]
        return net && host !== undefined ? [`${formatNet(net)} via ${formatAddress(host)}`] : []
      }),
    ),
  )

const routeWords = ({ destination, gateway, device }: Route): string =>
  `${destination}${gateway === undefined ? '' : ` via ${gateway}`} to ${device}`

const firstAddresses = ({ subnets, earlier }: Surroundings): ReadonlySet<AddressKey> =>
  new Set([...listed(subnets), ...listed(earlier)].map(({ address }) => addressKey(address)))

/**
 * Lists the devices of other backends that another program renamed. Leaves out a type of device that this node's
 * backend uses, because the backend goes on with a renamed device. Returns nothing if other programs make the devices.
 */
function renamedOf(links: readonly Link[], surroundings: Surroundings): Devices['flannels'] {
  if (surroundings.routesByOthers) return []
  const ownTypes = typesOf(surroundings.ownDevices)
  const renamed = renamedAmong(links, firstAddresses(surroundings))
  return renamed.filter(({ type }) => !ownTypes.has(type)).map((link) => ({ link, inUse: false }))
}

/**
 * Finds the IPsec policies, the routing rules and the unreachable routes of the backends ipsec and wireguard for the
 * given networks, also if the network was wider or narrower when the backend made them. `routes` has the routes among
 * which the unreachable routes are found; undefined if this node's backend itself makes the rules and the unreachable
 * routes. The policies, the rules and the unreachable routes drop packets of every other backend.
 */
export async function findBlockingIpsec(
  { kernel, run }: HostAccess,
  networks: readonly Net[],
  routes: readonly Route[] | undefined,
): Promise<readonly Leftover[]> {
  const selectors = (await kernel.hasIpsecPolicies()) ? [...(await listPolicies(run)).keys()] : []
  const blocking = selectors.filter((selector) => concerns(selector, networks))
  const guards = routes ? await Promise.all(networks.map((network) => guardRemovals(kernel, network, routes))) : []
  return [...blocking.map((selector) => ({ what: `the IPsec policy ${selector}`, selector })), ...guards.flat()]
}

/**
 * The facts about one address family with which routes are classified: this node's subnet, and the subnets and hosts of
 * the other nodes.
 */
interface Side {
  readonly family: Family
  readonly network: Net
  readonly subnet: Net | undefined
  /** The subnets of the other nodes; `hosts` has the address of each node's host by the key of the node's subnet. */
  readonly peers: readonly Net[]
  readonly hosts: ReadonlyMap<AddressKey, Address | undefined>
  /** The keys of the addresses in `hosts`. */
  readonly addresses: ReadonlySet<AddressKey>
}

function sideOf(family: Family, { networks, subnets, leases }: Surroundings): Side {
  const [network, subnet] = [networks[family] as Net, subnets[family]]
  const peers: Net[] = []
  const hosts = new Map<AddressKey, Address | undefined>()
  const own = subnet && netKey(subnet)
  for (const lease of leases) {
    const net = lease.subnet[family]
    if (!net || netKey(net) === own) continue
    peers.push(net)
    hosts.set(netKey(net), lease.attrs.publicIp[family])
  }
  return {
    family,
    network,
    subnet,
    peers,
    hosts,
    addresses: new Set([...hosts.values()].flatMap((host) => (host === undefined ? [] : [addressKey(host)]))),
  }
}

/** Returns true if a network is the subnet of another node. */
const isSubnetOf = ({ hosts }: Side, net: Net | undefined): boolean => net !== undefined && hosts.has(netKey(net))

/**
 * Returns true if the addresses of another backend's device, or the routes through the device, show that the device was
 * created for this node's network.
 */
function isOfThisNode(
  addresses: readonly Address[],
  via: readonly { readonly family: Family; readonly route: Route }[],
  sides: readonly Side[],
  surroundings: Surroundings,
): boolean {
  const { networks } = surroundings
  const ours = firstAddresses(surroundings)
  if (addresses.some((address) => ours.has(addressKey(address)))) return true
  const leads = via.some(({ family, route: { destination } }) =>
    sides.some(
      (side) =>
        side.family === family && (isSubnetOf(side, parseNet(destination)) || formatNet(side.network) === destination),
    ),
  )
  const isInside = (address: Address): boolean => {
    const network = networks[familyOf(address)]
    return network !== undefined && netContains(network, address)
  }
  return leads || (addresses.length > 0 && addresses.every(isInside))
}

/**
 * Returns a running daemon that may own the device, because the daemon's networks overlap this node's networks, contain
 * the device's address, or are unknown. Returns undefined if no daemon may own it.
 */
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
 * Returns another running daemon that may have made a leftover route; undefined if there is none. A daemon whose
 * networks are unknown is returned only if no lease of this network has the route's destination as its subnet.
 */
function routeOwnerOf({ destination }: Route, side: Side, others: readonly OtherDaemon[]): OtherDaemon | undefined {
  const net = parseNet(destination)
  const isOfThis = isSubnetOf(side, net) || (side.subnet !== undefined && formatNet(side.subnet) === destination)
  return others.find(({ networks }) =>
    networks === undefined ? !isOfThis : net !== undefined && netsOverlap(networks, netsOf([net])),
  )
}

/** The maximum number of peers to which `pastDevices` looks up routes. */
const MAX_PEERS = 100
/**
 * The maximum number of bridges for whose containers `pastDevices` looks up routes. Without this limit, a host with one
 * bridge for each container would make too many look-ups.
 */
const MAX_BRIDGES = 4

/** The kernel's route for the packets of a sender to a peer. A container's packets arrive on the bridge `from`. */
interface PeerRoute {
  readonly family: Family
  readonly peer: Net
  readonly from: string | undefined
  readonly route: Route
  /** The address of the peer's host. */
  readonly host: Address | undefined
}

/**
 * Finds the peers for which policy routing makes packets bypass this node's devices. Looks up the kernel's routes for
 * packets of this host, and for packets of containers behind each bridge with an address in this node's subnet. Returns
 * an empty list if the host has no policy rules.
 */
export async function findDiverted(kernel: HostKernel, surroundings: Surroundings): Promise<readonly Bypass[]> {
  const found: Bypass[] = []
  for (const { family, peer, route } of await pastDevices(kernel, surroundings)) {
    const words = `${formatNet(peer)} to ${route.device}, by a rule of \`ip rule\``
    if (!found.some((each) => each.route === words)) found.push({ family, route: words, isOfOwn: false })
  }
  return found
}

/**
 * Finds the packets that a policy rule diverts to a routing table other than the main table, by which they bypass the
 * data path. Describes each sender and interface once, such as `from cni0 to eth0 (such as those for 10.5.2.0/24)`. The
 * routes of the main table are judged elsewhere.
 */
export async function findDivertedByRules(
  kernel: HostKernel,
  surroundings: Surroundings,
): Promise<ReadonlyMap<string, string>> {
  const found = new Map<string, string>()
  for (const { peer, from = 'this host', route, host } of await pastDevices(kernel, surroundings)) {
    const gateway = route.gateway === undefined ? undefined : parseAddress(route.gateway)
    const isRight = surroundings.routesToHosts && gateway !== undefined && gateway === host
    if (route.table === MAIN_TABLE || isRight) continue
    const words = `from ${from} to ${route.device}`
    if (!found.has(words)) found.set(words, `${words} (such as those for ${formatNet(peer)})`)
  }
  return found
}

/** Looks up the kernel's routes to peers, and returns those that do not lead to this node's devices. */
async function pastDevices(kernel: HostKernel, surroundings: Surroundings): Promise<readonly PeerRoute[]> {
  const { ownDevices } = surroundings
  const isOwn = (device: string): boolean => ownDevices.some((name) => isNamedBy(name, device))
  const found: PeerRoute[] = []
  for (const family of familiesOf(surroundings.networks)) {
    if (!(await hasPolicyRules(kernel, family))) continue
    const side = sideOf(family, surroundings)
    // Leave out leases outside the network, such as old leases after a change of the network, because packets to their
    // subnets may take any route.
    const peers = side.peers.filter((peer) => isPartOf(peer, side.network)).slice(0, MAX_PEERS)
    const senders = await sendersOf(kernel, side, isOwn)
    const queries = senders.flatMap((sender) => peers.map((peer) => ({ peer, query: { ...sender, to: peer.address } })))
    const answers = await kernel.lookUp(
      family,
      queries.map(({ query }) => query),
    )
    for (const [at, { peer, query }] of queries.entries()) {
      const answer = answers[at]
      if (!answer || 'refused' in answer) continue
      const { route } = answer
      const host = side.hosts.get(netKey(peer))
      if (route.type === 'unicast' && !isOwn(route.device))
        found.push({ family, peer, from: query.iif?.name, route, host })
    }
  }
  return found
}

/**
 * Returns the senders for whose packets `pastDevices` looks up the kernel's routes: this host itself, and a container
 * at each bridge with an address in this node's subnet.
 */
async function sendersOf(
  kernel: HostKernel,
  { family, subnet }: Side,
  isOwn: (device: string) => boolean,
): Promise<readonly Pick<RouteQuery, 'from' | 'iif'>[]> {
  if (!subnet) return [{}]
  const container = typeof subnet.address === 'number' ? subnet.address + 2 : subnet.address + 2n
  const isInside = ({ addresses, name }: Link): boolean =>
    !isOwn(name) && addresses[family].some(({ address }) => netContains(subnet, address) && address !== container)
  const bridges = (await kernel.links()).filter(isInside)
  return [{}, ...bridges.slice(0, MAX_BRIDGES).map((iif) => ({ from: container, iif }))]
}

type RouteKind = 'right' | 'left' | 'own' | 'peers' | 'unknown'

/**
 * Classifies a route within the network. `right`: the route must stay. `left`: the route is a leftover. `own` or
 * `peers`: the route diverts packets for this node's containers or for peers. `unknown`: the leases of all nodes may
 * show the route's purpose.
 */
function kindOf(route: Route, side: Side, here: Surroundings & Pick<Devices, 'bridges'>): RouteKind {
  const { network, subnet, peers, addresses, family } = side
  const net = parseNet(route.destination)
  if (!net || route.type !== 'unicast' || here.routesByOthers) return 'right'
  // Packets to a bridge other than the external interface stay within this host, because containers or virtual machines
  // are behind the bridge.
  const isInner = here.bridges.has(route.device) && route.device !== here.external
  if (route.protocol === 'kernel' && (isInner || route.gateway !== undefined)) return 'right'
  // The kernel uses the route with the lowest metric. So a route to the whole network with a higher metric than weftd's
  // takes no packets.
  const isWhole = net.prefixLength <= network.prefixLength
  if (isWhole && route.metric >= USUAL_METRIC[family]) return 'right'
  const gateway = route.gateway === undefined ? undefined : parseAddress(route.gateway)
  const isToHost = gateway !== undefined && addresses.has(addressKey(gateway))
  // weftd and flanneld set no protocol on their routes, so the kernel records the protocol `boot`. A route that an
  // operator adds by `ip route add` has the same protocol.
  const isMadeByHand = route.protocol === 'boot'
  if (subnet && isPartOf(net, subnet)) {
    if (route.isMultipath) return 'own'
    // A route that has no gateway, or has a container of this node as its gateway, leads to a destination on this host.
    if (route.gateway === undefined || (gateway !== undefined && netContains(subnet, gateway))) return 'right'
    if (isInner && !isToHost) return 'right'
    // A backend's route uses the external interface or leads to a node's host. If the external interface is not known,
    // any device may have been the external interface, so the route's device does not matter.
    const isLikeOurs = isToHost || here.external === undefined || route.device === here.external
    const isWhollyAway = net.prefixLength === subnet.prefixLength
    return isMadeByHand && isLikeOurs && (isWhollyAway || isToHost) ? 'left' : 'own'
  }
  if (here.routesToHosts) return 'right'
  const isLikeOurs = isSubnetOf(side, net) || mayBeLeased(net, subnet ?? here.earlier[family], here.ranges?.[family])
  const isFormer = here.formerRoutes?.has(`${route.destination} via ${route.gateway}`) === true
  if (((isToHost && isLikeOurs) || isFormer) && isMadeByHand && !isWhole) return 'left'
  if (peers.some((peer) => netsOverlap(netsOf([peer]), netsOf([net])))) return 'peers'
  // A route without a gateway leads to containers or virtual machines of this host, unless its device is the external
  // interface.
  const isLocal = route.gateway === undefined && !route.isMultipath && route.device !== here.external
  return isLocal ? 'right' : 'unknown'
}

/**
 * Returns true if `net` could be the subnet of a node whose lease is gone. `own` is a subnet of this node. An operator
 * may use other parts of the network for other purposes.
 */
function mayBeLeased(net: Net, own: Net | undefined, range: SubnetRange | undefined): boolean {
  if (net.prefixLength !== own?.prefixLength) return false
  return !range || range.subnetLength === 0 || (net.address >= range.subnetMin && net.address <= range.subnetMax)
}

/**
 * The number of removed routes up to which weftd logs each route in a line of its own. weftd logs more routes together
 * in one line.
 */
const ONE_BY_ONE = 20

/**
 * Removes leftovers and returns the failures, each with the reason. Calls `removed` with a description of each removed
 * leftover, or of all routes together if there are many. Removes nothing if `mayGo` returns false, because this process
 * may then no longer change the host.
 */
export async function removeLeftovers(
  { kernel, run }: HostAccess,
  leftovers: readonly Leftover[],
  removed: (what: string) => void,
  mayGo: () => boolean = () => true,
): Promise<readonly (readonly [what: string, why: string])[]> {
  const failures: (readonly [string, string])[] = []
  for (const each of leftovers) {
    if (!('selector' in each)) continue
    if (!mayGo()) return failures
    try {
      await removePolicy(run, each.selector)
      removed(each.what)
    } catch (error) {
      if (!isWeftError(error)) throw error
      // Ignore the error: another program has already removed the policy.
      if (!/no such (process|file or directory)/i.test(error.message)) failures.push([each.what, describeError(error)])
    }
  }
  const changes = leftovers.flatMap((each) => ('change' in each ? [each] : []))
  if (changes.length === 0 || !mayGo()) return failures
  const errors = await kernel.change(changes.map(({ change }) => change))
  const gone: string[] = []
  for (const [at, { what, change }] of changes.entries()) {
    const error = errors[at]
    if (error && !isGone(error)) failures.push([what, describeError(error)])
    else if (!error && change.kind === 'delete route') gone.push(what)
    else if (!error) removed(what)
  }
  if (gone.length > ONE_BY_ONE) removed(`${gone.length} routes to subnets of nodes, such as ${gone[0]}`)
  else for (const what of gone) removed(what)
  return failures
}

const removePolicy = async (run: Run, selector: string): Promise<void> =>
  void (await run('ip', ['xfrm', 'policy', 'delete', ...selector.split(' ')]))

/** Removes one leftover. Throws WeftError. */
export const removeLeftover = ({ kernel, run }: HostAccess, leftover: Leftover): Promise<void> =>
  'selector' in leftover ? removePolicy(run, leftover.selector) : removeAll(kernel, [leftover.change])

/**
 * Removes a kernel device of another backend that blocks a route to the given networks, unless another running daemon
 * may own the device.
 */
export async function removeKernelDevice(kernel: HostKernel, name: string, networks: Nets): Promise<void> {
  const device = await findRemovable(kernel, name, networks)
  if (device) await removeAll(kernel, [{ kind: 'delete link', device }])
}

/**
 * Returns the device called `name` if it is a kernel device of a backend for the given networks, and no other running
 * daemon may own the device.
 */
export async function findRemovable(kernel: HostKernel, name: string, networks: Nets): Promise<Link | undefined> {
  const device = (await listDevices(kernel)).flannels.find(({ link }) => link.name === name)
  if (!device || device.inUse || device.link.type === 'tun') return undefined
  const isElsewhere = (address: Address): boolean => {
    const network = networks[familyOf(address)]
    return network !== undefined && !netContains(network, address)
  }
  const addresses = givenTo(device.link)
  if (addresses.some(isElsewhere)) return undefined
  return ownerOf(addresses, networks, await otherDaemons()) === undefined ? device.link : undefined
}

/**
 * Lists the running daemons in this network namespace, except this one: weftd of other networks, and every flanneld.
 * Leaves out a weftd with the lock `lockFile`, which is this process, its predecessor or its successor.
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

/** The maximum size of a subnet file (subnet.env) in bytes. A daemon writes about 200 bytes. */
const MOST_SUBNET_FILE_BYTES = 4_096

/** Reads the networks from a subnet file (subnet.env); undefined if the file cannot be read or contains no network. */
async function networksIn(path: string): Promise<Nets | undefined> {
  const text = await readPlainFile(path, MOST_SUBNET_FILE_BYTES).catch(() => '')
  const values = parseEnv(text)
  const nets = ['FLANNEL_NETWORK', 'FLANNEL_IPV6_NETWORK'].flatMap(
    (key) => parseNet(values[key]?.split(',')[0] ?? '') ?? [],
  )
  return nets.length === 0 ? undefined : netsOf(nets)
}
