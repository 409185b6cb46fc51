// leftovers.test.ts - weftd removes the devices and routes that another backend left, and keeps those of others. Each pair of backends is
// tried, with one family and with both. The hosts are simulated: each is a list of links and routes.

import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Lease } from '../../../../src/control/lease/lease.ts'
import { LOCK_END } from '../../../../src/host/daemons.ts'
import { wordsOf } from '../../../../src/host/ip-words.ts'
import { USUAL_METRIC } from '../../../../src/host/links.ts'
import {
  FAMILIES,
  familyOf,
  formatAddress,
  formatNet,
  hostNet,
  netsOf,
  onlyOf,
  parseAddress,
  parseNet,
  byFamily,
  type Family,
  type Nets,
} from '../../../../src/net/address.ts'
import { handoverLock } from '../../../../src/node/restart/rendezvous.ts'
import { KINDS, type BackendType } from '../../../../src/path/catalog.ts'
import {
  findDiverted,
  findDivertedByRules,
  findLeftovers,
  findPast,
  otherDaemons,
  removeKernelDevice,
  removeLeftovers,
  routesThroughHosts,
  type HostAccess,
  type OtherDaemon,
  type Surroundings,
} from '../../../../src/path/device/leftovers.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

interface FakeLink {
  readonly name: string
  readonly kind: string
  readonly addresses: readonly string[]
  readonly inUse?: boolean
}
interface FakeRoute {
  readonly type?: string
  readonly dst: string
  readonly dev: string
  readonly gateway?: string
  readonly protocol?: string
  readonly metric?: number
  readonly isMultipath?: boolean
}

/** The settings of a device that decide whether weft or flannel made it. */
function settingsOf({ name, kind, inUse = false }: FakeLink): object {
  if (kind === 'tun')
    return { hasCarrier: inUse, tun: { mode: 'tun', persist: true, isMultiQueue: false, openQueues: undefined } }
  const vxlan = { local: undefined, underlay: 0, port: 8472, learning: false, gbp: false, zeroChecksumIpv6Rx: false }
  return kind === 'vxlan' ? { vxlan: { ...vxlan, vni: Number(name.split('.')[1]), external: false } } : {}
}

/** A simulated host: its kernel has these links and routes when a test first uses the kernel. */
class FakeHost {
  links: FakeLink[] = []
  routes: FakeRoute[] = []
  /** The lines of `ip -o xfrm policy list`. */
  policies: string[] = []
  /** The commands for IPsec policies that change the host. */
  readonly commands: string[] = []
  #kernel: ModelKernel | undefined

  get kernel(): ModelKernel {
    return (this.#kernel ??= this.#make())
  }

  get access(): HostAccess {
    return { kernel: this.kernel, run: (_file, args) => this.#run(args) }
  }

  async #run(args: readonly string[]): Promise<string> {
    if (args.join(' ') === '-o xfrm policy list') return this.policies.join('\n')
    this.commands.push(args.join(' '))
    return ''
  }

  #make(): ModelKernel {
    const kernel = new ModelKernel()
    for (const link of this.links) {
      const addresses = link.addresses.map((text) => hostNet(parseAddress(text)!))
      kernel.addLink({ name: link.name, type: link.kind, ...settingsOf(link) }, addresses)
    }
    for (const { dst, dev, ...route } of this.routes) {
      const net = parseNet(dst) ?? hostNet(parseAddress(dst)!)
      if (dev !== '' && !kernel.peek(dev)) kernel.addLink({ name: dev })
      const family = familyOf(net)
      const settings = { metric: USUAL_METRIC[family], ...route } as object
      kernel.addRoute(family, { destination: formatNet(net), device: dev, ...settings })
    }
    kernel.hasPolicies = this.policies.length > 0
    return kernel
  }
}

const NETWORKS: Nets = netsOf([parseNet('10.5.0.0/16')!, parseNet('fd00:5::/48')!])
const OWN: Nets = netsOf([parseNet('10.5.1.0/24')!, parseNet('fd00:5:0:1::/64')!])
const peer = (number: number): Lease => ({
  key: `10.5.${number}.0-24`,
  subnet: netsOf([parseNet(`10.5.${number}.0/24`)!, parseNet(`fd00:5:0:${number}::/64`)!]),
  attrs: {
    publicIp: byFamily([parseAddress(`192.0.2.${number}`)!, parseAddress(`2001:db8::${number}`)!]),
    backendType: '',
  },
})
const PEERS = [peer(2), peer(3)]
const ownLease: Lease = { key: '10.5.1.0-24', subnet: OWN, attrs: peer(1).attrs }
const NOBODY = async (): Promise<readonly OtherDaemon[]> => []

const surroundings = (part: Partial<Surroundings> = {}): Surroundings => ({
  networks: NETWORKS,
  subnets: OWN,
  earlier: {},
  ownDevices: [],
  routesToHosts: false,
  leases: [ownLease, ...PEERS],
  ...part,
})

