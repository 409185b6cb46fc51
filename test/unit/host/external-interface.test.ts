// external-interface.test.ts - chooses the interface and its addresses on hosts that are described by tables.

import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { WeftError } from '../../../src/base/errors.ts'
import { chooseExternalInterface, type InterfaceWishes } from '../../../src/host/choose-interface.ts'
import {
  AddressHold,
  addressChange,
  currentExternal,
  externalText,
  mtuChange,
  publicIpCame,
  readExternalText,
  resumeExternal,
  sendingFromPublicIp,
  seeExternal,
  preferredAddress,
  type ExternalInterface,
} from '../../../src/host/external-interface.ts'
import type { Link, LinkAddress, Route } from '../../../src/host/kernel.ts'
import {
  addressText,
  FAMILIES,
  formatAddress,
  parseAddress,
  type Addresses,
  type Family,
} from '../../../src/net/address.ts'
import { formatIpv4, parseIpv4 } from '../../../src/net/ipv4.ts'
import { formatIpv6, parseIpv6 } from '../../../src/net/ipv6.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

type TestAddress = Pick<LinkAddress, 'address' | 'prefixLength'> & Partial<LinkAddress>
/** An interface of a host, and its addresses. */
interface TestLink extends Pick<Link, 'index' | 'name' | 'mtu' | 'up' | 'loopback'> {
  readonly addresses: readonly TestAddress[]
}

/** Makes an address from its text and flags, such as `fd00::7 deprecated`; `duplicate` stands for a tentative one. */
function at(text: string, prefixLength = text.includes(':') ? 64 : 24): TestAddress {
  const [address = '', ...flags] = text.split(' ')
  return { address: parseAddress(address)!, prefixLength, ...Object.fromEntries(flags.map((flag) => [flag, true])) }
}
const withAddresses = (
  index: number,
  name: string,
  addresses: readonly TestAddress[],
  mtu = 1500,
  flags: readonly string[] = ['UP'],
): TestLink => ({ index, name, mtu, up: flags.includes('UP'), loopback: flags.includes('LOOPBACK'), addresses })
const both = (index: number, name: string, addresses: readonly string[], mtu?: number, flags?: readonly string[]) =>
  withAddresses(
    index,
    name,
    addresses.map((text) => at(text)),
    mtu,
    flags,
  )
/** An interface of an IPv4 host, which also has an IPv6 address. */
const link = (index: number, name: string, addresses: readonly string[], mtu?: number, flags?: readonly string[]) =>
  both(index, name, ['2001:db8::1', ...addresses], mtu, flags)

/** A default route. The kernel gives a route with several next hops the interface of the first next hop. */
type TestRoute = Partial<Route>

/** Makes a host with these interfaces and default routes. */
function hostWith(
  links: readonly TestLink[],
  defaults: readonly TestRoute[],
  defaults6: readonly TestRoute[] = [],
): ModelKernel {
  const kernel = new ModelKernel()
  for (const { addresses, ...each } of links) kernel.addLink(each, addresses)
  for (const each of defaults) kernel.addRoute('ipv4', { destination: 'default', ...each })
  for (const each of defaults6) kernel.addRoute('ipv6', { destination: 'default', ...each })
  return kernel
}

const LINKS = [
  link(1, 'lo', ['127.0.0.1'], 65536, ['LOOPBACK', 'UP']),
  link(2, 'eth0', ['192.0.2.7'], 9000),
  link(3, 'dummy0', ['1.10.100.1', '192.168.200.128', '172.16.30.18', '172.16.31.200', '172.16.32.100']),
  link(4, 'bare', [], 1500, []),
]
const CANDIDATES =
  'eth0:[192.0.2.7] (WHY), ' +
  'dummy0:[1.10.100.1 192.168.200.128 172.16.30.18 172.16.31.200 172.16.32.100] (WHY), bare:[] (down, no IPv4 address)'
const candidates = (why: string): string => `name one with --iface: ${CANDIDATES.replaceAll('WHY', why)}`

const host = (
  defaults: readonly TestRoute[] = [{ gateway: '192.0.2.1', device: 'eth0' }],
  links = LINKS,
): ModelKernel => hostWith(links, defaults)

interface Asked extends Partial<Omit<InterfaceWishes, 'publicIp'>> {
  readonly publicIp?: string
  readonly publicIpv6?: string
}

async function choose({ publicIp: ip = '', publicIpv6 = '', ...wishes }: Asked, kernel = host()) {
  const lines: string[] = []
  const say = (message: string): void => void lines.push(message)
  const { name, mtu, address, publicIp } = await chooseExternalInterface(
    kernel,
    { ifaces: [], patterns: [], canReach: '', publicIp: { ipv4: ip, ipv6: publicIpv6 }, ...wishes },
    ['ipv4'],
    { info: say, warn: say, error: say, v: () => false },
  )
  return { name, mtu, address: addressText(address), publicIp: addressText(publicIp), lines }
}

describe('chooseExternalInterface', () => {
  it('takes the default route, and logs as flanneld does', async () => {
    const { lines, ...found } = await choose({})
    expect(found).toEqual({ name: 'eth0', mtu: 9000, address: '192.0.2.7', publicIp: '192.0.2.7' })
    expect(lines).toEqual([
      'Determining IP address of default interface',
      'Using interface with name eth0 and address 192.0.2.7',
      'Defaulting external address to interface address (192.0.2.7)',
    ])
  })

  it('takes the default route with the lowest metric; a route without a metric has metric 0', async () => {
    const routes = [
      { device: 'dummy0', metric: 600 },
      { device: 'eth0', metric: 100 },
    ]
    expect((await choose({}, host(routes))).name).toBe('eth0')
    expect((await choose({}, host([...routes, { device: 'dummy0' }]))).name).toBe('dummy0')
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
    [{ patterns: ['1'] }, 'eth0', '192.0.2.7'], // never the address of the loopback interface
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

  it('logs each flag for which no interface fits, and tries the next one', async () => {
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
  ])('accepts no %s, as RE2', async (_title, pattern) => {
    await expect(choose({ patterns: [pattern] })).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringContaining(`could not compile the IP address regex '${pattern}'`),
    })
  })

  it('matches in linear time a pattern with which a backtracking matcher never ends', async () => {
    const pattern = '^(a+)+$'
    const name = `${'a'.repeat(23)}!` // longer than the 15 characters that the kernel allows
    const clock = (): number => process.cpuUsage().user
    const began = clock()
    expect(new RegExp(pattern).test(name)).toBe(false) // some 2^23 steps
    const backtracked = clock()
    await expect(choose({ patterns: [pattern] }, host([], [link(2, name, [])]))).rejects.toThrow('Failed to find')
    expect(clock() - backtracked).toBeLessThan((backtracked - began) / 4)
  })

  it('takes the first next hop of a default route with several, and ignores blackhole routes', async () => {
    const routes = [{ type: 'unreachable' as const }, { device: 'dummy0', isMultipath: true, metric: 5 }]
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
      host([]),
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
  ] as const)('refuses %s', async (_title, wishes, kernel, code, message, remedy) => {
    await expect(choose(wishes, kernel)).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
      remedy: expect.stringContaining(remedy),
    })
  })
})

