// netlink-routes.test.ts - random routes, rules and entries: what `ip` and `bridge` make is read by NetlinkKernel, and what NetlinkKernel makes
// is printed by them, as if its words had been typed.

import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { createLab, type Host, type Lab } from '../../lab/lab.ts'
import { ruleText, wordsOf } from '../../src/host/ip-words.ts'
import type { Change, PolicyRule, Route } from '../../src/host/kernel.ts'
import { deletionOf } from '../../src/host/links.ts'
import type { RuleChange } from '../../src/host/netlink/rules.ts'
import {
  ADDRESS_BITS,
  FAMILIES,
  familyOf,
  formatAddress,
  netAround,
  parseAddress,
  parseNet,
  type Address,
  type Family,
  type Net,
} from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { RemoteKernel } from '../support/remote-kernel.ts'

needs(HOSTS)

let lab: Lab
let host: Host
let kernel: RemoteKernel
beforeEach(async () => {
  lab = await createLab({ hosts: 1 })
  host = lab.hosts[0]!
  kernel = new RemoteKernel(host)
  await batch('ip', [
    'address add fd77::1/64 dev eth0 nodad',
    `link add vx index ${VX.index} type vxlan id 7 local 192.168.77.1 dev eth0 dstport 8472 nolearning`,
    'link set vx up',
    'address add 10.5.1.0/32 dev vx',
    'address add fd00:5:1::/128 dev vx nodad',
  ])
  // The kernel adds a local route when duplicate address detection of a link-local address ends, which would be between two listings.
  await eventually(async () => {
    const tentative = await host.output('ip -6 address show tentative'.split(' '))
    if (tentative !== '') throw new Error(`addresses are still tentative:\n${tentative}`)
  })
})
afterEach(() => lab.close())

const VX = { name: 'vx', index: 700 }
const ETH = { name: 'eth0' }
const RUNS = { numRuns: 4 }

const json = async <T>(words: string): Promise<T[]> => JSON.parse((await host.output(words.split(' '))) || '[]') as T[]
/**
 * Runs the lines as commands of `ip`, `ip -6` or `bridge`, with one start of the program. Returns the error messages. `ip`
 * ends at the first entry of a neighbour table that the kernel refuses, but not at other refused changes.
 */
const batch = async (program: 'ip' | 'ip -6' | 'bridge', lines: readonly string[]): Promise<string> =>
  (await host.run([...program.split(' '), '-force', '-batch', '-'], { input: lines.join('\n') })).stderr

/** Makes the changes as an operator does, by typing their words. */
const type = (changes: readonly Change[]): Promise<unknown> => host.run(['sh', '-c', changes.map(wordsOf).join('\n')])

interface JsonRoute {
  dst: string
  type?: string
  dev?: string
  gateway?: string
  via?: { host: string }
  protocol?: string
  metric?: number
  prefsrc?: string
  table?: string
  flags: string[]
  nexthops?: { dev: string }[]
  nhid?: number
}
const TABLES: Readonly<Record<string, number>> = { main: 254, local: 255 }

/** Returns the routes of all tables as `ip` prints them, in the form of the kernel interface, without their index. */
async function routesOfIp(family: Family): Promise<Omit<Route, 'deviceIndex'>[]> {
  const found = await json<JsonRoute>(`ip -j ${family === 'ipv4' ? '-4' : '-6'} route show table all`)
  return found.map((route) => ({
    device: route.dev ?? route.nexthops?.[0]?.dev ?? '',
    destination:
      route.dst === 'default' || route.dst.includes('/') ? route.dst : `${route.dst}/${ADDRESS_BITS[family]}`,
    type: (route.type ?? 'unicast') as Route['type'],
    protocol: route.protocol ?? 'boot',
    gateway: route.gateway ?? route.via?.host,
    ...(route.nexthops ? { isMultipath: true } : {}),
    ...(route.nhid === undefined ? {} : { nextHopObject: route.nhid }),
    metric: route.metric ?? 0,
    source: route.prefsrc === undefined ? undefined : parseAddress(route.prefsrc),
    table: TABLES[route.table ?? 'main'] ?? Number(route.table),
    isOnlink: route.flags.includes('onlink'),
  }))
}

async function routesOfKernel(family: Family): Promise<Omit<Route, 'deviceIndex'>[]> {
  const routes = await kernel.routes({ family, table: 'all' })
  return routes.map(({ deviceIndex: _index, ...route }) => route)
}

/** An address within 10.5.0.0/16 or fd00:5::/32, which depends on a number. */
const inside = (family: Family, number: number): Address =>
  family === 'ipv4' ? 0x0a_05_00_00 + (number << 8) : (0xfd00_0005n << 96n) + (BigInt(number) << 80n)

