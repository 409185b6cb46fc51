// handshakes.test.ts - handshakes of two nodes in virtual time: requests, responses, refusals and results, and invalid
// messages.

import { inspect } from 'node:util'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { macKeysOf, writeMacs } from '../../../../../src/path/backends/wireguard/cookie.ts'
import { systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { MOST_PEERS } from '../../../../../src/path/backends/wireguard/handshakes.ts'
import { INITIATIONS, MOST_UNKNOWN, TURN_MS } from '../../../../../src/path/backends/wireguard/limits.ts'
import { INITIATION_BYTES, RESPONSE_BYTES } from '../../../../../src/path/backends/wireguard/messages.ts'
import type { HandshakePeer } from '../../../../../src/path/backends/wireguard/peer.ts'
import {
  A,
  B,
  ELSEWHERE,
  handshake,
  pair,
  peerOf,
  psk,
  runTo,
  type Side,
  sideOf,
  take,
  WALL,
  withJitter,
} from '../../../../support/handshake-sides.ts'

const base64 = ({ handshakes }: Side): string => Buffer.from(handshakes.publicKey).toString('base64')

describe('a handshake', () => {
  it('gives both nodes the same keys once, with two messages', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const first = take(a)
    expect(first).toHaveLength(INITIATION_BYTES)
    expect([INITIATION_BYTES, RESPONSE_BYTES]).toEqual([148, 92])
    expect([...first.subarray(0, 4)]).toEqual([1, 0, 0, 0])
    b.handshakes.message(A, first, 10)
    expect(b.sent[0]!.to).toEqual(A)
    const second = take(b)
    expect(second).toHaveLength(RESPONSE_BYTES)
    expect([...second.subarray(0, 4)]).toEqual([2, 0, 0, 0])
    a.handshakes.message(B, second, 20)
    const [ours, theirs] = [a.keys[0]!, b.keys[0]!]
    expect(ours).toMatchObject({
      peer: 3,
      isInitiator: true,
      ownIndex: first.readUInt32LE(4),
      peerIndex: second.readUInt32LE(4),
    })
    expect(theirs).toMatchObject({ peer: 9, isInitiator: false, ownIndex: ours.peerIndex, peerIndex: ours.ownIndex })
    expect(ours.sendKey).toEqual(theirs.receiveKey)
    expect(ours.receiveKey).toEqual(theirs.sendKey)
    expect(ours.sendKey).not.toEqual(ours.receiveKey)

    // Repeated messages have no effect, and no further keys are wanted.
    b.handshakes.message(A, first, 1_000)
    a.handshakes.message(B, second, 1_000)
    runTo(a, 1e6)
    expect([a.keys, b.keys, a.sent, b.sent].map((each) => each.length)).toEqual([1, 1, 0, 0])
    expect(a.handshakes.nextAt()).toBe(Infinity)
  })

  it('wipes the keys after giving them to the engine', () => {
    const { a, b } = pair()
    handshake({ a, b }, 0)
    for (const { sendKey, receiveKey } of [...a.given, ...b.given]) {
      expect(Buffer.from(sendKey)).toEqual(Buffer.alloc(32))
      expect(Buffer.from(receiveKey)).toEqual(Buffer.alloc(32))
    }
  })

  it('reports its time and the number of attempts', () => {
    const { a, b } = pair()
    expect(a.handshakes.stateOf(3)).toEqual({
      at: undefined,
      attempts: 0,
      failure: undefined,
      stale: 0,
      unconfirmed: 0,
    })
    expect(a.handshakes.stateOf(4)).toBeUndefined()
    a.handshakes.wanted(3, 0)
    expect(a.handshakes.stateOf(3)).toMatchObject({ at: undefined, attempts: 1, failure: undefined })
    b.handshakes.message(A, take(a), 0)
    expect(b.handshakes.stateOf(9)).toMatchObject({ at: undefined, attempts: 0, unconfirmed: 1 })
    a.wall = WALL + 7
    a.handshakes.message(B, take(b), 0)
    expect(a.handshakes.stateOf(3)).toMatchObject({ at: WALL + 7, attempts: 0 })
    b.handshakes.confirmed(9, 0)
    expect(b.handshakes.stateOf(9)).toMatchObject({ at: WALL, unconfirmed: 0 })
  })

  it('has an index that contains the peer and differs from earlier indices', () => {
    const { a, b } = pair({ a: { number: MOST_PEERS - 1 } })
    const indices = new Set<number>()
    for (let round = 0; round < 300; round += 1) {
      const now = round * 6_000
      a.handshakes.tick(now)
      a.handshakes.wanted(MOST_PEERS - 1, now)
      b.wall = a.wall = WALL + now
      b.handshakes.message(A, take(a), now)
      a.handshakes.message(B, take(b), now)
      indices.add(a.keys[round]!.ownIndex)
    }
    expect(a.keys).toHaveLength(300)
    expect(indices.size).toBe(300)
    expect(new Set([...indices].map((index) => Math.floor(index / 4096))).size).toBe(1)
  })

  it('also works with a common psk', () => {
    const pairs = pair({ a: { psk: psk(5) }, b: { psk: psk(5) } })
    handshake(pairs, 0)
    expect(pairs.a.keys[0]!.sendKey).toEqual(pairs.b.keys[0]!.receiveKey)
  })

  it('that both nodes begin simultaneously gives both the same two sessions', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    b.handshakes.wanted(9, 0)
    const [ofA, ofB] = [take(a), take(b)]
    a.handshakes.message(B, ofB, 0)
    b.handshakes.message(A, ofA, 0)
    const [answerOfA, answerOfB] = [take(a), take(b)]
    a.handshakes.message(B, answerOfB, 0)
    b.handshakes.message(A, answerOfA, 0)
    const sending = (side: Side) => side.keys.map(({ sendKey }) => sendKey.toString()).toSorted()
    const receiving = (side: Side) => side.keys.map(({ receiveKey }) => receiveKey.toString()).toSorted()
    expect(a.keys.map(({ isInitiator }) => isInitiator)).toEqual([false, true])
    expect([sending(a), receiving(a)]).toEqual([receiving(b), sending(b)])
  })
})

