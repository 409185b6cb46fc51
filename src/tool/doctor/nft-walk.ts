// nft-walk.ts - decides from the output of `nft list ruleset` whether the chains of nftables would accept a packet.
// Pure.
//
// If this code cannot read a condition of a rule, it treats the result of the condition as unknown. A chain with the
// policy accept whose last rule rejects is treated like a chain with the policy drop.

import { familyOf, type Address } from '../../net/address.ts'
import {
  allOf,
  both,
  hasFlags,
  isBetween,
  isIcmp,
  isInterface,
  isLengthIn,
  isMarked,
  isMulticast,
  isOfType,
  isProtocol,
  isState,
  isTranslated,
  isWithin,
  LONGEST_PACKET,
  isUnread,
  negatedIf,
  netIn,
  queueOutcomes,
  UNREAD_QUEUE,
  walkChain,
  withinOf,
  type Bridged,
  type Chain,
  type Effect,
  type FilteredPacket,
  type FilterRule,
  type Holds,
  type Match,
  type Outcome,
  type Queue,
  type ReadQueues,
  type RuleEnd,
  type Target,
  type Verdict,
} from './chain-walk.ts'

/** An nftables base chain, which the kernel calls at a hook. All other chains are called only by rules. */
export interface BaseChain {
  /** The names of the family, the table and the chain, such as `inet firewalld filter_FORWARD`. */
  readonly name: string
  readonly hook: string
  /** The line of the chain that names its hook, its devices and its policy. */
  readonly head: string
  readonly text: string
}

interface NftVerdict extends Verdict {
  readonly base: BaseChain
}

const HOOKS: Readonly<Record<FilteredPacket['chain'], readonly string[]>> = {
  INPUT: ['ingress', 'prerouting', 'input'],
  FORWARD: ['ingress', 'prerouting', 'forward', 'postrouting', 'egress'],
  OUTPUT: ['output', 'postrouting', 'egress'],
}
/** The hooks of the family bridge that a packet passes, by the packet's way across the bridge. */
const BRIDGE_HOOKS: Readonly<Record<Bridged['way'], readonly string[]>> = {
  in: ['prerouting', 'input'],
  out: ['output', 'postrouting'],
  through: ['prerouting', 'forward', 'postrouting'],
}
/** The protocol of an ARP packet, by which hosts find the link-layer address of an IPv4 address. */
export const ARP = 'arp'

interface Ruleset {
  /**
   * Returns the verdict of each base chain that sees the packet. Leaves out the chains `hidden`, such as
   * `ip filter FORWARD`, because iptables shows their rules.
   */
  readonly walk: (packet: FilteredPacket, hidden: readonly string[]) => readonly NftVerdict[]
}

/** Reads the output of `nft list ruleset`. `read` has the numbers of the queues that a program reads. */
export function readRuleset(ruleset: string, read?: ReadQueues): Ruleset {
  const active = tablesOf(ruleset).filter(({ text }) => !isDormant(text))
  const tables = active.map((table) => ({ name: table.name, ...readTable(table, read) }))
  return {
    walk: (packet, hidden) =>
      tables.flatMap(({ name, bases, chains }) => {
        if (!isSeen(name, packet)) return []
        return bases
          .filter((base) => !hidden.includes(base.name) && isOnTheWay(base, packet))
          .map((base) => ({ ...walkChain(chains, base.name.split(' ')[2] ?? '', atHook(base, packet)), base }))
      }),
  }
}

/** Returns true for a table whose chains the kernel does not call, because the table has the flag `dormant`. */
const isDormant = (table: string): boolean => /\n\tflags [^\n]*dormant/.test(table)

const isOfBridge = ({ name }: BaseChain): boolean => name.startsWith('bridge ')

/**
 * Returns true if the chains of an nftables table may see the packet. Returns true for each table of the family bridge,
 * because `isOnTheWay` checks the chains of bridges.
 */
