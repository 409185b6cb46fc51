// session-manager.ts - connects the handshakes to the engine: it assigns the sessions' numbers, passes the engine's
// reports and messages to the handshakes, and runs their timer. docs/design/wireguard-sessions.md explains sessions and
// handshakes together.
//
// A session keeps its number as long as its peer's key is known, so a rewritten lease, or a second lease of the same
// host, does not interrupt the session.
//
// A new engine either continues the sessions of the previous engine or has no sessions. If it has none, peers notice
// the loss of the sessions when they send packets. After a planned restart the new process has an engine that continues
// the sessions, and a session manager that continues from the result of `pause` (handover-head.ts). This session
// manager sends unanswered initiations again.
//
// Each message costs time, even a forged message. So the session manager pauses after messages that any host can send,
// and after reports of moved peers. A packet of an unknown session may be forged, so this node begins a handshake only
// if the packet's apparent sender has no keys. The same rule holds for an initiation that this node has dropped or
// found invalid. A flood with a peer's address can displace the peer's own initiation, but not the peer's response to
// this node's initiation.

import type { Log } from '../../../base/log.ts'
import { SecretBytes, type Secret } from '../../../base/secret.ts'
import type { Lease } from '../../../control/lease/lease.ts'
import { addressKey, type Address, type AddressKey } from '../../../net/address.ts'
import type { PeerSession, UnknownKey } from '../../contract.ts'
import type { EngineSessions, UdpEndpoint } from '../../engine/engine.ts'
import type { SessionManager } from '../../tunnel/session-manager.ts'
import { macKeysOf } from './cookie.ts'
import { hash, systemRandomness } from './crypto.ts'
import { readHead, writeHead, type HandoverHead } from './handover-head.ts'
import { Handshakes } from './handshakes.ts'
import { INDEX_KEY_BYTES } from './indices.ts'
import { MAX_PAUSE_MS, MOST_OF_OTHERS, PAUSE } from './limits.ts'
import { TYPE_DATA } from './messages.ts'
import { SessionNumbers } from './session-numbers.ts'
import { TimestampFile } from './timestamp-file.ts'
import { KEY_BYTES } from './x25519.ts'

/**
 * The length in bytes of the data about a peer that the engine reads: the session's number and, at ANY_PORT_OFFSET,
 * whether the peer may send from any local port. OWN_END_BYTES is the length of the data about this host, whose offsets
 * are in native/encap/wireguard.h.
 */
const END_BYTES = 16
const ANY_PORT_OFFSET = 4
const OWN_END_BYTES = 8 + KEY_BYTES + INDEX_KEY_BYTES

export interface PublishedPeer extends UdpEndpoint {
  readonly publicKey: string
  /** True if the peer may send from any local port, and not only from its published port, on which it receives. */
  readonly anyPort: boolean
}

interface SessionOptions {
  readonly privateKey: Secret
  /** The pre-shared key in base64; empty if the configuration has none. */
  readonly psk: Secret
  /** The interval in seconds between keepalive packets; 0 switches keepalive packets off. */
  readonly keepalive: number
  /** The file that keeps the last timestamp of handshakes (timestamp-file.ts). Only this object may write the file. */
  readonly stampFile: string
  /**
   * Returns true if this host's lease announces that its datagrams may come from any port, so that each thread of the
   * engine can send from a port of its own. If it returns false, all datagrams leave from the published port.
   */
  readonly hasLanes: () => boolean
  readonly peerOf: (lease: Lease) => PublishedPeer | undefined
  readonly log: Log
  /** Returns the time of CLOCK_BOOTTIME in ms (session-clock.ts). */
  readonly clock: () => number
}

/**
 * The session with one peer. The peer's public key identifies the session. The class Peer (peer.ts) has the session's
 * handshakes and the peer's current endpoint.
 */
interface Session {
  readonly number: number
  readonly publicKey: string
  /** The endpoint that the peer's lease publishes. */
  leased: UdpEndpoint
  anyPort: boolean
  /** The keys of the leases that publish this peer's public key. */
  leases: readonly string[]
}

const bytesOf = (base64: string): Buffer => Buffer.from(base64, 'base64')
const isSame = (a: UdpEndpoint, b: UdpEndpoint): boolean => a.address === b.address && a.port === b.port

