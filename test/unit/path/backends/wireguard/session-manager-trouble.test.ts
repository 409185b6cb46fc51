// session-manager-trouble.test.ts - forged, late, frequent and lost messages: which peers get a handshake, and which are moved.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Mail, SessionKeys, UdpEndpoint } from '../../../../../native/addon.d.ts'
import type { Log } from '../../../../../src/base/log.ts'
import { Secret, SecretBytes } from '../../../../../src/base/secret.ts'
import type { Lease } from '../../../../../src/control/lease/lease.ts'
import { macKeysOf, writeMacs } from '../../../../../src/path/backends/wireguard/cookie.ts'
import { systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { Handshakes } from '../../../../../src/path/backends/wireguard/handshakes.ts'
import { RATES } from '../../../../../src/path/backends/wireguard/limits.ts'
import { INITIATION_BYTES } from '../../../../../src/path/backends/wireguard/messages.ts'
import {
  type PublishedPeer,
  WireguardSessionManager,
} from '../../../../../src/path/backends/wireguard/session-manager.ts'
import { keyPairOf } from '../../../../../src/path/backends/wireguard/x25519.ts'
import type { EngineSessions } from '../../../../../src/path/engine/engine.ts'

const NO_MAIL: Mail = { controlMessages: [], wanted: [], confirmed: [], moved: [] }
const OURS: UdpEndpoint = { address: 0x0a00_0001, port: 51_820 }
const SILENT: Log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const THEIRS: UdpEndpoint = { address: 0x0a00_0002, port: 51_820 }

interface FakeEngine extends EngineSessions {
  readonly sent: { readonly to: UdpEndpoint; readonly datagram: Buffer }[]
  readonly keyed: { readonly session: number; readonly isInitiator: boolean }[]
  readonly forgotten: number[]
  mail: Mail
  taken: number
  /** How long taking the messages keeps the thread busy, in ms. */
  slowMs: number
}
function engineOf(): FakeEngine {
  return {
    areKept: false,
    sent: [],
    keyed: [],
    forgotten: [],
    mail: NO_MAIL,
    taken: 0,
    slowMs: 0,
    send(to, datagram) {
      this.sent.push({ to, datagram: Buffer.from(datagram) })
      return true
    },
    setKeys(session: number, { isInitiator }: SessionKeys) {
      this.keyed.push({ session, isInitiator })
    },
    forget(session) {
      this.forgotten.push(session)
    },
    takeMail() {
      vi.advanceTimersByTime(this.slowMs)
      const { mail } = this
      this.mail = NO_MAIL
      this.taken += 1
      return mail
    },
  }
}

let folder: string
let manager: WireguardSessionManager
let engine: FakeEngine
let ownPublic: Uint8Array
/** How long the host was suspended, in ms, which only the session clock includes. */
let sleptMs = 0
/** Replaces the function of a backend that reads the peer from a lease. */
const ends = new WeakMap<Lease, PublishedPeer>()
function leaseOf(publicKey: Uint8Array, place: UdpEndpoint = THEIRS): Lease {
  const lease = {} as Lease
  ends.set(lease, { ...place, anyPort: false, publicKey: Buffer.from(publicKey).toString('base64') })
  return lease
}
const numberOf = (lease: Lease): number => Buffer.from(manager.endOf(lease)).readUInt32LE()
const keyOf = (): Uint8Array => systemRandomness.bytes(32)

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['performance', 'setTimeout', 'clearTimeout'] })
  folder = mkdtempSync(join(tmpdir(), 'weft-sessions-'))
  engine = engineOf()
  sleptMs = 0
  const privateKey = keyOf()
  ownPublic = keyPairOf(privateKey).publicKey
  manager = new WireguardSessionManager({
    privateKey: new Secret(Buffer.from(privateKey).toString('base64')),
    psk: new Secret(''),
    keepalive: 0,
    stampFile: join(folder, 'time'),
    hasLanes: () => true,
    clock: () => performance.now() + sleptMs,
    peerOf: (lease) => ends.get(lease),
    log: SILENT,
  })
})
afterEach(() => {
  manager.stop()
  vi.useRealTimers()
  rmSync(folder, { recursive: true, force: true })
})
function tell(mail: Partial<Mail>): void {
  engine.mail = { ...NO_MAIL, ...mail }
  manager.onMail()
}
/** The first bytes of a data message for an unknown session. */
const unknown = (from: UdpEndpoint) => ({ ...from, bytes: Buffer.from([4, ...Buffer.alloc(15)]) })

