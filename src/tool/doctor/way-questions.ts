// way-questions.ts - the packets whose way the doctor asks the kernel for: to each peer and from it. Pure.

import type { Link } from '../../host/links.ts'
import type { PolicyRule, WayAnswer, WayQuestion } from '../../host/ways.ts'
import { formatAddress, isIpv4Net, type Address, type Family, type Net } from '../../net/address.ts'
import type { Status } from '../../report/status.ts'
import { bridgeOf, ownSides, seenSides, type OwnSide, type SeenSide } from './sides.ts'

/** The number of peers whose ways are asked for. */
const ASKED_PEERS = 16
/** The number of marks that are asked for. */
const ASKED_MARKS = 4

/** A packet whose way is asked for. */
export interface WayTo {
  readonly family: Family
  /** `out`: from a container to one of a peer; `host`: from this host; `in`: from a container of a peer. */
  readonly direction: 'out' | 'host' | 'in'
  /** The peer's lease. */
  readonly lease: string
  readonly question: WayQuestion
}

export interface AnsweredWay extends WayTo {
  readonly answer: WayAnswer
}

/** What the kernel says, and its rules by family. */
export interface KernelWays {
  readonly ways: readonly AnsweredWay[]
  readonly rules: Readonly<Partial<Record<Family, readonly PolicyRule[]>>>
}

const containerIn = (net: Net): Address => (isIpv4Net(net) ? net.address + 2 : net.address + 2n)

/** True for a backend whose routes weft makes. */
const isRouted = ({ dataPath }: Status): boolean =>
  dataPath !== null && dataPath.engine !== null && dataPath.engine !== 'none'

/** Lists the packets whose routes weft doctor looks up. `marks` are the packet marks that a firewall of this host sets. */
export function waysToAsk(status: Status, links: readonly Link[], marks: readonly string[]): readonly WayTo[] {
  if (!isRouted(status)) return []
  return ownSides(status).flatMap((side) => {
    const bridge = bridgeOf(links, side.subnet, status)
    const device = status.dataPath?.devices?.[side.family] ?? (side.family === 'ipv4' ? status.dataPath?.device : null)
    return peersOf(side, status)
      .slice(0, ASKED_PEERS)
      .flatMap((peer): WayTo[] => {
        if (!peer.subnet) return []
        const { family } = side
        const [here, there] = [containerIn(side.subnet), containerIn(peer.subnet)].map(formatAddress)
        if (here === undefined || there === undefined) return []
        const { lease } = peer.peer
        const of = (direction: WayTo['direction'], question: WayQuestion): WayTo => ({
          family,
          direction,
          lease,
          question,
        })
        const out = bridge === undefined ? undefined : { to: there, from: here, iif: bridge }
        return [
          of('host', { to: there }),
          ...(out ? [of('out', out), ...marks.slice(0, ASKED_MARKS).map((mark) => of('out', { ...out, mark }))] : []),
          // A packet of a peer that is routed directly comes by another interface, which the strict rp_filter asks for.
          ...(out && device && peer.way !== 'direct' ? [of('in', { to: here, from: there, iif: device })] : []),
        ]
      })
  })
}

export const peersOf = ({ family }: OwnSide, { peers }: Status): readonly SeenSide[] =>
  (peers?.list ?? [])
    .flatMap((peer) => seenSides(peer, new Map()))
    .filter((side) => side.family === family && side.state !== 'stored' && side.subnet)

/** The marks that rules of nftables give to packets, which rules of routing may ask for. */
export const marksIn = (nft: string): readonly string[] => [
  ...new Set([...nft.matchAll(/\bmeta mark set (0x[\da-f]+)(?![\da-f])/g)].map(([, mark = '']) => mark)),
]
