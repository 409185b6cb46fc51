// device-remains.ts - finds the devices and routes that weftd or flanneld left on this host.

import { describeError, isWeftError } from '../../base/errors.ts'
import { removeAll } from '../../host/kernel-errors.ts'
import type { HostKernel, Route } from '../../host/kernel.ts'
import { deletionOf, USUAL_METRIC } from '../../host/links.ts'
import {
  addressKey,
  FAMILIES,
  familyOf,
  isPartOf,
  netContains,
  parseAddress,
  parseNet,
  type Family,
} from '../../net/address.ts'
import { charonOfHost } from '../../node/choose.ts'
import { isNamedBy, KINDS, type Kind } from '../../path/catalog.ts'
import { findDevices, renamedAmong } from '../../path/device/flannel-devices.ts'
import { findBlockingIpsec, removeLeftover, type HostAccess } from '../../path/device/leftovers.ts'
import { otherRuleRemovals, unreachableRoutes } from '../../path/device/userspace-guard.ts'
import type { Remains } from '../../path/remains.ts'

/**
 * Finds the devices of weftd and flanneld with their routes, also devices that another program renamed. `subnets` has
 * this node's subnets as `ip` writes them.
 */
export async function findDeviceRemains(kernel: HostKernel, subnets: ReadonlySet<string>): Promise<Remains[]> {
  const remains: Remains[] = []
  const own = new Set([...subnets].flatMap((each) => parseNet(each) ?? []).map(({ address }) => addressKey(address)))
  const renamed = renamedAmong(await kernel.links(), own)
  for (const link of [...(await findDevices(kernel)).map((each) => each.link), ...renamed]) {
    const through = await Promise.all(FAMILIES.map((family) => kernel.routes({ family, device: link, table: 'all' })))
    const routes = through.flat().filter(({ protocol }) => protocol !== 'kernel')
    remains.push({
      things: [...routes.map(textOf), `device ${link.name} (${link.type})`],
      stays: [],
      remove: () => removeAll(kernel, [{ kind: 'delete link', device: link }]),
    })
  }
  return remains
}

const textOf = ({ destination, gateway, device }: Route): string =>
  `route ${destination}${gateway === undefined ? '' : ` via ${gateway}`} dev ${device}`

/**
 * Finds the routes to other nodes' subnets through their hosts, as the host-gw backend and direct routing make them.
 * Such a route is within one of `networks` (as `ip` writes them) and has the prefix length of one of this node's
 * `subnets`. Its gateway is outside the network, and it has no routing protocol (`proto`). `weft cleanup` does not know
 * the leases, so it keeps routes with any other prefix length, which an operator may have made.
 */
export async function findHostRouteRemains(
  kernel: HostKernel,
  networks: ReadonlySet<string>,
  subnets: ReadonlySet<string>,
): Promise<Remains[]> {
  const remains: Remains[] = []
  const own = [...subnets].flatMap((each) => parseNet(each) ?? [])
  for (const network of networks) {
    const net = parseNet(network)
    if (!net) continue
    const lengths = new Set(
      own
        .filter((subnet) => familyOf(subnet) === familyOf(net) && netContains(net, subnet.address))
        .map(({ prefixLength }) => prefixLength),
    )
    const found = await kernel.routes({ family: familyOf(net), within: net })
    const toHosts = found.filter(({ type, protocol, gateway, destination, metric, device }) => {
      const to = gateway === undefined ? undefined : parseAddress(gateway)
      const length = parseNet(destination)?.prefixLength ?? 0
      const isSubnet = length > net.prefixLength && lengths.has(length)
      const isUsual = metric === USUAL_METRIC[familyOf(net)]
      const isOfDevice = DEVICES.some(([, pattern]) => isNamedBy(pattern, device)) // the route is removed with its device
      return (
        type === 'unicast' &&
        protocol === 'boot' &&
        isSubnet &&
        isUsual &&
        !isOfDevice &&
        to !== undefined &&
        !netContains(net, to)
      )
    })
    for (const route of toHosts)
      remains.push({
        things: [textOf(route)],
        stays: [],
        remove: () => removeAll(kernel, [deletionOf(route, familyOf(net))]),
      })
  }
  return remains
}

