// udp.test.ts - the effect of the udp backend on a simulated host and on a recorded engine.

import { beforeEach, describe, expect, it } from 'vitest'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease, OwnLease } from '../../../../src/control/lease/lease.ts'
import {
  formatAddress,
  formatEndpoint,
  formatNet,
  type Address,
  type Addresses,
  type Family,
} from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net, type Ipv6 } from '../../../../src/net/ipv6.ts'
import type { DataPaths } from '../../../../src/node/data-paths.ts'
import { createUdpBackend } from '../../../../src/path/backends/udp.ts'
import type { Engine, EngineConfig } from '../../../../src/path/engine/engine.ts'
import type { UnknownSender } from '../../../../src/path/engine/filter.ts'
import { decodePeers, encodePeers, hostOf } from '../../../../src/path/engine/peers.ts'
import { unusableReason } from '../../../../src/path/tunnel/peer-filter.ts'
import { openPaths } from '../../../support/data-paths.ts'
import { addTun, host, installHost, log } from '../../../support/fake-host.ts'

const ip = (text: string): number => parseIpv4(text)!
const lease = (subnet: string, publicIp: string, backendType = ''): Lease => ({
  key: subnet.replace('/', '-'),
  subnet: { ipv4: parseIpv4Net(subnet)! },
  attrs: { publicIp: { ipv4: ip(publicIp) }, backendType },
})
const own: OwnLease = { ...lease('10.5.72.0/24', '192.0.2.1'), expiresAt: 0, revision: 1n }

let engine: {
  config: EngineConfig | undefined
  records: Uint8Array
  /** The number of changed records, besides those that were set as a whole. */
  changed: number
  stopped: number
  strangers: UnknownSender[]
  traffic: Float64Array
}
installHost()
beforeEach(() => {
  engine = {
    config: undefined,
    records: new Uint8Array(),
    changed: 0,
    stopped: 0,
    strangers: [],
    traffic: new Float64Array(),
  }
})

const NETWORK = parseIpv4Net('10.5.0.0/16')!
const NETWORK_IPV6 = parseIpv6Net('fd00:5::/48')!
/** Adds a route to the network through another device than flannel's. */
const addForeignRoute = (family: Family): void =>
  host.kernel.addRoute(family, { destination: { ipv4: '10.5.0.0/16', ipv6: 'fd00:5::/48' }[family], device: 'eth0' })
/** Gives eth0 this address in place of its IPv4 address. */
function setAddress(address: string): void {
  const device = { name: 'eth0' }
  const before = host.kernel.peek('eth0')!.addresses.ipv4
  for (const each of before) host.kernel.act({ kind: 'delete address', device, ...each })
  host.kernel.addAddress('eth0', { address: ip(address), prefixLength: 24 })
}

/** Further members of the fake engine. */
let besides: Partial<Engine> = {}
beforeEach(() => void (besides = {}))

const startEngine = async (config: EngineConfig): Promise<Engine> => {
  engine.config = config
  if (!host.kernel.peek('flannel0')) addTun()
  return {
    kind: 'native',
    tunName: 'flannel0',
    offloads: [],
    notes: ['a note'],
    details: [],
    fault: new Promise(() => {}),
    outers: ['ipv4'],
    setPeers: (records) => void (engine.records = records),
    changePeers(records) {
      const table = new Map(decodePeers(engine.records).map((peer) => [formatNet(peer.subnet), peer]))
      for (const peer of decodePeers(records)) {
        if (peer.isGone) table.delete(formatNet(peer.subnet))
        else table.set(formatNet(peer.subnet), peer)
      }
      engine.records = encodePeers([...table.values()])
      engine.changed += decodePeers(records).length
    },
    counters: () => ({ sent: 5n }),
    traffic: () => engine.traffic,
    drops: (after = []) => ({ next: [...after, 7], packets: [] }),
    threads: () => ({}),
    takeUnknownSenders: () => engine.strangers.splice(0),
    stop: async () => void engine.stopped++,
    ...besides,
  }
}

