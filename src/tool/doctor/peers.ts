// peers.ts - how the doctor judges the other nodes: what their leases say of them, whether they answer, and if not, why. Pure.

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
import { kindOf, portOf } from '../../path/catalog.ts'
import { placeIn, titleOf, type PeerStatus, type Status } from '../../report/status.ts'
import type { Facts, Reach } from './facts.ts'
import { each, type Finding, type FindingName } from './findings.ts'
import { troubleOf } from './handshakes.ts'
import { outerIn, seenSides, sideText, type SeenSide } from './sides.ts'

const LOSSY_PERCENT = 20
/** A peer that sends is heard once in its interval, the default one or what this node has; it may miss two. */
const LATELY_INTERVALS = 3
const PROBE_SECONDS = 10
/** What is known by messages of a peer's. */
const HEARD_OF = new Set<FindingName | undefined>(['psk-differs', 'clock-behind', 'handshake-one-way'])

export function checkLeases({ status }: Facts): Finding[] | undefined {
  const { node, peers } = status ?? {}
  if (!node || !peers) return undefined
  const twice = peers.list.filter((peer) => sameAddress(node, peer) !== undefined)
  return [
    ...FAMILIES.flatMap((family) => overlapping(family, [node, ...peers.list])),
    ...each(
      'address-twice',
      twice,
      (peer) => `${formatAddress(sameAddress(node, peer) ?? 0)} leases ${titleOf(peer)} too`,
    ),
    ...(node.twin ? [{ name: 'address-twice', detail: `${node.publicIp}, as ${node.twin}` } as const] : []),
  ]
}

type Place = Parameters<typeof placeIn>[0]

/** The address that two nodes publish. */
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
  const across = sorted.slice(1).flatMap((one, at) => {
    const before = sorted[at]
    return before && netContains(before.net, one.net.address) ? [[before, one] as const] : []
  })
  return each(
    'subnet-twice',
    across,
    ([a, b]) => `${formatNet(a.net)} of ${a.host} and ${formatNet(b.net)} of ${b.host}`,
  )
}

/** `isSendingWrong`: this host itself is known to keep packets to other nodes from leaving, or to send them elsewhere. */
export function checkPeers(
  { status, answers, unasked, reaches, silence }: Facts,
  isSendingWrong: boolean,
): Finding[] | undefined {
  if (!status?.peers || !status.node) return undefined
  // Nothing passes while weftd would carry it and is dead: of the peers that tells nothing.
  if (silence !== undefined && status.dataPath?.open !== true) return undefined
  const { node } = status
  const { list, answering } = status.peers
  const isSilent = ({ answers: now, state, lossPercent }: SeenSide): boolean =>
    state !== 'stored' && (now ? !now.small : answering !== null && lossPercent !== null && state !== 'answering')
  const isUnusable = ({ state, peer }: SeenSide): boolean =>
    state === 'stored' && status.dataPath?.open === true && sameAddress(node, peer) === undefined
  const isBroken = (side: SeenSide): boolean => isSilent(side) || isUnusable(side)
  const isLossy = (side: SeenSide): boolean =>
    side.state !== 'stored' && !isSilent(side) && (side.lossPercent ?? 0) >= LOSSY_PERCENT
  const seen = list.map((peer) => seenSides(peer, answers))
  const halves = seen.filter((sides) => !sides.every(isBroken)).flatMap((sides) => sides.filter(isBroken))
  /** Of the peers that nothing reaches: once by IPv4, where both families are so. */
  const unreached = (is: (side: SeenSide) => boolean): readonly SeenSide[] =>
    seen.filter((sides) => sides.every(isBroken)).flatMap((sides) => sides.filter(is).slice(0, 1))
  // Heard since it was first asked in vain, and lately: it lives, and one direction is open. A status of a moment ago, in which it
  // answers still, tells nothing of that.
  const latelySeconds = LATELY_INTERVALS * Math.max(status.peers.probeSeconds ?? 0, PROBE_SECONDS)
  const isOneWay = ({ state, heardSecondsAgo: heard, unansweredSeconds: asked }: PeerStatus): boolean =>
    state !== 'answering' && heard !== null && heard < latelySeconds && asked !== null && heard + 1 < asked
  // Where nothing says who is in the way of what is sent there, it is most often a firewall on a host that sends.
  const whereLost = (reach: Reach | undefined): string =>
    isSendingWrong
      ? ''
      : reach && (reach.port !== undefined || reach.isPinged === true)
        ? `: ${reachText(reach)}`
        : ': look at the firewall there first'
  const heard = (side: SeenSide): string => {
    const { peer } = side
    const reach = reaches.get(peer.lease)
    const onItsWay = isOneWay(peer)
      ? `; it sends, but what is sent to it is lost${whereLost(reach)}`
      : reach && `; ${reachText(reach)}`
    // What its host said of the port is a fact; that nothing came of it is not, where messages of handshakes come.
    const why =
      side.session && reach?.port === undefined && HEARD_OF.has(troubleOf(side.session, side))
        ? '; messages of handshakes come from its host: see handshakes'
        : onItsWay
    // A dead weftd counted nothing.
    if (silence !== undefined) return reach ? reachText(reach) : 'it does not answer'
    const last =
      peer.heardSecondsAgo === null ? 'nothing was ever heard from it' : `last heard ${agoText(peer.heardSecondsAgo)}`
    return last + (why ?? '')
  }
  const isBlind = answering === null && answers.size === 0 && list.some(({ state }) => state !== 'stored')
  return [
    ...each(
      'peer-unusable',
      unreached(isUnusable),
      (side) => `${sideText(side)}${side.peer.type === '' ? '' : `, of type ${side.peer.type}`}`,
    ),
    ...unreached(isSilent).map((side): Finding => ({
      name: 'peer-silent',
      detail: `${sideText(side)}: ${heard(side)}`,
      fix: silentFix(status, side),
    })),
    ...each(
      'family-broken',
      halves,
      (side) =>
        `${sideText(side)}: by ${FAMILY_NAMES[side.family]} ${isSilent(side) ? 'it does not answer' : 'this node cannot use its lease'}`,
    ),
    ...each('peer-lossy', seen.flat().filter(isLossy), (side) => `${sideText(side)}: ${side.lossPercent}%`),
    ...(isBlind ? [{ name: 'peers-unasked', detail: unasked ?? '' } as const] : []),
  ]
}