/** Leaves out the undefined members of an object. */
const defined = <T extends object>(of: T): { [K in keyof T]: NonNullable<T[K]> } =>
  Object.fromEntries(Object.entries(of).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]: NonNullable<T[K]>
  }

const route = fc
  .record({
    family: fc.constantFrom(...FAMILIES),
    number: fc.integer({ min: 2, max: 9 }),
    prefixLength: fc.constantFrom(16, 20, 24, 32),
    type: fc.constantFrom('unicast', 'unicast', 'unicast', 'blackhole', 'unreachable', 'prohibit', 'throw'),
    device: fc.constantFrom(VX, ETH),
    hasGateway: fc.boolean(),
    hasSource: fc.boolean(),
    metric: fc.constantFrom(undefined, 0, 1, 1024, 0xffff_ffff),
    table: fc.constantFrom(undefined, undefined, 100, 254, 1000),
    protocol: fc.constantFrom(undefined, 'static', 'bird', '77'),
    scope: fc.constantFrom(undefined, undefined, 'link', 'global'),
    kind: fc.constantFrom('add route', 'replace route', 'replace route', 'delete route'),
  } as const)
  .map(({ family, number, prefixLength, type: kind, hasGateway, hasSource, device, scope, ...rest }): Change => {
    const bits = family === 'ipv4' ? prefixLength : prefixLength * 2
    const shared = { ...defined(rest), destination: netAround(inside(family, number), bits) }
    if (kind !== 'unicast') return { ...shared, type: kind }
    const own = device === VX ? inside(family, 1) : parseAddress(family === 'ipv4' ? '192.168.77.1' : 'fd77::1')!
    return {
      ...shared,
      device,
      ...(hasGateway ? { gateway: inside(family, number + 20), onlink: true } : {}),
      ...(hasSource ? { source: own } : {}),
      ...(scope === undefined || hasGateway ? {} : { scope }),
    }
  })

/** Empties the routes that a test can have made. */
async function clear(): Promise<void> {
  const flush = (net: string): string[] => [254, 100, 1000].map((table) => `route flush root ${net} table ${table}`)
  await batch('ip', flush('10.5.0.0/16'))
  await batch('ip -6', flush('fd00::/16'))
}

describe('routes', () => {
  it('are made as `ip` makes them, and read as `ip` prints them', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(route, { minLength: 10, maxLength: 30 }), async (changes) => {
        await clear()
        await type(changes)
        const typed = await Promise.all(FAMILIES.map(routesOfIp))
        expect(await Promise.all(FAMILIES.map(routesOfKernel))).toEqual(typed)
        await clear()
        await kernel.change(changes)
        expect(await Promise.all(FAMILIES.map(routesOfIp))).toEqual(typed)
      }),
      RUNS,
    )
  })

  it('with several next hops, next hop objects, metrics and lifetimes are read, and deleted', async () => {
    const errors = await batch('ip', [
      'route add 10.6.1.0/24 nexthop via 192.168.77.2 dev eth0 nexthop via 192.168.77.3 dev eth0 weight 3',
      'route add 10.6.2.0/24 via inet6 fd77::9 dev eth0 mtu 1300',
      'nexthop add id 7 via 192.168.77.7 dev eth0',
      'nexthop add id 8 via 192.168.77.8 dev eth0',
      'nexthop add id 9 group 7/8',
      'route add 10.6.3.0/24 nhid 7',
      'route add 10.6.4.0/24 nhid 9',
      'route append 10.6.5.0/24 via 192.168.77.9 dev eth0',
      'route append 10.6.5.0/24 nhid 7',
    ])
    const errors6 = await batch('ip -6', [
      'route add fd06:1::/64 via fd77::2 dev eth0 expires 1000',
      'route append fd06:2::/64 via fd77::2 dev eth0',
      'route append fd06:2::/64 via fd77::3 dev eth0',
      'nexthop add id 17 via fd77::7 dev eth0',
      'route append fd06:3::/64 via fd77::8 dev eth0',
      'route append fd06:3::/64 nhid 17',
    ])
    expect([errors, errors6]).toEqual(['', ''])
    for (const family of FAMILIES) {
      expect(await routesOfKernel(family)).toEqual(await routesOfIp(family))
      const within = family === 'ipv4' ? parseNet('10.6.0.0/16')! : parseNet('fd06:3::/64')!
      const routes = await kernel.routes({ family, within })
      const byObject = routes.filter(({ nextHopObject }) => nextHopObject !== undefined)
      const others = routes.filter((each) => !byObject.includes(each))
      expect(byObject).toHaveLength(family === 'ipv4' ? 3 : 1)
      // Each deletion must delete its own route, also if a different route has the same destination and metric.
      for (const [gone, left] of [
        [byObject, others],
        [others, []],
      ] as const) {
        expect(await kernel.change(gone.map((each) => deletionOf(each, family)))).toEqual(gone.map(() => undefined))
        expect(await kernel.routes({ family, within })).toEqual(left)
      }
    }
  })

  it('of packets are those of `ip route get`', async () => {
    await batch('ip', [
      'route add 10.5.2.0/24 via 10.5.2.0 dev vx onlink',
      'route add unreachable 10.5.3.0/24',
      'route add 10.5.4.0/24 dev vx table 100',
      'rule add priority 50 fwmark 0x10/0xff lookup 100',
      'rule add priority 60 to 10.5.6.0/24 prohibit',
    ])
    await batch('ip -6', ['route add fd00:5:2::/64 via fd00:5:2:: dev vx onlink'])
    await host.output(['sysctl', '-qw', 'net.ipv4.ip_forward=1'])
    const at = (text: string): Address => parseAddress(text)!
    const say = async (family: Family, ...queries: Parameters<typeof kernel.lookUp>[1]): Promise<unknown[]> =>
      (await kernel.lookUp(family, queries)).map((answer) =>
        'refused' in answer
          ? answer.refused
          : [answer.route.device, answer.route.gateway, answer.route.type, answer.route.table],
      )
    const to = at('10.5.2.9')
    expect(
      await say(
        'ipv4',
        { to },
        { to: at('10.5.4.9'), mark: 0x10 },
        { to: at('10.5.3.9') },
        { to: at('10.5.6.9') },
        { to: at('192.168.77.1') },
        { to: at('192.168.77.9'), from: to, iif: VX },
        { to, iif: { name: 'gone' }, from: to },
      ),
    ).toEqual([
      ['vx', '10.5.2.0', 'unicast', 254],
      ['vx', undefined, 'unicast', 100],
      'No route to host',
      'Permission denied',
      ['lo', undefined, 'local', 255],
      ['eth0', undefined, 'unicast', 254],
      'No such device',
    ])
    expect(await say('ipv6', { to: at('fd00:5:2::9') })).toEqual([['vx', 'fd00:5:2::', 'unicast', 254]])
  })
})

