// external.test.ts - the facts that a start waits for, in virtual time, and its warnings, on a host whose answers come from tables.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { EVENT_MS } from '../../../lab/lab.ts'
import { WeftError } from '../../../src/base/errors.ts'
import { parseFlags } from '../../../src/base/go-flags.ts'
import { parseNetworkConfig } from '../../../src/control/config/network-config.ts'
import { decodeLease } from '../../../src/control/lease/decode.ts'
import type { Lease } from '../../../src/control/lease/lease.ts'
import type { SubnetManager } from '../../../src/control/lease/subnet-manager.ts'
import { createBell } from '../../../src/host/bell.ts'
import { AddressHold, type ExternalInterface } from '../../../src/host/external-interface.ts'
import { netsOf, parseNet, type Family } from '../../../src/net/address.ts'
import { parseIpv4 } from '../../../src/net/ipv4.ts'
import { waitForInterface } from '../../../src/node/external.ts'
import { findConfig } from '../../../src/node/loops/config.ts'
import { warnOfForwarding } from '../../../src/node/loops/forwarding.ts'
import { formerRoutes, pastNetworks, warnOfRoutesLeft } from '../../../src/node/old-routes.ts'
import { lastKnownFile, writeLastKnown } from '../../../src/node/restart/last-known.ts'
import { refuseToMove, waitForSameNetwork } from '../../../src/node/same-network.ts'
import { checkOptions, FLAGS, type NodeOptions } from '../../../src/options.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

let kernel = new ModelKernel()
/** The number of times that weftd has listed the interfaces. */
const looks = (): number => kernel.reads.filter((what) => what === 'links').length
const addDefaultRoute = (): void => kernel.addRoute('ipv4', { destination: 'default', device: 'eth0' })

let warnings: string[] = []
const published: string[] = []
type TestRoute = Parameters<ModelKernel['addRoute']>[1]

const log = {
  info: () => {},
  warn: (message: string) => void warnings.push(message),
  error: () => {},
  v: () => false,
}
const { signal } = new AbortController()
function wait(
  changed = createBell(),
  args: readonly string[] = [],
  families: readonly Family[] = ['ipv4'],
): { readonly found: () => string | undefined } {
  const { options } = parseFlags(FLAGS, args)
  checkOptions(options)
  let found: string | undefined
  waitForInterface(kernel, options, families, changed, {
    log,
    signal,
    publish: (waitsFor) => void published.push(waitsFor),
  }).then(
    ({ name }) => (found = name),
    (error: Error) => (found = error.message),
  )
  return { found: () => found }
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0', index: 2 }, [{ address: parseIpv4('192.0.2.7')!, prefixLength: 24 }])
  warnings = []
})
afterEach(() => vi.useRealTimers())

