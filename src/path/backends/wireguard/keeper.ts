// keeper.ts - connects the handshakes to the engine. It passes control messages on, assigns the sessions' numbers, and
// runs the only timer.
//
// A session keeps its number as long as its peer's key is known, so a rewritten lease, or a second lease of the same
// host, does not interrupt it. After the key is gone, the number stays unused for a while, because the engine's threads
// and waiting messages may still refer to it.
//
// A new engine either continues the sessions of the previous engine or has no sessions; in the second case peers notice
// the loss when they send. After a planned restart the successor has an engine that continues, and a keeper that
// continues from the result of `pause`: numbers, endpoints and timestamps. The keys are passed from engine to engine,
// so that exactly one engine has them (native/io/handover_state.h). Unanswered initiations are sent again.
//
// Each message costs time, even if it is forged. So the keeper pauses after messages that any host can send, and after
// reports of moved peers. A packet of an unknown session may be forged, so it leads to a handshake only if the peer
// that it seems to come from has no keys. The same rule holds for an initiation that was dropped or is invalid. A flood
// with a peer's address can displace the peer's own initiation, but not the peer's response to this node's initiation.

import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { messageOf } from '../../../base/errors.ts'
import type { Log } from '../../../base/log.ts'
import { SecretBytes, type Secret } from '../../../base/secret.ts'
import type { Lease } from '../../../control/lease/lease.ts'
import { formatAddress, parseAddress, type Address } from '../../../net/address.ts'
import { REJECT_AFTER_MS } from '../../catalog.ts'
import type { EngineSessions, UdpEndpoint } from '../../engine/engine.ts'
import type { SessionKeeper } from '../../tunnel/session-keeper.ts'
import { macKeysOf } from './cookie.ts'
import { hash, hmac, isEqual, systemRandomness } from './crypto.ts'
import { createHandshakes, type HandshakeMemory } from './handshakes.ts'
import { INDEX_KEY_BYTES } from './indices.ts'
import { KEY_BYTES } from './x25519.ts'

/** The maximum number of messages from unknown hosts that are processed before the next pause. */
const MOST_OF_OTHERS = 64
/**
 * How long JavaScript reads no control messages after it has processed some, so that a flood of messages uses only a
 * small part of a core. The pause is `times` times as long as the processing took, but at least `leastMs` and at most
 * `mostMs` per message or moved peer.
 */
const PAUSE = { times: 15, leastMs: 2, mostMs: 10 } as const
/** The maximum length of a pause in ms, so that many moving peers do not delay handshakes. */
const MAX_PAUSE_MS = 500
/**
 * How long, in ms, the number of a removed peer stays unused. The time is longer than packets and messages wait, and longer than a thread
 * of the engine needs for a batch of packets.
 */
const NUMBER_REUSE_MS = 60_000
/**
 * END_BYTES is the length of the data about a peer that the engine reads: the session's number and, at ANY_PORT_OFFSET,
 * whether the peer sends from any port. OWN_END_BYTES is the length of the data about this host.
 */
const END_BYTES = 16
const ANY_PORT_OFFSET = 4
const OWN_END_BYTES = 8 + KEY_BYTES + INDEX_KEY_BYTES
const MOST_SESSIONS = 1 << 20
/** The first byte of a WireGuard data message. The engine reports such a message if it does not know the message's session. */
const TYPE_DATA = 4
/**
 * The version of the state that this process passes to its successor. The state is a MAC, which proves that both processes have the same
 * private key and PSK, followed by JSON that contains this version.
 */
const HEAD_FORM = 2
const PROOF_BYTES = 32

/** A peer's public key and its endpoint, as its lease publishes them. */
export interface KeeperPeer extends UdpEndpoint {
  readonly publicKey: string
  /** True if the peer may send from any local port, and not only from its published port, on which it receives. */
  readonly anyPort: boolean
}

