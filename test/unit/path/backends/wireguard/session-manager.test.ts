// session-manager.test.ts - two session managers, each with an engine that only records: numbers, handshakes, moves of peers, and the
// hand-over.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { Secret } from '../../../../../src/base/secret.ts'
import type { Lease } from '../../../../../src/control/lease/lease.ts'
import { createIndices, INDEX_KEY_BYTES } from '../../../../../src/path/backends/wireguard/indices.ts'
import { publicKeyTo } from '../../../../../src/path/backends/wireguard/key-file.ts'
import { WireguardSessionManager } from '../../../../../src/path/backends/wireguard/session-manager.ts'
import type { EngineSessions, UdpEndpoint } from '../../../../../src/path/engine/engine.ts'

type Mail = ReturnType<EngineSessions['takeMail']>

const KEYS = ['dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=', 'XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os='].map(
  (key) => new Secret(key),
)
const PLACES: UdpEndpoint[] = [
  { address: 0xc000_0201, port: 51_820 },
  { address: 0xc000_0202, port: 51_820 },
]
const NO_MAIL: Mail = { controlMessages: [], wanted: [], confirmed: [], moved: [] }

let folder: string
let nodes: Node[]
const warnings: string[] = []
const log = { info: () => {}, warn: (line: string) => void warnings.push(line), error: () => {}, v: () => false }
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance', 'hrtime', 'Date'], now: 1_000_000_000_000 })
  folder = mkdtempSync(join(tmpdir(), 'weft-sessions-'))
  nodes = []
  warnings.length = 0
})
afterEach(() => {
  for (const { manager } of nodes) manager.stop()
  rmSync(folder, { recursive: true, force: true })
  vi.useRealTimers()
})

const lease = (key: string, of: number): Lease => {
  const attrs = { publicIp: {}, backendType: 'wireguard', backendData: of }
  return { key, subnet: {}, attrs, revision: 0n }
}

/** One of two hosts: its manager, and the keys that its engine was given. */
class Node {
  readonly manager: WireguardSessionManager
  readonly given: { session: number; keys: Parameters<EngineSessions['setKeys']>[1] }[] = []
  readonly forgotten: number[] = []
  mail: Mail = NO_MAIL
  isCut = false
  readonly me: number
  /** The members that leases publish about their nodes. */
  anyPort = false
  hasLanes = true
  constructor(me: number, psk = '', keepalive = 25) {
    this.me = me
    this.manager = new WireguardSessionManager({
      privateKey: KEYS[me]!,
      psk: new Secret(psk),
      keepalive,
      stampFile: join(folder, `stamp-${me}`),
      log,
      hasLanes: () => this.hasLanes,
      clock: () => performance.now(),
      peerOf: ({ attrs: { backendData } }) => ({
        publicKey: publicKeyTo(KEYS[backendData as number]!),
        anyPort: this.anyPort,
        ...PLACES[backendData as number]!,
      }),
    })
    nodes[me] = this
  }
  begin(areKept = false): void {
    this.manager.begin({
      areKept,
      setKeys: (session, keys) =>
        this.given.push({
          session,
          keys: { ...keys, sendKey: keys.sendKey.slice(), receiveKey: keys.receiveKey.slice() },
        }),
      forget: (session) => this.forgotten.push(session),
      takeMail: () => {
        const { mail } = this
        this.mail = NO_MAIL
        return mail
      },
      send: (to, datagram) => {
        if (!this.isCut)
          nodes[to.address === PLACES[0]!.address ? 0 : 1]?.hears(PLACES[this.me]!, Buffer.from(datagram))
        return true
      },
    })
  }
  hears(from: UdpEndpoint, bytes: Buffer): void {
    this.says({ controlMessages: [...this.mail.controlMessages, { ...from, bytes }] })
  }
  says(mail: Partial<Mail>): void {
    this.mail = { ...this.mail, ...mail }
    queueMicrotask(() => this.manager.onMail())
  }
  number(): number {
    return Buffer.from(this.manager.endOf(lease('peer', 1 - this.me))).readUInt32LE()
  }
}

function both(psk: readonly [string, string] = ['', '']): [Node, Node] {
  const [a, b] = [new Node(0, psk[0]), new Node(1, psk[1])]
  a.manager.setPeers(new Map([['b', lease('b', 1)]]))
  b.manager.setPeers(new Map([['a', lease('a', 0)]]))
  a.begin()
  b.begin()
  return [a, b]
}