const bare = hostWith([both(1, 'x', [])], []).peek('x')!

describe('preferredAddress', () => {
  const linkLocal = fc.nat(0xffff).map((low) => 0xa9fe0000 + low)
  const address = fc.record({
    address: fc.oneof(fc.nat(0xffffffff), linkLocal),
    prefixLength: fc.constantFrom(8, 24, 31, 32),
    dynamic: fc.boolean(),
    deprecated: fc.boolean(),
    secondary: fc.boolean(),
    temporary: fc.constant(false),
    tentative: fc.constant(false),
  })
  const rank = ({ address: own, prefixLength }: LinkAddress<number>): number =>
    (formatIpv4(own).startsWith('169.254.') ? 2 : 0) + (prefixLength === 32 ? 1 : 0)

  it('is the first of the best usable addresses', () => {
    fc.assert(
      fc.property(fc.array(address, { maxLength: 6 }), (addresses) => {
        const usable = addresses.filter((entry) => {
          const top = entry.address >>> 24
          return !entry.deprecated && top !== 0 && top !== 127 && top < 224
        })
        const best = Math.min(...usable.map(rank))
        expect(preferredAddress({ ...bare, addresses: { ipv4: addresses, ipv6: [] } }, 'ipv4')).toBe(
          usable.find((entry) => rank(entry) === best)?.address,
        )
      }),
    )
  })
})

const BOTH = [
  both(1, 'lo', ['127.0.0.1', '::1'], 65536, ['LOOPBACK', 'UP']),
  both(2, 'eth0', [
    '192.0.2.7',
    'fe80::7',
    'fd00::77 deprecated',
    'fd00::78 tentative',
    'fd00::79 duplicate tentative',
    '2001:db8::aaaa temporary dynamic',
    '2001:db8::7 dynamic',
    'fd00::7',
    'fd00::70',
  ]),
  both(3, 'eth1', ['198.51.100.1', '198.51.100.2', 'fe80::1', 'fd00:1::1', 'fd00:1::2'], 9000),
  both(4, 'four', ['203.0.113.4']),
  both(5, 'six', ['fd00:6::1']),
  both(6, 'off', ['203.0.113.6']),
  both(7, 'new', ['203.0.113.7', 'fe80::a', 'fd00:7::1 tentative', 'fd00:7::2 temporary dynamic']),
  both(8, 'old', ['203.0.113.8', 'fd00:8::1 deprecated', '::1', 'ff02::1', '::']),
  both(9, 'lan', ['203.0.113.9', 'fe80::9 dynamic', 'fe80::99']),
  both(10, 'tmp', ['203.0.113.10', 'fe80::1010', 'fd00:10::1 temporary dynamic']),
  both(11, 'nil', ['203.0.113.11', 'fd00:11::1'], 0),
]
const ALL = (why: string): string =>
  'eth0:[192.0.2.7 fe80::7 fd00::77(deprecated) fd00::78(tentative) fd00::79(tentative) ' +
  `2001:db8::aaaa 2001:db8::7 fd00::7 fd00::70] (${why}), ` +
  `eth1:[198.51.100.1 198.51.100.2 fe80::1 fd00:1::1 fd00:1::2] (${why}), four:[203.0.113.4] (no IPv6 address), ` +
  'six:[fd00:6::1] (no IPv4 address), off:[203.0.113.6] (no IPv6 by net.ipv6.conf.off.disable_ipv6), ' +
  'new:[203.0.113.7 fe80::a fd00:7::1(tentative) fd00:7::2] (no usable IPv6 address), ' +
  'old:[203.0.113.8 fd00:8::1(deprecated) ::1 ff02::1 ::] (no usable IPv6 address), ' +
  `lan:[203.0.113.9 fe80::9 fe80::99] (${why}), tmp:[203.0.113.10 fe80::1010 fd00:10::1] (${why}), ` +
  'nil:[203.0.113.11 fd00:11::1] (MTU 0)'

/** Describes a dual-stack host by its interfaces and its default routes, or the devices of its default routes. */
function hostOfBoth(
  by4: readonly TestRoute[] | string = 'eth0',
  by6: readonly TestRoute[] | string = 'eth0',
  links: readonly TestLink[] = BOTH,
): ModelKernel {
  const routes = (by: readonly TestRoute[] | string) => (typeof by === 'string' ? [{ device: by }] : by)
  const kernel = hostWith(links, routes(by4), routes(by6))
  if (kernel.peek('eth1'))
    kernel.addRoute('ipv4', { destination: '198.51.100.9/32', device: 'eth1', source: parseIpv4('198.51.100.2') })
  return kernel
}
const readSysctl = async (name: string): Promise<string> => (name === 'net/ipv6/conf/off/disable_ipv6' ? '1' : '0')

const IPV6: readonly Family[] = ['ipv6']
const DUAL: readonly Family[] = ['ipv4', 'ipv6']
const text = ({ ipv4, ipv6: other }: Addresses): string =>
  [ipv4, other].flatMap((address) => (address === undefined ? [] : formatAddress(address))).join(' ')

async function chooseOf(
  families: readonly Family[],
  { publicIp = '', publicIpv6 = '', ...asked }: Asked,
  kernel = hostOfBoth(),
) {
  const lines: string[] = []
  const say = (message: string): void => void lines.push(message)
  const wishes = { ifaces: [], patterns: [], canReach: '', publicIp: { ipv4: publicIp, ipv6: publicIpv6 }, ...asked }
  const log = { info: say, warn: say, error: say, v: () => false }
  const found = await chooseExternalInterface(kernel, wishes, families, log, readSysctl)
  return { found, name: found.name, address: text(found.address), publicIp: text(found.publicIp), lines }
}

