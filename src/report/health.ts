// health.ts - the HTTP server of the health port and of the status socket.
//
// Every client that reaches the port may read flanneld's /healthz and /readyz, and weft's /livez. Only the clients that
// audience.ts accepts may read /status.json, /metrics for Prometheus and the page at /. A user who may open the Unix
// socket can read all these paths there. Only the socket offers /drops.json, which has the contents of dropped packets.
//
// All requests are read-only. weftd stops if it cannot serve the health checks, but not if it cannot serve the status.

import { lookup } from 'node:dns/promises'
import { once } from 'node:events'
import { lstat, unlink } from 'node:fs/promises'
import type { IncomingMessage, Server } from 'node:http'
import { connect } from 'node:net'
import { hostname, networkInterfaces } from 'node:os'
import { dirname } from 'node:path'
import { messageOf, WeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { jsonLine } from '../base/text.ts'
import { makeFolder } from '../host/make-folder.ts'
import { isReachableAt, listenAt, refusalOf, type Refusal } from './audience.ts'
import { noDrops, parseAfter, type DropsReport } from './drops.ts'
import type { Hour } from './hour.ts'
import { closing, listening, serverOf, textAnswer, type Answer, type HttpRequest } from './http.ts'
import type { NetworkReport } from './network-view.ts'
import type { Page } from './page.ts'
import { eventsReport, type PeerEvents } from './peer-events.ts'
import type { Recent } from './recent.ts'
import { detailsOf, isReadyNow, stateOf, troubleOf, type Snapshot } from './snapshot.ts'
import { readingOf, stateBefore, type Beginning } from './states.ts'
import {
  startingReport,
  STATUS_SCHEMA,
  type DaemonStatus,
  type NodeReport,
  type Status,
  type StatusEvent,
} from './status.ts'
import { viewOf } from './view.ts'

export interface Health {
  /**
   * The state of the node; undefined until weftd has a lease. Until then, `beginning` describes weftd, for example the
   * reason why it waits.
   */
  snapshot(): Snapshot | undefined
  beginning(): Beginning
  /** The part of the status that describes the node. Until weftd has a lease, this part says what weftd waits for. */
  report(): Promise<NodeReport>
  /** The full status of weftd and its node. A status that takes long to compute is cached for a short time. */
  status(): Promise<Status>
  /**
   * Returns the report of the packets that were dropped after the earlier report whose member `next` equals `after`. If
   * `after` is empty, the report has all recorded packets.
   */
  drops(after: DropsReport['next']): DropsReport
  /** The recorded events and the history of the last hour; undefined until weftd has a lease. */
  memory(): Memory | undefined
  /** The HTML page of the status; undefined if the operator turned it off (`--status-page=false`). */
  page(): Promise<Page | undefined>
  /**
   * Makes the report of the whole network, for which weftd queries the other nodes. Undefined without the flag
   * `--status-network`.
   */
  network: NetworkQuery | undefined
}

export interface NetworkQuery {
  /**
   * True if the nodes require a token before they show each other their state (their view). In that case weftd serves
   * the network report only at the Unix socket.
   */
  readonly isGuarded: boolean
  report(): Promise<NetworkReport>
}

export interface Memory {
  readonly events: Pick<PeerEvents, 'list' | 'counts' | 'add'>
  readonly hour: Pick<Hour, 'node' | 'peer'>
  readonly recent: Pick<Recent, 'until'>
}

/** The parts of the status that weftd knows before it has a lease. */
interface About {
  readonly daemon: DaemonStatus
  readonly events: () => readonly StatusEvent[]
  readonly page?: () => Promise<Page | undefined>
}

/**
 * weftd caches a status for REST times as long as it took to compute, so that requests cannot keep weftd busy. weftd
 * does not cache a status that took less than QUICK_MS, which is usual with up to some thousands of peers. The limit
 * LONGEST_MS applies if the process was paused meanwhile: the status would be old for long.
 */
const REST = 10
const QUICK_MS = 20
const LONGEST_MS = 10_000

const NO_DAEMON: About = {
  daemon: {
    version: '',
    pid: process.pid,
    startedAt: new Date(0).toISOString(),
    subnetFile: '',
    leases: '',
    etcdFiles: null,
    network: 'off',
  },
  events: () => [],
}

const NOTHING_YET: Beginning = { isForwarding: false, leaving: undefined, waitsFor: 'starting' }

/**
 * Creates the Health object that a daemon serves until it has a lease. Then the daemon replaces the object's members by
 * those of its Node object.
 */
export function createHealth({ daemon, events, page = async () => undefined }: About = NO_DAEMON): Health {
  let latest: { readonly until: number; readonly status: Promise<Status> } | undefined
  async function make(): Promise<Status> {
    const began = performance.now()
    const about = { schema: STATUS_SCHEMA, at: new Date().toISOString(), daemon } as const
    const status = { ...about, ...(await health.report()), events: events() }
    const took = performance.now() - began
    latest = {
      until: performance.now() + (took < QUICK_MS ? 0 : Math.min(took * REST, LONGEST_MS)),
      status: Promise.resolve(status),
    }
    return status
  }
  const health: Health = {
    snapshot: () => undefined,
    beginning: () => NOTHING_YET,
    report: async () => startingReport('', NOTHING_YET),
    status() {
      if (!latest || performance.now() >= latest.until) {
        const status = make()
        latest = { until: Infinity, status }
        status.catch(() => (latest = undefined))
      }
      return latest.status
    },
    drops: () => noDrops(new Date().toISOString()),
    memory: () => undefined,
    page,
    network: undefined,
  }
  return health
}

/**
 * Answers an HTTP request at the health port. /healthz and /readyz have the same texts as in flanneld's main.go, and
 * accept any method as flanneld does. The table in states.ts decides the results of /readyz and /livez.
 */
async function answerAtPort(request: HttpRequest, health: Health, isAtSocket = false): Promise<Answer> {
  const node = health.snapshot()
  switch (request.path) {
    case '/healthz':
      return textAnswer(200, 'flanneld is running')
    case '/readyz':
      return node && isReadyNow(node)
        ? textAnswer(200, 'flanneld is ready')
        : textAnswer(503, 'flanneld is not ready yet')
    case '/livez': {
      const beginning = health.beginning()
      const { words, livez } = readingOf(node ? stateOf(node) : stateBefore(beginning))
      const trouble = node && troubleOf(node)
      const first = trouble === undefined ? words : `${words}: ${trouble}`
      const details = request.refusal ? '' : `${node ? detailsOf(node) : `${beginning.waitsFor}; no lease yet`}\n`
      const alive = words === 'working' ? 'weftd is alive' : `weftd is alive, ${first}`
      return textAnswer(livez, `${livez === 200 ? alive : first}\n${details}`)
    }
    default:
      return answerInFull(request, health, isAtSocket)
  }
}

async function answerInFull(
  { path, query, method, refusal }: HttpRequest,
  health: Health,
  isAtSocket: boolean,
): Promise<Answer> {
  if (refusal && ['/status.json', '/events.json', '/history.json', '/network.json', '/metrics', '/'].includes(path))
    return textAnswer(refusal.status, `${refusal.status} ${refusal.why}\n`)
  switch (path) {
    case '/status.json':
      if (!isRead(method)) return NOT_ALLOWED
      return statusText(await health.status())
    case '/events.json':
      if (!isRead(method)) return NOT_ALLOWED
      return json(eventsReport(new Date().toISOString(), health.memory()?.events.list()))
    case '/history.json': {
      if (!isRead(method)) return NOT_ALLOWED
      const { Hour, historyReport } = await import('./hour.ts')
      const hour = health.memory()?.hour ?? new Hour()
      return json(historyReport(hour, new Date().toISOString(), query.get('peer') ?? ''))
    }
    case '/metrics': {
      if (!isRead(method)) return NOT_ALLOWED
      const { formatMetrics } = await import('./metrics.ts') // a daemon that is not scraped does not load metrics.ts
      return { status: 200, ...(await formatMetrics(await health.status())) }
    }
    case '/network.json':
      if (!isRead(method)) return NOT_ALLOWED
      if (!health.network)
        return textAnswer(409, 'nodes do not share their status, because weftd runs without --status-network\n')
      if (health.network.isGuarded && !isAtSocket)
        return textAnswer(
          403,
          '403 a token protects the status of the other nodes; run `weft network` as root on the host\n',
        )
      return json(await health.network.report())
    case '/': {
      const page = await health.page()
      if (!page) return NOT_FOUND
      return isRead(method) ? { status: 200, type: 'text/html; charset=utf-8', ...page } : NOT_ALLOWED
    }
    default:
      return NOT_FOUND
  }
}

/**
 * Answers an HTTP request at the Unix socket. weftd serves /drops.json only at this socket, because it has the contents
 * of users' packets.
 */
async function answerAtSocket(request: HttpRequest, health: Health): Promise<Answer> {
  if (request.path !== '/drops.json') return answerAtPort(request, health, true)
  if (!isRead(request.method)) return NOT_ALLOWED
  const after = parseAfter(request.query.get('after') ?? '')
  return after
    ? json(health.drops(after))
    : textAnswer(400, '400 after must be the value of next in an earlier answer, such as 1,2,3\n')
}

const json = (value: unknown): Answer => ({
  status: 200,
  type: 'application/json',
  body: jsonLine(value),
  headers: { 'Cache-Control': 'no-store' },
})
/**
 * The JSON text of each cached status. The text is cached too, because formatting it takes as long as computing the
 * status if there are thousands of peers.
 */
const statusTexts = new WeakMap<Status, Answer>()
function statusText(status: Status): Answer {
  const answer = statusTexts.get(status) ?? json(status)
  statusTexts.set(status, answer)
  return answer
}
const isRead = (method: string): boolean => method === 'GET' || method === 'HEAD'
const NOT_FOUND = textAnswer(404, '404 page not found\n')
const NOT_ALLOWED = textAnswer(405, '405 method not allowed\n')

export interface HealthServer {
  /** The port to which the server is bound. If port 0 was requested, the kernel chose this port. */
  readonly port: number
  /**
   * Closes the server and its open connections, so that a client with a kept-alive connection does not delay the stop.
   */
  close(): Promise<void>
}

interface HealthPlace {
  /** The address at which weftd serves the health checks. */
  readonly ip: string
  readonly port: number
  /**
   * The address, besides loopback, at which weftd serves the full status. If it is empty, weftd serves the full status
   * only at the Unix socket.
   */
  readonly statusIp: string
}

/**
 * Starts the HTTP servers at `ip` and `statusIp`. Throws WeftError PORT_IN_USE or ADDRESS if the health checks cannot
 * be served. If only the full status cannot be served at `statusIp`, logs the problem and continues.
 */
export async function serveHealth(
  { ip, port, statusIp }: HealthPlace,
  health: Health,
  log: Pick<Log, 'info' | 'warn' | 'error'>,
): Promise<HealthServer> {
  log.info(`Start healthz server on ${ip.includes(':') ? `[${ip}]` : ip}:${port}`)
  const refusing = ({ socket, headers }: IncomingMessage, host: string | undefined): Refusal | undefined =>
    refusalOf(
      {
        local: socket.localAddress,
        remote: socket.remoteAddress,
        host,
        origin: headers.origin,
        site: headers['sec-fetch-site']?.toString(),
        dest: headers['sec-fetch-dest']?.toString(),
      },
      statusIp,
      hostname(),
    )
  const listen = (at: string, on: number): Promise<Server> =>
    listening(
      serverOf((request) => answerAtPort(request, health), refusing),
      at,
      on,
    )
  // Serve the status only if this host has `statusIp`, because a problem with this address must not stop weftd.
  // flanneld listens only at the address of the health checks.
  const own = Object.values(networkInterfaces()).flatMap((each = []) => each)
  const isReachable = isReachableAt(
    statusIp,
    own.map((each) => each.address),
  )
  const checksAt = await resolved(ip)
  const [first = checksAt, second] = listenAt(checksAt, isReachable ? statusIp : '')
  const lacksStatus = (at: string, error: unknown): void =>
    log.warn(`The status cannot be served at ${at}: ${messageOf(error)}; name another address with --status-ip`)
  const server = await listen(first, port).catch(async (error: unknown) => {
    // If one socket cannot serve both, for example at `::` on a host without IPv6, serve the health checks alone.
    const alone = first === checksAt ? undefined : await listen(checksAt, port).catch(() => undefined)
    if (alone) {
      lacksStatus(first, error)
      return alone
    }
    const taken = (error as NodeJS.ErrnoException).code === 'EADDRINUSE'
    throw new WeftError(taken ? 'PORT_IN_USE' : 'ADDRESS', `Start healthz server error. ${messageOf(error)}`, {
      remedy: 'give a free address and port with --healthz-ip and --healthz-port',
      cause: error,
    })
  })
  const address = server.address()
  const bound = typeof address === 'object' && address ? address.port : port
  const servers = [server]
  if (!isReachable) {
    log.error(
      `The status is not served at ${statusIp}, which is not an address of this host; give --status-ip an address of this host`,
    )
  } else if (second !== undefined) {
    try {
      servers.push(await listen(second, bound))
    } catch (error) {
      lacksStatus(second, error)
    }
  }
  return { port: bound, close: async () => void (await Promise.all(servers.map(closing))) }
}

/**
 * Returns the address of a host name, such as `localhost`. Returns `name` unchanged if it is an address, if it is
 * empty, or if the host name has no address. In the last case listen() reports the reason.
 */
async function resolved(name: string): Promise<string> {
  if (name === '') return ''
  const all = await lookup(name, { all: true }).catch(() => [])
  return (all.find(({ family }) => family === 4) ?? all[0])?.address ?? name
}

/** Decides which HTTP clients may read this node's view, the part of its status that it shows to its peers. */
interface ViewAudience {
  isNode(address: string | undefined): boolean
  /**
   * Returns true if the Authorization header has the token of the network. Rejects if this node's own token file cannot
   * be read.
   */
  isTrusted(authorization: string | undefined): Promise<boolean>
}

export type ViewServer = Pick<HealthServer, 'close'>

/**
 * Serves this node's view (view.ts) to its peers, at this node's own address in the overlay network. Rejects with the
 * system's error if it cannot listen.
 */
export async function serveView(
  { address, port }: { readonly address: string; readonly port: number },
  health: Health,
  audience: ViewAudience,
): Promise<ViewServer> {
  const answerView = async (request: HttpRequest): Promise<Answer> => {
    if (request.refusal) return textAnswer(request.refusal.status, `${request.refusal.why}\n`)
    if (request.path !== '/view.json') return NOT_FOUND
    if (!isRead(request.method)) return NOT_ALLOWED
    const isTrusted = await audience.isTrusted(request.authorization).catch(() => undefined)
    if (isTrusted === undefined) return textAnswer(403, 'it cannot read its own token\n')
    if (!isTrusted) return textAnswer(401, 'its token differs\n')
    const status = await health.status()
    return json(viewOf(status, new Date().toISOString()))
  }
  const refusing = ({ socket, headers }: IncomingMessage, host: string | undefined): Refusal | undefined => {
    const { localAddress, remoteAddress } = socket
    if (!audience.isNode(remoteAddress)) return { status: 403, why: 'this address is not a node of the network' }
    const browser = {
      origin: headers.origin,
      site: headers['sec-fetch-site']?.toString(),
      dest: headers['sec-fetch-dest']?.toString(),
    }
    return refusalOf({ local: localAddress, remote: remoteAddress, host, ...browser }, address, '')
  }
  const server = await listening(serverOf(answerView, refusing), address, port)
  return { close: () => closing(server) }
}

/**
 * Starts the HTTP server at a Unix socket that only weftd's user may open. Replaces the socket file of a daemon that
 * was killed. Logs a warning if the socket cannot be created, because a host with a read-only /run still needs its
 * network. An empty path means no socket.
 */
export async function serveSocket(
  path: string,
  health: Health,
  log: Pick<Log, 'warn'>,
): Promise<Pick<HealthServer, 'close'> | undefined> {
  if (path === '') return undefined
  try {
    await makeFolder(dirname(path))
    const refusal = await connectionError(path)
    if (isOfDaemon(refusal)) throw new Error('another daemon answers there')
    // Keep the socket if this process has no file descriptor to find out whether another daemon answers.
    if (refusal?.code === 'EMFILE' || refusal?.code === 'ENFILE') throw refusal
    const there = await lstat(path).catch(() => undefined)
    // Keep a file of another kind, because the operator may have named the file by mistake.
    if (there && !there.isSocket()) throw new Error('another file is there, which is no socket')
    await unlink(path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') throw error
    })
    const server = serverOf(
      (request) => answerAtSocket(request, health),
      () => undefined,
    )
    // The system call listen(2) creates the socket file, so this umask gives the file its mode from the first moment.
    const umask = process.umask(0o177)
    try {
      server.listen(path)
    } finally {
      process.umask(umask)
    }
    await once(server, 'listening')
    return { close: () => closing(server) } // Node.js also removes the socket
  } catch (error) {
    log.warn(`The status cannot be served at ${path}: ${messageOf(error)}; name another socket with --status-socket`)
    return undefined
  }
}

/** Connects to a Unix socket, and returns the error; undefined if a process accepts the connection. */
function connectionError(path: string): Promise<NodeJS.ErrnoException | undefined> {
  return new Promise((resolve) => {
    const socket = connect(path)
    const end = (error?: NodeJS.ErrnoException): void => {
      socket.destroy()
      resolve(error)
    }
    socket.once('connect', () => end()).once('error', end)
  })
}

/** Returns true if a process has the socket. With EAGAIN the queue of connections that it has not accepted is full. */
const isOfDaemon = (refusal: NodeJS.ErrnoException | undefined): boolean => !refusal || refusal.code === 'EAGAIN'

/** Returns true if a process has the Unix socket `path`. */
export const isAnswered = async (path: string): Promise<boolean> => isOfDaemon(await connectionError(path))
