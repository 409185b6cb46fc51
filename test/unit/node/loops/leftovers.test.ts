// leftovers.test.ts - when a node searches leftovers of other backends, its state until they are gone, and what it leaves to a successor.

import { existsSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease } from '../../../../src/control/lease/lease.ts'
import { addon } from '../../../../src/host/addon.ts'
import { createBell } from '../../../../src/host/bell.ts'
import type { VxlanSettings } from '../../../../src/host/kernel.ts'
import { formatNet, hostNet, netsOf, parseAddress, parseNet, type Net } from '../../../../src/net/address.ts'
import type { Ipv4Net } from '../../../../src/net/ipv4.ts'
import { clearLeftovers } from '../../../../src/node/loops/leftovers.ts'
import type { Node } from '../../../../src/node/node.ts'
import { INGRESS_STAYS_MS } from '../../../../src/path/device/kernel-way-remains.ts'
import {
  backend,
  config,
  ended,
  installRig,
  inTurns,
  kernel,
  lines,
  logged,
  nodeStatus,
  ours,
  ownership,
  readiness,
  ready,
  restart,
  start,
  store,
  subnetFile,
  trouble,
  until,
  value,
} from '../../../support/node-rig.ts'

installRig()

/** Called before the interfaces of the host are listed. */
let whileListing: () => void | Promise<void>
beforeEach(() => {
  whileListing = () => {}
  kernel.addLink({ name: 'eth0' })
  const links = kernel.links.bind(kernel)
  kernel.links = async () => {
    await whileListing()
    return links()
  }
})
const noPrograms = (): Promise<never> => Promise.reject(new Error('no program may be started'))
const leftovers = { earlier: {}, past: {}, run: noPrograms, others: async () => [] }
const sealed = { ...backend, devices: ['fake0'], isSealed: true }
const VXLAN: VxlanSettings = {
  vni: 1,
  local: undefined,
  underlay: 0,
  port: 8472,
  learning: false,
  gbp: false,
  external: false,
  zeroChecksumIpv6Rx: false,
}
const addVxlan = (): unknown =>
  kernel.addLink({ name: 'flannel.1', type: 'vxlan', vxlan: VXLAN }, [hostNet(parseAddress('10.5.0.64')!)])
/** Adds a route to the peer in .192 by its host, as host-gw makes it. */
const addRouteToPeer = (): void =>
  kernel.addRoute('ipv4', { destination: '10.5.0.192/26', device: 'eth0', gateway: '192.0.2.2' })
const hasRouteToPeer = (): boolean => kernel.routesAsText().includes('10.5.0.192/26 via 192.0.2.2 dev eth0')
const isReadyFile = (): boolean => existsSync(subnetFile())

/** The route against outgoing unencrypted packets, and the rule against incoming unencrypted packets. */
const SEAL = [
  'ip route add unreachable 10.5.0.0/24 metric 4294967295',
  'ip rule add priority 219 iif eth0 from 10.5.0.0/24 to 10.5.0.0/24 blackhole',
]

