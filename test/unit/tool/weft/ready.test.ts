// ready.test.ts - `weft ready` and its exit codes, against a daemon of the test.

import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { STATUS_SCHEMA } from '../../../../src/report/status.ts'
import { main } from '../../../../src/tool/weft/weft.ts'

let folder: string
let server: Server
/** The answers of `/readyz` in order; the last one is repeated. */
let answers: number[]
let asked: number
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-ready-'))
  asked = 0
  server = createServer(({ url }, response) => {
    if (url === '/status.json')
      return response.end(JSON.stringify({ schema: STATUS_SCHEMA, summary: 'waiting for a lease' }))
    asked++
    return response.writeHead(answers.length > 1 ? answers.shift()! : answers[0]!).end('x')
  })
})
afterEach(async () => {
  await new Promise((resolve) => server.close(resolve))
  rmSync(folder, { recursive: true })
})

const socket = (): string => join(folder, 'weftd.sock')
const listen = (): Promise<void> => new Promise((resolve) => server.listen(socket(), resolve))

async function ready(...words: string[]): Promise<{ code: number; out: string; err: string }> {
  let [out, err] = ['', '']
  const screen = {
    width: 80,
    isTerminal: false,
    colour: (_: string, text: string) => text,
    isRead: () => true,
    write: (text: string) => void (out += text),
    warn: (text: string) => void (err += text),
  } as unknown as Parameters<typeof main>[1]
  const code = await main(['ready', '--status-socket', socket(), ...words], screen)
  return { code, out, err }
}

it('exits with 0 if the daemon is ready', async () => {
  answers = [200]
  await listen()
  expect(await ready()).toEqual({ code: 0, out: 'ready\n', err: '' })
})

it('exits with 3 if the daemon is not ready, and names what the daemon waits for', async () => {
  answers = [503]
  await listen()
  expect(await ready()).toEqual({ code: 3, out: 'not ready: waiting for a lease\n', err: '' })
  expect(asked).toBe(1)
})

it('exits with 1 if no daemon answers', async () => {
  await listen()
  await new Promise((resolve) => server.close(resolve))
  expect(await ready()).toMatchObject({ code: 1, out: '', err: expect.stringContaining('no weftd answers at') })
  server.listen(join(folder, 'other'))
})

it('waits for a daemon that is not ready or not started, but not longer than requested', async () => {
  answers = [503, 503, 200]
  const waiting = ready('--wait', '60')
  await listen()
  expect(await waiting).toEqual({ code: 0, out: 'ready\n', err: '' })
  answers = [503]
  expect(await ready('--wait', '1')).toMatchObject({ code: 3 })
  expect(asked).toBeGreaterThan(4)
})

it('refuses a negative time', async () => {
  answers = [200]
  await listen()
  expect(await ready('--wait', '-1')).toMatchObject({ code: 2, err: expect.stringContaining('--wait is -1') })
})

it('refuses an empty path of the socket, with which Node.js would send the request to TCP port 80 of the host', async () => {
  expect(await ready('--status-socket=')).toEqual({
    code: 1,
    out: '',
    err: expect.stringContaining("no weftd answers at '': the path of the socket is empty"),
  })
})