const backend = (text = '{"Network":"10.5.0.0/16"}', address = '192.0.2.1', ipv6?: Ipv6) => {
  const config = parseNetworkConfig(text)
  return createUdpBackend({
    config,
    settings: readSettings('udp', config.backend),
    external: {
      name: 'eth0',
      mtu: 1500,
      address: { ipv4: ip(address), ipv6 },
      publicIp: { ipv4: ip(address), ipv6 },
      named: { address: { ipv4: false }, publicIp: { ipv4: false } },
    },
    startEngine,
    run: () => Promise.reject(new Error('no program may be started')),
    kernel: host.kernel,
    log,
    persistence: { persist: false, tunNames: [], isMultiQueue: false, inherit: async () => undefined },
  })
}
const { signal } = new AbortController()
const open = (config?: string) => openPaths(backend(config), own, host.kernel, { signal, log })

describe('prepare', () => {
  it('publishes the public IP and no backend type', async () => {
    expect(await backend().prepare(signal)).toEqual({ publicIp: { ipv4: ip('192.0.2.1') }, backendType: '' })
  })

  it.each([
    ['10.5.9.9', true],
    ['10.5.255.255', true],
    ['10.5.0.9', false],
  ])(
    'warns about a network that contains this host’s address %s, and if subnets may contain it',
    async (address, mayLease) => {
      setAddress(address)
      await backend(undefined, address).prepare(signal)
      expect(host.lines).toEqual([expect.stringContaining(`contains this node's own address ${address}`)])
      expect(host.lines[0]!.includes('may lease it to containers')).toBe(mayLease)
    },
  )

  it.each([
    ['ipv6', undefined, 'CONFIG', 'Backend.Underlay is "ipv6", and the network has no IPv6'],
    ['ipv6', 'fe80::1', 'ADDRESS', 'fe80::1 of eth0 is valid only on its own link'],
  ])('needs a reachable address for datagrams over %s, and has %s', async (underlay, address, code, message) => {
    const config = `{"Network":"10.5.0.0/16","Backend":{"Underlay":"${underlay}"}}`
    const local = address === undefined ? undefined : parseIpv6(address)
    await expect(backend(config, undefined, local).prepare(signal)).rejects.toMatchObject({ code, message })
  })

  it('refuses an unknown value of Underlay', () => {
    expect(() => backend('{"Network":"10.5.0.0/16","Backend":{"Underlay":"both"}}')).toThrow(
      'Backend.Underlay is "both"',
    )
  })
})

describe('open', () => {
  it('starts the engine and sets up the device as flanneld does', async () => {
    const dataPath = await open('{"Network":"10.5.0.0/16","Backend":{"Type":"udp","Port":7890,"ClampMSS":true}}')
    expect(dataPath.mtu).toBe(1472)
    expect(engine.config).toEqual({
      encapsulation: 'udp',
      tunName: 'flannel%d',
      settings: { verifySource: 'strict', clampMss: true, probePathMtu: false },
      persistent: false,
      inherited: undefined,
      peers: expect.any(Function),
      bindAddresses: ['192.0.2.1'],
      port: 7890,
      mtu: 1472,
      tunAddress: { ipv4: ip('10.5.72.0') },
      networkAddress: { ipv4: ip('10.5.0.0') },
      network: { ipv4: parseIpv4Net('10.5.0.0/16') },
      subnet: { ipv4: own.subnet.ipv4 },
    })
    expect(host.kernel.changes).toEqual([
      'ip link set dev flannel0 mtu 1472 txqueuelen 4000 up',
      'ip address replace 10.5.72.0/32 dev flannel0',
      'ip route replace 10.5.0.0/16 dev flannel0 scope global',
    ])
    expect(host.lines).toContain('a note')
  })

  it('gives ICMP errors to the TUN a source address that this host does not have, also in the first subnet', async () => {
    await open('{"Network":"10.5.72.0/22","SubnetMin":"10.5.72.0"}')
    expect(engine.config?.networkAddress).toEqual({ ipv4: ip('10.5.73.0') })
  })

  it.each([
    [{ device: 'eth0' }, 'eth0'],
    [{ type: 'blackhole' }, 'a blackhole'],
  ] as const)('does not take over the route %j', async (route, owner) => {
    host.kernel.addRoute('ipv4', { destination: '10.5.0.0/16', ...route })
    await expect(open()).rejects.toMatchObject({
      code: 'DEVICE',
      message: expect.stringContaining(`10.5.0.0/16 is already routed to ${owner === 'eth0' ? owner : 'nowhere'}`),
      remedy: expect.stringContaining('ip route del 10.5.0.0/16'),
    })
    expect(engine.config).toBeUndefined()
  })

  it('keeps a foreign route with a higher metric, over which its own has precedence', async () => {
    host.kernel.addRoute('ipv4', { destination: '10.5.0.0/16', device: 'eth0', metric: 100 })
    await open()
    expect(host.kernel.routesAsText()).toEqual(['10.5.0.0/16 dev flannel0', '10.5.0.0/16 dev eth0 metric 100'])
  })

  it('stops the engine when the device cannot be set up', async () => {
    host.kernel.refuses = (words) => (words.includes('route replace') ? 'EPERM' : undefined)
    await expect(open()).rejects.toMatchObject({ code: 'PERMISSION' })
    expect(engine.stopped).toBe(1)
  })
})

