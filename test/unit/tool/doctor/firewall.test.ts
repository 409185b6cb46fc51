// firewall.test.ts - the firewall is checked for both directions between containers, and for packets of peers to the port.

import { describe, expect, it } from 'vitest'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { countPeers, type Status } from '../../../../src/report/status.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { checkFirewall, portPacket } from '../../../../src/tool/doctor/firewall.ts'
import { readRuleset } from '../../../../src/tool/doctor/nft-walk.ts'
import { checkPeers } from '../../../../src/tool/doctor/peers.ts'
import { dualPeer, sound, soundDual, soundPeer, soundStatus as status } from '../../../support/facts.ts'

const found = (part: Partial<Facts>): string[] | undefined =>
  checkFirewall({ ...sound, ...part })?.map(({ name, detail }) => `${name}: ${detail}`)
const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })
const withBackend = (backendType: string, backend: Record<string, unknown> = {}): Status => ({
  ...status,
  config: { ...status.config!, backendType, backend },
})
const ip = (text: string): number => parseIpv4(text)!

describe('the packet of a peer to the port', () => {
  const way = { chain: 'INPUT', source: ip('192.0.2.2'), destination: ip('192.0.2.1'), from: 'eth0' }

  it.each([
    ['udp', {}, { ...way, protocol: 'udp', port: 8285 }],
    ['udp', { port: 9000 }, { ...way, protocol: 'udp', port: 9000 }],
    ['udp', { Port: 9000 }, { ...way, protocol: 'udp', port: 9000 }],
    ['udp', { port: 0 }, { ...way, protocol: 'udp', port: 8285 }],
    ['udp', { port: '9000' }, { ...way, protocol: 'udp', port: 8285 }],
    ['vxlan', { listenport: 9000 }, { ...way, protocol: 'udp', port: 8472, isOneWay: true }],
    ['wireguard', { ListenPort: 9000, port: 1 }, { ...way, protocol: 'udp', port: 9000 }],
    ['wireguard', {}, { ...way, protocol: 'udp', port: 51_820 }],
    ['ipip', {}, { ...way, protocol: 'ipencap' }],
    ['host-gw', {}, undefined],
  ])('is with %s and %j: %j', (type, backend, expected) => {
    expect(portPacket(withBackend(type, backend), soundPeer)).toEqual(expected)
  })

  it.each([
    [{}, 51_821],
    [{ ListenPort: 9000, ListenPortV6: 9001 }, 9001],
    [{ ListenPort: 9000, Mode: 'separate' }, 51_821],
    [{ ListenPort: 9000, ListenPortV6: 9001, Mode: 'ipv6' }, 9000],
  ])('over IPv6 is to the port of the IPv6 device of wireguard, with %j: %d', (backend, port) => {
    const { status: dual } = soundDual
    const wireguard = { ...dual, config: { ...dual.config, backendType: 'wireguard', backend } }
    expect(portPacket(wireguard, dual.peers.list[0]!, 'ipv6')).toMatchObject({ protocol: 'udp', port })
  })

  it('is undefined without addresses, and has no interface that is not known', () => {
    expect(portPacket({ ...status, node: null }, soundPeer)).toBeUndefined()
    expect(portPacket(undefined, soundPeer)).toBeUndefined()
    const dual = soundDual.status
    const [peer] = dual.peers.list
    // A udp peer with addresses of both families may send over either.
    const udp = { ...dual, config: { ...dual.config, backendType: 'udp', backend: {} } }
    const alone = { ...udp, config: { ...udp.config, ipv6Network: null } }
    for (const family of ['ipv4', 'ipv6'] as const)
      expect(portPacket(udp, peer!, family)).toMatchObject({ protocol: 'udp', port: 8285 })
    expect(portPacket(alone, peer!, 'ipv4')).toMatchObject({ protocol: 'udp', port: 8285 })
    expect(portPacket(alone, peer!, 'ipv6')).toBeUndefined()
    expect(portPacket({ ...dual, node: null }, peer!, 'ipv6')).toBeUndefined()
    expect(portPacket({ ...dual, node: { ...dual.node, publicIpv6: null } }, peer!, 'ipv6')).toBeUndefined()
    expect(portPacket(dual, { ...peer!, publicIpv6: null }, 'ipv6')).toBeUndefined()
    expect(portPacket({ ...status, config: null }, soundPeer)).toBeUndefined()
    expect(portPacket(withBackend('of-tomorrow'), soundPeer)).toBeUndefined()
    expect(portPacket(status, { ...soundPeer, publicIp: 'x' })).toBeUndefined()
    const node = { ...status.node!, externalInterface: null }
    expect(portPacket({ ...status, node }, soundPeer)).not.toHaveProperty('from')
  })
})

