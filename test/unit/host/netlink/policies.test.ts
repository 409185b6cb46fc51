// policies.test.ts - the lists of IPsec policies and states, read from the kernel's structures (linux/xfrm.h).

import { endianness } from 'node:os'
import { expect, it } from 'vitest'
import { addressBytes, messagesIn, MessageWriter } from '../../../../src/host/netlink/message.ts'
import {
  defaultsIn,
  getDefaults,
  listPolicies,
  listStates,
  policiesIn,
  statesIn,
} from '../../../../src/host/netlink/policies.ts'
import { parseAddress, parseNet, type Address } from '../../../../src/net/address.ts'

const at = (text: string): Address => parseAddress(text)!
const FAMILY = { ipv4: 2, ipv6: 10 } as const
const [NEW_STATE, NEW_POLICY, DEFAULTS] = [0x10, 0x13, 0x28]
const [TEMPLATES, MARK, INTERFACE_ID] = [5, 21, 31]

/** A `xfrm_address_t`, which has 16 bytes. */
const address = (text: string): Buffer => Buffer.concat([addressBytes(at(text))], 16)

/** Returns the bytes of a structure with the given numbers, in the byte order of the host. */
function numbers(bytes: number, ...values: (readonly [at: number, size: 1 | 2 | 4, value: number])[]): Buffer {
  const buffer = Buffer.alloc(bytes)
  for (const [place, size, value] of values)
    if (endianness() === 'LE') buffer.writeUIntLE(value, place, size)
    else buffer.writeUIntBE(value, place, size)
  return buffer
}

const selector = (destination: string, bits: number, source: string, sourceBits: number, family: number): Buffer =>
  Buffer.concat(
    [address(destination), address(source), numbers(24, [8, 2, family], [10, 1, bits], [11, 1, sourceBits])],
    56,
  )
const template = numbers(64, [20, 1, 50], [24, 2, FAMILY.ipv4], [44, 4, 7], [48, 1, 1], [50, 1, 1])
template.set(addressBytes(at('192.0.2.1')), 0)
template.set(addressBytes(at('192.0.2.2')), 28)

function policy(head: Buffer, direction: number, action: number, priority = 0): MessageWriter {
  const rest = numbers(112, [96, 4, priority], [104, 1, direction], [105, 1, action])
  return new MessageWriter(NEW_POLICY).raw(head).raw(rest)
}

it.skipIf(endianness() === 'BE')('requests the lists and the default policies', () => {
  expect([listPolicies(), listStates(), getDefaults()].map((request) => request.toString('hex'))).toEqual([
    '10000000150001030000000000000000',
    '10000000120001030000000000000000',
    '1400000028000500000000000000000000000000',
  ])
})

it('reads the policies, the oldest first, and leaves out the policies of sockets', () => {
  const mark = numbers(8, [0, 4, 0x10], [4, 4, 0xff])
  const answer = Buffer.concat([
    policy(selector('fd00:5::', 48, 'fd00:6::', 48, FAMILY.ipv6), 1, 0, 9)
      .bytes(TEMPLATES, template)
      .bytes(MARK, mark)
      .attributeU32(INTERFACE_ID, 3)
      .finish(),
    policy(selector('0.0.0.0', 0, '0.0.0.0', 0, FAMILY.ipv4), 4, 0).finish(),
    policy(selector('10.5.1.0', 24, '10.5.0.0', 16, FAMILY.ipv4), 2, 1).finish(),
    policy(selector('10.5.1.0', 24, '10.5.0.0', 16, FAMILY.ipv4), 2, 1)
      .finish()
      .subarray(0, 100),
  ])
  const plain = { protocol: 0, hasPorts: false, deviceIndex: 0, mark: undefined, interfaceId: 0, templates: [] }
  expect(policiesIn(messagesIn(answer))).toEqual([
    {
      ...plain,
      direction: 'fwd',
      family: 'ipv4',
      source: parseNet('10.5.0.0/16'),
      destination: parseNet('10.5.1.0/24'),
      isBlock: true,
      priority: 0,
    },
    {
      ...plain,
      direction: 'out',
      family: 'ipv6',
      source: parseNet('fd00:6::/48'),
      destination: parseNet('fd00:5::/48'),
      isBlock: false,
      priority: 9,
      mark: 0x10,
      interfaceId: 3,
      templates: [
        {
          family: 'ipv4',
          source: at('192.0.2.2'),
          destination: at('192.0.2.1'),
          protocol: 50,
          requestId: 7,
          mode: 1,
          isOptional: true,
        },
      ],
    },
  ])
})

it('reads the states that have an SPI', () => {
  const state = (spi: number): Buffer => {
    const id = Buffer.concat([address('192.0.2.2'), numbers(8, [0, 4, spi], [4, 1, 50]), address('192.0.2.1')])
    const rest = numbers(128, [112, 4, 7], [116, 2, FAMILY.ipv4], [118, 1, 1])
    return new MessageWriter(NEW_STATE).raw(Buffer.concat([Buffer.alloc(56), id, rest])).finish()
  }
  expect(statesIn(messagesIn(Buffer.concat([state(0), state(5)])))).toEqual([
    {
      family: 'ipv4',
      source: at('192.0.2.1'),
      destination: at('192.0.2.2'),
      protocol: 50,
      requestId: 7,
      mode: 1,
      isOptional: false,
    },
  ])
})

it('reads the directions that the default policies block', () => {
  const defaults = (...values: number[]): Buffer => new MessageWriter(DEFAULTS).raw(Buffer.from(values)).finish()
  expect(
    [defaults(2, 1, 2), defaults(1, 2, 1), defaults(2, 2, 2), Buffer.alloc(0)].map((one) =>
      defaultsIn(messagesIn(one)),
    ),
  ).toEqual([['fwd'], ['in', 'out'], [], []])
})