/** Returns the remedy for a silent peer. It depends on the backend, and names the port and the two hosts. */
function silentFix(status: Status, side: SeenSide): string {
  const { config, node, dataPath } = status
  const kind = kindOf(config?.backendType ?? '')
  const outer = outerIn(status, side.family, side.endpoint)
  const ends = [node ? placeIn(node, outer).publicIp : undefined, placeIn(side.peer, outer).publicIp]
  const hosts = ends.every((end) => end !== undefined)
    ? ` between ${ends.map((end) => formatAddress(end ?? 0)).join(' and ')}`
    : ''
  const port = /:(\d+)$/.exec(side.endpoint ?? '')?.[1] ?? portOf(config?.backendType ?? '', config?.backend ?? {})
  const outside = kind?.outside
  const isUdp = outside !== undefined && 'port' in outside
  const way = !outside
    ? `let packets of ${config?.network ?? 'the network'} through${hosts}`
    : isUdp
      ? `let UDP port ${port} through${hosts}, both ways`
      : `let IP protocol 4 (IPIP) through${hosts}, both ways`
  // The lanes of weftd send from ports of their own.
  const from = isUdp && dataPath?.engine !== 'kernel' ? ' and from any source port' : ''
  const nat = kind?.provesSender ? '; if one of them is behind NAT, set `PersistentKeepaliveInterval`' : ''
  return `run \`weft doctor\` on that host, where weftd must run; ${way}${from}, in the firewalls of both and of the network${nat}`
}

/** `40 s ago`, `5 min ago`, `3 h ago`. */
function agoText(seconds: number): string {
  const [number, unit] =
    seconds < 120 ? [seconds, 's'] : seconds < 7_200 ? [seconds / 60, 'min'] : [seconds / 3_600, 'h']
  return `${Math.round(number)} ${unit} ago`
}

/** What a silent peer's host says outside of the data path, and so where to look. */
function reachText({ port, portNumber, isPinged, isOffLink }: Reach): string {
  switch (port) {
    case 'refused':
      return `its host is up and refuses UDP port ${portNumber}: weftd does not run there, or a firewall there rejects packets to it`
    case 'prohibited':
      return `a firewall, on its host or on the way, says that it lets nothing through to UDP port ${portNumber}`
    case 'own-firewall':
      return `this host's own firewall does not let packets out to UDP port ${portNumber}`
    case 'no-route':
      return 'this host has no route to its address'
    case undefined:
      if (isPinged === true)
        return portNumber === undefined
          ? "its host is up and answers a ping: the backend's packets are lost on the way, or weftd does not run there"
          : `its host is up and answers a ping, and nothing refuses UDP port ${portNumber}: a firewall drops what is sent there or back, or weftd there hangs`
      if (isOffLink)
        return 'nobody on the link answers for its address: the host is off, cut off, or has another address now'
      return isPinged === undefined
        ? 'nothing comes back from its host'
        : 'nothing comes back from its host, to a ping neither: it is off or cut off, or a firewall drops everything'
  }
}
