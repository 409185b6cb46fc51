// address.test.ts - the functions for values of both address families: families, keys, endpoints, and the special
// ranges of addresses. nets.test.ts tests how addresses and networks are parsed and formatted.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  byFamily,
  FAMILIES,
  FAMILY_NAMES,
  familiesOf,
  familyOf,
  familyOfText,
  formatEndpoint,
  formatNet,
  hostNet,
  isLinkLocal,
  isOneHost,
  isPartOf,
  isPartOfEither,
  netKey,
  netsInclude,
  netsOf,
  onlyOf,
  parseAddress,
  parseNet,
  type Nets,
} from '../../../src/net/address.ts'
import { ipv4Net } from '../../../src/net/ipv4.ts'
import { ipv6Net } from '../../../src/net/ipv6.ts'

const address = (text: string) => parseAddress(text)!
const net = (text: string) => parseNet(text)!
/** Returns the networks of a text such as `10.5.0.0/16 fd00::/48`; the empty text has no networks. */
const nets = (text: string): Nets => netsOf(text.split(' ').filter(Boolean).map(net))

describe('the families of a pair of values', () => {
  it('are the families with a value, first IPv4, even if the value is zero or empty', () => {
    const pairs = [{}, { ipv4: 'a' }, { ipv6: 'b' }, { ipv6: 'b', ipv4: 'a' }, { ipv4: 0, ipv6: '' }]
    expect(pairs.map(familiesOf)).toEqual([[], ['ipv4'], ['ipv6'], ['ipv4', 'ipv6'], ['ipv4', 'ipv6']])
    expect(familiesOf({ ipv4: undefined, ipv6: 'b' })).toEqual(['ipv6'])
  })

  it('can be limited to some families', () => {
    const pair = { ipv4: 'a', ipv6: 'b' }
    expect(onlyOf(['ipv4', 'ipv6'], pair)).toEqual(pair)
    expect(onlyOf(['ipv4'], pair)).toEqual({ ipv4: 'a' })
    expect(onlyOf(['ipv6'], pair)).toEqual({ ipv6: 'b' })
    expect(onlyOf([], pair)).toEqual({})
    expect(onlyOf(['ipv4', 'ipv6'], { ipv6: 'b' })).toEqual({ ipv6: 'b' })
  })

  it('have the names that people know', () => {
    expect(FAMILIES.map((family) => FAMILY_NAMES[family])).toEqual(['IPv4', 'IPv6'])
  })
})

it.each([
  ['0.0.0.0', 'ipv4'],
  ['255.255.255.255', 'ipv4'],
  ['::', 'ipv6'],
  ['::192.0.2.1', 'ipv6'],
  ['fd00:5:1::1', 'ipv6'],
])('the address %s and the networks that contain it are of the family %s', (text, family) => {
  expect(familyOfText(text)).toBe(family)
  expect(familyOf(address(text))).toBe(family)
  expect(familyOf(hostNet(address(text)))).toBe(family)
  expect(familyOf(net(`${text}/8`))).toBe(family)
})

it.each([
  ['192.0.2.1', 8472, '192.0.2.1:8472'],
  ['0.0.0.0', 1, '0.0.0.0:1'],
  ['fd00::1', 8472, '[fd00::1]:8472'],
  ['::', 65_535, '[::]:65535'],
])('the endpoint of %s and port %i is %s', (text, port, endpoint) => {
  expect(formatEndpoint(address(text), port)).toBe(endpoint)
})

it.each([
  ['10.5.1.0', '10.5.1.0/32'],
  ['0.0.0.0', '0.0.0.0/32'],
  ['fd00:5:1::', 'fd00:5:1::/128'],
  ['::1', '::1/128'],
])('the network of the address %s alone is %s', (text, alone) => {
  expect(formatNet(hostNet(address(text)))).toBe(alone)
})

it('takes the first address of each family from a list', () => {
  const [four, six] = [address('192.0.2.1'), address('fd00::1')]
  const [otherFour, otherSix] = [address('192.0.2.2'), address('fd00::2')]
  expect(byFamily([six, four, otherFour, otherSix])).toEqual({ ipv4: four, ipv6: six })
  expect(byFamily([otherFour, otherSix, six, four])).toEqual({ ipv4: otherFour, ipv6: otherSix })
  expect([byFamily([four]), byFamily([six]), byFamily([])]).toEqual([{ ipv4: four }, { ipv6: six }, {}])
  expect(byFamily([0n, 0])).toEqual({ ipv4: 0, ipv6: 0n })
})

