// schedules.test.ts - two nodes over a network that loses, duplicates, delays and reorders messages, with restarts and
// clocks that jump. After each of some hundred random schedules, in `npm run test:soak` of 102,000, the two nodes must soon
// exchange packets again, with matching keys. `WEFT_SEED=...` repeats one schedule.
//
// Most schedules replace X25519, which takes most of the time, by a function that gives both sides, and only them, the
// same secret.

import { randomBytes } from 'node:crypto'
import { describe, expect, it, vi } from 'vitest'
import { SecretBytes } from '../../../../../src/base/secret.ts'
import type { Endpoint } from '../../../../../src/path/backends/wireguard/cookie.ts'
import { systemRandomness } from '../../../../../src/path/backends/wireguard/crypto.ts'
import { Handshakes } from '../../../../../src/path/backends/wireguard/handshakes.ts'
import type * as X25519 from '../../../../../src/path/backends/wireguard/x25519.ts'
import { randomFrom, type Random } from '../../../../support/packet-model.ts'
import { createSessions, type Packet, type Sessions } from '../../../../support/wireguard-sessions.ts'

const LONG = process.env['WEFT_LONG'] === '1'
const seedsOf = (schedules: number): readonly number[] =>
  process.env['WEFT_SEED'] ? [Number(process.env['WEFT_SEED'])] : Array.from({ length: schedules }, (_, at) => at + 1)
const LONG_MS = 7_200_000

const primitive = vi.hoisted(() => ({ isFake: false }))
vi.mock(import('../../../../../src/path/backends/wireguard/x25519.ts'), async (original) => {
  const real = await original()
  /** Replaces a KeyObject: the public key of a pair, for both halves. */
  class Fake {
    readonly bytes: Uint8Array
    constructor(bytes: Uint8Array) {
      this.bytes = bytes
    }
  }
  const fake = (bytes: Uint8Array) => new Fake(bytes) as unknown as ReturnType<typeof X25519.publicKeyOf>
  const pairOf = (bytes: Uint8Array) => ({
    privateKey: fake(Uint8Array.from(bytes)),
    publicKey: Uint8Array.from(bytes),
  })
  return {
    ...real,
    newKeyPair: () => (primitive.isFake ? pairOf(randomBytes(real.KEY_BYTES)) : real.newKeyPair()),
    keyPairOf: (bytes) => (primitive.isFake ? pairOf(bytes) : real.keyPairOf(bytes)),
    publicKeyOf: (bytes) => (primitive.isFake ? fake(Uint8Array.from(bytes)) : real.publicKeyOf(bytes)),
    dh(own, other) {
      if (!(own instanceof Fake && other instanceof Fake)) return real.dh(own, other)
      return Buffer.from(own.bytes.map((byte, at) => byte ^ (other as unknown as Fake).bytes[at]!))
    },
  }
})
/**
 * The maximum duration of the disturbances, in ms. The next constant is the time after them within which both nodes
 * must exchange packets.
 */
const MOST_TROUBLE_MS = 300_000
/** Silence is noticed after 15 s, and an initiation may have been sent just before the trouble ended. */
const RECOVERY_MS = 15_000 + 5_333 + 2_000
const WALL = 1_795_575_600_000

const KEYS = [0, 1].map(() => systemRandomness.bytes(32))
const PSK = systemRandomness.bytes(32)

function idle(key: Uint8Array): Handshakes {
  return new Handshakes({
    privateKey: new SecretBytes(key),
    indexSecret: 0x5eed_c0de,
    engine: { send: () => {}, setKeys: () => {} },
    random: systemRandomness,
    wall: () => WALL,
    keptTick: -1,
    keepTick: () => {},
    roamed: () => {},
    overlooked: () => {},
  })
}

type Datagram = Buffer | Packet
interface Node {
  handshakes: Handshakes
  sessions: Sessions
  place: Endpoint
  kept: number
  wallOffset: number
  isTalking: boolean
}

/**
 * Returns how many keys were given. Throws if the nodes do not exchange packets again, or if any key or index is used
 * twice.
 */
