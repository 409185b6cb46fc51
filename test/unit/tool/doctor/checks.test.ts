// checks.test.ts - each check finds exactly the faults of a host: none on a sound host. docs/findings-*.md have every finding.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../../../lab/lab.ts'
import type { PacketPart } from '../../../../src/host/kernel.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'
import {
  countPeers,
  startingReport,
  type PeerStatus,
  type SessionStatus,
  type Status,
} from '../../../../src/report/status.ts'
import { CHECKS, diagnose, diagnoseStatus } from '../../../../src/tool/doctor/checks.ts'
import type { Facts, Reach } from '../../../../src/tool/doctor/facts.ts'
import { FINDINGS, grouped, type FindingName } from '../../../../src/tool/doctor/findings.ts'
import { routeQueries } from '../../../../src/tool/doctor/route-queries.ts'
import { pathLinks } from '../../../../src/tool/doctor/sides.ts'
import type { Answers } from '../../../../src/tool/doctor/sides.ts'
import {
  dualPeer,
  link,
  linkAddress,
  peerOfIpv6,
  route,
  silentSide,
  sound,
  soundDual,
  soundIpv6,
  soundNow,
  soundPeer,
  soundStatus,
} from '../../../support/facts.ts'
import { blockPolicy } from '../../../support/ipsec-policy.ts'
import { policyRule, routesBy } from '../../../support/kernel-routes.ts'
import { beginningWith } from '../../../support/snapshot.ts'

const NOW = soundNow
const peer = soundPeer
const status = soundStatus
const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })
/** A data path that dropped these packets in the last minute, of this number of packets. */
const losing = (drops: Readonly<Record<string, number>>, packets = 18): Partial<Facts> =>
  withStatus({ dataPath: { ...status.dataPath!, drops, recent: { seconds: 64.3, packets, drops } } })
const counting = (counters: Readonly<Record<string, number>>): Partial<Facts> =>
  withStatus({ dataPath: { ...status.dataPath!, counters: { ...status.dataPath!.counters, ...counters } } })
const OFF = { isActive: false, reason: 'VerifySource is "off"', promoted: 0, takenBack: 0, lastTakenBack: null }
const withFastPath = withStatus({ dataPath: { ...status.dataPath!, fastPath: OFF } })
/** A ruleset in the format of `nft list ruleset`. */
const nft = (hook: string, rule: string): string =>
  `table inet mine {\n\tchain c {\n\t\ttype filter hook ${hook} priority filter; policy drop;\n\t\t${rule}\n\t}\n}\n`
/** The facts of a node with the backend host-gw, apart from its routes. */
const hostGw = (changed: Partial<Status> = {}): Partial<Facts> => ({
  ...withStatus({
    config: { ...status.config!, backendType: 'host-gw' },
    dataPath: {
      ...status.dataPath!,
      device: null,
      devices: { ipv4: null, ipv6: null },
      engine: 'kernel',
      mtu: 1500,
    },
    ...changed,
  }),
  subnetEnv: { FLANNEL_SUBNET: '10.5.1.1/24', FLANNEL_MTU: '1500' },
})
const withPeers = (...list: Partial<PeerStatus>[]): Partial<Facts> => ({
  ...withStatus({
    peers: countPeers(
      list.map((one) => ({ ...peer, ...one })),
      10,
    ),
  }),
  answers: new Map(),
})
const withDual = (...list: PeerStatus[]): Partial<Facts> => ({
  ...soundDual,
  status: { ...soundDual.status, peers: countPeers(list, 10) },
  answers: new Map(),
})
const withIpv6 = (part: Partial<Status>): Partial<Facts> => ({
  ...soundIpv6,
  status: { ...soundIpv6.status!, ...part },
  answers: new Map(),
})
const dualAnswers = (ipv4: Answers, ipv6: Answers): Facts['answers'] => new Map([[dualPeer().lease, { ipv4, ipv6 }]])
const ofIpv6 = (name: string, mtu: number, address: string) => ({
  ...link(name, mtu, '172.31.0.1'),
  addresses: { ipv4: [], ipv6: [linkAddress(parseIpv6(address)!, 64)] },
})
const found = (part: Partial<Facts>): FindingName[] =>
  diagnose({ ...sound, ...part }).flatMap(({ findings = [] }) => findings.map(({ name }) => name))

/** A peer that has a WireGuard session without keys, and no other known state. */
const withSession = (known: Partial<SessionStatus>, side: Partial<PeerStatus> = {}): Partial<Facts> =>
  withPeers({ state: 'programmed', lossPercent: null, session: { ...noKeys, ...known }, ...side })
const noKeys: SessionStatus = {
  publicKey: 'of-the-peer',
  handshakeSecondsAgo: null,
  ageSeconds: null,
  attempts: 0,
  failure: null,
  stale: 0,
  unconfirmed: 0,
  txBytes: 0,
  rxBytes: 0,
}
const withUnknown = (endpoint: string, secondsAgo: number): Partial<Facts> =>
  withStatus({ dataPath: { ...status.dataPath!, unknownKeys: [{ publicKey: 'of-nobody', endpoint, secondsAgo }] } })

/** A host whose bridge cni0 has the address of an earlier network. */
const staleCni = { links: [...sound.links.filter(({ name }) => name !== 'cni0'), link('cni0', 1472, '10.244.3.1')] }

/** The links of a host with a container at its bridge cni0. */
const bridgedLinks = [
  ...sound.links.filter(({ name }) => name !== 'cni0'),
  { ...link('cni0', 1472, '10.5.1.1'), index: 7, type: 'bridge' },
  { ...link('veth1', 1472, '0.0.0.0'), index: 8, master: 7, addresses: { ipv4: [], ipv6: [] } },
]

/** Makes cni0 a bridge with a container. `isWithoutIpv6` takes the IPv6 address from the bridge. */
const withPort = (links: Facts['links'], isWithoutIpv6 = false): Facts['links'] => [
  ...links.map((one) => {
    if (one.name !== 'cni0') return one
    const { addresses } = one
    return { ...one, index: 7, type: 'bridge', addresses: isWithoutIpv6 ? { ...addresses, ipv6: [] } : addresses }
  }),
  { ...link('veth1', 1472, '0.0.0.0'), index: 8, master: 7, type: 'veth', addresses: { ipv4: [], ipv6: [] } },
]
/** The links of a host whose bridge cni0 with a container has no address, or another address than its own. */
const unaddressed = (address?: string): Facts['links'] =>
  withPort(sound.links).map((one) => {
    if (one.name !== 'cni0') return one
    return {
      ...one,
      addresses: { ipv4: address === undefined ? [] : [linkAddress(parseIpv4(address)!, 24)], ipv6: [] },
    }
  })

/** A policy of another program that blocks all packets which the host forwards. */
const policy = blockPolicy('fwd', '0.0.0.0/0', '0.0.0.0/0')
const blocking = { policies: [policy], states: [], blockedByDefault: [], hasKeyDaemon: true, exempt: [] }
const unkeyed = {
  policies: [
    {
      ...policy,
      isBlock: false,
      templates: [
        { family: 'ipv4', source: 1, destination: 2, protocol: 50, requestId: 1, mode: 1, isOptional: false } as const,
      ],
    },
  ],
}

/** The answers of a peer's bridge to the bridge of this node, and to this host. */
const bridgeAnswer = (isBridgeAnswered: boolean, isHostAnswered: boolean) => {
  const [to, fromBridge, fromHost] = ['10.5.2.1', '10.5.1.1', '192.0.2.1'].map((text) => parseIpv4(text)!)
  const probe = { family: 'ipv4', lease: '10.5.2.0-24', to: to!, fromBridge: fromBridge!, fromHost: fromHost! } as const
  return { ...probe, isBridgeAnswered, isHostAnswered }
}

/** A path that carries only shorter packets than containers send. */
const narrow = { path: 'narrow', passesBytes: 1252, pathSince: '2026-11-22T09:00:00Z' } as const

