// unix-socket.test.ts - a listener that cannot take a connection now takes it later, and does nothing else meanwhile.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { addon } from '../../../src/host/addon.ts'
import { connect, listen } from '../../../src/host/unix-socket.ts'

let folder: string
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'weft-socket-'))))
afterEach(() => {
  vi.restoreAllMocks()
  rmSync(folder, { recursive: true })
})

it('looks a few times a second for a descriptor while none is free, and then takes who waits', async () => {
  const path = join(folder, 'socket')
  const listener = listen(path)
  const refused = Object.assign(new Error('accept4: EMFILE'), { code: 'EMFILE' })
  let isFull = true
  const accept = addon.acceptUnix
  const accepting = vi.spyOn(addon, 'acceptUnix').mockImplementation((fd) => {
    if (isFull) throw refused
    return accept(fd)
  })
  const other = connect(path)!
  const signal = AbortSignal.timeout(60_000)
  await vi.waitUntil(() => accepting.mock.calls.length > 0)
  await delay(250)
  expect(accepting.mock.calls.length).toBeLessThanOrEqual(4)
  isFull = false
  const connection = await listener.accept(signal)
  other.send('it is me')
  expect(await connection.receive(signal)).toMatchObject({ text: 'it is me' })
  for (const each of [connection, other, listener]) each.close()
})

it('looks no more once it is closed', async () => {
  const path = join(folder, 'socket')
  const listener = listen(path)
  const accepting = vi.spyOn(addon, 'acceptUnix').mockImplementation(() => {
    throw new Error('accept4: EMFILE')
  })
  const other = connect(path)!
  await vi.waitUntil(() => accepting.mock.calls.length > 0)
  listener.close()
  accepting.mockClear()
  await delay(150)
  expect(accepting).not.toHaveBeenCalled()
  other.close()
})
