// path-search.test.ts - the longest packet that reaches a peer is found, set, doubted and given up, in virtual time.

import { beforeEach, expect, it, vi } from 'vitest'
import type { OpenEcho } from '../../../../src/host/echo.ts'
import { formatAddress } from '../../../../src/net/address.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { PathSearch } from '../../../../src/node/loops/path-lengths.ts'
import {
  dataPaths,
  installRig,
  lines,
  logged,
  nodeStatus,
  ownership,
  ready,
  searchPaths,
  start,
  store,
  until,
  value,
} from '../../../support/node-rig.ts'

installRig()

const PEER = '10.5.0.64-26'
/** The longest packet that reaches the peer; with 0 the peer does not answer. */
let passes: number
let sent: { readonly at: number; readonly bytes: number }[]
/** The number of next requests that are lost. */
let lose: number
const openEcho: OpenEcho = (_source, onAnswer) => ({
  send(to, sequence, bytes = 0) {
    expect(formatAddress(to)).toBe('10.5.0.64')
    sent.push({ at: performance.now(), bytes })
    if (bytes > 0 && lose-- > 0) return
    if (passes > 0 && bytes <= passes) queueMicrotask(() => onAnswer(to, sequence, 1))
  },
  packet: () => new Uint8Array(),
  close() {},
})
const sizes = (): number[] => sent.map(({ bytes }) => bytes).filter((bytes) => bytes > 0)

beforeEach(() => {
  passes = 1472
  sent = []
  lose = 0
})

/** A node with one peer, which is probed by nobody else. */
async function open(known: (key: string) => number | undefined = () => 1472): Promise<void> {
  searchPaths(known)
  store.put(PEER, value('192.0.2.2'))
  start({ openEcho }, undefined, { options: { 'probe-interval': 0 } })
  await ready()
}
const limits = () => dataPaths[0]!.limits

it('probes a path that carries long packets once every ten seconds, and sets no limit', async () => {
  await open()
  await vi.advanceTimersByTimeAsync(10 * 60_000)
  expect(new Set(sent.map(({ bytes }) => bytes))).toEqual(new Set([1472]))
  expect(sent.length).toBeGreaterThan(50)
  expect(sent.length).toBeLessThan(61)
  expect(limits()).toEqual([])
})

it('finds the longest packet that passes within seconds, and sets it as the limit', async () => {
  passes = 1252
  await open()
  await until(() => limits().length > 0, 20_000)
  expect(limits()).toEqual([[[PEER, 1252]]])
  expect(
    logged(/W Packets of more than 1252 bytes do not reach 10\.5\.0\.64-26, and no router on the path reports it/),
  ).toBe(true)
  expect(sent.at(-1)!.at - sent[0]!.at).toBeLessThan(15_000)
  // Weftd sends five requests, and later three, of a size that is too long, and one of a size that arrives.
  expect(sizes()).toEqual([1472, 1472, 1472, 1472, 1472, 1252, 1392, 1392, 1392, 1372, 1372, 1372])
})

it('does not query the path MTU of all limited peers each second', async () => {
  passes = 1252
  let queries = 0
  await open(() => {
    queries++
    return 1472
  })
  await until(() => limits().length > 0, 20_000)
  queries = 0
  sent = []
  await vi.advanceTimersByTimeAsync(28_000)
  // weftd makes one query for each request that it sends, and at most four others in 28 s.
  expect(queries).toBeLessThanOrEqual(sent.length + 4)
})

it('raises the limit half a minute later if longer packets pass again, and only confirms it before', async () => {
  passes = 1252
  await open()
  await until(() => limits().length > 0, 20_000)
  const found = performance.now()
  passes = 1472
  sent = []
  await vi.advanceTimersByTimeAsync(28_000)
  expect(new Set(sizes())).toEqual(new Set([1252]))
  await until(() => limits().length > 1, 120_000)
  expect(limits().at(-1)).toEqual([])
  expect(performance.now() - found).toBeGreaterThan(29_000)
  expect(logged(/I No packet is too long for the path to 10\.5\.0\.64-26 any more/)).toBe(true)
})

it('withdraws the limit when the search ends and the data path goes on', async () => {
  passes = 1252
  await open()
  await until(() => limits().length > 0, 20_000)
  vi.spyOn(ownership.dataPath!, 'probeSource', 'get').mockReturnValue({})
  await vi.advanceTimersByTimeAsync(3_000)
  expect(limits()).toEqual([[[PEER, 1252]], []])
})

it('lowers the limit when only shorter packets pass', async () => {
  passes = 1252
  await open()
  await until(() => limits().length > 0, 20_000)
  passes = 1172
  await until(() => limits().length > 1, 100_000)
  expect(limits().at(-1)).toEqual([[PEER, 1172]])
})

