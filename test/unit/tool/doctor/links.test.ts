// links.test.ts - weft doctor judges MTUs, the bridges of containers and subnet.env by the addresses and routes of this host.

import { describe, expect, it } from 'vitest'
import type { Link } from '../../../../src/host/kernel.ts'
import { parseAddress, parseNet } from '../../../../src/net/address.ts'
import { countPeers, type PeerStatus, type Status } from '../../../../src/report/status.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import type { Finding } from '../../../../src/tool/doctor/findings.ts'
import { checkContainers, checkMtu, unaddressedBridges } from '../../../../src/tool/doctor/links.ts'
import {
  link,
  linkAddress,
  route,
  sound,
  soundDual,
  soundIpv6,
  soundPeer,
  soundStatus as status,
} from '../../../support/facts.ts'

const lines = (findings: readonly Finding[] | undefined): string[] | undefined =>
  findings?.map(({ name, detail }) => `${name}: ${detail}`)

/** Returns an interface with these addresses and prefix lengths, such as `10.5.1.1/24`. */
const device = (name: string, texts: readonly string[], part: Partial<Link> = {}): Link => {
  const nets = texts.map((text) => {
    const [address = '', length = ''] = text.split('/')
    return linkAddress(parseAddress(address)!, Number(length))
  })
  const ipv4 = nets.flatMap((net) => (typeof net.address === 'number' ? [{ ...net, address: net.address }] : []))
  const ipv6 = nets.flatMap((net) => (typeof net.address === 'bigint' ? [{ ...net, address: net.address }] : []))
  return { ...link(name, 1472, '0.0.0.0'), ...part, addresses: { ipv4, ipv6 } }
}
const eth0 = device('eth0', ['192.0.2.1/24'], { mtu: 1500 })
/** Returns a bridge with these addresses, and with one port, to which a container is attached. */
const bridge = (name: string, texts: readonly string[], part: Partial<Link> = {}, portType = 'veth'): Link[] => {
  const index = 100 + [...Buffer.from(name)].reduce((sum, byte) => sum * 7 + byte, 0)
  return [
    device(name, texts, { index, type: 'bridge', ...part }),
    device(`veth${index}`, [], { index: index + 1, type: portType, master: index }),
  ]
}

