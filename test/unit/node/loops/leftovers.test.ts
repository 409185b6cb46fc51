// leftovers.test.ts - when a node searches leftovers of other backends, its state until they are gone, and what it leaves to a successor.

import { existsSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease } from '../../../../src/control/lease/lease.ts'
import { addon } from '../../../../src/host/addon.ts'
import { createBell } from '../../../../src/host/bell.ts'
import type { Run } from '../../../../src/host/command.ts'
import { netsOf, parseNet } from '../../../../src/net/address.ts'
import type { Ipv4Net } from '../../../../src/net/ipv4.ts'
import { clearLeftovers } from '../../../../src/node/loops/leftovers.ts'
import type { Node } from '../../../../src/node/node.ts'
import {
  backend,
  config,
  ended,
  installRig,
  inTurns,
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
  value,
} from '../../../support/node-rig.ts'

installRig()

interface HostRoute {
  readonly dst: string
  readonly dev: string
  readonly gateway?: string
  readonly protocol?: string
}
let links: { ifname: string; kind: string; address: string }[]
let routes: HostRoute[]
let refuses: RegExp | undefined
let commands: string[]
/** Called before the host is listed. */
let whileListing: () => void | Promise<void>
beforeEach(() => {
  ;[links, routes, refuses, commands, whileListing] = [[], [], undefined, [], () => {}]
})
const run: Run = async (_file, args) => {
  const command = args.join(' ')
  if (command === '-j -d address show') {
    await whileListing()
    return JSON.stringify(
      links.map(({ ifname, kind, address }, at) => ({
        ifindex: at + 1,
        ifname,
        flags: ['UP'],
        addr_info: [{ local: address }],
        linkinfo: { info_kind: kind, info_data: { id: 1 } },
      })),
    )
  }
  if (command.startsWith('-j -4 route show root')) return JSON.stringify(routes)
  if (command.startsWith('-j -4 rule show')) return '[]'
  if (command === '-o xfrm policy list') return ''
  if (refuses?.test(command)) throw new WeftError('PERMISSION', 'not permitted', { remedy: 'run as root' })
  commands.push(command)
  const [, device] = /^link del dev (\S+)/.exec(command) ?? []
  links = links.filter(({ ifname }) => ifname !== device)
  const [, dst] = /route del (\S+)/.exec(command) ?? []
  routes = routes.filter((route) => route.dst !== dst && route.dev !== device)
  return ''
}
const leftovers = { earlier: {}, run, others: async () => [] }
const sealed = { ...backend, devices: ['fake0'], isSealed: true }
/** A route to the peer in .192 by its host, as host-gw makes it, or as a network manager does. */
const toPeer = (protocol?: string): HostRoute => ({
  dst: '10.5.0.192/26',
  dev: 'eth0',
  gateway: '192.0.2.2',
  ...(protocol === undefined ? {} : { protocol }),
})
const isReadyFile = (): boolean => existsSync(subnetFile())

