// responder.ts - the responder of a handshake: decides which initiations of peers this node answers.
//
// With its answer this node gives the engine a pair of keys, which the engine may use only to decrypt until the first
// packet with these keys arrives (Handshakes.confirmed). Before that packet, the initiation may be a replay from any
// address, so it changes neither the peer's endpoint nor the time of the last handshake.

import type { UnknownKey } from '../../contract.ts'
import type { Admission } from './admission.ts'
import type { Endpoint } from './cookie.ts'
import { ACCEPT_EVERY_MS, MOST_UNKNOWN, REKEY_TIMEOUT_MS } from './limits.ts'
import type { LocalNode } from './local-node.ts'
import { noiseInInitiation, responseOf, senderIndexIn } from './messages.ts'
import { readFirst, writeSecond } from './noise.ts'
import type { Peer } from './peer.ts'
import { orderOf } from './tai64n.ts'

export class Responder {
  readonly #node: LocalNode
  readonly #admission: Admission
  /**
   * Called when this node did not process an initiation from the endpoint `from`. A peer at this address may have sent
   * the initiation, so the function may begin a handshake with that peer.
   */
  readonly #overlooked: (from: Endpoint, now: number) => void
  /**
   * The initiations that arrived last and whose public key belongs to no peer: a map by public key, the oldest
   * initiation first.
   */
  readonly #unknown = new Map<string, UnknownKey>()

  constructor(node: LocalNode, admission: Admission, overlooked: (from: Endpoint, now: number) => void) {
    this.#node = node
    this.#admission = admission
    this.#overlooked = overlooked
  }

  unknownKeys(): readonly UnknownKey[] {
    return [...this.#unknown.values()]
  }

  /** Removes a public key from the list of keys that belong to no peer, because a peer has the key now. */
  know(publicKey: Uint8Array): void {
    this.#unknown.delete(Buffer.from(publicKey).toString('base64'))
  }

  readInitiation(from: Endpoint, message: Buffer, now: number): void {
    const admission = this.#admission
    const verdict = admission.judge('initiation', message, from, now)
    if (verdict === 'limited') this.#overlooked(from, now)
    if (verdict !== 'accepted') return
    let unknown: Uint8Array | undefined
    const received = readFirst(this.#node.own, noiseInInitiation(message), (publicKey) => {
      const peer = this.#node.peerWithKey(publicKey)
      if (!peer) unknown = publicKey
      return peer
    })
    if (!received) {
      if (unknown) this.#noteUnknown(unknown, from, now)
      admission.refuse()
      this.#overlooked(from, now)
      return
    }
    const peer = received.from
    const order = orderOf(received.payload)
    const isTooSoon = now - peer.acceptedAt < ACCEPT_EVERY_MS
    if (order <= peer.greatest || isTooSoon) {
      received.transcript.wipe()
      // An initiation whose timestamp equals that of an earlier initiation does not count as stale, because networks
      // may duplicate datagrams.
      if (order < peer.greatest) peer.stale += 1
      else if (order > peer.greatest) admission.countLimited()
      if (now - peer.acceptedAt >= REKEY_TIMEOUT_MS) this.#overlooked(from, now)
      return
    }
    const answer = writeSecond(received, this.#node.random.keyPair(), peer.psk)
    if (!answer) return void admission.refuse()
    peer.greatest = order
    peer.acceptedAt = now
    peer.unconfirmed += 1
    this.#respond(peer, from, senderIndexIn(message), answer, now)
  }

  #respond(
    peer: Peer,
    from: Endpoint,
    peerIndex: number,
    answer: NonNullable<ReturnType<typeof writeSecond>>,
    now: number,
  ): void {
    const index = this.#node.newIndex(peer)
    peer.answered = from
    // Give the keys to the engine before sending the response, because the peer may send packets immediately after it
    // receives the response.
    this.#node.install(peer, { isInitiator: false, ownIndex: index, peerIndex, ...answer.keys })
    this.#node.send(peer, from, index, responseOf(index, peerIndex, answer.message), now)
  }

  #noteUnknown(key: Uint8Array, from: Endpoint, at: number): void {
    const publicKey = Buffer.from(key).toString('base64')
    this.#unknown.delete(publicKey)
    this.#unknown.set(publicKey, { publicKey, from, at })
    const [oldest] = this.#unknown.keys()
    if (this.#unknown.size > MOST_UNKNOWN && oldest !== undefined) this.#unknown.delete(oldest)
  }
}
