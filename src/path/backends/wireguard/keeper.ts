// keeper.ts - between the handshakes and the engine: its mail, the numbers of sessions, and the one timer.
//
// A session has a number for as long as its peer's key is known, so that a lease that is written anew, or a second one of the same host,
// disturbs nothing. The number is nobody's for a while then: what lanes and mail still say of it is said of nobody else.
// An engine that takes the place of another goes on with its sessions, or has none: peers that wait for none find that out as they send.
// In a planned restart the next process is such an engine with a keeper of its own, which goes on by what `pause` gave this one: numbers,
// places, timestamps. The keys go from engine to engine, and one of them gets them (native/io/handover_state.h). What was asked of a peer and
// not answered is asked again.
//
// What comes is work by whoever sends it. For messages that may be anybody's, and for peers that go from place to place, there is a pause
// after so much of it; a packet for no session, whose sender may be forged, asks for new keys only of a peer that has none. So does an
// initiation that was not looked at, or that is nobody's: in a flood of them by a peer's address the peer's own cannot be told apart, and
// few are looked at, but its answer to ours can.

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

/** The most messages of hosts that are no peers that are looked at at once. */
const MOST_OF_OTHERS = 64
/**
 * The pause after messages, or moves: so many times what they took, so that a flood of them takes a small part of a core, waking for it
 * included; for each of them no less, and no more, so that nobody waits long for the one before.
 */
const REST = { times: 15, leastMs: 2, mostMs: 10 } as const
/** The longest, so that who moves does not hold up handshakes. */
const LONGEST_REST_MS = 500
/** For how long the number of a peer that went is nobody's: longer than packets wait, mail lies, and a lane's turn takes. */
const NUMBER_RESTS_MS = 60_000
/** The bytes of a peer's record that the engine reads: the session's number, and whether it sends from any port. Of this host it has more. */
const END_BYTES = 16
const ANY_PORT_OFFSET = 4
const OWN_END_BYTES = 8 + KEY_BYTES + INDEX_KEY_BYTES
const MOST_SESSIONS = 1 << 20
/** The first byte of a packet for a session that is not there. */
const TYPE_DATA = 4
/** Of what one keeper gives another: first the proof that it is of the same keys, then a text of this form. */
const HEAD_FORM = 2
const PROOF_BYTES = 32

/** A peer's end, as its lease says it. */
export interface KeeperPeer extends UdpEndpoint {
  /** Base64. */
  readonly publicKey: string
  /** It may send from any port, and answers to its own, whatever port it hears from. */
  readonly anyPort: boolean
}

interface KeeperOptions {
  readonly privateKey: Secret
  /** Base64, or empty. */
  readonly psk: Secret
  /** Seconds; 0: none. */
  readonly keepalive: number
  /** Keeps the time of the last handshakes over restarts; nobody else writes it. */
  readonly stampFile: string
  /** Whether this host may send from the ports of its lanes, and says so in its lease; else all leaves from the known port. */
  readonly hasLanes: () => boolean
  readonly peerOf: (lease: Lease) => KeeperPeer | undefined
  readonly log: Log
}

export interface Keeper extends SessionKeeper {
  /** What the engine is told of this host, and of a peer. */
  readonly ownEnd: Uint8Array
  endOf(peer: Lease): Uint8Array
}

const bytesOf = (base64: string): Buffer => Buffer.from(base64, 'base64')
const nameOf = ({ address, port }: UdpEndpoint): string => `${address} ${port}`

/** What one keeper gives another. Times are of the clock that all processes of a host have. */
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
  /** As the lease says it, and where it is. */
  given: UdpEndpoint
  at: UdpEndpoint
  anyPort: boolean
  /** Until when the engine has keys with which the peer has said something, as far as is known here. */
  keyedUntil: number
  /** The keys of its leases. */
  leases: readonly string[]
}

