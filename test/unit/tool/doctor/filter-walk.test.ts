// filter-walk.test.ts - the verdict of iptables rules about a packet, and whether it is certain.

import { expect, it } from 'vitest'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'
import type { FilteredPacket, Verdict } from '../../../../src/tool/doctor/chain-walk.ts'
import { readListing } from '../../../../src/tool/doctor/filter-walk.ts'

const walkFilter = (text: string, one: FilteredPacket): Verdict =>
  readListing(text)
    .walk(one)
    .find(({ table }) => table === 'filter')!
const packet: FilteredPacket = {
  chain: 'INPUT',
  protocol: 'udp',
  source: parseIpv4('192.0.2.7')!,
  destination: parseIpv4('192.0.2.1')!,
  port: 8285,
  from: 'eth0',
}
const ofIpv6: FilteredPacket = {
  ...packet,
  source: parseIpv6('2001:db8::7')!,
  destination: parseIpv6('2001:db8::1')!,
}
const accepted = { isAccepted: true, isCertain: true }
const dropped = { isAccepted: false, isCertain: true }
const perhaps = (isAccepted: boolean) => ({ isAccepted, isCertain: false })

it.each([
  ['no rule', [], accepted],
  ['the policy', ['-P INPUT DROP'], dropped],
  ['a port', ['-A INPUT -p udp -m udp --dport 8285 -j DROP'], dropped],
  [
    'ports',
    ['-A INPUT -p udp -m multiport --dports 53,8000:9000 -j REJECT --reject-with icmp-port-unreachable'],
    dropped,
  ],
  ['another port', ['-A INPUT -p udp -m udp --dport 8286 -j DROP'], accepted],
  ['another protocol', ['-A INPUT -p tcp -m tcp --dport 8285 -j DROP'], accepted],
  ['the first that matches', ['-P INPUT DROP', '-A INPUT -s 192.0.2.0/24 -j ACCEPT', '-A INPUT -j DROP'], accepted],
  ['another source', ['-A INPUT ! -s 192.0.2.0/24 -j DROP'], accepted],
  ['not another source', ['-A INPUT ! -s 198.51.100.0/24 -j DROP'], dropped],
  ['one address', ['-A INPUT -s 192.0.2.7/32 -d 192.0.2.1/32 -j DROP'], dropped],
  ['interfaces', ['-A INPUT -i eth+ -j DROP'], dropped],
  ['another interface', ['-A INPUT ! -i eth0 -j DROP', '-A INPUT -i lo -j DROP'], accepted],
  ['comments', ['-A INPUT -p udp -m comment --comment "not -j ACCEPT, this" -j DROP'], dropped],
  ['a state, which is not known', ['-A INPUT -m conntrack --ctstate ESTABLISHED -j DROP'], perhaps(true)],
  ['a state that no sound packet has', ['-A INPUT -m conntrack --ctstate INVALID -j DROP'], accepted],
  [
    'a state that would let it in',
    ['-P INPUT DROP', '-A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT'],
    perhaps(false),
  ],
  ['a chain', ['-N own', '-A INPUT -j own', '-A own -p udp -j DROP'], dropped],
  [
    'a chain that gives it back',
    ['-P INPUT DROP', '-A INPUT -j own', '-A INPUT -j ACCEPT', '-A own -p udp -j RETURN', '-A own -j DROP'],
    accepted,
  ],
  ['a chain that says nothing', ['-P INPUT DROP', '-A INPUT -j own', '-A own -p tcp -j ACCEPT'], dropped],
  ['a chain for some', ['-A INPUT -m set --match-set a src -j own', '-A own -j DROP'], perhaps(true)],
  ['what only counts', ['-A INPUT -j LOG --log-prefix "in: "', '-A INPUT'], accepted],
  ['a chain without an end', ['-A INPUT -j own', '-A own -j own'], accepted],
])('reads %s', (_name, rules, verdict) => {
  expect(walkFilter(rules.join('\n'), packet)).toMatchObject(verdict)
})

