// keeper.test.ts - two keepers, each with an engine that only remembers: numbers, handshakes by mail, and what a peer's moves come to.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { Secret } from '../../../../../src/base/secret.ts'
import type { Lease } from '../../../../../src/control/lease/lease.ts'
import { createIndices, INDEX_KEY_BYTES } from '../../../../../src/path/backends/wireguard/indices.ts'
import { createKeeper, type Keeper } from '../../../../../src/path/backends/wireguard/keeper.ts'
import { publicKeyTo } from '../../../../../src/path/backends/wireguard/key-file.ts'
import type { EngineSessions, UdpEndpoint } from '../../../../../src/path/engine/engine.ts'
import { log } from '../../../../support/fake-host.ts'

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
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance', 'hrtime', 'Date'], now: 1_000_000_000_000 })
  folder = mkdtempSync(join(tmpdir(), 'weft-keeper-'))
  nodes = []
})
afterEach(() => {
  for (const { keeper } of nodes) keeper.stop()
  rmSync(folder, { recursive: true, force: true })
  vi.useRealTimers()
})

const lease = (key: string, of: number): Lease => {
  const attrs = { publicIp: {}, backendType: 'wireguard', backendData: of }
  return { key, subnet: {}, attrs, revision: 0n }
}

/** One of two hosts: its keeper, and the keys that its engine was given. */
class Node {
  readonly keeper: Keeper
  readonly given: { session: number; keys: Parameters<EngineSessions['setKeys']>[1] }[] = []
  readonly forgotten: number[] = []
  mail: Mail = NO_MAIL
  isCut = false
  readonly me: number
  /** What leases say of their nodes. */
  anyPort = false
  hasLanes = true
  constructor(me: number, psk = '', keepalive = 25) {
    this.me = me
    this.keeper = createKeeper({
      privateKey: KEYS[me]!,
      psk: new Secret(psk),
      keepalive,
      stampFile: join(folder, `stamp-${me}`),
      log,
      hasLanes: () => this.hasLanes,
      peerOf: ({ attrs: { backendData } }) => ({
        publicKey: publicKeyTo(KEYS[backendData as number]!),
        anyPort: this.anyPort,
        ...PLACES[backendData as number]!,
      }),
    })
    nodes[me] = this
  }
  begin(areKept = false): void {
    this.keeper.begin({
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
    queueMicrotask(() => this.keeper.onMail())
  }
  number(): number {
    return Buffer.from(this.keeper.endOf(lease('peer', 1 - this.me))).readUInt32LE()
  }
}

function both(psk: readonly [string, string] = ['', '']): [Node, Node] {
  const [a, b] = [new Node(0, psk[0]), new Node(1, psk[1])]
  a.keeper.setPeers(new Map([['b', lease('b', 1)]]))
  b.keeper.setPeers(new Map([['a', lease('a', 0)]]))
  a.begin()
  b.begin()
  return [a, b]
}

it('yields the same keys on both sides when the engine wants some', async () => {
  const [a, b] = both()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  expect([a.given.length, b.given.length]).toEqual([1, 1])
  const [ours, theirs] = [a.given[0]!.keys, b.given[0]!.keys]
  expect([ours.isInitiator, theirs.isInitiator]).toEqual([true, false])
  expect(Buffer.from(ours.sendKey)).toEqual(Buffer.from(theirs.receiveKey))
  expect(Buffer.from(ours.receiveKey)).toEqual(Buffer.from(theirs.sendKey))
  expect([ours.ownIndex, ours.peerIndex]).toEqual([theirs.peerIndex, theirs.ownIndex])
  // The engine finds the session by the index.
  const ownEnd = Buffer.from(a.keeper.ownEnd)
  const indices = createIndices(ownEnd.readUInt32LE(), ownEnd.subarray(40))
  expect(ownEnd).toHaveLength(40 + INDEX_KEY_BYTES)
  expect(indices.peerOf(ours.ownIndex)).toBe(a.number())
  expect(ownEnd.subarray(40).equals(Buffer.from(b.keeper.ownEnd).subarray(40))).toBe(false)
  expect(Buffer.from(a.keeper.ownEnd).readUInt32LE(4)).toBe(25_000)
  expect(a.keeper.stateOf(lease('b', 1))).toMatchObject({ attempts: 0, failure: undefined })
})

it('tells how old the keys are, until they are of no use, and when the handshake was', async () => {
  const [a, b] = both()
  const publicKey = publicKeyTo(KEYS[1]!)
  const none = { publicKey, handshakeAt: undefined, ageMs: undefined, attempts: 0, failure: undefined }
  expect(a.keeper.stateOf(lease('b', 1))).toEqual({ ...none, stale: 0, unconfirmed: 0 })
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  const handshakeAt = a.keeper.stateOf(lease('b', 1))!.handshakeAt!
  expect(Date.now() - handshakeAt).toBeLessThanOrEqual(200)
  // Who answered knows of keys when the other one has sent by them.
  expect(b.keeper.stateOf(lease('a', 0))).toMatchObject({ ageMs: undefined, unconfirmed: 1 })
  b.says({ confirmed: [b.number()] })
  await vi.advanceTimersByTimeAsync(90_000)
  for (const state of [a.keeper.stateOf(lease('b', 1)), b.keeper.stateOf(lease('a', 0))])
    expect(state!.ageMs! / 1_000).toBeCloseTo(90, 0)
  await vi.advanceTimersByTimeAsync(90_000)
  expect(a.keeper.stateOf(lease('b', 1))).toMatchObject({ handshakeAt, ageMs: undefined })
  expect(a.keeper.stateOf(lease('c', 1))).toBeDefined() // another lease of the same key
  expect(a.keeper.unknownKeys()).toEqual([])
  // Another engine has none of them.
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  expect(a.keeper.stateOf(lease('b', 1))!.ageMs).toBeLessThanOrEqual(200)
  a.begin()
  expect(a.keeper.stateOf(lease('b', 1))!.ageMs).toBeUndefined()
})

it('gives new keys to a peer that sends by some of before a restart', async () => {
  const [a] = both()
  a.hears(PLACES[1]!, Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]))
  await vi.advanceTimersByTimeAsync(200)
  expect(a.given).toHaveLength(1)
  // And to nobody else.
  const other = new Node(0)
  other.begin()
  other.hears({ address: 0x0a00_0001, port: 51_820 }, Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]))
  await vi.advanceTimersByTimeAsync(200)
  expect(other.given).toEqual([])
})

