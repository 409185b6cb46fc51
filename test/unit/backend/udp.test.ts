// udp.test.ts - what the udp backend does to the host and what it tells the engine, on a host of tables.

import { beforeEach, describe, expect, it } from 'vitest'
import { createUdpBackend, udpPort, unusableReason } from '../../../src/backend/udp.ts'
import { parseNetworkConfig } from '../../../src/config/network-config.ts'
import { decodePeers } from '../../../src/dataplane/peers.ts'
import type { Engine, EngineConfig } from '../../../src/dataplane/engine.ts'
import { WeftError } from '../../../src/errors.ts'
import type { Run } from '../../../src/host/command.ts'
import type { Lease, OwnLease } from '../../../src/lease/lease.ts'
import { formatIpv4, formatIpv4Net, parseIpv4, parseIpv4Net } from '../../../src/net/ipv4.ts'

const ip = (text: string): number => parseIpv4(text)!
const lease = (subnet: string, publicIp: string, backendType = ''): Lease => ({
  key: subnet.replace('/', '-'),
  subnet: parseIpv4Net(subnet)!,
  attrs: { publicIp: ip(publicIp), backendType },
})
const own: OwnLease = { ...lease('10.5.72.0/24', '192.0.2.1'), expiresAt: 0, revision: 1n }

/** A host with one TUN and the routes to the network; commands change it, and are recorded. */
interface FakeHost {
  commands: string[]
  link: { mtu: number; txqlen: number; flags: string[]; addr_info: object[] } | undefined
  routes: { dst?: string; type?: string; dev?: string; metric?: number }[]
  fails: RegExp | undefined
  engine: { config: EngineConfig | undefined; records: Uint8Array; stopped: number }
  lines: string[]
  external: string
}
let host: FakeHost
beforeEach(() => {
  host = {
    commands: [],
    link: undefined,
    routes: [],
    fails: undefined,
    engine: { config: undefined, records: new Uint8Array(), stopped: 0 },
    lines: [],
    external: '',
  }
})

const run: Run = async (file, args) => {
  const command = [file, ...args].join(' ')
  if (host.fails?.test(command)) throw new WeftError('PERMISSION', `\`${command}\` failed`)
  if (command === 'ip -j address show dev eth0') return host.external
  if (command === 'ip -j -4 route show exact 10.5.0.0/16') return JSON.stringify(host.routes)
  if (command === 'ip -j -4 route show root 10.5.0.0/16')
    return JSON.stringify(host.routes.map((route) => ({ dst: '10.5.0.0/16', ...route })))
  if (command === 'ip -j address show dev flannel0') {
    if (!host.link) throw new WeftError('COMMAND', 'Device "flannel0" does not exist.')
    return JSON.stringify([{ ifindex: 9, ifname: 'flannel0', ...host.link }])
  }
  host.commands.push(command)
  const link = host.link!
  const setting = /^ip link set dev flannel0 mtu (\d+) txqueuelen (\d+) up$/.exec(command)
  if (setting) Object.assign(link, { mtu: Number(setting[1]), txqlen: Number(setting[2]), flags: ['UP'] })
  if (command.startsWith('ip address replace'))
    link.addr_info = [{ family: 'inet', local: '10.5.72.0', prefixlen: 32, scope: 'global' }]
  if (command.startsWith('ip route replace'))
    host.routes = [...host.routes.filter(({ metric }) => metric), { dev: 'flannel0' }]
  return ''
}

const startEngine = async (config: EngineConfig): Promise<Engine> => {
  host.engine.config = config
  host.link = { mtu: 1500, txqlen: 500, flags: [], addr_info: [] }
  return {
    kind: 'naive',
    tunName: 'flannel0',
    offloads: [],
    notes: ['a note'],
    fault: new Promise(() => {}),
    setPeers: (records) => void (host.engine.records = records),
    counters: () => ({ sent: 5n }),
    threads: () => ({}),
    stop: async () => void host.engine.stopped++,
  }
}

const say = (message: string): void => void host.lines.push(message)
const backend = (config = '{"Network":"10.5.0.0/16"}', address = '192.0.2.1') =>
  createUdpBackend({
    config: parseNetworkConfig(config),
    external: {
      name: 'eth0',
      mtu: 1500,
      address: ip(address),
      publicIp: ip(address),
      named: { address: false, publicIp: false },
    },
    ...{ startEngine, run },
    log: { info: say, warn: say, error: say, v: () => false },
  })
const { signal } = new AbortController()
const open = (config?: string) => backend(config).open(own, signal)

