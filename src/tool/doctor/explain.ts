// explain.ts - explains step by step what would happen to a packet from one address to another, as far as the facts of
// this host show it. Pure.

import type { Route } from '../../host/kernel.ts'
import { dotted, forwardingOf } from '../../host/sysctl-names.ts'
import {
  familyOf,
  FAMILY_NAMES,
  formatAddress,
  formatNet,
  netContains,
  parseAddress,
  parseNet,
  type Address,
  type Family,
} from '../../net/address.ts'
import { briefly, conditionOf, isSendingOnly, placeIn, type Status } from '../../report/status.ts'
import { isCrossing } from './bridge-probes.ts'
import { acrossBridge, divertedDatagram, entryOf, filtered, forwarded } from './explain-firewall.ts'
import { sideOf, type Question, type Side, type Step } from './explain-question.ts'
import type { Facts } from './facts.ts'
import { portPacket, sentBack, undiscovered } from './firewall.ts'
import { datagramFlow, forwardedFlows, ipsecDrop, type Flow } from './ipsec.ts'
import { ipv6OffBetween } from './ipv6-off.ts'
import { faultsOfParts, markedFault } from './kernel-routes.ts'
import { unaddressedBridges } from './links.ts'
import { dropsOfOwnProbes } from './probe-packets.ts'
import { hasOneRoute, isOnlyRouteMissing } from './routes.ts'
import {
  hostText,
  isOwnDevice,
  kindIn,
  networksOf,
  outerIn,
  outersIn,
  ownSides,
  sideIn,
  subnetText,
  type OwnSide,
  type SeenSide,
} from './sides.ts'
import { checkTracking } from './tracking.ts'
import { underlayFault } from './underlay.ts'

export function explain(question: Question): readonly Step[] {
  const { source, destination, status, facts } = question
  if (!status.config)
    return [
      {
        step: 'daemon',
        passes: undefined,
        says: `weftd has no network configuration yet: ${status.trouble ?? status.state}`,
      },
    ]
  const [from, to] = [sideOf(source, status, facts), sideOf(destination, status, facts)]
  const steps = [whoIs('source', source, from, status), whoIs('destination', destination, to, status)]
  const isLocal = (side: Side): boolean => side.kind === 'here' || side.kind === 'host'
  if (isLocal(from) && isLocal(to)) {
    const led = ledAway(question)
    if (led) return [...steps, led]
    return [
      ...steps,
      ...(from.kind === 'here' && to.kind === 'here' ? acrossBridge(question) : []),
      { step: 'way', passes: true, says: 'both addresses are on this host, so the packet uses no tunnel' },
    ]
  }
  if (!isLocal(from) && !isLocal(to) && from.kind !== 'outside' && to.kind !== 'outside')
    return [
      ...steps,
      {
        step: 'way',
        passes: undefined,
        says: 'neither address is on this host: run weft explain on the host of one of them',
      },
    ]
  if (to.kind === 'peer') return [...steps, ...outward(question, from, to.peer)]
  if (to.kind === 'unassigned') return [...steps, toUnassigned(question)]
  if (to.kind === 'outside') return [...steps, ...away(question, from)]
  return [...steps, ...inward(question, from, to)]
}

/**
 * Returns the step that reports a wrong route for a packet to a container of this node: a route to another host.
 * Returns undefined if the packet's route does not lead to another host.
 */
function ledAway({ destination, status, facts, route }: Question): Step | undefined {
  const subnet = status.node ? placeIn(status.node, familyOf(destination)).subnet : undefined
  const gateway = route?.gateway === undefined ? undefined : parseAddress(route.gateway)
  if (!route || gateway === undefined || !subnet || netContains(subnet, gateway)) return undefined
  // True if the packet's route has a destination inside this node's subnet. A program or an operator added such a route
  // for this subnet; a default route does not count.
  const isMadeForIt = facts.routes.some((each) => {
    const net = parseNet(each.destination)
    return net && netContains(net, destination) && each.gateway === route.gateway && netContains(subnet, net.address)
  })
  if (!isMadeForIt) return undefined
  const says = `to ${routeText(route)}, which is another host, instead of to a bridge of containers: another route has precedence`
  return { step: 'route', passes: false, says }
}

