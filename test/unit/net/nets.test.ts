// nets.test.ts - addresses and networks: upstream's vectors (pkg/ip) and properties.

import fc from 'fast-check'
import { Address6 } from 'ip-address'
import { describe, expect, it } from 'vitest'
import {
  addressKey,
  addressText,
  compareAddresses,
  formatAddress,
  formatNet,
  netAround,
  listed,
  netContains,
  netKey,
  netSize,
  netsOf,
  netsOverlap,
  netsText,
  netText,
  parseAddress,
  parseNet,
  primary,
} from '../../../src/net/address.ts'
import {
  formatIpv4,
  formatIpv4Net,
  ipv4Net,
  ipv4NetContains,
  ipv4NetsOverlap,
  isOneHost,
  parseIpv4,
  parseIpv4Net,
} from '../../../src/net/ipv4.ts'
import {
  formatIpv6,
  formatIpv6Net,
  ipv6Net,
  ipv6NetContains,
  ipv6NetsOverlap,
  parseIpv6,
  parseIpv6Net,
} from '../../../src/net/ipv6.ts'

const address = fc.integer({ min: 0, max: 0xffffffff })
const address6 = fc.bigInt({ min: 0n, max: (1n << 128n) - 1n })
/** Numbers with few bits set, so that there are runs of zeros and overlapping networks. */
const sparse6 = fc
  .array(fc.integer({ min: 0, max: 127 }), { maxLength: 4 })
  .map((bits) => bits.reduce((sum, bit) => sum | (1n << BigInt(bit)), 0n))
const net6 = fc.tuple(sparse6, fc.integer({ min: 0, max: 128 })).map(([ip, length]) => ipv6Net(ip, length))
/** The number of addresses in a network of this prefix length. */
const sizeOf = (prefixLength: number): number => 2 ** (32 - prefixLength)
const net = fc.tuple(address, fc.integer({ min: 0, max: 32 })).map(([ip, length]) => ipv4Net(ip, length))

describe('IPv4', () => {
  it.each(['', '1.2.3', '1.2.3.4.5', '256.1.1.1', '010.1.2.3', '1.2.3.4 ', '1.2.3.-4', '2001:db8::1', '0x1.2.3.4'])(
    'refuses %j',
    (text) => {
      expect(parseIpv4(text)).toBeUndefined()
    },
  )

  it.each(['1.2.3.4', '1.2.3.4/33', '1.2.3.4/', '1.2.3.4/-1', '1.2.3.4/1a', '1.2.3.4/024', 'fc00::/7'])(
    'refuses the network %j',
    (text) => {
      expect(parseIpv4Net(text)).toBeUndefined()
    },
  )

  it('clears host bits, as Go does', () => {
    expect(parseIpv4Net('10.0.1.0/16')).toEqual({ address: parseIpv4('10.0.0.0'), prefixLength: 16 })
  })

  it('finds overlaps as flannel does', () => {
    const parse = (text: string) => parseIpv4Net(text)!
    expect(ipv4NetsOverlap(parse('1.2.3.0/24'), parse('1.2.3.0/24'))).toBe(true)
    expect(ipv4NetsOverlap(parse('1.2.3.0/24'), parse('1.2.0.0/16'))).toBe(true)
    expect(ipv4NetsOverlap(parse('1.2.3.0/24'), parse('1.2.4.0/24'))).toBe(false)
    expect(ipv4NetsOverlap(parse('1.2.3.0/24'), parse('7.2.4.0/22'))).toBe(false)
  })

  it('parses what it formats', () => {
    fc.assert(fc.property(address, (ip) => parseIpv4(formatIpv4(ip)) === ip))
    fc.assert(fc.property(net, (value) => void expect(parseIpv4Net(formatIpv4Net(value))).toEqual(value)))
  })

  it('contains exactly the addresses of its range', () => {
    fc.assert(
      fc.property(net, address, (value, ip) => {
        const inside = ip >= value.address && ip < value.address + sizeOf(value.prefixLength)
        expect(ipv4NetContains(value, ip)).toBe(inside)
      }),
    )
  })

  it('overlaps exactly if the ranges do', () => {
    fc.assert(
      fc.property(net, net, (a, b) => {
        const apart = a.address + sizeOf(a.prefixLength) <= b.address || b.address + sizeOf(b.prefixLength) <= a.address
        expect(ipv4NetsOverlap(a, b)).toBe(!apart)
      }),
    )
  })
})

