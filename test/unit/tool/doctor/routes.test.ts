// routes.test.ts - weft doctor judges the routes of the main table that lead to the network, as `ip route` prints them.

import { describe, expect, it } from 'vitest'
import { countPeers, type PeerStatus, type Status } from '../../../../src/report/status.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { checkRoutes, hasOneRoute, isOnlyRouteMissing } from '../../../../src/tool/doctor/routes.ts'
import { dualPeer, peerOfIpv6, sound, soundDual, soundIpv6, soundPeer } from '../../../support/facts.ts'
import { mainRoutesIn } from '../../../support/kernel-routes.ts'

const { config, dataPath } = sound.status!
const third: PeerStatus = { ...soundPeer, lease: '10.5.3.0-24', subnet: '10.5.3.0/24', publicIp: '192.0.2.3' }
/** The facts of a node with this backend, with peers and the routes that `ip route` printed. */
const node = (
  backendType: string,
  engine: string | null,
  listing: string,
  peers: readonly PeerStatus[] = [soundPeer, third],
): Facts => ({
  ...sound,
  status: {
    ...sound.status!,
    config: { ...config!, backendType },
    dataPath: { ...dataPath!, engine },
    peers: countPeers(peers, 10),
  },
  routes: mainRoutesIn(listing),
})
const said = (facts: Facts) => checkRoutes(facts)?.map(({ name, detail }) => `${name}: ${detail}`)

const UDP = `
10.5.0.0/16 dev flannel0
10.5.1.0/24 dev cni0 proto kernel scope link src 10.5.1.1`
const VXLAN = `
10.5.1.0/24 dev cni0 proto kernel scope link src 10.5.1.1
10.5.2.0/24 via 10.5.2.0 dev flannel0 onlink
10.5.3.0/24 via 10.5.3.0 dev flannel0 onlink`
const HOST_GW = `
10.5.1.0/24 dev cni0 proto kernel scope link src 10.5.1.1
10.5.2.0/24 via 192.0.2.2 dev eth0
10.5.3.0/24 via 192.0.2.3 dev eth0`

