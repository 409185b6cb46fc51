// explain.ts - what would happen to a packet from one address to another, step by step, as this host sees it. Pure.

import { netContains, parseNet, type Address } from '../net/address.ts'
import { formatIpv4, type Ipv4 } from '../net/ipv4.ts'
import type { PeerStatus, Status } from '../status/status.ts'
import type { Route } from '../host/links.ts'
import type { Facts } from './facts.ts'
import { walkFilter, type FilteredPacket } from './filter-walk.ts'
import { portPacket } from './firewall.ts'

export interface Step {
  /** `source`, `route`, `firewall`, ... */
  readonly step: string
  /** False: it goes no further; undefined: that cannot be told from here. */
  readonly passes: boolean | undefined
  readonly says: string
}

/** Where an address is. */
type Side =
  | { readonly kind: 'here' | 'host' | 'nobody' | 'outside' }
  | { readonly kind: 'peer'; readonly peer: PeerStatus }

export interface Question {
  readonly source: Ipv4
  readonly destination: Ipv4
  readonly status: Status
  readonly facts: Facts
  /** The kernel's to the destination, as from the source; undefined: there is none. */
  readonly route: Route | undefined
}

export function sideOf(address: Address, { node, config, peers }: Status, facts: Pick<Facts, 'links'>): Side {
  const has = (net: string | undefined): boolean => {
    const read = parseNet(net ?? '')
    return read !== undefined && netContains(read, address)
  }
  if (facts.links.some(({ addresses }) => addresses.some((each) => each.address === address))) return { kind: 'host' }
  if (has(node?.subnet)) return { kind: 'here' }
  const length = ({ subnet }: PeerStatus): number => parseNet(subnet)?.prefixLength ?? 0
  const [peer] = (peers?.list ?? []).filter(({ subnet }) => has(subnet)).toSorted((a, b) => length(b) - length(a))
  if (peer) return { kind: 'peer', peer }
  return { kind: has(config?.network) ? 'nobody' : 'outside' }
}

export function explain(question: Question): readonly Step[] {
  const { source, destination, status, facts } = question
  const [from, to] = [sideOf(source, status, facts), sideOf(destination, status, facts)]
  const steps = [whoIs('source', source, from, status), whoIs('destination', destination, to, status)]
  const isLocal = (side: Side): boolean => side.kind === 'here' || side.kind === 'host'
  if (isLocal(from) && isLocal(to))
    return [...steps, { step: 'way', passes: true, says: 'both are on this host: no tunnel is between them' }]
  if (!isLocal(from) && !isLocal(to) && from.kind !== 'outside' && to.kind !== 'outside')
    return [
      ...steps,
      { step: 'way', passes: undefined, says: 'neither is on this host: ask on the host of one of them' },
    ]
  if (to.kind === 'peer') return [...steps, ...outward(question, from, to.peer)]
  if (to.kind === 'nobody')
    return [
      ...steps,
      {
        step: 'data path',
        passes: false,
        says: 'no node has it: the sender gets ICMP net unreachable, and it is counted as tx_drop_no_route',
      },
    ]
  if (to.kind === 'outside') return [...steps, ...away(question, from)]
  return [...steps, ...inward(question, from, to)]
}

function whoIs(step: string, address: Ipv4, side: Side, { node, config }: Status): Step {
  const said = {
    here: `is of this node's subnet ${node?.subnet}`,
    host: "is this host's own",
    nobody: `is of the network ${config?.network}, and no node has a lease of it`,
    outside: `is outside of the network ${config?.network}`,
    peer: '',
  }[side.kind]
  const says = side.kind === 'peer' ? `is of the subnet ${side.peer.subnet} of ${side.peer.publicIp}` : said
  return { step, passes: true, says: `${formatIpv4(address)} ${says}` }
}

function outward({ source, destination, status, facts, route }: Question, from: Side, peer: PeerStatus): Step[] {
  const { dataPath } = status
  const steps: Step[] = []
  if (from.kind !== 'host')
    steps.push(forwarding(facts), filtered(facts, { chain: 'FORWARD', protocol: 'tcp', source, destination }))
  const device = dataPath?.device
  const isOurs = route !== undefined && (route.device === device || route.gateway === peer.publicIp)
  steps.push({
    step: 'route',
    passes: isOurs,
    says:
      route === undefined
        ? 'there is none'
        : `to ${route.device}${route.gateway === undefined ? '' : ` via ${route.gateway}`}${isOurs ? '' : `, and not ${device ?? `via ${peer.publicIp}`}: another route comes first`}`,
  })
  steps.push({
    step: 'data path',
    passes: dataPath?.open === true && peer.state !== 'stored',
    says:
      dataPath?.open === true
        ? peer.state === 'stored'
          ? 'its lease cannot be used by this node: see the log of weftd'
          : sentBy(dataPath.engine, peer)
        : (status.trouble ?? 'down'),
  })
  if (dataPath?.mtu) {
    const [whole, why] = peer.pathMtu === null ? [dataPath.mtu, ''] : [peer.pathMtu, ', which the path to it takes,']
    const says = `packets of up to ${whole} bytes${why} go whole as far as this host knows; larger ones are cut, or refused where they may not be`
    steps.push({ step: 'mtu', passes: true, says })
  }
  steps.push(answered(peer))
  return steps.filter(({ says }) => says !== '')
}