describe('an initiation without a response', () => {
  it('is repeated every five seconds with a jitter, different each time, for 90 seconds, and then given up', () => {
    const { a } = pair()
    const times: number[] = []
    a.handshakes.wanted(3, 0)
    const seen = new Set<string>()
    for (let at = 0; at < Infinity; at = a.handshakes.nextAt()) {
      a.handshakes.wanted(3, at) // without effect while a handshake is running
      a.handshakes.tick(at)
      for (const { datagram, to } of a.sent.splice(0)) {
        expect(to).toEqual(B)
        times.push(at)
        seen.add(datagram.subarray(8).toString('hex'))
      }
      expect(a.handshakes.stateOf(3)!.attempts).toBe(times.length)
    }
    for (const [at, time] of times.slice(1).entries()) {
      expect(time - times[at]!).toBeGreaterThanOrEqual(5_000)
      expect(time - times[at]!).toBeLessThanOrEqual(5_333 + 32)
    }
    expect(new Set(times.slice(1).map((time, at) => time - times[at]!)).size).toBeGreaterThan(3) // the intervals differ by the jitter
    expect(times.at(-1)).toBeLessThan(90_000)
    expect(times.length).toBeGreaterThanOrEqual(17)
    expect(seen.size).toBe(times.length)
    expect(a.handshakes.stateOf(3)).toMatchObject({ failure: 'no-answer', attempts: times.length })
    expect(a.handshakes.nextAt()).toBe(Infinity)
    // The node must begin another handshake immediately when keys are wanted, and repeat its initiation too.
    a.handshakes.wanted(3, 200_000)
    expect(a.sent).toHaveLength(1)
    runTo(a, 205_400)
    expect(a.sent).toHaveLength(2)
  })

  it('is repeated until 90 seconds after the keys were wanted, and not later', () => {
    for (const [later, count] of [
      [89_999, 2],
      [90_000, 1],
    ] as const) {
      const { a } = pair()
      a.handshakes.wanted(3, 1_000)
      a.handshakes.tick(1_000 + later)
      expect(a.sent).toHaveLength(count)
    }
  })

  it('is repeated after a jitter of at most 333 ms', () => {
    for (const [drawn, at] of [
      [333, 5_333],
      [334, 5_000],
    ] as const) {
      const a = sideOf({ random: withJitter(drawn) })
      a.handshakes.setPeers([peerOf(sideOf(), B)])
      a.handshakes.wanted(3, 0)
      expect(a.handshakes.nextAt()).toBe(Math.ceil(at / 32) * 32)
    }
  })

  it('accepts a late response until the next initiation is sent', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const first = take(a)
    b.handshakes.message(A, first, 0)
    const late = take(b)
    runTo(a, 5_400)
    const second = take(a)
    a.handshakes.message(B, late, 5_400)
    expect(a.keys).toEqual([])
    b.wall += 6_000
    b.handshakes.message(A, second, 5_400)
    a.handshakes.message(B, take(b), 5_400)
    expect(a.keys).toHaveLength(1)
  })

  it('is not sent to an unknown peer', () => {
    const { a, b } = pair()
    a.handshakes.wanted(77, 0)
    a.handshakes.confirmed(77, 0)
    a.handshakes.moved(77, A)
    expect(a.sent).toEqual([])
    a.handshakes.moved(3, B)
    a.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(a), 0)
    expect(b.keys).toHaveLength(1)
  })

  it('follows the previous one after at least five seconds', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    take(a)
    // The peer's own initiation gives keys, which are lost immediately.
    b.handshakes.wanted(9, 100)
    a.handshakes.message(B, take(b), 100)
    take(a)
    a.handshakes.confirmed(3, 100)
    a.handshakes.wanted(3, 200)
    expect(a.sent).toEqual([]) // the request was older than the keys
    runTo(a, 5_300)
    expect(a.sent).toEqual([])
    a.handshakes.wanted(3, 5_400)
    expect(a.sent).toHaveLength(1)
  })

  it('whose keys are wanted early waits for the deadline of the previous initiation', () => {
    const [a, b] = [sideOf({ random: withJitter(200) }), sideOf()]
    a.handshakes.setPeers([peerOf(b, B)])
    b.handshakes.setPeers([peerOf(a, A, { number: 9 })])
    handshake({ a, b }, 0)
    a.handshakes.wanted(3, 5_000)
    expect(a.sent).toEqual([])
    runTo(a, 5_400)
    expect(a.sent).toHaveLength(1)
  })

  it('is not repeated when the peer’s own handshake gave keys', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    take(a)
    b.handshakes.wanted(9, 1_000)
    a.handshakes.message(B, take(b), 1_000)
    a.handshakes.confirmed(3, 1_010)
    a.sent.length = 0
    runTo(a, 1e6)
    expect(a.sent).toEqual([])
    expect(a.handshakes.stateOf(3)).toMatchObject({ attempts: 0, failure: undefined })
  })

  const manyPeers = (count: number): HandshakePeer[] =>
    Array.from({ length: count }, (_, number) => ({
      number,
      publicKey: systemRandomness.keyPair().publicKey,
      endpoint: { address: number + 1, port: 1 },
    }))

  it('that waits for the rate limit is tried again after 20 ms, although more peers want keys', () => {
    const a = sideOf()
    a.handshakes.setPeers(manyPeers(INITIATIONS.burst + 2))
    for (let number = 0; number <= INITIATIONS.burst; number++) a.handshakes.wanted(number, 100)
    expect(a.handshakes.nextAt()).toBe(100 + TURN_MS)
    a.handshakes.wanted(INITIATIONS.burst + 1, 103)
    expect(a.handshakes.nextAt()).toBe(100 + TURN_MS)
  })

  it('waits its turn among hundreds of peers, and every peer gets one', () => {
    const a = sideOf()
    const others = manyPeers(400)
    a.handshakes.setPeers(others)
    for (const { number } of others) a.handshakes.wanted(number, 0)
    expect(a.sent).toHaveLength(INITIATIONS.burst)
    runTo(a, 500)
    expect(a.sent).toHaveLength(INITIATIONS.burst + 125)
    runTo(a, 1_401)
    expect(new Set(a.sent.map(({ to }) => to.address)).size).toBe(400)
    expect(a.sent).toHaveLength(400)
  })

  it('to a peer whose key is of small order is not sent, and the reason is reported', () => {
    const a = sideOf()
    a.handshakes.setPeers([{ number: 3, publicKey: new Uint8Array(32), endpoint: B }])
    a.handshakes.wanted(3, 0)
    runTo(a, 2e5)
    expect(a.sent).toEqual([])
    expect(a.handshakes.stateOf(3)!.failure).toBe('bad-key')
    expect(a.handshakes.nextAt()).toBe(Infinity)
  })
})