describe('the routes of this host', () => {
  it.each<[string, Facts]>([
    ['the backend udp', node('udp', 'native', UDP)],
    ['vxlan', node('vxlan', 'kernel', VXLAN)],
    ['vxlan that weftd carries', node('vxlan', 'native', UDP)],
    ['wireguard', node('wireguard', 'kernel', UDP)],
    ['host-gw', node('host-gw', 'kernel', HOST_GW)],
    [
      'vxlan with DirectRouting to a peer',
      node('vxlan', 'kernel', VXLAN.replace('via 10.5.3.0 dev flannel0 onlink', 'via 192.0.2.3 dev eth0'), [
        soundPeer,
        { ...third, way: 'direct' },
      ]),
    ],
    [
      'a route to the whole network beside the routes of vxlan',
      node('vxlan', 'kernel', `${VXLAN}\n10.5.0.0/16 dev tun0`),
    ],
    [
      'a part of the own subnet behind a container',
      node('udp', 'native', `${UDP}\n10.5.1.64/26 via 10.5.1.7 dev cni0`),
    ],
    [
      'a container without a bridge, as Calico makes it',
      node('udp', 'native', `${UDP}\n10.5.1.9 dev cali12 scope link`),
    ],
    ['a blackhole for the rest of the own subnet', node('udp', 'native', `${UDP}\nblackhole 10.5.1.0/24 proto bird`)],
    [
      'a route of DHCP with a metric',
      node('udp', 'native', `${UDP}\n10.5.2.0/24 via 192.0.2.254 dev eth0 proto dhcp metric 1`),
    ],
    [
      'routes to other networks',
      node('udp', 'native', `${UDP}\n10.6.0.0/16 dev eth1\n10.0.0.0/8 dev eth1\ndefault via 192.0.2.254 dev eth0`),
    ],
    [
      'no route to a peer that is only in the store, and whose lease is unusable',
      node('vxlan', 'kernel', VXLAN, [
        soundPeer,
        third,
        { ...third, subnet: '10.5.4.0/24', state: 'stored', unusable: true },
      ]),
    ],
    ['no route to a peer of IPv6 alone', node('vxlan', 'kernel', VXLAN, [soundPeer, third, peerOfIpv6()])],
  ])('are right with %s', (_setup, facts) => expect(said(facts)).toEqual([]))

  it.each<[string, Facts, readonly string[]]>([
    [
      'a route of a VPN to the whole network',
      node('udp', 'native', UDP.replace('dev flannel0', 'dev tun0')),
      ['foreign-route: 10.5.0.0/16 goes to tun0'],
    ],
    [
      'an unreachable destination',
      node('udp', 'native', `${UDP}\nunreachable 10.5.2.0/24`),
      ['foreign-route: 10.5.2.0/24 goes to nowhere'],
    ],
    [
      'a router of the containers of this node',
      node('udp', 'native', `${UDP}\n10.5.1.0/25 via 192.0.2.254 dev eth0`),
      ['foreign-route: 10.5.1.0/25 goes via 192.0.2.254 to eth0'],
    ],
    [
      'an IPv6 router of the containers of this node',
      node('udp', 'native', `${UDP}\n10.5.1.0/25 via inet6 fe80::1 dev eth0`),
      ['foreign-route: 10.5.1.0/25 goes via fe80::1 to eth0'],
    ],
    [
      'a network around the own subnet',
      node('udp', 'native', `${UDP}\n10.5.0.0/23 dev eth1`),
      ['foreign-route: 10.5.0.0/23 goes to eth1'],
    ],
    [
      'a route past the tunnel to the host of a peer',
      node('udp', 'native', `${UDP}\n10.5.2.0/24 via 192.0.2.2 dev eth0`),
      ['foreign-route: 10.5.2.0/24 goes via 192.0.2.2 to eth0'],
    ],
    [
      'host-gw through the host of another peer',
      node('host-gw', 'kernel', HOST_GW.replace('via 192.0.2.3', 'via 192.0.2.2')),
      ['foreign-route: 10.5.3.0/24 goes via 192.0.2.2 to eth0'],
    ],
    [
      'a single container of a peer',
      node('udp', 'native', `${UDP}\n10.5.2.7 dev eth1`),
      ['foreign-route: 10.5.2.7/32 goes to eth1'],
    ],
    [
      'a backend that only a newer weftd has',
      node('newer', 'kernel', VXLAN.replace('dev flannel0', 'dev eth1')),
      ['foreign-route: 10.5.2.0/24 goes via 10.5.2.0 to eth1'],
    ],
    [
      'host-gw without a gateway',
      node('host-gw', 'kernel', HOST_GW.replace('via 192.0.2.3 dev eth0', 'dev eth1')),
      ['foreign-route: 10.5.3.0/24 goes to eth1'],
    ],
    [
      'a peer of host-gw that has gone',
      node('host-gw', 'kernel', HOST_GW, [soundPeer]),
      ['foreign-route: 10.5.3.0/24 goes via 192.0.2.3 to eth0'],
    ],
    ['no route of udp', node('udp', 'native', UDP.replace('10.5.0.0/16', '10.4.0.0/16')), ['no-route: 10.5.0.0/16']],
    [
      'only a route of udp that comes later',
      node('udp', 'native', '10.5.0.0/16 dev flannel0 metric 1'),
      ['no-route: 10.5.0.0/16'],
    ],
    ['no routes of vxlan', node('vxlan', 'kernel', UDP), ['no-route: 10.5.2.0/24', 'no-route: 10.5.3.0/24']],
    ['no route of wireguard', node('wireguard', 'kernel', VXLAN), ['no-route: 10.5.0.0/16']],
    [
      'no route of vxlan to a peer whose lease is usable',
      node('vxlan', 'kernel', VXLAN, [soundPeer, third, { ...third, subnet: '10.5.4.0/24', state: 'stored' }]),
      ['no-route: 10.5.4.0/24'],
    ],
  ])('are wrong with %s', (_setup, facts, expected) => expect(said(facts)).toEqual(expected))

  it.each<[string, Facts]>([
    ['no status', { ...sound, status: undefined }],
    ['no configuration', { ...sound, status: { ...sound.status!, config: null } }],
    ['no data path', { ...sound, status: { ...sound.status!, dataPath: null } }],
    ['a data path that has not chosen its engine', node('udp', null, UDP)],
    ['a backend without a data path', node('udp', 'none', UDP)],
    ['ipsec, which has no routes', node('ipsec', 'kernel', UDP)],
    ['a cloud that routes the packets', node('aws-vpc', 'kernel', UDP)],
    [
      'a data path that is not open',
      { ...sound, status: { ...sound.status!, dataPath: { ...dataPath!, open: false } } },
    ],
    [
      'a data path without a family',
      { ...sound, status: { ...sound.status!, dataPath: { ...dataPath!, families: [] } } },
    ],
    ['a node without a subnet', { ...sound, status: { ...sound.status!, node: null } }],
  ])('are not judged with %s', (_setup, facts) => expect(checkRoutes({ ...facts, routes: [] })).toBeUndefined())

  it('are judged if weftd has stopped, because the routes of a stopped weftd must stay', () => {
    const status = { ...sound.status!, dataPath: { ...dataPath!, open: false } }
    expect(said({ ...sound, status, silence: 'weftd does not run', routes: [] })).toEqual(['no-route: 10.5.0.0/16'])
  })

  it('are wrong if a larger network with the address of the own subnet goes elsewhere', () => {
    const listing = `
10.5.0.0/16 dev flannel0
10.5.4.0/24 dev cni0 proto kernel scope link src 10.5.4.1
10.5.4.0/22 dev eth1`
    const of = node('udp', 'native', listing)
    const status = { ...of.status!, node: { ...of.status!.node!, subnet: '10.5.4.0/24' } }
    expect(said({ ...of, status })).toEqual(['foreign-route: 10.5.4.0/22 goes to eth1'])
  })

  it('are wrong without a route to a peer whose lease is unusable only in the other family', () => {
    const peer = { ...dualPeer({}, { state: 'stored' }), unusable: true }
    const status = { ...soundDual.status, peers: countPeers([peer], 10) }
    expect(said({ ...soundDual, status, routes: [] })).toEqual(['no-route: 10.5.2.0/24'])
  })

  it('are judged if weft doctor has not read the peers', () => {
    const of = node('host-gw', 'kernel', '10.5.2.0/24 via 192.0.2.2 dev eth0')
    expect(said({ ...of, status: { ...of.status!, peers: null } })).toEqual([
      'foreign-route: 10.5.2.0/24 goes via 192.0.2.2 to eth0',
    ])
  })
})

