// nft-walk.ts - decides from the output of `nft list ruleset` whether the chains of nftables would accept a packet.
// Pure.
//
// If this code cannot read a condition of a rule, it treats the result of the condition as unknown. A chain with the
// policy accept whose last rule rejects is treated like a chain with the policy drop.

import { familyOf } from '../../net/address.ts'
import {
  allOf,
  isInterface,
  isOfType,
  isProtocol,
  isState,
  isWithin,
  walkChain,
  type Chain,
  type FilteredPacket,
  type FilterRule,
  type Holds,
  type Outcome,
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

/** Returns true for an nftables table that the output of `iptables -S` shows too. */
const isOfIptables = (table: string, packet: FilteredPacket): boolean =>
  table === `${familyOf(packet.source) === 'ipv4' ? 'ip' : 'ip6'} filter`

const HOOKS: Readonly<Record<FilteredPacket['chain'], readonly string[]>> = {
  INPUT: ['ingress', 'prerouting', 'input'],
  FORWARD: ['ingress', 'prerouting', 'forward', 'postrouting'],
  OUTPUT: ['output', 'postrouting', 'egress'],
}

export interface Ruleset {
  /**
   * Returns the verdict of each base chain that sees the packet. `but.iptables` leaves out the table that `iptables -S`
   * shows, whose rules were evaluated already.
   */
  readonly walk: (packet: FilteredPacket, but: { readonly iptables: boolean }) => readonly NftVerdict[]
}

export function readRuleset(ruleset: string): Ruleset {
  const tables = tablesOf(ruleset).map((table) => ({ name: table.name, ...readTable(table) }))
  return {
    walk: (packet, but) =>
      tables.flatMap(({ name, bases, chains }) => {
        if (!isSeen(name, packet) || (but.iptables && isOfIptables(name, packet))) return []
        return bases
          .filter((base) => isOnTheWay(base, packet))
          .map((base) => ({ ...walkChain(chains, base.name.split(' ')[2] ?? '', packet), base }))
      }),
  }
}

/** Returns true if the chains of an nftables table see packets of this packet's family. */
const isSeen = (table: string, { source }: FilteredPacket): boolean =>
  [familyOf(source) === 'ipv4' ? 'ip' : 'ip6', 'inet', 'netdev'].includes(table.split(' ')[0] ?? '')

function isOnTheWay({ hook, head }: BaseChain, { chain, from, to }: FilteredPacket): boolean {
  if (!HOOKS[chain].includes(hook)) return false
  // An ingress or egress chain is bound to devices, and sees only the packets of these devices.
  if (hook !== 'ingress' && hook !== 'egress') return true
  const device = hook === 'egress' ? to : from
  return device !== undefined && head.includes(`"${device}"`)
}

interface Table {
  /** The names of the family and the table, such as `inet firewalld`. */
  readonly name: string
  readonly text: string
}

export const tablesOf = (ruleset: string): readonly Table[] =>
  ruleset.split(/^(?=table )/m).map((text) => ({ name: /^table (\S+ \S+) \{/.exec(text)?.[1] ?? '', text }))

interface Sets {
  readonly table: string
  /** The elements of each nftables set, by the name of the set. */
  readonly sets: ReadonlyMap<string, readonly string[]>
}

function readTable({ name: table, text }: Table): {
  readonly bases: readonly BaseChain[]
  readonly chains: ReadonlyMap<string, Chain>
} {
  const sets = new Map<string, readonly string[]>()
  for (const [, name = '', body = ''] of text.matchAll(/^\s+(?:set|map) (\S+) \{([^]*?)^\s+\}$/gm)) {
    const [, elements] = /elements = \{([^]*?)\}/.exec(body) ?? []
    // Leave out a set that programs change, or whose elements nft does not list, because the set may contain any
    // element.
    if (elements !== undefined && !/^\s+flags [^\n]*(dynamic|timeout)/m.test(body)) sets.set(name, listOf(elements))
  }
  const bases: BaseChain[] = []
  const chains = new Map<string, Chain>()
  for (const part of text.split(/^(?=\s+chain )/m).slice(1)) {
    const [, chain = ''] = /^\s+chain (\S+) \{/.exec(part) ?? []
    const [head = '', hook] = /type \S+ hook (\S+)[^\n]*?;(?:\s*policy \w+;)?/.exec(part) ?? []
    const policy = /policy drop;/.test(head) ? 'drop' : 'accept'
    const name = `${table} ${chain}`
    if (hook !== undefined) bases.push({ name, hook, head, text: part })
    const body = part
      .replace(/^[^{]*\{/, '')
      .replace(head, '')
      .replace(/\n\s*\}\s*(\}\s*)?$/, '\n')
    const rules = statementsOf(body).map((rule): FilterRule => {
      const words = tokensOf(rule)
      return {
        text: `${name}: ${rule.replace(/ packets \d+ bytes \d+/g, '')}`,
        outcomes: (packet) => outcomesOf(words, packet, { table, sets }),
      }
    })
    chains.set(chain, { policy, policyText: `${name}: policy ${policy}`, rules })
  }
  return { bases, chains }
}

/** Splits the text of a chain into its rules. A line has one rule, or several with a semicolon between them. */
const statementsOf = (body: string): readonly string[] =>
  (body.match(/(?:"(?:\\.|[^"\\])*"|\{[^}]*\}|[^;\n"{])+/g) ?? [])
    .map((rule) => rule.trim())
    .filter((rule) => rule !== '' && !/^(comment "[^"]*"|\})$/.test(rule))

/** Splits a rule into words. A quoted text loses its quotes, and a group in braces is one word. */
const tokensOf = (rule: string): readonly string[] =>
  (rule.match(/"(?:\\.|[^"\\])*"|\{[^}]*\}|[^\s"{]+/g) ?? []).map((token) => token.replace(/^"(.*)"$/s, '$1'))