describe('the MTU', () => {
  const mtu = (part: Partial<Facts>, from: Facts = sound) => lines(checkMtu({ ...from, ...part }))
  const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })
  const withPath = (part: Partial<NonNullable<Status['dataPath']>>) =>
    withStatus({ dataPath: { ...status.dataPath!, ...part } })
  /** A peer with the subnet 10.5.NUMBER.0/24. */
  const numbered = (number: number, part: Partial<PeerStatus> = {}): PeerStatus => ({
    ...soundPeer,
    lease: `10.5.${number}.0-24`,
    subnet: `10.5.${number}.0/24`,
    ...part,
  })
  const narrow = { path: 'narrow', passesBytes: 1252, pathSince: '2026-11-22T09:00:00Z' } as const
  const peers = (...list: PeerStatus[]): Partial<Facts> => ({
    ...withStatus({ peers: countPeers(list, 10) }),
    answers: new Map(),
  })

  it.each<[string, Partial<Facts>]>([
    ['no status', { status: undefined }],
    ['no lease', withStatus({ node: null })],
    ['no configuration', withStatus({ config: null })],
    ['no data path', withStatus({ dataPath: null })],
    ['no MTU', withPath({ mtu: null })],
    ['an unreadable subnet', withStatus({ node: { ...status.node!, subnet: 'x' } })],
  ])('is not known with %s', (_name, part) => expect(mtu(part)).toBeUndefined())

  it('is compared with the external interface even if no peer is known', () => {
    expect(mtu(withStatus({ peers: null }))).toEqual([])
    expect(mtu({ ...withStatus({ peers: null }), links: [{ ...eth0, mtu: 1400 }] })).toEqual([
      "mtu-too-large: 1472 bytes plus the tunnel's headers are 1500, but the MTU of eth0 is 1400",
    ])
    // The interface may have been removed.
    expect(mtu({ links: [device('eth1', ['192.0.2.1/24'], { mtu: 576 })] })).toEqual([])
  })

  it('is not the cause if a peer answers no packets at all', () => {
    const answers = (small: boolean, large: boolean, longest?: number): Facts['answers'] =>
      new Map([['10.5.2.0-24', { ipv4: { small, large, longest } }]])
    expect(mtu({ answers: answers(false, false) })).toEqual([])
    expect(mtu({ answers: answers(true, true) })).toEqual([])
    expect(mtu({ answers: answers(true, false, 1400) })).toEqual([
      expect.stringMatching(
        /^path-mtu: 10\.5\.2\.0\/24 .* get no answer, packets of up to 1400 do; check the external/,
      ),
    ])
  })

  it('reports only the newer result if weft doctor and weftd probed the same peer', () => {
    const answers: Facts['answers'] = new Map([['10.5.2.0-24', { ipv4: { small: true, large: false } }]])
    const [line = '', ...others] = mtu({ ...peers(numbered(2, narrow)), answers }) ?? []
    expect(others).toEqual([])
    expect(line).toContain('get no answer since 2026-11-22T09:00:00Z;')
    expect(line).not.toContain('1252')
    // weftd reports the length that passes to the senders of long packets, so the time does not belong to this fault.
    const told = mtu({ ...peers(numbered(2, { ...narrow, pathMtu: 1252 })), answers })
    expect(told).toEqual([expect.stringContaining('packets of 1472 bytes get no answer; check')])
    // weftd does not know when this fault began.
    const unknown = mtu(peers(numbered(2, { ...narrow, pathSince: null, passesBytes: null })))
    expect(unknown).toEqual([expect.stringContaining('packets of 1472 bytes get no answer; check')])
  })

  it('suspects this host only if no peer answers long packets, and there are several peers', () => {
    const here = 'check this host first'
    const there = 'check the external interface of that host first'
    const both = 'check the external interfaces of both hosts'
    const says = (...list: PeerStatus[]) => mtu(peers(...list))?.map((line) => line.replace(/^.*?; /, ''))
    expect(says(numbered(2, narrow))).toEqual([expect.stringContaining(both)])
    expect(says(numbered(2, narrow), numbered(3))).toEqual([expect.stringContaining(both)])
    expect(says(numbered(2, narrow), numbered(3, narrow))).toEqual([
      expect.stringContaining(here),
      expect.stringContaining(here),
    ])
    expect(says(numbered(2, narrow), numbered(3, { path: 'whole' }))).toEqual([expect.stringContaining(there)])
    // This result is from a time when the data path still had the peer.
    expect(says(numbered(2, narrow), numbered(3, { path: 'whole', state: 'stored' }))).toEqual([
      expect.stringContaining(both),
    ])
    // weft doctor has just probed the second peer, which weftd did not.
    const answers: Facts['answers'] = new Map([['10.5.3.0-24', { ipv4: { small: true, large: true } }]])
    const list = peers(numbered(2, narrow), numbered(3, narrow))
    expect(mtu({ ...list, answers })).toEqual([expect.stringContaining(there)])
  })

  it('is too large if the MTU of the external interface is too small, even by one byte', () => {
    const cut: Partial<Facts> = { answers: new Map([['10.5.2.0-24', { ipv4: { small: true, large: false } }]]) }
    expect(mtu({ ...cut, links: [{ ...eth0, mtu: 1499 }] })).toEqual([
      expect.stringMatching(/^path-mtu: .*; the cause is eth0 of this host, whose MTU is 1499 bytes$/),
      expect.stringMatching(/^mtu-too-large: .* MTU of eth0 is 1499$/),
    ])
    expect(mtu({ ...cut, links: [eth0] })).toEqual([expect.stringMatching(/; check the external interfaces of both/)])
  })

  it('adds the headers of the outer family, which is IPv6 only if the data path carries IPv6', () => {
    const dual = (families: readonly ('ipv4' | 'ipv6')[], bytes: number) =>
      mtu(
        {
          status: { ...soundDual.status, dataPath: { ...soundDual.status.dataPath, families: [...families] } },
          links: [{ ...eth0, mtu: bytes }],
        },
        soundDual,
      )
    expect(dual(['ipv4', 'ipv6'], 1500)).toEqual([])
    expect(dual(['ipv4', 'ipv6'], 1499)).toEqual([expect.stringContaining("plus the tunnel's headers are 1500")])
    expect(dual(['ipv4'], 1480)).toEqual([])
    expect(dual(['ipv4'], 1479)).toEqual([expect.stringContaining("plus the tunnel's headers are 1480")])
  })

  it.each(['host-gw', 'of-tomorrow'])('needs no room for headers with the backend %s', (backendType) => {
    const { config, dataPath } = soundDual.status
    const facts = {
      status: { ...soundDual.status, config: { ...config, backendType }, dataPath: { ...dataPath, mtu: 1500 } },
      links: [eth0],
    }
    expect(mtu(facts, soundDual)).toEqual([])
  })

  it('shrank only if it was larger when weftd started', () => {
    expect(mtu(withPath({ mtuAtStart: 1472 }))).toEqual([])
    expect(mtu(withPath({ mtuAtStart: 1400 }))).toEqual([])
    expect(mtu({ ...withPath({ mtuAtStart: 1473 }), links: [eth0] })).toEqual([
      'mtu-shrunk: 1472 bytes because the MTU of eth0 is 1500; it was 1473 when weftd started',
    ])
    expect(mtu({ ...withPath({ mtuAtStart: 8972 }), links: [] })).toEqual([
      'mtu-shrunk: 1472 bytes; it was 8972 when weftd started',
    ])
  })

  it.each(['docker0', 'cni0', 'br-0a1b2c', 'cbr0', 'bridge', 'podman1', 'nerdctl0'])(
    'of %s must not be larger than that of the data path',
    (name) => {
      const larger = (...texts: string[]) => mtu({ links: [eth0, device(name, texts, { mtu: 1500 })] })
      const expected = [`bridge-mtu: ${name} has MTU 1500, the data path 1472`]
      expect(larger('10.5.1.1/24')).toEqual(expected)
      expect(larger('172.17.0.1/16', '10.5.1.1/24')).toEqual(expected)
      expect(larger('172.17.0.1/16')).toEqual([])
      expect(larger()).toEqual([])
      expect(mtu({ links: [eth0, device(`my-${name}`, ['10.5.1.1/24'], { mtu: 1500 })] })).toEqual([])
    },
  )

  it('of a bridge counts if the bridge has a subnet of one family', () => {
    for (const text of ['10.5.1.1/24', 'fd00:5:0:1::1/64']) {
      const links = [{ ...soundDual.links[0]! }, device('cni0', [text], { mtu: 1431 })]
      expect(mtu({ links }, soundDual)).toEqual(['bridge-mtu: cni0 has MTU 1431, the data path 1430'])
    }
  })
})

