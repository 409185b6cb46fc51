// route-queries.ts - lists the packets, to and from each peer, for which weft doctor queries the kernel's routes. Pure.

import type { PacketPart, PolicyRule, RouteAnswer, RouteQuery } from '../../host/kernel.ts'
import type { Link } from '../../host/kernel.ts'
import { isIpv4Net, type Address, type Family, type Net } from '../../net/address.ts'
import { kindOf, portOf } from '../../path/catalog.ts'
import { placeIn, type Status } from '../../report/status.ts'
import { bridgeOf, outerIn, ownSides, seenSides, type OwnSide, type SeenSide } from './sides.ts'

/** The maximum number of peers for whose packets weft doctor looks up routes. */
const QUERIED_PEERS = 16
/** The maximum number of packet marks (fwmark) with which weft doctor looks up routes. */
const QUERIED_MARKS = 8
/** The maximum number of policy rules with protocols, ports or DSCPs for whose packets weft doctor looks up routes. */
const QUERIED_PARTS = 8

/** The numbers of IP protocols (protocols(5)). */
const TCP = 6
export const UDP = 17
export const ICMP: Readonly<Record<Family, number>> = { ipv4: 1, ipv6: 58 }

/**
 * Returns one packet for each policy rule that selects packets by protocol, ports or DSCP, without the packet's
 * addresses. The kernel looks up no routes of other protocols than TCP, UDP and ICMP (rtm_getroute_parse_ip_proto in
 * net/ipv4/fib_frontend.c). Only devices with external tunnel metadata receive packets of a rule with `tun_id`.
 */
export function partsOf(rules: readonly PolicyRule[], family: Family): readonly PacketPart[] {
  const parts = rules.flatMap(({ part, isInverted }): readonly PacketPart[] => {
    if (!part || part.tunnel !== undefined) return []
    const { protocol, sport, dport, tos, dscp } = part
    // An inverted rule leaves its part to the later rules, and selects all other packets.
    const others = isInverted ? [{ protocol: TCP }] : []
    if (protocol !== undefined && ![TCP, UDP, ICMP[family]].includes(protocol)) return others
    const isOfPorts = sport !== undefined || dport !== undefined
    const byte = dscp === undefined ? tos : dscp << 2
    return [
      {
        ...(protocol === undefined ? (isOfPorts ? { protocol: TCP } : {}) : { protocol }),
        ...(sport ? { sport: sport[0] } : {}),
        ...(dport ? { dport: dport[0] } : {}),
        ...(byte === undefined ? {} : { tos: byte }),
      },
      ...others,
    ]
  })
  const found = new Map(parts.map((part) => [JSON.stringify(part), part]))
  return [...found.values()].slice(0, QUERIED_PARTS)
}

export interface PeerQuery {
  readonly family: Family
  /**
   * The packet's direction. `out`: from a container of this node to a container of a peer; `host`: from this host to a
   * container of a peer; `in`: from a container of a peer to a container of this node; `underlay` and `from underlay`:
   * from this host to the host of a peer, and from that host.
   */
  readonly direction: 'out' | 'host' | 'in' | 'underlay' | 'from underlay'
  readonly lease: string
  readonly query: RouteQuery
}

export interface AnsweredQuery extends PeerQuery {
  readonly answer: RouteAnswer
}

export interface KernelRoutes {
  readonly answers: readonly AnsweredQuery[]
  readonly rules: Readonly<Partial<Record<Family, readonly PolicyRule[]>>>
}

export const containerIn = (net: Net): Address => (isIpv4Net(net) ? net.address + 2 : net.address + 2n)

/**
 * Returns true if weft itself makes the routes to peers. The backend ipsec makes none, because IPsec policies, which
 * weft or charon installs, steer its packets.
 */
const isRouted = (status: Status): status is RoutedStatus =>
  status.config !== null &&
  status.dataPath !== null &&
  status.dataPath.engine !== null &&
  status.dataPath.engine !== 'none' &&
  kindOf(status.config.backendType)?.routes !== 'none'

/** The status of a node with a configuration and a data path. */
interface RoutedStatus extends Status {
  readonly config: NonNullable<Status['config']>
  readonly dataPath: NonNullable<Status['dataPath']>
}

/**
 * Lists the packets whose routes weft doctor looks up. `marks` are the packet marks that a firewall of this host sets,
 * because policy rules may match marks. `rules` are the policy rules of this host, some of which may match only a part
 * of the packets.
 */
