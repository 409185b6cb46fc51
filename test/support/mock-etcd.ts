// mock-etcd.ts - a mock of an etcd member, or of a proxy, that gives the test's answers: gRPC over HTTP/2, without TLS.

import { createServer, constants, type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'

/** Encodes a protobuf field that is a number below 128, or a message. */
export const field = (number: number, value: number | Buffer): Buffer =>
  typeof value === 'number'
    ? Buffer.from([number << 3, value])
    : Buffer.concat([Buffer.from([(number << 3) | 2, value.length]), value])

/** Encodes a ResponseHeader; fields that are 0 are left out, as in protobuf. */
export const header = (of: { cluster?: number; revision?: number; term?: number }): Buffer =>
  field(
    1,
    Buffer.concat([
      ...(of.cluster ? [field(1, of.cluster)] : []),
      ...(of.revision ? [field(3, of.revision)] : []),
      ...(of.term ? [field(4, of.term)] : []),
    ]),
  )

/** The bytes of a response, or the gRPC status of a refusal. */
export type Answer = Buffer | { readonly status: number; readonly message: string }

export interface Call {
  /** The service and the method, such as `KV/Range`. */
  readonly method: string
  readonly headers: NodeJS.Dict<string | string[]>
  readonly session: ServerHttp2Session
  /** Sends one more message of a stream. */
  send(message: Buffer): void
}

export interface MockEtcd {
  readonly endpoint: string
  /** The methods that were called, in order. */
  readonly calls: string[]
  /** The number of pings that arrived, over all connections. */
  readonly pings: number
  readonly sessions: ReadonlySet<ServerHttp2Session>
  close(): Promise<void>
}

/** Ends a connection like a Go server whose client pings too often (grpc-go, http2_server.go). */
export const endForPings = (session: ServerHttp2Session): void =>
  session.goaway(constants.NGHTTP2_ENHANCE_YOUR_CALM, 0, Buffer.from('too_many_pings'))

/** Starts the mock. `answer` returns undefined for a stream that stays open. */
export async function startMockEtcd(answer: (call: Call) => Answer | undefined): Promise<MockEtcd> {
  const calls: string[] = []
  const sessions = new Set<ServerHttp2Session>()
  let pings = 0
  const framed = (message: Buffer): Buffer => {
    const length = Buffer.alloc(5)
    length.writeUInt32BE(message.length, 1)
    return Buffer.concat([length, message])
  }
  const server = createServer()
  server.on('session', (session) => {
    sessions.add(session)
    session.on('ping', () => void pings++)
    session.on('error', () => {})
    session.on('close', () => sessions.delete(session))
  })
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    stream.on('error', () => {})
    const method = String(headers[':path']).replace(/^\/etcdserverpb\./, '')
    const session = stream.session as ServerHttp2Session | undefined
    if (!session) return
    const begin = (): void => {
      if (stream.headersSent) return
      stream.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true })
      stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }))
    }
    const send = (message: Buffer): void => {
      begin()
      stream.write(framed(message))
    }
    stream.once('data', () => {
      calls.push(method)
      const given = answer({ method, headers, session, send })
      if (stream.closed || stream.destroyed) return
      if (!given) return begin()
      if (Buffer.isBuffer(given)) {
        begin()
        return stream.end(framed(given))
      }
      const refusal = { 'grpc-status': String(given.status), 'grpc-message': given.message }
      stream.respond({ ':status': 200, 'content-type': 'application/grpc', ...refusal }, { endStream: true })
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls,
    get pings() {
      return pings
    },
    sessions,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        for (const session of sessions) session.destroy()
      }),
  }
}
