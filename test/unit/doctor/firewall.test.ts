// firewall.test.ts - what is asked of a host's firewall: both ways between containers, and what a peer sends from outside.

import { describe, expect, it } from 'vitest'
import type { Facts } from '../../../src/doctor/facts.ts'
import { checkFirewall, portPacket } from '../../../src/doctor/firewall.ts'
import { parseIpv4 } from '../../../src/net/ipv4.ts'
import { countPeers, type Status } from '../../../src/status/status.ts'
import { sound, soundPeer, soundStatus as status } from '../../support/facts.ts'

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
    expect(found({ ...withStatus({ peers: null }), iptables: '-P FORWARD DROP' })).toEqual([])
    expect(found({ status: withBackend('host-gw'), iptables: '-P INPUT DROP' })).toEqual([])
  })

  it.each<[string, Partial<Facts>]>([
    ['a status', { status: undefined }],
    ['a node', withStatus({ node: null })],
    ['a configuration', withStatus({ config: null })],
    ['a network', withStatus({ config: { ...status.config!, network: 'x' } })],
  ])('is not judged without %s', (_, part) => expect(found(part)).toBeUndefined())
})

describe('nftables', () => {
  const chain = (hook: string, policy = 'drop', rules = ''): string =>
    `\tchain ${hook}s {\n\t\ttype filter hook ${hook} priority filter; policy ${policy};\n\t\t${rules}\n\t}\n`
  const table = (name: string, ...chains: string[]): string => `table ${name} {\n${chains.join('')}}\n`
  const silent = { answers: new Map([['10.5.2.0-24', { small: false, large: false }]]) }

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
  })
})
