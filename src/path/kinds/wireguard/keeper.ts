// keeper.ts - between the handshakes and the engine: its mail, the numbers of sessions, and the one timer.
//
// A session has a number for as long as its peer's key is known, so that a lease that is written anew, or a second one of the same host,
// disturbs nothing. An engine that takes the place of another has no session: peers that wait for none find that out as they send.

import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { messageOf } from '../../../base/errors.ts'
import type { Log } from '../../../base/log.ts'
import { SecretBytes, type Secret } from '../../../base/secret.ts'
import type { Lease } from '../../../control/lease/lease.ts'
import type { EngineSessions, UdpEndpoint } from '../../engine/engine.ts'
import type { SessionKeeper } from '../../ways/tunnel.ts'
import { systemRandomness } from './crypto.ts'
import { createHandshakes, type HandshakeState } from './handshakes.ts'

/** The most messages of hosts that are no peers that are looked at at once. */
const MOST_OF_OTHERS = 64
/** The pause after so many messages, for each: a flood of them takes no more than a tenth of a core. */
const REST_MS = 1
/** The bytes of a peer's record that the engine reads: the session's number. */
const END_BYTES = 16
const MOST_SESSIONS = 1 << 20
/** The first byte of a packet for a session that is not there. */
const TYPE_DATA = 4

/** A peer's end, as its lease says it. */
export interface KeeperPeer extends UdpEndpoint {
  /** Base64. */
  readonly publicKey: string
}

export interface KeeperOptions {
  readonly privateKey: Secret
  /** Base64, or empty. */
  readonly psk: Secret
  /** Seconds; 0: none. */
  readonly keepalive: number
  /** Keeps the time of the last handshakes over restarts; nobody else writes it. */
  readonly stampFile: string
  readonly peerOf: (lease: Lease) => KeeperPeer | undefined
  readonly log: Log
}

export interface Keeper extends SessionKeeper {
  /** What the engine is told of this host, and of a peer. */
  readonly ownEnd: Uint8Array
  endOf(peer: Lease): Uint8Array
  stateOf(peer: Lease): HandshakeState | undefined
  counters(): Readonly<Record<string, bigint>>
}

const bytesOf = (base64: string): Buffer => Buffer.from(base64, 'base64')
const nameOf = ({ address, port }: UdpEndpoint): string => `${address} ${port}`

interface Session {
  readonly number: number
  readonly publicKey: string
  /** As the lease says it, and where it is. */
  given: UdpEndpoint
  at: UdpEndpoint
  /** The keys of its leases. */
  leases: readonly string[]
}

