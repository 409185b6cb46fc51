// handshakes.ts - the handshakes with all peers: when one is begun, tried again and given up, whom is answered, and what each came to.
//
// The engine has the sessions: it seals and opens by their keys, and says `wanted` when it needs new ones. Here is who gets them, by
// two messages. An initiation is tried again every five seconds until it is answered, for a minute and a half. The node that asked
// uses the keys at once; the one that answered waits for the first packet under them (`confirmed`), since its answer may be lost, and
// an initiation be one of long ago that somebody sent again.
//
// Both nodes may begin at once. The one's handshake does not end the other's here: each side gets two sessions then, the same two, and the
// engine receives by both. What is remembered of an initiation is what opens its answer, so nothing that is forged can end it: an
// answer that does not fit changes nothing, and one that fits is taken once.
//
// There is one deadline for all (`nextAt`), and none of a peer that wants nothing. What arrives is judged from the cheapest
// question to the dearest: length, whether it was asked for, mac1, the gate, and then X25519. Nothing that arrives throws.
//
// WireGuard: https://www.wireguard.com/papers/wireguard.pdf, sections 5 and 6. Two things differ from Linux's: an initiation of the
// peer's does not end ours, and an own initiation is delayed, not dropped, where the last one was less than five seconds ago.
// Times are in ms, of a clock that never goes back, but for `wall`.

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
import { createGate } from './handshake-limiter.ts'
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
/** Of both: type, the sender's index; of the response the receiver's too. */
const INITIATION_HEAD = 8
const RESPONSE_HEAD = 12
export const INITIATION_BYTES = INITIATION_HEAD + firstMessageBytes(STAMP_BYTES) + 2 * MAC_BYTES
export const RESPONSE_BYTES = RESPONSE_HEAD + secondMessageBytes(0) + 2 * MAC_BYTES

/** The distance of two initiations to one peer, with a jitter, so that two nodes that begin at once do not do so for ever. */
export const REKEY_TIMEOUT_MS = 5_000
const JITTER_MS = 333
/** How long one is tried again. */
const REKEY_ATTEMPT_MS = 90_000
/** The distance of two initiations that are accepted of one peer. */
const ACCEPT_EVERY_MS = 20
/** Own initiations of all peers together: they wait for one another, so that the start of a large cluster does not hold up the daemon. */
export const INITIATIONS = { perSecond: 250, burst: 50 } as const
/** How often those that wait are looked at. */
const TURN_MS = 20
export const MOST_PEERS = 2 ** (32 - LOW_BITS)

/** What the handshakes ask of the engine. */
export interface SessionEngine {
  send(to: Endpoint, datagram: Uint8Array): void
  /** The keys are wiped after it. */
  setKeys(peer: number, keys: SessionKeys): void
}

/** A peer as the leases have it. */
export interface HandshakePeer {
  /** Below MOST_PEERS, and the same for one public key as long as the process lives. */
  readonly number: number
  /** Of 32 bytes. */
  readonly publicKey: Uint8Array
  readonly psk?: SecretBytes | undefined
  /** Where it is from now on; where there is none it stays where it was. */
  readonly endpoint?: Endpoint | undefined
}

/** Why the last initiation gave no keys. */
type Failure = NonNullable<PeerSession['failure']>

/** What is remembered of a peer beyond the life of a process. */
export interface HandshakeMemory {
  /** The greatest timestamp that it sent; -1 before there was one. */
  readonly greatest: bigint
  /** Its last index, which the next ones follow: those of sessions that go on are not given again. */
  readonly low: number
  /** When the last handshake gave keys that are in use; undefined when none did. */
  readonly completedAt: number | undefined
  /** The same in ms since 1970. */
  readonly at: number | undefined
  /** When it was sent an initiation that it has not answered yet. */
  readonly requestedAt: number | undefined
}

export interface HandshakeState {
  /** When the last one gave keys that are in use, in ms since 1970; undefined when none did. */
  readonly at: number | undefined
  /** Initiations that were sent since then. */
  readonly attempts: number
  readonly failure: Failure | undefined
  /** The peer's initiations, since then, that were as old as one before, or older: its clock went back. */
  readonly stale: number
  /** The peer's initiations, since then, that were answered, without a packet under the keys: with another psk there never is one. */
  readonly unconfirmed: number
}

/** The most keys of nobody's that are remembered: the last ones. */
export const MOST_UNKNOWN = 16

interface HandshakeParts {
  /** Of 32 bytes; they are copied, so the caller may wipe them. */
  readonly privateKey: SecretBytes
  /** Of 32 bits, drawn at random: hides in the indices how many peers there are, and which is which. The engine has the same. */
  readonly indexSecret: number
  /** The key that permutes indices (indices.ts); all zeros if left out. The engine has the same key. */
  readonly indexKey?: Uint8Array
  readonly engine: SessionEngine
  readonly random: Randomness
  /** The time in ms since 1970, for timestamps. */
  readonly wall: () => number
  /** As of createStamps. */
  readonly keptTick: number
  readonly keepTick: (tick: number) => void
  /** A peer that proved who it is sent from another place, to where it is sent from now on. */
  readonly roamed: (peer: number, to: Endpoint) => void
  /**
   * Called when the handshake gives up sending initiations to a peer that did not answer. The engine itself drops the packets that wait for
   * the peer, after 12 s.
   */
  readonly gaveUp?: (peer: number) => void
  /**
   * An initiation that seems to come from there was not looked at, since there are too many; or it is none that could be answered, and a
   * peer's own may have found no place beside it.
   */
  readonly overlooked: (from: Endpoint, now: number) => void
}

