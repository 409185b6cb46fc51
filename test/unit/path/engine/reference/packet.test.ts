// packet.test.ts - the packet functions of the dgram engine: TTL, checksums, fragments, MSS and ICMP; peer records.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { ipv4Net, parseIpv4 } from '../../../../../src/net/ipv4.ts'
import { decodePeers, encodePeers } from '../../../../../src/path/engine/peers.ts'
import {
  clampMss,
  decrementTtl,
  fragmentationNeeded,
  fragmentsOf,
  icmpError,
  icmpLimit,
  internetChecksum,
  ipv4PacketBytes,
  isEchoRequestFrom,
  isForLink,
  isIpv6Packet,
  isTcpSyn,
  mayFragment,
  NET_UNREACHABLE,
  reasonMalformed,
  TIME_EXCEEDED,
} from '../../../../../src/path/engine/reference/packet.ts'
import { ipv4Packet } from '../../../../support/packets.ts'

describe('the MSS of a TCP connection', () => {
  const [source, destination] = [0x0a050102, 0x0a050203]
  function segment(options: readonly number[], flags: number): Buffer {
    const tcp = Buffer.alloc(20 + Math.ceil(options.length / 4) * 4)
    tcp.writeUInt8((tcp.length / 4) << 4, 12)
    tcp.writeUInt8(flags, 13)
    Buffer.from(options).copy(tcp, 20)
    tcp.writeUInt16BE(checksumOf(tcp), 16)
    return ipv4Packet({ source, destination, protocol: 6, payload: tcp })
  }
  /** Returns the checksum of a segment with its pseudo-header; 0 if it is right. */
  function checksumOf(tcp: Buffer): number {
    const pseudo = Buffer.alloc(12)
    pseudo.writeUInt32BE(source, 0)
    pseudo.writeUInt32BE(destination, 4)
    pseudo.writeUInt8(6, 9)
    pseudo.writeUInt16BE(tcp.length, 10)
    return internetChecksum(Buffer.concat([pseudo, tcp]))
  }
  const SYN = 2

  it('is lowered to what fits, at any offset, and the checksum is right', () => {
    const others = fc.constantFrom([1], [1, 1], [3, 3, 7], [4, 2], [8, 10, 0, 1, 2, 3, 4, 5, 6, 7])
    fc.assert(
      fc.property(fc.array(others, { maxLength: 3 }), fc.integer({ min: 0, max: 65_535 }), (before, mss) => {
        const options = [...before.flat(), 2, 4, mss >> 8, mss & 0xff]
        const packet = segment(options, SYN)
        const expected = Buffer.from(packet)
        expect(isTcpSyn(packet)).toBe(true)
        clampMss(packet, 1472)
        const at = 40 + before.flat().length + 2
        expect(packet.readUInt16BE(at)).toBe(Math.min(mss, 1432))
        expect(checksumOf(packet.subarray(20)) % 0xffff).toBe(0)
        expected.writeUInt16BE(Math.min(mss, 1432), at)
        packet.copy(expected, 36, 36, 38)
        expect(packet).toEqual(expected)
      }),
    )
  })

  it.each([
    [[2]],
    [[2, 0]],
    [[9, 1, 2, 4]],
    [[9, 200, 2, 4]],
    [[0, 2, 4, 255, 255]],
    [[2, 3, 255]],
    [[0, 4, 0, 0, 2, 4, 255, 255]],
  ])('does not change with options %j', (options) => {
    const packet = segment(options, SYN)
    const before = Buffer.from(packet)
    clampMss(packet, 1472)
    expect(packet).toEqual(before)
  })

  it('is in a SYN, from either side', () => {
    expect([SYN, SYN | 16, 16, 4].map((flags) => isTcpSyn(segment([], flags)))).toEqual([true, true, false, false])
    expect(isTcpSyn(ipv4Packet({ source, destination, protocol: 17, payload: Buffer.alloc(20, 0xff) }))).toBe(false)
    expect(isTcpSyn(ipv4Packet({ source, destination, protocol: 6, payload: Buffer.alloc(19, 0xff) }))).toBe(false)
  })
})

