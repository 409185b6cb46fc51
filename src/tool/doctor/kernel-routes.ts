// kernel-routes.ts - checks how the kernel routes packets between this node's containers and its peers, by all routing
// tables and policy rules, not only the main table. Pure.

import { LOCAL_TABLE, MAIN_TABLE, ruleText, tableName } from '../../host/ip-words.ts'
import type { PacketPart, PolicyRule, Route, RouteQuery, RulePart } from '../../host/kernel.ts'
import {
  formatAddress,
  formatNet,
  isIpv4Net,
  netContains,
  parseAddress,
  parseNet,
  type Address,
} from '../../net/address.ts'
import type { Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import type { Finding } from './findings.ts'
import { readRules } from './host-rules.ts'
import { containerIn, ICMP, peersOf, UDP, type AnsweredQuery } from './route-queries.ts'
import { markingOf, type Marking } from './rule-effects.ts'
import { bridgeOf, isOwnDevice, ownSides, subnetText, type OwnSide, type SeenSide } from './sides.ts'

/** The kernel's error if strict reverse path filtering (net.ipv4.conf.*.rp_filter) rejects a packet. */
const STRICT = 'EXDEV'

/**
 * Checks the kernel's routes. `isReported` is true if another check has already reported wrong routes of the main
 * table.
 */
export function checkKernelRoutes(facts: Facts, isReported: boolean): readonly Finding[] {
  const { status, kernelRoutes } = facts
  if (!status || !kernelRoutes) return []
  const queried = new Set(kernelRoutes.answers.map(({ family, lease }) => `${family} ${lease}`))
  return ownSides(status).flatMap((side) =>
    peersOf(side, status)
      .filter(({ peer }) => queried.has(`${side.family} ${peer.lease}`))
      .flatMap((peer) => faultsOf(peer, side, facts, isReported)),
  )
}

/**
 * Returns the wrong routes by which the probes of a peer are lost. This host itself sends the probes, so routes of the
 * packets of containers do not count. A lookup of an incoming packet counts if strict reverse path filtering rejects
 * the packet, because the filter then also rejects the answers to the probes.
 */
export function faultsOfProbes(peer: SeenSide, facts: Facts): readonly Finding[] {
  const { status } = facts
  const side = status && ownSides(status).find(({ family }) => family === peer.family)
  const isOfProbes = ({ direction, query: { part }, answer }: AnsweredQuery): boolean =>
    (direction === 'host' || (direction === 'in' && 'refused' in answer && answer.errno === STRICT)) &&
    (part === undefined || (part.protocol === ICMP[peer.family] && part.tos === undefined))
  return side ? faultsOf(peer, side, facts, false, isOfProbes) : []
}

/** Returns the wrong routes between this node and a peer. Judges only the lookups for which `isWanted` returns true. */
function faultsOf(
  peer: SeenSide,
  side: OwnSide,
  facts: Facts,
  isReported: boolean,
  isWanted: (answered: AnsweredQuery) => boolean = () => true,
): readonly Finding[] {
  const { status, kernelRoutes } = facts
  if (!status || !kernelRoutes) return []
  const bridge = bridgeOf(facts.links, side.subnet, status)
  const answered = kernelRoutes.answers.filter(
    ({ family, lease, direction }) =>
      family === side.family && lease === peer.peer.lease && !direction.endsWith('underlay'),
  )
  const relevant = answered.filter(
    (each) => isWanted(each) && (each.direction === 'host' || isForwarded(each, side, facts)),
  )
  const all = relevant
    .filter((each) => isWrong(each, peer, bridge, status) && !isOfBridge(each, side, facts))
    .filter((each) => mayHaveMark(each, side, facts))
  const wrong = all.filter(({ query }) => query.part === undefined)
  const marked =
    wrong.length === 0 && relevant.some(({ query }) => query.mark !== undefined) ? markedFault(peer, side, facts) : []
  if (marked.length > 0) return marked
  const [first] = [
    ...wrong.filter(({ direction, query }) => direction === 'out' && query.mark === undefined),
    ...wrong.filter(({ query }) => query.mark === undefined),
    ...wrong,
  ]
  const rules = kernelRoutes.rules[side.family]
  const whole = first ? findingsOf(first, peer, side, rules, isReported) : []
  if (first && first.query.mark === undefined) return whole
  return [...firstOfParts(all).flatMap((each) => findingsOf(each, peer, side, rules, false)), ...whole]
}

/**
 * Returns true if the kernel forwards the packets of a lookup. Another check reports that forwarding is switched off,
 * for all packets or for one interface. This check then examines only the packets that this host itself sends.
 */
function isForwarded({ query: { iif } }: AnsweredQuery, { family }: OwnSide, facts: Facts): boolean {
  if (family === 'ipv6') return facts.isForwardingIpv6 !== false
  return facts.isForwarding && !facts.unforwarded?.some((name) => name === iif?.name)
}

/** Returns one lookup for each part of the packets, if possible a lookup for packets of containers. */
function firstOfParts(wrong: readonly AnsweredQuery[]): readonly AnsweredQuery[] {
  const found = new Map<string, AnsweredQuery>()
  for (const each of [...wrong.filter(({ direction }) => direction === 'out'), ...wrong]) {
    const key = JSON.stringify(each.query.part)
    if (each.query.part && !found.has(key)) found.set(key, each)
  }
  return [...found.values()]
}

/**
 * Returns the wrong routes of a part of the packets between the containers of this node and a peer: those of one
 * protocol, port or DSCP.
 */
export function faultsOfParts(
  peer: SeenSide,
  side: OwnSide,
  direction: 'out' | 'in',
  facts: Facts,
): readonly Finding[] {
  const { status, kernelRoutes, links } = facts
  if (!status || !kernelRoutes) return []
  const bridge = bridgeOf(links, side.subnet, status)
  const mine = kernelRoutes.answers.filter(
    (each) => each.family === side.family && each.lease === peer.peer.lease && each.direction === direction,
  )
  const wrong = mine.filter((each) => isWrong(each, peer, bridge, status) && !isOfBridge(each, side, facts))
  // If the route of all packets is wrong, another finding reports it.
  if (wrong.some(({ query: { part, mark } }) => part === undefined && mark === undefined)) return []
  const rules = kernelRoutes.rules[side.family]
  return firstOfParts(wrong).flatMap((each) => findingsOf(each, peer, side, rules, false))
}

/**
 * Returns the wrong route of the packets from a container of this node to a peer, if the firewall certainly gives these
 * packets a mark by which the kernel routes them; else an empty list.
 */
export function markedFault(peer: SeenSide, side: OwnSide, facts: Facts): readonly Finding[] {
  const { status, kernelRoutes, links } = facts
  if (!status || !kernelRoutes) return []
  const answers = kernelRoutes.answers.filter(
    (each) =>
      each.family === side.family &&
      each.lease === peer.peer.lease &&
      each.query.mark !== undefined &&
      isForwarded(each, side, facts),
  )
  // weft doctor looks up routes for marks only if a rule sets a mark, and only for some of the peers.
  const [any] = answers
  const marked = any && markingFor(any.query, side, facts).certain
  if (!marked) return []
  const bridge = bridgeOf(links, side.subnet, status)
  return answers
    .filter((each) => each.query.mark === marked.mark && isWrong(each, peer, bridge, status))
    .flatMap((each) => findingsOf(each, peer, side, kernelRoutes.rules[side.family], false, marked.rule))
}

/**
 * Returns true if the packets from a container of this node to the peer perhaps have the mark of a lookup, or if the
 * lookup has no mark. Returns false if the firewall certainly sets a mark, because `markedFault` judges that route. A
 * transparent proxy marks the packets of its own connections, and routes them to this host itself, so such a route is
 * right.
 */
function mayHaveMark({ query, answer }: AnsweredQuery, side: OwnSide, facts: Facts): boolean {
  if (query.mark === undefined) return true
  const { certain, possible } = markingFor(query, side, facts)
  const isProxied = 'route' in answer && answer.route.type === 'local'
  return !certain && !isProxied && possible.has(query.mark)
}

/** Returns the marks that the firewall gives the packets of a lookup, from a container of this node to the peer. */
const markingFor = ({ to, iif }: RouteQuery, { subnet, family }: OwnSide, facts: Facts): Marking =>
  markingOf(readRules(facts, family), {
    chain: 'FORWARD',
    protocol: 'tcp',
    state: 'new',
    source: containerIn(subnet),
    destination: to,
    ...(iif ? { from: iif.name } : {}),
  })

function isWrong(
  { direction, query, answer }: AnsweredQuery,
  peer: SeenSide,
  bridge: string | undefined,
  status: Status,
): boolean {
  if ('refused' in answer) return true
  const { device, gateway, type, table } = answer.route
  // A transparent proxy receives a part of the packets itself, by a rule and a table of its own.
  if (query.part && type === 'local' && table !== LOCAL_TABLE) return false
  if (direction === 'in') return type === 'unicast' && device !== bridge
  // A route to a peer's host that bypasses the tunnel is right only if the data path itself routes directly to this
  // peer.
  const isToHost = peer.way === 'direct' && gateway !== undefined && parseAddress(gateway) === peer.publicIp
  return type !== 'unicast' || !(isOwnDevice(status, peer.family, device) || isToHost)
}

/**
 * Returns true if a packet for this node's containers takes a route to a larger network, because the main table has no
 * route to the bridge of the containers. The check of the bridges reports the bridge, and the route itself is right.
 */
function isOfBridge({ direction, query, answer }: AnsweredQuery, { subnet }: OwnSide, { routes }: Facts): boolean {
  if (direction !== 'in' || 'refused' in answer || answer.route.table !== MAIN_TABLE) return false
  return !routes.some(({ destination }) => {
    const net = parseNet(destination)
    return net && net.prefixLength >= subnet.prefixLength && netContains(net, query.to)
  })
}

/**
 * Finds the policy rule by which the kernel chose a routing table or rejected a packet: the first rule that matches the
 * packet.
 */
export const ruleFor = (
  rules: readonly PolicyRule[] | undefined,
  query: RouteQuery,
  isIt: (rule: PolicyRule) => boolean,
): PolicyRule | undefined => rules?.find((rule) => isIt(rule) && isFor(rule, query) !== rule.isInverted)

/**
 * Returns true if a packet has all properties that a policy rule names (fib_rule_match in net/core/fib_rules.c). The
 * kernel looks up a packet of this host itself as a packet from the interface `lo`. If the sender of such an IPv4 packet
 * has not chosen a source address, the kernel looks up the source address 0.0.0.0.
 */
function isFor(rule: PolicyRule, { to, from, iif, oif, mark = 0, part }: RouteQuery): boolean {
  return (
    (rule.to === undefined || netContains(rule.to, to)) &&
    (rule.from === undefined || netContains(rule.from, from ?? 0)) &&
    (rule.iif === undefined || rule.iif === (iif?.name ?? 'lo')) &&
    (rule.oif === undefined || rule.oif === oif?.name) &&
    (rule.mark === undefined || ((mark ^ rule.mark) & rule.mask) === 0) &&
    (rule.part === undefined || isOfPart(rule.part, to, part))
  )
}

/** Returns true if a packet to the address `to` is one of those that a policy rule selects by protocol, ports or DSCP. */
function isOfPart(rule: RulePart, to: Address, part: PacketPart = {}): boolean {
  // The kernel looks up a packet without a protocol as UDP over IPv4, and as no protocol over IPv6.
  const { protocol = typeof to === 'number' ? UDP : 0, sport = 0, dport = 0, tos = 0 } = part
  const isIn = (port: number, [first, last]: readonly [number, number]): boolean => port >= first && port <= last
  return (
    rule.tunnel === undefined &&
    (rule.protocol === undefined || rule.protocol === protocol) &&
    (rule.sport === undefined || isIn(sport, rule.sport)) &&
    (rule.dport === undefined || isIn(dport, rule.dport)) &&
    (rule.tos === undefined || rule.tos === tos) &&
    (rule.dscp === undefined || rule.dscp === tos >> 2)
  )
}

/** Returns true if a route is in the table main or local, which the kernel consults by default. */
const isUsual = ({ table }: Route): boolean => table === MAIN_TABLE || table === LOCAL_TABLE

/**
 * Describes a route with its table and policy rule, such as `ts0, by the table 52 and the rule "5270: from all lookup
 * 52"`.
 */
function routeText(route: Route, rule: PolicyRule | undefined): string {
  const { device, gateway, type, table } = route
  const by = isUsual(route)
    ? ''
    : `, by the table ${tableName(table)}${rule ? ` and the rule "${ruleText(rule)}"` : ''}`
  if (type === 'local') return `this host itself${by || ', which has the address'}`
  return `${device}${gateway === undefined ? '' : ` via ${gateway}`}${by}`
}

/**
 * Describes why the kernel refuses the packets. The kernel answers with EINVAL for a blackhole (net/ipv4/fib_semantics.c,
 * fib_props), and for IPv4 packets that arrive with a source address of this host (net/ipv4/fib_frontend.c,
 * fib_validate_source). `rule` is the policy rule that refuses the packets, if there is one.
 */
function refusalText(
  { refused, errno }: { refused: string; errno: string },
  { from }: RouteQuery,
  rule: PolicyRule | undefined,
): string {
  if (errno !== 'EINVAL') return refused
  const isBlackhole = rule !== undefined || typeof from !== 'number'
  return `a blackhole drops the packets${isBlackhole ? '' : ', or this host also has their source address'}`
}

/** The kernel's errors for the policy rules that refuse packets (fib4_rule_action in net/ipv4/fib_rules.c). */
const REFUSALS: Readonly<Record<string, string>> = {
  prohibit: 'EACCES',
  unreachable: 'ENETUNREACH',
  blackhole: 'EINVAL',
}

/**
 * Finds the policy rule by which the kernel refused a packet with an error; undefined if the cause is not a rule, for
 * example a route.
 */
export const refusingRule = (
  rules: readonly PolicyRule[] | undefined,
  query: RouteQuery,
  errno: string,
): PolicyRule | undefined => ruleFor(rules, query, ({ action }) => REFUSALS[action] === errno)

function findingsOf(
  { direction, query, answer }: AnsweredQuery,
  peer: SeenSide,
  { network }: OwnSide,
  rules: readonly PolicyRule[] | undefined,
  isReported: boolean,
  marking?: string,
): Finding[] {
  const whose = direction === 'in' ? `from ${subnetText(peer)}` : subnetText(peer)
  const where =
    query.iif === undefined ? '' : direction === 'in' ? ` (to ${formatAddress(query.to)})` : ` (from ${query.iif.name})`
  const marked =
    query.mark === undefined
      ? ''
      : marking === undefined
        ? `, if it has the mark 0x${query.mark.toString(16)} that a firewall rule sets`
        : `, because it has the mark 0x${query.mark.toString(16)} by the firewall rule ${marking}`
  const partly = query.part === undefined ? '' : ', which is for a part of the packets'
  const isSure = query.mark === undefined || marking !== undefined
  const about = `${whose}${where}`
  const first = (rule: PolicyRule | undefined): string | undefined =>
    rule &&
    `configure the program that made the rule to leave out the network, or make the kernel use the main table first: \`ip ${isIpv4Net(network) ? '' : '-6 '}rule add pref ${Math.max(1, rule.priority - 1)} to ${formatNet(network)} lookup main\``
  if ('refused' in answer) {
    // If only a part of the packets is refused, the cause is a rule for this part, or the table that it selects.
    const rule =
      query.part === undefined
        ? refusingRule(rules, query, answer.errno)
        : ruleFor(rules, query, ({ part }) => part !== undefined)
    const isReverse = answer.errno === STRICT
    const why = isReverse ? 'rp_filter: the route back uses another interface' : refusalText(answer, query, rule)
    const fix = isReverse
      ? `set \`net.ipv4.conf.${query.iif?.name}.rp_filter=2\` with sysctl, and find why packets to ${subnetText(peer)} go elsewhere`
      : first(rule)
    const detail = `${about}: ${why}${rule && !isReverse ? `, by the rule "${ruleText(rule)}"` : ''}${marked}${partly}`
    return [{ name: isSure ? 'route-refused' : 'marked-route', detail, ...(fix ? { fix } : {}) }]
  }
  const { route } = answer
  if (route.table === MAIN_TABLE && isReported) return []
  const rule = ruleFor(rules, query, ({ table }) => table === route.table)
  const detail = `${about} goes to ${routeText(route, rule)}${marked}${partly}`
  const fix = isUsual(route) ? undefined : first(rule)
  const name = !isSure ? 'marked-route' : isUsual(route) ? 'foreign-route' : 'policy-route'
  return [{ name, detail, ...(fix ? { fix } : {}) }]
}
