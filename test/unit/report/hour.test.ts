// hour.test.ts - the history of the last hour: it wraps around, leaves no stale step, and has a maximum number of peers.

import { expect, it } from 'vitest'
import {
  Hour,
  historyReport,
  MOST_PEERS,
  PEER_STEP_MS,
  STEP_MS,
  type NodeSample,
  type PeerSample,
} from '../../../src/report/hour.ts'

const sample = (txBytesPerSecond: number): NodeSample => ({
  txBytesPerSecond,
  rxBytesPerSecond: undefined,
  dropsPerSecond: 0,
  roundTripMs: 1.5,
  lossPercent: 0,
})
const peerSample = (roundTripMs: number | undefined): PeerSample => ({
  txBytesPerSecond: 1e9,
  rxBytesPerSecond: 0,
  roundTripMs,
  lossPercent: 100,
})

it('the history is empty at first, and then ends with the newest step', () => {
  const hour = new Hour()
  expect(hour.node().txBytesPerSecond).toEqual(Array(360).fill(null))
  hour.add(sample(7), 5 * STEP_MS)
  hour.add(sample(8), 6 * STEP_MS)
  const { txBytesPerSecond, rxBytesPerSecond, dropsPerSecond, roundTripMs } = hour.node()
  expect(txBytesPerSecond.slice(-3)).toEqual([null, 7, 8])
  expect([rxBytesPerSecond.at(-1), dropsPerSecond.at(-1), roundTripMs.at(-1)]).toEqual([null, 0, 1.5])
})

it('wraps around, and missed steps are unknown instead of an hour old', () => {
  const hour = new Hour()
  for (let step = 0; step < 400; step++) hour.add(sample(step), step * STEP_MS + 3)
  expect(hour.node().txBytesPerSecond).toEqual(Array.from({ length: 360 }, (_, at) => at + 40))
  hour.add(sample(1), 405 * STEP_MS)
  expect(hour.node().txBytesPerSecond.slice(-7)).toEqual([399, null, null, null, null, null, 1])
  hour.add(sample(2), 100_000 * STEP_MS)
  expect(hour.node().txBytesPerSecond).toEqual([...Array<null>(359).fill(null), 2])
})

it('keeps the known values of a peer to a thousandth', () => {
  const hour = new Hour()
  hour.addPeers(new Map([['a', peerSample(0.25)]]), 0)
  hour.addPeers(new Map([['a', peerSample(undefined)]]), PEER_STEP_MS)
  hour.addPeers(new Map([['a', peerSample(1234)]]), 3 * PEER_STEP_MS)
  const { roundTripMs, txBytesPerSecond, rxBytesPerSecond, lossPercent } = hour.peer('a')!
  const [first, second, third, fourth] = roundTripMs.slice(-4)
  expect([second, third]).toEqual([null, null])
  expect(first! / 0.25).toBeCloseTo(1, 2)
  expect(fourth! / 1234).toBeCloseTo(1, 2)
  expect(txBytesPerSecond.at(-1)! / 1e9).toBeCloseTo(1, 2)
  expect([rxBytesPerSecond.at(-1), lossPercent.at(-1)]).toEqual([0, expect.closeTo(100, 0)])
  expect(hour.peer('b')).toBeUndefined()
})

it('reuses the memory of a deleted peer without its values', () => {
  const hour = new Hour()
  hour.addPeers(new Map([['a', peerSample(5)]]), 0)
  hour.addPeers(new Map([['b', peerSample(9)]]), PEER_STEP_MS)
  expect(hour.peer('a')).toBeUndefined()
  const known = hour.peer('b')!.roundTripMs.filter((each) => each !== null)
  expect(known).toEqual([expect.closeTo(9, 1)])
})

it('uses a quarter of a megabyte for a thousand peers, and no more for ten thousand', () => {
  const hour = new Hour()
  const empty = hour.bytes()
  expect(empty).toBe(7_200) // five values in four bytes, 360 times
  const samples = (number: number) =>
    new Map(Array.from({ length: number }, (_, at) => [String(at), peerSample(at)] as const))
  hour.addPeers(samples(3), 0)
  expect(hour.bytes() - empty).toBe(15_360) // four values in two bytes, 30 times, for 64 peers
  hour.addPeers(samples(1_000), PEER_STEP_MS)
  expect(hour.bytes()).toBeLessThan(255_000)
  hour.addPeers(samples(10_000), 2 * PEER_STEP_MS)
  expect(hour.bytes()).toBeLessThan(255_000)
  expect([hour.peer(String(MOST_PEERS - 1)), hour.peer(String(MOST_PEERS))].map((each) => each !== undefined)).toEqual([
    true,
    false,
  ])
})

it('the history is reported with its steps, with or without a peer', () => {
  const hour = new Hour()
  hour.addPeers(new Map([['a', peerSample(5)]]), 0)
  const at = '2026-11-23T03:00:00.000Z'
  expect(historyReport(hour, at, 'a')).toEqual({
    schema: 1,
    at,
    stepSeconds: 10,
    peerStepSeconds: 120,
    node: hour.node(),
    peer: hour.peer('a'),
  })
  expect(historyReport(hour, at, '').peer).toBeNull()
})

it('each of a thousand peers has its own values', () => {
  const hour = new Hour()
  const numbers = Array.from({ length: MOST_PEERS }, (_, at) => at)
  for (const step of [0, 1])
    hour.addPeers(new Map(numbers.map((at) => [String(at), peerSample(at + step)])), step * PEER_STEP_MS)
  const kept = numbers.filter((at) => {
    const [first, second] = hour.peer(String(at))!.roundTripMs.slice(-2)
    return Math.abs(first! - at) <= 0.001 * at && Math.abs(second! - at - 1) <= 0.001 * (at + 1)
  })
  expect(kept).toEqual(numbers)
})

it('a new peer gets the memory of a peer that left, even if a peer without memory left too', () => {
  const hour = new Hour()
  const samples = (numbers: readonly number[]) => new Map(numbers.map((at) => [String(at), peerSample(at)] as const))
  const numbers = Array.from({ length: MOST_PEERS + 2 }, (_, at) => at)
  hour.addPeers(samples(numbers.slice(0, -1)), 0) // the last peer gets no memory
  const gone = new Set([0, MOST_PEERS])
  hour.addPeers(samples(numbers.filter((at) => !gone.has(at))), PEER_STEP_MS)
  expect(hour.peer(String(MOST_PEERS + 1))?.roundTripMs.at(-1)).toBeCloseTo(MOST_PEERS + 1, 0)
})

it.each([
  ['negative', -0.005, null],
  ['not a number', NaN, null],
  ['zero', 0, 0],
  ['small', 0.01, 0.01],
  ['above the highest limit of a code', Infinity, 5.342e17],
])('reads back a value that is %s', (_what, value, known) => {
  const hour = new Hour()
  hour.addPeers(new Map([['a', peerSample(value)]]), 0)
  expect(hour.peer('a')!.roundTripMs.at(-1)).toBe(known)
})

it('the values of a peer are unknown for steps that weftd missed', () => {
  const hour = new Hour()
  for (let step = 0; step < 45; step++) hour.addPeers(new Map([['a', peerSample(step)]]), step * PEER_STEP_MS)
  hour.addPeers(new Map([['a', peerSample(0)]]), 48 * PEER_STEP_MS)
  const rounded = hour.peer('a')!.roundTripMs.map((value) => (value === null ? null : Math.round(value)))
  expect(rounded).toEqual([...Array.from({ length: 26 }, (_, at) => at + 19), null, null, null, 0])
})
