// keeper.ts - connects the handshakes to the engine: its control messages, the numbers of sessions, and the one timer.
//
// A session keeps its number while its peer's key is known, so a rewritten lease, or a second lease of the same host,
// does not disturb it. After that the number stays unused for a while, because lanes and waiting messages may still
// refer to it.
//
// A new engine continues the sessions of the previous engine, or has none. In that case peers notice it when they send.
// In a planned restart the successor has such an engine and its own keeper, which continues from the result of `pause`:
// numbers, endpoints and timestamps. The keys go from engine to engine, and exactly one gets them
// (native/io/handover_state.h). Unanswered initiations are sent again.
//
// Messages cost work, whoever sends them. So the keeper pauses after messages that anyone may have sent, and after
// peers that moved. The sender of a packet for an unknown session may be forged, so it leads to a handshake only if the
// peer has no keys. The same holds for an initiation that was not processed or is not valid: in a flood with a peer's
// address the peer's own initiation may be lost, but its response to ours is recognised.

import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { messageOf } from '../../../base/errors.ts'
import type { Log } from '../../../base/log.ts'
import { SecretBytes, type Secret } from '../../../base/secret.ts'
import type { Lease } from '../../../control/lease/lease.ts'
import { formatAddress, parseAddress, type Address } from '../../../net/address.ts'
import { REJECT_AFTER_MS } from '../../catalog.ts'
import type { EngineSessions, UdpEndpoint } from '../../engine/engine.ts'
import type { SessionKeeper } from '../../tunnel/tunnel.ts'
import { macKeysOf } from './cookie.ts'
import { hash, hmac, isEqual, systemRandomness } from './crypto.ts'
import { createHandshakes, type HandshakeMemory } from './handshakes.ts'
import { INDEX_KEY_BYTES } from './indices.ts'
import { KEY_BYTES } from './x25519.ts'

/** The maximum number of messages from unknown hosts that are processed in one go. */
const MOST_OF_OTHERS = 64
/**
 * The pause after messages or moves: `times` the processing time, so that a flood uses a small part of a core; per
 * message at least `leastMs` and at most `mostMs`.
 */
const PAUSE = { times: 15, leastMs: 2, mostMs: 10 } as const
/** The maximum pause, so that moving peers do not delay handshakes. */
const MAX_PAUSE_MS = 500
/**
 * How long the number of a removed peer stays unused. It is longer than packets and messages wait, and than a lane
 * takes for a batch.
 */
const NUMBER_REUSE_MS = 60_000
/**
 * The layout of the facts about a peer that the engine reads: the session's number, and whether the peer sends from any
 * port. Those about this host are longer.
 */
const END_BYTES = 16
const ANY_PORT_OFFSET = 4
const OWN_END_BYTES = 8 + KEY_BYTES + INDEX_KEY_BYTES
const MOST_SESSIONS = 1 << 20
/** The first byte of a data message, which the engine reports if its session is unknown. */
const TYPE_DATA = 4
/**
 * The format of the state between two keepers: a proof that both have the same keys, then JSON with this format number.
 */
const HEAD_FORM = 2
const PROOF_BYTES = 32

/** A peer's key and endpoint from its lease. */
export interface KeeperPeer extends UdpEndpoint {
  readonly publicKey: string
  /** True if the peer sends from any of its ports. It receives only on its published port. */
  readonly anyPort: boolean
}

interface KeeperOptions {
  readonly privateKey: Secret
  /** The psk in base64, or empty. */
  readonly psk: Secret
  /** The keepalive interval in seconds; 0 disables it. */
  readonly keepalive: number
  /** The file that keeps the last timestamp of handshakes across restarts. Only this keeper writes it. */
  readonly stampFile: string
  /**
   * True if this host may send from the ports of its lanes, which its lease publishes. Otherwise all datagrams leave
   * from the well-known port.
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

/** The state that one keeper gives to the next. Times are of the host's monotonic clock, which all processes share. */
interface Head {
  readonly form: number
  readonly secret: number
  /** The key that permutes indices (indices.ts), in base64. */
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
  /** The endpoint in the lease, and the current endpoint. */
  given: UdpEndpoint
  at: UdpEndpoint
  anyPort: boolean
  /** Until when the engine has keys that the peer is known to have used. */
  keyedUntil: number
  leases: readonly string[]
}

export function createKeeper(options: KeeperOptions): Keeper {
  const { privateKey, psk, keepalive, stampFile, hasLanes, peerOf, log } = options
  let secret = Buffer.from(systemRandomness.bytes(4)).readUInt32LE()
  let indexKey = systemRandomness.bytes(INDEX_KEY_BYTES)
  const sessions = new Map<string, Session>()
  const byNumber = new Map<number, Session>()
  /** The numbers of removed peers, the oldest first. */
  const free: { readonly number: number; readonly from: number }[] = []
  let last = 0
  let engine: EngineSessions | undefined
  let moved: (key: string) => void = () => {}
  let timer: NodeJS.Timeout | undefined
  let pausedUntil = 0
  let isStopped = false
  const shared = psk.isEmpty ? undefined : new SecretBytes(bytesOf(psk.reveal()))
  /** The sessions by their peer's address; undefined if the map must be built again. */
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
    // A forged sender may name any port, so the port is not compared.
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
   * Starts handshakes with the peers at an address that seem to need keys. If a peer has keys, the hint may be forged
   * and is ignored.
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

  /** Restores the state of another keeper. Numbers without a session stay unused for a while. */
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
    // Messages that were not taken yet are saved with the sessions.
    pause() {
      engine = undefined
      clearTimeout(timer)
      const text = Buffer.from(JSON.stringify(headNow()))
      return Buffer.concat([hmac(proofKey.reveal(), text), text])
    },
    begin(sessionsOfEngine) {
      engine = sessionsOfEngine
      // Another process may have used timestamps in the meantime.
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
        // Until now the engine followed the peer's port, which must be reset.
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
    // A peer behind NAT, whose current endpoint differs from its lease, receives only from the port to which it has
    // sent.
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
 * Returns the difference between CLOCK_MONOTONIC, which all processes of a host share, and performance.now(), in ms.
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

/** Reads the stored tick; -1 if there is none or it is invalid. */
function readTick(file: string): number {
  try {
    const text = readFileSync(file, 'utf8').trim()
    return /^\d{1,15}$/.test(text) ? Number(text) : -1
  } catch {
    return -1 // first start
  }
}