describe('the IPv6 routes', () => {
  // `ip -6 route` prints the metric of each route.
  const ROUTES = `
fd00:5:0:1::/64 dev cni0 proto kernel metric 256 pref medium
fd00:5:0:2::/64 via fd00:5:0:2:: dev flannel-v6.1 metric 1024 onlink pref medium`
  const ipv6 = (listing: string): Facts => ({ ...soundIpv6, routes: mainRoutesIn(listing) })

  it.each<[string, string, readonly string[]]>([
    ['of vxlan', ROUTES, []],
    [
      'of another program with the usual metric',
      `${ROUTES}\nfd00:5:0:2::/64 dev eth1 metric 1024`,
      ['foreign-route: fd00:5:0:2::/64 goes to eth1'],
    ],
    ['of another program with a higher metric', `${ROUTES}\nfd00:5:0:2::/64 dev eth1 metric 1025`, []],
    ['that are missing', ROUTES.replace('0:2::/64', '0:3::/64'), ['no-route: fd00:5:0:2::/64']],
  ])('%s', (_what, listing, expected) => expect(said(ipv6(listing))).toEqual(expected))

  it('are not judged if the data path carries only IPv4', () => {
    const status: Status = { ...soundDual.status, dataPath: { ...soundDual.status.dataPath, families: ['ipv4'] } }
    const routes = soundDual.routes.filter(({ destination }) => !destination.includes(':'))
    expect(checkRoutes({ ...soundDual, status, routes })).toEqual([])
    expect(said({ ...soundDual, routes })).toEqual(['no-route: fd00:5:0:2::/64'])
  })

  it('that lead directly to a peer are right only if the data path sends IPv6 packets to this peer directly', () => {
    const direct = mainRoutesIn(`10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink
fd00:5:0:2::/64 via 2001:db8::2 dev eth0 metric 1024 pref medium`)
    const of = (peer: PeerStatus) =>
      said({ ...soundDual, status: { ...soundDual.status, peers: countPeers([peer], 10) }, routes: direct })
    expect(of(dualPeer({}, { way: 'direct' }))).toEqual([])
    expect(of(dualPeer({ way: 'direct' }))).toEqual(['foreign-route: fd00:5:0:2::/64 goes via 2001:db8::2 to eth0'])
  })
})

describe('a peer that is only in the store', () => {
  const status = (backendType: string, engine: string): Status => node(backendType, engine, UDP).status!
  it.each<[string, string, boolean, boolean]>([
    ['vxlan', 'kernel', false, true],
    ['vxlan', 'kernel', true, false],
    ['vxlan', 'native', false, false],
    ['host-gw', 'kernel', false, true],
    ['wireguard', 'kernel', false, false],
    ['udp', 'native', false, false],
    ['ipsec', 'kernel', false, false],
    ['aws-vpc', 'kernel', false, false],
    ['newer', 'kernel', false, true],
  ])(
    'with %s by the engine %s and an unusable lease (%s) lacks only its route: %s',
    (backendType, engine, unusable, expected) =>
      expect(isOnlyRouteMissing(status(backendType, engine), { unusable })).toBe(expected),
  )

  it('has a route of its own unless one route leads to the whole network', () => {
    expect(hasOneRoute(status('vxlan', 'kernel'))).toBe(false)
    expect(hasOneRoute(status('vxlan', 'native'))).toBe(true)
    expect(hasOneRoute(status('wireguard', 'kernel'))).toBe(true)
    expect(hasOneRoute({ ...sound.status!, dataPath: null })).toBe(true)
  })
})
