// external-interface.test.ts - the choice of interface and address, by a host that answers from tables.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../src/errors.ts'
import type { Run } from '../../../src/host/command.ts'
import {
  chooseExternalInterface,
  currentExternal,
  preferredAddress,
  type InterfaceWishes,
} from '../../../src/host/external-interface.ts'
import type { Address } from '../../../src/host/links.ts'
import { formatIpv4, parseIpv4 } from '../../../src/net/ipv4.ts'

interface JsonAddress {
  local: string
  prefixlen?: number
  scope?: string
  dynamic?: boolean
  deprecated?: boolean
}

const link = (
  ifindex: number,
  ifname: string,
  addresses: readonly (string | JsonAddress)[],
  mtu = 1500,
  flags = ['UP'],
): object => ({
  ...{ ifindex, ifname, mtu, flags, txqlen: 1000 },
  addr_info: [
    { family: 'inet6', local: '2001:db8::1', prefixlen: 64, scope: 'global' },
    ...addresses.map((address) => ({
      family: 'inet',
      prefixlen: 24,
      scope: 'global',
      ...(typeof address === 'string' ? { local: address } : address),
    })),
  ],
})

const LINKS = [
  link(1, 'lo', [{ local: '127.0.0.1', scope: 'host' }], 65536, ['LOOPBACK', 'UP']),
  link(2, 'eth0', ['192.0.2.7'], 9000),
  link(3, 'dummy0', ['1.10.100.1', '192.168.200.128', '172.16.30.18', '172.16.31.200', '172.16.32.100']),
  link(4, 'bare', [], 1500, []),
]
const CANDIDATES =
  'lo:[127.0.0.1] (loopback), eth0:[192.0.2.7] (WHY), ' +
  'dummy0:[1.10.100.1 192.168.200.128 172.16.30.18 172.16.31.200 172.16.32.100] (WHY), bare:[] (down, no IPv4 address)'
const candidates = (why: string): string => `name one with --iface: ${CANDIDATES.replaceAll('WHY', why)}`

/** `ip` as it would answer on that host; anything else that is asked fails the test. */
function host(
  defaults: readonly object[] = [{ dst: 'default', gateway: '192.0.2.1', dev: 'eth0' }],
  links = LINKS,
): Run {
  return async (file, args) => {
    const question = [file, ...args].join(' ')
    if (question === 'ip -j address show') return JSON.stringify(links)
    if (question === 'ip -j -4 route show exact default') return JSON.stringify(defaults)
    if (question === 'ip -j -4 route get 172.16.31.1')
      return JSON.stringify([{ dst: '172.16.31.1', dev: 'dummy0', prefsrc: '172.16.31.200' }])
    if (question === 'ip -j -4 route get 203.0.113.1')
      throw new WeftError('COMMAND', '`ip route get` failed: RTNETLINK answers: Network is unreachable')
    throw new Error(`unexpected: ${question}`)
  }
}

async function choose(wishes: Partial<InterfaceWishes>, run = host()) {
  const lines: string[] = []
  const say = (message: string): void => void lines.push(message)
  const { name, mtu, address, publicIp } = await chooseExternalInterface(
    run,
    { ifaces: [], patterns: [], canReach: '', publicIp: '', ...wishes },
    { info: say, warn: say, error: say, v: () => false },
  )
  return { name, mtu, address: formatIpv4(address), publicIp: formatIpv4(publicIp), lines }
}