it('tries again until it is answered', async () => {
  const [a, b] = both()
  a.isCut = true
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(4_900)
  expect(a.keeper.stateOf(lease('b', 1))).toMatchObject({ attempts: 1 })
  a.isCut = false
  await vi.advanceTimersByTimeAsync(1_000)
  expect([a.given.length, b.given.length]).toEqual([1, 1])
})

it('has no keys with who has another pre-shared one, and says so', async () => {
  const [a] = both([Buffer.alloc(32, 1).toString('base64'), Buffer.alloc(32, 2).toString('base64')])
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(6_000)
  expect(a.given).toEqual([])
  expect(a.keeper.stateOf(lease('b', 1))).toMatchObject({ failure: 'not-authentic' })
})

it('has one session of a key, whatever leases it has, and forgets it with the last', () => {
  const [a] = both()
  const number = a.number()
  a.keeper.setPeers(
    new Map([
      ['b', lease('b', 1)],
      ['b2', lease('b2', 1)],
    ]),
  )
  a.keeper.setPeers(new Map([['b2', lease('b2', 1)]]))
  expect([a.number(), a.forgotten]).toEqual([number, []])
  a.keeper.setPeers(new Map())
  expect([a.number(), a.forgotten]).toEqual([0, [number]])
  a.keeper.setPeers(new Map([['b', lease('b', 1)]]))
  expect(a.number()).toBeGreaterThan(0)
})