it.each([
  ['10.5.1.0/24 fd00:5:1::/64', '10.5.1.0/24 fd00:5:1::/64', true],
  ['10.5.1.0/24 fd00:5:1::/64', '10.5.1.0/24', true],
  ['10.5.1.0/24 fd00:5:1::/64', 'fd00:5:1::/64', true],
  ['10.5.1.0/24 fd00:5:1::/64', '', true],
  ['10.5.1.0/24 fd00:5:1::/64', '10.5.1.0/24 fd00:5:2::/64', false],
  ['10.5.1.0/24 fd00:5:1::/64', '10.5.2.0/24 fd00:5:1::/64', false],
  // A part of a network is another network.
  ['10.5.1.0/24', '10.5.1.0/25', false],
  ['fd00:5:1::/64', 'fd00:5:1::/65', false],
  ['10.5.1.0/24', '10.5.1.0/24 fd00:5:1::/64', false],
  ['fd00:5:1::/64', '10.5.1.0/24 fd00:5:1::/64', false],
  ['', '10.5.1.0/24', false],
  ['', 'fd00:5:1::/64', false],
  ['', '', true],
])('the networks "%s" include each network of "%s": %s', (all, some, expected) => {
  expect(netsInclude(nets(all), nets(some))).toBe(expected)
})

it.each([
  ['::', false],
  ['::1', false],
  ['::2', true],
  // Programs print ::ffff and the lower addresses without dots, and the next address as ::0.1.0.0.
  ['::ffff', true],
  ['::0.1.0.0', false],
  ['::192.0.2.1', false],
  ['::255.255.255.255', false],
  ['::1:0:0', true],
  ['::fffe:ffff:ffff', true],
  ['::ffff:0.0.0.0', false],
  ['::ffff:192.0.2.1', false],
  ['::ffff:255.255.255.255', false],
  ['::1:0:0:0', true],
  ['64:ff9b::192.0.2.1', true],
  ['fd00:5:1::1', true],
  ['fe80::1', true],
  ['feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', true],
  ['ff00::', false],
  ['ff02::1', false],
  ['ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', false],
  ['10.5.1.2', true],
  ['0.0.0.0', false],
  ['0.0.0.2', false],
  ['127.0.0.1', false],
  ['224.0.0.1', false],
])('%s can be the address of a single host: %s', (text, expected) => {
  expect(isOneHost(address(text))).toBe(expected)
})

it.each([
  ['169.253.255.255', false],
  ['169.254.0.0', true],
  ['169.254.255.255', true],
  ['169.255.0.0', false],
  ['41.254.0.1', false],
  ['0.0.0.0', false],
  ['fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff', false],
  ['fe80::', true],
  ['febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff', true],
  ['fec0::', false],
  ['::169.254.0.1', false],
])('%s is a link-local address: %s', (text, expected) => {
  expect(isLinkLocal(address(text))).toBe(expected)
})

it.each<[string, string, boolean, boolean]>([
  ['10.5.1.0/24', '10.5.0.0/16', true, true],
  ['10.5.0.0/16', '10.5.0.0/16', true, true],
  ['10.5.0.0/16', '10.5.0.0/24', false, true],
  ['10.5.1.0/24', '10.5.2.0/24', false, false],
  ['10.6.0.0/24', '10.5.0.0/16', false, false],
  ['10.5.0.0/16', '0.0.0.0/0', true, true],
  ['fd00:5:0:1::/64', 'fd00:5::/48', true, true],
  ['fd00:5::/48', 'fd00:5::/64', false, true],
  ['10.5.0.0/24', '::/0', false, false],
  ['::/64', '0.0.0.0/0', false, false],
])('%s is a part of %s: %s; one is a part of the other: %s', (one, other, isPart, isEither) => {
  expect(isPartOf(net(one), net(other))).toBe(isPart)
  expect([isPartOfEither(net(one), net(other)), isPartOfEither(net(other), net(one))]).toEqual([isEither, isEither])
})

describe('the key of a network', () => {
  it.each([
    ['0.0.0.0/0', '::/0'],
    ['0.0.0.0/32', '::/32'],
    ['0.0.0.64/26', '0.0.0.0/27'],
    ['0.0.0.1/32', '0.0.0.0/0'],
    ['255.255.255.255/32', '255.255.255.254/32'],
    ['fd00::/64', 'fd00::/63'],
    ['::1/128', '::/128'],
  ])('of %s differs from the key of %s', (one, other) => {
    expect(netKey(net(one))).not.toBe(netKey(net(other)))
  })

  it('equals the key of another network only if the networks are equal', () => {
    // Few bits and few prefix lengths, so that random networks are often equal.
    const bits = fc.nat({ max: 3 })
    const four = fc.tuple(bits, fc.integer({ min: 25, max: 32 })).map(([at, length]) => ipv4Net(at << 5, length))
    const six = fc
      .tuple(bits, fc.integer({ min: 121, max: 128 }))
      .map(([at, length]) => ipv6Net(BigInt(at) << 5n, length))
    const any = fc.oneof(four, six)
    fc.assert(
      fc.property(any, any, (one, other) => (netKey(one) === netKey(other)) === (formatNet(one) === formatNet(other))),
      { numRuns: 300 },
    )
  })
})