/** The devices of a backend by the family that they carry, and what `ip` calls their type. */
interface Carried {
  readonly label: string
  readonly type: BackendType
  readonly kind: string | undefined
  readonly names: Readonly<Partial<Record<Family, string>>>
  /**
   * Whether it has one route to the network, a route to each peer through its device, or a route to each peer through
   * the peer's host.
   */
  readonly routes: 'network' | 'peers' | 'hosts' | 'none'
}
/** Each backend with each type of its devices, and direct routing as a separate case. */
const CARRIED: readonly Carried[] = [
  ...Object.entries(KINDS).flatMap(([type, { devices, routes }]): Carried[] => {
    const kinds = [...new Set(devices.map(([kind]) => kind as string))]
    if (kinds.length === 0)
      return [
        {
          label: type,
          type: type as BackendType,
          kind: undefined,
          names: {},
          routes: routes === 'peers' ? 'hosts' : 'none',
        },
      ]
    return kinds.map((kind) => {
      const [ipv4 = '', ipv6 = ipv4] = devices
        .filter(([each]) => each === kind)
        .map(([, name]) => name.replace('%d', type === 'udp' ? '0' : '1'))
      const isOneEach = kind === 'tun' ? 'network' : routes
      return { label: `${type} by ${kind}`, type: type as BackendType, kind, names: { ipv4, ipv6 }, routes: isOneEach }
    })
  }),
  {
    label: 'direct routing',
    type: 'vxlan',
    kind: 'vxlan',
    names: { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' },
    routes: 'hosts',
  },
]

/** Adds the devices and routes that a backend makes for these families. */
function make(host: FakeHost, { kind, names, routes }: Carried, families: readonly Family[]): void {
  for (const family of families) {
    const [name, network, own] = [names[family], NETWORKS[family]!, OWN[family]!]
    const found = host.links.find((link) => link.name === name)
    const address = formatAddress(own.address)
    if (name !== undefined && kind !== undefined) {
      host.links = host.links.filter((link) => link !== found)
      host.links.push({ name, kind, addresses: [...(found?.addresses ?? []), address] })
    }
    if (routes === 'network' && name !== undefined) host.routes.push({ dst: formatNet(network), dev: name })
    for (const { subnet, attrs } of PEERS) {
      const [dst, host4] = [formatNet(subnet[family]!), formatAddress(attrs.publicIp[family]!)]
      if (routes === 'hosts') host.routes.push({ dst, gateway: host4, dev: 'eth0' })
      if (routes === 'peers' && name !== undefined)
        host.routes.push({ dst, gateway: formatAddress(subnet[family]!.address), dev: name })
    }
  }
}
/** Adds devices and routes that weftd must not touch. */
function addOthers(host: FakeHost): void {
  host.links.push(
    { name: 'eth0', kind: '', addresses: ['192.0.2.1', '2001:db8::1'] },
    { name: 'cni0', kind: 'bridge', addresses: ['10.5.1.1', 'fd00:5:0:1::1'] },
    // Another flannel network on this host whose daemon is stopped, and the TUN of a VPN.
    { name: 'flannel.7', kind: 'vxlan', addresses: ['10.6.1.0'] },
    { name: 'flannel7', kind: 'tun', addresses: ['10.6.2.0'] },
    { name: 'tun0', kind: 'tun', addresses: ['10.5.9.9'] },
  )
  host.routes.push(
    { dst: '10.5.1.0/24', dev: 'cni0', protocol: 'kernel' },
    { dst: 'fd00:5:0:1::/64', dev: 'cni0', protocol: 'kernel', metric: 256 },
    { dst: '10.6.3.0/24', gateway: '10.6.3.0', dev: 'flannel.7' },
    { dst: '10.5.1.128/25', gateway: '10.5.1.9', dev: 'cni0' },
  )
}
async function stateOf({ kernel }: FakeHost): Promise<readonly string[]> {
  const links = (await kernel.links()).map(({ name, type }) => `${name} ${type}`)
  return [...links, ...FAMILIES.flatMap((family) => kernel.routesAsText(family))].toSorted()
}

const nameOf = (one: Carried): readonly string[] => [...new Set(Object.values(one.names))]
const BOTH = FAMILIES
const V4 = ['ipv4'] as const

describe.each([
  ['IPv4', V4, V4],
  ['both families', BOTH, BOTH],
  ['both families, then only IPv4', BOTH, V4],
  ['IPv4, then both families', V4, BOTH],
] as const)('of %s', (_what, before, now) => {
  const pairs = CARRIED.flatMap((from) => CARRIED.map((to) => [from.label, to.label, from, to] as const))
  const withLeftovers = pairs.filter(([, , , { type }]) => type !== 'extension')
  it.each(withLeftovers)('no leftover of %s remains with %s', async (_from, _to, from, to) => {
    // If both backends have a device of the same name, the new backend repairs it itself.
    const host = new FakeHost()
    const wanted = new FakeHost()
    for (const each of [host, wanted]) {
      addOthers(each)
      make(each, to, now)
    }
    const own = nameOf(to)
    const old = new FakeHost()
    make(old, from, before)
    for (const link of old.links) if (!own.includes(link.name)) host.links.push(link)
    const routesToHosts = to.routes === 'hosts' || to.routes === 'none'
    for (const route of old.routes) {
      const isReplaced = own.includes(route.dev) || wanted.routes.some(({ dst }) => dst === route.dst)
      if (!isReplaced && !(routesToHosts && from.routes === 'hosts')) host.routes.push(route)
    }
    const about = surroundings({
      networks: onlyOf(now, NETWORKS),
      subnets: onlyOf(now, OWN),
      earlier: OWN,
      ownDevices: own,
      routesToHosts,
    })
    const { leftovers } = await findLeftovers(host.access, about, NOBODY)
    const lost = FAMILIES.filter((family) => !(now as readonly Family[]).includes(family))
    const past = await findPast(host.access, onlyOf(lost, NETWORKS), about, NOBODY)
    expect(await removeLeftovers(host.access, [...leftovers, ...past], () => {})).toEqual([])
    expect(await stateOf(host)).toEqual(await stateOf(wanted))
    expect(await findLeftovers(host.access, about, NOBODY)).toMatchObject({ leftovers: [], held: [], bypasses: [] })
  })
})

/** The command line with which an operator can remove the leftover. */
const commandOf = (leftover: Awaited<ReturnType<typeof findLeftovers>>['leftovers'][number]): string =>
  'selector' in leftover ? `the policy ${leftover.selector}` : wordsOf(leftover.change)

describe('a device', () => {
  const withDevice = (link: Partial<FakeLink> = {}, ...routes: FakeRoute[]): FakeHost => {
    const host = new FakeHost()
    host.links.push({ name: 'flannel.1', kind: 'vxlan', addresses: ['10.5.1.0'], ...link })
    host.routes.push(...routes)
    return host
  }
  const about = surroundings({ ownDevices: ['flannel-wg'] })
  const found = async (host: FakeHost, others = NOBODY) => {
    const { leftovers, held } = await findLeftovers(host.access, about, others)
    return [...leftovers.map(({ what }) => what), ...held.map(({ device, by }) => `${device}: ${by}`)]
  }
  const GOES = ['the device flannel.1 (vxlan)']

  it.each<[string, Partial<FakeLink>, FakeRoute[], string[]]>([
    ['with the node’s own address is removed', {}, [], GOES],
    ['with an address of an earlier subnet of this host is removed', { addresses: ['10.5.77.0'] }, [], GOES],
    [
      'that leads to a peer is removed, regardless of its address',
      { addresses: ['10.9.0.1'] },
      [{ dst: '10.5.2.0/24', gateway: '10.5.2.0', dev: 'flannel.1' }],
      GOES,
    ],
    ['of another network stays', { addresses: ['10.6.1.0'] }, [], []],
    ['without an address, which another program may be creating, stays', { addresses: [] }, [], []],
    ['with another VNI than in its name stays', { name: 'flannel.x', addresses: ['10.5.9.0'] }, [], []],
    [
      'that a process has open stays and is reported',
      { name: 'flannel0', kind: 'tun', inUse: true },
      [],
      ['flannel0: a process forwards through it'],
    ],
  ])('%s', async (_what, link, routes, expected) => expect(await found(withDevice(link, ...routes))).toEqual(expected))

  it('that another program renamed is removed, unless the own backend goes on with it or others make the devices', async () => {
    const host = withDevice({ name: 'odd.1' }, { dst: '10.5.2.0/24', gateway: '10.5.2.0', dev: 'odd.1' })
    expect(await found(host)).toEqual(['the device odd.1 (vxlan)'])
    for (const part of [{ ownDevices: ['flannel.1'] }, { routesByOthers: true }]) {
      const { leftovers } = await findLeftovers(host.access, surroundings(part), NOBODY)
      expect(leftovers).toEqual([])
    }
    expect(await found(withDevice({ name: 'odd.1', addresses: ['10.5.9.0'] }))).toEqual([])
    expect(await found(withDevice({ name: 'odd.1', addresses: ['10.5.1.0', '192.0.2.77'] }))).toEqual([])
  })

  it('stays if its daemon runs for the same network, or for an unknown network', async () => {
    const running = (networks: Nets | undefined) => async () => [{ name: 'flanneld', pid: 7, networks }]
    expect(await found(withDevice(), running(NETWORKS))).toEqual(['flannel.1: flanneld runs (pid 7)'])
    expect(await found(withDevice(), running(undefined))).toEqual(['flannel.1: flanneld runs (pid 7)'])
    expect(await found(withDevice(), running(netsOf([parseNet('10.5.0.0/20')!])))).toEqual([
      'flannel.1: flanneld runs (pid 7)',
    ])
    expect(await found(withDevice(), running(netsOf([parseNet('10.6.0.0/16')!])))).toEqual(GOES)
  })

  it('that cannot be removed is reported with the reason, and one that is already gone is not a failure', async () => {
    const host = withDevice()
    host.kernel.refuses = () => 'EPERM'
    const { leftovers } = await findLeftovers(host.access, about, NOBODY)
    expect(await removeLeftovers(host.access, leftovers, () => {})).toEqual([
      ['the device flannel.1 (vxlan)', 'the kernel refused `ip link del dev flannel.1`: EPERM; run as root'],
    ])
    host.kernel.refuses = () => 'ENODEV'
    expect(await removeLeftovers(host.access, leftovers, () => {})).toEqual([])
  })

  it('of the kernel that blocks the own route is removed, and one of another network is not', async () => {
    const host = withDevice({ name: 'flannel-wg', kind: 'wireguard' })
    await removeKernelDevice(host.kernel, 'flannel-wg', NETWORKS)
    expect(host.kernel.changes).toEqual(['ip link del dev flannel-wg'])
    const other = withDevice({ name: 'flannel-wg', kind: 'wireguard', addresses: ['10.6.1.0'] })
    await removeKernelDevice(other.kernel, 'flannel-wg', NETWORKS)
    expect(other.kernel.changes).toEqual([])
  })
})

describe('a route', () => {
  const judged = async (route: FakeRoute, part: Partial<Surroundings> = {}, others = NOBODY) => {
    const host = new FakeHost()
    host.routes.push(route)
    host.links.push({ name: 'virbr0', kind: 'bridge', addresses: ['192.168.122.1'] })
    const about = surroundings({ ownDevices: ['flannel-wg'], external: 'eth0', ...part })
    const { leftovers, held, bypasses, needsLeases } = await findLeftovers(host.access, about, others)
    const kinds = bypasses.map(({ isOfOwn }) => (isOfOwn ? 'own' : 'peers'))
    return [
      ...leftovers.map(commandOf),
      ...held.map(({ device, by: holder, command }) => `${device}: ${holder}: ${command}`),
      ...kinds,
      ...(needsLeases ? ['leases?'] : []),
    ]
  }
  const by = (dst: string, gateway?: string, more: Partial<FakeRoute> = {}): FakeRoute => ({
    dst,
    dev: 'eth0',
    ...(gateway === undefined ? {} : { gateway }),
    ...more,
  })
  it.each<[string, FakeRoute, string[]]>([
    [
      'to a peer through its host is removed',
      by('10.5.2.0/24', '192.0.2.2'),
      ['ip route del 10.5.2.0/24 via 192.0.2.2 dev eth0'],
    ],
    [
      'through the host of another peer is removed',
      by('10.5.2.0/24', '192.0.2.3'),
      ['ip route del 10.5.2.0/24 via 192.0.2.3 dev eth0'],
    ],
    [
      'to a subnet without a lease through a host is removed',
      by('10.5.8.0/24', '192.0.2.3'),
      ['ip route del 10.5.8.0/24 via 192.0.2.3 dev eth0'],
    ],
    [
      'for IPv6 is removed',
      by('fd00:5:0:2::/64', '2001:db8::2', { metric: 1024 }),
      ['ip -6 route del fd00:5:0:2::/64 via 2001:db8::2 dev eth0 metric 1024'],
    ],
    [
      'that a network manager made is reported',
      by('10.5.2.0/24', '192.0.2.2', { protocol: 'static' }),
      ['peers', 'leases?'],
    ],
    ['through another host is reported', by('10.5.2.0/24', '192.0.2.99'), ['peers', 'leases?']],
    ['to a part of a peer’s subnet is reported', by('10.5.2.128/25', '192.0.2.2'), ['peers', 'leases?']],
    ['to several peers is reported', by('10.5.2.0/23', '192.0.2.2'), ['peers', 'leases?']],
    ['without a gateway is reported', by('10.5.2.0/24'), ['peers', 'leases?']],
    ['to an unknown subnet through an unknown host needs more leases', by('10.5.8.0/24', '192.0.2.99'), ['leases?']],
    [
      'to the whole network with a lower metric is reported',
      by('fd00:5::/48', '2001:db8::2', { metric: 512 }),
      ['peers', 'leases?'],
    ],
    ["to the whole network of the usual metric is the backend's to replace", by('10.5.0.0/16', '192.0.2.2'), []],
    ['through the own device is right', by('10.5.2.0/24', '10.5.2.0', { dev: 'flannel-wg' }), []],
    [
      'to the own subnet through a host is removed',
      by('10.5.1.0/24', '192.0.2.2'),
      ['ip route del 10.5.1.0/24 via 192.0.2.2 dev eth0'],
    ],
    [
      'to the own subnet through an unknown host is removed',
      by('10.5.1.0/24', '192.0.2.99'),
      ['ip route del 10.5.1.0/24 via 192.0.2.99 dev eth0'],
    ],
    [
      'to the own subnet that a routing daemon or a network manager made is reported',
      by('10.5.1.0/24', '192.0.2.2', { protocol: 'bird' }),
      ['own'],
    ],
    [
      'to the own subnet through another interface than the external one is reported',
      by('10.5.1.0/24', '198.51.100.7', { dev: 'eth1' }),
      ['own'],
    ],
    [
      'to the own subnet through a virtual machine of this host is right',
      by('10.5.1.0/24', '192.168.122.5', { dev: 'virbr0' }),
      [],
    ],
    [
      'to a part of the own subnet through a virtual machine is right',
      by('10.5.1.128/25', '192.168.122.5', { dev: 'virbr0', protocol: 'static' }),
      [],
    ],
    [
      'that the kernel made for an address of an interface is reported',
      by('10.5.2.0/24', undefined, { dev: 'eth1', protocol: 'kernel' }),
      ['peers', 'leases?'],
    ],
    [
      'that the kernel made for an IPv6 address of the whole network is reported',
      by('fd00:5::/48', undefined, { protocol: 'kernel', metric: 256 }),
      ['peers', 'leases?'],
    ],
    [
      'that the kernel made for a bridge is right',
      by('10.5.2.0/24', undefined, { dev: 'virbr0', protocol: 'kernel' }),
      [],
    ],
    [
      'to the own IPv6 subnet is removed',
      by('fd00:5:0:1::/64', 'fe80::1', { metric: 1024 }),
      ['ip -6 route del fd00:5:0:1::/64 via fe80::1 dev eth0 metric 1024'],
    ],
    [
      'to a part of the own subnet through a host is removed',
      by('10.5.1.64/26', '192.0.2.2'),
      ['ip route del 10.5.1.64/26 via 192.0.2.2 dev eth0'],
    ],
    ['to a part of the own subnet through an unknown host is reported', by('10.5.1.64/26', '192.0.2.99'), ['own']],
    ['to a part of the own subnet through a container is right', by('10.5.1.64/26', '10.5.1.9', { dev: 'cni0' }), []],
    ['to a container through its device is right', by('10.5.1.7', undefined, { dev: 'veth7' }), []],
  ])('%s', async (_what, route, expected) => expect(await judged(route)).toEqual(expected))

  it('through hosts is right for a backend that makes such routes, except to the own subnet', async () => {
    const part = { routesToHosts: true }
    expect(await judged(by('10.5.2.0/24', '192.0.2.2'), part)).toEqual([])
    expect(await judged(by('10.5.1.0/24', '192.0.2.2'), part)).toEqual([
      'ip route del 10.5.1.0/24 via 192.0.2.2 dev eth0',
    ])
  })

  it('is always right for a backend that leaves all routes to other programs', async () => {
    for (const route of [
      by('10.5.1.0/24', '192.0.2.2'),
      by('10.5.1.64/26', '192.0.2.99'),
      by('10.5.2.0/24', '192.0.2.2'),
    ])
      expect(await judged(route, { routesByOthers: true })).toEqual([])
  })

  it('to a subnet that cannot be leased is an operator’s, unless a lease has it', async () => {
    const ipv4 = {
      subnetLength: 24,
      subnetMin: parseNet('10.5.1.0/24')!.address,
      subnetMax: parseNet('10.5.99.0/24')!.address,
    }
    const part = { ranges: { ipv4 } }
    expect(await judged(by('10.5.200.0/24', '192.0.2.2'), part)).toEqual(['leases?'])
    expect(await judged(by('10.5.99.0/24', '192.0.2.2'), part)).toEqual([
      'ip route del 10.5.99.0/24 via 192.0.2.2 dev eth0',
    ])
    const lease = { ...peer(2), key: '10.5.200.0-24', subnet: netsOf([parseNet('10.5.200.0/24')!]) }
    expect(await judged(by('10.5.200.0/24', '192.0.2.2'), { ...part, leases: [lease] })).toEqual([
      'ip route del 10.5.200.0/24 via 192.0.2.2 dev eth0',
    ])
    // Without a range another program gives out the subnets.
    const none = { ipv4: { subnetLength: 0, subnetMin: 0, subnetMax: 0 } }
    expect(await judged(by('10.5.200.0/24', '192.0.2.2'), { ranges: none })).toHaveLength(1)
  })

  it('of a running daemon for the same subnets stays and is reported', async () => {
    const running = (networks: Nets | undefined) => async () => [{ name: 'flanneld', pid: 7, networks }]
    const held = (dst: string) => [
      `${dst} via 192.0.2.2 to eth0: flanneld runs (pid 7): ip route del ${dst} via 192.0.2.2 dev eth0`,
    ]
    const removed = (dst: string) => [`ip route del ${dst} via 192.0.2.2 dev eth0`]
    const [leased, free] = ['10.5.2.0/24', '10.5.66.0/24']
    for (const dst of [leased, free]) {
      const route = by(dst, '192.0.2.2')
      expect(await judged(route, {}, running(netsOf([parseNet('10.5.0.0/16')!])))).toEqual(held(dst))
      expect(await judged(route, {}, running(netsOf([parseNet('10.6.0.0/16')!])))).toEqual(removed(dst))
    }
    expect(await judged(by(free, '192.0.2.2'), {}, running(netsOf([parseNet('10.5.64.0/20')!])))).toEqual(held(free))
    expect(await judged(by(leased, '192.0.2.2'), {}, running(netsOf([parseNet('10.5.64.0/20')!])))).toEqual(
      removed(leased),
    )
    // The network of this daemon cannot be read.
    expect(await judged(by(free, '192.0.2.2'), {}, running(undefined))).toEqual(held(free))
    expect(await judged(by(leased, '192.0.2.2'), {}, running(undefined))).toEqual(removed(leased))
  })

  it('is removed with thousands of others by one request, and not after another process took over', async () => {
    const host = new FakeHost()
    const leases = Array.from({ length: 200 }, (_, at) => peer(at + 2))
    for (const { subnet, attrs } of leases)
      for (const family of FAMILIES)
        host.routes.push({
          dst: formatNet(subnet[family]!),
          gateway: formatAddress(attrs.publicIp[family]!),
          dev: 'eth0',
          ...(family === 'ipv6' ? { metric: 1024 } : {}),
        })
    const about = surroundings({ leases })
    const { leftovers } = await findLeftovers(host.access, about, NOBODY)
    expect(leftovers).toHaveLength(400)
    expect(
      await removeLeftovers(
        host.access,
        leftovers,
        () => {},
        () => false,
      ),
    ).toEqual([])
    expect(host.kernel.changes).toEqual([])
    const said: string[] = []
    expect(await removeLeftovers(host.access, leftovers, (what) => said.push(what))).toEqual([])
    expect([host.kernel.routesAsText('ipv4'), host.kernel.routesAsText('ipv6')]).toEqual([[], []])
    expect(host.kernel.changeCalls).toBe(1)
    expect(said).toEqual(['400 routes to subnets of nodes, such as the route 10.5.2.0/24 via 192.0.2.2 to eth0'])
  })

  it('that the backend ipsec left as unreachable is removed with the policies, unless ipsec is this backend', async () => {
    const host = new FakeHost()
    host.routes.push({ type: 'unreachable', dst: '10.5.0.0/16', dev: '', metric: 0xffffffff })
    const [whole, other] = [parseNet('10.5.0.0/16')!, parseNet('10.6.0.0/16')!]
    const rule = { priority: 219, from: whole, to: whole, iif: 'eth0', action: 'blackhole' }
    for (const each of [rule, { ...rule, from: other }, { ...rule, to: other }, { ...rule, action: 'prohibit' }])
      host.kernel.addRule('ipv4', each)
    const template = String.raw`\ tmpl src 192.0.2.1 dst 192.0.2.2\ proto esp reqid 11 mode tunnel\ `
    host.kernel.hasPolicies = true
    host.policies = [
      String.raw`src 10.5.1.0/24 dst 10.5.2.0/24 \ dir out priority 0 ptype main ${template}`,
      String.raw`src 10.5.0.0/16 dst 10.5.1.0/24 \ dir in action block priority 2003134068 ptype main \ `,
      String.raw`src 10.77.1.0/24 dst 10.77.2.0/24 \ dir out priority 0 ptype main ${template}`,
      String.raw`src 10.5.1.0/24 dst 10.9.0.0/16 \ dir out priority 5 ptype main \ `,
    ]
    const { leftovers } = await findLeftovers(host.access, surroundings({}), NOBODY)
    expect(leftovers.map((leftover) => [leftover.what, commandOf(leftover)])).toEqual([
      [
        'the IPsec policy src 10.5.1.0/24 dst 10.5.2.0/24 dir out',
        'the policy src 10.5.1.0/24 dst 10.5.2.0/24 dir out',
      ],
      ['the IPsec policy src 10.5.0.0/16 dst 10.5.1.0/24 dir in', 'the policy src 10.5.0.0/16 dst 10.5.1.0/24 dir in'],
      [
        'the rule for unencrypted packets from eth0',
        'ip rule del priority 219 iif eth0 from 10.5.0.0/16 to 10.5.0.0/16 blackhole',
      ],
      ['the unreachable route to 10.5.0.0/16', 'ip route del unreachable 10.5.0.0/16 metric 4294967295'],
    ])
    expect((await findLeftovers(host.access, surroundings({ ownPolicies: true }), NOBODY)).leftovers).toEqual([])
    // The backend wireguard makes the unreachable route and the rule itself.
    const { leftovers: sealed } = await findLeftovers(host.access, surroundings({ isSealed: true }), NOBODY)
    expect(sealed.map(({ what }) => what)).toEqual(leftovers.slice(0, 2).map(({ what }) => what))
    expect(await removeLeftovers(host.access, leftovers, () => {})).toEqual([])
    expect(host.commands).toEqual([
      'xfrm policy delete src 10.5.1.0/24 dst 10.5.2.0/24 dir out',
      'xfrm policy delete src 10.5.0.0/16 dst 10.5.1.0/24 dir in',
    ])
    // Without policies in the kernel no program is started.
    host.kernel.hasPolicies = false
    expect((await findLeftovers(host.access, surroundings({}), NOBODY)).leftovers).toEqual([])
  })

  it.each(['10.4.0.0/15', '10.5.0.0/17'])(
    'that ipsec or wireguard left as unreachable, and all else that drops packets, is removed if the network was %s',
    async (before) => {
      const host = new FakeHost()
      host.routes.push({ type: 'unreachable', dst: before, dev: '', metric: 0xffffffff })
      const whole = parseNet(before)!
      host.kernel.addRule('ipv4', { priority: 219, from: whole, to: whole, iif: 'eth0', action: 'blackhole' })
      host.kernel.hasPolicies = true
      host.policies = [
        String.raw`src 0.0.0.0/0 dst ${before} \ dir out action block priority 2003134068 ptype main \ `,
        String.raw`src 0.0.0.0/0 dst 10.77.0.0/16 \ dir out action block priority 2003134068 ptype main \ `,
      ]
      const { leftovers } = await findLeftovers(host.access, surroundings({}), NOBODY)
      // The kernel prefers this node's route to its network to an unreachable route to a wider network.
      const isNarrower = whole.prefixLength > 16
      expect(leftovers.map(({ what }) => what)).toEqual([
        `the IPsec policy src 0.0.0.0/0 dst ${before} dir out`,
        'the rule for unencrypted packets from eth0',
        ...(isNarrower ? [`the unreachable route to ${before}`] : []),
      ])
      expect(await removeLeftovers(host.access, leftovers, () => {})).toEqual([])
      expect((await host.kernel.rules('ipv4'))?.some(({ priority }) => priority === 219)).toBe(false)
    },
  )

  it('is removed if the earlier run made it for a lease that is gone or has another public IP now', async () => {
    const former = [
      { ...peer(2), attrs: { ...peer(2).attrs, publicIp: byFamily([parseAddress('192.0.2.99')!]) } },
      peer(8),
    ]
    const part = { formerRoutes: routesThroughHosts(former) }
    const moved = by('10.5.2.0/24', '192.0.2.99')
    expect(await judged(moved)).toEqual(['peers', 'leases?'])
    expect(await judged(moved, part)).toEqual(['ip route del 10.5.2.0/24 via 192.0.2.99 dev eth0'])
    expect(await judged(by('10.5.2.0/24', '192.0.2.98'), part)).toEqual(['peers', 'leases?'])
    expect(await judged(by('10.5.2.0/24', '192.0.2.99', { protocol: 'static' }), part)).toEqual(['peers', 'leases?'])
    expect(await judged(by('fd00:5:0:8::/64', '2001:db8::8', { metric: 1024 }), part)).toEqual([
      'ip -6 route del fd00:5:0:8::/64 via 2001:db8::8 dev eth0 metric 1024',
    ])
    expect(await judged(moved, { ...part, routesToHosts: true })).toEqual([])
  })

  describe('in a network of the earlier run', () => {
    const past = netsOf([parseNet('10.4.0.0/15')!])
    const earlier = netsOf([parseNet('10.4.1.0/24')!])
    const about = (part: Partial<Surroundings> = {}): Surroundings => surroundings({ earlier, ...part })
    const whats = async (host: FakeHost, part: Partial<Surroundings> = {}, others = NOBODY): Promise<string[]> =>
      (await findPast(host.access, past, about(part), others)).map(({ what }) => what)

    it('is removed although its lease is gone, but not in the present network nor another part', async () => {
      const host = new FakeHost()
      host.routes.push(
        by('10.4.2.0/24', '192.0.2.2'),
        by('10.5.2.0/24', '192.0.2.2'),
        by('10.4.2.0/25', '192.0.2.2'),
        by('10.4.3.0/24', '192.0.2.99'),
        by('10.4.1.0/24', '192.0.2.99'),
      )
      const ranges = { ipv4: { subnetLength: 24, subnetMin: 0x0a050000, subnetMax: 0x0a05ff00 } }
      for (const part of [{}, { ranges }, { routesToHosts: true }])
        expect(await whats(host, part)).toEqual(['the route 10.4.2.0/24 via 192.0.2.2 to eth0'])
      const formerRoutes = new Set(['10.4.3.0/24 via 192.0.2.99'])
      expect(await whats(host, { formerRoutes })).toContain('the route 10.4.3.0/24 via 192.0.2.99 to eth0')
    })

    it('through the own device is removed with the address of the earlier subnet', async () => {
      const host = new FakeHost()
      host.links.push({ name: 'flannel.1', kind: 'vxlan', addresses: ['10.4.1.0', '10.5.1.0', '192.0.2.77'] })
      const through = (dst: string, more: Partial<FakeRoute> = {}) =>
        by(dst, dst.split('/')[0], { dev: 'flannel.1', ...more })
      host.routes.push(
        through('10.4.9.0/24'),
        through('10.4.8.0/24', { protocol: 'static' }),
        through('10.4.7.0/24', { dev: 'flannel.2' }),
        through('10.5.2.0/24'),
      )
      const part = { ownDevices: ['flannel.1'], routesToHosts: true }
      const found = await findPast(host.access, past, about(part), NOBODY)
      expect(found.map(({ what }) => what)).toEqual([
        'the address 10.4.1.0 of flannel.1',
        'the route 10.4.9.0/24 via 10.4.9.0 to flannel.1',
      ])
      expect(await removeLeftovers(host.access, found, () => {})).toEqual([])
      expect(await whats(host, part)).toEqual([])
      expect(host.kernel.peek('flannel.1')?.addresses.ipv4.map(({ address }) => formatAddress(address))).toEqual([
        '10.5.1.0',
        '192.0.2.77',
      ])
    })

    it('leads to an unused device of this host, which is removed too', async () => {
      const tun = (name: string, ...addresses: string[]) => ({ name, kind: 'tun', addresses })
      const host = new FakeHost()
      host.links.push(
        tun('flannel0', '10.4.1.0'),
        tun('flannel1', '10.5.1.0'),
        tun('flannel2', '10.4.7.0'),
        { ...tun('flannel3', '10.4.1.0'), inUse: true },
        tun('flannel4', '10.4.1.0', '10.5.1.0'),
        tun('flannel5'),
      )
      const part = { ownDevices: ['flannel%d'] }
      expect(await whats(host, part)).toEqual(['the device flannel0 (tun)', 'the address 10.4.1.0 of flannel4'])
      expect(await whats(host, { ...part, routesByOthers: true })).toEqual([])
      expect(await whats(host, part, async () => [{ name: 'weftd', pid: 7, networks: past }])).toEqual([])
      expect(await whats(host, { ...part, subnets: earlier })).toEqual([])
    })
  })

  it('is judged only by the leases, which may not be known yet', async () => {
    expect(await judged(by('10.5.2.0/24', '192.0.2.2'), { leases: [] })).toEqual(['leases?'])
    expect(await judged({ ...by('10.5.2.0/24'), isMultipath: true }, { leases: [] })).toEqual(['leases?'])
    expect(await judged(by('10.5.2.0/24'), { leases: [] })).toEqual(['leases?'])
    expect(await judged(by('10.5.2.0/24', undefined, { dev: 'virbr0' }), { leases: [] })).toEqual([])
  })
})

describe('policy routing', () => {
  const about = surroundings({ ownDevices: ['flannel-wg'] })
  const TABLE = 52
  let kernel: ModelKernel
  beforeEach(() => {
    kernel = new ModelKernel()
    const addressOf = (text: string, prefixLength: number) => [{ address: parseAddress(text)!, prefixLength }]
    kernel.addLink({ name: 'eth0' }, addressOf('192.0.2.1', 24))
    kernel.addLink({ name: 'cni0', type: 'bridge' }, addressOf('10.5.1.1', 24))
    kernel.addLink({ name: 'flannel-wg', type: 'wireguard' }, addressOf('10.5.1.0', 32))
    kernel.addLink({ name: 'tailscale0', type: 'tun' })
    kernel.addRoute('ipv4', { destination: '10.5.0.0/16', device: 'flannel-wg' })
    kernel.addRoute('ipv6', { destination: 'fd00:5::/48', device: 'flannel-wg' })
  })
  const divert = (destination: string, device: string): void =>
    kernel.addRoute('ipv4', { destination, device, table: TABLE })
  const diverted = async (): Promise<string[]> => (await findDiverted(kernel, about)).map(({ route }) => route)

  it('is checked by querying routes to peers, if there are additional rules', async () => {
    divert('10.5.2.0/24', 'tailscale0')
    expect(await findDiverted(kernel, about)).toEqual([])
    expect(kernel.reads).not.toContain('lookUp')
    kernel.addRule('ipv4', { priority: 5270, table: TABLE })
    expect(await findDiverted(kernel, about)).toEqual([
      { family: 'ipv4', route: '10.5.2.0/24 to tailscale0, by a rule of `ip rule`', isOfOwn: false },
    ])
  })

  it('may route packets to the own device, or reject them', async () => {
    kernel.addRule('ipv4', { priority: 5270, table: TABLE })
    divert('10.5.2.0/24', 'flannel-wg')
    kernel.addRoute('ipv4', { destination: '10.5.3.0/24', type: 'unreachable', table: TABLE })
    expect(await diverted()).toEqual([])
  })

  it('is checked for packets of containers too, because a rule may match their source or bridge', async () => {
    const from = parseNet('10.5.1.0/24')!
    kernel.addRule('ipv4', { priority: 100, table: TABLE, iif: 'cni0', from })
    divert('default', 'eth0')
    expect(await diverted()).toEqual(
      ['10.5.2.0/24', '10.5.3.0/24'].map((net) => `${net} to eth0, by a rule of \`ip rule\``),
    )
  })

  it('is not checked for leases of another network, whose packets may use any route', async () => {
    const lease = { ...peer(4), key: '10.6.4.0-24', subnet: netsOf([parseNet('10.6.4.0/24')!]) }
    kernel.addRule('ipv4', { priority: 100, table: TABLE })
    divert('10.6.0.0/16', 'eth0')
    const all = surroundings({ ownDevices: ['flannel-wg'], leases: [lease, ...PEERS] })
    expect(await findDiverted(kernel, all)).toEqual([])
  })

  it('names each sender and interface once if a rule selects another table, but not for a right route', async () => {
    const by = async (): Promise<string[]> => [...(await findDivertedByRules(kernel, about)).values()]
    kernel.addRoute('ipv4', { destination: '10.5.3.0/24', device: 'eth0' })
    kernel.addRule('ipv4', { priority: 100, table: TABLE, iif: 'cni0' })
    expect(await by()).toEqual([])
    divert('default', 'eth0')
    expect(await by()).toEqual(['from cni0 to eth0 (such as those for 10.5.2.0/24)'])
    kernel.addRule('ipv4', { priority: 101, table: 53 })
    kernel.addRoute('ipv4', { destination: '10.5.2.0/24', device: 'tailscale0', table: 53 })
    expect(await by()).toEqual([
      'from this host to tailscale0 (such as those for 10.5.2.0/24)',
      'from cni0 to eth0 (such as those for 10.5.2.0/24)',
    ])
  })

  it('may route packets to the host of the peer if the data path does so too', async () => {
    kernel.addRule('ipv4', { priority: 100, table: TABLE, to: parseNet('10.5.2.0/24')! })
    kernel.addRoute('ipv4', { destination: 'default', device: 'eth0', gateway: '192.0.2.2', table: TABLE })
    const by = async (routesToHosts: boolean) =>
      (await findDivertedByRules(kernel, surroundings({ ownDevices: ['flannel-wg'], routesToHosts }))).size
    expect([await by(true), await by(false)]).toEqual([0, 2])
  })

  it('may be missing from the kernel, and a rule that prohibits is not a failure', async () => {
    kernel.addRule('ipv4', { priority: 100, action: 'prohibit', to: parseNet('10.5.2.0/24')! })
    kernel.addRule('ipv4', { priority: 101, table: TABLE })
    divert('default', 'eth0')
    expect(await diverted()).toEqual(['10.5.3.0/24 to eth0, by a rule of `ip rule`'])
    kernel.hasPolicyRouting = false
    expect(await diverted()).toEqual([])
  })
})

it('the lock of a weftd is recognised by the end of its name', () => {
  expect(handoverLock({ 'subnet-file': '/run/flannel/subnet.env' })).toBe(`/run/flannel/subnet.env${LOCK_END}`)
})

describe('other daemons', () => {
  let proc: string
  afterEach(() => rmSync(proc, { recursive: true, force: true }))
  /**
   * A daemon in a simulated /proc: its command line, the text of its subnet file, and whether it holds a lock beside
   * that file.
   */
  function add(pid: number, command: readonly string[], env: string | undefined, file: string, hasLock: boolean): void {
    const folder = join(proc, String(pid))
    for (const each of ['ns', 'fd', 'root/run']) mkdirSync(join(folder, each), { recursive: true })
    symlinkSync('net:[1]', join(folder, 'ns/net'))
    writeFileSync(join(folder, 'cmdline'), command.join('\0'))
    if (env !== undefined) writeFileSync(join(folder, 'root', file), env)
    if (!hasLock) return
    const lock = join(proc, `lock${pid}.handover.lock`)
    writeFileSync(lock, '')
    symlinkSync(lock, join(folder, 'fd/9'))
    mkdirSync(join(folder, 'root', proc), { recursive: true })
    if (env !== undefined) writeFileSync(join(folder, 'root', lock.slice(0, -'.handover.lock'.length)), env)
  }

  it('are listed with the networks in their subnet files, without a weftd that holds the own lock or none', async () => {
    proc = mkdtempSync(join(tmpdir(), 'weft-proc-'))
    mkdirSync(join(proc, 'self/ns'), { recursive: true })
    symlinkSync('net:[1]', join(proc, 'self/ns/net'))
    add(11, ['/opt/flanneld', '-subnet-file', '/run/red.env'], 'FLANNEL_NETWORK=10.6.0.0/16\n', 'run/red.env', false)
    add(12, ['flanneld', '--subnet-file=/run/none.env'], undefined, '', false)
    add(13, ['weftd'], 'FLANNEL_NETWORK=10.7.0.0/16\nFLANNEL_IPV6_NETWORK=fd00:7::/48\n', 'run/blue.env', true)
    add(14, ['weftd'], 'FLANNEL_NETWORK=10.5.0.0/16\n', 'run/own.env', true)
    add(15, ['weftd'], 'FLANNEL_NETWORK=10.5.0.0/16\n', 'run/waits.env', false)
    add(16, ['sh', '-c', 'flanneld'], 'FLANNEL_NETWORK=10.8.0.0/16\n', 'run/sh.env', false)
    // The path of a subnet file may lead to anything, for example to a named pipe without a writer.
    add(17, ['flanneld', '--subnet-file=/run/pipe'], undefined, '', false)
    execFileSync('mkfifo', [join(proc, '17/root/run/pipe')])
    add(18, ['flanneld', '--subnet-file=/run/zero'], undefined, '', false)
    symlinkSync('/dev/zero', join(proc, '18/root/run/zero'))
    const found = await otherDaemons(join(proc, 'lock14.handover.lock'), proc)
    expect(found.toSorted((a, b) => a.pid - b.pid)).toEqual([
      { name: 'flanneld', pid: 11, networks: netsOf([parseNet('10.6.0.0/16')!]) },
      { name: 'flanneld', pid: 12, networks: undefined },
      { name: 'weftd', pid: 13, networks: netsOf([parseNet('10.7.0.0/16')!, parseNet('fd00:7::/48')!]) },
      { name: 'flanneld', pid: 17, networks: undefined },
      { name: 'flanneld', pid: 18, networks: undefined },
    ])
  })
})