interface KeeperOptions {
  readonly privateKey: Secret
  /** The pre-shared key in base64; empty if there is none. */
  readonly psk: Secret
  /** The interval in seconds between keepalive packets; 0 switches them off. */
  readonly keepalive: number
  /**
   * The file in which this process stores the timestamp of its last handshake, so that the timestamp survives restarts.
   * No other object writes this file.
   */
  readonly stampFile: string
  /**
   * True if this host's lease announces that its datagrams may come from any port, so that each thread of the engine
   * can send from its own port. If it returns false, all datagrams leave from the published port.
   */
  readonly hasLanes: () => boolean
  readonly peerOf: (lease: Lease) => KeeperPeer | undefined
  readonly log: Log
}

export interface Keeper extends SessionKeeper {
  readonly ownEnd: Uint8Array
  endOf(peer: Lease): Uint8Array
}

const bytesOf = (base64: string): Buffer => Buffer.from(base64, 'base64')
const nameOf = ({ address, port }: UdpEndpoint): string => `${address} ${port}`

/**
 * The state that this process passes to its successor. Times are in ms of CLOCK_MONOTONIC, which is the same for all
 * processes of a host.
 */
interface Head {
  readonly form: number
  readonly secret: number
  /** The key that permutes the peers' numbers in indices (indices.ts), in base64. */
  readonly indexKey: string
  readonly last: number
  readonly lastTick: number
  readonly sessions: readonly {
    readonly number: number
    readonly publicKey: string
    readonly given: readonly [address: string, port: number]
    readonly at: readonly [address: string, port: number]
    readonly anyPort?: boolean
    readonly keyedUntil: number | null
    readonly memory: Omit<HandshakeMemory, 'greatest'> & { readonly greatest: string }
  }[]
}

interface Session {
  readonly number: number
  readonly publicKey: string
  /** The endpoint in the peer's lease; `at` is the endpoint to which datagrams are sent now. */
  given: UdpEndpoint
  at: UdpEndpoint
  anyPort: boolean
  /** The time, in ms of performance.now(), until which the engine has keys that the peer has surely received too. */
  keyedUntil: number
  leases: readonly string[]
}