describe('the external interface', () => {
  it('is found within a quarter of a second when the host reports a change, and many reports cause one check', async () => {
    const changed = createBell()
    const { found } = wait(changed)
    await vi.advanceTimersByTimeAsync(1_000)
    expect([looks(), found()]).toEqual([1, undefined])
    for (let times = 0; times < 10; times++) changed.ring()
    await vi.advanceTimersByTimeAsync(250)
    expect([looks(), found()]).toEqual([2, undefined])
    expect(published[0]).toBe('waiting for the external interface')
    expect(published.at(-1)).toMatch(/^waiting for the external interface: .*unable to find default route/)
    addDefaultRoute()
    changed.ring()
    await vi.advanceTimersByTimeAsync(250)
    expect(found()).toBe('eth0')
  })

  it('is checked every five seconds though the host reports nothing', async () => {
    const { found } = wait()
    await vi.advanceTimersByTimeAsync(1_000)
    addDefaultRoute()
    await vi.advanceTimersByTimeAsync(4_500)
    expect([looks(), found()]).toEqual([2, 'eth0'])
  })

  it('is given up after --iface-wait', async () => {
    const { found } = wait(createBell(), ['--iface-wait=7'])
    await vi.advanceTimersByTimeAsync(6_900)
    expect(found()).toBeUndefined()
    await vi.advanceTimersByTimeAsync(400)
    expect(found()).toMatch(/unable to find default route/)
  })

  it('has an address of each family of the network, or after ten seconds only of some families', async () => {
    addDefaultRoute()
    const { found } = wait(createBell(), ['--iface=eth0'], ['ipv4', 'ipv6'])
    const began = performance.now()
    // A setting of the kernel is read in real time.
    await vi.waitFor(async () => {
      await vi.advanceTimersByTimeAsync(500)
      expect(found()).toBe('eth0')
    }, EVENT_MS)
    expect(performance.now() - began).toBeGreaterThanOrEqual(10_000)
    expect(warnings.at(-1)).toMatch(
      /failed to find IPv6 address for interface eth0; going on with eth0 and 192\.0\.2\.7$/,
    )
    const { found: none } = wait(createBell(), ['--iface=eth1', '--iface-wait=0'], ['ipv4', 'ipv6'])
    await vi.waitFor(() => expect(none()).toMatch(/no such network interface/))
  })

  it('that the node used earlier needs no default route, and is given up when another interface is chosen', async () => {
    const address = { ipv4: parseIpv4('192.0.2.7')! }
    const known: ExternalInterface = {
      name: 'eth0',
      index: 2,
      mtu: 1500,
      address,
      publicIp: address,
      families: ['ipv4'],
      named: { address: { ipv4: false, ipv6: false }, publicIp: { ipv4: false, ipv6: false } },
    }
    const { options } = parseFlags(FLAGS, [])
    const waitWith = (before: ExternalInterface) =>
      waitForInterface(kernel, options, ['ipv4'], createBell(), { log, signal }, { known: async () => before })
    expect(await waitWith(known)).toMatchObject({ name: 'eth0', address })
    expect(warnings.at(-1)).toMatch(/unable to find default route; going on with eth0, which this node used before$/)
    addDefaultRoute()
    expect(await waitWith({ ...known, name: 'eth1', index: 3 })).toMatchObject({ name: 'eth0', address })
  })

  it('with the address of --public-ip gets this address also if the node used another one earlier', async () => {
    addDefaultRoute()
    kernel.addAddress('eth0', { address: parseIpv4('192.0.2.8')!, prefixLength: 24 })
    const { options } = parseFlags(FLAGS, ['--iface=eth0', '--public-ip=192.0.2.8'])
    const publicIp = { ipv4: parseIpv4('192.0.2.8')! }
    const known: ExternalInterface = {
      name: 'eth0',
      index: 2,
      mtu: 1500,
      address: { ipv4: parseIpv4('192.0.2.7')! },
      publicIp,
      families: ['ipv4'],
      named: { address: { ipv4: false, ipv6: false }, publicIp: { ipv4: true, ipv6: false } },
    }
    const parts = { known: async () => known }
    const found = await waitForInterface(kernel, options, ['ipv4'], createBell(), { log, signal }, parts)
    expect(found).toMatchObject({ address: publicIp, publicIp })
  })

  it('logs the earlier address with which it continues, or for which it waits', async () => {
    addDefaultRoute()
    const { options } = parseFlags(FLAGS, [])
    const lines: string[] = []
    const told = { ...log, info: (line: string) => void lines.push(line) }
    const named = { address: { ipv4: false, ipv6: false }, publicIp: { ipv4: false, ipv6: false } }
    const usedBefore = (text: string): ExternalInterface => {
      const address = { ipv4: parseIpv4(text)! }
      const hold = new AddressHold(address)
      return { name: 'eth0', index: 2, mtu: 1500, address, publicIp: address, named, families: ['ipv4'], hold }
    }
    const waitWith = (before: ExternalInterface) =>
      waitForInterface(kernel, options, ['ipv4'], createBell(), { log: told, signal }, { known: async () => before })
    const gone = waitWith(usedBefore('192.0.2.1'))
    await vi.waitFor(() =>
      expect(lines).toContain('Waiting some seconds for eth0 and 192.0.2.1, which this node used before'),
    )
    await vi.advanceTimersByTimeAsync(11_000)
    expect((await gone).address).toEqual({ ipv4: parseIpv4('192.0.2.7') })
    expect(lines.filter((line) => line.startsWith('Waiting some'))).toHaveLength(1)
    lines.length = 0
    kernel.addAddress('eth0', { address: parseIpv4('192.0.2.8')!, prefixLength: 24 })
    expect((await waitWith(usedBefore('192.0.2.8'))).address).toEqual({ ipv4: parseIpv4('192.0.2.8') })
    expect(lines).toContain('Going on with eth0 and 192.0.2.8, as this node did before')
  })

  it.each<[families: readonly Family[], passedOver: string]>([
    [['ipv4'], 'fd00::1'],
    [['ipv6'], '192.0.2.7'],
  ])('of a network of %j goes without the public address %s, which is said once', async (families, passedOver) => {
    const changed = createBell()
    wait(changed, ['--public-ip=192.0.2.7', '--public-ipv6=fd00::1'], families)
    await vi.advanceTimersByTimeAsync(1_000)
    changed.ring()
    await vi.advanceTimersByTimeAsync(1_000)
    expect(warnings.filter((line) => line.includes('is ignored'))).toEqual([
      `The public address ${passedOver} is ignored: the network does not have its family`,
    ])
  })
})

