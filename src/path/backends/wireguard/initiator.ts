// initiator.ts - the initiator of a handshake: decides when this node sends an initiation to a peer, repeats it and
// gives up, and handles the peer's response or cookie reply.
//
// A peer has one of these states:
// - idle: `wantedAt` and `pending` are undefined, because the engine wants no keys.
// - waiting: `wantedAt` is set. This node will send an initiation when at least REKEY_TIMEOUT_MS have passed since the
//   previous initiation to this peer, and the rate limit INITIATIONS allows another initiation.
// - pending: `pending` is set. This node sent an initiation, and has the secrets that decrypt the response.
//
// The engine moves a peer from idle to waiting (`want`). After REKEY_TIMEOUT_MS without a valid response a peer returns
// from pending to waiting, and after REKEY_ATTEMPT_MS to idle. A valid response makes the peer idle.
//
// While a peer is pending, the peer may complete a handshake that it began itself. When a packet confirms the keys of
// that handshake, the engine wants no more keys. The peer stays pending until its deadline (`dueAt`), so that this node
// can still accept the response to its own initiation. At the deadline the peer becomes idle. An idle peer has no
// deadline. This file owns the only timer of handshakes (`nextAt`).
//
// The engine reports again and again that it needs keys, so this node need not remember a report after it gave up.

import { SecretBytes } from '../../../base/secret.ts'
import { createBucket } from '../../engine/reference/bucket.ts'
import type { Admission } from './admission.ts'
import { openCookieReply, type Endpoint } from './cookie.ts'
import { createDeadlines } from './deadlines.ts'
import { COOKIE_USE_MS, INITIATIONS, JITTER_MS, REKEY_ATTEMPT_MS, REKEY_TIMEOUT_MS, TURN_MS } from './limits.ts'
import type { LocalNode } from './local-node.ts'
import { cookieReceiverIn, initiationOf, noiseInResponse, receiverIndexIn, senderIndexIn } from './messages.ts'
import { readSecond, writeFirst } from './noise.ts'
import type { Peer } from './peer.ts'
import { stampOf, type Stamps } from './tai64n.ts'

export class Initiator {
  readonly #node: LocalNode
  readonly #admission: Admission
  /** The source of timestamps for initiations. */
  readonly stamps: Stamps
  /**
   * The peers to which an initiation must be sent, the longest-waiting peer first, as soon as `#mayInitiate` allows it.
   */
  readonly #waiting = new Set<Peer>()
  readonly #mayInitiate = createBucket(1_000 / INITIATIONS.perSecond, INITIATIONS.burst)
  /**
   * The time, in ms of CLOCK_BOOTTIME, at which this node tries again to send initiations to the peers in
   * `#waiting`.
   */
  #turnAt = -Infinity
  /** The peers, grouped by `dueAt`, the time of each peer's next action. */
  readonly #deadlines = createDeadlines<Peer>()

  constructor(node: LocalNode, admission: Admission, stamps: Stamps) {
    this.#node = node
    this.#admission = admission
    this.stamps = stamps
  }

  /**
   * Starts a handshake with a peer whose keys the engine needs. Does nothing if a handshake is running, or if keys were
   * made a short time ago.
   */
  want(peer: Peer, now: number): void {
    if (peer.wantedAt !== undefined) return
    // Ignore a request for keys that the engine made before it got the new keys. No further handshake is needed.
    if (now - peer.completedAt < REKEY_TIMEOUT_MS) return
    peer.wantedAt = now
    // If this node sent an initiation a short time ago, do not send another now: `#due` sends the next one when the
    // peer's deadline passes.
    if (peer.dueAt <= now) this.#waiting.add(peer)
    this.#sendWaiting(now)
  }

  /** Postpones the next initiation to a peer until the time `until`, because another process sent an initiation. */
  postpone(peer: Peer, until: number): void {
    peer.dueAt = until
    this.#deadlines.add(peer, until)
  }