describe('chooseExternalInterface in a network with IPv6', () => {
  it('uses the IPv6 default route in an IPv6-only network, and logs it as flanneld does', async () => {
    const { lines, found, ...is } = await chooseOf(IPV6, {}, hostOfBoth([]))
    expect(is).toEqual({ name: 'eth0', address: '2001:db8::7', publicIp: '2001:db8::7' })
    expect(found.address.ipv4).toBeUndefined()
    expect(lines).toEqual([
      'Determining IP address of default interface',
      'Using interface with name eth0 and v6 address 2001:db8::7',
      'Defaulting external v6 address to interface address (2001:db8::7)',
    ])
  })

  it('takes the interface of both default routes, and logs it for each family', async () => {
    const { lines, found, ...is } = await chooseOf(DUAL, {})
    expect(is).toEqual({ name: 'eth0', address: '192.0.2.7 2001:db8::7', publicIp: '192.0.2.7 2001:db8::7' })
    expect(found.named).toEqual({ address: { ipv4: false, ipv6: false }, publicIp: { ipv4: false, ipv6: false } })
    expect(lines).toEqual([
      'Determining IP address of default interface',
      'Using interface with name eth0 and address 192.0.2.7',
      'Using interface with name eth0 and v6 address 2001:db8::7',
      'Defaulting external address to interface address (192.0.2.7)',
      'Defaulting external v6 address to interface address (2001:db8::7)',
    ])
  })

  it('takes the default route with the lowest metric of each family, and no unreachable route', async () => {
    const nowhere = { type: 'unreachable' as const, device: 'lo', metric: 1 }
    const by6 = [nowhere, { device: 'eth1', metric: 2048 }, { device: 'eth0', isMultipath: true, metric: 1024 }]
    expect((await chooseOf(DUAL, {}, hostOfBoth('eth0', by6))).name).toBe('eth0')
    await expect(chooseOf(IPV6, {}, hostOfBoth('eth0', [nowhere]))).rejects.toThrow('unable to find default v6 route')
  })

  it.each<[families: readonly Family[], wishes: Asked, name: string, address: string, named: string]>([
    // by name
    [IPV6, { ifaces: ['eth1'] }, 'eth1', 'fd00:1::1', ''],
    [DUAL, { ifaces: ['eth1'] }, 'eth1', '198.51.100.1 fd00:1::1', ''],
    [IPV6, { ifaces: ['six'] }, 'six', 'fd00:6::1', ''],
    [DUAL, { ifaces: ['four', 'six', 'off', 'eth1'] }, 'eth1', '198.51.100.1 fd00:1::1', ''],
    [DUAL, { ifaces: ['new', 'old', 'lan'] }, 'lan', '203.0.113.9 fe80::9', ''], // link-local, because there is no other
    [DUAL, { ifaces: ['tmp'] }, 'tmp', '203.0.113.10 fd00:10::1', ''], // temporary, because there is no permanent one
    [DUAL, { ifaces: [''] }, 'eth0', '192.0.2.7 2001:db8::7', ''],
    // by an address of either family
    [IPV6, { ifaces: ['fd00:1::2'] }, 'eth1', 'fd00:1::2', 'ipv6'],
    [IPV6, { ifaces: ['FD00:1:0::02'] }, 'eth1', 'fd00:1::2', 'ipv6'],
    [IPV6, { ifaces: ['fe80::1'] }, 'eth1', 'fe80::1', 'ipv6'], // also an address that would not be chosen automatically
    [IPV6, { ifaces: ['fd00::77'] }, 'eth0', 'fd00::77', 'ipv6'],
    [IPV6, { ifaces: ['198.51.100.2'] }, 'eth1', 'fd00:1::1', ''],
    [DUAL, { ifaces: ['198.51.100.2'] }, 'eth1', '198.51.100.2 fd00:1::1', 'ipv4'],
    [DUAL, { ifaces: ['fd00:1::2'] }, 'eth1', '198.51.100.1 fd00:1::2', 'ipv6'],
    [DUAL, { ifaces: ['fd00:9::9', 'fd00::78', 'fd00:6::1', 'eth1'] }, 'eth1', '198.51.100.1 fd00:1::1', ''],
    // chosen by a regular expression
    [IPV6, { patterns: ['^fd00:1:'] }, 'eth1', 'fd00:1::1', ''],
    [IPV6, { patterns: ['^2001:'] }, 'eth0', '2001:db8::7', ''],
    [IPV6, { patterns: ['^fd.*::7'] }, 'eth0', 'fd00::7', ''], // fd00::77 to fd00::79 are not usable
    [IPV6, { patterns: ['^198|^eth'] }, 'eth0', '2001:db8::7', ''], // by the name, because the network has no IPv4
    [DUAL, { patterns: ['^198|::2$'] }, 'eth1', '198.51.100.1 fd00:1::2', ''],
    [DUAL, { patterns: ['^fd00:1:|^eth1$'] }, 'eth1', '198.51.100.1 fd00:1::1', ''], // by the name
    // chosen by a target address
    [IPV6, { canReach: 'fd00:1::9' }, 'eth1', 'fd00:1::1', ''], // not the kernel's source address
    [IPV6, { canReach: '198.51.100.9' }, 'eth1', 'fd00:1::1', ''],
    [DUAL, { canReach: 'fd00:1::9' }, 'eth1', '198.51.100.1 fd00:1::1', ''],
    [DUAL, { canReach: '198.51.100.9' }, 'eth1', '198.51.100.2 fd00:1::1', ''],
    [DUAL, { canReach: '198.51.100.9', publicIp: '198.51.100.1' }, 'eth1', '198.51.100.1 fd00:1::1', ''],
    // chosen by the public addresses
    [IPV6, { publicIpv6: 'fd00:1::2' }, 'eth1', 'fd00:1::2', 'ipv6'],
    [IPV6, { publicIp: '198.51.100.2' }, 'eth0', '2001:db8::7', ''],
    [DUAL, { publicIpv6: 'fd00:1::2' }, 'eth1', '198.51.100.1 fd00:1::2', 'ipv6'],
    [DUAL, { publicIp: '198.51.100.2' }, 'eth1', '198.51.100.2 fd00:1::1', 'ipv4'],
    [DUAL, { publicIp: '198.51.100.2', publicIpv6: 'fd00:1::2' }, 'eth1', '198.51.100.2 fd00:1::2', 'ipv4 ipv6'],
    // by name, with a public address that the interface has
    [DUAL, { ifaces: ['eth1'], publicIp: '198.51.100.2' }, 'eth1', '198.51.100.2 fd00:1::1', ''],
    [DUAL, { ifaces: ['eth1'], publicIpv6: 'fd00:1::2' }, 'eth1', '198.51.100.1 fd00:1::2', ''],
    [DUAL, { ifaces: ['198.51.100.1'], publicIpv6: 'fd00:1::2' }, 'eth1', '198.51.100.1 fd00:1::2', 'ipv4'],
    [DUAL, { ifaces: ['198.51.100.1'], publicIp: '198.51.100.2' }, 'eth1', '198.51.100.1 fd00:1::1', 'ipv4'],
    [DUAL, { patterns: ['^eth1$'], publicIp: '198.51.100.2' }, 'eth1', '198.51.100.2 fd00:1::1', ''],
    [DUAL, { ifaces: ['eth0'], publicIpv6: 'fd00::79' }, 'eth0', '192.0.2.7 2001:db8::7', ''], // tentative
    [DUAL, { ifaces: ['eth0'], publicIpv6: 'fd00:1::2' }, 'eth0', '192.0.2.7 2001:db8::7', ''], // on another interface
  ])('for %j given %j takes %s %s', async (families, wishes, name, address, named) => {
    const { found, ...is } = await chooseOf(families, wishes)
    expect(is).toMatchObject({ name, address })
    expect(DUAL.filter((family) => found.named.address[family]).join(' ')).toBe(named)
  })

  it('takes an IPv6 address for a name in an IPv4 network, as flanneld does', async () => {
    const lines = await chooseOf(['ipv4'], { ifaces: ['fd00:1::2', 'eth0'] })
    expect(lines.lines[0]).toBe(
      'Could not find valid interface matching fd00:1::2: error looking up interface fd00:1::2: route ip+net: no such network interface',
    )
    await expect(chooseOf(['ipv4'], { ifaces: ['fd00:1::2'] })).rejects.toMatchObject({
      message: 'Failed to find interface to use that matches the interfaces and/or regexes provided',
      remedy: expect.stringMatching(/^name one with --iface: eth0:\[192\.0\.2\.7\]/),
    })
    await expect(chooseOf(['ipv4'], { canReach: 'fd00:1::9' })).rejects.toMatchObject({
      code: 'USAGE',
      remedy: expect.stringContaining('an IPv4 address'),
    })
  })

  it('publishes --public-ipv6, which need not be on the host when --iface is given', async () => {
    const asked = { ifaces: ['eth1'], publicIp: '192.0.2.200', publicIpv6: '2001:db8::200' }
    const { found, ...is } = await chooseOf(DUAL, asked)
    expect(is).toMatchObject({ address: '198.51.100.1 fd00:1::1', publicIp: '192.0.2.200 2001:db8::200' })
    expect(is.lines.slice(-2)).toEqual([
      'Using 192.0.2.200 as external address',
      'Using 2001:db8::200 as external address',
    ])
    expect(found.named.publicIp).toEqual({ ipv4: true, ipv6: true })
    const { found: one } = await chooseOf(DUAL, { ifaces: ['eth1'], publicIpv6: '2001:db8::200' })
    expect([text(one.publicIp), one.named.publicIp]).toEqual([
      '198.51.100.1 2001:db8::200',
      { ipv4: false, ipv6: true },
    ])
  })

  it.each([
    '192.0.2.1',
    'me',
    'fe80::1',
    'febf::1',
    'fe80::1%eth0',
    'fd00::/64',
    '::',
    '::1',
    'ff02::1',
    '::ffff:192.0.2.1',
    '[fd00::1]',
  ])('refuses --public-ipv6 %s, whatever the network has', async (publicIpv6) => {
    for (const families of [IPV6, DUAL, ['ipv4'] as const])
      await expect(chooseOf(families, { publicIpv6 })).rejects.toMatchObject({
        code: 'USAGE',
        message: `invalid public IPv6 address: ${publicIpv6}`,
        remedy: expect.stringMatching(
          /^fe.*[^0]$/.test(publicIpv6) && !publicIpv6.includes('%')
            ? /link-local address is valid only on its own link/
            : /--public-ipv6/,
        ),
      })
  })

  const failed = 'Failed to find any valid interface to use: '
  const unmatched = 'Failed to find interface to use that matches the interfaces and/or regexes provided: '
  it.each<
    [what: string, families: readonly Family[], wishes: Asked, kernel: ModelKernel, message: string, remedy: string]
  >([
    [
      'default routes by two interfaces',
      DUAL,
      {},
      hostOfBoth('eth0', 'eth1'),
      `${failed}v6 default route interface eth1 must be the same with v4 default route interface eth0`,
      `let both default routes use one interface, or name one with --iface: ${ALL('not of both default routes')}`,
    ],
    [
      'no default route of IPv6',
      DUAL,
      {},
      hostOfBoth('eth0', []),
      `${failed}failed to get default v6 interface: unable to find default v6 route`,
      `name one with --iface: ${ALL('not of both default routes')}`,
    ],
    [
      'no default route of IPv4, by its own words',
      DUAL,
      {},
      hostOfBoth([], 'eth0'),
      `${failed}failed to get default interface: unable to find default route`,
      `name one with --iface: ${ALL('not of both default routes')}`,
    ],
    [
      'the default route of an interface on which IPv6 is off',
      DUAL,
      {},
      hostOfBoth('off', []),
      `${failed}IPv6 is off on the interface off: net.ipv6.conf.off.disable_ipv6 is 1`,
      `set it to 0, or name one with --iface: ${ALL('not of both default routes')}`,
    ],
    [
      'an interface that lacks IPv6, and one that lacks IPv4',
      DUAL,
      { ifaces: ['four', 'six'] },
      hostOfBoth(),
      `${unmatched}failed to find IPv6 address for interface four, failed to find IPv4 address for interface six`,
      `name one with --iface: ${ALL('not asked for')}`,
    ],
    [
      'an interface on which IPv6 is off',
      DUAL,
      { ifaces: ['off'] },
      hostOfBoth(),
      `${unmatched}IPv6 is off on the interface off: net.ipv6.conf.off.disable_ipv6 is 1`,
      `set it to 0, or name one with --iface: ${ALL('not asked for')}`,
    ],
    [
      'a link-local address while a better one is tentative',
      DUAL,
      { ifaces: ['new'] },
      hostOfBoth(),
      `${unmatched}failed to find IPv6 address for interface new`,
      `name one with --iface: ${ALL('not asked for')}`,
    ],
    [
      'an address that nobody has, and one that is tentative',
      DUAL,
      { ifaces: ['fd00:9::9', 'fd00::79', '10.0.0.1'] },
      hostOfBoth(),
      `${unmatched}error looking up v6 interface fd00:9::9: no interface with given IPv6 found, ` +
        'error looking up v6 interface fd00::79: no interface with given IPv6 found, ' +
        'error looking up interface 10.0.0.1: no interface with given IP found',
      `name one with --iface: ${ALL('not asked for')}`,
    ],
    [
      'public addresses of two interfaces',
      DUAL,
      { publicIp: '192.0.2.7', publicIpv6: 'fd00:1::1' },
      hostOfBoth(),
      `${failed}v6 interface eth1 must be the same with v4 interface eth0`,
      `give --public-ip and --public-ipv6 addresses of one interface, or name one with --iface: ${ALL('without 192.0.2.7 and fd00:1::1')}`,
    ],
    [
      'a public address of elsewhere alone',
      DUAL,
      { publicIpv6: '2001:db8::200' },
      hostOfBoth(),
      `${failed}error looking up v6 interface 2001:db8::200: no interface with given IPv6 found`,
      `name one with --iface: ${ALL('without 2001:db8::200')}`,
    ],
    [
      'targets without a route',
      DUAL,
      { canReach: '2001:db8:9::1' },
      hostOfBoth([], []),
      `${unmatched}failed to get ifcanreach based interface: couldn't lookup route to 2001:db8:9::1: network is unreachable`,
      `name one with --iface: ${ALL('not asked for')}`,
    ],
    [
      'a target behind an unreachable route',
      IPV6,
      { canReach: '2001:db8:9::2' },
      hostOfBoth([], [{ type: 'unreachable', device: 'lo' }]),
      `${unmatched}failed to get ifcanreach based interface: couldn't lookup route to 2001:db8:9::2: network is unreachable`,
      'name one with --iface: eth0:[fe80::7',
    ],
    [
      'an interface without MTU',
      IPV6,
      { ifaces: ['nil'] },
      hostOfBoth(),
      `${unmatched}failed to determine MTU for fd00:11::1 interface`,
      'nil:[fd00:11::1] (MTU 0)',
    ],
    [
      'an expression that matches addresses of two interfaces, and no name',
      DUAL,
      { patterns: ['^192|^fd00:1:'] },
      hostOfBoth(),
      `${unmatched}could not match pattern ^192|^fd00:1: to any of the available network interfaces (lo:[], eth0:[`,
      `name one with --iface: ${ALL('not asked for')}`,
    ],
    [
      'no match, naming the addresses of both families, the best first',
      DUAL,
      { patterns: ['x'] },
      hostOfBoth('eth0', 'eth0', BOTH.slice(0, 3)),
      `${unmatched}could not match pattern x to any of the available network interfaces (lo:[], ` +
        'eth0:[192.0.2.7 fd00::78 fd00::79 2001:db8::7 fd00::7 fd00::70 2001:db8::aaaa fe80::7], ' +
        'eth1:[198.51.100.1 198.51.100.2 fd00:1::1 fd00:1::2 fe80::1])',
      'name one with --iface: eth0:',
    ],
  ])('refuses %s', async (_what, families, wishes, kernel, message, remedy) => {
    const error: unknown = await chooseOf(families, wishes, kernel).catch((thrown: unknown) => thrown)
    expect(error).toMatchObject({ code: 'INTERFACE', message: expect.stringContaining(message) })
    expect((error as WeftError).remedy).toContain(remedy)
  })

  it('refuses an invalid target', async () => {
    await expect(chooseOf(DUAL, { canReach: 'fd00::1%eth0' })).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringContaining('provided: invalid IP address for --iface-can-reach: fd00::1%eth0'),
      remedy: 'give --iface-regex an expression of RE2, --iface-can-reach an address',
    })
  })
})