it('gives both sides the same keys when an engine wants some', async () => {
  const [a, b] = both()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  expect([a.given.length, b.given.length]).toEqual([1, 1])
  const [ours, theirs] = [a.given[0]!.keys, b.given[0]!.keys]
  expect([ours.isInitiator, theirs.isInitiator]).toEqual([true, false])
  expect(Buffer.from(ours.sendKey)).toEqual(Buffer.from(theirs.receiveKey))
  expect(Buffer.from(ours.receiveKey)).toEqual(Buffer.from(theirs.sendKey))
  expect([ours.ownIndex, ours.peerIndex]).toEqual([theirs.peerIndex, theirs.ownIndex])
  // The engine finds the session by its index.
  const ownEnd = Buffer.from(a.manager.ownEnd)
  const indices = createIndices(ownEnd.readUInt32LE(), ownEnd.subarray(40))
  expect(ownEnd).toHaveLength(40 + INDEX_KEY_BYTES)
  expect(indices.peerOf(ours.ownIndex)).toBe(a.number())
  expect(ownEnd.subarray(40).equals(Buffer.from(b.manager.ownEnd).subarray(40))).toBe(false)
  expect(Buffer.from(a.manager.ownEnd).readUInt32LE(4)).toBe(25_000)
  expect(a.manager.stateOf(lease('b', 1))).toMatchObject({ attempts: 0, failure: undefined })
})

it('reports the time of the handshake, and the age of the keys while they are valid', async () => {
  const [a, b] = both()
  const publicKey = publicKeyTo(KEYS[1]!)
  const none = { publicKey, handshakeAt: undefined, ageMs: undefined, attempts: 0, failure: undefined }
  expect(a.manager.stateOf(lease('b', 1))).toEqual({ ...none, stale: 0, unconfirmed: 0 })
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  const handshakeAt = a.manager.stateOf(lease('b', 1))!.handshakeAt!
  expect(Date.now() - handshakeAt).toBeLessThanOrEqual(200)
  // The responder knows that the keys are in use when the initiator has used them.
  expect(b.manager.stateOf(lease('a', 0))).toMatchObject({ ageMs: undefined, unconfirmed: 1 })
  b.says({ confirmed: [b.number()] })
  await vi.advanceTimersByTimeAsync(90_000)
  for (const state of [a.manager.stateOf(lease('b', 1)), b.manager.stateOf(lease('a', 0))])
    expect(state!.ageMs! / 1_000).toBeCloseTo(90, 0)
  await vi.advanceTimersByTimeAsync(90_000)
  expect(a.manager.stateOf(lease('b', 1))).toMatchObject({ handshakeAt, ageMs: undefined })
  expect(a.manager.stateOf(lease('c', 1))).toBeDefined() // another lease with the same key
  expect(a.manager.unknownKeys()).toEqual([])
  // A new engine that continues no sessions has no keys.
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  expect(a.manager.stateOf(lease('b', 1))!.ageMs).toBeLessThanOrEqual(200)
  a.begin()
  expect(a.manager.stateOf(lease('b', 1))!.ageMs).toBeUndefined()
})

it('gives new keys to a peer that still uses the keys of an earlier run', async () => {
  const [a] = both()
  a.hears(PLACES[1]!, Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]))
  await vi.advanceTimersByTimeAsync(200)
  expect(a.given).toHaveLength(1)
  // Other senders get none.
  const other = new Node(0)
  other.begin()
  other.hears({ address: 0x0a00_0001, port: 51_820 }, Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]))
  await vi.advanceTimersByTimeAsync(200)
  expect(other.given).toEqual([])
})

it('repeats an initiation until it is answered', async () => {
  const [a, b] = both()
  a.isCut = true
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(4_900)
  expect(a.manager.stateOf(lease('b', 1))).toMatchObject({ attempts: 1 })
  a.isCut = false
  await vi.advanceTimersByTimeAsync(1_000)
  expect([a.given.length, b.given.length]).toEqual([1, 1])
})

it('has no keys with a peer that has another psk, and reports that', async () => {
  const [a] = both([Buffer.alloc(32, 1).toString('base64'), Buffer.alloc(32, 2).toString('base64')])
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(6_000)
  expect(a.given).toEqual([])
  expect(a.manager.stateOf(lease('b', 1))).toMatchObject({ failure: 'not-authentic' })
})