function whoIs(step: string, address: Address, side: Side, { node, config }: Status): Step {
  const family = familyOf(address)
  const [subnet, network] = [
    node ? placeIn(node, family).subnet : undefined,
    config ? networksOf(config)[family] : undefined,
  ]
  const said = {
    here: `is in the subnet of this node, ${subnet && formatNet(subnet)}`,
    host: 'is an address of this host',
    unassigned: `is in the network ${network && formatNet(network)}, but no node has a lease for it`,
    outside: network
      ? `is outside the network ${formatNet(network)}`
      : `is outside the network, which does not have ${FAMILY_NAMES[family]}`,
    peer: '',
  }[side.kind]
  const says =
    side.kind === 'peer' ? `is in the subnet ${subnetText(side.peer)} of the node ${nodeText(side.peer)}` : said
  return { step, passes: true, says: `${formatAddress(address)} ${says}` }
}

const nodeText = (side: SeenSide): string => {
  const { name } = side.peer
  return name ? `${briefly(name)} (${hostText(side)})` : hostText(side)
}

/** Returns true if weftd itself, and not the kernel, carries the packets of the family. */
const isOurs = ({ dataPath }: Status, family: Family): boolean =>
  dataPath !== null && dataPath.families.includes(family) && dataPath.engine !== 'kernel'

function sendersText(side: SeenSide, status: Status): string {
  const addresses = outersIn(status, side.family).flatMap((outer) => placeIn(side.peer, outer).publicIp ?? [])
  return addresses.map(formatAddress).join(' or ') || hostText(side)
}

function toUnassigned({ destination, status, route }: Question): Step {
  const family = familyOf(destination)
  const says = isOurs(status, family)
    ? 'no node has this address: the sender gets ICMP net unreachable, and the packet is counted as tx_drop_no_route'
    : `no node has this address: ${route ? `the packet leaves through ${routeText(route)}, where no host answers` : 'there is no route to it'}`
  return { step: 'data path', passes: false, says }
}

const routeText = ({ device, gateway }: Route): string => `${device}${gateway === undefined ? '' : ` via ${gateway}`}`

