// handshakes.ts - the WireGuard handshakes with all peers. initiator.ts has the handshakes that this node begins,
// responder.ts those that peers begin.
//
// The engine holds the sessions and encrypts packets with their keys. The engine reports `wanted` when it needs new
// keys, which a handshake of two messages makes. The node that sent the initiation uses the new keys immediately. The
// node that answered uses them only after the first packet encrypted with them (`confirmed`), because its response may
// be lost, and the initiation may be a replay.
//
// Two nodes may begin handshakes with each other simultaneously. One handshake does not end the other: both nodes get
// the same two sessions, and the engine accepts packets of both. For its own initiation this node keeps only the state
// that decrypts the response. So a forged message cannot end the handshake: an invalid response changes nothing, and a
// valid response is accepted once.
//
// This node checks received messages in the order of cost: length, whether the message was requested, mac1, the rate
// limits, and then X25519. No received message makes a function throw.
//
// The protocol is WireGuard's (https://www.wireguard.com/papers/wireguard.pdf, sections 5 and 6). Two details differ
// from Linux. A peer's initiation does not end this node's own handshake. If this node's last initiation is less than
// five seconds old, the next initiation is delayed and not dropped. Times are in ms of the kernel's CLOCK_BOOTTIME,
// which session-clock.ts reads, except `at`, which is in ms since 1970.

import { REJECT_AFTER_MS } from '../../catalog.ts'
import type { UnknownKey } from '../../contract.ts'
import { Admission, type AdmissionCounters } from './admission.ts'
import type { Endpoint } from './cookie.ts'
import { LOW_BITS } from './indices.ts'
import { Initiator } from './initiator.ts'
import { ACCEPT_EVERY_MS } from './limits.ts'
import { LocalNode, type LocalNodeParts } from './local-node.ts'
import { typeOf } from './messages.ts'
import type { HandshakePeer, Peer } from './peer.ts'
import { Responder } from './responder.ts'
import { createStamps } from './tai64n.ts'
import { KEY_BYTES } from './x25519.ts'

export const MOST_PEERS = 2 ** (32 - LOW_BITS)

interface HandshakeParts extends LocalNodeParts {
  /** The tick (tai64n.ts) of the last timestamp that an earlier process stored. `keepTick` stores a tick. */
  readonly keptTick: number
  readonly keepTick: (tick: number) => void
  /**
   * Called when this node did not process an initiation from the endpoint `from`, because a rate limit dropped it or it
   * was invalid. A peer at this address may have sent the initiation, so the caller may begin a handshake with that
   * peer.
   */
  readonly overlooked: (from: Endpoint, now: number) => void
}

/** The state of a peer's handshakes that the next process needs to continue the handshakes. */
export interface HandshakeMemory {
  /** The greatest timestamp in the peer's accepted initiations; -1 if there was none. */
  readonly greatest: bigint
  /**
   * The low bits of the index in this node's last message to the peer. The next process continues to count from this
   * value, so that it does not reuse an index of a continued session.
   */
  readonly low: number
  /**
   * The time of the last handshake whose keys came into use, in ms of CLOCK_BOOTTIME; undefined if there was none, or
   * if the keys are lost.
   */
  readonly completedAt: number | undefined
  /** The time, in ms since 1970, of the last handshake whose keys came into use; undefined if there was none. */
  readonly at: number | undefined
  /**
   * The time of an initiation that the peer has not answered yet, in ms of CLOCK_BOOTTIME; undefined if there is none.
   */
  readonly requestedAt: number | undefined
}

/** The members of Peer (peer.ts) that the status reports. */
export type HandshakeState = Pick<Peer, 'at' | 'attempts' | 'failure' | 'stale' | 'unconfirmed'>

export class Handshakes {
  readonly #node: LocalNode
  readonly #admission: Admission
  readonly #initiator: Initiator
  readonly #responder: Responder

  constructor(parts: HandshakeParts) {
    this.#node = new LocalNode(parts)
    const { macKeys, random } = this.#node
    this.#admission = new Admission(macKeys, random, (to, message) => this.#node.sendReply(to, message))
    this.#initiator = new Initiator(this.#node, this.#admission, createStamps(parts.keptTick, parts.keepTick))
    this.#responder = new Responder(this.#node, this.#admission, parts.overlooked)
  }

  get publicKey(): Uint8Array {
    return this.#node.own.publicKey
  }

  get counters(): Readonly<AdmissionCounters> {
    return this.#admission.counters
  }

  /** Replaces the set of peers. Keeps the handshake state of each peer that was already in the set. */
  setPeers(all: readonly HandshakePeer[]): void {
    const node = this.#node
    const given = new Map(all.filter(({ publicKey }) => !node.isSelf(publicKey)).map((each) => [each.number, each]))
    for (const peer of Array.from(node.peers.values())) {
      const same = given.get(peer.number)
      if (!same || Buffer.compare(same.publicKey, peer.publicKey) !== 0) this.#remove(peer)
    }
    for (const each of given.values()) {
      const { number, publicKey, psk, endpoint } = each
      if (!(Number.isInteger(number) && number >= 0 && number < MOST_PEERS))
        throw new RangeError(`${number} is no number of a peer`)
      if (publicKey.length !== KEY_BYTES) throw new RangeError(`a public key of ${publicKey.length} bytes`)
      const peer = node.peers.get(number)
      if (peer) {
        peer.psk = psk
        peer.endpoint = endpoint
      } else {
        node.add(each)
        this.#responder.know(publicKey)
      }
    }
  }

