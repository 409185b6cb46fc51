// nft-rules.test.ts - weft reads conditions, verdict maps and statements of nftables rules as `nft list ruleset` prints
// them for common programs. The verdict is the verdict of the kernel, or uncertain.

import { describe, expect, it } from 'vitest'
import { parseAddress } from '../../../../src/net/address.ts'
import type { Bridged, FilteredPacket, ReadQueues, Verdict } from '../../../../src/tool/doctor/chain-walk.ts'
import { ARP, readRuleset } from '../../../../src/tool/doctor/nft-walk.ts'

const between = (source: string, destination: string) => ({
  source: parseAddress(source)!,
  destination: parseAddress(destination)!,
})
/** The first packet of a TCP connection between a container of this host and one of a peer. */
const container: FilteredPacket = {
  chain: 'FORWARD',
  protocol: 'tcp',
  ...between('10.5.1.2', '10.5.2.2'),
  from: 'cni0',
  to: 'flannel.1',
  state: 'new',
  mark: 0,
}
const container6: FilteredPacket = { ...container, ...between('fd00:5:0:1::2', 'fd00:5:0:2::2') }
/** The first packet of a peer to port 8472 of this host. */
const peer: FilteredPacket = {
  chain: 'INPUT',
  protocol: 'udp',
  ...between('192.0.2.2', '192.0.2.1'),
  port: 8472,
  from: 'eth0',
  state: 'new',
  mark: 0,
}
const peer6: FilteredPacket = { ...peer, ...between('2001:db8::2', '2001:db8::1') }
const hooks = { INPUT: 'input', FORWARD: 'forward', OUTPUT: 'output' } as const

const table = (name: string, ...lines: readonly string[]): string => `table ${name} {\n${lines.join('\n')}\n}\n`
/** Returns a table with one base chain. `rules` has one rule in each line. */
const chainOf = (packet: FilteredPacket, rules: string, policy = 'accept', family = 'inet', more = ''): string =>
  table(
    `${family} own`,
    more,
    '\tchain c {',
    `\t\ttype filter hook ${hooks[packet.chain]} priority filter; policy ${policy};`,
    ...rules.split('\n').map((rule) => `\t\t${rule.trim()}`),
    '\t}',
  )
/**
 * Describes a verdict in words. `unread` means that weft cannot evaluate a condition of a rule that drops. Then only
 * the counter of the rule shows whether the rule drops packets.
 */
const wordsOf = ({ isAccepted, isCertain, unjudged }: Verdict): string =>
  `${isCertain ? '' : 'perhaps '}${isAccepted ? 'accepted' : 'dropped'}${unjudged.length > 0 ? ', unread' : ''}`
const only = (text: string, packet: FilteredPacket, read?: ReadQueues): Verdict => {
  const verdicts = readRuleset(text, read).walk(packet, [])
  expect(verdicts).toHaveLength(1)
  return verdicts[0]!
}
const judged = (rules: string, packet: FilteredPacket, policy = 'accept'): string =>
  wordsOf(only(chainOf(packet, rules, policy), packet))

