// sides.ts - splits the data about the nodes of a network by IP family. Combines weftd's status of each peer with the
// results of weft doctor's own probes. Pure.

import type { Link } from '../../host/kernel.ts'
import {
  ADDRESS_BITS,
  FAMILIES,
  familiesOf,
  formatAddress,
  formatNet,
  isIpv4Net,
  netContains,
  type Address,
  type ByFamily,
  type Family,
  type Net,
  type Nets,
} from '../../net/address.ts'
import { parseIpv4Net } from '../../net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../net/ipv6.ts'
import { isNamedBy, kindOf, outersOf, type Kind } from '../../path/catalog.ts'
import { placeIn, sidesOf, titleOf, type PeerSide, type PeerStatus, type Status } from '../../report/status.ts'

/**
 * Whether a peer answered two probes of weft doctor: a small packet, and a packet as long as the MTU of the data path.
 */
export interface Answers {
  readonly small: boolean
  readonly large: boolean
  /**
   * The length in bytes of the longest probe that the peer answered; set only if the peer did not answer a probe as
   * long as the MTU of the data path.
   */
  readonly longest?: number | undefined
}

/** Which peers answered weft doctor's own probes, by lease and by the family of the probe. */
export type AllAnswers = ReadonlyMap<string, ByFamily<Answers>>

/** The network and this node's subnet in one family. */
export interface OwnSide {
  readonly family: Family
  readonly network: Net
  readonly subnet: Net
}

export const networksOf = ({ network, ipv6Network }: NonNullable<Status['config']>): Nets => ({
  ipv4: parseIpv4Net(network),
  ipv6: parseIpv6Net(ipv6Network ?? ''),
})

/** Returns the backend of a node; undefined if the node's configuration or the backend is unknown. */
export const kindIn = (status: Pick<Status, 'config'> | undefined): Kind | undefined =>
  status?.config ? kindOf(status.config.backendType) : undefined

/**
 * Returns the underlay families that can carry overlay packets of a family, first the family that weftd tries first.
 * Returns the family itself if the node's configuration is unknown.
 */
export const outersIn = ({ config }: Pick<Status, 'config'>, family: Family): readonly Family[] =>
  config ? outersOf(config.backendType, family, config.backend, familiesOf(networksOf(config))) : [family]

/**
 * Returns the underlay family of packets to a peer: the family of the endpoint if the endpoint is known, else the
 * family that weftd tries first.
 */
export function outerIn(status: Pick<Status, 'config'>, family: Family, endpoint?: string | null): Family {
  const outers = outersIn(status, family)
  const now = endpoint ? (endpoint.startsWith('[') || parseIpv6(endpoint) !== undefined ? 'ipv6' : 'ipv4') : undefined
  return outers.find((each) => each === now) ?? outers[0] ?? family
}

/** Returns the network and the subnet of each family in which both the network and this node have addresses. */
export function ownSides({ config, node }: Pick<Status, 'config' | 'node'>): readonly OwnSide[] {
  if (!config || !node) return []
  const networks = networksOf(config)
  return FAMILIES.flatMap((family) => {
    const [network, { subnet }] = [networks[family], placeIn(node, family)]
    return network && subnet ? [{ family, network, subnet }] : []
  })
}

/**
 * Returns true if packets of a family reach peers through the device `device`. Also returns true for the names of the
 * backend's devices, because the status names no device for a family that the data path does not carry.
 */
export function isOwnDevice(
  { dataPath, config }: Pick<Status, 'dataPath' | 'config'>,
  family: Family,
  device: string,
): boolean {
  if (device === dataPath?.device || device === dataPath?.devices[family]) return true
  const kind = family === 'ipv6' ? kindIn({ config }) : undefined
  return kind?.devices.some(([, pattern]) => isNamedBy(pattern, device)) === true
}