function isSeen(table: string, { source, protocol, bridged }: FilteredPacket): boolean {
  const family = table.split(' ')[0] ?? ''
  if (family === 'bridge') return true
  if (protocol === ARP) return family === 'arp' || family === 'netdev'
  const families = [familyOf(source) === 'ipv4' ? 'ip' : 'ip6', 'inet']
  if (bridged?.way === 'through') return bridged.isFiltered === true && families.includes(family)
  return [...families, 'netdev'].includes(family)
}

function isOnTheWay(base: BaseChain, packet: FilteredPacket): boolean {
  const { chain, from, to, bridged } = packet
  const { hook, head } = base
  if (isOfBridge(base)) return bridged !== undefined && BRIDGE_HOOKS[bridged.way].includes(hook)
  if (!HOOKS[chain].includes(hook)) return false
  if (head.startsWith('type nat ')) return isTranslated(packet)
  // An ingress or egress chain is bound to devices, and sees only the packets of these devices.
  if (hook !== 'ingress' && hook !== 'egress') return true
  // nft prints one device as `device "eth0"`, and several devices as `devices = { eth0, eth1 }`. Only newer versions of
  // nft quote the names of several devices. A name may end with a wildcard.
  const devices = listOf(/ devices? (?:= )?(\{[^}]*\}|\S+)/.exec(head)?.[1] ?? '')
  const has = (name: string): boolean => devices.some((device) => isInterface(name, device, '*'))
  const name = hook === 'egress' ? to : from
  if (name !== undefined && has(name)) return true
  const way = hook === 'egress' ? 'out' : 'in'
  return bridged?.way === way && bridged.ports.length > 0 && bridged.ports.every(has)
}

/** Returns the packet as the rules at a hook see it. Before routing, the packet has no outgoing interface. */
const atHook = ({ hook }: BaseChain, packet: FilteredPacket): FilteredPacket =>
  hook === 'prerouting' || hook === 'ingress' ? { ...packet, to: '' } : packet

interface Table {
  /** The names of the family and the table, such as `inet firewalld`. */
  readonly name: string
  readonly text: string
}

export const tablesOf = (ruleset: string): readonly Table[] =>
  ruleset.split(/^(?=table )/m).map((text) => ({ name: /^table (\S+ \S+) \{/.exec(text)?.[1] ?? '', text }))

function readTable(
  { name: table, text }: Table,
  read: ReadQueues,
): {
  readonly bases: readonly BaseChain[]
  readonly chains: ReadonlyMap<string, Chain>
} {
  const sets = new Map<string, ListedSet>()
  for (const [, name = '', body = ''] of text.matchAll(/\n\t(?:set|map) (\S+) \{([^]*?)\n\t\}/g)) {
    // The comment of an element may contain commas and braces.
    const [, elements] = /elements = \{([^]*?)\}/.exec(body.replaceAll(/ comment "[^"]*"/g, '')) ?? []
    // Leave out a set whose elements nft does not list, because the set may contain any element.
    const isWhole = !/\n\t\tflags [^\n]*(dynamic|timeout)/.test(body)
    if (elements !== undefined) sets.set(name, setOf(listOf(elements).map(withoutNotes), isWhole))
  }
  const bases: BaseChain[] = []
  const chains = new Map<string, Chain>()
  for (const [part, chain = '', body = ''] of text.matchAll(/\n\tchain (\S+) \{([^]*?)\n\t\}/g)) {
    const [head = '', hook] = /type \S+ hook (\S+)[^\n]*?;(?: policy \w+;)?/.exec(body) ?? []
    const policy = /policy drop;/.test(head) ? 'drop' : 'accept'
    const name = `${table} ${chain}`
    if (hook !== undefined) bases.push({ name, hook, head, text: part })
    const rules = statementsOf(body.replace(head, '')).map((rule): FilterRule => {
      const words = tokensOf(rule)
      const packets = /\bcounter packets (\d+)/.exec(rule)?.[1]
      const isBridges = table.startsWith('bridge ')
      const queue = queueIn(words)
      const note = queue && isUnread(queue, read) ? UNREAD_QUEUE : ''
      const ends = endsIn(words)
      return {
        text: `${name}: ${rule.replace(/ packets \d+ bytes \d+/g, '')}${note}`,
        packets: packets === undefined ? undefined : Number(packets),
        outcomes: (packet) => (isBetween(packet, ends) ? outcomesOf({ words, packet, sets, isBridges, read }) : []),
      }
    })
    chains.set(chain, { policy, policyText: `${name}: policy ${policy}`, rules })
  }
  return { bases, chains }
}

/** The listed elements of an nftables set or map. */
interface ListedSet {
  readonly values: readonly string[]
  /** False if programs add and remove elements, so that the set may soon contain any element. */
  readonly isWhole: boolean
  /** Compares an address with each element. */
  readonly within: (address: Address) => readonly Holds[]
}

function setOf(values: readonly string[], isWhole: boolean): ListedSet {
  // Parse each address only once, because block lists have tens of thousands of addresses.
  let tests: readonly ReturnType<typeof withinOf>[] | undefined
  return { values, isWhole, within: (address) => (tests ??= values.map(withinOf)).map((test) => test(address)) }
}

/** Removes the timeout and the counter from an element of a set. A map has its values after a colon. */
const withoutNotes = (element: string): string =>
  element.replace(/ (?:timeout|expires|counter|last used|limit|quota) .*?(?= : |$)/, '')

/**
 * Splits the text of a chain into its rules. A line has one rule, or several with a semicolon between them. A comment
 * becomes a rule without a verdict, which changes nothing. nft prints quoted texts unchanged, so that a backslash does not
 * escape a quote.
 */
const statementsOf = (body: string): readonly string[] =>
  (body.match(/(?:"[^"]*"|\{[^}]*\}|[^;\n"{])+/g) ?? []).map((rule) => rule.trim())

/** Splits a rule into words without quotes. A quoted text is one word, and so is a group in braces. */
const tokensOf = (rule: string): readonly string[] =>
  (rule.match(/"[^"]*"|\{[^}]*\}|[^\s"{]+/g) ?? []).map((token) => token.replaceAll('"', ''))