const ACTIONS: readonly RuleChange['action'][] = [
  'blackhole',
  'unreachable',
  'prohibit',
  { table: 100 },
  { table: 1000 },
]
const rule = fc
  .record({
    family: fc.constantFrom(...FAMILIES),
    priority: fc.integer({ min: 100, max: 110 }),
    iif: fc.constantFrom(undefined, 'eth0', 'gone0'),
    from: fc.option(fc.integer({ min: 1, max: 3 }), { nil: undefined }),
    to: fc.option(fc.integer({ min: 1, max: 3 }), { nil: undefined }),
    action: fc.constantFrom(...ACTIONS),
    kind: fc.constantFrom('add rule', 'add rule', 'delete rule'),
  } as const)
  .map(({ family, from, to, ...rest }): Change => {
    const net = (number: number | undefined): Net | undefined =>
      number === undefined ? undefined : netAround(inside(family, number), family === 'ipv4' ? 24 : 48)
    return { ...defined({ ...rest, from: net(from), to: net(to) }), family }
  })

describe('rules', () => {
  /** The rules as `ip rule` prints them, without a mark for an interface that does not exist. */
  const rulesOfIp = async (family: Family): Promise<string[]> =>
    (await host.output(['ip', family === 'ipv4' ? '-4' : '-6', 'rule', 'show']))
      .trim()
      .split('\n')
      .map((line) => line.replace(/\t/, ' ').replace(' [detached]', '').trim())
  const rulesOfKernel = async (family: Family): Promise<string[]> =>
    ((await kernel.rules(family)) as readonly PolicyRule[]).map(ruleText)

  it('are made as `ip` makes them, and read as `ip` prints them', async () => {
    const flush = async (): Promise<void> => {
      // A priority can have several rules, and a command deletes one of them.
      const commands = Array.from({ length: 11 * 20 }, (_, at) => `rule del priority ${100 + (at % 11)}`)
      await batch('ip', commands)
      await batch('ip -6', commands)
    }
    await fc.assert(
      fc.asyncProperty(fc.array(rule, { minLength: 5, maxLength: 20 }), async (changes) => {
        await flush()
        await type(changes)
        const typed = await Promise.all(FAMILIES.map(rulesOfIp))
        expect(await Promise.all(FAMILIES.map(rulesOfKernel))).toEqual(typed)
        await flush()
        await kernel.change(changes)
        expect(await Promise.all(FAMILIES.map(rulesOfIp))).toEqual(typed)
      }),
      RUNS,
    )
  })

  it('of other programs are read as `ip rule` prints them', async () => {
    const errors = await batch('ip', [
      'rule add not priority 220 fwmark 0x10/0xff lookup 1000',
      'rule add priority 221 oif eth0 prohibit',
      'rule add priority 222 fwmark 0xffffffff lookup main',
    ])
    const errors6 = await batch('ip -6', ['rule add priority 6 from fd00::/16 to fd01::1 lookup local'])
    expect([errors, errors6]).toEqual(['', ''])
    for (const family of FAMILIES) expect(await rulesOfKernel(family)).toEqual(await rulesOfIp(family))
  })
})

