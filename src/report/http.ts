// http.ts - an HTTP server that whoever reaches it cannot keep busy, for answers that are made whole: it bounds the requests, their time, and
// the connections of each who asks.

import { createServer, type IncomingMessage, type Server } from 'node:http'
import type { Socket } from 'node:net'
import { messageOf } from '../base/errors.ts'
import { printableLines } from '../base/text.ts'
import type { Refusal } from './audience.ts'

export interface Answer {
  readonly status: number
  readonly type: string
  readonly body: string
  /** Beside the type. */
  readonly headers?: Readonly<Record<string, string>>
}

export interface Asked {
  readonly path: string
  readonly authorization: string | undefined
  readonly query: URLSearchParams
  readonly method: string
  /** The reason why whoever asks gets no more than the probes. */
  readonly refusal: Refusal | undefined
}

export const textAnswer = (status: number, body: string): Answer => ({
  status,
  type: 'text/plain; charset=utf-8',
  body: printableLines(body),
})

/**
 * The limits of a request: the size of its header, the time for the header and for the whole request, the time without
 * a byte in either direction. Node.js looks for requests that take too long every two seconds.
 */
const LIMITS = {
  maxHeaderSize: 8 << 10,
  headersTimeout: 5_000,
  requestTimeout: 5_000,
  connectionsCheckingInterval: 2_000,
  keepAliveTimeout: 5_000,
}
const SILENT_MS = 30_000
const MOST_CONNECTIONS = 128

/** `refusing`: why a request is told no more than the probes; undefined when it may hear all. */
export function serverOf(
  answer: (asked: Asked) => Promise<Answer>,
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
    const { authorization } = request.headers
    void answer({ path, authorization, query: new URLSearchParams(query), method: request.method ?? '', refusal })
      .catch((error: unknown) => textAnswer(500, `${messageOf(error)}\n`))
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

/** Closes, of too many connections, the oldest of whoever has most: who opens many keeps nobody else out. */
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

export const closing = (server: Server): Promise<void> =>
  new Promise((resolve) => {
    server.close(() => resolve())
    server.closeAllConnections()
  })

/** Resolves once it listens. */
export const listening = (server: Server, ip: string, port: number): Promise<Server> =>
  new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, ip === '' ? undefined : ip, () => {
      server.off('error', reject)
      resolve(server)
    })
  })
