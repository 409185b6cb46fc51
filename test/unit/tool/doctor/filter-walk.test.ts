// filter-walk.test.ts - the verdict of iptables rules about a packet, and whether it is certain.

import { describe, expect, it } from 'vitest'
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
  ['lines that are not rules', ['-N own', '# -A INPUT -j DROP', '# INPUT -j DROP', ''], accepted],
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

/** The first packet of a TCP connection that a container opens to a container of another host. */
const forwarded: FilteredPacket = {
  chain: 'FORWARD',
  protocol: 'tcp',
  source: parseIpv4('10.5.1.2')!,
  destination: parseIpv4('10.5.2.2')!,
  port: 8080,
  from: 'cni0',
  to: 'flannel0',
  state: 'new',
}
const savedBy = (program: string, ...lines: readonly string[]): string =>
  [`# Generated by ${program} on Fri Nov 27 14:14:46 2026`, ...lines, 'COMMIT', ''].join('\n')
const legacy = 'iptables-save v1.8.7'
const nftables = 'iptables-save v1.8.9 (nf_tables)'

/** The rules and policies that drop a packet, in the order in which the kernel would reach them. */
const drops = (text: string, one: FilteredPacket): string[] =>
  readListing(text)
    .walk(one)
    .filter(({ isAccepted }) => !isAccepted)
    .map(({ by }) => by)
const effects = (text: string, one: FilteredPacket) =>
  readListing(text)
    .walk(one)
    .flatMap((verdict) => verdict.effects)

describe('the tables of iptables', () => {
  const tables: readonly (readonly [table: string, chains: readonly string[]])[] = [
    ['security', ['INPUT', 'FORWARD', 'OUTPUT']],
    ['raw', ['PREROUTING', 'OUTPUT']],
    ['mangle', ['PREROUTING', 'INPUT', 'FORWARD', 'OUTPUT', 'POSTROUTING']],
    ['nat', ['PREROUTING', 'OUTPUT', 'POSTROUTING']],
    ['filter', ['INPUT', 'FORWARD', 'OUTPUT']],
  ]
  const all = tables
    .map(([table, chains]) =>
      savedBy(
        nftables,
        `*${table}`,
        ...chains.map((chain) => `:${chain} ACCEPT [0:0]`),
        ...chains.map((chain) => `[0:0] -A ${chain} -j DROP`),
      ),
    )
    .join('')

  it.each([
    ['INPUT', 'raw PREROUTING, mangle PREROUTING, nat PREROUTING, mangle INPUT, filter INPUT, security INPUT'],
    [
      'FORWARD',
      'raw PREROUTING, mangle PREROUTING, nat PREROUTING, mangle FORWARD, filter FORWARD, security FORWARD, mangle POSTROUTING, nat POSTROUTING',
    ],
    [
      'OUTPUT',
      'raw OUTPUT, mangle OUTPUT, nat OUTPUT, filter OUTPUT, security OUTPUT, mangle POSTROUTING, nat POSTROUTING',
    ],
  ] as const)('see a packet of %s in the order of the kernel', (chain, order) => {
    const rules = order
      .split(', ')
      .map((each) => each.split(' '))
      .map(([table, name]) => `${table === 'filter' ? '' : `-t ${table} `}-A ${name} -j DROP`)
    expect(drops(all, { ...forwarded, chain })).toEqual(rules)
  })

  it('translate only the first packet of a connection, and do not translate untracked packets', () => {
    for (const state of ['established', 'untracked'] as const)
      expect(drops(all, { ...forwarded, state }).filter((rule) => rule.startsWith('-t nat'))).toEqual([])
  })

  it('each have their own text in the verdict', () => {
    const nat = [':POSTROUTING ACCEPT [2:120]', '-A POSTROUTING -s 10.5.0.0/16 -j MASQUERADE', 'COMMIT']
    const filter = [':FORWARD DROP [0:0]', '-A FORWARD -s 10.6.0.0/16 -j ACCEPT', 'COMMIT']
    const text = ['# Generated by iptables-save', '*nat', ...nat, '*filter', ...filter].join('\n')
    const texts = readListing(text)
      .walk(forwarded)
      .map((verdict) => [verdict.table, verdict.chain, verdict.text])
    expect(texts).toEqual([
      ['nat', 'PREROUTING', nat.join('\n')],
      ['filter', 'FORWARD', filter.join('\n')],
      ['nat', 'POSTROUTING', nat.join('\n')],
    ])
    const rules = '-P FORWARD DROP\n-A FORWARD -s 10.6.0.0/16 -j ACCEPT\n'
    expect(readListing(rules).walk(forwarded)).toEqual([expect.objectContaining({ table: 'filter', text: rules })])
  })

  it('belong to nftables, unless iptables-legacy printed them', () => {
    const rule = '-A INPUT -p udp -m comment --comment "moved (nf_tables)" -j ACCEPT'
    expect(readListing(savedBy(nftables, '*filter', ':INPUT ACCEPT [0:0]')).isOfNftables).toBe(true)
    expect(readListing(savedBy(legacy, '*filter', ':INPUT ACCEPT [0:0]', rule)).isOfNftables).toBe(false)
    // `iptables -S` does not name its version.
    expect(readListing('-P INPUT ACCEPT\n').isOfNftables).toBe(true)
  })

  it('hide no chains of nftables that iptables-save cannot show', () => {
    const nat = savedBy(nftables, '*nat', ':PREROUTING ACCEPT [0:0]')
    const { builtIns } = readListing(`# Table \`filter' is incompatible, use 'nft' tool.\n${nat}`)
    expect(builtIns).toContain('nat PREROUTING')
    expect(builtIns.filter((name) => !name.startsWith('nat '))).toEqual([])
    expect(readListing(nat).builtIns).toContain('filter FORWARD')
  })

  it('accept packets if the listing shows only other tables', () => {
    const listing = readListing(savedBy(nftables, '*nat', ':PREROUTING ACCEPT [0:0]'))
    expect(listing.walk(forwarded).find(({ table }) => table === 'filter')).toMatchObject({
      isAccepted: true,
      by: '-P FORWARD ACCEPT',
    })
    expect(walkFilter('', { ...forwarded, chain: 'OUTPUT' }).by).toBe('-P OUTPUT ACCEPT')
  })
})