/** A peer that answers, with its lease. */
function peer(): { readonly lease: Lease; readonly answer: () => void } {
  const sent: Uint8Array[] = []
  const handshakes: Handshakes = new Handshakes({
    privateKey: new SecretBytes(keyOf()),
    indexSecret: 1,
    random: systemRandomness,
    keptTick: -1,
    engine: { send: (_to, datagram) => void sent.push(Buffer.from(datagram)), setKeys: () => {} },
    wall: () => Date.now(),
    keepTick: () => {},
    roamed: () => {},
    overlooked: () => {},
  })
  const lease = leaseOf(handshakes.publicKey)
  return {
    lease,
    answer() {
      const { datagram } = engine.sent.pop()!
      expect(datagram).toHaveLength(INITIATION_BYTES)
      handshakes.setPeers([{ number: 5, publicKey: ownPublic, endpoint: OURS }])
      handshakes.message(OURS, datagram, performance.now())
      tell({ controlMessages: [{ ...THEIRS, bytes: Buffer.from(sent.pop()!) }] })
    },
  }
}
describe('the numbers of sessions', () => {
  it('stay while a key is known, and are unused for a while afterwards', () => {
    const [a, b, c] = [leaseOf(keyOf()), leaseOf(keyOf()), leaseOf(keyOf())]
    manager.begin(engine)
    manager.setPeers(new Map([['a', a]]))
    expect(numberOf(a)).toBe(1)
    manager.setPeers(
      new Map([
        ['a', a],
        ['again', a],
      ]),
    )
    expect(numberOf(a)).toBe(1)
    manager.setPeers(new Map())
    expect(engine.forgotten).toEqual([1])
    // Reports about the removed peer affect no other peer.
    manager.setPeers(new Map([['b', b]]))
    expect(numberOf(b)).toBe(2)
    const elsewhere = { address: 0x0a00_0063, port: 9 }
    tell({ moved: [{ ...elsewhere, session: 1 }], wanted: [1], confirmed: [1] })
    expect(manager.endpointOf(b)).toEqual(THEIRS)
    vi.advanceTimersByTime(60_000)
    manager.setPeers(
      new Map([
        ['b', b],
        ['c', c],
      ]),
    )
    expect(numberOf(c)).toBe(1)
  })
})

describe('messages of the engine', () => {
  it('about very many moved peers are processed with pauses', () => {
    const lease = leaseOf(keyOf())
    manager.begin(engine)
    manager.setPeers(new Map([['a', lease]]))
    const before = engine.taken
    for (let port = 1; port <= 100; port++) tell({ moved: [{ address: 7, port, session: 1 }] })
    vi.advanceTimersByTime(1)
    expect(engine.taken - before).toBe(1)
    vi.advanceTimersByTime(1)
    expect(engine.taken - before).toBe(2)
    expect(manager.endpointOf(lease)).toEqual({ address: 7, port: 100 })
  })

  it.each([
    { slowMs: 0.2, messages: 1, pauseMs: 3 },
    { slowMs: 3, messages: 1, pauseMs: 10 },
    { slowMs: 3, messages: 4, pauseMs: 40 },
    { slowMs: 3, messages: 10, pauseMs: 45 },
    { slowMs: 3, messages: 0, pauseMs: 0 },
    { slowMs: 100, messages: 200, pauseMs: 500 },
  ])(
    'is followed by a longer pause the longer it took: $messages messages in $slowMs ms',
    ({ slowMs, messages, pauseMs }) => {
      manager.begin(engine)
      engine.slowMs = slowMs
      tell({ controlMessages: Array.from({ length: messages }, () => unknown(THEIRS)) })
      const before = engine.taken
      engine.slowMs = 0
      vi.advanceTimersByTime(Math.max(0, pauseMs - 1))
      manager.onMail()
      expect(engine.taken - before).toBe(pauseMs === 0 ? 1 : 0)
      vi.advanceTimersByTime(1)
      expect(engine.taken - before).toBe(1)
    },
  )

  it('are read after a pause that ended before its timer, although the engine reports them only once', () => {
    const lease = leaseOf(keyOf())
    manager.begin(engine)
    manager.setPeers(new Map([['a', lease]]))
    tell({ moved: [{ address: 7, port: 1, session: 1 }] })
    tell({ moved: [{ address: 7, port: 2, session: 1 }] })
    expect(manager.endpointOf(lease).port).toBe(1)
    sleptMs += 1_000 // the pause is over, but its timer has not fired yet, as in a busy process
    manager.setPeers(new Map([['a', lease]]))
    vi.advanceTimersByTime(60_000)
    expect(manager.endpointOf(lease).port).toBe(2)
  })

  it('about an unknown session lead to a handshake with the peer at that address, unless it has keys', () => {
    const { lease, answer } = peer()
    manager.begin(engine)
    manager.setPeers(new Map([['a', lease]]))
    tell({ controlMessages: [unknown({ ...THEIRS, port: 1 }), unknown({ ...THEIRS, address: 1 })] })
    vi.advanceTimersByTime(10)
    expect(engine.sent).toHaveLength(0)
    tell({ controlMessages: [unknown(THEIRS)] })
    vi.advanceTimersByTime(10)
    expect(engine.sent).toHaveLength(1)
    answer()
    vi.advanceTimersByTime(10)
    expect(engine.keyed).toEqual([{ session: 1, isInitiator: true }])
    // A forged address does not lead to handshakes.
    for (let at = 0; at < 170; at += 10) {
      vi.advanceTimersByTime(10_000)
      tell({ controlMessages: [unknown(THEIRS)] })
    }
    expect(engine.sent).toHaveLength(0)
    vi.advanceTimersByTime(20_000)
    tell({ controlMessages: [unknown(THEIRS)] })
    expect(engine.sent).toHaveLength(1)
  })
})