const DEVICES = Object.values<Kind>(KINDS).flatMap(({ devices }) => devices)

/**
 * Finds the IPsec policies, the routing rules and the unreachable routes of the backends ipsec and wireguard for networks
 * (as `ip` writes them).
 */
export async function findIpsecRemains(host: HostAccess, networks: ReadonlySet<string>): Promise<Remains[]> {
  const nets = [...networks].flatMap((each) => parseNet(each) ?? [])
  const routes = await Promise.all(nets.map((net) => host.kernel.routes({ family: familyOf(net), within: net })))
  const found = await findBlockingIpsec(host, nets, routes.flat())
  return found.map((leftover) => ({
    things: [leftover.what],
    stays: [],
    remove: () => removeLeftover(host, leftover),
  }))
}

/**
 * Finds the connections of the backend ipsec for the given networks in charon (strongSwan's IKE daemon) on this host.
 */
export async function findCharonRemains(networks: ReadonlySet<string>): Promise<Remains[]> {
  const nets = [...networks].flatMap((each) => parseNet(each) ?? [])
  if (nets.length === 0) return []
  const { listConnections, leaveCharon } = await charonOfHost()
  const { signal } = new AbortController()
  try {
    const names = await listConnections(nets, signal)
    const things = names.map((name) => `the connection ${name} of charon`)
    const remove = async (): Promise<void> => void (await leaveCharon(nets, signal))
    return names.length === 0 ? [] : [{ things, stays: [], remove }]
  } catch (error) {
    if (!isWeftError(error)) throw error
    return [{ things: [], stays: [`connections of charon: ${describeError(error)}`], remove: async () => {} }]
  }
}

/**
 * Finds the unreachable routes and the routing rules of the backends ipsec and wireguard that `findIpsecRemains`
 * does not find for `networks` (as `ip` writes them): routes to networks that are not a part of one of `networks`, such
 * as an IPv6 network that was removed from the configuration, and rules for networks that overlap none of `networks`.
 */
export async function findUnreachableRemains(kernel: HostKernel, networks: ReadonlySet<string>): Promise<Remains[]> {
  const wholes = [...networks].flatMap((each) => parseNet(each) ?? [])
  const isWithin = ({ destination }: Route): boolean => {
    const net = parseNet(destination)
    return net !== undefined && wholes.some((whole) => isPartOf(net, whole))
  }
  const remainsOf = async (family: Family): Promise<Remains[]> => {
    const routes = unreachableRoutes(await kernel.routes({ family })).filter((route) => !isWithin(route))
    const removals = [
      ...routes.map((route) => ({
        what: `the unreachable route to ${route.destination}`,
        change: deletionOf(route, family),
      })),
      ...(await otherRuleRemovals(kernel, family, wholes)),
    ]
    return removals.map(({ what, change }) => ({
      things: [what],
      stays: [],
      remove: () => removeAll(kernel, [change]),
    }))
  }
  return (await Promise.all(FAMILIES.map(remainsOf))).flat()
}

/** Finds the blackhole routes to `subnets` (as `ip` writes them) that weftd made for --ip-blackhole-route. */
export async function findBlackholeRemains(kernel: HostKernel, subnets: ReadonlySet<string>): Promise<Remains[]> {
  const remainsOf = async (family: Family): Promise<Remains[]> => {
    const routes = await kernel.routes({ family })
    const blackholes = routes.filter(({ type, destination }) => type === 'blackhole' && subnets.has(destination))
    return blackholes.map((route) => ({
      things: [`route blackhole ${route.destination}`],
      stays: [],
      remove: () => removeAll(kernel, [deletionOf(route, family)]),
    }))
  }
  return (await Promise.all(FAMILIES.map(remainsOf))).flat()
}
