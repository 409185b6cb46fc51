// chain-walk.test.ts - the verdict of chains that call each other, and the conditions of rules.

import { describe, expect, it } from 'vitest'
import { parseAddress } from '../../../../src/net/address.ts'
import {
  allOf,
  hasFlags,
  isIcmp,
  isInterface,
  isLengthIn,
  isMarked,
  isMulticast,
  isOfType,
  isProtocol,
  isState,
  isTranslated,
  isUnread,
  isWithin,
  netIn,
  queueOutcomes,
  type FilteredPacket,
} from '../../../../src/tool/doctor/chain-walk.ts'
import { readListing } from '../../../../src/tool/doctor/filter-walk.ts'

/** The first packet of a TCP connection between two containers of different hosts. */
const packet: FilteredPacket = {
  chain: 'FORWARD',
  protocol: 'tcp',
  source: parseAddress('10.5.1.2')!,
  destination: parseAddress('10.5.2.2')!,
  port: 80,
  from: 'cni0',
  to: 'flannel0',
  state: 'new',
}
const { port: _port, ...withoutPort } = packet
const { state: _state, ...withoutState } = packet
const inState = (state: FilteredPacket['state']): FilteredPacket => (state ? { ...packet, state } : withoutState)
const walk = (rules: readonly string[], one = packet) =>
  readListing(rules.join('\n'))
    .walk(one)
    .find(({ chain }) => chain === 'FORWARD')!
/** A condition that weft cannot evaluate. */
const unread = '-m set --match-set blocked src'

