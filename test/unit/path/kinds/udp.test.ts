// udp.test.ts - what the udp backend does to the host and what it tells the engine, on a host of tables.

import { beforeEach, describe, expect, it } from 'vitest'
import { unusableReason } from '../../../../src/path/ways/peer-filter.ts'
import { createUdpBackend } from '../../../../src/path/kinds/udp.ts'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Stranger } from '../../../../src/path/engine/filter.ts'
import { decodePeers, encodePeers } from '../../../../src/path/engine/peers.ts'
import type { Engine, EngineConfig } from '../../../../src/path/engine/engine.ts'
import type { Lease, OwnLease } from '../../../../src/control/lease/lease.ts'
import { formatAddress, formatNet } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, type Ipv6 } from '../../../../src/net/ipv6.ts'
import { host, installHost, log, run } from '../../../support/fake-host.ts'

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
  /** How many records were changed, beside what was set as a whole. */
  changed: number
  stopped: number
  strangers: Stranger[]
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

const startEngine = async (config: EngineConfig): Promise<Engine> => {
  engine.config = config
  host.link = { mtu: 1500, txqlen: 500, flags: [], addr_info: [] }
  return {
    kind: 'naive',
    tunName: 'flannel0',
    offloads: [],
    notes: ['a note'],
    details: [],
    fault: new Promise(() => {}),
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
    takeStrangers: () => engine.strangers.splice(0),
    stop: async () => void engine.stopped++,
  }
}

const backend = (text = '{"Network":"10.5.0.0/16"}', address = '192.0.2.1', ipv6?: Ipv6) => {
  const config = parseNetworkConfig(text)
  return createUdpBackend({
    ...{ config, settings: readSettings('udp', config.backend) },
    external: {
      name: 'eth0',
      mtu: 1500,
      address: { ipv4: ip(address), ipv6 },
      publicIp: { ipv4: ip(address), ipv6 },
      named: { address: { ipv4: false }, publicIp: { ipv4: false } },
    },
    ...{ startEngine, run, log },
    persistence: { persist: false, isMultiQueue: false, inherit: async () => undefined },
  })
}
const { signal } = new AbortController()
const open = (config?: string) => backend(config).open(own, signal, new Map())

describe('prepare', () => {
  it('publishes the public IP and no backend type', async () => {
    expect(await backend().prepare(signal)).toEqual({ publicIp: { ipv4: ip('192.0.2.1') }, backendType: '' })
  })

  it.each([
    ['10.5.9.9', true],
    ['10.5.255.255', true],
    ['10.5.0.9', false],
  ])('warns of a network that holds our own address, %s, and whether its subnets may', async (address, mayLease) => {
    await backend(undefined, address).prepare(signal)
    expect(host.lines).toEqual([expect.stringContaining(`contains this node's own address ${address}`)])
    expect(host.lines[0]!.includes('may lease it to containers')).toBe(mayLease)
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
    const dataPath = await open('{"Network":"10.5.0.0/16","Backend":{"Type":"udp","Port":7890,"ClampMSS":true}}')
    expect(dataPath.mtu).toBe(1472)
    expect(engine.config).toEqual({
      ...{
        encapsulation: 'udp',
        tunName: 'flannel%d',
        settings: { verifySource: 'strict', clampMss: true, probePathMtu: false },
        persistent: false,
        inherited: undefined,
        peers: expect.any(Function),
      },
      ...{ bindAddress: '192.0.2.1', port: 7890, mtu: 1472 },
      ...{ tunAddress: { ipv4: ip('10.5.72.0') }, networkAddress: { ipv4: ip('10.5.0.0') } },
      ...{ network: { ipv4: parseIpv4Net('10.5.0.0/16') }, subnet: { ipv4: own.subnet.ipv4 } },
    })
    expect(host.commands).toEqual([
      'ip link set dev flannel0 mtu 1472 txqueuelen 4000 up',
      'ip address replace 10.5.72.0/32 dev flannel0',
      'ip route replace 10.5.0.0/16 dev flannel0 scope global',
    ])
    expect(host.lines).toContain('a note')
  })

  it('has ICMP errors for this host come from an address that is none of its own, also in the first subnet', async () => {
    await open('{"Network":"10.5.72.0/22","SubnetMin":"10.5.72.0"}')
    expect(engine.config?.networkAddress).toEqual({ ipv4: ip('10.5.73.0') })
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
    expect(engine.config).toBeUndefined()
  })

  it('leaves a route of a higher metric alone: ours comes first', async () => {
    host.routes = [{ dev: 'eth0', metric: 100 }]
    await open()
    expect(host.routes).toEqual([{ dev: 'eth0', metric: 100 }, { dev: 'flannel0' }])
  })

  it('stops the engine when the device cannot be set up', async () => {
    host.fails = /route replace/
    await expect(open()).rejects.toMatchObject({ code: 'PERMISSION' })
    expect(engine.stopped).toBe(1)
  })
})

