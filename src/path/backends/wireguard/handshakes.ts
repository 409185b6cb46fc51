// handshakes.ts - the WireGuard handshakes with all peers: when an initiation is sent, repeated and given up, which
// initiations of peers are answered, and the result of each handshake.
//
// The engine holds the sessions and encrypts packets with their keys. It reports `wanted` when it needs new keys, which
// a handshake of two messages makes. This node repeats an initiation every five seconds, for at most 90 seconds, until
// the peer answers. The node that sent the initiation uses the new keys immediately. The node that answered uses them
// only after the first packet encrypted with them (`confirmed`), because its response may be lost, and the initiation
// may be a replay.
//
// Both nodes may begin a handshake simultaneously. One handshake does not end the other: both nodes get the same two
// sessions, and the engine accepts packets of both. For its own initiation this node keeps only the state that decrypts
// the response. So a forged message cannot end the handshake: an invalid response changes nothing, and a valid response
// is accepted once.
//
// All peers share one timer (`nextAt`); a peer for which no keys are wanted has no deadline. Received messages are
// checked in the order of cost: length, whether the message was requested, mac1, the rate limits, and then X25519. No
// received message makes a function throw.
//
// The protocol is WireGuard's (https://www.wireguard.com/papers/wireguard.pdf, sections 5 and 6). Two things differ
// from Linux. A peer's initiation does not end this node's initiation. If this node's last initiation is less than five
// seconds old, the next one is delayed and not dropped. Times are in ms of a monotonic clock, except `wall`, which is
// in ms since 1970.

import { SecretBytes } from '../../../base/secret.ts'
import type { PeerSession, UnknownKey } from '../../contract.ts'
import type { SessionKeys } from '../../engine/engine.ts'
import { createBucket } from '../../engine/reference/bucket.ts'
import {
  COOKIE_REPLY_BYTES,
  COOKIE_USE_MS,
  createCookies,
  hasMac1,
  macKeysOf,
  openCookieReply,
  TYPE_COOKIE_REPLY,
  writeMacs,
  type Endpoint,
  type MacKeys,
} from './cookie.ts'
import { MAC_BYTES, type Randomness } from './crypto.ts'
import { createDeadlines } from './deadlines.ts'
import { createHandshakeLimiter } from './handshake-limiter.ts'
import { createIndices, LOW_BITS, LOW_MASK } from './indices.ts'
import {
  firstMessageBytes,
  readFirst,
  readSecond,
  Remote,
  secondMessageBytes,
  writeFirst,
  writeSecond,
  type Sent,
} from './noise.ts'
import { createStamps, orderOf, STAMP_BYTES, stampOf } from './tai64n.ts'
import { KEY_BYTES, keyPairOf } from './x25519.ts'

export type { SessionKeys } from '../../engine/engine.ts'
export type { Endpoint } from './cookie.ts'

const TYPE_INITIATION = 1
const TYPE_RESPONSE = 2
/** The lengths of the messages' headers in bytes: type and sender's index; in a response also the receiver's index. */
const INITIATION_HEAD = 8
const RESPONSE_HEAD = 12
export const INITIATION_BYTES = INITIATION_HEAD + firstMessageBytes(STAMP_BYTES) + 2 * MAC_BYTES
export const RESPONSE_BYTES = RESPONSE_HEAD + secondMessageBytes(0) + 2 * MAC_BYTES

/**
 * The minimum interval in ms between initiations to one peer. A random time of up to JITTER_MS is added, so that two
 * nodes that began simultaneously do not stay in step.
 */
export const REKEY_TIMEOUT_MS = 5_000
const JITTER_MS = 333
const REKEY_ATTEMPT_MS = 90_000
/** The minimum interval in ms between two accepted initiations of one peer. */
const ACCEPT_EVERY_MS = 20
/**
 * The limit on the rate of this node's own initiations to all peers together. Further initiations wait, so that the
 * start of a large cluster does not block the daemon.
 */
export const INITIATIONS = { perSecond: 250, burst: 50 } as const
/** The interval in ms at which waiting initiations are checked against the rate limit again. */
const TURN_MS = 20
export const MOST_PEERS = 2 ** (32 - LOW_BITS)

export interface SessionEngine {
  send(to: Endpoint, datagram: Uint8Array): void
  /** Gives a session's keys to the engine, which copies them; the caller then erases its own copy. */
  setKeys(peer: number, keys: SessionKeys): void
}