function run(seed: number): number {
  const random: Random = randomFrom(seed)
  const everUsed = new Set<string>()
  const publicKeys = KEYS.map((key) => idle(key).publicKey)
  let now = 1_000_000
  let handshakes = 0
  /** The events of the schedule, sorted by time. */
  const events: { at: number; what: () => void }[] = []
  function later(ms: number, what: () => void): void {
    const at = now + ms
    let place = events.length
    while (place > 0 && events[place - 1]!.at > at) place -= 1
    events.splice(place, 0, { at, what })
  }
  const trouble = random.below(MOST_TROUBLE_MS)
  const calmAt = now + trouble
  const isCalm = (): boolean => now >= calmAt
  const [loss, twice, most] = [random.of([0, 0.1, 0.5, 0.9]), random.of([0, 0.3]), random.of([5, 400, 7_000])]
  const psk = random.chance(0.5) ? new SecretBytes(PSK) : undefined

  const nodes = [1, 2].map(
    (address) =>
      ({
        place: { address, port: 51_820 },
        kept: -1,
        wallOffset: random.below(10) * 1_000 - 5_000,
        isTalking: false,
      }) as Node,
  )
  function deliver(from: Node, to: Node, datagram: Datagram): void {
    const arrives = (): void => {
      if (Buffer.isBuffer(datagram)) to.handshakes.message(from.place, datagram, now)
      else to.sessions.receive(datagram, now)
    }
    if (!isCalm() && random.chance(loss)) return
    for (let copies = !isCalm() && random.chance(twice) ? 2 : 1; copies > 0; copies -= 1)
      later(isCalm() ? 5 : 1 + random.below(most), arrives)
  }
  function begin(who: number): void {
    const node = nodes[who]!
    const other = nodes[1 - who]!
    node.handshakes?.close()
    const sessions = createSessions(
      everUsed,
      {
        send: (packet) => deliver(node, other, packet),
        wanted: (at) => node.handshakes.wanted(5, at),
        confirmed: (at) => node.handshakes.confirmed(5, at),
      },
      () => now,
    )
    node.sessions = sessions
    node.handshakes = new Handshakes({
      privateKey: new SecretBytes(KEYS[who]!),
      indexSecret: 0x5eed_c0de + who,
      engine: {
        send: (to, datagram) => {
          const there = nodes.find(({ place }) => place.address === to.address)
          if (there) deliver(node, there, Buffer.from(datagram))
        },
        setKeys: (peer, keys) => {
          handshakes += 1
          sessions.setKeys(peer, keys)
        },
      },
      random: { ...systemRandomness, bytes: (length) => Buffer.from(Array.from({ length }, () => random.below(256))) },
      wall: () => WALL + now + node.wallOffset,
      keptTick: node.kept,
      keepTick: (tick) => (node.kept = tick),
      roamed: () => {},
      overlooked: () => {},
    })
    node.handshakes.setPeers([{ number: 5, publicKey: publicKeys[1 - who]!, psk, endpoint: other.place }])
  }
  begin(0)
  begin(1)
  // One node or both begin to send, in some schedules simultaneously.
  nodes.forEach((node, who) =>
    later(random.of([0, 0, 500, 60_000]) * (random.chance(0.5) ? who : 1), () => (node.isTalking = true)),
  )
  for (let count = random.below(4); count > 0; count -= 1)
    later(random.below(trouble + 1), () => begin(random.below(2)))
  for (let count = random.below(3); count > 0; count -= 1)
    later(
      random.below(trouble + 1),
      () => (random.of(nodes).wallOffset += random.of([-1, 1]) * random.of([1_000, 3_600_000, 3e10])),
    )

  const end = calmAt + 61_000 + RECOVERY_MS
  const before = [0, 0]
  const heardAt: (number | undefined)[] = [undefined, undefined]
  while (now < end) {
    const step = now + 500
    for (;;) {
      const timers = nodes.map((node) => node.handshakes.nextAt())
      const [event] = events
      const timer = Math.min(...timers)
      if (event && event.at <= step && event.at <= timer) {
        events.shift()
        now = Math.max(now, event.at)
        event.what()
      } else if (timer <= step) {
        now = Math.max(now, timer)
        for (const node of nodes) node.handshakes.tick(now)
      } else break
    }
    now = step
    for (const node of nodes) {
      node.sessions.tick(now)
      if (isCalm()) node.isTalking = true
      if (node.isTalking) node.sessions.data(now)
    }
    if (isCalm())
      nodes.forEach((node, who) => {
        if (node.sessions.delivered() > before[who]!) heardAt[who] ??= now
        before[who] = node.sessions.delivered()
      })
    else nodes.forEach((node, who) => (before[who] = node.sessions.delivered()))
  }
  // Packets of the last seconds have arrived on both sides.
  const delivered = nodes.map((node) => node.sessions.delivered())
  for (let count = 0; count < 4; count += 1) {
    now += 500
    for (const node of nodes) node.sessions.data(now)
    for (const event of events.splice(0)) event.what()
  }
  nodes.forEach((node, who) => {
    if (node.sessions.delivered() < delivered[who]! + 3) throw new Error(`node ${who} hears nothing any more`)
  })
  const recovered = Math.max(...heardAt.map((at) => (at ?? Infinity) - calmAt))
  if (recovered > RECOVERY_MS) throw new Error(`they talked only ${recovered} ms after the trouble`)
  for (const node of nodes) node.handshakes.close()
  return handshakes
}

describe('two nodes', () => {
  it.each([
    { by: 'X25519', isFake: false, seeds: seedsOf(LONG ? 2_000 : 40) },
    { by: 'what stands for it', isFake: true, seeds: seedsOf(LONG ? 100_000 : 300) },
  ])(
    'exchange packets again after each of $seeds.length schedules of trouble, with $by',
    async ({ isFake, seeds }) => {
      primitive.isFake = isFake
      const failures: string[] = []
      let handshakes = 0
      for (const seed of seeds) {
        try {
          handshakes += run(seed)
        } catch (error) {
          failures.push(`WEFT_SEED=${seed}: ${(error as Error).stack?.split('\n').slice(0, 3).join(' ')}`)
        }
        // Reports progress to whoever runs the tests.
        if (seed % 500 === 0) await new Promise(setImmediate)
      }
      expect(failures.slice(0, 5)).toEqual([])
      // The schedules must have made keys.
      expect(handshakes).toBeGreaterThan(4 * seeds.length)
    },
    LONG_MS,
  )
})