export function createKeeper({ privateKey, psk, keepalive, stampFile, peerOf, log }: KeeperOptions): Keeper {
  const secret = Buffer.from(systemRandomness.bytes(4)).readUInt32LE()
  const sessions = new Map<string, Session>()
  const byNumber = new Map<number, Session>()
  const free: number[] = []
  let last = 0
  let engine: EngineSessions | undefined
  let moved: (key: string) => void = () => {}
  let timer: NodeJS.Timeout | undefined
  let restsUntil = 0
  let isStopped = false
  const shared = psk.isEmpty ? undefined : new SecretBytes(bytesOf(psk.reveal()))

  const handshakes = createHandshakes({
    privateKey: new SecretBytes(bytesOf(privateKey.reveal())),
    indexSecret: secret,
    engine: {
      send: (to, datagram) => void engine?.send(to, datagram),
      setKeys: (number, keys) => engine?.setKeys(number, keys),
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
          `${stampFile} cannot be written (${messageOf(error)}): should the clock go back, peers refuse this node`,
        )
      }
    },
    roamed: (number, to) => move(byNumber.get(number), to),
    gaveUp: () => {},
  })

  function move(session: Session | undefined, to: UdpEndpoint): void {
    if (!session || nameOf(session.at) === nameOf(to)) return
    session.at = to
    for (const key of session.leases) moved(key)
  }

  /** One timer for all that is due: handshakes, and mail that waits for its turn. */
  function schedule(): void {
    clearTimeout(timer)
    if (isStopped) return
    const now = performance.now()
    const at = Math.min(handshakes.nextAt(), restsUntil > now ? restsUntil : Infinity)
    if (at === Infinity) return
    timer = setTimeout(work, Math.max(0, Math.ceil(at - now)))
    timer.unref()
  }

  function work(): void {
    const now = performance.now()
    if (restsUntil !== 0 && restsUntil <= now) {
      restsUntil = 0
      takeMail(now)
    }
    handshakes.tick(now)
    schedule()
  }

  function takeMail(now: number): void {
    if (!engine) return
    const mail = engine.takeMail(MOST_OF_OTHERS)
    for (const number of mail.confirmed) handshakes.confirmed(number, now)
    for (const { session, ...to } of mail.moved) {
      handshakes.moved(session, to)
      move(byNumber.get(session), to)
    }
    for (const { bytes, ...from } of mail.letters) {
      if (bytes[0] === TYPE_DATA) renew(from, now)
      else handshakes.message(from, bytes, now)
    }
    for (const number of mail.wanted) handshakes.wanted(number, now)
    if (mail.letters.length > 0) restsUntil = now + mail.letters.length * REST_MS
  }

  /** A peer that sends by keys which are not there is given others. */
  function renew(from: UdpEndpoint, now: number): void {
    for (const { number, at } of sessions.values()) if (nameOf(at) === nameOf(from)) handshakes.wanted(number, now)
  }

  function newNumber(): number {
    const number = free.pop() ?? ++last
    if (number >= MOST_SESSIONS) throw new Error(`more than ${MOST_SESSIONS} peers with keys`)
    return number
  }

  const sessionOf = (peer: Lease): Session | undefined => sessions.get(peerOf(peer)?.publicKey ?? '')
  const ownEnd = Buffer.alloc(END_BYTES)
  ownEnd.writeUInt32LE(secret, 0)
  ownEnd.writeUInt32LE(keepalive * 1_000, 4)

  return {
    ownEnd,
    endOf(peer) {
      const end = Buffer.alloc(END_BYTES)
      end.writeUInt32LE(sessionOf(peer)?.number ?? 0)
      return end
    },
    begin(sessionsOfEngine) {
      engine = sessionsOfEngine
      takeMail(performance.now())
      schedule()
    },
    onMail() {
      const now = performance.now()
      if (restsUntil <= now) takeMail(now)
      schedule()
    },
    setPeers(peers) {
      const leases = new Map<string, string[]>()
      for (const [key, lease] of peers) {
        const given = peerOf(lease)
        if (!given) continue
        const { publicKey, address, port } = given
        const known = leases.get(publicKey)
        if (known) {
          known.push(key)
          continue
        }
        leases.set(publicKey, [key])
        const place = { address, port }
        const session = sessions.get(publicKey)
        if (!session) {
          const made = { number: newNumber(), publicKey, given: place, at: place, leases: [] }
          sessions.set(publicKey, made)
          byNumber.set(made.number, made)
        } else if (nameOf(session.given) !== nameOf(place)) {
          session.given = session.at = place
        }
      }
      for (const session of sessions.values()) {
        session.leases = leases.get(session.publicKey) ?? []
        if (session.leases.length > 0) continue
        sessions.delete(session.publicKey)
        byNumber.delete(session.number)
        engine?.forget(session.number)
        free.push(session.number)
      }
      handshakes.setPeers(
        [...sessions.values()].map(({ number, publicKey, at }) => ({
          ...{ number, publicKey: bytesOf(publicKey), psk: shared, endpoint: at },
        })),
      )
      schedule()
    },
    endpointOf(peer) {
      const given = peerOf(peer)
      return sessionOf(peer)?.at ?? { address: given?.address ?? 0, port: given?.port ?? 0 }
    },
    listen(listener) {
      moved = listener
    },
    stateOf(peer) {
      const session = sessionOf(peer)
      return session && handshakes.stateOf(session.number)
    },
    counters: () => ({ handshake_messages_refused: BigInt(handshakes.counters.junk + handshakes.counters.limited) }),
    stop() {
      isStopped = true
      clearTimeout(timer)
      engine = undefined
      handshakes.close()
    },
  }
}

/** The tick that was kept last; -1 where none is, or what is there is none. */
function readTick(file: string): number {
  try {
    const text = readFileSync(file, 'utf8').trim()
    return /^\d{1,15}$/.test(text) ? Number(text) : -1
  } catch {
    return -1 // a first start
  }
}
