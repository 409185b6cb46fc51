// explain-firewall.ts - explains what the firewall of this host does to a packet. Pure.

import { familyOf } from '../../net/address.ts'
import { placeIn } from '../../report/status.ts'
import type { Bridged, FilteredPacket } from './chain-walk.ts'
import { sideOf, type Question, type Step } from './explain-question.ts'
import type { Facts } from './facts.ts'
import { bridgedOf } from './firewall.ts'
import { isSameChain, laterVerdicts, readRules, type HostVerdict } from './host-rules.ts'
import { changesOf, diversionsOf, unjudgedOf, type Change } from './rule-effects.ts'
import { bridgeOf, networksOf } from './sides.ts'

/** Returns the steps of a packet through the firewall: first the rules of iptables, then the chains of nftables. */
export function filtered(facts: Facts, given: FilteredPacket): Step[] {
  // The kernel treats each datagram of vxlan as the first packet of a connection, so no datagram of vxlan is an answer.
  const packet: FilteredPacket = given.isOneWay ? { ...given, state: 'new' } : given
  const family = familyOf(packet.source)
  const rules = readRules(facts, family)
  const firsts = rules.walk({ ...packet, state: 'new' })
  // The packet and the first packet of its connection may pass different chains, because no untracked packet passes the
  // chains that translate addresses.
  const verdicts = rules
    .walk(packet)
    .map((verdict) => ({ verdict, asFirst: firsts.find((each) => isSameChain(each, verdict)) ?? verdict }))
  const later = laterVerdicts(rules, packet, firsts)
  // If all chains accept the packet, only the table filter of iptables is reported.
  const told = verdicts.filter(
    ({ verdict, asFirst }) =>
      !verdict.isAccepted || !asFirst.isAccepted || (verdict.table === 'filter' && !verdict.tool.includes('legacy')),
  )
  return [
    ...(rules.hasIptables
      ? []
      : [
          {
            step: 'firewall',
            passes: undefined,
            says: `the rules of ${family === 'ipv4' ? 'iptables' : 'ip6tables'} cannot be read`,
          },
        ]),
    ...told.map(({ verdict, asFirst }) => {
      const asLater = later.verdicts.find((each) => isSameChain(each, verdict))
      return verdictStep(packet, verdict, asFirst, asLater)
    }),
    ...later.drops.map(({ by, tool }) => ({
      step: 'firewall',
      passes: false,
      says: `${packet.chain}: all packets of a connection but the first dropped by ${programOf(tool)}${by}`,
    })),
    ...[...new Set(unjudgedOf([...firsts, ...later.verdicts]))].map((rule) => ({
      step: 'firewall',
      passes: undefined,
      says: `${packet.chain}: perhaps dropped by ${rule}, because weft cannot evaluate a condition of this rule`,
    })),
  ]
}

/**
 * Returns a step for each rule that changes the addresses of the backend's packet `packet`, so that the packet is lost.
 * `isAnswering` is true if the peer answers, because then the rule does not apply to the existing connection.
 */
export function divertedDatagram(facts: Facts, packet: FilteredPacket, isAnswering: boolean): Step[] {
  const { status, links } = facts
  if (!status || isAnswering) return []
  return diversionsOf(readRules(facts, familyOf(packet.source)), packet, status, links).map(({ kind, rule }) => ({
    step: 'firewall',
    passes: false,
    says: `${packet.chain}: a rule changes the ${kind === 'source' ? "source of the backend's packets, and the peer accepts no packets from the new source" : "destination of the backend's packets"}: ${rule}`,
  }))
}

/** Returns the prefix that names a rule's program, except `ip6tables: `, because all rules have the packet's family. */
const programOf = (tool: string): string => (tool === 'ip6tables: ' ? '' : tool)

