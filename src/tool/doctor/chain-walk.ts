// chain-walk.ts - decides from a firewall's rules whether the firewall would accept a packet, without changing or
// testing the firewall. Pure.
//
// This code evaluates the usual conditions of rules. A rule with any other condition (a mark, a set) may or may not
// match, so the verdict is uncertain. filter-walk.ts reads the rules of iptables, nft-walk.ts the rules of nftables, and
// host-rules.ts evaluates both.
import {
  familyOf,
  hostNet,
  netContains,
  parseAddress,
  parseNet,
  type Address,
  type Family,
  type Net,
} from '../../net/address.ts'

export interface FilteredPacket {
  readonly chain: 'INPUT' | 'FORWARD' | 'OUTPUT'
  readonly protocol: string
  readonly source: Address
  readonly destination: Address
  readonly port?: number
  /** The type of an ICMP packet; an echo request if it is left out. */
  readonly icmp?: IcmpType
  readonly from?: string
  readonly to?: string
  /**
   * The packet's conntrack state: `new` for the first packet of a connection, `established` for each later packet in both
   * directions, `untracked` if a rule exempts the packet from connection tracking; left out if weft does not know the
   * state.
   */
  readonly state?: 'new' | 'established' | 'untracked'
  /** True if the answers to the packet have other ports, so that the kernel takes each packet for the first one. */
  readonly isOneWay?: boolean
  /** True if a rule that may or may not match exempts the packet from connection tracking. */
  readonly mayBeUntracked?: boolean
  /** The mark of the packet, if the caller assumes that no rule has marked the packet. */
  readonly mark?: 0
  /** The bridge of containers that the packet crosses; the rules of bridges see only such packets. */
  readonly bridged?: Bridged
}

/** The types of ICMP packets that weft evaluates: echo packets, and those of the neighbour discovery protocol (RFC 4861). */
type IcmpType = 'request' | 'reply' | 'solicitation' | 'advertisement'

export interface Bridged {
  readonly bridge: string
  /**
   * `in`: a container sends the packet to this host; `out`: this host sends the packet to a container; `through`: the
   * bridge passes the packet from one of its containers to another.
   */
  readonly way: 'in' | 'out' | 'through'
  /** The names of the bridge's ports; empty if weft does not know them. */
  readonly ports: readonly string[]
  /** True if the rules of the host see the packets that the bridge passes between its containers (br_netfilter). */
  readonly isFiltered?: boolean
}

export interface Verdict {
  readonly isAccepted: boolean
  /**
   * True if the verdict is proved. False if the verdict could differ because a rule may or may not match the packet.
   */
  readonly isCertain: boolean
  /** The text of the rule that decided about the packet, as iptables or nft prints it, or the policy of the chain. */
  readonly by: string
  /** The changes that rules of the chain make to the packet. */
  readonly effects: readonly SeenEffect[]
  /** The rules that drop the packet if a condition holds that weft cannot evaluate. */
  readonly unjudged: readonly UnjudgedRule[]
}

/**
 * A change that a rule makes to a packet. `untracked`: conntrack does not track the packet; `hops`: the packet has
 * another TTL or hop limit; `diverted`: the packet has another destination; `source`: the packet has another source
 * address; `mapped`: NETMAP changes the destination before routing, and the source address after routing; `marked`: the
 * packet gets another mark, for which policy rules may select another routing table.
 */
export interface Effect {
  readonly kind: 'untracked' | 'hops' | 'diverted' | 'source' | 'mapped' | 'marked'
  /** The bits of the mark that the rule clears, and those that the rule then inverts. */
  readonly clears?: number
  readonly inverts?: number
  /** The new TTL or hop limit. */
  readonly hops?: number
  /** The new source address, as the rule gives it; left out if the kernel chooses the address (masquerading). */
  readonly address?: string
}

export interface SeenEffect extends Effect {
  readonly by: string
  readonly isCertain: boolean
}

interface UnjudgedRule {
  readonly by: string
  /** The number of packets that the rule has dropped; undefined if the rule has no counter. */
  readonly packets: number | undefined
}

/**
 * Whether a condition of a rule holds for a packet. undefined: the condition depends on a property of the packet that
 * is not given, such as the port. `unread`: weft cannot evaluate the condition.
 */
export type Holds = boolean | 'unread' | undefined

/**
 * How a rule matches the packet. true: certainly; `unread`: if conditions hold that weft cannot evaluate; undefined: if
 * the packet has a property that is not given.
 */