describe('packet', () => {
  it('has a right header checksum after each decrement of the TTL', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 2, max: 255 }),
        fc.integer({ min: 0, max: 0xffffffff }),
        fc.integer({ min: 0, max: 0xffff }),
        (ttl, source, id) => {
          const packet = ipv4Packet({ source, destination: 0x0a050201, ttl, id, payload: Buffer.from('abc') })
          expect(decrementTtl(packet)).toBe(true)
          expect(packet.readUInt8(8)).toBe(ttl - 1)
          expect(internetChecksum(packet.subarray(0, 20)) % 0xffff).toBe(0)
        },
      ),
    )
  })

  it.each([0, 1])('is not forwarded at TTL %d', (ttl) => {
    expect(decrementTtl(ipv4Packet({ source: 1, destination: 2, ttl }))).toBe(false)
  })

  it('is refused if it is not valid', () => {
    const packet = ipv4Packet({ source: 1, destination: 2 })
    expect(ipv4PacketBytes(packet)).toBe(20)
    expect(ipv4PacketBytes(Buffer.concat([packet, Buffer.alloc(9)]))).toBe(20)
    for (let size = 0; size < 20; size++)
      expect(ipv4PacketBytes(packet.subarray(0, size)), String(size)).toBeUndefined()
    for (const [byte, at] of [
      [0x65, 0],
      [0x44, 0],
      [0x4f, 0],
    ] as const) {
      const broken = Buffer.from(packet)
      broken.writeUInt8(byte, at)
      expect(ipv4PacketBytes(broken)).toBeUndefined()
    }
    const long = Buffer.from(packet)
    long.writeUInt16BE(21, 2)
    expect(ipv4PacketBytes(long)).toBeUndefined()
  })

  it('leads to at most 50 ICMP errors to one sender and then one each 10 ms; to foreign senders at most 500 and then one each millisecond', () => {
    const OURS = 99
    const allows = icmpLimit()
    const count = (nowMs: number, sender: number): number =>
      Array.from({ length: 100 }, () => allows(sender, sender === OURS, nowMs)).filter(Boolean).length
    expect([1_000, 1_000, 1_075, 1_080, 3_600_000].map((nowMs) => count(nowMs, 1))).toEqual([50, 0, 7, 1, 50])
    const senders = Array.from({ length: 20 }, (_, index) => index + 2)
    const sum = (nowMs: number): number => senders.reduce((all, sender) => all + count(nowMs, sender), 0)
    expect([sum(4_000_000), sum(4_000_000), sum(4_000_050)]).toEqual([500, 0, 50])
    expect(count(4_000_050, OURS)).toBe(50)
  })

  it('leads to an ICMP error like that of flanneld: TTL 8, no identification; it quotes the whole packet', () => {
    const packet = ipv4Packet({
      source: parseIpv4('10.5.1.2')!,
      destination: parseIpv4('10.5.9.9')!,
      protocol: 17,
      payload: Buffer.from('0123456789'),
    })
    const error = icmpError(NET_UNREACHABLE, parseIpv4('10.5.1.0')!, packet)!
    expect(error).toHaveLength(20 + 8 + packet.length)
    expect([error.readUInt8(8), error.readUInt16BE(4), error.readUInt8(20), error.readUInt8(21)]).toEqual([8, 0, 3, 0])
    expect(error.readUInt32BE(12)).toBe(parseIpv4('10.5.1.0'))
    expect(error.readUInt32BE(16)).toBe(parseIpv4('10.5.1.2'))
    expect(error.subarray(28)).toEqual(packet)
    expect(internetChecksum(error.subarray(0, 20))).toBe(0)
    expect(internetChecksum(error.subarray(20))).toBe(0)
  })

  it('leads to an ICMP error with the MTU of the next hop', () => {
    const packet = ipv4Packet({ source: parseIpv4('10.5.1.2')!, destination: parseIpv4('10.5.9.9')! })
    const error = icmpError(fragmentationNeeded(1252), 1, packet)!
    expect([error.readUInt8(20), error.readUInt8(21), error.readUInt16BE(26)]).toEqual([3, 4, 1252])
    expect(internetChecksum(error.subarray(20))).toBe(0)
  })

  it('is fragmented if allowed, and the fragments give the packet again', () => {
    const copied = '940400000107070400000000018804010200000000000000'
    const fields = fc.record({
      payload: fc.uint8Array({ minLength: 256, maxLength: 4_000 }).map((bytes) => Buffer.from(bytes)),
      fragment: fc.constantFrom(0, 0x2000, 0x0010, 0x2010),
      id: fc.integer({ min: 0, max: 0xffff }),
      options: fc.constantFrom(Buffer.alloc(0), Buffer.from(copied, 'hex')),
    })
    fc.assert(
      fc.property(fields, fc.integer({ min: 256, max: 1_500 }), (given, mtu) => {
        const { fragment: word, payload } = given
        const packet = ipv4Packet({ source: 1, destination: 2, ...given })
        const headerBytes = packet.length - payload.length
        const fragments = fragmentsOf(packet, mtu)
        let before = 0
        for (const [index, fragment] of fragments.entries()) {
          expect(fragment.length).toBeLessThanOrEqual(mtu)
          expect(ipv4PacketBytes(fragment)).toBe(fragment.length)
          expect(internetChecksum(fragment.subarray(0, headerBytes))).toBe(0)
          const hasMore = index + 1 < fragments.length || (word & 0x2000) !== 0
          expect(fragment.readUInt16BE(6)).toBe((word & 0x1fff) + before / 8 + (hasMore ? 0x2000 : 0))
          if (given.options.length > 0 && index > 0)
            expect(fragment.toString('hex', 20, headerBytes)).toBe('940400000101010101010101018804010200000000000000')
          before += fragment.length - headerBytes
        }
        expect(Buffer.concat(fragments.map((each) => each.subarray(headerBytes)))).toEqual(payload)
      }),
    )
    const may = (fragment: number): boolean => mayFragment(ipv4Packet({ source: 1, destination: 2, fragment }))
    expect([0, 0x4000, 0x2000].map(may)).toEqual([true, false, true])
  })

  it('leads to no ICMP error if it is an ICMP error, a later fragment, or from an address without a host', () => {
    const base = {
      source: parseIpv4('10.5.1.2')!,
      destination: parseIpv4('10.5.9.9')!,
      protocol: 1,
      payload: Buffer.from([3, 0, 0, 0, 0, 0, 0, 0]),
    }
    expect(icmpError(NET_UNREACHABLE, 1, ipv4Packet(base))).toBeUndefined()
    expect(
      icmpError(NET_UNREACHABLE, 1, ipv4Packet({ ...base, payload: Buffer.from([8, 0, 0, 0, 0, 0, 0, 0]) })),
    ).toBeDefined()
    expect(icmpError(NET_UNREACHABLE, 1, ipv4Packet({ ...base, protocol: 17, fragment: 1 }))).toBeUndefined()
    for (const address of ['0.0.0.0', '127.0.0.1', '224.0.0.1', '255.255.255.255']) {
      const nobody = parseIpv4(address)!
      expect(icmpError(NET_UNREACHABLE, 1, ipv4Packet({ ...base, protocol: 17, source: nobody }))).toBeUndefined()
      expect(icmpError(NET_UNREACHABLE, 1, ipv4Packet({ ...base, protocol: 17, destination: nobody }))).toBeUndefined()
    }
  })
})