describe('a condition about addresses, ports and protocols', () => {
  it.each<[rules: string, packet: FilteredPacket, expected: string]>([
    ['ip6 daddr fd00:5::/48 drop', container6, 'dropped'],
    ['meta nfproto ipv6 ip6 daddr != fd00:5::/48 drop', container6, 'accepted'],
    ['ip6 nexthdr tcp drop', container6, 'dropped'],
    ['ip6 nexthdr udp drop', container6, 'accepted'],
    ['ip protocol tcp drop', container6, 'accepted'],
    ['ip6 nexthdr tcp drop', container, 'accepted'],
    ['meta nfproto ipv4 drop', container, 'dropped'],
    ['meta nfproto ipv6 drop', container, 'accepted'],
    ['meta nfproto ipv6 drop', container6, 'dropped'],
    ['tcp dport 22 drop', { ...container, port: 22 }, 'dropped'],
    ['tcp dport 22 drop', { ...container, port: 23 }, 'accepted'],
    ['icmp type echo-request drop', { ...container, protocol: 'icmp' }, 'dropped'],
    ['icmp type echo-reply drop', { ...container, protocol: 'icmp' }, 'accepted'],
    ['icmp type echo-request drop', container, 'accepted'],
    ['icmpv6 type echo-request drop', { ...container6, protocol: 'ipv6-icmp' }, 'dropped'],
    ['icmpv6 type nd-neighbor-solicit drop', { ...container6, protocol: 'ipv6-icmp' }, 'accepted'],
    ['udp dport 9000-9999 drop', peer, 'accepted'],
    ['udp dport 8000-8999 drop', peer, 'dropped'],
    // Containers use any port.
    ['tcp dport { 25, 465 } drop', container, 'perhaps accepted'],
    // Older versions of nft print the names of services.
    ['udp dport domain drop', peer, 'perhaps accepted'],
    ['udp dport { 53, syslog } drop', peer, 'perhaps accepted'],
    ['tcp dport 8000-http-alt drop', { ...container, port: 8080 }, 'perhaps accepted'],
    ['ether saddr 02:42:0a:05:01:02 drop', container, 'perhaps accepted'],
    ['ether daddr 02:42:0a:05:01:02 drop', container, 'perhaps accepted'],
    ['udp sport 123 drop', peer, 'perhaps accepted'],
    ['tcp sport 22 drop', peer, 'accepted'],
    ['tcp sport 22 drop', container, 'perhaps accepted'],
    ['th sport 53 drop', peer, 'perhaps accepted'],
    ['th sport 53 drop', container, 'perhaps accepted'],
  ])('%s', (rules, packet, expected) => expect(judged(rules, packet)).toBe(expected))

  it.each([
    ['meta iifname "cni0" drop', 'dropped'],
    ['meta iifname "eth0" drop', 'accepted'],
    ['meta iif "cni0" drop', 'dropped'],
    ['meta oifname "flannel.1" drop', 'dropped'],
    ['meta oifname "cni0" drop', 'accepted'],
    ['meta oif "flannel.1" drop', 'dropped'],
    ['oif "flannel.1" drop', 'dropped'],
    ['oif "cni0" drop', 'accepted'],
    // The kernel permits a comma in the name of an interface.
    ['iifname "tap1,cni0" drop', 'accepted'],
  ])('%s, between containers', (rules, expected) => expect(judged(rules, container)).toBe(expected))

  it('is false for a packet without the header that it names', () => {
    for (const condition of [
      'tcp window 0-500',
      'udp length 0-60',
      'icmp code 3',
      'icmpv6 code 1',
      'sctp dport 3868',
      'dccp dport 5001',
      'esp spi 100-200',
      'ah spi 100',
      'arp htype 1',
    ]) {
      const packet = condition.startsWith('udp') ? container : peer
      expect(judged(`${condition} drop`, packet), condition).toBe('accepted')
    }
    expect(judged('tcp window 0-500 drop', container)).toBe('perhaps accepted, unread')
    expect(judged('udp length 0-60 drop', peer)).toBe('perhaps accepted, unread')
  })
})

describe('a condition about the state of the connection', () => {
  const later = { ...container, state: 'established' } as const
  it.each<[rules: string, packet: FilteredPacket, expected: string]>([
    ['ct state == new drop', container, 'dropped'],
    ['ct state == established drop', container, 'accepted'],
    ['ct state new / new,related drop', peer, 'perhaps accepted, unread'],
    ['ct status dnat drop', container, 'accepted'],
    ['ct status dnat drop', later, 'perhaps accepted'],
    ['ct status assured drop', container, 'perhaps accepted'],
    ['ct status expected,dnat drop', container, 'perhaps accepted'],
    ['ct status snat,dying drop', container, 'perhaps accepted'],
  ])('%s', (rules, packet, expected) => expect(judged(rules, packet)).toBe(expected))

  it.each<[rules: string, packet: FilteredPacket, expected: string]>([
    // Rules against TCP packets that begin a connection without SYN, and the usual ones against scans.
    ['tcp flags != syn / fin,syn,rst,ack ct state new drop', container, 'accepted'],
    ['tcp flags syn / fin,syn,rst,ack drop', container, 'dropped'],
    ['tcp flags fin,syn / fin,syn drop', container, 'accepted'],
    ['tcp flags syn / fin,syn drop', container, 'dropped'],
    ['ip saddr 10.5.0.0/16 iifname "cni0" tcp flags syn / fin,syn,rst,ack drop', container, 'dropped'],
    ['tcp flags syn / fin,syn,rst,ack drop', later, 'perhaps accepted'],
    ['tcp flags syn drop', container, 'perhaps accepted'],
    ['tcp flags syn drop', peer, 'accepted'],
  ])('%s', (rules, packet, expected) => expect(judged(rules, packet)).toBe(expected))
})