it('sends its own initiation to a peer that is lost in a flood from its address, unless it has keys', () => {
  const { lease, answer } = peer()
  manager.begin(engine)
  manager.setPeers(new Map([['a', lease]]))
  const flood = (address: number): void => {
    const controlMessages = Array.from({ length: RATES.free.burst + 1 }, (_, at) => {
      const bytes = Buffer.alloc(INITIATION_BYTES, at)
      bytes.writeUInt32LE(1, 0)
      writeMacs(bytes, macKeysOf(ownPublic), undefined)
      return { address, port: at, bytes }
    })
    tell({ controlMessages })
    vi.advanceTimersByTime(500)
  }
  const initiations = () => engine.sent.filter(({ datagram }) => datagram.length === INITIATION_BYTES)
  flood((THEIRS.address as number) + 1)
  expect(initiations()).toEqual([])
  flood(THEIRS.address as number)
  expect(initiations().map(({ to }) => to)).toEqual([THEIRS])
  engine.sent.splice(0, engine.sent.length, ...initiations())
  answer()
  expect(engine.keyed).toEqual([{ session: 1, isInitiator: true }])
  vi.advanceTimersByTime(10_000)
  flood(THEIRS.address as number)
  expect(initiations()).toEqual([])
})

it('sends its own initiation to a peer that is crowded out by forged initiations, even if few of them are processed', () => {
  const { lease } = peer()
  manager.begin(engine)
  manager.setPeers(new Map([['a', lease]]))
  engine.slowMs = 1 // the limiter accepts 100 per second, of which a slow machine processes fewer
  const forged = Buffer.alloc(INITIATION_BYTES, 7)
  forged.writeUInt32LE(1, 0)
  writeMacs(forged, macKeysOf(ownPublic), undefined)
  // The engine keeps one initiation per address until it is taken (native/core/mailbox.h).
  for (let ms = 0; ms < 1_000; ms += 1) {
    vi.advanceTimersByTime(1)
    tell({ controlMessages: [{ ...THEIRS, bytes: forged }] })
  }
  expect(engine.sent.map(({ to, datagram }) => [to, datagram.length])).toEqual([[THEIRS, INITIATION_BYTES]])
})

it('gives a new engine keys immediately, however recent the last handshake was', () => {
  const { lease, answer } = peer()
  manager.begin(engine)
  manager.setPeers(new Map([['a', lease]]))
  tell({ wanted: [1] })
  vi.advanceTimersByTime(10)
  answer()
  vi.advanceTimersByTime(5_400) // the interval between two initiations
  tell({ wanted: [1] })
  vi.advanceTimersByTime(10)
  answer()
  vi.advanceTimersByTime(10)
  expect(engine.keyed).toHaveLength(2)
  engine = engineOf()
  manager.begin(engine)
  tell({ controlMessages: [unknown(THEIRS)] })
  vi.advanceTimersByTime(5_400)
  expect(engine.sent).toHaveLength(1)
})

it('has no keys any more after the host was suspended for three minutes', () => {
  const { lease, answer } = peer()
  manager.begin(engine)
  manager.setPeers(new Map([['a', lease]]))
  tell({ wanted: [1] })
  vi.advanceTimersByTime(10)
  answer()
  vi.advanceTimersByTime(6_000)
  expect(manager.stateOf(lease)?.ageMs).toBeGreaterThanOrEqual(6_000)
  tell({ controlMessages: [unknown(THEIRS)] })
  vi.advanceTimersByTime(100)
  expect(engine.sent).toHaveLength(0)
  sleptMs = 180_000
  expect(manager.stateOf(lease)?.ageMs).toBeUndefined()
  tell({ controlMessages: [unknown(THEIRS)] })
  expect(engine.sent).toHaveLength(1)
})

it('reports unknown keys with times of the monotonic clock', () => {
  const stranger = new Handshakes({
    privateKey: new SecretBytes(keyOf()),
    indexSecret: 1,
    random: systemRandomness,
    keptTick: -1,
    engine: {
      send: (_to, bytes) => tell({ controlMessages: [{ ...THEIRS, bytes: Buffer.from(bytes) }] }),
      setKeys: () => {},
    },
    wall: () => Date.now(),
    keepTick: () => {},
    roamed: () => {},
    overlooked: () => {},
  })
  sleptMs = 3_600_000
  manager.begin(engine)
  stranger.setPeers([{ number: 5, publicKey: ownPublic, endpoint: OURS }])
  stranger.wanted(5, 0)
  expect(manager.unknownKeys()).toMatchObject([{ from: THEIRS, at: performance.now() }])
})