const listOf = (text: string): readonly string[] =>
  text
    .replace(/[{}]/g, '')
    .split(',')
    .map((each) => each.trim().replaceAll('"', ''))

/** Reads the networks with which a rule begins. */
function endsIn(words: readonly string[]): readonly RuleEnd[] {
  const ends: RuleEnd[] = []
  for (let at = 0; words[at] === 'ip' || words[at] === 'ip6'; at += 3) {
    const end = { saddr: 'source', daddr: 'destination' } as const
    const [field = '', value = ''] = words.slice(at + 1, at + 3)
    const net = netIn(value)
    if (!net || (field !== 'saddr' && field !== 'daddr')) return ends
    ends.push({ end: end[field], net })
  }
  return ends
}

const TARGETS: ReadonlyMap<string, Target> = new Map<string, Target>([
  ['accept', { to: 'accept' }],
  ['drop', { to: 'drop' }],
  ['reject', { to: 'drop' }],
  ['return', { to: 'return' }],
  // A rule that translates an address also accepts the packet: the packet continues with the new address.
  ['masquerade', { to: 'accept', effect: { kind: 'source' } }],
  ['snat', { to: 'accept', effect: { kind: 'source' } }],
  ['dnat', { to: 'accept', effect: { kind: 'diverted' } }],
  ['redirect', { to: 'accept', effect: { kind: 'diverted' } }],
  // A rule with `tproxy` may contain a verdict after it.
  ['tproxy', { to: 'continue', effect: { kind: 'diverted' } }],
])
/**
 * The statements after which a packet continues to the next part of the rule, with the number of words of each
 * statement.
 */
const STATEMENTS: Readonly<Record<string, number>> = {
  log: 1,
  prefix: 2,
  group: 2,
  snaplen: 2,
  level: 2,
  flags: 2,
  comment: 2,
  notrack: 1,
  continue: 1,
  'queue-threshold': 2,
}

/** The first words of the statements that set a value. */
const SET = new Set(['meta', 'ct', 'ip', 'ip6', 'ether', 'tcp', 'udp', 'th'])