it('sends where a peer has proved to be, until its lease says another place', async () => {
  const [a] = both()
  const told: string[] = []
  a.keeper.listen((key) => told.push(key))
  const elsewhere = { address: 0xc000_0299, port: 4_000 }
  a.says({ moved: [{ session: a.number(), ...elsewhere }] })
  await vi.advanceTimersByTimeAsync(10)
  expect([told, a.keeper.endpointOf(lease('b', 1))]).toEqual([['b'], elsewhere])
  a.keeper.setPeers(new Map([['b', lease('b', 1)]]))
  expect(a.keeper.endpointOf(lease('b', 1))).toEqual(elsewhere)
  PLACES[1] = { address: 0xc000_0203, port: 51_820 }
  a.keeper.setPeers(new Map([['b', lease('b', 1)]]))
  expect(a.keeper.endpointOf(lease('b', 1))).toEqual(PLACES[1])
  PLACES[1] = { address: 0xc000_0202, port: 51_820 }
})

describe('a peer that sends from any port', () => {
  const peers = new Map([['b', lease('b', 1)]])
  const saysSo = ({ keeper }: Node): number => Buffer.from(keeper.endOf(lease('b', 1)))[4]!

  it('is sent to from any while it is where its lease says, by a host that has lanes', async () => {
    const [a, b] = [new Node(0, '', 0), new Node(1)]
    b.keeper.setPeers(new Map([['a', lease('a', 0)]]))
    a.keeper.setPeers(peers)
    for (const node of [a, b]) node.begin()
    expect([saysSo(a), a.keeper.isFromKnownPort(lease('b', 1))]).toEqual([0, true])
    a.anyPort = true
    a.keeper.setPeers(peers)
    expect([saysSo(a), a.keeper.isFromKnownPort(lease('b', 1))]).toEqual([1, false])
    // What it sends by its lanes moves it nowhere; behind a translation of addresses its handshakes come from elsewhere.
    a.says({ moved: [{ session: a.number(), ...PLACES[1]!, port: 52_063 }] })
    await vi.advanceTimersByTimeAsync(20)
    expect([a.keeper.endpointOf(lease('b', 1)), a.keeper.isFromKnownPort(lease('b', 1))]).toEqual([PLACES[1], false])
    // The one that goes on in its place knows it by the lease.
    const { heir } = heirOf(a, '', 0)
    heir.anyPort = true
    heir.keeper.setPeers(peers)
    expect(heir.keeper.endpointOf(lease('b', 1))).toEqual(PLACES[1])
    expect([saysSo(heir), heir.keeper.isFromKnownPort(lease('b', 1))]).toEqual([1, false])
    heir.hasLanes = false // it is behind a translation of addresses itself
    expect(heir.keeper.isFromKnownPort(lease('b', 1))).toBe(true)
    heir.anyPort = false
    heir.keeper.setPeers(peers)
    expect(saysSo(heir)).toBe(0)
    expect(a.keeper.isFromKnownPort(lease('c', 0))).toBe(true)
  })

  it('is where its handshakes come from, whatever port its packets come by', async () => {
    const [a, b] = [new Node(0, '', 0), new Node(1)]
    a.anyPort = true
    a.keeper.setPeers(peers)
    b.keeper.setPeers(new Map([['a', lease('a', 0)]]))
    a.begin()
    b.begin()
    const mapped = { address: 0xc000_0277, port: 40_000 }
    const own = PLACES[1]!
    PLACES[1] = mapped // where b is heard from
    b.says({ wanted: [b.number()] })
    await vi.advanceTimersByTimeAsync(200)
    PLACES[1] = own
    expect(a.given).toHaveLength(1)
    a.says({ confirmed: [a.number()], moved: [{ session: a.number(), ...mapped, port: 52_063 }] })
    await vi.advanceTimersByTimeAsync(200)
    expect([a.keeper.endpointOf(lease('b', 1)), a.keeper.isFromKnownPort(lease('b', 1))]).toEqual([mapped, true])
    // Told again what is known, also to the one that goes on in its place, it stays there.
    a.keeper.setPeers(peers)
    const { heir } = heirOf(a, '', 0)
    heir.anyPort = true
    heir.keeper.setPeers(peers)
    expect(heir.keeper.endpointOf(lease('b', 1))).toEqual(mapped)
  })

  it('is sent to at its own port as soon as its lease says so, whatever port was followed until then', async () => {
    const [a] = both()
    a.says({ moved: [{ session: a.number(), ...PLACES[1]!, port: 52_061 }] })
    await vi.advanceTimersByTimeAsync(20)
    expect(a.keeper.endpointOf(lease('b', 1))).toEqual({ ...PLACES[1]!, port: 52_061 })
    a.anyPort = true
    a.keeper.setPeers(peers)
    expect(a.keeper.endpointOf(lease('b', 1))).toEqual(PLACES[1])
  })

  it('is given new keys when it seals by some of before, whatever port that comes from', async () => {
    const [a] = both()
    const stale = Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0])
    a.hears({ ...PLACES[1]!, port: 52_063 }, stale)
    await vi.advanceTimersByTimeAsync(200)
    expect(a.given).toHaveLength(0)
    a.anyPort = true
    a.keeper.setPeers(peers)
    a.hears({ ...PLACES[1]!, port: 52_063 }, stale)
    await vi.advanceTimersByTimeAsync(200)
    expect(a.given).toHaveLength(1)
  })
})

