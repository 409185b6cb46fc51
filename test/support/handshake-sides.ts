// handshake-sides.ts - runs handshakes between nodes in virtual time, and records their messages and keys for tests.

import { expect } from 'vitest'
import { SecretBytes } from '../../src/base/secret.ts'
import type { Endpoint } from '../../src/path/backends/wireguard/cookie.ts'
import { type Randomness, systemRandomness } from '../../src/path/backends/wireguard/crypto.ts'
import { Handshakes } from '../../src/path/backends/wireguard/handshakes.ts'
import type { HandshakePeer } from '../../src/path/backends/wireguard/peer.ts'
import type { SessionKeys } from '../../src/path/engine/engine.ts'

export const WALL = 1_795_575_600_000
export const INDEX_SECRET = 0x5eed_c0de
export const A: Endpoint = { address: 0x0a00_0001, port: 51_820 }
export const B: Endpoint = { address: 0xfd00n << 112n, port: 51_821 }
export const ELSEWHERE: Endpoint = { address: 0x0a00_0099, port: 4_242 }

/** A node's handshakes, and their recorded calls of the engine and of the node. */
export interface Side {
  readonly key: Uint8Array
  readonly handshakes: Handshakes
  readonly sent: { readonly to: Endpoint; readonly datagram: Buffer }[]
  /** Recorded calls with copies of the keys; `given` are the buffers themselves. */
  readonly keys: (SessionKeys & { readonly peer: number })[]
  readonly given: SessionKeys[]
  readonly roamed: unknown[]
  readonly overlooked: Endpoint[]
  wall: number
  kept: number
}
export function sideOf({ key = systemRandomness.bytes(32), kept = -1, random = systemRandomness } = {}): Side {
  const side = {
    key,
    sent: [],
    keys: [],
    given: [],
    roamed: [],
    overlooked: [],
    wall: WALL,
    kept,
  } as unknown as Side
  const { sent, keys, given, roamed, overlooked } = side
  const handshakes = new Handshakes({
    privateKey: new SecretBytes(key),
    indexSecret: INDEX_SECRET,
    engine: {
      send: (to, datagram) => void sent.push({ to, datagram: Buffer.from(datagram) }),
      setKeys(peer, each) {
        given.push(each)
        keys.push({ ...each, peer, sendKey: Buffer.from(each.sendKey), receiveKey: Buffer.from(each.receiveKey) })
      },
    },
    random,
    wall: () => side.wall,
    keptTick: kept,
    keepTick: (tick) => (side.kept = tick),
    roamed: (peer, to) => void roamed.push([peer, to]),
    overlooked: (from) => void overlooked.push(from),
  })
  return Object.assign(side, { handshakes })
}
/** Removes and returns the only message that a node sent. */
export const take = (side: Side): Buffer => {
  expect(side.sent).toHaveLength(1)
  return side.sent.pop()!.datagram
}
export const peerOf = (of: Side, endpoint: Endpoint, more: Partial<HandshakePeer> = {}): HandshakePeer => ({
  number: 3,
  publicKey: of.handshakes.publicKey,
  endpoint,
  ...more,
})
/** Returns two nodes: `a` knows `b` as its peer 3, and `b` knows `a` as its peer 9. */
export function pair(more: { readonly a?: Partial<HandshakePeer>; readonly b?: Partial<HandshakePeer> } = {}) {
  const [a, b] = [sideOf(), sideOf()]
  a.handshakes.setPeers([peerOf(b, B, more.a)])
  b.handshakes.setPeers([peerOf(a, A, { number: 9, ...more.b })])
  return { a, b }
}
export const psk = (fill: number): SecretBytes => new SecretBytes(Buffer.alloc(32, fill))
/** Makes a whole handshake that `a` begins. `b` then behaves as after the first packet with the new keys. */
export function handshake({ a, b }: { a: Side; b: Side }, now: number): void {
  a.handshakes.wanted(3, now)
  b.handshakes.message(A, take(a), now)
  a.handshakes.message(B, take(b), now)
  b.handshakes.confirmed(9, now)
}
/** Calls `tick` whenever it is due, until the given time. */
export function runTo({ handshakes }: Side, end: number): void {
  for (let at = handshakes.nextAt(); at <= end; at = handshakes.nextAt()) {
    handshakes.tick(at)
    expect(handshakes.nextAt()).toBeGreaterThan(at)
  }
}
/**
 * Returns a source of random bytes in which each number of 4 bytes is `drawn`: the jitter of an initiation is `drawn`
 * modulo 334 ms, and the first index of each peer follows from `drawn` too.
 */
export const withJitter = (drawn: number): Randomness => ({
  ...systemRandomness,
  bytes: (length) => (length === 4 ? Buffer.from(Uint32Array.of(drawn).buffer) : systemRandomness.bytes(length)),
})
/** Returns a source of random bytes, and for each secret of 32 bytes that was drawn from it, whether it is erased. */
export function recordedSecrets(): { readonly random: Randomness; readonly erased: () => readonly boolean[] } {
  const drawn: Uint8Array[] = []
  const bytes = (length: number) => {
    const each = systemRandomness.bytes(length)
    if (length === 32) drawn.push(each)
    return each
  }
  const erased = () => drawn.map((each) => each.every((byte) => byte === 0))
  return { random: { ...systemRandomness, bytes }, erased }
}