describe('the choice of IPv6 addresses', () => {
  const KINDS = ['2001:db8::', 'fd00::', 'fe80::', 'ff02::', '::'] as const
  const entry = fc.record({
    kind: fc.constantFrom(...KINDS),
    low: fc.nat(9),
    dynamic: fc.boolean(),
    deprecated: fc.boolean(),
    temporary: fc.boolean(),
    tentative: fc.boolean(),
  })
  type Entry = typeof entry extends fc.Arbitrary<infer T> ? T : never
  const addressOf = ({ kind, low }: Entry): string => formatIpv6(parseIpv6(kind)! + BigInt(low))
  const toLinkAddress = (of: Entry): LinkAddress<bigint> => ({
    address: parseIpv6(addressOf(of))!,
    prefixLength: 64,
    secondary: false,
    dynamic: of.dynamic,
    deprecated: of.deprecated,
    temporary: of.temporary,
    tentative: of.tentative,
  })

  /** Returns the first ready address of the first non-empty group; the groups are in order of preference. */
  function model(entries: readonly Entry[]): string | undefined {
    // `::` and `::1` are not usable; `::2` to `::9` are all equal.
    const usable = entries.filter((of) => !of.deprecated && of.kind !== 'ff02::' && (of.kind !== '::' || of.low > 1))
    const isLocal = (of: Entry): boolean => of.kind === 'fe80::'
    for (const group of [
      usable.filter((of) => !isLocal(of) && !of.temporary),
      usable.filter((of) => !isLocal(of) && of.temporary),
      usable.filter((of) => isLocal(of) && !of.temporary),
      usable.filter((of) => isLocal(of) && of.temporary),
    ]) {
      if (group.length === 0) continue
      const found = group.find((of) => !of.tentative)
      return found && addressOf(found)
    }
    return undefined
  }

  const linkWith = (entries: readonly Entry[]): Link => ({
    ...bare,
    addresses: { ipv4: [], ipv6: entries.map(toLinkAddress) },
  })

  it('equals the choice of a simple model', () => {
    fc.assert(
      fc.property(fc.array(entry, { maxLength: 6 }), (entries) => {
        const address = preferredAddress(linkWith(entries), 'ipv6')
        expect(address && formatAddress(address)).toBe(model(entries))
      }),
      { numRuns: 1_000 },
    )
  })

  it('considers only addresses that match the expression', () => {
    fc.assert(
      fc.property(fc.array(entry, { maxLength: 6 }), fc.constantFrom(...KINDS), (entries, kind) => {
        const fits = (address: string): boolean => address.startsWith(kind) && !/^::$/.test(address)
        const address = preferredAddress(linkWith(entries), 'ipv6', fits)
        expect(address && formatAddress(address)).toBe(model(entries.filter((of) => fits(addressOf(of)))))
      }),
    )
  })

  const ipv4s = fc.subarray(['192.0.2.1', '192.0.2.2'])
  const anyLink = fc.record({
    ipv4s,
    entries: fc.uniqueArray(entry, { maxLength: 4, selector: addressOf }),
    mtu: fc.constantFrom(0, 1500),
  })
  const someRoutes = fc.array(fc.record({ device: fc.constantFrom('l0', 'l1'), metric: fc.nat(3) }), { maxLength: 3 })

  it('is made on the interface of each default route, or fails', async () => {
    const first = (routes: readonly { device: string; metric: number }[]): string | undefined =>
      routes.toSorted((a, b) => a.metric - b.metric)[0]?.device
    let chosen = 0
    await fc.assert(
      fc.asyncProperty(
        fc.tuple(anyLink, anyLink),
        someRoutes,
        someRoutes,
        fc.constantFrom(IPV6, DUAL),
        async (links, by4, by6, families) => {
          const listed = links.map((of, index) =>
            withAddresses(
              index + 1,
              `l${index}`,
              [...of.ipv4s.map((each) => at(each)), ...of.entries.map(toLinkAddress)],
              of.mtu,
            ),
          )
          const names = [...(families === DUAL ? [first(by4)] : []), first(by6)]
          const chosenLink = links[names[0] === 'l0' ? 0 : 1]
          const wanted = [...(families === DUAL ? [chosenLink.ipv4s[0]] : []), model(chosenLink.entries)]
          const isFound =
            new Set(names).size === 1 && names[0] !== undefined && !wanted.includes(undefined) && chosenLink.mtu > 0
          const choosing = chooseOf(families, {}, hostOfBoth(by4, by6, listed))
          if (!isFound) return void (await expect(choosing).rejects.toMatchObject({ code: 'INTERFACE' }))
          chosen++
          expect(await choosing).toMatchObject({ name: names[0], address: wanted.join(' ') })
        },
      ),
      { numRuns: 1_000 },
    )
    expect(chosen).toBeGreaterThan(20)
  })
})