  /** Ends the handshakes with a peer, because this node and the peer now use the same new keys. */
  complete(peer: Peer, now: number): void {
    this.#waiting.delete(peer)
    peer.wantedAt = undefined
    peer.completedAt = now
    peer.at = this.#node.wall()
    peer.attempts = 0
    peer.failure = undefined
    peer.stale = 0
    peer.unconfirmed = 0
  }

  remove(peer: Peer): void {
    this.#waiting.delete(peer)
    this.stamps.passed(peer.lastTick)
  }

  tick(now: number): void {
    for (const peer of this.#deadlines.take(now)) this.#due(peer, now)
    this.#sendWaiting(now)
  }

  nextAt(): number {
    return this.#waiting.size > 0 ? Math.min(this.#turnAt, this.#deadlines.next()) : this.#deadlines.next()
  }

  readResponse(from: Endpoint, message: Buffer, now: number): void {
    const index = receiverIndexIn(message)
    const peer = this.#node.peerOfIndex(index)
    const pending = peer?.pending
    if (!peer || pending?.index !== index) return void this.#admission.refuse()
    if (this.#admission.judge('response', message, from, now) !== 'accepted') return
    const answer = readSecond(this.#node.own, pending, noiseInResponse(message), peer.psk)
    if (!answer) {
      pending.failure = 'not-authentic'
      return void this.#admission.refuse()
    }
    peer.forgetPending()
    this.complete(peer, now)
    this.#node.roam(peer, from)
    const peerIndex = senderIndexIn(message)
    this.#node.install(peer, { isInitiator: true, ownIndex: index, peerIndex, ...answer.keys })
  }

  readCookieReply(message: Buffer, now: number): void {
    const index = cookieReceiverIn(message)
    const peer = this.#node.peerOfIndex(index)
    if (!peer?.sentMac1 || peer.sentIndex !== index) return void this.#admission.refuse()
    if (!this.#admission.mayOpenCookieReply(now)) return
    const cookie = openCookieReply(message, peer.macKeys, peer.sentMac1)
    if (!cookie) return void this.#admission.refuse()
    peer.sentMac1 = undefined
    peer.cookie?.bytes.wipe()
    peer.cookie = { bytes: new SecretBytes(cookie), until: now + COOKIE_USE_MS }
  }

  /** Handles a peer whose deadline has passed: makes the peer wait for the next initiation, or makes it idle. */
  #due(peer: Peer, now: number): void {
    if (peer.dueAt > now || this.#node.peers.get(peer.number) !== peer) return
    // If the engine no longer wants keys, a handshake that the peer began has made keys meanwhile. So do not report
    // this node's own handshake as failed.
    if (peer.pending && peer.wantedAt !== undefined) peer.failure = peer.pending.failure
    peer.forgetPending()
    if (peer.wantedAt === undefined) return
    if (now - peer.wantedAt < REKEY_ATTEMPT_MS) this.#waiting.add(peer)
    else peer.wantedAt = undefined
  }

  #sendWaiting(now: number): void {
    for (const peer of this.#waiting) {
      if (!this.#mayInitiate(now)) {
        if (this.#turnAt <= now) this.#turnAt = now + TURN_MS
        return
      }
      this.#waiting.delete(peer)
      this.#initiate(peer, now)
    }
  }

  #initiate(peer: Peer, now: number): void {
    peer.forgetPending()
    const { random, own, wall } = this.#node
    const jitterMs = Buffer.from(random.bytes(4)).readUInt32LE() % (JITTER_MS + 1)
    this.postpone(peer, now + REKEY_TIMEOUT_MS + jitterMs)
    peer.lastTick = this.stamps.next(peer.lastTick, wall())
    const written = writeFirst(own, peer, random.keyPair(), stampOf(peer.lastTick))
    if (!written) {
      peer.failure = 'bad-key'
      return
    }
    const index = this.#node.newIndex(peer)
    peer.pending = { ...written.sent, index, sentAt: now, failure: 'no-answer' }
    peer.attempts += 1
    this.#node.send(peer, peer.endpoint, index, initiationOf(index, written.message), now)
  }
}