it.each([
  ['223.255.255.255', false] as const,
  ['224.0.0.0', true] as const,
  ['239.255.255.255', true] as const,
  ['240.0.0.1', false] as const,
  ['255.255.255.255', true] as const,
  ['255.255.255.254', false] as const,
])('IPv4 destination %s is only on the link: %s', (destination, is) => {
  const payload = Buffer.alloc(8)
  expect(isForLink(ipv4Packet({ source: 0x0a050102, destination: parseIpv4(destination)!, payload }))).toBe(is)
})

it.each([
  [0xff02, true] as const,
  [0xfe80, true] as const,
  [0xfebf, true] as const,
  [0xfe7f, false] as const,
  [0xfec0, false] as const,
  [0x2001, false] as const,
])('IPv6 destination with the first bits %i is only on the link: %s', (first, is) => {
  const packet = Buffer.alloc(40)
  packet.writeUInt8(0x60, 0)
  packet.writeUInt16BE(first, 24)
  expect(isForLink(packet)).toBe(is)
})

describe('peer records', () => {
  it('have the same values after encoding and decoding', () => {
    const ip = fc.integer({ min: 0, max: 0xffffffff })
    const hosts = fc.integer({ min: 1, max: 0xffffffff }).map((ipv4) => ({ ipv4 }))
    const outer = fc.constant('ipv4' as const)
    const peer = fc.record({
      subnet: fc.tuple(ip, fc.integer({ min: 0, max: 32 })).map(([address, length]) => ipv4Net(address, length)),
      hosts,
      outer,
      port: fc.integer({ min: 0, max: 65535 }),
    })
    const limited = fc.record({
      subnet: peer.map(({ subnet }) => subnet),
      hosts,
      outer,
      port: fc.constant(8285),
      limit: fc.integer({ min: 1, max: 65535 }),
    })
    fc.assert(
      fc.property(
        fc.array(fc.oneof(peer, limited)),
        (peers) => void expect(decodePeers(encodePeers(peers))).toEqual(peers),
      ),
    )
  })
})