it('goes on behind the time that was kept, though the clock went back, and through junk in its place', async () => {
  const [a] = both()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  const kept = Number(readFileSync(join(folder, 'stamp-0'), 'utf8'))
  expect(kept).toBeGreaterThan((Date.now() / 1_000) * 60)
  const stamps: Buffer[] = []
  for (const text of [String(kept), 'junk', '-5', '9'.repeat(40)]) {
    writeFileSync(join(folder, 'stamp-0'), text)
    const again = new Node(0)
    again.keeper.setPeers(new Map([['b', lease('b', 1)]]))
    again.begin()
    again.says({ wanted: [again.number()] })
    await vi.advanceTimersByTimeAsync(200)
    stamps.push(Buffer.from(readFileSync(join(folder, 'stamp-0'))))
    again.keeper.stop()
  }
  expect(Number(stamps[0])).toBeGreaterThan(kept)
  for (const each of stamps.slice(1)) expect(Number(each)).toBeGreaterThan((Date.now() / 1_000) * 60)
})

it('rests after a flood of messages, and hears them then', async () => {
  const [a] = both()
  let taken = 0
  a.begin()
  const flood = (): void => {
    taken++
    a.mail = {
      ...NO_MAIL,
      controlMessages: Array.from({ length: 64 }, () => ({ ...PLACES[1]!, bytes: Buffer.alloc(148, 9) })),
    }
    a.keeper.onMail()
  }
  flood()
  a.mail = { ...NO_MAIL, wanted: [a.number()] }
  for (let times = 0; times < 100; times++) a.keeper.onMail()
  await vi.advanceTimersByTimeAsync(2 * 64 - 1)
  expect([taken, a.keeper.stateOf(lease('b', 1))?.attempts]).toEqual([1, 0])
  await vi.advanceTimersByTimeAsync(100)
  expect(a.given).toHaveLength(1)
})

/** A keeper that takes the place of another, of the host with these keys. */
function heirOf(node: Node, psk = '', me = node.me): { readonly heir: Node; readonly isHeir: boolean } {
  const head = node.keeper.pause()
  node.keeper.stop()
  const heir = new Node(me, psk)
  return { heir, isHeir: heir.keeper.inherit(head) }
}
const numberOf = ({ keeper }: Node, of: number): number => Buffer.from(keeper.endOf(lease('peer', of))).readUInt32LE()