function outward(question: Question, from: Side, peer: SeenSide): Step[] {
  const { status, facts, route } = question
  const { dataPath } = status
  const { family } = peer
  const steps: Step[] = []
  if (from.kind !== 'host')
    steps.push(
      ...atBridge(question, from),
      ...forwarding(facts, family, entryOf(question, true)),
      ...forwarded(question, true),
    )
  const isRouted = peer.way === 'direct' || kindIn(status)?.probe === 'host'
  const isToHost = isRouted && route?.gateway !== undefined && parseAddress(route.gateway) === peer.publicIp
  const isRight = route !== undefined && (isOwnDevice(status, family, route.device) || isToHost)
  const by = question.byRule === undefined ? '' : ` by the rule "${question.byRule}"`
  const toText = route && `to ${routeText(route)}${by}`
  const refused = refusal(question, entryOf(question, true))
  // weftd makes no route to a peer whose lease it cannot use, so packets to that peer take the host's ordinary route.
  const whyNotRight =
    peer.state === 'stored' && !hasOneRoute(status)
      ? isOnlyRouteMissing(status, peer.peer)
        ? 'the kernel refused the route of weftd to this node, or another route has its place: see the log of weftd'
        : 'weftd made no route to this node, because it cannot use its lease'
      : 'another route has precedence'
  steps.push({
    step: 'route',
    passes: isRight && refused === undefined,
    says:
      refused ??
      (toText
        ? `${toText}${isRight ? '' : ` instead of ${wantedText(peer, status)}: ${whyNotRight}`}`
        : 'there is none'),
  })
  if (from.kind === 'here') steps.push(...byMark(question, peer), ...ofParts(question, peer, 'out'))
  steps.push({
    step: 'data path',
    passes: dataPath?.open === true && peer.state !== 'stored',
    says:
      dataPath?.open !== true
        ? (status.trouble ?? 'down')
        : !dataPath.families.includes(family)
          ? `the ${status.config?.backendType} backend carries only IPv4 here, so IPv6 packets do not reach other nodes`
          : peer.state === 'stored'
            ? isOnlyRouteMissing(status, peer.peer)
              ? 'this node has no route of weftd to that node: see the log of weftd'
              : 'this node cannot use the lease of that node: see the log of weftd'
            : sentBy(dataPath.engine, peer),
  })
  steps.push(...withoutIpv6(facts, peer), ...acrossUnderlay(facts, peer, 'underlay'))
  steps.push(...provenSource(question))
  if (dataPath?.mtu && conditionOf(peer) === 'narrow') {
    const most =
      peer.passesBytes === null
        ? 'weftd is still searching for the longest packet that passes'
        : `packets of up to ${peer.passesBytes} bytes pass`
    const says = `long packets are lost on the path, and their sender gets no error (containers send up to ${dataPath.mtu} bytes); ${most}`
    steps.push({ step: 'mtu', passes: false, says })
  } else if (dataPath?.mtu) {
    const [whole, why] = peer.pathMtu === null ? [dataPath.mtu, ''] : [peer.pathMtu, ', the MTU of the path to it,']
    const says = `packets of up to ${whole} bytes${why} pass unfragmented, as far as this host knows; larger ones are fragmented, or refused if fragmentation is forbidden`
    steps.push({ step: 'mtu', passes: true, says })
  }
  const datagram = portPacket(status, peer.peer, outerIn(status, family, peer.endpoint))
  const isAnswering = peer.state === 'answering'
  if (datagram)
    steps.push(
      ...filtered(facts, sentBack(datagram)).filter(({ passes }) => passes === false),
      ...divertedDatagram(facts, sentBack(datagram), isAnswering),
    )
  steps.push(
    ...byIpsec(facts, [...leavingFlows(question, from), ...(datagram ? [datagramFlow(sentBack(datagram))] : [])]),
  )
  steps.push(answered(peer, from, status, facts))
  return steps
}

/** Returns the network and this node's subnet in a family; an empty list if this node lacks the family. */
const sidesIn = (status: Status, wanted: Family): readonly OwnSide[] =>
  ownSides(status).filter(({ family }) => family === wanted)

/** Returns a step if the kernel routes the packets of containers to another place by a mark; else an empty list. */
function byMark({ facts, status }: Question, peer: SeenSide): readonly Step[] {
  const faults = sidesIn(status, peer.family).flatMap((side) => markedFault(peer, side, facts))
  return faults.map(({ detail }) => ({ step: 'route', passes: false, says: detail }))
}

/** Returns the steps about wrong routes of a part of the packets; explain does not know the packet's protocol. */
function ofParts({ facts, status }: Question, peer: SeenSide, direction: 'out' | 'in'): readonly Step[] {
  const faults = sidesIn(status, peer.family).flatMap((side) => faultsOfParts(peer, side, direction, facts))
  return faults.map(({ detail }) => ({ step: 'route', passes: undefined, says: detail }))
}

/** Returns a step for each interface to the peer on which IPv6 is disabled. */
const withoutIpv6 = (facts: Facts, peer: SeenSide): readonly Step[] =>
  ipv6OffBetween(facts, peer).map((says) => ({ step: 'underlay', passes: false, says }))

/** Returns a step if the kernel's route to or from the host of a silent peer is wrong; else an empty list. */
function acrossUnderlay(facts: Facts, peer: SeenSide, direction: 'underlay' | 'from underlay'): readonly Step[] {
  const fault = peer.state === 'answering' ? undefined : underlayFault(peer, facts, direction)
  return fault ? [{ step: 'underlay', passes: false, says: fault.detail }] : []
}