it('names the rule, and separates the chains', () => {
  const rules = '-P INPUT ACCEPT\n-P FORWARD DROP\n-A INPUT -p udp -j DROP\n'
  expect(walkFilter(rules, packet).by).toBe('-A INPUT -p udp -j DROP')
  expect(walkFilter(rules, { ...packet, chain: 'FORWARD' }).by).toBe('-P FORWARD DROP')
  expect(walkFilter('', packet).by).toBe('-P INPUT ACCEPT')
})

it.each([
  ['the first and the last of some ports', ['-A INPUT -p udp -m multiport --dports 53,8285:9000 -j DROP'], dropped],
  ['ports up to it', ['-A INPUT -p udp -m multiport --dports 8000:8285 -j DROP'], dropped],
  ['ports up to the one before', ['-A INPUT -p udp -m multiport --dports 8000:8284 -j DROP'], accepted],
  ['ports from the next', ['-A INPUT -p udp -m multiport --dports 8286:9000 -j DROP'], accepted],
  ['any protocol', ['-A INPUT -p all -j DROP'], dropped],
  ['what is not its protocol', ['-A INPUT ! -p udp -j DROP'], accepted],
  ['an address without a length', ['-A INPUT -s 192.0.2.7 -j DROP'], dropped],
  ['another address without a length', ['-A INPUT -s 192.0.2.8 -j DROP'], accepted],
  ['not its destination', ['-A INPUT ! -d 192.0.2.1/32 -j DROP'], accepted],
  [
    'one that is refused by its address, though its mark may be',
    ['-A INPUT -m mark --mark 0x1 -s 10.0.0.0/8 -j DROP'],
    accepted,
  ],
  [
    'one that is refused by its address, and then asks more',
    ['-A INPUT -s 10.0.0.0/8 -m mark --mark 0x1 -j DROP'],
    accepted,
  ],
  ['a state that is not wanted', ['-A INPUT -m conntrack ! --ctstate NEW -j DROP'], perhaps(true)],
  ['an interface outward, of which nothing is known', ['-A INPUT -o eth0 -j DROP'], perhaps(true)],
  ['another interface by its beginning', ['-A INPUT -i wlan+ -j DROP'], accepted],
  ['an interface that only begins so', ['-A INPUT -i eth -j DROP'], accepted],
  ['a jump without return', ['-A INPUT -g own', '-A own -j DROP'], dropped],
  [
    'a chain that may give it back',
    ['-A INPUT -j own', '-A own -m mark --mark 0x1 -j RETURN', '-A own -j DROP'],
    perhaps(false),
  ],
  ['a return from the first chain', ['-P INPUT DROP', '-A INPUT -j RETURN', '-A INPUT -j ACCEPT'], dropped],
  [
    'a chain that perhaps is asked and says nothing',
    ['-A INPUT -m mark --mark 0x1 -j own', '-A own -p tcp -j DROP'],
    accepted,
  ],
  ['chains within chains', ['-A INPUT -j a', '-A a -j b', '-A b -j REJECT'], dropped],
  ['a rule of another chain', ['-A FORWARD -j DROP'], accepted],
  ['a comment behind the jump', ['-A INPUT -j DROP -m comment --comment "x -j ACCEPT"'], dropped],
  ['quotes in a comment', [String.raw`-A INPUT -j DROP -m comment --comment "a \" -j ACCEPT \" b"`], dropped],
  ['a match by itself, which is not known', ['-A INPUT -m socket -j DROP'], perhaps(true)],
  ['fragments, which is not known', ['-A INPUT -f -j DROP'], perhaps(true)],
  ['an interface that begins with the same letter', ['-A INPUT -i erspan+ -j DROP'], accepted],
  ['what is no rule', ['-N own', '# -A INPUT -j DROP', ''], accepted],
])('reads %s too', (_name, rules, verdict) => {
  expect(walkFilter(rules.join('\n'), packet)).toMatchObject(verdict)
})