describe('what another backend left', () => {
  it('is removed before the node is ready: devices, and routes through hosts whose leases only the store has at the start', async () => {
    store.put('10.5.0.192-26', value('192.0.2.2'))
    addVxlan()
    addRouteToPeer()
    kernel.addLink({ name: 'cni0', type: 'bridge' }, [{ address: parseAddress('10.5.0.65')!, prefixLength: 26 }])
    start({ backend: sealed, leftovers })
    await ready()
    const at = (pattern: RegExp): number => lines.findIndex((line) => pattern.test(line))
    expect(kernel.changes).toEqual(
      expect.arrayContaining(['ip link del dev flannel.1', 'ip route del 10.5.0.192/26 via 192.0.2.2 dev eth0']),
    )
    expect(at(/Removed the route 10\.5\.0\.192\/26 via 192\.0\.2\.2 to eth0/)).toBeLessThan(at(/flannel is ready/))
    expect([trouble(), readiness()]).toEqual([undefined, true])
  })

  it('keeps the node from being ready while it cannot be removed, and its removal is tried again', async () => {
    store.put('10.5.0.192-26', value('192.0.2.2'))
    addRouteToPeer()
    kernel.refuses = (words) => (words.includes('route del') ? 'EPERM' : undefined)
    start({ backend: sealed, leftovers })
    await inTurns(() => logged(/^E A leftover of another backend cannot be removed: .*: EPERM; run as root/))
    await vi.advanceTimersByTimeAsync(20_000)
    expect([readiness(), isReadyFile(), logged(/flannel is ready/)]).toEqual([false, false, false])
    expect((await nodeStatus()).impairments[0]).toMatchObject({ by: 'bypass' })
    expect(lines.filter((line) => /cannot be removed/.test(line))).toHaveLength(1)
    kernel.refuses = () => undefined
    await inTurns(() => logged(/flannel is ready/))
    expect([readiness(), hasRouteToPeer()]).toEqual([true, false])
  })

  it('keeps the node from being ready while another program restores it immediately', async () => {
    store.put('10.5.0.192-26', value('192.0.2.2'))
    addRouteToPeer()
    whileListing = () => void (hasRouteToPeer() || addRouteToPeer())
    start({ backend: sealed, leftovers })
    await inTurns(() => logged(/^E A leftover of another backend cannot be removed: .*: it is there again/))
    expect(readiness()).toBe(false)
    whileListing = () => {}
    await inTurns(() => readiness())
  })

  it('is searched at the next start too if a backend without routes of its own could not remove it', async () => {
    const earlier = '{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"host-gw"}'
    store.put('10.5.0.64-26', earlier)
    store.put('10.5.0.192-26', value('192.0.2.2'))
    addRouteToPeer()
    kernel.refuses = (words) => (words.includes('route del') ? 'EPERM' : undefined)
    const byOthers = { ...backend, routesByOthers: true }
    start({ backend: byOthers, leftovers })
    expect(await ended).toMatchObject({ message: expect.stringMatching(/A leftover of another backend/) as string })
    expect(store.entries.get('10.5.0.64-26')?.value).toBe(earlier)
    kernel.refuses = () => undefined
    restart()
    start({ backend: byOthers, leftovers })
    await ready()
    expect(hasRouteToPeer()).toBe(false)
    expect(store.entries.get('10.5.0.64-26')?.value).toBe(ours)
  })

  it('is removed for a backend without routes of its own also if the public IP changed together with the backend', async () => {
    store.put('10.5.0.64-26', '{"PublicIP":"192.0.2.77","PublicIPv6":null,"BackendType":"host-gw"}')
    store.put('10.5.0.192-26', value('192.0.2.2'))
    addRouteToPeer()
    const earlier = netsOf([parseNet('10.5.0.64/26')!])
    start({ backend: { ...backend, routesByOthers: true }, leftovers: { ...leftovers, earlier } })
    await ready()
    expect(hasRouteToPeer()).toBe(false)
  })

  it('through the former host of a node stays if an operator makes it after the node is ready', async () => {
    // Without its lease this node might choose 10.5.0.192/26, and then each route to that subnet is a leftover.
    store.put('10.5.0.64-26', ours)
    const doubt = createBell()
    addRouteToPeer()
    const formerRoutes = new Set(['10.5.0.192/26 via 192.0.2.2'])
    start({ backend: { ...backend, devices: [] }, leftovers: { ...leftovers, formerRoutes } }, doubt)
    await ready()
    expect(hasRouteToPeer()).toBe(false)
    await vi.advanceTimersByTimeAsync(10_000)
    addRouteToPeer()
    doubt.ring()
    await vi.advanceTimersByTimeAsync(60_000)
    expect(hasRouteToPeer()).toBe(true)
  })

  describe('in a network that this node no longer has', () => {
    const past = { ipv4: { address: parseAddress('10.9.0.0') as number, prefixLength: 16 } }
    const unreachable = 'unreachable 10.9.0.0/16'
    const addPast = (): void =>
      kernel.addRoute('ipv4', { destination: '10.9.0.0/16', type: 'unreachable', metric: 0xff_ff_ff_ff })
    const hasPast = (): boolean => kernel.routesAsText().some((text) => text.startsWith(unreachable))

    it('is removed once, before the node is ready', async () => {
      addPast()
      const doubt = createBell()
      start({ backend, leftovers: { ...leftovers, past } }, doubt)
      await ready()
      expect(hasPast()).toBe(false)
      // Later the network may be that of another weftd.
      addPast()
      doubt.ring()
      await vi.advanceTimersByTimeAsync(60_000)
      expect(hasPast()).toBe(true)
    })

    it('stays if another daemon runs there, or if the backend encrypts', async () => {
      addPast()
      const others = async () => [{ name: 'weftd', pid: 7, networks: past }]
      start({ backend, leftovers: { ...leftovers, past, others } })
      await ready()
      expect(hasPast()).toBe(true)
      restart()
      start({ backend: sealed, leftovers: { ...leftovers, past } })
      await ready()
      expect(hasPast()).toBe(true)
    })

    it('does not keep the node from being ready if the kernel does not remove it', async () => {
      addPast()
      kernel.refuses = (words) => (words.includes('route del') ? 'EBUSY' : undefined)
      start({ backend, leftovers: { ...leftovers, past } })
      await ready()
      expect([trouble(), readiness()]).toEqual([undefined, true])
      expect(lines).toContainEqual(
        expect.stringMatching(/^W A leftover of an earlier run cannot be removed: the unreachable route to 10\.9/),
      )
    })
  })

  describe('in a charon that runs as a service', () => {
    const NAME = '192.0.2.1-10.5.0.64/26-10.5.0.192/26-192.0.2.2'
    let asked: string[]
    const charonWith = (names: readonly string[], failure?: WeftError) => async () => ({
      async listConnections(networks: readonly Net[]) {
        asked.push(`list ${networks.map(formatNet).join()}`)
        if (failure) throw failure
        return names
      },
      async leaveCharon() {
        asked.push('leave')
        return names
      },
    })
    beforeEach(() => void (asked = []))

    it('is removed once, before the node is ready, also for a past network', async () => {
      const past = netsOf([parseNet('fd00:9::/48')!])
      start({ backend, leftovers: { ...leftovers, past, charon: charonWith([NAME]) } })
      await ready()
      expect(asked).toEqual(['list 10.5.0.0/24,fd00:9::/48', 'leave'])
      expect(lines).toContain(`I Removed 1 connections of charon, such as ${NAME}, which another backend left`)
    })

    it('is removed for the former network too if the network changed', async () => {
      const past = netsOf([parseNet('10.9.0.0/16')!])
      const others = async () => [{ name: 'weftd', pid: 7, networks: netsOf([parseNet('10.8.0.0/16')!]) }]
      start({ backend, leftovers: { ...leftovers, past, others, charon: charonWith([NAME]) } })
      await ready()
      expect(asked).toEqual(['list 10.5.0.0/24,10.9.0.0/16', 'leave'])
    })

    it('stays if another daemon runs in the former network', async () => {
      const past = netsOf([parseNet('10.9.0.0/16')!])
      const others = async () => [{ name: 'weftd', pid: 7, networks: past }]
      start({ backend, leftovers: { ...leftovers, past, others, charon: charonWith([NAME]) } })
      await ready()
      expect(asked).toEqual(['list 10.5.0.0/24,10.9.0.0/16'])
    })

    it('does not delay the start longer than a second if charon does not answer, and is removed when it does', async () => {
      let answer = (): void => {}
      const charon = async () => ({
        ...(await charonWith([NAME])()),
        listConnections: (_nets: readonly Net[], till: AbortSignal) =>
          new Promise<readonly string[]>((resolve, reject) => {
            answer = () => resolve([NAME])
            till.addEventListener('abort', () => reject(till.reason as Error))
          }),
      })
      start({ backend, leftovers: { ...leftovers, charon } })
      await until(() => logged(/Running backend/), 1_500)
      expect([asked, readiness()]).toEqual([[], true])
      answer()
      await inTurns(() => asked.includes('leave'))
    })

    it('stays if a successor takes over while charon lists it, because it may be that of the successor', async () => {
      const charon = async () => ({
        ...(await charonWith([NAME])()),
        async listConnections() {
          void ownership.release()
          return [NAME]
        },
      })
      start({ backend, leftovers: { ...leftovers, charon } })
      await inTurns(() => ownership.state.is !== 'forwarding')
      await vi.advanceTimersByTimeAsync(20_000)
      expect(asked).toEqual([])
    })

    const flanneld = { name: 'flanneld', pid: 7, networks: undefined }
    it.each([
      ['with the backend ipsec', { usesIpsec: true }, [], []],
      ['if another daemon may have made it', {}, [flanneld], ['list 10.5.0.0/24']],
    ])('stays %s', async (_when, part, daemons, expected) => {
      const others = async () => daemons
      start({ backend: { ...backend, ...part }, leftovers: { ...leftovers, others, charon: charonWith([NAME]) } })
      await ready()
      expect(asked).toEqual(expected)
    })

    it('does not keep the node from being ready if charon refuses', async () => {
      const charon = charonWith([], new WeftError('COMMAND', 'charon is busy'))
      start({ backend, leftovers: { ...leftovers, charon } })
      await ready()
      expect(asked).toEqual(['list 10.5.0.0/24'])
      expect(lines).toContain(
        'W A leftover of another backend cannot be removed: the connections of charon: charon is busy',
      )
    })
  })

  it('is searched again while the node runs', async () => {
    const doubt = createBell()
    start({ backend: sealed, leftovers }, doubt)
    await ready()
    store.put('10.5.0.192-26', value('192.0.2.2'))
    await vi.advanceTimersByTimeAsync(100)
    addRouteToPeer()
    doubt.ring()
    await inTurns(() => !hasRouteToPeer())
  })

  it('is rarely logged while another program restores it again and again', async () => {
    const doubt = createBell()
    store.put('10.5.0.192-26', value('192.0.2.2'))
    start({ backend: sealed, leftovers }, doubt)
    await ready()
    const removals = (): number => kernel.changes.filter((words) => words.includes('route del')).length
    for (let times = 1; times <= 6; times++) {
      addRouteToPeer()
      doubt.ring()
      await inTurns(() => removals() >= times)
    }
    expect(removals()).toBe(6)
    expect(lines.filter((line) => /Removed the route/.test(line)).length).toBeLessThan(3)
  })

  it('to the own subnet that an operator made stays, and is in the log and in the status', async () => {
    // The node picks one of these subnets.
    for (const destination of ['10.5.0.64/26', '10.5.0.128/26', '10.5.0.192/26'])
      kernel.addRoute('ipv4', { destination, device: 'eth0', gateway: '192.0.2.77', protocol: 'static' })
    start({ backend: sealed, leftovers })
    const line = "Packets to this node's own containers leave this host: by routes that weft did not make: 10.5.0."
    await inTurns(() => lines.some((each) => each.startsWith(`E ${line}`)))
    expect(JSON.stringify(await nodeStatus())).toContain(line)
    expect(readiness()).toBe(false)
  })

  it('keeps the node from being ready and stays if it is a route that another running daemon may have made', async () => {
    store.put('10.5.0.192-26', value('192.0.2.2'))
    addRouteToPeer()
    let running = [{ name: 'flanneld', pid: 7, networks: { ipv4: config.ipv4!.network } }]
    start({ backend: sealed, leftovers: { ...leftovers, others: async () => running } })
    await inTurns(() =>
      logged(
        /^E A route of another backend is in the way: 10\.5\.0\.192\/26 via 192\.0\.2\.2 to eth0 stays, since flanneld runs \(pid 7\); stop that process, or remove the route with `ip route del 10\.5\.0\.192\/26 via 192\.0\.2\.2 dev eth0`/,
      ),
    )
    expect([readiness(), kernel.changes]).toEqual([false, SEAL])
    running = []
    await inTurns(() => readiness())
    expect(hasRouteToPeer()).toBe(false)
  })

  it('is not removed by a node that has a successor, because the successor may have made it', async () => {
    const doubt = createBell()
    start({ backend: sealed, leftovers }, doubt)
    await ready()
    await vi.advanceTimersByTimeAsync(10_000)
    // The successor takes the data path while this node searches for leftovers, and then makes its own device.
    whileListing = async () => {
      whileListing = () => {}
      void ownership.release()
      addVxlan()
    }
    doubt.ring()
    await vi.advanceTimersByTimeAsync(20_000)
    expect([kernel.changes, kernel.peek('flannel.1')?.type]).toEqual([SEAL, 'vxlan'])
  })
})