describe('the doctor', () => {
  it('finds nothing on a healthy host, and can make all checks', () => {
    for (const facts of [sound, soundDual, soundIpv6])
      expect(diagnose(facts)).toEqual(CHECKS.map(({ name }) => ({ check: name, findings: [] })))
  })

  it.each<[string, Partial<Facts>]>([
    ['host-gw', { ...hostGw(), routes: [route('10.5.2.0/24', 'eth0', '192.0.2.2')] }],
    [
      'a route past the tunnel to a peer that is routed to',
      { ...withPeers({ way: 'direct' }), routes: [...sound.routes, route('10.5.2.0/24', 'eth0', '192.0.2.2')] },
    ],
    ['a blackhole for its own subnet', { routes: [...sound.routes, route('10.5.1.0/24', '')] }],
    ['a bridge cni0 of another network, which another program may have made', staleCni],
    ['containers at the bridge to which their packets go', { links: bridgedLinks }],
    [
      'containers whose gateway is at their bridge',
      { links: withPort(sound.links), gateways: [parseIpv4('10.5.1.1')!] },
    ],
    ['containers whose gateway is a container', { links: withPort(sound.links), gateways: [parseIpv4('10.5.1.9')!] }],
    ['containers of another network', { links: withPort(sound.links), gateways: [parseIpv4('10.9.1.1')!] }],
    [
      'a bridge without an address to which an operator routes the subnet, with proxy ARP',
      { links: unaddressed(), gateways: [parseIpv4('10.5.1.1')!] },
    ],
    [
      'an isolated network of Docker, beside containers without a bridge',
      {
        links: unaddressed().map((one) => (one.name === 'cni0' ? { ...one, name: 'br-1234' } : one)),
        routes: [route('10.5.0.0/16', 'flannel0')],
      },
    ],
    ['a dual-stack bridge whose containers use IPv4 alone', { ...soundDual, links: withPort(soundDual.links, true) }],
    [
      'a second bridge without containers, which gets no packets',
      {
        links: [...bridgedLinks, { ...link('docker1', 1472, '10.5.1.1'), index: 9, type: 'bridge' }],
        routes: [...sound.routes, route('10.5.1.0/24', 'docker1')],
      },
    ],
    ["Docker's own bridge", { links: [...sound.links, link('docker1', 1500, '10.6.0.1')] }],
    [
      'what its log says of another host with its address, which is over',
      withStatus({
        events: [
          { at: '', level: 'error', text: "Another host uses this node's public IP 192.0.2.1 too: b. Both hold" },
        ],
      }),
    ],
    [
      'a network of both families without a data path',
      { ...soundDual, status: { ...soundDual.status, dataPath: null }, answers: new Map() },
    ],
    [
      'host-gw of both families, which puts nothing around a packet',
      {
        ...soundDual,
        status: {
          ...soundDual.status,
          config: { ...soundDual.status.config, backendType: 'host-gw' },
          dataPath: {
            ...soundDual.status.dataPath,
            device: null,
            devices: { ipv4: null, ipv6: null },
            mtu: 1500,
          },
        },
        routes: [
          route('10.5.2.0/24', 'eth0', '192.0.2.2'),
          { ...route('fd00:5:0:2::/64', 'eth0', '2001:db8::2'), metric: 1024 },
        ],
        subnetEnv: { ...soundDual.subnetEnv, FLANNEL_MTU: '1500' },
      },
    ],
    ['a host without default routes', { ...soundDual, defaultRoutes: { ipv4: false, ipv6: false } }],
    [
      'a route of IPv6 that comes after ours',
      { ...soundDual, routes: [...soundDual.routes, { ...route('fd00:5::/48', 'eth1'), metric: 2048 }] },
    ],
    [
      'a route to a peer of IPv6 past the tunnel, to which the data path routes',
      {
        ...withDual(dualPeer({}, { way: 'direct' })),
        routes: [...soundDual.routes, { ...route('fd00:5:0:2::/64', 'eth0', '2001:db8::2'), metric: 1024 }],
      },
    ],
    ['a peer of IPv4 alone', withDual(soundPeer)],
    ['a reservation', withStatus({ lease: { ...status.lease!, expiresAt: null } })],
    [
      'peers that are not asked yet',
      withPeers({ state: 'programmed', lossPercent: null, roundTripMs: null, probedSecondsAgo: null }),
    ],
    ['a few drops', losing({ rx_drop_spoofed_source: 3, tx_drop_no_route: 9_999 })],
    [
      'a firewall whose states it cannot know',
      { iptables: '-P INPUT DROP\n-A INPUT -m conntrack --ctstate NEW -j ACCEPT' },
    ],
    [
      'a firewall of nftables that lets in what answers',
      { nft: nft('input', 'udp dport 8285 accept; meta l4proto icmp accept') },
    ],
    ['a firewall of nftables that names the network', { nft: nft('forward', 'ip saddr 10.5.0.0/16 accept') }],
    [
      'a firewall of nftables that names the device',
      { nft: nft('forward', 'iifname "flannel0" accept; oifname "flannel0" accept') },
    ],
    [
      "iptables' own tables in nft",
      { nft: 'table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n' },
    ],
  ])('finds nothing wrong with %s', (_name, part) => {
    expect(found(part)).toEqual([])
  })

  it('reports only the family if subnet.env omits a family that the data path cannot carry', () => {
    const dataPath = { ...soundDual.status.dataPath, lacking: { ipv4: null, ipv6: 'the MTU is too small' } }
    const subnetEnv = { ...soundDual.subnetEnv, FLANNEL_IPV6_SUBNET: undefined }
    expect(found({ ...soundDual, status: { ...soundDual.status, dataPath }, subnetEnv })).toEqual(['family-down'])
  })

  it.each<[FindingName, Partial<Facts>]>([
    ['daemon-silent', { status: undefined, silence: 'nobody' }],
    [
      'daemon-waits',
      withStatus({
        state: 'starting',
        trouble: 'waiting for a lease',
        node: null,
        config: null,
        lease: null,
        dataPath: null,
        peers: null,
      }),
    ],
    [
      'data-path-down',
      withStatus({ dataPath: { ...status.dataPath!, threads: [{ name: 'weft-loop0', hungSeconds: 12 }] } }),
    ],
    [
      'daemon-as-known',
      withStatus({
        state: 'forwarding',
        trouble: 'waiting for the network configuration',
        node: null,
        config: null,
        lease: null,
        peers: null,
      }),
    ],
    ['daemon-leaves', withStatus({ state: 'leaving', trouble: 'it stops' })],
    [
      'data-path-down',
      withStatus({
        state: 'impaired',
        impairments: [{ by: 'path', what: 'the data path cannot be checked or repaired' }],
      }),
    ],
    [
      'rules-failing',
      withStatus({ state: 'impaired', impairments: [{ by: 'rules', what: 'iptables: no such table' }] }),
    ],
    ['data-path-down', withStatus({ dataPath: { ...status.dataPath!, open: false, mtu: null } })],
    ['not-root', { isRoot: false }],
    ['not-root', { isRoot: false, status: undefined, isForbidden: true }],
    ['capability-missing', { lacksNetAdmin: true, ...withStatus({ dataPath: null }) }],
    ['tun-missing', { tunProblem: 'ENOENT' }],
    ['tun-forbidden', { tunProblem: 'EPERM' }],
    ['forwarding-off', { isForwarding: false }],
    ['forwarding-off-ipv6', { ...soundDual, isForwardingIpv6: false }],
    ['forwarding-off-ipv6', { ...soundIpv6, isForwardingIpv6: false }],
    [
      'family-not-carried',
      {
        ...withStatus({ config: { ...status.config!, ipv6Network: 'fd00:5::/48' }, node: soundDual.status.node }),
        subnetEnv: { ...sound.subnetEnv, FLANNEL_IPV6_SUBNET: 'fd00:5:0:1::1/64' },
      },
    ],
    [
      'family-down',
      {
        ...soundDual,
        status: {
          ...soundDual.status,
          state: 'impaired',
          trouble: 'IPv6 is not carried: no device',
          peers: countPeers([], 10),
          dataPath: { ...soundDual.status.dataPath, lacking: { ipv4: null, ipv6: 'no device' } },
        },
      },
    ],
    [
      'address-gone',
      withStatus({
        dataPath: { ...status.dataPath!, addressGone: { ipv4: 'eth0 has lost its address 192.0.2.1', ipv6: null } },
      }),
    ],
    ['no-default-route', { ...soundDual, defaultRoutes: { ipv4: true, ipv6: false } }],
    ['no-default-route', { ...soundDual, defaultRoutes: { ipv4: false, ipv6: true } }],
    ['family-broken', withDual(dualPeer({}, silentSide))],
    ['family-broken', withDual(dualPeer({ state: 'stored' }))],
    [
      'family-broken',
      { ...soundDual, answers: dualAnswers({ small: true, large: true }, { small: false, large: false }) },
    ],
    ['peer-silent', withDual(dualPeer(silentSide, silentSide))],
    ['peer-silent', withIpv6({ peers: countPeers([peerOfIpv6(silentSide)], 10) })],
    ['peer-lossy', withDual(dualPeer({}, { lossPercent: 30 }))],
    ['path-mtu', { ...soundDual, answers: dualAnswers({ small: true, large: true }, { small: true, large: false }) }],
    ['mtu-too-large', { ...soundDual, links: [link('eth0', 1499, '192.0.2.1')] }],
    ['bridge-mtu', { ...soundDual, links: [...soundDual.links, ofIpv6('docker1', 1500, 'fd00:5:0:1::5')] }],
    ['bridge-elsewhere', { ...soundIpv6, links: [...soundIpv6.links, ofIpv6('docker1', 1430, 'fd00:5:0:9::1')] }],
    ['subnet-env-wrong', { ...soundDual, subnetEnv: { ...soundDual.subnetEnv, FLANNEL_IPV6_SUBNET: undefined } }],
    ['subnet-env-wrong', { ...soundIpv6, subnetEnv: undefined }],
    [
      'foreign-route',
      { ...soundDual, routes: [...soundDual.routes, { ...route('fd00:5:0:2::/64', 'eth1'), metric: 512 }] },
    ],
    ['no-route', { ...soundIpv6, routes: [] }],
    ['subnet-twice', withDual({ ...dualPeer(), ipv6Subnet: 'fd00:5:0:1::/64' })],
    ['address-twice', withDual({ ...dualPeer(), publicIpv6: '2001:db8::1' })],
    ['forward-dropped', { iptables: '-P FORWARD DROP\n-A FORWARD -s 10.5.1.0/24 -j ACCEPT' }],
    [
      'rules-missing',
      { ...soundDual, iptables: '-P FORWARD ACCEPT\n-A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment x -j ACCEPT' },
    ],
    ['port-dropped', { iptables: '-A INPUT -i eth0 -p udp -m udp --dport 8285 -j REJECT' }],
    ['forward-dropped', { nft: nft('forward', 'ip saddr 10.9.0.0/16 accept') }],
    ['nft-drops', { nft: nft('forward', 'meta mark 0x00000001 accept') }],
    ['iptables-drops', { iptables: '-P FORWARD DROP\n-A FORWARD -m set --match-set pods src -j ACCEPT' }],
    ['packets-diverted', { iptables: '*nat\n-A PREROUTING -d 10.5.0.0/16 -j REDIRECT\nCOMMIT' }],
    ['hops-too-few', { iptables: '*mangle\n-A PREROUTING -i cni0 -j TTL --ttl-set 1\nCOMMIT' }],
    ['source-changed', { iptables: '*nat\n-A POSTROUTING -o flannel0 -j MASQUERADE\nCOMMIT' }],
    [
      'source-refused',
      {
        ...withStatus({
          config: { ...status.config!, backendType: 'wireguard' },
          dataPath: { ...status.dataPath!, mtu: 1420 },
        }),
        links: [link('eth0', 1500, '192.0.2.1'), link('cni0', 1420, '10.5.1.1')],
        subnetEnv: { ...sound.subnetEnv, FLANNEL_MTU: '1420' },
        iptables: '*nat\n-A POSTROUTING -o flannel0 -j SNAT --to-source 192.0.2.1\nCOMMIT',
      },
    ],
    ['rule-unjudged', { iptables: '*filter\n[9:540] -A FORWARD -m u32 --u32 "0x0=0x1" -j DROP\nCOMMIT' }],
    ['discovery-dropped', { ...soundDual, ip6tables: '-A INPUT -i cni0 -p ipv6-icmp -j DROP' }],
    [
      'datagrams-changed',
      {
        iptables: '*nat\n-A PREROUTING -p udp -m udp --dport 8000:9000 -j REDIRECT --to-ports 443\nCOMMIT',
        ...withStatus({ peers: countPeers([{ ...soundPeer, state: 'programmed', lossPercent: null }], 10) }),
        answers: new Map(),
      },
    ],
    ['probes-dropped', { nft: nft('input', 'udp dport 8285 accept') }],
    ['foreign-route', { routes: [...sound.routes, route('10.5.2.0/24', 'eth1', '192.0.2.254')] }],
    ['foreign-route', { routes: [...sound.routes, route('10.5.0.0/16', 'tun9')] }],
    ['foreign-route', { routes: [...sound.routes, route('10.5.2.0/24', 'eth0', '192.0.2.2')] }],
    ['foreign-route', { routes: [...sound.routes, route('10.5.1.0/24', 'eth0', '192.0.2.2')] }],
    [
      'path-bypassed',
      withStatus({
        state: 'impaired',
        impairments: [{ by: 'bypass', what: 'packets to other nodes leave unencrypted' }],
      }),
    ],
    ['peers-without-keys', counting({ peers_without_keys: 2 })],
    ['route-unpublished', counting({ route_missing: 1 })],
    ['route-table-full', counting({ table_routes: 46, table_limit: 50 })],
    ['fast-path-off', withFastPath],
    ['no-route', { routes: [route('10.5.1.0/24', 'cni0')] }],
    [
      'policy-route',
      { kernelRoutes: routesBy({ host: { device: 'ts0', table: 52 }, out: { device: 'ts0', table: 52 } }) },
    ],
    ['route-refused', { kernelRoutes: routesBy({ out: 'EACCES' }) }],
    ['tracking-full', { tracking: { entries: 63_000, limit: 65_536 } }],
    ['interface-forwarding-off', { unforwarded: ['cni0'] }],
    ['neighbours-full', { neighbours: [{ family: 'ipv4', entries: 1000, thresholds: [128, 512, 1024] }] }],
    ['neighbours-many', { neighbours: [{ family: 'ipv6', entries: 600, thresholds: [128, 512, 1024] }] }],
    [
      'unknown-senders',
      {
        status: {
          ...losing({ rx_drop_unknown_sender: 40 }).status!,
          store: { ...status.store, name: 'directory' },
        },
      },
    ],
    [
      'source-outside',
      {
        ...losing({ rx_drop_unknown_sender: 40 }),
        status: {
          ...losing({ rx_drop_unknown_sender: 40 }).status!,
          config: { ...status.config!, backendType: 'wireguard' },
        },
        links: [link('eth0', 1600, '192.0.2.1'), link('cni0', 1472, '10.5.1.1')],
      },
    ],
    [
      'marked-route',
      {
        iptables: '*mangle\n-A PREROUTING -m set --match-set some src -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT',
        kernelRoutes: routesBy({ marked: { device: 'eth0', gateway: '192.0.2.9', table: 100 } }),
      },
    ],
    ['store-away', withStatus({ store: { ...status.store, reachable: false } })],
    ['store-stale', withStatus({ store: { ...status.store, comparedSecondsAgo: 200 } })],
    ['lease-unrenewed', withStatus({ lease: { ...status.lease!, unrenewed: 'permission denied' } })],
    ['peers-held', withStatus({ store: { ...status.store, held: 3 } })],
    ['config-missing', withStatus({ store: { ...status.store, configGone: true } })],
    ['config-missing', withStatus({ store: { ...status.store, configGone: true, configDiffers: true } })],
    ['config-missing', { store: { invalid: 'none defined stack' } }],
    ['clock-off', { storeAheadMs: -3_600_000 }],
    ['clock-off', { now: NOW - 7_200_000 }],
    ['clock-off', { now: NOW + 86_400_000 }],
    ['subnet-twice', withPeers({ subnet: '10.5.1.128/25' })],
    ['address-twice', withPeers({ publicIp: '192.0.2.1', state: 'stored' })],
    ['address-twice', withStatus({ node: { ...status.node!, twin: 'b' } })],
    ['peer-unusable', withPeers({ state: 'stored', type: 'vxlan' })],
    ['peer-silent', withPeers({ state: 'programmed', lossPercent: 100 })],
    ['peer-silent', { answers: new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]]) }],
    ['bridge-filter-off', withStatus({ store: { ...status.store, name: 'kubernetes' } })],
    [
      'config-differs',
      { ...withPeers({ type: 'vxlan' }), store: { config: { ...status.config!, backendType: 'vxlan' } } },
    ],
    ['config-differs', { store: { config: { ...status.config!, network: '10.4.0.0/15' } } }],
    ['config-differs', { store: { config: { ...status.config!, ipv6Network: 'fd00:5::/48' } } }],
    ['config-differs', { store: { config: { ...status.config!, backend: { port: 9000 } } } }],
    ['config-differs', withStatus({ store: { ...status.store, configDiffers: true } })],
    ['peer-lossy', withPeers({ lossPercent: 30 })],
    [
      'peers-unasked',
      {
        ...withStatus({ peers: countPeers([{ ...peer, state: 'programmed', lossPercent: null }], null) }),
        answers: new Map(),
        whyUnprobed: 'not allowed',
      },
    ],
    ['path-mtu', { answers: new Map([['10.5.2.0-24', { ipv4: { small: true, large: false } }]]) }],
    ['mtu-too-large', { links: [link('eth0', 1400, '192.0.2.1')] }],
    ['mtu-shrunk', withStatus({ dataPath: { ...status.dataPath!, mtuAtStart: 1500 } })],
    ['bridge-mtu', { links: [...sound.links, link('docker1', 1500, '10.5.1.1')] }],
    ['bridge-elsewhere', { links: [...sound.links, link('docker1', 1472, '10.5.9.1')] }],
    [
      'bridge-elsewhere',
      { ...staleCni, ...withStatus({ store: { ...status.store, name: 'kubernetes' } }), bridgeFilter: '1' },
    ],
    ['bridge-unrouted', { links: bridgedLinks, routes: [route('10.5.0.0/16', 'flannel0')] }],
    [
      'bridge-unrouted',
      {
        links: [...bridgedLinks, { ...link('docker1', 1472, '10.5.1.1'), index: 9, type: 'bridge' }],
        routes: [route('10.5.0.0/16', 'flannel0'), route('10.5.1.0/24', 'docker1'), route('10.5.1.0/24', 'cni0')],
      },
    ],
    ['bridge-unaddressed', { links: unaddressed(), routes: [route('10.5.0.0/16', 'flannel0')] }],
    [
      'bridge-unaddressed',
      {
        links: unaddressed().map((one) => (one.name === 'cni0' ? { ...one, name: 'mine' } : one)),
        routes: [route('10.5.0.0/16', 'flannel0')],
        gateways: [parseIpv4('10.5.1.1')!],
      },
    ],
    ['bridge-unaddressed', { links: unaddressed('10.5.1.77'), gateways: [parseIpv4('10.5.1.1')!] }],
    [
      'bridge-unaddressed',
      {
        ...soundDual,
        links: withPort(soundDual.links, true),
        routes: soundDual.routes.filter(({ destination }) => destination !== 'fd00:5:0:1::/64'),
        gateways: [parseIpv6('fd00:5:0:1::1')!],
      },
    ],
    [
      'ipv6-disabled',
      {
        ...soundDual,
        links: withPort(soundDual.links, true),
        routes: soundDual.routes.filter(({ destination }) => destination !== 'fd00:5:0:1::/64'),
        gateways: [parseIpv6('fd00:5:0:1::1')!],
        withoutIpv6: ['cni0', 'docker0'],
      },
    ],
    ['ipv6-disabled', { ...soundDual, withoutIpv6: ['eth0'] }],
    ['ipv6-disabled', { ...soundDual, withoutIpv6: ['flannel-v6.1'] }],
    [
      'source-unanswered',
      { ...hostGw(), routes: [route('10.5.2.0/24', 'eth0', '192.0.2.2')], bridgeAnswers: [bridgeAnswer(false, true)] },
    ],
    ['ipsec-blocked', { ipsec: blocking }],
    ['ipsec-blocked', { ipsec: blocking, nft: undefined, iptables: undefined }],
    ['ipsec-unkeyed', { ipsec: { ...blocking, ...unkeyed } }],
    ['subnet-env-wrong', { subnetEnv: undefined }],
    ['subnet-env-wrong', { subnetEnv: { ...sound.subnetEnv, FLANNEL_SUBNET: '10.5.9.1/24' } }],
    ['subnet-env-wrong', { subnetEnv: { ...sound.subnetEnv, FLANNEL_MTU: '1500' } }],
    ['packets-dropped', losing({ rx_drop_socket_full: 500 })],
    ['packets-dropped', losing({ tx_drop_queue_full: 500 })],
    ['no-handshake', withSession({ attempts: 2, failure: 'no-answer' })],
    ['no-handshake', withSession({ attempts: 9, failure: 'no-answer', unconfirmed: 1, stale: 1 })],
    ['handshake-one-way', withSession({ attempts: 9, failure: 'no-answer', unconfirmed: 2 })],
    ['psk-differs', withSession({ attempts: 2, failure: 'not-authentic', unconfirmed: 9 })],
    ['clock-behind', withSession({ attempts: 9, failure: 'no-answer', stale: 2 })],
    ['key-unusable', withSession({ failure: 'bad-key' })],
    ['key-unknown', withUnknown('192.0.2.77:51820', 3)],
  ])('finds %s and nothing else', (name, part) => {
    expect(found(part)).toEqual([name])
  })

  it('names remedies for a full buffer that help on every host, and separate remedies for damaged datagrams', () => {
    const { fix } = FINDINGS['packets-dropped']
    expect(fix).toMatch(/tx_drop_queue_full and rx_drop_socket_full, .*CPU time.*`--workers`/)
    expect(fix).toMatch(/UdpInCsumErrors .*damaged datagrams/)
    expect(fix).not.toContain('rmem_max') // weftd gets its buffer in spite of this limit
  })

  it('names the subnet that subnet.env lacks', () => {
    const details = (part: Partial<Facts>) =>
      diagnose({ ...soundDual, ...part }).flatMap(({ findings = [] }) =>
        findings.map(({ name, detail }) => `${name}: ${detail}`),
      )
    const [four, six] = ['FLANNEL_SUBNET', 'FLANNEL_IPV6_SUBNET'].map((name) =>
      details({ subnetEnv: { ...soundDual.subnetEnv, [name]: undefined } }),
    )
    expect([four, six]).toEqual([
      ['subnet-env-wrong: /run/flannel/subnet.env says no subnet, but this node has 10.5.1.0/24'],
      ['subnet-env-wrong: /run/flannel/subnet.env says no IPv6 subnet, but this node has fd00:5:0:1::/64'],
    ])
  })

  it('names programs on the way of packets only if packets are lost', () => {
    const programs = [{ device: 'eth0', what: 'an XDP program' }]
    const details = (part: Partial<Facts>) =>
      diagnose({ ...sound, programs, ...part })
        .flatMap(({ findings = [] }) => findings)
        .flatMap(({ name, detail }) => (name === 'program-on-path' ? [detail] : []))
    const named = ['eth0: an XDP program']
    expect(details({})).toEqual([])
    expect(details(withPeers({ lossPercent: 20 }))).toEqual(named)
    expect(found({ programs, ...withPeers({ lossPercent: 20 }) })).toEqual(['program-on-path', 'peer-lossy'])
    expect(details({ ...withPeers(silentSide), answers: new Map() })).toEqual(named)
    expect(details({ answers: new Map([['10.5.2.0-24', { ipv4: { small: true, large: false } }]]) })).toEqual(named)
    expect(details({ bridgeAnswers: [bridgeAnswer(false, true)] })).toEqual(named)
    expect(details({ ...withPeers({ state: 'stored', lossPercent: 100 }), answers: new Map() })).toEqual([])
    // A peer without containers has no bridge.
    expect(details({ bridgeAnswers: [bridgeAnswer(true, true), bridgeAnswer(false, false)] })).toEqual([])
    // One of two peers is off: programs of Cilium or of a cloud's agent are not the cause.
    const second = { ...peer, ...silentSide, lease: '10.5.3.0-24', subnet: '10.5.3.0/24', publicIp: '192.0.2.3' }
    const [one, other] = [withStatus({ peers: countPeers([peer, second], 10) }), withPeers({ lossPercent: 20 })]
    const reach = (known: Partial<Reach>): Facts['reaches'] =>
      new Map([[second.lease, { port: undefined, portNumber: 8285, isPinged: false, isOffLink: false, ...known }]])
    expect(details(one)).toEqual([])
    expect(details({ ...one, reaches: reach({}) })).toEqual([])
    expect(details({ ...one, reaches: reach({ isPinged: true, port: 'refused' }) })).toEqual([])
    expect(details({ ...one, reaches: reach({ isPinged: true }) })).toEqual(named)
    expect(details({ ...one, reaches: reach({}), ...other })).toEqual(named)
    const alone = withStatus({ peers: countPeers([second], 10) })
    expect(details({ ...alone, reaches: reach({}) })).toEqual(named)
    expect(details({ ...alone, reaches: reach({ port: 'refused' }) })).toEqual([])
    // No peer answers over IPv6.
    expect(details(withDual(dualPeer({}, silentSide)))).toEqual(named)
    const third = { ...dualPeer({}, silentSide), lease: '10.5.3.0-24', subnet: '10.5.3.0/24' }
    expect(details(withDual(dualPeer(), third))).toEqual([])
    expect(details({ ...withPeers(silentSide), answers: new Map(), programs: [] })).toEqual([])
    const { links } = soundDual
    expect(pathLinks(soundDual.status, links).map(({ name }) => name)).toEqual(['eth0', 'cni0'])
  })

  it('refers to the finding that explains why a peer is reached over one family alone', () => {
    const broken = (part: Partial<Facts>, [side4, side6]: readonly [object, object] = [{}, silentSide]) =>
      diagnose({ ...soundDual, ...withDual(dualPeer(side4, side6)), ...part })
        .flatMap(({ findings = [] }) => findings)
        .filter(({ name }) => name === 'family-broken')
        .map(({ detail, fix }) => `${detail.replace(/^.*: over/, 'over')}: ${fix}`)
    const refersTo = (cause: string) => [
      `over IPv6 it does not answer: see \`${cause}\`: first remove the fault that \`${cause}\` names`,
    ]
    expect(broken({})).toEqual(['over IPv6 it does not answer: undefined'])
    expect(broken({ withoutIpv6: ['eth0'] })).toEqual(refersTo('ipv6-disabled'))
    expect(broken({ withoutIpv6: ['flannel-v6.1'] })).toEqual(refersTo('ipv6-disabled'))
    const [drop, drop4] = ['-A INPUT -p udp --dport 8472 -j DROP', '-A INPUT -p icmp -j DROP'].map(
      (rule) => `-P INPUT ACCEPT\n${rule}`,
    )
    expect(broken({ ip6tables: drop })).toEqual(refersTo('port-dropped'))
    expect(broken({ iptables: drop })).toEqual(['over IPv6 it does not answer: undefined'])
    expect(broken({ ip6tables: '-P INPUT ACCEPT\n-A INPUT -p ipv6-icmp -j DROP' })).toEqual(refersTo('probes-dropped'))
    expect(broken({ iptables: drop4 }, [silentSide, {}])).toEqual([
      'over IPv4 it does not answer: see `probes-dropped`: first remove the fault that `probes-dropped` names',
    ])
    expect(broken({ routes: soundDual.routes.filter(({ destination }) => destination !== 'fd00:5:0:2::/64') })).toEqual(
      refersTo('no-route'),
    )
    expect(broken({ routes: soundDual.routes.filter(({ destination }) => destination !== '10.5.2.0/24') })).toEqual([
      'over IPv6 it does not answer: undefined',
    ])
    // A rule for a part of the packets is the cause only if the probes (ICMPv6) are such packets.
    const byPart = (part: PacketPart): Partial<Facts> => {
      const query = routeQueries(soundDual.status, soundDual.links, []).find(({ family }) => family === 'ipv6')
      const answer = { refused: 'no route', errno: 'EINVAL' }
      const { protocol, dport } = part
      const rule = policyRule(90, {
        table: 7,
        part: { ...(protocol ? { protocol } : {}), ...(dport ? { dport: [dport, dport] } : {}) },
      })
      return {
        kernelRoutes: {
          answers: [{ ...query!, query: { ...query!.query, part }, answer }],
          rules: { ipv6: [rule] },
        },
      }
    }
    expect(broken(byPart({ protocol: 6, dport: 53 }))).toEqual(['over IPv6 it does not answer: undefined'])
    expect(broken(byPart({ protocol: 58 }))).toEqual(refersTo('route-refused'))
    const { status: of } = soundDual
    const peers = countPeers([dualPeer({}, silentSide)], 10)
    const lacking = { ipv4: null, ipv6: 'no device' }
    expect(broken({ status: { ...of, peers, dataPath: { ...of.dataPath, lacking } } })).toEqual(refersTo('family-down'))
    const addressGone = { ipv4: null, ipv6: 'gone' }
    expect(broken({ status: { ...of, peers, dataPath: { ...of.dataPath, addressGone } } })).toEqual(
      refersTo('address-gone'),
    )
    // A lease that this node cannot use has another cause.
    expect(broken({ withoutIpv6: ['eth0'] }, [{}, { state: 'stored' }])).toEqual([
      'over IPv6 this node cannot use its lease: undefined',
    ])
  })

  it('judges the routes of 100 half-silent peers about once for each peer', () => {
    const peers = Array.from({ length: 100 }, (_none, at) => ({
      ...dualPeer({}, silentSide),
      lease: `lease ${at}`,
      ipv6Subnet: `fd00:5:0:${(at + 2).toString(16)}::/64`,
    }))
    let reads = 0
    const kernelRoutes: NonNullable<Facts['kernelRoutes']> = {
      rules: {},
      get answers() {
        reads += 1
        return []
      },
    }
    diagnose({ ...soundDual, ...withDual(...peers), kernelRoutes })
    // The routes to the hosts of silent peers are judged three times: for underlay-route, for peers, and for the cause.
    expect(reads).toBeLessThan(4 * peers.length)
  })

  it('names the setting that disables IPv6, and the remedy, before the address that is missing', () => {
    const lines = (part: Partial<Facts>) =>
      diagnose({ ...soundDual, ...part })
        .flatMap(({ findings = [] }) => findings)
        .map(({ name, detail, fix }) => `${name}: ${detail}: ${fix}`)
    const { dataPath, store } = soundDual.status
    const addressGone = { ipv4: null, ipv6: 'eth0 has lost its address 2001:db8::1' }
    const gone = { ...soundDual.status, dataPath: { ...dataPath, addressGone } }
    expect(lines({ status: gone, withoutIpv6: ['eth0'] })).toEqual([
      expect.stringMatching(
        /^ipv6-disabled: net\.ipv6\.conf\.eth0\.disable_ipv6 is 1: run `sysctl -w net\.ipv6\.conf\.eth0\.disable_ipv6=0`/,
      ),
      'address-gone: IPv6: eth0 has lost its address 2001:db8::1: first remove the fault that `ipv6-disabled` names',
    ])
    const links = withPort(soundDual.links, true)
    const routes = soundDual.routes.filter(({ destination }) => destination !== 'fd00:5:0:1::/64')
    expect(lines({ links, routes, gateways: [parseIpv6('fd00:5:0:1::1')!], withoutIpv6: ['cni0'] })).toEqual([
      expect.stringMatching(
        /^ipv6-disabled: net\.ipv6\.conf\.cni0\.disable_ipv6 is 1: cni0 does not have .*: run `sysctl -w net\.ipv6\.conf\.cni0\.disable_ipv6=0`.*; then give .* `ip address add fd00:5:0:1::1\/64 dev cni0`/,
      ),
    ])
    // In Kubernetes the bridge must have IPv6, even if weft doctor sees no container.
    const kubernetes = { ...soundDual.status, store: { ...store, name: 'kubernetes' as const } }
    const off = { links, routes, withoutIpv6: ['cni0'], bridgeFilter: '1' }
    expect(lines({ ...off, status: kubernetes })).toEqual([expect.stringMatching(/^ipv6-disabled: .*ip link del cni0/)])
    expect(lines(off)).toEqual([])
    // Without an IPv6 network, and without IPv6 between the hosts, the setting does not matter.
    expect(
      diagnose({ ...sound, withoutIpv6: ['eth0', 'cni0', 'flannel0'] }).flatMap(({ findings = [] }) => findings),
    ).toEqual([])
  })

  it('names the setting of the interface, and a larger limit for tracked connections', () => {
    const fixes = (part: Partial<Facts>) =>
      diagnose({ ...sound, ...part }).flatMap(({ findings = [] }) => findings.map(({ detail, fix }) => [detail, fix]))
    expect(fixes({ unforwarded: ['eth0.7'] })).toEqual([
      [
        'net.ipv4.conf.eth0/7.forwarding is 0',
        expect.stringContaining('`sysctl -w net.ipv4.conf.eth0/7.forwarding=1`'),
      ],
    ])
    expect(fixes({ tracking: { entries: 1000, limit: 1000 } })).toEqual([
      ['1000 connections, and net.netfilter.nf_conntrack_max is 1000', expect.stringMatching(/nf_conntrack_max=2000`/)],
    ])
    expect(found({ tracking: { entries: 900, limit: 1000 } })).toEqual([])
    // With the limit 0 the kernel tracks any number of connections.
    expect(found({ tracking: { entries: 900, limit: 0 } })).toEqual([])
  })

  it('reports a wrong route to the host of a silent peer', () => {
    const answers = new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]])
    const expected: FindingName[] = ['underlay-route', 'peer-silent']
    expect(found({ kernelRoutes: routesBy({ underlay: { device: 'tun7' } }), answers })).toEqual(expected)
  })

  it('names the broken family, and reports a peer once if both families are broken', () => {
    const details = (...list: PeerStatus[]) =>
      diagnose({ ...sound, ...withDual(...list) }).flatMap(({ findings = [] }) => findings.map(({ detail }) => detail))
    expect(details(dualPeer({}, silentSide))).toEqual([
      'fd00:5:0:2::/64 at [2001:db8::2]:8472: over IPv6 it does not answer',
    ])
    expect(details(dualPeer({ ...silentSide, state: 'stored', endpoint: null }))).toEqual([
      '10.5.2.0/24 at 192.0.2.2: over IPv4 this node cannot use its lease',
    ])
    expect(details(dualPeer(silentSide, silentSide))).toEqual([
      expect.stringMatching(/^10\.5\.2\.0\/24 at 192\.0\.2\.2:8472: its last packet came 3 s ago/),
    ])
  })

  it('finds the nftables rule and the silent peer', () => {
    const answers = new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]])
    expect(found({ nft: nft('input', 'tcp dport 22 accept'), answers })).toEqual(['port-dropped', 'peer-silent'])
  })

  it.each([
    ['heard since it was first asked in vain', { heardSecondsAgo: 8, unansweredSeconds: 12 }, true],
    // The last status of a host that was killed shortly before.
    ['heard for the last time before that', { heardSecondsAgo: 15, unansweredSeconds: 12, lossPercent: 50 }, false],
    ['answering when the status was taken', { state: 'answering', heardSecondsAgo: 2, unansweredSeconds: 8 }, false],
    ['never heard', { heardSecondsAgo: null, unansweredSeconds: 4, lossPercent: 100 }, false],
  ] as const)('says whether a silent peer that was %s still sends', (_, changes, sends) => {
    const answers = new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]])
    const facts = { ...sound, ...withPeers({ state: 'programmed', ...changes }), answers }
    const check = diagnose(facts).find((each) => each.check === 'peers')
    expect(check!.findings!.map(({ detail }) => /; packets from it arrive,/.test(detail))).toEqual([sends])
  })

  it.each([
    [3_600_000, "3600 s behind the store's"],
    [-3_600_000, "3600 s ahead of the store's"],
  ])('reports a clock that the store is %d ms ahead of as: %s', (storeAheadMs, detail) => {
    const check = diagnose({ ...sound, storeAheadMs }).find((each) => each.check === 'clock')
    expect(check!.findings).toEqual([{ name: 'clock-off', detail }])
  })

  it('accepts a lease that ends in a day and a minute, because clocks may differ by a minute', () => {
    const ends = Date.parse(status.lease!.expiresAt!)
    const at = (leftMs: number): FindingName[] => found({ now: ends - leftMs })
    expect([at(86_400_000 + 60_000), at(86_400_000 + 60_001)]).toEqual([[], ['clock-off']])
    expect([at(-60_000), at(-60_001)]).toEqual([[], ['clock-off']])
  })

  it.each([
    [10, []],
    [20, ['peer-lossy']],
    [30, ['peer-lossy']],
  ])('reports a peer that loses %d percent of the probes as %j', (lossPercent, names) => {
    expect(found(withPeers({ lossPercent }))).toEqual(names)
  })

  it('tells a peer whose route is missing from a peer whose lease is unusable, for each peer', () => {
    const missing = { ...peer, state: 'stored' } as const
    const foundWith = (...list: (typeof missing)[]): FindingName[] =>
      found({ ...hostGw({ peers: countPeers(list, null) }), routes: [] })
    const unusable = { ...missing, lease: '10.5.9.0-24', subnet: '10.5.9.0/24', unusable: true }
    expect(foundWith(missing)).toEqual(['no-route'])
    expect(foundWith(unusable)).toEqual(['peer-unusable'])
    expect(foundWith(missing, unusable).toSorted()).toEqual(['no-route', 'peer-unusable'])
  })

  // The overhead is 20 (IPv4), 8 (UDP), 8 (VXLAN) and 14 (Ethernet); one IPv4 header for IPIP; 16 and a tag of 16 for WireGuard.
  it.each([
    ['udp', 28],
    ['vxlan', 50],
    ['ipip', 20],
    ['wireguard', 60],
    ['host-gw', 0],
    ['alloc', 0],
  ])('counts an overhead of %s of %d bytes', (backendType, bytes) => {
    const names = (mtu: number): readonly string[] | undefined =>
      diagnose({
        ...sound,
        ...withStatus({ config: { ...status.config!, backendType }, dataPath: { ...status.dataPath!, mtu } }),
        links: [link('eth0', 1500, '192.0.2.1')],
      })
        .find(({ check }) => check === 'mtu')!
        .findings?.map(({ name }) => name)
    expect([names(1500 - bytes), names(1501 - bytes)]).toEqual([[], ['mtu-too-large']])
  })

  const detailsOf = (facts: Partial<Facts>, wanted: FindingName): string[] =>
    diagnose({ ...sound, ...facts }).flatMap(({ findings = [] }) =>
      findings.filter(({ name }) => name === wanted).map(({ detail }) => detail),
    )

  it.each<[Partial<Reach>, string]>([
    [{ port: 'refused' }, 'its host is up and refuses UDP port 8285: weftd does not run there'],
    [{ port: 'prohibited' }, 'a firewall on its host, or between, rejects packets to UDP port 8285'],
    [{ port: 'own-firewall' }, "this host's own firewall rejects packets to UDP port 8285"],
    [{ port: 'no-route' }, 'this host has no route to its address'],
    [
      { isPinged: true },
      'UDP port 8285 is not refused: a firewall drops packets to it or its answers, or weftd there hangs',
    ],
    [{ isPinged: true, portNumber: undefined }, "its host is up and answers a ping: the backend's packets are lost"],
    [{ isPinged: false, isOffLink: true }, 'no host on the link answers for its address: the host is off'],
    [
      { isPinged: false },
      'no answer comes from its host, not even to a ping: it is off or cut off, or a firewall drops',
    ],
    [{}, '; no answer comes from its host'],
  ])('explains why a peer is silent: %j', (reach, says) => {
    const nothing = { port: undefined, portNumber: 8285, isPinged: undefined, isOffLink: false }
    const facts = {
      ...withPeers({ state: 'programmed', lossPercent: 100, heardSecondsAgo: 400, probedSecondsAgo: 3 }),
      reaches: new Map([['10.5.2.0-24', { ...nothing, ...reach }]]),
    }
    expect(detailsOf(facts, 'peer-silent')).toEqual([expect.stringContaining(says)])
    expect(detailsOf(facts, 'peer-silent')[0]).toMatch(
      /^10\.5\.2\.0\/24 at 192\.0\.2\.2:8285: its last packet came 7 min ago; /,
    )
  })
  it.each([
    [0, '0 s'],
    [119, '119 s'],
    [120, '2 min'],
    [7_199, '120 min'],
    [7_200, '2 h'],
  ])('formats %i s as %s ago', (heardSecondsAgo, ago) => {
    const facts = withPeers({ state: 'programmed', lossPercent: 100, heardSecondsAgo, probedSecondsAgo: 0 })
    expect(detailsOf(facts, 'peer-silent')[0]).toContain(`: its last packet came ${ago} ago`)
  })

  it('names the nodes that run with another configuration than the store', () => {
    const old = (of: string) => ({ lease: of, subnet: of, type: '' }) as const
    const facts = {
      ...withPeers(old('10.5.2.0/24'), { ...old('10.5.3.0/24'), type: 'vxlan' }),
      store: { config: { ...status.config!, backendType: 'vxlan' } },
    }
    expect(detailsOf(facts, 'config-differs')).toEqual([
      'this node runs udp, but the configuration in the store says vxlan',
      '10.5.2.0/24 at 192.0.2.2 runs udp, alloc or a cloud backend, but the configuration in the store says vxlan',
    ])
    const backend = { port: 1, vni: 2 }
    const turned = { config: { ...status.config!, backend: { vni: 2, port: 1 } } }
    expect(found({ ...withStatus({ config: { ...status.config!, backend } }), store: turned })).toEqual([])
  })

  describe('a host whose weftd does not run', () => {
    const dead = (path: object, facts: Partial<Facts> = {}): Partial<Facts> => ({
      silence: 'no weftd answers',
      ...withStatus({ state: 'starting', lease: null, dataPath: { ...status.dataPath!, ...path } }),
      ...facts,
    })
    const kernel = { engine: 'kernel', open: true }
    const ours = { engine: 'native', open: false }
    const statesOf = (facts: Partial<Facts>): Record<string, FindingName[] | undefined> =>
      Object.fromEntries(
        diagnose({ ...sound, ...facts }).map(({ check, findings }) => [check, findings?.map(({ name }) => name)]),
      )
    it('checks everything that weftd left, and reports whether the kernel still forwards', () => {
      const states = statesOf(dead(ours, { unit: 'systemd says: failed since Mon', answers: new Map() }))
      expect(states).toMatchObject({
        daemon: Array(3).fill('daemon-silent'),
        routes: [],
        containers: [],
        store: [],
        mtu: [],
      })
      expect(Object.keys(states).filter((check) => states[check] === undefined)).toEqual([
        'peers',
        'handshakes',
        'drops',
      ])
      expect(detailsOf(dead(ours, { unit: 'systemd says: failed since Mon' }), 'daemon-silent')).toEqual([
        'no weftd answers',
        'systemd says: failed since Mon',
        'the packets of this node are not forwarded',
      ])
      expect(detailsOf(dead({ ...ours, fastPath: { ...OFF, promoted: 1 } }), 'daemon-silent').at(-1)).toMatch(
        /^at most for a minute .* eBPF programs of FastPath still carry packets;/,
      )
      expect(detailsOf(dead(kernel), 'daemon-silent')).toEqual([
        'no weftd answers',
        'the kernel still forwards packets with the devices and routes that weftd made',
      ])
    })
    it('finds other faults too', () => {
      expect(found(dead(ours, { routes: [] }))).toContain('no-route')
      expect(
        found(dead(kernel, { answers: new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]]) })),
      ).toContain('peer-silent')
      expect(found(dead(ours, { store: { problem: 'etcd: it refuses' } }))).toContain('store-away')
      expect(found(dead(ours, { subnetEnv: undefined }))).toContain('subnet-env-wrong')
      expect(found(dead(ours, { iptables: '-P INPUT ACCEPT\n-P FORWARD DROP' }))).toContain('forward-dropped')
    })
    it('walks a packet to any address of the network if no peer is known', () => {
      const part = { peers: null, node: status.node, config: status.config, dataPath: { ...status.dataPath!, ...ours } }
      const dropping = (rule: string): FindingName[] =>
        found({
          ...withStatus(part),
          silence: 'dead',
          iptables: `-P INPUT ACCEPT\n-P FORWARD ACCEPT\n${rule}`,
          answers: new Map(),
        })
      expect(dropping('-A FORWARD -d 10.5.255.254/32 -j DROP')).toContain('forward-dropped')
      expect(dropping('-A FORWARD -d 10.6.0.0/16 -j DROP')).not.toContain('forward-dropped')
      expect(dropping('-A INPUT -j DROP')).not.toContain('port-dropped')
      const six = { ...soundDual.status, peers: null }
      const drop = {
        ip6tables: '-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-A FORWARD -d fd00:5:0:ffff:ffff:ffff:ffff:fffe/128 -j DROP',
      }
      expect(found({ ...soundDual, status: six, ...drop, silence: 'dead', answers: new Map() })).toContain(
        'forward-dropped',
      )
    })
    it('reports only findings from the facts that it can read', () => {
      const blind = dead(ours, { store: undefined, storeAheadMs: undefined, answers: new Map() })
      expect(statesOf(blind)).toMatchObject({
        store: undefined,
        clock: undefined,
        config: undefined,
        peers: undefined,
      })
      // The lease of a dead weftd has ended, but the clock is right.
      const ended = withStatus({ lease: { ...status.lease!, expiresAt: '2020-01-01T00:00:00Z' } })
      expect(found({ ...ended, silence: 'dead' })).toEqual(['daemon-silent', 'daemon-silent'])
    })
  })

  it('reports all places, and shows the first few as text', () => {
    const many = Array.from({ length: 9 }, (_, at) => ({ subnet: `10.5.${at + 2}.0/24`, state: 'stored' as const }))
    const { findings = [] } = diagnose({ ...sound, ...withPeers(...many) }).find((each) => each.check === 'peers')!
    expect(findings).toHaveLength(9)
    const [shown, ...others] = grouped(findings)
    expect([others, shown!.name, shown!.more]).toEqual([[], 'peer-unusable', 4])
    expect(shown!.details.slice(-1)).toEqual(['10.5.6.0/24 at 192.0.2.2'])
    expect(grouped(findings.slice(0, 5))[0]!.more).toBe(0)
    expect(grouped([{ name: 'not-root', detail: '' }])).toEqual([
      { name: 'not-root', details: [], more: 0, fixes: [FINDINGS['not-root'].fix] },
    ])
  })

  it('tests each finding in this file, and documents each with the words of the code', () => {
    const read = (page: string): string => readFileSync(join(packageRoot, 'docs', page), 'utf8')
    const pages = ['findings-host.md', 'findings-network.md']
    const documented = pages.flatMap((page) =>
      read(page)
        .split('\n')
        .filter((line) => line.startsWith('| <a id=')),
    )
    const rows = Object.entries(FINDINGS).map(
      ([name, { check, level, means, fix }]) =>
        `| <a id="${name}"></a>\`${name}\` | ${check} | ${level} | ${means} | ${fix} |`,
    )
    expect(documented.toSorted()).toEqual(rows.toSorted())
    // Runbooks and messages name docs/doctor.md, which leads to the page of each finding.
    const index = read('doctor.md')
    for (const page of pages)
      for (const [, name = ''] of read(page).matchAll(/<a id="([^"]+)"/g))
        expect(index).toContain(`<a id="${name}"></a>[\`${name}\`](${page}#${name})`)
    const source = readFileSync(import.meta.filename, 'utf8')
    expect(Object.keys(FINDINGS).filter((name) => !source.includes(`'${name}',`))).toEqual([])
    expect(Object.values(FINDINGS).filter(({ check }) => !CHECKS.some(({ name }) => name === check))).toEqual([])
  })
})

describe('the findings of a status alone', () => {
  it('are empty for a healthy node, although no facts of the host are known', () => {
    expect(diagnoseStatus(soundStatus)).toEqual([])
  })

  it('equal those of weft doctor', () => {
    const silent: PeerStatus = { ...soundPeer, state: 'programmed', lossPercent: 100 }
    const sick: Status = {
      ...soundStatus,
      peers: countPeers([silent], 10),
      store: { ...soundStatus.store, reachable: false },
    }
    expect(diagnoseStatus(sick).map(({ name }) => name)).toEqual(['store-away', 'peer-silent'])
    const starting: Status = { ...soundStatus, ...startingReport('etcd', beginningWith('waiting for a lease')) }
    expect(diagnoseStatus(starting)).toEqual([{ name: 'daemon-waits', detail: 'waiting for a lease' }])
  })
})

describe('the limits of findings', () => {
  const said = (part: Partial<Facts>): string[] =>
    diagnose({ ...sound, ...part }).flatMap(({ findings = [] }) =>
      findings.map(({ name, detail }) => `${name}: ${detail}`),
    )
  const unknown = (part: Partial<Facts>): string[] =>
    diagnose({ ...sound, ...part }).flatMap(({ check, findings }) => (findings === undefined ? [check] : []))
  const path = status.dataPath!
  const silent = { answers: new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]]) }
  const notAsked: Partial<PeerStatus> = { state: 'programmed', lossPercent: null }

  it.each<[string, Partial<Facts>, string[]]>([
    ['nobody answers', { status: undefined, silence: 'no socket' }, ['daemon-silent: no socket']],
    ['nobody may ask', { status: undefined, isForbidden: true }, []],
    ['nobody answers an ordinary user', { status: undefined, isRoot: false }, ['not-root: ', 'daemon-silent: ']],
    [
      'a thread hangs',
      withStatus({
        dataPath: {
          ...path,
          threads: [
            { name: 'a', hungSeconds: null },
            { name: 'b', hungSeconds: 0 },
          ],
        },
      }),
      ['data-path-down: the thread b hangs'],
    ],
    [
      'the data path is down',
      withStatus({ trouble: 'why', dataPath: { ...path, open: false } }),
      ['data-path-down: why'],
    ],
    ['a capability is missing, and packets pass', { lacksNetAdmin: true }, []],
    ['there is no TUN', { tunProblem: 'ENOENT' }, ['tun-missing: ENOENT']],
    [
      'there is no TUN, and the user is not root',
      { tunProblem: 'ENOENT', isRoot: false },
      ['not-root: ', 'tun-missing: ENOENT'],
    ],
    [
      'the data path is closed, and cannot be repaired',
      withStatus({
        trouble: 'why',
        dataPath: { ...path, open: false },
        impairments: [{ by: 'path', what: 'it cannot be repaired' }],
      }),
      ['data-path-down: why'],
    ],
    ['a TUN is forbidden', { tunProblem: 'EPERM' }, ['tun-forbidden: EPERM']],
    ['a TUN is forbidden by its mode', { tunProblem: 'EACCES' }, ['tun-forbidden: EACCES']],
    [
      'no TUN is needed, with the kernel',
      {
        ...withStatus({
          config: { ...status.config!, backendType: 'ipip' },
          dataPath: { ...path, engine: 'kernel' },
        }),
        tunProblem: 'EPERM',
      },
      ['no-route: 10.5.2.0/24'], // each peer has such a route
    ],
    [
      'no TUN is needed, with nothing',
      { ...withStatus({ dataPath: { ...path, engine: 'none' } }), tunProblem: 'EPERM' },
      [],
    ],
    ['its clock is a minute ahead', { storeAheadMs: -60_000 }, []],
    ['its clock is more ahead', { storeAheadMs: -60_001 }, ["clock-off: 60 s ahead of the store's"]],
    ['its clock is a minute behind', { storeAheadMs: 60_000 }, []],
    ['its clock is more behind', { storeAheadMs: 3_600_000 }, ["clock-off: 3600 s behind the store's"]],
    ['the lease ends in a day and a minute', { now: NOW - 3_600_000 - 60_000 }, []],
    [
      'the lease ends later',
      { now: NOW - 3_600_000 - 60_001 },
      ["clock-off: the lease is valid for one day, but ends in 24 h by this host's clock"],
    ],
    ['the lease ended a minute ago', { now: NOW + 23 * 3_600_000 + 60_000 }, []],
    [
      'the lease ended before',
      { now: NOW + 23 * 3_600_000 + 120_000 },
      ["clock-off: the lease that this node renews ended 2 min ago by this host's clock"],
    ],
    [
      'the lease ended before, because the store refused to renew it',
      {
        now: NOW + 23 * 3_600_000 + 120_000,
        ...withStatus({ lease: { ...status.lease!, unrenewed: 'permission denied' } }),
      },
      ['lease-unrenewed: permission denied'],
    ],
    [
      'the lease ended before, because the store is away',
      { now: NOW + 23 * 3_600_000 + 120_000, ...withStatus({ store: { ...status.store, reachable: false } }) },
      ['store-away: etcd: http://192.0.2.9:2379 /n'],
    ],
    ['all was compared three minutes ago', withStatus({ store: { ...status.store, comparedSecondsAgo: 180 } }), []],
    [
      'all was compared before',
      withStatus({ store: { ...status.store, comparedSecondsAgo: 180.6 } }),
      ['store-stale: etcd: http://192.0.2.9:2379 /n: compared 181 s ago'],
    ],
    ['nothing was compared', withStatus({ store: { ...status.store, comparedSecondsAgo: null } }), []],
    [
      'the store is away',
      withStatus({ store: { ...status.store, reachable: false } }),
      ['store-away: etcd: http://192.0.2.9:2379 /n'],
    ],
    ['one peer is held', withStatus({ store: { ...status.store, held: 1 } }), ['peers-held: 1 peers']],
    ['19% are lost', withPeers({ lossPercent: 19 }), []],
    [
      '20% are lost',
      withPeers({ lossPercent: 20 }),
      ['peer-lossy: 10.5.2.0/24 at 192.0.2.2:8285: 20% of the probes lost'],
    ],
    [
      'a peer is silent',
      withPeers({ state: 'programmed', lossPercent: 100, heardSecondsAgo: null, endpoint: null }),
      ['peer-silent: 10.5.2.0/24 at 192.0.2.2: no packet ever came from it'],
    ],
    [
      'a peer has another type',
      withPeers({ state: 'stored', type: 'vxlan' }),
      ['peer-unusable: 10.5.2.0/24 at 192.0.2.2, of type vxlan'],
    ],
    [
      'nobody may ask peers',
      {
        ...withStatus({ peers: countPeers([{ ...peer, ...notAsked }], null) }),
        answers: new Map(),
        whyUnprobed: 'EPERM',
      },
      ['peers-unasked: EPERM'],
    ],
    ['nobody asks, and there are no peers', { ...withStatus({ peers: countPeers([], null) }), answers: new Map() }, []],
    [
      'nobody asks, and the only peer is not used',
      {
        ...withStatus({ dataPath: { ...path, open: false }, peers: countPeers([{ ...peer, state: 'stored' }], null) }),
        answers: new Map(),
      },
      ['data-path-down: '],
    ],
    [
      'two leases lie across each other',
      withPeers({ subnet: '10.5.1.128/25' }),
      ['subnet-twice: 10.5.1.0/24 of 192.0.2.1 and 10.5.1.128/25 of 192.0.2.2'],
    ],
    ['a lease cannot be read', withPeers({ subnet: 'x' }), []],
    [
      'another has its address',
      withPeers({ publicIp: '192.0.2.1', state: 'stored' }),
      ['address-twice: 192.0.2.1, which 10.5.2.0/24 publishes too'],
    ],
    [
      'a twin was noticed',
      withStatus({ node: { ...status.node!, twin: 'b' } }),
      ['address-twice: 192.0.2.1, which the host b uses too'],
    ],
    [
      'packets of the MTU do not come back',
      { answers: new Map([['10.5.2.0-24', { ipv4: { small: true, large: false } }]]) },
      [
        'path-mtu: 10.5.2.0/24 at 192.0.2.2:8285: packets of 1472 bytes get no answer; check the external interfaces of both hosts, then the links between; weft doctor on that host checks its interface',
      ],
    ],
    [
      'of a peer, and not of another, packets of the MTU do not come back',
      {
        ...withStatus({
          peers: countPeers(
            [
              { ...peer, path: 'whole' },
              { ...peer, ...narrow, lease: 'b', subnet: '10.5.3.0/24' },
            ],
            10,
          ),
        }),
        answers: new Map([['b', { ipv4: { small: true, large: false, longest: 1372 } }]]),
      },
      [
        'path-mtu: 10.5.3.0/24 at 192.0.2.2:8285: packets of 1472 bytes get no answer since 2026-11-22T09:00:00Z, packets of up to 1372 do; other peers answer such packets: check the external interface of that host first, then the links between',
      ],
    ],
    [
      'the daemon saw that long packets come back from nobody',
      {
        ...withStatus({
          peers: countPeers(
            [
              { ...peer, ...narrow },
              { ...peer, ...narrow, lease: 'b', subnet: '10.5.3.0/24' },
            ],
            10,
          ),
        }),
        answers: new Map(),
      },
      ['10.5.2.0/24', '10.5.3.0/24'].map(
        (subnet) =>
          `path-mtu: ${subnet} at 192.0.2.2:8285: packets of 1472 bytes get no answer since 2026-11-22T09:00:00Z, packets of up to 1252 do; no peer answers such packets: check this host first, and the network that it is in`,
      ),
    ],
    [
      "packets of the MTU do not come back, and this host's interface takes less",
      {
        links: [link('eth0', 1400, '192.0.2.1')],
        answers: new Map([['10.5.2.0-24', { ipv4: { small: true, large: false, longest: 1372 } }]]),
      },
      [
        'path-mtu: 10.5.2.0/24 at 192.0.2.2:8285: packets of 1472 bytes get no answer, packets of up to 1372 do; the cause is eth0 of this host, whose MTU is 1400 bytes',
        "mtu-too-large: 1472 bytes plus the tunnel's headers are 1500, but the MTU of eth0 is 1400",
      ],
    ],
    ['a long packet came back now, whatever was seen before', { ...withPeers(narrow), answers: sound.answers }, []],
    [
      'those who send long packets are told that they do not fit',
      { ...withPeers({ ...narrow, passesBytes: 1372, pathMtu: 1372 }), answers: new Map() },
      [],
    ],
    [
      'the MTU is one byte too large',
      { links: [link('eth0', 1499, '192.0.2.1')] },
      ["mtu-too-large: 1472 bytes plus the tunnel's headers are 1500, but the MTU of eth0 is 1499"],
    ],
    [
      'a bridge takes one byte more',
      { links: [...sound.links, link('cni1', 1473, '10.5.1.1')] },
      ['bridge-mtu: cni1 has MTU 1473, the data path 1472'],
    ],
    ['what is no bridge of containers takes more', { links: [...sound.links, link('veth1', 1500, '10.5.1.1')] }, []],
    [
      'a bridge is of the network and not of the subnet',
      { links: [...sound.links, link('br-1', 1472, '10.5.0.255')] },
      ['bridge-elsewhere: br-1 has 10.5.0.255, but this node has 10.5.1.0/24'],
    ],
    ['what is no bridge is elsewhere', { links: [...sound.links, link('veth1', 1472, '10.5.9.1')] }, []],
    ['subnet.env is missing', { subnetEnv: undefined }, ['subnet-env-wrong: /run/flannel/subnet.env does not exist']],
    [
      'subnet.env is empty',
      { subnetEnv: {} },
      ['subnet-env-wrong: /run/flannel/subnet.env says no subnet, but this node has 10.5.1.0/24'],
    ],
    [
      'subnet.env is of before',
      { subnetEnv: { FLANNEL_SUBNET: '10.5.1.1/25' } },
      ['subnet-env-wrong: /run/flannel/subnet.env says 10.5.1.1/25, but this node has 10.5.1.0/24'],
    ],
    [
      'subnet.env has another MTU',
      { subnetEnv: { ...sound.subnetEnv, FLANNEL_MTU: '1450' } },
      ['subnet-env-wrong: /run/flannel/subnet.env says MTU 1450, but the data path has 1472'],
    ],
    ['ten packets are dropped', losing({ tx_drop_too_big: 10 }), []],
    [
      'eleven packets are dropped',
      losing({ tx_drop_too_big: 11 }),
      ['packets-dropped: tx_drop_too_big: 11 in the last 64 s'],
    ],
    ['one in a thousand is dropped', losing({ rx_drop_truncated: 100 }, 100_000), []],
    [
      'more are dropped',
      losing({ rx_drop_truncated: 101 }, 100_000),
      ['packets-dropped: rx_drop_truncated: 101 in the last 64 s'],
    ],
    [
      'a buffer is full, and UDP is not joined although the kernel could take it',
      withStatus({
        dataPath: {
          ...path,
          features: ['tun-uso', 'coalesce-tcp'],
          recent: { seconds: 64.3, packets: 18, drops: { rx_drop_socket_full: 99 } },
        },
      }),
      [
        'packets-dropped: rx_drop_socket_full: 99 in the last 64 s; if these are UDP packets, `ethtool -K flannel0 rx-udp-gro-forwarding on` makes weftd join them, so that fewer are lost, but packet filters on this host then see several datagrams as one packet',
      ],
    ],
    [
      'a buffer is full, and UDP is joined',
      withStatus({
        dataPath: {
          ...path,
          features: ['tun-uso', 'coalesce-udp'],
          recent: { seconds: 64.3, packets: 18, drops: { rx_drop_socket_full: 99 } },
        },
      }),
      ['packets-dropped: rx_drop_socket_full: 99 in the last 64 s'],
    ],
    [
      'a buffer is full, and the kernel takes no joined UDP',
      withStatus({
        dataPath: {
          ...path,
          features: ['coalesce-tcp'],
          recent: { seconds: 64.3, packets: 18, drops: { rx_drop_socket_full: 99 } },
        },
      }),
      ['packets-dropped: rx_drop_socket_full: 99 in the last 64 s'],
    ],
    ['what a healthy host drops', losing({ tx_drop_no_route: 99 }), []],
    [
      'what was dropped is over',
      withStatus({
        dataPath: {
          ...path,
          drops: { tx_drop_refused: 9_999 },
          recent: { seconds: 60, packets: 100, drops: {} },
        },
      }),
      [],
    ],
    [
      'each that tells something is dropped',
      losing(
        Object.fromEntries(
          [
            'tx_drop_queue_full',
            'rx_drop_socket_full',
            'rx_drop_spoofed_source',
            'tx_drop_too_big',
            'tx_drop_socket_full',
            'rx_drop_truncated',
          ].map((name) => [name, 99]),
        ),
      ),
      [
        'tx_drop_queue_full',
        'rx_drop_socket_full',
        'rx_drop_spoofed_source',
        'tx_drop_too_big',
        'tx_drop_socket_full',
        'rx_drop_truncated',
      ].map((name) => `packets-dropped: ${name}: 99 in the last 64 s`),
    ],
    [
      'a route leads away',
      { routes: [...sound.routes, route('10.5.2.0/24', 'eth1', '192.0.2.254')] },
      ['foreign-route: 10.5.2.0/24 goes via 192.0.2.254 to eth1'],
    ],
    [
      'a route leads nowhere',
      { routes: [...sound.routes, route('10.5.2.0/24', '')] },
      ['foreign-route: 10.5.2.0/24 goes to nowhere'],
    ],
    [
      'a route of less weight leads away',
      { routes: [...sound.routes, { ...route('10.5.2.0/24', 'eth1'), metric: 100 }] },
      [],
    ],
    [
      'a route of a wider net leads away',
      { routes: [...sound.routes, route('10.5.0.0/23', 'eth1')] },
      ['foreign-route: 10.5.0.0/23 goes to eth1'],
    ],
    ['a part of its own subnet is elsewhere', { routes: [...sound.routes, route('10.5.1.128/25', 'veth9')] }, []],
    ['what is no network has a route', { routes: [...sound.routes, route('default', 'eth0')] }, []],
    [
      'no route leads to the network',
      { routes: [{ ...route('10.5.0.0/16', 'flannel0'), metric: 7 }] },
      ['no-route: 10.5.0.0/16'],
    ],
  ])('apply if %s', (_, part, expected) => expect(said(part)).toEqual(expected))

  it('requires a route to each usable peer if no route leads to the whole network', () => {
    const kernel = (backendType: string) =>
      withStatus({
        config: { ...status.config!, backendType },
        dataPath: { ...path, engine: 'kernel' },
        peers: countPeers([peer, { ...peer, lease: 'b', subnet: '10.5.3.0/24', state: 'stored', unusable: true }], 10),
      })
    const wide = { links: [link('eth0', 9000, '192.0.2.1')] }
    const routes = [route('10.5.1.0/24', 'cni0')]
    expect(said({ ...kernel('vxlan'), ...wide, routes })).toEqual([
      'no-route: 10.5.2.0/24',
      'peer-unusable: 10.5.3.0/24 at 192.0.2.2',
    ])
    expect(found({ ...kernel('wireguard'), ...wide, routes })).toContain('no-route')
    expect(said({ ...kernel('wireguard'), ...wide, routes }).filter((line) => line.startsWith('no-route'))).toEqual([
      'no-route: 10.5.0.0/16',
    ])
    // For such a backend another route to the whole network is right.
    expect(
      found({
        ...kernel('vxlan'),
        ...wide,
        routes: [...routes, route('10.5.0.0/16', 'eth9'), route('10.5.2.0/24', 'flannel0')],
      }),
    ).toEqual(['peer-unusable'])
  })

  it('finds the routes that host-gw left to a node that has gone, of both families', () => {
    const dataPath = { ...soundDual.status.dataPath, device: null, devices: { ipv4: null, ipv6: null } }
    const config = { ...soundDual.status.config, backendType: 'host-gw' }
    const right = [
      route('10.5.1.0/24', 'cni0'),
      route('10.5.2.0/24', 'eth0', '192.0.2.2'),
      { ...route('fd00:5:0:2::/64', 'eth0', '2001:db8::2'), metric: 1024 },
    ]
    const facts = { ...soundDual, status: { ...soundDual.status, config, dataPath } }
    const left = [
      ...right,
      route('10.5.9.0/24', 'eth0', '192.0.2.9'),
      { ...route('fd00:5:0:9::/64', 'eth0', '2001:db8::9'), metric: 1024 },
    ]
    const foreign = (routes: Facts['routes']) =>
      said({ ...facts, routes }).filter((line) => line.startsWith('foreign-route'))
    expect(foreign(right)).toEqual([])
    expect(foreign(left)).toEqual([
      'foreign-route: 10.5.9.0/24 goes via 192.0.2.9 to eth0',
      'foreign-route: fd00:5:0:9::/64 goes via 2001:db8::9 to eth0',
    ])
  })

  it('names the firewall of a peer that still sends, and the time of its last packet', () => {
    const facts = { ...withPeers({ state: 'programmed', heardSecondsAgo: 3.4, unansweredSeconds: 6 }), ...silent }
    const heard =
      '10.5.2.0/24 at 192.0.2.2:8285: its last packet came 3 s ago; packets from it arrive, so packets to it are lost, or its firewall drops the echo requests'
    expect(said(facts)).toEqual([`peer-silent: ${heard}: check the firewall on its host first`])
    // An earlier packet does not prove that the peer sends now.
    const before = { state: 'programmed', heardSecondsAgo: 30, unansweredSeconds: 60 } as const
    const where = '10.5.2.0/24 at 192.0.2.2:8285: its last packet came 30 s ago'
    expect(said({ ...withPeers(before), ...silent })).toEqual([`peer-silent: ${where}`])
    const seldom = withStatus({ peers: countPeers([{ ...peer, ...before }], 20) })
    expect(said({ ...seldom, ...silent })[0]).toContain(`${where}; packets from it arrive`)
    // If this host itself drops the packets, the firewall of the peer is not named.
    const rule = '-A OUTPUT -p udp -m udp --dport 8285 -j DROP'
    expect(said({ ...facts, iptables: `-P OUTPUT ACCEPT\n${rule}` })).toEqual([
      `port-dropped: ${rule}`,
      `peer-silent: ${heard}`,
    ])
    const away = [...sound.routes, route('10.5.2.0/24', 'eth0', '192.0.2.254')]
    expect(said({ ...facts, routes: away })).toEqual([
      'foreign-route: 10.5.2.0/24 goes via 192.0.2.254 to eth0',
      `peer-silent: ${heard}`,
    ])
    const drops = { tx_drop_refused: 11 }
    const refused = { ...status.dataPath!, drops, recent: { seconds: 60, packets: 0, drops } }
    const over = { ...refused, recent: { seconds: 60, packets: 0, drops: {} } }
    const silentPeer = { state: 'programmed', heardSecondsAgo: 3.4, unansweredSeconds: 6 } as const
    const peers = countPeers([{ ...peer, ...silentPeer }], 10)
    expect(said({ ...withStatus({ dataPath: refused, peers }), ...silent })).toEqual([
      `peer-silent: ${heard}`,
      'packets-dropped: tx_drop_refused: 11 in the last 60 s',
    ])
    // Earlier drops on this host do not explain why a peer is silent now.
    expect(said({ ...withStatus({ dataPath: over, peers }), ...silent })).toEqual([
      `peer-silent: ${heard}: check the firewall on its host first`,
    ])
    const sends = (changes: Partial<PeerStatus>): boolean =>
      said({ ...withPeers({ state: 'programmed', lossPercent: 0, ...changes }), ...silent }).some((line) =>
        line.includes('packets from it arrive'),
      )
    expect([
      sends({ heardSecondsAgo: 4.9, unansweredSeconds: 6 }),
      sends({ heardSecondsAgo: 5, unansweredSeconds: 6 }),
      sends({ heardSecondsAgo: 1, unansweredSeconds: null }),
    ]).toEqual([true, false, false])
  })

  it('lists the checks that are not possible without a node', () => {
    const nothing = { node: null, config: null, lease: null, dataPath: null, peers: null }
    expect(unknown(withStatus(nothing))).toEqual([
      'families',
      'firewall',
      'routes',
      'store',
      'leases',
      'peers',
      'handshakes',
      'mtu',
      'containers',
      'crossing',
      'drops',
    ])
    expect(unknown({ status: undefined, store: undefined, silence: '', storeAheadMs: undefined })).toEqual([
      'families',
      'firewall',
      'routes',
      'store',
      'clock',
      'config',
      'leases',
      'peers',
      'handshakes',
      'mtu',
      'containers',
      'crossing',
      'drops',
    ])
    expect(unknown(withStatus({ dataPath: { ...path, open: false } }))).toEqual(['routes', 'containers'])
    expect(unknown(withStatus({ dataPath: { ...path, engine: 'none' } }))).toEqual(['routes'])
    expect(unknown(withStatus({ dataPath: { ...path, mtu: null } }))).toEqual(['mtu'])
    expect(unknown({ ...withStatus({ lease: null }), storeAheadMs: undefined })).toEqual(['clock'])
    expect(unknown(withStatus({ lease: null }))).toEqual([])
  })
})