const listOf = (text: string): readonly string[] =>
  text
    .replace(/^\{|\}$/g, '')
    .split(',')
    .map((each) => each.trim().replaceAll('"', ''))
    .filter((each) => each !== '')

const TARGETS: Readonly<Record<string, Target>> = {
  accept: { to: 'accept' },
  drop: { to: 'drop' },
  reject: { to: 'drop' },
  return: { to: 'return' },
  // A rule that translates an address also accepts the packet: the packet continues with the new address.
  masquerade: { to: 'accept' },
  snat: { to: 'accept' },
  dnat: { to: 'accept' },
  redirect: { to: 'accept' },
}
/**
 * The statements after which a packet continues to the next part of the rule, with the number of words of each
 * statement.
 */
const STATEMENTS: Readonly<Record<string, number>> = {
  log: 0,
  prefix: 1,
  group: 1,
  snaplen: 1,
  level: 1,
  flags: 1,
  comment: 1,
  notrack: 0,
  continue: 0,
  'queue-threshold': 1,
}

/**
 * Returns the number of words of the statement that begins at index `at`. Returns 0 if the words at this index are a
 * comparison or an unknown statement.
 */
function statementAt(words: readonly string[], at: number): number {
  const word = words[at] ?? ''
  // The statement `counter packets 0 bytes 0` has 5 words, `counter name "x"` has 3, and `counter` alone has 1.
  if (word === 'counter') return words[at + 1] === 'packets' ? 5 : words[at + 1] === 'name' ? 3 : 1
  // A statement that sets a value has 4 words, such as `meta mark set 0x1` or `ct mark set 0x1`.
  if ((word === 'meta' || word === 'ct') && words[at + 2] === 'set') return 4
  const more = STATEMENTS[word]
  return more === undefined ? 0 : 1 + more
}

const endsCondition = (words: readonly string[], at: number): boolean =>
  at >= words.length ||
  ['jump', 'goto', 'queue', 'vmap'].includes(words[at] ?? '') ||
  TARGETS[words[at] ?? ''] !== undefined ||
  statementAt(words, at) > 0

interface Reading {
  readonly words: readonly string[]
  readonly packet: FilteredPacket
  readonly sets: Sets['sets']
}

function outcomesOf(words: readonly string[], packet: FilteredPacket, { sets }: Sets): readonly Outcome[] {
  const conditions: Holds[] = []
  const reading = { words, packet, sets }
  for (let at = 0; at < words.length;) {
    const word = words[at] ?? ''
    const matches = allOf(conditions)
    if (matches === false) return []
    // A target, together with its options, ends the rule, as in `reject with icmpx type ...` and `dnat to ...`.
    const target = TARGETS[word]
    if (target) return [{ matches, target }]
    if (word === 'jump' || word === 'goto') return [{ matches, target: { to: word, chain: words[at + 1] ?? '' } }]
    // The statement `queue` passes the packet to a program, whose decision is not known. The program may drop the
    // packet, so the rule counts as a drop rule that may match.
    if (word === 'queue') return [{ matches: undefined, target: { to: 'drop' } }]
    const statement = statementAt(words, at)
    if (statement > 0) {
      at += statement
      continue
    }
    const selector = selectorAt(reading, at)
    const { width, test } = selector
    if (!selector.isThere) return []
    if (words[at + width] === 'vmap') return vmapOutcomes(reading, words[at + width + 1] ?? '', test, matches)
    const compared = comparedAt(reading, at + width, selector)
    conditions.push(compared.holds)
    at += width + compared.width
  }
  return []
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
}

/**
 * Reads the selector that begins at word number `at`, such as `ip saddr`. Returns how the packet is compared with the
 * selector's values.
 */