/** Describes in words the route that packets to a peer should take. */
const wantedText = (peer: SeenSide, { dataPath }: Status): string =>
  dataPath?.devices[peer.family] ?? `via ${hostText(peer)}`

function sentBy(engine: string | null, { way, endpoint }: SeenSide): string {
  if (way === 'direct') return `the kernel routes it to ${endpoint}, without a tunnel`
  return `${engine === 'kernel' ? 'the kernel' : `the ${engine} engine`} sends it to ${endpoint}`
}

function answered(peer: SeenSide, from: Side, { peers, config }: Status, facts: Facts): Step {
  const loss = peer.lossPercent === null || peer.lossPercent === 0 ? '' : `, ${peer.lossPercent}% lost`
  if (peer.state === 'answering' && isCrossing({ config }) && from.kind !== 'host') {
    const says = `its host answers this host, in ${peer.roundTripMs} ms${loss}; this does not show whether the underlay passes packets with addresses of containers: weft doctor checks this`
    return { step: 'peer', passes: undefined, says }
  }
  if (peer.state === 'answering')
    return {
      step: 'peer',
      passes: true,
      says: `its host answers through the data path, in ${peer.roundTripMs} ms${loss}`,
    }
  if (peer.lossPercent === null) return { step: 'peer', passes: undefined, says: 'its host was not probed' }
  if (isSendingOnly(peer.peer, peers?.probeSeconds ?? null)) {
    const says = `packets from its host arrive, but it does not answer echo requests${loss}: packets to it may be lost, or its firewall drops the echo requests`
    return { step: 'peer', passes: undefined, says }
  }
  const [drop] = dropsOfOwnProbes(peer, facts)
  if (drop) {
    const says = `its host does not answer through the data path${loss}, but the firewall of this host drops the probes: ${drop.tool}${drop.by}`
    return { step: 'peer', passes: undefined, says }
  }
  return { step: 'peer', passes: false, says: `its host does not answer through the data path${loss}` }
}

/** Returns the steps about the kernel's settings for a forwarded packet that arrives on the interface `entry`. */
function forwarding(facts: Facts, family: Family, entry: string | undefined): readonly Step[] {
  const { isForwarding, isForwardingIpv6, unforwarded = [] } = facts
  const [name, is] =
    family === 'ipv4'
      ? ['net.ipv4.ip_forward', isForwarding]
      : ['net.ipv6.conf.all.forwarding', isForwardingIpv6 !== false]
  const off = family === 'ipv4' ? unforwarded.find((device) => device === entry) : undefined
  const step = off
    ? { step: 'forwarding', passes: false, says: `${dotted(forwardingOf(off))} is 0` }
    : { step: 'forwarding', passes: is, says: `${name} is ${is ? 1 : 0}` }
  const full = checkTracking(facts).map(({ detail }) => ({
    step: 'tracking',
    passes: undefined,
    says: `if the kernel can track no more connections, it drops new connections: ${detail}`,
  }))
  return [step, ...full]
}

/** Returns the steps that show why packets do not pass between this host and its containers on their bridge. */
function onBridge({ source, status, facts }: Question): Step[] {
  return sidesIn(status, familyOf(source)).flatMap((side) =>
    undiscovered(side, facts).map(({ detail }) => ({
      step: 'bridge',
      passes: false,
      says: `a rule drops packets of neighbour discovery, so no IPv6 packets pass between this host and its containers: ${detail}`,
    })),
  )
}

/** Returns a step if the packets of containers do not leave their bridge, because it lacks the address of their gateway. */
function atBridge(question: Question, from: Side): Step[] {
  const { source, status, facts } = question
  if (from.kind !== 'here') return []
  const unaddressed = sidesIn(status, familyOf(source))
    .flatMap((side) => unaddressedBridges(side, facts))
    .map(({ detail }) => ({ step: 'gateway', passes: false, says: detail }))
  return [...unaddressed, ...onBridge(question)]
}

