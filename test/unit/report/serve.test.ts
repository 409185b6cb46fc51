// serve.test.ts - a health port that is in use at the start: by the predecessor, by a predecessor that is ending, or by another process.

import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { Server as HttpServer } from 'node:http'
import { connect, createServer, type AddressInfo, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { createHealth } from '../../../src/report/health.ts'
import { serveStatus, type PredecessorState, type ServedPlaces } from '../../../src/report/serve.ts'

let taken: Server
let port: number
beforeEach(async () => {
  taken = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1')
  await once(taken, 'listening')
  ;({ port } = taken.address() as AddressInfo)
})
afterEach(() => void taken.close())

const MOST_LINES = 100
const serve = (before: Partial<PredecessorState>, more: Partial<ServedPlaces> = {}, isForwarding = false) => {
  const lines: string[] = []
  const say = (line: string): void => {
    if (lines.push(line) > MOST_LINES) throw new Error('too many log lines') // ends a loop that would block the test
  }
  const address = { 'healthz-ip': '127.0.0.1', 'healthz-port': port, 'status-ip': '127.0.0.1' }
  const places = { ...address, 'status-socket': '', ...more }
  const log = { info: say, warn: say, error: say, v: () => false }
  const alone: PredecessorState = { isSuccessor: false, predecessor: async () => undefined, free: Promise.resolve() }
  const stopping = new AbortController()
  const serving = serveStatus(places, createHealth(), { ...alone, ...before }, log, stopping, isForwarding)
  return { lines, serving, stopping }
}
const answersAt = (healthPort: number) => async () => ({ healthPort })

it.each<[string, () => Partial<PredecessorState>]>([
  ['there is no predecessor', () => ({})],
  ['the predecessor uses another port', () => ({ isSuccessor: true, predecessor: answersAt(1) })],
])('a port in use is an error if %s', async (_who, before) => {
  await expect(serve(before()).serving).rejects.toMatchObject({ code: 'PORT_IN_USE' })
})

it.each<[string, () => Partial<PredecessorState>, boolean]>([
  ['the predecessor uses it', () => ({ isSuccessor: true, predecessor: answersAt(port) }), false],
  ['the predecessor has just ended', () => ({ isSuccessor: true }), false],
  ['another program uses it and this process forwards with the last known state', () => ({}), true],
])('a port in use is served as soon as it is free if %s', async (_who, before, isForwarding) => {
  const { serving, lines } = serve(before(), {}, isForwarding)
  const health = await serving
  await expect.poll(() => lines.some((line) => line.includes('Start healthz server error.'))).toBe(true)
  taken.close()
  const answer = () => fetch(`http://127.0.0.1:${port}/healthz`).then((response) => response.text(), String)
  await expect.poll(answer).toBe('flanneld is running')
  await health.close()
})

it('a stop ends the tries to bind a port in use, which log each line once', async () => {
  const { serving, lines, stopping } = serve({}, {}, true)
  const health = await serving
  await expect.poll(() => lines.some((line) => line.includes('Start healthz server error.'))).toBe(true)
  stopping.abort(new Error('the test stops weftd'))
  await setImmediate() // passes only if the tries leave the event loop free
  await health.close()
  expect(lines).toEqual([`Start healthz server on 127.0.0.1:${port}`, expect.stringContaining('EADDRINUSE')])
})

it('the tries to bind a port in use leave nothing in memory', async () => {
  const race = vi.spyOn(Promise, 'race')
  const listen = vi.spyOn(HttpServer.prototype, 'listen')
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  const { serving } = serve({}, {}, true)
  const health = await serving
  for (let tries = 2; tries < 6; tries++) {
    await vi.waitFor(() => expect(vi.getTimerCount()).toBe(1))
    await vi.advanceTimersByTimeAsync(1_000)
    await vi.waitFor(() => expect(listen.mock.calls.length).toBeGreaterThanOrEqual(tries))
  }
  // A promise that waits for the end of weftd must not be in a race for each try, because it keeps an entry of each race.
  expect(race.mock.calls.length).toBeLessThan(2)
  vi.useRealTimers()
  vi.restoreAllMocks()
  await health.close()
})

const isAnswered = (path: string): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(path, () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })

it("the process serves its own socket immediately, and the predecessor's socket after the predecessor has ended", async () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-serve-'))
  const place = { 'healthz-port': 0, 'status-socket': join(folder, 'weftd.sock') }
  let setFree!: () => void
  const free = new Promise<void>((resolve) => (setFree = resolve))
  const first = serve({ isSuccessor: true, free }, place)
  const before = await first.serving
  expect(await isAnswered(place['status-socket'])).toBe(true)
  const second = serve({ isSuccessor: true, free }, place)
  const after = await second.serving
  await before.close()
  expect(await isAnswered(place['status-socket'])).toBe(false)
  setFree()
  await expect.poll(() => isAnswered(place['status-socket'])).toBe(true)
  await after.close()
  expect([...first.lines, ...second.lines]).toEqual([])
  rmSync(folder, { recursive: true })
})

it('the process serves the socket also if the predecessor answers there until after it has ended the hand-over', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-serve-'))
  const place = { 'healthz-port': 0, 'status-socket': join(folder, 'weftd.sock') }
  let connections = 0
  const before = createServer((socket) => void (connections++, socket.destroy())).listen(place['status-socket'])
  await once(before, 'listening')
  const { serving, lines } = serve({ isSuccessor: true, free: Promise.resolve() }, place)
  const after = await serving
  await expect.poll(() => connections).toBeGreaterThan(1) // the process has tried again after the end of the hand-over
  before.close()
  await once(before, 'close')
  await expect.poll(() => isAnswered(place['status-socket']), { timeout: 5_000 }).toBe(true)
  await after.close()
  expect(lines).toEqual([])
  rmSync(folder, { recursive: true })
})

it('the process tries again to create the status socket, and logs each failure once', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-serve-'))
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  try {
    writeFileSync(join(folder, 'run'), 'no folder')
    const socket = join(folder, 'run', 'weftd.sock')
    const { serving, lines } = serve({}, { 'healthz-port': 0, 'status-socket': socket })
    const health = await serving
    const isResting = (): Promise<void> => vi.waitFor(() => expect(vi.getTimerCount()).toBe(1))
    for (let tries = 1; tries < 3; tries++) {
      await isResting()
      await vi.advanceTimersByTimeAsync(30_000)
    }
    await isResting()
    expect(lines).toEqual([expect.stringMatching(/^The status cannot be served at .*EEXIST.*--status-socket$/)])
    rmSync(join(folder, 'run'))
    await vi.advanceTimersByTimeAsync(30_000)
    await vi.waitFor(() => expect(lines.at(-1)).toBe(`The status is served at ${socket} now`))
    expect(await isAnswered(socket)).toBe(true)
    await health.close()
    expect(await isAnswered(socket)).toBe(false)

    writeFileSync(join(folder, 'file'), '')
    const ended = serve({}, { 'healthz-port': 0, 'status-socket': join(folder, 'file') })
    await (await ended.serving).close() // ends the tries
    expect(vi.getTimerCount()).toBe(0)
    expect(ended.lines).toEqual([expect.stringContaining('another file is there')])
  } finally {
    vi.useRealTimers()
    rmSync(folder, { recursive: true })
  }
})