const mac = (number: number): string => `02:00:00:00:00:${number.toString(16).padStart(2, '0')}`
const entry = fc
  .record({
    family: fc.constantFrom(...FAMILIES),
    number: fc.integer({ min: 1, max: 6 }),
    mac: fc.integer({ min: 1, max: 6 }).map(mac),
    kind: fc.constantFrom(
      'replace neighbour',
      'replace neighbour',
      'delete neighbour',
      'replace forwarding',
      'replace forwarding',
      'delete forwarding',
    ),
  } as const)
  .map(({ family, number, mac: to, kind }): Change => {
    if (kind === 'replace neighbour') return { kind, device: VX, address: inside(family, number), mac: to }
    if (kind === 'delete neighbour') return { kind, device: VX, address: inside(family, number) }
    return { kind, device: VX, mac: to, host: 0xc0_a8_4d_00 + number }
  })

describe('neighbour and forwarding entries', () => {
  const permanentOf = async (family: Family): Promise<string[]> => {
    const flag = family === 'ipv4' ? '-4' : '-6'
    const found = await json<{ dst: string; lladdr: string }>(`ip -j ${flag} neigh show dev vx nud permanent`)
    return found.map(({ dst, lladdr }) => `${dst} ${lladdr}`).toSorted()
  }
  const permanentOfKernel = async (family: Family): Promise<string[]> =>
    (await kernel.neighbours(family, VX))
      .filter(({ states }) => states.includes('PERMANENT'))
      .map(({ address, mac: to }) => `${formatAddress(address)} ${to}`)
      .toSorted()
  const forwardingOf = async (): Promise<string[]> =>
    (await json<{ mac: string; dst?: string }>('bridge -j fdb show dev vx'))
      .map(({ mac: to, dst }) => `${to} ${dst}`)
      .toSorted()
  const forwardingOfKernel = async (): Promise<string[]> =>
    (await kernel.forwarding(VX))
      .map(({ mac: to, host: at }) => `${to} ${at === undefined ? undefined : formatAddress(at)}`)
      .toSorted()
  const all = async (
    neighbours: (family: Family) => Promise<string[]>,
    forwarding: () => Promise<string[]>,
  ): Promise<string[][]> => [...(await Promise.all(FAMILIES.map(neighbours))), await forwarding()]

  it('are made as `ip` and `bridge` make them, and read as they print them', async () => {
    const flush = async (): Promise<void> => {
      const numbers = [1, 2, 3, 4, 5, 6]
      await batch('ip', ['neigh flush dev vx nud permanent'])
      await batch(
        'bridge',
        numbers.map((each) => `fdb del ${mac(each)} dev vx self`),
      )
    }
    await fc.assert(
      fc.asyncProperty(fc.array(entry, { minLength: 5, maxLength: 25 }), async (changes) => {
        await flush()
        await type(changes)
        const typed = await all(permanentOf, forwardingOf)
        expect(await all(permanentOfKernel, forwardingOfKernel)).toEqual(typed)
        await flush()
        await kernel.change(changes)
        expect(await all(permanentOf, forwardingOf)).toEqual(typed)
      }),
      RUNS,
    )
  })

  it('of any state are read, for one interface only its own', async () => {
    await batch('ip', [
      'neigh replace 192.168.77.50 lladdr 02:00:00:00:00:50 dev eth0 nud reachable',
      'neigh replace 10.5.9.9 lladdr 02:00:00:00:00:51 dev vx nud stale',
    ])
    const states = async (device?: typeof VX): Promise<string[]> =>
      (await kernel.neighbours('ipv4', device))
        .filter(({ mac: to }) => to.startsWith('02:00:00:00:00:5'))
        .map((each) => `${formatAddress(each.address)} ${each.states.join(' ')}`)
        .toSorted()
    expect(await states()).toEqual(['10.5.9.9 STALE', '192.168.77.50 REACHABLE'])
    expect(await states(VX)).toEqual(['10.5.9.9 STALE'])
    expect(familyOf((await kernel.neighbours('ipv6'))[0]?.address ?? 0n)).toBe('ipv6')
  })
})
