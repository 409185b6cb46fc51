// packet-text.test.ts - describes the headers of packets, and any other bytes.

import fc from 'fast-check'
import { expect, it } from 'vitest'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { packetText } from '../../../../src/tool/weft/packet-text.ts'
import { ipv4Packet, udpDatagram } from '../../../support/packets.ts'

const [source, destination] = [parseIpv4('10.5.1.2')!, parseIpv4('10.5.2.7')!]
const udp = udpDatagram(source, destination, 4000, 53, Buffer.alloc(9))
const packet = (fields: object): Buffer => ipv4Packet({ source, destination, ...fields })
const version6 = (next: number, behind: Buffer): Buffer =>
  Buffer.concat([
    Buffer.from([0x60, 0, 0, 0, 0, 8, next, 64]),
    Buffer.alloc(16, 0xfd),
    Buffer.alloc(15),
    Buffer.from([1]),
    behind,
  ])

it.each([
  [packet({ payload: udp }), '10.5.1.2:4000 > 10.5.2.7:53 udp'],
  [packet({ payload: udp, options: Buffer.from('01010100', 'hex') }), '10.5.1.2:4000 > 10.5.2.7:53 udp'],
  [packet({ protocol: 6, payload: Buffer.from('1f900050', 'hex') }), '10.5.1.2:8080 > 10.5.2.7:80 tcp'],
  [packet({ protocol: 6, payload: Buffer.from('1f9000', 'hex') }), '10.5.1.2 > 10.5.2.7 tcp'],
  [packet({ payload: udp, fragment: 0x2000 }), '10.5.1.2:4000 > 10.5.2.7:53 udp'],
  [packet({ payload: udp, fragment: 0x2010 }), '10.5.1.2 > 10.5.2.7 udp, a later fragment'],
  [packet({ protocol: 1, payload: Buffer.from([8, 0]) }), '10.5.1.2 > 10.5.2.7 icmp echo request'],
  [packet({ protocol: 1, payload: Buffer.from([13]) }), '10.5.1.2 > 10.5.2.7 icmp type 13'],
  [packet({ protocol: 1 }), '10.5.1.2 > 10.5.2.7 icmp'],
  [packet({ protocol: 2 }), '10.5.1.2 > 10.5.2.7 igmp'],
  [packet({ protocol: 47 }), '10.5.1.2 > 10.5.2.7 gre'],
  [packet({ protocol: 50 }), '10.5.1.2 > 10.5.2.7 esp'],
  [packet({ protocol: 132, payload: Buffer.from('1f900050', 'hex') }), '10.5.1.2:8080 > 10.5.2.7:80 sctp'],
  [packet({ protocol: 1, payload: Buffer.from([0]) }), '10.5.1.2 > 10.5.2.7 icmp echo reply'],
  [packet({ protocol: 1, payload: Buffer.from([3]) }), '10.5.1.2 > 10.5.2.7 icmp unreachable'],
  [packet({ protocol: 1, payload: Buffer.from([5]) }), '10.5.1.2 > 10.5.2.7 icmp redirect'],
  [packet({ protocol: 1, payload: Buffer.from([11]) }), '10.5.1.2 > 10.5.2.7 icmp time exceeded'],
  [packet({ protocol: 253 }), '10.5.1.2 > 10.5.2.7 protocol 253'],
  [version6(17, udp), '[fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd]:4000 > [::1]:53 udp'],
  [version6(58, Buffer.alloc(0)), '[fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd] > [::1] icmp6'],
  [Buffer.from('hello'), 'not an IP packet: 68656c6c6f'],
  [Buffer.alloc(16, 1), `not an IP packet: ${'01'.repeat(16)}`],
  [Buffer.alloc(17, 1), `not an IP packet: ${'01'.repeat(16)}...`],
  [Buffer.alloc(200, 1), `not an IP packet: ${'01'.repeat(16)}...`],
  [Buffer.alloc(0), 'nothing'],
])('%# %s', (bytes, text) => expect(packetText(bytes)).toBe(text))

it('describes any bytes', () => {
  fc.assert(
    fc.property(fc.constantFrom(0x40, 0x4f, 0x45, 0x60, 0), fc.uint8Array({ maxLength: 128 }), (first, rest) => {
      expect(packetText(Buffer.from([first, ...rest]))).toMatch(/^[\x20-\x7e]+$/)
    }),
  )
})
