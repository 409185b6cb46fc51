// health.test.ts - flanneld's two probes word for word, /livez, /status.json, a port that is taken, and the socket.

import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { isWeftError } from '../../../src/errors.ts'
import { parseIpv4Net } from '../../../src/net/ipv4.ts'
import { noDrops } from '../../../src/status/drops.ts'
import { createHealth, serveHealth, serveSocket, type HealthServer } from '../../../src/status/health.ts'
import { detailsOf, type Snapshot } from '../../../src/status/snapshot.ts'

const node: Snapshot = {
  ...{ at: 5_000, subnet: parseIpv4Net('10.5.1.0/24')!, isOpen: true, threads: new Map(), peers: 2, held: 0, holds: 0 },
  ...{ store: 'etcd', isFailing: false, comparedAt: 1_000, followedSince: 0, repaired: 0 },
  ...{ isReady: false, subnetFile: '/run/flannel/subnet.env' },
}

const silent = { info: () => {} }
let servers: HealthServer[] = []
afterEach(async () => {
  vi.useRealTimers()
  for (const server of servers) await server.close()
  servers = []
})

async function serve(health = createHealth()) {
  const server = await serveHealth('127.0.0.1', 0, health, silent)
  servers.push(server)
  const get = async (path: string, method = 'GET'): Promise<[number, string]> => {
    const response = await fetch(`http://127.0.0.1:${server.port}${path}`, { method })
    return [response.status, await response.text()]
  }
  return { server, health, get }
}

describe('health server', () => {
  it("answers /healthz and /readyz in flanneld's words, whatever the method and the query", async () => {
    const { health, get } = await serve()
    for (const method of ['GET', 'POST', 'PUT', 'DELETE'])
      expect(await get('/healthz?x=1', method)).toEqual([200, 'flanneld is running'])
    expect((await get('/healthz', 'HEAD'))[0]).toBe(200)
    expect(await get('/readyz')).toEqual([503, 'flanneld is not ready yet'])
    health.snapshot = () => node
    expect(await get('/readyz')).toEqual([503, 'flanneld is not ready yet'])
    health.snapshot = () => ({ ...node, isReady: true })
    expect(await get('/readyz')).toEqual([200, 'flanneld is ready'])
    expect((await get('/'))[0]).toBe(404)
  })

  it('answers /livez with what is wrong, and how the node is', async () => {
    const { health, get } = await serve()
    expect(await get('/livez')).toEqual([503, 'starting\nno lease yet\n'])
    health.snapshot = () => node
    expect(await get('/livez')).toEqual([200, `weftd is alive\n${detailsOf(node)}\n`])
    const down = { ...node, isOpen: false }
    health.snapshot = () => down
    expect(await get('/livez')).toEqual([503, `the data path is down\n${detailsOf(down)}\n`])
  })

  it.each([
    ['127.0.0.1', '127.0.0.1:'],
    ['::1', '[::1]:'],
    ['', ':'],
  ])("says in flanneld's words that it listens on %j", async (ip, shown) => {
    const lines: string[] = []
    servers.push(await serveHealth(ip, 0, createHealth(), { info: (line) => lines.push(line) }))
    expect(lines).toEqual([`Start healthz server on ${shown}0`])
  })

  it('says what is in the way of listening, and what to do', async () => {
    const { server } = await serve()
    const refused = async (ip: string, port: number): Promise<unknown> =>
      serveHealth(ip, port, createHealth(), silent).catch((error: unknown) => error)
    const taken = await refused('127.0.0.1', server.port)
    expect(isWeftError(taken, 'PORT_IN_USE') && taken.remedy).toContain('--healthz-port')
    expect(String(taken)).toContain('Start healthz server error.')
    for (const [ip, port] of [
      ['192.0.2.77', 8080],
      ['127.0.0.1', 70_000],
    ] as const)
      expect(isWeftError(await refused(ip, port), 'ADDRESS')).toBe(true)
  })
})

