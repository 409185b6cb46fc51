// answers.test.ts - routes, rules and entries are read from the kernel's messages as iproute2 prints them, and messages
// of any content are harmless.

import { endianness } from 'node:os'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Route, RouteFilter } from '../../../../src/host/kernel.ts'
import { familyIn, messagesIn, MessageWriter, ReceivedMessage } from '../../../../src/host/netlink/message.ts'
import {
  forwardingEntriesIn,
  forwardingIn,
  neighbourIn,
  neighboursIn,
} from '../../../../src/host/netlink/neighbours.ts'
import { lookedUpIn } from '../../../../src/host/netlink/route-lookups.ts'
import { RouteDump, routeIn, textWithoutLifetime } from '../../../../src/host/netlink/routes.ts'
import { RTM_NEWRULE, rulesIn } from '../../../../src/host/netlink/rules.ts'
import { formatAddress, formatNet, parseAddress, parseNet } from '../../../../src/net/address.ts'
import * as recorded from './recorded.ts'

const NAMES: Readonly<Record<number, string>> = { 1: 'lo', 3: 'd0', 4: 'vx', 5: 'd1', 6: 'br0' }
const nameOf = (index: number): string => NAMES[index] ?? ''
/** Returns a `struct fib_rule_port_range` in the byte order of this host. */
const portRange = (first: number, last: number): Uint8Array => new Uint8Array(Uint16Array.of(first, last).buffer)
const read = (data: Buffer, filter: RouteFilter, index?: number): readonly Route[] =>
  new RouteDump(filter, index).routesIn(data, nameOf)
/** The parts of a route that `ip route` prints, in its order. */
const say = ({ type, destination, gateway, device, table, protocol, source, metric, ...more }: Route): string =>
  [
    ...(type === 'unicast' ? [] : [type]),
    destination,
    ...(gateway === undefined ? [] : ['via', gateway]),
    ...(device === '' ? [] : ['dev', device]),
    ...(table === 254 ? [] : ['table', table]),
    ...(protocol === 'boot' ? [] : ['proto', protocol]),
    ...(source === undefined ? [] : ['src', formatAddress(source)]),
    ...(metric === 0 ? [] : ['metric', metric]),
    ...(more.isOnlink ? ['onlink'] : []),
    ...(more.isMultipath ? ['multipath'] : []),
  ].join(' ')

