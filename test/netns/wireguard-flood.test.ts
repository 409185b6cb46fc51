// wireguard-flood.test.ts - floods of forged handshakes from senders without our public key, with it, and with peers' addresses. No peer
// loses its session, and a new one gets its own. With WEFT_LONG=1 keys are renewed meanwhile, and the cost of each kind is printed.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { createLab, WIREGUARD_APART, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { macKeysOf, writeMacs } from '../../src/path/backends/wireguard/cookie.ts'
import { systemRandomness } from '../../src/path/backends/wireguard/crypto.ts'
import { INITIATION_BYTES, RESPONSE_BYTES } from '../../src/path/backends/wireguard/messages.ts'
import type { SessionStatus } from '../../src/report/status.ts'
import { eventually } from '../support/event.ts'
import { buildForge, type Forge, type Sender } from '../support/forge.ts'
import { cpuOfThreads, statusOf, subnetOf } from '../support/hosts.ts'
import { BUILD_MS } from '../support/native-program.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'

const lacks = needs(HOSTS, 'g++', 'ping', 'tcpdump')
const LONG = process.env['WEFT_LONG'] === '1'
const PORT = 51_820
/** The burst of each kind, which is smaller than a socket's buffer. */
const BURST = 1_000
/** The minimum number of rounds with all kinds. */
const ROUNDS = 5
/** Younger keys are not renewed (white paper, section 6.1: Rekey-After-Time). */
const REKEY_AFTER_S = 120
/**
 * The time in ms for which each kind of message is sent, as fast as a host can, to measure its cost. The work of the
 * JIT compiler at the start is a small part of this time.
 */
const FLOOD_MS = 15_000
const AT_ONCE = 200_000

let forge: Forge
beforeAll(async () => {
  if (!lacks) forge = await buildForge()
}, BUILD_MS)
afterAll(() => forge?.close())
let lab: Lab
afterEach(() => lab?.close())

const leases = (): string => join(lab.folder, 'leases')
async function start(host: Host): Promise<Daemon> {
  mkdirSync(leases(), { recursive: true })
  const Backend = { Type: 'wireguard', DataPath: 'userspace' }
  writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
  const daemon = host.startDaemon({
    args: ['--lease-dir', leases()],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
    before: WIREGUARD_APART,
  })
  await daemon.line(/flannel is ready/)
  return daemon
}
function publicKeyOf(host: Host): Buffer {
  const name = subnetOf(host).replace('/', '-')
  const file = readdirSync(join(leases(), 'subnets')).find((each) => each.startsWith(name))!
  const lease = JSON.parse(readFileSync(join(leases(), 'subnets', file), 'utf8')) as {
    BackendData: { PublicKey: string }
  }
  return Buffer.from(lease.BackendData.PublicKey, 'base64')
}

/** Returns a function that waits for the first initiation that `from` sends to `to` from now on. */
async function firstInitiation(from: Host, to: Host): Promise<() => Promise<Buffer>> {
  const its = `src host ${from.address} and udp dst port ${PORT} and udp[8:4] = 0x01000000`
  const sniffer = to.spawn(['tcpdump', '-i', 'eth0', '--immediate-mode', '-nlx', '-c', '1', its])
  let seen = ''
  let said = ''
  sniffer.stdout!.on('data', (text: Buffer) => (seen += text.toString()))
  sniffer.stderr!.on('data', (text: Buffer) => (said += text.toString()))
  await eventually(() => expect(said).toContain('listening on'))
  const HEADERS = 20 + 8
  return () =>
    eventually(() => {
      const words = [...seen.matchAll(/0x[0-9a-f]{4}: {2}(.*)\n/g)].map(([, line]) => line!.replaceAll(' ', ''))
      const initiation = Buffer.from(words.join(''), 'hex').subarray(HEADERS)
      expect(initiation).toHaveLength(INITIATION_BYTES)
      return initiation
    })
}

interface Kind {
  readonly what: string
  readonly datagrams: readonly Buffer[]
  readonly by?: Sender
  /** The reason why most of them are dropped, or all of them if JavaScript never gets to see one. */
  readonly reason: 'rx_drop_wrong_key' | 'rx_drop_handshake' | 'rx_drop_no_session' | 'rx_drop_malformed'
  readonly areAll?: true
}

/**
 * Returns the kinds of messages that a sender can forge who knows this public key and these addresses, and has seen an initiation of the
 * first host.
 */