describe('chooseExternalInterface', () => {
  it('takes the default route, and says so as flanneld does', async () => {
    const { lines, ...found } = await choose({})
    expect(found).toEqual({ name: 'eth0', mtu: 9000, address: '192.0.2.7', publicIp: '192.0.2.7' })
    expect(lines).toEqual([
      'Determining IP address of default interface',
      'Using interface with name eth0 and address 192.0.2.7',
      'Defaulting external address to interface address (192.0.2.7)',
    ])
  })

  it('takes the default route of the lowest metric, no metric being 0', async () => {
    const routes = [
      { dev: 'dummy0', metric: 600 },
      { dev: 'eth0', metric: 100 },
    ]
    expect((await choose({}, host(routes))).name).toBe('eth0')
    expect((await choose({}, host([...routes, { dev: 'dummy0' }]))).name).toBe('dummy0')
  })

  it.each([
    [{ ifaces: ['dummy0'] }, 'dummy0', '1.10.100.1'],
    [{ ifaces: ['172.16.31.200'] }, 'dummy0', '172.16.31.200'],
    [{ ifaces: ['eth9', '198.51.100.1', 'bare', 'eth0'] }, 'eth0', '192.0.2.7'],
    [{ canReach: '172.16.31.1' }, 'dummy0', '172.16.31.200'],
    [{ ifaces: ['eth9'], canReach: '172.16.31.1' }, 'dummy0', '172.16.31.200'],
    [{ ifaces: ['eth0'], canReach: '172.16.31.1' }, 'eth0', '192.0.2.7'],
    [{ publicIp: '172.16.30.18' }, 'dummy0', '172.16.30.18'],
    [{ ifaces: [''] }, 'eth0', '192.0.2.7'],
    [{ patterns: [''] }, 'eth0', '192.0.2.7'],
    [{ patterns: [String.raw`172\.16\.3[12]\.`] }, 'dummy0', '172.16.31.200'],
    [{ patterns: ['^dummy'] }, 'dummy0', '1.10.100.1'],
    [{ patterns: ['1'] }, 'eth0', '192.0.2.7'], // never the loopback's
    [{ patterns: ['^eth0$|^172'] }, 'dummy0', '172.16.30.18'], // addresses before names
    [{ patterns: ['nothing', '(?i)ETH'] }, 'eth0', '192.0.2.7'],
    [{ patterns: ['bare|x', 'dummy'] }, 'dummy0', '1.10.100.1'],
    [{ patterns: ['(', '^eth'] }, 'eth0', '192.0.2.7'],
    [{ ifaces: ['eth0'], patterns: ['dummy'] }, 'eth0', '192.0.2.7'],
    [{ ifaces: ['eth9'], patterns: ['dummy'], canReach: '192.0.2.1' }, 'dummy0', '1.10.100.1'],
    [{ ifaces: ['eth9'], patterns: ['x'], canReach: '172.16.31.1' }, 'dummy0', '172.16.31.200'],
    [{ patterns: ['dummy'], publicIp: '192.0.2.7' }, 'dummy0', '1.10.100.1'],
  ])('given %j takes %s %s', async (wishes, name, address) => {
    expect(await choose(wishes)).toMatchObject({ name, address })
  })

  it('publishes --public-ip, which need not be on the host when --iface is given', async () => {
    const found = await choose({ ifaces: ['eth0'], publicIp: '203.0.113.9' })
    expect(found).toMatchObject({ address: '192.0.2.7', publicIp: '203.0.113.9' })
    expect(found.lines.at(-1)).toBe('Using 203.0.113.9 as external address')
  })

  it('names each wish that fails and goes on', async () => {
    const { lines } = await choose(
      { ifaces: ['eth9', 'bare', '198.51.100.1', 'small'], patterns: ['(a', 'b.*e$', 'x'], canReach: '172.16.31.1' },
      host([], [...LINKS, link(5, 'small', ['192.0.2.5'], 0)]),
    )
    const not = (text: string): string => `Could not find valid interface matching ${text}`
    expect(lines.filter((line) => !line.includes('external address') && !line.startsWith('Using'))).toEqual([
      not('eth9: error looking up interface eth9: route ip+net: no such network interface'),
      not('bare: failed to find IPv4 address for interface bare'),
      'Searching for interface using 198.51.100.1',
      not('198.51.100.1: error looking up interface 198.51.100.1: no interface with given IP found'),
      not('small: failed to determine MTU for 192.0.2.5 interface'),
      not("(a: could not compile the IP address regex '(a': error parsing regexp: missing closing ): `(a`"),
      not('b.*e$: failed to find IPv4 address for interface bare'),
      not(
        'x: could not match pattern x to any of the available network interfaces (lo:[], eth0:[192.0.2.7], ' +
          'dummy0:[1.10.100.1 192.168.200.128 172.16.30.18 172.16.31.200 172.16.32.100], bare:[], small:[192.0.2.5])',
      ),
      'Determining interface to use based on given ifcanreach: 172.16.31.1',
    ])
  })

  it.each([
    ['look-ahead', 'eth(?=0)'],
    ['look-behind', '(?<=e)th'],
    ['a back-reference', String.raw`(e)\1`],
  ])('knows no %s, as RE2', async (_title, pattern) => {
    await expect(choose({ patterns: [pattern] })).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringContaining(`could not compile the IP address regex '${pattern}'`),
    })
  })

  it('takes linear time for what a backtracking matcher never ends with', async () => {
    const pattern = '^(a+)+$'
    const name = `${'a'.repeat(23)}!` // more than the kernel's 15
    const clock = (): number => process.cpuUsage().user
    const began = clock()
    expect(new RegExp(pattern).test(name)).toBe(false) // some 2^23 steps
    const backtracked = clock()
    await expect(choose({ patterns: [pattern] }, host([], [link(2, name, [])]))).rejects.toThrow('Failed to find')
    expect(clock() - backtracked).toBeLessThan((backtracked - began) / 4)
  })

  it('takes the first next hop of a default route that has several, and none that leads nowhere', async () => {
    const routes = [{ type: 'unreachable' }, { nexthops: [{ dev: 'dummy0' }, { dev: 'eth0' }], metric: 5 }]
    expect((await choose({}, host(routes))).name).toBe('dummy0')
  })

  it.each([
    [
      'no default route',
      {},
      host([]),
      'INTERFACE',
      'Failed to find any valid interface to use: failed to get default interface: unable to find default route',
      candidates('no default route'),
    ],
    [
      'nothing that fits',
      { ifaces: ['eth9'], patterns: ['x'] },
      host(),
      'INTERFACE',
      'Failed to find interface to use that matches the interfaces and/or regexes provided',
      candidates('not asked for'),
    ],
    [
      'only a public IP of elsewhere',
      { publicIp: '203.0.113.9' },
      host(),
      'INTERFACE',
      'Failed to find any valid interface to use: error looking up interface 203.0.113.9: no interface with given IP found',
      candidates('without 203.0.113.9'),
    ],
    ['a public IP that is none', { publicIp: 'me' }, host(), 'USAGE', 'invalid public IP address: me', '--public-ip'],
    [
      'a target that is none',
      { canReach: 'you' },
      host(),
      'USAGE',
      'regexes provided: invalid IP address for --iface-can-reach: you',
      'IPv4',
    ],
    [
      'a target without a route',
      { canReach: '203.0.113.1' },
      host(),
      'INTERFACE',
      'Failed to find interface to use',
      '--iface',
    ],
    [
      'an interface without MTU',
      { ifaces: ['x'] },
      host([], [link(2, 'x', ['192.0.2.7'], 0), link(3, 'y', ['127.0.0.9'], 1500, [])]),
      'INTERFACE',
      'Failed to find interface to use',
      'x:[192.0.2.7] (MTU 0), y:[127.0.0.9] (down, no address of a host)',
    ],
    [
      'what is down, naming that and what else',
      { ifaces: ['z'] },
      host([], [link(2, 'x', ['192.0.2.7'], 1500, [])]),
      'INTERFACE',
      'Failed to find interface to use',
      'x:[192.0.2.7] (down, not asked for)',
    ],
  ] as const)('refuses %s', async (_title, wishes, run, code, message, remedy) => {
    await expect(choose(wishes, run)).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
      remedy: expect.stringContaining(remedy),
    })
  })
})