/** Returns the change that the statement at index `at` makes to the packet, if it matters to weft. */
function effectAt(words: readonly string[], at: number): Effect | undefined {
  const [first = '', second = '', third, value] = words.slice(at, at + 4)
  if (first === 'notrack') return { kind: 'untracked' }
  const number = Number(value)
  if (third !== 'set' || Number.isNaN(number)) return undefined
  const field = `${first} ${second}`
  if (field === 'meta mark') return { kind: 'marked', clears: 0xff_ff_ff_ff, inverts: number }
  return field === 'ip ttl' || field === 'ip6 hoplimit' ? { kind: 'hops', hops: number } : undefined
}

/**
 * Returns the number of words of the statement that begins at index `at`. Returns 0 if the words at this index are a
 * comparison or an unknown statement.
 */
function statementAt(words: readonly string[], at: number): number {
  const word = words[at] ?? ''
  // The statement `counter packets 0 bytes 0` has 5 words, `counter name "x"` has 3, and `counter` alone has 1.
  if (word === 'counter') return words[at + 1] === 'packets' ? 5 : words[at + 1] === 'name' ? 3 : 1
  // A statement that sets a value has 4 words, such as `meta mark set 0x1` or `ip ttl set 1`.
  if (SET.has(word) && words[at + 2] === 'set') return 4
  return STATEMENTS[word] ?? 0
}

function endsCondition(words: readonly string[], at: number): boolean {
  const word = words[at] ?? ''
  return ['jump', 'goto', 'queue', 'vmap'].includes(word) || TARGETS.has(word) || statementAt(words, at) > 0
}

interface Reading {
  readonly words: readonly string[]
  readonly packet: FilteredPacket
  /** The elements of each nftables set, by the name of the set. */
  readonly sets: ReadonlyMap<string, ListedSet>
  /** True for a rule of the family bridge, whose interfaces are the ports of the bridge. */
  readonly isBridges: boolean
  readonly read: ReadQueues
}

function outcomesOf(reading: Reading): readonly Outcome[] {
  const { words } = reading
  const conditions: Holds[] = []
  const outcomes: Outcome[] = []
  for (let at = 0; at < words.length;) {
    const word = words[at] ?? ''
    const matches = allOf(conditions)
    if (matches === false) return outcomes
    // A target, together with its options, ends the rule, as in `reject with icmpx type ...` and `dnat to ...`.
    const target = TARGETS.get(word)
    if (target) return [...outcomes, ...targetOutcomes(reading, at, target, matches)]
    if (word === 'jump' || word === 'goto')
      return [...outcomes, { matches, target: { to: word, chain: words[at + 1] ?? '' } }]
    const queue = word === 'queue' ? queueIn(words) : undefined
    if (queue) return [...outcomes, ...queueOutcomes(queue, reading.read, matches)]
    const effect = effectAt(words, at)
    if (effect) outcomes.push({ matches, target: { to: 'continue', effect } })
    const statement = statementAt(words, at)
    if (statement > 0) {
      at += statement
      continue
    }
    const flags = flagsAt(reading, at)
    if (flags) {
      conditions.push(flags.holds)
      at += flags.width
      continue
    }
    const selector = selectorAt(reading, at)
    const { width, test } = selector
    if (!selector.isThere) return outcomes
    if (words[at + width] === 'vmap')
      return [...outcomes, ...vmapOutcomes(reading, words[at + width + 1] ?? '', test, matches)]
    const compared = comparedAt(reading, at + width, selector)
    conditions.push(compared.holds)
    at += width + compared.width
  }
  return outcomes
}

/** Reads the statement `queue` of a rule, such as `queue num 3` or `queue flags bypass to 0-3`. */
function queueIn(words: readonly string[]): Queue | undefined {
  const at = words.indexOf('queue')
  if (at < 0) return undefined
  const text = words.slice(at).join(' ')
  const [, first, last = first] = /\b(?:num|to) (\d+)(?:-(\d+))?/.exec(text) ?? []
  const numbers = first === undefined ? undefined : ([Number(first), Number(last)] as const)
  return { numbers, isBypassed: /\bbypass\b/.test(text) }
}