export function routeQueries(
  status: Status,
  links: readonly Link[],
  marks: readonly number[],
  rules: KernelRoutes['rules'] = {},
): readonly PeerQuery[] {
  if (!isRouted(status)) return []
  return ownSides(status).flatMap((side) => {
    const bridge = bridgeOf(links, side.subnet, status)
    const device = status.dataPath.devices[side.family]
    const parts = partsOf(rules[side.family] ?? [], side.family)
    return peersOf(side, status)
      .slice(0, QUERIED_PEERS)
      .flatMap((peer): PeerQuery[] => {
        const { family } = side
        const [here, there] = [containerIn(side.subnet), containerIn(peer.subnet)]
        const { lease } = peer.peer
        const of = (direction: PeerQuery['direction'], query: RouteQuery): PeerQuery => ({
          family,
          direction,
          lease,
          query,
        })
        const out = bridge === undefined ? undefined : { to: there, from: here, iif: { name: bridge } }
        const whole = [
          of('host', { to: there }),
          ...(out ? [of('out', out), ...marks.slice(0, QUERIED_MARKS).map((mark) => of('out', { ...out, mark }))] : []),
          // Packets from a directly routed peer do not arrive on the data path's device, so do not look up their route.
          ...(out && device && peer.way !== 'direct'
            ? [of('in', { to: here, from: there, iif: { name: device } })]
            : []),
        ]
        const ofParts = whole
          .filter(({ query }) => query.mark === undefined)
          .flatMap((each) => parts.map((part) => ({ ...each, query: { ...each.query, part } })))
        return [...whole, ...ofParts]
      })
  })
}

/** The ends of the packets between this host and the host of a peer. */
export interface Ends {
  readonly family: Family
  readonly own: Address
  readonly host: Address
}

/** Returns the addresses between which the packets for a peer pass the underlay; undefined if weft does not know them. */
export function endsOf(status: Status, side: SeenSide): Ends | undefined {
  const family = outerIn(status, side.family, side.endpoint)
  const own = status.node ? placeIn(status.node, family).publicIp : undefined
  const host = placeIn(side.peer, family).publicIp
  return own === undefined || host === undefined ? undefined : { family, own, host }
}

export const addressesIn = (link: Link | undefined, family: Family) => link?.addresses[family] ?? []

/** Lists the packets between this host and the hosts of peers whose routes weft doctor looks up. */
export function underlayQueries(status: Status, links: readonly Link[]): readonly PeerQuery[] {
  if (!isRouted(status)) return []
  const name = status.node?.externalInterface
  if (!name) return []
  const { config, dataPath } = status
  // The kernel binds the packets of its VXLAN device to the interface (vxlan_get_route in drivers/net/vxlan).
  const isBound = config.backendType === 'vxlan' && dataPath.engine === 'kernel'
  const found = new Map<string, readonly PeerQuery[]>()
  for (const side of ownSides(status))
    for (const peer of peersOf(side, status).slice(0, QUERIED_PEERS)) {
      const ends = endsOf(status, peer)
      if (!ends) continue
      const { family, own, host } = ends
      const ownPort = portOf(config.backendType, config.backend, family)
      const port = ownPort && (portIn(peer.endpoint) ?? ownPort)
      const to = (dport: number | undefined) => (dport === undefined ? {} : { part: { protocol: UDP, dport } })
      const { lease } = peer.peer
      // If the nodes publish addresses that a router translates, this host does not have its own public address, and the
      // kernel refuses to look up routes for it.
      const isOwn = links.some((link) => addressesIn(link, family).some(({ address }) => address === own))
      found.set(`${lease} ${family}`, [
        {
          family,
          lease,
          direction: 'underlay',
          query: { to: host, ...(isOwn ? { from: own } : {}), ...(isBound ? { oif: { name } } : {}), ...to(port) },
        },
        ...(isOwn
          ? [
              {
                family,
                lease,
                direction: 'from underlay',
                query: { to: own, from: host, iif: { name }, ...to(ownPort) },
              } as const,
            ]
          : []),
      ])
    }
  return [...found.values()].flat()
}

/** Returns the port in an endpoint such as `192.0.2.2:8285` or `[2001:db8::2]:8285`; undefined if it has no port. */
const portIn = (endpoint: string | null): number | undefined => {
  const text = endpoint?.match(/^(?:[\d.]+|\[.*\]):(\d+)$/)?.[1]
  return text === undefined ? undefined : Number(text)
}

/** A peer in a family in which the peer has a subnet. */
type RoutedSide = SeenSide & { readonly subnet: Net }

/** Returns the peers that the data path has in a family. */
export const peersOf = ({ family }: OwnSide, { peers }: Status): readonly RoutedSide[] =>
  (peers?.list ?? [])
    .flatMap((peer) => seenSides(peer, new Map()))
    .filter(
      (side): side is RoutedSide => side.family === family && side.state !== 'stored' && side.subnet !== undefined,
    )

/**
 * Finds the marks that the rules of nftables and iptables set on packets. Policy rules may select another routing table
 * for a marked packet.
 */
export const marksIn = (rules: string): readonly number[] => [
  ...new Set(
    [...rules.matchAll(/(?:\bmeta mark set|--set-xmark) (0x[\da-f]+)/g)]
      .map(([, mark]) => Number(mark))
      .filter((mark) => mark !== 0),
  ),
]