function kindsOf(publicKey: Uint8Array, [peer, newcomer]: readonly [Host, Host], replayed: Buffer): readonly Kind[] {
  /** Returns random messages of this type and length, with a right mac1 if `isMeant`. */
  const many = (type: number, bytes: number, isMeant = false): readonly Buffer[] =>
    Array.from({ length: 64 }, () => {
      const made = Buffer.from(systemRandomness.bytes(bytes))
      made.writeUInt32LE(type, 0)
      if (isMeant) writeMacs(made, macKeysOf(publicKey), systemRandomness.bytes(16))
      return made
    })
  const asOf = ({ address }: Host): Sender => ({ address, port: PORT })
  const junk = many(1, INITIATION_BYTES)
  const meant = many(1, INITIATION_BYTES, true)
  const [asPeer, asNewcomer] = [asOf(peer), asOf(newcomer)]
  return [
    { what: 'initiations without our key', datagrams: junk, reason: 'rx_drop_wrong_key' },
    { what: "the same by a peer's address", datagrams: junk, by: asPeer, reason: 'rx_drop_wrong_key', areAll: true },
    { what: 'initiations with our key', datagrams: meant, reason: 'rx_drop_handshake' },
    { what: "the same by a peer's address", datagrams: meant, by: asPeer, reason: 'rx_drop_handshake' },
    { what: "the same by a newcomer's address", datagrams: meant, by: asNewcomer, reason: 'rx_drop_handshake' },
    { what: "a peer's initiation again", datagrams: [replayed], reason: 'rx_drop_handshake' },
    { what: "the same by that peer's address", datagrams: [replayed], by: asPeer, reason: 'rx_drop_handshake' },
    ...(
      [
        ['responses', many(2, RESPONSE_BYTES, true), 'rx_drop_handshake'],
        ['cookies', many(3, 64), 'rx_drop_handshake'],
        ['packets', many(4, 96), 'rx_drop_no_session'],
      ] as const
    ).map(([what, datagrams, reason]) => ({ what, datagrams, by: asPeer, reason, areAll: true as const })),
  ]
}

const countersOf = async (host: Host) => (await statusOf(host)).dataPath!.counters
async function sessionWith(host: Host, peer: Host): Promise<SessionStatus> {
  const { peers } = await statusOf(host)
  return peers!.list.find(({ subnet }) => subnet === subnetOf(peer))!.session!
}
/** Returns the bytes that a daemon's sockets hold and it has not read yet (proc_net_udp: tx_queue:rx_queue, in hex). */
function waitingBytes({ process: { pid } }: Daemon): number {
  const port = `:${PORT.toString(16).toUpperCase()}`
  const sockets = readFileSync(`/proc/${pid}/net/udp`, 'utf8')
    .split('\n')
    .filter((line) => line.includes(port))
  expect(sockets).not.toEqual([])
  return sockets.reduce(
    (sum, line) => sum + Number.parseInt(/:([0-9A-F]{8}) /.exec(line.slice(line.indexOf(port) + port.length))![1]!, 16),
    0,
  )
}

/** Starts two hosts whose containers talk, and returns the forged messages to the first one. */
async function twoPeers() {
  lab = await createLab({ hosts: 4 })
  const [a, b, c, outsider] = lab.hosts as [Host, Host, Host, Host]
  const daemon = await start(a)
  const initiation = await firstInitiation(b, a)
  await start(b)
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podB.namespace, podA.address)
  const kinds = kindsOf(publicKeyOf(a), [b, c], await initiation())
  const send = ({ datagrams, by }: Kind, count: number) => forge.send(outsider, a, PORT, datagrams, count, by)
  return { a, b, c, daemon, podA, podB, kinds, send }
}

it('no peer loses its session, and a new one gets its own', { timeout: 900_000 }, async () => {
  const { a, b, c, daemon, podA, podB, kinds, send } = await twoPeers()
  const pings = [pinging(podA, podB, { everyS: 0.05 }), pinging(podB, podA, { everyS: 0.05 })]
  const begun = performance.now()
  const secondsSince = (from: number): number => (performance.now() - from) / 1_000
  const ageBefore = (await sessionWith(a, b)).ageSeconds!
  let rounds = 0
  async function round(): Promise<void> {
    for (const kind of kinds) {
      const before = (await countersOf(a))[kind.reason]!
      expect(await send(kind, BURST)).toBe(BURST)
      await eventually(async () => {
        expect((await countersOf(a))[kind.reason]! - before, kind.what).toBeGreaterThanOrEqual(kind.areAll ? BURST : 1)
        // Any datagram that does not fit into the socket's buffer would be lost.
        expect(waitingBytes(daemon)).toBe(0)
      })
    }
    rounds++
  }
  const over = new AbortController()
  const flood = async (): Promise<void> => {
    while (!over.signal.aborted) await round()
  }
  const newcomer = async (): Promise<Pod> => {
    await eventually(() => expect(rounds).toBeGreaterThan(0))
    await start(c)
    const podC = await c.startPod()
    await reach(podC.namespace, podA.address)
    await reach(podA.namespace, podC.address)
    await eventually(() => expect(rounds).toBeGreaterThanOrEqual(ROUNDS))
    return podC
  }
  /** The peer got new keys from a handshake, because the old ones had expired. */
  const renewed = async (): Promise<void> => {
    const ROUNDED_S = 2
    const ago = async () => ((await sessionWith(a, b)).handshakeSecondsAgo ?? Infinity) + ROUNDED_S
    const isNew = async () => (await ago()) < secondsSince(begun)
    await expect.poll(isNew, { interval: 1_000, timeout: 600_000 }).toBe(true)
  }
  const stopping = (what: Promise<unknown>): Promise<unknown> => what.finally(() => over.abort())
  await Promise.all([flood(), stopping(Promise.all([newcomer(), LONG ? renewed() : undefined]))])

  const pinged = await Promise.all(pings.map((each) => each.stop()))
  for (const { sent, lost } of pinged) {
    expect(sent).toBeGreaterThan(10)
    expect(lost).toBe(0)
  }
  const session = await sessionWith(a, b)
  const seconds = secondsSince(begun)
  if (!LONG && seconds + ageBefore < REKEY_AFTER_S)
    expect(session.ageSeconds).toBeGreaterThanOrEqual(Math.floor(seconds) - 1)
  for (const host of [a, b]) {
    expect(await countersOf(host)).toMatchObject({ tx_drop_no_session: 0, rx_drop_socket_full: 0 })
  }
  expect(daemon.lines.filter((line) => line.startsWith('E'))).toEqual([])
})