function sentBy(engine: string | null, { way, endpoint }: PeerStatus): string {
  if (way === 'direct') return `the kernel routes it to ${endpoint}, without a tunnel`
  return `${engine === 'kernel' ? 'the kernel' : `the ${engine} engine`} sends it to ${endpoint}`
}

function answered(peer: PeerStatus): Step {
  const loss = peer.lossPercent === null || peer.lossPercent === 0 ? '' : `, ${peer.lossPercent}% lost`
  if (peer.state === 'answering')
    return {
      step: 'peer',
      passes: true,
      says: `its host answers through the data path, in ${peer.roundTripMs} ms${loss}`,
    }
  if (peer.lossPercent === null)
    return { step: 'peer', passes: undefined, says: 'nobody asked its host whether it answers' }
  return { step: 'peer', passes: false, says: `its host does not answer through the data path${loss}` }
}

function forwarding({ isForwarding }: Facts): Step {
  return { step: 'forwarding', passes: isForwarding, says: `net.ipv4.ip_forward is ${isForwarding ? 1 : 0}` }
}

function filtered({ iptables }: Facts, packet: FilteredPacket): Step {
  if (iptables === undefined)
    return { step: 'firewall', passes: undefined, says: 'the rules of iptables cannot be read' }
  const { isAccepted, isCertain, by } = walkFilter(iptables, packet)
  const says = `${packet.chain}: ${isAccepted ? 'let through' : 'dropped'} by ${by}${isCertain ? '' : ', unless a rule before it that asks for more decides otherwise'}`
  return { step: 'firewall', passes: isCertain ? isAccepted : undefined, says }
}

function away({ source, destination, facts, route }: Question, from: Side): Step[] {
  const isMasqueraded = facts.subnetEnv?.['FLANNEL_IPMASQ'] === 'true' && from.kind !== 'host'
  return [
    ...(from.kind === 'host'
      ? []
      : [forwarding(facts), filtered(facts, { chain: 'FORWARD', protocol: 'tcp', source, destination })]),
    {
      step: 'route',
      passes: route !== undefined,
      says:
        route === undefined
          ? 'there is none'
          : `to ${route.device}${route.gateway === undefined ? '' : ` via ${route.gateway}`}, past the tunnel`,
    },
    {
      step: 'masquerade',
      passes: true,
      says: isMasqueraded
        ? "by weft's rules (--ip-masq)"
        : "not by weft: it leaves with its own source, unless others' rules change that",
    },
  ]
}

function inward({ source, destination, status, facts, route }: Question, from: Side, to: Side): Step[] {
  const steps: Step[] = []
  if (from.kind === 'nobody')
    return [
      {
        step: 'data path',
        passes: false,
        says: 'not let in, since no lease says where it comes from: counted as rx_drop_unknown_sender',
      },
    ]
  if (from.kind === 'peer') {
    const packet = portPacket(status, from.peer)
    if (packet) steps.push(filtered(facts, packet))
    const isChecked = status.dataPath?.engine !== 'kernel'
    const says = isChecked
      ? `let in when it comes from ${from.peer.publicIp}, unless VerifySource says otherwise`
      : 'the kernel takes it from whoever sends it'
    steps.push({ step: 'data path', passes: from.peer.state !== 'stored' && status.dataPath?.open === true, says })
  }
  if (to.kind === 'host') return steps
  steps.push(forwarding(facts), filtered(facts, { chain: 'FORWARD', protocol: 'tcp', source, destination }))
  const isBridge = route !== undefined && route.device !== status.dataPath?.device && route.gateway === undefined
  steps.push({
    step: 'route',
    passes: isBridge,
    says: isBridge
      ? `to ${route.device}, where containers are`
      : `there is no bridge of containers that has ${formatIpv4(destination)}`,
  })
  return steps
}