it('goes on as the one before did: numbers, indices, places, and what it knows of the keys', async () => {
  const [a, b] = both()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  const elsewhere = { address: 0xc000_0299, port: 4_000 }
  a.says({ moved: [{ session: a.number(), ...elsewhere }] })
  await vi.advanceTimersByTimeAsync(1_000)
  const state = a.keeper.stateOf(lease('b', 1))
  const before = [Buffer.from(a.keeper.ownEnd), a.number()]
  const { heir, isHeir } = heirOf(a)
  heir.keeper.setPeers(new Map([['b', lease('b', 1)]]))
  expect(isHeir).toBe(true)
  expect([Buffer.from(heir.keeper.ownEnd), heir.number()]).toEqual(before)
  expect(heir.keeper.endpointOf(lease('b', 1))).toEqual(elsewhere)
  heir.begin(true)
  expect(heir.keeper.stateOf(lease('b', 1))).toEqual(state)
  // Keys are there: what says that there are none is forged.
  heir.hears(elsewhere, Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]))
  await vi.advanceTimersByTimeAsync(1_000)
  expect(heir.given).toEqual([])
  // New ones are made in their time, by an index that no pair has.
  b.keeper.setPeers(new Map([['a', lease('a', 0)]]))
  await vi.advanceTimersByTimeAsync(10_000)
  heir.says({ wanted: [heir.number()], moved: [{ session: heir.number(), ...PLACES[1]! }] })
  await vi.advanceTimersByTimeAsync(200)
  heir.says({ wanted: [heir.number()] })
  await vi.advanceTimersByTimeAsync(6_000)
  expect(heir.given.length).toBeGreaterThan(0)
  expect(heir.given[0]!.keys.ownIndex).not.toBe(a.given[0]!.keys.ownIndex)
})

it('takes keys that are gone for gone, and the place all the same', async () => {
  const [a, b] = both()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(200)
  const { heir } = heirOf(a)
  heir.keeper.setPeers(new Map([['b', lease('b', 1)]]))
  heir.begin(false)
  await vi.advanceTimersByTimeAsync(100)
  heir.hears(PLACES[1]!, Buffer.from([4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]))
  await vi.advanceTimersByTimeAsync(200)
  expect([heir.given.length, b.given.length]).toEqual([1, 2])
})

it('takes no number of before for a peer that it did not have', () => {
  const [a] = both()
  const number = a.number()
  const { heir } = heirOf(a)
  heir.keeper.setPeers(new Map([['a', lease('a', 0)]]))
  expect([numberOf(heir, 1), numberOf(heir, 0) > number]).toEqual([0, true])
})

it('asks again soon what was asked and not answered, but not before it is heard', async () => {
  const [a, b] = both()
  a.isCut = true
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(1)
  const { heir } = heirOf(a)
  heir.keeper.setPeers(new Map([['b', lease('b', 1)]]))
  heir.begin(true)
  heir.says({ wanted: [heir.number()] })
  await vi.advanceTimersByTimeAsync(20)
  expect(heir.keeper.stateOf(lease('b', 1))?.attempts).toBe(0)
  await vi.advanceTimersByTimeAsync(200)
  expect([heir.given.length, b.given.length]).toEqual([1, 1])
})

it('does nothing between the end of one engine and the begin of the next', async () => {
  const [a] = both()
  a.isCut = true
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(100)
  a.keeper.pause()
  a.says({ wanted: [a.number()] })
  await vi.advanceTimersByTimeAsync(20_000)
  expect(a.keeper.stateOf(lease('b', 1))?.attempts).toBe(1)
  // Another process had the path meanwhile, and left the time of its last handshakes.
  const left = Math.ceil(Date.now() / 1_000) * 60 + 100_000
  writeFileSync(join(folder, 'stamp-0'), String(left))
  a.isCut = false
  a.begin(false)
  await vi.advanceTimersByTimeAsync(6_000)
  expect(a.given).toHaveLength(1)
  expect(Number(readFileSync(join(folder, 'stamp-0'), 'utf8'))).toBeGreaterThan(left)
})

it('goes on by nothing of other keys, and by no junk', () => {
  const head = both()[0].keeper.pause()
  const changed = (at: number): Uint8Array => head.map((byte, index) => (index === at ? byte ^ 1 : byte))
  const heads = [changed(0), changed(31), changed(32), changed(head.length - 1), head.subarray(1), head.subarray(0, 32)]
  for (const junk of [...heads, new Uint8Array(), new Uint8Array(5)])
    expect(new Node(0).keeper.inherit(junk)).toBe(false)
  expect(new Node(1).keeper.inherit(head)).toBe(false)
  expect(new Node(0, Buffer.alloc(32, 1).toString('base64')).keeper.inherit(head)).toBe(false)
  const same = new Node(0)
  expect(same.keeper.inherit(head)).toBe(true)
  // Nothing in it is secret but what it proves itself by.
  expect(Buffer.from(head).toString()).not.toContain(KEYS[0]!.reveal())
})