export interface SeenSide extends PeerSide {
  readonly family: Family
  readonly peer: PeerStatus
  readonly subnet: Net | undefined
  readonly publicIp: Address | undefined
  /** Whether the peer answered weft doctor's own probes; undefined if weft doctor did not probe the peer. */
  readonly answers: Answers | undefined
}

export function seenSides(peer: PeerStatus, answers: AllAnswers): readonly SeenSide[] {
  const sides = sidesOf(peer)
  return FAMILIES.flatMap((family) => {
    const side = sides[family]
    if (!side) return []
    const own = answers.get(peer.lease)?.[family]
    const { endpoint, way, state, roundTripMs, lossPercent, probedSecondsAgo, unansweredSeconds, pathMtu } = side
    const { path, passesBytes, pathSince, session } = side
    const known = {
      endpoint,
      way,
      state,
      roundTripMs,
      lossPercent,
      probedSecondsAgo,
      unansweredSeconds,
      pathMtu,
      path,
      passesBytes,
      pathSince,
      session,
    }
    return [{ ...known, ...placeIn(peer, family), family, peer, answers: own }]
  })
}

/**
 * Returns the facts about a peer in one family. If the peer has no address of the family, its state is `stored` (only
 * the store has the peer).
 */
export function sideIn(peer: PeerStatus, family: Family): SeenSide {
  const nothing = {
    endpoint: null,
    way: null,
    roundTripMs: null,
    lossPercent: null,
    probedSecondsAgo: null,
    unansweredSeconds: null,
    pathMtu: null,
    path: null,
    passesBytes: null,
    pathSince: null,
    session: null,
  }
  const side = seenSides(peer, new Map()).find((seen) => seen.family === family)
  return side ?? { ...nothing, state: 'stored', ...placeIn(peer, family), family, peer, answers: undefined }
}

export const subnetText = ({ peer, subnet }: SeenSide): string => (subnet ? formatNet(subnet) : peer.subnet)
export const hostText = ({ peer, publicIp }: SeenSide): string =>
  publicIp === undefined ? peer.publicIp : formatAddress(publicIp)

/** Formats a peer with its address in one family, such as `host2 (10.5.2.0/24) at 192.0.2.2:8285`. */
export const sideText = (side: SeenSide): string =>
  `${titleOf({ name: side.peer.name, subnet: subnetText(side) })} at ${(side.state === 'stored' ? undefined : side.endpoint) ?? hostText(side)}`

/**
 * Finds the bridge to which this node's containers are attached; undefined if there is no such bridge, or more than
 * one.
 */
export function bridgeOf(
  links: readonly Link[],
  subnet: Net,
  status: Pick<Status, 'dataPath' | 'config'> | undefined,
): string | undefined {
  const family: Family = isIpv4Net(subnet) ? 'ipv4' : 'ipv6'
  const [found, ...others] = links.filter(
    ({ name, addresses }) =>
      !(status && isOwnDevice(status, family, name)) &&
      addresses[family].some(
        // Skip the data path's device. It has the first address of the subnet with the prefix length of a single host,
        // whereas a bridge has a shorter prefix.
        ({ address, prefixLength }) => prefixLength < ADDRESS_BITS[family] && netContains(subnet, address),
      ),
  )
  return others.length === 0 ? found?.name : undefined
}

/** Lists the interfaces that the packets between this node's containers and other hosts pass. */
export function pathLinks(status: Status, links: readonly Link[]): readonly Link[] {
  const bridges = ownSides(status).map(({ subnet }) => bridgeOf(links, subnet, status))
  const own = Object.values(status.dataPath?.devices ?? {})
  const names = new Set([...bridges, ...own, status.node?.externalInterface])
  return links.filter(({ name }) => names.has(name))
}

/** Returns the names of the ports of a bridge. */
export function portsOf(links: readonly Link[], bridge: string): readonly string[] {
  const index = links.find(({ name }) => name === bridge)?.index ?? 0
  return index === 0 ? [] : links.filter(({ master }) => master === index).map(({ name }) => name)
}
