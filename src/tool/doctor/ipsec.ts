// ipsec.ts - checks whether IPsec policies of other programs (ip-xfrm(8)) drop packets between this node and its peers.
// Pure.
//
// The kernel applies IPsec policies to all packets, also to those that weft's tunnel carries: to a forwarded packet first
// the policies `fwd`, and then the policies `out`.

import type { IpsecDirection, IpsecPolicy, IpsecTemplate, Link } from '../../host/kernel.ts'
import {
  familyOf,
  FAMILY_NAMES,
  formatAddress,
  formatNet,
  isIpv4Net,
  netContains,
  type Address,
  type Family,
  type Net,
} from '../../net/address.ts'
import { IPSEC_ALLOW_PRIORITY, IPSEC_BLOCK_PRIORITY, IPSEC_REQUEST_ID } from '../../path/catalog.ts'
import type { Status } from '../../report/status.ts'
import type { FilteredPacket } from './chain-walk.ts'
import type { Facts } from './facts.ts'
import type { Finding } from './findings.ts'
import { portPacket, sentBack } from './firewall.ts'
import type { IpsecFacts } from './ipsec-facts.ts'
import { peersOf } from './route-queries.ts'
import { bridgeOf, kindIn, outerIn, ownSides, type OwnSide, type SeenSide } from './sides.ts'

/** A packet to which the kernel applies the policies of one direction. */
export interface Flow {
  readonly direction: IpsecDirection
  readonly source: Address
  readonly destination: Address
  /** The number of the IP protocol; undefined for packets of all protocols. */
  readonly protocol?: number | undefined
  /** The interfaces on which the packet arrives and through which it leaves; undefined if weft does not know them. */
  readonly from?: string | undefined
  readonly to?: string | undefined
}

/** A reason why the kernel drops a packet: a policy, or the default policy of the packet's direction. */
interface Drop {
  readonly flow: Flow
  readonly policy: IpsecPolicy | undefined
  /** False if a program may get the missing keys when the first packet needs them. */
  readonly isCertain: boolean
}

/** The numbers of the protocols of the backends' datagrams (protocols(5)). */
const PROTOCOL_NUMBERS: Readonly<Record<string, number>> = { udp: 17, ipencap: 4, esp: 50 }

export function checkIpsec(facts: Facts): Finding[] {
  const drops = dropsIn(facts)
  const texts = new Map(drops.map((drop) => [`${nameOf(drop)} ${ruleText(drop)}`, drop]))
  return [...texts.values()].map((drop) => ({ name: nameOf(drop), detail: dropText(drop), fix: fixOf(drop) }))
}

/** Returns true if IPsec policies certainly drop packets that this host sends to other nodes. */
export const blocksSending = (facts: Facts): boolean =>
  dropsIn(facts).some(({ flow, isCertain }) => flow.direction === 'out' && isCertain)

const nameOf = ({ isCertain }: Drop) => (isCertain ? 'ipsec-blocked' : 'ipsec-unkeyed')

/**
 * Lists the packets between this node and its peers that IPsec policies drop: for each policy, the first packet found.
 * With the backend ipsec, leaves out the policies of weftd and flanneld, because the finding `peers-without-keys`
 * reports their missing keys. With another backend these policies are leftovers, and the list includes their packets.
 */
function dropsIn(facts: Facts): readonly Drop[] {
  const { status, ipsec } = facts
  if (!status || !ipsec) return []
  // A host with the backend ipsec has several right policies for each peer. So first look for packets to which a policy of
  // another program applies.
  const others = ipsec.policies.filter((policy) => !isRight(policy, status))
  const isConcerned = (flow: Flow): boolean =>
    ipsec.blockedByDefault.includes(flow.direction) ||
    others.some((policy) => policy.direction === flow.direction && covers(policy, flow))
  const found = new Map<IpsecPolicy | IpsecDirection, Drop>()
  for (const side of ownSides(status))
    for (const peer of peersOf(side, status))
      for (const flow of flowsOf(side, peer, status, facts.links).filter(isConcerned))
        for (const drop of dropsOf(flow, ipsec, status, facts.links)) {
          const key = drop.policy ?? flow.direction
          if (!found.has(key)) found.set(key, drop)
        }
  return [...found.values()]
}

