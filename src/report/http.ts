// http.ts - an HTTP server for small answers that resists overload by limits on the size and the duration of requests
// and on the number of connections.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { messageOf } from '../base/errors.ts'
import { printableLines } from '../base/text.ts'
import type { Refusal } from './audience.ts'

export interface Answer {
  readonly status: number
  readonly type: string
  readonly body: string
  readonly headers?: Readonly<Record<string, string>>
}

export interface HttpRequest {
  readonly path: string
  readonly authorization: string | undefined
  readonly query: URLSearchParams
  readonly method: string
  /** Why the client of this request may read only the health checks; undefined if it may read the full status. */
  readonly refusal: Refusal | undefined
}

export const textAnswer = (status: number, body: string): Answer => ({
  status,
  type: 'text/plain; charset=utf-8',
  body: printableLines(body),
})

/**
 * Limits of node:http. Sizes are in bytes, times in ms. In order: the size of the request header; the time to receive
 * the header; the time to receive the whole request; the time between two checks of these limits; the idle time between
 * two requests of one connection.
 */
const LIMITS = {
  maxHeaderSize: 8 << 10,
  headersTimeout: 5_000,
  requestTimeout: 5_000,
  connectionsCheckingInterval: 2_000,
  keepAliveTimeout: 5_000,
}
/** The server closes a connection after SILENT_MS milliseconds without a byte in either direction. */
const SILENT_MS = 30_000
const MOST_CONNECTIONS = 128
/**
 * The maximum number of bytes of unfinished answers, which the server holds in memory until the clients read them. The
 * status of 10,000 peers has about 5 MB.
 */
const MOST_UNREAD_BYTES = 32 << 20

/**
 * Creates the server. `refusing` returns why a request may read only the health checks; undefined if it may read the
 * full status.
 */
export function serverOf(
  answer: (request: HttpRequest) => Promise<Answer>,
  refusing: (request: IncomingMessage, host: string | undefined) => Refusal | undefined,
): Server {
  const pending = new WeakSet<Socket>()
  const limitUnread = createUnreadLimit()
  const server = createServer(LIMITS, (request, response) => {
    const { socket } = request
    request.resume()
    // Close a connection on which a request arrives before the previous one was answered (pipelining, RFC 9112 section
    // 9.3.2). Otherwise one client could make weftd build thousands of answers in one iteration of the event loop, and
    // hold them in memory until the client reads them.
    if (pending.has(socket)) return void socket.destroy()
    pending.add(socket)
    response.once('close', () => pending.delete(socket))
    const target = request.url ?? ''
    // Accept a whole URL as the request target, because HTTP clients that use a proxy send one.
    const [, authority, rest = target] = /^https?:\/\/([^/?#]*)(.*)$/is.exec(target) ?? []
    const [, path = '', query = ''] = /^([^?]*)\??(.*)$/s.exec(rest) ?? []
    const refusal = refusing(request, authority ?? request.headers.host)
    const { authorization } = request.headers
    void answer({ path, authorization, query: new URLSearchParams(query), method: request.method ?? '', refusal })
      .catch((error: unknown) => textAnswer(500, `${messageOf(error)}\n`))
      .then(({ status, type, body, headers = {} }) => {
        const isKnown = headers['ETag'] !== undefined && request.headers['if-none-match'] === headers['ETag']
        const all = { 'Content-Type': type, 'X-Content-Type-Options': 'nosniff', ...headers }
        const bytes = Buffer.from(isKnown ? '' : body)
        limitUnread(response, bytes.length)
        response.writeHead(isKnown ? 304 : status, all).end(bytes)
      })
      .catch(() => response.destroy())
  })
  // Handle errors of the server without an action, because an error of accept(), such as too many open files, would
  // otherwise end the process. The function `listening` handles the errors of listen().
  server.on('error', () => {})
  server.setTimeout(SILENT_MS, (socket: Socket) => socket.destroy())
  limitConnections(server)
  return server
}

/**
 * Makes a function that counts the bytes of an answer until the client has read them, or its connection is closed. If
 * there are too many such bytes, the function closes the connections of the oldest unfinished answers.
 */
function createUnreadLimit(): (response: ServerResponse, bytes: number) => void {
  const unread = new Map<ServerResponse, number>()
  let sum = 0
  const forget = (response: ServerResponse): void => {
    sum -= unread.get(response) ?? 0
    unread.delete(response)
  }
  return (response, bytes) => {
    if (response.destroyed) return // the client has already closed the connection
    unread.set(response, bytes)
    sum += bytes
    response.once('close', () => forget(response))
    for (const oldest of unread.keys()) {
      if (sum <= MOST_UNREAD_BYTES || oldest === response) return
      forget(oldest)
      oldest.destroy()
    }
  }
}

/**
 * If there are too many connections, closes one: the oldest connection of the client address that has the most
 * connections. So one client cannot exclude all other clients.
 */
function limitConnections(server: Server): void {
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

/** Resolves when the server listens. Rejects with the system's error if listen() fails. */
export const listening = (server: Server, ip: string, port: number): Promise<Server> =>
  new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, ip === '' ? undefined : ip, () => {
      server.off('error', reject)
      resolve(server)
    })
  })
