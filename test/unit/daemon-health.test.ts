// daemon-health.test.ts - a health port that is taken at the start: by the weftd that is to be succeeded, by one that is just ending, by others.

import { once } from 'node:events'
import { createServer, type AddressInfo, type Server } from 'node:net'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { serveHealthOf } from '../../src/daemon.ts'
import { createHealth } from '../../src/status/health.ts'

type Start = Parameters<typeof serveHealthOf>[0]
type Succession = Parameters<typeof serveHealthOf>[1]

let taken: Server
let port: number
beforeEach(async () => {
  taken = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1')
  await once(taken, 'listening')
  ;({ port } = taken.address() as AddressInfo)
})
afterEach(() => void taken.close())

const serve = (succession: Partial<Succession>) => {
  const lines: string[] = []
  const say = (line: string): void => void lines.push(line)
  const options = { 'healthz-ip': '127.0.0.1', 'healthz-port': port, 'status-ip': '127.0.0.1', 'status-socket': '' }
  const log = { info: say, warn: say, error: say, v: () => false }
  const start = { options: options as Start['options'], log, stopping: new AbortController() }
  const alone = { isSuccessor: false, predecessor: async () => undefined, free: Promise.resolve() }
  return { lines, serving: serveHealthOf(start, { ...alone, ...succession }, createHealth()) }
}
const before = (healthPort: number) => async () => ({ version: '1', store: 's', pid: 7, healthPort })

it.each<[string, () => Partial<Succession>]>([
  ['nobody is to be succeeded', () => ({})],
  ['the one before answers at another', () => ({ isSuccessor: true, predecessor: before(1) })],
])('is an error where %s', async (_who, succession) => {
  await expect(serve(succession()).serving).rejects.toMatchObject({ code: 'PORT_IN_USE' })
})

it.each<[string, () => Partial<Succession>]>([
  ['the one before answers there', () => ({ isSuccessor: true, predecessor: before(port) })],
  ['the one before has just gone', () => ({ isSuccessor: true })],
])('is answered at as soon as it is free where %s', async (_who, succession) => {
  const { serving, lines } = serve(succession())
  const health = await serving
  await expect.poll(() => lines.some((line) => line.includes('Start healthz server error.'))).toBe(true)
  taken.close()
  const answer = () => fetch(`http://127.0.0.1:${port}/healthz`).then((response) => response.text(), String)
  await expect.poll(answer).toBe('flanneld is running')
  await health.close()
})