it('starts a new search when the peer has another endpoint', async () => {
  passes = 1252
  let endpoint = 'one'
  const search = new PathSearch(
    28,
    1_472,
    () => 1472,
    () => 0,
  )
  const address = parseIpv4('10.5.0.64')!
  const run = (from: number, to: number): void => {
    for (let now = from; now <= to; now += 1000) {
      search.keep([{ key: PEER, endpoint, address }], now)
      for (const { sequence, bytes } of search.due(now)) if (bytes <= passes) search.answered(sequence, address, now)
    }
  }
  run(0, 15_000)
  expect([...search.limits()]).toEqual([[PEER, 1252]])
  endpoint = 'another'
  passes = 1472
  run(16_000, 17_000)
  expect([...search.limits()]).toEqual([])
})

it('limits nothing for lost packets, a peer that is down, or one that answers none but small requests', async () => {
  await open()
  lose = 2
  await vi.advanceTimersByTimeAsync(70_000)
  passes = 0
  await vi.advanceTimersByTimeAsync(70_000)
  passes = 84
  await vi.advanceTimersByTimeAsync(120_000)
  expect(sizes()).toContain(548)
  expect(limits()).toEqual([])
})

it('sets no limit for a length that the kernel knows, nor for peers that are routed past the tunnel', async () => {
  let known: number | undefined = 1472
  await open(() => known)
  passes = 1252
  await until(() => sizes().length === 2, 100_000) // the second finds that something is wrong
  known = 1252
  await vi.advanceTimersByTimeAsync(100_000)
  expect(sizes().at(-1)).toBe(1252)
  known = undefined
  passes = 1172
  sent = []
  await vi.advanceTimersByTimeAsync(200_000)
  expect([sizes().includes(1172), limits()]).toEqual([true, []])
})

const side = async () => (await nodeStatus()).peers!.list[0]!

it('reports what reaches each peer, also if the data path does not use it', async () => {
  store.put(PEER, value('192.0.2.2'))
  start({ openEcho })
  await ready()
  expect(await side()).toMatchObject({ path: null, passesBytes: null, pathSince: null })
  await vi.advanceTimersByTimeAsync(20_000)
  expect(await side()).toMatchObject({ path: 'whole', passesBytes: 1472, pathMtu: null })
  const since = Date.parse((await side()).pathSince!)
  expect(since).toBeLessThanOrEqual(Date.now() - 15_000)
  passes = 1252
  await vi.advanceTimersByTimeAsync(30_000)
  expect(await side()).toMatchObject({ state: 'answering', path: 'narrow', passesBytes: 1252 })
  expect((await nodeStatus()).peers).toMatchObject({ answering: 1, narrow: 1 })
  expect(Date.parse((await side()).pathSince!)).toBeGreaterThan(since)
  passes = 0 // of a peer that is silent the length is not to blame
  await vi.advanceTimersByTimeAsync(30_000)
  expect(await side()).toMatchObject({ state: 'programmed', path: null, passesBytes: null, pathSince: null })
  expect((await nodeStatus()).peers).toMatchObject({ answering: 0, narrow: 0 })
})

it('searches nothing without peers, or if probes are off and the data path does not use the result', async () => {
  store.put(PEER, value('192.0.2.2'))
  start({ openEcho }, undefined, { options: { 'probe-interval': 0 } })
  await ready()
  await vi.advanceTimersByTimeAsync(300_000)
  expect(sizes()).toEqual([])
  const search = new PathSearch(28, 1472, () => 1472, Math.random)
  search.keep([], 0)
  expect(search.due(100_000)).toEqual([])
})

it('probes at most five of a thousand peers a second, with two packets each', () => {
  const search = new PathSearch(28, 1472, () => 1472, Math.random)
  const address = parseIpv4('10.5.0.64')!
  search.keep(
    Array.from({ length: 1000 }, (_, index) => ({ key: String(index), endpoint: '', address })),
    0,
  )
  let most = 0
  for (let now = 0; now < 300_000; now += 1000) {
    const questions = search.due(now)
    most = Math.max(most, questions.length)
    // Answer all small requests.
    for (const { sequence, bytes } of questions) if (bytes === 0) search.answered(sequence, address, now)
  }
  expect(most).toBe(10)
})

it('reports once that the kernel refuses the socket, and stops searching', async () => {
  searchPaths(() => 1472)
  let tries = 0
  start({
    openEcho: () => {
      tries++
      throw Object.assign(new Error('socket ICMP: Operation not permitted'), { code: 'EPERM' })
    },
  })
  await ready()
  await vi.advanceTimersByTimeAsync(60_000)
  expect(tries).toBe(2) // and whoever asks whether peers answer
  expect(lines.filter((line) => line.includes('"ProbePathMTU" is ignored (socket ICMP'))).toHaveLength(1)
})