/** A daemon's CPU time in an interval, in cores: in JavaScript, in its lanes, and in the kernel for these; and the number of datagrams. */
interface Cost {
  readonly what: string
  readonly seconds: number
  readonly main: number
  readonly lanes: number
  readonly reception: number
  readonly rest: number
  readonly received: number
}
async function costOf(what: string, host: Host, daemon: Daemon, during: () => Promise<unknown>): Promise<Cost> {
  const RECEIVED = ['rx_drop_wrong_key', 'rx_drop_handshake', 'rx_drop_no_session', 'rx_drop_malformed']
  const look = async () => {
    const counters = await countersOf(host)
    const threads = cpuOfThreads(daemon)
    const sum = (of: typeof threads) => of.reduce((all, { user, system }) => all + user + system, 0)
    const lanes = threads.filter(({ name }) => name.startsWith('weft-'))
    return {
      at: performance.now() / 1_000,
      main: sum(threads.filter(({ isMain }) => isMain)),
      lanes: lanes.reduce((all, { user }) => all + user, 0),
      reception: lanes.reduce((all, { system }) => all + system, 0),
      rest: sum(threads.filter((each) => !each.isMain && !lanes.includes(each))),
      received: RECEIVED.reduce((all, reason) => all + counters[reason]!, 0),
    }
  }
  const before = await look()
  await during()
  const after = await look()
  const seconds = after.at - before.at
  const share = (of: 'main' | 'lanes' | 'reception' | 'rest') => (after[of] - before[of]) / seconds
  const shares = { main: share('main'), lanes: share('lanes'), reception: share('reception'), rest: share('rest') }
  return { what, seconds, ...shares, received: after.received - before.received }
}

it.for(LONG ? ['as fast as a host can'] : [])(
  'costs JavaScript at most a tenth of a core: %s',
  { timeout: 900_000 },
  async (_, { annotate }) => {
    const { a, daemon, podA, podB, kinds, send } = await twoPeers()
    const pings = pinging(podA, podB, { everyS: 0.05 })
    // Datagrams of the same length that are not WireGuard messages, as a baseline for any flood.
    const noMessages = kinds[0]!.datagrams.map((each) => Buffer.concat([Buffer.from([9]), each.subarray(1)]))
    const anything: Kind = { what: 'no messages of WireGuard', datagrams: noMessages, reason: 'rx_drop_malformed' }
    const flood = async (kind: Kind): Promise<void> => {
      for (const end = performance.now() + FLOOD_MS; performance.now() < end;) await send(kind, AT_ONCE)
    }
    const costs: Cost[] = []
    for (const kind of [anything, ...kinds]) {
      await annotate(`${Math.round((100 * costs.length) / (kinds.length + 1))}%: ${kind.what}`, 'step')
      costs.push(await costOf(kind.what, a, daemon, () => flood(kind)))
    }
    const idle = await costOf('nothing', a, daemon, () => delay(FLOOD_MS))
    await pings.stop()
    const lines = [idle, ...costs].map(({ what, seconds, received, ...shares }) =>
      [
        what.padEnd(42),
        `${seconds.toFixed(1)} s`,
        `${Math.round(received / seconds)}/s`,
        ...Object.entries(shares).map(([of, share]) => `${of} ${(100 * share).toFixed(1)}%`),
      ].join('  '),
    )
    process.stdout.write(`${lines.join('\n')}\n`)
    // test/native/walk_test.cc counts the MAC checks, which are the expensive part of the lanes' work. The rest is the cost of any
    // datagram.
    for (const { what, main } of costs) expect(main - idle.main, what).toBeLessThan(0.1)
  },
)