export interface HandshakePeer {
  /** The peer's number, below MOST_PEERS. A public key keeps its number as long as the process runs. */
  readonly number: number
  readonly publicKey: Uint8Array
  readonly psk?: SecretBytes | undefined
  /** The peer's new endpoint; undefined if the known endpoint is still right. */
  readonly endpoint?: Endpoint | undefined
}

type Failure = NonNullable<PeerSession['failure']>

/** The state of a peer's handshakes that the next process needs to continue the handshakes. */
export interface HandshakeMemory {
  /** The greatest timestamp in the peer's accepted initiations; -1 if there was none. */
  readonly greatest: bigint
  /**
   * The low bits of the index in this node's last message to the peer. The next process continues after it, so that it does not use an
   * index of a continued session again.
   */
  readonly low: number
  /** The time of the last handshake that made keys in use, in ms of the monotonic clock; undefined if none did. */
  readonly completedAt: number | undefined
  /** The time, in ms since 1970, of the handshake whose time on the monotonic clock is `completedAt`; undefined if there was none. */
  readonly at: number | undefined
  /** The time, in ms of the monotonic clock, of an initiation that the peer has not answered yet; undefined if there is none. */
  readonly requestedAt: number | undefined
}

export interface HandshakeState {
  /** The time of the last handshake that made keys in use, in ms since 1970; undefined if none did. */
  readonly at: number | undefined
  readonly attempts: number
  readonly failure: Failure | undefined
  /**
   * The number of initiations from the peer, since that handshake, whose timestamp was older than an earlier one. It grows if the peer's
   * clock was set back.
   */
  readonly stale: number
  /**
   * The number of initiations from the peer, since that handshake, that were answered but after which no packet with the new keys came. It
   * grows if the peer has a different psk.
   */
  readonly unconfirmed: number
}

/** The maximum number of unknown public keys that are remembered; the latest ones are kept. */
export const MOST_UNKNOWN = 16

interface HandshakeParts {
  /** The private key, 32 bytes. It is copied, so the caller may erase its own copy. */
  readonly privateKey: SecretBytes
  /** A random number of 32 bits that hides in the messages' indices how many peers this node has. The engine needs the same number. */
  readonly indexSecret: number
  /** The key that permutes the peers' numbers in indices (indices.ts); all zeros if left out. The engine needs the same key. */
  readonly indexKey?: Uint8Array
  readonly engine: SessionEngine
  readonly random: Randomness
  /** Returns the time in ms since 1970, which is the source of timestamps in initiations. */
  readonly wall: () => number
  readonly keptTick: number
  readonly keepTick: (tick: number) => void
  /**
   * Called when an authenticated message of a peer came from a new endpoint. From then on this node sends the peer's
   * datagrams to that endpoint.
   */
  readonly roamed: (peer: number, to: Endpoint) => void
  /**
   * Called when this node stops sending initiations to a peer that did not answer. The engine drops the packets that
   * wait for the peer by itself, after 12 seconds.
   */
  readonly gaveUp?: (peer: number) => void
  /**
   * Called when an initiation from this endpoint was not processed, because a rate limit dropped it or it was invalid. It may have been the
   * initiation of a peer at this address.
   */
  readonly overlooked: (from: Endpoint, now: number) => void
}

export interface Handshakes {
  readonly publicKey: Uint8Array
  /** Replaces the set of peers. Keeps the handshake state of each peer that was in the old set too. */
  setPeers(peers: readonly HandshakePeer[]): void
  /**
   * Records that the engine needs keys for a peer, because packets wait or the session is old, and starts a handshake if none is running.
   * The engine may need keys for each packet; repeated calls have no effect.
   */
  wanted(peer: number, now: number): void
  /**
   * Records that a packet arrived with keys of a handshake that the peer began. The packet proves that the peer has these keys, so this
   * node may use them too.
   */
  confirmed(peer: number, now: number): void
  /** Records that a new engine without keys runs, so that the next handshake with a peer may begin immediately after the previous one. */
  lostKeys(): void
  /** Returns the state of a peer's handshakes for the next process; undefined for an unknown peer. */
  memoryOf(peer: number): HandshakeMemory | undefined
  /**
   * Continues with the index secrets, peers and states of an earlier process. Must be called before all other
   * functions.
   */
  resume(
    indexSecret: number,
    peers: readonly (HandshakePeer & { readonly memory: HandshakeMemory })[],
    indexKey?: Uint8Array,
  ): void
  /**
   * Excludes timestamps up to this tick, because another process may have used them. From now on this node uses only
   * later timestamps.
   */
  passed(tick: number): void
  /** The greatest tick that this or an earlier process may have used for a timestamp. */
  readonly lastTick: number
  moved(peer: number, to: Endpoint): void
  /** Processes a datagram with a handshake message (type 1, 2 or 3); drops other datagrams. */
  message(from: Endpoint, datagram: Uint8Array, now: number): void
  tick(now: number): void
  /**
   * Returns the time at which `tick` must be called next; Infinity if there is nothing to do. Each call of another
   * function may change this time.
   */
  nextAt(): number
  /** Returns the state of the handshakes with a peer; undefined if no peer has this number. */
  stateOf(peer: number): HandshakeState | undefined
  unknownKeys(): readonly UnknownKey[]
  readonly counters: Readonly<Counters>
  /** Erases all secrets. Afterwards no function may be called. */
  close(): void
}

