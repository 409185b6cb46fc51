// api-client.test.ts - an API server that answers with Retry-After (in virtual time), or with too many or too deeply nested bytes.

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { KubeApiClient, type Ask, type KubeClient } from '../../../../src/control/kube/api-client.ts'

const NODES: Ask = { method: 'GET', path: '/api/v1/nodes' }
const EVENT: Ask = { method: 'POST', path: '/api/v1/namespaces/default/events', body: {}, isDispensable: true }
const { signal } = new AbortController()
const MOST_BYTES = 1 << 20

let client: KubeClient
let close: () => void
/** asked: the requests so far. pauseOf: the Retry-After of an answer in seconds; undefined for a normal answer. */
let asked: string[]
let pauseOf: (request: IncomingMessage) => number | undefined
/** Sends the answer of the server; undefined for the usual answer. */
let instead: ((response: ServerResponse) => void) | undefined
beforeEach(async () => {
  instead = undefined
  asked = []
  pauseOf = () => undefined
  const server = createServer((request, response) => {
    asked.push(`${request.method} ${request.url}`)
    if (instead) return instead(response)
    const seconds = pauseOf(request)
    if (seconds !== undefined) response.writeHead(429, { 'retry-after': String(seconds) })
    response.end('{}')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  client = new KubeApiClient(async () => ({ server: `http://127.0.0.1:${port}` }), MOST_BYTES)
  close = () => {
    client.close()
    server.close()
  }
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
})
afterEach(() => {
  vi.useRealTimers()
  close()
})

const turns = async (times = 50): Promise<void> => {
  for (let turn = 0; turn < times; turn++) await new Promise((resolve) => setImmediate(resolve))
}

it('waits for the time in Retry-After, and starts the timeout of the request after that', async () => {
  pauseOf = () => (asked.length === 1 ? 30 : undefined)
  await expect(client.ask(NODES, signal)).rejects.toThrow('429')
  const answer = client.ask(NODES, signal)
  answer.catch(() => {})
  await vi.advanceTimersByTimeAsync(29_999)
  await turns()
  expect(asked).toHaveLength(1)
  await vi.advanceTimersByTimeAsync(1)
  await expect(answer).resolves.toEqual({})
})

it('waits for half a minute at most', async () => {
  pauseOf = () => (asked.length === 1 ? 3_600 : undefined)
  await expect(client.ask(NODES, signal)).rejects.toThrow('429')
  const answer = client.ask(NODES, signal)
  await vi.advanceTimersByTimeAsync(30_000)
  await expect(answer).resolves.toEqual({})
})

it('fails Events without waiting during a pause, and delays no other request because of them', async () => {
  pauseOf = ({ method }) => (method === 'POST' ? 30 : undefined)
  await expect(client.ask(EVENT, signal)).rejects.toThrow('429')
  await expect(client.ask(NODES, signal)).resolves.toEqual({})
  await expect(client.ask(EVENT, signal)).rejects.toThrow('the server asked for a pause')
  expect(asked).toEqual(['POST /api/v1/namespaces/default/events', 'GET /api/v1/nodes'])
  await vi.advanceTimersByTimeAsync(30_000)
  await expect(client.ask(EVENT, signal)).rejects.toThrow('429')
})

it('delays no listing because a watch must wait', async () => {
  pauseOf = ({ url }) => (url?.includes('watch=') ? 30 : undefined)
  const watch = client.watch(NODES.path, {}, 300, signal)[Symbol.asyncIterator]()
  await expect(watch.next()).rejects.toThrow('429')
  await expect(client.ask(NODES, signal)).resolves.toEqual({})
})

it('ends a wait when the signal aborts', async () => {
  pauseOf = () => 30
  await expect(client.ask(NODES, signal)).rejects.toThrow('429')
  const stopping = new AbortController()
  const answer = client.ask(NODES, stopping.signal)
  stopping.abort(new Error('over'))
  await expect(answer).rejects.toThrow('over')
  const watching = client.watch(NODES.path, {}, 300, stopping.signal)[Symbol.asyncIterator]().next()
  await expect(watching).rejects.toThrow('over')
})

const DEEP = '['.repeat(100_000) + ']'.repeat(100_000)

async function watchError(): Promise<unknown> {
  try {
    for await (const events of client.watch('/api/v1/nodes', {}, 300, signal)) expect(events).toEqual([])
  } catch (error) {
    return error
  }
  return undefined
}

it('refuses an answer and an event that are nested so deeply that they could not be printed', async () => {
  instead = (response) => void response.end(`{"metadata":{"resourceVersion":${DEEP}}}`)
  await expect(client.ask(NODES, signal)).rejects.toMatchObject({
    code: 'STORE_UNAVAILABLE',
    message: 'the Kubernetes API answers with something that is not JSON: it is nested more than 100 deep',
  })
  instead = (response) => void response.end(`{"type":"ERROR","object":${DEEP}}\n`)
  expect(await watchError()).toMatchObject({ code: 'STORE_UNAVAILABLE' })
})

/** Sends bytes until the client closes the connection. Returns a promise that resolves then. */
function endless(status: number): Promise<void> {
  return new Promise((closed) => {
    instead = (response) => {
      const part = Buffer.alloc(64 << 10, ' ')
      const send = (): void => {
        while (!response.destroyed && response.write(part));
      }
      response
        .writeHead(status, { 'content-type': 'application/json' })
        .on('drain', send)
        .on('close', () => closed())
      send()
    }
  })
}

it('ends an endless answer, an endless error and an event without an end', async () => {
  const answered = endless(200)
  await expect(client.ask(NODES, signal)).rejects.toMatchObject({
    code: 'STORE_UNAVAILABLE',
    message: `GET /api/v1/nodes: the answer is longer than ${MOST_BYTES} bytes`,
  })
  await answered
  const refused = endless(500)
  await expect(client.ask(NODES, signal)).rejects.toMatchObject({
    message: 'GET /api/v1/nodes: 500 Internal Server Error: ',
  })
  await refused
  const watched = endless(200)
  expect(await watchError()).toMatchObject({
    code: 'STORE_UNAVAILABLE',
    message: 'the watch of /api/v1/nodes sends an event without an end',
  })
  await watched
})

it('quotes only the beginning of a long explanation', async () => {
  instead = (response) => void response.writeHead(500).end(JSON.stringify({ message: 'm'.repeat(50_000) }))
  await expect(client.ask(NODES, signal)).rejects.toMatchObject({
    message: `GET /api/v1/nodes: 500 Internal Server Error: ${'m'.repeat(1_000)}`,
  })
})