describe('iptables rules', () => {
  it.each([
    ['lets it through', '-P INPUT ACCEPT\n-P FORWARD ACCEPT', []],
    ['drops both ways, which is said once', '-P FORWARD DROP', ['forward-dropped: -P FORWARD DROP']],
    [
      'drops what goes out',
      '-A FORWARD -s 10.5.1.2/32 -d 10.5.2.2/32 -j DROP',
      ['forward-dropped: -A FORWARD -s 10.5.1.2/32 -d 10.5.2.2/32 -j DROP'],
    ],
    [
      'drops what comes in',
      '-A FORWARD -s 10.5.2.2/32 -d 10.5.1.2/32 -j DROP',
      ['forward-dropped: -A FORWARD -s 10.5.2.2/32 -d 10.5.1.2/32 -j DROP'],
    ],
    [
      'drops each way by a rule of its own',
      '-A FORWARD -s 10.5.1.0/24 -j DROP\n-A FORWARD -s 10.5.2.0/24 -j DROP',
      ['forward-dropped: -A FORWARD -s 10.5.1.0/24 -j DROP', 'forward-dropped: -A FORWARD -s 10.5.2.0/24 -j DROP'],
    ],
    ['may drop what comes in', '-A INPUT -m mark --mark 0x1 -j DROP', []],
    [
      'may let through what is forwarded',
      '-A FORWARD -m mark --mark 0x1 -j ACCEPT\n-P FORWARD DROP',
      ['iptables-drops: -P FORWARD DROP'],
    ],
    [
      'may let it through, and names the network',
      '-A FORWARD -s 10.5.0.0/16 -m mark --mark 0x1 -j ACCEPT\n-P FORWARD DROP',
      [],
    ],
    ['drops TCP alone', '-A FORWARD -p tcp -j DROP', ['forward-dropped: -A FORWARD -p tcp -j DROP']],
    [
      'drops both by one rule',
      '-A FORWARD -j own\n-A INPUT -j own\n-A own -j DROP',
      ['forward-dropped: -A own -j DROP', 'port-dropped: -A own -j DROP'],
    ],
    ['drops others', '-A FORWARD -p udp -j DROP\n-A INPUT -p tcp -j DROP', []],
    [
      'drops the port',
      '-A INPUT -s 192.0.2.2/32 -d 192.0.2.1/32 -j DROP',
      ['port-dropped: -A INPUT -s 192.0.2.2/32 -d 192.0.2.1/32 -j DROP'],
    ],
  ])('%s', (_, iptables, expected) => expect(found({ iptables })).toEqual(expected))

  it('are not checked if they cannot be read, or if no peer is usable', () => {
    expect(found({ iptables: undefined })).toEqual([])
    const stored = countPeers([{ ...soundPeer, state: 'stored' }], 10)
    expect(found({ ...withStatus({ peers: stored }), iptables: '-P FORWARD DROP\n-P INPUT DROP' })).toEqual([])
    // Without known peers, any address of the network represents a peer.
    expect(found({ ...withStatus({ peers: null }), iptables: '-P FORWARD DROP' })).toEqual([
      'forward-dropped: -P FORWARD DROP',
    ])
    expect(found({ status: withBackend('host-gw'), iptables: '-P INPUT DROP' })).toEqual([
      'probes-dropped: -P INPUT DROP',
    ])
  })

  it.each<[string, Partial<Facts>]>([
    ['a status', { status: undefined }],
    ['a node', withStatus({ node: null })],
    ['a configuration', withStatus({ config: null })],
    ['a network', withStatus({ config: { ...status.config!, network: 'x' } })],
  ])('are not checked without %s', (_, part) => expect(found(part)).toBeUndefined())
})

