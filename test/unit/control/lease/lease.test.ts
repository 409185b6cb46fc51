// lease.test.ts - the keys and values of leases, byte for byte.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { decodeLease } from '../../../../src/control/lease/decode.ts'
import {
  describeSubnets,
  encodeLeaseValue,
  goJsonText,
  hasFamily,
  isOfOneNode,
  leaseKey,
  leasesEqual,
  parseLeaseKey,
  sideOf,
} from '../../../../src/control/lease/lease.ts'
import { ipv4Net, parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { ipv6Net, parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'

const net = (text: string) => parseIpv4Net(text)!

describe('lease key', () => {
  it('is the subnet with a dash instead of the slash', () => {
    expect(leaseKey({ ipv4: net('10.12.13.0/24') })).toBe('10.12.13.0-24')
    expect(leaseKey({ ipv6: parseIpv6Net('fd00:12:13::/56') })).toBe('0.0.0.0-0&fd00:12:13::-56')
    expect(leaseKey({ ipv4: net('10.12.13.0/24'), ipv6: parseIpv6Net('fd00:12:13::/56') })).toBe(
      '10.12.13.0-24&fd00:12:13::-56',
    )
  })

  it.each([
    '10',
    '10.12.13.0',
    '10.12.13-24',
    '10.12.13.300-24',
    '10.12.13.0-24hi',
    '&2001::-56',
    '10.12.13.0-24&:12:13:-56',
    '10.12.13.0-24&20011::-56',
    '10.12.13.0-24&2001-56',
    '10.12.13.0-24&2001::',
    '10.12.13.0-24&2001::-56hi',
    '10.12.13.0-32',
    '',
    'x',
  ])('refuses %j', (key) => {
    expect(parseLeaseKey(key)).toBeUndefined()
  })

  it('parses each key that it writes', () => {
    const v4 = fc
      .tuple(fc.integer({ min: 0, max: 0xffffffff }), fc.integer({ min: 1, max: 31 }))
      .map(([ip, length]) => ipv4Net(ip, length))
    const v6 = fc
      .tuple(fc.bigInt({ min: 0n, max: (1n << 128n) - 1n }), fc.integer({ min: 1, max: 127 }))
      .map(([ip, length]) => ipv6Net(ip, length))
    fc.assert(
      fc.property(fc.option(v4, { nil: undefined }), fc.option(v6, { nil: undefined }), (ipv4, ipv6) => {
        expect(parseLeaseKey(leaseKey({ ipv4, ipv6 }))).toEqual(ipv4 || ipv6 ? { ipv4, ipv6 } : undefined)
      }),
    )
  })
})

describe('lease value', () => {
  it("has flannel's bytes", () => {
    expect(encodeLeaseValue({ publicIp: { ipv4: parseIpv4('1.2.3.4')! }, backendType: '' })).toBe(
      '{"PublicIP":"1.2.3.4","PublicIPv6":null}',
    )
    expect(
      encodeLeaseValue({
        publicIp: { ipv4: parseIpv4('1.2.3.4')! },
        backendType: 'vxlan',
        backendData: { VNI: 1, VtepMAC: 'x' },
      }),
    ).toBe('{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"x"}}')
  })

  it('escapes what Go escapes', () => {
    const attrs = { publicIp: { ipv4: 1 }, backendType: 'extension', backendData: 'a<b>&"\u2028' }
    expect(encodeLeaseValue(attrs)).toContain(String.raw`"BackendData":"a\u003cb\u003e\u0026\"\u2028"`)
    expect(decodeLease('10.5.1.0-24', encodeLeaseValue(attrs)).attrs).toEqual(attrs)
  })
})

describe('at the limits', () => {
  it.each([
    ['10.5.1.0-31', '10.5.1.0-31'],
    ['0.0.0.0-0&fc00::-64', '0.0.0.0-0&fc00::-64'],
    ['10.5.1.0-0&fc00::-64', '0.0.0.0-0&fc00::-64'],
    ['10.5.1.0-24&fc00::-127', '10.5.1.0-24&fc00::-127'],
    ['10.5.1.0-24&fc00::-0', '10.5.1.0-24'],
    ['10.5.1.7-24&fc00::7-64', '10.5.1.0-24&fc00::-64'],
    ['old-10.5.1.0-24', '10.5.1.0-24'],
    ['7.10.5.1.0-24', '10.5.1.0-24'],
  ])('the key %s names %s', (key, expected) => {
    expect(leaseKey(parseLeaseKey(key)!)).toBe(expected)
  })

  it.each([
    '10.5.1.0-32',
    '10.5.1.0-24&fc00::-128',
    '10.5.1.0-',
    '10.5.1.0-24 ',
    '10.5.1.0-24&',
    '10.5.1.0-24&fc00::-',
    '10.5.1.0-24&FC00::-64',
    '10.5.1.0-24&g::-64',
    '256.5.1.0-24',
    '10.5.1.0-24&1::2::3-64',
    '10.5.1.0-24&-64',
    '0.0.0.0-0',
    '10.5.1.0-0',
    '0.0.0.0-0&::-0',
  ])('the key %j is refused', (key) => expect(parseLeaseKey(key)).toBeUndefined())

  it('writes both families and all data in the order of Go', () => {
    const attrs = {
      publicIp: { ipv4: parseIpv4('1.2.3.4')!, ipv6: parseIpv6('fc00::1')! },
      backendType: 'wireguard',
      backendData: { PublicKey: 'x' },
      backendV6Data: { PublicKey: 'y' },
    }
    expect(encodeLeaseValue(attrs)).toBe(
      '{"PublicIP":"1.2.3.4","PublicIPv6":"fc00::1","BackendType":"wireguard","BackendData":{"PublicKey":"x"},"BackendV6Data":{"PublicKey":"y"}}',
    )
    expect(encodeLeaseValue({ publicIp: { ipv6: parseIpv6('fc00::1')! }, backendType: '' })).toBe(
      '{"PublicIP":"0.0.0.0","PublicIPv6":"fc00::1"}',
    )
    expect(goJsonText('<>&\u2028\u2029')).toBe(String.raw`"\u003c\u003e\u0026\u2028\u2029"`)
  })

  it('are equal only if the key and every published value are equal', () => {
    const attrs = { publicIp: { ipv4: 1 }, backendType: 'vxlan', backendData: { VNI: 1 } }
    const lease = { key: '10.5.1.0-24', subnet: { ipv4: net('10.5.1.0/24') }, attrs }
    expect(leasesEqual(lease, { ...lease })).toBe(true)
    expect(leasesEqual(lease, { ...lease, attrs: { ...attrs, backendData: { VNI: 1 } }, revision: 7n })).toBe(true)
    const others = [
      { publicIp: { ipv4: 2 } },
      { publicIp: { ipv4: 1, ipv6: 1n } },
      { backendType: 'udp' },
      { backendData: { VNI: 2 } },
    ]
    for (const part of [...others, { backendData: undefined }, { backendV6Data: 1 }]) {
      const other = { ...lease, attrs: { ...attrs, ...part } }
      expect([leasesEqual(lease, other), leasesEqual(other, lease)]).toEqual([false, false])
    }
    expect(leasesEqual(lease, { ...lease, key: '10.5.2.0-24' })).toBe(false)
  })

  it("are described in flannel's words", () => {
    const [ipv4, ipv6] = [net('10.5.1.0/24'), parseIpv6Net('fc00::/64')!]
    expect(describeSubnets({ ipv4 })).toBe('ip: 10.5.1.0/24 ipv6: ::/0')
    expect(describeSubnets({ ipv6 })).toBe('ip: 0.0.0.0/0 ipv6: fc00::/64')
    expect(describeSubnets({ ipv4, ipv6 })).toBe('ip: 10.5.1.0/24 ipv6: fc00::/64')
  })
})

describe('a lease', () => {
  const subnet = { ipv4: net('10.5.1.0/24') }
  const attrs = (publicIp: object) => ({ publicIp, backendType: '' })

  it.each([
    [subnet, { ipv4: 7 }, true],
    [{ ...subnet, ipv6: parseIpv6Net('fc00::/64') }, { ipv4: 7, ipv6: 1n }, true],
    [subnet, { ipv6: 1n }, false],
    [subnet, {}, false],
    [{ ipv6: parseIpv6Net('fc00::/64') }, { ipv4: 7 }, false],
    [{}, {}, false],
  ])('with subnet %o and address %o has IPv4: %s', (own, publicIp, expected) => {
    expect(hasFamily({ key: 'k', subnet: own, attrs: attrs(publicIp) }, 'ipv4')).toBe(expected)
  })
})

it('has one side per family, with all that a backend needs of that family', () => {
  const subnet = { ipv4: net('10.5.1.0/24'), ipv6: parseIpv6Net('fd00:5:1::/64')! }
  const attrs = { publicIp: { ipv4: 7, ipv6: 9n }, backendType: 'vxlan', backendData: 'four', backendV6Data: 'six' }
  const lease = { key: 'k', subnet, attrs }
  expect(sideOf(lease, 'ipv4')).toEqual({ subnet: subnet.ipv4, host: 7, data: 'four' })
  expect(sideOf(lease, 'ipv6')).toEqual({ subnet: subnet.ipv6, host: 9n, data: 'six' })
})

describe('isOfOneNode', () => {
  const attrs = (ipv4?: number, ipv6?: bigint) => ({ publicIp: { ipv4, ipv6 } })
  it.each([
    ['IPv4', attrs(1), attrs(1), true],
    ['IPv4, switched to both', attrs(1), attrs(1, 9n), true],
    ['both, and another IPv6 now', attrs(1, 8n), attrs(1, 9n), true],
    ['both, switched to IPv6', attrs(1, 9n), attrs(undefined, 9n), true],
    ['IPv6', attrs(undefined, 9n), attrs(undefined, 9n), true],
    ['another IPv4', attrs(1), attrs(2), false],
    ['another IPv4 beside one IPv6', attrs(1, 9n), attrs(2, 9n), false],
    ['another IPv6', attrs(undefined, 8n), attrs(undefined, 9n), false],
    ['nothing in common', attrs(1), attrs(undefined, 9n), false],
    ['nothing', attrs(), attrs(), false],
  ])('compares leases with %s', (_what, a, b, expected) => {
    expect([isOfOneNode(a, b), isOfOneNode(b, a)]).toEqual([expected, expected])
  })
})