describe('an initiation with an unknown key', () => {
  it('is remembered with its last sender until a peer has the key', () => {
    const [a, b] = [sideOf(), sideOf()]
    a.handshakes.setPeers([peerOf(b, B)])
    a.handshakes.wanted(3, 0)
    const first = take(a)
    b.handshakes.message(A, first, 10)
    expect([b.handshakes.unknownKeys(), b.sent]).toEqual([[{ publicKey: base64(a), from: A, at: 10 }], []])
    b.handshakes.message(B, first, 20)
    expect(b.handshakes.unknownKeys()).toEqual([{ publicKey: base64(a), from: B, at: 20 }])
    b.handshakes.setPeers([peerOf(a, A, { number: 9 })])
    expect(b.handshakes.unknownKeys()).toEqual([])
    // An initiation that cannot be decrypted has no known key.
    const broken = Buffer.from(first)
    broken[100]! ^= 1
    writeMacs(broken, macKeysOf(b.handshakes.publicKey), undefined)
    b.handshakes.message(A, broken, 40)
    expect([b.handshakes.unknownKeys(), b.handshakes.counters.junk]).toEqual([[], 3])
  })

  it('is remembered for a limited number of keys', () => {
    const b = sideOf()
    const others = Array.from({ length: MOST_UNKNOWN + 4 }, () => sideOf())
    others.forEach((other, at) => {
      other.handshakes.setPeers([peerOf(b, B)])
      other.handshakes.wanted(3, 0)
      b.handshakes.message(A, take(other), at)
    })
    const kept = others.slice(4).map((other, at) => ({ publicKey: base64(other), from: A, at: at + 4 }))
    expect(b.handshakes.unknownKeys()).toEqual(kept)
  })
})