export class WireguardSessionManager implements SessionManager {
  /**
   * The engine's data about this host: the keepalive interval, the key of mac1, and the secrets that hide session
   * numbers in WireGuard's indices.
   */
  readonly ownEnd = Buffer.alloc(OWN_END_BYTES)
  readonly #hasLanes: () => boolean
  readonly #peerOf: (lease: Lease) => PublishedPeer | undefined
  readonly #clock: () => number
  /** The pre-shared key; undefined if the configuration has none. */
  readonly #psk: SecretBytes | undefined
  /**
   * The key of the MAC over the state that a process passes to the next process (handover-head.ts). The MAC proves that
   * a process with the same private key and pre-shared key wrote the state.
   */
  readonly #proofKey: SecretBytes
  readonly #stamps: TimestampFile
  readonly #handshakes: Handshakes
  /**
   * The random number, and the key, that hide the sessions' numbers in the indices of WireGuard messages (indices.ts).
   */
  #indexSecret = Buffer.from(systemRandomness.bytes(4)).readUInt32LE()
  #indexKey = systemRandomness.bytes(INDEX_KEY_BYTES)
  readonly #numbers = new SessionNumbers()
  readonly #sessions = new Map<string, Session>()
  readonly #byNumber = new Map<number, Session>()
  /** The sessions by the address of the peer's current endpoint; undefined if the map is out of date. */
  #byAddress: ReadonlyMap<AddressKey, readonly Session[]> | undefined
  /** The running engine; undefined before `begin`, after `pause` and after `stop`. */
  #engine: EngineSessions | undefined
  /**
   * Called with the key of a peer's lease when this node begins to send the datagrams for this peer to another
   * endpoint.
   */
  #moved: (key: string) => void = () => {}
  /** Calls `#work` when a handshake is due, or when this node may read messages again after a pause. */
  #timer: NodeJS.Timeout | undefined
  /** The time, in ms of CLOCK_BOOTTIME, at which the pause in reading messages ends; 0 if there is no pause. */
  #pausedUntil = 0