const isRight = (policy: IpsecPolicy, status: Status): boolean =>
  kindIn(status)?.outside?.protocol === 'esp' &&
  (policy.priority === IPSEC_ALLOW_PRIORITY ||
    policy.priority === IPSEC_BLOCK_PRIORITY ||
    policy.templates.some(({ requestId }) => requestId === IPSEC_REQUEST_ID))

const containerIn = (net: Net): Address => (isIpv4Net(net) ? net.address + 2 : net.address + 2n)

/** Lists the packets to which the kernel applies policies, for one peer. */
function flowsOf(side: OwnSide, peer: SeenSide, status: Status, links: readonly Link[]): readonly Flow[] {
  if (!peer.subnet) return []
  const { family, subnet } = side
  const device = peer.way === 'direct' ? undefined : (status.dataPath?.devices[family] ?? undefined)
  const bridge = bridgeOf(links, subnet, status)
  const [here, there] = [containerIn(subnet), containerIn(peer.subnet)]
  const datagram = portPacket(status, peer.peer, outerIn(status, family, peer.endpoint))
  return [
    ...forwardedFlows({ source: here, destination: there, from: bridge, to: device }),
    ...forwardedFlows({ source: there, destination: here, from: device, to: bridge }),
    ...(datagram ? [datagramFlow(datagram), datagramFlow(sentBack(datagram))] : []),
    // The probes, between the addresses of the two tunnel devices.
    ...(device === undefined
      ? []
      : ([
          { direction: 'in', source: peer.subnet.address, destination: subnet.address, from: device },
          { direction: 'out', source: subnet.address, destination: peer.subnet.address, to: device },
        ] as const)),
  ]
}

/** Returns the check that the kernel makes for a datagram between this host and the host of a peer. */
export const datagramFlow = ({ chain, source, destination, protocol, from, to }: FilteredPacket): Flow => ({
  direction: chain === 'INPUT' ? 'in' : 'out',
  source,
  destination,
  protocol: PROTOCOL_NUMBERS[protocol],
  from,
  to,
})

/** Returns the two checks that the kernel makes for a packet which it forwards. */
export const forwardedFlows = (packet: Omit<Flow, 'direction'>): readonly Flow[] => [
  { direction: 'fwd', ...packet },
  { direction: 'out', ...packet },
]

/**
 * Returns the reasons why the kernel drops a packet. The kernel applies the matching policy with the lowest priority
 * number, and of several the oldest. A policy for some protocols or ports is a reason too, but the search continues
 * after it.
 */
function dropsOf(flow: Flow, { policies, ...rest }: IpsecFacts, status: Status, links: readonly Link[]): Drop[] {
  const family = familyOf(flow.source)
  const [setting, through] =
    flow.direction === 'out' ? (['disable_xfrm', flow.to] as const) : (['disable_policy', flow.from] as const)
  if (rest.exempt.some((each) => each.setting === setting && each.family === family && each.device === through))
    return []
  const index = links.find(({ name }) => name === flow.to)?.index
  const drops: Drop[] = []
  const inOrder = policies
    .filter((each) => each.direction === flow.direction && each.family === family && isFor(each, flow, index))
    .toSorted((a, b) => a.priority - b.priority)
  for (const policy of inOrder) {
    const isWhole = !policy.hasPorts && (policy.protocol === 0 || flow.protocol !== undefined)
    if (!isRight(policy, status)) {
      if (policy.isBlock) drops.push({ flow, policy, isCertain: true })
      else if (lacksKeys(policy, rest.states)) drops.push({ flow, policy, isCertain: !rest.hasKeyDaemon })
    }
    if (isWhole) return drops
  }
  return rest.blockedByDefault.includes(flow.direction)
    ? [...drops, { flow, policy: undefined, isCertain: true }]
    : drops
}