describe('udpPort', () => {
  it.each([
    [{}, 8285],
    [{ port: 9000 }, 9000],
    [{ Port: 0 }, 8285],
    [{ PORT: 65535 }, 65535],
  ])('reads %j as %d', (options, port) => {
    expect(udpPort(options)).toBe(port)
  })
  it.each([[{ port: '8285' }], [{ port: -1 }], [{ port: 65536 }], [{ port: 1.5 }]])('refuses %j', (options) => {
    expect(() => udpPort(options)).toThrow('Backend.Port is')
  })
})

describe('prepare', () => {
  it('publishes the public IP and no backend type', async () => {
    expect(await backend().prepare(signal)).toEqual({ publicIp: ip('192.0.2.1'), backendType: '' })
  })

  it('refuses a network whose subnets may hold our own address, and only warns outside of them', async () => {
    await expect(backend(undefined, '10.5.9.9').prepare(signal)).rejects.toMatchObject({
      code: 'CONFIG',
      message: expect.stringContaining('10.5.9.9'),
    })
    await expect(backend(undefined, '10.5.255.255').prepare(signal)).rejects.toMatchObject({ code: 'CONFIG' })
    expect(host.lines).toEqual([])
    await backend(undefined, '10.5.0.9').prepare(signal)
    expect(host.lines).toEqual([expect.stringContaining('contains this node')])
  })

  it('needs IPv4', async () => {
    const config = '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48"}'
    await expect(backend(config).prepare(signal)).rejects.toMatchObject({
      code: 'CONFIG',
      message: expect.stringContaining('needs IPv4'),
    })
  })
})

describe('open', () => {
  it('starts the engine and sets up the device as flanneld does', async () => {
    const network = await open('{"Network":"10.5.0.0/16","Backend":{"Type":"udp","Port":7890}}')
    expect(network.mtu).toBe(1472)
    expect(host.engine.config).toEqual({
      ...{ tunName: 'flannel%d', bindAddress: '192.0.2.1', port: 7890, mtu: 1472, tunAddress: ip('10.5.72.0') },
    })
    expect(host.commands).toEqual([
      'ip link set dev flannel0 mtu 1472 txqueuelen 4000 up',
      'ip address replace 10.5.72.0/32 dev flannel0',
      'ip route replace 10.5.0.0/16 dev flannel0',
    ])
    expect(host.lines).toContain('a note')
    expect(host.lines).toContain('Watching for new subnet leases')
  })

  it.each([
    [{ dev: 'eth0' }, 'eth0'],
    [{}, 'a blackhole'],
  ])('does not take over the route %j', async (route, owner) => {
    host.routes = [route]
    await expect(open()).rejects.toMatchObject({
      code: 'DEVICE',
      message: expect.stringContaining(`10.5.0.0/16 is already routed to ${owner === 'eth0' ? owner : 'nowhere'}`),
      remedy: expect.stringContaining('ip route del 10.5.0.0/16'),
    })
    expect(host.engine.config).toBeUndefined()
  })

  it('leaves a route of a higher metric alone: ours comes first', async () => {
    host.routes = [{ dev: 'eth0', metric: 100 }]
    await open()
    expect(host.routes).toEqual([{ dev: 'eth0', metric: 100 }, { dev: 'flannel0' }])
  })

  it('stops the engine when the device cannot be set up', async () => {
    host.fails = /route replace/
    await expect(open()).rejects.toMatchObject({ code: 'PERMISSION' })
    expect(host.engine.stopped).toBe(1)
  })
})

describe('apply', () => {
  it('gives the engine all leases of any backend, at our own port', async () => {
    const network = await open('{"Network":"10.5.0.0/16","Backend":{"Port":7890}}')
    const leases = [own, lease('10.5.1.0/24', '192.0.2.2'), lease('10.5.2.0/24', '192.0.2.3', 'vxlan')]
    await network.apply(new Map(leases.map((entry) => [entry.key, entry])), own.key)
    expect(
      decodePeers(host.engine.records).map((peer) => [
        formatIpv4Net(peer.subnet),
        formatIpv4(peer.endpoint),
        peer.port,
      ]),
    ).toEqual([
      ['10.5.1.0/24', '192.0.2.2', 7890],
      ['10.5.2.0/24', '192.0.2.3', 7890],
    ])
    await network.apply(new Map(), own.key)
    expect(decodePeers(host.engine.records)).toEqual([])
  })

  it('leaves out what cannot be reached, names it once and counts it', async () => {
    const network = await open()
    const bad = [lease('10.5.1.0/24', '0.0.0.0'), lease('10.5.2.0/24', '127.0.0.1'), lease('10.5.3.0/24', '192.0.2.1')]
    const all = new Map([...bad, lease('10.5.4.0/24', '192.0.2.4')].map((entry) => [entry.key, entry]))
    host.lines = []
    await network.apply(all, own.key)
    await network.apply(all, own.key)
    expect(decodePeers(host.engine.records)).toHaveLength(1)
    expect(host.lines).toHaveLength(3)
    expect(network.counters()).toEqual({ sent: 5n, peers_unusable: 3n })
    await network.apply(new Map(), own.key)
    await network.apply(all, own.key)
    expect(host.lines).toHaveLength(6)
  })

  it.each([['224.0.0.1'], ['255.255.255.255'], ['0.1.2.3'], ['127.9.9.9'], ['192.0.2.1']])(
    '%s is no endpoint',
    (address) => {
      expect(unusableReason(lease('10.5.1.0/24', address), own)).toContain(address)
    },
  )
})