describe.skipIf(endianness() === 'BE')('the answers of a kernel', () => {
  it('has the IPv4 routes of all tables', () => {
    expect(read(recorded.IPV4_ROUTES, { family: 'ipv4', table: 'all' }).map(say)).toEqual([
      '10.5.6.0/24 dev vx table 1000',
      'default via 192.0.2.254 dev d0 proto 77',
      '10.5.1.0/24 via 192.0.2.9 dev d0 onlink',
      '10.5.2.0/24 via fe80::1 dev d0 proto bird src 192.0.2.1 metric 7',
      '10.5.3.0/24 dev d0 multipath',
      'blackhole 10.5.4.0/24 metric 4294967295',
      '10.5.7.0/24 via 192.0.2.7 dev d0',
      '192.0.2.0/24 dev d0 proto kernel src 192.0.2.1',
      'local 10.5.0.0/32 dev vx table 255 proto kernel src 10.5.0.0',
      'local 127.0.0.0/8 dev lo table 255 proto kernel src 127.0.0.1',
      'local 127.0.0.1/32 dev lo table 255 proto kernel src 127.0.0.1',
      'broadcast 127.255.255.255/32 dev lo table 255 proto kernel src 127.0.0.1',
      'local 192.0.2.1/32 dev d0 table 255 proto kernel src 192.0.2.1',
      'broadcast 192.0.2.255/32 dev d0 table 255 proto kernel src 192.0.2.1',
    ])
  })

  it('has the IPv6 routes of the main table', () => {
    expect(read(recorded.IPV6_ROUTES, { family: 'ipv6' }).map(say)).toEqual([
      'fd00::/64 dev d0 proto kernel metric 256',
      'fd00:5:1::/64 via fd00::9 dev d0 metric 5',
      'fd00:5:2::/64 dev d0 metric 1024 multipath',
      'unreachable fd00:5:3::/64 dev lo metric 4294967295',
      'fe80::/64 dev d0 proto kernel metric 256',
      'fe80::/64 dev d1 proto kernel metric 256',
      'fe80::/64 dev vx proto kernel metric 256',
      'fe80::/64 dev br0 proto kernel metric 256',
      'default via fe80::1 dev d0 proto ra metric 1024',
    ])
  })

  it('are partial if they have a TOS or a source prefix', () => {
    const route = (sourceBits: number, tos: number): Buffer =>
      new MessageWriter(24)
        .raw(Uint8Array.of(2, 24, sourceBits, tos, 254, 3, 0, 1))
        .u32(0)
        .address(1, 0x0a050200)
        .finish()
    const routes = read(Buffer.concat([route(0, 0), route(0, 16), route(32, 0)]), { family: 'ipv4' })
    expect(routes.map(({ isPartial }) => isPartial)).toEqual([undefined, true, true])
  })

  it('are filtered by destination, table and interface', () => {
    const texts = (filter: RouteFilter, index?: number): readonly string[] =>
      read(filter.family === 'ipv4' ? recorded.IPV4_ROUTES : recorded.IPV6_ROUTES, filter, index).map(
        ({ destination }) => destination,
      )
    expect(texts({ family: 'ipv4', exactly: ['default', parseNet('10.5.2.0/24')!] })).toEqual([
      'default',
      '10.5.2.0/24',
    ])
    expect(texts({ family: 'ipv4', exactly: [parseNet('10.5.2.0/25')!] })).toEqual([])
    expect(texts({ family: 'ipv4', within: parseNet('10.5.2.0/23')! })).toEqual(['10.5.2.0/24', '10.5.3.0/24'])
    expect(texts({ family: 'ipv4', within: parseNet('10.5.2.0/25')! })).toEqual([])
    expect(texts({ family: 'ipv4', table: 1000 })).toEqual(['10.5.6.0/24'])
    expect(texts({ family: 'ipv4', table: 'all' }, 4)).toEqual(['10.5.6.0/24', '10.5.0.0/32'])
    expect(texts({ family: 'ipv6', exactly: ['default'] })).toEqual(['default'])
    expect(texts({ family: 'ipv6', within: parseNet('fd00:5::/32')! })).toEqual([
      'fd00:5:1::/64',
      'fd00:5:2::/64',
      'fd00:5:3::/64',
    ])
    expect(read(recorded.IPV4_ROUTES, { family: 'ipv6', table: 'all' })).toEqual([])
  })

  it('has the text of a route with a lifetime, which stays if only the lifetime changes', () => {
    const messages = [...messagesIn(recorded.IPV6_ROUTES)]
    const withLifetime = messages.filter((message) => textWithoutLifetime(message) !== undefined)
    expect(withLifetime.map((message) => routeIn(message, nameOf)?.destination)).toEqual(['default'])
    const [{ type, flags, body } = messages[0]!] = withLifetime
    const text = textWithoutLifetime(withLifetime[0]!)
    const changedAt = (at: number): string | undefined => {
      const bytes = Buffer.from(body)
      bytes[at] = bytes[at]! ^ 1
      return textWithoutLifetime(new ReceivedMessage(type, flags, bytes))
    }
    // The lifetime is a number of 32 bits 12 bytes after the beginning of RTA_CACHEINFO (12).
    const lifetime = body.indexOf('24000c00', 'hex') + 12
    expect(changedAt(lifetime)).toBe(text)
    expect(changedAt(5)).not.toBe(text)
  })

  it('has the answers to lookups', () => {
    const answer = (data: Buffer): unknown => {
      const found = lookedUpIn({ data, errno: 0 }, nameOf)
      return 'route' in found ? say(found.route) : found
    }
    expect(answer(recorded.LOOKUP)).toBe('10.5.1.7/32 via 192.0.2.9 dev d0 proto unspec src 192.0.2.1')
    expect(answer(recorded.IPV6_LOOKUP)).toBe('fd00:5:1::7/128 via fd00::9 dev d0 src fd00::1 metric 5')
    expect(answer(recorded.LOCAL_LOOKUP)).toBe('local 192.0.2.1/32 dev lo table 255 proto unspec src 192.0.2.1')
    expect(answer(Buffer.alloc(0))).toEqual({ refused: 'no answer', errno: '' })
    expect(lookedUpIn({ data: Buffer.alloc(0), errno: 101 }, nameOf)).toEqual({
      refused: 'Network is unreachable',
      errno: 'ENETUNREACH',
    })
  })

  it('has the rules of policy routing', () => {
    const usual = { iif: undefined, oif: undefined, from: undefined, to: undefined, mark: undefined, mask: 0xffffffff }
    const looksUp = { ...usual, action: 'lookup', isInverted: false }
    const none = { ...usual, table: undefined, isInverted: false }
    const network = parseNet('10.5.0.0/16')
    expect(rulesIn(messagesIn(recorded.IPV4_RULES), 'ipv4')).toEqual([
      { ...looksUp, priority: 0, table: 255 },
      { ...none, priority: 219, action: 'blackhole', iif: 'd0', from: network, to: network },
      { ...looksUp, priority: 220, table: 1000, mark: 0x10, mask: 0xff, isInverted: true },
      { ...none, priority: 221, action: 'prohibit', oif: 'vx' },
      { ...none, priority: 300, action: 'goto' },
      { ...none, priority: 301, action: 'l3mdev' },
      { ...looksUp, priority: 32_766, table: 254 },
      { ...looksUp, priority: 32_767, table: 253 },
    ])
    const select = new MessageWriter(RTM_NEWRULE).raw(Uint8Array.of(2, 0, 0, 16, 254, 0, 0, 1, 0, 0, 0, 0))
    select.bytes(22, Uint8Array.of(17)).bytes(23, portRange(7, 7)).bytes(24, portRange(80, 90))
    select.bytes(25, Uint8Array.of(46)).bytes(12, Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 5))
    const part = { protocol: 17, sport: [7, 7], dport: [80, 90], tos: 16, dscp: 46, tunnel: 5n }
    expect(rulesIn(messagesIn(select.finish()), 'ipv4')).toEqual([{ ...looksUp, priority: 0, table: 254, part }])
    const rules6 = rulesIn(messagesIn(recorded.IPV6_RULES), 'ipv6')
    expect(rules6.map(({ priority, table, from }) => [priority, table, from && formatNet(from)])).toEqual([
      [0, 255, undefined],
      [6, 100, 'fd00::/16'],
      [32_766, 254, undefined],
    ])
  })

  it('has the neighbour entries', () => {
    const lines = neighboursIn(messagesIn(recorded.IPV4_NEIGHBOURS), 'ipv4').map(
      ({ address, deviceIndex, mac, states }) =>
        [formatAddress(address), nameOf(deviceIndex), mac, ...states].join(' '),
    )
    expect(lines.filter((line) => !line.startsWith('224.'))).toEqual([
      '192.0.2.51 d0  NONE',
      '192.0.2.3 d0  INCOMPLETE',
      '10.5.2.0 vx 02:11:22:33:44:55 PERMANENT',
      '192.0.2.99 d0  INCOMPLETE',
      '192.0.2.50 d0 02:00:00:00:00:50 REACHABLE',
    ])
    const permanent = neighboursIn(messagesIn(recorded.IPV6_NEIGHBOURS), 'ipv6', 4).filter(({ states }) =>
      states.includes('PERMANENT'),
    )
    expect(permanent).toEqual([
      { deviceIndex: 4, address: parseAddress('fd00:5:2::'), mac: '02:11:22:33:44:56', states: ['PERMANENT'] },
    ])
  })

  it('has the forwarding entries of one device, without those of its bridge', () => {
    const entries = (index: number): unknown => forwardingEntriesIn(messagesIn(recorded.FORWARDING), index)
    expect(entries(4)).toEqual([
      { deviceIndex: 4, mac: '00:00:00:00:00:00', host: parseAddress('192.0.2.3'), isPermanent: true },
      { deviceIndex: 4, mac: '02:11:22:33:44:55', host: parseAddress('192.0.2.2'), isPermanent: true },
    ])
    expect(JSON.stringify(entries(5), (_key, value: unknown) => String(value))).not.toContain('02:00:00:00:00:77')
  })
})