describe('the verdict of chains', () => {
  const accepted = { isAccepted: true, isCertain: true }
  const dropped = { isAccepted: false, isCertain: true }
  const perhaps = (isAccepted: boolean) => ({ isAccepted, isCertain: false })

  it.each([
    [
      'a rule that may accept before one that drops',
      [`-A FORWARD ${unread} -j ACCEPT`, '-A FORWARD -j DROP'],
      perhaps(false),
    ],
    ['a rule that may drop before one that drops', [`-A FORWARD ${unread} -j DROP`, '-A FORWARD -j DROP'], dropped],
    [
      'a rule that may drop before one that accepts',
      [`-A FORWARD ${unread} -j DROP`, '-A FORWARD -j ACCEPT'],
      perhaps(true),
    ],
    [
      'a rule that may accept before one that accepts',
      [`-A FORWARD ${unread} -j ACCEPT`, '-A FORWARD -j ACCEPT'],
      accepted,
    ],
    ['a rule that may drop after one that accepts', ['-A FORWARD -j ACCEPT', `-A FORWARD ${unread} -j DROP`], accepted],
    ['a rule that may drop after a return', ['-A FORWARD -j RETURN', `-A FORWARD ${unread} -j DROP`], accepted],
    [
      'a rule that may drop, after a return in a called chain',
      ['-A FORWARD -j own', '-A own -j RETURN', `-A own ${unread} -j DROP`],
      accepted,
    ],
    [
      'a return that may lead to the policy',
      ['-P FORWARD DROP', `-A FORWARD ${unread} -j RETURN`, '-A FORWARD -j ACCEPT'],
      perhaps(true),
    ],
    [
      'a chain that may be called and accepts',
      ['-P FORWARD DROP', `-A FORWARD ${unread} -j own`, '-A own -j ACCEPT'],
      perhaps(false),
    ],
    [
      'a chain that may be called and drops',
      ['-P FORWARD DROP', `-A FORWARD ${unread} -j own`, '-A own -j DROP'],
      dropped,
    ],
    [
      'a chain that may be called and may drop',
      [`-A FORWARD ${unread} -j own`, `-A own ${unread} -j DROP`],
      perhaps(true),
    ],
    [
      'a chain that may be called and has no verdict',
      [`-A FORWARD ${unread} -j own`, '-A own -p udp -j DROP'],
      accepted,
    ],
    [
      'a chain that a goto may reach and that has no verdict',
      [`-A FORWARD ${unread} -g own`, '-A own -p udp -j DROP', '-A FORWARD -j DROP'],
      perhaps(false),
    ],
    [
      'a chain that a goto may reach and that drops',
      [`-A FORWARD ${unread} -g own`, '-A own -j DROP', '-A FORWARD -j DROP'],
      dropped,
    ],
    [
      'a chain that a goto may reach and that accepts',
      [`-A FORWARD ${unread} -g own`, '-A own -j ACCEPT', '-A FORWARD -j DROP'],
      perhaps(false),
    ],
    [
      'a chain that a goto reaches and that has no verdict',
      ['-A FORWARD -g own', '-A own -p udp -j DROP', '-A FORWARD -j DROP'],
      accepted,
    ],
    [
      'a chain that is called and has no verdict',
      ['-A FORWARD -j own', '-A own -p udp -j DROP', '-A FORWARD -j DROP'],
      dropped,
    ],
    ['a chain without rules that a goto reaches', ['-N own', '-A FORWARD -g own', '-A FORWARD -j DROP'], accepted],
    [
      'a target that is not a chain and only logs',
      ['-A FORWARD -j NFLOG --nflog-group 1', '-A FORWARD -j DROP'],
      dropped,
    ],
    [
      'a goto within a called chain',
      ['-A FORWARD -j a', '-A a -g b', '-A a -j DROP', '-A b -p udp -j DROP', '-A FORWARD -j ACCEPT'],
      accepted,
    ],
  ])('%s', (_what, rules, expected) => expect(walk(rules)).toMatchObject(expected))

  it('is that of the policy if the chain has no rules', () => {
    expect(walk(['-P FORWARD DROP'])).toMatchObject({ ...dropped, by: '-P FORWARD DROP' })
    // An empty table mangle accepts all packets, for example in the chain POSTROUTING.
    expect(readListing('*mangle\nCOMMIT').walk(packet)).toContainEqual(
      expect.objectContaining({ table: 'mangle', chain: 'POSTROUTING', ...accepted, by: '' }),
    )
  })

  const calls = (depth: number): string[] => [
    '-A FORWARD -j c1',
    ...Array.from({ length: depth - 1 }, (_, at) => `-A c${at + 1} -j c${at + 2}`),
    `-A c${depth} -j DROP`,
  ]
  it('is certain for 512 nested calls of chains, and uncertain for 513', () => {
    expect(walk(calls(512))).toMatchObject(dropped)
    expect(walk(calls(513))).toMatchObject(perhaps(true))
  })

  it.each<[string, readonly string[], FilteredPacket, readonly string[]]>([
    [
      'a condition that weft cannot evaluate',
      [`-A FORWARD ${unread} -j DROP`],
      packet,
      [`-A FORWARD ${unread} -j DROP`],
    ],
    ['a property that the packet lacks', ['-A FORWARD -p tcp -m tcp --dport 80 -j DROP'], withoutPort, []],
    [
      'a condition that weft cannot evaluate and a property that the packet lacks',
      [`-A FORWARD -p tcp -m tcp --dport 80 ${unread} -j DROP`],
      withoutPort,
      [],
    ],
    ['no condition', ['-A FORWARD -j DROP'], packet, []],
    [
      'a condition of the calling chain',
      [`-A FORWARD ${unread} -j own`, '-A own -p tcp -j REJECT'],
      packet,
      ['-A own -p tcp -j REJECT'],
    ],
    [
      'a condition of both chains',
      [`-A FORWARD ${unread} -j own`, `-A own ${unread} -j DROP`],
      packet,
      [`-A own ${unread} -j DROP`],
    ],
    [
      'a property that the calling chain compares and the packet lacks',
      ['-A FORWARD -p tcp -m tcp --dport 80 -j own', `-A own ${unread} -j DROP`],
      withoutPort,
      [],
    ],
    [
      'a property that the called chain compares and the packet lacks',
      [`-A FORWARD ${unread} -j own`, '-A own -p tcp -m tcp --dport 80 -j DROP'],
      withoutPort,
      [],
    ],
    ['an earlier return', [`-A FORWARD ${unread} -j RETURN`, '-A FORWARD -j DROP'], packet, ['-A FORWARD -j DROP']],
    [
      'an earlier goto',
      [`-A FORWARD ${unread} -g own`, '-A own -p udp -j ACCEPT', '-A FORWARD -j DROP'],
      packet,
      ['-A FORWARD -j DROP'],
    ],
    [
      'an earlier return for a port',
      ['-A FORWARD -p tcp -m tcp --dport 80 -j RETURN', `-A FORWARD ${unread} -j DROP`],
      withoutPort,
      [],
    ],
    ['no condition, because only a rule that accepts has one', [`-A FORWARD ${unread} -j ACCEPT`], packet, []],
  ])('lists the unjudged rules if a drop depends on %s', (_what, rules, part, unjudged) => {
    expect(walk(rules, part).unjudged.map(({ by }) => by)).toEqual(unjudged)
  })

  const mark = '-j MARK --set-xmark 0x1/0x1'
  it.each([
    ['always', [`-A FORWARD ${mark}`], [true]],
    ['if a condition holds', [`-A FORWARD ${unread} ${mark}`], [false]],
    ['of a chain that may be called', [`-A FORWARD ${unread} -j own`, `-A own ${mark}`], [false]],
    ['after a rule that may accept', [`-A FORWARD ${unread} -j ACCEPT`, `-A FORWARD ${mark}`], [false]],
    ['after a rule that may drop', [`-A FORWARD ${unread} -j DROP`, `-A FORWARD ${mark}`], [true]],
    ['after a return that may happen', [`-A FORWARD ${unread} -j RETURN`, `-A FORWARD ${mark}`], [false]],
    ['after an accepting rule', ['-A FORWARD -j ACCEPT', `-A FORWARD ${mark}`], []],
    [
      'of a chain that may be called, and is then called',
      [`-A FORWARD ${unread} -j own`, '-A FORWARD -j own', `-A own ${mark}`],
      [false, true],
    ],
    ['of a chain that is called twice', ['-A FORWARD -j own', '-A FORWARD -j own', `-A own ${mark}`], [true]],
  ])('reports a change of the packet as certain or possible: %s', (_what, rules, certain) => {
    const { effects } = walk(rules)
    expect(effects.map(({ isCertain }) => isCertain)).toEqual(certain)
    expect(effects.every(({ by }) => by.endsWith(mark))).toBe(true)
  })
})