it('has one session per key, regardless of its leases, and forgets it with the last lease', () => {
  const [a] = both()
  const number = a.number()
  a.manager.setPeers(
    new Map([
      ['b', lease('b', 1)],
      ['b2', lease('b2', 1)],
    ]),
  )
  a.manager.setPeers(new Map([['b2', lease('b2', 1)]]))
  expect([a.number(), a.forgotten]).toEqual([number, []])
  a.manager.setPeers(new Map())
  expect([a.number(), a.forgotten]).toEqual([0, [number]])
  a.manager.setPeers(new Map([['b', lease('b', 1)]]))
  expect(a.number()).toBeGreaterThan(0)
})

it('sends to the endpoint that a peer has proved, until its lease names another', async () => {
  const [a] = both()
  const movedKeys: string[] = []
  a.manager.listen((key) => movedKeys.push(key))
  const elsewhere = { address: 0xc000_0299, port: 4_000 }
  a.says({ moved: [{ session: a.number(), ...elsewhere }] })
  await vi.advanceTimersByTimeAsync(10)
  expect([movedKeys, a.manager.endpointOf(lease('b', 1))]).toEqual([['b'], elsewhere])
  a.manager.setPeers(new Map([['b', lease('b', 1)]]))
  expect(a.manager.endpointOf(lease('b', 1))).toEqual(elsewhere)
  PLACES[1] = { address: 0xc000_0203, port: 51_820 }
  a.manager.setPeers(new Map([['b', lease('b', 1)]]))
  expect(a.manager.endpointOf(lease('b', 1))).toEqual(PLACES[1])
  PLACES[1] = { address: 0xc000_0202, port: 51_820 }
})

describe('a peer that sends from any port', () => {
  const peers = new Map([['b', lease('b', 1)]])
  const anyPortFlag = ({ manager }: Node): number => Buffer.from(manager.endOf(lease('b', 1)))[4]!

  it('gets datagrams from any port of a host with lanes while it is at the address in its lease', async () => {
    const [a, b] = [new Node(0, '', 0), new Node(1)]
    b.manager.setPeers(new Map([['a', lease('a', 0)]]))
    a.manager.setPeers(peers)
    for (const node of [a, b]) node.begin()
    expect([anyPortFlag(a), a.manager.isFromKnownPort(lease('b', 1))]).toEqual([0, true])
    a.anyPort = true
    a.manager.setPeers(peers)
    expect([anyPortFlag(a), a.manager.isFromKnownPort(lease('b', 1))]).toEqual([1, false])
    // Packets from its lanes do not move the peer. Behind NAT its handshakes come from another port.
    a.says({ moved: [{ session: a.number(), ...PLACES[1]!, port: 52_063 }] })
    await vi.advanceTimersByTimeAsync(20)
    expect([a.manager.endpointOf(lease('b', 1)), a.manager.isFromKnownPort(lease('b', 1))]).toEqual([PLACES[1], false])
    // The successor uses the port in the lease.
    const { successor } = successorOf(a, '', 0)
    successor.anyPort = true
    successor.manager.setPeers(peers)
    expect(successor.manager.endpointOf(lease('b', 1))).toEqual(PLACES[1])
    expect([anyPortFlag(successor), successor.manager.isFromKnownPort(lease('b', 1))]).toEqual([1, false])
    successor.hasLanes = false // the successor is behind NAT itself
    expect(successor.manager.isFromKnownPort(lease('b', 1))).toBe(true)
    successor.anyPort = false
    successor.manager.setPeers(peers)
    expect(anyPortFlag(successor)).toBe(0)
    expect(a.manager.isFromKnownPort(lease('c', 0))).toBe(true)
  })

  it('is at the source of its handshakes, regardless of the ports of its packets', async () => {
    const [a, b] = [new Node(0, '', 0), new Node(1)]
    a.anyPort = true
    a.manager.setPeers(peers)
    b.manager.setPeers(new Map([['a', lease('a', 0)]]))
    a.begin()
    b.begin()
    const mapped = { address: 0xc000_0277, port: 40_000 }
    const own = PLACES[1]!
    PLACES[1] = mapped // the source of b's messages
    b.says({ wanted: [b.number()] })
    await vi.advanceTimersByTimeAsync(200)
    PLACES[1] = own
    expect(a.given).toHaveLength(1)
    a.says({ confirmed: [a.number()], moved: [{ session: a.number(), ...mapped, port: 52_063 }] })
    await vi.advanceTimersByTimeAsync(200)
    expect([a.manager.endpointOf(lease('b', 1)), a.manager.isFromKnownPort(lease('b', 1))]).toEqual([mapped, true])
    // A repeated lease does not move the peer, also in the successor.
    a.manager.setPeers(peers)
    const { successor } = successorOf(a, '', 0)
    successor.anyPort = true
    successor.manager.setPeers(peers)
    expect(successor.manager.endpointOf(lease('b', 1))).toEqual(mapped)
  })

  it('is reached at its own port as soon as its lease allows any port, regardless of an earlier move', async () => {
    const [a] = both()
    a.says({ moved: [{ session: a.number(), ...PLACES[1]!, port: 52_061 }] })
    await vi.advanceTimersByTimeAsync(20)
    expect(a.manager.endpointOf(lease('b', 1))).toEqual({ ...PLACES[1]!, port: 52_061 })
    a.anyPort = true
    a.manager.setPeers(peers)
    expect(a.manager.endpointOf(lease('b', 1))).toEqual(PLACES[1])
  })

  it('gets new keys when it uses old ones, from any port', async () => {
    const [a] = both()
    const stale = Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0])
    a.hears({ ...PLACES[1]!, port: 52_063 }, stale)
    await vi.advanceTimersByTimeAsync(200)
    expect(a.given).toHaveLength(0)
    a.anyPort = true
    a.manager.setPeers(peers)
    a.hears({ ...PLACES[1]!, port: 52_063 }, stale)
    await vi.advanceTimersByTimeAsync(200)
    expect(a.given).toHaveLength(1)
  })
})