describe('a dual-stack network', () => {
  const dual = (part: Partial<Facts>): string[] | undefined => found({ ...soundDual, ...part })
  const withDual = (part: Partial<Status>): Partial<Facts> => ({ status: { ...soundDual.status, ...part } })
  const [peer] = soundDual.status.peers.list

  it('is checked unless the rules of both families are unknown', () => {
    const open = '-P INPUT ACCEPT\n-P FORWARD ACCEPT'
    const checked = (iptables: string | undefined, ip6tables: string | undefined) =>
      dual({ nft: undefined, iptables, ip6tables }) !== undefined
    expect([checked(open, undefined), checked(undefined, open), checked(undefined, undefined)]).toEqual([
      true,
      true,
      false,
    ])
  })

  it.each<[string, string | undefined, string[]]>([
    ['lets it through', '-P INPUT ACCEPT\n-P FORWARD ACCEPT', []],
    ['drops both ways, which is said once', '-P FORWARD DROP', ['forward-dropped: ip6tables: -P FORWARD DROP']],
    [
      'drops what goes out',
      '-A FORWARD -s fd00:5:0:1::2/128 -d fd00:5:0:2::2/128 -j DROP',
      ['forward-dropped: ip6tables: -A FORWARD -s fd00:5:0:1::2/128 -d fd00:5:0:2::2/128 -j DROP'],
    ],
    [
      'drops what comes in',
      '-A FORWARD -s fd00:5:0:2::/64 -j DROP',
      ['forward-dropped: ip6tables: -A FORWARD -s fd00:5:0:2::/64 -j DROP'],
    ],
    ['accepts the network', '-P FORWARD DROP\n-A FORWARD -s fd00:5::/48 -j ACCEPT', []],
    [
      'drops the port',
      '-A INPUT -s 2001:db8::2/128 -d 2001:db8::1/128 -p udp -m udp --dport 8472 -j DROP',
      ['port-dropped: ip6tables: -A INPUT -s 2001:db8::2/128 -d 2001:db8::1/128 -p udp -m udp --dport 8472 -j DROP'],
    ],
    ['cannot be asked', undefined, []],
  ])('with ip6tables rules that %s', (_, ip6tables, expected) => expect(dual({ ip6tables })).toEqual(expected))

  it('has one listing for each family', () => {
    expect(dual({ iptables: '-P FORWARD DROP' })).toEqual(['forward-dropped: -P FORWARD DROP'])
    expect(dual({ iptables: '-P FORWARD DROP', ip6tables: '-P FORWARD DROP' })).toEqual([
      'forward-dropped: -P FORWARD DROP',
      'forward-dropped: ip6tables: -P FORWARD DROP',
    ])
  })

  it('is checked by a peer of the family, and not without one', () => {
    const four = { ...soundPeer, ipv6Subnet: null }
    const of = (...list: readonly (typeof soundPeer)[]) =>
      dual({ ...withDual({ peers: countPeers(list, 10) }), ip6tables: '-P FORWARD DROP' })
    expect(of(four, peer!)).toEqual(['forward-dropped: ip6tables: -P FORWARD DROP'])
    expect(of(four)).toEqual([])
    expect(of(dualPeer({}, { state: 'stored' }))).toEqual([])
    expect(of(dualPeer({ state: 'stored' }))).toEqual(['forward-dropped: ip6tables: -P FORWARD DROP'])
  })

  it('with only IPv6 is checked with the IPv6 rules', () => {
    const [subnet, network] = ['fd00:5:0:1::/64', 'fd00:5::/48']
    const node = { ...soundDual.status.node, subnet, publicIp: '2001:db8::1' }
    const config = { ...soundDual.status.config, network }
    const peers = countPeers([{ ...peer!, subnet: 'fd00:5:0:2::/64', publicIp: '2001:db8::2' }], 10)
    expect(dual({ ...withDual({ node, config, peers }), ip6tables: '-P FORWARD DROP' })).toEqual([
      'forward-dropped: ip6tables: -P FORWARD DROP',
    ])
    expect(dual({ ...withDual({ node, config, peers }), iptables: '-P FORWARD DROP' })).toEqual([])
  })

  it('has the IPv6 port if the backend has two ports, and no IPIP for IPv6', () => {
    const config = (backendType: string, backend = {}) => ({ ...soundDual.status.config, backendType, backend })
    const packet = (backendType: string, backend = {}) =>
      portPacket({ ...soundDual.status, config: config(backendType, backend) }, peer!, 'ipv6')
    expect(packet('vxlan', { Port: 4789 })).toMatchObject({ protocol: 'udp', port: 4789, from: 'eth0' })
    expect(packet('wireguard')).toMatchObject({ protocol: 'udp', port: 51_821 })
    expect(packet('ipip')).toBeUndefined()
    expect(portPacket({ ...soundDual.status, config: config('ipip') }, peer!)).toMatchObject({ protocol: 'ipencap' })
  })

  const rules = (network: string): string =>
    `-P FORWARD ACCEPT\n-N FLANNEL-FWD\n-A FLANNEL-FWD -s ${network} -m comment --comment "flanneld forward" -j ACCEPT`
  const nft = (...tables: readonly string[]): string => tables.map((table) => `table ${table}\n`).join('')
  const four = 'ip flannel-ipv4 {\n\tchain forward {\n\t\tip saddr 10.5.0.0/16 accept\n\t}\n}'
  const six = 'ip6 flannel-ipv6 {\n\tchain forward {\n\t\tip6 saddr fd00:5::/48 accept\n\t}\n}'
  const empty = (table: string): string => `${table} {\n\tcomment "rules"\n}`

  it.each<[string, Partial<Facts>, string[]]>([
    ['both in iptables', { iptables: rules('10.5.0.0/16'), ip6tables: rules('fd00:5::/48') }, []],
    ['both in nft', { nft: nft(four, six) }, []],
    ['neither', { nft: nft(empty('ip flannel-ipv4'), empty('ip6 flannel-ipv6')) }, []],
    ['IPv4 in iptables', { iptables: rules('10.5.0.0/16') }, ['rules-missing: IPv6']],
    [
      "IPv4 in iptables, and another daemon's of IPv6",
      { iptables: rules('10.5.0.0/16'), ip6tables: rules('fd00:9::/48') },
      ['rules-missing: IPv6'],
    ],
    ['IPv6 in iptables', { ip6tables: rules('fd00:5::/48') }, ['rules-missing: IPv4']],
    ['IPv4 in nft', { nft: nft(four, empty('ip6 flannel-ipv6')) }, ['rules-missing: IPv6']],
    ['IPv4 in nft, and no other table', { nft: nft(four) }, ['rules-missing: IPv6']],
    ['IPv6 in nft', { nft: nft(six) }, ['rules-missing: IPv4']],
    ['one by each tool', { nft: nft(six), iptables: rules('10.5.0.0/16') }, []],
    ['IPv4 in iptables, and nobody to ask of IPv6', { iptables: rules('10.5.0.0/16'), ip6tables: undefined }, []],
  ])('with rules of %s', (_, part, expected) => expect(dual(part)).toEqual(expected))

  it('with one family disabled misses no rules', () => {
    expect(found({ iptables: rules('10.5.0.0/16'), ip6tables: '' })).toEqual([])
  })

  it.each([
    ['a table of IPv6 drops', 'ip6 own', '', ['forward-dropped: nft: ip6 own c: policy drop']],
    ['a table of IPv6 names the network', 'ip6 own', 'ip6 saddr fd00:5::/48 accept', []],
    ['a table of IPv4 names the network', 'ip own', 'ip saddr 10.5.0.0/16 accept', []],
    [
      'a table of both names one network',
      'inet own',
      'ip saddr 10.5.0.0/16 accept',
      ['forward-dropped: nft: inet own c: policy drop'],
    ],
    [
      'a table of both names the other network',
      'inet own',
      'ip6 saddr fd00:5::/48 accept',
      ['forward-dropped: nft: inet own c: policy drop'],
    ],
    ['a table of both names both', 'inet own', 'ip saddr 10.5.0.0/16 accept; ip6 saddr fd00:5::/48 accept', []],
    [
      "a table is ip6tables', but the chain is not",
      'ip6 filter',
      '',
      ['forward-dropped: nft: ip6 filter c: policy drop'],
    ],
  ])('with nftables: %s', (_, table, rule, expected) => {
    const text = `table ${table} {\n\tchain c {\n\t\ttype filter hook forward priority filter; policy drop;\n\t\t${rule}\n\t}\n}\n`
    expect(dual({ nft: text })).toEqual(expected)
  })
})