describe('a rule', () => {
  it('of a chain before routing sees no outgoing interface', () => {
    const shared = (condition: string): string =>
      savedBy(
        nftables,
        '*mangle',
        ':PREROUTING ACCEPT [0:0]',
        ':FORWARD ACCEPT [0:0]',
        ':own - [0:0]',
        '-A PREROUTING -j own',
        '-A FORWARD -j own',
        `-A own ${condition} -j DROP`,
      )
    const at = (text: string) =>
      readListing(text)
        .walk(forwarded)
        .filter(({ table }) => table === 'mangle')
        .map(({ chain, isAccepted, isCertain }) => `${chain} ${isAccepted} ${isCertain}`)
    expect(at(shared('-o flannel0'))).toEqual(['PREROUTING true true', 'FORWARD false true', 'POSTROUTING true true'])
    // Before routing, a rule with `! -o` matches, such as a rule of Cilium for packets that do not go to `lo`.
    expect(at(shared('! -o flannel0'))).toEqual(['PREROUTING false true', 'FORWARD true true', 'POSTROUTING true true'])
  })

  it('has its packet count if iptables printed the count', () => {
    const rule = '-A FORWARD -m u32 --u32 "0x0=0x1" -j REJECT --reject-with icmp-port-unreachable'
    const unjudged = (text: string) => walkFilter(text, forwarded).unjudged
    expect(unjudged(`[123:45678] ${rule}`)).toEqual([{ by: rule, packets: 123 }])
    expect(unjudged(`[0:0] ${rule}`)).toEqual([{ by: rule, packets: 0 }])
    expect(unjudged(rule)).toEqual([{ by: rule, packets: undefined }])
  })

  it.each([
    ['a condition on the source port', '-p tcp -m tcp --sport 53', []],
    ['a condition on source ports', '-p tcp -m multiport --sports 53,67', []],
    ['a condition on either port', '-p tcp -m multiport --ports 135,139,445', []],
    ['a condition on neither port', '-p tcp -m multiport ! --ports 135,139,445', []],
    ['a reverse path filter', '-m rpfilter --invert', undefined],
    ['a set', '-m set --match-set blocked src', ['-A FORWARD -m set --match-set blocked src -j DROP']],
  ])('with %s may match', (_what, condition, unjudged) => {
    const verdict = walkFilter(`[7:420] -A FORWARD ${condition} -j DROP`, forwarded)
    expect(verdict).toMatchObject(perhaps(true))
    if (unjudged) expect(verdict.unjudged.map(({ by }) => by)).toEqual(unjudged)
  })

  it.each([
    ['ports of which one is the destination', '-p tcp -m multiport --ports 25,8080', dropped],
    ['packets with none of the ports', '-p tcp -m multiport ! --ports 25,8080', accepted],
    ['a range with the source', '-m iprange --src-range 10.5.1.1-10.5.1.9', dropped],
    ['a range without the source', '-m iprange --src-range 10.5.1.3-10.5.1.9', accepted],
    ['a range with the destination', '-m iprange --dst-range 10.5.2.2-10.5.2.9', dropped],
    ['a range without the destination', '-m iprange --dst-range 10.5.2.3-10.5.2.9', accepted],
    ['not a range with the source', '-m iprange ! --src-range 10.5.1.1-10.5.1.9', accepted],
    ['a source of this host', '-m addrtype --src-type LOCAL', accepted],
    ['a destination of this host', '-m addrtype --dst-type LOCAL', accepted],
    ['a source of another host', '-m addrtype --src-type UNICAST', dropped],
    ['the usual SYN packet', '-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN', dropped],
    ['a packet without SYN', '-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN', accepted],
    ['the flags SYN and FIN together', '-p tcp -m tcp --tcp-flags FIN,SYN FIN,SYN', accepted],
    ['the flag FIN without SYN', '-p tcp -m tcp --tcp-flags FIN,SYN FIN', accepted],
    ['no flag at all', '-p tcp -m tcp --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE', accepted],
    ['broadcasts', '-m pkttype --pkt-type broadcast', accepted],
    ['packets to one host', '-m pkttype --pkt-type unicast', dropped],
    ['any length', '-m length --length 0:65535', dropped],
    ['no usual length', '-m length --length 0:20', accepted],
    ['the old module for states', '-m state --state NEW', dropped],
    ['the old module for other states', '-m state --state RELATED,ESTABLISHED', accepted],
  ])('for %s is evaluated', (_what, condition, verdict) => {
    expect(walkFilter(`-A FORWARD ${condition} -j DROP`, forwarded)).toMatchObject(verdict)
  })

  it('for source addresses of this host matches the packets that this host sends', () => {
    const own: FilteredPacket = { ...forwarded, chain: 'OUTPUT' }
    expect(walkFilter('-A OUTPUT -m addrtype --src-type LOCAL -j DROP', own)).toMatchObject(dropped)
    expect(walkFilter('-A OUTPUT -m addrtype --dst-type LOCAL -j DROP', own)).toMatchObject(accepted)
    expect(walkFilter('-A INPUT -m addrtype --dst-type LOCAL -j DROP', packet)).toMatchObject(dropped)
    expect(walkFilter('-A INPUT -m addrtype --src-type LOCAL -j DROP', packet)).toMatchObject(accepted)
  })

  it('for ICMPv6 packets is evaluated', () => {
    const echo: FilteredPacket = { ...ofIpv6, protocol: 'ipv6-icmp' }
    const rule = (type: string): string => `-A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type ${type} -j DROP`
    expect(walkFilter(rule('128'), echo)).toMatchObject(dropped)
    expect(walkFilter(rule('135'), echo)).toMatchObject(accepted)
  })

  it.each([
    ['no mark', '! --mark 0x4000/0x4000', dropped],
    ['a mark', '--mark 0x4000/0x4000', accepted],
    ['the bit of a mark that is not set', '--mark 0x0/0x20000', dropped],
    ['a mark without a mask', '--mark 0x1', accepted],
  ])('for packets with %s is evaluated if weft knows the mark', (_what, condition, verdict) => {
    const rule = `-A FORWARD -m mark ${condition} -j DROP`
    expect(walkFilter(rule, { ...forwarded, mark: 0 })).toMatchObject(verdict)
    expect(walkFilter(rule, forwarded)).toMatchObject(perhaps(true))
  })
})

