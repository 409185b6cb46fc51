// health.ts - what weftd tells whoever asks: flanneld's /healthz and /readyz, and /livez, which looks deeper, to anybody who reaches
// the TCP port. All there is, as /status.json, as /metrics for Prometheus, as a page at / for people, to the audience that is meant to
// have it (audience.ts); and at a Unix socket to whoever may open that, who is told by /drops.json what others' packets were too.
//
// Nothing here changes anything, and nothing that goes wrong beside the probes stops a daemon.

import { once } from 'node:events'
import { mkdir, unlink } from 'node:fs/promises'
import { createServer, type IncomingMessage, type Server } from 'node:http'
import { connect, type Socket } from 'node:net'
import { hostname } from 'node:os'
import { dirname } from 'node:path'
import { messageOf, WeftError } from '../errors.ts'
import type { Log } from '../log.ts'
import { jsonLine, printableLines } from '../text.ts'
import { listenAt, refusalOf, type Refusal } from './audience.ts'
import { noDrops, parseAfter, type DropsReport } from './drops.ts'
import type { Page } from './page.ts'
import { detailsOf, troubleOf, type Snapshot } from './snapshot.ts'
import {
  startingReport,
  STATUS_SCHEMA,
  type DaemonStatus,
  type NodeReport,
  type Status,
  type StatusEvent,
} from './status.ts'

export interface Health {
  /** How the node is; undefined while there is none. */
  snapshot(): Snapshot | undefined
  /** The same in full, and of a daemon without a node what it waits for. */
  report(): Promise<NodeReport>
  /** All there is to say. */
  status(): Promise<Status>
  /** Which packets were dropped last; later ones alone than what was told with this `next`. */
  drops(after: DropsReport['next']): DropsReport
  /** What shows it to a person; undefined where that is not wanted. */
  page(): Promise<Page | undefined>
}

/** What a daemon knows of itself. */
export interface About {
  readonly daemon: DaemonStatus
  readonly events: () => readonly StatusEvent[]
  readonly page?: () => Promise<Page | undefined>
}

/**
 * So many times as long as it took to tell the status it is told again as it was: whoever may ask may not keep weftd busy. Less than
 * so many ms it takes below thousands of peers.
 */
const REST = 10
const QUICK_MS = 20

const NOBODY: About = {
  daemon: { version: '', pid: process.pid, startedAt: new Date(0).toISOString(), subnetFile: '', leases: '' },
  events: () => [],
}

/** The health of a daemon that has only just started. */
export function createHealth({ daemon, events, page = async () => undefined }: About = NOBODY): Health {
  let latest: { readonly until: number; readonly status: Promise<Status> } | undefined
  async function tell(): Promise<Status> {
    const began = performance.now()
    const about = { schema: STATUS_SCHEMA, at: new Date().toISOString(), daemon } as const
    const status = { ...about, ...(await health.report()), events: events() }
    const took = performance.now() - began
    latest = { until: performance.now() + (took < QUICK_MS ? 0 : took * REST), status: Promise.resolve(status) }
    return status
  }
  const health: Health = {
    snapshot: () => undefined,
    report: async () => startingReport('', 'starting'),
    status() {
      if (!latest || performance.now() >= latest.until) {
        const status = tell()
        latest = { until: Infinity, status }
        status.catch(() => (latest = undefined))
      }
      return latest.status
    },
    drops: () => noDrops(new Date().toISOString()),
    page,
  }
  return health
}

export interface Answer {
  readonly status: number
  readonly type: string
  readonly body: string
  /** Beside the type. */
  readonly headers?: Readonly<Record<string, string>>
}

const text = (status: number, body: string): Answer => ({
  status,
  type: 'text/plain; charset=utf-8',
  body: printableLines(body),
})

interface Asked {
  readonly path: string
  readonly query: URLSearchParams
  readonly method: string
  /** Why no more than the probes is for whoever asks. */
  readonly refusal: Refusal | undefined
}

/** What is answered for a path; the first two word for word as flanneld's main.go, to any method, as there. */
async function answerAtPort(asked: Asked, health: Health): Promise<Answer> {
  const node = health.snapshot()
  switch (asked.path) {
    case '/healthz':
      return text(200, 'flanneld is running')
    case '/readyz':
      return node?.isReady ? text(200, 'flanneld is ready') : text(503, 'flanneld is not ready yet')
    case '/livez': {
      const trouble = node ? troubleOf(node) : 'starting'
      const details = asked.refusal ? '' : `${node ? detailsOf(node) : 'no lease yet'}\n`
      return text(trouble === undefined ? 200 : 503, `${trouble ?? 'weftd is alive'}\n${details}`)
    }
    default:
      return answerInFull(asked, health)
  }
}

