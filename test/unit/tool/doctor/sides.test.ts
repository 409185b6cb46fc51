// sides.test.ts - the data about nodes in one family, and the interfaces that carry the packets of a family.

import { describe, expect, it } from 'vitest'
import { formatAddress, formatNet, type Family } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'
import type { PeerStatus, Status } from '../../../../src/report/status.ts'
import {
  bridgeOf,
  isOwnDevice,
  kindIn,
  outerIn,
  outersIn,
  ownSides,
  pathLinks,
  portsOf,
  seenSides,
  sideIn,
  sideText,
} from '../../../../src/tool/doctor/sides.ts'
import {
  dualPeer,
  link,
  linkAddress,
  peerOfIpv6,
  silentSide,
  sound,
  soundDual,
  soundIpv6,
  soundPeer,
  soundStatus,
} from '../../../support/facts.ts'

const withBackend = (status: Status, backendType: string, backend: Record<string, unknown> = {}): Status => ({
  ...status,
  config: { ...status.config!, backendType, backend },
})
const dual = soundDual.status

describe('the underlay families', () => {
  it.each<[string, Status, Family, Family[]]>([
    ['udp in a dual-stack network', withBackend(dual, 'udp'), 'ipv4', ['ipv4', 'ipv6']],
    ['udp that prefers IPv6', withBackend(dual, 'udp', { Underlay: 'ipv6' }), 'ipv4', ['ipv6', 'ipv4']],
    ['udp in an IPv4 network', soundStatus, 'ipv4', ['ipv4']],
    ['IPv6 packets of vxlan', dual, 'ipv6', ['ipv6']],
    ['IPv4 packets of vxlan', dual, 'ipv4', ['ipv4']],
    ['WireGuard with one device over IPv6', withBackend(dual, 'wireguard', { Mode: 'ipv6' }), 'ipv4', ['ipv6']],
    ['no configuration', { ...soundStatus, config: null }, 'ipv6', ['ipv6']],
  ])('of %s', (_name, status, family, expected) => {
    expect(outersIn(status, family)).toEqual(expected)
  })

  it.each<[string, string | null | undefined, Family]>([
    ['192.0.2.2:8285', '192.0.2.2:8285', 'ipv4'],
    ['[2001:db8::2]:8285', '[2001:db8::2]:8285', 'ipv6'],
    ['2001:db8::2, without a port', '2001:db8::2', 'ipv6'],
    ['192.0.2.2, without a port', '192.0.2.2', 'ipv4'],
    ['an endpoint that is not known', null, 'ipv4'],
    ['an endpoint that is left out', undefined, 'ipv4'],
    ['an empty endpoint', '', 'ipv4'],
  ])('of a packet to %s', (_name, endpoint, expected) => {
    expect(outerIn(withBackend(dual, 'udp'), 'ipv6', endpoint)).toBe(expected)
  })

  it('follow the order of the backend if the endpoint is not known or has another family', () => {
    const first6 = withBackend(dual, 'udp', { Underlay: 'ipv6' })
    expect(outerIn(first6, 'ipv4', null)).toBe('ipv6')
    expect(outerIn(first6, 'ipv4', '192.0.2.2:8285')).toBe('ipv4')
    // The kernel's vxlan sends IPv6 packets over IPv6, whatever endpoint an old status shows.
    expect(outerIn(dual, 'ipv6', '192.0.2.2:8472')).toBe('ipv6')
    expect(outerIn({ config: null }, 'ipv6', '192.0.2.2:8472')).toBe('ipv6')
  })
})

describe('the sides of this node', () => {
  const sides = (status: Pick<Status, 'config' | 'node'>): string[] =>
    ownSides(status).map(({ family, network, subnet }) => `${family} ${formatNet(network)} ${formatNet(subnet)}`)
  const own4 = 'ipv4 10.5.0.0/16 10.5.1.0/24'
  const own6 = 'ipv6 fd00:5::/48 fd00:5:0:1::/64'

  it.each<[string, Pick<Status, 'config' | 'node'>, string[]]>([
    ['a dual-stack node', dual, [own4, own6]],
    ['an IPv4 node', soundStatus, [own4]],
    ['an IPv6 node', soundIpv6.status!, [own6]],
    ['a node that has no IPv6 subnet yet', { ...dual, node: { ...dual.node, ipv6Subnet: null } }, [own4]],
    ['a node that left a dual-stack network', { ...dual, config: soundStatus.config }, [own4]],
    ['a node without configuration', { ...dual, config: null }, []],
    ['a node without a lease', { ...dual, node: null }, []],
  ])('of %s', (_name, status, expected) => expect(sides(status)).toEqual(expected))
})