describe('the bridges to which the kernel routes no packets', () => {
  const containers = (links: readonly Link[], routes: Facts['routes'], from: Facts = sound) =>
    lines(checkContainers({ ...from, links: [eth0, ...links], routes }))
  const wide = route('10.5.0.0/16', 'flannel0')
  const own = route('10.5.1.0/24', 'cni0')
  const cni0 = bridge('cni0', ['10.5.1.1/24'])
  const toFlannel = 'bridge-unrouted: packets for 10.5.1.0/24 go to flannel0 instead of to cni0'

  it.each<[string, Facts['routes'], string[]]>([
    ['the only route of the subnet leads to it', [wide, own], []],
    ['its route comes first', [own, wide], []],
    ['only the route of the network is there', [wide], [toFlannel]],
    [
      'no route is there',
      [],
      ['bridge-unrouted: packets for 10.5.1.0/24 leave by the default route instead of to cni0'],
    ],
    [
      'only routes of other networks are there',
      [route('default', 'eth0'), route('10.5.2.0/24', 'eth1'), route('10.5.1.128/25', 'eth2')],
      ['bridge-unrouted: packets for 10.5.1.0/24 leave by the default route instead of to cni0'],
    ],
    [
      'a blackhole has its network',
      [wide, route('10.5.1.0/24', '')],
      ['bridge-unrouted: packets for 10.5.1.0/24 go to nowhere instead of to cni0'],
    ],
    [
      'another route of its network has a larger metric',
      [{ ...route('10.5.1.0/24', 'docker1'), metric: 425 }, own],
      [],
    ],
    [
      'another route of its network has a smaller metric',
      [{ ...own, metric: 425 }, route('10.5.1.0/24', 'docker1')],
      ['bridge-unrouted: packets for 10.5.1.0/24 go to docker1 instead of to cni0'],
    ],
    ['a wider route has a smaller metric', [{ ...own, metric: 425 }, wide], []],
    ['a more specific route of some of its addresses leads elsewhere', [wide, own, route('10.5.1.64/26', 'eth2')], []],
  ])('are judged by the route that the kernel uses: %s', (_name, routes, expected) =>
    expect(containers(cni0, routes)).toEqual(expected),
  )

  it('may be down, which explains why the route is missing', () => {
    expect(containers(bridge('cni0', ['10.5.1.1/24'], { up: false }), [wide])).toEqual([`${toFlannel}, which is down`])
  })

  it.each<[string, readonly Link[]]>([
    ['no ports', [device('cni0', ['10.5.1.1/24'], { index: 9, type: 'bridge' })]],
    ['ports of another bridge', [device('cni0', ['10.5.1.1/24'], { index: 9, type: 'bridge' }), ...bridge('br-1', [])]],
    ['a VRF as master, whose table has its route', bridge('cni0', ['10.5.1.1/24'], { master: 4 })],
    ['another type', bridge('cni0', ['10.5.1.1/24'], { type: 'macvlan' })],
    ['an address of a single host', [...bridge('cni0', ['10.5.1.1/32'])]],
    ['addresses of another network', bridge('virbr0', ['192.168.122.1/24'])],
  ])('do not include an interface with %s', (_name, links) => {
    expect(containers(links, [wide])?.filter((line) => line.startsWith('bridge-unrouted'))).toEqual([])
  })

  it('are found in each family', () => {
    const dual = bridge('cni0', ['10.5.1.1/24', 'fd00:5:0:1::1/64'])
    const routes = soundDual.routes.filter(({ destination }) => destination !== 'fd00:5:0:1::/64')
    expect(containers(dual, soundDual.routes, soundDual)).toEqual([])
    // The device of the data path has the first address of the subnet, with the prefix length of a single host.
    expect(containers(dual, routes, soundDual)).toEqual([
      'bridge-unrouted: packets for fd00:5:0:1::/64 leave by the default route instead of to cni0',
    ])
    const single = bridge('cni0', ['10.5.1.1/24', 'fd00:5:0:1::1/128'])
    expect(containers(single, routes, soundDual)).toEqual([])
    // A narrower network of the bridge has a route of its own.
    expect(containers(bridge('cni0', ['10.5.1.1/25']), [wide, route('10.5.1.0/25', 'cni0')])).toEqual([])
    expect(containers(bridge('cni0', ['10.5.1.129/25']), [wide, route('10.5.1.0/25', 'cni0')])).toEqual([
      'bridge-unrouted: packets for 10.5.1.128/25 go to flannel0 instead of to cni0',
    ])
  })
})