/** Returns a step if IPsec policies drop one of the packets; else an empty list. */
function byIpsec(facts: Facts, flows: readonly Flow[]): Step[] {
  const drop = ipsecDrop(facts, flows)
  return drop ? [{ step: 'policy', passes: drop.isCertain ? false : undefined, says: drop.says }] : []
}

/** Returns the packet for the IPsec policies of a packet from this host, or of one that this host forwards. */
function leavingFlows(question: Question, from: Side): readonly Flow[] {
  const { source, destination, route } = question
  const packet = { source, destination, from: entryOf(question, true), to: route?.device }
  return from.kind === 'host' ? [{ direction: 'out', ...packet }] : forwardedFlows(packet)
}

/**
 * Explains why the kernel rejects a packet. Returns undefined if forwarding is switched off in the kernel, because
 * another step reports that.
 */
function refusal({ refused, facts, destination }: Question, entry: string | undefined): string | undefined {
  const steps = forwarding(facts, familyOf(destination), entry)
  if (refused === undefined || steps.some(({ passes }) => passes === false)) return undefined
  return /cross-device/i.test(refused)
    ? 'the kernel drops it because of rp_filter: the route back to its source uses another interface'
    : `the kernel refuses it: ${refused}`
}

/**
 * Returns true if the firewall masquerades packets (--ip-masq), so that a source outside this node's subnet becomes an
 * address that peers accept.
 */
const isMasqueraded = (facts: Facts): boolean => facts.subnetEnv?.['FLANNEL_IPMASQ'] === 'true'

/**
 * Returns the steps for a packet whose source is outside this node's subnet. If the backend proves the sender
 * (WireGuard), peers accept only sources in the sender's subnet.
 */
function provenSource({ source, status, facts }: Question): Step[] {
  if (!kindIn(status)?.provesSender) return []
  const node = status.node ? placeIn(status.node, familyOf(source)).subnet : undefined
  if (node && netContains(node, source)) return []
  const address = formatAddress(source)
  if (isMasqueraded(facts))
    return [
      {
        step: 'masquerade',
        passes: true,
        says: "by weft's rules (--ip-masq), so that it has a source in this node's subnet",
      },
    ]
  return [
    {
      step: 'masquerade',
      passes: false,
      says: `not by weft: the peer drops packets from ${address}, because with WireGuard a node may send only from its own subnet; start weftd with --ip-masq, or let the program use the address of the WireGuard device`,
    },
  ]
}

function away(question: Question, from: Side): Step[] {
  const { source, facts, route } = question
  const isTranslated = isMasqueraded(facts) && from.kind !== 'host'
  return [
    ...atBridge(question, from),
    ...(from.kind === 'host'
      ? []
      : [...forwarding(facts, familyOf(source), entryOf(question, true)), ...forwarded(question, true)]),
    ...byIpsec(facts, leavingFlows(question, from)),
    {
      step: 'route',
      passes: route !== undefined,
      says: route === undefined ? 'there is none' : `to ${routeText(route)}, outside the tunnel`,
    },
    {
      step: 'masquerade',
      passes: isTranslated || from.kind === 'host' ? true : undefined,
      says: isTranslated
        ? "by weft's rules (--ip-masq)"
        : from.kind === 'host'
          ? 'not needed: the source is an address of this host'
          : `not by weft: the packet keeps its source ${formatAddress(source)}, so answers come back only if other rules masquerade it, or if routers outside have a route to it; start weftd with --ip-masq`,
    },
  ]
}

const peerAt = (address: Address, { peers }: Status): SeenSide | undefined =>
  (peers?.list ?? []).map((peer) => sideIn(peer, familyOf(address))).find(({ publicIp }) => publicIp === address)