describe('IPv6', () => {
  it.each(['', ':', '1.2.3.4', 'fc00::1/64', 'fe80::1%eth0', '20011::', '1::2::3', 'g::'])('refuses %j', (text) => {
    expect(parseIpv6(text)).toBeUndefined()
  })

  it('writes the canonical text (RFC 5952)', () => {
    expect(formatIpv6(parseIpv6('2001:0DB8:0:0:0:0:0:1')!)).toBe('2001:db8::1')
    expect(formatIpv6Net(parseIpv6Net('fc00:0:0:1::7/64')!)).toBe('fc00:0:0:1::/64')
  })

  it('parses what it formats', () => {
    fc.assert(fc.property(fc.oneof(address6, sparse6), (ip) => parseIpv6(formatIpv6(ip)) === ip))
    fc.assert(fc.property(net6, (value) => void expect(parseIpv6Net(formatIpv6Net(value))).toEqual(value)))
  })

  it('reads and writes as another program does', () => {
    const part = fc.oneof(
      fc.constantFrom('', ':', '::', '0', '00001', 'ffff', 'FFFF', 'g', '1.2.3.4', '01.2.3.4'),
      fc.integer({ min: 0, max: 0xffff }).map((group) => group.toString(16)),
    )
    const texts = fc.oneof(
      fc.ipV6(),
      fc.array(part, { maxLength: 10 }).map((parts) => parts.join(':')),
      fc.array(part, { maxLength: 9 }).map((parts) => parts.join('')),
    )
    const theirs = (text: string): bigint | undefined =>
      Address6.isValid(text) ? new Address6(text).bigInt() : undefined
    fc.assert(
      fc.property(texts, (text) => void expect(parseIpv6(text)).toBe(theirs(text))),
      { numRuns: 5000 },
    )
    fc.assert(
      fc.property(
        fc.oneof(address6, sparse6),
        (ip) => void expect(formatIpv6(ip)).toBe(Address6.fromBigInt(ip).correctForm()),
      ),
    )
  })

  it('contains exactly the addresses of its range, and overlaps exactly if the ranges do', () => {
    fc.assert(
      fc.property(net6, net6, sparse6, (a, b, ip) => {
        const [endOfA, endOfB] = [a.address + netSize(a), b.address + netSize(b)]
        expect(ipv6NetContains(a, ip)).toBe(ip >= a.address && ip < endOfA)
        expect(ipv6NetsOverlap(a, b)).toBe(!(endOfA <= b.address || endOfB <= a.address))
      }),
    )
  })

  it('contains its first and last address, but not the next', () => {
    const value = parseIpv6Net('fc00::/48')!
    expect(ipv6NetContains(value, parseIpv6('fc00:0:0:ffff:ffff:ffff:ffff:ffff')!)).toBe(true)
    expect(ipv6NetContains(value, parseIpv6('fc00:0:1::')!)).toBe(false)
  })
})

describe('addresses of both families', () => {
  const anyAddress = fc.oneof(address, address6, sparse6)
  const anyNet = fc.oneof(net, net6)

  it('are distinguished by their type, and parse what they format', () => {
    fc.assert(fc.property(anyAddress, (ip) => parseAddress(formatAddress(ip)) === ip))
    fc.assert(fc.property(anyNet, (value) => void expect(parseNet(formatNet(value))).toEqual(value)))
    for (const text of ['', 'x', '1.2.3', 'fe80::1%eth0', '10.5.1.0/24']) expect(parseAddress(text)).toBeUndefined()
    for (const text of ['', '1.2.3.4', '1.2.3.4/33', 'fc00::/129']) expect(parseNet(text)).toBeUndefined()
  })

  it('are never in a network of the other family', () => {
    fc.assert(
      fc.property(anyNet, anyAddress, (value, ip) => {
        if (typeof value.address !== typeof ip) expect(netContains(value, ip)).toBe(false)
        expect(netContains(netAround(ip, value.prefixLength), ip)).toBe(true)
      }),
    )
    fc.assert(
      fc.property(net, net6, (ipv4, ipv6) => !netsOverlap({ ipv4 }, { ipv6 }) && !netsOverlap({ ipv6 }, { ipv4 })),
    )
  })

  it('overlap if those of one family do', () => {
    fc.assert(
      fc.property(net, net, net6, net6, (a4, b4, a6, b6) => {
        const [four, six] = [ipv4NetsOverlap(a4, b4), ipv6NetsOverlap(a6, b6)]
        expect(netsOverlap({ ipv4: a4, ipv6: a6 }, { ipv4: b4, ipv6: b6 })).toBe(four || six)
        expect(netsOverlap({ ipv4: a4 }, { ipv4: b4, ipv6: b6 })).toBe(four)
        expect(netsOverlap({ ipv4: a4, ipv6: a6 }, { ipv6: b6 })).toBe(six)
      }),
    )
  })

  it('are sorted with IPv4 first', () => {
    fc.assert(
      fc.property(fc.array(anyAddress), (all) => {
        const sorted = all.toSorted(compareAddresses)
        const isFour = sorted.map((each) => typeof each === 'number')
        expect(isFour.lastIndexOf(true)).toBeLessThan(isFour.includes(false) ? isFour.indexOf(false) : sorted.length)
        const isAscending = sorted.every(
          (each, at) => at === 0 || isFour[at - 1] !== isFour[at] || sorted[at - 1]! <= each,
        )
        expect(isAscending).toBe(true)
      }),
    )
  })

  it('are formatted as IPv4 if there is one, and as 0.0.0.0 if there is none', () => {
    const [ipv4, ipv6] = [parseIpv4('10.5.1.2')!, parseIpv6('fc00::2')!]
    expect([{ ipv4, ipv6 }, { ipv4 }, { ipv6 }, {}].map(primary)).toEqual([ipv4, ipv4, ipv6, undefined])
    expect([{ ipv4, ipv6 }, { ipv6 }, {}].map(addressText)).toEqual(['10.5.1.2', 'fc00::2', '0.0.0.0'])
    const nets = [{ ipv4: parseIpv4Net('10.5.1.0/24') }, { ipv6: parseIpv6Net('fc00::/64') }, {}]
    expect(nets.map(netText)).toEqual(['10.5.1.0/24', 'fc00::/64', '0.0.0.0/0'])
  })
})