describe('a route that only more leases could explain, while the store is away', () => {
  const lease = {
    key: '10.5.0.64-26',
    subnet: { ipv4: parseNet('10.5.0.64/26') as Ipv4Net },
    attrs: { publicIp: {}, backendType: '' },
  }
  const known = { ...lease, key: '10.5.0.192-26', subnet: { ipv4: parseNet('10.5.0.192/26') as Ipv4Net } }
  const judged = async (view: ReadonlyMap<string, Lease>): Promise<readonly string[]> => {
    if (kernel.routesAsText().length === 0)
      kernel.addRoute('ipv4', {
        destination: '10.5.0.128/27',
        device: 'eth0',
        gateway: '192.0.2.77',
        protocol: 'static',
      })
    const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
    const node = {
      backend: sealed,
      leftovers,
      kernel,
      config,
      lease,
      view,
      log,
      options: {},
      pastPath: [],
      isReady: false,
      ownership: { state: { is: 'forwarding' }, dataPath: { carrier: () => ({}) } },
      following: { listedAt: undefined },
      signal: new AbortController().signal,
      manager: { source: { list: async () => Promise.reject(new WeftError('STORE_UNAVAILABLE', 'away')) } },
    } as unknown as Node
    await clearLeftovers(node)
    return node.pastPath.map(({ what }) => what)
  }

  it('keeps a node without a lease from being ready, but not a node that forwards with the last known state', async () => {
    expect(await judged(new Map())).toEqual(['routes into the network cannot be judged yet'])
    expect(await judged(new Map([[known.key, known]]))).toEqual([])
  })
})