describe('a status without some of its parts', () => {
  const look = (check: string, part: Partial<Facts>) =>
    diagnose({ ...sound, ...part })
      .find((one) => one.check === check)
      ?.findings?.map(({ name, detail }) => `${name}: ${detail}`)

  it('makes only the possible checks', () => {
    const unknown = (part: Partial<Status>) =>
      diagnose({ ...sound, ...withStatus(part) })
        .filter(({ findings }) => findings === undefined)
        .map(({ check }) => check)
    expect(unknown({ dataPath: null })).toEqual(['routes', 'mtu', 'containers', 'drops'])
    expect(unknown({ peers: null })).toEqual(['leases', 'peers', 'handshakes'])
    expect(unknown({ config: null })).toEqual(['families', 'firewall', 'routes', 'mtu', 'containers', 'crossing'])
    expect(unknown({ node: null })).toEqual([
      'firewall',
      'routes',
      'store',
      'leases',
      'peers',
      'mtu',
      'containers',
      'crossing',
    ])
  })

  it('explains failed handshakes, but not those of a peer that answers, and not a single failure', () => {
    const told = (known: Partial<SessionStatus>, side?: Partial<PeerStatus>) =>
      look('handshakes', withSession(known, side))
    const at = '10.5.2.0/24 at 192.0.2.2:8285'
    const failing = { attempts: 4, failure: 'no-answer' } as const
    expect(told(failing)).toEqual([`no-handshake: ${at}: no handshake was ever completed, 4 started here since`])
    expect(told({ ...failing, unconfirmed: 3, handshakeSecondsAgo: 200.4 })).toEqual([
      `handshake-one-way: ${at}: the last handshake was 200 s ago, 4 started here, 3 answered but not confirmed since`,
    ])
    for (const once of [{ stale: 1 }, { unconfirmed: 1 }, { attempts: 1, failure: 'no-answer' }, {}] as const)
      expect(told(once)).toEqual([])
    for (const bad of [{ failure: 'not-authentic' }, { stale: 9 }, failing] as const)
      expect(told(bad, { state: 'answering', lossPercent: 0 })).toEqual([])
    // The answers of the peer to weft doctor's probes.
    const answers: Facts['answers'] = new Map([['10.5.2.0-24', { ipv4: { small: true, large: true } }]])
    expect(look('handshakes', { ...withSession(failing), answers })).toEqual([])
    expect(look('handshakes', { ...withSession(failing), silence: 'it was killed' })).toBeUndefined()
  })

  it.each([
    ['see the check handshakes', { failure: 'not-authentic' }, undefined],
    ['see the check handshakes', { stale: 2 }, undefined],
    ['see the check handshakes', { unconfirmed: 2 }, undefined],
    ['refuses UDP port 51820', { unconfirmed: 2 }, 'refused'],
    ['not even to a ping', { attempts: 2, failure: 'no-answer' }, undefined],
    ['not even to a ping', { failure: 'bad-key' }, undefined],
  ] as const)('says "%s" of a silent peer with the session %j', (says, known, port) => {
    const reach = { port, portNumber: 51_820, isPinged: false, isOffLink: false }
    const facts = {
      ...withSession(known, { lossPercent: 100, heardSecondsAgo: 400, probedSecondsAgo: 3 }),
      reaches: new Map([['10.5.2.0-24', reach]]),
    }
    const silent = look('peers', facts)?.filter((text) => text.startsWith('peer-silent'))
    expect(silent).toEqual([expect.stringMatching(new RegExp(`${says}[^;]*$`))])
  })

  it('judges a session of the kernel by its bytes', () => {
    const unseen = { attempts: null, stale: null, unconfirmed: null }
    const silent = { state: 'programmed', lossPercent: 100 } as const
    const names = (known: Partial<SessionStatus>, side: Partial<PeerStatus> = silent) =>
      look('handshakes', withSession({ ...unseen, ...known }, side))?.map((text) => text.split(':')[0])
    expect(names({ txBytes: 296 })).toEqual(['no-handshake'])
    expect(names({ txBytes: 296, rxBytes: 148 })).toEqual(['handshake-one-way'])
    // A handshake succeeded earlier, so the bytes may be older than the fault.
    expect(names({ txBytes: 296, rxBytes: 148, handshakeSecondsAgo: 400 })).toEqual(['no-handshake'])
    expect(names({ txBytes: 296, rxBytes: 148, handshakeSecondsAgo: 40, ageSeconds: 40 })).toEqual([])
    expect(names({})).toEqual([])
    expect(names({ txBytes: 296 }, {})).toEqual([]) // no probe was sent, so the kernel needs no keys
  })

  it('reports a recent handshake with an unknown key, and the peer with the address of the sender', () => {
    const keyed = { ...peer, session: noKeys }
    const told = (endpoint: string, secondsAgo: number) => {
      const { status: seen } = withUnknown(endpoint, secondsAgo)
      return look('handshakes', { status: { ...seen!, peers: countPeers([keyed], 10) } })
    }
    expect(told('192.0.2.77:51820', 2.6)).toEqual(['key-unknown: of-nobody from 192.0.2.77:51820, 3 s ago'])
    expect(told('192.0.2.2:51820', 2)).toEqual([
      'key-unknown: of-nobody from 192.0.2.2:51820, the host of 10.5.2.0/24, whose lease has of-the-peer, 2 s ago',
    ])
    expect(told('[2001:db8::2]:51820', 2)).toEqual(['key-unknown: of-nobody from [2001:db8::2]:51820, 2 s ago'])
    expect(told('192.0.2.2:51820', 180)).toEqual([])
  })

  it('reports a session that both families share once, and two sessions twice', () => {
    const side = (endpoint: string) =>
      ({ ...silentSide, endpoint, session: { ...noKeys, failure: 'bad-key' } }) as const
    const of = (...[first, second]: readonly [string, string]) =>
      look('handshakes', withDual(dualPeer(side(first), side(second))))?.length
    expect([of('192.0.2.2:51820', '192.0.2.2:51820'), of('192.0.2.2:51820', '[2001:db8::2]:51821')]).toEqual([1, 2])
  })

  it('does not expect routes and probes of the backend ipsec', () => {
    const config = { ...status.config!, backendType: 'ipsec' }
    const list = [{ ...peer, type: 'ipsec', lossPercent: null, state: 'programmed' as const, way: 'kernel' as const }]
    const dataPath = { ...status.dataPath!, engine: 'kernel', devices: { ipv4: null, ipv6: null } }
    const ipsec = { ...withStatus({ config, dataPath, peers: countPeers(list, null) }), routes: [] }
    expect(look('peers', { ...ipsec, answers: new Map(), whyUnprobed: 'EPERM' })).toEqual([])
    expect(found(ipsec)).not.toContain('no-route')
    expect(routeQueries(ipsec.status!, sound.links, [])).toEqual([])
  })

  it('leaves out details that are not known', () => {
    expect(look('daemon', withStatus({ state: 'starting', trouble: null }))).toEqual(['daemon-waits: '])
    expect(look('forwarding', { isForwarding: false })).toEqual(['forwarding-off: '])
    const unusable = { ...withPeers({ state: 'stored', type: 'vxlan' }) }
    expect(look('peers', unusable)).toEqual(['peer-unusable: 10.5.2.0/24 at 192.0.2.2, of type vxlan'])
    expect(look('peers', { ...unusable, status: { ...unusable.status!, dataPath: null } })).toEqual([])
    const strange = { ...status.config!, backendType: 'of-tomorrow' }
    expect(look('mtu', withStatus({ config: strange, dataPath: { ...status.dataPath!, mtu: 1500 } }))).toEqual([])
    // The daemon does not probe, but weft doctor has probed the peer.
    const unprobed = withStatus({ peers: countPeers([{ ...peer, lossPercent: null, state: 'programmed' }], null) })
    expect(look('peers', unprobed)).toEqual([])
    expect(look('peers', { ...unprobed, answers: new Map() })).toEqual(['peers-unasked: '])
  })

  it('gives the time of the last packet of a silent peer, and no more if it does not send', () => {
    const silent = { state: 'programmed', lossPercent: 100, heardSecondsAgo: 90, probedSecondsAgo: 2 } as const
    expect(look('peers', withPeers(silent))).toEqual([
      'peer-silent: 10.5.2.0/24 at 192.0.2.2:8285: its last packet came 90 s ago',
    ])
  })

  it('requires one route to the network if weftd carries the packets of vxlan', () => {
    const vxlan = withStatus({ config: { ...status.config!, backendType: 'vxlan' } })
    expect(look('routes', vxlan)).toEqual([])
    expect(look('routes', { ...vxlan, routes: [route('10.5.2.0/24', 'flannel0')] })).toEqual(['no-route: 10.5.0.0/16'])
  })

  it('reports a route around its own subnet, or through a gateway that is not a peer, as foreign', () => {
    const first = { node: { ...status.node!, subnet: '10.5.0.0/24' } }
    const routes = [
      route('10.5.0.0/16', 'flannel0'),
      route('10.5.0.0/20', 'eth1'),
      route('10.5.77.0/24', 'eth1', '192.0.2.2'),
    ]
    expect(look('routes', { ...withStatus(first), routes })).toEqual([
      'foreign-route: 10.5.0.0/20 goes to eth1',
      'foreign-route: 10.5.77.0/24 goes via 192.0.2.2 to eth1',
    ])
  })

  it('finds a subnet inside another one in any order of the leases', () => {
    const [large, small, other] = ['10.5.8.0/23', '10.5.8.0/25', '10.5.4.0/24'].map((subnet, at) => ({
      ...peer,
      lease: subnet,
      subnet,
      publicIp: `192.0.2.${20 + at}`,
    })) as [PeerStatus, PeerStatus, PeerStatus]
    for (const list of [
      [large, small, other],
      [small, large, other],
      [other, small, large],
      [small, other, large],
    ])
      expect(look('leases', withPeers(...list))).toEqual([
        'subnet-twice: 10.5.8.0/23 of 192.0.2.20 and 10.5.8.0/25 of 192.0.2.21',
      ])
  })

  it('uses the MTU of the external interface, and all addresses of a bridge', () => {
    const lo = link('lo', 1000, '127.0.0.1')
    expect(look('mtu', { links: [lo, ...sound.links] })).toEqual([])
    const [eth0, cni0] = [link('eth0', 1500, '192.0.2.1'), link('cni0', 1500, '10.5.1.1')]
    const two = {
      ...cni0,
      addresses: { ...cni0.addresses, ipv4: [...link('x', 0, '169.254.1.1').addresses.ipv4, ...cni0.addresses.ipv4] },
    }
    expect(look('mtu', { links: [eth0, two] })).toEqual(['bridge-mtu: cni0 has MTU 1500, the data path 1472'])
    expect(look('mtu', { links: [eth0, { ...two, name: 'my-cni' }] })).toEqual([])
  })
})