describe('the bridges without an address', () => {
  const side4 = { family: 'ipv4', network: parseNet('10.5.0.0/16')!, subnet: parseNet('10.5.1.0/24')! } as const
  const side6 = { family: 'ipv6', network: parseNet('fd00:5::/48')!, subnet: parseNet('fd00:5:0:1::/64')! } as const
  const wide = route('10.5.0.0/16', 'flannel0')
  /** Names the bridges to which an address is missing, by the address. */
  const missing = (links: readonly Link[], part: Partial<Facts> = {}, from: Facts = sound, side = 'ipv4') =>
    unaddressedBridges(side === 'ipv4' ? side4 : side6, {
      ...from,
      routes: [wide],
      ...part,
      links: [eth0, ...links],
    }).map(({ name, detail, fix }) => {
      expect(fix).toMatch(/`ip address add \S+ dev \S+`/)
      return `${name}: ${detail.replace(/does not have the address /, 'lacks ')}`
    })
  const gateways = (...texts: string[]): Partial<Facts> => ({ gateways: texts.map((text) => parseAddress(text)!) })
  const gateway = gateways('10.5.1.1')
  const used = 'which its containers use as gateway'

  it.each<[string, readonly Link[], Partial<Facts>, string[]]>([
    ['a container uses the gateway', bridge('cni0', []), gateway, [`cni0 lacks 10.5.1.1, ${used}`]],
    ['no container is seen', bridge('cni0', []), {}, ['cni0 lacks 10.5.1.1, and has no other address']],
    [
      'the kernel gave the bridge a link-local address',
      bridge('cni0', ['fe80::1/64']),
      {},
      ['cni0 lacks 10.5.1.1, and has no other address'],
    ],
    ['the bridge has an address of IPv6, and no container is seen', bridge('cni0', ['fd00:9::1/64']), {}, []],
    [
      'the bridge has an address of IPv6, and a container uses the gateway',
      bridge('cni0', ['fd00:9::1/64']),
      gateway,
      [`cni0 lacks 10.5.1.1, ${used}`],
    ],
    ['the bridge has its address', bridge('cni0', ['10.5.1.1/24']), gateway, []],
    [
      'the bridge has another address of the subnet',
      bridge('cni0', ['10.5.1.77/24']),
      gateway,
      [`cni0 lacks 10.5.1.1, ${used}`],
    ],
    [
      'the containers use another address, perhaps of a container',
      bridge('cni0', ['10.5.1.77/24']),
      gateways('10.5.1.9'),
      [],
    ],
    ['the bridge has another address, and no container is seen', bridge('cni0', ['10.5.1.77/24']), {}, []],
    ['the gateway of the containers is in another subnet', bridge('mine', []), gateways('10.5.2.1', '10.9.0.1'), []],
    [
      'the containers of Docker have another gateway',
      [...bridge('mine', []), ...bridge('docker0', ['172.17.0.1/16'])],
      gateways('172.17.0.1', '10.5.1.1'),
      [`mine lacks 10.5.1.1, ${used}`],
    ],
    [
      'another interface has the address of the gateway',
      [...bridge('mine', []), device('eth1', ['10.5.1.1/32'])],
      gateway,
      [],
    ],
    [
      'two bridges have no address',
      [...bridge('cni0', []), ...bridge('docker0', [])],
      {},
      ['cni0 lacks 10.5.1.1, and has no other address', 'docker0 lacks 10.5.1.1, and has no other address'],
    ],
    ['the bridge may be of an isolated network of Docker', bridge('br-0a1b', []), {}, []],
    ['the bridge may be of an operator', bridge('mine', []), {}, []],
    ['the bridge is of a VRF', bridge('cni0', [], { master: 4 }), gateway, []],
    ['the bridge is of virtual machines', bridge('cni0', [], {}, 'tun'), gateway, []],
    ['the bridge has no ports', [device('cni0', [], { index: 9, type: 'bridge' })], gateway, []],
    ['the interface is no bridge', bridge('cni0', [], { type: 'macvlan' }), gateway, []],
    [
      'the containers are at another bridge',
      [device('cni0', [], { index: 9, type: 'bridge' }), ...bridge('docker0', ['172.17.0.1/16'])],
      gateway,
      [],
    ],
  ])('are found by the gateway of containers: %s', (_name, links, part, expected) =>
    expect(missing(links, part)).toEqual(expected.map((line) => `bridge-unaddressed: ${line}`)),
  )

  it('do not include a bridge if another bridge has its subnet, or if a route leads to the bridge', () => {
    const both = [...bridge('cni0', ['10.5.1.77/24']), ...bridge('docker0', ['172.17.0.1/16']), ...bridge('mine', [])]
    expect(missing(both, gateway)).toEqual([`bridge-unaddressed: cni0 lacks 10.5.1.1, ${used}`])
    // The device of the data path has the first address of the subnet in any case.
    const own = device('flannel0', ['10.5.1.1/16'])
    expect(missing([own, ...bridge('cni0', [])], gateway)).toEqual([`bridge-unaddressed: cni0 lacks 10.5.1.1, ${used}`])
    const routed = (...routes: Facts['routes']) =>
      missing(bridge('cni0', []), { ...gateway, routes: [wide, ...routes] })
    expect(routed(route('10.5.1.0/24', 'cni0'))).toEqual([])
    expect(routed(route('10.5.1.16/28', 'cni0'))).toEqual([])
    // These routes are not for the subnet, or do not lead to an interface of the containers.
    for (const other of [
      route('10.5.0.0/16', 'cni0'),
      route('10.5.2.0/24', 'cni0'),
      route('default', 'cni0'),
      route('10.5.1.0/24', 'flannel0'),
      route('10.5.1.0/24', ''),
    ])
      expect(routed(other), other.destination).toHaveLength(1)
    // The first subnet of the network begins at the same address as the network.
    const first = { ...side4, subnet: parseNet('10.5.0.0/24')! }
    const links = [eth0, ...bridge('cni0', [])]
    const toAll = { ...sound, ...gateways('10.5.0.1'), links, routes: [route('10.5.0.0/16', 'eth0')] }
    expect(unaddressedBridges(first, toAll)).toHaveLength(1)
    expect(unaddressedBridges(first, { ...toAll, routes: [route('10.5.0.0/24', 'eth0')] })).toEqual([])
  })

  it('have a remedy that adds the address, with the prefix length of the subnet', () => {
    const fixes = (links: readonly Link[], from: Facts, part: Partial<Facts>, side: typeof side4 | typeof side6) =>
      unaddressedBridges(side, { ...from, ...part, links }).map(({ name, fix }) => `${name}: ${fix}`)
    expect(fixes(bridge('cni0', []), sound, { ...gateway, routes: [] }, side4)).toEqual([
      expect.stringMatching(/^bridge-unaddressed: give .* `ip address add 10\.5\.1\.1\/24 dev cni0`/),
    ])
    const of6 = { ...gateways('fd00:5:0:1::1'), routes: [] }
    expect(fixes(bridge('cni0', ['10.5.1.1/24']), soundDual, of6, side6)).toEqual([
      expect.stringMatching(/^bridge-unaddressed: give .* `ip address add fd00:5:0:1::1\/64 dev cni0`/),
    ])
    const off = { ...of6, withoutIpv6: ['cni0'] }
    const [{ detail } = { detail: '' }] = unaddressedBridges(side6, {
      ...soundDual,
      ...off,
      links: bridge('cni0', ['10.5.1.1/24']),
    })
    expect(detail).toBe(`net.ipv6.conf.cni0.disable_ipv6 is 1: cni0 does not have the address fd00:5:0:1::1, ${used}`)
    expect(fixes(bridge('cni0', ['10.5.1.1/24']), soundDual, off, side6)).toEqual([
      expect.stringMatching(/^ipv6-disabled: run `sysctl -w net\.ipv6\.conf\.cni0\.disable_ipv6=0`, .*; then give /),
    ])
    // The kernel setting for IPv6 does not remove an IPv4 address.
    expect(fixes(bridge('cni0', []), sound, { ...gateway, routes: [], withoutIpv6: ['cni0'] }, side4)).toEqual([
      expect.stringMatching(/^bridge-unaddressed: give /),
    ])
    const other = { ...of6, withoutIpv6: ['docker0'] }
    expect(fixes(bridge('cni0', []), soundDual, other, side6)).toEqual([expect.stringMatching(/^bridge-unaddressed: /)])
  })

  it('of IPv6 are found if only the IPv4 address is there', () => {
    expect(
      missing(bridge('cni0', ['10.5.1.1/24', 'fe80::1/64']), gateways('fd00:5:0:1::1'), soundDual, 'ipv6'),
    ).toEqual([`bridge-unaddressed: cni0 lacks fd00:5:0:1::1, ${used}`])
  })

  it('are reported by the check `containers`, apart from those on which IPv6 is disabled', () => {
    const facts = { ...soundDual, links: [eth0, ...bridge('cni0', ['10.5.1.1/24'])], ...gateways('fd00:5:0:1::1') }
    const routes = soundDual.routes.filter(({ destination }) => destination !== 'fd00:5:0:1::/64')
    expect(lines(checkContainers({ ...facts, routes }))).toEqual([
      `bridge-unaddressed: cni0 does not have the address fd00:5:0:1::1, ${used}`,
    ])
    expect(lines(checkContainers({ ...facts, routes, withoutIpv6: ['cni0'] }))).toEqual([])
  })
})

