// packet.test.ts - the dgram engine's packet functions: TTL, checksum, ICMP; peer records.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  clampMss,
  decrementTtl,
  fragmentationNeeded,
  fragmentsOf,
  icmpError,
  icmpLimit,
  internetChecksum,
  ipv4PacketBytes,
  isNestedTwice,
  isTcpSyn,
  mayFragment,
  NET_UNREACHABLE,
} from '../../../src/dataplane/packet.ts'
import { decodePeers, encodePeers } from '../../../src/dataplane/peers.ts'
import { ipv4Net, parseIpv4 } from '../../../src/net/ipv4.ts'
import { ipv4Packet, udpDatagram } from '../../support/packets.ts'

describe('what a TCP connection begins with', () => {
  const [source, destination] = [0x0a050102, 0x0a050203]
  function segment(options: readonly number[], flags: number): Buffer {
    const tcp = Buffer.alloc(20 + Math.ceil(options.length / 4) * 4)
    tcp.writeUInt8((tcp.length / 4) << 4, 12)
    tcp.writeUInt8(flags, 13)
    Buffer.from(options).copy(tcp, 20)
    tcp.writeUInt16BE(checksumOf(tcp), 16)
    return ipv4Packet({ source, destination, protocol: 6, payload: tcp })
  }
  /** The sum of a segment with its pseudo-header; 0 when it is right. */
  function checksumOf(tcp: Buffer): number {
    const pseudo = Buffer.alloc(12)
    pseudo.writeUInt32BE(source, 0)
    pseudo.writeUInt32BE(destination, 4)
    pseudo.writeUInt8(6, 9)
    pseudo.writeUInt16BE(tcp.length, 10)
    return internetChecksum(Buffer.concat([pseudo, tcp]))
  }
  const SYN = 2

  it('is lowered to what fits, wherever it stands, and the checksum is right', () => {
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

  it.each([[[2]], [[2, 0]], [[9, 1, 2, 4]], [[9, 200, 2, 4]], [[0, 2, 4, 255, 255]], [[2, 3, 255]]])(
    'is left alone with options %j',
    (options) => {
      const packet = segment(options, SYN)
      const before = Buffer.from(packet)
      clampMss(packet, 1472)
      expect(packet).toEqual(before)
    },
  )

  it('is a SYN, from either side', () => {
    expect([SYN, SYN | 16, 16, 4].map((flags) => isTcpSyn(segment([], flags)))).toEqual([true, true, false, false])
    expect(isTcpSyn(ipv4Packet({ source, destination, protocol: 17, payload: Buffer.alloc(20, 0xff) }))).toBe(false)
    expect(isTcpSyn(ipv4Packet({ source, destination, protocol: 6, payload: Buffer.alloc(19, 0xff) }))).toBe(false)
  })
})

describe('packet', () => {
  it('keeps the header checksum right while the TTL falls', () => {
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

  it.each([0, 1])('stops at TTL %d', (ttl) => {
    expect(decrementTtl(ipv4Packet({ source: 1, destination: 2, ttl }))).toBe(false)
  })

  it('refuses what is no packet', () => {
    const packet = ipv4Packet({ source: 1, destination: 2 })
    expect(ipv4PacketBytes(packet)).toBe(20)
    expect(ipv4PacketBytes(Buffer.concat([packet, Buffer.alloc(9)]))).toBe(20)
    expect(ipv4PacketBytes(packet.subarray(0, 19))).toBeUndefined()
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

  it('answers each sender 50 times at once and once more each 10 ms, and all 500 times and once more each millisecond', () => {
    const allows = icmpLimit()
    const count = (nowMs: number, sender: number): number =>
      Array.from({ length: 100 }, () => allows(sender, nowMs)).filter(Boolean).length
    expect([1_000, 1_000, 1_075, 1_080, 3_600_000].map((nowMs) => count(nowMs, 1))).toEqual([50, 0, 7, 1, 50])
    const senders = Array.from({ length: 20 }, (_, index) => index + 2)
    const sum = (nowMs: number): number => senders.reduce((all, sender) => all + count(nowMs, sender), 0)
    expect([sum(4_000_000), sum(4_000_000), sum(4_000_050)]).toEqual([500, 0, 50])
  })

  it('answers as upstream does: TTL 8, no identification, a quote of header and 8 bytes', () => {
    const packet = ipv4Packet({
      source: parseIpv4('10.5.1.2')!,
      destination: parseIpv4('10.5.9.9')!,
      protocol: 17,
      payload: Buffer.from('0123456789'),
    })
    const error = icmpError(NET_UNREACHABLE, parseIpv4('10.5.1.0')!, packet)!
    expect(error).toHaveLength(20 + 8 + 28)
    expect([error.readUInt8(8), error.readUInt16BE(4), error.readUInt8(20), error.readUInt8(21)]).toEqual([8, 0, 3, 0])
    expect(error.readUInt32BE(12)).toBe(parseIpv4('10.5.1.0'))
    expect(error.readUInt32BE(16)).toBe(parseIpv4('10.5.1.2'))
    expect(error.subarray(28)).toEqual(packet.subarray(0, 28))
    expect(internetChecksum(error.subarray(0, 20))).toBe(0)
    expect(internetChecksum(error.subarray(20))).toBe(0)
  })

  it('knows its own datagram around another one', () => {
    const [own, peer] = [parseIpv4('192.168.77.1')!, parseIpv4('10.5.2.9')!]
    const around = (packet: Buffer, source = own, port = 8285, fragment = 0): Buffer => {
      const payload = udpDatagram(source, peer, 8525, port, packet)
      return ipv4Packet({ source, destination: peer, payload, fragment })
    }
    const once = around(ipv4Packet({ source: parseIpv4('10.5.1.2')!, destination: peer }))
    const is = (packet: Buffer): boolean => isNestedTwice(own, 0, packet)
    expect([once, around(once), around(once, own, 8285, 0x2000)].map(is)).toEqual([false, true, true])
    expect([around(once, peer), around(once, own, 53), around(once, own, 8285, 5)].map(is)).toEqual([
      false,
      false,
      false,
    ])
    expect(is(around(around(once, own, 1, 5)))).toBe(true)
    expect(is(around(once.subarray(0, 20)))).toBe(false)
    expect(isNestedTwice(own, 22, around(Buffer.concat([Buffer.alloc(22), once])))).toBe(true)
  })

  it('says what the next hop takes', () => {
    const packet = ipv4Packet({ source: parseIpv4('10.5.1.2')!, destination: parseIpv4('10.5.9.9')! })
    const error = icmpError(fragmentationNeeded(1252), 1, packet)!
    expect([error.readUInt8(20), error.readUInt8(21), error.readUInt16BE(26)]).toEqual([3, 4, 1252])
    expect(internetChecksum(error.subarray(20))).toBe(0)
  })

  it('cuts what may be cut into fragments that are the packet again', () => {
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

  it('does not answer ICMP errors, later fragments, or what comes from no host', () => {
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

describe('peer records', () => {
  it('read back as they were', () => {
    const ip = fc.integer({ min: 0, max: 0xffffffff })
    const peer = fc.record({
      subnet: fc.tuple(ip, fc.integer({ min: 0, max: 32 })).map(([address, length]) => ipv4Net(address, length)),
      endpoint: ip,
      port: fc.integer({ min: 0, max: 65535 }),
    })
    const limited = fc.record({
      ...{ subnet: peer.map(({ subnet }) => subnet), endpoint: ip },
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
