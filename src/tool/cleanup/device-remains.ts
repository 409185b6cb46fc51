// device-remains.ts - finds the devices and routes that weftd or flanneld left on this host.

import { describeError, isWeftError } from '../../base/errors.ts'
import type { Run } from '../../host/command.ts'
import { ipFlag, ipJson, routesWithin, USUAL_METRIC } from '../../host/links.ts'
import { familyOf, netContains, parseAddress, parseNet } from '../../net/address.ts'
import { charonOfHost } from '../../node/choose.ts'
import { isNamedBy, KINDS, type Kind } from '../../path/catalog.ts'
import { findDevices } from '../../path/device/flannel-devices.ts'
import { findBlockingIpsec } from '../../path/device/leftovers.ts'
import type { Remains } from '../../path/remains.ts'

interface JsonRoute {
  type?: string
  dst?: string
  gateway?: string
  metric?: number
  protocol?: string
}

export async function findDeviceRemains(run: Run): Promise<Remains[]> {
  const remains: Remains[] = []
  for (const { name, kind } of await findDevices(run)) {
    const routes = (await routes46(run, ['table', 'all', 'dev', name])).filter(({ protocol }) => protocol !== 'kernel')
    const via = (gateway?: string): string => (gateway === undefined ? '' : ` via ${gateway}`)
    remains.push({
      things: [
        ...routes.map(({ dst, gateway }) => `route ${dst}${via(gateway)} dev ${name}`),
        `device ${name} (${kind})`,
      ],
      stays: [],
      remove: async () => void (await run('ip', ['link', 'del', 'dev', name])),
    })
  }
  return remains
}

/**
 * Finds the routes to other nodes' subnets through their hosts, as the host-gw backend and direct routing make them.
 * Such a route is within one of `networks` (as `ip` writes them), has the prefix length of one of this node's
 * `subnets`, a gateway outside the network, and no protocol. `weft cleanup` does not know the leases, so it takes
 * routes with any other prefix length for an operator's and keeps them.
 */
export async function findHostRouteRemains(
  run: Run,
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
    const found = await routesWithin(run, net).catch((error: unknown) => {
      if (isWeftError(error, 'COMMAND')) return [] // the kernel lacks this family
      throw error
    })
    const toHosts = found.filter(({ type, protocol, gateway, destination, metric, device }) => {
      const to = gateway === undefined ? undefined : parseAddress(gateway)
      const isMadeByHand = protocol === undefined || protocol === 'boot'
      const length = parseNet(destination)?.prefixLength ?? 0
      const isSubnet = length > net.prefixLength && lengths.has(length)
      const isUsual = metric === USUAL_METRIC[familyOf(net)]
      const isOfDevice = DEVICES.some(([, pattern]) => isNamedBy(pattern, device)) // the route is removed with its device
      return (
        type === 'unicast' &&
        isMadeByHand &&
        isSubnet &&
        isUsual &&
        !isOfDevice &&
        to !== undefined &&
        !netContains(net, to)
      )
    })
    for (const { destination, gateway = '', device } of toHosts)
      remains.push({
        things: [`route ${destination} via ${gateway} dev ${device}`],
        stays: [],
        remove: async () =>
          void (await run('ip', [ipFlag(net), 'route', 'del', destination, 'via', gateway, 'dev', device])),
      })
  }
  return remains
}

const DEVICES = Object.values<Kind>(KINDS).flatMap(({ devices }) => devices)

/**
 * Finds the IPsec policies, the routing rules and the unreachable routes of the backend ipsec for the given networks
 * (as `ip` writes them).
 */
export async function findIpsecRemains(run: Run, networks: ReadonlySet<string>): Promise<Remains[]> {
  const nets = [...networks].flatMap((each) => parseNet(each) ?? [])
  const routes = await Promise.all(
    nets.map((net) =>
      routesWithin(run, net).catch((error: unknown) => {
        if (isWeftError(error, 'COMMAND')) return [] // the kernel lacks this family
        throw error
      }),
    ),
  )
  const found = await findBlockingIpsec(run, nets, routes.flat())
  return found.map(({ what, command }) => ({
    things: [what],
    stays: [],
    remove: async () => void (await run('ip', command)),
  }))
}

/** Finds the connections of the backend ipsec for the given networks in the charon that runs on this host. */
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

/** Finds the blackhole routes to `subnets` (as `ip` writes them) that weftd made for --ip-blackhole-route. */
export async function findBlackholeRemains(run: Run, subnets: ReadonlySet<string>): Promise<Remains[]> {
  const routes = (await routes46(run, ['type', 'blackhole'])).filter(({ dst = '' }) => subnets.has(dst))
  return routes.map(({ dst = '', metric = 0 }) => ({
    things: [`route blackhole ${dst}`],
    stays: [],
    remove: async () => {
      const family = dst.includes(':') ? '-6' : '-4'
      await run('ip', [family, 'route', 'del', 'blackhole', dst, 'metric', String(metric)])
    },
  }))
}

async function routes46(run: Run, selector: readonly string[]): Promise<JsonRoute[]> {
  const of = (family: string) =>
    ipJson<JsonRoute>(run, [family, 'route', 'show', ...selector]).catch((error: unknown) => {
      if (family === '-6' && isWeftError(error, 'COMMAND')) return [] // a kernel without IPv6
      throw error
    })
  return [...(await of('-4')), ...(await of('-6'))]
}
