// conversation.test.ts - validates the lines and datagrams of the other host.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  isReady,
  LIMITS,
  lineOf,
  readArrived,
  readDatagramNumber,
  readEnded,
  readGreeting,
  readReceived,
  readRefusal,
  readRequest,
  readWelcome,
  writeDatagramHeader,
} from '../../../../src/tool/measure/conversation.ts'

const MARK = '0123456789abcdef'
const IN_USE = {
  subnet: '10.5.1.0/24',
  backendType: 'udp',
  device: 'flannel0',
  engine: 'native',
  mtu: 1472,
  pathMtu: null,
  features: ['udp-gso'],
}
const READERS = [readGreeting, readRequest, readRefusal, readWelcome, readReceived, readArrived, readEnded]

describe('a line', () => {
  it.each([
    [readGreeting, { wants: 'run', inside: '10.5.1.0' }],
    [readGreeting, { wants: 'stream', run: MARK }],
    [readGreeting, { wants: 'echo', run: MARK }],
    [readRequest, { ask: 'tcp', streams: 8, seconds: 0.5 }],
    [readRequest, { ask: 'udp', first: 7, datagrams: 1000 }],
    [readRequest, { ask: 'sent', datagrams: 900 }],
    [readRequest, { ask: 'end' }],
    [readRequest, { ask: 'tcp', streams: LIMITS.streams, seconds: LIMITS.seconds }],
    [readRequest, { ask: 'udp', first: 0, datagrams: 0 }],
    [readRequest, { ask: 'udp', first: 2 ** 32 - 1, datagrams: LIMITS.datagrams }],
    [readReceived, { bytes: 0, seconds: 0, busy: 0 }],
    [readRefusal, { refused: 'it rains' }],
    [readWelcome, { run: MARK, inUse: IN_USE }],
    [readWelcome, { run: MARK, inUse: null }],
    [readReceived, { bytes: 1e10, seconds: 1.01, busy: 1.2 }],
    [readArrived, { datagrams: 5, reordered: 1, overflowed: 2 }],
    [readEnded, { drops: { rx_drop_spoofed_source: 3 } }],
    [readEnded, { drops: null }],
  ])('is parsed by %o: %j', (read, message) => {
    const line = lineOf(message)
    expect(line.endsWith('}\n')).toBe(true)
    expect(read(line)).toEqual(message)
    expect(read(line.replace('"weftBench":1', '"weftBench":2'))).toBeUndefined()
  })

  it.each([
    [readGreeting, { wants: 'all', run: MARK }],
    [readGreeting, { wants: 'stream', run: `${MARK}0` }],
    [readGreeting, { wants: 'run', inside: 5 }],
    [readGreeting, { wants: 'all', inside: '10.5.1.0' }],
    [readGreeting, { wants: 'stream', run: 123 }],
    [readGreeting, { wants: 'stream', run: [MARK] }],
    [readRequest, { ask: 'tcp', streams: 8, seconds: LIMITS.seconds + 1 }],
    [readRequest, { ask: 'tcp', streams: LIMITS.streams + 1, seconds: 1 }],
    [readRequest, { ask: 'tcp', streams: 0, seconds: 1 }],
    [readRequest, { ask: 'tcp', streams: 1, seconds: 0 }],
    [readRequest, { ask: 'udp', first: 2 ** 32, datagrams: 1 }],
    [readRequest, { ask: 'udp', first: 0, datagrams: LIMITS.datagrams + 1 }],
    [readRequest, { ask: 'sent', datagrams: -1 }],
    [readRequest, { ask: 'anything' }],
    [readReceived, { bytes: -1, seconds: 1, busy: 0 }],
    [readArrived, { datagrams: '5', reordered: 0, overflowed: 0 }],
  ])('is refused by %o: %j', (read, message) => expect(read(lineOf(message))).toBeUndefined())

  it('of any text never throws', () => {
    fc.assert(
      fc.property(fc.oneof(fc.string(), fc.json()), (line) => {
        for (const read of READERS) expect(read(line)).toBeUndefined()
        expect(isReady(line)).toBe(false)
      }),
    )
    for (const line of ['null', '5', '"weftBench"', '[]', '{', '{}', 'true'])
      for (const read of READERS) expect(read(line), line).toBeUndefined()
    expect(isReady(lineOf({ ready: true }))).toBe(true)
    expect(isReady('null')).toBe(false)
    expect(readWelcome(lineOf({ run: MARK, inUse: 'text' }))).toEqual({ run: MARK, inUse: null })
    expect(readWelcome(lineOf({ run: MARK, inUse: {} }))!.inUse).toMatchObject({ subnet: '', features: [] })
    expect(readEnded(lineOf({ drops: 'text' }))).toEqual({ drops: null })
  })

  it('cannot write control characters to the terminal', () => {
    const evil = '\u001B[2Jx'
    expect(readRefusal(lineOf({ refused: evil }))).toEqual({ refused: '?[2Jx' })
    expect(readWelcome(lineOf({ run: MARK, inUse: { subnet: evil, features: [evil], mtu: evil } }))!.inUse).toEqual({
      subnet: '?[2Jx',
      backendType: '',
      device: null,
      engine: null,
      mtu: null,
      pathMtu: null,
      features: ['?[2Jx'],
    })
    expect(readEnded(lineOf({ drops: { [evil]: 1, more: 'x' } }))).toEqual({ drops: { '?[2Jx': 1 } })
  })
})

describe('a datagram', () => {
  it('has a number, which only the run with its mark reads', () => {
    const datagram = new Uint8Array(40).subarray(3, 23)
    writeDatagramHeader(datagram, MARK, 0xffff_fffe)
    expect(readDatagramNumber(datagram, MARK)).toBe(0xffff_fffe)
    expect(readDatagramNumber(datagram, 'ffffffffffffffff')).toBeUndefined()
    expect(readDatagramNumber(datagram.subarray(0, 11), MARK)).toBeUndefined()
    expect(readDatagramNumber(datagram.subarray(0, 12), MARK)).toBe(0xffff_fffe)
  })
})