describe('nftables rules', () => {
  const chain = (hook: string, policy = 'drop', rules = ''): string =>
    `\tchain ${hook}s {\n\t\ttype filter hook ${hook} priority filter; policy ${policy};\n\t\t${rules}\n\t}\n`
  const table = (name: string, ...chains: string[]): string => `table ${name} {\n${chains.join('')}}\n`
  const silent = { answers: new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]]) }

  it.each([
    ['accepts', table('inet own', chain('forward', 'accept')), []],
    [
      'drops what is forwarded',
      table('inet own', chain('forward')),
      ['forward-dropped: nft: inet own forwards: policy drop'],
    ],
    ['names the network', table('inet own', chain('forward', 'drop', 'ip saddr 10.5.0.0/16 accept')), []],
    [
      'names the device',
      table('inet own', chain('forward', 'drop', 'iifname "flannel0" accept; oifname "flannel0" accept')),
      [],
    ],
    [
      'lets one direction through alone',
      table('inet own', chain('forward', 'drop', 'iifname "flannel0" accept')),
      ['forward-dropped: nft: inet own forwards: policy drop'],
    ],
    [
      "is iptables'",
      table('ip filter', chain('forward'), chain('input')).replace('forwards', 'FORWARD').replace('inputs', 'INPUT'),
      [],
    ],
    ['is of IPv6', table('ip6 own', chain('forward')), []],
    [
      'has a name like that of iptables',
      table('ip filters', chain('forward')),
      ['forward-dropped: nft: ip filters forwards: policy drop'],
    ],
    ['drops what goes out', table('inet own', chain('output')), ['port-dropped: nft: inet own outputs: policy drop']],
    [
      'says in a comment what looks like chains and tables',
      table(
        'inet own',
        chain('forward', 'drop', 'comment "as chain x of table ip filter {" ip saddr 10.5.0.0/16 accept'),
      ),
      [],
    ],
    [
      'says in a comment that it is a table of iptables',
      table('inet own', chain('forward', 'drop', 'comment "table ip filter {"')),
      ['forward-dropped: nft: inet own forwards: policy drop'],
    ],
    [
      'may drop what comes in, though peers answer',
      table('inet own', chain('input', 'drop', 'meta mark 0x1 accept; meta l4proto icmp accept')),
      [],
    ],
    [
      'has several',
      table('ip6 a', chain('forward')) +
        table('inet b', chain('forward', 'accept'), chain('forward')) +
        table('ip c', chain('forward')),
      ['forward-dropped: nft: inet b forwards: policy drop', 'forward-dropped: nft: ip c forwards: policy drop'],
    ],
  ])('%s', (_, nft, expected) => expect(found({ nft })).toEqual(expected))

  it('are suspected of dropping incoming packets if a usable peer is silent', () => {
    const nft = table('inet own', chain('input', 'drop', 'meta mark 0x1 accept; meta l4proto icmp accept'))
    expect(found({ nft, ...silent })).toEqual(['nft-drops: nft: inet own inputs: policy drop'])
    const asStatus = (state: 'answering' | 'programmed' | 'stored') =>
      found({ nft, ...withStatus({ peers: countPeers([{ ...soundPeer, state }], 10) }), answers: new Map() })
    expect([asStatus('answering'), asStatus('programmed'), asStatus('stored')]).toEqual([
      [],
      ['nft-drops: nft: inet own inputs: policy drop'],
      [],
    ])
    expect(found({ nft, ...withStatus({ peers: null }) })).toEqual([])
    expect(found({ nft: undefined })).toEqual([])
    expect(found({ nft: table('inet own', chain('forward')), ...withStatus({ dataPath: null }) })).toEqual([
      'forward-dropped: nft: inet own forwards: policy drop',
    ])
  })
})

// The rules of firewalld (RHEL, Alma, Fedora): the policy is accept, and the last rule rejects.
const firewalld = (hook: string, ...rules: readonly string[]): string =>
  [
    'table inet firewalld {',
    `\tchain filter_${hook.toUpperCase()} {`,
    `\t\ttype filter hook ${hook} priority filter + 10; policy accept;`,
    '\t\tct state { established, related } accept',
    '\t\tct status dnat accept',
    '\t\tiifname "lo" accept',
    ...rules.map((rule) => `\t\t${rule}`),
    '\t\tjump filter_ZONES',
    '\t\treject with icmpx admin-prohibited',
    '\t}',
    '',
    '\tchain filter_ZONES {',
    '\t\tgoto filter_public',
    '\t}',
    '',
    '\tchain filter_public {',
    '\t\tjump filter_public_allow',
    '\t\treject with icmpx admin-prohibited',
    '\t}',
    '',
    '\tchain filter_public_allow {',
    `\t\t${hook === 'input' ? 'tcp dport 22 ct state { new, untracked } accept' : 'oifname "eth9" accept'}`,
    '\t}',
    '}',
    '',
  ].join('\n')
const silently = (): Partial<Facts> => ({
  answers: new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]]),
})
/** The rules of Oracle Cloud, and of many administrators: the last rule drops all packets but answers. */
const STATEFUL = [
  '-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
  '-A INPUT -i lo -j ACCEPT',
  '-A INPUT -p icmp -j ACCEPT',
  '-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT',
].join('\n')

