// memory.test.ts - a node records the events of its peers: in the status, and in a file for the next process. A bad file does no harm.

import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import type { OpenEcho } from '../../../../src/host/echo.ts'
import { eventsText, parseEvents, type PeerEvent } from '../../../../src/report/peer-events.ts'
import {
  dataPaths,
  ended,
  inTurns,
  installRig,
  lines,
  logged,
  nodeStatus,
  ofFamilies,
  ownership,
  ready,
  start,
  stopping,
  store,
  value,
} from '../../../support/node-rig.ts'

installRig()

let folder: string
let isSilent: boolean
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-memory-'))
  isSilent = false
})
afterEach(() => rmSync(folder, { recursive: true }))

const openEcho: OpenEcho = (_source, onAnswer) => ({
  send(to, sequence) {
    if (!isSilent) queueMicrotask(() => onAnswer(to, sequence, 3))
  },
  packet: () => new Uint8Array(),
  close() {},
})
const nextAt = (events: string, free = Promise.resolve()) => ({
  config: '',
  store: '',
  wishes: '',
  lastKnown: join(folder, 'last-known'),
  events,
  free,
})
const event = (known: Partial<PeerEvent>): PeerEvent => ({
  at: '2026-11-23T03:00:00.000Z',
  what: 'silent',
  peer: '10.5.9.0/26',
  publicIp: '192.0.2.9',
  family: 'ipv4',
  afterSeconds: null,
  movedFrom: null,
  bytes: null,
  roundTripMs: null,
  usualMs: null,
  ...known,
})

/** A node with a peer that answers. */
async function open(events: string, free?: Promise<void>): Promise<void> {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start({ openEcho, next: nextAt(events, free) })
  await ready()
  await becomes((peers) => peers.answering === 1)
}

/** Waits until the status fulfils this condition. */
async function becomes(isSo: (peers: NonNullable<Awaited<ReturnType<typeof nodeStatus>>['peers']>) => boolean) {
  let done = false
  await inTurns(() => {
    void nodeStatus().then(({ peers }) => (done ||= isSo(peers!)))
    return done
  })
}
async function counted(kind: 'silent' | 'back', number: number): Promise<void> {
  let done = false
  await inTurns(() => {
    void nodeStatus().then(({ peerEvents }) => (done ||= peerEvents?.[kind] === number))
    return done
  })
}
const written = (path: string): string[] =>
  parseEvents(readFileSync(path, 'utf8')).map(({ what, peer }) => `${what} ${peer}`)

async function stop(): Promise<void> {
  stopping.abort(new Error('it ends'))
  await ended
}

it('reports the recent drops, and none a minute later', async () => {
  await open(join(folder, 'events'))
  const recent = async () => (await nodeStatus()).dataPath?.recent
  const becomesTo = async (drops: object): Promise<void> => {
    let done = false
    await inTurns(() => {
      void recent().then((now) => (done ||= isDeepStrictEqual(now?.drops, drops)))
      return done
    })
  }
  expect(await recent()).toMatchObject({ packets: 0, drops: {} }) // earlier drops are not reported
  dataPaths[0]!.dropped += 5n
  await becomesTo({ tx_drop_no_route: 5 })
  await becomesTo({})
  expect((await nodeStatus()).dataPath!.drops).toEqual({ tx_drop_no_route: 7 })
  expect((await recent())!.seconds).toBeGreaterThanOrEqual(60)
})

it('counts the events of a peer, and writes them before the process ends', async () => {
  const path = join(folder, 'subnet.env.events')
  await open(path)
  isSilent = true
  await counted('silent', 1)
  await vi.advanceTimersByTimeAsync(4_000)
  // To learn whether packets of the silent peer arrive, weftd reads only the traffic of this peer.
  expect(dataPaths[0]!.trafficOf).toEqual([['10.5.0.64-26']])
  // weftd writes no file before it has read the file of the previous process, which takes real time.
  await inTurns(() => existsSync(path))
  isSilent = false
  await counted('back', 1)
  await stop()
  expect(written(path)).toEqual(['silent 10.5.0.64/26', 'back 10.5.0.64/26'])
})

