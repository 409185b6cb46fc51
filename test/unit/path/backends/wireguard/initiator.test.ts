// initiator.test.ts - a node's own initiations: the secrets of each one are erased when it is answered, replaced or
// given up.

import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { SecretBytes } from '../../../../../src/base/secret.ts'
import { Admission } from '../../../../../src/path/backends/wireguard/admission.ts'
import { systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { Initiator } from '../../../../../src/path/backends/wireguard/initiator.ts'
import { RATES, REKEY_ATTEMPT_MS } from '../../../../../src/path/backends/wireguard/limits.ts'
import { LocalNode } from '../../../../../src/path/backends/wireguard/local-node.ts'
import { createStamps } from '../../../../../src/path/backends/wireguard/tai64n.ts'
import { A, B, INDEX_SECRET, peerOf, sideOf, take, WALL } from '../../../../support/handshake-sides.ts'

/** An initiator whose peer is `b`. The transcript and the cookie of the peer are accessible, unlike in Handshakes. */
function initiatorTo(b: ReturnType<typeof sideOf>) {
  const sent: Buffer[] = []
  const node = new LocalNode({
    privateKey: new SecretBytes(systemRandomness.bytes(32)),
    indexSecret: INDEX_SECRET,
    engine: { send: (_to, datagram) => void sent.push(Buffer.from(datagram)), setKeys: () => {} },
    random: systemRandomness,
    wall: () => WALL,
    roamed: () => {},
  })
  const admission = new Admission(node.macKeys, systemRandomness, () => {})
  const initiator = new Initiator(
    node,
    admission,
    createStamps(-1, () => {}),
  )
  node.add(peerOf(b, B))
  b.handshakes.setPeers([{ number: 9, publicKey: node.own.publicKey, endpoint: A }])
  const peer = node.peers.get(3)!
  /** Begins a handshake, and returns its message and a spy of the function that erases its secrets. */
  function begin(now: number) {
    initiator.want(peer, now)
    expect(sent).toHaveLength(1)
    return { message: sent.pop()!, wipe: vi.spyOn(peer.pending!.transcript, 'wipe') }
  }
  return { initiator, peer, sent, begin }
}

let b: ReturnType<typeof sideOf>
beforeEach(() => {
  b = sideOf()
})
afterEach(() => {
  vi.restoreAllMocks()
})

it('erases the secrets of an initiation after the response', () => {
  const { initiator, begin } = initiatorTo(b)
  const { message, wipe } = begin(0)
  b.handshakes.message(A, message, 0)
  expect(wipe).not.toHaveBeenCalled()
  initiator.readResponse(B, take(b), 0)
  expect(wipe).toHaveBeenCalledOnce()
})

it('erases the secrets of an initiation before the next one, and when it gives up', () => {
  const { initiator, peer, sent, begin } = initiatorTo(b)
  const first = begin(0)
  initiator.tick(5_400)
  expect(sent).toHaveLength(1)
  expect(first.wipe).toHaveBeenCalled()
  const second = vi.spyOn(peer.pending!.transcript, 'wipe')
  initiator.tick(REKEY_ATTEMPT_MS)
  expect(second).toHaveBeenCalled()
  expect([peer.pending, peer.wantedAt]).toEqual([undefined, undefined])
})

it('erases the secrets of an initiation that the peer’s own handshake made unnecessary', () => {
  const { initiator, peer, begin } = initiatorTo(b)
  const first = begin(0)
  initiator.complete(peer, 0)
  // The first initiation is still pending: `tick` is called at the end of the deadline's slot (deadlines.ts).
  begin(peer.dueAt)
  expect(first.wipe).toHaveBeenCalledOnce()
})

it('erases a cookie that another one replaces', () => {
  const { initiator, peer, begin } = initiatorTo(b)
  /**
   * Uses up the rate of initiations that `b` processes without a cookie, sends the message once more, and returns the
   * cookie reply.
   */
  const replyTo = (message: Buffer, now: number) => {
    for (let count = 0; count < RATES.free.burst; count++) b.handshakes.message(A, message, now)
    b.sent.length = 0
    b.handshakes.message(A, message, now)
    return take(b)
  }
  initiator.readCookieReply(replyTo(begin(0).message, 0), 0)
  const old = peer.cookie!.bytes.reveal()
  expect([...old].some((byte) => byte !== 0)).toBe(true)
  initiator.tick(REKEY_ATTEMPT_MS)
  initiator.readCookieReply(replyTo(begin(200_000).message, 200_000), 200_000)
  expect([...old].some((byte) => byte !== 0)).toBe(false)
  expect([...peer.cookie!.bytes.reveal()].some((byte) => byte !== 0)).toBe(true)
})