describe('apply', () => {
  it('gives the engine the leases of every backend type, with its own port', async () => {
    const dataPath = await open('{"Network":"10.5.0.0/16","Backend":{"Port":7890}}')
    const leases = [own, lease('10.5.1.0/24', '192.0.2.2'), lease('10.5.2.0/24', '192.0.2.3', 'vxlan')]
    await dataPath.apply(new Map(leases.map((entry) => [entry.key, entry])), own.key)
    expect(
      decodePeers(engine.records).map((peer) => [formatNet(peer.subnet), formatAddress(hostOf(peer)), peer.port]),
    ).toEqual([
      ['10.5.1.0/24', '192.0.2.2', 7890],
      ['10.5.2.0/24', '192.0.2.3', 7890],
    ])
    await dataPath.apply(new Map(), own.key)
    expect(decodePeers(engine.records)).toEqual([])
  })

  it('skips peers that cannot be reached, logs each once and counts them', async () => {
    const dataPath = await open()
    const bad = [lease('10.5.1.0/24', '0.0.0.0'), lease('10.5.2.0/24', '127.0.0.1'), lease('10.5.3.0/24', '192.0.2.1')]
    const all = new Map([...bad, lease('10.5.4.0/24', '192.0.2.4')].map((entry) => [entry.key, entry]))
    host.lines = []
    await dataPath.apply(all, own.key)
    await dataPath.apply(all, own.key)
    expect(decodePeers(engine.records)).toHaveLength(1)
    expect(host.lines).toHaveLength(3)
    expect(dataPath.counters()).toEqual({ sent: 5n, peers_unusable: 3n, tx_drop_queue_full: 0n })
    expect([...dataPath.unusable()]).toEqual(bad.map(({ key }) => key))
    await dataPath.apply(new Map(), own.key)
    await dataPath.apply(all, own.key)
    expect(host.lines).toHaveLength(6)
  })

  it.each([['224.0.0.1'], ['239.255.255.255'], ['255.255.255.255'], ['0.1.2.3'], ['127.9.9.9'], ['192.0.2.1']])(
    '%s cannot be an endpoint',
    (address) => {
      expect(unusableReason(lease('10.5.1.0/24', address), own, 'ipv4')).toContain(address)
    },
  )
  it.each([['240.0.0.1'], ['255.255.255.254'], ['223.255.255.255']])('%s can be an endpoint', (address) => {
    expect(unusableReason(lease('10.5.1.0/24', address), own, 'ipv4')).toBeUndefined()
  })
})

