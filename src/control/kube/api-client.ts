// api-client.ts - a client of the Kubernetes API: requests and watches. Failures become a WeftError.
//
// The client uses HTTP/1.1 of Node.js, in which an open watch occupies a connection and requests need a second one. A
// daemon sends few requests, so the second connection costs little. Callers decide about retries; the client itself
// only obeys a server's Retry-After.

import { request as requestHttp, Agent as HttpAgent, type ClientRequest, type IncomingMessage } from 'node:http'
import { request as requestHttps, Agent as HttpsAgent } from 'node:https'
import type { Readable } from 'node:stream'
import { createGunzip } from 'node:zlib'
import { messageOf, WeftError } from '../../base/errors.ts'
import { limited, pause } from '../../host/bell.ts'
import { parseJson } from '../config/hidden.ts'
import type { Access } from './access.ts'
import { explanationOf, PROTOBUF } from './protobuf.ts'

/** How long reading a complete answer of the API server may take, in ms. A listing of 500 nodes has about 10 MB. */
const ANSWER_MS = 30_000
/**
 * How much longer than requested a watch may last, in ms. After that time weftd ends the watch, because the API server,
 * or a proxy before the API server, has stopped answering.
 */
const WATCH_GRACE_MS = 10_000
/**
 * The idle time in ms before TCP sends keepalive probes. Node.js sends ten probes one second apart (libuv,
 * uv_tcp_keepalive), so a dead connection is noticed within 15 s.
 */
const KEEPALIVE_MS = 5_000
/**
 * The maximum Retry-After of the API server that weftd obeys, in seconds, because changes of nodes must be noticed
 * within a minute.
 */
const LONGEST_RETRY_AFTER_S = 30
/**
 * The maximum number of characters that a message quotes from an error answer, if the answer is not a Status object of
 * the Kubernetes API.
 */
const SHOWN_BODY = 200
/** The maximum number of characters that a message quotes from a Status object of the Kubernetes API. */
const SHOWN_MESSAGE = 1_000
/**
 * The maximum size in bytes of an unpacked answer. weftd requests 500 nodes at a time, which have about 10 MB. The limits
 * are needed because a broken server or proxy may send an endless answer, which would use up the host's memory.
 */
const MOST_ANSWER_BYTES = 256 << 20
/** The number of bytes of an error answer after which weftd stops reading. */
const MOST_ERROR_BYTES = 64 << 10
/** The maximum number of characters of one event of a watch. A Node object in etcd has at most 1.5 MiB. */
const MOST_EVENT = 8 << 20

/**
 * The Accept header of a request for only the metadata of nodes. The metadata are a small part of a Node object. A
 * server without this feature sends complete objects.
 */
const METADATA_ONLY = 'application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json'

export interface WatchEvent {
  readonly type?: string
  readonly object?: unknown
}

export interface Ask {
  readonly method: 'GET' | 'POST' | 'PATCH'
  readonly path: string
  readonly query?: Readonly<Record<string, string>>
  /** The body of the request, which is sent as JSON. */
  readonly body?: unknown
  readonly contentType?: string
  /** True if this request must fail immediately, and not wait, while the API server demands a pause (Retry-After). */
  readonly isDispensable?: true
  /**
   * Decodes an answer in Protocol Buffers. If `decode` is given, the client accepts Protocol Buffers, which cost the API
   * server less CPU time than JSON. A server that has only JSON answers in JSON.
   */
  readonly decode?: (bytes: Buffer) => unknown
}

export interface KubeClient {
  /**
   * Sends a request and returns the parsed answer. Returns undefined if the request is a GET of an object that does not
   * exist.
   */
  ask<T>(ask: Ask, signal: AbortSignal): Promise<T | undefined>
  /**
   * Watches objects for at most `seconds`, and yields batches of events. The first batch is empty, and shows that the
   * server began to answer.
   */
  watch(
    path: string,
    query: Readonly<Record<string, string>>,
    seconds: number,
    signal: AbortSignal,
  ): AsyncIterable<readonly WatchEvent[]>
  close(): void
}

