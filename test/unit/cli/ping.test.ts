// ping.test.ts - what weft ping exits with: whether anything came back.

import { createServer, type Server } from 'node:http'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import type { OpenEcho } from '../../../src/host/echo.ts'
import { soundStatus } from '../../support/facts.ts'
import { weft } from '../../support/screen.ts'

/** Which requests are answered, by their order. */
let answered: readonly boolean[]
vi.mock('../../../src/host/echo.ts', () => ({
  openEcho: ((_source, onAnswer) => {
    let sent = 0
    return {
      send(to, sequence) {
        if (answered[sent++]) setImmediate(onAnswer, to, sequence, 1.5)
      },
      close: () => {},
    }
  }) satisfies OpenEcho,
}))

let folder: string
let server: Server
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-ping-'))
  server = createServer((_request, response) => response.end(JSON.stringify(soundStatus)))
  await new Promise<void>((resolve) => server.listen(join(folder, 'socket'), resolve))
})
afterEach(() => {
  server.close()
  rmSync(folder, { recursive: true })
})

it.each([
  [[true, true], 0, '2 of 2 answered (0% lost)'],
  [[true, false], 0, '1 of 2 answered (50% lost)'],
  [[false, true], 0, '1 of 2 answered (50% lost)'],
  [[false, false], 3, '0 of 2 answered (100% lost)'],
])('with answers %j it exits with %d', async (answers, code, sum) => {
  answered = answers
  const shown = await weft(['ping', '10.5.2.0/24', '--count', '2', '--status-socket', join(folder, 'socket')])
  expect([shown.code, shown.err]).toEqual([code, ''])
  expect(shown.out).toContain(sum)
})