describe('the device of the data path', () => {
  const owns = (status: Pick<Status, 'dataPath' | 'config'>, family: Family, ...names: string[]): string[] =>
    names.filter((name) => isOwnDevice(status, family, name))

  it('has the name that the status reports for the family', () => {
    expect(owns(soundStatus, 'ipv4', 'flannel0', 'flannel1', 'eth0')).toEqual(['flannel0'])
    expect(owns(dual, 'ipv4', 'flannel.1', 'flannel-v6.1', 'eth0')).toEqual(['flannel.1'])
    // Packets of IPv6 that reach the device of IPv4 are inside the data path as well.
    expect(owns(dual, 'ipv6', 'flannel.1', 'flannel-v6.1', 'eth0')).toEqual(['flannel.1', 'flannel-v6.1'])
  })

  it('is known by its name before weftd knows the families or the configuration', () => {
    const unknown = { ...soundStatus.dataPath!, devices: { ipv4: null, ipv6: null } }
    expect(owns({ dataPath: unknown, config: null }, 'ipv4', 'flannel0', 'flannel1')).toEqual(['flannel0'])
    expect(owns({ dataPath: dual.dataPath, config: null }, 'ipv6', 'flannel-v6.1', 'flannel-v6.2')).toEqual([
      'flannel-v6.1',
    ])
  })

  it('is known by the names of the backend if the status has no device for IPv6', () => {
    const ipv4Alone = { ...dual, dataPath: { ...dual.dataPath, devices: { ipv4: 'flannel.1', ipv6: null } } }
    expect(owns(ipv4Alone, 'ipv6', 'flannel-v6.7', 'flannel.7', 'flannel-wg-v6', 'cni0')).toEqual([
      'flannel-v6.7',
      'flannel.7',
    ])
    expect(owns(ipv4Alone, 'ipv4', 'flannel-v6.7', 'flannel.7')).toEqual([])
    expect(owns({ ...ipv4Alone, dataPath: null }, 'ipv6', 'flannel-v6.7', 'eth0')).toEqual(['flannel-v6.7'])
    expect(owns({ dataPath: null, config: null }, 'ipv6', 'flannel-v6.7', 'flannel.7')).toEqual([])
    // host-gw has no devices of its own.
    const gateway = { ...withBackend(dual, 'host-gw'), dataPath: null }
    expect(owns(gateway, 'ipv6', 'flannel-v6.7', 'eth0', '')).toEqual([])
  })
})

describe('the sides of a peer', () => {
  it('have the results of the probes of their family', () => {
    const answers = new Map([
      [dualPeer().lease, { ipv4: { small: true, large: true }, ipv6: { small: true, large: false, longest: 1280 } }],
      ['10.5.9.0-24', { ipv4: { small: false, large: false } }],
    ])
    expect(seenSides(dualPeer(), answers).map(({ family, answers: own }) => [family, own])).toEqual([
      ['ipv4', { small: true, large: true }],
      ['ipv6', { small: true, large: false, longest: 1280 }],
    ])
    expect(seenSides(soundPeer, answers)).toMatchObject([{ family: 'ipv4', answers: undefined }])
    expect(seenSides(peerOfIpv6(), answers)).toMatchObject([{ family: 'ipv6', answers: undefined }])
  })

  it('have the addresses and all measurements of their family', () => {
    const known = {
      endpoint: '[2001:db8::2]:8472',
      way: 'tunnel',
      state: 'programmed',
      roundTripMs: 9,
      lossPercent: 40,
      probedSecondsAgo: 7,
      unansweredSeconds: 6,
      pathMtu: 1300,
      path: 'narrow',
      passesBytes: 1280,
      pathSince: '2026-11-22T09:00:00Z',
      session: null,
    } as const
    const side = sideIn(dualPeer({}, known), 'ipv6')
    expect(side).toMatchObject({ ...known, family: 'ipv6' })
    expect([formatNet(side.subnet!), formatAddress(side.publicIp!)]).toEqual(['fd00:5:0:2::/64', '2001:db8::2'])
    expect(sideIn(dualPeer({}, known), 'ipv4')).toMatchObject({ state: 'answering', lossPercent: 0, pathMtu: null })
  })

  it('are stored and have no measurements in a family that the peer lacks', () => {
    const side = sideIn(soundPeer, 'ipv6')
    expect(side).toMatchObject({ state: 'stored', family: 'ipv6', subnet: undefined, publicIp: undefined })
    const { state: _state, ...measured } = side
    expect([measured.endpoint, measured.way, measured.roundTripMs, measured.lossPercent]).toEqual(
      Array.from({ length: 4 }, () => null),
    )
    expect(measured.answers).toBeUndefined()
  })
})