it('continues after the stored timestamp if the clock was set back, and also if the file is invalid', async () => {
  const [a] = both()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  const kept = Number(readFileSync(join(folder, 'stamp-0'), 'utf8'))
  expect(kept).toBeGreaterThan((Date.now() / 1_000) * 60)
  const stamps: Buffer[] = []
  for (const text of [String(kept), 'junk', '-5', '9'.repeat(40)]) {
    writeFileSync(join(folder, 'stamp-0'), text)
    const again = new Node(0)
    again.manager.setPeers(new Map([['b', lease('b', 1)]]))
    again.begin()
    again.says({ wanted: [again.number()] })
    await vi.advanceTimersByTimeAsync(200)
    stamps.push(Buffer.from(readFileSync(join(folder, 'stamp-0'))))
    again.manager.stop()
  }
  expect(Number(stamps[0])).toBeGreaterThan(kept)
  const unusable = expect.stringMatching(/^Cannot use .*stamp-0 \(it contains no timestamp\): if the clock is behind,/)
  expect(warnings).toEqual([unusable, unusable, unusable])
  for (const each of stamps.slice(1)) expect(Number(each)).toBeGreaterThan((Date.now() / 1_000) * 60)
})

it('pauses after a flood of messages, and then processes further ones', async () => {
  const [a] = both()
  let taken = 0
  a.begin()
  const flood = (): void => {
    taken++
    a.mail = {
      ...NO_MAIL,
      controlMessages: Array.from({ length: 64 }, () => ({ ...PLACES[1]!, bytes: Buffer.alloc(148, 9) })),
    }
    a.manager.onMail()
  }
  flood()
  a.mail = { ...NO_MAIL, wanted: [a.number()] }
  for (let times = 0; times < 100; times++) a.manager.onMail()
  await vi.advanceTimersByTimeAsync(2 * 64 - 1)
  expect([taken, a.manager.stateOf(lease('b', 1))?.attempts]).toEqual([1, 0])
  await vi.advanceTimersByTimeAsync(100)
  expect(a.given).toHaveLength(1)
})

/** Returns a manager that replaces another one, on the host with these keys. */
function successorOf(node: Node, psk = '', me = node.me): { readonly successor: Node; readonly hasInherited: boolean } {
  const head = node.manager.pause()
  node.manager.stop()
  const successor = new Node(me, psk)
  return { successor, hasInherited: successor.manager.inherit(head) }
}
const numberOf = ({ manager }: Node, of: number): number => Buffer.from(manager.endOf(lease('peer', of))).readUInt32LE()