describe('what keeps the host from forwarding', () => {
  const IPV4 = 'net.ipv4.ip_forward is 0'
  const IPV6 = 'net.ipv6.conf.all.forwarding is 0'
  const RA = 'loses the route unless net.ipv6.conf.eth0/7.accept_ra is 2'
  /** The warnings for the settings of all interfaces, then those of the uplink. */
  const settings = (ipv4: string, all: string, uplink: string, accepts: string): Record<string, string> => ({
    'net/ipv4/ip_forward': ipv4,
    'net/ipv6/conf/all/forwarding': all,
    'net/ipv6/conf/eth0.7/forwarding': uplink,
    'net/ipv6/conf/eth0.7/accept_ra': accepts,
  })
  const byRouter = [{ destination: 'default', device: 'eth0.7', protocol: 'ra' }]
  const byHand = [{ destination: 'default', device: 'eth0.7', protocol: 'static' }]
  const four: readonly Family[] = ['ipv4']
  const six: readonly Family[] = ['ipv6']
  const dual: readonly Family[] = ['ipv4', 'ipv6']

  it.each<
    [what: string, families: readonly Family[], found: Record<string, string>, routes: TestRoute[], said: string[]]
  >([
    ['nothing of IPv6 without it', four, settings('0', '0', '0', '1'), byRouter, [IPV4]],
    ['nothing of IPv4 without it', six, settings('0', '0', '0', '1'), [], [IPV6]],
    ['both', dual, settings('0', '0', '0', '1'), byHand, [IPV4, IPV6]],
    ['nothing where both are forwarded', dual, settings('1', '1', '1', '1'), byHand, []],
    ['nothing where nothing can be read', dual, {}, byRouter, []],
    ['a route that forwarding costs', six, settings('1', '1', '1', '1'), byRouter, [RA]],
    ['a route that forwarding will cost', six, settings('1', '0', '0', '1'), byRouter, [IPV6, RA]],
    ['nothing where routers are heard all the same', six, settings('1', '1', '1', '2'), byRouter, []],
    ['nothing where another program hears them', six, settings('1', '1', '1', '0'), byRouter, []],
    ['nothing where the uplink does not forward', six, settings('1', '1', '0', '1'), byRouter, []],
    [
      'nothing where a better route stays',
      six,
      settings('1', '1', '1', '1'),
      [...byRouter, ...byHand.map((route) => ({ ...route, metric: 5 }))],
      [],
    ],
  ])('is %s', async (_what, families, found, routes, said) => {
    kernel.addLink({ name: 'eth0.7' })
    for (const route of routes) kernel.addRoute('ipv6', route)
    await warnOfForwarding(families, kernel, log, async (name) => found[name])
    expect(warnings).toEqual(said.map((words) => expect.stringContaining(words)))
  })
})