function verdictStep(
  { chain }: FilteredPacket,
  verdict: HostVerdict,
  asFirst: HostVerdict,
  asLater?: HostVerdict,
): Step {
  const { isAccepted, isCertain, by, tool } = verdict
  // True if the firewall certainly drops the packet if it is the first of a connection, but may accept it if it
  // belongs to an existing connection.
  const isFirstDropped = !isCertain && !asFirst.isAccepted && asFirst.isCertain
  const isEachDropped = isFirstDropped && asLater?.isAccepted === false && asLater.isCertain
  const unless = isEachDropped
    ? ''
    : isFirstDropped
      ? ', unless it answers an earlier packet in the other direction'
      : isCertain
        ? ''
        : ', unless an earlier rule with a condition that weft cannot evaluate decides otherwise'
  const says = `${chain}: ${isAccepted && !isFirstDropped ? 'accepted' : 'dropped'} by ${programOf(tool)}${isFirstDropped ? asFirst.by : by}${unless}`
  return { step: 'firewall', passes: isEachDropped ? false : isCertain ? isAccepted : undefined, says }
}

/**
 * Returns the firewall's steps for a forwarded packet of a container. Unless the packet may be an answer, it is assumed
 * to be the first packet of its connection.
 */
export function forwarded(question: Question, isOutward: boolean): Step[] {
  const { source, destination, facts, status, route, isAnswer } = question
  const family = familyOf(source)
  const subnet = status.node ? placeIn(status.node, family).subnet : undefined
  const network = status.config ? networksOf(status.config)[family] : undefined
  const isInside = [source, destination].some((address) => sideOf(address, status, facts).kind === 'peer')
  const from = entryOf(question, isOutward)
  const ends = { ...(from === undefined ? {} : { from }), ...(route ? { to: route.device } : {}) }
  const bridged = bridgedAs(isOutward ? 'in' : 'out', question)
  const state = isAnswer ? {} : ({ state: 'new' } as const)
  const packet = { chain: 'FORWARD', protocol: 'tcp', ...state, source, destination, ...ends, ...bridged } as const
  const changes =
    subnet && network && isInside
      ? changesOf(readRules(facts, family), packet, { family, network, subnet }, status)
      : []
  // The table nat does not see answers: the kernel translates them as the first packet of their connection.
  const kept = isAnswer ? changes.filter(({ kind, rule }) => kind === 'hops' || /\btproxy\b/i.test(rule)) : changes
  return [...filtered(facts, packet), ...kept.map(changeStep)]
}

/** Returns the interface on which a forwarded packet arrives at this host; undefined if weft does not know it. */
export function entryOf({ source, facts, status }: Question, isOutward: boolean): string | undefined {
  const family = familyOf(source)
  const subnet = status.node ? placeIn(status.node, family).subnet : undefined
  if (isOutward) return subnet && bridgeOf(facts.links, subnet, status)
  return sideOf(source, status, facts).kind === 'peer' ? (status.dataPath?.devices[family] ?? undefined) : undefined
}

const bridgedAs = (way: Bridged['way'], { source, facts, status }: Question): { readonly bridged?: Bridged } => {
  const subnet = status.node ? placeIn(status.node, familyOf(source)).subnet : undefined
  const bridged = subnet && bridgedOf({ subnet }, facts)?.(way)
  return bridged ? { bridged } : {}
}

/** Returns one step for each firewall rule that drops bridged packets between two containers of this host. */
export function acrossBridge(question: Question): Step[] {
  const { source, destination, facts } = question
  const bridged = bridgedAs('through', question)
  if (!bridged.bridged) return []
  const { bridge } = bridged.bridged
  const ends = { source, destination, from: bridge, to: bridge } as const
  const packet = { chain: 'FORWARD', protocol: 'tcp', state: 'new', ...ends, ...bridged } as const
  return filtered(facts, packet).filter(({ passes, says }) => passes !== true && says.startsWith('FORWARD'))
}

const SAYS_CHANGE: Readonly<Record<Change['kind'], string>> = {
  diverted: 'sent to another destination by',
  hops: 'dropped by this host or the next one, because too small a TTL or hop limit is set by',
  source: 'gets another source address by',
}
const changeStep = ({ kind, rule, isLost }: Change): Step => ({
  step: 'firewall',
  passes: !isLost,
  says: `FORWARD: ${SAYS_CHANGE[kind]} ${rule}${kind === 'source' ? (isLost ? ', so that the peer drops it' : ', so that the other container sees that address') : ''}`,
})