describe('a condition about the kind of destination', () => {
  const solicitation: FilteredPacket = {
    ...peer6,
    protocol: 'ipv6-icmp',
    ...between('2001:db8::2', 'ff02::1:ff00:1'),
    icmp: 'solicitation',
  }
  it.each<[rules: string, packet: FilteredPacket, expected: string]>([
    ['fib daddr type multicast drop', solicitation, 'dropped'],
    ['fib daddr type local drop', solicitation, 'accepted'],
    ['meta pkttype multicast drop', solicitation, 'dropped'],
    ['meta pkttype host drop', solicitation, 'accepted'],
    ['meta pkttype host drop', peer, 'dropped'],
    ['meta pkttype unicast drop', peer, 'dropped'],
    ['meta pkttype { broadcast, multicast } drop', peer, 'accepted'],
  ])('%s', (rules, packet, expected) => expect(judged(rules, packet)).toBe(expected))
})

describe('a condition about the length or the mark', () => {
  it.each<[rules: string, packet: FilteredPacket, expected: string]>([
    ['ip length 20-65535 drop', container, 'dropped'],
    ['ip6 length 20-65535 drop', container6, 'dropped'],
    ['ip6 length 20-65535 drop', container, 'accepted'],
    ['meta length < 40 drop', container, 'accepted'],
    ['meta length <= 39 drop', container, 'accepted'],
    ['meta length <= 1500 drop', container, 'dropped'],
    ['meta length > 40 drop', container, 'perhaps accepted, unread'],
    ['meta length > 65535 drop', container, 'accepted'],
    ['meta length >= 40 drop', container, 'dropped'],
    ['ip length >= 28 drop', container, 'dropped'],
    ['meta mark 0x00000001 drop', container, 'accepted'],
    ['meta mark 0x00000000 drop', container, 'dropped'],
    ['meta mark & 0x00004000 == 0x00004000 drop', container, 'accepted'],
    ['meta mark & 0x00004000 != 0x00004000 drop', container, 'dropped'],
    ['meta mark & 0x00004000 != 0x00000000 drop', container, 'accepted'],
    ['meta mark & 0x00004000 == 0x00000000 drop', container, 'dropped'],
    ['meta mark & 0x000000ff < 0x00000010 drop', container, 'perhaps accepted'],
    ['meta mark ^ 0x00000001 == 0x00000001 drop', container, 'perhaps accepted'],
    ['meta mark | 0x00000001 == 0x00000001 drop', container, 'perhaps accepted'],
  ])('%s', (rules, packet, expected) => expect(judged(rules, packet)).toMatch(new RegExp(`^${expected}`)))
})