describe('both families', () => {
  const BOTH = '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"ProbePathMTU":true}}'
  const net6 = (third: number) => ({ address: parseIpv6(`fd00:5:0:${third}::`)!, prefixLength: 64 })
  const of = (ipv4: number, ipv6: number | undefined, last: number, revision = 1n): Lease => ({
    key: `10.5.${ipv4}.0-24${ipv6 === undefined ? '' : `&fd00:5:0:${ipv6}::-64`}`,
    subnet: { ipv4: parseIpv4Net(`10.5.${ipv4}.0/24`)!, ipv6: ipv6 === undefined ? undefined : net6(ipv6) },
    // A node is reached at its IPv4 address, even if it also has an IPv6 address.
    attrs: { publicIp: { ipv4: ip(`192.0.2.${last}`) }, backendType: '' },
    revision,
  })
  const ownOfBoth: OwnLease = { ...of(72, 72, 1), expiresAt: 0, revision: 1n }
  const opened = (leases: readonly Lease[] = []) =>
    openPaths(backend(BOTH), ownOfBoth, host.kernel, {
      signal,
      log,
      leases: new Map(leases.map((each) => [each.key, each])),
    })
  const records = () =>
    decodePeers(engine.records).map((peer) => `${formatNet(peer.subnet)} ${formatAddress(hostOf(peer))}`)
  const apply = async (dataPath: DataPaths, leases: readonly Lease[], ...touched: string[]) => {
    const all = new Map(leases.map((each) => [each.key, each]))
    await dataPath.apply(all, ownOfBoth.key, touched.length > 0 ? new Set(touched) : undefined)
    return records().toSorted()
  }

  it('are carried by one device with an address and a route of each', async () => {
    const dataPath = await opened()
    expect([dataPath.mtu, dataPath.families]).toEqual([1452, ['ipv4', 'ipv6']])
    expect(dataPath.probeSource).toEqual({ ipv4: ip('10.5.72.0'), ipv6: parseIpv6('fd00:5:0:72::') })
    expect(engine.config).toMatchObject({
      bindAddresses: ['192.0.2.1'],
      port: 8285,
      mtu: 1452,
      tunAddress: { ipv4: ip('10.5.72.0'), ipv6: parseIpv6('fd00:5:0:72::') },
      networkAddress: { ipv4: ip('10.5.0.0'), ipv6: parseIpv6('fd00:5::') },
      network: { ipv4: parseIpv4Net('10.5.0.0/16'), ipv6: { address: parseIpv6('fd00:5::'), prefixLength: 48 } },
      subnet: { ipv4: own.subnet.ipv4, ipv6: net6(72) },
    })
    expect(host.kernel.changes.filter((words) => words.includes(':'))).toEqual([
      'ip address replace fd00:5:0:72::/128 dev flannel0 nodad',
      'ip -6 route replace fd00:5::/48 dev flannel0',
    ])
    host.kernel.act({ kind: 'delete route', destination: NETWORK_IPV6 })
    expect(await dataPath.resync()).toEqual(['the route to fd00:5::/48 was gone'])
  })

  it.each([
    [BOTH, '192.0.2.1', 1452, '192.0.2.2'],
    [BOTH.replace('"ProbePathMTU":true', '"Underlay":"auto"'), '192.0.2.1', 1452, '192.0.2.2'],
    [BOTH.replace('"ProbePathMTU":true', '"underlay":"ipv6"'), 'fd77::1', 1452, 'fd77::2'],
    [BOTH.replace('"Network":"10.5.0.0/16"', '"EnableIPv4":false'), 'fd77::1', 1452, 'fd77::2'],
  ])('are carried in datagrams of one family: with %s from %s', async (config, bindAddress, mtu, to) => {
    const [peer, here] = [of(1, 1, 2), { ...ownOfBoth, attrs: { ...ownOfBoth.attrs } }]
    const withIpv6 = (each: Lease, address: string) => ({
      ...each,
      attrs: { ...each.attrs, publicIp: { ...each.attrs.publicIp, ipv6: parseIpv6(address) } },
    })
    const ours = { ...here, ...withIpv6(here, 'fd77::1') }
    const dataPath = await openPaths(backend(config, undefined, parseIpv6('fd77::1')), ours, host.kernel, {
      signal,
      log,
    })
    expect([engine.config?.bindAddresses[0], dataPath.mtu]).toEqual([bindAddress, mtu])
    const differ = await apply(dataPath, [withIpv6(peer, 'fd77::2')])
    const subnets = config.includes('"EnableIPv4":false') ? ['fd00:5:0:1::/64'] : ['10.5.1.0/24', 'fd00:5:0:1::/64']
    expect(differ).toEqual(subnets.map((subnet) => `${subnet} ${to}`))
  })

  it('reach a peer over the family chosen for it, or over its only address, and packets are accepted over both', async () => {
    const sent: string[] = []
    const both: Partial<Engine> = {
      outers: ['ipv6', 'ipv4'],
      send: (to: Address, port: number) => void sent.push(formatEndpoint(to, port)),
    }
    besides = both
    const config = BOTH.replace('"ProbePathMTU":true', '"Underlay":"ipv6"')
    const at = (each: Lease, ipv4: string | undefined, ipv6: string | undefined): Lease => ({
      ...each,
      attrs: {
        ...each.attrs,
        publicIp: { ipv4: ipv4 && ip(ipv4), ipv6: ipv6 && parseIpv6(ipv6) } as Lease['attrs']['publicIp'],
      },
    })
    const ours = { ...ownOfBoth, ...at(ownOfBoth, '192.0.2.1', 'fd77::1') } as OwnLease
    const dataPath = await openPaths(backend(config, undefined, parseIpv6('fd77::1')), ours, host.kernel, {
      signal,
      log,
    })
    expect(engine.config).toMatchObject({ bindAddresses: ['fd77::1', '192.0.2.1'], mtu: 1452 })
    const peers = [
      at(of(1, 1, 2), '192.0.2.2', 'fd77::2'),
      at(of(2, 2, 3), '192.0.2.3', undefined),
      at(of(3, 3, 4), undefined, 'fd77::4'),
      // No peer can have the address of this node.
      at(of(4, 4, 5), '192.0.2.5', 'fd77::1'),
    ]
    const addressIn = (hosts: Addresses, family: Family): string =>
      hosts[family] === undefined ? '-' : formatAddress(hosts[family])
    const ends = () =>
      decodePeers(engine.records).map(
        ({ subnet, hosts, outer }) =>
          `${formatNet(subnet)} ${addressIn(hosts, outer)} ${addressIn(hosts, outer === 'ipv4' ? 'ipv6' : 'ipv4')}`,
      )
    const leases = new Map(peers.map((each) => [each.key, each]))
    await dataPath.apply(leases, ours.key)
    const others = ['10.5.2.0/24 192.0.2.3 -', '10.5.3.0/24 fd77::4 -', '10.5.4.0/24 192.0.2.5 -']
    const first = '10.5.1.0/24 fd77::2 192.0.2.2'
    expect(ends().filter((end) => end.startsWith('10.'))).toEqual([first, ...others])
    expect(ends()).toContain('fd00:5:0:1::/64 fd77::2 192.0.2.2')
    const { underlays } = dataPath
    expect([underlays?.first, underlays?.other]).toEqual(['ipv6', 'ipv4'])
    expect(peers.map(({ key }) => underlays!.has(key))).toEqual([true, false, false, false])
    const [{ key }] = peers as [Lease]
    underlays!.choose(key, 'ipv4')
    expect(ends().filter((end) => end.includes(':1::/64') || end.startsWith('10.5.1.'))).toEqual([
      '10.5.1.0/24 192.0.2.2 fd77::2',
      'fd00:5:0:1::/64 192.0.2.2 fd77::2',
    ])
    expect(dataPath.peer!(key)!.ipv6!.endpoint).toBe('192.0.2.2:8285')
    // The choice survives later calls of `apply`.
    await dataPath.apply(leases, ours.key)
    expect(dataPath.peer!(key)!.ipv4!.endpoint).toBe('192.0.2.2:8285')
    for (const family of ['ipv4', 'ipv6'] as const) underlays!.send(key, family, new Uint8Array())
    underlays!.send(peers[1]!.key, 'ipv4', new Uint8Array())
    expect(sent).toEqual(['192.0.2.2:8285', '[fd77::2]:8285'])
    underlays!.choose(key, 'ipv6')
    expect(ends()).toContain(first)
    // A peer that went and came again starts without a choice.
    underlays!.choose(key, 'ipv4')
    await dataPath.apply(new Map(), ours.key)
    await dataPath.apply(leases, ours.key)
    expect(ends()).toContain(first)
  })

  it.each([
    ['has no sockets of the other', ['ipv4'], 'fd77::1', ['192.0.2.1', 'fd77::1']],
    ['has only a link-local address of the other', ['ipv4', 'ipv6'], 'fe80::1', ['192.0.2.1']],
  ] as const)('are sent over one family if the host %s', async (_what, outers, address, bindAddresses) => {
    besides = { outers }
    const dataPath = await openPaths(backend(BOTH, undefined, parseIpv6(address)), ownOfBoth, host.kernel, {
      signal,
      log,
    })
    expect([dataPath.underlays, dataPath.mtu, engine.config?.bindAddresses]).toEqual([undefined, 1452, bindAddresses])
  })

  it('give a peer one record for each of its subnets', async () => {
    const dataPath = await opened()
    expect(await apply(dataPath, [of(1, 1, 2), of(2, undefined, 3)])).toEqual([
      '10.5.1.0/24 192.0.2.2',
      '10.5.2.0/24 192.0.2.3',
      'fd00:5:0:1::/64 192.0.2.2',
    ])
    const [one, two] = dataPath.peers()
    expect([one, two]).toEqual([
      {
        key: of(1, 1, 2).key,
        ipv4: { endpoint: '192.0.2.2:8285', probe: ip('10.5.1.0'), way: 'tunnel' },
        ipv6: { endpoint: '192.0.2.2:8285', probe: parseIpv6('fd00:5:0:1::'), way: 'tunnel' },
      },
      { key: '10.5.2.0-24', ipv4: { endpoint: '192.0.2.3:8285', probe: ip('10.5.2.0'), way: 'tunnel' } },
    ])
    expect(dataPath.peer!(of(1, 1, 2).key)).toEqual(one)
  })

  it('change separately: if two leases have the same subnet in one family, both count in the other family', async () => {
    const dataPath = await opened()
    const [before, after] = [of(1, 5, 2, 2n), of(2, 5, 3, 3n)]
    await apply(dataPath, [before])
    engine.changed = 0
    const differ = await apply(dataPath, [before, after], after.key)
    expect(differ).toEqual(['10.5.1.0/24 192.0.2.2', '10.5.2.0/24 192.0.2.3', 'fd00:5:0:5::/64 192.0.2.3'])
    expect(engine.changed).toBe(3) // the subnet of the older lease is removed, and the two subnets of the newer one are added
    expect(dataPath.peer!(before.key)).toEqual({ key: before.key, ipv4: expect.anything() as object })
    // After the newer lease is gone, the older one has its subnet again.
    expect(await apply(dataPath, [before], after.key)).toEqual(['10.5.1.0/24 192.0.2.2', 'fd00:5:0:5::/64 192.0.2.2'])
    expect(await apply(dataPath, [before])).toEqual(['10.5.1.0/24 192.0.2.2', 'fd00:5:0:5::/64 192.0.2.2'])
  })

  it('of a peer share a slot, until both of its subnets are gone', async () => {
    const dataPath = await opened([of(1, 1, 2)])
    const slots = () => new Set(decodePeers(engine.records).map(({ slot }) => slot))
    await apply(dataPath, [of(1, 1, 2)])
    expect(slots().size).toBe(1)
    engine.traffic = Float64Array.from([0, 0, 0, 0, -1, 3, 300, 2, 200, 5])
    expect([...(await dataPath.traffic())]).toEqual([
      [of(1, 1, 2).key, expect.objectContaining({ txPackets: 3, rxPackets: 2 }) as object],
    ])
  })

  it('have separate limits, and that of IPv6 is never below the minimum MTU of a link', async () => {
    const dataPath = await opened()
    const peer = of(1, 1, 2)
    await apply(dataPath, [peer])
    const limits = () => decodePeers(engine.records).map(({ limit }) => limit)
    dataPath.pathSearch!.limit!(new Map([[peer.key, 1172]]), 'ipv4')
    dataPath.pathSearch!.limit!(new Map([[peer.key, 1372]]), 'ipv6')
    expect(limits()).toEqual([1172, 1372])
    expect([dataPath.pathMtu(peer, 'ipv4'), dataPath.pathMtu(peer, 'ipv6')]).toEqual([1172, 1372])
    dataPath.pathSearch!.limit!(new Map([[peer.key, 1172]]), 'ipv6')
    expect(dataPath.pathMtu(peer, 'ipv6')).toBe(1280)
  })

  it('are carried if one of them fails, which is logged and tried again', async () => {
    addForeignRoute('ipv6')
    const dataPath = await opened([of(1, 1, 2)])
    expect([dataPath.lacking, dataPath.isOutdated]).toEqual([
      { ipv6: expect.stringContaining('fd00:5::/48 is already routed to eth0') as string },
      true,
    ])
    expect(host.lines.filter((line) => line.startsWith('Cannot carry IPv6'))).toHaveLength(1)
    await apply(dataPath, [of(1, 1, 2)])
    expect(dataPath.peers()).toEqual([{ key: of(1, 1, 2).key, ipv4: expect.anything() as object }])
    await dataPath.renew(own.attrs)
    expect(dataPath.isOutdated).toBe(true)
    host.kernel.act({ kind: 'delete route', destination: NETWORK_IPV6 })
    await dataPath.renew(own.attrs)
    expect([dataPath.lacking, dataPath.isOutdated]).toEqual([{}, false])
    expect(host.kernel.routesAsText('ipv6')).toEqual(['fd00:5::/48 dev flannel0'])
    expect(dataPath.peers()).toEqual([
      { key: of(1, 1, 2).key, ipv4: expect.anything() as object, ipv6: expect.anything() as object },
    ])
  })

  it('are refused if neither can be carried', async () => {
    addForeignRoute('ipv4')
    addForeignRoute('ipv6')
    await expect(opened()).rejects.toMatchObject({
      message: expect.stringContaining('10.5.0.0/16 is already routed') as string,
    })
  })
})