it.each([
  ['192.0.2.1', { ipv4: parseIpv4('192.0.2.1')! }, true],
  ['192.0.2.1', { ipv4: parseIpv4('192.0.2.1')!, ipv6: 1n << 64n }, true],
  ['0:0:0:1::', { ipv4: parseIpv4('192.0.2.1')!, ipv6: 1n << 64n }, true],
  ['192.0.2.1', { ipv6: 1n << 64n }, false],
  ['192.0.2.2', { ipv4: parseIpv4('192.0.2.1')!, ipv6: 1n << 64n }, false],
])('knows the node of a daemon with a lease for %s: case %#', (publicIp, own, isSame) => {
  const refuse = (): void => refuseToMove({ publicIp: own, backendType: '' }, { key: 'k', publicIp })
  if (isSame) refuse()
  else expect(refuse).toThrow(/the node would move to another subnet/)
  refuseToMove({ publicIp: own, backendType: '' }, undefined)
})

describe('the lease of the running weftd', () => {
  const key = '10.5.1.0-24'
  const lease = decodeLease(key, '{"PublicIP":"192.0.2.7"}')
  const down = new WeftError('STORE_UNAVAILABLE', 'the store is down')

  /** Waits for the lease in a store whose listings `list` makes. */
  function waitForLease(list: () => Promise<object[]>) {
    const listing = async () => ({ entries: await list() })
    const manager = { name: 'etcd', source: { list: listing } } as unknown as SubnetManager
    let outcome = ''
    waitForSameNetwork(manager, async () => ({ key, publicIp: '192.0.2.7' }), { log, signal }).then(
      () => (outcome = 'found'),
      (error: Error) => (outcome = error.message),
    )
    return { outcome: () => outcome }
  }

  it('may be missing for 15 s after the store answers, whether its listings failed or hung before', async () => {
    let list = async (): Promise<object[]> => Promise.reject(down)
    const { outcome } = waitForLease(() => list())
    await vi.advanceTimersByTimeAsync(17_000)
    list = async () => []
    await vi.advanceTimersByTimeAsync(12_000)
    list = async () => Promise.reject(down)
    await vi.advanceTimersByTimeAsync(2_000)
    list = async () => []
    await vi.advanceTimersByTimeAsync(12_000)
    let answer = (_entries: object[]): void => {}
    list = () => new Promise((resolve) => (answer = resolve))
    await vi.advanceTimersByTimeAsync(17_000)
    list = async () => []
    answer([])
    await vi.advanceTimersByTimeAsync(1_000)
    expect(outcome()).toBe('')
    list = async () => [{ key, lease }]
    await vi.advanceTimersByTimeAsync(1_000)
    expect(outcome()).toBe('found')
  })

  it('is in another store if it is missing for longer', async () => {
    const { outcome } = waitForLease(async () => [])
    await vi.advanceTimersByTimeAsync(14_900)
    expect(outcome()).toBe('')
    await vi.advanceTimersByTimeAsync(2_100)
    expect(outcome()).toMatch(/which the etcd store of this one does not have$/)
  })
})

describe('the network configuration', () => {
  it('is accepted with unknown keys, which are logged once', async () => {
    addDefaultRoute()
    const texts = [
      '{"Netwrok":"10.5.0.0/16"}',
      '{"Netwrok":"10.5.0.0/16"}',
      '{"Network":"10.5.0.0/16","Backend":{"Type":"udp","Prot":1}}',
    ]
    const manager = {
      name: 'etcd',
      givesSubnets: false,
      config: async () => (texts.length > 1 ? texts.shift()! : texts[0]!),
    } as unknown as SubnetManager
    const found = findConfig(manager, { log, signal })
    await vi.advanceTimersByTimeAsync(5_000)
    expect((await found).config.backendType).toBe('udp')
    expect(warnings.filter((line) => line.startsWith('Without effect'))).toEqual([
      'Without effect: the network configuration has "Netwrok", which nothing reads; did you mean Network?',
      'Without effect: Backend has "Prot", which udp does not read; did you mean Port?',
    ])
  })
})

