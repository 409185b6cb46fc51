// chain-walk.ts - decides from a firewall's rules whether the firewall would accept a packet, without changing or
// testing the firewall. Pure.
//
// This code evaluates the usual conditions of rules. A rule with any other condition (a mark, a set) may or may not
// match, so the verdict is uncertain. filter-walk.ts reads the rules of iptables, nft-walk.ts those of nftables.
import { familyOf, hostNet, netContains, parseAddress, parseNet, type Address, type Family } from '../../net/address.ts'

export interface FilteredPacket {
  readonly chain: 'INPUT' | 'FORWARD' | 'OUTPUT'
  readonly protocol: string
  readonly source: Address
  readonly destination: Address
  readonly port?: number
  readonly from?: string
  readonly to?: string
  /**
   * The packet's conntrack state: `new` for the first packet of a connection; left out if weft does not know the state.
   */
  readonly state?: 'new'
}

export interface Verdict {
  readonly isAccepted: boolean
  /**
   * True if the verdict is proved. False if the verdict could differ because a rule may or may not match the packet.
   */
  readonly isCertain: boolean
  /** The text of the rule that decided about the packet, as iptables or nft prints it, or the policy of the chain. */
  readonly by: string
}

/** Whether a condition of a rule holds for a packet; undefined if weft does not know. */
export type Holds = boolean | undefined

export type Target =
  | { readonly to: 'accept' | 'drop' | 'return' }
  | { readonly to: 'jump' | 'goto'; readonly chain: string }

/**
 * A possible action of a rule on a packet. `matches` is true if the rule certainly matches, undefined if it may match.
 */
export interface Outcome {
  readonly matches: true | undefined
  readonly target: Target
}

export interface FilterRule {
  readonly text: string
  /**
   * Returns the possible actions of the rule on a packet. The list is empty if the rule does not match, or only counts
   * packets.
   */
  readonly outcomes: (packet: FilteredPacket) => readonly Outcome[]
}

export interface Chain {
  readonly policy: 'accept' | 'drop'
  readonly policyText: string
  readonly rules: readonly FilterRule[]
}

export function allOf(conditions: readonly Holds[]): Holds {
  if (conditions.includes(false)) return false
  return conditions.includes(undefined) ? undefined : true
}

/** Evaluates the rules of a base chain, and of the chains to which they jump, for a packet. */
export function walkChain(chains: ReadonlyMap<string, Chain>, start: string, packet: FilteredPacket): Verdict {
  /**
   * The possible verdicts (true: the packet is accepted) of the rules of which it is not known whether they match.
   * `open` is true if such a rule would end the evaluation of its chain without a verdict.
   */
  const possible = new Set<boolean>()
  let open = false
  /**
   * Evaluates the rules of one chain. Returns undefined if no rule decides about the packet, so that the calling chain
   * continues.
   */
  function walk(name: string, depth: number): Omit<Verdict, 'isCertain'> | undefined {
    for (const { text, outcomes } of depth > 32 ? [] : (chains.get(name)?.rules ?? [])) {
      for (const { matches, target } of outcomes(packet)) {
        if (target.to === 'jump' || target.to === 'goto') {
          if (!chains.has(target.chain)) continue
          const found = walk(target.chain, depth + 1)
          if (matches && (found || target.to === 'goto')) return found
          if (found) possible.add(found.isAccepted)
          else if (target.to === 'goto') open = true
        } else if (target.to === 'return') {
          if (matches) return undefined
          open = true
        } else {
          const isAccepted = target.to === 'accept'
          if (matches) return { isAccepted, by: text }
          possible.add(isAccepted)
        }
      }
    }
    return undefined
  }
  const { policy = 'accept', policyText = '' } = chains.get(start) ?? {}
  const found = walk(start, 0) ?? { isAccepted: policy === 'accept', by: policyText }
  return { ...found, isCertain: !open && [...possible].every((isAccepted) => isAccepted === found.isAccepted) }
}

/**
 * Returns true if an address is in the network or the range that the text names; undefined if the text has another
 * form, such as a non-contiguous mask.
 */
export function isWithin(address: Address, text: string): Holds {
  const host = parseAddress(text)
  const net = host === undefined ? parseNet(text) : hostNet(host)
  if (net) return netContains(net, address)
  const [from, to] = text.split('-').map(parseAddress)
  if (from === undefined || to === undefined || familyOf(from) !== familyOf(to)) return undefined
  return familyOf(address) === familyOf(from) && address >= from && address <= to
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

export const isInterface = (name: string, pattern: string, wild: '+' | '*'): boolean =>
  pattern.endsWith(wild) ? name.startsWith(pattern.slice(0, -1)) : name === pattern

/**
 * Returns true if the packet's conntrack state is one of `states`; undefined if weft does not know the packet's state.
 */
export const isState = ({ state }: FilteredPacket, states: readonly string[]): Holds =>
  state === undefined ? undefined : states.some((each) => each.toLowerCase() === state)

/**
 * Returns true if the source or destination address has one of the routing types `types` (ip-route(8)). The destination
 * of an incoming packet and the source of an outgoing packet have the type `local`, because they are addresses of this
 * host. All other addresses belong to other hosts (`unicast`). Multicast does not occur.
 */
export function isOfType({ chain }: FilteredPacket, end: 'source' | 'destination', types: readonly string[]): boolean {
  const isLocal = chain === (end === 'source' ? 'OUTPUT' : 'INPUT')
  return types.some((type) => type.toLowerCase() === (isLocal ? 'local' : 'unicast'))
}

export const echoOf = (family: Family): string => (family === 'ipv4' ? 'icmp' : 'ipv6-icmp')