describe('the eBPF programs of an earlier run', () => {
  const OWN = [{ priority: 4096, kind: 'bpf', name: 'weft-ingress' }]
  const failing = async (): Promise<never> => {
    throw new Error('rtnetlink: Operation not supported')
  }
  afterEach(() => vi.restoreAllMocks())

  it.each([
    ['the kernel has no tc', failing, undefined, []],
    ['the kernel keeps them', async () => OWN, failing, ['the eBPF program on eth0 (ingress)']],
  ] as const)('do not keep a node from being ready if %s', async (_, list, detach, named) => {
    vi.spyOn(addon, 'listFilters').mockImplementation(list)
    if (detach) vi.spyOn(addon, 'detachProgram').mockImplementation(detach)
    const warnings: string[] = []
    const node = {
      backend: { ...sealed, external: { name: 'eth0', index: 7 } },
      config,
      lease: {
        key: '10.5.0.64-26',
        subnet: { ipv4: parseNet('10.5.0.64/26') as Ipv4Net },
        attrs: { publicIp: {}, backendType: '' },
      },
      view: new Map(),
      log: { info: () => {}, warn: (line: string) => void warnings.push(line), error: () => {}, v: () => false },
      options: {},
      pastPath: [],
      isReady: false,
      leftovers,
      kernel,
      ownership: { state: { is: 'forwarding' }, dataPath: { carrier: () => ({}) } },
      following: { listedAt: 1 },
      signal: new AbortController().signal,
    } as unknown as Node
    await clearLeftovers(node)
    expect(node.pastPath.map(({ line }) => line)).toEqual([])
    expect(warnings.map((line) => line.split(': ')[1])).toEqual(named)
  })

  it.each([
    ['weftd', 0],
    ['flanneld', 1],
  ])('on the external interface may be those of a running %s of another network', async (name, detached) => {
    vi.spyOn(addon, 'listFilters').mockImplementation(async ({ isEgress }) => (isEgress ? [] : OWN))
    const detach = vi.spyOn(addon, 'detachProgram').mockResolvedValue(undefined)
    kernel.addLink({ name: 'weft-join', type: 'veth' })
    const others = async () => [{ name, pid: 7, networks: netsOf([parseNet('10.9.0.0/16')!]) }]
    const node = nodeWith([{ key: '10.5.0.64-26', subnet: {}, attrs: { publicIp: {}, backendType: '' } }], {
      backend: { ...sealed, external: { name: 'eth0', index: 7 } },
      config,
      leftovers: { ...leftovers, others },
      log: { info: () => {}, warn: () => {}, error: () => {}, v: () => false },
    })
    await clearLeftovers(node)
    expect(detach).toHaveBeenCalledTimes(detached)
    expect(kernel.peek('weft-join') === undefined).toBe(detached > 0)
  })

  it('stay, and the node goes on, if weftd cannot list the other daemons after the time of the program `ingress`', async () => {
    vi.spyOn(addon, 'listFilters').mockResolvedValue(OWN)
    const detach = vi.spyOn(addon, 'detachProgram').mockResolvedValue(undefined)
    kernel.addLink({ name: 'flannel0', type: 'tun' })
    const said: string[] = []
    const node = nodeWith([{ key: '10.5.0.64-26', subnet: {}, attrs: { publicIp: {}, backendType: '' } }], {
      backend: { ...sealed, external: { name: 'eth0', index: 7 } },
      config,
      leftovers: { ...leftovers, others: async () => Promise.reject(new Error('EMFILE')) },
      log: { info: () => {}, warn: (line: string) => void said.push(line), error: () => {}, v: () => false },
      ownership: { state: { is: 'forwarding' }, dataPath: { carrier: () => ({}), tunNames: ['flannel0'] } },
    })
    await clearLeftovers(node)
    const before = detach.mock.calls.length
    expect(before).toBeGreaterThan(0)
    said.length = 0
    await vi.advanceTimersByTimeAsync(INGRESS_STAYS_MS)
    expect(said).toEqual(['Cannot check for leftovers of another backend: EMFILE'])
    expect(detach).toHaveBeenCalledTimes(before)
  })

  it('stay if a successor takes over while the kernel lists them, because they may be those of the successor', async () => {
    const dataPath = { carrier: () => ({}) }
    const lending = { state: { is: 'forwarding' }, dataPath }
    vi.spyOn(addon, 'listFilters').mockImplementation(async () => {
      lending.state = { is: 'lent' }
      return OWN
    })
    const detach = vi.spyOn(addon, 'detachProgram').mockResolvedValue(undefined)
    const node = {
      backend: { ...sealed, external: { name: 'eth0', index: 7 } },
      log: { info: () => {}, warn: () => {}, error: () => {}, v: () => false },
      pastPath: [],
      isReady: true,
      leftovers,
      kernel,
      ownership: lending,
      signal: new AbortController().signal,
      config,
      lease: { key: '10.5.0.64-26', subnet: {}, attrs: { publicIp: {}, backendType: '' } },
      view: new Map(),
      options: {},
      following: { listedAt: 1 },
    } as unknown as Node
    await clearLeftovers(node)
    expect(detach).not.toHaveBeenCalled()
  })
})

