// filter-walk.ts - decides from the output of `iptables -S` or `ip6tables -S` whether the firewall would accept a
// packet. Pure.

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

/** Evaluates the filter table for a packet. `text` is the output of `iptables -S` or `ip6tables -S`. */
export function walkFilter(text: string, packet: FilteredPacket): Verdict {
  const policies = new Map<string, string>()
  const rules = new Map<string, FilterRule[]>()
  for (const line of text.split('\n')) {
    const [word, chain = '', policy = ''] = line.split(' ')
    if (word === '-N') rules.set(chain, rules.get(chain) ?? [])
    if (word === '-P') policies.set(chain, policy)
    if (word === '-A')
      rules.set(chain, [...(rules.get(chain) ?? []), { text: line, outcomes: (one) => outcomesOf(line, one) }])
  }
  const chainOf = (name: string): Chain => {
    const policy = policies.get(name) ?? 'ACCEPT'
    return {
      policy: policy === 'ACCEPT' ? 'accept' : 'drop',
      policyText: `-P ${name} ${policy}`,
      rules: rules.get(name) ?? [],
    }
  }
  const names = new Set([packet.chain, ...policies.keys(), ...rules.keys()])
  return walkChain(new Map([...names].map((name) => [name, chainOf(name)])), packet.chain, packet)
}

/** The iptables matches (-m) whose options this file evaluates. The result of any other match is unknown. */
const READ_MATCHES = new Set([
  'comment',
  'udp',
  'tcp',
  'icmp',
  'icmp6',
  'multiport',
  'conntrack',
  'state',
  'iprange',
  'addrtype',
])
const DECIDED: Readonly<Record<string, Target>> = {
  ACCEPT: { to: 'accept' },
  DROP: { to: 'drop' },
  REJECT: { to: 'drop' },
  RETURN: { to: 'return' },
}

function outcomesOf(rule: string, packet: FilteredPacket): readonly Outcome[] {
  const { matches, target } = matchOf(rule, packet)
  return matches === false || !target ? [] : [{ matches, target }]
}

/**
 * Returns whether a rule matches the packet (undefined: it may match), and the chain or the verdict to which the rule
 * then leads.
 */
function matchOf(
  rule: string,
  packet: FilteredPacket,
): { readonly matches: Holds; readonly target: Target | undefined } {
  const words = (rule.match(/"(?:\\.|[^"])*"|\S+/g) ?? []).slice(2)
  const conditions: Holds[] = []
  let target: Target | undefined
  let isNot = false
  const say = (holds: Holds): void => {
    conditions.push(holds === undefined ? undefined : holds !== isNot)
    isNot = false
  }
  for (let at = 0; at < words.length; at++) {
    const word = words[at]
    const value = words[at + 1] ?? ''
    switch (word) {
      case '!':
        isNot = true
        continue
      case '-s':
      case '--src-range':
        say(isWithin(packet.source, value))
        break
      case '-d':
      case '--dst-range':
        say(isWithin(packet.destination, value))
        break
      case '-p':
        say(value === 'all' || isProtocol(packet.protocol, value))
        break
      case '--dport':
      case '--dports':
        say(
          packet.port === undefined ? undefined : value.split(',').some((range) => isInRange(packet.port ?? 0, range)),
        )
        break
      case '--icmp-type':
      case '--icmpv6-type':
        say(['8', '128', 'echo-request', 'any'].includes(value))
        break
      case '--ctstate':
      case '--state':
        say(isState(packet, value.split(',')))
        break
      case '--src-type':
      case '--dst-type':
        say(isOfType(packet, word === '--src-type' ? 'source' : 'destination', value.split(',')))
        break
      case '-i':
        say(packet.from === undefined ? undefined : isInterface(packet.from, value, '+'))
        break
      case '-o':
        say(packet.to === undefined ? undefined : isInterface(packet.to, value, '+'))
        break
      case '-j':
        target = DECIDED[value] ?? { to: 'jump', chain: value }
        break
      case '-g':
        target = { to: 'goto', chain: value }
        break
      case '-m':
        if (!READ_MATCHES.has(value)) say(undefined)
        break
      case '--comment':
      case '--reject-with':
        break
      default:
        if (word?.startsWith('-')) say(undefined)
        continue
    }
    at++
  }
  return { matches: allOf(conditions), target }
}

const isInRange = (port: number, text: string): boolean => {
  const [from = 0, to = from] = text.split(':').map(Number)
  return port >= from && port <= to
}