describe('apply', () => {
  it('gives the engine all leases of any backend, at our own port', async () => {
    const dataPath = await open('{"Network":"10.5.0.0/16","Backend":{"Port":7890}}')
    const leases = [own, lease('10.5.1.0/24', '192.0.2.2'), lease('10.5.2.0/24', '192.0.2.3', 'vxlan')]
    await dataPath.apply(new Map(leases.map((entry) => [entry.key, entry])), own.key)
    expect(
      decodePeers(engine.records).map((peer) => [formatNet(peer.subnet), formatAddress(peer.endpoint), peer.port]),
    ).toEqual([
      ['10.5.1.0/24', '192.0.2.2', 7890],
      ['10.5.2.0/24', '192.0.2.3', 7890],
    ])
    await dataPath.apply(new Map(), own.key)
    expect(decodePeers(engine.records)).toEqual([])
  })

  it('leaves out what cannot be reached, names it once and counts it', async () => {
    const dataPath = await open()
    const bad = [lease('10.5.1.0/24', '0.0.0.0'), lease('10.5.2.0/24', '127.0.0.1'), lease('10.5.3.0/24', '192.0.2.1')]
    const all = new Map([...bad, lease('10.5.4.0/24', '192.0.2.4')].map((entry) => [entry.key, entry]))
    host.lines = []
    await dataPath.apply(all, own.key)
    await dataPath.apply(all, own.key)
    expect(decodePeers(engine.records)).toHaveLength(1)
    expect(host.lines).toHaveLength(3)
    expect(dataPath.counters()).toEqual({ sent: 5n, peers_unusable: 3n })
    await dataPath.apply(new Map(), own.key)
    await dataPath.apply(all, own.key)
    expect(host.lines).toHaveLength(6)
  })

  it.each([['224.0.0.1'], ['239.255.255.255'], ['255.255.255.255'], ['0.1.2.3'], ['127.9.9.9'], ['192.0.2.1']])(
    '%s is no endpoint',
    (address) => {
      expect(unusableReason(lease('10.5.1.0/24', address), own, 'ipv4')).toContain(address)
    },
  )
  it.each([['240.0.0.1'], ['255.255.255.254'], ['223.255.255.255']])('%s is one', (address) => {
    expect(unusableReason(lease('10.5.1.0/24', address), own, 'ipv4')).toBeUndefined()
  })
})

describe('apply with what was touched', () => {
  it('tells the engine what differs and no more, and comes to what a whole set comes to', async () => {
    const dataPath = await open()
    const records = (): string[] =>
      decodePeers(engine.records)
        .map(({ subnet, endpoint }) => `${formatNet(subnet)} ${formatAddress(endpoint)}`)
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
    // The subnet goes from one lease to another in one change.
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
    // A renewal says nothing new.
    const { changed } = engine
    leases.set('10.5.3.0-24', at('10.5.3.0/24', '192.0.2.4', 12n))
    await touch('10.5.3.0-24')
    expect(engine.changed).toBe(changed)
  })
})