export interface Handshakes {
  readonly publicKey: Uint8Array
  /** All peers that there are. What there is with those that stay is kept. */
  setPeers(peers: readonly HandshakePeer[]): void
  /**
   * The engine needs keys for a peer: data waits, or its session is old. It says so again as long as it does, seldom or with each packet:
   * what was heard already costs nothing.
   */
  wanted(peer: number, now: number): void
  /** The first packet came under keys of which this node was not the initiator. */
  confirmed(peer: number, now: number): void
  /** Another engine goes on, which has no keys: what was agreed just now is wanted again. */
  lostKeys(): void
  /** What is remembered of a peer; undefined for one that is not there. */
  memoryOf(peer: number): HandshakeMemory | undefined
  /** Goes on as another one did, which had these indices, peers and memories; before all else. */
  resume(
    indexSecret: number,
    peers: readonly (HandshakePeer & { readonly memory: HandshakeMemory })[],
    indexKey?: Uint8Array,
  ): void
  /** Timestamps up to this tick were given out by others. */
  passed(tick: number): void
  /** The greatest tick that was given out, or may have been. */
  readonly lastTick: number
  /** The engine found that a peer sends from another place. */
  moved(peer: number, to: Endpoint): void
  /** A datagram of type 1, 2 or 3; whatever else is dropped too. */
  message(from: Endpoint, datagram: Uint8Array, now: number): void
  /** What is due. */
  tick(now: number): void
  /** When `tick` is to be called next; Infinity when nothing will be due. Any call may change it. */
  nextAt(): number
  /** Undefined for a peer that is not there. */
  stateOf(peer: number): HandshakeState | undefined
  /** The last keys of initiations that are no peer's. */
  unknownKeys(): readonly UnknownKey[]
  /** What was dropped, and the cookies that were sent, since the start. */
  readonly counters: Readonly<Counters>
  /** Wipes all that is secret. Nothing may be called any more. */
  close(): void
}

interface Counters {
  /** Of another length or type, or nobody asked for it, or mac1 is another, or what is sealed opens not, or is of nobody that is known. */
  junk: number
  /** Over a rate: handshake-limiter.ts, or more than one of a peer in ACCEPT_EVERY_MS. */
  limited: number
  cookiesSent: number
}

/** An initiation of ours that was not answered yet. */
interface Pending extends Sent {
  readonly index: number
  readonly at: number
  failure: Failure
}

class Peer extends Remote {
  readonly number: number
  psk: SecretBytes | undefined
  endpoint: Endpoint | undefined
  /** Counts the low bits of its indices up, from somewhere: so that one comes again after 4096, when all before are long forgotten. */
  low = 0
  #macKeys: MacKeys | undefined

  pending: Pending | undefined
  /** When it was first wanted; undefined when it is not. */
  wantedAt: number | undefined
  /** When `pending` ends, and another may be sent. */
  dueAt = -Infinity
  /** The tick of the last timestamp that it was sent, and the greatest that it sent. */
  lastTick = -1
  greatest = -1n
  acceptedAt = -Infinity
  /** Where its last initiation came from: there it is once that is known to be none of long ago. */
  answered: Endpoint | undefined

  /** The last message that it was sent, for which it may send a cookie; and the cookie. */
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
  // Answers are let in beside initiations, and so are not kept out by them; few have an index that was asked for.
  const gates = {
    initiation: createGate(cookies),
    response: createGate(cookies, 'asked'),
    cookie: createGate(cookies),
  }
  const stamps = createStamps(parts.keptTick, parts.keepTick)
  const mayInitiate = createBucket(1_000 / INITIATIONS.perSecond, INITIATIONS.burst)
  const deadlines = createDeadlines<Peer>()
  /** Those that may be sent an initiation as soon as `mayInitiate` lets them, in order. */
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

  /** Adds the MACs, and sends it. */
  function send(peer: Peer, to: Endpoint, index: number, message: Buffer, now: number): void {
    const cookie = now < peer.cookieUntil ? peer.cookie?.reveal() : undefined
    peer.sentMac1 = writeMacs(message, peer.macKeys, cookie)
    peer.sentIndex = index
    engine.send(to, message)
  }

  function initiate(peer: Peer, now: number): void {
    const { endpoint } = peer
    peer.forget()
    if (!endpoint) return // nobody is wanted without, and none loses one
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

  /** The keys of a handshake are in use, so that no other is wanted. */
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
    // Where none is wanted any more, the peer's own handshake has come meanwhile.
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

  /** False for what is not to be looked at any further, which has got its cookie, if it is to have one. */
  function passes(gate: keyof typeof gates, message: Uint8Array, from: Endpoint, now: number): boolean {
    if (!gates[gate].mayBeHeard(now)) {
      counters.limited += 1
      return false
    }
    if (!hasMac1(message, ownMacKeys)) {
      counters.junk += 1
      return false
    }
    const verdict = gates[gate].judge(message, from, now)
    if (verdict === 'process') return true
    counters.limited += 1
    if (verdict === 'ask') {
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
      // The same once more is what a network does.
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

  /** To the engine before the answer goes out, since what answers that may come at once. */
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
    if (!gates.cookie.mayBeHeard(now)) {
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
      // It was said before the engine had the keys.
      if (now - peer.completedAt < REKEY_TIMEOUT_MS) return
      peer.wantedAt = now
      // Else `due` goes on with it.
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
        // It is asked again as soon as it listens: what opens its answer has gone with the other process.
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