describe('a response', () => {
  it('with another psk gives no keys, and the reason is reported until a valid one comes', () => {
    const { a, b } = pair({ a: { psk: psk(5) }, b: { psk: psk(6) } })
    a.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(a), 0)
    a.handshakes.message(B, take(b), 0)
    expect(a.keys).toEqual([])
    runTo(a, 5_400)
    expect(a.handshakes.stateOf(3)).toMatchObject({ failure: 'not-authentic', attempts: 2 })
    expect(b.handshakes.stateOf(9)).toMatchObject({ unconfirmed: 1 })
    b.handshakes.setPeers([peerOf(a, A, { number: 9, psk: psk(5) })])
    b.handshakes.message(A, take(a), 5_400)
    a.handshakes.message(B, take(b), 5_400)
    expect(a.keys).toHaveLength(1)
    expect(a.handshakes.stateOf(3)).toMatchObject({ failure: undefined })
  })

  it('that is forged does not prevent the real one', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(a), 0)
    const answer = take(b)
    for (let at = 12; at < 60; at += 1) {
      const forged = Buffer.from(answer)
      forged[at]! ^= 1
      writeMacs(forged, macKeysOf(a.handshakes.publicKey), undefined)
      a.handshakes.message(B, forged, at * 80)
    }
    expect(a.keys).toEqual([])
    a.handshakes.message(B, answer, 4_999)
    expect(a.keys).toHaveLength(1)
  })
})