describe('a rule that changes packets', () => {
  const mangle = (rule: string): string => savedBy(nftables, '*mangle', ':PREROUTING ACCEPT [0:0]', rule)
  const nat = (rule: string): string => savedBy(nftables, '*nat', ':PREROUTING ACCEPT [0:0]', rule)

  it.each([
    // kube-proxy, Calico and Cilium
    ['0x4000/0x4000', 0x4000, 0x4000],
    ['0x0/0xe0000', 0xe_00_00, 0],
    ['0x200/0xffffffff', 0xff_ff_ff_ff, 0x2_00],
  ])('sets the bits of the mark: %s', (mark, clears, inverts) =>
    expect(effects(mangle(`-A PREROUTING -i cni0 -j MARK --set-xmark ${mark}`), forwarded)).toMatchObject([
      { kind: 'marked', clears, inverts, isCertain: true },
    ]),
  )

  it('lets the packet pass if weft cannot read the change', () => {
    for (const target of ['MARK --set-mark 0x1', 'TTL --ttl-inc 1', 'CT --zone 1', 'TCPMSS --clamp-mss-to-pmtu']) {
      const text = mangle(`-A PREROUTING -i cni0 -j ${target}`)
      expect(effects(text, forwarded)).toEqual([])
      expect(drops(text, forwarded)).toEqual([])
    }
  })

  it.each([
    ['PREROUTING', 'diverted', forwarded],
    ['OUTPUT', 'diverted', { ...forwarded, chain: 'OUTPUT' } as const],
    ['POSTROUTING', 'source', forwarded],
  ])('by NETMAP in %s changes one of the addresses: %s', (chain, kind, one) =>
    expect(effects(nat(`-A ${chain} -d 10.5.0.0/16 -j NETMAP --to 10.6.0.0/16`), one)).toMatchObject([
      { kind, address: '10.6.0.0/16', isCertain: true },
    ]),
  )

  it('has its own options, not those of its conditions', () => {
    const condition = '-m string --string "GET /" --algo bm --from 40 --to 128'
    expect(effects(nat(`-A POSTROUTING ${condition} -j NETMAP --to 10.6.0.0/16`), forwarded)).toMatchObject([
      { kind: 'source', address: '10.6.0.0/16', isCertain: false },
    ])
  })
})