async function answerInFull({ path, method, refusal }: Asked, health: Health): Promise<Answer> {
  if (refusal && ['/status.json', '/metrics', '/'].includes(path))
    return text(refusal.status, `${refusal.status} ${refusal.why}\n`)
  switch (path) {
    case '/status.json':
      if (!isRead(method)) return NOT_ALLOWED
      return statusText(await health.status())
    case '/metrics': {
      if (!isRead(method)) return NOT_ALLOWED
      const { formatMetrics } = await import('./metrics.ts') // who is not scraped does not load it
      return { status: 200, ...(await formatMetrics(await health.status())) }
    }
    case '/': {
      const page = await health.page()
      if (!page) return NOT_FOUND
      return isRead(method) ? { status: 200, type: 'text/html; charset=utf-8', ...page } : NOT_ALLOWED
    }
    default:
      return NOT_FOUND
  }
}

/** What is answered at the socket alone: what a packet says is nobody's business but its sender's and root's. */
async function answerAtSocket(asked: Asked, health: Health): Promise<Answer> {
  if (asked.path !== '/drops.json') return answerAtPort(asked, health)
  if (!isRead(asked.method)) return NOT_ALLOWED
  const after = parseAfter(asked.query.get('after') ?? '')
  return after ? json(health.drops(after)) : text(400, '400 after is what the answer before had as next: 1,2,3\n')
}

const json = (value: unknown): Answer => ({
  ...{ status: 200, type: 'application/json', body: jsonLine(value) },
  headers: { 'Cache-Control': 'no-store' },
})
/** Of thousands of peers the text takes as long as the status. */
const statusTexts = new WeakMap<Status, Answer>()
function statusText(status: Status): Answer {
  const answer = statusTexts.get(status) ?? json(status)
  statusTexts.set(status, answer)
  return answer
}
const isRead = (method: string): boolean => method === 'GET' || method === 'HEAD'
const NOT_FOUND = text(404, '404 page not found\n')
const NOT_ALLOWED = text(405, '405 method not allowed\n')

export interface HealthServer {
  /** The port bound to, which the kernel chose when 0 was asked for. */
  readonly port: number
  /** Ends open connections too: a prober that keeps its own must not hold up the stop. */
  close(): Promise<void>
}

/**
 * What one who asks may cost: so much of a header, so long for it and for the whole request, so long without a byte in either
 * direction. Node.js looks for requests that take too long every two seconds.
 */
const LIMITS = {
  ...{ maxHeaderSize: 8 << 10, headersTimeout: 5_000, requestTimeout: 5_000 },
  ...{ connectionsCheckingInterval: 2_000, keepAliveTimeout: 5_000 },
}
const SILENT_MS = 30_000
const MOST_CONNECTIONS = 128