export type Match = Exclude<Holds, false>

export type Target =
  | { readonly to: 'accept' | 'continue'; readonly effect?: Effect }
  | { readonly to: 'drop' }
  | { readonly to: 'return' }
  | { readonly to: 'jump' | 'goto'; readonly chain: string }

/** A possible action of a rule on a packet. */
export interface Outcome {
  readonly matches: Match
  readonly target: Target
}

/** A statement that passes packets to a program in a queue (NFQUEUE of iptables, `queue` of nftables). */
export interface Queue {
  /** The first and the last number of the queues among which the kernel chooses; undefined if weft cannot read them. */
  readonly numbers: readonly [first: number, last: number] | undefined
  /** True if the kernel accepts the packets if no program reads the queue. */
  readonly isBypassed: boolean
}

/** The numbers of the queues that a program reads; undefined if weft cannot list them. */
export type ReadQueues = ReadonlySet<number> | undefined

/** Returns true if no program reads any of the queues of a statement, so that the kernel drops all its packets. */
export function isUnread({ numbers, isBypassed }: Queue, read: ReadQueues): boolean {
  if (!numbers || !read || isBypassed) return false
  const [first, last] = numbers
  return ![...read].some((number) => number >= first && number <= last)
}

/** Returns the possible actions of a rule that passes packets to a program, which may drop or accept each packet. */
export function queueOutcomes(queue: Queue, read: ReadQueues, matches: Match): readonly Outcome[] {
  const drop = { to: 'drop' } as const
  if (isUnread(queue, read)) return [{ matches, target: drop }]
  return [
    { matches: undefined, target: drop },
    { matches, target: { to: 'accept' } },
  ]
}

/** The words after the text of a rule whose queue no program reads. */
export const UNREAD_QUEUE = ' (no program reads this queue)'

export interface FilterRule {
  readonly text: string
  /**
   * Returns the possible actions of the rule on a packet. The list is empty if the rule does not match, or only counts
   * packets.
   */
  readonly outcomes: (packet: FilteredPacket) => readonly Outcome[]
  /** The number of packets that the rule has counted; undefined if the rule has no counter. */
  readonly packets: number | undefined
}

export interface Chain {
  readonly policy: 'accept' | 'drop'
  readonly policyText: string
  readonly rules: readonly FilterRule[]
}

export function allOf(conditions: readonly Holds[]): Holds {
  if (conditions.includes(false)) return false
  if (conditions.includes(undefined)) return undefined
  return conditions.includes('unread') ? 'unread' : true
}

/** Returns the result of two conditions that must both hold. The type Match excludes false. */
export const both = (one: Match, other: Match): Match => (one === true || other === undefined ? other : one)

/** Negates a condition if `isNot` is true. */
export const negatedIf = (isNot: boolean, holds: Holds): Holds => (typeof holds === 'boolean' ? holds !== isNot : holds)

/** Evaluates the rules of a base chain, and of the chains to which they jump, for a packet. */
export function walkChain(chains: ReadonlyMap<string, Chain>, start: string, packet: FilteredPacket): Verdict {
  const walk = new Walk(chains, packet)
  const { policy = 'accept', policyText = '' } = chains.get(start) ?? {}
  const found = walk.through(start, true) ?? { isAccepted: policy === 'accept', by: policyText }
  const isCertain = !walk.isOpen && [...walk.possible].every((isAccepted) => isAccepted === found.isAccepted)
  return { ...found, isCertain, effects: walk.effects, unjudged: walk.unjudged }
}

/** A rule's decision about a packet; undefined if no rule of a chain decides. */
type Decision = Pick<Verdict, 'isAccepted' | 'by'> | undefined

/**
 * The maximum number of chains that are evaluated within each other. nftables permits 16, iptables-legacy as many as
 * there are chains.
 */
const MAX_DEPTH = 512

/** The evaluation of a base chain for one packet. */
class Walk {
  /**
   * The possible verdicts of the rules that may or may not match (true: the packet is accepted).
   * `isOpen` is true if such a rule (RETURN or goto) would end its chain without a verdict.
   */
  readonly possible = new Set<boolean>()
  isOpen = false
  readonly effects: SeenEffect[] = []
  readonly unjudged: UnjudgedRule[] = []
  readonly #chains: ReadonlyMap<string, Chain>
  readonly #packet: FilteredPacket
  /**
   * The decisions of the chains that the packet reached, by the chain and how the packet reached the chain. So a chain to
   * which many rules jump is evaluated only once.
   */
  readonly #decisions = new Map<string, Decision>()