function selectorAt({ words, packet }: Reading, at: number): Selector {
  const [first = '', second = ''] = words.slice(at, at + 2)
  const family = familyOf(packet.source) === 'ipv4' ? 'ip' : 'ip6'
  const of = (width: number, test: Test, isThere = true, isRead = true): Selector => {
    // A dot begins a concatenation of several fields, which this file does not evaluate. Skip the concatenation; its
    // result is unknown.
    if (words[at + width] !== '.') return { width, test, isThere, isRead }
    const end = words.findIndex((word, place) => place > at && (/^[{@]/.test(word) || endsCondition(words, place)))
    return { width: end < 0 ? words.length - at : end - at, test: () => undefined, isThere: true, isRead: false }
  }
  const isName =
    (name: string | undefined): Test =>
    (value) =>
      name === undefined ? undefined : isInterface(name, value, '*')
  const isPort: Test = (value) => (packet.port === undefined ? undefined : isPortIn(packet.port, value))
  const isEcho: Test = (value) => value === 'echo-request'
  const protocol: Test = (value) => isProtocol(packet.protocol, value)
  switch (first === 'meta' ? second : `${first} ${second}`) {
    case 'ip saddr':
    case 'ip6 saddr':
      return of(2, (value) => isWithin(packet.source, value), first === family)
    case 'ip daddr':
    case 'ip6 daddr':
      return of(2, (value) => isWithin(packet.destination, value), first === family)
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
      return of(2, isEcho, isProtocol(packet.protocol, first))
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
      return of(2, (value) => value === (family === 'ip' ? 'ipv4' : 'ipv6'))
    case 'protocol':
      return of(2, (value) => value === family)
    case 'iifname':
    case 'iif':
      return of(2, isName(packet.from))
    case 'oifname':
    case 'oif':
      return of(2, isName(packet.to))
  }
  if (first === 'iifname' || first === 'iif') return of(1, isName(packet.from))
  if (first === 'oifname' || first === 'oif') return of(1, isName(packet.to))
  const isHeader = ['tcp', 'udp', 'icmp', 'icmpv6', 'sctp', 'dccp', 'esp', 'ah'].includes(first)
  const isPair = isHeader || ['meta', 'ct', 'ip', 'ip6', 'th', 'fib', 'ether', 'socket', 'rt', 'limit'].includes(first)
  const isThere = !isHeader || isProtocol(packet.protocol, first)
  return of(isPair && !endsCondition(words, at + 1) ? 2 : 1, () => undefined, isThere, false)
}

const COMPARISONS = new Set(['!=', '==', '<', '>', '<=', '>=', '&', '|', '^', 'over', '/'])

function comparedAt(
  { words, sets }: Reading,
  at: number,
  { test, isRead }: Selector,
): { readonly width: number; readonly holds: Holds } {
  const word = words[at]
  const isNot = word === '!='
  const isCompared = word !== undefined && COMPARISONS.has(word)
  // This file does not evaluate comparisons by order (<, >) or by bits, so the result is unknown.
  if (isCompared && !isNot && word !== '==') return { width: 2, holds: undefined }
  const place = isCompared ? at + 1 : at
  const value = words[place]
  if (value === undefined || (!isCompared && !isRead && endsCondition(words, place)))
    return { width: place - at, holds: undefined }
  const values = valuesOf(value, sets)
  const each = values?.map(test)
  const holds = !each ? undefined : each.includes(true) ? true : each.includes(undefined) ? undefined : false
  return { width: place - at + 1, holds: holds === undefined ? undefined : holds !== isNot }
}

/** Returns the values of a set, or a single value as a list; undefined if weft does not know the set's elements. */
const valuesOf = (value: string, sets: Sets['sets']): readonly string[] | undefined =>
  value.startsWith('{') ? listOf(value) : value.startsWith('@') ? sets.get(value.slice(1)) : [value]

/**
 * Evaluates a verdict map, which gives each value its own verdict, such as `ct state vmap { established : accept,
 * invalid : drop }`.
 */
function vmapOutcomes({ sets }: Reading, map: string, test: Test, before: true | undefined): readonly Outcome[] {
  const entries = valuesOf(map, sets)
  if (!entries) return [{ matches: undefined, target: { to: 'drop' } }]
  const outcomes: Outcome[] = []
  for (const entry of entries) {
    const [, key = '', verdict = '', chain = ''] = /^(.*) : (\S+)(?: (\S+))?$/.exec(entry) ?? []
    const target: Target | undefined =
      verdict === 'jump' || verdict === 'goto' ? { to: verdict, chain } : TARGETS[verdict]
    const holds = test(key)
    if (holds === false || !target) continue
    const matches = holds && before
    outcomes.push({ matches, target })
    // The packet's field has only one value, so after a match no other entry of the map can match.
    if (holds) break
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
