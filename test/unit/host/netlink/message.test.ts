// message.test.ts - the encoder and the decoder of netlink messages.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  Attributes,
  messagesIn,
  MessageWriter,
  NLM_F,
  type ReceivedMessage,
} from '../../../../src/host/netlink/message.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'

const HEADER = 4
const onlyMessage = (buffer: Buffer): ReceivedMessage => {
  const [message, ...more] = messagesIn(buffer)
  expect(more).toEqual([])
  if (!message) throw new Error('no message')
  return message
}
/** Decodes the attributes of a message with a fixed header of 4 bytes. */
const decoded = (writer: MessageWriter): Attributes => onlyMessage(writer.finish()).attributes(HEADER)
const request = (): MessageWriter => new MessageWriter(16).u32(7)

describe('a message', () => {
  it('has the type, the flags, the header and the length that were written', () => {
    const buffer = new MessageWriter(24, NLM_F.ACK | NLM_F.CREATE).u8(2).u8(3).u16(0x1234).u32(0xfffffffe).finish()
    const message = onlyMessage(buffer)
    expect(buffer.length).toBe(24)
    expect(message.type).toBe(24)
    expect(message.flags).toBe(NLM_F.REQUEST | NLM_F.ACK | NLM_F.CREATE)
    expect([message.u8(0), message.u8(1), message.u16(2), message.u32(4)]).toEqual([2, 3, 0x1234, 0xfffffffe])
  })

  it('reads as zero beyond its end', () => {
    const message = onlyMessage(new MessageWriter(1).u8(9).finish())
    expect([message.u8(1), message.u16(0), message.u32(0), message.attributes(16).has(1)]).toEqual([0, 0, 0, false])
  })

  it('ends at a length that does not fit', () => {
    const buffer = Buffer.concat([request().finish(), request().finish().subarray(0, 17)])
    expect([...messagesIn(buffer)]).toHaveLength(1)
  })

  it('is followed by the next message at a multiple of 4 bytes', () => {
    const buffer = Buffer.concat([new MessageWriter(1).u8(1).finish(), request().finish()])
    expect([...messagesIn(buffer)].map(({ type }) => type)).toEqual([1, 16])
  })
})

describe('an attribute', () => {
  it('keeps numbers, texts, addresses and link-layer addresses', () => {
    const ipv6 = parseIpv6('fd00:5::1') ?? 0n
    const attributes = decoded(
      request()
        .attributeU8(1, 200)
        .attributeU16(2, 40_000)
        .networkU16(3, 8472)
        .attributeU32(4, 4_000_000_000)
        .attributeU64(5, 2n ** 63n)
        .text(6, 'flannel.1')
        .address(7, 0x0a050201)
        .address(8, ipv6)
        .mac(9, '02:11:22:aa:bb:cc')
        .flag(10),
    )
    expect(attributes.u8(1)).toBe(200)
    expect(attributes.u16(2)).toBe(40_000)
    expect([attributes.networkU16(3), attributes.bytes(3)]).toEqual([8472, Buffer.from([0x21, 0x18])])
    expect(attributes.u32(4)).toBe(4_000_000_000)
    expect(attributes.u64(5)).toBe(2n ** 63n)
    expect(attributes.text(6)).toBe('flannel.1')
    expect(attributes.address(7)).toBe(0x0a050201)
    expect(attributes.address(8)).toBe(ipv6)
    expect(attributes.mac(9)).toBe('02:11:22:aa:bb:cc')
    expect([attributes.has(10), attributes.has(11)]).toEqual([true, false])
  })

  it('may contain attributes', () => {
    const list = decoded(
      request().nested(1, (inner) => {
        for (const number of [1, 2]) inner.nested(0, (element) => element.attributeU32(5, number).text(6, 'x'))
      }),
    ).nested(1)
    expect(list?.elements().map((element) => element.u32(5))).toEqual([1, 2])
  })

  it('counts as missing if its value is too short', () => {
    const attributes = decoded(
      request()
        .bytes(1, Buffer.from([1]))
        .bytes(2, Buffer.alloc(5)),
    )
    expect([attributes.u16(1), attributes.u32(1), attributes.u64(1), attributes.networkU16(1)]).toEqual(
      Array.from({ length: 4 }, () => undefined),
    )
    expect(attributes.address(2)).toBeUndefined()
  })

  it('has the last of several values', () => {
    expect(decoded(request().attributeU32(1, 5).attributeU32(1, 6)).u32(1)).toBe(6)
  })

  it('ends at a length that does not fit', () => {
    const whole = onlyMessage(request().attributeU32(1, 5).attributeU32(2, 6).finish()).body.subarray(HEADER)
    expect(new Attributes(whole.subarray(0, 15)).u32(2)).toBeUndefined()
    expect(new Attributes(whole.subarray(0, 15)).u32(1)).toBe(5)
  })

  it('cannot be longer than 65,535 bytes', () => {
    expect(() => request().bytes(1, Buffer.alloc(65_532))).toThrow(RangeError)
    expect(() => request().nested(1, (inner) => inner.bytes(2, Buffer.alloc(65_528)))).toThrow(RangeError)
    expect(decoded(request().bytes(1, Buffer.alloc(65_531, 3))).bytes(1)).toEqual(Buffer.alloc(65_531, 3))
  })
})

it('decodes what was encoded', () => {
  const pairs = fc.array(fc.tuple(fc.nat(0x3fff), fc.uint8Array({ maxLength: 300 })), { maxLength: 30 })
  fc.assert(
    fc.property(fc.nat(0xffff), pairs, (type, attributes) => {
      const writer = new MessageWriter(type).u32(1)
      for (const [kind, value] of attributes) writer.bytes(kind, value)
      const message = onlyMessage(writer.finish())
      expect(message.type).toBe(type)
      for (const [kind, value] of new Map(attributes)) {
        expect(message.attributes(HEADER).bytes(kind)).toEqual(Buffer.from(value))
      }
    }),
  )
})

it('reads random bytes without an error', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 400 }), fc.nat(40), (bytes, type) => {
      const buffer = Buffer.from(bytes)
      const sets = [new Attributes(buffer)]
      for (const message of messagesIn(buffer)) sets.push(message.attributes(type))
      for (const set of sets) {
        set.elements()
        set.nested(type)?.elements()
        for (const read of ['u8', 'u16', 'u32', 'u64', 'networkU16', 'text', 'address', 'mac', 'bytes'] as const) {
          set[read](type)
        }
      }
    }),
    { numRuns: 500 },
  )
})