describe('pathSearch', () => {
  it('sets limits where that is asked for alone', async () => {
    const search = (await open()).pathSearch!
    expect(['limit' in search, search.overhead]).toEqual([false, 28])
    expect(() => backend('{"Network":"10.5.0.0/16","Backend":{"ProbePathMTU":1}}')).toThrow('Backend.ProbePathMTU is 1')
  })

  it('limits what goes to a peer, which a change of the peers outlives', async () => {
    const dataPath = await open('{"Network":"10.5.0.0/16","Backend":{"ProbePathMTU":true}}')
    const [one, two] = [lease('10.5.1.0/24', '192.0.2.2'), lease('10.5.2.0/24', '192.0.2.3')]
    const limits = () => decodePeers(engine.records).map(({ limit }) => limit)
    await dataPath.apply(new Map([[one.key, one]]), own.key)
    expect([limits(), dataPath.pathMtu!(one)]).toEqual([[undefined], undefined])
    dataPath.pathSearch!.limit!(new Map([[one.key, 1252]]))
    expect([limits(), dataPath.pathMtu!(one)]).toEqual([[1252], 1252])
    await dataPath.apply(new Map([one, two].map((each) => [each.key, each])), own.key)
    expect(limits()).toEqual([1252, undefined])
    expect(dataPath.pathSearch!.knownMtu('10.5.9.0-24')).toBeUndefined()
    dataPath.pathSearch!.limit!(new Map())
    expect([limits(), dataPath.pathMtu!(one)]).toEqual([[undefined, undefined], undefined])
  })
})

describe('look', () => {
  it('names who is not let in, by the peers that the data path has', async () => {
    const dataPath = await open('{"Network":"10.5.0.0/16","Backend":{"verifySource":"strict"}}')
    const peer = lease('10.5.1.0/24', '192.0.2.2')
    host.lines = []
    engine.strangers = [
      { from: ip('192.0.2.9'), source: ip('10.5.9.7'), destination: ip('10.5.72.2'), reason: 'rx_drop_unknown_sender' },
      { from: ip('192.0.2.2'), source: ip('10.5.1.7'), destination: ip('10.5.72.2'), reason: 'rx_drop_unknown_sender' },
    ]
    dataPath.look!()
    expect(host.lines).toEqual([])
    await dataPath.apply(new Map([[peer.key, peer]]), own.key)
    dataPath.look!()
    dataPath.look!()
    expect(host.lines).toEqual([
      expect.stringMatching(/^Packets from 192\.0\.2\.9 are not let in: no lease says that 10\.5\.9\.7 is there/),
      "Packets that came before their sender's lease was known were dropped: 192.0.2.2",
    ])
  })
})

describe('resync', () => {
  it('mends the device', async () => {
    const dataPath = await open()
    host.routes = []
    expect(await dataPath.resync()).toEqual(['the route to 10.5.0.0/16 was gone'])
    expect(await dataPath.resync()).toEqual([])
  })

  it.each([
    ['another MTU', 1400, '192.0.2.1', 'the MTU of eth0 changed from 1500 to 1400'],
    ['another address', 1500, '192.0.2.9', 'the address of eth0 changed from 192.0.2.1 to 192.0.2.9'],
  ])('ends the data path when the external interface has %s', async (_title, mtu, local, said) => {
    const dataPath = await open()
    host.external = JSON.stringify([{ ifname: 'eth0', mtu, addr_info: [{ family: 'inet', local }] }])
    expect(await dataPath.resync()).toEqual([])
    expect((await dataPath.fault).message).toBe(said)
  })

  it('goes on when the address is another of the family that it does not carry', async () => {
    const both = '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}'
    const dataPath = await backend(both, undefined, parseIpv6('fd00::1')).open(own, signal, new Map())
    const info = [
      { family: 'inet', local: '192.0.2.1' },
      { family: 'inet6', local: 'fd00::2' },
    ]
    host.external = JSON.stringify([{ ifname: 'eth0', mtu: 1500, addr_info: info }])
    host.routes = []
    expect(await dataPath.resync()).toEqual(['the route to 10.5.0.0/16 was gone'])
    await expect(Promise.race([dataPath.fault, Promise.resolve('pending')])).resolves.toBe('pending')
  })
})
