// api-client.test.ts - an API server that answers with Retry-After, in virtual time.

import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { KubeApiClient, type Ask, type KubeClient } from '../../../../src/control/kube/api-client.ts'

const NODES: Ask = { method: 'GET', path: '/api/v1/nodes' }
const EVENT: Ask = { method: 'POST', path: '/api/v1/namespaces/default/events', body: {}, isDispensable: true }
const { signal } = new AbortController()

let client: KubeClient
let close: () => void
/** asked: the requests so far. pauseOf: the Retry-After of an answer in seconds; undefined for a normal answer. */
let asked: string[]
let pauseOf: (request: IncomingMessage) => number | undefined
beforeEach(async () => {
  asked = []
  pauseOf = () => undefined
  const server = createServer((request, response) => {
    asked.push(`${request.method} ${request.url}`)
    const seconds = pauseOf(request)
    if (seconds !== undefined) response.writeHead(429, { 'retry-after': String(seconds) })
    response.end('{}')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  client = new KubeApiClient(async () => ({ server: `http://127.0.0.1:${port}` }))
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