  constructor({ privateKey, psk, keepalive, stampFile, hasLanes, peerOf, log, clock }: SessionOptions) {
    this.#hasLanes = hasLanes
    this.#peerOf = peerOf
    this.#clock = clock
    this.#psk = psk.isEmpty ? undefined : new SecretBytes(bytesOf(psk.reveal()))
    this.#stamps = new TimestampFile(stampFile, log)
    const ownPrivate = new SecretBytes(bytesOf(privateKey.reveal()))
    this.#proofKey = new SecretBytes(hash('weft bequest', ownPrivate.reveal(), this.#psk?.reveal() ?? ''))
    this.#handshakes = new Handshakes({
      privateKey: ownPrivate,
      indexSecret: this.#indexSecret,
      indexKey: this.#indexKey,
      engine: {
        send: (to, datagram) => void this.#engine?.send(to, datagram),
        setKeys: (number, keys) => this.#engine?.setKeys(number, keys),
      },
      random: systemRandomness,
      wall: () => Date.now(),
      keptTick: this.#stamps.read(),
      keepTick: (tick) => this.#stamps.write(tick),
      roamed: (number) => this.#noteMove(number),
      // Compare only the address and not the port: a flood that displaces a peer's initiation may have the peer's
      // address and any port.
      overlooked: ({ address }, now) => this.#renew(address, () => true, now),
    })
    ownPrivate.wipe()
    this.ownEnd.writeUInt32LE(keepalive * 1_000, 4)
    this.ownEnd.set(macKeysOf(this.#handshakes.publicKey).mac1, 8)
    this.#writeIndexSecrets()
  }

  endOf(peer: Lease): Uint8Array {
    const end = Buffer.alloc(END_BYTES)
    const session = this.#sessionOf(peer)
    end.writeUInt32LE(session?.number ?? 0)
    end.writeUInt8(session?.anyPort ? 1 : 0, ANY_PORT_OFFSET)
    return end
  }

  inherit(bytes: Uint8Array): boolean {
    const head = readHead(bytes, this.#proofKey)
    if (head) this.#resume(head)
    return head !== undefined
  }

  begin(engine: EngineSessions): void {
    this.#engine = engine
    // Read the timestamp file again, because another process may have used later timestamps since `pause`. This happens
    // if the next process fails, and this process then continues with its engine.
    this.#handshakes.passed(this.#stamps.read())
    if (!engine.areKept) this.#handshakes.lostKeys()
    this.#takeMail(this.#clock())
    this.#schedule()
  }

  /**
   * Ends the session manager's use of the engine, and returns the state for the next process. Messages that were not
   * yet taken from the engine are saved with the engine's sessions, so that the next process gets them.
   */
  pause(): Uint8Array {
    this.#engine = undefined
    clearTimeout(this.#timer)
    return writeHead(this.#headNow(), this.#proofKey)
  }

  stop(): void {
    this.#engine = undefined
    clearTimeout(this.#timer)
    this.#handshakes.close()
    this.#psk?.wipe()
    this.#proofKey.wipe()
  }

  onMail(): void {
    const now = this.#clock()
    if (this.#pausedUntil <= now) this.#takeMail(now)
    this.#schedule()
  }

  setPeers(peers: ReadonlyMap<string, Lease>): void {
    const now = this.#clock()
    const leases = new Map<string, string[]>()
    /**
     * The sessions whose datagrams must go to the endpoint in the peer's lease again, and no longer to the endpoint to
     * which the peer had moved.
     */
    const renewed = new Set<Session>()
    for (const [key, lease] of peers) {
      const published = this.#peerOf(lease)
      if (!published) continue
      const known = leases.get(published.publicKey)
      if (known) {
        known.push(key)
        continue
      }
      leases.set(published.publicKey, [key])
      const session = this.#sessions.get(published.publicKey)
      if (!session) renewed.add(this.#add(published, now))
      else if (this.#update(session, published)) renewed.add(session)
    }
    for (const session of this.#sessions.values()) {
      session.leases = leases.get(session.publicKey) ?? []
      if (session.leases.length === 0) this.#remove(session, now)
    }
    this.#byAddress = undefined
    this.#handshakes.setPeers(
      [...this.#sessions.values()].map((session) => ({
        number: session.number,
        publicKey: bytesOf(session.publicKey),
        psk: this.#psk,
        endpoint: renewed.has(session) ? session.leased : this.#endpointOf(session),
      })),
    )
    this.#schedule()
  }

  endpointOf(peer: Lease): UdpEndpoint {
    const session = this.#sessionOf(peer)
    if (session) return this.#endpointOf(session)
    const published = this.#peerOf(peer)
    return { address: published?.address ?? 0, port: published?.port ?? 0 }
  }

  // Return true also for a peer behind NAT, which receives datagrams only from the port to which it has sent. Such a
  // peer is recognised by its current endpoint, which differs from the endpoint in its lease.
  isFromKnownPort(peer: Lease): boolean {
    const session = this.#sessionOf(peer)
    return !this.#hasLanes() || !session?.anyPort || !isSame(this.#endpointOf(session), session.leased)
  }

  listen(listener: (key: string) => void): void {
    this.#moved = listener
  }

  stateOf(peer: Lease): Omit<PeerSession, 'txBytes' | 'rxBytes'> | undefined {
    const session = this.#sessionOf(peer)
    const state = session && this.#handshakes.stateOf(session.number)
    if (!state) return undefined
    const { at: handshakeAt, ...more } = state
    const ageMs = this.#handshakes.keyAgeOf(session.number, this.#clock())
    return { publicKey: session.publicKey, handshakeAt, ageMs, ...more }
  }

  unknownKeys(): readonly UnknownKey[] {
    const offset = performance.now() - this.#clock()
    return this.#handshakes.unknownKeys().map((key) => ({ ...key, at: key.at + offset }))
  }

  #sessionOf(peer: Lease): Session | undefined {
    return this.#sessions.get(this.#peerOf(peer)?.publicKey ?? '')
  }

  /**
   * Returns the peer's current endpoint. If the handshakes do not know the peer, because it has this host's own key,
   * returns the endpoint in the lease.
   */
  #endpointOf({ number, leased }: Session): UdpEndpoint {
    return this.#handshakes.endpointOf(number) ?? leased
  }

  #add({ publicKey, address, port, anyPort }: PublishedPeer, now: number): Session {
    const session = { number: this.#numbers.assign(now), publicKey, leased: { address, port }, anyPort, leases: [] }
    this.#sessions.set(publicKey, session)
    this.#byNumber.set(session.number, session)
    return session
  }

  /** Reads the peer's lease again. Returns true if this node must now send datagrams to the endpoint in the lease. */
  #update(session: Session, { address, port, anyPort }: PublishedPeer): boolean {
    // The peer's previous lease did not announce that the peer sends from several ports, so the engine sent datagrams
    // to the source port of the peer's last datagram. The new lease names the port on which the peer receives, so send
    // to that port.
    const isNews = anyPort && !session.anyPort && this.#endpointOf(session).address === address
    session.anyPort = anyPort
    if (!isNews && isSame(session.leased, { address, port })) return false
    session.leased = { address, port }
    return true
  }

  #remove(session: Session, now: number): void {
    this.#sessions.delete(session.publicKey)
    this.#byNumber.delete(session.number)
    this.#engine?.forget(session.number)
    this.#numbers.release(session.number, now)
  }

  #noteMove(number: number): void {
    this.#byAddress = undefined
    for (const key of this.#byNumber.get(number)?.leases ?? []) this.#moved(key)
  }

  #schedule(): void {
    clearTimeout(this.#timer)
    if (!this.#engine) return
    // Set the timer also for a pause that has just ended, because mail may wait that the engine does not report again.
    const at = Math.min(this.#handshakes.nextAt(), this.#pausedUntil === 0 ? Infinity : this.#pausedUntil)
    if (at === Infinity) return
    this.#timer = setTimeout(() => this.#work(), Math.max(0, Math.ceil(at - this.#clock())))
    this.#timer.unref()
  }

  #work(): void {
    const now = this.#clock()
    if (this.#pausedUntil !== 0 && this.#pausedUntil <= now) this.#takeMail(now)
    this.#handshakes.tick(now)
    this.#schedule()
  }

  /**
   * Processes the events that the engine reports and the handshake messages that it received, and then pauses in
   * proportion to the time that the processing took.
   */
  #takeMail(now: number): void {
    if (!this.#engine) return
    this.#pausedUntil = 0
    const mail = this.#engine.takeMail(MOST_OF_OTHERS)
    for (const number of mail.confirmed) this.#handshakes.confirmed(number, now)
    for (const { session, ...to } of mail.moved) {
      // Ignore a report of a changed port that the engine made before the peer's lease announced that the peer sends
      // from several ports.
      if (this.#byNumber.get(session)?.anyPort) continue
      this.#handshakes.moved(session, to)
    }
    for (const { bytes, ...from } of mail.controlMessages) {
      if (bytes[0] === TYPE_DATA) this.#renew(from.address, (session) => this.#sendsFrom(session, from.port), now)
      else this.#handshakes.message(from, bytes, now)
    }
    for (const number of mail.wanted) this.#handshakes.wanted(number, now)
    const count = mail.controlMessages.length + mail.moved.length
    const tookMs = this.#clock() - now
    const pause = Math.min(Math.max(PAUSE.times * tookMs, count * PAUSE.leastMs), count * PAUSE.mostMs, MAX_PAUSE_MS)
    if (pause > 0) this.#pausedUntil = now + tookMs + pause
  }

  #sendsFrom(session: Session, port: number): boolean {
    return session.anyPort || this.#endpointOf(session).port === port
  }

  /**
   * Starts handshakes with the peers at `address` that have no keys. Does nothing for a peer with keys, because the
   * message that led to this call may be forged.
   */
  #renew(address: Address, isMeant: (session: Session) => boolean, now: number): void {
    this.#byAddress ??= this.#groupByAddress()
    for (const session of this.#byAddress.get(addressKey(address)) ?? []) {
      const hasKeys = this.#handshakes.keyAgeOf(session.number, now) !== undefined
      if (!hasKeys && isMeant(session)) this.#handshakes.wanted(session.number, now)
    }
  }

  #groupByAddress(): ReadonlyMap<AddressKey, readonly Session[]> {
    const groups = new Map<AddressKey, Session[]>()
    for (const session of this.#sessions.values()) {
      const key = addressKey(this.#endpointOf(session).address)
      const group = groups.get(key)
      if (group) group.push(session)
      else groups.set(key, [session])
    }
    return groups
  }

  #writeIndexSecrets(): void {
    this.ownEnd.writeUInt32LE(this.#indexSecret, 0)
    this.ownEnd.set(this.#indexKey, 8 + KEY_BYTES)
  }

  /**
   * Continues from the state that an earlier process passed on. Session numbers that no session has stay unused for a
   * while, because the engine may still refer to them.
   */
  #resume({ indexSecret, indexKey, lastNumber, lastTick, sessions }: HandoverHead): void {
    this.#indexSecret = indexSecret
    this.#indexKey = indexKey
    this.#writeIndexSecrets()
    for (const { number, publicKey, leased, anyPort } of sessions) {
      const session = { number, publicKey, leased, anyPort, leases: [] }
      this.#sessions.set(publicKey, session)
      this.#byNumber.set(number, session)
    }
    this.#numbers.resume(lastNumber, new Set(this.#byNumber.keys()), this.#clock())
    const peers = sessions.map(({ number, publicKey, endpoint, memory }) => ({
      number,
      publicKey: bytesOf(publicKey),
      psk: this.#psk,
      endpoint,
      memory,
    }))
    this.#handshakes.resume(indexSecret, peers, indexKey)
    this.#handshakes.passed(lastTick)
  }

  #headNow(): HandoverHead {
    return {
      indexSecret: this.#indexSecret,
      indexKey: this.#indexKey,
      lastNumber: this.#numbers.last,
      lastTick: this.#handshakes.lastTick,
      sessions: [...this.#sessions.values()].flatMap((session) => {
        const { number, publicKey, leased, anyPort } = session
        const memory = this.#handshakes.memoryOf(number)
        return memory ? [{ number, publicKey, leased, endpoint: this.#endpointOf(session), anyPort, memory }] : []
      }),
    }
  }
}