describe('preferredAddress', () => {
  const linkLocal = fc.nat(0xffff).map((low) => 0xa9fe0000 + low)
  const address = fc.record({
    address: fc.oneof(fc.nat(0xffffffff), linkLocal),
    prefixLength: fc.integer({ min: 0, max: 32 }),
    dynamic: fc.boolean(),
    deprecated: fc.boolean(),
    secondary: fc.boolean(),
  })
  const bare = { index: 1, name: 'x', mtu: 1500, up: true, loopback: false, queueLength: 0 }
  const rank = ({ address: at, dynamic }: Address): number =>
    (formatIpv4(at).startsWith('169.254.') ? 2 : 0) + (dynamic ? 1 : 0)

  it('is the first of the best that can be used at all', () => {
    fc.assert(
      fc.property(fc.array(address, { maxLength: 6 }), (addresses) => {
        const usable = addresses.filter((entry) => {
          const top = entry.address >>> 24
          return !entry.deprecated && top !== 0 && top !== 127 && top < 224
        })
        const best = Math.min(...usable.map(rank))
        expect(preferredAddress({ ...bare, addresses })).toBe(usable.find((entry) => rank(entry) === best)?.address)
      }),
    )
  })
})

describe('currentExternal', () => {
  const address = parseIpv4('192.0.2.7')!
  const before = { name: 'eth0', mtu: 1500, address, publicIp: address, named: { address: false, publicIp: false } }
  const eth0 = (mtu: number, ...locals: string[]): Run => {
    const addresses = locals.map((local) => ({ family: 'inet', local, scope: 'global' }))
    return async () => JSON.stringify([{ ifname: 'eth0', mtu, addr_info: addresses }])
  }
  const nine = parseIpv4('192.0.2.9')!

  it.each([
    ['its MTU', before, eth0(1400, '192.0.2.7'), { mtu: 1400 }],
    ['its new address', before, eth0(1500, '192.0.2.9'), { address: nine, publicIp: nine }],
    ['no address beside the one in use', before, eth0(1500, '192.0.2.9', '192.0.2.7'), {}],
    ['no address when it has none', before, eth0(1500), {}],
    ['nothing when it is gone', before, async () => '', {}],
    ['no MTU of 0', before, eth0(0, '192.0.2.7'), {}],
    [
      'no address in place of a named one',
      { ...before, named: { address: true, publicIp: false } },
      eth0(1500, '192.0.2.9'),
      {},
    ],
    [
      'the address, not the public IP that was named',
      { ...before, named: { address: false, publicIp: true } },
      eth0(1500, '192.0.2.9'),
      { address: nine },
    ],
    [
      'the address that matches the expression it was chosen by',
      { ...before, pattern: '^192' },
      eth0(1500, '198.51.100.1', '192.0.2.9'),
      { address: nine, publicIp: nine },
    ],
    ['no other address than a matching one', { ...before, pattern: '^192' }, eth0(1500, '198.51.100.1'), {}],
  ])('takes over %s', async (_title, was, run, change) => {
    expect(await currentExternal(run, was)).toEqual({ ...was, ...change })
  })
})
