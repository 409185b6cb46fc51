// peers.ts - checks the leases of the peers and whether these peers answer; if a peer does not answer, finds out why.
// Pure.

import {
  compareAddresses,
  FAMILIES,
  FAMILY_NAMES,
  formatAddress,
  formatNet,
  netContains,
  type Address,
  type Family,
} from '../../net/address.ts'
import { portOf, PROTOCOL_TEXTS } from '../../path/catalog.ts'
import { isSendingOnly, placeIn, titleOf, type PeerStatus, type Status } from '../../report/status.ts'
import type { Facts, Reach } from './facts.ts'
import { each, firstRemove, type Finding, type FindingName } from './findings.ts'
import { troubleOf } from './handshakes.ts'
import { checkRoutes, isOnlyRouteMissing } from './routes.ts'
import { kindIn, outerIn, seenSides, sideText, type SeenSide } from './sides.ts'
import type * as SilenceCauses from './silence-causes.ts'

/** The maximum number of silent peers for which weft doctor evaluates the firewall rules and all routes of this host. */
const EXAMINED_PEERS = 16
/** At this percentage of lost probes or more, the doctor reports a peer as lossy. */
const LOSSY_PERCENT = 20
/** The findings that prove that handshake messages from the peer arrive at this host. */
const HANDSHAKES_ARRIVE = new Set<FindingName | undefined>(['psk-differs', 'clock-behind', 'handshake-one-way'])

export function checkLeases({ status }: Facts): Finding[] | undefined {
  const { node, peers } = status ?? {}
  if (!node || !peers) return undefined
  const twice = peers.list.filter((peer) => sameAddress(node, peer) !== undefined)
  return [
    ...FAMILIES.flatMap((family) => overlapping(family, [node, ...peers.list])),
    ...each(
      'address-twice',
      twice,
      (peer) => `${formatAddress(sameAddress(node, peer) ?? 0)}, which ${titleOf(peer)} publishes too`,
    ),
    ...(node.twin
      ? [{ name: 'address-twice', detail: `${node.publicIp}, which the host ${node.twin} uses too` } as const]
      : []),
  ]
}

type Place = Parameters<typeof placeIn>[0]

const sameAddress = (a: Place, b: Place): Address | undefined =>
  FAMILIES.flatMap((family) => {
    const address = placeIn(a, family).publicIp
    return address !== undefined && address === placeIn(b, family).publicIp ? [address] : []
  })[0]

function overlapping(family: Family, nodes: readonly Place[]): Finding[] {
  const sorted = nodes
    .flatMap((node) => {
      const { subnet: net, publicIp } = placeIn(node, family)
      return net ? [{ net, host: publicIp === undefined ? node.publicIp : formatAddress(publicIp) }] : []
    })
    .toSorted((a, b) => compareAddresses(a.net.address, b.net.address) || a.net.prefixLength - b.net.prefixLength)
  // The widest subnet that contains the current address. Two subnets are either nested or disjoint.
  let widest = sorted[0]
  const across = sorted.slice(1).flatMap((one) => {
    if (widest && netContains(widest.net, one.net.address)) return [[widest, one] as const]
    widest = one
    return []
  })
  return each(
    'subnet-twice',
    across,
    ([a, b]) => `${formatNet(a.net)} of ${a.host} and ${formatNet(b.net)} of ${b.host}`,
  )
}

/**
 * Checks whether the peers answer. `isSendingWrong` is true if another check found that this host drops or misroutes
 * packets to other nodes. `finders` find causes of silence on this host; the status page lacks the facts for them.
 */