describe('routes of an earlier run', () => {
  it('through hosts are known by its leases in the file of the last known state, whatever its store was', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'weft-former-'))
    try {
      const parts = { known: undefined, options: { 'subnet-file': join(folder, 'subnet.env') } as NodeOptions, log }
      expect(await formerRoutes(parts)).toEqual(new Set())
      const lease = (key: string, attrs: string): Lease => decodeLease(key, attrs)
      const leases = [
        lease('10.5.2.0-24', '{"PublicIP":"192.0.2.2","BackendType":"host-gw"}'),
        lease('10.5.3.0-24&fd00:5:0:3::-64', '{"PublicIP":"192.0.2.3","PublicIPv6":"fd77::3","BackendType":"host-gw"}'),
      ]
      const known = { store: 'another', config: '{}', lease: leases[0]!, expiresAt: undefined, tunNames: [] }
      await writeLastKnown(lastKnownFile(parts.options), { ...known, leases })
      const routes = ['10.5.2.0/24 via 192.0.2.2', '10.5.3.0/24 via 192.0.2.3', 'fd00:5:0:3::/64 via fd77::3']
      expect(await formerRoutes(parts)).toEqual(new Set(routes))
      expect(await formerRoutes({ ...parts, known: { ...known, leases: [] } })).toEqual(new Set())
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  const left = async (
    before: string,
    now: object,
    routes: readonly TestRoute[],
    readError?: Error,
  ): Promise<readonly string[]> => {
    warnings = []
    kernel = new ModelKernel()
    for (const name of ['eth0', 'cni0', 'flannel-v6.1']) kernel.addLink({ name })
    for (const route of routes) kernel.addRoute(route.destination.includes(':') ? 'ipv6' : 'ipv4', route)
    kernel.readError = readError
    const config = parseNetworkConfig(JSON.stringify({ Network: '10.5.0.0/16', ...now }))
    const previous = netsOf(before.split(' ').map((each) => parseNet(each)!))
    await warnOfRoutesLeft(pastNetworks(previous, config), { name: 'eth0' }, { config, kernel, log })
    return warnings
  }
  const to = (third: number) => ({ destination: `fd00:5:0:${third}::/64`, gateway: 'fd77::2', device: 'eth0' })

  it('to other hosts are reported if the network no longer has their family', async () => {
    const others = [
      { destination: 'fd00:5:0:7::/64', device: 'cni0', metric: 256 },
      { destination: 'fd00:5:0:8::/64', gateway: 'fd00:5:0:8::', device: 'flannel-v6.1' },
    ]
    expect(await left('10.5.0.0/16 fd00:5::/48', {}, [...others, to(1), to(2)])).toEqual([
      'Routes into fd00:5::/48 remain, which is not part of this network any more: fd00:5:0:1::/64 via fd77::2, ' +
        'fd00:5:0:2::/64 via fd77::2; remove them with `ip route del` unless they are wanted',
    ])
    const [line] = await left('fd00:5::/48', {}, [1, 2, 3, 4, 5, 6].map(to))
    expect(line).toMatch(/fd00:5:0:5::\/64 via fd77::2, \.\.\. \(6\); remove/)
  })

  it('are reported if the network became narrower, except those within the network', async () => {
    const now = { EnableIPv6: true, IPv6Network: 'fd00:5::/57' }
    expect(await left('10.5.0.0/16 fd00:5::/48', now, [to(1), to(8001)])).toEqual([
      expect.stringMatching(/^Routes into fd00:5::\/48 remain, .*: fd00:5:0:8001::\/64 via fd77::2; remove/),
    ])
  })

  it('are reported if their type is unreachable, because they keep this host from the former network', async () => {
    const metric = 0xffffffff
    const unreachable = (destination: string): TestRoute => ({ type: 'unreachable', destination, metric })
    const routes = [unreachable('10.0.0.0/8'), unreachable('10.5.0.0/16'), { ...unreachable('10.6.0.0/16'), metric: 0 }]
    expect(await left('10.0.0.0/8', {}, routes)).toEqual([
      'Routes into 10.0.0.0/8 remain, which is not part of this network any more: ' +
        'unreachable 10.0.0.0/8 metric 4294967295; remove them with `ip route del` unless they are wanted',
    ])
  })

  it('are not reported if the kernel no longer has the family', async () => {
    expect(await left('fd00:5::/48', {}, [to(1)], new WeftError('KERNEL', 'EAFNOSUPPORT'))).toEqual([])
  })

  it.each([
    ['where the network has them still', '10.5.0.0/16 fd00:5::/48', { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }],
    ['where there was no other', '10.5.0.0/16', {}],
  ])('are left to the data path %s', async (_title, before, now) => {
    expect(await left(before, now, [to(1)])).toEqual([])
  })
})
