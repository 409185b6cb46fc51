// serve.test.ts - a health port that is taken at the start: by the weftd that is to be succeeded, by one that is just ending, by others.

import { once } from 'node:events'
import { createServer, type AddressInfo, type Server } from 'node:net'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { createHealth } from '../../../src/status/health.ts'
import { serveStatus, type DaemonBefore } from '../../../src/status/serve.ts'

let taken: Server
let port: number
beforeEach(async () => {
  taken = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1')
  await once(taken, 'listening')
  ;({ port } = taken.address() as AddressInfo)
})
afterEach(() => void taken.close())

const serve = (before: Partial<DaemonBefore>) => {
  const lines: string[] = []
  const say = (line: string): void => void lines.push(line)
  const places = { 'healthz-ip': '127.0.0.1', 'healthz-port': port, 'status-ip': '127.0.0.1', 'status-socket': '' }
  const log = { info: say, warn: say, error: say, v: () => false }
  const alone: DaemonBefore = { isSuccessor: false, predecessor: async () => undefined, free: Promise.resolve() }
  return { lines, serving: serveStatus(places, createHealth(), { ...alone, ...before }, log, new AbortController()) }
}
const answersAt = (healthPort: number) => async () => ({ healthPort })

it.each<[string, () => Partial<DaemonBefore>]>([
  ['nobody is to be succeeded', () => ({})],
  ['the one before answers at another', () => ({ isSuccessor: true, predecessor: answersAt(1) })],
])('is an error where %s', async (_who, before) => {
  await expect(serve(before()).serving).rejects.toMatchObject({ code: 'PORT_IN_USE' })
})

it.each<[string, () => Partial<DaemonBefore>]>([
  ['the one before answers there', () => ({ isSuccessor: true, predecessor: answersAt(port) })],
  ['the one before has just gone', () => ({ isSuccessor: true })],
])('is answered at as soon as it is free where %s', async (_who, before) => {
  const { serving, lines } = serve(before())
  const health = await serving
  await expect.poll(() => lines.some((line) => line.includes('Start healthz server error.'))).toBe(true)
  taken.close()
  const answer = () => fetch(`http://127.0.0.1:${port}/healthz`).then((response) => response.text(), String)
  await expect.poll(answer).toBe('flanneld is running')
  await health.close()
})