describe('currentExternal', () => {
  const address = { ipv4: parseIpv4('192.0.2.7')! }
  const named = { address: { ipv4: false }, publicIp: { ipv4: false } }
  const before = { name: 'eth0', mtu: 1500, address, publicIp: address, named }
  const eth0 = (mtu: number, ...addresses: string[]) => hostWith([both(2, 'eth0', addresses, mtu)], [])
  const nine = { ipv4: parseIpv4('192.0.2.9')! }

  it.each([
    ['its MTU', before, eth0(1400, '192.0.2.7'), { mtu: 1400 }],
    ['its new address', before, eth0(1500, '192.0.2.9'), { address: nine, publicIp: nine }],
    ['no address beside the one in use', before, eth0(1500, '192.0.2.9', '192.0.2.7'), {}],
    ['no address when it has none', before, eth0(1500), {}],
    ['nothing when it is gone', before, new ModelKernel(), {}],
    ['no MTU of 0', before, eth0(0, '192.0.2.7'), {}],
    [
      'no address in place of a named one',
      { ...before, named: { ...named, address: { ipv4: true } } },
      eth0(1500, '192.0.2.9'),
      {},
    ],
    [
      'the address, not the public IP that was named',
      { ...before, named: { ...named, publicIp: { ipv4: true } } },
      eth0(1500, '192.0.2.9'),
      { address: nine },
    ],
    [
      'the public IP that was named, when it appears',
      { ...before, publicIp: nine, named: { ...named, publicIp: { ipv4: true } } },
      eth0(1500, '192.0.2.7', '192.0.2.9'),
      { address: nine },
    ],
    [
      'no named public IP in place of an address that an expression chose',
      { ...before, pattern: '7$', publicIp: nine, named: { ...named, publicIp: { ipv4: true } } },
      eth0(1500, '192.0.2.7', '192.0.2.9'),
      {},
    ],
    [
      'no named public IP in place of a named address',
      { ...before, publicIp: nine, named: { address: { ipv4: true }, publicIp: { ipv4: true } } },
      eth0(1500, '192.0.2.7', '192.0.2.9'),
      {},
    ],
    [
      'the address that matches the expression it was chosen by',
      { ...before, pattern: '^192' },
      eth0(1500, '198.51.100.1', '192.0.2.9'),
      { address: nine, publicIp: nine },
    ],
    ['no other address than a matching one', { ...before, pattern: '^192' }, eth0(1500, '198.51.100.1'), {}],
  ])('follows %s', async (_title, was, kernel, change) => {
    const { index: _index, ...is } = await currentExternal(kernel, was)
    expect(is).toEqual({ ...was, ...change })
  })
})