describe('resync', () => {
  it('says and does nothing when nothing changed', async () => {
    const network = await open()
    host.commands = []
    expect(await network.resync()).toEqual([])
    expect(host.commands).toEqual([])
  })

  it.each([
    ['the device down', () => (host.link!.flags = []), 'flannel0 was down'],
    ['another MTU', () => (host.link!.mtu = 1500), 'flannel0 had MTU 1500'],
    ['no address', () => (host.link!.addr_info = []), 'flannel0 had lost its address'],
    ['no route', () => (host.routes = []), 'the route to 10.5.0.0/16 was gone'],
    [
      'a blackhole',
      () => (host.routes = [{ type: 'blackhole' }]),
      '10.5.0.0/16 was routed to nowhere (a blackhole or the like)',
    ],
    ['a foreign route', () => (host.routes = [{ dev: 'eth0' }]), '10.5.0.0/16 was routed to eth0'],
    [
      'only a foreign route of a higher metric',
      () => (host.routes = [{ dev: 'eth0', metric: 9 }]),
      'the route to 10.5.0.0/16 was gone',
    ],
  ])('mends %s', async (_title, spoil, said) => {
    const network = await open()
    spoil()
    expect(await network.resync()).toEqual([said])
    expect(await network.resync()).toEqual([])
  })

  it('names routes to parts of the network that hide its own, once, leaves them alone, and says when they are gone', async () => {
    const network = await open()
    host.commands = []
    host.lines = []
    const ours = { dev: 'flannel0' }
    const containers = [
      { dst: '10.5.72.0/24', dev: 'cni0' },
      { dst: '10.5.72.9', dev: 'veth1' },
      { dst: '10.5.72.0/24', type: 'blackhole', metric: 4294967295 },
      { dst: '10.5.9.0/24', dev: 'flannel0' },
    ]
    host.routes = [ours, ...containers, { dst: '10.5.64.0/20', dev: 'eth0' }, { dst: '10.5.1.7', type: 'unreachable' }]
    expect([await network.resync(), await network.resync()]).toEqual([[], []])
    expect(host.lines).toEqual([
      'Packets bypass the tunnel by routes that others made: 10.5.64.0/20 to eth0, ' +
        '10.5.1.7/32 to nowhere (a blackhole or the like); remove them unless that is wanted',
    ])
    host.routes = [ours, ...Array.from({ length: 7 }, (_, third) => ({ dst: `10.5.${third}.0/24`, dev: 'eth0' }))]
    await network.resync()
    expect(host.lines.slice(1)).toEqual([
      'Packets bypass the tunnel by routes that others made: 10.5.0.0/24 to eth0, 10.5.1.0/24 to eth0, ' +
        '10.5.2.0/24 to eth0, 10.5.3.0/24 to eth0, 10.5.4.0/24 to eth0, ... (7); remove them unless that is wanted',
      'Routes that bypassed the tunnel are gone: 10.5.64.0/20 to eth0, 10.5.1.7/32 to nowhere (a blackhole or the like)',
    ])
    expect(host.commands).toEqual([])
  })

  it.each([
    ['another MTU', 1400, '192.0.2.1', 'the MTU of eth0 changed from 1500 to 1400'],
    ['another address', 1500, '192.0.2.9', 'the address of eth0 changed from 192.0.2.1 to 192.0.2.9'],
  ])('ends the data path when the external interface has %s', async (_title, mtu, local, said) => {
    const network = await open()
    host.external = JSON.stringify([{ ifname: 'eth0', mtu, addr_info: [{ family: 'inet', local }] }])
    expect(await network.resync()).toEqual([])
    expect((await network.fault).message).toBe(said)
  })

  it('leaves a device that is gone to the engine', async () => {
    const network = await open()
    host.link = undefined
    host.commands = []
    expect(await network.resync()).toEqual([])
    expect(host.commands).toEqual([])
  })
})
