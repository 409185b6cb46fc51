// health.ts - what weftd tells whoever asks: flanneld's /healthz and /readyz, and /livez, which looks deeper, to anybody who reaches
// the TCP port. All there is, as /status.json, as /metrics for Prometheus, as a page at / for people, to the audience that is meant to
// have it (audience.ts); and at a Unix socket to whoever may open that, who is told by /drops.json what others' packets were too.
//
// Nothing here changes anything, and nothing that goes wrong beside the probes stops a daemon.

import { once } from 'node:events'
import { mkdir, unlink } from 'node:fs/promises'
import type { IncomingMessage, Server } from 'node:http'
import { connect } from 'node:net'
import { hostname, networkInterfaces } from 'node:os'
import { dirname } from 'node:path'
import { messageOf, WeftError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { jsonLine } from '../base/text.ts'
import { isToldAt, listenAt, refusalOf, type Refusal } from './audience.ts'
import { noDrops, parseAfter, type DropsReport } from './drops.ts'
import type { Hour } from './hour.ts'
import { closing, listening, serverOf, textAnswer, type Answer, type Asked } from './http.ts'
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
  /** The state of the node; undefined while there is none, for which `beginning` tells. */
  snapshot(): Snapshot | undefined
  beginning(): Beginning
  /** The state in full; of a daemon without a node what it waits for. */
  report(): Promise<NodeReport>
  /** The whole status. */
  status(): Promise<Status>
  /** The packets that were dropped last; only those later than what was told with this `next`. */
  drops(after: DropsReport['next']): DropsReport
  /** What is remembered of the peers and the last hour; undefined while there is no node. */
  memory(): Memory | undefined
  /** The page for browsers; undefined when it is not wanted. */
  page(): Promise<Page | undefined>
  /** The means to ask all nodes; undefined where nodes do not tell one another how they are. */
  network: NetworkAsking | undefined
}

export interface NetworkAsking {
  /** True where nodes show one another a token: what it guards is then told at the socket alone. */
  readonly isGuarded: boolean
  report(): Promise<NetworkReport>
}

/** What a node remembers. */
export interface Memory {
  readonly events: Pick<PeerEvents, 'list' | 'counts' | 'add'>
  readonly hour: Pick<Hour, 'node' | 'peer'>
  readonly recent: Pick<Recent, 'until'>
}

/** A daemon's facts about itself. */
interface About {
  readonly daemon: DaemonStatus
  readonly events: () => readonly StatusEvent[]
  readonly page?: () => Promise<Page | undefined>
}

/**
 * The status is told again as it was for this many times as long as it took to make: nobody who asks may keep weftd
 * busy. Below thousands of peers making it takes less than this many ms.
 */
const REST = 10
const QUICK_MS = 20