interface Counters {
  /**
   * The number of messages that were dropped because their length, type or mac1 was wrong, because their sender was unknown, because they
   * answered no initiation of this node, or because they could not be decrypted.
   */
  junk: number
  /**
   * The number of messages that exceeded a rate limit (handshake-limiter.ts), or were a peer's second initiation within ACCEPT_EVERY_MS.
   */
  limited: number
  cookiesSent: number
}

interface Pending extends Sent {
  readonly index: number
  readonly at: number
  failure: Failure
}

class Peer extends Remote {
  readonly number: number
  psk: SecretBytes | undefined
  endpoint: Endpoint | undefined
  /**
   * A counter, from a random start, that is in the low bits of the peer's indices. An index is used again only after 4096 handshakes, when
   * its session has long expired.
   */
  low = 0
  #macKeys: MacKeys | undefined

  pending: Pending | undefined
  /** The time at which the engine first wanted the keys that are still missing; undefined if no keys are wanted. */
  wantedAt: number | undefined
  /** The time at which this node gives up waiting for the response to `pending` and may send another initiation. */
  dueAt = -Infinity
  /** The tick of the last timestamp that this node sent to the peer; `greatest` is the greatest timestamp that the peer sent. */
  lastTick = -1
  greatest = -1n
  acceptedAt = -Infinity
  /**
   * The endpoint from which the peer's last initiation came. It becomes the peer's endpoint only after a packet proves that the initiation
   * was not a replay.
   */
  answered: Endpoint | undefined

  /**
   * mac1 and index of the last message to the peer, and the cookie from the last cookie reply of the peer. A peer may answer a message with
   * a cookie reply.
   */
  sentMac1: Uint8Array | undefined
  sentIndex = 0
  cookie: SecretBytes | undefined
  cookieUntil = -Infinity

  completedAt = -Infinity
  at: number | undefined
  attempts = 0
  failure: Failure | undefined
  stale = 0
  unconfirmed = 0

  constructor(number: number, ...of: ConstructorParameters<typeof Remote>) {
    super(...of)
    this.number = number
  }