it('continues as the previous manager: numbers, indices, endpoints and the state of keys', async () => {
  const [a, b] = both()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  const elsewhere = { address: 0xc000_0299, port: 4_000 }
  a.says({ moved: [{ session: a.number(), ...elsewhere }] })
  await vi.advanceTimersByTimeAsync(1_000)
  const state = a.manager.stateOf(lease('b', 1))
  const before = [Buffer.from(a.manager.ownEnd), a.number()]
  const { successor, hasInherited } = successorOf(a)
  successor.manager.setPeers(new Map([['b', lease('b', 1)]]))
  expect(hasInherited).toBe(true)
  expect([Buffer.from(successor.manager.ownEnd), successor.number()]).toEqual(before)
  expect(successor.manager.endpointOf(lease('b', 1))).toEqual(elsewhere)
  successor.begin(true)
  expect(successor.manager.stateOf(lease('b', 1))).toEqual(state)
  // The node has keys, so a report that it has none is forged.
  successor.hears(elsewhere, Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]))
  await vi.advanceTimersByTimeAsync(1_000)
  expect(successor.given).toEqual([])
  // New keys are negotiated in time, with an index that no other pair of keys has.
  b.manager.setPeers(new Map([['a', lease('a', 0)]]))
  await vi.advanceTimersByTimeAsync(10_000)
  successor.says({ wanted: [successor.number()], moved: [{ session: successor.number(), ...PLACES[1]! }] })
  await vi.advanceTimersByTimeAsync(200)
  successor.says({ wanted: [successor.number()] })
  await vi.advanceTimersByTimeAsync(6_000)
  expect(successor.given.length).toBeGreaterThan(0)
  expect(successor.given[0]!.keys.ownIndex).not.toBe(a.given[0]!.keys.ownIndex)
})

it('continues without keys that are lost, but with the known endpoint', async () => {
  const [a, b] = both()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  const { successor } = successorOf(a)
  successor.manager.setPeers(new Map([['b', lease('b', 1)]]))
  successor.begin(false)
  await vi.advanceTimersByTimeAsync(100)
  successor.hears(PLACES[1]!, Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]))
  await vi.advanceTimersByTimeAsync(200)
  expect([successor.given.length, b.given.length]).toEqual([1, 2])
})

it('gives no earlier number to a peer that the previous manager did not have', () => {
  const [a] = both()
  const number = a.number()
  const { successor } = successorOf(a)
  successor.manager.setPeers(new Map([['a', lease('a', 0)]]))
  expect([numberOf(successor, 1), numberOf(successor, 0) > number]).toEqual([0, true])
})

it('repeats an unanswered initiation soon, but not before the peer would accept it', async () => {
  const [a, b] = both()
  a.isCut = true
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(1)
  const { successor } = successorOf(a)
  successor.manager.setPeers(new Map([['b', lease('b', 1)]]))
  successor.begin(true)
  successor.says({ wanted: [successor.number()] })
  await vi.advanceTimersByTimeAsync(20)
  expect(successor.manager.stateOf(lease('b', 1))?.attempts).toBe(0)
  await vi.advanceTimersByTimeAsync(200)
  expect([successor.given.length, b.given.length]).toEqual([1, 1])
})

it('does nothing between the end of one engine and the start of the next', async () => {
  const [a] = both()
  a.isCut = true
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(100)
  a.manager.pause()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(20_000)
  expect(a.manager.stateOf(lease('b', 1))?.attempts).toBe(1)
  // Another process had the path in the meantime, and stored a later timestamp.
  const left = Math.ceil(Date.now() / 1_000) * 60 + 100_000
  writeFileSync(join(folder, 'stamp-0'), String(left))
  a.isCut = false
  a.begin(false)
  await vi.advanceTimersByTimeAsync(6_000)
  expect(a.given).toHaveLength(1)
  expect(Number(readFileSync(join(folder, 'stamp-0'), 'utf8'))).toBeGreaterThan(left)
})

it('does not continue from the state of other keys, or from invalid state', () => {
  const head = both()[0].manager.pause()
  const changed = (at: number): Uint8Array => head.map((byte, index) => (index === at ? byte ^ 1 : byte))
  const heads = [changed(0), changed(31), changed(32), changed(head.length - 1), head.subarray(1), head.subarray(0, 32)]
  for (const junk of [...heads, new Uint8Array(), new Uint8Array(5)])
    expect(new Node(0).manager.inherit(junk)).toBe(false)
  expect(new Node(1).manager.inherit(head)).toBe(false)
  expect(new Node(0, Buffer.alloc(32, 1).toString('base64')).manager.inherit(head)).toBe(false)
  const same = new Node(0)
  expect(same.manager.inherit(head)).toBe(true)
  // The state contains no secret; the proof does not reveal its key.
  expect(Buffer.from(head).toString()).not.toContain(KEYS[0]!.reveal())
})