  /**
   * Records that the engine needs keys for a peer, because packets wait or the session is old. Starts a handshake if
   * none is running. The engine may call `wanted` for each packet; repeated calls have no effect.
   */
  wanted(number: number, now: number): void {
    const peer = this.#node.peers.get(number)
    if (peer) this.#initiator.want(peer, now)
  }

  /**
   * Records that a packet arrived that was encrypted with keys of a handshake that the peer began. The packet proves
   * that the peer has these keys, so this node may use the keys too.
   */
  confirmed(number: number, now: number): void {
    const peer = this.#node.peers.get(number)
    if (!peer) return
    this.#initiator.complete(peer, now)
    if (peer.answered) this.#node.roam(peer, peer.answered)
  }

  /** Records that authentic packets of a peer came from a new endpoint. */
  moved(number: number, to: Endpoint): void {
    const peer = this.#node.peers.get(number)
    if (peer) this.#node.roam(peer, to)
  }

  /** Returns the endpoint to which this node sends datagrams for a peer; undefined for an unknown peer. */
  endpointOf(number: number): Endpoint | undefined {
    return this.#node.peers.get(number)?.endpoint
  }

  /** Processes a datagram with a handshake message; drops other datagrams. */
  message(from: Endpoint, datagram: Uint8Array, now: number): void {
    const message = Buffer.from(datagram.buffer, datagram.byteOffset, datagram.length)
    const type = typeOf(message)
    if (type === 'initiation') this.#responder.readInitiation(from, message, now)
    else if (type === 'response') this.#initiator.readResponse(from, message, now)
    else if (type === 'cookie-reply') this.#initiator.readCookieReply(message, now)
    else this.#admission.refuse()
  }

  /** Sends the initiations that are due at the time `now`, and gives up initiations that got no response. */
  tick(now: number): void {
    this.#initiator.tick(now)
  }

  /**
   * Returns the time at which `tick` must be called next; Infinity if no handshake needs a call. A call of any other
   * function may change this time.
   */
  nextAt(): number {
    return this.#initiator.nextAt()
  }

  /**
   * Returns the age in ms of the valid keys that both the engine and the peer have, as far as this node knows;
   * undefined if there are no such keys.
   */
  keyAgeOf(number: number, now: number): number | undefined {
    const ageMs = now - (this.#node.peers.get(number)?.completedAt ?? -Infinity)
    return ageMs < REJECT_AFTER_MS ? ageMs : undefined
  }

  /**
   * Records that a new engine without keys runs. The next handshake with a peer may then begin immediately after the
   * previous handshake.
   */
  lostKeys(): void {
    for (const peer of this.#node.peers.values()) peer.completedAt = -Infinity
  }

  /** Returns the state of the handshakes with a peer; undefined if no peer has this number. */
  stateOf(number: number): HandshakeState | undefined {
    const peer = this.#node.peers.get(number)
    if (!peer) return undefined
    const { at, attempts, failure, stale, unconfirmed } = peer
    return { at, attempts, failure, stale, unconfirmed }
  }

  unknownKeys(): readonly UnknownKey[] {
    return this.#responder.unknownKeys()
  }

  /** Returns the state of a peer's handshakes for the next process; undefined for an unknown peer. */
  memoryOf(number: number): HandshakeMemory | undefined {
    const peer = this.#node.peers.get(number)
    if (!peer) return undefined
    const { greatest, low, at, pending } = peer
    const completedAt = peer.completedAt === -Infinity ? undefined : peer.completedAt
    return { greatest, low, completedAt, at, requestedAt: pending?.sentAt }
  }

  /**
   * Continues with the index secrets, peers and states of an earlier process. Must be called before all other
   * functions.
   */
  resume(
    indexSecret: number,
    all: readonly (HandshakePeer & { readonly memory: HandshakeMemory })[],
    indexKey?: Uint8Array,
  ): void {
    this.#node.useIndices(indexSecret, indexKey)
    this.setPeers(all)
    for (const { number, memory } of all) {
      const peer = this.#node.peers.get(number)
      if (!peer) continue
      peer.greatest = memory.greatest
      peer.low = memory.low
      peer.completedAt = memory.completedAt ?? -Infinity
      peer.at = memory.at
      // The earlier process sent an initiation whose response this process cannot decrypt. So send another initiation,
      // as soon as the peer accepts a second one.
      if (memory.requestedAt !== undefined) this.#initiator.postpone(peer, memory.requestedAt + 2 * ACCEPT_EVERY_MS)
    }
  }

  /**
   * Excludes timestamps up to the tick `tick`, because another process may have used them. From now on this node uses
   * only later timestamps.
   */
  passed(tick: number): void {
    this.#initiator.stamps.passed(tick)
  }

  /** The last tick (tai64n.ts) that this or an earlier process may have used for a timestamp. */
  get lastTick(): number {
    return this.#initiator.stamps.end
  }

  /** Erases all secrets. After `close` no function of this object may be called. */
  close(): void {
    for (const peer of Array.from(this.#node.peers.values())) this.#remove(peer)
    this.#admission.close()
  }

  #remove(peer: Peer): void {
    this.#initiator.remove(peer)
    this.#node.remove(peer)
  }
}
