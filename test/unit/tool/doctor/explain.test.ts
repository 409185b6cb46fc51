// explain.test.ts - the steps of packets between all kinds of addresses, and the faults that stop them.

import { describe, expect, it } from 'vitest'
import type { IpsecPolicy, PolicyRule, Route } from '../../../../src/host/kernel.ts'
import { parseAddress, parseNet, type Address, type Family } from '../../../../src/net/address.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { countPeers, type PeerStatus, type Status } from '../../../../src/report/status.ts'
import { directionOf, hasAnswer, isOnHost, sideOf } from '../../../../src/tool/doctor/explain-question.ts'
import { explain } from '../../../../src/tool/doctor/explain.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import type { IpsecFacts } from '../../../../src/tool/doctor/ipsec-facts.ts'
import { routeQueries, type PeerQuery } from '../../../../src/tool/doctor/route-queries.ts'
import {
  dualPeer,
  linkAddress,
  route as routeTo,
  silentSide,
  sound,
  soundDual,
  soundIpv6,
  soundPeer,
  soundStatus as status,
} from '../../../support/facts.ts'
import { policyRule, routesBy } from '../../../support/kernel-routes.ts'

const ip = (text: string): number => parseIpv4(text)!
const ipOf = (text: string): Address => parseAddress(text)!
const by = (device: string, gateway?: string): Route => ({
  ...routeTo('', device, gateway),
})
const ask = (source: string, destination: string, route: Route | undefined, facts: Partial<Facts> = {}) =>
  explain({
    source: ipOf(source),
    destination: ipOf(destination),
    status: facts.status ?? status,
    facts: { ...sound, ...facts },
    route,
  })
const stopped = (...args: Parameters<typeof ask>): string[] =>
  ask(...args)
    .filter(({ passes }) => passes !== true)
    .map(({ step, passes }) => (passes === undefined ? `${step}?` : step))

const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })
const withPeer = (part: Partial<PeerStatus>): Partial<Facts> =>
  withStatus({ peers: countPeers([{ ...soundPeer, ...part }], 10) })

const BAD_INPUT = '-P INPUT DROP\n-P FORWARD ACCEPT'
const MASQ = { subnetEnv: { FLANNEL_IPMASQ: 'true' } }
const BAD_FORWARD = '-P INPUT ACCEPT\n-P FORWARD DROP'
const forwardDrop = (condition: string): string => `-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-A FORWARD ${condition} -j DROP`