  constructor(chains: ReadonlyMap<string, Chain>, packet: FilteredPacket) {
    this.#chains = chains
    this.#packet = packet
  }

  /**
   * Evaluates the rules of one chain, which the packet reaches if `reached` holds. Returns undefined if no rule decides
   * about the packet, so that the calling chain continues.
   */
  through(name: string, reached: Match, depth = 0): Decision {
    const key = `${reached} ${name}`
    if (this.#decisions.has(key)) return this.#decisions.get(key)
    if (depth > MAX_DEPTH) {
      this.isOpen = true
      return undefined
    }
    this.#decisions.set(key, undefined)
    const decision = this.#evaluate(name, reached, depth)
    this.#decisions.set(key, decision)
    return decision
  }

  #evaluate(name: string, reached: Match, depth: number): Decision {
    let here = reached
    for (const { text, outcomes, packets } of this.#chains.get(name)?.rules ?? []) {
      for (const { matches, target } of outcomes(this.#packet)) {
        const applies = both(here, matches)
        if ('chain' in target) {
          // A target that is not a chain, such as LOG, has no rules, so the packet continues.
          const found = this.through(target.chain, applies, depth + 1)
          if (matches === true && (found || target.to === 'goto')) return found
          if (found) this.possible.add(found.isAccepted)
          else if (target.to === 'goto') {
            this.isOpen = true
            here = applies
          }
        } else if (target.to === 'return') {
          if (matches === true) return undefined
          this.isOpen = true
          here = applies
        } else {
          if (target.to !== 'drop') this.#change(target.effect, text, applies)
          else if (applies === 'unread') this.unjudged.push({ by: text, packets })
          if (target.to === 'continue') continue
          const isAccepted = target.to === 'accept'
          if (matches === true) return { isAccepted, by: text }
          this.possible.add(isAccepted)
        }
      }
    }
    return undefined
  }

  /** Records an effect. The effect is uncertain if an earlier rule may have accepted the packet. */
  #change(effect: Effect | undefined, by: string, applies: Match): void {
    if (effect) this.effects.push({ ...effect, by, isCertain: applies === true && !this.possible.has(true) })
  }
}

/** Returns the network that a text names, or the network of a single address; undefined if the text has another form. */
export function netIn(text: string): Net | undefined {
  // Only networks have a slash. Rules of large clusters name tens of thousands of networks.
  const host = text.includes('/') ? undefined : parseAddress(text)
  return host === undefined ? parseNet(text) : hostNet(host)
}

/**
 * Reads the network or the range that a text names, and returns a function that returns true if an address is in it.
 * The function returns undefined if the text has another form, such as a non-contiguous mask.
 */
export function withinOf(text: string): (address: Address) => Holds {
  const net = netIn(text)
  if (net) return (address) => netContains(net, address)
  const [from, to] = text.split('-').map(parseAddress)
  if (from === undefined || to === undefined || familyOf(from) !== familyOf(to)) return () => undefined
  return (address) => familyOf(address) === familyOf(from) && address >= from && address <= to
}
export const isWithin = (address: Address, text: string): Holds => withinOf(text)(address)

/**
 * Returns true if a packet is in the networks `ends` with which a rule begins. Most rules of a large cluster name the
 * address of a service, and apply to no packet that weft evaluates.
 */
export const isBetween = (packet: FilteredPacket, ends: readonly RuleEnd[]): boolean =>
  ends.every(({ end, net }) => netContains(net, packet[end]))

/** The condition of a rule that the source or the destination of a packet is in a network. */
export interface RuleEnd {
  readonly end: 'source' | 'destination'
  readonly net: Net
}

/**
 * The names and numbers that rules use for the protocols of weft's packets (protocols(5)). Each line lists the
 * spellings of one protocol.
 */
const PROTOCOLS: readonly (readonly string[])[] = [
  ['tcp', '6'],
  ['udp', '17'],
  ['icmp', '1'],
  ['ipv6-icmp', 'icmpv6', '58'],
  ['ipencap', 'ipip', 'ip-in-ip', '4'],
  ['esp', 'ipv6-crypt', '50'],
]
export const isProtocol = (protocol: string, text: string): boolean =>
  protocol === text || PROTOCOLS.some((names) => names.includes(protocol) && names.includes(text))