describe('an initiation of a peer', () => {
  it('is answered at its source, but moves the peer there only when its keys are used', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const first = take(a)
    b.handshakes.message(ELSEWHERE, first, 0)
    expect(b.sent[0]!.to).toEqual(ELSEWHERE)
    expect(b.roamed).toEqual([])
    a.handshakes.message(ELSEWHERE, take(b), 0)
    expect(a.roamed).toEqual([[3, ELSEWHERE]])
    b.handshakes.confirmed(9, 0)
    expect(b.roamed).toEqual([[9, ELSEWHERE]])
    b.handshakes.wanted(9, 10_000)
    expect(b.sent[0]!.to).toEqual(ELSEWHERE)
    // From now on the lease gives its endpoint.
    b.sent.length = 0
    b.handshakes.setPeers([peerOf(a, A, { number: 9 })])
    runTo(b, 15_400)
    expect(b.sent[0]!.to).toEqual(A)
  })

  it('that is replayed after a restart is answered, and changes nothing else', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const older = take(a)
    a.wall += 10_000
    runTo(a, 5_400)
    const again = sideOf({ key: b.key })
    again.handshakes.setPeers([peerOf(a, A, { number: 9 })])
    again.handshakes.message(ELSEWHERE, older, 0)
    again.handshakes.message(ELSEWHERE, older, 1_000)
    expect([again.keys.length, again.keys[0]!.isInitiator, again.sent.length]).toEqual([1, false, 1])
    expect(again.roamed).toEqual([])
    expect(again.handshakes.endpointOf(9)).toEqual(A)
    expect(again.handshakes.keyAgeOf(9, 1_000)).toBeUndefined()
    expect(again.handshakes.stateOf(9)).toMatchObject({ at: undefined, unconfirmed: 1, stale: 0 })
    again.sent.length = 0
    again.handshakes.message(A, take(a), 2_000)
    expect([again.keys.length, again.sent[0]!.to]).toEqual([2, A])
  })

  it('that is older than an earlier one is refused and counted, and a duplicate is not counted', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const older = take(a)
    a.wall += 10_000
    runTo(a, 5_400)
    const newer = take(a)
    b.handshakes.message(A, newer, 0)
    b.handshakes.message(A, newer, 100)
    expect(b.handshakes.stateOf(9)).toMatchObject({ stale: 0 })
    expect(b.handshakes.counters.limited).toBe(0)
    b.handshakes.message(A, older, 200)
    expect(b.handshakes.stateOf(9)).toMatchObject({ stale: 1 })
    expect(b.keys).toHaveLength(1)
  })

  it('of a process whose clock was set back is accepted, because its timestamps follow the stored one', () => {
    const key = systemRandomness.bytes(32)
    const b = sideOf()
    const a = sideOf({ key })
    b.handshakes.setPeers([peerOf(a, A, { number: 9 })])
    a.handshakes.setPeers([peerOf(b, B)])
    a.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(a), 0)
    const again = sideOf({ key, kept: a.kept })
    again.wall = WALL - 1e9
    again.handshakes.setPeers([peerOf(b, B)])
    again.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(again), 100)
    expect(b.keys).toHaveLength(2)
    // Without the stored timestamp it is refused.
    const lost = sideOf({ key })
    lost.wall = WALL - 1e9
    lost.handshakes.setPeers([peerOf(b, B)])
    lost.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(lost), 200)
    expect(b.keys).toHaveLength(2)
    expect(b.handshakes.stateOf(9)).toMatchObject({ stale: 1 })
  })

  it('is accepted at most once in 20 ms', () => {
    const key = systemRandomness.bytes(32)
    const b = sideOf()
    const initiations = [0, 1, 2].map((second) => {
      const a = sideOf({ key })
      a.wall = WALL + second * 1_000
      b.handshakes.setPeers([peerOf(a, A, { number: 9 })])
      a.handshakes.setPeers([peerOf(b, B)])
      a.handshakes.wanted(3, 0)
      return take(a)
    }) as [Buffer, Buffer, Buffer]
    b.handshakes.message(A, initiations[0], 1_000)
    b.handshakes.message(A, initiations[1], 1_019)
    expect(b.keys).toHaveLength(1)
    expect(b.handshakes.counters.limited).toBe(1)
    b.handshakes.message(A, initiations[2], 1_020)
    expect(b.keys).toHaveLength(2)
  })

  it('of an unknown peer, or of this node itself, is not answered', () => {
    const { a, b } = pair()
    const unknownNode = sideOf()
    unknownNode.handshakes.setPeers([peerOf(b, B)])
    unknownNode.handshakes.wanted(3, 0)
    b.handshakes.message(A, take(unknownNode), 0)
    a.handshakes.setPeers([peerOf(a, A)])
    expect(a.handshakes.stateOf(3)).toBeUndefined()
    expect(b.sent).toEqual([])
    expect(b.handshakes.counters.junk).toBe(1)
  })
})