describe('a queue for a program', () => {
  const queue = { numbers: [4, 6], isBypassed: false } as const
  it.each([
    [[3], true],
    [[4], false],
    [[6], false],
    [[7], true],
    [[3, 7], true],
    [[3, 5], false],
    [[], true],
  ])('drops its packets if programs read only %j: %s', (read, expected) =>
    expect(isUnread(queue, new Set(read))).toBe(expected),
  )

  it('does not certainly drop packets if weft does not know its readers, or if packets pass without a reader', () => {
    expect(isUnread(queue, undefined)).toBe(false)
    expect(isUnread({ ...queue, numbers: undefined }, new Set())).toBe(false)
    expect(isUnread({ ...queue, isBypassed: true }, new Set())).toBe(false)
  })

  it('may accept or drop each packet if a program reads the queue', () => {
    const outcomes = queueOutcomes(queue, new Set([5]), 'unread')
    expect(outcomes).toEqual([
      { matches: undefined, target: { to: 'drop' } },
      { matches: 'unread', target: { to: 'accept' } },
    ])
    expect(queueOutcomes(queue, new Set(), 'unread')).toEqual([{ matches: 'unread', target: { to: 'drop' } }])
  })
})

it.each([
  [[], true],
  [[true, true], true],
  [[true, 'unread'], 'unread'],
  [['unread', undefined, true], undefined],
  [[undefined, 'unread', false], false],
  [[false, true], false],
] as const)('a rule with the conditions %j matches: %s', (conditions, expected) =>
  expect(allOf(conditions)).toBe(expected),
)