describe('sendingFromPublicIp', () => {
  const own = { ipv4: parseIpv4('192.0.2.7')!, ipv6: parseIpv6('2001:db8::7')! }
  const publicIp = { ipv4: parseIpv4('203.0.113.7')!, ipv6: parseIpv6('2001:db8:9::7')! }
  const before = { name: 'eth0', mtu: 1500, address: own, publicIp, named: { address: {}, publicIp: {} } }
  const on = (...addresses: string[]): ModelKernel =>
    hostWith([both(1, 'lo', ['127.0.0.1', ...addresses]), both(2, 'eth0', ['192.0.2.7', '2001:db8::7'])], [])

  it.each([
    ['no interface, as behind NAT', [], own],
    ['another interface, in IPv4', ['203.0.113.7'], { ...own, ipv4: publicIp.ipv4 }],
    ['another interface, in IPv6', ['2001:db8:9::7'], { ...own, ipv6: publicIp.ipv6 }],
    ['another interface', ['203.0.113.7', '2001:db8:9::7'], publicIp],
  ])('has the address for datagrams if the public IP is on %s', async (_where, addresses, address) => {
    expect(await sendingFromPublicIp(on(...addresses), before)).toEqual({ ...before, address })
  })

  it('changes when the host gets the public IP, but not when the host loses it', async () => {
    const behindNat = await sendingFromPublicIp(on(), before)
    const holding = await sendingFromPublicIp(on('203.0.113.7'), before)
    expect(publicIpCame(behindNat, holding, 'ipv4')).toBe('this host has the public IP 203.0.113.7 now')
    expect(publicIpCame(behindNat, holding, 'ipv6')).toBeUndefined()
    expect(publicIpCame(holding, behindNat, 'ipv4')).toBeUndefined()
    expect(publicIpCame(holding, holding, 'ipv4')).toBeUndefined()
    expect(publicIpCame(undefined, undefined, 'ipv4')).toBeUndefined()
  })

  it('keeps the addresses if they are the public IP, without a query to the kernel', async () => {
    const kernel = on()
    const same = { ...before, publicIp: own }
    expect(await sendingFromPublicIp(kernel, same)).toBe(same)
    expect(kernel.reads).toEqual([])
  })
})