const covers = ({ source, destination }: IpsecPolicy, flow: Flow): boolean =>
  netContains(source, flow.source) && netContains(destination, flow.destination)

/** Returns true if the policy matches at least some packets of the flow, which have no mark. */
const isFor = (policy: IpsecPolicy, flow: Flow, index: number | undefined): boolean =>
  covers(policy, flow) &&
  (policy.protocol === 0 || flow.protocol === undefined || policy.protocol === flow.protocol) &&
  (policy.deviceIndex === 0 || policy.deviceIndex === index) &&
  (policy.mark ?? 0) === 0 &&
  policy.interfaceId === 0

/**
 * Returns true if the policy demands a protection for which this host has no state (SA), so that the kernel drops the
 * packets.
 */
const lacksKeys = ({ templates }: IpsecPolicy, states: readonly IpsecTemplate[]): boolean =>
  templates.some((template) => !template.isOptional && !states.some((state) => fits(state, template)))

/** The mode in which a template names no addresses, because the packet itself has the addresses of both ends. */
const TRANSPORT = 0

const fits = (state: IpsecTemplate, template: IpsecTemplate): boolean =>
  state.protocol === template.protocol &&
  state.mode === template.mode &&
  (template.requestId === 0 || state.requestId === template.requestId) &&
  (template.mode === TRANSPORT ||
    (state.family === template.family &&
      [0, 0n, state.source].includes(template.source) &&
      [0, 0n, state.destination].includes(template.destination)))

/** Writes a policy with the words of `ip xfrm policy`. */
function policyText({ source, destination, direction, protocol, hasPorts, isBlock, templates }: IpsecPolicy): string {
  const part = protocol === 0 ? '' : ` proto ${protocol}${hasPorts ? ' with ports' : ''}`
  const tunnels = templates.map(
    (each) => ` tmpl src ${formatAddress(each.source)} dst ${formatAddress(each.destination)}`,
  )
  const action = isBlock ? ' action block' : tunnels.join('')
  return `src ${formatNet(source)} dst ${formatNet(destination)}${part} dir ${direction}${action}`
}

const ruleText = ({ policy, flow }: Drop): string =>
  policy ? `the IPsec policy "${policyText(policy)}"` : `the default IPsec policy for ${flow.direction}`

/** Says which packets a policy drops, such as `packets from 10.5.2.2 to 10.5.1.2: the IPsec policy "..."`. */
function dropText(drop: Drop): string {
  const { flow, policy } = drop
  const { source, destination } = flow
  const unkeyed = policy && !policy.isBlock ? ', for which this host has no keys (`ip xfrm state`)' : ''
  return `packets from ${formatAddress(source)} to ${formatAddress(destination)}: ${ruleText(drop)}${unkeyed}`
}

function fixOf({ policy, flow }: Drop): string {
  const family: Family = familyOf(flow.source)
  if (!policy)
    return `let packets pass that match no IPsec policy: \`ip xfrm policy setdefault ${flow.direction} accept\`, or configure the program that set this default`
  const selector = `src ${formatNet(policy.source)} dst ${formatNet(policy.destination)} dir ${policy.direction}`
  const command =
    policy.protocol === 0 && !policy.hasPorts
      ? `delete the policy: \`ip xfrm policy delete ${selector}\``
      : `delete the policy (\`ip xfrm policy\` shows all ${FAMILY_NAMES[family]} policies)`
  return `configure the program that made the policy, such as strongSwan or Libreswan, to leave out the network and the hosts of the nodes, or ${command}`
}

/**
 * Returns for a packet that this host sends, forwards or receives why IPsec policies drop it; undefined if no policy
 * drops it. `isCertain` is false if a program may get missing keys.
 */
export function ipsecDrop(
  { status, ipsec, links }: Facts,
  flows: readonly Flow[],
): { readonly isCertain: boolean; readonly says: string } | undefined {
  if (!ipsec || !status) return undefined
  const [first] = flows.flatMap((flow) => dropsOf(flow, ipsec, status, links))
  return first && { isCertain: first.isCertain, says: dropText(first) }
}