it('does not conclude from packets over a working family that a peer sends over its silent family', async () => {
  const isSilentOver: string[] = []
  const byFamily: OpenEcho = (source, onAnswer) => ({
    send(to, sequence) {
      if (!isSilentOver.includes(typeof source)) queueMicrotask(() => onAnswer(to, sequence, 3))
    },
    packet: () => new Uint8Array(),
    close() {},
  })
  store.put('10.5.0.64-26&fd00:5:0:40::-64', '{"PublicIP":"192.0.2.2","PublicIPv6":"2001:db8::2"}')
  start({ openEcho: byFamily, next: nextAt(join(folder, 'events')), ...ofFamilies('ipv4', 'ipv6') })
  await ready()
  const traffic = { txPackets: 1, txBytes: 1, rxPackets: 1, rxBytes: 1 }
  let lastReceivedAt: number | undefined
  dataPaths[0]!.counting = async () => ({ ...traffic, lastReceivedAt: lastReceivedAt ?? performance.now() })
  await becomes((peers) => peers.answering === 1)
  isSilentOver.push('bigint') // an IPv6 address
  await counted('silent', 1)
  await vi.advanceTimersByTimeAsync(60_000)
  expect((await nodeStatus()).peerEvents).toMatchObject({ silent: 1, 'one-way': 0 })
  isSilentOver.push('number')
  lastReceivedAt = performance.now() // the last packet came over IPv4, before IPv4 fell silent
  await counted('silent', 2)
  await vi.advanceTimersByTimeAsync(60_000)
  expect((await nodeStatus()).peerEvents).toMatchObject({ silent: 2, 'one-way': 0 })
  lastReceivedAt = undefined
  await vi.advanceTimersByTimeAsync(60_000)
  expect((await nodeStatus()).peerEvents!['one-way']).toBeGreaterThan(0)
})

it('continues if the file cannot be written, and logs that', async () => {
  await open(join(folder, 'nowhere', 'events'))
  isSilent = true
  await counted('silent', 1)
  await inTurns(() => logged(/^W Cannot write the events of peers to .*nowhere.events: ENOENT.*; they are lost when/))
  isSilent = false
  await counted('back', 1)
  expect(ownership.dataPath).toBeDefined()
})

it.each([
  ['a folder', (path: string) => mkdirSync(path), /: it is not a regular file; the list starts empty$/],
  ['a megabyte', (path: string) => writeFileSync(path, 'x'.repeat(1_000_001)), /: it has 1000001 bytes; the list/],
  ['of another version', (path: string) => writeFileSync(path, '{"version":9}\n'), /: its version is 9, and this weft/],
] as const)('begins anew where what stands there is %s', async (_what, make, said) => {
  const path = join(folder, 'events')
  make(path)
  await open(path)
  await inTurns(() => lines.some((line) => said.test(line)))
  expect((await nodeStatus()).peerEvents).toMatchObject({ silent: 0 })
})

it('writes nothing while the previous process writes, and then continues from the last events of that process', async () => {
  const path = join(folder, 'events')
  writeFileSync(path, eventsText([event({})]))
  let free!: () => void
  await open(path, new Promise((resolve) => (free = resolve)))
  isSilent = true
  await counted('silent', 1)
  isSilent = false
  await counted('back', 1)
  writeFileSync(path, eventsText([event({}), event({ what: 'back', afterSeconds: 5 })]))
  isSilent = true
  await counted('silent', 2)
  expect(written(path)).toEqual(['silent 10.5.9.0/26', 'back 10.5.9.0/26'])
  free()
  await inTurns(() => written(path).length === 5)
  await stop()
  expect(written(path)).toEqual([
    'silent 10.5.9.0/26',
    'back 10.5.9.0/26',
    'silent 10.5.0.64/26',
    'back 10.5.0.64/26',
    'silent 10.5.0.64/26',
  ])
})