describe('each check alone', () => {
  const look = (check: string, part: Partial<Facts>) =>
    diagnose({ ...sound, ...part })
      .find((one) => one.check === check)
      ?.findings?.map(({ name, detail }) => (detail === '' ? name : `${name}: ${detail}`))
  const path = status.dataPath!
  const withPath = (part: Partial<NonNullable<Status['dataPath']>>): Partial<Facts> =>
    withStatus({ dataPath: { ...path, ...part } })
  const withStore = (part: Partial<Status['store']>): Partial<Facts> =>
    withStatus({ store: { ...status.store, ...part } })

  it.each<[string, Partial<Facts>, string[]]>([
    ['this user may not ask weftd', { isRoot: false, isForbidden: true, silence: 'EACCES' }, ['not-root']],
    [
      'weftd is dead, and left no data path',
      { silence: 'no socket', ...withStatus({ dataPath: null }) },
      ['daemon-silent: no socket'],
    ],
    [
      'weftd is dead, and something else carries the packets',
      { silence: 'no socket', ...withPath({ engine: 'none' }) },
      ['daemon-silent: no socket'],
    ],
    [
      'weftd is dead, and it is not known what carried the packets',
      { silence: 'no socket', ...withPath({ engine: null }) },
      ['daemon-silent: no socket'],
    ],
    [
      'weftd is dead, and no eBPF program carried packets',
      { silence: 'no socket', ...withPath({ fastPath: OFF }) },
      ['daemon-silent: no socket', 'daemon-silent: the packets of this node are not forwarded'],
    ],
    ['nothing is known of weftd', { silence: '', status: undefined, unit: '' }, ['daemon-silent']],
    [
      'the data path is down, and a thread hangs',
      withStatus({
        trouble: 'no device',
        dataPath: { ...path, open: false, threads: [{ name: 'a', hungSeconds: 9 }] },
      }),
      ['data-path-down: no device'],
    ],
    ['the data path does not exist yet', withStatus({ dataPath: null }), []],
    [
      'weftd is impaired by rules, a bypass and peers',
      withStatus({
        impairments: [
          { by: 'bypass', what: 'unencrypted' },
          { by: 'peers', what: 'silent' },
          { by: 'rules', what: 'iptables' },
        ],
      }),
      ['rules-failing: iptables', 'path-bypassed: unencrypted'],
    ],
    ['the eBPF programs run', withPath({ fastPath: { ...OFF, isActive: true } }), []],
    ['the eBPF programs do not run', withPath({ fastPath: OFF }), ['fast-path-off: VerifySource is "off"']],
    [
      'the eBPF programs do not run without a reason',
      withPath({ fastPath: { ...OFF, reason: null } }),
      ['fast-path-off'],
    ],
    [
      'a cloud lacks the route of this node, and its table is nearly full',
      counting({ route_missing: 1, table_routes: 48, table_limit: 50 }),
      ['route-unpublished', 'route-table-full: 48 of 50 routes'],
    ],
    ['the cloud has the route', counting({ route_missing: 0, table_limit: 0, peers_without_keys: 0 }), []],
    ['charon has no key for one peer', counting({ peers_without_keys: 1 }), ['peers-without-keys: 1 peers']],
    [
      'it starts as a user',
      { isRoot: false, ...withStatus({ state: 'forwarding', trouble: 'etcd: refused' }) },
      ['not-root', 'daemon-as-known: etcd: refused'],
    ],
    [
      'weftd leaves',
      withStatus({ state: 'leaving', trouble: 'a successor takes over' }),
      ['daemon-leaves: a successor takes over'],
    ],
  ])('daemon: %s', (_name, part, expected) => expect(look('daemon', part)).toEqual(expected))

  it.each<[string, Partial<Facts>, string[]]>([
    ['all is well', {}, []],
    ['a capability is missing, but an earlier weftd opened the device', { lacksNetAdmin: true }, []],
    ['a capability is missing', { lacksNetAdmin: true, ...withPath({ open: false }) }, ['capability-missing']],
    [
      'a capability and the device are missing',
      { lacksNetAdmin: true, tunProblem: 'ENOENT', status: undefined },
      ['capability-missing', 'tun-missing: ENOENT'],
    ],
    [
      'a capability is missing, but the kernel carries the packets',
      { lacksNetAdmin: true, ...withPath({ engine: 'kernel', open: false }) },
      [],
    ],
    [
      'a capability is missing, but nothing carries packets',
      { lacksNetAdmin: true, ...withPath({ engine: 'none', open: false }) },
      [],
    ],
    ['the device cannot be opened for another reason', { tunProblem: 'EIO' }, ['tun-missing: EIO']],
  ])('tun: %s', (_name, part, expected) => expect(look('tun', part)).toEqual(expected))

  const dualStatus = soundDual.status
  const dual = (part: Partial<NonNullable<Status['dataPath']>>, facts: Partial<Facts> = {}): Partial<Facts> => ({
    ...soundDual,
    status: { ...dualStatus, dataPath: { ...dualStatus.dataPath, ...part } },
    ...facts,
  })
  it.each<[string, Partial<Facts>, string[]]>([
    ['a dual-stack network', dual({}), []],
    ['IPv6 is not carried', dual({ families: ['ipv4'] }), ['family-not-carried: fd00:5::/48']],
    ['IPv6 is not carried yet', dual({ families: ['ipv4'], open: false }), []],
    ['IPv4 is down', dual({ lacking: { ipv4: 'no device', ipv6: null } }), ['family-down: IPv4: no device']],
    [
      'both addresses are gone',
      dual({ addressGone: { ipv4: 'a', ipv6: 'b' } }),
      ['address-gone: IPv4: a', 'address-gone: IPv6: b'],
    ],
    [
      'the address is gone, in a network of one family',
      withPath({ addressGone: { ipv4: 'a', ipv6: null } }),
      ['address-gone: IPv4: a'],
    ],
    ['a family is down that the network does not have', withPath({ lacking: { ipv4: null, ipv6: 'no device' } }), []],
    [
      'no default route of IPv6',
      { ...soundDual, defaultRoutes: { ipv4: true, ipv6: false } },
      ['no-default-route: IPv6'],
    ],
    ['no default route of IPv4', { ...soundDual, defaultRoutes: { ipv4: false } }, ['no-default-route: IPv4']],
    ['routes that were not read', { ...soundDual, defaultRoutes: {} }, []],
    ['no default route, in a network of one family', { defaultRoutes: { ipv4: false } }, []],
  ])('families: %s', (_name, part, expected) => expect(look('families', part)).toEqual(expected))

  it('families: the remedy for a disabled IPv6 is only for the interface that lost its address', () => {
    const fixes = (externalInterface: string | null, ...withoutIpv6: string[]) =>
      diagnose({
        ...sound,
        ...dual({ addressGone: { ipv4: 'a', ipv6: 'b' } }, { withoutIpv6 }),
        status: {
          ...dualStatus,
          node: { ...dualStatus.node, externalInterface },
          dataPath: { ...dualStatus.dataPath, addressGone: { ipv4: 'a', ipv6: 'b' } },
        },
      })
        .flatMap(({ findings = [] }) => findings)
        .flatMap(({ name, detail, fix }) => (name === 'address-gone' ? [`${detail}: ${fix}`] : []))
    const first = 'first remove the fault that `ipv6-disabled` names'
    expect(fixes('eth0', 'eth0')).toEqual(['IPv4: a: undefined', `IPv6: b: ${first}`])
    expect(fixes('eth0', 'flannel-v6.1', 'eth0')).toEqual(['IPv4: a: undefined', `IPv6: b: ${first}`])
    expect(fixes('eth0', 'flannel-v6.1')).toEqual(['IPv4: a: undefined', 'IPv6: b: undefined'])
  })

  it.each<[string, Partial<Facts>, string[]]>([
    ['the kernel forwards nothing', { isForwarding: false }, ['forwarding-off']],
    ['the configuration is not known', { isForwarding: false, ...withStatus({ config: null }) }, ['forwarding-off']],
    ['there is no status', { isForwarding: false, status: undefined }, ['forwarding-off']],
    ['the network has IPv6 alone', { ...soundIpv6, isForwarding: false }, []],
    ['IPv6 is not forwarded', { ...soundDual, isForwardingIpv6: false }, ['forwarding-off-ipv6']],
    [
      'bridges bypass iptables in Kubernetes',
      { ...withStore({ name: 'kubernetes' }), bridgeFilter: '0' },
      ['bridge-filter-off'],
    ],
    ['bridges pass iptables in Kubernetes', { ...withStore({ name: 'kubernetes' }), bridgeFilter: '1' }, []],
    ['bridges bypass iptables without Kubernetes', { bridgeFilter: '0' }, []],
    [
      'two interfaces do not forward',
      { unforwarded: ['cni0', 'docker0'] },
      [
        'interface-forwarding-off: net.ipv4.conf.cni0.forwarding is 0',
        'interface-forwarding-off: net.ipv4.conf.docker0.forwarding is 0',
      ],
    ],
    [
      '95 percent of the connections are in use',
      { tracking: { entries: 950, limit: 1000 } },
      ['tracking-full: 950 connections, and net.netfilter.nf_conntrack_max is 1000'],
    ],
    ['94 percent of the connections are in use', { tracking: { entries: 949, limit: 1000 } }, []],
  ])('forwarding: %s', (_name, part, expected) => expect(look('forwarding', part)).toEqual(expected))

  const dead = { silence: 'no socket' }
  it.each<[string, Partial<Facts>, string[] | undefined]>([
    ['a dead weftd, and a store that was not asked', { ...dead, store: undefined }, undefined],
    ['a dead weftd, and a store that answers', { ...dead, store: {} }, []],
    [
      'a dead weftd, and a store that is away',
      { ...dead, store: { problem: 'etcd: refused' } },
      ['store-away: etcd: refused'],
    ],
    [
      'a dead weftd, and no configuration',
      { ...dead, store: { invalid: 'none defined' } },
      ['config-missing: none defined'],
    ],
    [
      'a dead weftd, and a store that is away, whatever its last status said',
      { ...dead, ...withStore({ reachable: false, held: 3, comparedSecondsAgo: 999 }), store: {} },
      [],
    ],
    [
      'no lease, and no configuration',
      { ...withStatus({ node: null }), store: { invalid: 'none defined' } },
      ['config-missing: none defined'],
    ],
    ['no lease', withStatus({ node: null }), undefined],
    ['no status', { status: undefined, store: {} }, undefined],
    [
      'a store that is away for weftd',
      withStore({ reachable: false, held: 2 }),
      ['store-away: etcd: http://192.0.2.9:2379 /n'],
    ],
    [
      'a store that is up to date after 180 s, but holds peers back',
      withStore({ comparedSecondsAgo: 180, held: 2 }),
      ['peers-held: 2 peers'],
    ],
    [
      'peers that are held back, and no configuration',
      withStore({ held: 1, configGone: true }),
      ['peers-held: 1 peers', 'config-missing: etcd: http://192.0.2.9:2379 /n'],
    ],
    [
      'an invalid configuration, which weftd ignores',
      { ...withStore({ configGone: true }), store: { invalid: 'not JSON' } },
      ['config-missing: not JSON'],
    ],
    [
      'an invalid configuration, of which weftd does not know yet',
      { store: { invalid: 'not JSON' } },
      ['config-missing: not JSON'],
    ],
  ])('store: %s', (_name, part, expected) => expect(look('store', part)).toEqual(expected))

  const other = { ...status.config!, backendType: 'vxlan' }
  const says = 'but the configuration in the store says'
  it.each<[string, Partial<Facts>, string[] | undefined]>([
    ['a store that was not asked', { store: undefined }, undefined],
    ['a store that is away', { store: { problem: 'etcd: refused' } }, undefined],
    [
      'a store that is away, although weftd compared',
      { ...withStore({ configDiffers: true }), store: { problem: 'etcd: refused' } },
      [expect.stringContaining('an earlier configuration than the one in the store')],
    ],
    ['a configuration that is gone', withStore({ configDiffers: true, configGone: true }), []],
    ['a dead weftd, which compared before', { ...dead, ...withStore({ configDiffers: true }) }, []],
    ['the same configuration', { store: { config: status.config } }, []],
    [
      'the same configuration apart from a secret, which weftd found',
      { ...withStore({ configDiffers: true }), store: { config: status.config } },
      [expect.stringContaining('in a value that is not shown, such as a PSK')],
    ],
    ['no status', { status: undefined, store: { config: status.config } }, []],
    [
      'another backend',
      { store: { config: other } },
      [
        `config-differs: this node runs udp, ${says} vxlan`,
        `config-differs: 10.5.2.0/24 at 192.0.2.2 runs udp, alloc or a cloud backend, ${says} vxlan`,
      ],
    ],
    [
      'another backend, which this node uses at its next start',
      { ...dead, ...withPeers(), store: { config: other } },
      [],
    ],
    [
      'another network',
      { store: { config: { ...status.config!, network: '10.6.0.0/16' } } },
      [`config-differs: this node has the network 10.5.0.0/16, ${says} udp`],
    ],
    [
      'another network of IPv6',
      { ...withDual(), store: { config: { ...dualStatus.config, ipv6Network: 'fd00:6::/48' } } },
      [`config-differs: this node has the network 10.5.0.0/16 and fd00:5::/48, ${says} vxlan`],
    ],
    [
      'another value of an option',
      { store: { config: { ...status.config!, backend: { Port: 9000 } } } },
      [`config-differs: this node runs udp with other options, ${says} udp`],
    ],
    [
      'another value of an option, which weftd found too',
      { ...withStore({ configDiffers: true }), store: { config: { ...status.config!, backend: { Port: 9000 } } } },
      [`config-differs: this node runs udp with other options, ${says} udp`],
    ],
    [
      'a backend that this weft does not know, and peers with another',
      { store: { config: { ...status.config!, backendType: 'of-tomorrow' } } },
      [`config-differs: this node runs udp, ${says} of-tomorrow`],
    ],
    ['peers that are not known', { ...withStatus({ peers: null }), store: { config: status.config } }, []],
    [
      'a peer of another backend',
      { ...withPeers({ type: 'host-gw' }), store: { config: status.config } },
      [`config-differs: 10.5.2.0/24 at 192.0.2.2 runs host-gw, ${says} udp`],
    ],
  ])('config: %s', (_name, part, expected) => expect(look('config', part)).toEqual(expected))

  it.each<[string, Partial<Facts>, string[] | undefined]>([
    ['the store does not report its time, and the lease is renewed', { storeAheadMs: undefined }, []],
    ['the store reports its time, and there is no lease', withStatus({ lease: null }), []],
    ['neither is known', { storeAheadMs: undefined, ...withStatus({ lease: null }) }, undefined],
    ['the lease of a dead weftd is not compared', { ...dead, storeAheadMs: undefined }, undefined],
    ['nothing of weftd is known', { status: undefined, storeAheadMs: undefined }, undefined],
    [
      'the clock of this host and the lease disagree, but the store is right',
      { storeAheadMs: 90_400, now: NOW - 7_200_000 },
      ["clock-off: 90 s behind the store's"],
    ],
  ])('clock: %s', (_name, part, expected) => expect(look('clock', part)).toEqual(expected))

  it.each<[string, Partial<Facts>, string[] | undefined]>([
    ['weftd is dead', { ...losing({ tx_drop_too_big: 99 }), ...dead }, undefined],
    ['weftd has counted for too short a time', withPath({ recent: null }), undefined],
    ['there is no status', { status: undefined }, undefined],
    [
      'a queue is full, for which UDP would not be joined',
      withPath({ features: ['tun-uso'], recent: { seconds: 60, packets: 18, drops: { tx_drop_queue_full: 99 } } }),
      ['packets-dropped: tx_drop_queue_full: 99 in the last 60 s'],
    ],
    ['unknown hosts send, with etcd', losing({ rx_drop_unknown_sender: 40 }), []],
    [
      'unknown hosts send, with a directory',
      { status: { ...losing({ rx_drop_unknown_sender: 40 }).status!, store: { ...status.store, name: 'directory' } } },
      ['unknown-senders: rx_drop_unknown_sender: 40 in the last 64 s'],
    ],
    [
      'a peer of WireGuard sends from another subnet, with a directory',
      {
        status: {
          ...losing({ rx_drop_unknown_sender: 40 }).status!,
          store: { ...status.store, name: 'directory' },
          config: { ...status.config!, backendType: 'wireguard' },
        },
      },
      ['source-outside: rx_drop_unknown_sender: 40 in the last 64 s'],
    ],
    ['the configuration is gone', { status: { ...losing({ rx_drop_unknown_sender: 40 }).status!, config: null } }, []],
    [
      'the kernel refuses packets',
      losing({ tx_drop_refused: 99 }),
      ['packets-dropped: tx_drop_refused: 99 in the last 64 s'],
    ],
  ])('drops: %s', (_name, part, expected) => expect(look('drops', part)).toEqual(expected))

  it('routes: a wrong route of the main table is reported once', () => {
    const kernelRoutes = routesBy({ host: { device: 'eth1' } })
    expect(look('routes', { kernelRoutes })).toEqual(['foreign-route: 10.5.2.0/24 goes to eth1'])
    const routes = [...sound.routes, route('10.5.2.0/24', 'eth1')]
    expect(look('routes', { kernelRoutes, routes })).toEqual(['foreign-route: 10.5.2.0/24 goes to eth1'])
    expect(look('routes', { kernelRoutes, routes: [] })).toEqual(['no-route: 10.5.0.0/16'])
  })

  it('firewall: reports policies and programs even if weft doctor cannot read rules', () => {
    const unread = { iptables: undefined, nft: undefined }
    expect(look('firewall', unread)).toBeUndefined()
    expect(look('firewall', { ...unread, ipsec: blocking })).toEqual([expect.stringMatching(/^ipsec-blocked: /)])
    const programs = [{ device: 'eth0', what: 'an XDP program' }]
    expect(look('firewall', { ...unread, programs, ...withPeers({ lossPercent: 30 }) })).toEqual([
      'program-on-path: eth0: an XDP program',
    ])
  })

  it.each<[string, Partial<Facts>]>([
    ['a foreign route', { routes: [...sound.routes, route('10.5.2.0/24', 'eth1')] }],
    ['a policy rule', { kernelRoutes: routesBy({ host: { device: 'ts0', table: 52 } }) }],
    ['a route that the kernel refuses', { kernelRoutes: routesBy({ host: 'EACCES' }) }],
    [
      'a rule that drops what this host sends',
      { iptables: '-P OUTPUT ACCEPT\n-A OUTPUT -p udp -m udp --dport 8285 -j DROP' },
    ],
    ['a policy of IPsec', { ipsec: { ...blocking, policies: [blockPolicy('out', '192.0.2.1/32', '192.0.2.2/32')] } }],
    ['a kernel that refuses packets', losing({ tx_drop_refused: 99 })],
    ['', {}],
    ['a full queue', losing({ tx_drop_queue_full: 99 })],
    ['a missing route', { routes: [] }],
    ['a rule that drops what arrives', { iptables: '-P INPUT ACCEPT\n-A INPUT -p udp -m udp --dport 8285 -j DROP' }],
  ])('peers: the firewall of a peer is not blamed if this host has %s', (name, part) => {
    const silentPeer = { ...peer, ...silentSide, heardSecondsAgo: 3, unansweredSeconds: 20 }
    const facts = { ...part, status: { ...(part.status ?? status), peers: countPeers([silentPeer], 10) } }
    const text = look('peers', { ...facts, answers: new Map() })?.find((line) => line.startsWith('peer-silent')) ?? ''
    expect(text).toMatch(/^peer-silent: .*packets from it arrive/)
    const isOwnFault = !['', 'a full queue', 'a missing route', 'a rule that drops what arrives'].includes(name)
    expect(text.includes('check the firewall on its host first')).toBe(!isOwnFault)
  })

  it('peers: the firewall of a peer is not blamed if the route to the host of another peer is wrong', () => {
    const kernelRoutes = routesBy({ underlay: { device: 'tun7' } })
    const second = { lease: '10.5.3.0-24', subnet: '10.5.3.0/24', publicIp: '192.0.2.3', endpoint: '192.0.2.3:8285' }
    const sending = { ...silentSide, heardSecondsAgo: 3, unansweredSeconds: 20 }
    const facts = withPeers({ ...silentSide }, { ...sending, ...second })
    const said = (part: Partial<Facts>) => look('peers', { ...facts, ...part })?.[1]
    expect(said({ kernelRoutes })).toMatch(/^peer-silent: 10\.5\.3\.0.*or its firewall drops the echo requests$/)
    expect(said({})).toMatch(/^peer-silent: 10\.5\.3\.0.*: check the firewall on its host first$/)
  })

  it.each<[string, Partial<Status>, string[]]>([
    ['the address is gone', { dataPath: { ...path, addressGone: { ipv4: 'gone', ipv6: null } } }, ['address-gone']],
    ['the lease has ended', { lease: { ...status.lease!, expiresAt: '2026-11-21T09:00:00Z' } }, ['clock-off']],
    ['another host has the address', { node: { ...status.node!, twin: 'b' } }, ['address-twice']],
    [
      'packets are dropped',
      { dataPath: { ...path, recent: { seconds: 60, packets: 18, drops: { tx_drop_too_big: 99 } } } },
      ['packets-dropped'],
    ],
    ['long packets are lost', { peers: countPeers([{ ...peer, ...narrow }], 10) }, ['path-mtu']],
    [
      'a key is invalid',
      { peers: countPeers([{ ...peer, ...silentSide, session: { ...noKeys, failure: 'bad-key' } }], 10) },
      ['peer-silent', 'key-unusable'],
    ],
    [
      'weft cannot probe',
      { peers: countPeers([{ ...peer, state: 'programmed', lossPercent: null }], null) },
      ['peers-unasked'],
    ],
    ['the configuration is unknown', { config: null }, []],
    ['weftd needs no rights of this host', { dataPath: { ...path, open: false } }, ['data-path-down']],
  ])('the status page finds it too: %s', (_name, part, expected) =>
    expect(diagnoseStatus({ ...status, ...part }).map(({ name }) => name)).toEqual(expected),
  )
})