export class KubeApiClient implements KubeClient {
  /** Returns the API server's address and credentials. The client calls this function before each request. */
  readonly #access: () => Promise<Access>
  /** The HTTP agents, which keep idle connections for later requests. */
  readonly #agents = {
    http: new HttpAgent({ keepAlive: true }),
    https: new HttpsAgent({ keepAlive: true }),
  }
  /**
   * For each kind of request, the time in ms of performance.now() until which the API server rejects requests of this
   * kind. The server limits each kind separately (API Priority and Fairness), so weftd must not delay its requests for
   * Node objects because the server rejected an Event.
   */
  readonly #notBefore = new Map<string, number>()

  /** The maximum size in bytes of an unpacked answer. */
  readonly #mostBytes: number

  constructor(access: () => Promise<Access>, mostBytes = MOST_ANSWER_BYTES) {
    this.#access = access
    this.#mostBytes = mostBytes
  }

  async ask<T>(ask: Ask, signal: AbortSignal): Promise<T | undefined> {
    await this.#waitFor(ask, signal)
    return within(ANSWER_MS, signal, `${ask.method} ${ask.path}`, async (limit) => {
      const response = await this.#open(ask, ask.decode ? `${PROTOBUF},application/json` : 'application/json', limit)
      await this.#check(
        response,
        ask,
        (status) => (status >= 200 && status < 300) || (status === 404 && ask.method === 'GET'),
      )
      const bytes = await bytesOf(response, this.#mostBytes)
      if (bytes.length > this.#mostBytes)
        throw new WeftError(
          'STORE_UNAVAILABLE',
          `${ask.method} ${ask.path}: the answer is longer than ${this.#mostBytes} bytes`,
        )
      if (response.statusCode === 404) return undefined
      return (ask.decode && isProtobuf(response) ? ask.decode(bytes) : parse(bytes.toString())) as T
    })
  }

  async *watch(
    path: string,
    query: Readonly<Record<string, string>>,
    seconds: number,
    signal: AbortSignal,
  ): AsyncGenerator<WatchEvent[], void> {
    const ask: Ask = { method: 'GET', path, query: { ...query, watch: 'true', timeoutSeconds: String(seconds) } }
    const ended = new AbortController()
    const onAbort = (): void => ended.abort(signal.reason)
    signal.addEventListener('abort', onAbort)
    const late = (): void =>
      ended.abort(new WeftError('STORE_UNAVAILABLE', `the watch of ${path} was silent for too long`))
    let timer: NodeJS.Timeout | undefined
    try {
      signal.throwIfAborted()
      await this.#waitFor(ask, ended.signal)
      timer = setTimeout(late, ANSWER_MS)
      const response = await this.#open(ask, METADATA_ONLY, ended.signal)
      await this.#check(response, ask, (status) => status === 200)
      clearTimeout(timer)
      timer = setTimeout(late, seconds * 1000 + WATCH_GRACE_MS)
      yield []
      // In a watch the API server sends one event per line. An incomplete line at the end of the response is dropped,
      // because the next watch repeats the event.
      let rest = ''
      for await (const chunk of unpacked(response).setEncoding('utf8') as AsyncIterable<string>) {
        const lines = (rest + chunk).split('\n')
        rest = lines.pop() ?? ''
        if (rest.length > MOST_EVENT)
          throw new WeftError('STORE_UNAVAILABLE', `the watch of ${path} sends an event without an end`)
        const events = lines.filter((line) => line !== '').map(parseEvent)
        if (events.length > 0) yield events
      }
    } catch (error) {
      if (ended.signal.aborted) throw ended.signal.reason
      throw error instanceof WeftError ? error : unreachable(path, error)
    } finally {
      clearTimeout(timer)
      signal.removeEventListener('abort', onAbort)
      ended.abort() // closes the connection
    }
  }

  close(): void {
    this.#agents.http.destroy()
    this.#agents.https.destroy()
  }

  /**
   * Waits as long as the API server demands a pause for this kind of request (Retry-After). The time limit ANSWER_MS
   * starts only after the wait.
   */
  async #waitFor(ask: Ask, signal: AbortSignal): Promise<void> {
    const now = performance.now()
    for (const [kind, time] of this.#notBefore) if (time <= now) this.#notBefore.delete(kind)
    const until = this.#notBefore.get(kindOf(ask))
    if (until === undefined) return
    if (ask.isDispensable)
      throw new WeftError('STORE_UNAVAILABLE', `${ask.method} ${ask.path}: the server asked for a pause`)
    await pause(signal, until - now)
  }

  /** Sends a request and returns the response before its body is read. */
  async #open(ask: Ask, accept: string, signal: AbortSignal): Promise<IncomingMessage> {
    const access = await this.#access()
    const { server, authorization } = access
    const url = new URL(`${server}${ask.path}`)
    for (const [name, value] of Object.entries(ask.query ?? {})) url.searchParams.set(name, value)
    const body = ask.body === undefined ? undefined : Buffer.from(JSON.stringify(ask.body))
    const headers = {
      accept,
      'user-agent': 'weftd',
      'accept-encoding': 'gzip',
      ...(authorization && { authorization: authorization.reveal() }),
      ...(body && { 'content-type': ask.contentType ?? 'application/json', 'content-length': body.length }),
    }
    const common = { method: ask.method, headers, signal }
    const begin = (): ClientRequest =>
      url.protocol === 'https:'
        ? requestHttps(url, { ...common, ...tlsOptions(access), agent: this.#agents.https })
        : requestHttp(url, { ...common, agent: this.#agents.http })
    try {
      return await responseOf(begin, body, signal)
    } catch (error) {
      throw signal.aborted ? signal.reason : unreachable(server, error) // includes an invalid certificate or key
    }
  }

  /** Throws a WeftError with the server's explanation if `good` returns false for the HTTP status of the response. */
  async #check(response: IncomingMessage, ask: Ask, good: (status: number) => boolean): Promise<void> {
    const { statusCode = 0, statusMessage = '', headers } = response
    if (good(statusCode)) return
    const seconds = Number(headers['retry-after'])
    if (seconds > 0)
      this.#notBefore.set(kindOf(ask), performance.now() + Math.min(seconds, LONGEST_RETRY_AFTER_S) * 1000)
    const bytes = await bytesOf(response, MOST_ERROR_BYTES).catch(() => Buffer.alloc(0))
    const text = isProtobuf(response) ? explanationOf(bytes) : bytes.toString()
    throw statusError(statusCode, `${ask.method} ${ask.path}: ${statusCode} ${statusMessage}`, text)
  }
}

const kindOf = ({ method, path, query }: Ask): string => `${method} ${path} ${query?.['watch'] ?? ''}`

/**
 * Returns the TLS options of a request. Node.js's HTTP agent reuses a connection only for equal TLS options. So after
 * the authority or the certificate has changed, the next request makes a new connection.
 */
const tlsOptions = ({ ca, cert, key, serverName, isInsecure }: Access) => ({
  ...(ca === undefined ? {} : { ca }),
  ...(cert === undefined ? {} : { cert }),
  ...(key && { key: key.reveal() }),
  ...(serverName === undefined ? {} : { servername: serverName }),
  ...(isInsecure ? { rejectUnauthorized: false } : {}),
})

/** Sends the request that `begin` creates, and resolves with its response. */
function responseOf(
  begin: () => ClientRequest,
  body: Buffer | undefined,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const request = begin()
    let isOver = false
    request.on('socket', (socket) => socket.setKeepAlive(true, KEEPALIVE_MS))
    request
      .on('response', (response) => {
        isOver = true
        resolve(response)
      })
      .on('error', (error: NodeJS.ErrnoException) => {
        if (isOver) return // reading the answer fails with this error
        isOver = true
        // If the server closed an idle connection just as this request reused it (Node.js, request.reusedSocket), send
        // the request again over a new connection.
        if (request.reusedSocket && error.code === 'ECONNRESET' && !signal.aborted)
          resolve(responseOf(begin, body, signal))
        else reject(error)
      })
      .end(body)
  })
}