export function createKeeper(options: KeeperOptions): Keeper {
  const { privateKey, psk, keepalive, stampFile, hasLanes, peerOf, log } = options
  let secret = Buffer.from(systemRandomness.bytes(4)).readUInt32LE()
  let indexKey = systemRandomness.bytes(INDEX_KEY_BYTES)
  const sessions = new Map<string, Session>()
  const byNumber = new Map<number, Session>()
  /** The numbers of removed peers, the oldest first, each with the time from which the number may be used again. */
  const free: { readonly number: number; readonly from: number }[] = []
  let last = 0
  let engine: EngineSessions | undefined
  let moved: (key: string) => void = () => {}
  let timer: NodeJS.Timeout | undefined
  let pausedUntil = 0
  let isStopped = false
  const shared = psk.isEmpty ? undefined : new SecretBytes(bytesOf(psk.reveal()))
  /** The sessions by the address of the peer's current endpoint; undefined if the map is out of date. */
  let byAddress: ReadonlyMap<Address, readonly Session[]> | undefined

  const ownPrivate = new SecretBytes(bytesOf(privateKey.reveal()))
  const proofKey = new SecretBytes(hash('weft bequest', ownPrivate.reveal(), shared?.reveal() ?? ''))
  const handshakes = createHandshakes({
    privateKey: ownPrivate,
    indexSecret: secret,
    indexKey,
    engine: {
      send: (to, datagram) => void engine?.send(to, datagram),
      setKeys(number, keys) {
        engine?.setKeys(number, keys)
        if (keys.isInitiator) keyed(number)
      },
    },
    random: systemRandomness,
    wall: () => Date.now(),
    keptTick: readTick(stampFile),
    keepTick(tick) {
      try {
        writeFileSync(`${stampFile}.new`, String(tick), { mode: 0o600 })
        renameSync(`${stampFile}.new`, stampFile)
      } catch (error) {
        log.warn(
          `Cannot write ${stampFile} (${messageOf(error)}): if the clock is set back, peers will refuse handshakes of this node after a restart`,
        )
      }
    },
    roamed: (number, to) => move(byNumber.get(number), to),
    // Compare only the address and not the port, because a flood with the peer's address may come from any port.
    overlooked: ({ address }, now) => renew(address, () => true, now),
  })
  ownPrivate.wipe()

  function keyed(number: number): void {
    const session = byNumber.get(number)
    if (session && engine) session.keyedUntil = performance.now() + REJECT_AFTER_MS
  }

  function move(session: Session | undefined, to: UdpEndpoint): void {
    if (!session || nameOf(session.at) === nameOf(to)) return
    session.at = to
    byAddress = undefined
    for (const key of session.leases) moved(key)
  }

  function schedule(): void {
    clearTimeout(timer)
    if (isStopped || !engine) return
    const now = performance.now()
    const at = Math.min(handshakes.nextAt(), pausedUntil > now ? pausedUntil : Infinity)
    if (at === Infinity) return
    timer = setTimeout(work, Math.max(0, Math.ceil(at - now)))
    timer.unref()
  }

  function work(): void {
    const now = performance.now()
    if (pausedUntil !== 0 && pausedUntil <= now) {
      pausedUntil = 0
      takeMail(now)
    }
    handshakes.tick(now)
    schedule()
  }

  function takeMail(now: number): void {
    if (!engine) return
    const mail = engine.takeMail(MOST_OF_OTHERS)
    for (const number of mail.confirmed) {
      handshakes.confirmed(number, now)
      keyed(number)
    }
    for (const { session, ...to } of mail.moved) {
      if (byNumber.get(session)?.anyPort) continue // the engine reported it before the lease allowed any port
      handshakes.moved(session, to)
      move(byNumber.get(session), to)
    }
    for (const { bytes, ...from } of mail.controlMessages) {
      if (bytes[0] === TYPE_DATA) renew(from.address, ({ at, anyPort }) => anyPort || at.port === from.port, now)
      else handshakes.message(from, bytes, now)
    }
    for (const number of mail.wanted) handshakes.wanted(number, now)
    const count = mail.controlMessages.length + mail.moved.length
    const tookMs = performance.now() - now
    const pause = Math.min(Math.max(PAUSE.times * tookMs, count * PAUSE.leastMs), count * PAUSE.mostMs, MAX_PAUSE_MS)
    if (pause > 0) pausedUntil = now + tookMs + pause
  }

  /**
   * Starts handshakes with the peers at this address that have no keys. For a peer with keys the message is ignored,
   * because it may be forged.
   */
  function renew(address: Address, isMeant: (session: Session) => boolean, now: number): void {
    byAddress ??= groupedByAddress()
    for (const session of byAddress.get(address) ?? [])
      if (session.keyedUntil <= now && isMeant(session)) handshakes.wanted(session.number, now)
  }
  function groupedByAddress(): ReadonlyMap<Address, readonly Session[]> {
    const all = new Map<Address, Session[]>()
    for (const session of sessions.values()) {
      const there = all.get(session.at.address)
      if (there) there.push(session)
      else all.set(session.at.address, [session])
    }
    return all
  }

  function newNumber(): number {
    const [first] = free
    const reusable = first && first.from <= performance.now() ? free.shift() : undefined
    const number = reusable?.number ?? ++last
    if (number >= MOST_SESSIONS) throw new Error(`more than ${MOST_SESSIONS} peers with keys`)
    return number
  }

  /**
   * Restores the state that the previous process passed on. Numbers without a session stay unused for a while, because
   * the engine may still refer to them.
   */
  function resume(head: Head): void {
    const offset = clockOffset()
    secret = head.secret
    indexKey = bytesOf(head.indexKey)
    writeIndexSecrets()
    last = head.last
    for (const { number, publicKey, ...kept } of head.sessions) {
      const [given, at] = [endpointFrom(kept.given), endpointFrom(kept.at)]
      const keyedUntil = kept.keyedUntil === null ? -Infinity : kept.keyedUntil - offset
      const session = { number, publicKey, given, at, anyPort: kept.anyPort ?? false, keyedUntil, leases: [] }
      sessions.set(publicKey, session)
      byNumber.set(number, session)
    }
    const from = performance.now() + NUMBER_REUSE_MS
    for (let number = 1; number <= last; number++) if (!byNumber.has(number)) free.push({ number, from })
    handshakes.resume(
      secret,
      head.sessions.map(({ number, publicKey, at, memory }) => ({
        number,
        publicKey: bytesOf(publicKey),
        psk: shared,
        endpoint: endpointFrom(at),
        memory: { ...shifted(memory, -offset), greatest: BigInt(memory.greatest) },
      })),
      indexKey,
    )
    handshakes.passed(head.lastTick)
  }
  function headNow(): Head {
    const offset = clockOffset()
    return {
      form: HEAD_FORM,
      secret,
      indexKey: Buffer.from(indexKey).toString('base64'),
      last,
      lastTick: handshakes.lastTick,
      sessions: [...sessions.values()].flatMap(({ number, publicKey, given, at, anyPort, keyedUntil }) => {
        const memory = handshakes.memoryOf(number)
        if (!memory) return []
        return {
          number,
          publicKey,
          given: textOf(given),
          at: textOf(at),
          anyPort,
          keyedUntil: keyedUntil === -Infinity ? null : keyedUntil + offset,
          memory: { ...shifted(memory, offset), greatest: String(memory.greatest) },
        }
      }),
    }
  }

  const sessionOf = (peer: Lease): Session | undefined => sessions.get(peerOf(peer)?.publicKey ?? '')
  const ownEnd = Buffer.alloc(OWN_END_BYTES)
  const writeIndexSecrets = (): void => {
    ownEnd.writeUInt32LE(secret, 0)
    ownEnd.set(indexKey, 8 + KEY_BYTES)
  }
  writeIndexSecrets()
  ownEnd.writeUInt32LE(keepalive * 1_000, 4)
  ownEnd.set(macKeysOf(handshakes.publicKey).mac1, 8)

  return {
    ownEnd,
    endOf(peer) {
      const end = Buffer.alloc(END_BYTES)
      const session = sessionOf(peer)
      end.writeUInt32LE(session?.number ?? 0)
      end.writeUInt8(session?.anyPort ? 1 : 0, ANY_PORT_OFFSET)
      return end
    },
    inherit(head) {
      const text = Buffer.from(head.subarray(PROOF_BYTES))
      if (!isEqual(hmac(proofKey.reveal(), text), head.subarray(0, PROOF_BYTES))) return false
      const found = JSON.parse(text.toString()) as Head
      if (found.form !== HEAD_FORM) return false
      resume(found)
      return true
    },
    // Messages that were not taken from the engine are saved with its sessions, so that the next process gets them.
    pause() {
      engine = undefined
      clearTimeout(timer)
      const text = Buffer.from(JSON.stringify(headNow()))
      return Buffer.concat([hmac(proofKey.reveal(), text), text])
    },
    begin(sessionsOfEngine) {
      engine = sessionsOfEngine
      // Read the stored timestamp again. Another process may have used timestamps since `pause`, for example if this
      // process gets its engine back.
      handshakes.passed(readTick(stampFile))
      if (!sessionsOfEngine.areKept) {
        for (const session of sessions.values()) session.keyedUntil = -Infinity
        handshakes.lostKeys()
      }
      takeMail(performance.now())
      schedule()
    },
    onMail() {
      const now = performance.now()
      if (pausedUntil <= now) takeMail(now)
      schedule()
    },
    setPeers(peers) {
      const leases = new Map<string, string[]>()
      for (const [key, lease] of peers) {
        const given = peerOf(lease)
        if (!given) continue
        const { publicKey, address, port, anyPort } = given
        const known = leases.get(publicKey)
        if (known) {
          known.push(key)
          continue
        }
        leases.set(publicKey, [key])
        const endpoint = { address, port }
        const session = sessions.get(publicKey)
        if (!session) {
          const [number, keyedUntil] = [newNumber(), -Infinity]
          const made = { number, publicKey, given: endpoint, at: endpoint, anyPort, keyedUntil, leases: [] }
          sessions.set(publicKey, made)
          byNumber.set(number, made)
          continue
        }
        // Until the lease allowed any port, the engine followed the port from which the peer sent last. So set the
        // endpoint to that of the lease now.
        const isNews = anyPort && !session.anyPort && session.at.address === address
        session.anyPort = anyPort
        if (isNews || nameOf(session.given) !== nameOf(endpoint)) session.given = session.at = endpoint
      }
      for (const session of sessions.values()) {
        session.leases = leases.get(session.publicKey) ?? []
        if (session.leases.length > 0) continue
        sessions.delete(session.publicKey)
        byNumber.delete(session.number)
        engine?.forget(session.number)
        free.push({ number: session.number, from: performance.now() + NUMBER_REUSE_MS })
      }
      byAddress = undefined
      handshakes.setPeers(
        [...sessions.values()].map(({ number, publicKey, at }) => ({
          number,
          publicKey: bytesOf(publicKey),
          psk: shared,
          endpoint: at,
        })),
      )
      schedule()
    },
    endpointOf(peer) {
      const given = peerOf(peer)
      return sessionOf(peer)?.at ?? { address: given?.address ?? 0, port: given?.port ?? 0 }
    },
    // A peer whose current endpoint differs from its lease is behind NAT, and receives datagrams only from the port to which it has sent.
    isFromKnownPort(peer) {
      const session = sessionOf(peer)
      return !hasLanes() || !session?.anyPort || nameOf(session.at) !== nameOf(session.given)
    },
    listen(listener) {
      moved = listener
    },
    stateOf(peer) {
      const session = sessionOf(peer)
      const state = session && handshakes.stateOf(session.number)
      if (!state) return undefined
      const { at: handshakeAt, ...more } = state
      const leftMs = session.keyedUntil - performance.now()
      const ageMs = leftMs > 0 ? REJECT_AFTER_MS - leftMs : undefined
      return { publicKey: session.publicKey, handshakeAt, ageMs, ...more }
    },
    unknownKeys: () => handshakes.unknownKeys(),
    stop() {
      isStopped = true
      clearTimeout(timer)
      engine = undefined
      handshakes.close()
      shared?.wipe()
      proofKey.wipe()
    },
  }
}

/**
 * Returns the difference in ms between CLOCK_MONOTONIC, which is the same for all processes of a host, and performance.now(), which starts
 * with the process.
 */
const clockOffset = (): number => Number(process.hrtime.bigint() / 1_000n) / 1_000 - performance.now()

const shifted = <M extends Pick<HandshakeMemory, 'completedAt' | 'requestedAt'>>(memory: M, byMs: number): M => ({
  ...memory,
  completedAt: memory.completedAt === undefined ? undefined : memory.completedAt + byMs,
  requestedAt: memory.requestedAt === undefined ? undefined : memory.requestedAt + byMs,
})

const textOf = ({ address, port }: UdpEndpoint): [string, number] => [formatAddress(address), port]
const endpointFrom = ([address, port]: readonly [string, number]): UdpEndpoint => ({
  address: parseAddress(address) ?? 0,
  port,
})

/** Reads the last tick from the timestamp file; -1 if the file is missing or invalid. */
function readTick(file: string): number {
  try {
    const text = readFileSync(file, 'utf8').trim()
    return /^\d{1,15}$/.test(text) ? Number(text) : -1
  } catch {
    return -1 // first start
  }
}