/** The names and numbers that rules use for the types of ICMP packets (RFC 792, RFC 4443, RFC 4861). */
const ICMP_TYPES: Readonly<Record<IcmpType, readonly string[]>> = {
  request: ['echo-request', '8', '128'],
  reply: ['echo-reply', '0', '129'],
  solicitation: ['nd-neighbor-solicit', 'neighbour-solicitation', 'neighbor-solicitation', '135'],
  advertisement: ['nd-neighbor-advert', 'neighbour-advertisement', 'neighbor-advertisement', '136'],
}
/**
 * Returns true if a text names the type of an ICMP packet. The text may also have a code, such as `8/0`. The code of all
 * these types is 0.
 */
export const isIcmp = ({ icmp = 'request' }: FilteredPacket, text: string): boolean =>
  text === 'any' || ICMP_TYPES[icmp].some((type) => text === type || text === `${type}/0`)

export const isInterface = (name: string, pattern: string, wild: '+' | '*'): boolean =>
  pattern.endsWith(wild) ? name.startsWith(pattern.slice(0, -1)) : name === pattern

/**
 * Returns true if the packet's conntrack state is one of `states`; undefined if weft does not know the packet's state.
 */
export function isState({ state, mayBeUntracked = false }: FilteredPacket, states: readonly string[]): Holds {
  const names = states.map((each) => each.toLowerCase())
  if (names.some((name) => name === state)) return true
  if (mayBeUntracked && names.includes('untracked')) return 'unread'
  // The packets of a sound connection are not invalid, and only a rule can make a packet untracked.
  const others = names.filter((name) => name !== 'invalid' && name !== 'untracked')
  return state === undefined && others.length > 0 ? undefined : false
}

/**
 * Returns true if the source or destination address has one of the routing types `types` (ip-route(8)). The destination
 * of an incoming packet and the source of an outgoing packet have the type `local`, because they are addresses of this
 * host. All other addresses belong to other hosts (`unicast`), or are IPv6 multicast addresses.
 */
export function isOfType(packet: FilteredPacket, end: 'source' | 'destination', types: readonly string[]): boolean {
  const isLocal = packet.chain === (end === 'source' ? 'OUTPUT' : 'INPUT')
  const type = end === 'destination' && isMulticast(packet) ? 'multicast' : isLocal ? 'local' : 'unicast'
  return types.some((each) => each.toLowerCase() === type)
}

export const isMulticast = ({ destination }: FilteredPacket): boolean =>
  typeof destination === 'bigint' && destination >> 120n === 0xffn

export const echoOf = (family: Family): string => (family === 'ipv4' ? 'icmp' : 'ipv6-icmp')

/** The TTL or hop limit of packets of containers (net.ipv4.ip_default_ttl, net.ipv6.conf.all.hop_limit). */
export const USUAL_HOPS = 64

/** The lengths in bytes of the IP packets that a container sends, from a TCP packet without data to the usual MTU. */
const SHORTEST = 40
const LONGEST = 1500
/** The maximum length of an IP packet in bytes (RFC 791). */
export const LONGEST_PACKET = 65_535
/** Returns true if all usual lengths of packets are in a range, false if none is, and `unread` if some are. */
export function isLengthIn(from: number, to: number): Holds {
  if (from <= SHORTEST && to >= LONGEST) return true
  return to < SHORTEST || from > LONGEST_PACKET ? false : 'unread'
}

/**
 * Returns whether a packet has, of the TCP flags `mask`, exactly the flags `wanted`. The first packet of a connection
 * has only the flag SYN.
 */
export function hasFlags(
  { state, protocol }: FilteredPacket,
  mask: readonly string[],
  wanted: readonly string[],
): Holds {
  if (!isProtocol(protocol, 'tcp')) return false
  if (state !== 'new') return undefined
  return mask.every((flag) => wanted.includes(flag) === (flag.toLowerCase() === 'syn'))
}

/**
 * Returns true if the kernel passes a packet to the chains that translate addresses. The kernel translates the later
 * packets of a connection as the first packet, and untracked packets never.
 */
export const isTranslated = ({ state }: FilteredPacket): boolean => state !== 'established' && state !== 'untracked'

/** Compares the mark of a packet with a value; `unread` if weft does not know the mark. */
export const isMarked = ({ mark }: FilteredPacket, value: string): Holds =>
  mark === undefined ? 'unread' : Number(value) === mark