describe('what another backend left', () => {
  it('is removed before the node is ready: devices, and routes through hosts whose leases only the store has at the start', async () => {
    store.put('10.5.0.192-26', value('192.0.2.2'))
    links.push(
      { ifname: 'flannel.1', kind: 'vxlan', address: '10.5.0.64' },
      { ifname: 'eth0', kind: '', address: '192.0.2.1' },
    )
    routes.push(toPeer(), { dst: '10.5.0.64/26', dev: 'cni0', protocol: 'kernel' })
    start({ backend: sealed, leftovers })
    await ready()
    const at = (pattern: RegExp): number => lines.findIndex((line) => pattern.test(line))
    expect(commands).toEqual(expect.arrayContaining(['-4 route del 10.5.0.192/26 via 192.0.2.2 dev eth0']))
    expect(at(/Removed the route 10\.5\.0\.192\/26 via 192\.0\.2\.2 to eth0/)).toBeLessThan(at(/flannel is ready/))
    expect([trouble(), readiness()]).toEqual([undefined, true])
  })

  it('keeps the node from being ready while it cannot be removed, and its removal is tried again', async () => {
    store.put('10.5.0.192-26', value('192.0.2.2'))
    routes.push(toPeer())
    refuses = /route del/
    start({ backend: sealed, leftovers })
    await inTurns(() => logged(/^E A leftover of another backend cannot be removed: .*: not permitted; run as root/))
    await vi.advanceTimersByTimeAsync(20_000)
    expect([readiness(), isReadyFile(), logged(/flannel is ready/)]).toEqual([false, false, false])
    expect((await nodeStatus()).impairments[0]).toMatchObject({ by: 'bypass' })
    expect(lines.filter((line) => /cannot be removed/.test(line))).toHaveLength(1)
    refuses = undefined
    await inTurns(() => logged(/flannel is ready/))
    expect([readiness(), routes]).toEqual([true, []])
  })

  it('keeps the node from being ready while another program restores it immediately', async () => {
    store.put('10.5.0.192-26', value('192.0.2.2'))
    routes.push(toPeer())
    whileListing = () => void (routes = [toPeer()])
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
    routes.push(toPeer())
    refuses = /route del/
    const byOthers = { ...backend, routesByOthers: true }
    start({ backend: byOthers, leftovers })
    expect(await ended).toMatchObject({ message: expect.stringMatching(/A leftover of another backend/) as string })
    expect(store.entries.get('10.5.0.64-26')?.value).toBe(earlier)
    refuses = undefined
    restart()
    start({ backend: byOthers, leftovers })
    await ready()
    expect(routes).toEqual([])
    expect(store.entries.get('10.5.0.64-26')?.value).toBe(ours)
  })

  it('is searched again while the node runs', async () => {
    const doubt = createBell()
    start({ backend: sealed, leftovers }, doubt)
    await ready()
    store.put('10.5.0.192-26', value('192.0.2.2'))
    await vi.advanceTimersByTimeAsync(100)
    routes.push(toPeer())
    doubt.ring()
    await inTurns(() => routes.length === 0)
  })

  it('is rarely logged while another program restores it again and again', async () => {
    const doubt = createBell()
    store.put('10.5.0.192-26', value('192.0.2.2'))
    start({ backend: sealed, leftovers }, doubt)
    await ready()
    const removals = (): number => commands.filter((command) => /route del/.test(command)).length
    for (let times = 1; times <= 6; times++) {
      routes.push(toPeer())
      doubt.ring()
      await inTurns(() => removals() >= times)
    }
    expect(removals()).toBe(6)
    expect(lines.filter((line) => /Removed the route/.test(line)).length).toBeLessThan(3)
  })

  it('keeps the node from being ready and stays if it is a route that another running daemon may have made', async () => {
    store.put('10.5.0.192-26', value('192.0.2.2'))
    routes.push(toPeer())
    let running = [{ name: 'flanneld', pid: 7, networks: { ipv4: config.ipv4!.network } }]
    start({ backend: sealed, leftovers: { ...leftovers, others: async () => running } })
    await inTurns(() =>
      logged(
        /^E A route of another backend is in the way: 10\.5\.0\.192\/26 via 192\.0\.2\.2 to eth0 stays, since flanneld runs \(pid 7\); stop that process, or remove the route with `ip -4 route del 10\.5\.0\.192\/26 via 192\.0\.2\.2 dev eth0`/,
      ),
    )
    expect([readiness(), commands]).toEqual([false, []])
    running = []
    await inTurns(() => readiness())
    expect(routes).toEqual([])
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
      links.push({ ifname: 'flannel.1', kind: 'vxlan', address: '10.5.0.64' })
    }
    doubt.ring()
    await vi.advanceTimersByTimeAsync(20_000)
    expect([commands, links]).toEqual([[], [expect.objectContaining({ ifname: 'flannel.1' })]])
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
    routes = [{ dst: '10.5.0.128/27', dev: 'eth0', gateway: '192.0.2.77', protocol: 'static' }]
    const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
    const node = {
      backend: sealed,
      leftovers,
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
  const failing = (): never => {
    throw new Error('rtnetlink: Operation not supported')
  }
  afterEach(() => vi.restoreAllMocks())

  it.each([
    ['the kernel has no tc', failing, undefined, []],
    ['the kernel keeps them', () => OWN, failing, ['the eBPF program on eth0 (ingress)']],
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
      leftovers: { ...leftovers, run: async () => '[]' },
      ownership: { state: { is: 'forwarding' }, dataPath: { carrier: () => ({}) } },
      following: { listedAt: 1 },
      signal: new AbortController().signal,
    } as unknown as Node
    await clearLeftovers(node)
    expect(node.pastPath.map(({ line }) => line)).toEqual([])
    expect(warnings.map((line) => line.split(': ')[1])).toEqual(named)
  })
})

describe('the queries for each family, and to the kernel', () => {
  const lease = (number: number): Lease => ({
    key: `10.5.${number}.0-24`,
    subnet: netsOf([parseNet(`10.5.${number}.0/24`)!, parseNet(`fd00:5:0:${number}::/64`)!]),
    attrs: { publicIp: { ipv4: 0xc0_00_02_00 + number }, backendType: '' },
  })
  const both = parseNetworkConfig('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}')
  /** Returns the log lines of a node that follows two leases, on a host whose `ip` command prints these objects. */
  async function said(ip: (command: string) => object[]): Promise<readonly string[]> {
    const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
    const [own, other] = [lease(1), lease(2)]
    const node = {
      backend: sealed,
      config: both,
      lease: own,
      log,
      options: {},
      pastPath: [],
      isReady: true,
      leftovers: {
        ...leftovers,
        run: async (_file: string, args: readonly string[], options?: { input?: string }) =>
          JSON.stringify(ip(`${args.join(' ')} ${options?.input ?? ''}`)),
      },
      view: new Map([own, other].map((each) => [each.key, each])),
      ownership: { state: { is: 'forwarding' }, dataPath: { carrier: () => ({}) } },
      following: { listedAt: 1 },
      signal: new AbortController().signal,
    } as unknown as Node
    await clearLeftovers(node)
    return node.pastPath.map(({ line }) => line)
  }

  it('is answered by the leases for IPv6 as for IPv4', async () => {
    for (const [flag, dst] of [
      ['-4', '10.5.2.0/24'],
      ['-6', 'fd00:5:0:2::/64'],
    ])
      expect(
        await said((command) =>
          command.startsWith(`-j ${flag} route show`) ? [{ dst, dev: 'eth9', protocol: 'static' }] : [],
        ),
      ).toEqual([expect.stringContaining(`unencrypted: by routes that weft did not make: ${dst} to eth9`)])
  })

  it('is answered by the leases if the kernel has rules of policy routing', async () => {
    expect(
      await said((command) => {
        if (command.includes('rule show')) return [{ priority: 100 }]
        return command.includes('route get 10.5.2.0') ? [{ dst: '10.5.2.0', dev: 'eth9' }] : []
      }),
    ).toEqual([expect.stringContaining('10.5.2.0/24 to eth9, by a rule of `ip rule`')])
  })
})

describe('a host that cannot be checked', () => {
  it.each([
    ['by a refusal', () => Promise.reject(new WeftError('COMMAND', 'no answer within 10 s'))],
    ['since `ip` prints no JSON', async () => void JSON.parse('[{')],
  ])('keeps one that starts from being ready, and one that is ready as it is: %s', async (_how, fail) => {
    const doubt = createBell()
    whileListing = fail
    start({ backend: sealed, leftovers }, doubt)
    await inTurns(() => logged(/^E Cannot check for leftovers of another backend: /))
    expect(readiness()).toBe(false)
    whileListing = () => {}
    await inTurns(() => readiness())
    whileListing = fail
    await vi.advanceTimersByTimeAsync(10_000)
    doubt.ring()
    await inTurns(() => logged(/^W Cannot check for leftovers of another backend: /))
    expect([readiness(), trouble()]).toEqual([true, undefined])
  })
})

describe('a route past the data path that weft did not make', () => {
  it('of a backend that encrypts makes the node impaired and not ready until the route is gone', async () => {
    const doubt = createBell()
    store.put('10.5.0.192-26', value('192.0.2.2'))
    start({ backend: sealed, leftovers }, doubt)
    await ready()
    expect(readiness()).toBe(true)
    routes.push(toPeer('static'))
    doubt.ring()
    await inTurns(() => !readiness())
    expect(trouble()).toMatch(/packets to other nodes leave this host unencrypted/)
    expect(trouble()).not.toMatch(/192\.0\.2\.2/) // anybody may read it
    expect(lines.filter((line) => line.startsWith('E Packets to other nodes'))).toEqual([
      expect.stringMatching(
        /unencrypted: by routes that weft did not make: 10\.5\.0\.192\/26 via 192\.0\.2\.2 to eth0; remove them with `ip route del`, or set "AllowBypass": true/,
      ),
    ])
    routes = []
    doubt.ring()
    await inTurns(() => readiness())
    expect(logged(/Nothing leads packets past the data path any more/)).toBe(true)
  })

  it('does not matter if the backend does not encrypt', async () => {
    store.put('10.5.0.192-26', value('192.0.2.2'))
    routes.push(toPeer('static'))
    start({ backend: { ...sealed, isSealed: false }, leftovers })
    await ready()
    expect([readiness(), trouble(), commands]).toEqual([true, undefined, []])
  })

  it("that diverts packets from the node's own containers is reported by every backend", async () => {
    routes.push({ dst: '10.5.0.64/27', dev: 'eth0', gateway: '192.0.2.77', protocol: 'static' })
    for (const last of ['128', '192']) store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
    start({ backend: { ...backend, devices: [], routesToHosts: true }, leftovers })
    await inTurns(() =>
      logged(/^E Packets to this node's own containers leave this host: by routes .*10\.5\.0\.64\/27/),
    )
    expect(readiness()).toBe(false)
  })
})
