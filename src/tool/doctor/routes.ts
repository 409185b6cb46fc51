// routes.ts - checks the routes of this host's main table that lead to the network or to parts of it. Pure.

import type { Route } from '../../host/kernel.ts'
import { formatNet, netContains, parseAddress, parseNet, type Family, type Net } from '../../net/address.ts'
import type { PeerStatus, Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import { each, type Finding } from './findings.ts'
import { isOwnDevice, kindIn, ownSides, sideIn, type OwnSide } from './sides.ts'

/**
 * The metric of a route that was made without a metric. The kernel prefers the route with the lowest metric
 * (net/ipv6/route.c, IP6_RT_PRIO_USER).
 */
const USUAL_METRIC: Readonly<Record<Family, number>> = { ipv4: 0, ipv6: 1024 }

/**
 * Returns true if a route to this node's own containers stays on this host: it has no gateway, or the gateway is a
 * container of this node.
 */
function staysHere(subnet: Net, gateway: string | undefined): boolean {
  const address = gateway === undefined ? undefined : parseAddress(gateway)
  return gateway === undefined || (address !== undefined && netContains(subnet, address))
}

export function checkRoutes({ status, routes, silence }: Facts): Finding[] | undefined {
  const path = status?.dataPath
  if (!status || !path || path.engine === null || path.engine === 'none') return undefined
  if (kindIn(status)?.routes === 'none') return undefined
  // Check the routes also if no weftd runs, because the routes of a stopped weftd must stay on the host.
  if (!path.open && silence === undefined) return undefined
  const sides = ownSides(status).filter(({ family }) => path.families.includes(family))
  return sides.length === 0 ? undefined : sides.flatMap((side) => checkRoutesOf(side, status, routes))
}

/**
 * Returns true if the backend has a single route to the whole network, and not one route per peer. If weftd itself
 * carries the packets, there is always a single route. If the kernel carries the packets, the number of routes depends
 * on the backend.
 */
export const hasOneRoute = (status: Status): boolean =>
  status.dataPath?.engine !== 'kernel' || kindIn(status)?.routes === 'network'

/**
 * Returns true if a peer that is missing from the data path lacks only a route, because weftd can use the peer's lease.
 * The kernel refused the route to this peer, or another program's route has its place.
 */
export const isOnlyRouteMissing = (status: Status, { unusable }: Pick<PeerStatus, 'unusable'>): boolean =>
  !hasOneRoute(status) && !unusable && kindIn(status)?.probe !== 'nobody'

function checkRoutesOf({ family, network, subnet }: OwnSide, status: Status, routes: readonly Route[]): Finding[] {
  const isOneRoute = hasOneRoute(status)
  const peers = (status.peers?.list ?? []).flatMap((peer) => {
    const { subnet: net, publicIp, state, way } = sideIn(peer, family)
    const mayBeRouted = state !== 'stored' || isOnlyRouteMissing(status, peer)
    return net ? [{ net: formatNet(net), publicIp, mayBeRouted, way }] : []
  })
  const routesToHosts = kindIn(status)?.probe === 'host'
  // A route that bypasses the tunnel is right only for peers to which the data path itself routes directly.
  const direct = peers.filter(({ way }) => routesToHosts || way === 'direct')
  const hosts = new Map(direct.map(({ net, publicIp }) => [net, publicIp]))
  const whole = formatNet(network)
  const isRight = ({ destination, device, gateway, net }: Route & { readonly net: Net }): boolean => {
    if (isOwnDevice(status, family, device)) return true
    if (destination === whole) return !isOneRoute
    // A route to this node's own containers is right if it leads to a device of this host, or through one of the
    // containers.
    if (net.prefixLength >= subnet.prefixLength && netContains(subnet, net.address)) return staysHere(subnet, gateway)
    return gateway !== undefined && hosts.get(destination) === parseAddress(gateway)
  }
  const first = routes.flatMap((route) => {
    const net = parseNet(route.destination)
    const isFirst = net && route.metric <= USUAL_METRIC[family] && netContains(network, net.address)
    return isFirst ? [{ ...route, net }] : []
  })
  const there = new Set(first.map(({ destination }) => destination))
  const routed = peers.filter(({ mayBeRouted }) => mayBeRouted)
  const wanted = isOneRoute ? [whole] : routed.map(({ net }) => net)
  return [
    ...each(
      'foreign-route',
      first.filter((route) => !isRight(route)),
      ({ destination, device, gateway }) =>
        `${destination} goes ${gateway === undefined ? '' : `via ${gateway} `}to ${device === '' ? 'nowhere' : device}`,
    ),
    ...each(
      'no-route',
      wanted.filter((destination) => !there.has(destination)),
      (destination) => destination,
    ),
  ]
}