const unreachable = (where: string, cause: unknown): WeftError => {
  const { code } = cause as NodeJS.ErrnoException
  return new WeftError(
    'STORE_UNAVAILABLE',
    `the Kubernetes API at ${where} does not answer: ${messageOf(cause) || code || 'no reason given'}`,
    { cause },
  )
}

/** Runs `work` with a signal that aborts with a WeftError after `ms` milliseconds. */
async function within<T>(
  ms: number,
  signal: AbortSignal,
  what: string,
  work: (limit: AbortSignal) => Promise<T>,
): Promise<T> {
  const late = () => new WeftError('STORE_UNAVAILABLE', `${what}: no answer within ${ms / 1000} s`)
  try {
    return await limited(signal, ms, late, work)
  } catch (error) {
    signal.throwIfAborted()
    throw error instanceof WeftError ? error : unreachable(what, error)
  }
}

/** Returns the stream of the body of an HTTP response, decompressed. The stream fails if the connection breaks. */
function unpacked(response: IncomingMessage): Readable {
  if (response.headers['content-encoding'] !== 'gzip') return response
  const gunzip = createGunzip()
  return response.on('error', (error) => gunzip.destroy(error)).pipe(gunzip)
}

/**
 * Reads and decompresses the body of an HTTP response. If the body has more than `most` bytes, closes the connection,
 * and returns a beginning of the body with more than `most` bytes.
 */