/** Returns a node that forwards and has the first of `leases`. */
const nodeWith = (leases: readonly Lease[], parts: object): Node =>
  ({
    lease: leases[0],
    options: {},
    pastPath: [],
    diverted: new Map(),
    isReady: true,
    leftovers,
    kernel,
    view: new Map(leases.map((each) => [each.key, each])),
    ownership: { state: { is: 'forwarding' }, dataPath: { carrier: () => ({}) } },
    following: { listedAt: 1 },
    signal: new AbortController().signal,
    ...parts,
  }) as unknown as Node

describe('the queries for each family, and to the kernel', () => {
  const lease = (number: number): Lease => ({
    key: `10.5.${number}.0-24`,
    subnet: netsOf([parseNet(`10.5.${number}.0/24`)!, parseNet(`fd00:5:0:${number}::/64`)!]),
    attrs: { publicIp: { ipv4: 0xc0_00_02_00 + number }, backendType: '' },
  })
  const both = parseNetworkConfig('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}')
  /** Returns the lines about routes that bypass the data path of a node that follows two leases. */
  async function said(): Promise<readonly string[]> {
    const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
    const [own, other] = [lease(1), lease(2)]
    const node = nodeWith([own, other], { backend: sealed, config: both, log })
    await clearLeftovers(node)
    return node.pastPath.map(({ line }) => line)
  }

  it.each([
    ['ipv4', '10.5.2.0/24'],
    ['ipv6', 'fd00:5:0:2::/64'],
  ] as const)('is answered by the leases for %s', async (family, destination) => {
    kernel.addRoute(family, { destination, device: 'eth0', protocol: 'static' })
    expect(await said()).toEqual([
      expect.stringContaining(`unencrypted: by routes that weft did not make: ${destination} to eth0`),
    ])
  })

  it('is answered by the leases if the kernel has rules of policy routing', async () => {
    kernel.addRule('ipv4', { priority: 100, table: 52 })
    kernel.addRoute('ipv4', { destination: '10.5.2.0/24', device: 'eth0', table: 52 })
    expect(await said()).toEqual([expect.stringContaining('10.5.2.0/24 to eth0, by a rule of `ip rule`')])
  })
})