describe('currentExternal with both families', () => {
  const addresses = (...texts: string[]): Addresses => ({
    ipv4: texts.map((each) => parseIpv4(each)).find((address) => address !== undefined),
    ipv6: texts.map((each) => parseIpv6(each)).find((address) => address !== undefined),
  })
  const unnamed = { ipv4: false, ipv6: false }
  const of = (...texts: string[]): ExternalInterface => ({
    name: 'eth0',
    mtu: 1500,
    address: addresses(...texts),
    publicIp: addresses(...texts),
    named: { address: unnamed, publicIp: unnamed },
  })
  const eth0 = (...texts: string[]) => hostWith([both(2, 'eth0', texts)], [])
  const before = of('192.0.2.7', 'fd00::7')
  const now = (...texts: string[]): Partial<ExternalInterface> => {
    const address = addresses(...texts)
    return { address, publicIp: address }
  }

  it.each([
    ['fd00::7', {}],
    ['fd00::7 tentative', {}],
    ['fd00::7 duplicate tentative', { ipv6: 'another host has the address fd00::7 of eth0 too' }],
    ['fe80::7', { ipv6: 'eth0 has lost its address fd00::7' }],
  ])('says of an interface with %s what is gone of IPv6', async (there, gone) => {
    expect((await seeExternal(eth0('192.0.2.7', there), before)).gone).toEqual(gone)
  })

  it.each<[what: string, was: ExternalInterface, kernel: ModelKernel, change: Partial<ExternalInterface>]>([
    ['the IPv6 address alone', before, eth0('192.0.2.7', 'fd00::8'), now('192.0.2.7', 'fd00::8')],
    ['the IPv4 address alone', before, eth0('192.0.2.8', 'fd00::7'), now('192.0.2.8', 'fd00::7')],
    ['both addresses', before, eth0('192.0.2.8', 'fd00::8'), now('192.0.2.8', 'fd00::8')],
    ['no address beside the one in use', before, eth0('192.0.2.7', 'fd00::1', 'fd00::7'), {}],
    ['nothing when only its lifetimes are others', before, eth0('192.0.2.7', 'fd00::7 dynamic'), {}],
    [
      'a preferred address for the deprecated one',
      before,
      eth0('192.0.2.7', 'fd00::7 deprecated', 'fd00::8'),
      now('192.0.2.7', 'fd00::8'),
    ],
    ['nothing while the address is tentative again', before, eth0('192.0.2.7', 'fd00::7 tentative', 'fd00::8'), {}],
    [
      'another address where another host has the one in use',
      before,
      eth0('192.0.2.7', 'fd00::7 duplicate tentative', 'fd00::8'),
      now('192.0.2.7', 'fd00::8'),
    ],
    ['none where there is no other', before, eth0('192.0.2.7', 'fd00::7 duplicate tentative'), {}],
    ['no link-local address for a deprecated one', before, eth0('192.0.2.7', 'fd00::7 deprecated', 'fe80::8'), {}],
    ['a better one for a link-local one', of('fe80::7'), eth0('fe80::7', 'fd00::8'), now('fd00::8')],
    [
      'a better one for a link-local one of IPv4',
      of('169.254.1.2'),
      eth0('169.254.1.2', '192.0.2.8'),
      now('192.0.2.8'),
    ],
    ['a lasting one for a temporary one', of('fd00::7'), eth0('fd00::7 temporary', 'fd00::8'), now('fd00::8')],
    ['no tentative address', before, eth0('192.0.2.7', 'fd00::8 tentative'), {}],
    ['no deprecated address', before, eth0('192.0.2.7', 'fd00::8 deprecated'), {}],
    ['no link-local address while the others are away', before, eth0('192.0.2.7', 'fe80::7'), {}],
    [
      'no temporary address while a lasting one is tentative',
      before,
      eth0('192.0.2.7', 'fd00::8 temporary', 'fd00::9 tentative'),
      {},
    ],
    ['a link-local one for one', of('fe80::7'), eth0('fe80::8'), now('fe80::8')],
    ['no IPv4 address where the network has none', of('fd00::7'), eth0('192.0.2.9', 'fd00::7'), {}],
    ['no IPv6 address where the network has none', of('192.0.2.7'), eth0('192.0.2.7', 'fd00::7'), {}],
    ['no address of a family that it has none of', before, eth0('192.0.2.8'), now('192.0.2.8', 'fd00::7')],
    [
      'no address in place of a named one, of that family',
      { ...before, named: { address: { ipv4: false, ipv6: true }, publicIp: unnamed } },
      eth0('192.0.2.8', 'fd00::8'),
      now('192.0.2.8', 'fd00::7'),
    ],
    [
      'the address, not the public IPv6 that was named',
      {
        ...before,
        publicIp: addresses('192.0.2.7', '2001:db8::1'),
        named: { address: unnamed, publicIp: { ipv4: false, ipv6: true } },
      },
      eth0('192.0.2.8', 'fd00::8'),
      { address: addresses('192.0.2.8', 'fd00::8'), publicIp: addresses('192.0.2.8', '2001:db8::1') },
    ],
    [
      'the public IPv6 that was named, as the address of a family that had none',
      {
        ...of('192.0.2.7'),
        families: FAMILIES,
        publicIp: addresses('192.0.2.7', 'fd00::9'),
        named: { address: unnamed, publicIp: { ipv4: false, ipv6: true } },
      },
      eth0('192.0.2.7', 'fd00::8', 'fd00::9'),
      { address: addresses('192.0.2.7', 'fd00::9') },
    ],
    [
      'no other address than the public IPv6 that was named, even if this address is deprecated',
      { ...before, named: { address: unnamed, publicIp: { ipv4: false, ipv6: true } } },
      eth0('192.0.2.7', 'fd00::8', 'fd00::7 deprecated'),
      {},
    ],
    [
      'the addresses that match the expression they were chosen by',
      { ...before, pattern: '::8|192' },
      eth0('192.0.2.8', 'fd00::9', 'fd00::8'),
      now('192.0.2.8', 'fd00::8'),
    ],
  ])('follows %s', async (_what, was, kernel, change) => {
    const { index: _index, ...is } = await currentExternal(kernel, was)
    expect(is).toEqual({ ...was, ...change })
  })

  it.each([
    [before, before, undefined],
    [before, of('192.0.2.7', 'fd00::8'), 'the address of eth0 changed from fd00::7 to fd00::8'],
    [before, of('192.0.2.8', 'fd00::8'), 'the address of eth0 changed from 192.0.2.7 to 192.0.2.8'],
    [of('192.0.2.7'), of('192.0.2.8'), 'the address of eth0 changed from 192.0.2.7 to 192.0.2.8'],
    [of('fd00::7'), of('fd00::8'), 'the address of eth0 changed from fd00::7 to fd00::8'],
    [before, { ...before, mtu: 1400 }, 'the MTU of eth0 changed from 1500 to 1400'],
    [before, { ...before, publicIp: addresses('192.0.2.9', 'fd00::9') }, undefined],
  ])('names the difference: case %#', (was, is, change) => {
    const changes = FAMILIES.flatMap((family) => addressChange(was, is, family) ?? [])
    expect(changes[0] ?? mtuChange(was, is)).toBe(change)
  })
})

/** A host with eth0, which has these addresses, and its default route. */
const only = (...addresses: TestAddress[]): ModelKernel =>
  hostWith([withAddresses(2, 'eth0', addresses)], [{ gateway: '192.0.2.1', device: 'eth0', metric: 100 }])

describe('one of several addresses of an interface', () => {
  const VIP = '192.0.2.100'
  const takes = async (kernel: ModelKernel, before: readonly string[] = [], asked: Asked = {}): Promise<string> => {
    const known = before.map((each) => parseIpv4(each)!)
    const silent = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
    const wishes = { ifaces: [], patterns: [], canReach: '', publicIp: { ipv4: '', ipv6: '' }, ...asked }
    const earlier = { addresses: async () => known, isOwn: () => false }
    const found = await chooseExternalInterface(kernel, wishes as InterfaceWishes, ['ipv4'], silent, undefined, earlier)
    return addressText(found.address)
  }

  it.each<[what: string, kernel: ModelKernel, before: readonly string[], asked: Asked, address: string]>([
    ['one with a lifetime before a virtual IP', only(at('192.0.2.7 dynamic'), at(VIP, 32)), [], {}, '192.0.2.7'],
    ['the same where the virtual IP is first', only(at(VIP, 32), at('192.0.2.7 dynamic')), [], {}, '192.0.2.7'],
    [
      'the same of an interface that is named',
      only(at(VIP, 32), at('192.0.2.7 dynamic')),
      [],
      { ifaces: ['eth0'] },
      '192.0.2.7',
    ],
    ['the same by an expression', only(at(VIP, 32), at('192.0.2.7 dynamic')), [], { patterns: ['^192'] }, '192.0.2.7'],
    ['the one that it had before', only(at('192.0.2.7'), at('192.0.2.8')), ['192.0.2.8'], {}, '192.0.2.8'],
    ['the one that it had before, though it is bare', only(at('192.0.2.7'), at(VIP, 32)), [VIP], {}, VIP],
    ['the most certain of those that it had', only(at('192.0.2.7'), at(VIP)), [VIP, '192.0.2.7'], {}, VIP],
    ['none that it had and that is gone', only(at('192.0.2.7'), at(VIP, 32)), ['192.0.2.9'], {}, '192.0.2.7'],
    [
      'none that it had where the operator names one',
      only(at('192.0.2.7'), at(VIP, 32)),
      ['192.0.2.7'],
      { ifaces: [VIP] },
      VIP,
    ],
    [
      'none that it had which does not match',
      only(at('192.0.2.7'), at(VIP, 32)),
      ['192.0.2.7'],
      { patterns: ['100$'] },
      VIP,
    ],
    ['the one on the network of the gateway', only(at('198.51.100.9'), at('192.0.2.7')), [], {}, '192.0.2.7'],
    ['no link-local one that it had', only(at('169.254.9.9', 16), at('192.0.2.7')), ['169.254.9.9'], {}, '192.0.2.7'],
  ])('is chosen: %s', async (_what, kernel, before, asked, address) => {
    expect(await takes(kernel, before, asked)).toBe(address)
  })

  it('is the source address of the default route', async () => {
    const eth0 = both(2, 'eth0', ['192.0.2.7', '192.0.2.8'])
    const route = { gateway: '192.0.2.1', device: 'eth0', metric: 100 }
    const other = { ...route, metric: 200, source: parseIpv4('192.0.2.7') }
    expect(await takes(hostWith([eth0], [other, { ...route, source: parseIpv4('192.0.2.8') }]))).toBe('192.0.2.8')
  })
})