it.each<[string, Parameters<typeof ask>, string[]]>([
  ['to a peer', ['10.5.1.2', '10.5.2.2', by('flannel0')], []],
  [
    'from this host to a peer, where nobody forwards',
    ['192.0.2.1', '10.5.2.2', by('flannel0'), { isForwarding: false, iptables: BAD_FORWARD }],
    [],
  ],
  ['to a peer, outside the tunnel', ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.2'), withPeer({ way: 'direct' })], []],
  ['to a peer, by a route that goes past the tunnel', ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.2')], ['route']],
  [
    "to this node's own container, by a route of an earlier run",
    ['192.0.2.1', '10.5.1.2', by('eth0', '192.0.2.9'), { routes: [routeTo('10.5.1.0/24', 'eth0', '192.0.2.9')] }],
    ['route'],
  ],
  ['to a peer by another route', ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.254')], ['route']],
  ['to a peer without a route', ['10.5.1.2', '10.5.2.2', undefined], ['route']],
  [
    'to a peer, where nobody forwards',
    ['10.5.1.2', '10.5.2.2', by('flannel0'), { isForwarding: false }],
    ['forwarding'],
  ],
  ['to a peer, through a firewall', ['10.5.1.2', '10.5.2.2', by('flannel0'), { iptables: BAD_FORWARD }], ['firewall']],
  [
    'to a peer, through a firewall that nobody can read',
    ['10.5.1.2', '10.5.2.2', by('flannel0'), { iptables: undefined }],
    ['firewall?'],
  ],
  [
    'to a peer, past a rule about the bridge',
    ['10.5.1.2', '10.5.2.2', by('flannel0'), { iptables: forwardDrop('-i cni0') }],
    ['firewall'],
  ],
  [
    'from a peer, past a rule about the tunnel',
    ['10.5.2.2', '10.5.1.2', by('cni0'), { iptables: forwardDrop('-i flannel0') }],
    ['firewall'],
  ],
  ['to nobody', ['10.5.1.2', '10.5.7.2', by('flannel0')], ['data path']],
  ['to the world', ['10.5.1.2', '198.51.100.1', by('eth0', '192.0.2.254'), MASQ], []],
  ['to the world, not masqueraded', ['10.5.1.2', '198.51.100.1', by('eth0', '192.0.2.254')], ['masquerade?']],
  ['to the world without a way', ['10.5.1.2', '198.51.100.1', undefined, MASQ], ['route']],
  ['from a peer', ['10.5.2.2', '10.5.1.2', by('cni0')], []],
  ['from a peer to a container that is not there', ['10.5.2.2', '10.5.1.2', by('flannel0')], ['route']],
  ['from a peer, through a firewall', ['10.5.2.2', '10.5.1.2', by('cni0'), { iptables: BAD_INPUT }], ['firewall']],
  ['from nobody', ['10.5.7.2', '10.5.1.2', by('cni0')], ['data path']],
  ['from the world', ['198.51.100.1', '10.5.1.2', by('cni0')], []],
  ['within this host', ['10.5.1.2', '10.5.1.3', by('cni0')], []],
  ['between others', ['10.5.2.2', '10.5.7.2', by('flannel0')], ['way?']],
])('%s', (_name, question, expected) => {
  expect(stopped(...question)).toEqual(expected)
})

it('says that the firewall of this host drops the probes of a peer that does not answer', () => {
  const iptables = '-P OUTPUT ACCEPT\n-A OUTPUT -d 10.5.2.0/24 -p icmp -j DROP'
  const facts = { iptables, ...withPeer(silentSide) }
  expect(of('peer', facts)).toEqual([
    expect.stringMatching(
      /^peer \?: .* the firewall of this host drops the probes: .*-d 10\.5\.2\.0\/24 -p icmp -j DROP/,
    ),
  ])
  expect(of('peer', withPeer(silentSide))).toEqual([
    'peer false: its host does not answer through the data path, 100% lost',
  ])
})

it('names the peer, the rule, and the result of the last probe', () => {
  const says = ask('10.5.1.2', '10.5.2.2', by('flannel0')).map(({ step, says: text }) => `${step}: ${text}`)
  expect(says).toEqual([
    'source: 10.5.1.2 is in the subnet of this node, 10.5.1.0/24',
    'destination: 10.5.2.2 is in the subnet 10.5.2.0/24 of the node 192.0.2.2',
    'forwarding: net.ipv4.ip_forward is 1',
    'firewall: FORWARD: accepted by -P FORWARD ACCEPT',
    'route: to flannel0',
    'data path: the native engine sends it to 192.0.2.2:8285',
    'mtu: packets of up to 1472 bytes pass unfragmented, as far as this host knows; larger ones are fragmented, or refused if fragmentation is forbidden',
    'peer: its host answers through the data path, in 1 ms',
  ])
})

const path = status.dataPath!
const says = (...args: Parameters<typeof ask>): string[] =>
  ask(...args).map(({ step, passes, says: text }) => `${step} ${passes ?? '?'}: ${text}`)
const way = (...args: Parameters<typeof ask>): string[] => says(...args).slice(2)
const OUT = ['10.5.1.2', '10.5.2.2', by('flannel0')] as const
const of = (step: string, facts: Partial<Facts>, question: readonly [string, string, Route | undefined] = OUT) =>
  says(...question, facts).filter((line) => line.startsWith(`${step} `))

it('looks for an address on this host first, then in the longest subnet, then in the network', () => {
  const peers = countPeers(
    [
      { ...soundPeer, subnet: '10.5.2.0/24', publicIp: '192.0.2.2' },
      { ...soundPeer, subnet: '10.5.2.128/25', publicIp: '192.0.2.3' },
      { ...soundPeer, subnet: 'x', publicIp: '192.0.2.4' },
    ],
    10,
  )
  const side = (address: string): string => {
    const found = sideOf(ip(address), { ...status, peers }, sound)
    return found.kind === 'peer' ? found.peer.peer.publicIp : found.kind
  }
  expect(['10.5.1.1', '10.5.1.2', '10.5.2.127', '10.5.2.128', '10.5.3.1', '10.6.0.1', '192.0.2.1'].map(side)).toEqual([
    'host',
    'here',
    '192.0.2.2',
    '192.0.2.3',
    'unassigned',
    'outside',
    'host',
  ])
  const bare = { ...status, node: null, config: null, peers: null }
  expect(sideOf(ip('10.5.1.2'), bare, { links: [] })).toEqual({ kind: 'outside' })
})

it.each([
  ['10.5.1.1', 'source true: 10.5.1.1 is an address of this host'],
  ['10.5.7.1', 'source true: 10.5.7.1 is in the network 10.5.0.0/16, but no node has a lease for it'],
  ['10.6.0.1', 'source true: 10.6.0.1 is outside the network 10.5.0.0/16'],
])('describes the address %s', (source, line) => expect(says(source, '10.5.1.2', by('cni0'))[0]).toBe(line))

it.each([
  ['10.5.1.2', '10.5.1.1', 'way true: both addresses are on this host, so the packet uses no tunnel'],
  ['192.0.2.1', '10.5.1.2', 'way true: both addresses are on this host, so the packet uses no tunnel'],
  ['10.5.2.2', '10.5.7.2', 'way ?: neither address is on this host: run weft explain on the host of one of them'],
  ['10.5.7.2', '10.5.2.2', 'way ?: neither address is on this host: run weft explain on the host of one of them'],
  [
    '10.5.1.2',
    '10.5.7.2',
    'data path false: no node has this address: the sender gets ICMP net unreachable, and the packet is counted as tx_drop_no_route',
  ],
  [
    '10.5.7.2',
    '10.5.1.2',
    'data path false: dropped, because no lease has its source address: counted as rx_drop_unknown_sender',
  ],
])('has one step after the addresses from %s to %s', (source, destination, line) => {
  expect(way(source, destination, by('cni0'))).toEqual([line])
})

it('requires forwarding for packets of a container, but not for those of the host', () => {
  const steps = (source: string): string[] => ask(source, '10.5.2.2', by('flannel0')).map(({ step }) => step)
  expect(steps('10.5.1.1').slice(2)).toEqual(['route', 'data path', 'mtu', 'peer'])
  expect(steps('10.5.1.2').slice(2, 4)).toEqual(['forwarding', 'firewall'])
  expect(of('forwarding', { isForwarding: false })).toEqual(['forwarding false: net.ipv4.ip_forward is 0'])
})

it.each<[string, Partial<Facts>, readonly [string, string, Route | undefined], string[]]>([
  ['route', {}, ['10.5.1.2', '10.5.2.2', undefined], ['route false: there is none']],
  [
    'route',
    withPeer({ way: 'direct' }),
    ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.2')],
    ['route true: to eth0 via 192.0.2.2'],
  ],
  [
    'route',
    {},
    ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.2')],
    ['route false: to eth0 via 192.0.2.2 instead of flannel0: another route has precedence'],
  ],
  [
    'route',
    {},
    ['10.5.1.2', '10.5.2.2', by('eth1')],
    ['route false: to eth1 instead of flannel0: another route has precedence'],
  ],
  [
    'route',
    withStatus({ dataPath: { ...path, device: null, devices: { ipv4: null, ipv6: null } } }),
    ['10.5.1.2', '10.5.2.2', by('eth1', '192.0.2.9')],
    ['route false: to eth1 via 192.0.2.9 instead of via 192.0.2.2: another route has precedence'],
  ],
  [
    'route',
    {
      status: {
        ...status,
        config: { ...status.config!, backendType: 'vxlan' },
        dataPath: { ...path, engine: 'kernel', device: 'flannel.1', devices: { ipv4: 'flannel.1', ipv6: null } },
        peers: countPeers([{ ...soundPeer, state: 'stored', type: 'wireguard', unusable: true }], 10),
      },
    },
    ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.254')],
    [
      'route false: to eth0 via 192.0.2.254 instead of flannel.1: weftd made no route to this node, because it cannot use its lease',
    ],
  ],
  [
    'route',
    {
      status: {
        ...status,
        config: { ...status.config!, backendType: 'vxlan' },
        dataPath: {
          ...path,
          engine: 'kernel',
          device: 'flannel.1',
          devices: { ipv4: 'flannel.1', ipv6: null },
          counters: { peers_unusable: 0 },
        },
        peers: countPeers([{ ...soundPeer, state: 'stored', type: 'vxlan' }], 10),
      },
    },
    ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.254')],
    [
      'route false: to eth0 via 192.0.2.254 instead of flannel.1: the kernel refused the route of weftd to this node, or another route has its place: see the log of weftd',
    ],
  ],
  [
    'route',
    withPeer({ state: 'stored' }),
    ['10.5.1.2', '10.5.2.2', by('eth0', '192.0.2.254')],
    ['route false: to eth0 via 192.0.2.254 instead of flannel0: another route has precedence'],
  ],
  [
    'data path',
    withPeer({ state: 'stored' }),
    OUT,
    ['data path false: this node cannot use the lease of that node: see the log of weftd'],
  ],
  ['data path', withStatus({ dataPath: { ...path, open: false }, trouble: 'why' }), OUT, ['data path false: why']],
  ['data path', withStatus({ dataPath: { ...path, open: false } }), OUT, ['data path false: down']],
  ['data path', withStatus({ dataPath: null }), OUT, ['data path false: down']],
  [
    'data path',
    withStatus({ dataPath: { ...path, engine: 'kernel' } }),
    OUT,
    ['data path true: the kernel sends it to 192.0.2.2:8285'],
  ],
  [
    'data path',
    withPeer({ way: 'direct', endpoint: '192.0.2.2' }),
    OUT,
    ['data path true: the kernel routes it to 192.0.2.2, without a tunnel'],
  ],
  [
    'mtu',
    withStatus({
      dataPath: { ...path, mtu: null },
      peers: countPeers([{ ...soundPeer, path: 'narrow', passesBytes: 1252 }], 10),
    }),
    OUT,
    [],
  ],
  ['mtu', withStatus({ dataPath: { ...path, mtu: null } }), OUT, []],
  [
    'mtu',
    withPeer({ pathMtu: 1252 }),
    OUT,
    [
      'mtu true: packets of up to 1252 bytes, the MTU of the path to it, pass unfragmented, as far as this host knows; larger ones are fragmented, or refused if fragmentation is forbidden',
    ],
  ],
  [
    'mtu',
    withPeer({ path: 'narrow', passesBytes: 1252 }),
    OUT,
    [
      'mtu false: long packets are lost on the path, and their sender gets no error (containers send up to 1472 bytes); packets of up to 1252 bytes pass',
    ],
  ],
  [
    'mtu',
    withPeer({ path: 'narrow', passesBytes: null }),
    OUT,
    [
      'mtu false: long packets are lost on the path, and their sender gets no error (containers send up to 1472 bytes); weftd is still searching for the longest packet that passes',
    ],
  ],
  [
    'mtu',
    withPeer({ path: 'narrow', passesBytes: 1372, pathMtu: 1372 }),
    OUT,
    [
      'mtu true: packets of up to 1372 bytes, the MTU of the path to it, pass unfragmented, as far as this host knows; larger ones are fragmented, or refused if fragmentation is forbidden',
    ],
  ],
  [
    'peer',
    withPeer({ lossPercent: 10, roundTripMs: 2.5 }),
    OUT,
    ['peer true: its host answers through the data path, in 2.5 ms, 10% lost'],
  ],
  ['peer', withPeer({ lossPercent: null }), OUT, ['peer true: its host answers through the data path, in 1 ms']],
  ['peer', withPeer({ state: 'programmed', lossPercent: null }), OUT, ['peer ?: its host was not probed']],
  [
    'peer',
    withPeer({ state: 'programmed', lossPercent: 100 }),
    OUT,
    ['peer false: its host does not answer through the data path, 100% lost'],
  ],
  [
    'peer',
    withPeer({ state: 'programmed', lossPercent: 100, heardSecondsAgo: 3, unansweredSeconds: 9 }),
    OUT,
    [
      'peer ?: packets from its host arrive, but it does not answer echo requests, 100% lost: packets to it may be lost, or its firewall drops the echo requests',
    ],
  ],
  [
    'peer',
    withPeer({ state: 'programmed', lossPercent: 0 }),
    OUT,
    ['peer false: its host does not answer through the data path'],
  ],
  ['firewall', { iptables: undefined }, OUT, ['firewall ?: the rules of iptables cannot be read']],
  ['firewall', { iptables: BAD_FORWARD }, OUT, ['firewall false: FORWARD: dropped by -P FORWARD DROP']],
  [
    'firewall',
    { iptables: '-A FORWARD -m mark --mark 0x1 -j DROP' },
    OUT,
    [
      'firewall ?: FORWARD: accepted by -P FORWARD ACCEPT, unless an earlier rule with a condition that weft cannot evaluate decides otherwise',
    ],
  ],
  [
    'firewall',
    { iptables: '-A FORWARD -p tcp -s 10.5.1.2/32 -d 10.5.2.2/32 -j DROP' },
    OUT,
    ['firewall false: FORWARD: dropped by -A FORWARD -p tcp -s 10.5.1.2/32 -d 10.5.2.2/32 -j DROP'],
  ],
  [
    'firewall',
    { iptables: '-A OUTPUT -d 192.0.2.2/32 -o eth0 -p udp --dport 8285 -j DROP' },
    OUT,
    [
      'firewall true: FORWARD: accepted by -P FORWARD ACCEPT',
      'firewall false: OUTPUT: dropped by -A OUTPUT -d 192.0.2.2/32 -o eth0 -p udp --dport 8285 -j DROP',
    ],
  ],
])('has the step %s with %j', (step, facts, question, lines) => expect(of(step, facts, question)).toEqual(lines))

it('explains a packet that leaves the network', () => {
  const masq = { subnetEnv: { FLANNEL_IPMASQ: 'true' } }
  const route = by('eth0', '192.0.2.254')
  const own = 'masquerade true: not needed: the source is an address of this host'
  const kept =
    'masquerade ?: not by weft: the packet keeps its source 10.5.1.2, so answers come back only if other rules masquerade it, or if routers outside have a route to it; start weftd with --ip-masq'
  expect(way('10.5.1.2', '198.51.100.1', route, masq)).toEqual([
    'forwarding true: net.ipv4.ip_forward is 1',
    'firewall true: FORWARD: accepted by -P FORWARD ACCEPT',
    'route true: to eth0 via 192.0.2.254, outside the tunnel',
    "masquerade true: by weft's rules (--ip-masq)",
  ])
  expect(way('10.5.1.1', '198.51.100.1', by('eth0'), masq)).toEqual(['route true: to eth0, outside the tunnel', own])
  expect(way('10.5.1.2', '198.51.100.1', route, { subnetEnv: { FLANNEL_IPMASQ: 'false' } }).at(-1)).toBe(kept)
  expect(way('10.5.1.2', '198.51.100.1', undefined, { subnetEnv: undefined }).slice(2)).toEqual([
    'route false: there is none',
    kept,
  ])
})

it('explains an incoming packet', () => {
  expect(way('10.5.2.2', '10.5.1.2', by('cni0'))).toEqual([
    'firewall true: INPUT: accepted by -P INPUT ACCEPT',
    'data path true: accepted if its datagram comes from 192.0.2.2; with VerifySource "inner" or "off" from any address',
    'forwarding true: net.ipv4.ip_forward is 1',
    'firewall true: FORWARD: accepted by -P FORWARD ACCEPT',
    'route true: to cni0, a bridge of containers',
  ])
  // With host-gw a peer sends to no port, and the host forwards no packets to itself.
  const gateway = withStatus({
    config: { ...status.config!, backendType: 'host-gw' },
    dataPath: { ...path, engine: 'kernel' },
  })
  expect(way('10.5.2.2', '10.5.1.1', by('lo'), gateway)).toEqual([
    'data path true: the kernel accepts it from any sender',
  ])
  const taken = (part: Partial<Facts>) => of('data path', part, ['10.5.2.2', '10.5.1.1', by('lo')])[0]!.split(':')[0]
  expect([taken(withPeer({ state: 'stored' })), taken(withStatus({ dataPath: { ...path, open: false } }))]).toEqual([
    'data path false',
    'data path false',
  ])
  for (const route of [undefined, by('flannel0'), by('eth0', '192.0.2.9')])
    expect(way('198.51.100.1', '10.5.1.2', route).at(-1)).toBe('route false: no bridge of containers has 10.5.1.2')
})

it('knows all addresses of a link as this host', () => {
  const [first] = sound.links
  const links = [
    {
      ...first!,
      addresses: { ipv4: ['192.0.2.1', '192.0.2.7'].map((address) => linkAddress(ip(address), 24)), ipv6: [] },
    },
  ]
  expect(['192.0.2.1', '192.0.2.7', '192.0.2.8'].map((address) => sideOf(ip(address), status, { links }).kind)).toEqual(
    ['host', 'host', 'outside'],
  )
})

it('distinguishes addresses of this host and of its connected networks from others', () => {
  const docker = {
    ...sound.links[0]!,
    name: 'docker0',
    addresses: { ipv4: [linkAddress(ip('172.17.0.1'), 16)], ipv6: [] },
  }
  const links = [...sound.links, docker]
  const is = (address: string): boolean => isOnHost(ip(address), status, { links })
  expect(['10.5.1.2', '192.0.2.1', '172.17.0.9'].map(is)).toEqual([true, true, true])
  expect(['1.2.3.4', '10.5.2.2', '10.5.77.1'].map(is)).toEqual([false, false, false])
})

it('explains packets between an outside address and a peer', () => {
  const steps = (...args: Parameters<typeof ask>) => ask(...args).map(({ step }) => step)
  expect(steps('198.51.100.1', '10.5.2.2', by('flannel0'))).toContain('peer')
  expect(steps('10.5.2.2', '198.51.100.1', by('eth0'))).toContain('masquerade')
})

it.each([
  ['out of the network', ['10.5.1.2', '198.51.100.1', by('eth0')]],
  ['from a peer', ['10.5.2.2', '10.5.1.2', by('cni0')]],
  ['to a peer', ['10.5.1.2', '10.5.2.2', by('flannel0')]],
] as const)('walks a TCP packet through the firewall from %s', (_name, [source, destination, route]) => {
  const asked = (protocol: string) =>
    stopped(source, destination, route, { ...MASQ, iptables: `-A FORWARD -p ${protocol} -j DROP` })
  expect([asked('tcp'), asked('sctp')]).toEqual([['firewall'], []])
})

it('explains as many steps as possible without node, configuration or data path', () => {
  const none = { node: null, config: null, dataPath: null, peers: null }
  for (const [trouble, why] of [
    ['waiting for etcd', 'waiting for etcd'],
    [null, 'starting'],
  ] as const)
    expect(ask('10.5.1.2', '10.5.2.2', undefined, withStatus({ ...none, state: 'starting', trouble }))).toEqual([
      { step: 'daemon', passes: undefined, says: `weftd has no network configuration yet: ${why}` },
    ])
  const [source] = ask('10.5.1.2', '10.5.2.2', undefined, withStatus({ node: null, peers: null }))
  expect(source).toMatchObject({ says: '10.5.1.2 is in the network 10.5.0.0/16, but no node has a lease for it' })
  const bare = withStatus({ dataPath: null })
  expect(stopped('10.5.2.2', '10.5.1.2', by('cni0'), bare)).toContain('data path')
  expect(stopped('10.5.1.2', '10.5.2.2', by('flannel0'), bare)).toContain('data path')
})

const [HERE6, THERE6] = ['fd00:5:0:1::2', 'fd00:5:0:2::2']
const dual = (part: Partial<Facts>, ...list: PeerStatus[]): Partial<Facts> => ({
  ...soundDual,
  status: { ...soundDual.status, peers: countPeers(list.length > 0 ? list : [dualPeer()], 10) },
  ...part,
})

it('uses the facts of IPv6 for an IPv6 packet', () => {
  const route6 = by('flannel-v6.1', 'fd00:5:0:2::')
  expect(says(HERE6, THERE6, route6, dual({}))).toEqual([
    'source true: fd00:5:0:1::2 is in the subnet of this node, fd00:5:0:1::/64',
    'destination true: fd00:5:0:2::2 is in the subnet fd00:5:0:2::/64 of the node 2001:db8::2',
    'forwarding true: net.ipv6.conf.all.forwarding is 1',
    'firewall true: FORWARD: accepted by -P FORWARD ACCEPT',
    'route true: to flannel-v6.1 via fd00:5:0:2::',
    'data path true: the kernel sends it to [2001:db8::2]:8472',
    'mtu true: packets of up to 1430 bytes pass unfragmented, as far as this host knows; larger ones are fragmented, or refused if fragmentation is forbidden',
    'peer true: its host answers through the data path, in 1 ms',
  ])
  // Faults of IPv4 do not matter.
  const broken4 = { isForwarding: false, iptables: BAD_FORWARD }
  expect(stopped(HERE6, THERE6, route6, dual(broken4, dualPeer({ state: 'stored' })))).toEqual([])
  expect(
    stopped(
      '10.5.1.2',
      '10.5.2.2',
      by('flannel.1', '10.5.2.0'),
      dual({ isForwardingIpv6: false, ip6tables: BAD_FORWARD }, dualPeer({}, silentSide)),
    ),
  ).toEqual([])
  expect(
    stopped(HERE6, THERE6, route6, dual({ isForwardingIpv6: false, ip6tables: BAD_FORWARD }, dualPeer({}, silentSide))),
  ).toEqual(['forwarding', 'firewall', 'peer'])
})

it.each<[string, Parameters<typeof ask>, string]>([
  [
    'a route past the tunnel',
    [HERE6, THERE6, by('eth0', '2001:db8::2'), dual({})],
    'route false: to eth0 via 2001:db8::2 instead of flannel-v6.1: another route has precedence',
  ],
  [
    'a route elsewhere',
    [HERE6, THERE6, by('eth0', '2001:db8::99'), dual({})],
    'route false: to eth0 via 2001:db8::99 instead of flannel-v6.1: another route has precedence',
  ],
  [
    'a route elsewhere, where there is one device',
    [HERE6, THERE6, by('eth0'), soundIpv6],
    'route false: to eth0 instead of flannel-v6.1: another route has precedence',
  ],
  [
    'a lease that cannot be used',
    [HERE6, THERE6, by('eth0'), dual({}, { ...dualPeer({}, { state: 'stored' }), unusable: true })],
    'data path false: this node cannot use the lease of that node: see the log of weftd',
  ],
  [
    'nobody there',
    [HERE6, 'fd00:5:0:9::2', by('eth0'), dual({})],
    'data path false: no node has this address: the packet leaves through eth0, where no host answers',
  ],
  [
    'nobody there, and no route',
    [HERE6, 'fd00:5:0:9::2', undefined, dual({})],
    'data path false: no node has this address: there is no route to it',
  ],
  [
    'rules that cannot be read',
    [HERE6, THERE6, by('flannel-v6.1'), dual({ ip6tables: undefined })],
    'firewall ?: the rules of ip6tables cannot be read',
  ],
  ['what comes in', [THERE6, HERE6, by('cni0'), dual({})], 'data path true: the kernel accepts it from any sender'],
  [
    'what comes in to nobody',
    [THERE6, HERE6, by('flannel-v6.1'), dual({})],
    'route false: no bridge of containers has fd00:5:0:1::2',
  ],
  [
    'what comes in from nobody',
    ['fd00:5:0:9::2', HERE6, by('cni0'), dual({})],
    'data path ?: no lease has its source address, so no node sends such a packet',
  ],
  [
    'an address outside',
    ['2001:db8:9::1', HERE6, by('cni0'), dual({})],
    'source true: 2001:db8:9::1 is outside the network fd00:5::/48',
  ],
  [
    'an address outside of a network of IPv4',
    ['2001:db8:9::1', HERE6, undefined],
    'source true: 2001:db8:9::1 is outside the network, which does not have IPv6',
  ],
])('explains for IPv6 %s', (_name, question, line) => expect(says(...question)).toContain(line))

it('does not take packets of the other family as a sign that the silent family sends', () => {
  const peer = { ...dualPeer({}, silentSide), state: 'programmed', heardSecondsAgo: 3, unansweredSeconds: 9 } as const
  expect(stopped(HERE6, THERE6, by('flannel-v6.1'), dual({}, peer))).toEqual(['peer'])
})

it('reports that IPv6 packets do not reach other nodes if the backend carries only IPv4', () => {
  const dataPath = { ...soundDual.status.dataPath, families: ['ipv4'], engine: 'native' } as const
  const peer = { ...dualPeer(), families: { ipv4: dualPeer().families.ipv4, ipv6: null } }
  const facts = { ...soundDual, status: { ...soundDual.status, dataPath, peers: countPeers([peer], 10) } }
  expect(says(HERE6, THERE6, undefined, facts)).toContain(
    'data path false: the vxlan backend carries only IPv4 here, so IPv6 packets do not reach other nodes',
  )
  expect(says(THERE6, HERE6, by('cni0'), facts)).toContain(
    'data path false: the vxlan backend does not carry IPv6 here, so the packet does not arrive',
  )
})

it('reports that with WireGuard a node may send only from its own subnet', () => {
  const sealed = (part: Partial<Facts> = {}): Partial<Facts> => ({
    status: { ...status, config: { ...status.config!, backendType: 'wireguard' } },
    ...part,
  })
  const to = by('flannel0')
  // The sources are a public address of this host, bound by a program, and a LAN behind the host.
  expect(stopped('192.0.2.1', '10.5.2.2', to, sealed())).toEqual(['masquerade'])
  expect(stopped('172.31.0.7', '10.5.2.2', to, sealed())).toEqual(['masquerade'])
  expect(stopped('192.0.2.1', '10.5.2.2', to, sealed(MASQ))).toEqual([])
  expect(stopped('10.5.1.2', '10.5.2.2', to, sealed())).toEqual([])
  // The source is the public address of a node.
  expect(stopped('192.0.2.2', '10.5.1.2', by('cni0'), sealed())).toEqual(['data path'])
  expect(stopped('198.51.100.7', '10.5.1.2', by('cni0'), sealed())).toEqual([])
  expect(stopped('192.0.2.2', '10.5.1.2', by('cni0'))).toEqual([])
})

/** Returns the facts of a host whose only IPsec policy blocks packets. */
function ipsecPolicy(part: Partial<IpsecPolicy>, exempt: IpsecFacts['exempt'] = []): Partial<Facts> {
  const all = { address: 0, prefixLength: 0 }
  const none = { mark: undefined, interfaceId: 0, priority: 0, templates: [], protocol: 0, hasPorts: false }
  const ends = { direction: 'fwd', family: 'ipv4', source: all, destination: all, deviceIndex: 0 } as const
  const policies = [{ ...none, ...ends, isBlock: true, ...part }]
  return { ipsec: { policies, states: [], blockedByDefault: [], hasKeyDaemon: true, exempt } }
}

describe('the IPsec policies of other programs', () => {
  const policy = (direction: IpsecPolicy['direction'], part: Partial<IpsecPolicy> = {}): Partial<Facts> =>
    ipsecPolicy({ direction, ...part })
  const own = { destination: { address: ip('10.5.1.0'), prefixLength: 24 } }

  it('stop packets of containers and of this host, in each direction', () => {
    const OUTWARD = ['10.5.1.2', '10.5.2.2', by('flannel0')] as const
    const INWARD = ['10.5.2.2', '10.5.1.2', by('cni0')] as const
    expect(stopped(...OUTWARD, policy('fwd'))).toEqual(['policy'])
    expect(stopped(...OUTWARD, policy('out'))).toEqual(['policy'])
    expect(stopped(...OUTWARD, policy('in'))).toEqual([])
    expect(stopped(...OUTWARD, policy('fwd', own))).toEqual([])
    expect(stopped(...INWARD, policy('fwd', own))).toEqual(['policy'])
    expect(stopped(...INWARD, policy('in'))).toEqual(['policy']) // the datagram
    expect(stopped('192.0.2.1', '10.5.2.2', by('flannel0'), policy('fwd'))).toEqual([])
    expect(stopped('192.0.2.1', '10.5.2.2', by('flannel0'), policy('out'))).toEqual(['policy'])
    expect(stopped('10.5.2.2', '192.0.2.1', by('lo'), policy('in'))).toEqual(['policy', 'policy'])
    expect(stopped('10.5.1.2', '198.51.100.1', by('eth0', '192.0.2.254'), { ...MASQ, ...policy('fwd') })).toEqual([
      'policy',
    ])
  })

  it('stop the datagrams of the backend even if the policies do not match the packets inside', () => {
    const host = { source: parseNet('192.0.2.1/32')!, protocol: 17 }
    expect(stopped('10.5.1.2', '10.5.2.2', by('flannel0'), policy('out', host))).toEqual(['policy'])
    expect(stopped('10.5.1.2', '10.5.2.2', by('flannel0'), policy('out', { ...host, protocol: 50 }))).toEqual([])
    // This policy matches the packets of this host itself, but not their datagrams.
    const overlay = { destination: parseNet('10.5.2.0/24')! }
    expect(stopped('192.0.2.1', '10.5.2.2', by('flannel0'), policy('out', overlay))).toEqual(['policy'])
    expect(stopped('192.0.2.1', '198.51.100.1', by('eth0', '192.0.2.254'), policy('out', overlay))).toEqual([])
  })

  it('may apply to one interface only, and do not apply to packets of exempted interfaces', () => {
    const links = sound.links.map((each, at) => ({ ...each, index: at + 2 }))
    const device = { ...links[0]!, index: 9, name: 'flannel0', addresses: { ipv4: [], ipv6: [] } }
    const through = (deviceIndex: number, source: string, destination: string, route: Route) =>
      only(
        'policy',
        stepsOf([source, destination], { route }, { ...policy('fwd', { deviceIndex }), links: [...links, device] }),
      )
    expect(through(9, '10.5.1.2', '10.5.2.2', by('flannel0'))).toHaveLength(1)
    expect(through(2, '10.5.1.2', '10.5.2.2', by('flannel0'))).toEqual([])
    expect(through(3, '10.5.2.2', '10.5.1.2', by('cni0'))).toHaveLength(1)
    expect(through(9, '10.5.2.2', '10.5.1.2', by('cni0'))).toEqual([])
    expect(through(2, '10.5.1.2', '198.51.100.1', by('eth0', '192.0.2.254'))).toHaveLength(1)
    const exempted = (name: string, source: string, destination: string, route: Route) => {
      const exempt = [{ setting: 'disable_policy', family: 'ipv4', device: name }] as const
      return only('policy', stepsOf([source, destination], { route }, ipsecPolicy({}, exempt)))
    }
    expect(exempted('cni0', '10.5.1.2', '10.5.2.2', by('flannel0'))).toEqual([])
    expect(exempted('flannel0', '10.5.1.2', '10.5.2.2', by('flannel0'))).toHaveLength(1)
    expect(exempted('flannel0', '10.5.2.2', '10.5.1.2', by('cni0'))).toEqual([])
    expect(exempted('cni0', '10.5.2.2', '10.5.1.2', by('cni0'))).toHaveLength(1)
  })

  it('are named, and may get their keys later', () => {
    expect(of('policy', policy('fwd'))).toEqual([
      'policy false: packets from 10.5.1.2 to 10.5.2.2: the IPsec policy "src 0.0.0.0/0 dst 0.0.0.0/0 dir fwd action block"',
    ])
    const template = {
      family: 'ipv4',
      source: 1,
      destination: 2,
      protocol: 50,
      requestId: 1,
      mode: 1,
      isOptional: false,
    } as const
    expect(stopped(...OUT, policy('fwd', { isBlock: false, templates: [template] }))).toEqual(['policy?'])
  })
})

it('says of an answer that a firewall may accept it although it drops first packets', () => {
  const iptables = '-P FORWARD DROP\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT'
  const question = {
    source: ip('10.5.2.2'),
    destination: ip('10.5.1.2'),
    status,
    facts: { ...sound, iptables },
    route: by('cni0'),
  }
  const firewall = (isAnswer: boolean) =>
    explain({ ...question, isAnswer })
      .filter(({ says: text }) => text.startsWith('FORWARD'))
      .map(({ passes, says: text }) => `${passes ?? '?'}: ${text}`)
  expect([...firewall(false), ...firewall(true)]).toEqual([
    'false: FORWARD: dropped by -P FORWARD DROP',
    '?: FORWARD: dropped by -P FORWARD DROP, unless it answers an earlier packet in the other direction',
  ])
})

it.each([false, true])(
  'says that a firewall drops all packets of a connection but the first, answer %s',
  (isAnswer) => {
    const iptables = '-P FORWARD ACCEPT\n-A FORWARD -m conntrack --ctstate ESTABLISHED -j DROP'
    const facts = { ...sound, iptables }
    const [source, destination] = [ip('10.5.2.2'), ip('10.5.1.2')]
    const steps = explain({ source, destination, status, facts, route: by('cni0'), isAnswer })
    expect(steps.filter(({ passes }) => passes === false).map(({ says: text }) => text)).toEqual([
      'FORWARD: all packets of a connection but the first dropped by -A FORWARD -m conntrack --ctstate ESTABLISHED -j DROP',
    ])
  },
)

it('says of an answer that rules drop each packet of a connection', () => {
  const [first, later] = ['NEW', 'ESTABLISHED'].map((state) => `-A FORWARD -m conntrack --ctstate ${state} -j DROP`)
  const facts = { ...sound, iptables: `-P FORWARD ACCEPT\n${first}\n${later}` }
  const [source, destination] = [ip('10.5.2.2'), ip('10.5.1.2')]
  const steps = explain({ source, destination, status, facts, route: by('cni0'), isAnswer: true })
  expect(steps.filter(({ passes }) => passes === false).map(({ says: text }) => text)).toEqual([
    `FORWARD: dropped by ${first}`,
  ])
})

it('knows the direction of a packet, and whether weft can explain the answer', () => {
  const about = (source: string, destination: string) => {
    const ends = [ip(source), ip(destination), status, sound] as const
    return `${directionOf(...ends)} ${hasAnswer(...ends)}`
  }
  expect(about('10.5.1.2', '10.5.2.2')).toBe('out true')
  expect(about('192.0.2.1', '10.5.2.2')).toBe('out true')
  expect(about('10.5.2.2', '10.5.1.2')).toBe('in true')
  expect(about('10.5.1.2', '10.5.1.3')).toBe('local false')
  expect(about('10.5.1.2', '198.51.100.1')).toBe('out false')
  expect(about('198.51.100.1', '10.5.1.2')).toBe('in false')
  expect(about('172.31.0.7', '10.5.2.2')).toBe('out false')
})

it('stops packets of containers at a bridge without the address of the gateway', () => {
  const links = [
    { ...sound.links[0]!, index: 2 },
    { ...sound.links[1]!, index: 7, type: 'bridge', addresses: { ipv4: [linkAddress(ip('10.5.1.77'), 24)], ipv6: [] } },
    { ...sound.links[2]!, index: 8, name: 'veth1', type: 'veth', master: 7, addresses: { ipv4: [], ipv6: [] } },
  ]
  const facts = { ...MASQ, links, gateways: [ip('10.5.1.1')] }
  expect(stopped('10.5.1.2', '10.5.2.2', by('flannel0'), facts)).toEqual(['gateway'])
  expect(stopped('10.5.1.2', '198.51.100.1', by('eth0', '192.0.2.254'), facts)).toEqual(['gateway'])
  expect(stopped('192.0.2.1', '10.5.2.2', by('flannel0'), facts)).toEqual([])
  expect(stopped('10.5.1.2', '10.5.2.2', by('flannel0'), { ...facts, gateways: [] })).toEqual([])
})

it('names the setting that disables IPv6 on an interface to a peer', () => {
  const [here, there] = ['fd00:5:0:1::2', 'fd00:5:0:2::2'] as const
  const stopsBy = (withoutIpv6: readonly string[], source: string, destination: string) =>
    explain({
      source: parseAddress(source)!,
      destination: parseAddress(destination)!,
      status: soundDual.status,
      facts: { ...soundDual, withoutIpv6 },
      route: routeTo('', source === here ? 'flannel-v6.1' : 'cni0'),
    })
      .filter(({ passes }) => passes === false)
      .map(({ step, says: text }) => `${step}: ${text}`)
  for (const name of ['eth0', 'flannel-v6.1']) {
    const setting = `underlay: net.ipv6.conf.${name.replace('.', '/')}.disable_ipv6 is 1`
    expect(stopsBy([name], here, there)).toEqual([setting])
    expect(stopsBy([name], there, here)).toEqual([setting])
  }
  expect(stopsBy(['docker0'], here, there)).toEqual([])
})

/** Returns the steps about a packet, with the facts of `Question` that only some packets have. */
const stepsOf = (
  [source, destination]: readonly [string, string],
  part: Partial<Parameters<typeof explain>[0]>,
  facts: Partial<Facts> = {},
): string[] =>
  explain({
    source: ipOf(source),
    destination: ipOf(destination),
    status: facts.status ?? status,
    facts: { ...sound, ...facts },
    route: undefined,
    ...part,
  }).map(({ step, passes, says: text }) => `${step} ${passes ?? '?'}: ${text}`)
const only = (step: string, lines: readonly string[]): string[] => lines.filter((line) => line.startsWith(`${step} `))
const withType = (backendType: string, part: Partial<Status> = {}): Partial<Facts> =>
  withStatus({ config: { ...status.config!, backendType }, ...part })

describe('a packet that the kernel refuses', () => {
  const EXDEV = 'Invalid cross-device link'
  it.each<[string, readonly [string, string], string, Partial<Facts>, string]>([
    [
      'has the reason of the kernel on the way out',
      ['10.5.1.2', '10.5.2.2'],
      'Permission denied',
      {},
      'route false: the kernel refuses it: Permission denied',
    ],
    [
      'has the reason of the kernel on the way in',
      ['10.5.2.2', '10.5.1.2'],
      'No route to host',
      {},
      'route false: the kernel refuses it: No route to host',
    ],
    [
      'is refused by rp_filter on the way in',
      ['10.5.2.2', '10.5.1.2'],
      EXDEV,
      {},
      'route false: the kernel drops it because of rp_filter: the route back to its source uses another interface',
    ],
    [
      'is refused by rp_filter on the way out',
      ['10.5.1.2', '10.5.2.2'],
      EXDEV,
      {},
      'route false: the kernel drops it because of rp_filter: the route back to its source uses another interface',
    ],
  ])('%s', (_name, ends, refused, facts, line) => {
    // weft explain then also looks up the route of a packet of the host itself, which may be right.
    const route = by(ends[0] === '10.5.1.2' ? 'flannel0' : 'cni0')
    for (const found of [undefined, route])
      expect(only('route', stepsOf(ends, { refused, route: found }, facts))).toEqual([line])
  })

  it('is explained by the step about forwarding alone if the kernel does not forward packets', () => {
    const refused = 'No route to host'
    // A full connection tracking table does not stop all packets, so it does not explain the refusal.
    const off = { isForwarding: false, tracking: { entries: 65_536, limit: 65_536 } }
    expect(only('route', stepsOf(['10.5.1.2', '10.5.2.2'], { refused, route: by('flannel0') }, off))).toEqual([
      'route true: to flannel0',
    ])
    expect(only('route', stepsOf(['10.5.1.2', '10.5.2.2'], { refused }, off))).toEqual(['route false: there is none'])
    expect(only('route', stepsOf(['10.5.2.2', '10.5.1.2'], { refused, route: by('cni0') }, off))).toEqual([
      'route true: to cni0, a bridge of containers',
    ])
    const onOne = (...unforwarded: string[]) => [
      ...only('route', stepsOf(['10.5.1.2', '10.5.2.2'], { refused, route: by('flannel0') }, { unforwarded })),
      ...only('route', stepsOf(['10.5.2.2', '10.5.1.2'], { refused, route: by('cni0') }, { unforwarded })),
    ]
    const denied = 'route false: the kernel refuses it: No route to host'
    expect(onOne()).toEqual([denied, denied])
    expect(onOne('cni0')).toEqual(['route true: to flannel0', denied])
    expect(onOne('flannel0')).toEqual([denied, 'route true: to cni0, a bridge of containers'])
  })
})

describe('forwarding', () => {
  const forwards = (ends: readonly [string, string], route: Route, facts: Partial<Facts>): string[] =>
    only('forwarding', stepsOf(ends, { route }, facts))
  const OUTWARD = [['10.5.1.2', '10.5.2.2'], by('flannel0')] as const
  const INWARD = [['10.5.2.2', '10.5.1.2'], by('cni0')] as const

  it('may be switched off on the interface on which the packets arrive', () => {
    expect(forwards(...OUTWARD, { unforwarded: ['cni0'] })).toEqual([
      'forwarding false: net.ipv4.conf.cni0.forwarding is 0',
    ])
    expect(forwards(...OUTWARD, { unforwarded: ['flannel0'] })).toEqual(['forwarding true: net.ipv4.ip_forward is 1'])
    expect(forwards(...INWARD, { unforwarded: ['flannel0'] })).toEqual([
      'forwarding false: net.ipv4.conf.flannel0.forwarding is 0',
    ])
    expect(forwards(...INWARD, { unforwarded: ['cni0'] })).toEqual(['forwarding true: net.ipv4.ip_forward is 1'])
    const world = forwards(['10.5.1.2', '198.51.100.1'], by('eth0', '192.0.2.254'), { unforwarded: ['cni0'] })
    expect(world).toEqual(['forwarding false: net.ipv4.conf.cni0.forwarding is 0'])
  })

  it('depends on the settings of the family', () => {
    const six = (facts: Partial<Facts>) => forwards([HERE6, THERE6], by('flannel-v6.1'), { ...dual({}), ...facts })
    const [on, off] = ['true', 'false'].map(
      (is) => `forwarding ${is}: net.ipv6.conf.all.forwarding is ${is === 'true' ? 1 : 0}`,
    )
    expect(six({ isForwardingIpv6: false })).toEqual([off])
    // The kernel did not report the setting.
    expect(six({ isForwardingIpv6: undefined })).toEqual([on])
    expect(six({ unforwarded: ['cni0'] })).toEqual([on])
  })

  it('may fail for new connections if the connection tracking table is full', () => {
    const full = { tracking: { entries: 65_536, limit: 65_536 } }
    for (const [ends, route] of [OUTWARD, INWARD, [['10.5.1.2', '198.51.100.1'], by('eth0', '192.0.2.254')] as const])
      expect(only('tracking', stepsOf(ends, { route }, full))).toEqual([
        expect.stringMatching(
          /^tracking \?: .*new connections: 65536 connections, and net\.netfilter\.nf_conntrack_max is 65536$/,
        ),
      ])
    expect(
      only('tracking', stepsOf(OUTWARD[0], { route: OUTWARD[1] }, { tracking: { entries: 9, limit: 65_536 } })),
    ).toEqual([])
    // The host's own packets are not forwarded.
    expect(only('tracking', stepsOf(['192.0.2.1', '10.5.2.2'], { route: by('flannel0') }, full))).toEqual([])
  })
})

describe('a route of another program to a container of this node', () => {
  const led = (
    routes: readonly Route[],
    gateway: string | undefined,
    ends: readonly [string, string] = ['192.0.2.1', '10.5.1.2'],
  ): string[] => only('route', stepsOf(ends, { route: by('eth0', gateway) }, { routes }))
  const ledTo = (gateway: string) =>
    `route false: to eth0 via ${gateway}, which is another host, instead of to a bridge of containers: another route has precedence`

  it.each<[string, string, string]>([
    ['to the subnet', '10.5.1.0/24', '192.0.2.9'],
    ['to a part of the subnet', '10.5.1.0/25', '192.0.2.9'],
    ['to the container', '10.5.1.2/32', '192.0.2.9'],
  ])('%s is named', (_name, destination, gateway) => {
    const routes = [routeTo('10.5.1.0/24', 'cni0'), routeTo(destination, 'eth0', gateway)]
    for (const source of ['192.0.2.1', '10.5.1.3', '10.5.2.2', '198.51.100.1'])
      expect(led(routes, gateway, [source, '10.5.1.2'])).toEqual([ledTo(gateway)])
  })

  it.each<[string, readonly Route[], string | undefined]>([
    ['a route without a gateway', [routeTo('10.5.1.0/24', 'eth0')], undefined],
    ['a gateway that is a container of this node', [routeTo('10.5.1.0/25', 'cni0', '10.5.1.7')], '10.5.1.7'],
    ['a default route', [routeTo('0.0.0.0/0', 'eth0', '192.0.2.254')], '192.0.2.254'],
    ['a route to the whole network', [routeTo('10.5.0.0/16', 'eth0', '192.0.2.254')], '192.0.2.254'],
    ['a route to other containers', [routeTo('10.5.1.128/25', 'eth0', '192.0.2.9')], '192.0.2.9'],
    ['a route of another gateway', [routeTo('10.5.1.0/24', 'eth0', '192.0.2.8')], '192.0.2.9'],
    ['no route', [], '192.0.2.9'],
  ])('is not reported for %s', (_name, routes, gateway) => {
    expect(led(routes, gateway)).toEqual([])
    expect(led(routes, gateway, ['10.5.1.3', '10.5.1.2'])).toEqual([])
  })

  it('is named for IPv6', () => {
    const routes = [routeTo('fd00:5:0:1::/64', 'eth0', '2001:db8::9')]
    const route = by('eth0', '2001:db8::9')
    expect(only('route', stepsOf([THERE6, HERE6], { route }, dual({ routes })))).toEqual([
      expect.stringMatching(/^route false: to eth0 via 2001:db8::9, which is another host,/),
    ])
  })

  it('ends the explanation', () => {
    const routes = [routeTo('10.5.1.0/24', 'eth0', '192.0.2.9')]
    const steps = stepsOf(['10.5.2.2', '10.5.1.2'], { route: by('eth0', '192.0.2.9') }, { routes })
    expect(steps.at(-1)).toMatch(/^route false: to eth0 via 192\.0\.2\.9, which is another host/)
    expect(steps.filter((line) => line.includes('bridge of containers has'))).toEqual([])
  })
})

it('names the policy rule that selected the route', () => {
  const byRule = '5270: from all lookup 52'
  const about = (route: Route) => only('route', stepsOf(['10.5.1.2', '10.5.2.2'], { route, byRule }))
  expect(about(by('ts0'))).toEqual([
    'route false: to ts0 by the rule "5270: from all lookup 52" instead of flannel0: another route has precedence',
  ])
  expect(about(by('flannel0'))).toEqual(['route true: to flannel0 by the rule "5270: from all lookup 52"'])
})

describe('host-gw', () => {
  const hostGw = withType('host-gw', {
    dataPath: { ...path, engine: 'kernel', device: null, devices: { ipv4: null, ipv6: null } },
  })
  it.each<[string, Route, string]>([
    ["the peer's host", by('eth0', '192.0.2.2'), 'route true: to eth0 via 192.0.2.2'],
    [
      'another gateway',
      by('eth0', '192.0.2.254'),
      'route false: to eth0 via 192.0.2.254 instead of via 192.0.2.2: another route has precedence',
    ],
    ['no gateway', by('eth0'), 'route false: to eth0 instead of via 192.0.2.2: another route has precedence'],
  ])('routes packets through %s', (_name, route, line) => {
    expect(only('route', stepsOf(['10.5.1.2', '10.5.2.2'], { route }, hostGw))).toEqual([line])
  })

  it('routes no packets without a route, and sends no datagrams', () => {
    const steps = stepsOf(['10.5.1.2', '10.5.2.2'], { route: undefined }, hostGw)
    expect(only('route', steps)).toEqual(['route false: there is none'])
    const key = { direction: 'out', family: 'ipv4', source: parseNet('192.0.2.1/32')! } as const
    expect(only('policy', stepsOf(['10.5.1.2', '10.5.2.2'], {}, { ...hostGw, ...ipsecPolicy(key) }))).toEqual([])
  })
})

describe('the name of a node', () => {
  it('is shown with the address, and is shortened', () => {
    const destination = (name: string) => says('10.5.1.2', '10.5.2.2', by('flannel0'), withPeer({ name }))[1]
    expect(destination('host2')).toMatch(/ of the node host2 \(192\.0\.2\.2\)$/)
    expect(destination('h'.repeat(300))).toMatch(/ of the node h{39}… \(192\.0\.2\.2\)$/)
  })
})

it('names all addresses from which the datagrams of a peer may come', () => {
  const udp = (peer: PeerStatus) =>
    dual({
      status: {
        ...soundDual.status,
        config: { ...soundDual.status.config, backendType: 'udp' },
        dataPath: { ...soundDual.status.dataPath, engine: 'native' },
        peers: countPeers([peer], 10),
      },
    })
  const accepts = (peer: PeerStatus) =>
    only('data path', stepsOf(['10.5.2.2', '10.5.1.2'], { route: by('cni0') }, udp(peer)))
  expect(accepts(dualPeer())).toEqual([expect.stringContaining('comes from 192.0.2.2 or 2001:db8::2; with')])
  expect(accepts({ ...dualPeer(), publicIpv6: null })).toEqual([expect.stringContaining('comes from 192.0.2.2; with')])
  // An invalid lease shows its address as it is.
  expect(accepts({ ...dualPeer(), publicIpv6: null, publicIp: 'x' })).toEqual([
    expect.stringContaining('comes from x; with'),
  ])
})

it('explains packets between addresses that no node has, and addresses outside the network', () => {
  const steps = (...args: Parameters<typeof ask>) => ask(...args).map(({ step }) => step)
  expect(steps('10.5.7.2', '198.51.100.1', by('eth0', '192.0.2.254'))).toContain('masquerade')
  expect(says('198.51.100.1', '10.5.7.2', by('flannel0'))[2]).toMatch(
    /^data path false: no node has this address: the sender gets ICMP/,
  )
})

it('says that no host answers a packet to an address without a node, if weftd does not carry the packet', () => {
  const ipv4Alone = {
    ...soundDual.status,
    dataPath: { ...soundDual.status.dataPath, engine: 'native', families: ['ipv4'] as const },
  }
  for (const dataPath of [null, ipv4Alone.dataPath])
    expect(
      stepsOf([HERE6, 'fd00:5:0:9::2'], { route: by('eth0') }, dual({ status: { ...ipv4Alone, dataPath } })).at(-1),
    ).toBe('data path false: no node has this address: the packet leaves through eth0, where no host answers')
})

const WORLD = by('eth0', '192.0.2.254')
const REFUSED_OUT = { iptables: '-A FORWARD -i cni0 -j DROP' }

describe('a packet that leaves the network', () => {
  it.each<[string, string, Partial<Facts>, string]>([
    ['from a container', '10.5.1.2', MASQ, "masquerade true: by weft's rules (--ip-masq)"],
    ['from this host', '192.0.2.1', MASQ, 'masquerade true: not needed: the source is an address of this host'],
    [
      'from this host, without --ip-masq',
      '192.0.2.1',
      {},
      'masquerade true: not needed: the source is an address of this host',
    ],
    ['from a container of a peer', '10.5.2.2', MASQ, "masquerade true: by weft's rules (--ip-masq)"],
    [
      'from a container of a peer, without --ip-masq',
      '10.5.2.2',
      {},
      'masquerade ?: not by weft: the packet keeps its source 10.5.2.2',
    ],
  ])('%s is masqueraded only if that is necessary', (_name, source, facts, line) => {
    expect(stepsOf([source, '198.51.100.1'], { route: WORLD }, facts).at(-1)!.startsWith(line)).toBe(true)
  })

  it('passes the firewall only if it is forwarded', () => {
    const dropped = (source: string) =>
      stepsOf([source, '198.51.100.1'], { route: WORLD }, { ...MASQ, ...REFUSED_OUT }).filter(
        (line) => !line.includes(' true: '),
      )
    expect(dropped('10.5.1.2')).toEqual(['firewall false: FORWARD: dropped by -A FORWARD -i cni0 -j DROP'])
    expect(dropped('192.0.2.1')).toEqual([])
  })
})

describe('WireGuard', () => {
  const sealed = (part: Partial<Facts> = {}, about: Partial<Status> = {}): Partial<Facts> => ({
    ...withType('wireguard', about),
    ...part,
  })
  const DEVICE = {
    ...sound.links[0]!,
    name: 'flannel-wg',
    addresses: { ipv4: [linkAddress(ip('10.5.1.0'), 32)], ipv6: [] },
  }
  const masquerade = (source: string, facts: Partial<Facts>) =>
    only('masquerade', stepsOf([source, '10.5.2.2'], { route: by('flannel0') }, facts))

  it.each<[string, string, Partial<Facts>, string[]]>([
    ['the address of the device', '10.5.1.0', sealed({ links: [...sound.links, DEVICE] }), []],
    [
      'the public address',
      '192.0.2.1',
      sealed(),
      ['masquerade false: not by weft: the peer drops packets from 192.0.2.1, because'],
    ],
    [
      'the public address of a node whose lease is not known yet',
      '192.0.2.1',
      sealed({}, { node: null }),
      ['masquerade false: not by weft: the peer drops packets from 192.0.2.1, because'],
    ],
    [
      'the public address, masqueraded',
      '192.0.2.1',
      sealed(MASQ),
      ["masquerade true: by weft's rules (--ip-masq), so that"],
    ],
    [
      'an address behind the host, masqueraded',
      '172.31.0.7',
      sealed(MASQ),
      ["masquerade true: by weft's rules (--ip-masq), so that"],
    ],
    ['a container', '10.5.1.2', sealed(), []],
    ['the public address with another backend', '192.0.2.1', {}, []],
    ['the public address without a known backend', '192.0.2.1', withType('other'), []],
  ])('requires a source address in the subnet of this node: %s', (_name, source, facts, expected) => {
    expect(masquerade(source, facts).map((line, at) => line.slice(0, expected[at]?.length))).toEqual(expected)
  })

  it('drops packets of a node from an address outside its subnet', () => {
    const incoming = (source: string, facts: Partial<Facts>) =>
      only('data path', stepsOf([source, '10.5.1.2'], { route: by('cni0') }, facts))
    const named = sealed({}, { peers: countPeers([{ ...soundPeer, name: 'host2' }], 10) })
    expect(incoming('192.0.2.2', named)).toEqual([
      expect.stringMatching(
        /^data path false: dropped if the node host2 \(192\.0\.2\.2\) sends it, because with WireGuard/,
      ),
    ])
    expect(incoming('192.0.2.2', { ...named, ...MASQ })).toEqual([
      expect.stringMatching(/^data path \?: dropped if the node host2 \(192\.0\.2\.2\) sends it/),
    ])
    expect(incoming('198.51.100.7', sealed())).toEqual([
      expect.stringMatching(/^data path true: accepted if it does not come through the tunnel/),
    ])
    expect(incoming('198.51.100.7', sealed({}, { peers: null }))).toEqual([
      expect.stringMatching(/^data path true: accepted if it does not come through the tunnel/),
    ])
    // WireGuard proves that the sender is a container of the peer.
    expect(incoming('10.5.2.2', sealed())).toEqual([
      expect.stringMatching(/^data path true: accepted if it was encrypted/),
    ])
    expect(incoming('192.0.2.2', {})).toEqual([])
    expect(incoming('192.0.2.2', withType('other'))).toEqual([])
  })

  it('knows the IPv6 address of a node', () => {
    const facts = dual({
      status: { ...soundDual.status, config: { ...soundDual.status.config, backendType: 'wireguard' } },
    })
    expect(only('data path', stepsOf(['2001:db8::2', HERE6], { route: by('cni0') }, facts))).toEqual([
      expect.stringMatching(/^data path false: dropped if the node 2001:db8::2 sends it/),
    ])
  })
})

describe('a packet that comes in', () => {
  it('for this host itself is not forwarded', () => {
    const steps = stepsOf(
      ['10.5.2.2', '192.0.2.1'],
      { route: by('lo') },
      { isForwarding: false, iptables: BAD_FORWARD },
    )
    expect(steps.map((line) => line.replace(/:.*/, ''))).toEqual([
      'source true',
      'destination true',
      'firewall true',
      'data path true',
    ])
  })

  it.each<[string, Partial<Facts>, boolean]>([
    ['weftd is stopped', withStatus({ dataPath: { ...path, open: false } }), false],
    ['weftd has no data path', withStatus({ dataPath: null }), false],
    ['weftd cannot use the lease of the peer', withPeer({ state: 'stored' }), false],
    ['the peer does not answer', withPeer(silentSide), true],
  ])('does or does not pass the data path if %s', (_name, facts, passes) => {
    const lines = only('data path', stepsOf(['10.5.2.2', '10.5.1.2'], { route: by('cni0') }, facts))
    expect(lines.map((line) => line.split(':')[0])).toEqual([`data path ${passes}`])
  })

  it('is accepted only if the firewall accepts the port of the datagram', () => {
    const iptables = '-P INPUT DROP\n-P FORWARD ACCEPT\n-A INPUT -p udp -m udp --dport 8285 -j ACCEPT'
    const incoming = (facts: Partial<Facts>) =>
      only('firewall', stepsOf(['10.5.2.2', '10.5.1.2'], { route: by('cni0') }, facts))
    expect(incoming({ iptables })).toEqual([
      expect.stringMatching(/^firewall true: INPUT: accepted by -A INPUT -p udp/),
      'firewall true: FORWARD: accepted by -P FORWARD ACCEPT',
    ])
    expect(incoming({ iptables: iptables.replace('8285', '8472') })).toEqual([
      'firewall false: INPUT: dropped by -P INPUT DROP',
      'firewall true: FORWARD: accepted by -P FORWARD ACCEPT',
    ])
  })

  it('reaches a container only through a bridge', () => {
    const last = (route: Route | undefined) => stepsOf(['10.5.2.2', '10.5.1.2'], { route }).at(-1)
    expect(last(by('cni0'))).toBe('route true: to cni0, a bridge of containers')
    for (const route of [by('cni0', '10.5.1.7'), by('flannel0'), undefined])
      expect(last(route)).toBe('route false: no bridge of containers has 10.5.1.2')
  })

  it.each([
    ['udp', 'native', { open: false }, 'answering', 'false: it is not open, so the packet does not arrive'],
    [
      'udp',
      'native',
      {},
      'stored',
      'false: dropped, .* lacks the node that sends it: counted as rx_drop_unknown_sender',
    ],
    ['udp', 'native', { families: ['ipv6'] }, 'stored', 'false: the udp backend does not carry IPv4 here'],
    ['vxlan', 'kernel', {}, 'answering', 'true: the kernel accepts it from any sender'],
    ['vxlan', 'kernel', {}, 'stored', 'false: the data path lacks the node that sends it, so no answer reaches'],
    [
      'wireguard',
      'kernel',
      {},
      'answering',
      'true: accepted if it was encrypted with the key of the node that sends it',
    ],
    [
      'wireguard',
      'native',
      {},
      'answering',
      'true: accepted if it was encrypted with the key of the node that sends it',
    ],
    ['wireguard', 'kernel', {}, 'stored', 'false: dropped, because the data path lacks the node that sends it$'],
    ['wireguard', 'native', {}, 'stored', 'false: dropped, because the data path lacks the node that sends it$'],
    ['one of tomorrow', 'native', {}, 'answering', 'true: accepted if its datagram comes from 192.0.2.2'],
    ['ipsec', 'kernel', {}, 'answering', 'true: accepted if it was encrypted with the key of the node that sends it'],
  ] as const)(
    'with %s, carried by the %s engine: %j, from a peer that is %s',
    (backendType, engine, part, state, text) => {
      const about = withStatus({
        config: { ...status.config!, backendType },
        dataPath: { ...path, engine, ...part },
        peers: countPeers([{ ...soundPeer, state }], 10),
      })
      expect(only('data path', stepsOf(['10.5.2.2', '10.5.1.2'], { route: by('cni0') }, about))).toEqual([
        expect.stringMatching(new RegExp(`^data path ${text}`)),
      ])
    },
  )

  it('does not arrive before weftd has a data path', () => {
    expect(
      only('data path', stepsOf(['10.5.2.2', '10.5.1.2'], { route: by('cni0') }, withStatus({ dataPath: null }))),
    ).toEqual(['data path false: it is not open, so the packet does not arrive'])
  })

  it('is not expected from an address without a node', () => {
    expect(stepsOf(['10.5.7.2', '10.5.1.2'], { route: by('cni0') }, withStatus({ dataPath: null })).slice(2)).toEqual([
      'data path ?: no lease has its source address, so no node sends such a packet',
    ])
  })

  it('over IPv6 comes from the IPv6 address of the peer', () => {
    const native = { ...soundDual.status, dataPath: { ...soundDual.status.dataPath, engine: 'native' } }
    const iptables = '-A INPUT -p udp -m udp --dport 8472 -j DROP'
    const facts = dual({ status: native, iptables })
    expect(stopped(THERE6, HERE6, by('cni0'), facts)).toEqual([])
    expect(stopped(THERE6, HERE6, by('cni0'), { ...facts, ip6tables: iptables })).toEqual(['firewall'])
    // This policy also drops neighbour discovery on the bridge.
    expect(stopped(THERE6, HERE6, by('cni0'), { ...facts, ip6tables: BAD_INPUT })).toEqual(['firewall', 'bridge'])
    expect(only('data path', stepsOf([THERE6, HERE6], { route: by('cni0') }, facts))).toEqual([
      expect.stringContaining('comes from 2001:db8::2; with'),
    ])
  })
})

describe('the last step, about the answers of the peer', () => {
  const last = (facts: Partial<Facts>, source = '10.5.1.2') =>
    stepsOf([source, '10.5.2.2'], { route: by('flannel0') }, facts).at(-1)

  it.each<[string, Partial<Facts>, RegExp]>([
    ['answers', withPeer({}), /^peer true: .*, in 1 ms$/],
    ['loses packets', withPeer({ lossPercent: 25 }), /^peer true: .*, in 1 ms, 25% lost$/],
    ['does not answer', withPeer(silentSide), /^peer false: .* does not answer .*, 100% lost$/],
    [
      'was not probed',
      withPeer({ state: 'programmed', lossPercent: null, roundTripMs: null }),
      /^peer \?: its host was not probed$/,
    ],
    [
      'sends without answering',
      withPeer({ ...silentSide, heardSecondsAgo: 2, unansweredSeconds: 40 }),
      /^peer \?: packets from its host arrive, .*, 100% lost: packets to it may be lost/,
    ],
    ['sent nothing for long', withPeer({ ...silentSide, heardSecondsAgo: 60, unansweredSeconds: 90 }), /^peer false: /],
    [
      'sends at least once in three intervals of the probes',
      withStatus({
        peers: countPeers([{ ...soundPeer, ...silentSide, heardSecondsAgo: 60, unansweredSeconds: 90 }], 30),
      }),
      /^peer \?: packets from its host arrive/,
    ],
    [
      'loses packets, with host-gw',
      { ...withType('host-gw', { peers: countPeers([{ ...soundPeer, lossPercent: 25 }], 10) }) },
      /^peer \?: its host answers this host, in 1 ms, 25% lost; this does not show/,
    ],
    [
      'does not answer, with host-gw',
      { ...withType('host-gw', { peers: countPeers([{ ...soundPeer, ...silentSide }], 10) }) },
      /^peer false: /,
    ],
  ])('if it %s', (_name, facts, line) => expect(last(facts)).toMatch(line))
})

it('has no firewall step for datagrams that the firewall accepts or perhaps accepts', () => {
  for (const iptables of [
    '-P OUTPUT ACCEPT\n-P FORWARD ACCEPT',
    '-P OUTPUT ACCEPT\n-P FORWARD ACCEPT\n-A OUTPUT -m mark --mark 0x1 -j DROP',
  ])
    expect(only('firewall', stepsOf(['10.5.1.2', '10.5.2.2'], { route: by('flannel0') }, { iptables }))).toEqual([
      'firewall true: FORWARD: accepted by -P FORWARD ACCEPT',
    ])
})

it('judges datagrams that contain IPv6 packets by the rules of the family of the endpoint', () => {
  const udp = (endpoint: string): Partial<Facts> =>
    dual({
      status: {
        ...soundDual.status,
        config: { ...soundDual.status.config, backendType: 'udp' },
        peers: countPeers([dualPeer({}, { endpoint })], 10),
      },
    })
  const drop = (port: number) => `-P FORWARD ACCEPT\n-A OUTPUT -p udp -m udp --dport ${port} -j DROP`
  const stops = (endpoint: string, facts: Partial<Facts>) =>
    stopped(HERE6, THERE6, by('flannel-v6.1'), { ...udp(endpoint), ...facts })
  const [outer4, outer6] = ['192.0.2.2:8285', '[2001:db8::2]:8285'] as const
  expect(stops(outer4, { iptables: drop(8285) })).toEqual(['firewall'])
  expect(stops(outer6, { iptables: drop(8285) })).toEqual([])
  expect(stops(outer6, { ip6tables: drop(8285) })).toEqual(['firewall'])
  expect(stops(outer4, { ip6tables: drop(8285) })).toEqual([])
  const input = (endpoint: string, facts: Partial<Facts>) =>
    stopped(THERE6, HERE6, by('cni0'), { ...udp(endpoint), ...facts })
  expect(input(outer4, { iptables: BAD_INPUT })).toEqual(['firewall'])
  expect(input(outer6, { iptables: BAD_INPUT })).toEqual([])
})

describe('between addresses of this host', () => {
  const links = [...sound.links.filter(({ name }) => name !== 'cni0'), { ...sound.links[1]!, index: 7 }]
  const drops = {
    links,
    nft: 'table bridge x {\n\tchain c {\n\t\ttype filter hook forward priority filter; policy accept;\n\t\tdrop\n\t}\n}\n',
  }

  it.each([
    ['two containers', '10.5.1.2', '10.5.1.3', ['firewall']],
    ['this host and a container', '192.0.2.1', '10.5.1.3', []],
    ['a container and this host', '10.5.1.2', '192.0.2.1', []],
    ['a container and the address of its bridge', '10.5.1.2', '10.5.1.1', []],
  ])('only packets between containers pass the rules of the bridge: %s', (_name, source, destination, expected) => {
    expect(stopped(source, destination, by('cni0'), drops)).toEqual(expected)
  })
})

describe('a rule that drops neighbour discovery on the bridge of the containers', () => {
  const ip6tables = '-P FORWARD ACCEPT\n-A INPUT -i cni0 -p ipv6-icmp -j DROP'
  const bridgeSteps = (source: string, destination: string, device: string, part: Partial<Facts> = { ip6tables }) =>
    only('bridge', stepsOf([source, destination], { route: by(device) }, dual(part))).map((line) => line.split(':')[0])

  it('stops only IPv6 packets that pass the bridge', () => {
    expect(bridgeSteps(HERE6, THERE6, 'flannel-v6.1')).toEqual(['bridge false'])
    expect(bridgeSteps(THERE6, HERE6, 'cni0')).toEqual(['bridge false'])
    expect(bridgeSteps(HERE6, '2001:db8:9::1', 'eth0')).toEqual(['bridge false'])
    expect(bridgeSteps('2001:db8:9::1', HERE6, 'cni0')).toEqual(['bridge false'])
    expect(bridgeSteps('2001:db8::1', THERE6, 'flannel-v6.1')).toEqual([])
    expect(bridgeSteps('2001:db8::1', '2001:db8:9::1', 'eth0')).toEqual([])
    expect(bridgeSteps(THERE6, '2001:db8:9::1', 'eth0')).toEqual([])
    expect(bridgeSteps('10.5.1.2', '10.5.2.2', 'flannel.1')).toEqual([])
    expect(bridgeSteps('10.5.2.2', '10.5.1.2', 'cni0')).toEqual([])
  })
})

it('names a bridge without the address of the gateway only for packets of the same family', () => {
  const port = {
    ...sound.links[2]!,
    index: 8,
    name: 'veth1',
    type: 'veth',
    master: 7,
    addresses: { ipv4: [], ipv6: [] },
  }
  const bridge = {
    ...soundDual.links[1]!,
    index: 7,
    type: 'bridge',
    addresses: { ipv4: [linkAddress(ip('10.5.1.77'), 24)], ipv6: soundDual.links[1]!.addresses.ipv6 },
  }
  const facts = dual({ links: [soundDual.links[0]!, bridge, port], gateways: [ip('10.5.1.1')] })
  const gateway = (source: string, destination: string, device: string) =>
    only('gateway', stepsOf([source, destination], { route: by(device) }, facts)).map((line) => line.split(':')[0])
  expect(gateway('10.5.1.2', '10.5.2.2', 'flannel.1')).toEqual(['gateway false'])
  expect(gateway(HERE6, THERE6, 'flannel-v6.1')).toEqual([])
})

describe('a wrong route that only some packets take', () => {
  const queries = (rules: readonly PolicyRule[] = []) =>
    routeQueries(soundDual.status, soundDual.links, [1], { ipv4: rules, ipv6: rules })
  /** Returns the kernel's routes of a dual-stack host, on which the lookups that `isWrong` selects lead to ts0. */
  const routes = (isWrong: (query: PeerQuery) => boolean, rules: readonly PolicyRule[] = []): Partial<Facts> => ({
    kernelRoutes: {
      answers: queries(rules).map((each) => {
        const six = each.family === 'ipv6'
        const device = each.direction === 'in' ? 'cni0' : six ? 'flannel-v6.1' : 'flannel.1'
        const route = isWrong(each) ? { ...routeTo('', 'ts0'), table: 52 } : routeTo('', device)
        return { ...each, answer: { route } }
      }),
      rules: { ipv4: rules, ipv6: rules },
    },
  })
  const marks = '*mangle\n-A PREROUTING -i cni0 -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT'
  const wrong = (source: string, destination: string, device: string, facts: Partial<Facts>): string[] =>
    only('route', stepsOf([source, destination], { route: by(device) }, dual(facts))).slice(1)

  it('because of their mark is named only for packets of containers of the same family', () => {
    const markOf = (family: Family) => ({
      ...routes((query) => query.family === family && query.query.mark === 1),
      iptables: marks,
      ip6tables: marks,
    })
    const named = (prefix: string) => [
      expect.stringMatching(new RegExp(`^route false: ${prefix} .* goes to ts0.* because it has the mark 0x1`)),
    ]
    expect(wrong('10.5.1.2', '10.5.2.2', 'flannel.1', markOf('ipv4'))).toEqual(named('10\\.5\\.2\\.0/24'))
    expect(wrong(HERE6, THERE6, 'flannel-v6.1', markOf('ipv6'))).toEqual(named('fd00:5:0:2::/64'))
    expect(wrong('10.5.1.2', '10.5.2.2', 'flannel.1', markOf('ipv6'))).toEqual([])
    expect(wrong(HERE6, THERE6, 'flannel-v6.1', markOf('ipv4'))).toEqual([])
    // The rule does not mark packets of this host.
    expect(wrong('192.0.2.1', '10.5.2.2', 'flannel.1', markOf('ipv4'))).toEqual([])
    expect(wrong('10.5.2.2', '10.5.1.2', 'cni0', markOf('ipv4'))).toEqual([])
  })

  it('because of their protocol or port is named only for their direction and family', () => {
    const rule = policyRule(90, { table: 52, part: { protocol: 17, dport: [53, 53] } })
    const partOf = (family: Family, direction: PeerQuery['direction']) =>
      routes(
        (query) => query.family === family && query.direction === direction && query.query.part !== undefined,
        [rule],
      )
    const named = (prefix: string) => [
      expect.stringMatching(new RegExp(`^route \\?: ${prefix} .* goes to ts0.* for a part of the packets$`)),
    ]
    expect(wrong('10.5.1.2', '10.5.2.2', 'flannel.1', partOf('ipv4', 'out'))).toEqual(named('10\\.5\\.2\\.0/24'))
    expect(wrong('10.5.2.2', '10.5.1.2', 'cni0', partOf('ipv4', 'out'))).toEqual([])
    expect(wrong('10.5.2.2', '10.5.1.2', 'cni0', partOf('ipv4', 'in'))).toEqual(named('from 10\\.5\\.2\\.0/24'))
    expect(wrong('10.5.1.2', '10.5.2.2', 'flannel.1', partOf('ipv4', 'in'))).toEqual([])
    expect(wrong(HERE6, THERE6, 'flannel-v6.1', partOf('ipv6', 'out'))).toEqual(named('fd00:5:0:2::/64'))
    expect(wrong(HERE6, THERE6, 'flannel-v6.1', partOf('ipv4', 'out'))).toEqual([])
    expect(wrong('10.5.1.2', '10.5.2.2', 'flannel.1', partOf('ipv6', 'out'))).toEqual([])
    expect(wrong('192.0.2.1', '10.5.2.2', 'flannel.1', partOf('ipv4', 'out'))).toEqual([])
    expect(wrong('198.51.100.1', '10.5.1.2', 'cni0', partOf('ipv4', 'in'))).toEqual([])
  })
})

it('names rules that change the addresses of datagrams only for a silent peer', () => {
  const nat = (rule: string): Partial<Facts> => ({ iptables: `*nat\n${rule}\nCOMMIT` })
  const silent = { status: { ...status, peers: countPeers([{ ...soundPeer, ...silentSide }], 10) } }
  const named = (source: string, destination: string, facts: Partial<Facts>) =>
    stepsOf([source, destination], { route: by(source === '10.5.1.2' ? 'flannel0' : 'cni0') }, facts).filter((line) =>
      line.includes("the backend's packets"),
    )
  const snat = nat('-A POSTROUTING -o eth0 -j SNAT --to-source 192.0.2.100')
  const redirect = nat('-A PREROUTING -p udp -m udp --dport 8000:9000 -j REDIRECT --to-ports 443')
  expect(named('10.5.1.2', '10.5.2.2', { ...silent, ...snat })).toEqual([
    expect.stringMatching(/^firewall false: OUTPUT: /),
  ])
  expect(named('10.5.1.2', '10.5.2.2', snat)).toEqual([])
  expect(named('10.5.2.2', '10.5.1.2', { ...silent, ...redirect })).toEqual([
    expect.stringMatching(/^firewall false: INPUT: /),
  ])
  expect(named('10.5.2.2', '10.5.1.2', redirect)).toEqual([])
})

it('says that a wrong route to the host of a peer stops packets, unless the peer answers', () => {
  const kernelRoutes = routesBy({ underlay: { device: 'tun7' }, 'from underlay': 'EXDEV' })
  const silent = { status: { ...status, peers: countPeers([{ ...soundPeer, ...silentSide }], 10) } }
  const underlay = (source: string, destination: string, facts: Partial<Facts>) =>
    only(
      'underlay',
      stepsOf(
        [source, destination],
        { route: by(source === '10.5.1.2' ? 'flannel0' : 'cni0') },
        { ...facts, kernelRoutes },
      ),
    )
  expect(underlay('10.5.1.2', '10.5.2.2', silent)).toEqual([
    expect.stringMatching(/^underlay false: packets to 192\.0\.2\.2 /),
  ])
  expect(underlay('10.5.2.2', '10.5.1.2', silent)).toEqual([
    expect.stringMatching(/^underlay false: packets from 192\.0\.2\.2 /),
  ])
  expect(underlay('10.5.1.2', '10.5.2.2', {})).toEqual([])
  expect(underlay('10.5.2.2', '10.5.1.2', {})).toEqual([])
})
