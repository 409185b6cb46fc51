// route-queries.ts - lists the packets, to and from each peer, for which weft doctor queries the kernel's routes. Pure.

import type { PolicyRule, RouteAnswer, RouteQuery } from '../../host/kernel.ts'
import type { Link } from '../../host/kernel.ts'
import { isIpv4Net, type Address, type Family, type Net } from '../../net/address.ts'
import { kindOf } from '../../path/catalog.ts'
import { placeIn, type Status } from '../../report/status.ts'
import { bridgeOf, outerIn, ownSides, seenSides, type OwnSide, type SeenSide } from './sides.ts'

/** The maximum number of peers for whose packets weft doctor looks up routes. */
const QUERIED_PEERS = 16
/** The maximum number of packet marks (fwmark) with which weft doctor looks up routes. */
const QUERIED_MARKS = 8

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
const isRouted = ({ config, dataPath }: Status): boolean =>
  dataPath !== null &&
  dataPath.engine !== null &&
  dataPath.engine !== 'none' &&
  kindOf(config?.backendType ?? '')?.routes !== 'none'

/**
 * Lists the packets whose routes weft doctor looks up. `marks` are the packet marks that a firewall of this host sets,
 * because policy rules may match marks.
 */
export function routeQueries(status: Status, links: readonly Link[], marks: readonly number[]): readonly PeerQuery[] {
  if (!isRouted(status)) return []
  return ownSides(status).flatMap((side) => {
    const bridge = bridgeOf(links, side.subnet, status)
    const device = status.dataPath?.devices[side.family] ?? null
    return peersOf(side, status)
      .slice(0, QUERIED_PEERS)
      .flatMap((peer): PeerQuery[] => {
        if (!peer.subnet) return []
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
        return [
          of('host', { to: there }),
          ...(out ? [of('out', out), ...marks.slice(0, QUERIED_MARKS).map((mark) => of('out', { ...out, mark }))] : []),
          // Packets from a directly routed peer do not arrive on the data path's device, so do not look up their route.
          ...(out && device && peer.way !== 'direct'
            ? [of('in', { to: here, from: there, iif: { name: device } })]
            : []),
        ]
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
  const name = status.node?.externalInterface
  if (!isRouted(status) || !name) return []
  const found = new Map<string, readonly PeerQuery[]>()
  for (const side of ownSides(status))
    for (const peer of peersOf(side, status).slice(0, QUERIED_PEERS)) {
      const ends = endsOf(status, peer)
      if (!ends) continue
      const { family, own, host } = ends
      const { lease } = peer.peer
      // If the nodes publish addresses that a router translates, this host does not have its own public address, and the
      // kernel refuses to look up routes for it.
      const isOwn = links.some((link) => addressesIn(link, family).some(({ address }) => address === own))
      found.set(`${lease} ${family}`, [
        { family, lease, direction: 'underlay', query: { to: host, ...(isOwn ? { from: own } : {}) } },
        ...(isOwn
          ? [{ family, lease, direction: 'from underlay', query: { to: own, from: host, iif: { name } } } as const]
          : []),
      ])
    }
  return [...found.values()].flat()
}

export const peersOf = ({ family }: OwnSide, { peers }: Status): readonly SeenSide[] =>
  (peers?.list ?? [])
    .flatMap((peer) => seenSides(peer, new Map()))
    .filter((side) => side.family === family && side.state !== 'stored' && side.subnet)

/**
 * Finds the marks that the rules of nftables and iptables set on packets. Policy rules may select another routing table
 * for a marked packet.
 */
export const marksIn = (rules: string): readonly number[] => [
  ...new Set(
    [...rules.matchAll(/(?:\bmeta mark set|--set-xmark) (0x[\da-f]+)(?![\da-f])/g)]
      .map(([, mark]) => Number(mark))
      .filter((mark) => mark !== 0),
  ),
]