describe('at the limits', () => {
  it.each([
    ['10.5.1.255/24', '10.5.1.0/24'],
    ['10.5.1.7/32', '10.5.1.7/32'],
    ['10.5.1.7/0', '0.0.0.0/0'],
    ['10.5.1.7/1', '0.0.0.0/1'],
  ])('%s is the network %s', (text, expected) => expect(formatIpv4Net(parseIpv4Net(text)!)).toBe(expected))

  it.each(['10.5.1.024', '00.5.1.0', '10.5.1', '/24', '10.5.1.0 24', '10.5.1.0/1 ', '10.5.1.0//24', '10.5.1.0/033'])(
    'no IPv4 network: %j',
    (text) => expect(parseIpv4Net(text)).toBeUndefined(),
  )

  it.each([
    ['0.0.0.0', false],
    ['0.255.255.255', false],
    ['1.0.0.0', true],
    ['126.255.255.255', true],
    ['127.0.0.1', false],
    ['128.0.0.0', true],
    ['223.255.255.255', true],
    ['224.0.0.1', false],
    ['239.255.255.255', false],
    ['240.0.0.0', true],
    ['255.255.255.254', true],
    ['255.255.255.255', false],
  ])('%s can be the address of a host: %s', (text, expected) => expect(isOneHost(parseIpv4(text)!)).toBe(expected))

  it.each([
    ['fc00::1/128', 'fc00::1/128'],
    ['fc00::1/127', 'fc00::/127'],
    ['fc00::1/0', '::/0'],
    ['::/64', '::/64'],
  ])('%s is the network %s', (text, expected) => expect(formatIpv6Net(parseIpv6Net(text)!)).toBe(expected))

  it.each([
    'fc00::1',
    'fc00::/129',
    'fc00::/',
    'fc00::/a64',
    'fc00::/64a',
    'fc00::/0064',
    '/64',
    'fc00::1/ 64',
    'x/64',
  ])('is not an IPv6 network: %j', (text) => expect(parseIpv6Net(text)).toBeUndefined())

  it.each([
    [128, 1n],
    [64, 1n << 64n],
    [0, 1n << 128n],
  ])('an IPv6 network of /%i has %s addresses', (length, size) =>
    expect(netSize({ address: 0n, prefixLength: 0 }, length)).toBe(size),
  )

  it('are listed by family, formatted, and counted', () => {
    const [v4, v6] = [parseIpv4Net('10.5.0.0/16')!, parseIpv6Net('fd00::/48')!]
    const nets = { ipv4: v4, ipv6: v6 }
    expect([listed(nets), listed({ ipv6: v6 }), listed({})]).toEqual([[v4, v6], [v6], []])
    expect([netsOf([v6, v4, v4]), netsOf([])]).toEqual([nets, {}])
    expect([nets, { ipv6: v6 }].map(netsText)).toEqual(['10.5.0.0/16 and fd00::/48', 'fd00::/48'])
    expect([netSize(v4), netSize(v4, 24), netSize(v6), netSize(v6, 64)]).toEqual([65_536n, 256n, 1n << 80n, 1n << 64n])
  })
})

it.each([
  ['10.5.1.7', 24, '10.5.1.0/24'],
  ['10.5.1.7', 0, '0.0.0.0/0'],
  ['10.5.1.7', 32, '10.5.1.7/32'],
  ['10.5.1.7', 64, '10.5.1.7/32'],
  ['fc00::7', 64, 'fc00::/64'],
  ['fc00::7', 24, 'fc00::/24'],
])('around %s with %i bits give the network %s', (text, bits, expected) => {
  expect(formatNet(netAround(parseAddress(text)!, bits))).toBe(expected)
})

it.each([
  [1, 2, -1],
  [2, 1, 1],
  [2, 2, 0],
  [1n, 2n, -1],
  [2n, 1n, 1],
  [2n, 2n, 0],
  [9, 1n, -1],
  [1n, 9, 1],
])('sorts %d and %d: %d', (a, b, expected) => {
  expect(compareAddresses(a, b)).toBe(expected)
})

it('gives each address and each network a key of its own, which is a number or a text', () => {
  const addresses = [0, 0n, 1, 1n, 16, 16n, (0xfd88n << 112n) + 1n, (0xfd89n << 112n) + 1n]
  const nets = [parseNet('10.5.1.0/24'), parseNet('10.5.1.0/25'), parseNet('fd00::/64'), parseNet('fd00::/65')]
  const keys = [...addresses.map(addressKey), ...nets.map((each) => netKey(each!))]
  expect(new Set(keys).size).toBe(12)
  expect(keys.filter((key) => typeof key === 'bigint')).toEqual([])
})