const NOBODY: About = {
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
    beginning: () => NOTHING_YET,
    report: async () => startingReport('', NOTHING_YET),
    status() {
      if (!latest || performance.now() >= latest.until) {
        const status = tell()
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
 * Answers a path at the port; the first two word for word as flanneld's main.go, to any method, as there. /readyz and /livez by the
 * table of states.ts.
 */
async function answerAtPort(asked: Asked, health: Health, isAtSocket = false): Promise<Answer> {
  const node = health.snapshot()
  switch (asked.path) {
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
      const details = asked.refusal ? '' : `${node ? detailsOf(node) : `${beginning.waitsFor}; no lease yet`}\n`
      const alive = words === 'working' ? 'weftd is alive' : `weftd is alive, ${first}`
      return textAnswer(livez, `${livez === 200 ? alive : first}\n${details}`)
    }
    default:
      return answerInFull(asked, health, isAtSocket)
  }
}

async function answerInFull(
  { path, query, method, refusal }: Asked,
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
      const { createHour, historyReport } = await import('./hour.ts')
      const hour = health.memory()?.hour ?? createHour()
      return json(historyReport(hour, new Date().toISOString(), query.get('peer') ?? ''))
    }
    case '/metrics': {
      if (!isRead(method)) return NOT_ALLOWED
      const { formatMetrics } = await import('./metrics.ts') // a daemon that is not scraped does not load it
      return { status: 200, ...(await formatMetrics(await health.status())) }
    }
    case '/network.json':
      if (!isRead(method)) return NOT_ALLOWED
      if (!health.network)
        return textAnswer(409, 'nodes tell one another nothing: weftd runs without --status-network\n')
      if (health.network.isGuarded && !isAtSocket)
        return textAnswer(
          403,
          '403 a token guards the status of other nodes: ask as root on the host, by `weft network`\n',
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

/** Answers a path at the socket alone: the contents of a packet are nobody's business but its sender's and root's. */
async function answerAtSocket(asked: Asked, health: Health): Promise<Answer> {
  if (asked.path !== '/drops.json') return answerAtPort(asked, health, true)
  if (!isRead(asked.method)) return NOT_ALLOWED
  const after = parseAfter(asked.query.get('after') ?? '')
  return after ? json(health.drops(after)) : textAnswer(400, '400 after is what the answer before had as next: 1,2,3\n')
}

const json = (value: unknown): Answer => ({
  status: 200,
  type: 'application/json',
  body: jsonLine(value),
  headers: { 'Cache-Control': 'no-store' },
})
/** The text of each status: with thousands of peers making it takes as long as the status itself. */
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
  /** The port bound to, which the kernel chose when 0 was asked for. */
  readonly port: number
  /** Ends open connections too: a prober that keeps its own must not hold up the stop. */
  close(): Promise<void>
}

interface HealthPlace {
  /** The address where the probes are answered. */
  readonly ip: string
  readonly port: number
  /** The address where the whole status is told, beside this host's loopback; empty for nowhere. */
  readonly statusIp: string
}

/**
 * Answers at these addresses, and says so to `log`. Throws WeftError PORT_IN_USE, or ADDRESS for whatever else is in the way of the
 * probes; where only the status cannot be told, that is a warning.
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
      serverOf((asked) => answerAtPort(asked, health), refusing),
      at,
      on,
    )
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
  const own = Object.values(networkInterfaces()).flatMap((each = []) => each)
  if (
    !isToldAt(
      statusIp,
      own.map((each) => each.address),
    )
  ) {
    log.error(
      `This host has no address ${statusIp}, and nobody is told the status there; give --status-ip an address of it`,
    )
  } else if (second !== undefined) {
    try {
      servers.push(await listen(second, bound))
    } catch (error) {
      log.warn(`The status cannot be served at ${second}: ${messageOf(error)}; name another address with --status-ip`)
    }
  }
  return { port: bound, close: async () => void (await Promise.all(servers.map(closing))) }
}

/** Who may hear this node's view. */
interface ViewAudience {
  isNode(address: string | undefined): boolean
  /** Rejects where it cannot be known. */
  isTrusted(authorization: string | undefined): Promise<boolean>
}

export type ViewServer = Pick<HealthServer, 'close'>

/** Tells the other nodes how this one is (view.ts), at its own address in the network. Rejects with what is in the way. */
export async function serveView(
  { address, port }: { readonly address: string; readonly port: number },
  health: Health,
  audience: ViewAudience,
): Promise<ViewServer> {
  const answerView = async (asked: Asked): Promise<Answer> => {
    if (asked.refusal) return textAnswer(asked.refusal.status, `${asked.refusal.why}\n`)
    if (asked.path !== '/view.json') return NOT_FOUND
    if (!isRead(asked.method)) return NOT_ALLOWED
    const isTrusted = await audience.isTrusted(asked.authorization).catch(() => undefined)
    if (isTrusted === undefined) return textAnswer(403, 'its own token cannot be read\n')
    if (!isTrusted) return textAnswer(401, 'its token is another\n')
    const status = await health.status()
    return json(viewOf(status, new Date().toISOString()))
  }
  const refusing = ({ socket, headers }: IncomingMessage, host: string | undefined): Refusal | undefined => {
    const { localAddress, remoteAddress } = socket
    if (!audience.isNode(remoteAddress)) return { status: 403, why: 'you are no node of this network' }
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
    const server = serverOf(
      (asked) => answerAtSocket(asked, health),
      () => undefined,
    )
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
    log.warn(`The status cannot be served at ${path}: ${messageOf(error)}; name another socket with --status-socket`)
    return undefined
  }
}

/** True when somebody takes connections at a Unix socket. */
export function isAnswered(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    const end = (answered: boolean): void => {
      socket.destroy()
      resolve(answered)
    }
    socket.once('connect', () => end(true)).once('error', () => end(false))
  })
}