describe('a final reject rule counts as a policy', () => {
  it('of firewalld, in FORWARD and in INPUT', () => {
    const rejected = 'nft: inet firewalld filter_public: reject with icmpx admin-prohibited'
    expect(found({ nft: firewalld('forward') })).toEqual([`forward-dropped: ${rejected}`])
    expect(found({ nft: firewalld('input'), ...silently() })).toEqual([
      `port-dropped: ${rejected} (only answers to packets of this host are accepted)`,
    ])
    expect(found({ nft: firewalld('forward', 'ip saddr 10.5.0.0/16 accept') })).toEqual([])
    expect(
      found({ nft: firewalld('input', 'udp dport 8285 accept', 'ip protocol icmp accept'), ...silently() }),
    ).toEqual([])
  })

  it('over IPv6 too, in the same table', () => {
    const rejected = 'nft: inet firewalld filter_public: reject with icmpx admin-prohibited'
    const devices = { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' }
    const dual = { ...soundDual, status: { ...soundDual.status, dataPath: { ...soundDual.status.dataPath, devices } } }
    const [four, six] = ['ip saddr 10.5.0.0/16 accept', 'ip6 saddr fd00:5::/48 accept']
    expect(found({ ...dual, nft: firewalld('forward', four) })).toEqual([`forward-dropped: ${rejected}`])
    expect(found({ ...dual, nft: firewalld('forward', four, six) })).toEqual([])
  })

  it.each(['raw', 'mangle', 'security'])('in the table %s, which iptables -S does not show', (name) => {
    const nft = `table ip ${name} {\n\tchain C {\n\t\ttype filter hook prerouting priority raw; policy accept;\n\t\tudp dport 8285 counter packets 9 bytes 9 drop\n\t}\n}\n`
    expect(found({ nft })).toEqual([`port-dropped: nft: ip ${name} C: udp dport 8285 counter drop`])
  })
})

describe('rules that accept only answers', () => {
  it.each([
    ['-P INPUT DROP', '-P INPUT DROP'],
    ['-A INPUT -j REJECT --reject-with icmp-host-prohibited', '-A INPUT -j REJECT --reject-with icmp-host-prohibited'],
  ])('drop the first packet of a silent peer: %s', (last, rule) => {
    const iptables = `${STATEFUL}\n${last}`
    expect(found({ iptables, ...silently() })).toEqual([
      `port-dropped: ${rule} (only answers to packets of this host are accepted)`,
    ])
    // A peer that answers proves that its packets are accepted.
    expect(found({ iptables })).toEqual([])
    expect(found({ iptables: iptables.replace('conntrack --ctstate', 'state --state'), ...silently() })).toHaveLength(1)
  })

  it('drop new connections of containers', () => {
    const iptables = '-P FORWARD DROP\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT'
    expect(found({ iptables })).toEqual(['forward-dropped: -P FORWARD DROP'])
  })

  it.each([
    [
      'ESTABLISHED',
      '-P FORWARD ACCEPT\n-A FORWARD -m conntrack --ctstate ESTABLISHED -j DROP',
      '-A FORWARD -m conntrack --ctstate ESTABLISHED -j DROP',
    ],
    [
      '! NEW',
      '-P FORWARD ACCEPT\n-A FORWARD -m state ! --state NEW -j DROP',
      '-A FORWARD -m state ! --state NEW -j DROP',
    ],
    ['a policy', '-P FORWARD DROP\n-A FORWARD -m conntrack --ctstate NEW -j ACCEPT', '-P FORWARD DROP'],
  ])('drop the later packets of a connection: %s', (_name, iptables, by) => {
    const note = ' (only the first packet of a connection is accepted)'
    expect(found({ iptables })).toEqual([`forward-dropped: ${by}${note}`])
    const input = iptables.replaceAll('FORWARD', 'INPUT')
    expect(found({ iptables: input })).toEqual([])
    expect(found({ iptables: input, ...silently() })).toContain(
      `port-dropped: ${by.replace('FORWARD', 'INPUT')}${note}`,
    )
  })

  it('drop the later packets of a connection in nftables, and by conditions that weft cannot evaluate', () => {
    const nft = (rule: string) =>
      `table inet mine {\n\tchain f {\n\t\ttype filter hook forward priority filter; policy accept;\n\t\t${rule}\n\t}\n}\n`
    expect(found({ nft: nft('ct state established drop') })).toEqual([
      'forward-dropped: nft: inet mine f: ct state established drop (only the first packet of a connection is accepted)',
    ])
    expect(found({ nft: nft('ct state vmap { new : accept, established : drop }') })).toHaveLength(1)
    expect(found({ nft: nft('ct state established ip version 4 counter packets 3 bytes 9 drop') })).toEqual([
      expect.stringMatching(/^rule-unjudged: .* \(3 packets\)$/) as string,
    ])
    for (const priority of ['raw', '-300', '-200', '-1000'])
      expect(
        found({ nft: nft('ct state established drop').replace('priority filter', `priority ${priority}`) }),
      ).toEqual([])
    expect(found({ nft: nft('ct state established drop').replace('priority filter', 'priority -150') })).toHaveLength(1)
    // The kernel translates the later packets of a connection as the first one, and asks no rules about them.
    expect(found({ nft: nft('ct state established drop').replace('type filter', 'type nat') })).toEqual([])
  })

  it('may drop the later packets of a connection by a condition that weft cannot evaluate', () => {
    const iptables = `-P FORWARD DROP
-A FORWARD -m conntrack --ctstate NEW -j ACCEPT
-A FORWARD -m set --match-set friends src -j ACCEPT`
    expect(found({ iptables })).toEqual(['iptables-drops: -P FORWARD DROP'])
  })

  it('accept vxlan, whose datagrams are always the first of a connection', () => {
    const iptables = (port: number) =>
      `-P INPUT DROP\n-A INPUT -p udp -m udp --dport ${port} -m conntrack --ctstate NEW -j ACCEPT`
    const names = (type: string, port: number) =>
      found({ iptables: iptables(port), ...silently(), status: withBackend(type) })?.map((each) => each.split(':')[0])
    expect(names('udp', 8285)).toContain('port-dropped')
    expect(names('vxlan', 8472)).not.toContain('port-dropped')
  })

  it('are uncertain if a mark may make them accept more', () => {
    const iptables = `${STATEFUL}\n-A INPUT -m mark --mark 0x1 -j ACCEPT\n-P INPUT DROP`
    expect(found({ iptables, ...silently() })).toEqual(['iptables-drops: -P INPUT DROP'])
    expect(found({ iptables })).toEqual([])
  })
})

// The rules of ufw (Ubuntu, Debian) without the chains that only count. `mine` are rules of an operator.
const ufw = (mine: string): string =>
  [
    '-P INPUT DROP',
    '-A INPUT -j ufw-before-input',
    '-A INPUT -j ufw-after-input',
    '-A ufw-before-input -i lo -j ACCEPT',
    '-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
    '-A ufw-before-input -m conntrack --ctstate INVALID -j ufw-logging-deny',
    '-A ufw-before-input -m conntrack --ctstate INVALID -j DROP',
    '-A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT',
    '-A ufw-before-input -p udp -m udp --sport 67 --dport 68 -j ACCEPT',
    '-A ufw-before-input -j ufw-not-local',
    '-A ufw-before-input -d 224.0.0.251/32 -p udp -m udp --dport 5353 -j ACCEPT',
    '-A ufw-before-input -j ufw-user-input',
    '-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN',
    '-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN',
    '-A ufw-not-local -m addrtype --dst-type BROADCAST -j RETURN',
    '-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j ufw-logging-deny',
    '-A ufw-not-local -j DROP',
    '-A ufw-after-input -m addrtype --dst-type BROADCAST -j ufw-skip-to-policy-input',
    '-A ufw-skip-to-policy-input -j DROP',
    '-A ufw-logging-deny -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "',
    ...['ufw-user-input', 'ufw-not-local', 'ufw-logging-deny'].map((name) => `-N ${name}`),
    mine,
  ].join('\n')

describe('the rules of ufw', () => {
  it('are not blamed if they accept the port and a peer is silent', () => {
    expect(found({ iptables: ufw('-A ufw-user-input -p udp -m udp --dport 8285 -j ACCEPT'), ...silently() })).toEqual(
      [],
    )
  })

  it('are named if they drop the port', () => {
    const [policy] = found({ iptables: ufw(''), ...silently() }) ?? []
    expect(policy).toMatch(/^port-dropped: -P INPUT DROP/)
  })
})

it('the rules are evaluated for the packets of each silent peer, because a rule may concern one peer', () => {
  const other = { ...soundPeer, lease: '10.5.3.0-24', subnet: '10.5.3.0/24', publicIp: '192.0.2.3' }
  const silent = { ...other, endpoint: '192.0.2.3:8285', state: 'programmed', lossPercent: 100 } as const
  const peers = countPeers([soundPeer, silent], 10)
  expect(found({ ...withStatus({ peers }), iptables: '-A OUTPUT -d 192.0.2.3/32 -p udp -j DROP' })).toEqual([
    'port-dropped: -A OUTPUT -d 192.0.2.3/32 -p udp -j DROP',
  ])
})

describe('the remedy', () => {
  const fixes = (part: Partial<Facts>): readonly (string | undefined)[] =>
    (checkFirewall({ ...sound, ...part }) ?? []).map(({ fix }) => fix)

  it('names the port and the nodes', () => {
    const third = { ...soundPeer, lease: '10.5.3.0-24', subnet: '10.5.3.0/24', publicIp: '192.0.2.3' }
    const peers = countPeers(
      [soundPeer, third].map((peer) => ({ ...peer, state: 'programmed' as const })),
      10,
    )
    const asked = withStatus({ peers, config: { ...status.config!, backend: { Port: 9000 } } })
    expect(fixes({ ...asked, answers: new Map(), iptables: '-A INPUT -p udp -j DROP' })).toEqual([
      'accept these packets: `iptables -I INPUT -p udp --dport 9000 -s 192.0.2.2,192.0.2.3 -j ACCEPT`; the same for other nodes, if there are more',
    ])
  })

  it('mentions the flag only if weft has no rules in FORWARD', () => {
    const mine =
      '-P FORWARD ACCEPT\n-A FORWARD -j REJECT\n-A FORWARD -j FLANNEL-FWD\n-A FLANNEL-FWD -s 10.5.0.0/16 -j ACCEPT'
    const both =
      'accept both directions: `iptables -I FORWARD -s 10.5.0.0/16 -j ACCEPT` and `iptables -I FORWARD -d 10.5.0.0/16 -j ACCEPT`'
    expect(fixes({ iptables: mine })).toEqual([both])
    expect(fixes({ iptables: '-P FORWARD DROP' })).toEqual([
      `${both}; or, if weftd was started with --iptables-forward-rules=false, start it without that option`,
    ])
  })

  it('changes the table that drops', () => {
    expect(fixes({ nft: firewalld('forward') })[0]).toContain(
      'firewall-cmd --permanent --zone=trusted --add-source=10.5.0.0/16',
    )
    const own = firewalld('forward').replace('inet firewalld', 'inet own')
    expect(fixes({ nft: own })[0]).toContain('`nft insert rule inet own filter_FORWARD ip saddr 10.5.0.0/16 accept`')
    expect(fixes({ nft: firewalld('input').replace('inet firewalld', 'inet own'), ...silently() })[0]).toContain(
      '`nft insert rule inet own filter_INPUT ip saddr 192.0.2.2 udp dport 8285 accept`',
    )
  })
})

describe('the remedy for a silent peer', () => {
  const fixOfSilent = (backendType: string, backend: Record<string, unknown> = {}, engine = 'native'): string => {
    const silent = { ...soundPeer, endpoint: null, state: 'programmed', lossPercent: 100 } as const
    const seen = { ...withBackend(backendType, backend), peers: countPeers([silent], 10) }
    const facts = { ...sound, answers: new Map(), status: { ...seen, dataPath: { ...status.dataPath!, engine } } }
    return checkPeers(facts, false)!.find(({ name }) => name === 'peer-silent')!.fix!
  }

  it("names the finding to expect on the peer's host if the port is not the cause", () =>
    expect(fixOfSilent('udp')).toContain('`probes-dropped`'))

  it('depends on the backend, and names its port and the two hosts', () => {
    const udp = fixOfSilent('udp', { Port: 9000 })
    expect(udp).toContain('accept UDP port 9000 between 192.0.2.1 and 192.0.2.2, both ways and from any source port')
    expect(udp).not.toContain('PersistentKeepaliveInterval')
    expect(fixOfSilent('wireguard')).toContain('accept UDP port 51820 between')
    expect(fixOfSilent('wireguard')).toContain('`PersistentKeepaliveInterval`')
    expect(fixOfSilent('vxlan', {}, 'kernel')).toMatch(/UDP port 8472 between 192.0.2.1 and 192.0.2.2, both ways, in/)
    expect(fixOfSilent('ipip', {}, 'kernel')).toContain('IP protocol 4')
    expect(fixOfSilent('host-gw', {}, 'kernel')).toContain('accept packets of 10.5.0.0/16 between 192.0.2.1')
    for (const type of ['udp', 'vxlan', 'wireguard', 'host-gw'])
      expect(fixOfSilent(type).split(' ').length).toBeLessThan(50)
  })
})

describe('an nftables rule', () => {
  const packet = { chain: 'INPUT', protocol: 'udp', source: ip('10.0.0.7'), destination: ip('10.0.0.1') } as const
  const known = { ...packet, port: 8285, from: 'eth0', state: 'new' } as const
  const SETS = [
    '\tset trusted {\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\telements = { 192.168.0.0/16,\n\t\t\t     10.0.0.0/8 }\n\t}',
    '\tset lately {\n\t\ttype ipv4_addr\n\t\tflags dynamic,timeout\n\t\telements = { 10.0.0.7 timeout 1m }\n\t}',
    '\tset gone {\n\t\ttype ipv4_addr\n\t\tflags timeout\n\t\telements = { 10.0.0.8 timeout 4h expires 3h2s }\n\t}',
    '\tset noted {\n\t\ttype ipv4_addr\n\t\telements = { 10.0.0.7 counter packets 3 bytes 84 comment "a: b" }\n\t}',
    '\tmap noted_ways {\n\t\ttype ifname : verdict\n\t\telements = { "eth0" comment "c" : drop }\n\t}',
    '\tmap ways {\n\t\ttype ifname : verdict\n\t\telements = { "lo" : accept,\n\t\t\t     "eth0" : drop }\n\t}',
    '\tchain other {\n\t\tudp dport 8285 drop\n\t}',
    '\tchain back {\n\t\treturn\n\t}',
  ].join('\n\n')
  const verdict = (rule: string): string => {
    const text = `table inet t {\n${SETS}\n\n\tchain c {\n\t\ttype filter hook input priority filter; policy accept;\n\t\t${rule}\n\t}\n}\n`
    const [one] = readRuleset(text).walk(known, ['ip filter'])
    return `${one!.isCertain ? '' : 'perhaps '}${one!.isAccepted ? 'accepted' : 'dropped'}`
  }

  it.each([
    ['drop', 'dropped'],
    ['reject', 'dropped'],
    ['counter packets 7 bytes 700 reject with icmpx admin-prohibited', 'dropped'],
    ['log prefix "drop me " level info drop', 'dropped'],
    ['log prefix "drop "', 'accepted'],
    ['udp dport 8285 drop', 'dropped'],
    ['udp dport { 53, 8000-9000 } drop', 'dropped'],
    ['udp dport != { 53, 8000-9000 } drop', 'accepted'],
    ['udp dport != 53 drop', 'dropped'],
    ['tcp dport != 22 drop', 'accepted'],
    ['tcp flags syn / fin,syn drop', 'accepted'],
    ['udp dport >= 1024 drop', 'perhaps accepted'],
    ['meta l4proto { tcp, udp } th dport 8285 drop', 'dropped'],
    ['meta l4proto udp udp dport 8285 counter packets 0 bytes 0 drop', 'dropped'],
    ['ip protocol icmp drop', 'accepted'],
    ['ip saddr 10.0.0.0/8 drop', 'dropped'],
    ['ip saddr 10.0.0.1-10.0.0.9 drop', 'dropped'],
    ['ip saddr != 10.0.0.0/8 drop', 'accepted'],
    ['ip6 saddr != fd00::/8 drop', 'accepted'],
    ['meta nfproto ipv6 drop', 'accepted'],
    ['ip saddr @trusted drop', 'dropped'],
    // A set that programs change may soon contain another element, and certainly contains those that nft lists.
    ['ip saddr @lately drop', 'dropped'],
    ['ip saddr @gone drop', 'perhaps accepted'],
    ['ip saddr @noted drop', 'dropped'],
    ['iifname vmap @noted_ways', 'dropped'],
    ['ip saddr . udp dport { 10.0.0.7 . 53 } drop', 'perhaps accepted'],
    ['iifname "eth*" drop', 'dropped'],
    ['iifname { "lo", "eth1" } drop', 'accepted'],
    ['iif "eth0" drop', 'dropped'],
    ['oifname "eth0" drop', 'perhaps accepted'],
    ['iifname vmap @ways', 'dropped'],
    ['iifname vmap { "lo" : accept, "eth0" : jump other }', 'dropped'],
    ['ct state vmap { established : accept, new : drop }', 'dropped'],
    ['ct state vmap { established : drop, related : drop }', 'accepted'],
    ['ct state established,related accept; drop', 'dropped'],
    ['ct state != new drop', 'accepted'],
    ['ct state new,untracked drop', 'dropped'],
    ['ct status dnat drop', 'accepted'],
    ['ct mark 0x00000001 drop', 'perhaps accepted'],
    ['meta mark & 0x00000001 == 0x00000001 drop', 'perhaps accepted'],
    ['meta mark set 0x00000001 drop', 'dropped'],
    ['limit rate over 10/second burst 5 packets drop', 'perhaps accepted'],
    ['fib daddr type local drop', 'dropped'],
    ['fib daddr type != local drop', 'accepted'],
    ['fib daddr type { broadcast, multicast } drop', 'accepted'],
    ['fib saddr type local drop', 'accepted'],
    ['fib daddr . iif type local drop', 'perhaps accepted'],
    ['fib saddr . mark . iif oif missing drop', 'perhaps accepted'],
    ['fib saddr . iif oif exists accept; drop', 'perhaps dropped'],
    ['jump other', 'dropped'],
    ['jump back; drop', 'dropped'],
    ['goto back; drop', 'accepted'],
    ['meta mark 0x1 goto other; accept', 'perhaps accepted'],
    ['queue to 1', 'perhaps accepted'],
    ['udp dport 8285 drop comment "a; b } accept"', 'dropped'],
    ['xt match "addrtype" counter packets 0 bytes 0 drop', 'perhaps accepted'],
    ['meta mark 0x1 drop; drop', 'dropped'],
  ])('%s: %s', (rule, expected) => expect(verdict(rule)).toBe(expected))

  it('does not apply to another family, hook or device', () => {
    const chain = (table: string, head: string): string =>
      `table ${table} {\n\tchain c {\n\t\ttype filter hook ${head}; policy drop;\n\t}\n}\n`
    const walked = (text: string): number => readRuleset(text).walk(known, ['ip filter c']).length
    expect(walked(chain('ip6 t', 'input priority filter'))).toBe(0)
    expect(walked(chain('inet t', 'forward priority filter'))).toBe(0)
    expect(walked(chain('netdev t', 'ingress device "eth1" priority filter'))).toBe(0)
    expect(walked(chain('netdev t', 'ingress device "eth0" priority filter'))).toBe(1)
    expect(walked(chain('ip filter', 'input priority filter'))).toBe(0)
    expect(readRuleset(chain('ip filter', 'input priority filter')).walk(known, [])).toHaveLength(1)
  })
})

describe("Docker's rule that drops the packets to one container", () => {
  const guard = (rules: readonly string[]): string => ['*raw', ...rules, 'COMMIT'].join('\n')
  const rule = (address: string, bridge = 'cni0'): string =>
    `[7:420] -A PREROUTING -d ${address} ! -i ${bridge} -j DROP`

  it('is named for each container, up to a number of containers', () => {
    const named = (address: string): string => `forward-dropped: -t raw -A PREROUTING -d ${address} ! -i cni0 -j DROP`
    expect(found({ iptables: guard([rule('10.5.1.9/32')]) })).toEqual([named('10.5.1.9/32')])
    expect(found({ iptables: guard([rule('10.5.1.2/32'), rule('10.5.1.3/32')]) })).toEqual(
      ['10.5.1.2/32', '10.5.1.3/32'].map(named),
    )
    const many = Array.from({ length: 9 }, (_, at) => rule(`10.5.1.${at + 10}/32`))
    expect(found({ iptables: guard(many) })).toHaveLength(4)
    const ipv6 = checkFirewall({ ...soundDual, ip6tables: guard([rule('fd00:5:0:1::9/128')]) })
    expect(ipv6?.map(({ detail }) => detail)).toEqual([
      'ip6tables: -t raw -A PREROUTING -d fd00:5:0:1::9/128 ! -i cni0 -j DROP',
    ])
  })

  it('is not reported for containers outside of the network, of other bridges and of single ports', () => {
    const others = [
      rule('172.17.0.2/32', 'docker0'),
      rule('10.9.1.9/32'),
      rule('10.5.1.9/32', 'cni0 -p tcp --dport 80'),
      '[0:0] -A PREROUTING -d 10.5.1.9/32 -i eth1 -j DROP',
    ]
    for (const one of others) expect(found({ iptables: guard([one]) }), one).toEqual([])
  })
})
