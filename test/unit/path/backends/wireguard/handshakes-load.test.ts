// handshakes-load.test.ts - handshakes under load in virtual time: floods, rate limits, cookies, and hundreds of
// peers.

import { describe, expect, it } from 'vitest'
import { type Endpoint, macKeysOf, writeMacs } from '../../../../../src/path/backends/wireguard/cookie.ts'
import { systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { createIndices, LOW_MASK } from '../../../../../src/path/backends/wireguard/indices.ts'
import { INITIATIONS, RATES, REKEY_TIMEOUT_MS } from '../../../../../src/path/backends/wireguard/limits.ts'
import { INITIATION_BYTES } from '../../../../../src/path/backends/wireguard/messages.ts'
import {
  A,
  B,
  ELSEWHERE,
  INDEX_SECRET,
  pair,
  peerOf,
  recordedSecrets,
  runTo,
  type Side,
  sideOf,
  take,
} from '../../../../support/handshake-sides.ts'

describe('under load', () => {
  /**
   * Sends `count` initiations from different addresses, with a correct mac1 and contents that cannot be decrypted: such
   * a sender needs only the public key.
   */
  const flood = (to: Side, count: number, now: number): void => {
    const keys = macKeysOf(to.handshakes.publicKey)
    for (let at = 0; at < count; at += 1) {
      const message = Buffer.alloc(INITIATION_BYTES, at + 1)
      message.writeUInt32LE(1, 0)
      writeMacs(message, keys, systemRandomness.bytes(16))
      to.handshakes.message({ address: 1_000 + at, port: 1 }, message, now)
    }
  }

  it('a sender gets a cookie, proves its address with its next message, and is accepted', () => {
    const { a, b } = pair()
    flood(b, RATES.free.burst, 0)
    expect(b.sent).toEqual([])
    a.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(a), 0)
    const reply = take(b)
    expect(reply).toHaveLength(64)
    expect(b.handshakes.counters.cookiesSent).toBe(1)
    a.handshakes.message(B, reply, 0)
    a.handshakes.message(B, reply, 0) // a repeated reply is refused
    expect(a.handshakes.counters.junk).toBe(1)
    expect(a.sent).toEqual([]) // the cookie does not cause an earlier initiation
    runTo(a, 5_400)
    flood(b, RATES.free.burst, 5_400)
    b.sent.length = 0
    b.handshakes.message(A, take(a), 5_400)
    a.handshakes.message(B, take(b), 5_400)
    expect(a.keys[0]!.sendKey).toEqual(b.keys[0]!.receiveKey)
  })

  it('senders of dropped initiations are reported, and no others', () => {
    const { a, b } = pair()
    flood(b, RATES.free.burst, 0)
    expect(b.overlooked).toHaveLength(RATES.free.burst) // the peer's own initiation may have been lost beside an unknown one
    b.overlooked.length = 0
    a.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(a), 0)
    expect(b.overlooked).toEqual([A])
    const junk = Buffer.alloc(INITIATION_BYTES, 7)
    junk.writeUInt32LE(1, 0)
    b.handshakes.message(ELSEWHERE, junk, 0)
    expect(b.overlooked).toEqual([A])
    flood(b, RATES.received.burst, 0)
    expect(b.overlooked.length).toBeGreaterThan(RATES.received.burst - RATES.free.burst)
  })

  it('the sender of a repeated initiation is reported, unless it was answered a moment ago', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const initiation = take(a)
    for (const later of [0, 1, REKEY_TIMEOUT_MS - 1]) b.handshakes.message(A, initiation, 10_000 + later)
    expect([b.overlooked, b.keys.length]).toEqual([[], 1])
    b.handshakes.message(ELSEWHERE, initiation, 10_000 + REKEY_TIMEOUT_MS)
    expect([b.overlooked, b.keys.length]).toEqual([[ELSEWHERE], 1])
  })

  it('a response may need a cookie too', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(a), 0)
    const answer = take(b)
    for (let at = 0; at < RATES.requested.burst; at += 1) {
      const forged = Buffer.from(answer)
      forged[20]! ^= at + 1
      writeMacs(forged, macKeysOf(a.handshakes.publicKey), undefined)
      a.handshakes.message(ELSEWHERE, forged, 0)
    }
    a.handshakes.message(B, answer, 0)
    expect(a.keys).toEqual([])
    b.handshakes.message(A, take(a), 0)
    expect(b.handshakes.counters).toEqual({ junk: 0, limited: 0, cookiesSent: 0 })
    // The node's next message must have mac2.
    runTo(a, 5_400)
    b.handshakes.message(A, take(a), 5_400)
    expect(take(b).subarray(-16)).not.toEqual(Buffer.alloc(16))
  })

  it('a node with hundreds of peers gets all keys as fast as it sends initiations', () => {
    const many = 2 * (INITIATIONS.perSecond + INITIATIONS.burst)
    const a = sideOf()
    const others = Array.from({ length: many }, () => sideOf())
    const whereIs = (number: number): Endpoint => ({ address: 0x0a01_0000 + number, port: 51_820 })
    a.handshakes.setPeers(others.map((each, number) => peerOf(each, whereIs(number), { number })))
    for (const [number, each] of others.entries()) {
      each.handshakes.setPeers([peerOf(a, A)])
      a.handshakes.wanted(number, 0)
    }
    const seconds = (many - INITIATIONS.burst) / INITIATIONS.perSecond
    for (let now = 0; now <= seconds * 1_000 + 20; now += 20) {
      a.handshakes.tick(now)
      for (const { to, datagram } of a.sent.splice(0)) {
        const other = others[Number(to.address) - 0x0a01_0000]!
        other.handshakes.message(A, datagram, now)
        a.handshakes.message(to, take(other), now)
      }
    }
    expect(a.keys.map(({ peer }) => peer).toSorted((one, other) => one - other)).toEqual([...others.keys()])
    expect(a.handshakes.counters).toEqual({ junk: 0, limited: 0, cookiesSent: 0 })
  })

  it('a flood of initiations does not affect requested responses', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(a), 0)
    flood(a, 3_000, 0)
    a.sent.length = 0
    a.handshakes.message(B, take(b), 0)
    expect(a.keys).toHaveLength(1)
  })

  it('a cookie that was not requested, or is not from the peer, is not used', () => {
    const { a, b } = pair()
    const reply = Buffer.alloc(64)
    reply[0] = 3
    a.handshakes.message(B, reply, 0)
    a.handshakes.wanted(3, 0)
    const first = take(a)
    reply.set(first.subarray(4, 8), 4)
    a.handshakes.message(B, reply, 0)
    runTo(a, 5_400)
    expect(take(a).subarray(-16)).toEqual(Buffer.alloc(16))
    expect(a.handshakes.counters.junk).toBe(2)
    expect(b.keys).toEqual([])
  })

  it('a cookie reply with the index of another message is not used', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const first = take(a)
    flood(b, RATES.free.burst, 0)
    b.handshakes.message(A, first, 0)
    const reply = take(b)
    const other = Buffer.from(reply)
    const { low } = a.handshakes.memoryOf(3)!
    other.writeUInt32LE(createIndices(INDEX_SECRET).of(3, (low + 1) & LOW_MASK), 4)
    a.handshakes.message(B, other, 0)
    expect(a.handshakes.counters.junk).toBe(1)
    a.handshakes.message(B, reply, 0)
    runTo(a, 5_400)
    expect(take(a).subarray(-16)).not.toEqual(Buffer.alloc(16))
  })

  it('messages beyond the rate of all messages are not checked', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const junk = Buffer.from(take(a))
    junk[120]! ^= 1 // mac1
    const { burst } = RATES.received
    for (let count = 0; count < burst + 10; count++) b.handshakes.message(A, junk, 0)
    const { junk: checked, limited } = b.handshakes.counters
    expect(checked + limited).toBe(burst + 10)
    expect(checked).toBeGreaterThanOrEqual(burst - 1) // the interval of 2/3 ms is rounded
    expect(checked).toBeLessThanOrEqual(burst)
  })

  it('no more cookies are sent than the rate allows', () => {
    const { b } = pair()
    const count = RATES.free.burst + RATES.cookies.burst + 10
    flood(b, count, 0)
    expect(b.sent).toHaveLength(RATES.cookies.burst)
    expect(b.handshakes.counters).toEqual({
      junk: RATES.free.burst,
      limited: RATES.cookies.burst + 10,
      cookiesSent: RATES.cookies.burst,
    })
  })

  it('cookie replies beyond the rate of all cookie replies are not decrypted', () => {
    const { a, b } = pair()
    flood(b, RATES.free.burst, 0)
    a.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(a), 0)
    const reply = take(b)
    const forged = Buffer.from(reply)
    forged[40]! ^= 1
    const { burst } = RATES.received
    for (let count = 0; count < burst; count++) a.handshakes.message(B, forged, 0)
    const { limited } = a.handshakes.counters
    a.handshakes.message(B, reply, 0)
    expect(a.handshakes.counters.limited).toBe(limited + 1)
    runTo(a, 5_400)
    expect(take(a).subarray(-16)).toEqual(Buffer.alloc(16))
  })

  it('the secret of the cookies is erased by `close`', () => {
    const { random, erased } = recordedSecrets()
    const b = sideOf({ random })
    flood(b, RATES.free.burst + 1, 0)
    expect(erased()).toEqual([false])
    b.handshakes.close()
    expect(erased()).toEqual([true])
  })

  it('a cookie is used for 115 seconds', () => {
    for (const [later, isUsed] of [
      [114_999, true],
      [115_000, false],
    ] as const) {
      const { a, b } = pair()
      flood(b, RATES.free.burst, 0)
      a.handshakes.wanted(3, 0)
      b.handshakes.message(A, take(a), 0)
      a.handshakes.message(B, take(b), 0)
      runTo(a, 96_000)
      expect(a.handshakes.nextAt()).toBe(Infinity)
      a.sent.length = 0
      a.handshakes.wanted(3, later)
      expect(take(a).subarray(-16).equals(Buffer.alloc(16))).toBe(!isUsed)
    }
  })
})