describe('the text of a peer', () => {
  const text = (peer: PeerStatus, family: Family): string => sideText(sideIn(peer, family))

  it.each<[string, PeerStatus, Family, string]>([
    ['without a name', soundPeer, 'ipv4', '10.5.2.0/24 at 192.0.2.2:8285'],
    ['with a name', { ...soundPeer, name: 'host2' }, 'ipv4', 'host2 (10.5.2.0/24) at 192.0.2.2:8285'],
    ['in IPv6', dualPeer(), 'ipv6', 'fd00:5:0:2::/64 at [2001:db8::2]:8472'],
    ['that does not answer', { ...soundPeer, ...silentSide }, 'ipv4', '10.5.2.0/24 at 192.0.2.2:8285'],
    ['without an endpoint', { ...soundPeer, endpoint: null }, 'ipv4', '10.5.2.0/24 at 192.0.2.2'],
    // The endpoint of a lease that weftd does not use may be out of date.
    ['that is only stored', dualPeer({}, { state: 'stored' }), 'ipv6', 'fd00:5:0:2::/64 at 2001:db8::2'],
    ['that has no IPv6', soundPeer, 'ipv6', '10.5.2.0/24 at 192.0.2.2'],
  ])('%s', (_name, peer, family, expected) => expect(text(peer, family)).toBe(expected))
})

const subnet4 = parseIpv4Net('10.5.1.0/24')!
const subnet6 = parseIpv6Net('fd00:5:0:1::/64')!
const with6 = (name: string, address: string, prefixLength: number) => ({
  ...link(name, 1430, '0.0.0.0'),
  addresses: { ipv4: [], ipv6: [linkAddress(parseIpv6(address)!, prefixLength)] },
})
const with4 = (name: string, address: string, prefixLength: number) => ({
  ...link(name, 1430, '0.0.0.0'),
  addresses: { ipv4: [linkAddress(parseIpv4(address)!, prefixLength)], ipv6: [] },
})

describe('the bridge of the containers', () => {
  it.each([
    ['the interface with an address of the subnet', [...sound.links], subnet4, 'cni0'],
    ['Docker with its own bridge', [with4('docker0', '10.5.1.1', 24)], subnet4, 'docker0'],
    ['none without such an address', [link('eth0', 1500, '192.0.2.1')], subnet4, undefined],
    // Calico and Cilium give each container a route, and an interface of the host an address for one host.
    ['none for the address of a single host', [with4('lo', '10.5.1.1', 32)], subnet4, undefined],
    ['none for the IPv6 address of a single host', [with6('lo', 'fd00:5:0:1::1', 128)], subnet6, undefined],
    ['a bridge with a subnet of two addresses', [with4('br0', '10.5.1.1', 31)], subnet4, 'br0'],
    ['a bridge with IPv6', [with6('cni0', 'fd00:5:0:1::1', 64)], subnet6, 'cni0'],
    ['a bridge with a prefix longer than those of IPv4', [with6('cni0', 'fd00:5:0:1::1', 96)], subnet6, 'cni0'],
    ['none of two', [with4('cni0', '10.5.1.1', 24), with4('docker0', '10.5.1.1', 24)], subnet4, undefined],
    [
      'the bridge, not the device of the data path',
      [with4('flannel0', '10.5.1.0', 16), with4('cni0', '10.5.1.1', 24)],
      subnet4,
      'cni0',
    ],
  ])('is %s', (_name, links, subnet, expected) => {
    expect(bridgeOf(links, subnet, soundStatus)).toBe(expected)
  })

  it('may be found without the status of weftd', () => {
    expect(bridgeOf(sound.links, subnet4, undefined)).toBe('cni0')
  })

  it('is not a device of the backend with an IPv6 address of the subnet', () => {
    const links = [with6('flannel-v6.1', 'fd00:5:0:1::', 64), with6('cni0', 'fd00:5:0:1::1', 64)]
    expect(bridgeOf(links, subnet6, dual)).toBe('cni0')
  })
})

it('lists the interfaces that packets pass: the external interface, the bridge and the devices of the data path', () => {
  const device = (name: string) => link(name, 1430, '203.0.113.1')
  const names = (status: Status, ...more: string[]): string[] =>
    pathLinks(status, [...soundDual.links, ...more.map(device)]).map(({ name }) => name)
  expect(names(dual, 'flannel.1', 'flannel-v6.1', 'tun7')).toEqual(['eth0', 'cni0', 'flannel.1', 'flannel-v6.1'])
  expect(names({ ...dual, dataPath: null }, 'flannel.1')).toEqual(['eth0', 'cni0'])
  expect(names({ ...dual, node: null }, 'flannel.1')).toEqual(['flannel.1'])
})

it('lists the ports of a bridge, and none for an unknown interface', () => {
  const port = (name: string, index: number, master: number) => ({ ...link(name, 1430, '0.0.0.0'), index, master })
  const links = [port('eth0', 2, 0), port('cni0', 7, 0), port('veth1', 8, 7), port('veth2', 9, 7), port('veth3', 10, 3)]
  expect(portsOf(links, 'cni0')).toEqual(['veth1', 'veth2'])
  expect(portsOf(links, 'eth0')).toEqual([])
  // Interfaces that are not ports of a bridge have the master 0.
  expect(portsOf(links, 'docker0')).toEqual([])
})

it('knows no backend without a status', () => {
  expect(kindIn(undefined)).toBeUndefined()
})