describe('peers', () => {
  it('that go are forgotten with their messages, and the others keep their state', () => {
    const { a, b } = pair()
    const c = sideOf()
    a.handshakes.wanted(3, 0)
    const first = take(a)
    b.handshakes.message(A, first, 0)
    const answer = take(b)
    a.handshakes.setPeers([peerOf(b, B), peerOf(c, ELSEWHERE, { number: 4 })])
    expect(a.handshakes.stateOf(3)).toMatchObject({ attempts: 1 })
    a.handshakes.setPeers([peerOf(c, ELSEWHERE, { number: 4 })])
    a.handshakes.message(B, answer, 0)
    expect(a.keys).toEqual([])
    expect(a.handshakes.stateOf(3)).toBeUndefined()
    runTo(a, 2e5)
    expect(a.sent).toEqual([])
    // After the peer returns under another number, its timestamps still increase, although the clock does not advance.
    a.handshakes.setPeers([peerOf(b, B, { number: 5 })])
    a.handshakes.wanted(5, 2e5)
    b.handshakes.message(A, take(a), 2e5)
    expect(b.keys).toHaveLength(2)
  })

  it('with another key under the same number are different peers', () => {
    const { a, b } = pair()
    const c = sideOf()
    handshake({ a, b }, 0)
    a.handshakes.setPeers([peerOf(c, ELSEWHERE)])
    expect(a.handshakes.stateOf(3)).toMatchObject({ at: undefined })
  })

  it('that are unknown have no endpoint, no keys and no state', () => {
    const { handshakes } = pair().a
    expect(handshakes.endpointOf(77)).toBeUndefined()
    expect(handshakes.keyAgeOf(77, 0)).toBeUndefined()
    expect(handshakes.memoryOf(77)).toBeUndefined()
  })

  it('have keys that are valid for less than 180 seconds', () => {
    const { a, b } = pair()
    expect(a.handshakes.keyAgeOf(3, 1_000)).toBeUndefined()
    handshake({ a, b }, 1_000)
    expect(a.handshakes.keyAgeOf(3, 180_999)).toBe(179_999)
    expect(a.handshakes.keyAgeOf(3, 181_000)).toBeUndefined()
    a.handshakes.lostKeys()
    expect(a.handshakes.keyAgeOf(3, 1_000)).toBeUndefined()
  })

  it('are reported when they move to another address or port, and only then', () => {
    const { a } = pair()
    const [port, address] = [
      { ...B, port: B.port + 1 },
      { address: 0x0a00_0099, port: B.port + 1 },
    ]
    a.handshakes.moved(3, { ...B })
    a.handshakes.moved(3, port)
    a.handshakes.moved(3, address)
    a.handshakes.moved(3, { ...address })
    expect(a.roamed).toEqual([
      [3, port],
      [3, address],
    ])
    expect(a.handshakes.endpointOf(3)).toEqual(address)
  })

  it('that exchange their numbers all exist', () => {
    const [a, b, c] = [sideOf(), sideOf(), sideOf()]
    a.handshakes.setPeers([peerOf(b, B, { number: 1 }), peerOf(c, ELSEWHERE, { number: 2 })])
    a.handshakes.setPeers([peerOf(b, B, { number: 2 }), peerOf(c, ELSEWHERE, { number: 1 })])
    for (const other of [b, c]) {
      other.handshakes.setPeers([peerOf(a, A)])
      other.handshakes.wanted(3, 0)
      a.handshakes.message(B, take(other), 0)
    }
    expect(a.keys.map(({ peer }) => peer)).toEqual([2, 1])
  })

  it.each([-1, 1.5, MOST_PEERS, Number.NaN])('cannot have the number %s', (number) => {
    const { a, b } = pair()
    expect(() => a.handshakes.setPeers([peerOf(b, B, { number })])).toThrow('is no number of a peer')
  })

  it('cannot have a key of another length', () => {
    const { a } = pair()
    expect(() => a.handshakes.setPeers([{ number: 1, publicKey: new Uint8Array(31), endpoint: A }])).toThrow('31 bytes')
  })
})