it('is uncertain about a rule with a port or an interface if the packet has no port or interface', () => {
  const { port: _port, from: _from, ...bare } = packet
  expect(walkFilter('-A INPUT -p udp --dport 8285 -j DROP', bare)).toMatchObject(perhaps(true))
  expect(walkFilter('-A INPUT -i eth0 -j DROP', bare)).toMatchObject(perhaps(true))
  expect(walkFilter('-A INPUT -o eth1 -j DROP', { ...bare, to: 'eth1' })).toMatchObject(dropped)
  expect(walkFilter('-A INPUT -o eth2 -j DROP', { ...bare, to: 'eth1' })).toMatchObject(accepted)
})

it.each([
  ['a network', ['-A INPUT -s 2001:db8::/32 -j DROP'], dropped],
  ['another network', ['-A INPUT -s fd00::/8 -j DROP'], accepted],
  ['not another network', ['-A INPUT ! -s fd00::/8 -d 2001:db8::1/128 -j DROP'], dropped],
  ['one address', ['-A INPUT -s 2001:db8::7 -j DROP'], dropped],
  ['a port', ['-A INPUT -p udp -m udp --dport 8285 -j REJECT --reject-with icmp6-port-unreachable'], dropped],
  ['another protocol', ['-A INPUT -p ipv6-icmp -j DROP'], accepted],
  ['IPv4, which is another family', ['-A INPUT -s 0.0.0.0/0 -j DROP'], accepted],
  ['a mask that is not of leading bits', ['-A INPUT -s 2001:db8::/ffff::ffff -j DROP'], perhaps(true)],
])('judges an IPv6 packet by %s', (_, rules, expected) => {
  expect(walkFilter(rules.join('\n'), ofIpv6)).toMatchObject(expected)
})

it('compares the ports of TCP packets like those of UDP packets', () => {
  const tcp = { ...packet, protocol: 'tcp' } as const
  expect(walkFilter('-A INPUT -p tcp -m tcp --dport 8285 -j DROP', tcp)).toMatchObject(dropped)
  expect(walkFilter('-A INPUT -p tcp -m tcp --dport 22 -j DROP', tcp)).toMatchObject(accepted)
})

const chainsTo = (count: number, jumps: number, last: string): string[] =>
  Array.from({ length: count }, (_, at) => Array.from({ length: jumps }, () => `-A c${at} -j c${at + 1}`))
    .flat()
    .concat('-A INPUT -j c0', last)

it('evaluates a chain once, even if the number of ways to the chain doubles with each jump', () => {
  expect(walkFilter(chainsTo(60, 2, '-A c60 -s 198.51.100.1 -j DROP').join('\n'), packet)).toMatchObject(accepted)
  expect(walkFilter(chainsTo(60, 2, '-A c60 -j DROP').join('\n'), packet)).toMatchObject(dropped)
})

it('ends at chains that jump to each other', () => {
  const loop = ['-A INPUT -j a', '-A a -j b', '-A a -j b', '-A b -j a', '-A b -j a', '-A INPUT -j DROP']
  expect(walkFilter(loop.join('\n'), packet)).toMatchObject(dropped)
})

it('evaluates many chains within each other, and is uncertain if there are too many', () => {
  expect(walkFilter(chainsTo(100, 1, '-A c100 -j DROP').join('\n'), packet)).toMatchObject(dropped)
  expect(walkFilter(chainsTo(20_000, 1, '-A c20000 -j DROP').join('\n'), packet)).toMatchObject(perhaps(true))
})

it('evaluates a chain whose name JavaScript gives to members of objects', () => {
  expect(walkFilter('-N constructor\n-A INPUT -j constructor', packet)).toMatchObject(accepted)
})

it('reads a comment that does not end, and has many backslashes', () => {
  const comment = `"${'\\'.repeat(200)}`
  expect(walkFilter(`-A INPUT -m comment --comment ${comment}\n-A INPUT -j DROP`, packet)).toMatchObject(dropped)
})