describe("weft's own devices", () => {
  const links = [link(2, 'flannel.1', ['10.5.1.0']), link(3, 'cni0', ['10.5.1.1']), link(4, 'eth0', ['192.0.2.7'])]
  const earlier = { addresses: async () => [], isOwn: ({ name }: Link) => name !== 'eth0' }
  const silent = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const wishes = { ifaces: [], patterns: [], canReach: '', publicIp: { ipv4: '', ipv6: '' } }
  const find = async (asked: Partial<InterfaceWishes>, kernel: ModelKernel): Promise<string> =>
    (await chooseExternalInterface(kernel, { ...wishes, ...asked }, ['ipv4'], silent, undefined, earlier)).name

  it('of a device of weft is ignored by a default route, an expression and a target, but used if it is named', async () => {
    const kernel = host([{ device: 'flannel.1' }, { device: 'eth0', metric: 100 }], links)
    expect(await find({}, kernel)).toBe('eth0')
    expect(await find({ patterns: ['1'] }, kernel)).toBe('eth0')
    expect(await find({ patterns: ['^10', 'eth0'] }, kernel)).toBe('eth0')
    await expect(find({ canReach: '10.5.2.1' }, kernel)).rejects.toMatchObject({ code: 'INTERFACE' })
    expect(await find({ ifaces: ['cni0'] }, kernel)).toBe('cni0')
  })
})

describe('an address that disappears and returns', () => {
  const [own, vip] = [parseIpv4('192.0.2.7')!, parseIpv4('192.0.2.100')!]
  const named = { address: {}, publicIp: {} }
  const kernelWith = (addresses: readonly string[]): ModelKernel => {
    const parts = addresses.map((each) => each.split('/') as [string, string])
    return hostWith(
      [
        withAddresses(
          2,
          'eth0',
          parts.map(([part, length]) => at(part, Number(length))),
        ),
      ],
      [],
    )
  }
  let now: ExternalInterface
  const look = async (...addresses: string[]): Promise<string> => {
    now = (await seeExternal(kernelWith(addresses), now)).now
    return addressText(now.address)
  }
  beforeEach(() => {
    vi.useFakeTimers({ toFake: ['performance'] })
    const address = { ipv4: own }
    now = {
      name: 'eth0',
      index: 2,
      mtu: 1500,
      address,
      publicIp: address,
      named,
      families: ['ipv4'],
      hold: new AddressHold(address),
    }
  })
  afterEach(() => vi.useRealTimers())

  it('is kept for five seconds, even if there are others, and then given up', async () => {
    expect(await look('192.0.2.100/32')).toBe(formatIpv4(own))
    vi.advanceTimersByTime(4_900)
    expect(await look('192.0.2.100/32')).toBe(formatIpv4(own))
    vi.advanceTimersByTime(200)
    expect(await look('192.0.2.100/32')).toBe(formatIpv4(vip))
  })

  it('is kept if it returns in time, and the time starts again', async () => {
    for (let times = 0; times < 3; times++) {
      expect(await look('192.0.2.100/32')).toBe(formatIpv4(own))
      vi.advanceTimersByTime(4_000)
      expect(await look('192.0.2.7/24', '192.0.2.100/32')).toBe(formatIpv4(own))
    }
  })

  it('is used again when it returns, unless it is a /32 or /128 then', async () => {
    const leave = async (): Promise<void> => {
      await look('192.0.2.8/24')
      vi.advanceTimersByTime(5_000)
      expect(await look('192.0.2.8/24')).toBe('192.0.2.8')
    }
    await leave()
    expect(await look('192.0.2.8/24', '192.0.2.7/32')).toBe('192.0.2.8')
    expect(await look('192.0.2.8/24', '192.0.2.7/24')).toBe('192.0.2.7')
    await leave()
    expect(await look('192.0.2.7/24')).toBe('192.0.2.7')
  })

  it('is used again when it returns as a /32 if it is the named public IP', async () => {
    now = { ...now, named: { address: {}, publicIp: { ipv4: true } } }
    for (let times = 0; times < 2; times++) {
      expect(await look('192.0.2.8/24')).toBe('192.0.2.7')
      vi.advanceTimersByTime(4_900)
      expect(await look('192.0.2.8/24')).toBe('192.0.2.7')
      expect(await look('192.0.2.8/24', '192.0.2.7/32')).toBe('192.0.2.7')
    }
    await look('192.0.2.8/24')
    vi.advanceTimersByTime(5_000)
    expect(await look('192.0.2.8/24')).toBe('192.0.2.8')
    expect(await look('192.0.2.8/24', '192.0.2.7/32')).toBe('192.0.2.7')
    expect(addressText(now.publicIp)).toBe('192.0.2.7')
  })

  it('of a family that was missing is used, unless it is link-local', async () => {
    now = { ...now, families: ['ipv4', 'ipv6'] }
    const six = async (...texts: string[]): Promise<string | undefined> => {
      const seen = await seeExternal(hostWith([both(2, 'eth0', texts)], []), now)
      return seen.gone.ipv6 ?? formatAddress(seen.now.address.ipv6!)
    }
    expect(await six('192.0.2.7')).toBe('eth0 has no IPv6 address')
    expect(await six('192.0.2.7', 'fe80::1')).toBe('eth0 has no IPv6 address')
    expect(await six('192.0.2.7', 'fd00::9')).toBe('fd00::9')
  })

  it('is followed when the interface is renamed', async () => {
    const { now: is, gone } = await seeExternal(hostWith([both(2, 'lan0', ['192.0.2.7'])], []), now)
    expect([is.name, is.index, addressText(is.address), gone]).toEqual(['lan0', 2, '192.0.2.7', {}])
  })

  it('is found again from a file, also after a rename', async () => {
    const written = readExternalText(JSON.parse(JSON.stringify(externalText(now))))!
    const unnamed = { ipv4: false, ipv6: false }
    const is = { ...now, named: { address: unnamed, publicIp: unnamed }, hold: expect.any(AddressHold) as AddressHold }
    expect(written).toMatchObject({ ...is, address: { ipv4: own }, publicIp: { ipv4: own } })
    expect(written.hold?.home('ipv4')).toBe(own)
    expect(await resumeExternal(kernelWith(['192.0.2.7/24']), { ...written, name: 'lan0' })).toMatchObject({
      name: 'eth0',
      address: { ipv4: own },
    })
    expect(await resumeExternal(kernelWith(['192.0.2.100/32']), written)).toBeUndefined()
    for (const junk of [null, 1, 'x', [], {}, { name: 'eth0' }, { ...externalText(now), families: ['ipx'] }])
      expect(readExternalText(junk)).toBeUndefined()
    // The kernel refuses these names.
    for (const name of ['', 'a b', '..', 'a/b', 'eth0\n', 'x'.repeat(16)])
      expect(readExternalText({ ...externalText(now), name })).toBeUndefined()
  })
})
