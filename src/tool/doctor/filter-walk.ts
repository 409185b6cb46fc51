// filter-walk.ts - what iptables, or ip6tables, would do with a packet, as far as its rules can be told from outside. Pure.
//
// A rule whose conditions are all known to hold, or not to hold, is decided; one that asks for more (a state, a mark, a set) may or may
// not match, and makes what comes out of it uncertain: who reads a firewall must not claim more than it says.

import { hostNet, netContains, parseAddress, parseNet, type Address } from '../../net/address.ts'

export interface FilteredPacket {
  readonly chain: 'INPUT' | 'FORWARD' | 'OUTPUT'
  readonly protocol: string
  readonly source: Address
  readonly destination: Address
  readonly port?: number
  readonly from?: string
  readonly to?: string
}

export interface Verdict {
  readonly isAccepted: boolean
  /** False where a rule that may or may not match would decide otherwise. */
  readonly isCertain: boolean
  /** The rule, as `iptables -S` has it, or the policy. */
  readonly by: string
}

interface Rules {
  readonly policies: ReadonlyMap<string, string>
  readonly chains: ReadonlyMap<string, readonly string[]>
}

function read(text: string): Rules {
  const policies = new Map<string, string>()
  const chains = new Map<string, string[]>()
  for (const line of text.split('\n')) {
    const [word, chain = '', policy = ''] = line.split(' ')
    if (word === '-P') policies.set(chain, policy)
    if (word === '-A') chains.set(chain, [...(chains.get(chain) ?? []), line])
  }
  return { policies, chains }
}

/** Tells whether a rule matches (undefined: maybe), and where it sends the packet. */
function matchOf(
  rule: string,
  packet: FilteredPacket,
): { readonly matches: boolean | undefined; readonly target: string } {
  const words = (rule.match(/"(?:\\.|[^"])*"|\S+/g) ?? []).slice(2)
  let matches: boolean | undefined = true
  let target = ''
  let isNot = false
  const say = (holds: boolean | undefined): void => {
    const said = holds === undefined ? undefined : holds !== isNot
    if (said === false) matches = false
    else if (said === undefined && matches !== false) matches = undefined
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
        say(isWithin(packet.source, value))
        break
      case '-d':
        say(isWithin(packet.destination, value))
        break
      case '-p':
        say(value === 'all' || value === packet.protocol)
        break
      case '--dport':
      case '--dports':
        say(
          packet.port === undefined ? undefined : value.split(',').some((range) => isInRange(packet.port ?? 0, range)),
        )
        break
      case '-i':
        say(packet.from === undefined ? undefined : isInterface(packet.from, value))
        break
      case '-o':
        say(packet.to === undefined ? undefined : isInterface(packet.to, value))
        break
      case '-j':
      case '-g':
        target = value
        break
      case '-m':
        if (!['comment', 'udp', 'tcp', 'multiport'].includes(value)) say(undefined)
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
  return { matches, target }
}

/** Undefined for what is no network and no address, such as one with a mask that is not of leading bits. */
const isWithin = (address: Address, text: string): boolean | undefined => {
  const host = parseAddress(text)
  const net = host === undefined ? parseNet(text) : hostNet(host)
  return net && netContains(net, address)
}
const isInRange = (port: number, text: string): boolean => {
  const [from = 0, to = from] = text.split(':').map(Number)
  return port >= from && port <= to
}
const isInterface = (name: string, pattern: string): boolean =>
  pattern.endsWith('+') ? name.startsWith(pattern.slice(0, -1)) : name === pattern

/** `text` is what `iptables -S` prints of the filter table. */
export function walkFilter(text: string, packet: FilteredPacket): Verdict {
  const { policies, chains } = read(text)
  let isCertain = true
  /** Undefined where the chain says nothing, and the one that called it goes on. */
  function walk(chain: string, depth: number): Omit<Verdict, 'isCertain'> | undefined {
    for (const rule of depth > 32 ? [] : (chains.get(chain) ?? [])) {
      const { matches, target } = matchOf(rule, packet)
      if (matches === false || target === '') continue
      if (target === 'RETURN') {
        if (matches) return undefined
        isCertain = false
      } else if (['ACCEPT', 'DROP', 'REJECT'].includes(target)) {
        if (matches) return { isAccepted: target === 'ACCEPT', by: rule }
        isCertain = false
      } else if (chains.has(target)) {
        const found = walk(target, depth + 1)
        if (found && matches) return found
        if (found) isCertain = false
      }
    }
    return undefined
  }
  const policy = policies.get(packet.chain) ?? 'ACCEPT'
  const found = walk(packet.chain, 0) ?? { isAccepted: policy === 'ACCEPT', by: `-P ${packet.chain} ${policy}` }
  return { ...found, isCertain }
}