describe('apply with touched keys', () => {
  it('gives the engine only the differences, with the same result as a complete set', async () => {
    const dataPath = await open()
    const records = (): string[] =>
      decodePeers(engine.records)
        .map((peer) => `${formatNet(peer.subnet)} ${formatAddress(hostOf(peer))}`)
        .toSorted()
    const at = (subnet: string, address: string, revision: bigint) => ({ ...lease(subnet, address), revision })
    const leases = new Map(
      [own, at('10.5.1.0/24', '192.0.2.2', 2n), at('10.5.2.0/24', '192.0.2.3', 3n)].map((each) => [each.key, each]),
    )
    await dataPath.apply(leases, own.key)
    const touch = async (...keys: string[]): Promise<void> => {
      await dataPath.apply(leases, own.key, new Set(keys))
      const changed = records()
      await dataPath.apply(leases, own.key)
      expect(changed).toEqual(records())
    }
    expect(engine.changed).toBe(0)
    leases.set('10.5.3.0-24', at('10.5.3.0/24', '192.0.2.4', 4n))
    await touch('10.5.3.0-24', '10.5.1.0-24', own.key)
    expect(engine.changed).toBe(1)
    // The subnet moves from one lease to another in one change.
    const other = { ...at('10.5.2.0/24', '192.0.2.9', 9n), key: '10.5.2.0-24&fc00::-64' }
    leases.set(other.key, other)
    await touch(other.key)
    expect(dataPath.peer!(other.key)).toEqual({
      key: other.key,
      ipv4: { endpoint: '192.0.2.9:8285', probe: ip('10.5.2.0'), way: 'tunnel' },
    })
    expect(dataPath.peer!('10.5.2.0-24')).toBeUndefined()
    leases.delete(other.key)
    leases.delete('10.5.1.0-24')
    await touch(other.key, '10.5.1.0-24')
    expect(records()).toEqual(['10.5.2.0/24 192.0.2.3', '10.5.3.0/24 192.0.2.4'])
    expect(
      dataPath
        .peers()
        .map(({ key }) => key)
        .toSorted(),
    ).toEqual(['10.5.2.0-24', '10.5.3.0-24'])
    // A renewed lease is not a change.
    const { changed } = engine
    leases.set('10.5.3.0-24', at('10.5.3.0/24', '192.0.2.4', 12n))
    await touch('10.5.3.0-24')
    expect(engine.changed).toBe(changed)
  })
})