describe('a received message', () => {
  it('never throws, and has no effect if it is invalid', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const first = take(a)
    b.handshakes.message(A, first, 0)
    const answer = take(b)
    const keysOfA = macKeysOf(a.handshakes.publicKey)
    const known = [first, answer, Buffer.concat([Buffer.of(3, 0, 0, 0), Buffer.alloc(60)])]
    let now = 0
    fc.assert(
      fc.property(
        fc.oneof(
          fc.uint8Array({ maxLength: 200 }),
          fc.record({
            type: fc.integer({ min: 0, max: 5 }),
            length: fc.constantFrom(0, 3, 4, 32, 63, 64, 91, 92, 93, 147, 148, 149),
          }),
          fc.record({ of: fc.nat(2), at: fc.nat(147), bits: fc.integer({ min: 1, max: 255 }), macs: fc.boolean() }),
          fc.record({ of: fc.nat(2), cut: fc.integer({ min: 1, max: 91 }) }),
        ),
        (how) => {
          now += 1_000
          let message: Buffer
          if (how instanceof Uint8Array) message = Buffer.from(how)
          else if ('length' in how) {
            message = Buffer.alloc(how.length)
            if (how.length > 0) message[0] = how.type
          } else if ('cut' in how) message = Buffer.from(known[how.of]!.subarray(0, -how.cut))
          else {
            message = Buffer.from(known[how.of]!)
            // mac2 has no meaning without load, and the sender's index is not authenticated, as in every WireGuard.
            const room = message.length - (how.macs ? 32 : 16)
            const at = how.at % room
            message[how.macs && at >= 4 && at < 8 ? 8 : at]! ^= how.bits
            if (how.macs && how.of < 2) writeMacs(message, keysOfA, undefined)
          }
          a.handshakes.message(B, message, now)
          b.handshakes.message(A, message, now)
          expect(a.keys).toEqual([])
          expect(b.keys).toHaveLength(1)
        },
      ),
      { numRuns: 3_000 },
    )
    // The engine must still have both sessions.
    a.handshakes.message(B, answer, now)
    expect(a.keys).toHaveLength(1)
  })

  it('may be a part of a larger buffer', () => {
    const { a, b } = pair()
    a.handshakes.wanted(3, 0)
    const first = take(a)
    b.handshakes.message(A, new Uint8Array(Buffer.concat([Buffer.alloc(7), first])).subarray(7), 0)
    expect(b.keys).toHaveLength(1)
  })
})

it('never prints a secret', () => {
  const key = Buffer.from(systemRandomness.bytes(32))
  const side = sideOf({ key })
  const other = sideOf()
  const secret = psk(0x5a)
  side.handshakes.setPeers([peerOf(other, B, { psk: secret })])
  side.handshakes.wanted(3, 0)
  const shown =
    inspect([side.handshakes, secret], { depth: 12, showHidden: true }) + JSON.stringify([side.handshakes, secret])
  for (const text of [key.toString('base64'), key.toString('hex'), '5a 5a', '90, 90', '90,90'])
    expect(shown).not.toContain(text)
  expect(shown).toContain('<hidden>')
  side.handshakes.close()
  expect(side.handshakes.stateOf(3)).toBeUndefined()
})