describe('after a condition that weft cannot evaluate', () => {
  const unread = [
    'ct original ip saddr 192.0.2.0/24',
    'ct original protocol tcp',
    'fib daddr oif "eth1"',
    'limit rate 3/minute',
    'limit rate over 100/second',
    'limit rate over 100/second burst 5 packets',
    'ct count over 20',
    'meta skuid 1000',
    'skuid 1000',
    'ct mark 0x00000001',
    'ip dscp cs1',
    'socket transparent 1',
    'rt classid 1',
    'tcp window 0-500',
  ]
  it.each(unread)('%s drop: may drop', (condition) =>
    expect(judged(`${condition} drop`, container)).toBe('perhaps accepted, unread'),
  )

  it.each(unread.filter((each) => !/^(fib|ct original|.* burst)/.test(each)))(
    '%s: the next condition is evaluated',
    (condition) => {
      expect(judged(`${condition} ip saddr 192.0.2.0/24 drop`, container)).toBe('accepted')
      expect(judged(`${condition} ip saddr 10.5.1.0/24 drop`, container)).toBe('perhaps accepted, unread')
    },
  )

  it('the next condition is evaluated in rules for IPv6 packets', () => {
    expect(judged('ip6 flowlabel 22 ip6 saddr 2001:db8::/32 drop', container6)).toBe('accepted')
    expect(judged('ip6 hoplimit 1 ip6 saddr fd00:5::/48 drop', container6)).toBe('perhaps accepted, unread')
  })

  it('a rule that ends with a field has no verdict', () => {
    expect(judged('dup to ip saddr\ndrop', container)).toBe('dropped')
  })
})

describe('a concatenation of fields is not evaluated', () => {
  it.each([
    'iifname . ip saddr { "cni0" . 10.5.1.2 } drop',
    'ip saddr . iifname vmap { 10.5.1.2 . "cni0" : drop }',
    'iifname . ip saddr . oifname vmap { "cni0" . 10.5.1.2 . "flannel.1" : drop }',
    'iifname . oifname "cni0" . "flannel.1" drop',
    'counter packets 7 bytes 420 ip saddr . oifname vmap { 10.5.1.2 . "flannel.1" : drop }',
    'meta l4proto { tcp, udp } ip saddr . oifname vmap { 10.5.1.2 . "flannel.1" : drop }',
    // nft prints a field without a name as a range of bits.
    '@nh,96,32 . oifname vmap { 0xa050102 . "flannel.1" : drop }',
    'ip daddr != 10.96.0.0/12 ip saddr . oifname vmap { 10.5.1.2 . "flannel.1" : drop }',
  ])('%s', (rules) => expect(judged(rules, container)).toBe('perhaps accepted'))

  it('a rule with a concatenation that only changes packets passes the packets to the next rule', () => {
    const clamp = 'iifname . oifname "cni0" . "flannel.1" tcp option maxseg size set rt mtu'
    expect(judged(`${clamp}\ndrop`, container)).toBe('dropped')
    expect(judged(clamp, container)).toBe('accepted')
  })
})

describe('a verdict map', () => {
  const chains = '\tchain allow {\n\t\taccept\n\t}\n\n\tchain count {\n\t\tcounter packets 0 bytes 0\n\t}\n'
  const of = (rules: string, packet: FilteredPacket): string =>
    wordsOf(only(chainOf(packet, rules, 'accept', 'inet', chains), packet))

  it.each<[rules: string, packet: FilteredPacket, expected: string]>([
    ['ip saddr vmap { 10.5.0.0/16 : drop, 10.6.0.0/16 : accept }', container, 'dropped'],
    ['ip saddr vmap { 10.7.0.0/16 : drop, 10.6.0.0/16 : accept }', container, 'accepted'],
    ['ip daddr vmap { 10.5.2.0-10.5.2.9 : drop }', container, 'dropped'],
    ['iifname vmap { "cni0" : goto allow, "eth0" : drop }\ndrop', container, 'accepted'],
    ['iifname vmap { "cni0" : goto count, "eth0" : drop }\ndrop', container, 'accepted'],
    ['iifname vmap { "cni0" : jump count, "eth0" : accept }\ndrop', container, 'dropped'],
    // Older versions of nft print the names of services; a port without a name is a number.
    ['udp dport vmap { 8472 : jump count, domain : drop }', peer, 'accepted'],
    ['udp dport vmap { domain : accept, 8472 : drop }', peer, 'perhaps dropped'],
    // nft prints no elements of an empty map, which a program may fill at any time.
    ['iifname vmap @from_pods', container, 'perhaps accepted'],
  ])('%s', (rules, packet, expected) => expect(of(rules, packet)).toBe(expected))
})