export function checkPeers(
  facts: Facts,
  isSendingWrong: boolean,
  finders?: typeof SilenceCauses,
): Finding[] | undefined {
  const { status, answers, whyUnprobed, reaches, silence } = facts
  if (!status?.peers || !status.node) return undefined
  // If weftd itself should carry the packets but does not run, no peer can answer. So the silence proves nothing about
  // the peers.
  if (silence !== undefined && status.dataPath?.open !== true) return undefined
  const { list, answering, probeSeconds } = status.peers
  const isSilent = ({ answers: now, state, lossPercent }: SeenSide): boolean =>
    state !== 'stored' && (now ? !now.small : answering !== null && lossPercent !== null && state !== 'answering')
  const isUnusable = unusableIn(facts, status)
  const isBroken = (side: SeenSide): boolean => isSilent(side) || isUnusable(side)
  const isLossy = (side: SeenSide): boolean =>
    side.state !== 'stored' && !isSilent(side) && (side.lossPercent ?? 0) >= LOSSY_PERCENT
  const seen = list.map((peer) => seenSides(peer, answers))
  const halves = seen.filter((sides) => !sides.every(isBroken)).flatMap((sides) => sides.filter(isBroken))
  /**
   * Selects those peers that this host does not reach over any family and for which `is` returns true in a family. If
   * it returns true in both families of a peer, the peer is listed once, for IPv4.
   */
  const unreached = (is: (side: SeenSide) => boolean): readonly SeenSide[] =>
    seen.filter((sides) => sides.every(isBroken)).flatMap((sides) => sides.filter(is).slice(0, 1))
  const silentSides = unreached(isSilent)
  const causes = new Map(silentSides.map((side, at) => [side, finders?.hiddenCause(side, facts, at < EXAMINED_PEERS)]))
  // Says where packets to a peer that this host does not reach are probably lost. If the facts do not show where, the
  // usual cause is a firewall on the peer's host.
  const whereLost = (reach: Reach | undefined): string =>
    isSendingWrong
      ? ''
      : reach && (reach.port !== undefined || reach.isPinged === true)
        ? `: ${reachText(reach)}`
        : ': check the firewall on its host first'
  const silentText = (side: SeenSide): string => {
    const { peer } = side
    const reach = reaches.get(peer.lease)
    const onItsWay = isSendingOnly(peer, probeSeconds)
      ? `; packets from it arrive, so packets to it are lost, or its firewall drops the echo requests${whereLost(reach)}`
      : reach && `; ${reachText(reach)}`
    // An ICMP error from the peer's host (`reach.port`) proves the cause. Without an ICMP error, handshake messages
    // from the peer are better evidence than the silence of its port.
    const why =
      side.session && reach?.port === undefined && HANDSHAKES_ARRIVE.has(troubleOf(side.session, side))
        ? '; handshake messages arrive from its host: see the check handshakes'
        : onItsWay
    // If no weftd runs, no counter says when a packet from the peer last arrived. So describe only the results of
    // contacting the peer's host.
    if (silence !== undefined) return reach ? reachText(reach) : 'it does not answer'
    const known = causes.get(side)
    if (known === 'underlay-route') return `the route to its host, or from its host, is wrong here: see \`${known}\``
    if (known)
      return `the firewall of this host drops the probes: see \`${known}\`${reach?.port === undefined ? '' : `; ${reachText(reach)}`}`
    const last =
      peer.heardSecondsAgo === null
        ? 'no packet ever came from it'
        : `its last packet came ${agoText(peer.heardSecondsAgo)}`
    return last + (why ?? '')
  }
  const fixOf = (side: SeenSide): string => {
    const known = causes.get(side)
    const isElse = reaches.get(side.peer.lease)?.port !== undefined
    return known && !isElse ? firstRemove(known) : silentFix(status, side)
  }
  const isProbed = kindIn(status)?.probe !== 'nobody'
  const isBlind = isProbed && answering === null && answers.size === 0 && list.some(({ state }) => state !== 'stored')
  return [
    ...each(
      'peer-unusable',
      unreached(isUnusable),
      (side) => `${sideText(side)}${side.peer.type === '' ? '' : `, of type ${side.peer.type}`}`,
    ),
    ...silentSides.map((side): Finding => ({
      name: 'peer-silent',
      detail: `${sideText(side)}: ${silentText(side)}`,
      fix: fixOf(side),
    })),
    ...halves.map((side, at) =>
      halfFinding(
        side,
        isSilent(side),
        isSilent(side) && at < EXAMINED_PEERS ? finders?.causeOf(side, facts) : undefined,
      ),
    ),
    ...each(
      'peer-lossy',
      seen.flat().filter(isLossy),
      (side) => `${sideText(side)}: ${side.lossPercent}% of the probes lost`,
    ),
    ...(isBlind ? [{ name: 'peers-unasked', detail: whyUnprobed ?? '' } as const] : []),
  ]
}