describe("a peer's packet is refused", () => {
  const between = { source: parseIpv4('10.5.2.2')!, destination: parseIpv4('10.5.1.2')! }
  const reason = (fields: object): string | undefined => reasonMalformed(ipv4Packet({ ...between, ...fields }))
  const [FRAGMENT, OPTIONS] = ['rx_drop_fragment', 'rx_drop_options']

  it('if its header checksum is wrong', () => {
    const packet = ipv4Packet({ ...between, options: Buffer.alloc(4, 1) })
    expect(reasonMalformed(packet)).toBeUndefined()
    for (const at of [1, 8, 12, 19, 22]) {
      const broken = Buffer.from(packet)
      broken.writeUInt8(broken.readUInt8(at) ^ 1, at)
      expect(reasonMalformed(broken), `byte ${at}`).toBe('rx_drop_checksum')
    }
    const payload = ipv4Packet({ ...between, payload: Buffer.alloc(8) })
    payload.writeUInt8(7, 25) // a byte of the payload, not of the header
    expect(reasonMalformed(payload)).toBeUndefined()
  })

  it.each([
    // A packet that is not a fragment may have any size.
    [0, 17, 0, undefined],
    [0, 6, 0, undefined],
    [0x4000, 6, 3, undefined],
    // A fragment has data, in multiples of eight bytes if more fragments follow.
    [0x2000, 17, 0, FRAGMENT],
    [0x2000, 17, 8, undefined],
    [0x2000, 17, 7, FRAGMENT],
    [0x2000, 17, 9, FRAGMENT],
    [0x6000, 17, 8, undefined],
    [0x0001, 17, 0, FRAGMENT],
    [0x0001, 17, 1, undefined],
    [0x2001, 17, 12, FRAGMENT],
    // The first fragment of TCP contains the ports and flags, and the second must not overwrite them.
    [0x2000, 6, 8, FRAGMENT],
    [0x2000, 6, 16, undefined],
    [0x0001, 6, 64, FRAGMENT],
    [0x0002, 6, 64, undefined],
    [0x0001, 17, 64, undefined],
    // No fragment may end beyond 65,535 bytes: 8,189 blocks of eight, 20 bytes of header, and 3 of data.
    [0x1ffd, 17, 3, undefined],
    [0x1ffd, 17, 4, FRAGMENT],
  ])('by its fragment word %i, protocol %i and %i bytes of data: %s', (fragment, protocol, size, expected) => {
    expect(reason({ fragment, protocol, payload: Buffer.alloc(size) })).toBe(expected)
  })

  it.each([
    [[1, 1, 1, 0], undefined],
    [[0, 0, 0, 0], undefined],
    [[7, 4, 4, 0], undefined],
    [[1, 7, 3, 4], undefined],
    [[7, 2, 7, 2], undefined],
    [[7, 5, 4, 0], OPTIONS],
    [[7, 1, 0, 0], OPTIONS],
    [[7, 0, 0, 0], OPTIONS],
    [[1, 1, 1, 7], OPTIONS],
    [[131, 4, 4, 0], OPTIONS],
    [[137, 4, 4, 0], OPTIONS],
    [[1, 137, 3, 4], OPTIONS],
    [[7, 3, 4, 131], OPTIONS],
    // Bytes after the end option are not read, and data of another option that looks like a source route is not one.
    [[0, 131, 3, 4], undefined],
    [[7, 4, 131, 137], undefined],
  ])('by its options %j: %s', (options, expected) => {
    expect(reason({ options: Buffer.from(options) })).toBe(expected)
  })
})

