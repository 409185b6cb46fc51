// firewall.test.ts - what is asked of a host's firewall: both ways between containers, and what a peer sends from outside.

import { describe, expect, it } from 'vitest'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { checkFirewall, portPacket } from '../../../../src/tool/doctor/firewall.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { countPeers, type Status } from '../../../../src/report/status.ts'
import { dualPeer, sound, soundDual, soundPeer, soundStatus as status } from '../../../support/facts.ts'

const found = (part: Partial<Facts>): string[] | undefined =>
  checkFirewall({ ...sound, ...part })?.map(({ name, detail }) => `${name}: ${detail}`)
const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })
const withBackend = (backendType: string, backend: Record<string, unknown> = {}): Status => ({
  ...status,
  config: { ...status.config!, backendType, backend },
})
const ip = (text: string): number => parseIpv4(text)!

describe('what a peer sends from outside', () => {
  const way = { chain: 'INPUT', source: ip('192.0.2.2'), destination: ip('192.0.2.1'), from: 'eth0' }

  it.each([
    ['udp', {}, { ...way, protocol: 'udp', port: 8285 }],
    ['udp', { port: 9000 }, { ...way, protocol: 'udp', port: 9000 }],
    ['udp', { Port: 9000 }, { ...way, protocol: 'udp', port: 9000 }],
    ['udp', { port: 0 }, { ...way, protocol: 'udp', port: 8285 }],
    ['udp', { port: '9000' }, { ...way, protocol: 'udp', port: 8285 }],
    ['vxlan', { listenport: 9000 }, { ...way, protocol: 'udp', port: 8472 }],
    ['wireguard', { ListenPort: 9000, port: 1 }, { ...way, protocol: 'udp', port: 9000 }],
    ['wireguard', {}, { ...way, protocol: 'udp', port: 51_820 }],
    ['ipip', {}, { ...way, protocol: 'ipencap' }],
    ['host-gw', {}, undefined],
  ])('with %s and %j is %j', (type, backend, expected) => {
    expect(portPacket(withBackend(type, backend), soundPeer)).toEqual(expected)
  })

  it('is not known without the addresses, and names no interface that is not known', () => {
    expect(portPacket({ ...status, node: null }, soundPeer)).toBeUndefined()
    expect(portPacket(undefined, soundPeer)).toBeUndefined()
    const dual = soundDual.status
    const [peer] = dual.peers.list
    // A peer of udp that has both addresses may send by either.
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

describe('iptables', () => {
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
    ['may drop', '-A FORWARD -m mark --mark 0x1 -j ACCEPT\n-P FORWARD DROP\n-A INPUT -m mark --mark 0x1 -j DROP', []],
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
  ])('that %s', (_, iptables, expected) => expect(found({ iptables })).toEqual(expected))

  it('is not asked where it cannot be read, and without a peer that is used', () => {
    expect(found({ iptables: undefined })).toEqual([])
    const stored = countPeers([{ ...soundPeer, state: 'stored' }], 10)
    expect(found({ ...withStatus({ peers: stored }), iptables: '-P FORWARD DROP\n-P INPUT DROP' })).toEqual([])
    // Where nobody is known, any address of the network is one of theirs.
    expect(found({ ...withStatus({ peers: null }), iptables: '-P FORWARD DROP' })).toEqual([
      'forward-dropped: -P FORWARD DROP',
    ])
    expect(found({ status: withBackend('host-gw'), iptables: '-P INPUT DROP' })).toEqual([])
  })

  it.each<[string, Partial<Facts>]>([
    ['a status', { status: undefined }],
    ['a node', withStatus({ node: null })],
    ['a configuration', withStatus({ config: null })],
    ['a network', withStatus({ config: { ...status.config!, network: 'x' } })],
  ])('is not judged without %s', (_, part) => expect(found(part)).toBeUndefined())
})

describe('both families', () => {
  const dual = (part: Partial<Facts>): string[] | undefined => found({ ...soundDual, ...part })
  const withDual = (part: Partial<Status>): Partial<Facts> => ({ status: { ...soundDual.status, ...part } })
  const [peer] = soundDual.status.peers.list

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
  ])('ip6tables that %s', (_, ip6tables, expected) => expect(dual({ ip6tables })).toEqual(expected))

  it('have a listing each', () => {
    expect(dual({ iptables: '-P FORWARD DROP' })).toEqual(['forward-dropped: -P FORWARD DROP'])
    expect(dual({ iptables: '-P FORWARD DROP', ip6tables: '-P FORWARD DROP' })).toEqual([
      ...['forward-dropped: -P FORWARD DROP', 'forward-dropped: ip6tables: -P FORWARD DROP'],
    ])
  })

  it('are judged by a peer that has the family, and not without one', () => {
    const four = { ...soundPeer, ipv6Subnet: null }
    const of = (...list: readonly (typeof soundPeer)[]) =>
      dual({ ...withDual({ peers: countPeers(list, 10) }), ip6tables: '-P FORWARD DROP' })
    expect(of(four, peer!)).toEqual(['forward-dropped: ip6tables: -P FORWARD DROP'])
    expect(of(four)).toEqual([])
    expect(of(dualPeer({}, { state: 'stored' }))).toEqual([])
    expect(of(dualPeer({ state: 'stored' }))).toEqual(['forward-dropped: ip6tables: -P FORWARD DROP'])
  })

  it('of which only IPv6 is there are judged by that', () => {
    const [subnet, network] = ['fd00:5:0:1::/64', 'fd00:5::/48']
    const node = { ...soundDual.status.node, subnet, publicIp: '2001:db8::1' }
    const config = { ...soundDual.status.config, network }
    const peers = countPeers([{ ...peer!, subnet: 'fd00:5:0:2::/64', publicIp: '2001:db8::2' }], 10)
    expect(dual({ ...withDual({ node, config, peers }), ip6tables: '-P FORWARD DROP' })).toEqual([
      'forward-dropped: ip6tables: -P FORWARD DROP',
    ])
    expect(dual({ ...withDual({ node, config, peers }), iptables: '-P FORWARD DROP' })).toEqual([])
  })

  it('know no port of IPv6 where a backend has two, and no IPv4 header in IPv6', () => {
    const config = (backendType: string, backend = {}) => ({ ...soundDual.status.config, backendType, backend })
    const packet = (backendType: string, backend = {}) =>
      portPacket({ ...soundDual.status, config: config(backendType, backend) }, peer!, 'ipv6')
    expect(packet('vxlan', { Port: 4789 })).toMatchObject({ protocol: 'udp', port: 4789, from: 'eth0' })
    expect(packet('wireguard')).not.toHaveProperty('port')
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

  it('of which one is off miss nothing', () => {
    expect(found({ iptables: rules('10.5.0.0/16'), ip6tables: '' })).toEqual([])
  })

  it.each([
    ['a table of IPv6 drops', 'ip6 own', '', ['nft-drops: ip6 own c']],
    ['a table of IPv6 names the network', 'ip6 own', 'ip6 saddr fd00:5::/48 accept', []],
    ['a table of IPv4 names the network', 'ip own', 'ip saddr 10.5.0.0/16 accept', []],
    ['a table of both names one network', 'inet own', 'ip saddr 10.5.0.0/16 accept', ['nft-drops: inet own c']],
    ['a table of both names the other network', 'inet own', 'ip6 saddr fd00:5::/48 accept', ['nft-drops: inet own c']],
    ['a table of both names both', 'inet own', 'ip saddr 10.5.0.0/16 accept; ip6 saddr fd00:5::/48 accept', []],
    ["a table is ip6tables'", 'ip6 filter', '', []],
  ])('in nftables: %s', (_, table, rule, expected) => {
    const text = `table ${table} {\n\tchain c {\n\t\ttype filter hook forward priority filter; policy drop;\n\t\t${rule}\n\t}\n}\n`
    expect(dual({ nft: text })).toEqual(expected)
  })
})

describe('nftables', () => {
  const chain = (hook: string, policy = 'drop', rules = ''): string =>
    `\tchain ${hook}s {\n\t\ttype filter hook ${hook} priority filter; policy ${policy};\n\t\t${rules}\n\t}\n`
  const table = (name: string, ...chains: string[]): string => `table ${name} {\n${chains.join('')}}\n`
  const silent = { answers: new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]]) }

  it.each([
    ['accepts', table('inet own', chain('forward', 'accept')), []],
    ['drops what is forwarded', table('inet own', chain('forward')), ['nft-drops: inet own forwards']],
    ['names the network', table('inet own', chain('forward', 'drop', 'ip saddr 10.5.0.0/16 accept')), []],
    ['names the device', table('inet own', chain('forward', 'drop', 'iifname "flannel0" accept')), []],
    [
      "is iptables'",
      table('ip filter', chain('forward')) + table('ip nat', chain('input')) + table('ip raw', chain('forward')),
      [],
    ],
    ['is of IPv6', table('ip6 own', chain('forward')), []],
    ['has a name like that of iptables', table('ip filters', chain('forward')), ['nft-drops: ip filters forwards']],
    ['drops what goes out', table('inet own', chain('output')), []],
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
      ['nft-drops: inet own forwards'],
    ],
    ['drops what comes in, though peers answer', table('inet own', chain('input')), []],
    [
      'has several',
      table('ip6 a', chain('forward')) +
        table('inet b', chain('forward', 'accept'), chain('forward')) +
        table('ip c', chain('forward')),
      ['nft-drops: inet b forwards', 'nft-drops: ip c forwards'],
    ],
  ])('that %s', (_, nft, expected) => expect(found({ nft })).toEqual(expected))

  it('is suspected of what comes in where a peer that is used does not answer', () => {
    const nft = table('inet own', chain('input'))
    expect(found({ nft, ...silent })).toEqual(['nft-drops: inet own inputs'])
    const asStatus = (state: 'answering' | 'programmed' | 'stored') =>
      found({ nft, ...withStatus({ peers: countPeers([{ ...soundPeer, state }], 10) }), answers: new Map() })
    expect([asStatus('answering'), asStatus('programmed'), asStatus('stored')]).toEqual([
      ...[[], ['nft-drops: inet own inputs'], []],
    ])
    expect(found({ nft, ...withStatus({ peers: null }) })).toEqual([])
    expect(found({ nft: undefined })).toEqual([])
    expect(found({ nft: table('inet own', chain('forward')), ...withStatus({ dataPath: null }) })).toEqual([
      'nft-drops: inet own forwards',
    ])
  })
})
