// api-client.ts - sends one HTTP request to the API of a cloud or a switch, within limits of time and size.
//
// The client does not follow a redirect, because that would send credentials to an address that the operator did not
// name. Messages contain the method, the host and the path of a request, but neither its query nor its headers nor its
// body.

import { request as requestHttp, type IncomingHttpHeaders, type IncomingMessage } from 'node:http'
import { request as requestHttps } from 'node:https'
import { messageOf, WeftError } from '../../../base/errors.ts'
import { HIDDEN } from '../../../base/secret.ts'
import { printable } from '../../../base/text.ts'
import { limited } from '../../../host/bell.ts'

/** The time limit in ms for a complete answer of the API. */
const ANSWER_MS = 10_000
/** The maximum size of an answer in bytes. A usual page of a route table has less than 100 kB. */
const ANSWER_BYTES = 4 * 1024 * 1024
/** The longest pause in ms that a server can request by Retry-After. */
const LONGEST_PAUSE_MS = 300_000
/** The maximum number of characters of an answer that an error message quotes. */
export const SHOWN = 200

export interface ApiRequest {
  readonly method: string
  readonly url: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string | undefined
  /**
   * The certificates, in PEM, of the certificate authorities to trust instead of the authorities built into Node.js.
   */
  readonly ca?: string | undefined
}

export interface ApiAnswer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  readonly text: string
}

interface ApiClientOptions {
  readonly answerMs?: number
  readonly answerBytes?: number
  /** Returns the time of a monotonic clock in ms. */
  readonly now?: () => number
}

export class ApiClient {
  /** For each origin, the time in ms of the clock `#now` before which its server accepts no request. */
  readonly #notBefore = new Map<string, number>()
  readonly #answerMs: number
  readonly #answerBytes: number
  readonly #now: () => number

  constructor({
    answerMs = ANSWER_MS,
    answerBytes = ANSWER_BYTES,
    now = () => performance.now(),
  }: ApiClientOptions = {}) {
    this.#answerMs = answerMs
    this.#answerBytes = answerBytes
    this.#now = now
  }

  /**
   * Sends a request, and returns the answer whatever its status. Throws WeftError FABRIC if there is no complete
   * answer, or if the server demanded a pause.
   */
  async send(request: ApiRequest, signal: AbortSignal): Promise<ApiAnswer> {
    const { origin } = new URL(request.url)
    const rest = (this.#notBefore.get(origin) ?? 0) - this.#now()
    const where = whereOf(request)
    if (rest > 0) throw new WeftError('FABRIC', `${where}: the server demands a pause of ${Math.ceil(rest / 1000)} s`)
    const late = () => new WeftError('FABRIC', `${where}: no complete answer within ${this.#answerMs / 1000} s`)
    const answer = await limited(signal, this.#answerMs, late, (limit) => this.#exchange(request, where, limit))
    const seconds = Number(answer.headers['retry-after'])
    if ((answer.status === 429 || answer.status === 503) && seconds > 0)
      this.#notBefore.set(origin, this.#now() + Math.min(seconds * 1000, LONGEST_PAUSE_MS))
    return answer
  }

  async #exchange(request: ApiRequest, where: string, signal: AbortSignal): Promise<ApiAnswer> {
    try {
      const response = await open(request, signal)
      const { statusCode: status = 0, headers } = response
      const pieces: Buffer[] = []
      let bytes = 0
      for await (const piece of response as AsyncIterable<Buffer>) {
        bytes += piece.length
        if (bytes > this.#answerBytes) {
          response.destroy()
          throw new WeftError('FABRIC', `${where}: the answer is longer than ${this.#answerBytes} bytes`)
        }
        pieces.push(piece)
      }
      return { status, headers, text: Buffer.concat(pieces).toString('utf8') }
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof WeftError) throw error
      throw new WeftError('FABRIC', `${where}: no answer: ${messageOf(error)}`, { cause: error })
    }
  }
}