  get macKeys(): MacKeys {
    return (this.#macKeys ??= macKeysOf(this.publicKey))
  }

  forget(): void {
    this.pending?.transcript.wipe()
    this.pending = undefined
  }

  override wipe(): void {
    super.wipe()
    this.forget()
    this.cookie?.wipe()
  }
}

const nameOf = (publicKey: Uint8Array): string => Buffer.from(publicKey).toString('base64')
const isSame = (a: Endpoint | undefined, b: Endpoint): boolean => a?.address === b.address && a.port === b.port

export function createHandshakes(parts: HandshakeParts): Handshakes {
  const { engine, random, wall } = parts
  let indices = createIndices(parts.indexSecret, parts.indexKey)
  const own = keyPairOf(parts.privateKey.reveal())
  const ownName = nameOf(own.publicKey)
  const ownMacKeys = macKeysOf(own.publicKey)
  const cookies = createCookies(ownMacKeys, random)
  // Give each type of message its own limits, so that a flood of initiations does not displace responses. A forged
  // response rarely has an index for which a response is expected.
  const limiters = {
    initiation: createHandshakeLimiter(cookies),
    response: createHandshakeLimiter(cookies, 'requested'),
    cookie: createHandshakeLimiter(cookies),
  }
  const stamps = createStamps(parts.keptTick, parts.keepTick)
  const mayInitiate = createBucket(1_000 / INITIATIONS.perSecond, INITIATIONS.burst)
  const deadlines = createDeadlines<Peer>()
  /** The peers to which an initiation must be sent, in this order, as soon as `mayInitiate` allows it. */
  const waiting = new Set<Peer>()
  let turnAt = -Infinity
  const peers = new Map<number, Peer>()
  const byName = new Map<string, Peer>()
  const unknown = new Map<string, UnknownKey>()
  const counters: Counters = { junk: 0, limited: 0, cookiesSent: 0 }
  const draw = (): number => Buffer.from(random.bytes(4)).readUInt32LE()

  function newIndex(peer: Peer): number {
    peer.low = (peer.low + 1) & LOW_MASK
    return indices.of(peer.number, peer.low)
  }
  const peerOf = (index: number): Peer | undefined => peers.get(indices.peerOf(index))

  function send(peer: Peer, to: Endpoint, index: number, message: Buffer, now: number): void {
    const cookie = now < peer.cookieUntil ? peer.cookie?.reveal() : undefined
    peer.sentMac1 = writeMacs(message, peer.macKeys, cookie)
    peer.sentIndex = index
    engine.send(to, message)
  }

  function initiate(peer: Peer, now: number): void {
    const { endpoint } = peer
    peer.forget()
    if (!endpoint) return // keys are wanted only for a peer with an endpoint, and no peer loses its endpoint
    peer.dueAt = now + REKEY_TIMEOUT_MS + (draw() % (JITTER_MS + 1))
    deadlines.add(peer, peer.dueAt)
    peer.lastTick = stamps.next(peer.lastTick, wall())
    const written = writeFirst(own, peer, random.keyPair(), stampOf(peer.lastTick))
    if (!written) {
      peer.failure = 'bad-key'
      return
    }
    const index = newIndex(peer)
    const message = Buffer.alloc(INITIATION_BYTES)
    message[0] = TYPE_INITIATION
    message.writeUInt32LE(index, 4)
    message.set(written.message, INITIATION_HEAD)
    peer.pending = { ...written.sent, index, at: now, failure: 'no-answer' }
    peer.attempts += 1
    send(peer, endpoint, index, message, now)
  }

  function complete(peer: Peer, now: number): void {
    waiting.delete(peer)
    peer.wantedAt = undefined
    peer.completedAt = now
    peer.at = wall()
    peer.attempts = 0
    peer.failure = undefined
    peer.stale = 0
    peer.unconfirmed = 0
  }

  function roam(peer: Peer, to: Endpoint): void {
    if (isSame(peer.endpoint, to)) return
    peer.endpoint = to
    parts.roamed(peer.number, to)
  }

  function due(peer: Peer, now: number): void {
    if (peer.dueAt > now || peers.get(peer.number) !== peer) return
    // If keys are no longer wanted, a handshake that the peer began has made them meanwhile, so do not count this
    // handshake as failed.
    if (peer.pending && peer.wantedAt !== undefined) peer.failure = peer.pending.failure
    peer.forget()
    if (peer.wantedAt === undefined) return
    if (now - peer.wantedAt < REKEY_ATTEMPT_MS) {
      waiting.add(peer)
      return
    }
    peer.wantedAt = undefined
    parts.gaveUp?.(peer.number)
  }

  function work(now: number): void {
    for (const peer of waiting) {
      if (!mayInitiate(now)) {
        if (turnAt <= now) turnAt = now + TURN_MS
        return
      }
      waiting.delete(peer)
      initiate(peer, now)
    }
  }

  /**
   * True if the message must be processed. Otherwise the message is counted. If its sender must first prove its
   * address, the message is also answered with a cookie reply.
   */
  function passes(kind: keyof typeof limiters, message: Uint8Array, from: Endpoint, now: number): boolean {
    if (!limiters[kind].mayReceive(now)) {
      counters.limited += 1
      return false
    }
    if (!hasMac1(message, ownMacKeys)) {
      counters.junk += 1
      return false
    }
    const verdict = limiters[kind].judge(message, from, now)
    if (verdict === 'process') return true
    counters.limited += 1
    if (verdict === 'challenge') {
      counters.cookiesSent += 1
      engine.send(from, cookies.reply(message, from, now))
    }
    return false
  }

  function readInitiation(from: Endpoint, message: Buffer, now: number): void {
    const { limited } = counters
    if (!passes('initiation', message, from, now)) {
      if (counters.limited > limited) parts.overlooked(from, now)
      return
    }
    const noise = message.subarray(INITIATION_HEAD, -2 * MAC_BYTES)
    let name = ''
    const received = readFirst(own, noise, (publicKey) => byName.get((name = nameOf(publicKey))))
    if (!received) {
      if (name !== '' && !byName.has(name)) noteUnknown({ publicKey: name, from, at: now })
      counters.junk += 1
      parts.overlooked(from, now)
      return
    }
    const peer = received.from
    const order = orderOf(received.payload)
    const isTooSoon = now - peer.acceptedAt < ACCEPT_EVERY_MS
    if (order <= peer.greatest || isTooSoon) {
      received.transcript.wipe()
      // An equal timestamp does not count as stale, because networks may duplicate datagrams.
      if (order < peer.greatest) peer.stale += 1
      else if (order > peer.greatest) counters.limited += 1
      if (now - peer.acceptedAt >= REKEY_TIMEOUT_MS) parts.overlooked(from, now)
      return
    }
    const answer = writeSecond(received, random.keyPair(), peer.psk)
    if (!answer) {
      counters.junk += 1
      return
    }
    peer.greatest = order
    peer.acceptedAt = now
    peer.unconfirmed += 1
    const index = newIndex(peer)
    const peerIndex = message.readUInt32LE(4)
    const response = Buffer.alloc(RESPONSE_BYTES)
    response[0] = TYPE_RESPONSE
    response.writeUInt32LE(index, 4)
    response.writeUInt32LE(peerIndex, 8)
    response.set(answer.message, RESPONSE_HEAD)
    peer.answered = from
    if (!peer.endpoint) roam(peer, from)
    handOver(peer, false, index, peerIndex, answer.keys)
    send(peer, from, index, response, now)
  }

  function noteUnknown(key: UnknownKey): void {
    unknown.delete(key.publicKey)
    unknown.set(key.publicKey, key)
    const [oldest] = unknown.keys()
    if (unknown.size > MOST_UNKNOWN && oldest !== undefined) unknown.delete(oldest)
  }

  /**
   * Gives the new keys to the engine and erases them here. Must be called before the response is sent, because the peer
   * may send packets immediately after it receives the response.
   */
  function handOver(
    peer: Peer,
    isInitiator: boolean,
    ownIndex: number,
    peerIndex: number,
    { sendKey, receiveKey }: { readonly sendKey: Buffer; readonly receiveKey: Buffer },
  ): void {
    try {
      engine.setKeys(peer.number, { isInitiator, ownIndex, peerIndex, sendKey, receiveKey })
    } finally {
      sendKey.fill(0)
      receiveKey.fill(0)
    }
  }

  function readResponse(from: Endpoint, message: Buffer, now: number): void {
    const index = message.readUInt32LE(8)
    const peer = peerOf(index)
    if (!peer?.pending || peer.pending.index !== index) {
      counters.junk += 1
      return
    }
    if (!passes('response', message, from, now)) return
    const { pending } = peer
    const answer = readSecond(own, pending, message.subarray(RESPONSE_HEAD, -2 * MAC_BYTES), peer.psk)
    if (!answer) {
      pending.failure = 'not-authentic'
      counters.junk += 1
      return
    }
    peer.forget()
    complete(peer, now)
    roam(peer, from)
    handOver(peer, true, index, message.readUInt32LE(4), answer.keys)
  }

  function readCookieReply(message: Buffer, now: number): void {
    const index = message.readUInt32LE(4)
    const peer = peerOf(index)
    if (!peer?.sentMac1 || peer.sentIndex !== index) {
      counters.junk += 1
      return
    }
    if (!limiters.cookie.mayReceive(now)) {
      counters.limited += 1
      return
    }
    const cookie = openCookieReply(message, peer.macKeys, peer.sentMac1)
    if (!cookie) {
      counters.junk += 1
      return
    }
    peer.sentMac1 = undefined
    peer.cookie?.wipe()
    peer.cookie = new SecretBytes(cookie)
    peer.cookieUntil = now + COOKIE_USE_MS
  }

  function remove(peer: Peer): void {
    peers.delete(peer.number)
    byName.delete(nameOf(peer.publicKey))
    waiting.delete(peer)
    stamps.passed(peer.lastTick)
    peer.wipe()
  }

  const handshakes: Handshakes = {
    publicKey: own.publicKey,
    counters,
    setPeers(all) {
      const given = new Map(all.filter((each) => nameOf(each.publicKey) !== ownName).map((each) => [each.number, each]))
      for (const peer of peers.values()) {
        const same = given.get(peer.number)
        if (!same || nameOf(same.publicKey) !== nameOf(peer.publicKey)) remove(peer)
      }
      for (const { number, publicKey, psk, endpoint } of given.values()) {
        if (!(Number.isInteger(number) && number >= 0 && number < MOST_PEERS))
          throw new RangeError(`${number} is no number of a peer`)
        if (publicKey.length !== KEY_BYTES) throw new RangeError(`a public key of ${publicKey.length} bytes`)
        let peer = peers.get(number)
        if (!peer) {
          peer = new Peer(number, own, Uint8Array.from(publicKey))
          peer.low = draw() & LOW_MASK
          peers.set(number, peer)
          byName.set(nameOf(publicKey), peer)
          unknown.delete(nameOf(publicKey))
        }
        peer.psk = psk
        peer.endpoint = endpoint ?? peer.endpoint
      }
    },
    wanted(number, now) {
      const peer = peers.get(number)
      if (!peer?.endpoint || peer.wantedAt !== undefined) return
      // Ignore the engine's report: it crossed the new keys on their way, so no further handshake is needed.
      if (now - peer.completedAt < REKEY_TIMEOUT_MS) return
      peer.wantedAt = now
      // If an initiation was sent a short time ago, do not send another now: `due` sends the next one when its deadline
      // passes.
      if (peer.dueAt <= now) waiting.add(peer)
      work(now)
    },
    confirmed(number, now) {
      const peer = peers.get(number)
      if (!peer) return
      complete(peer, now)
      if (peer.answered) roam(peer, peer.answered)
    },
    lostKeys() {
      for (const peer of peers.values()) peer.completedAt = -Infinity
    },
    memoryOf(number) {
      const peer = peers.get(number)
      if (!peer) return undefined
      const { greatest, low, at, pending } = peer
      const completedAt = peer.completedAt === -Infinity ? undefined : peer.completedAt
      return { greatest, low, completedAt, at, requestedAt: pending?.at }
    },
    resume(secret, all, key) {
      indices = createIndices(secret, key)
      handshakes.setPeers(all)
      for (const { number, memory } of all) {
        const peer = peers.get(number)
        if (!peer) continue
        const { greatest, low, completedAt = -Infinity, at, requestedAt } = memory
        Object.assign(peer, { greatest, low, completedAt, at })
        if (requestedAt === undefined) continue
        // The other process sent an initiation whose response this process cannot decrypt. So send another initiation,
        // as soon as the peer accepts a second one.
        peer.dueAt = requestedAt + 2 * ACCEPT_EVERY_MS
        deadlines.add(peer, peer.dueAt)
      }
    },
    passed: (tick) => stamps.passed(tick),
    get lastTick() {
      return stamps.end
    },
    moved(number, to) {
      const peer = peers.get(number)
      if (peer) peer.endpoint = to
    },
    message(from, datagram, now) {
      const message = Buffer.from(datagram.buffer, datagram.byteOffset, datagram.length)
      const type = message.length >= 4 ? message.readUInt32LE(0) : 0
      if (type === TYPE_INITIATION && message.length === INITIATION_BYTES) readInitiation(from, message, now)
      else if (type === TYPE_RESPONSE && message.length === RESPONSE_BYTES) readResponse(from, message, now)
      else if (type === TYPE_COOKIE_REPLY && message.length === COOKIE_REPLY_BYTES) readCookieReply(message, now)
      else counters.junk += 1
    },
    tick(now) {
      for (const peer of deadlines.take(now)) due(peer, now)
      work(now)
    },
    nextAt: () => (waiting.size > 0 ? Math.min(turnAt, deadlines.next()) : deadlines.next()),
    stateOf(number) {
      const peer = peers.get(number)
      if (!peer) return undefined
      const { at, attempts, failure, stale, unconfirmed } = peer
      return { at, attempts, failure, stale, unconfirmed }
    },
    unknownKeys: () => [...unknown.values()],
    close() {
      for (const peer of Array.from(peers.values())) remove(peer)
    },
  }
  return handshakes
}