/** Returns a function that says whether this node cannot use the lease of a peer, and no other check reports why. */
function unusableIn(facts: Facts, status: Status): (side: SeenSide) => boolean {
  // The check `routes` reports peers that lack only a route.
  const areRoutesReported = (checkRoutes(facts) ?? []).length > 0
  // With the backend ipsec, if charon lacks keys, the finding `peers-without-keys` already reports all peers whose
  // lease is usable.
  const isLackingKeys = (status.dataPath?.counters['peers_without_keys'] ?? 0) > 0
  const lacksKeys = (peer: PeerStatus): boolean => isLackingKeys && peer.type === status.config?.backendType
  return ({ state, peer }) =>
    state === 'stored' &&
    status.dataPath?.open === true &&
    (status.node === null || sameAddress(status.node, peer) === undefined) &&
    !lacksKeys(peer) &&
    !(areRoutesReported && isOnlyRouteMissing(status, peer))
}

/** Returns the finding about a peer that this node reaches over the other family alone. */
function halfFinding(side: SeenSide, isSilent: boolean, cause: FindingName | undefined): Finding {
  const what = isSilent ? 'it does not answer' : 'this node cannot use its lease'
  return {
    name: 'family-broken',
    detail: `${sideText(side)}: over ${FAMILY_NAMES[side.family]} ${what}${cause ? `: see \`${cause}\`` : ''}`,
    ...(cause ? { fix: firstRemove(cause) } : {}),
  }
}

/** Returns the remedy for a silent peer, which depends on the backend, and names the port and both hosts. */
function silentFix(status: Status, side: SeenSide): string {
  const { config, node, dataPath } = status
  const kind = kindIn(status)
  const outer = outerIn(status, side.family, side.endpoint)
  const ends = [node ? placeIn(node, outer).publicIp : undefined, placeIn(side.peer, outer).publicIp]
  const hosts = ends.every((end) => end !== undefined)
    ? ` between ${ends.map((end) => formatAddress(end ?? 0)).join(' and ')}`
    : ''
  const usual = portOf(config?.backendType ?? '', config?.backend ?? {}, outer)
  const port = /:(\d+)$/.exec(side.endpoint ?? '')?.[1] ?? usual
  const outside = kind?.outside
  const isUdp = outside !== undefined && 'port' in outside
  const way = !outside
    ? `accept packets of ${config?.network ?? 'the network'}${hosts}`
    : isUdp
      ? `accept UDP port ${port}${hosts}, both ways`
      : `accept ${PROTOCOL_TEXTS[outside.protocol]}${hosts}, both ways`
  // Each queue of weftd's engine sends from its own source port, so the firewall must accept any source port.
  const from = isUdp && dataPath?.engine !== 'kernel' ? ' and from any source port' : ''
  const nat = kind?.provesSender ? '; if one of the hosts is behind NAT, set `PersistentKeepaliveInterval`' : ''
  return `run \`weft doctor\` on that host (look for \`probes-dropped\`); check that weftd runs there; ${way}${from}, in the firewalls of both hosts and of the network${nat}`
}

/** Formats a past time in seconds: `40 s ago`, `5 min ago`, `3 h ago`. */
function agoText(seconds: number): string {
  const [number, unit] =
    seconds < 120 ? [seconds, 's'] : seconds < 7_200 ? [seconds / 60, 'min'] : [seconds / 3_600, 'h']
  return `${Math.round(number)} ${unit} ago`
}

/** Says what weft doctor learned about a silent peer's host by contacting the host outside the data path. */
function reachText({ port, portNumber, isPinged, isOffLink }: Reach): string {
  switch (port) {
    case 'refused':
      return `its host is up and refuses UDP port ${portNumber}: weftd does not run there, or a firewall there rejects packets to it`
    case 'prohibited':
      return `a firewall on its host, or between, rejects packets to UDP port ${portNumber}`
    case 'own-firewall':
      return `this host's own firewall rejects packets to UDP port ${portNumber}`
    case 'no-route':
      return 'this host has no route to its address'
    case undefined:
      if (isPinged === true)
        return portNumber === undefined
          ? "its host is up and answers a ping: the backend's packets are lost on the way, or weftd does not run there"
          : `its host is up and answers a ping, and UDP port ${portNumber} is not refused: a firewall drops packets to it or its answers, or weftd there hangs`
      if (isOffLink)
        return 'no host on the link answers for its address: the host is off, cut off, or has another address now'
      return isPinged === undefined
        ? 'no answer comes from its host'
        : 'no answer comes from its host, not even to a ping: it is off or cut off, or a firewall drops everything'
  }
}