describe('a condition', () => {
  // The names are those of /etc/protocols of Debian and Alpine, and those of ip6tables and nft.
  it.each([
    ['tcp', '6', 'tcp'],
    ['udp', '17', 'udp'],
    ['icmp', '1', 'icmp'],
    ['ipv6-icmp', 'icmpv6', '58', 'ipv6-icmp'],
    ['ipencap', 'ipip', 'ip-in-ip', '4', 'ipencap'],
    ['esp', 'ipv6-crypt', '50', 'esp'],
    ['ah', 'ah'],
  ])('matches the protocol %s', (protocol, ...texts) => {
    const all = ['6', '17', '1', '58', '4', '50', '51', '', 'icmpv6', 'ipip', 'ip-in-ip', 'ipv6-crypt', 'tcp', 'udp']
    for (const text of texts) expect(isProtocol(protocol, text)).toBe(true)
    for (const text of all.filter((each) => !texts.includes(each))) expect(isProtocol(protocol, text)).toBe(false)
  })

  const icmp: readonly (readonly [type: NonNullable<FilteredPacket['icmp']>, texts: readonly string[]])[] = [
    ['request', ['echo-request', '8', '128']],
    ['reply', ['echo-reply', '0', '129']],
    ['solicitation', ['nd-neighbor-solicit', 'neighbour-solicitation', 'neighbor-solicitation', '135']],
    ['advertisement', ['nd-neighbor-advert', 'neighbour-advertisement', 'neighbor-advertisement', '136']],
  ]
  it.each(icmp)('matches the type of an ICMP %s', (type, texts) => {
    const others = icmp.filter(([each]) => each !== type).flatMap(([, words]) => words)
    for (const text of ['any', ...texts, `${texts.at(-1)}/0`])
      expect(isIcmp({ ...packet, icmp: type }, text)).toBe(true)
    for (const text of ['', '3/4', `${texts.at(-1)}/1`, ...others])
      expect(isIcmp({ ...packet, icmp: type }, text)).toBe(false)
  })
  it('matches a packet without an ICMP type as an echo request', () => {
    expect(isIcmp(packet, 'echo-request')).toBe(true)
    expect(isIcmp(packet, 'echo-reply')).toBe(false)
  })

  it.each([
    ['10.5.1.2', true],
    ['10.5.1.3', false],
    ['10.5.0.0/16', true],
    ['10.6.0.0/16', false],
    ['10.5.1.2-10.5.1.9', true],
    ['10.5.0.9-10.5.1.2', true],
    ['10.5.1.3-10.5.1.9', false],
    ['10.5.0.0-10.5.1.1', false],
    ['::/0', false],
    ['::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', false],
    ['10.5.0.0/255.255.0.255', undefined],
    ['10.5.1.0-fd00::1', undefined],
    ['10.5.1.0-', undefined],
    ['-10.5.1.9', undefined],
    ['host', undefined],
  ])('compares an IPv4 address with %s: %s', (text, expected) => expect(isWithin(packet.source, text)).toBe(expected))
  it('compares IPv6 addresses', () => {
    const address = parseAddress('fd00:5::7')!
    expect(isWithin(address, 'fd00:5::1-fd00:5::9')).toBe(true)
    expect(isWithin(address, 'fd00:5::8-fd00:5::9')).toBe(false)
    expect(isWithin(address, '0.0.0.0-255.255.255.255')).toBe(false)
    for (const text of ['fd00:5::1-', '-fd00:5::9', 'fd00:5::1-x', 'fd00:5::/ffff::ffff'])
      expect(isWithin(address, text)).toBeUndefined()
    expect(netIn('fd00:5::7')).toEqual({ address, prefixLength: 128 })
    expect(netIn('fd00:5::/33')).toMatchObject({ prefixLength: 33 })
    expect(netIn('10.5.1.2')).toMatchObject({ prefixLength: 32 })
    expect(netIn('10.5.1')).toBeUndefined()
  })

  it.each([
    ['eth0', 'eth0', '+', true],
    ['eth0', 'eth', '+', false],
    ['eth0', 'eth+', '+', true],
    ['eth0', '+', '+', true],
    ['eth0', 'eth1+', '+', false],
    ['eth0', 'eth*', '*', true],
    ['eth0', 'eth*', '+', false],
    ['eth0', 'th+', '+', false],
  ] as const)('on the interface %s: %s with the wildcard %s: %s', (name, pattern, wild, expected) =>
    expect(isInterface(name, pattern, wild)).toBe(expected),
  )

  it.each([
    ['new', ['NEW'], true],
    ['new', ['RELATED', 'ESTABLISHED'], false],
    ['new', ['NEW', 'UNTRACKED'], true],
    ['new', ['INVALID'], false],
    ['new', ['UNTRACKED'], false],
    ['established', ['related', 'established'], true],
    ['established', ['new'], false],
    ['untracked', ['UNTRACKED'], true],
    ['untracked', ['NEW', 'ESTABLISHED'], false],
    [undefined, ['NEW'], undefined],
    [undefined, ['ESTABLISHED', 'INVALID'], undefined],
    [undefined, ['INVALID'], false],
    [undefined, ['UNTRACKED', 'INVALID'], false],
  ] as const)('on the state of a packet that is %s: %j: %s', (state, states, expected) => {
    expect(isState(inState(state), states)).toBe(expected)
  })
  it('on the state untracked may hold if a rule may exempt the packet from connection tracking', () => {
    const exempt = { ...packet, mayBeUntracked: true }
    expect(isState(exempt, ['UNTRACKED'])).toBe('unread')
    expect(isState(exempt, ['NEW', 'UNTRACKED'])).toBe(true)
    expect(isState(exempt, ['ESTABLISHED'])).toBe(false)
  })

  const multicast = { ...packet, destination: parseAddress('ff02::1:ff00:7')! }
  it.each([
    ['INPUT', 'destination', 'LOCAL', true],
    ['INPUT', 'destination', 'unicast', false],
    ['INPUT', 'source', 'LOCAL', false],
    ['INPUT', 'source', 'UNICAST', true],
    ['FORWARD', 'destination', 'LOCAL', false],
    ['FORWARD', 'source', 'local', false],
    ['FORWARD', 'destination', 'UNICAST', true],
    ['OUTPUT', 'source', 'local', true],
    ['OUTPUT', 'destination', 'LOCAL', false],
    ['OUTPUT', 'destination', 'BROADCAST', false],
  ] as const)('on the type of an address in %s: the %s is %s: %s', (chain, end, type, expected) => {
    expect(isOfType({ ...packet, chain }, end, [type])).toBe(expected)
    expect(isOfType({ ...packet, chain }, end, ['PROHIBIT', type])).toBe(expected)
  })
  it('matches the type of an IPv6 multicast address', () => {
    for (const chain of ['INPUT', 'OUTPUT'] as const) {
      expect(isOfType({ ...multicast, chain }, 'destination', ['MULTICAST'])).toBe(true)
      expect(isOfType({ ...multicast, chain }, 'destination', ['LOCAL'])).toBe(false)
      expect(isOfType({ ...multicast, chain }, 'source', ['MULTICAST'])).toBe(false)
    }
    expect(isMulticast(multicast)).toBe(true)
    for (const text of ['fe80::1', 'fd00::ff', '10.5.2.2', '255.0.0.0'])
      expect(isMulticast({ ...packet, destination: parseAddress(text)! })).toBe(false)
  })

  it.each([
    [0, 65_535, true],
    [40, 1500, true],
    [41, 1500, 'unread'],
    [40, 1499, 'unread'],
    [0, 39, false],
    [0, 40, 'unread'],
    [1500, 65_535, 'unread'],
    [65_535, 70_000, 'unread'],
    [65_536, 70_000, false],
  ])('on lengths from %d to %d: %s', (from, to, expected) => expect(isLengthIn(from, to)).toBe(expected))

  it.each([
    ['FIN,SYN,RST,ACK', 'SYN', true],
    ['fin,syn,rst,ack', 'syn', true],
    ['SYN', 'SYN', true],
    ['SYN', 'NONE', false],
    ['FIN', 'FIN', false],
    ['FIN', 'NONE', true],
    ['FIN,SYN', 'FIN,SYN', false],
  ])('on the TCP flags %s, of which %s is set: %s', (mask, wanted, expected) => {
    expect(hasFlags(packet, mask.split(','), wanted.split(','))).toBe(expected)
  })
  it('on TCP flags is known only for TCP packets with a known state', () => {
    expect(hasFlags({ ...packet, protocol: 'udp' }, ['SYN'], ['SYN'])).toBe(false)
    expect(hasFlags({ ...packet, protocol: '6' }, ['SYN'], ['SYN'])).toBe(true)
    expect(hasFlags({ ...packet, state: 'established' }, ['SYN'], ['SYN'])).toBeUndefined()
  })

  it('on the mark is known only if the caller assumes a mark', () => {
    expect(isMarked(packet, '0x0')).toBe('unread')
    expect(isMarked({ ...packet, mark: 0 }, '0x00000000')).toBe(true)
    expect(isMarked({ ...packet, mark: 0 }, '0x4000')).toBe(false)
  })
})

it.each([
  ['new', true],
  [undefined, true],
  ['established', false],
  ['untracked', false],
] as const)('the kernel asks for a translation of the addresses of a packet that is %s: %s', (state, expected) =>
  expect(isTranslated(inState(state))).toBe(expected),
)