describe('/status.json', () => {
  it('is there before there is a node, and says what is waited for', async () => {
    const { get } = await serve()
    const [code, body] = await get('/status.json')
    expect([code, JSON.parse(body)]).toEqual([
      200,
      expect.objectContaining({ schema: 1, state: 'starting', node: null }),
    ])
  })

  it('can be read and nothing else', async () => {
    const { get, health } = await serve()
    for (const method of ['POST', 'PUT', 'DELETE', 'PATCH'])
      expect(await get('/status.json', method)).toEqual([405, '405 method not allowed\n'])
    expect((await get('/status.json', 'HEAD'))[0]).toBe(200)
    health.report = async () => {
      throw new Error('it is on fire')
    }
    expect(await get('/status.json')).toEqual([500, 'it is on fire\n'])
  })
})

it('tells the status as it was for a while, as long as it takes to tell it', async () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  const health = createHealth()
  const starting = await health.report()
  let told = 0
  let ready!: () => void
  health.report = async () => {
    told++
    await new Promise<void>((resolve) => (ready = resolve))
    return starting
  }
  const both = [health.status(), health.status()]
  vi.advanceTimersByTime(60)
  ready()
  const [first, second] = await Promise.all(both)
  expect(second).toBe(first)
  expect(await health.status()).toBe(first)
  expect(told).toBe(1)
  health.report = () => Promise.reject(new Error('gone'))
  vi.advanceTimersByTime(599)
  expect(await health.status()).toBe(first)
  vi.advanceTimersByTime(1)
  await expect(health.status()).rejects.toThrow('gone')
  health.report = async () => starting
  expect(await health.status()).toMatchObject({ state: 'starting' })
})

describe('the status socket', () => {
  let folder: string
  let path: string
  let warnings: string[]
  const log = { warn: (line: string) => void warnings.push(line) }
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'weft-socket-'))
    path = join(folder, 'run', 'weftd.sock')
    warnings = []
  })
  afterEach(() => rmSync(folder, { recursive: true }))
  const ask = (target = '/status.json', method = 'GET'): Promise<number | undefined> =>
    new Promise((resolve, reject) => {
      request({ socketPath: path, path: target, method }, (response) => {
        response.resume()
        resolve(response.statusCode)
      })
        .once('error', reject)
        .end()
    })

  it("is its user's alone, and goes with the daemon", async () => {
    const server = await serveSocket(path, createHealth(), log)
    expect(statSync(path).mode & 0o777).toBe(0o600)
    expect(await ask()).toBe(200)
    await server!.close()
    expect([existsSync(path), warnings]).toEqual([false, []])
  })

  it('tells there which packets were dropped, and at no port', async () => {
    const health = createHealth()
    const after: (readonly number[])[] = []
    health.drops = (numbers) => {
      after.push(numbers)
      return noDrops('now')
    }
    const server = await serveSocket(path, health, log)
    expect(await ask('/drops.json')).toBe(200)
    expect(await ask('/drops.json?after=1,9007199254740991')).toBe(200)
    expect(after).toEqual([[], [1, 2 ** 53 - 1]])
    for (const bad of ['x', '1,', ',', '-1', '1.5', '9007199254740993'])
      expect(await ask(`/drops.json?after=${bad}`)).toBe(400)
    expect(await ask('/drops.json', 'POST')).toBe(405)
    expect((await (await serve(health)).get('/drops.json'))[0]).toBe(404)
    expect(after).toHaveLength(2)
    await server!.close()
  })

  it('takes the place of one that nobody answers at, and of no other', async () => {
    const first = await serveSocket(path, createHealth(), log)
    expect(await serveSocket(path, createHealth(), log)).toBeUndefined()
    expect(warnings).toEqual([expect.stringContaining('another daemon answers there; name another socket')])
    expect(await ask()).toBe(200)
    await first!.close()
    writeFileSync(path, '') // what a killed daemon leaves can be opened as little as this
    const second = await serveSocket(path, createHealth(), log)
    expect(await ask()).toBe(200)
    await second!.close()
  })

  it('is none where none is wanted, and a warning where it cannot be', async () => {
    expect(await serveSocket('', createHealth(), log)).toBeUndefined()
    expect(warnings).toEqual([])
    path = join(folder, 'file', 'weftd.sock')
    writeFileSync(join(folder, 'file'), '')
    expect(await serveSocket(path, createHealth(), log)).toBeUndefined()
    expect(warnings).toEqual([expect.stringMatching(/^The status cannot be asked for at .*ENOTDIR|EEXIST/)])
  })
})
