// underlay.ts - checks how the kernel routes the packets between this host and the hosts of silent peers, which carry
// the packets of the data path. Pure.

import { LOCAL_TABLE, MAIN_TABLE, ruleText, tableName } from '../../host/ip-words.ts'
import type { Link, RouteQuery } from '../../host/kernel.ts'
import { formatAddress, netAround, netContains } from '../../net/address.ts'
import type { Facts } from './facts.ts'
import type { Finding } from './findings.ts'
import { refusingRule, ruleFor } from './kernel-routes.ts'
import { addressesIn, endsOf, type AnsweredQuery, type Ends } from './route-queries.ts'
import { seenSides, subnetText, type SeenSide } from './sides.ts'

/** A fault on the way between this host and the host of a peer. */
interface Fault {
  readonly detail: string
  readonly fix?: string
}

/**
 * Returns the fault of the kernel's routes to the host of a peer (`underlay`) or from that host; undefined if there is
 * none. Without a direction, examines both.
 */
export function underlayFault(side: SeenSide, facts: Facts, wanted?: 'underlay' | 'from underlay'): Fault | undefined {
  const { status, kernelRoutes, links } = facts
  const ends = status && endsOf(status, side)
  const external = links.find(({ name }) => name === status?.node?.externalInterface)
  if (!ends || !external || !kernelRoutes) return undefined
  // The finding address-gone reports an interface that has lost its address.
  if (status.dataPath?.addressGone[ends.family]) return undefined
  const faults = kernelRoutes.answers
    .filter(({ family, lease }) => family === ends.family && lease === side.peer.lease)
    .filter(({ direction }) => wanted === undefined || direction === wanted)
    .flatMap((answered) => {
      const rules = kernelRoutes.rules[ends.family] ?? []
      if (answered.direction === 'underlay')
        return isProven(answered, facts) ? [] : (faultOut(answered, ends, external, rules) ?? [])
      return answered.direction === 'from underlay' ? (faultIn(answered, ends, rules) ?? []) : []
    })
  return faults[0]
}

/**
 * Returns true if the kernel sends the packets the same way as those to a peer that answers, or to the gateway of a
 * default route. A provider may isolate the hosts of a link, so that they reach each other only through its router.
 */
function isProven({ answer, family, query }: AnsweredQuery, facts: Facts): boolean {
  if ('refused' in answer || answer.route.type !== 'unicast') return false
  const { device, gateway } = answer.route
  const { status, kernelRoutes, defaultGateways = [] } = facts
  const external = status?.node?.externalInterface
  if (device === external && gateway !== undefined && defaultGateways.includes(gateway)) return true
  const leases = new Set(
    (kernelRoutes?.answers ?? [])
      .filter((other) => other.direction === 'underlay' && other.family === family && other.query.to !== query.to)
      .filter((other) => 'route' in other.answer && other.answer.route.type === 'unicast')
      .filter((other) => 'route' in other.answer && other.answer.route.device === device)
      .filter((other) => 'route' in other.answer && other.answer.route.gateway === gateway)
      .map(({ lease }) => lease),
  )
  return (status?.peers?.list ?? [])
    .filter(({ lease }) => leases.has(lease))
    .some((peer) => seenSides(peer, facts.answers).some(isAnswering))
}

const isAnswering = ({ answers, state }: SeenSide): boolean => answers?.small ?? state === 'answering'

type Rules = Parameters<typeof ruleFor>[0]

/** Returns the words that name the policy rule by which the kernel refused a packet; empty if there is no such rule. */
function refusedBy(rules: Rules, query: RouteQuery, errno: string): string {
  const rule = refusingRule(rules, query, errno)
  return rule ? `, by the rule "${ruleText(rule)}"` : ''
}

function faultOut(answered: AnsweredQuery, { family, host }: Ends, external: Link, rules: Rules): Fault | undefined {
  const { answer, query } = answered
  const about = `packets to ${formatAddress(host)}`
  // The kernel answers with EINVAL if a blackhole drops the packet (net/ipv4/fib_semantics.c, fib_props).
  if ('refused' in answer) {
    const why = answer.errno === 'EINVAL' ? 'a blackhole drops them' : answer.refused
    return { detail: `${about}: ${why}${refusedBy(rules, query, answer.errno)}` }
  }
  const { device, gateway, type, table } = answer.route
  const rule = ruleFor(rules, query, (each) => each.table === table)
  const isUsual = table === MAIN_TABLE || table === LOCAL_TABLE
  const by = isUsual ? '' : `, by the table ${tableName(table)}${rule ? ` and the rule "${ruleText(rule)}"` : ''}`
  if (type === 'local')
    return {
      detail: `${about} stay on this host, which has the address too`,
      fix: `remove ${formatAddress(host)} from the interfaces of this host (\`ip address\`), or give the peer's host another address`,
    }
  if (type !== 'unicast') return { detail: `${about}: the route has the type ${type}${by}` }
  const via = gateway === undefined ? '' : ` via ${gateway}`
  if (device !== external.name) return { detail: `${about} go to ${device}${via}${by}, and not to ${external.name}` }
  const isOnLink = addressesIn(external, family).some(({ address, prefixLength }) =>
    netContains(netAround(address, prefixLength), host),
  )
  // The tables of hosts with several interfaces often have only the default route of one interface.
  return isOnLink && gateway !== undefined && isUsual
    ? { detail: `${about} go${via}, although the host is on the link of ${device}` }
    : undefined
}

function faultIn(answered: AnsweredQuery, { host }: Ends, rules: Rules): Fault | undefined {
  const { answer, query } = answered
  if (!('refused' in answer)) return undefined
  const device = query.iif?.name ?? ''
  const about = `packets from ${formatAddress(host)} that arrive on ${device}`
  // The kernel's error EXDEV means that strict reverse path filtering (net.ipv4.conf.*.rp_filter) rejects the packet.
  if (answer.errno === 'EXDEV')
    return {
      detail: `${about}: rp_filter: the route back uses another interface`,
      fix: `set \`net.ipv4.conf.${device}.rp_filter=2\` with sysctl, and find with \`ip route get ${formatAddress(host)}\` why packets to this host go elsewhere`,
    }
  return { detail: `${about}: ${answer.refused}${refusedBy(rules, query, answer.errno)}` }
}

const isSilent = ({ answers, state, lossPercent }: SeenSide): boolean =>
  state !== 'stored' && (answers ? !answers.small : lossPercent !== null && state !== 'answering')

/** Checks the kernel's routes to and from the hosts of silent peers. */
export function checkUnderlay(facts: Facts): Finding[] {
  const { status, answers } = facts
  const found = new Map<string, Finding>()
  const silent = (status?.peers?.list ?? []).flatMap((peer) => seenSides(peer, answers)).filter(isSilent)
  for (const side of silent) {
    const fault = underlayFault(side, facts)
    if (!fault || found.has(fault.detail)) continue
    found.set(fault.detail, { name: 'underlay-route', ...fault, detail: `${subnetText(side)}: ${fault.detail}` })
  }
  return [...found.values()]
}