/** Reads bytes with all readers, and returns what they found. */
function readAll(type: number, body: Uint8Array): readonly unknown[] {
  const message = new ReceivedMessage(type, 0, Buffer.from(body))
  return [
    routeIn(message, nameOf),
    textWithoutLifetime(message),
    rulesIn([new ReceivedMessage(RTM_NEWRULE, 0, message.body)], familyIn(message) ?? 'ipv4'),
    neighbourIn(message),
    forwardingIn(message),
  ]
}

it('reads messages of any content without an error', () => {
  fc.assert(
    fc.property(fc.constantFrom(2, 7, 10), fc.uint8Array({ maxLength: 120 }), (family, bytes) => {
      expect(() => readAll(24, Buffer.from([family, ...bytes]))).not.toThrow()
    }),
  )
})

it('reads recorded messages with changed, missing and additional bytes without an error', () => {
  const all = [recorded.IPV4_ROUTES, recorded.IPV6_ROUTES, recorded.IPV4_RULES, recorded.IPV4_NEIGHBOURS]
  const messages = all.flatMap((data) => [...messagesIn(data)])
  fc.assert(
    fc.property(
      fc.constantFrom(...messages),
      fc.array(fc.tuple(fc.nat(200), fc.nat(255)), { maxLength: 4 }),
      fc.nat(200),
      ({ type, body }, changes, length) => {
        const bytes = Buffer.from(body)
        for (const [at, value] of changes) bytes[at % bytes.length] = value
        expect(() => readAll(type, bytes.subarray(0, length))).not.toThrow()
      },
    ),
  )
})

it.each([
  ['the tunnel', 12],
  ['the source ports', 23],
  ['the destination ports', 24],
])('ignores %s of a rule if the attribute has a wrong length', (_what, type) => {
  for (const length of [0, 1, 2, 3, 5, 7, 9]) {
    const writer = new MessageWriter(32).u8(2).u8(0).u8(0).u8(0).u8(254).u8(0).u8(0).u8(1).u32(0)
    const [message] = messagesIn(writer.bytes(type, Buffer.alloc(length, 1)).finish())
    expect(rulesIn([message!], 'ipv4')).toEqual([expect.not.objectContaining({ part: expect.anything() })])
  }
})

it('ignores attributes that it does not know', () => {
  const writer = new MessageWriter(24).u8(2).u8(8).u16(0).u8(254).u8(4).u8(0).u8(1).u32(0)
  writer.address(1, parseAddress('10.0.0.0')!).bytes(3000, Buffer.alloc(7)).attributeU32(6, 9)
  const [message] = messagesIn(writer.finish())
  expect(routeIn(message!, nameOf)).toMatchObject({ destination: '10.0.0.0/8', metric: 9, protocol: 'static' })
})