describe('pathSearch', () => {
  it('sets limits only if ProbePathMTU is set', async () => {
    const search = (await open()).pathSearch!
    expect(['limit' in search, search.overhead]).toEqual([false, 28])
    expect(() => backend('{"Network":"10.5.0.0/16","Backend":{"ProbePathMTU":1}}')).toThrow('Backend.ProbePathMTU is 1')
  })

  it('limits packets to a peer, also after a change of the peers', async () => {
    const dataPath = await open('{"Network":"10.5.0.0/16","Backend":{"ProbePathMTU":true}}')
    const [one, two] = [lease('10.5.1.0/24', '192.0.2.2'), lease('10.5.2.0/24', '192.0.2.3')]
    const limits = () => decodePeers(engine.records).map(({ limit }) => limit)
    await dataPath.apply(new Map([[one.key, one]]), own.key)
    expect([limits(), dataPath.pathMtu(one, 'ipv4')]).toEqual([[undefined], undefined])
    dataPath.pathSearch!.limit!(new Map([[one.key, 1252]]), 'ipv4')
    expect([limits(), dataPath.pathMtu(one, 'ipv4')]).toEqual([[1252], 1252])
    await dataPath.apply(new Map([one, two].map((each) => [each.key, each])), own.key)
    expect(limits()).toEqual([1252, undefined])
    expect(dataPath.pathSearch!.knownMtu('10.5.9.0-24', 'ipv4')).toBeUndefined()
    dataPath.pathSearch!.limit!(new Map(), 'ipv4')
    expect([limits(), dataPath.pathMtu(one, 'ipv4')]).toEqual([[undefined, undefined], undefined])
  })
})