describe('a set', () => {
  const sets = [
    '\tset blocklist {',
    '\t\ttype ipv4_addr',
    '\t\tflags interval',
    '\t}',
    '',
    '\tset allowed {',
    '\t\ttype ipv4_addr',
    '\t\tflags interval',
    '\t\telements = { 10.5.0.0/16, 192.0.2.0/24 }',
    '\t}',
  ].join('\n')
  it.each([
    ['ip saddr @blocklist drop', 'perhaps accepted, unread'],
    ['iifname @bridges drop', 'perhaps accepted, unread'],
    ['ip saddr != @allowed drop', 'accepted'],
    ['ip saddr @allowed drop', 'dropped'],
  ])('%s', (rules, expected) =>
    expect(wordsOf(only(chainOf(container, rules, 'accept', 'inet', sets), container))).toBe(expected),
  )
})

describe('a rule of the family bridge', () => {
  const bridged: Bridged = { bridge: 'cni0', way: 'through', ports: ['veth1', 'veth2'] }
  const within = { ...container, ...between('10.5.1.2', '10.5.1.3'), from: 'cni0', to: 'cni0' }
  const of = (rules: string, part: Partial<Bridged>, packet: FilteredPacket = within): string =>
    wordsOf(only(chainOf(packet, rules, 'accept', 'bridge'), { ...packet, bridged: { ...bridged, ...part } }))
  const input = { ...within, chain: 'INPUT' } as const
  const output = { ...within, chain: 'OUTPUT' } as const

  it('is evaluated for the ports of the bridge', () => {
    expect(of('iifname "veth*" drop', {})).toBe('dropped')
    expect(of('iifname "veth1" drop', {})).toBe('perhaps accepted')
    expect(of('iifname "eth0" drop', {})).toBe('accepted')
    expect(of('iifname "veth1" drop', { ports: [] })).toBe('perhaps accepted')
    // A packet from this host has no incoming port, and a packet to this host has no outgoing port.
    expect(of('iifname "veth*" drop', { way: 'out' }, output)).toBe('accepted')
    expect(of('oifname "veth*" drop', { way: 'out' }, output)).toBe('dropped')
    expect(of('oifname "veth*" drop', { way: 'in' }, input)).toBe('accepted')
    expect(of('iifname "veth*" drop', { way: 'in' }, input)).toBe('dropped')
  })

  it('may name the bridge', () => {
    expect(of('meta ibrname "cni0" drop', {})).toBe('dropped')
    expect(of('meta obrname "cni0" drop', {})).toBe('dropped')
    expect(of('meta ibrname "br0" drop', {})).toBe('accepted')
    expect(of('meta ibrname "cni0" drop', { way: 'in' }, input)).toBe('dropped')
    expect(of('meta obrname "cni0" drop', { way: 'in' }, input)).toBe('accepted')
    expect(of('meta ibrname "cni0" drop', { way: 'out' }, output)).toBe('accepted')
    expect(of('meta obrname "cni0" drop', { way: 'out' }, output)).toBe('dropped')
    // If weft does not know the bridge, the verdict is uncertain.
    expect(judged('meta ibrname "cni0" drop', container)).toBe('perhaps accepted')
    expect(judged('meta obrname "cni0" drop', container)).toBe('perhaps accepted')
  })

  it('may drop ARP requests, which hosts need to find each other', () => {
    const arp = { ...peer, protocol: ARP }
    const ofArp = (rules: string): string => wordsOf(only(chainOf(arp, rules, 'accept', 'arp'), arp))
    expect(ofArp('arp operation request drop')).toBe('dropped')
    expect(ofArp('arp operation reply drop')).toBe('accepted')
    expect(ofArp('arp htype 1 arp operation reply drop')).toBe('accepted')
    expect(of('arp operation request drop', {})).toBe('accepted')
    expect(of('ether type arp drop', {})).toBe('accepted')
    expect(of('ether type ip drop', {})).toBe('dropped')
  })
})