/** `refusing`: why a request is told no more than the probes; undefined when it may hear all. */
function serverOf(
  health: Health,
  answer: typeof answerAtPort,
  refusing: (request: IncomingMessage, host: string | undefined) => Refusal | undefined,
): Server {
  const asking = new WeakSet<Socket>()
  const server = createServer(LIMITS, (request, response) => {
    const { socket } = request
    request.resume()
    // Whoever asks more before it is answered (RFC 9112 section 9.3.2) would have thousands of answers made in one turn of the event
    // loop, and kept until it reads them.
    if (asking.has(socket)) return void socket.destroy()
    asking.add(socket)
    response.once('close', () => asking.delete(socket))
    const target = request.url ?? ''
    // A client of a proxy gives the whole URL.
    const [, authority, rest = target] = /^https?:\/\/([^/?#]*)(.*)$/is.exec(target) ?? []
    const [, path = '', query = ''] = /^([^?]*)\??(.*)$/s.exec(rest) ?? []
    const refusal = refusing(request, authority ?? request.headers.host)
    void answer({ path, query: new URLSearchParams(query), method: request.method ?? '', refusal }, health)
      .catch((error: unknown) => text(500, `${messageOf(error)}\n`))
      .then(({ status, type, body, headers = {} }) => {
        const isKnown = headers['ETag'] !== undefined && request.headers['if-none-match'] === headers['ETag']
        const all = { 'Content-Type': type, 'X-Content-Type-Options': 'nosniff', ...headers }
        response.writeHead(isKnown ? 304 : status, all).end(isKnown ? undefined : body)
      })
      .catch(() => response.destroy())
  })
  // A connection that the kernel does not hand over is one who asks in vain; before it listens there are others who hear it.
  server.on('error', () => {})
  server.setTimeout(SILENT_MS, (socket: Socket) => socket.destroy())
  makeRoom(server)
  return server
}

/** Of too many connections the oldest of whoever has most gives way: who opens many keeps nobody else out. */
function makeRoom(server: Server): void {
  const open = new Map<Socket, string>()
  server.on('connection', (socket) => {
    open.set(socket, socket.remoteAddress ?? '')
    socket.once('close', () => open.delete(socket))
    if (open.size <= MOST_CONNECTIONS) return
    const counts = new Map<string, number>()
    for (const from of open.values()) counts.set(from, (counts.get(from) ?? 0) + 1)
    const [most] = [...counts].reduce((a, b) => (b[1] > a[1] ? b : a))
    const [oldest] = [...open].find(([, from]) => from === most) ?? []
    if (!oldest) return
    open.delete(oldest)
    oldest.destroy()
  })
}

const closing = (server: Server): Promise<void> =>
  new Promise((resolve) => {
    server.close(() => resolve())
    server.closeAllConnections()
  })

export interface HealthPlace {
  /** Where the probes are answered. */
  readonly ip: string
  readonly port: number
  /** Where all there is is told, beside this host's loopback; empty for nowhere. */
  readonly statusIp: string
}

/**
 * Answers at these addresses, and says so to `log`. Throws WeftError PORT_IN_USE, or ADDRESS for whatever else is in the way of the
 * probes; where only the status cannot be told, that is a warning.
 */
export async function serveHealth(
  { ip, port, statusIp }: HealthPlace,
  health: Health,
  log: Pick<Log, 'info' | 'warn'>,
): Promise<HealthServer> {
  log.info(`Start healthz server on ${ip.includes(':') ? `[${ip}]` : ip}:${port}`)
  const refusing = ({ socket, headers }: IncomingMessage, host: string | undefined): Refusal | undefined =>
    refusalOf(
      {
        ...{ local: socket.localAddress, remote: socket.remoteAddress, host },
        ...{
          origin: headers.origin,
          site: headers['sec-fetch-site']?.toString(),
          dest: headers['sec-fetch-dest']?.toString(),
        },
      },
      statusIp,
      hostname(),
    )
  const listen = (at: string, on: number): Promise<Server> =>
    listening(serverOf(health, answerAtPort, refusing), at, on)
  const [first = ip, second] = listenAt(ip, statusIp)
  const server = await listen(first, port).catch((error: unknown) => {
    const taken = (error as NodeJS.ErrnoException).code === 'EADDRINUSE'
    throw new WeftError(taken ? 'PORT_IN_USE' : 'ADDRESS', `Start healthz server error. ${messageOf(error)}`, {
      remedy: 'give a free address and port with --healthz-ip and --healthz-port',
      cause: error,
    })
  })
  const address = server.address()
  const bound = typeof address === 'object' && address ? address.port : port
  const servers = [server]
  // flanneld listens at the first alone: what is in the way of the other must not keep a node from its network.
  if (second !== undefined) {
    try {
      servers.push(await listen(second, bound))
    } catch (error) {
      log.warn(
        `The status cannot be asked for at ${second}: ${messageOf(error)}; name another address with --status-ip`,
      )
    }
  }
  return { port: bound, close: async () => void (await Promise.all(servers.map(closing))) }
}

/** Resolves once it listens. */
const listening = (server: Server, ip: string, port: number): Promise<Server> =>
  new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, ip === '' ? undefined : ip, () => {
      server.off('error', reject)
      resolve(server)
    })
  })

/**
 * Answers on a Unix socket that only this user may open; what a daemon that was killed left there is replaced. What is in the way is
 * a warning: a host whose /run is read-only has its network all the same. Empty for no socket.
 */
export async function serveSocket(
  path: string,
  health: Health,
  log: Pick<Log, 'warn'>,
): Promise<Pick<HealthServer, 'close'> | undefined> {
  if (path === '') return undefined
  try {
    await mkdir(dirname(path), { recursive: true, mode: 0o755 })
    if (await isAnswered(path)) throw new Error('another daemon answers there')
    await unlink(path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') throw error
    })
    const server = serverOf(health, answerAtSocket, () => undefined)
    // The socket is made within this call, with the mode that it is to have from its first moment.
    const umask = process.umask(0o177)
    try {
      server.listen(path)
    } finally {
      process.umask(umask)
    }
    await once(server, 'listening')
    return { close: () => closing(server) } // which removes it
  } catch (error) {
    log.warn(`The status cannot be asked for at ${path}: ${messageOf(error)}; name another socket with --status-socket`)
    return undefined
  }
}

/** Whether somebody takes connections at a Unix socket. */
function isAnswered(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    const end = (answered: boolean): void => {
      socket.destroy()
      resolve(answered)
    }
    socket.once('connect', () => end(true)).once('error', () => end(false))
  })
}
