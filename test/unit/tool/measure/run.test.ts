// run.test.ts - both sides of a bench on one host: data is counted, unknown hosts are refused, and both sides end.

import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { isWeftError } from '../../../../src/base/errors.ts'
import { lineOf, readRefusal, writeDatagramHeader, type InUse } from '../../../../src/tool/measure/conversation.ts'
import { connectTo, readLine } from '../../../../src/tool/measure/lines.ts'
import { listen, type ListenerOptions } from '../../../../src/tool/measure/listener.ts'
import { measure, Run } from '../../../../src/tool/measure/run.ts'
import { eventually } from '../../../support/event.ts'

const IN_USE: InUse = {
  subnet: '10.5.2.0/24',
  backendType: 'udp',
  device: 'flannel0',
  engine: 'native',
  mtu: 1472,
  pathMtu: null,
  features: [],
}
/** Two paths to the same host, from two of its addresses. */
const WAYS = { outside: { to: '127.0.0.1', from: '127.0.0.1' }, inside: { to: '127.0.0.2', from: '127.0.0.3' } }
const LONG_MS = 60_000

/** A port that no socket uses. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0)
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}

let port: number
let said: string[]
let stopping: AbortController
let drops: number
let listening: Promise<unknown>
let runs: Run[]
const optionsWith = (options: Partial<ListenerOptions>): ListenerOptions => ({
  port,
  idleMs: LONG_MS,
  refusal: async () => undefined,
  say: (line) => void said.push(line),
  here: async () => ({ inUse: IN_USE, drops: { rx_drop_malformed: drops++ } }),
  ...options,
})
const start = async (options: Partial<ListenerOptions> = {}): Promise<void> => {
  listening = listen(optionsWith(options), stopping.signal).catch((error: unknown) => error)
  await eventually(async () => (await connectTo(WAYS.outside, port, LONG_MS)).destroy(), { everyMs: 5 })
}
const begin = async (): Promise<Run> => {
  const run = await Run.begin(WAYS, port, WAYS.inside.from)
  if ('refused' in run) throw new Error(run.refused)
  runs.push(run)
  for (const path of ['outside', 'inside'] as const) await run.openEcho(path)
  return run
}
beforeEach(async () => {
  port = await freePort()
  ;[said, stopping, drops, runs] = [[], new AbortController(), 5, []]
})
afterEach(async () => {
  stopping.abort()
  await listening
  for (const run of runs) run.close()
})

describe('a run', () => {
  it('measures both paths, and gets the facts of the other host', async () => {
    await start()
    const run = await begin()
    expect(run.there).toEqual(IN_USE)
    const plan = { streams: 3, seconds: 0.05, pairs: 2, bitsPerSecond: 20e6 }
    const told: string[] = []
    const samples = await measure(run, plan, 1000, (what) => told.push(what), stopping.signal)
    for (const path of ['outside', 'inside'] as const) {
      expect(samples.roundTripsMs[path].length).toBeGreaterThan(0)
      expect(samples.tcp[path]).toHaveLength(2)
      for (const { bitsPerSecond, busy } of samples.tcp[path])
        expect(Math.min(bitsPerSecond, busy.here, busy.there)).toBeGreaterThan(0)
      for (const { sent, datagrams, overflowed } of samples.udp[path]) {
        expect(sent).toBeGreaterThan(0)
        expect(datagrams + overflowed).toBe(sent)
      }
    }
    expect(told).toContain('TCP inside, pair 2 of 2')
    expect(await run.end()).toEqual({ rx_drop_malformed: 1 })
    await eventually(() => expect(said).toEqual(['127.0.0.1 measures', '127.0.0.1 has ended']))
  })

  it('counts each of its own datagrams once, also late ones', async () => {
    await start()
    const leading = await connectTo(WAYS.outside, port, LONG_MS)
    const ask = async (message: object): Promise<Record<string, unknown>> => {
      leading.write(lineOf(message))
      return JSON.parse(await readLine(leading, LONG_MS)) as Record<string, unknown>
    }
    const { run } = (await ask({ wants: 'run', inside: WAYS.inside.from })) as { run: string }
    // The numbers of a later sample continue after the last one.
    expect(await ask({ ask: 'udp', first: 2 ** 32 - 2, datagrams: 6 })).toMatchObject({ ready: true })
    const send = async (from: string, mark: string, numbers: number[]): Promise<void> => {
      const socket = createSocket('udp4').bind(0, from)
      await once(socket, 'listening')
      for (const number of numbers) {
        const datagram = new Uint8Array(100)
        writeDatagramHeader(datagram, mark, number)
        await new Promise((resolve) => socket.send(datagram, port, WAYS.outside.to, resolve))
      }
      socket.close()
    }
    await send('127.0.0.9', run, [3]) // from an unknown sender
    await send(WAYS.inside.from, '00'.repeat(8), [3]) // with the mark of another run
    await send(WAYS.inside.from, run, [2 ** 32 - 2, 0, 2 ** 32 - 1, 1, 1, 700])
    expect(await ask({ ask: 'sent', datagrams: 6 })).toMatchObject({ datagrams: 4, reordered: 1, overflowed: 0 })
    leading.destroy()
  })

  it('has no figures for a path on which no program answers, and continues', async () => {
    await start()
    const ways = { ...WAYS, inside: { ...WAYS.inside, to: '127.0.0.1', from: '127.0.0.8' } } // the listener refuses this source
    const run = await Run.begin(ways, port, WAYS.inside.from)
    if ('refused' in run) throw new Error(run.refused)
    runs.push(run)
    await expect(run.openEcho('inside')).rejects.toThrow('the connection from 127.0.0.8 belongs to no run')
    expect(await run.udp('inside', 0.02, 500, 1e6)).toMatchObject({ datagrams: 0 })
    expect(await run.tcp('outside', 1, 0.02)).toMatchObject({ bitsPerSecond: expect.any(Number) })
  })
})

describe('a listener', () => {
  it('refuses unknown hosts, a second run, and unknown versions, and prints each refusal once', async () => {
    await start({ refusal: async (address) => (address === '127.0.0.9' ? 'it is no peer' : undefined) })
    await begin()
    const stranger = { outside: { to: '127.0.0.1', from: '127.0.0.9' }, inside: WAYS.inside }
    for (let time = 0; time < 2; time++)
      expect(await Run.begin(stranger, port, '10.5.1.0')).toEqual({ refused: 'it is no peer' })
    expect(await Run.begin(WAYS, port, '10.5.1.0')).toEqual({ refused: 'a run from 127.0.0.1 is under way' })
    const junk = await connectTo(WAYS.outside, port, LONG_MS)
    junk.write('GET / HTTP/1.1\r\n\r\n')
    expect(readRefusal(await readLine(junk, LONG_MS))!.refused).toMatch(/its version of weft bench is not known/)
    expect(said).toEqual([
      '127.0.0.1 measures',
      '127.0.0.9 was refused: it is no peer',
      '127.0.0.1 was refused: a run from 127.0.0.1 is under way',
      expect.stringMatching(/^127.0.0.1 was refused: its version of weft bench is not known/),
    ])
  })

  it('accepts one of two simultaneous runs', async () => {
    let answer = (): void => {}
    const both = new Promise<void>((resolve) => (answer = resolve))
    let asked = 0
    await start({
      refusal: async () => {
        if (++asked === 2) answer()
        await both
        return undefined
      },
    })
    const begun = await Promise.all([1, 2].map(() => Run.begin(WAYS, port, WAYS.inside.from)))
    for (const run of begun) if (!('refused' in run)) runs.push(run)
    expect(begun.filter((run) => 'refused' in run)).toEqual([{ refused: 'a run from 127.0.0.1 is under way' }])
  })

  it('ends a run that disconnects or sends an invalid request, and is free for the next run', async () => {
    await start()
    ;(await begin()).close()
    await eventually(() => expect(said.at(-1)).toMatch(/^127.0.0.1 went away/))
    const run = await begin()
    await expect(run.tcp('outside', 65, 1)).rejects.toSatisfy((error) => isWeftError(error, 'COMMAND'))
    await eventually(() => expect(said.at(-1)).toBe('127.0.0.1 went away: it sent an invalid request'))
    await begin()
  })

  it('ends after a time without runs, and on a signal, during a run or not', async () => {
    expect(await listen(optionsWith({ idleMs: 20 }), stopping.signal)).toBeUndefined()
    await start()
    const run = await begin()
    stopping.abort()
    await listening
    await expect(run.end()).rejects.toSatisfy((error) => isWeftError(error, 'COMMAND'))
    await expect(connectTo(WAYS.outside, port, LONG_MS)).rejects.toMatchObject({ code: 'ECONNREFUSED' })
  })

  it('reports that its port is in use', async () => {
    await start()
    await expect(listen(optionsWith({}), stopping.signal)).rejects.toSatisfy((error) =>
      isWeftError(error, 'PORT_IN_USE'),
    )
  })
})

describe('a line', () => {
  let near: Socket
  let far: Socket
  beforeEach(async () => {
    const server = createServer().listen(port, '127.0.0.1')
    const accepted = once(server, 'connection') as Promise<[Socket]>
    near = await connectTo(WAYS.outside, port, LONG_MS)
    ;[far] = await accepted
    far.on('error', () => {})
    server.close()
    listening = Promise.resolve()
  })
  afterEach(() => {
    near.destroy()
    far.destroy()
  })

  it('is read to its end in any pieces, and no further', async () => {
    far.write('on')
    const first = readLine(near, LONG_MS)
    far.write('e\ntwo\nthr')
    expect(await first).toBe('one')
    expect(await readLine(near, LONG_MS)).toBe('two')
    far.end('ee')
    const rest: Buffer[] = []
    near.on('data', (part: Buffer) => rest.push(part)).resume()
    await once(near, 'end')
    expect(Buffer.concat(rest).toString()).toBe('three')
  })

  it.each([
    ['ends too early', () => far.end('x'), /it closed the connection/],
    ['is never sent', () => far, /it sent nothing for 0.02 s/],
    ['is too long', () => far.write('x'.repeat(20_000)), /it sent too long a line/],
  ])('that %s is an error', async (_what, act, message) => {
    act()
    await expect(readLine(near, message.source.includes('0.02') ? 20 : LONG_MS)).rejects.toThrow(message)
  })
})