describe('a queue', () => {
  const of = (rule: string, read: ReadQueues): Verdict => only(chainOf(peer, rule), peer, read)
  it.each<[rule: string, read: readonly number[], expected: string]>([
    ['queue num 10', [10], 'perhaps accepted'],
    ['queue num 10', [1], 'dropped'],
    ['queue to 0-15', [12], 'perhaps accepted'],
    ['queue to 0-15', [16], 'dropped'],
    ['queue flags bypass to 3', [], 'perhaps accepted'],
    ['log prefix "IPS to 5: " queue to 3', [3], 'perhaps accepted'],
    ['log prefix "IPS to 3: " queue to 5', [3], 'dropped'],
    ['log prefix "no bypass " queue to 5', [], 'dropped'],
    ['queue to symhash mod 4', [], 'perhaps accepted'],
  ])('%s, with programs that read %j', (rule, read, expected) =>
    expect(wordsOf(of(rule, new Set(read)))).toBe(expected),
  )

  it('is not read from the comment of a rule', () => {
    expect(of('drop comment "see ticket num 3"', new Set()).by).toBe('inet own c: drop comment "see ticket num 3"')
    expect(of('queue to 3', new Set()).by).toMatch(/queue to 3 \(no program reads this queue\)$/)
  })
})

describe('a rule that translates addresses', () => {
  const effectsOf = (rules: string): readonly unknown[] =>
    only(chainOf(container, rules), container).effects.map(({ by: _by, ...effect }) => effect)

  it.each([
    ['snat to 192.0.2.1', { address: '192.0.2.1' }],
    ['snat ip to 192.0.2.1 fully-random', { address: '192.0.2.1' }],
    ['snat ip prefix to 192.0.2.0/24', { address: '192.0.2.0/24' }],
    ['masquerade comment "was: snat to 192.0.2.9"', {}],
  ])('%s', (rule, part) => expect(effectsOf(rule)).toEqual([{ kind: 'source', isCertain: true, ...part }]))

  it('accepts the packet', () => {
    expect(judged('oifname "flannel.1" snat ip to 192.0.2.1', container, 'drop')).toBe('accepted')
    expect(effectsOf('accept comment "not: snat to 192.0.2.9"')).toEqual([])
  })

  it('with tproxy has the verdict that follows, if the rule has one', () => {
    const transparent = 'ip protocol tcp tproxy to 127.0.0.1:50080'
    expect(judged(`${transparent} meta mark set 0x00000001 accept`, container, 'drop')).toBe('accepted')
    expect(judged(transparent, container, 'drop')).toBe('dropped')
    expect(effectsOf(transparent)).toEqual([{ kind: 'diverted', isCertain: true }])
  })

  it('does not take its verdict from a comment', () => {
    const { unjudged } = only(
      chainOf(peer, 'limit rate over 100/second counter packets 7 bytes 420 drop comment "drop"'),
      peer,
    )
    expect(unjudged.map(({ packets }) => packets)).toEqual([7])
  })
})

// nft prints the text between the quotes unchanged, so a backslash before the second quote belongs to the text.
describe('a text that ends with a backslash', () => {
  it.each([
    String.raw`iifname "eth9" log prefix "eth9\" accept`,
    String.raw`iifname "eth9" accept comment "eth9\"`,
    String.raw`iifname "eth9" accept comment "\"`,
  ])('does not hide the next rule: %s', (first) =>
    expect(only(chainOf(container, `${first}\ndrop\niifname "eth8" accept`), container).by).toBe('inet own c: drop'),
  )

  it('does not hide the next element of a set', () => {
    const of = (last: string): string => {
      const elements = String.raw`{ 198.51.100.7 comment "a\", ${last} comment "b" }`
      const set = `\tset blocked {\n\t\ttype ipv4_addr\n\t\telements = ${elements}\n\t}\n`
      return wordsOf(only(chainOf(container, 'ip saddr @blocked drop', 'accept', 'inet', set), container))
    }
    expect(of('10.5.1.2')).toBe('dropped')
    expect(of('198.51.100.8')).toBe('accepted')
  })
})