/** Returns whether this node's data path accepts the packets of a peer. */
function arrivalOf(peer: SeenSide, status: Status): Step {
  const { dataPath, config } = status
  const step = 'data path'
  if (dataPath?.open !== true) return { step, passes: false, says: 'it is not open, so the packet does not arrive' }
  if (!dataPath.families.includes(peer.family))
    return {
      step,
      passes: false,
      says: `the ${config?.backendType} backend does not carry ${FAMILY_NAMES[peer.family]} here, so the packet does not arrive`,
    }
  const [isOwn, proves] = [isOurs(status, peer.family), kindIn(status)?.provesSender === true]
  if (peer.state === 'stored') {
    const counted = isOwn && !proves ? ': counted as rx_drop_unknown_sender' : ''
    const says =
      isOwn || proves
        ? `dropped, because the data path lacks the node that sends it${counted}`
        : 'the data path lacks the node that sends it, so no answer reaches that node'
    return { step, passes: false, says }
  }
  if (proves) return { step, passes: true, says: 'accepted if it was encrypted with the key of the node that sends it' }
  const says = isOwn
    ? `accepted if its datagram comes from ${sendersText(peer, status)}; with VerifySource "inner" or "off" from any address`
    : 'the kernel accepts it from any sender'
  return { step, passes: true, says }
}

function inward(question: Question, from: Side, to: Side): Step[] {
  const { source, destination, status, facts, route } = question
  const steps: Step[] = []
  const family = familyOf(source)
  if (from.kind === 'unassigned')
    return [
      isOurs(status, family)
        ? {
            step: 'data path',
            passes: false,
            says: 'dropped, because no lease has its source address: counted as rx_drop_unknown_sender',
          }
        : {
            step: 'data path',
            passes: undefined,
            says: 'no lease has its source address, so no node sends such a packet',
          },
    ]
  if (from.kind === 'peer') {
    const packet = portPacket(status, from.peer.peer, outerIn(status, family, from.peer.endpoint))
    const isAnswering = from.peer.state === 'answering'
    if (packet)
      steps.push(
        ...filtered(facts, packet),
        ...divertedDatagram(facts, packet, isAnswering),
        ...byIpsec(facts, [datagramFlow(packet)]),
      )
    steps.push(...withoutIpv6(facts, from.peer), ...acrossUnderlay(facts, from.peer, 'from underlay'))
    steps.push(arrivalOf(from.peer, status))
  }
  if (from.kind === 'outside' && kindIn(status)?.provesSender) {
    const sender = peerAt(source, status)
    steps.push({
      step: 'data path',
      passes: sender === undefined ? true : isMasqueraded(facts) ? undefined : false,
      says: sender
        ? `dropped if the node ${nodeText(sender)} sends it, because with WireGuard a node may send only from its own subnet (counted as rx_drop_unknown_sender); with --ip-masq that node changes the source`
        : 'accepted if it does not come through the tunnel: with WireGuard a node may send only from its own subnet',
    })
  }
  const packet = { source, destination, from: entryOf(question, false), to: route?.device }
  if (to.kind === 'host') return [...steps, ...byIpsec(facts, [{ direction: 'in', ...packet }])]
  steps.push(
    ...forwarding(facts, family, packet.from),
    ...forwarded(question, false),
    ...byIpsec(facts, forwardedFlows(packet)),
    ...onBridge(question),
  )
  const led = ledAway({ source, destination, status, facts, route })
  if (led) return [...steps, led]
  const isBridge = route !== undefined && !isOwnDevice(status, family, route.device) && route.gateway === undefined
  const refused = refusal(question, packet.from)
  steps.push({
    step: 'route',
    passes: isBridge && refused === undefined,
    says:
      refused !== undefined
        ? refused
        : isBridge
          ? `to ${route.device}, a bridge of containers`
          : `no bridge of containers has ${formatAddress(destination)}`,
  })
  if (from.kind === 'peer') steps.push(...ofParts(question, from.peer, 'in'))
  return steps
}