/** Returns the outcomes of a rule from its target on, which is the word at index `at`. */
function targetOutcomes({ words }: Reading, at: number, target: Target, matches: Match): readonly Outcome[] {
  const [, address] = /^snat (?:ip6? )?(?:prefix )?to (\S+)/.exec(words.slice(at).join(' ')) ?? []
  if (address !== undefined) return [{ matches, target: { to: 'accept', effect: { kind: 'source', address } } }]
  const last = TARGETS.get(words.at(-1) ?? '')
  return [{ matches, target }, ...(target.to === 'continue' && last ? [{ matches, target: last }] : [])]
}

/** Reads a comparison of TCP flags in nft's form `tcp flags syn / fin,syn,rst,ack`; undefined for other words. */
function flagsAt({ words, packet }: Reading, at: number): Compared | undefined {
  const isNot = words[at + 2] === '!='
  const first = at + (isNot ? 3 : 2)
  const [wanted = '', slash, mask = ''] = words.slice(first, first + 3)
  if (words[at] !== 'tcp' || words[at + 1] !== 'flags' || slash !== '/') return undefined
  const holds = negatedIf(isNot, hasFlags(packet, mask.split(','), wanted.split(',')))
  return { width: first + 3 - at, holds }
}

/**
 * Compares the field of the packet that a selector names with a value; returns undefined if weft does not know the
 * field.
 */
type Test = (value: string) => Holds

interface Selector {
  readonly width: number
  readonly test: Test
  /**
   * True if this file knows the selector, so that the next word must be a value. After an unknown selector a value may
   * or may not follow.
   */
  readonly isRead: boolean
  /**
   * True if the packet has the header that the selector names. Without the header the rule does not match, for any
   * value.
   */
  readonly isThere: boolean
  /** The result of a comparison that this file does not evaluate. */
  readonly unknown: 'unread' | undefined
  /** The address with which `test` compares a value; left out for other fields. */
  readonly address?: Address
  /** Evaluates a comparison by order or by bits, which is given as its first four words. */
  readonly orders?: ((words: readonly string[]) => Compared | undefined) | undefined
}

interface Compared {
  /** The number of words of the comparison. */
  readonly width: number
  readonly holds: Holds
}

/**
 * Compares the interface in a rule of the family bridge, which is a port of the bridge. A packet of this host has no
 * incoming port, and a packet to this host no outgoing port.
 */
function isPortOf(bridged: Bridged | undefined, end: 'in' | 'out'): Test {
  return (value) => {
    if (!bridged || bridged.ports.length === 0) return undefined
    const without = end === 'in' ? 'out' : 'in'
    const ports = bridged.ports.map((port) => isInterface(port, value, '*'))
    if (bridged.way === without || !ports.includes(true)) return false
    return ports.every(Boolean) ? true : undefined
  }
}

/**
 * Reads the selector that begins at word number `at`, such as `ip saddr`. Returns how the packet is compared with the
 * selector's values.
 */