describe('the rules of common programs', () => {
  const seen = (text: string, packet: FilteredPacket): readonly string[] =>
    readRuleset(text)
      .walk(packet, [])
      .map((verdict) => `${verdict.base.name}: ${wordsOf(verdict)}`)
  const changes = (text: string, packet: FilteredPacket): readonly string[] =>
    readRuleset(text)
      .walk(packet, [])
      .flatMap(({ effects }) => effects.map(({ kind, by }) => `${kind} by ${by}`))

  // kubernetes: pkg/proxy/nftables/proxier_test.go
  const kubeProxy = (...services: readonly string[]): string =>
    table(
      'ip kube-proxy',
      '\tcomment "rules for kube-proxy"',
      '',
      '\tset cluster-ips {',
      '\t\ttype ipv4_addr',
      '\t\tcomment "Active ClusterIPs"',
      '\t\telements = { 10.96.0.1, 10.96.0.10 }',
      '\t}',
      '',
      '\tmap no-endpoint-services {',
      '\t\ttype ipv4_addr . inet_proto . inet_service : verdict',
      '\t\tcomment "vmap to drop or reject packets to services with no endpoints"',
      ...services,
      '\t}',
      '',
      '\tchain filter-forward {',
      '\t\ttype filter hook forward priority -110; policy accept;',
      '\t\tct state new jump service-endpoints-check',
      '\t\tct state new jump cluster-ips-check',
      '\t}',
      '',
      '\tchain nat-postrouting {',
      '\t\ttype nat hook postrouting priority srcnat; policy accept;',
      '\t\tjump masquerading',
      '\t}',
      '',
      '\tchain cluster-ips-check {',
      '\t\tip daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"',
      '\t\tip daddr 10.96.0.0/12 drop comment "Drop traffic to unallocated ClusterIPs"',
      '\t}',
      '',
      '\tchain masquerading {',
      '\t\tmeta mark & 0x00004000 == 0x00000000 return',
      '\t\tmeta mark set meta mark ^ 0x00004000',
      '\t\tmasquerade fully-random',
      '\t}',
      '',
      '\tchain reject-chain {',
      '\t\treject',
      '\t}',
      '',
      '\tchain service-endpoints-check {',
      '\t\tip daddr . meta l4proto . th dport vmap @no-endpoint-services',
      '\t}',
    )
  const silent = '\t\telements = { 10.96.0.44 . tcp . 80 comment "ns4/svc4:p80" : goto reject-chain }'

  it('kube-proxy: containers are not masqueraded, and unused addresses of services are dropped', () => {
    const [ways, later] = [kubeProxy(silent), { ...container, state: 'established' } as const]
    expect(changes(ways, container)).toEqual([])
    expect(seen(ways, later)).toEqual(['ip kube-proxy filter-forward: accepted'])
    // weft does not know the port of the packet.
    expect(seen(ways, container)).toEqual([
      'ip kube-proxy filter-forward: perhaps accepted',
      'ip kube-proxy nat-postrouting: accepted',
    ])
    for (const destination of ['10.96.0.10', '10.96.0.77'])
      expect(seen(kubeProxy(silent), { ...container, ...between('10.5.1.2', destination) })[0]).toMatch(/dropped$/)
    // A program may give the packet the mark of kube-proxy.
    const { mark: _mark, ...unmarked } = container
    expect(changes(ways, unmarked)).toEqual(['source by ip kube-proxy masquerading: masquerade fully-random'])
  })

  // firewalld 2.x with the zone public
  const firewalld = table(
    'inet firewalld',
    '\tchain filter_INPUT {',
    '\t\ttype filter hook input priority filter + 10; policy accept;',
    '\t\tct state { established, related } accept',
    '\t\tct status dnat accept',
    '\t\tiifname "lo" accept',
    '\t\tct state invalid drop',
    '\t\tjump filter_INPUT_POLICIES',
    '\t\treject with icmpx admin-prohibited',
    '\t}',
    '',
    '\tchain filter_FORWARD {',
    '\t\ttype filter hook forward priority filter + 10; policy accept;',
    '\t\tct state { established, related } accept',
    '\t\tct status dnat accept',
    '\t\tiifname "lo" accept',
    '\t\tct state invalid drop',
    '\t\tip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24, 2002:a00::/24 } reject with icmpv6 addr-unreachable',
    '\t\tjump filter_FORWARD_POLICIES',
    '\t\treject with icmpx admin-prohibited',
    '\t}',
    '',
    '\tchain filter_INPUT_POLICIES {',
    '\t\tiifname "eth0" jump filter_IN_public',
    '\t\tjump filter_IN_public',
    '\t\treject with icmpx admin-prohibited',
    '\t}',
    '',
    '\tchain filter_FORWARD_POLICIES {',
    '\t\tiifname "eth0" oifname "eth0" jump filter_FWD_public',
    '\t}',
    '',
    '\tchain filter_FWD_public {',
    '\t\tmeta l4proto { icmp, ipv6-icmp } accept',
    '\t}',
    '',
    '\tchain filter_IN_public {',
    '\t\tmeta l4proto { icmp, ipv6-icmp } accept',
    '\t\ttcp dport 22 accept',
    '\t\tip6 daddr fe80::/64 udp dport 546 accept',
    '\t\tudp dport 8472 accept',
    '\t}',
  )
  it.each<[string, FilteredPacket, string]>([
    ['new packets between containers', container, 'filter_FORWARD: dropped'],
    ['later packets between containers', { ...container, state: 'established' }, 'filter_FORWARD: accepted'],
    [
      'echo requests through eth0',
      { ...container, protocol: 'icmp', from: 'eth0', to: 'eth0' },
      'filter_FORWARD: accepted',
    ],
    ['new IPv6 packets between containers', container6, 'filter_FORWARD: dropped'],
    ['packets to the open port', peer, 'filter_INPUT: accepted'],
    ['packets to another port', { ...peer, port: 8285 }, 'filter_INPUT: dropped'],
    ['IPv6 packets to the open port', peer6, 'filter_INPUT: accepted'],
    ['TCP connections to the port of ssh', { ...peer, protocol: 'tcp', port: 22 }, 'filter_INPUT: accepted'],
    ['TCP connections to another port', { ...peer, protocol: 'tcp', port: 8472 }, 'filter_INPUT: dropped'],
  ])('firewalld: %s', (_, packet, expected) => expect(seen(firewalld, packet)).toEqual([`inet firewalld ${expected}`]))

  // flannel: pkg/trafficmngr/nftables
  const flannel = table(
    'ip flannel-ipv4',
    '\tcomment "rules for flannel-ipv4"',
    '',
    '\tchain postrtg {',
    '\t\tcomment "chain to manage traffic masquerading by flannel"',
    '\t\ttype nat hook postrouting priority srcnat; policy accept;',
    '\t\tmeta mark 0x00004000 return',
    '\t\tip saddr 10.5.1.0/24 ip daddr 10.5.0.0/16 return',
    '\t\tip saddr 10.5.0.0/16 ip daddr 10.5.1.0/24 return',
    '\t\tip saddr != 10.5.1.0/24 ip daddr 10.5.0.0/16 return',
    '\t\tip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random',
    '\t}',
    '',
    '\tchain forward {',
    '\t\tcomment "chain to accept flannel traffic"',
    '\t\ttype filter hook forward priority filter; policy accept;',
    '\t\tip saddr 10.5.0.0/16 accept',
    '\t\tip daddr 10.5.0.0/16 accept',
    '\t}',
  )
  it('flannel: only packets to addresses outside of the network are masqueraded', () => {
    const outside = { ...container, ...between('10.5.1.2', '198.51.100.1'), to: 'eth0' }
    expect(changes(flannel, container)).toEqual([])
    expect(changes(flannel, { ...outside, mark: 0 })).toEqual([expect.stringMatching(/^source by .*masquerade/)])
    expect(seen(flannel, outside)).toEqual(['ip flannel-ipv4 postrtg: accepted', 'ip flannel-ipv4 forward: accepted'])
  })
})