describe('look', () => {
  it('logs senders whose packets are refused, by the peers of the data path', async () => {
    const dataPath = await open('{"Network":"10.5.0.0/16","Backend":{"verifySource":"strict"}}')
    const peer = lease('10.5.1.0/24', '192.0.2.2')
    host.lines = []
    engine.strangers = [
      { from: ip('192.0.2.9'), source: ip('10.5.9.7'), destination: ip('10.5.72.2'), reason: 'rx_drop_unknown_sender' },
      { from: ip('192.0.2.2'), source: ip('10.5.1.7'), destination: ip('10.5.72.2'), reason: 'rx_drop_unknown_sender' },
    ]
    dataPath.look()
    expect(host.lines).toEqual([])
    await dataPath.apply(new Map([[peer.key, peer]]), own.key)
    dataPath.look()
    dataPath.look()
    expect(host.lines).toEqual([
      expect.stringMatching(/^Packets from 192\.0\.2\.9 are not let in: no lease assigns 10\.5\.9\.7 to this sender/),
      "Packets that came before their sender's lease was known were dropped: 192.0.2.2",
    ])
  })
})

describe('resync', () => {
  it('repairs the device', async () => {
    const dataPath = await open()
    host.kernel.act({ kind: 'delete route', destination: NETWORK })
    expect(await dataPath.resync()).toEqual(['the route to 10.5.0.0/16 was gone'])
    expect(await dataPath.resync()).toEqual([])
  })

  it.each([
    ['another MTU', 1400, '192.0.2.1', 'the MTU of eth0 changed from 1500 to 1400'],
    ['another address', 1500, '192.0.2.9', 'the address of eth0 changed from 192.0.2.1 to 192.0.2.9'],
  ])('reports a fault if the external interface has %s', async (_title, mtu, local, said) => {
    const dataPath = await open()
    host.kernel.alter('eth0', { mtu })
    setAddress(local)
    expect(await dataPath.resync()).toEqual([])
    expect((await dataPath.fault).message).toBe(said)
  })

  it.each([
    ['that the network lacks', ''],
    ['that is not the preferred one', ',"EnableIPv6":true,"IPv6Network":"fd00:5::/48"'],
  ])('continues after a change of the address of a family %s', async (_title, more) => {
    const config = `{"Network":"10.5.0.0/16"${more}}`
    const dataPath = await openPaths(backend(config, undefined, parseIpv6('fd00::1')), own, host.kernel, {
      signal,
      log,
    })
    host.kernel.addAddress('eth0', { address: parseIpv6('fd00::2')!, prefixLength: 64 })
    host.kernel.act({ kind: 'delete route', destination: NETWORK })
    expect(await dataPath.resync()).toEqual(['the route to 10.5.0.0/16 was gone'])
    await expect(Promise.race([dataPath.fault, Promise.resolve('pending')])).resolves.toBe('pending')
  })
})
