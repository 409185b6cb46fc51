// health.test.ts - flanneld's two health checks word for word, /livez, /status.json, a port in use, and the socket.

import type * as dns from 'node:dns/promises'
import { once } from 'node:events'
import {
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { request, Server, type IncomingMessage } from 'node:http'
import type * as net from 'node:net'
import { connect, createServer, type Socket } from 'node:net'
import { networkInterfaces, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { isWeftError } from '../../../src/base/errors.ts'
import { noDrops } from '../../../src/report/drops.ts'
import { createHealth, serveHealth, serveSocket, type HealthServer } from '../../../src/report/health.ts'
import { Hour } from '../../../src/report/hour.ts'
import { createPeerEvents } from '../../../src/report/peer-events.ts'
import { createRecent } from '../../../src/report/recent.ts'
import { detailsOf, type Snapshot } from '../../../src/report/snapshot.ts'
import { lookAtThreads } from '../../../src/report/threads.ts'
import { beginningWith, wellNode } from '../../support/snapshot.ts'

/** The name of the error of each connection to a Unix socket; undefined if the kernel decides. */
let connectError: string | undefined
vi.mock('node:net', async (load) => {
  const real = await load<typeof net>()
  const refused = (code: string): Socket => {
    const socket = new real.Socket()
    queueMicrotask(() => socket.destroy(Object.assign(new Error(`connect ${code}`), { code })))
    return socket
  }
  return {
    ...real,
    connect: (...args: [string]) => (connectError === undefined ? real.connect(...args) : refused(connectError)),
  }
})

// The name both.example has an address of each family, first IPv6.
vi.mock('node:dns/promises', async (load) => {
  const { lookup } = await load<typeof dns>()
  const found = [
    { address: '::1', family: 6 },
    { address: '127.0.0.1', family: 4 },
  ]
  return { lookup: async (name: string) => (name === 'both.example' ? found : lookup(name, { all: true })) }
})

const node: Snapshot = { ...wellNode, at: 5_000, comparedAt: 1_000, isReady: false }

const silent = { info: () => {}, warn: () => {}, error: () => {} }
const HERE = { ip: '127.0.0.1', port: 0, statusIp: '127.0.0.1' }
let servers: HealthServer[] = []
afterEach(async () => {
  vi.useRealTimers()
  for (const server of servers) await server.close()
  servers = []
})

async function serve(health = createHealth(), place = HERE) {
  const server = await serveHealth(place, health, silent)
  servers.push(server)
  const get = async (path: string, method = 'GET'): Promise<[number, string]> => {
    const response = await fetch(`http://127.0.0.1:${server.port}${path}`, { method })
    return [response.status, await response.text()]
  }
  return { server, health, get }
}

describe('health server', () => {
  it('survives an error of accept() and an answer that cannot be written', async () => {
    const listen = vi.spyOn(Server.prototype, 'listen')
    const { health, get } = await serve()
    const [server] = listen.mock.contexts as [Server]
    listen.mockRestore()
    server.emit('error', new Error('accept ENFILE'))
    health.page = async () => ({ body: '', headers: { 'X-Junk': 'a\nb' } })
    await expect(get('/')).rejects.toThrow('fetch failed')
    expect(await get('/healthz')).toEqual([200, 'flanneld is running'])
  })

  it("answers /healthz and /readyz with flanneld's texts, whatever the method and the query", async () => {
    const { health, get } = await serve()
    for (const method of ['GET', 'POST', 'PUT', 'DELETE'])
      expect(await get('/healthz?x=1', method)).toEqual([200, 'flanneld is running'])
    expect((await get('/healthz', 'HEAD'))[0]).toBe(200)
    expect(await get('/readyz')).toEqual([503, 'flanneld is not ready yet'])
    health.snapshot = () => node
    expect(await get('/readyz')).toEqual([503, 'flanneld is not ready yet'])
    health.snapshot = () => ({ ...node, isReady: true })
    expect(await get('/readyz')).toEqual([200, 'flanneld is ready'])
    health.snapshot = () => ({ ...node, isReady: true, lacking: { ipv6: 'no device' } })
    expect(await get('/readyz')).toEqual([503, 'flanneld is not ready yet'])
    expect((await get('/'))[0]).toBe(404)
  })

  it('answers /events.json and /history.json with the history of the node, and with empty ones without a node', async () => {
    const { health, get } = await serve()
    const read = async (path: string) => JSON.parse((await get(path))[1]) as Record<string, unknown>
    expect(await read('/events.json')).toEqual({ schema: 1, at: expect.any(String), events: [] })
    expect(await read('/history.json')).toMatchObject({ schema: 1, stepSeconds: 10, peer: null })
    const events = createPeerEvents()
    const hour = new Hour()
    health.memory = () => ({ events, hour, recent: createRecent() })
    const nothing = { afterSeconds: null, movedFrom: null, bytes: null, roundTripMs: null, usualMs: null }
    const place = { peer: '10.5.2.0/24', publicIp: '192.0.2.2', family: 'ipv4' } as const
    const event = { at: '2026-11-23T03:00:00.000Z', what: 'silent', ...place, ...nothing } as const
    events.add(event)
    const values = { txBytesPerSecond: 1, rxBytesPerSecond: 2, roundTripMs: 3, lossPercent: 4 }
    hour.add({ ...values, dropsPerSecond: 5 }, 0)
    hour.addPeers(new Map([['10.5.2.0-24', values]]), 0)
    expect((await read('/events.json'))['events']).toEqual([event])
    const { node: all, peer } = await read('/history.json?peer=10.5.2.0-24')
    expect((all as Record<string, number[]>)['dropsPerSecond']!.at(-1)).toBe(5)
    expect(Object.keys(peer as object)).toEqual(Object.keys(values))
    for (const path of ['/events.json', '/history.json']) expect((await get(path, 'POST'))[0]).toBe(405)
  })

  it('answers /livez with the problems and the details of the node', async () => {
    const { health, get } = await serve()
    expect(await get('/livez')).toEqual([200, 'weftd is alive, starting\nstarting; no lease yet\n'])
    health.beginning = () => beginningWith('waiting for a lease', true)
    expect(await get('/livez')).toEqual([
      200,
      'weftd is alive, forwarding as last known\nwaiting for a lease; no lease yet\n',
    ])
    expect((await get('/readyz'))[0]).toBe(503)
    health.snapshot = () => node
    expect(await get('/livez')).toEqual([200, `weftd is alive\n${detailsOf(node)}\n`])
    const down = { ...node, isOpen: false }
    health.snapshot = () => down
    expect(await get('/livez')).toEqual([
      200,
      `weftd is alive, impaired by its data path: the data path is down\n${detailsOf(down)}\n`,
    ])
    const hung = lookAtThreads(new Map(), { 'weft-loop0': 7 }, 0)
    const hangs = {
      ...node,
      threads: [1, 2, 3, 4, 5].reduce((known) => lookAtThreads(known, { 'weft-loop0': 7 }, 0), hung),
    }
    health.snapshot = () => hangs
    expect(await get('/livez')).toEqual([
      503,
      `impaired by a thread that hangs: the thread weft-loop0 hangs\n${detailsOf(hangs)}\n`,
    ])
  })

  it.each([
    ['127.0.0.1', '127.0.0.1:'],
    ['::1', '[::1]:'],
    ['', ':'],
  ])("says in flanneld's words that it listens on %j", async (ip, shown) => {
    const lines: string[] = []
    servers.push(
      await serveHealth({ ip, port: 0, statusIp: '' }, createHealth(), { ...silent, info: (line) => lines.push(line) }),
    )
    expect(lines).toEqual([`Start healthz server on ${shown}0`])
  })

  it('reports why it cannot listen, with the remedy', async () => {
    const { server } = await serve()
    const refused = async (ip: string, port: number): Promise<unknown> =>
      serveHealth({ ip, port, statusIp: '' }, createHealth(), silent).catch((error: unknown) => error)
    const taken = await refused('127.0.0.1', server.port)
    expect(isWeftError(taken, 'PORT_IN_USE') && taken.remedy).toContain('--healthz-port')
    expect(String(taken)).toContain('Start healthz server error.')
    for (const [ip, port] of [
      ['192.0.2.77', 8080],
      ['nowhere.invalid', 8080],
      ['127.0.0.1', 70_000],
    ] as const)
      expect(isWeftError(await refused(ip, port), 'ADDRESS')).toBe(true)
  })
})

/** Sends these bytes and returns the answer up to the end of the connection. */
async function answerTo(port: number, text: string, address = '127.0.0.1'): Promise<string> {
  const socket = connect(port, address)
  const parts: Buffer[] = []
  socket.on('data', (part) => parts.push(part)).on('error', () => {})
  socket.write(text)
  await once(socket, 'close')
  return Buffer.concat(parts).toString()
}
const codeOf = (answer: string): number => Number(/^HTTP\/1\.1 (\d+)/.exec(answer)?.[1])

describe('access', () => {
  const get = (path: string, ...headers: string[]): string =>
    [`GET ${path} HTTP/1.1`, ...headers, 'Connection: close', '', ''].join('\r\n')
  const FULL = ['/status.json', '/metrics', '/'] as const
  const known = (): ReturnType<typeof createHealth> => {
    const health = createHealth()
    health.page = async () => ({ body: '<p>', headers: {} })
    health.snapshot = () => node
    return health
  }

  it('to the health checks is open, and to everything else only at --status-ip', async () => {
    // 127.0.0.2 acts as this host's address in the network, because the kernel has all of 127.0.0.0/8.
    const { server } = await serve(known(), { ip: '0.0.0.0', port: 0, statusIp: '127.0.0.1' })
    const open = await serve(known(), { ip: '0.0.0.0', port: 0, statusIp: '0.0.0.0' })
    const none = await serve(known(), { ip: '0.0.0.0', port: 0, statusIp: '' })
    for (const path of ['/healthz', '/readyz', '/livez']) {
      const codes = [server, open.server, none.server].map(({ port }) => answerTo(port, get(path, 'Host: pod.example')))
      expect((await Promise.all(codes)).map(codeOf)).toEqual(Array(3).fill(path === '/readyz' ? 503 : 200))
    }
    for (const path of FULL) {
      expect(codeOf(await answerTo(server.port, get(path, 'Host: 127.0.0.1')))).toBe(200)
      expect(codeOf(await answerTo(open.server.port, get(path, 'Host: 10.0.0.1:8081')))).toBe(200)
      expect(codeOf(await answerTo(none.server.port, get(path, 'Host: 127.0.0.1')))).toBe(403)
    }
    expect(await answerTo(server.port, get('/livez', 'Host: localhost'))).toContain(detailsOf(node))
    const told = await answerTo(none.server.port, get('/livez', 'Host: localhost'))
    expect(told.split('\r\n\r\n')[1]).toContain('weftd is alive\n')
    expect(told).not.toContain('10.5.1.0')
  })

  it('is refused for a foreign host name and for another site', async () => {
    const { server } = await serve(known())
    for (const path of FULL) {
      for (const host of ['evil.example', `evil.example:${server.port}`, '127.0.0.1.evil.example', ''])
        expect(codeOf(await answerTo(server.port, get(path, `Host: ${host}`)))).toBe(421)
      expect(codeOf(await answerTo(server.port, get(path, 'Host: localhost', 'Sec-Fetch-Site: cross-site')))).toBe(403)
    }
    // The authority of an absolute target takes precedence over the Host header.
    const absolute = (host: string): string => get(`http://${host}/status.json?x`, 'Host: localhost')
    expect(codeOf(await answerTo(server.port, absolute('evil.example')))).toBe(421)
    expect(codeOf(await answerTo(server.port, absolute('[::1]:80')))).toBe(200)
    expect(codeOf(await answerTo(server.port, get('http://evil.example/healthz', 'Host: x')))).toBe(200)
  })

  it.each(['127.0.0.1', '0.0.0.0'])(
    'to the health checks at %s is possible if this host lacks the status address, which is logged',
    async (ip) => {
      const errors: string[] = []
      const log = { info: () => {}, warn: () => {}, error: (line: string) => void errors.push(line) }
      const server = await serveHealth({ ip, port: 0, statusIp: '203.0.113.9' }, known(), log)
      servers.push(server)
      expect(errors).toEqual([expect.stringMatching(/^The status is not served at 203\.0\.113\.9, .*--status-ip/)])
      expect(codeOf(await answerTo(server.port, get('/healthz', 'Host: x')))).toBe(200)
    },
  )

  it.each(['localhost', '127.1', '0', '::0', '0:0:0:0:0:0:0:0', '::ffff:127.0.0.1', '::ffff:0.0.0.0'])(
    'to the status is possible without a warning if the health checks are at %s, and only over loopback',
    async (ip) => {
      const lines: string[] = []
      const complain = (line: string): void => void lines.push(line)
      const log = { info: () => {}, warn: complain, error: complain }
      const server = await serveHealth({ ip, port: 0, statusIp: '127.0.0.1' }, known(), log)
      servers.push(server)
      expect(lines).toEqual([])
      expect(codeOf(await answerTo(server.port, get('/healthz', 'Host: x')))).toBe(200)
      expect(codeOf(await answerTo(server.port, get('/status.json', 'Host: 127.0.0.1')))).toBe(200)
      if (!['0', '::0'].includes(ip)) return
      const others = Object.values(networkInterfaces()).flatMap((each = []) => each)
      for (const { address } of others.filter(({ internal, family }) => !internal && family === 'IPv4')) {
        expect(codeOf(await answerTo(server.port, get('/healthz', `Host: ${address}`), address))).toBe(200)
        expect(codeOf(await answerTo(server.port, get('/status.json', `Host: ${address}`), address))).toBe(403)
      }
    },
  )

  it('to the health checks is possible over IPv4, as in Go, if their host name has addresses of both families', async () => {
    const log = { info: () => {}, warn: () => {}, error: () => {} }
    const server = await serveHealth({ ip: 'both.example', port: 0, statusIp: '' }, known(), log)
    servers.push(server)
    expect(codeOf(await answerTo(server.port, get('/healthz', 'Host: x'), '127.0.0.1'))).toBe(200)
  })

  it.each([
    ['192.0.2.9', ['127.0.0.1']], // this host does not have the address, so the status is not served
    ['::0', ['::0']], // the unspecified address, so one socket serves both
  ])('to the status with --status-ip %s listens at %j', async (statusIp, at) => {
    const listen = vi.spyOn(Server.prototype, 'listen')
    servers.push(await serveHealth({ ip: '127.0.0.1', port: 0, statusIp }, known(), silent))
    expect(listen.mock.calls.map((call: readonly unknown[]) => call[1])).toEqual(at)
    listen.mockRestore()
  })

  it('to the health checks is possible at a name, also if the status is served at all addresses', async () => {
    const lines: string[] = []
    const log = { info: () => {}, warn: (line: string) => void lines.push(line), error: () => {} }
    const server = await serveHealth({ ip: 'localhost', port: 0, statusIp: '::' }, known(), log)
    servers.push(server)
    for (const address of ['127.0.0.1', '::1'])
      expect(codeOf(await answerTo(server.port, get('/healthz', 'Host: x'), address))).toBe(200)
    expect(lines).toEqual([])
  })

  it.each(['::', '::0'])(
    'to the health checks is possible if no socket can listen at %s for both',
    async (statusIp) => {
      const other = createServer().listen(0, '::1')
      await once(other, 'listening')
      const { port } = other.address() as { port: number }
      const lines: string[] = []
      const log = { info: () => {}, warn: (line: string) => void lines.push(line), error: () => {} }
      servers.push(await serveHealth({ ip: '127.0.0.1', port, statusIp }, known(), log))
      expect(lines).toEqual([expect.stringMatching(`^The status cannot be served at ${statusIp}: .*--status-ip$`)])
      expect(codeOf(await answerTo(port, get('/healthz', 'Host: x')))).toBe(200)
      other.close()
      await once(other, 'close')
    },
  )

  it('to the status may fail at the second address without stopping the node', async () => {
    const lines: string[] = []
    const log = { info: () => {}, warn: (line: string) => void lines.push(line), error: () => {} }
    const two = await serveHealth({ ip: '127.0.0.2', port: 0, statusIp: '127.0.0.1' }, known(), log)
    servers.push(two)
    expect(codeOf(await answerTo(two.port, get('/readyz', 'Host: x'), '127.0.0.2'))).toBe(503)
    expect(codeOf(await answerTo(two.port, get('/status.json', 'Host: 127.0.0.1')))).toBe(200)
    expect(lines).toEqual([])
    const other = createServer().listen(0, '127.0.0.1')
    await once(other, 'listening')
    const { port } = other.address() as { port: number }
    servers.push(await serveHealth({ ip: '127.0.0.2', port, statusIp: '127.0.0.1' }, known(), log))
    expect(lines).toEqual([expect.stringMatching(/^The status cannot be served at 127\.0\.0\.1: .*--status-ip$/)])
    expect(codeOf(await answerTo(port, get('/healthz', 'Host: x'), '127.0.0.2'))).toBe(200)
    other.close()
    await once(other, 'close')
  })
})

describe('a client that overloads the server', () => {
  it('cannot send a long header or an endless target', async () => {
    const { server } = await serve()
    const long = 'x'.repeat(9000)
    expect(codeOf(await answerTo(server.port, `GET /${long} HTTP/1.1\r\nHost: x\r\n\r\n`))).toBe(431)
    const many = Array.from({ length: 900 }, (_, at) => `X-${at}: 12345678\r\n`).join('')
    expect(codeOf(await answerTo(server.port, `GET /healthz HTTP/1.1\r\nHost: x\r\n${many}\r\n`))).toBe(431)
    expect(codeOf(await answerTo(server.port, 'hello\r\n\r\n'))).toBe(400)
  })

  it('does not exclude others with many connections, and loses its own oldest one', async () => {
    const { server } = await serve()
    const open = (localAddress: string): Promise<Socket> =>
      new Promise((resolve) => {
        const socket = connect({ port: server.port, host: '127.0.0.1', localAddress }, () => resolve(socket))
        socket.on('error', () => {})
      })
    const others = await open('127.0.0.3')
    const greedy: Socket[] = []
    for (let count = 0; count < 127; count++) greedy.push(await open('127.0.0.2'))
    const ended = Promise.all(greedy.slice(0, 3).map((socket) => once(socket, 'close')))
    for (let count = 0; count < 3; count++) greedy.push(await open('127.0.0.2'))
    await ended
    expect(greedy.slice(3).filter((socket) => socket.destroyed)).toEqual([])
    // A client with few connections is answered, even on a connection that is older than all of those.
    const parts: Buffer[] = []
    others.on('data', (part) => parts.push(part))
    others.write('GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
    await once(others, 'close')
    expect(codeOf(Buffer.concat(parts).toString())).toBe(200)
    for (const socket of greedy) socket.destroy()
  })

  it('is disconnected if it sends pipelined requests, so that they cost only one answer', async () => {
    const { server, health } = await serve()
    let told = 0
    const status = await health.status()
    health.status = async () => {
      told++
      return status
    }
    const ask = 'GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n'
    expect(await answerTo(server.port, ask.repeat(1000))).toBe('')
    expect(told).toBe(1)
    // The server must answer consecutive requests.
    const socket = connect(server.port, '127.0.0.1')
    for (let turn = 0; turn < 3; turn++) {
      socket.write(ask)
      const [answer] = (await once(socket, 'data')) as [Buffer]
      expect(codeOf(answer.toString())).toBe(200)
    }
    socket.destroy()
  })

  it('is disconnected if it does not read long answers, so that they do not fill the memory', async () => {
    const { server, health } = await serve()
    const length = 15 << 20 // more than the kernel keeps for a connection
    health.page = async () => ({ body: 'x'.repeat(length), headers: {} })
    /** Requests the page. The returned function reads the answer and resolves with its length. */
    const open = async (): Promise<() => Promise<number>> => {
      const sent = request({ port: server.port, host: '127.0.0.1', agent: false }).end()
      const [response] = (await once(sent, 'response')) as [IncomingMessage]
      response.on('error', () => {})
      return () =>
        new Promise((resolve) => {
          let read = 0
          response.on('data', (part: Buffer) => (read += part.length)).once('close', () => resolve(read))
        })
    }
    const readers = [await open(), await open(), await open(), await open()]
    const lengths = await Promise.all(readers.map((read) => read()))
    expect(lengths.map((each) => each === length)).toEqual([false, false, true, true])
    expect(await (await open())()).toBe(length)
  })

  it('is disconnected if its header or its body never ends', async () => {
    const { server } = await serve()
    const began = [
      'GET /healthz HTTP/1.1\r\nHost: x\r\n',
      'POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n',
    ]
    const sockets = began.map((text) => {
      const socket = connect(server.port, '127.0.0.1', () => socket.write(text))
      socket.on('error', () => {}).resume()
      return socket
    })
    await Promise.all(sockets.map((socket) => once(socket, 'close')))
  })
})

describe('/status.json', () => {
  it('exists before there is a node, and reports what the daemon waits for', async () => {
    const { get } = await serve()
    const [code, body] = await get('/status.json')
    expect([code, JSON.parse(body)]).toEqual([
      200,
      expect.objectContaining({ schema: 1, state: 'starting', node: null }),
    ])
  })

  it('is formatted once while the status is the same', async () => {
    const { get, health } = await serve()
    let written = 0
    const status = Object.assign(await health.status(), { toJSON: () => ({ written: ++written }) })
    health.status = async () => status
    expect(await get('/status.json')).toEqual([200, '{"written":1}\n'])
    expect(await get('/status.json')).toEqual([200, '{"written":1}\n'])
  })

  it('accepts only reading methods', async () => {
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

it('caches a slow status for a multiple of the time that it takes', async () => {
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

it('caches a status for at most ten seconds, although the process was paused for a minute meanwhile', async () => {
  vi.useFakeTimers({ toFake: ['performance'] })
  const health = createHealth()
  const starting = await health.report()
  health.report = async () => {
    vi.advanceTimersByTime(60_000)
    return starting
  }
  const first = await health.status()
  vi.advanceTimersByTime(9_999)
  expect(await health.status()).toBe(first)
  vi.advanceTimersByTime(1)
  expect(await health.status()).not.toBe(first)
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

  it('is accessible only to its user, and is removed with the daemon', async () => {
    const server = await serveSocket(path, createHealth(), log)
    expect(statSync(path).mode & 0o777).toBe(0o600)
    expect(await ask()).toBe(200)
    await server!.close()
    expect([existsSync(path), warnings]).toEqual([false, []])
  })

  it('serves the dropped packets, unlike the port', async () => {
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

  it('replaces a socket at which no process listens, and no other socket', async () => {
    const first = await serveSocket(path, createHealth(), log)
    expect(await serveSocket(path, createHealth(), log)).toBeUndefined()
    expect(warnings).toEqual([expect.stringContaining('another daemon answers there; name another socket')])
    expect(await ask()).toBe(200)
    linkSync(path, join(folder, 'dead'))
    await first!.close()
    renameSync(join(folder, 'dead'), path) // like the socket of a killed daemon, this socket refuses connections
    const second = await serveSocket(path, createHealth(), log)
    expect(await ask()).toBe(200)
    await second!.close()
  })

  it.each([
    ['EAGAIN', 'another daemon answers there'], // the other daemon is busy, and its queue of connections is full
    ['EMFILE', 'connect EMFILE'],
  ])('does not replace the socket of another daemon if a connection fails with %s', async (code, why) => {
    const first = await serveSocket(path, createHealth(), log)
    try {
      connectError = code
      expect(await serveSocket(path, createHealth(), log)).toBeUndefined()
    } finally {
      connectError = undefined
    }
    expect(warnings).toEqual([expect.stringContaining(`${why}; name another socket`)])
    expect(await ask()).toBe(200)
    await first!.close()
  })

  it('does not replace a file of another kind, which the operator may have named by mistake', async () => {
    mkdirSync(join(path, '..'))
    writeFileSync(path, 'precious')
    expect(await serveSocket(path, createHealth(), log)).toBeUndefined()
    expect(readFileSync(path, 'utf8')).toBe('precious')
    expect(warnings).toEqual([
      expect.stringContaining('another file is there, which is no socket; name another socket'),
    ])
  })

  it('is not created for an empty path, and a failure is a warning', async () => {
    expect(await serveSocket('', createHealth(), log)).toBeUndefined()
    expect(warnings).toEqual([])
    path = join(folder, 'file', 'weftd.sock')
    writeFileSync(join(folder, 'file'), '')
    expect(await serveSocket(path, createHealth(), log)).toBeUndefined()
    expect(warnings).toEqual([expect.stringMatching(/^The status cannot be served at .*ENOTDIR|EEXIST/)])
  })
})