describe('containers', () => {
  const containers = (part: Partial<Facts>, from: Facts = sound) => lines(checkContainers({ ...from, ...part }))
  const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })
  const closed = { ...status.dataPath!, open: false }

  it('need the file subnet.env', () => {
    expect(containers({ subnetEnv: undefined })).toEqual(['subnet-env-wrong: /run/flannel/subnet.env does not exist'])
  })

  it('cannot be checked without a subnet and a data path', () => {
    for (const part of [
      { status: undefined },
      withStatus({ node: null }),
      withStatus({ config: null }),
      withStatus({ dataPath: null }),
      withStatus({ dataPath: closed }),
    ])
      expect(containers(part)).toBeUndefined()
    // weft doctor checks the data path that a dead weftd left.
    expect(containers({ ...withStatus({ dataPath: closed }), silence: 'no socket' })).toEqual([])
  })

  it('of a dead weftd start with a wrong MTU if subnet.env has no MTU', () => {
    const dead = { ...withStatus({ dataPath: { ...closed, mtu: null } }), silence: 'no socket' }
    const { FLANNEL_MTU: _none, ...subnetEnv } = sound.subnetEnv!
    expect(containers({ ...dead, subnetEnv })).toEqual(['subnet-env-wrong: /run/flannel/subnet.env says no MTU'])
    expect(containers({ ...dead, subnetEnv: { ...subnetEnv, FLANNEL_MTU: 'x' } })).toEqual([
      'subnet-env-wrong: /run/flannel/subnet.env says MTU x',
    ])
  })

  const kubernetes = (part: Status = status): Partial<Facts> => ({
    status: { ...part, store: { ...part.store, name: 'kubernetes' } },
  })
  it.each<[string, readonly Link[], Partial<Facts>, string[]]>([
    [
      'cni0 has an address of another subnet of the network',
      [device('cni0', ['10.5.9.1/24'])],
      {},
      ['cni0 has 10.5.9.1'],
    ],
    ['cni0 has an address of another network, without Kubernetes', [device('cni0', ['10.244.3.1/24'])], {}, []],
    [
      'cni0 has an address of another network',
      [device('cni0', ['10.244.3.1/24'])],
      kubernetes(),
      ['cni0 has 10.244.3.1'],
    ],
    ['cni0 also has an address of the subnet', [device('cni0', ['10.244.3.1/24', '10.5.1.1/24'])], kubernetes(), []],
    [
      'cni0 has addresses of two subnets of the network',
      [device('cni0', ['10.5.1.1/24', '10.5.9.1/24'])],
      kubernetes(),
      ['cni0 has 10.5.9.1'],
    ],
    ["Docker's bridge has a network of its own", [device('docker0', ['172.17.0.1/16'])], kubernetes(), []],
    ['the kernel gave cni0 a link-local address', [device('cni0', ['10.5.1.1/24', 'fe80::1/64'])], kubernetes(), []],
    ['an interface of a tunnel is elsewhere', [device('tun5', ['10.5.9.1/24'])], kubernetes(), []],
  ])('are elsewhere: %s', (_name, links, part, expected) =>
    expect(containers({ ...part, links: [eth0, ...links] })).toEqual(
      expected.map((line) => `bridge-elsewhere: ${line}, but this node has 10.5.1.0/24`),
    ),
  )

  it('are elsewhere in only one family', () => {
    const links = (...texts: string[]) => [eth0, device('cni0', texts)]
    const dual = kubernetes(soundDual.status)
    expect(containers({ ...dual, links: links('10.5.1.1/24', 'fd00:9::1/64') }, soundDual)).toEqual([
      'bridge-elsewhere: cni0 has fd00:9::1, but this node has fd00:5:0:1::/64',
    ])
    expect(containers({ ...dual, links: links('10.9.1.1/24', 'fd00:5:0:1::1/64') }, soundDual)).toEqual([
      'bridge-elsewhere: cni0 has 10.9.1.1, but this node has 10.5.1.0/24',
    ])
    expect(containers({ links: links('10.5.1.1/24', 'fd00:5:0:7::1/64') }, soundDual)).toEqual([
      'bridge-elsewhere: cni0 has fd00:5:0:7::1, but this node has fd00:5:0:1::/64',
    ])
  })

  it('get the subnets of subnet.env, of each family that the data path carries', () => {
    const at = '/run/flannel/subnet.env'
    const { dataPath } = soundDual.status
    const says = (env: NonNullable<Facts['subnetEnv']>, lacking6: string | null = null) =>
      containers(
        {
          status: { ...soundDual.status, dataPath: { ...dataPath, lacking: { ipv4: null, ipv6: lacking6 } } },
          subnetEnv: { ...soundDual.subnetEnv, ...env },
        },
        soundDual,
      )
    expect(says({})).toEqual([])
    expect(says({ FLANNEL_IPV6_SUBNET: 'fd00:5:0:9::1/64' })).toEqual([
      `subnet-env-wrong: ${at} says fd00:5:0:9::1/64, but this node has fd00:5:0:1::/64`,
    ])
    expect(says({ FLANNEL_IPV6_SUBNET: undefined }, 'no device')).toEqual([])
    expect(says({ FLANNEL_SUBNET: undefined }, 'no device')).toEqual([
      `subnet-env-wrong: ${at} says no subnet, but this node has 10.5.1.0/24`,
    ])
    expect(says({ FLANNEL_IPV6_SUBNET: 'fd00:5:0:9::1/64' }, 'no device')).toHaveLength(1)
    // The subnet is named before the MTU, because containers with a wrong subnet are worse.
    expect(says({ FLANNEL_SUBNET: '10.5.9.1/24', FLANNEL_MTU: '1' })).toEqual([
      `subnet-env-wrong: ${at} says 10.5.9.1/24, but this node has 10.5.1.0/24`,
    ])
    expect(says({ FLANNEL_MTU: '1450' })).toEqual([`subnet-env-wrong: ${at} says MTU 1450, but the data path has 1430`])
    expect(says({ FLANNEL_MTU: undefined })).toEqual([
      `subnet-env-wrong: ${at} says no MTU, but the data path has 1430`,
    ])
    expect(lines(checkContainers({ ...soundIpv6, subnetEnv: { FLANNEL_MTU: '1430' } }))).toEqual([
      `subnet-env-wrong: ${at} says no IPv6 subnet, but this node has fd00:5:0:1::/64`,
    ])
  })
})