it.each([
  ['the only queue', 'QUEUE', [0], accepted],
  ['another queue', 'QUEUE', [1], dropped],
  ['the first queue, which is the default', 'NFQUEUE', [0], accepted],
  ['a queue with two digits', 'NFQUEUE --queue-num 17', [17], accepted],
  ['a queue with one of these digits', 'NFQUEUE --queue-num 17', [1], dropped],
  ['the last of some queues', 'NFQUEUE --queue-balance 9:12', [12], accepted],
  ['one between some queues', 'NFQUEUE --queue-balance 9:12', [10], accepted],
  ['the queue after some queues', 'NFQUEUE --queue-balance 9:12', [13], dropped],
])('evaluates a queue target if a program reads %s: %s', (_what, target, queues, { isAccepted }) => {
  const [verdict] = readListing(`-A FORWARD -j ${target}`, new Set(queues)).walk(forwarded)
  expect(verdict?.isAccepted).toBe(isAccepted)
  expect(verdict?.by.endsWith('(no program reads this queue)')).toBe(!isAccepted)
})

describe('the rules of common programs', () => {
  /** The rules of Docker 28 for one container with a published port. */
  const docker = [
    savedBy(
      nftables,
      '*raw',
      ':PREROUTING ACCEPT [1820:204310]',
      ':OUTPUT ACCEPT [1641:190217]',
      '[0:0] -A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP',
      '[0:0] -A PREROUTING -d 127.0.0.1/32 ! -i lo -p tcp -m tcp --dport 8080 -j DROP',
    ),
    savedBy(
      nftables,
      '*filter',
      ':INPUT ACCEPT [1771:197310]',
      ':FORWARD DROP [0:0]',
      ':OUTPUT ACCEPT [1641:190217]',
      ':DOCKER - [0:0]',
      ':DOCKER-BRIDGE - [0:0]',
      ':DOCKER-CT - [0:0]',
      ':DOCKER-FORWARD - [0:0]',
      ':DOCKER-ISOLATION-STAGE-1 - [0:0]',
      ':DOCKER-ISOLATION-STAGE-2 - [0:0]',
      ':DOCKER-USER - [0:0]',
      '[49:7000] -A FORWARD -j DOCKER-USER',
      '[49:7000] -A FORWARD -j DOCKER-FORWARD',
      '[0:0] -A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT',
      '[0:0] -A DOCKER ! -i docker0 -o docker0 -j DROP',
      '[0:0] -A DOCKER-BRIDGE -o docker0 -j DOCKER',
      '[25:4000] -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
      '[49:7000] -A DOCKER-FORWARD -j DOCKER-CT',
      '[24:3000] -A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1',
      '[24:3000] -A DOCKER-FORWARD -j DOCKER-BRIDGE',
      '[24:3000] -A DOCKER-FORWARD -i docker0 -j ACCEPT',
      '[24:3000] -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2',
      '[0:0] -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP',
    ),
  ].join('')
  const atDocker = (part: Partial<FilteredPacket>): FilteredPacket => ({
    ...forwarded,
    destination: parseIpv4('172.17.0.2')!,
    port: 80,
    from: 'eth0',
    to: 'docker0',
    ...part,
  })

  it.each<[string, Partial<FilteredPacket>, readonly string[]]>([
    ['a packet between other interfaces', { ...forwarded }, ['-P FORWARD DROP']],
    ['a packet from docker0', { ...forwarded, from: 'docker0' }, []],
    ['a packet from docker0 to docker0', { from: 'docker0' }, []],
    [
      'a packet to a published port',
      { destination: parseIpv4('172.17.0.3')! },
      ['-A DOCKER ! -i docker0 -o docker0 -j DROP'],
    ],
    [
      'a packet to another port',
      { port: 81, destination: parseIpv4('172.17.0.2')! },
      ['-t raw -A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP', '-A DOCKER ! -i docker0 -o docker0 -j DROP'],
    ],
    ['an answer to docker0', { destination: parseIpv4('172.17.0.3')!, state: 'established' }, []],
  ])('of Docker: %s', (_what, part, expected) => expect(drops(docker, atDocker(part))).toEqual(expected))

  /** The chains of kube-proxy, flannel and the kubelet in the table filter, with the rules that they make. */
  const kubernetes = savedBy(
    nftables,
    '*filter',
    ':INPUT ACCEPT [0:0]',
    ':FORWARD DROP [0:0]',
    ':OUTPUT ACCEPT [0:0]',
    ':FLANNEL-FWD - [0:0]',
    ':KUBE-EXTERNAL-SERVICES - [0:0]',
    ':KUBE-FIREWALL - [0:0]',
    ':KUBE-FORWARD - [0:0]',
    ':KUBE-KUBELET-CANARY - [0:0]',
    ':KUBE-PROXY-FIREWALL - [0:0]',
    ':KUBE-SERVICES - [0:0]',
    '-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL',
    '-A INPUT -j KUBE-FIREWALL',
    '-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL',
    '-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD',
    '-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    '-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD',
    '-A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT',
    '-A FLANNEL-FWD -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT',
    '-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP',
    '-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP',
    '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT',
    '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
    '-A KUBE-SERVICES -d 10.96.7.7/32 -p tcp -m comment --comment "default/web has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable',
  )

  it.each<[string, Partial<FilteredPacket>, object]>([
    ['to another node', {}, { ...accepted, by: expect.stringContaining('-A FLANNEL-FWD -s 10.5.0.0/16') }],
    [
      'from another node',
      { source: parseIpv4('10.6.1.2')! },
      { ...accepted, by: expect.stringContaining('-A FLANNEL-FWD -d 10.5.0.0/16') },
    ],
    [
      'from elsewhere',
      { source: parseIpv4('10.6.1.2')!, destination: parseIpv4('10.6.2.2')!, mark: 0 },
      { ...dropped, by: '-P FORWARD DROP' },
    ],
    [
      'to a Service without endpoints',
      { destination: parseIpv4('10.96.7.7')!, port: 80, mark: 0 },
      { ...dropped, by: expect.stringContaining('-A KUBE-SERVICES -d 10.96.7.7/32') },
    ],
    [
      'to another port of the Service',
      { destination: parseIpv4('10.96.7.7')!, port: 81 },
      { ...accepted, by: expect.stringContaining('-A FLANNEL-FWD -s') },
    ],
    [
      'to localhost',
      { chain: 'INPUT', destination: parseIpv4('127.0.0.1')! },
      { ...dropped, by: expect.stringContaining('-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8') },
    ],
    ['to this host', { chain: 'INPUT' }, { ...accepted, by: '-P INPUT ACCEPT' }],
  ])('of Kubernetes with flannel: a packet %s', (_what, part, expected) => {
    expect(walkFilter(kubernetes, { ...forwarded, ...part })).toMatchObject(expected)
  })

  it("of firewalld return from a zone's chain to the chain that called the list of zones", () => {
    const firewalld = (zone: readonly string[]): string =>
      savedBy(
        legacy,
        '*filter',
        ':INPUT ACCEPT [0:0]',
        ':FORWARD ACCEPT [0:0]',
        ':OUTPUT ACCEPT [0:0]',
        ':INPUT_ZONES - [0:0]',
        ':IN_public - [0:0]',
        ':IN_trusted - [0:0]',
        '-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT',
        '-A INPUT -i lo -j ACCEPT',
        '-A INPUT -j INPUT_ZONES',
        '-A INPUT -m conntrack --ctstate INVALID -j DROP',
        '-A INPUT -j REJECT --reject-with icmp-host-prohibited',
        '-A INPUT_ZONES -i eth0 -g IN_public',
        '-A INPUT_ZONES -g IN_trusted',
        ...zone,
        '-A IN_trusted -j ACCEPT',
      )
    const first = { ...packet, state: 'new' } as const
    const port = '-A IN_public -p udp -m udp --dport 8285 -m conntrack --ctstate NEW,UNTRACKED -j ACCEPT'
    const rejected = { ...dropped, by: '-A INPUT -j REJECT --reject-with icmp-host-prohibited' }
    expect(walkFilter(firewalld([]), first)).toMatchObject(rejected)
    expect(walkFilter(firewalld([port.replace('8285', '22')]), first)).toMatchObject(rejected)
    expect(walkFilter(firewalld([port]), first)).toMatchObject({ ...accepted, by: port })
    expect(walkFilter(firewalld([]), { ...first, from: 'eth1' })).toMatchObject({
      ...accepted,
      by: '-A IN_trusted -j ACCEPT',
    })
  })

  it('of ufw drop packets to a port that no rule of the user names', () => {
    const ufw = (...user: readonly string[]): string =>
      savedBy(
        nftables,
        '*filter',
        ':INPUT DROP [34:2040]',
        ':FORWARD DROP [0:0]',
        ':OUTPUT ACCEPT [0:0]',
        ':ufw-before-input - [0:0]',
        ':ufw-logging-deny - [0:0]',
        ':ufw-not-local - [0:0]',
        ':ufw-user-input - [0:0]',
        '[99:9900] -A INPUT -j ufw-before-input',
        '[0:0] -A ufw-before-input -i lo -j ACCEPT',
        '[65:7860] -A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
        '[0:0] -A ufw-before-input -m conntrack --ctstate INVALID -j ufw-logging-deny',
        '[0:0] -A ufw-before-input -m conntrack --ctstate INVALID -j DROP',
        '[0:0] -A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT',
        '[0:0] -A ufw-before-input -p udp -m udp --sport 67 --dport 68 -j ACCEPT',
        '[34:2040] -A ufw-before-input -j ufw-not-local',
        '[0:0] -A ufw-before-input -d 224.0.0.251/32 -p udp -m udp --dport 5353 -j ACCEPT',
        '[34:2040] -A ufw-before-input -j ufw-user-input',
        '[0:0] -A ufw-logging-deny -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "',
        '[34:2040] -A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN',
        '[0:0] -A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN',
        '[0:0] -A ufw-not-local -m addrtype --dst-type BROADCAST -j RETURN',
        '[0:0] -A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j ufw-logging-deny',
        '[0:0] -A ufw-not-local -j DROP',
        ...user,
      )
    const first = { ...packet, state: 'new' } as const
    const allow = '-A ufw-user-input -p udp -m multiport --dports 8285,8472 -j ACCEPT'
    expect(walkFilter(ufw(), first)).toMatchObject({ ...dropped, by: '-P INPUT DROP' })
    expect(walkFilter(ufw(`[3:180] ${allow}`), first)).toMatchObject({ ...accepted, by: allow })
    expect(walkFilter(ufw(), { ...first, state: 'established' })).toMatchObject(accepted)
    expect(walkFilter(ufw(), { ...first, protocol: 'icmp' })).toMatchObject(accepted)
  })

  it('of Calico accept VXLAN packets of the hosts in its set, which weft cannot read', () => {
    const from = (...rules: readonly string[]): string =>
      savedBy(legacy, '*filter', ':INPUT ACCEPT [0:0]', ':cali-INPUT - [0:0]', ...rules)
    const vxlan =
      '-p udp -m comment --comment "cali:w7ud0UgQSEi_zKuQ" -m comment --comment "Allow VXLAN packets" -m multiport --dports 4789'
    const text = from(
      '[0:0] -A INPUT -m comment --comment "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT',
      `[5:500] -A cali-INPUT ${vxlan} -m set --match-set cali40all-vxlan-net src -m addrtype --dst-type LOCAL -j ACCEPT`,
      `[7:700] -A cali-INPUT ${vxlan} -m addrtype --dst-type LOCAL -j DROP`,
    )
    expect(walkFilter(text, { ...packet, port: 4789 })).toMatchObject(perhaps(false))
    expect(walkFilter(text, { ...packet, port: 8472 })).toMatchObject(accepted)
  })

  it('of Cilium exempt the packets of containers from connection tracking', () => {
    const cilium = savedBy(
      nftables,
      '*raw',
      ':PREROUTING ACCEPT [0:0]',
      ':OUTPUT ACCEPT [0:0]',
      ':CILIUM_PRE_raw - [0:0]',
      '-A PREROUTING -m comment --comment "cilium-feeder: CILIUM_PRE_raw" -j CILIUM_PRE_raw',
      '-A CILIUM_PRE_raw -d 10.5.0.0/16 -m comment --comment "cilium: NOTRACK for pod traffic" -j CT --notrack',
      '-A CILIUM_PRE_raw -s 10.5.0.0/16 -m comment --comment "cilium: NOTRACK for pod traffic" -j CT --notrack',
    )
    expect(effects(cilium, forwarded)).toMatchObject([
      { kind: 'untracked', isCertain: true, by: expect.stringMatching(/^-t raw -A CILIUM_PRE_raw -d 10\.5\.0\.0\/16/) },
      { kind: 'untracked', isCertain: true },
    ])
    expect(effects(cilium, packet)).toEqual([])
  })
})