export function createKeeper(options: KeeperOptions): Keeper {
  const { privateKey, psk, keepalive, stampFile, hasLanes, peerOf, log } = options
  let secret = Buffer.from(systemRandomness.bytes(4)).readUInt32LE()
  let indexKey = systemRandomness.bytes(INDEX_KEY_BYTES)
  const sessions = new Map<string, Session>()
  const byNumber = new Map<number, Session>()
  /** Numbers of peers that went, the longest gone first. */
  const free: { readonly number: number; readonly from: number }[] = []
  let last = 0
  let engine: EngineSessions | undefined
  let moved: (key: string) => void = () => {}
  let timer: NodeJS.Timeout | undefined
  let restsUntil = 0
  let isStopped = false
  const shared = psk.isEmpty ? undefined : new SecretBytes(bytesOf(psk.reveal()))
  /** Sessions by the address of their peer; undefined when it is to be made anew. */
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
          `${stampFile} cannot be written (${messageOf(error)}): should the clock go back, peers refuse this node`,
        )
      }
    },
    roamed: (number, to) => move(byNumber.get(number), to),
    // Whoever forges the address may say any port.
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

  /** One timer for all that is due: handshakes, and mail that waits for its turn. */
  function schedule(): void {
    clearTimeout(timer)
    if (isStopped || !engine) return
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
    for (const number of mail.confirmed) {
      handshakes.confirmed(number, now)
      keyed(number)
    }
    for (const { session, ...to } of mail.moved) {
      if (byNumber.get(session)?.anyPort) continue // it lay there since before its lease said so
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
    const pause = Math.min(Math.max(REST.times * tookMs, count * REST.leastMs), count * REST.mostMs, LONGEST_REST_MS)
    if (pause > 0) restsUntil = now + tookMs + pause
  }

  /** A peer that seems to need keys is given some, unless there are: then nothing says so that is not forged. */
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
    const rested = first && first.from <= performance.now() ? free.shift() : undefined
    const number = rested?.number ?? ++last
    if (number >= MOST_SESSIONS) throw new Error(`more than ${MOST_SESSIONS} peers with keys`)
    return number
  }

  /** Makes what is in a head what is here; the numbers of peers that went meanwhile are nobody's for a while. */
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
    const from = performance.now() + NUMBER_RESTS_MS
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
    // Mail that was not taken yet goes with the sessions.
    pause() {
      engine = undefined
      clearTimeout(timer)
      const text = Buffer.from(JSON.stringify(headNow()))
      return Buffer.concat([hmac(proofKey.reveal(), text), text])
    },
    begin(sessionsOfEngine) {
      engine = sessionsOfEngine
      // Another process may have sent some meanwhile.
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
      if (restsUntil <= now) takeMail(now)
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
        const place = { address, port }
        const session = sessions.get(publicKey)
        if (!session) {
          const [number, keyedUntil] = [newNumber(), -Infinity]
          const made = { number, publicKey, given: place, at: place, anyPort, keyedUntil, leases: [] }
          sessions.set(publicKey, made)
          byNumber.set(number, made)
          continue
        }
        // Until now its ports were followed.
        const isNews = anyPort && !session.anyPort && session.at.address === address
        session.anyPort = anyPort
        if (isNews || nameOf(session.given) !== nameOf(place)) session.given = session.at = place
      }
      for (const session of sessions.values()) {
        session.leases = leases.get(session.publicKey) ?? []
        if (session.leases.length > 0) continue
        sessions.delete(session.publicKey)
        byNumber.delete(session.number)
        engine?.forget(session.number)
        free.push({ number: session.number, from: performance.now() + NUMBER_RESTS_MS })
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
    // A peer behind a translation of addresses, who is not where its lease says, lets in only what it has sent to.
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

/** What is added to a time of performance.now() to make it one of CLOCK_MONOTONIC, which all processes of a host have. */
const clockOffset = (): number => Number(process.hrtime.bigint() / 1_000n) / 1_000 - performance.now()

/** A memory by another clock. */
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

/** The tick that was kept last; -1 where none is, or what is there is none. */
function readTick(file: string): number {
  try {
    const text = readFileSync(file, 'utf8').trim()
    return /^\d{1,15}$/.test(text) ? Number(text) : -1
  } catch {
    return -1 // a first start
  }
}
