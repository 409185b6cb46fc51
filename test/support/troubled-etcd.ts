// troubled-etcd.ts - an HTTP/2 proxy in front of etcd that makes calls slow, refused or unanswered while the connection stays healthy. It
// counts what it did.
//
// `node troubled-etcd.js serve <address> <port> <etcd's URL>` runs it in a namespace. Each line on stdin is a trouble as JSON, and the
// answer is a line with the counts so far.

import {
  connect,
  constants,
  createServer,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import type { AddressInfo } from 'node:net'
import { createInterface } from 'node:readline'
import { Transform } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'

/** The trouble of calls from now on; there is none if no member is set. */
export interface Trouble {
  /** The additional delay of each call. */
  readonly delayMs?: number
  /** One call in `failOneIn` is refused with UNAVAILABLE. */
  readonly failOneIn?: number
  /** Calls of this method, such as `Txn`, are refused with UNAVAILABLE. */
  readonly failMethod?: string
  /** Calls of this method are executed, but answered as if they were refused. */
  readonly loseMethod?: string
  /** Until this ends, calls are accepted but not answered, and watches report nothing. */
  readonly hold?: boolean
}

/** The number of times that each trouble was made. */
export interface Strikes {
  readonly delayed: number
  readonly failed: number
  readonly held: number
}

interface TroubledEtcd {
  readonly endpoint: string
  readonly strikes: Strikes
  set(trouble: Trouble): void
  close(): Promise<void>
}

/** Runs until the proxy is closed; `etcd` is a URL without TLS. */
export async function startTroubledEtcd(etcd: string, address = '127.0.0.1', port = 0): Promise<TroubledEtcd> {
  const strikes = { delayed: 0, failed: 0, held: 0 }
  const sessions = new Set<ServerHttp2Session>()
  let trouble: Trouble = {}
  let calls = 0
  let held: { readonly waiting: (() => void)[] } | undefined
  const outer = connect(etcd)
  outer.on('error', () => {}) // each of its streams reports the error

  function set(next: Trouble): void {
    trouble = next
    const before = held
    held = next.hold ? { waiting: [] } : undefined
    for (const goOn of before?.waiting ?? []) goOn()
  }
  /** Passes data on, but delays it while `hold` is set. */
  const passOn = (): Transform =>
    new Transform({
      transform(chunk: Buffer, _encoding, done) {
        if (!held) return done(null, chunk)
        strikes.held++
        held.waiting.push(() => done(null, chunk))
      },
    })
  async function serve(inner: ServerHttp2Stream, headers: IncomingHttpHeaders): Promise<void> {
    inner.on('error', () => {})
    const { delayMs, failOneIn, failMethod, loseMethod } = trouble
    const is = (method?: string): boolean => method !== undefined && headers[':path']?.endsWith(`/${method}`) === true
    const refusal = {
      ':status': 200,
      'content-type': 'application/grpc',
      'grpc-status': '14',
      'grpc-message': 'busy',
    }
    const isDue = failOneIn !== undefined && ++calls % failOneIn === 0
    if (isDue || is(failMethod)) {
      strikes.failed++
      return inner.respond(refusal, { endStream: true })
    }
    if (delayMs !== undefined) {
      strikes.delayed++
      await delay(delayMs)
    }
    if (held) {
      strikes.held++
      const { waiting } = held
      await new Promise<void>((resolve) => waiting.push(resolve))
    }
    if (inner.closed) return // the deadline came first
    const call = outer.request(headers)
    call.on('error', () => inner.close(constants.NGHTTP2_CANCEL))
    inner.on('close', () => call.close(constants.NGHTTP2_CANCEL))
    call.on('response', (answer, flags) => {
      if (inner.closed) return
      if (is(loseMethod)) {
        strikes.failed++
        call.close(constants.NGHTTP2_CANCEL)
        return inner.respond(refusal, { endStream: true })
      }
      if (flags & constants.NGHTTP2_FLAG_END_STREAM) return inner.respond(answer, { endStream: true })
      let trailers: IncomingHttpHeaders = {}
      call.on('trailers', (some) => (trailers = some))
      inner.respond(answer, { waitForTrailers: true })
      inner.on('wantTrailers', () => inner.sendTrailers(trailers))
      call.pipe(passOn()).pipe(inner)
    })
    inner.pipe(passOn()).pipe(call)
  }
  const server = createServer()
  server.on('session', (session) => {
    sessions.add(session)
    session.on('close', () => sessions.delete(session))
    session.on('error', () => {})
  })
  server.on('stream', (stream, headers) => void serve(stream, headers))
  await new Promise<void>((resolve) => server.listen(port, address, resolve))
  return {
    endpoint: `http://${address}:${(server.address() as AddressInfo).port}`,
    strikes,
    set,
    async close() {
      set({})
      outer.destroy()
      for (const session of sessions) session.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

const [, , mode, address = '', port = '0', etcd = ''] = process.argv
if (mode === 'serve') {
  const proxy = await startTroubledEtcd(etcd, address, Number(port))
  process.stdout.write(`${JSON.stringify(proxy.strikes)}\n`)
  createInterface({ input: process.stdin }).on('line', (line) => {
    proxy.set(JSON.parse(line) as Trouble)
    process.stdout.write(`${JSON.stringify(proxy.strikes)}\n`)
  })
}