function open({ method, url, headers, body, ca }: ApiRequest, signal: AbortSignal): Promise<IncomingMessage> {
  const bytes = body === undefined ? undefined : Buffer.from(body)
  const options = {
    method,
    // Open a connection for each request. Requests are rare, so keeping a connection alive is not worthwhile.
    agent: false as const,
    headers: { 'user-agent': 'weftd', ...headers, ...(bytes ? { 'content-length': String(bytes.length) } : {}) },
    signal,
  }
  return new Promise((resolve, reject) => {
    const request = url.startsWith('https:')
      ? requestHttps(url, { ...options, ...(ca === undefined ? {} : { ca }) })
      : requestHttp(url, options)
    request.on('response', resolve).on('error', reject).end(bytes)
  })
}

/** Formats a request for a message, without its query. */
export function whereOf({ method, url }: Pick<ApiRequest, 'method' | 'url'>): string {
  const { host, pathname } = new URL(url)
  return `${method} ${host}${pathname}`
}

/**
 * Matches the names of headers whose values an error must not contain. Some APIs repeat the request's headers in their
 * answer if they refuse its signature.
 */
const SECRET_HEADER = /authorization|token|credential|cookie|secret|key/i

/**
 * Replaces secrets in a text that a server sent, also if the server percent-encoded the secrets or wrote them as JSON.
 */
export function hideIn(text: string, secrets: readonly string[]): string {
  const forms = secrets.flatMap((secret) => {
    const inJson = JSON.stringify(secret).slice(1, -1)
    const raw = [secret, inJson, inJson.replaceAll('/', String.raw`\/`)]
    if (/\p{Surrogate}/u.test(secret)) return raw // such a text has no percent-encoding
    const encoded = encodeURIComponent(secret)
    return [...raw, encoded, encodeURIComponent(encoded)]
  })
  // Replace the longest form first, because a secret can contain another secret.
  const longestFirst = forms.filter(({ length }) => length > 3).toSorted((a, b) => b.length - a.length)
  return longestFirst.reduce((left, secret) => left.replaceAll(secret, HIDDEN), text)
}

/** Returns the values of secret headers, and each word of the values, such as the token after `Bearer`. */
const secretsOf = (headers: Readonly<Record<string, string>>): readonly string[] =>
  Object.entries(headers)
    .filter(([name]) => SECRET_HEADER.test(name))
    .flatMap(([, value]) => [value, ...value.split(/[\s,]+/)])

/**
 * Makes the error for an answer with which the API refused a request. `code` and `message` come from the API; without
 * them the error quotes the text of the answer. The error contains no secret header of the request, even if the API
 * repeats the header.
 */
export function refusalOf(
  request: Pick<ApiRequest, 'method' | 'url' | 'headers'>,
  { status, text }: ApiAnswer,
  code = '',
  message = text.trim(),
  remedy?: string,
): WeftError {
  const shown = [code, message].map((each) => printable(hideIn(each, secretsOf(request.headers ?? {}))).slice(0, SHOWN))
  const words = [String(status), ...shown].filter((word) => word !== '').join(' ')
  return new WeftError('FABRIC', `${whereOf(request)}: ${words}`, { remedy })
}

/**
 * Returns the error for an action that the API refused with an error code. `remedies` gives the remedy for the whole
 * code, or else for the part of the code before its first dot.
 */
export function actionRefusal(
  request: Pick<ApiRequest, 'method' | 'url' | 'headers'>,
  answer: ApiAnswer,
  action: string,
  { code = '', message }: { readonly code?: string | undefined; readonly message?: string | undefined },
  remedies: Readonly<Record<string, string>>,
): WeftError {
  const known = [code, code.split('.')[0] ?? ''].find((each) => Object.hasOwn(remedies, each))
  const remedy = known === undefined ? undefined : remedies[known]
  return refusalOf(request, answer, `${action}: ${code}`, message, remedy)
}

/** Parses an answer that must be a JSON object. Throws WeftError FABRIC if it is anything else. */
export function jsonOf(request: Pick<ApiRequest, 'method' | 'url'>, answer: ApiAnswer): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(answer.text)
    if (typeof value === 'object' && value !== null) return value as Record<string, unknown>
  } catch {
    // Ignore the syntax error: the WeftError below says that the answer is not JSON.
  }
  throw new WeftError('FABRIC', `${whereOf(request)}: the answer with status ${answer.status} is not JSON`)
}
