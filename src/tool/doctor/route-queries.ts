// route-queries.ts - lists the packets, to and from each peer, for which weft doctor queries the kernel's routes. Pure.

import type { PolicyRule, RouteAnswer, RouteQuery } from '../../host/kernel.ts'
import type { Link } from '../../host/kernel.ts'
import { isIpv4Net, type Address, type Family, type Net } from '../../net/address.ts'
import { kindOf } from '../../path/catalog.ts'
import type { Status } from '../../report/status.ts'
import { bridgeOf, ownSides, seenSides, type OwnSide, type SeenSide } from './sides.ts'

/** The maximum number of peers for whose packets weft doctor looks up routes. */
export const QUERIED_PEERS = 16
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
export const isRouted = ({ config, dataPath }: Status): boolean =>
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