function selectorAt({ words, packet, isBridges }: Reading, at: number): Selector {
  const [first = '', second = ''] = words.slice(at, at + 2)
  const family = packet.protocol === ARP ? ARP : familyOf(packet.source) === 'ipv4' ? 'ip' : 'ip6'
  const { bridged } = packet
  const of = (width: number, test: Test, isThere = true, isRead = true): Selector => {
    // A dot begins a concatenation of several fields, which this file does not evaluate. Skip the concatenation; its
    // result is unknown.
    if (words[at + width] !== '.') return { width, test, isThere, isRead, unknown: isRead ? undefined : 'unread' }
    const end = words.findIndex((word, place) => place > at && (/^[{@]/.test(word) || endsCondition(words, place)))
    const all = end < 0 ? words.length - at : end - at
    return { width: all, test: () => undefined, isThere: true, isRead: false, unknown: undefined }
  }
  const isIn = (address: Address): Selector => {
    const selector = of(2, (value) => isWithin(address, value), first === family)
    return selector.width === 2 ? { ...selector, address } : selector
  }
  const isName =
    (name: string | undefined): Test =>
    (value) =>
      name === undefined ? undefined : isInterface(name, value, '*')
  const [isFrom, isTo] = isBridges
    ? [isPortOf(bridged, 'in'), isPortOf(bridged, 'out')]
    : [isName(packet.from), isName(packet.to)]
  const isPort: Test = (value) => (packet.port === undefined ? undefined : isPortIn(packet.port, value))
  const isIcmpType: Test = (value) => isIcmp(packet, value)
  const protocol: Test = (value) => isProtocol(packet.protocol, value)
  switch (first === 'meta' ? second : `${first} ${second}`) {
    case 'ip saddr':
    case 'ip6 saddr':
      return isIn(packet.source)
    case 'ip daddr':
    case 'ip6 daddr':
      return isIn(packet.destination)
    case 'ip protocol':
    case 'ip6 nexthdr':
      return of(2, protocol, first === family)
    case 'udp dport':
    case 'tcp dport':
      return of(2, isPort, isProtocol(packet.protocol, first))
    case 'th dport':
      return of(2, isPort)
    case 'icmp type':
    case 'icmpv6 type':
      return of(2, isIcmpType, isProtocol(packet.protocol, first))
    case 'ct state':
      return of(2, (value) => isState(packet, value.split(',')))
    // The first packet of a connection still has its original addresses, so the conditions `ct status snat` and `ct
    // status dnat` do not hold for it.
    case 'ct status':
      return of(2, (value) => (packet.state === 'new' && /^[sd]nat$/.test(value) ? false : undefined))
    case 'fib saddr':
    case 'fib daddr':
      if (words[at + 2] !== 'type') break
      return of(3, (value) => isOfType(packet, second === 'saddr' ? 'source' : 'destination', [value]))
    case 'l4proto':
      return of(2, protocol)
    case 'nfproto':
      return of(2, (value) => value === { ip: 'ipv4', ip6: 'ipv6', [ARP]: '' }[family])
    case 'protocol':
    case 'ether type':
      return of(2, (value) => value === family)
    // The link-layer addresses of containers are not known.
    case 'ether saddr':
    case 'ether daddr':
      return of(2, () => undefined)
    case 'arp operation':
      return of(2, (value) => value === 'request', family === ARP)
    case 'iifname':
    case 'iif':
      return of(2, isFrom)
    case 'oifname':
    case 'oif':
      return of(2, isTo)
    case 'ibrname':
      return of(2, isName(bridged?.way === 'out' ? '' : bridged?.bridge))
    case 'obrname':
      return of(2, isName(bridged?.way === 'in' ? '' : bridged?.bridge))
    case 'pkttype':
      return of(2, (value) => (isMulticast(packet) ? ['multicast'] : ['host', 'unicast']).includes(value))
    case 'length':
    case 'ip length':
    case 'ip6 length':
      return { ...of(2, isInLengths, first === 'meta' || first === family), orders: lengthOrder }
    case 'mark':
      return { ...of(2, (value) => isMarked(packet, value)), orders: (word) => markBits(packet, word) }
    case 'udp sport':
    case 'tcp sport':
    case 'th sport':
    case 'tcp flags':
      return of(2, () => undefined, first === 'th' || isProtocol(packet.protocol, first))
  }
  if (first === 'iifname' || first === 'iif') return of(1, isFrom)
  if (first === 'oifname' || first === 'oif') return of(1, isTo)
  const isHeader = ['tcp', 'udp', 'icmp', 'icmpv6', 'sctp', 'dccp', 'esp', 'ah', 'arp'].includes(first)
  const isPair = isHeader || ['meta', 'ct', 'ip', 'ip6', 'fib', 'socket', 'rt', 'limit'].includes(first)
  const isThere = !isHeader || isProtocol(packet.protocol, first)
  return of(isPair && !endsCondition(words, at + 1) ? 2 : 1, () => 'unread', isThere, false)
}

const isInLengths: Test = (value) => {
  const [from = 0, to = from] = value.split('-').map(Number)
  return isLengthIn(from, to)
}

/** Evaluates an order of lengths, such as `> 1000`. */
function lengthOrder([word = '', value = '']: readonly string[]): Compared | undefined {
  const length = Number(value)
  const ranges: Readonly<Record<string, readonly [from: number, to: number]>> = {
    '<': [0, length - 1],
    '<=': [0, length],
    '>': [length + 1, LONGEST_PACKET],
    '>=': [length, LONGEST_PACKET],
  }
  const range = ranges[word]
  return range && { width: 2, holds: isLengthIn(...range) }
}

/** Evaluates a comparison of bits of the mark, such as `& 0x00008000 == 0x00008000`, if the packet's mark is 0. */
function markBits(packet: FilteredPacket, [word, , equals = '', value = '']: readonly string[]): Compared | undefined {
  if (word !== '&' || (equals !== '==' && equals !== '!=')) return undefined
  return { width: 4, holds: negatedIf(equals === '!=', isMarked(packet, value)) }
}

const COMPARISONS = new Set(['!=', '==', '<', '>', '<=', '>=', '&', '|', '^', 'over'])

function comparedAt({ words, sets }: Reading, at: number, selector: Selector): Compared {
  const { test, isRead, orders, unknown, address } = selector
  const word = words[at]
  const isNot = word === '!='
  const isCompared = word !== undefined && COMPARISONS.has(word)
  // This file evaluates comparisons by order (<, >) or by bits only for lengths and marks.
  if (isCompared && !isNot && word !== '==') return orders?.(words.slice(at, at + 4)) ?? { width: 2, holds: unknown }
  const place = isCompared ? at + 1 : at
  const value = words[place]
  if (value === undefined || (!isCompared && !isRead && endsCondition(words, place)))
    return { width: place - at, holds: unknown }
  const { values, isWhole, within } = valuesOf(value, sets)
  const each = address === undefined ? values.map(test) : within(address)
  const holds = each.includes(true)
    ? true
    : !isWhole
      ? 'unread'
      : (each.find((one) => one !== false) ?? (each.includes(undefined) ? undefined : false))
  return { width: place - at + 1, holds: negatedIf(isNot, holds) }
}

/** Returns the values of a set, or a single value as a list. A set that nft does not list has no known values. */
const valuesOf = (value: string, sets: Reading['sets']): ListedSet => {
  if (value.startsWith('@')) return sets.get(value.slice(1)) ?? setOf([], false)
  return setOf(value.startsWith('{') ? listOf(value) : [value], true)
}

/**
 * Evaluates a verdict map, which gives each value its own verdict, such as `ct state vmap { established : accept,
 * invalid : drop }`.
 */
function vmapOutcomes({ sets }: Reading, map: string, test: Test, before: Match): readonly Outcome[] {
  const { values: entries, isWhole } = valuesOf(map, sets)
  if (!isWhole) return [{ matches: undefined, target: { to: 'drop' } }]
  const outcomes: Outcome[] = []
  for (const entry of entries) {
    const [, key = '', verdict = '', chain = ''] = /^(.*) : (\S+)(?: (\S+))?$/.exec(entry) ?? []
    const target: Target | undefined =
      verdict === 'jump' || verdict === 'goto' ? { to: verdict, chain } : TARGETS.get(verdict)
    const holds = test(key)
    if (holds === false || !target) continue
    outcomes.push({ matches: both(holds, before), target })
    // The packet's field has only one value, so after a match no other entry of the map can match.
    if (holds === true) break
  }
  return outcomes
}

/**
 * Returns true if a port equals a port number or is in a range of ports; undefined for the name of a service, such as
 * `domain`.
 */
function isPortIn(port: number, text: string): Holds {
  const [from = 0, to = from] = text.split('-').map(Number)
  return Number.isNaN(from) || Number.isNaN(to) ? undefined : port >= from && port <= to
}