async function bytesOf(response: IncomingMessage, most: number): Promise<Buffer> {
  const parts: Buffer[] = []
  let length = 0
  for await (const part of unpacked(response)) {
    parts.push(part as Buffer)
    length += (part as Buffer).length
    if (length <= most) continue
    response.destroy()
    break
  }
  return Buffer.concat(parts)
}

const isProtobuf = ({ headers }: IncomingMessage): boolean => headers['content-type']?.startsWith(PROTOBUF) ?? false

function parse(text: string): unknown {
  try {
    return parseJson(text) // refuses deep nesting, with which JSON.stringify would fail later
  } catch (error) {
    throw new WeftError(
      'STORE_UNAVAILABLE',
      `the Kubernetes API answers with something that is not JSON: ${messageOf(error)}`,
    )
  }
}

function parseEvent(line: string): WatchEvent {
  const event = parse(line)
  if (typeof event === 'object' && event !== null) return event
  throw new WeftError(
    'STORE_UNAVAILABLE',
    `the Kubernetes API sends something that is not an event: ${line.slice(0, SHOWN_BODY)}`,
  )
}

/**
 * Converts an error answer of the API server to a WeftError. `text` is the body of the answer: a Status object
 * (Kubernetes, API conventions) or any other text.
 */
export function statusError(code: number, what: string, text: string): WeftError {
  let message = text.slice(0, SHOWN_BODY)
  try {
    const status = JSON.parse(text) as { message?: unknown }
    if (typeof status.message === 'string') message = status.message.slice(0, SHOWN_MESSAGE)
  } catch {
    // A proxy may answer with a text that is not JSON. In that case the error message quotes the text.
  }
  const line = message === '' ? what : `${what}: ${message.trim()}`
  if (code === 410) return new WeftError('GAP', line)
  if (code === 401)
    return new WeftError('STORE_UNAVAILABLE', line, {
      remedy: 'its token or certificate is not valid; it is read again at each try',
    })
  if (code === 403)
    return new WeftError('STORE_UNAVAILABLE', line, {
      remedy: 'give its account the rights of deploy/kubernetes/weft.yaml',
    })
  const mayPass = code === 404 || code === 409 || code === 429 || code >= 500
  return mayPass
    ? new WeftError('STORE_UNAVAILABLE', line)
    : new WeftError('STORE', line, {
        remedy: 'the API server and weft do not understand each other; report this as a bug',
      })
}