describe('a policy rule that diverts packets of containers, beside a data path without encryption', () => {
  it('is logged once when it comes and once when it goes', async () => {
    const said: string[] = []
    const add = (line: string): void => void said.push(line)
    const leaseOf = (number: number): Lease => ({
      key: `10.5.${number}.0-24`,
      subnet: netsOf([parseNet(`10.5.${number}.0/24`)!]),
      attrs: { publicIp: { ipv4: 0xc0_00_02_00 + number }, backendType: '' },
    })
    const node = nodeWith([leaseOf(1), leaseOf(2)], {
      backend: { ...sealed, isSealed: false, devices: ['flannel0'] },
      config: parseNetworkConfig('{"Network":"10.5.0.0/16"}'),
      log: { info: add, warn: add, error: add, v: () => false },
    })
    kernel.addLink({ name: 'flannel0', type: 'tun' })
    kernel.addLink({ name: 'cni0', type: 'bridge' }, [{ address: parseAddress('10.5.1.1')!, prefixLength: 24 }])
    kernel.addRoute('ipv4', { destination: '10.5.0.0/16', device: 'flannel0' })
    kernel.addRoute('ipv4', { destination: 'default', device: 'eth0', table: 30400 })
    const rule = { kind: 'add rule', family: 'ipv4', priority: 30400, iif: 'cni0', action: { table: 30400 } } as const
    for (const change of [rule, rule, { ...rule, kind: 'delete rule' } as const]) {
      await kernel.change([change])
      await clearLeftovers(node)
      await clearLeftovers(node)
    }
    expect(said).toEqual([
      'Packets to other nodes bypass the data path by policy routing rules that others made: from cni0 to eth0 (such as those for 10.5.2.0/24); leave the network out of these rules (`ip rule`) unless that is wanted',
      'Policy routing rules no longer divert packets to other nodes: from cni0 to eth0 (such as those for 10.5.2.0/24)',
    ])
    expect(node.pastPath).toEqual([])
  })
})
