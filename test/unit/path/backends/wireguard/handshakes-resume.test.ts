// handshakes-resume.test.ts - a process continues the handshakes of an earlier process of its node, in virtual time.

import { describe, expect, it } from 'vitest'
import type { HandshakeMemory } from '../../../../../src/path/backends/wireguard/handshakes.ts'
import { createIndices, LOW_MASK } from '../../../../../src/path/backends/wireguard/indices.ts'
import { A, B, handshake, pair, peerOf, runTo, sideOf, take } from '../../../../support/handshake-sides.ts'

const FRESH: HandshakeMemory = {
  greatest: -1n,
  low: 7,
  completedAt: undefined,
  at: undefined,
  requestedAt: undefined,
}
const SECRET = 0x0123_4567
const KEY = Uint8Array.from({ length: 32 }, (_, at) => at)

/** Two nodes, of which `a` continues the handshakes of an earlier process. */
function resumed(memory: Partial<HandshakeMemory> = {}) {
  const [a, b] = [sideOf(), sideOf()]
  a.handshakes.resume(SECRET, [{ ...peerOf(b, B), memory: { ...FRESH, ...memory } }], KEY)
  b.handshakes.setPeers([peerOf(a, A, { number: 9 })])
  return { a, b }
}

describe('the memory of a peer', () => {
  it('has the times of the last handshake and of an initiation that is not answered yet', () => {
    const { a, b } = pair()
    const memory = () => a.handshakes.memoryOf(3)!
    const { low } = memory()
    expect(memory()).toEqual({ ...FRESH, low })
    a.handshakes.wanted(3, 1_000)
    expect(memory()).toEqual({ ...FRESH, low: (low + 1) & LOW_MASK, requestedAt: 1_000 })
    b.handshakes.message(A, take(a), 1_000)
    a.handshakes.message(B, take(b), 1_010)
    expect(memory()).toEqual({ ...FRESH, low: (low + 1) & LOW_MASK, completedAt: 1_010, at: a.wall })
    a.handshakes.lostKeys()
    expect(memory()).toMatchObject({ completedAt: undefined, at: a.wall })
  })
})

describe('a process that continues the handshakes of an earlier one', () => {
  it('remembers when the last handshake was, and reports the same memory', () => {
    const memory = { greatest: 5n, completedAt: 1_000, at: 1_795_575_600_000 }
    const { handshakes } = resumed(memory).a
    expect(handshakes.memoryOf(3)).toEqual({ ...FRESH, ...memory })
    expect(handshakes.keyAgeOf(3, 3_000)).toBe(2_000)
    expect(handshakes.nextAt()).toBe(Infinity)
  })

  it('uses the next index of the earlier process, with its secret and key', () => {
    const { a } = resumed({ low: LOW_MASK })
    a.handshakes.wanted(3, 0)
    expect(take(a).readUInt32LE(4)).toBe(createIndices(SECRET, KEY).of(3, 0))
    expect(a.handshakes.memoryOf(3)).toMatchObject({ low: 0 })
  })

  it('sends an initiation at least 40 ms after the unanswered one, so that the peer does not refuse it', () => {
    // The ends of the delays, 1,040 and 1,056 ms, are in one slot of 32 ms (deadlines.ts).
    for (const requestedAt of [1_000, 1_016]) {
      const early = resumed({ requestedAt }).a
      early.handshakes.wanted(3, requestedAt + 39)
      expect(early.sent).toEqual([])
      expect(early.handshakes.nextAt()).toBe(1_056)
      early.handshakes.tick(1_056)
      expect(early.sent).toHaveLength(1)
    }
    const late = resumed({ requestedAt: 1_000 }).a
    late.handshakes.wanted(3, 1_040)
    expect(late.sent).toHaveLength(1)
  })

  it('accepts the response to an initiation that it sent just after this delay', () => {
    const { a, b } = resumed({ requestedAt: 1_000 })
    a.handshakes.wanted(3, 1_041)
    const first = take(a)
    runTo(a, 1_100)
    expect(a.sent).toEqual([])
    b.handshakes.message(A, first, 1_100)
    a.handshakes.message(B, take(b), 1_100)
    expect(a.keys).toHaveLength(1)
  })

  it('keeps the endpoint of a peer if keys come into use that the earlier process made', () => {
    const { handshakes, roamed } = resumed().a
    handshakes.confirmed(3, 2_000)
    expect(handshakes.endpointOf(3)).toEqual(B)
    expect(roamed).toEqual([])
    expect(handshakes.keyAgeOf(3, 2_000)).toBe(0)
  })

  it('refuses initiations that the earlier process accepted', () => {
    const { a, b } = pair()
    b.handshakes.wanted(9, 0)
    const old = take(b)
    a.handshakes.message(B, old, 0)
    const again = sideOf({ key: a.key })
    again.handshakes.resume(SECRET, [{ ...peerOf(b, B), memory: a.handshakes.memoryOf(3)! }])
    again.handshakes.message(B, old, 1_000)
    expect([again.keys, again.sent, again.handshakes.counters.junk]).toEqual([[], [], 0])
  })

  it('ignores a peer with its own key, and continues with the others', () => {
    const [a, b] = [sideOf(), sideOf()]
    const all = [peerOf(a, A, { number: 1 }), peerOf(b, B)].map((peer) => ({ ...peer, memory: FRESH }))
    a.handshakes.resume(SECRET, all)
    expect(a.handshakes.stateOf(1)).toBeUndefined()
    b.handshakes.setPeers([peerOf(a, A, { number: 9 })])
    handshake({ a, b }, 0)
    expect(a.keys).toHaveLength(1)
  })
})