describe('a packet at its limits', () => {
  const between = { source: parseIpv4('10.5.2.2')!, destination: parseIpv4('10.5.1.2')! }

  it('has a length that includes its header and does not exceed the received bytes', () => {
    const packet = ipv4Packet({ ...between, options: Buffer.alloc(4, 1), payload: Buffer.alloc(2) })
    const lengthOf = (length: number): number | undefined => {
      const other = Buffer.from(packet)
      other.writeUInt16BE(length, 2)
      return ipv4PacketBytes(other)
    }
    expect([23, 24, 25, 26, 27].map(lengthOf)).toEqual([undefined, 24, 25, 26, undefined])
  })

  it('is recognised as an echo request from an address', () => {
    const echo = { ...between, protocol: 1, payload: Buffer.from([8, 0, 0, 0]) }
    const is = (fields: object, source = between.source): boolean =>
      isEchoRequestFrom(source, ipv4Packet({ ...echo, ...fields }))
    expect([is({}), is({ fragment: 0x4000 }), is({ options: Buffer.alloc(4, 1) })]).toEqual([true, true, true])
    const others = [{ protocol: 17 }, { fragment: 0x2000 }, { fragment: 1 }, { payload: Buffer.from([0, 8, 8, 8]) }]
    expect(others.map((fields) => is(fields))).toEqual([false, false, false, false])
    expect([is({ payload: Buffer.alloc(0) }), is({}, between.destination)]).toEqual([false, false])
  })

  it('is a complete IPv6 packet if as much was received as its header says', () => {
    const packet = Buffer.alloc(50)
    packet.writeUInt8(0x60, 0)
    packet.writeUInt16BE(9, 4)
    expect([48, 49, 50].map((size) => isIpv6Packet(packet.subarray(0, size)))).toEqual([false, true, true])
    packet.writeUInt16BE(0, 4)
    for (let size = 0; size < 40; size++) expect(isIpv6Packet(packet.subarray(0, size)), String(size)).toBe(false)
    expect(isIpv6Packet(packet.subarray(0, 40))).toBe(true)
    packet.writeUInt8(0x45, 0)
    expect(isIpv6Packet(packet)).toBe(false)
  })

  it('has the checksum of RFC 1071, also with odd lengths and carries', () => {
    expect(internetChecksum(Buffer.alloc(0))).toBe(0xffff)
    expect(internetChecksum(Buffer.from([0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]))).toBe(0x220d)
    expect(internetChecksum(Buffer.from([0x01]))).toBe(0xfeff)
    expect(internetChecksum(Buffer.from([0xff, 0xff, 0x01]))).toBe(0xfeff)
    expect(internetChecksum(Buffer.alloc(65_534, 0xff))).toBe(0)
  })

  it('is quoted from its first bytes in a time-exceeded error', () => {
    const packet = ipv4Packet({ ...between, payload: Buffer.from('abc') })
    const error = icmpError(TIME_EXCEEDED, 1, packet)!
    expect([error.readUInt8(0), error.readUInt16BE(2), error.length]).toEqual([0x45, 51, 51])
    expect([error.readUInt8(20), error.readUInt8(21), error.readUInt16BE(26)]).toEqual([11, 0, 0])
    expect(error.subarray(28)).toEqual(packet)
    const withOptions = ipv4Packet({ ...between, options: Buffer.alloc(4, 1), payload: Buffer.alloc(9, 7) })
    expect(icmpError(TIME_EXCEEDED, 1, withOptions)!.subarray(28)).toEqual(withOptions)
  })

  // The limit is from RFC 1812, section 4.3.2.3.
  it.each([0, 4, 40])('is quoted as far as 576 bytes allow, with %i bytes of options', (options) => {
    for (const payload of [0, 1, 8, 527 - options, 528 - options, 529 - options, 1_400, 60_000]) {
      const packet = ipv4Packet({ ...between, options: Buffer.alloc(options, 1), payload: Buffer.alloc(payload, 7) })
      const error = icmpError(fragmentationNeeded(1_400), 1, packet)!
      expect(error.subarray(28), String(payload)).toEqual(packet.subarray(0, 548))
      expect(error.readUInt16BE(2)).toBe(error.length)
      expect([internetChecksum(error.subarray(0, 20)), internetChecksum(error.subarray(20))]).toEqual([0, 0])
    }
  })

  it('opens no connection as a later fragment, and needs only a TCP header', () => {
    const tcp = Buffer.alloc(20)
    tcp.writeUInt8(0x50, 12)
    tcp.writeUInt8(2, 13)
    const syn = { ...between, protocol: 6, payload: tcp }
    expect([0, 0x2000, 0x4000, 1].map((fragment) => isTcpSyn(ipv4Packet({ ...syn, fragment })))).toEqual([
      true,
      true,
      true,
      false,
    ])
  })

  it.each([
    // The MSS may be the last option, or be before the end option. An option that exceeds the header is not changed.
    [[2, 4, 255, 255], 24, 1_432],
    [[1, 2, 4, 255, 255, 0, 0, 0], 28, 1_432],
    [[2, 4, 5, 152], 24, 1_432],
    [[2, 4, 5, 153], 24, 1_432],
    [[2, 4, 5, 151], 24, 1_431],
    [[2, 4, 255, 255], 28, 65_535],
    [[2, 4, 255, 255], 20, 65_535],
    [[1, 1, 2, 4, 255, 255], 24, 65_535],
    [[1, 2, 4, 255, 255], 24, 65_535],
  ])('with options %j in a header of %i bytes announces the MSS %i', (options, headerBytes, expected) => {
    const tcp = Buffer.alloc(20 + options.length)
    tcp.writeUInt8((headerBytes / 4) << 4, 12)
    Buffer.from(options).copy(tcp, 20)
    const packet = ipv4Packet({ ...between, protocol: 6, payload: tcp })
    clampMss(packet, 1_472)
    expect(packet.readUInt16BE(40 + options.indexOf(2) + 2)).toBe(expected)
  })

  it('is fragmented at multiples of eight bytes', () => {
    const packet = ipv4Packet({ ...between, payload: Buffer.alloc(64) })
    const sizes = (mtu: number): number[] => fragmentsOf(packet, mtu).map(({ length }) => length)
    expect([84, 83, 60, 59].map(sizes)).toEqual([[84], [76, 28], [60, 44], [52, 52]])
    expect(fragmentsOf(packet, 84)[0]).toEqual(packet)
  })

  it.each([
    // Options that only the first fragment may have become no-operations in the others. Invalid options do not change.
    ['07030400', '01010100'],
    ['87030400', '87030400'],
    ['07040404', '01010101'],
    ['07050404', '07050404'],
    ['07000404', '07000404'],
    ['01070304', '01010101'],
    ['00070304', '00070304'],
    ['00020304', '00020304'],
  ])('with options %s has in later fragments the options %s', (options, expected) => {
    const packet = ipv4Packet({ ...between, options: Buffer.from(options, 'hex'), payload: Buffer.alloc(16) })
    const [first, second] = fragmentsOf(packet, 32)
    expect([first!, second!].map((each) => each.toString('hex', 20, 24))).toEqual([options, expected])
  })
})

it('updates a checksum whose carry causes another carry', () => {
  const tcp = Buffer.alloc(28)
  tcp.writeUInt8(0x70, 12)
  Buffer.from([1, 2, 4, 0x06, 0x00]).copy(tcp, 20)
  tcp.writeUInt16BE(0x97fe, 16)
  const packet = ipv4Packet({ source: 1, destination: 2, protocol: 6, payload: tcp })
  clampMss(packet, 1_472)
  // ~0x97fe + ~0x0006 + 0x9805 = 0x1ffff. Its carry gives 0x10000, whose carry gives 1.
  expect([packet.readUInt16BE(43), packet.readUInt16BE(36)]).toEqual([1_432, 0xfffe])
})
