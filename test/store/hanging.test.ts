// hanging.test.ts - a lease directory whose file server is gone: the calls that hang there must not block anything else.

import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { open, readFile, type FileHandle } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { DirectoryStore } from '../../src/control/store/directory/directory.ts'
import { addon } from '../../src/host/addon.ts'

/** Makes a named pipe. Opening it waits until another process writes, unless the open has O_NONBLOCK. */
const makePipe = (path: string): unknown => execFileSync('mkfifo', [path])

it('blocks at most two of the threads that all files of the process share, and does not block a stop', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-hanging-'))
  const other = join(folder, 'other')
  writeFileSync(other, 'read')
  const stopping = new AbortController()
  const directories = Array.from({ length: 8 }, (_, at) => join(folder, String(at)))
  const stores = directories.map((directory) => new DirectoryStore({ directory }))
  // A lock that another open file has hangs in the kernel like a file on a dead server.
  const locks: FileHandle[] = []
  try {
    for (const [at, store] of stores.entries()) {
      await store.list(stopping.signal) // this creates the directory
      const lock = await open(join(directories[at]!, 'lock'), 'a')
      locks.push(lock)
      await addon.lockFile(lock.fd)
    }
    const value = '{"PublicIP":"192.0.2.1","PublicIPv6":null}'
    const asked = stores.map((store) =>
      store.create('10.5.1.0-24', value, stopping.signal).catch((error: unknown) => error),
    )
    await nextTurn()
    expect(await Promise.all(Array.from({ length: 8 }, () => readFile(other, 'utf8')))).toEqual(Array(8).fill('read'))
    const reason = new Error('stop')
    stopping.abort(reason)
    expect(await Promise.all(asked)).toEqual(asked.map(() => reason))
    for (const store of stores) await store.close()
  } finally {
    for (const lock of locks) await lock.close()
    rmSync(folder, { recursive: true })
  }
})

it('ignores a pipe in place of the configuration without waiting for it', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'weft-hanging-'))
  const store = new DirectoryStore({ directory })
  const signal = AbortSignal.timeout(60_000)
  try {
    makePipe(join(directory, 'config'))
    await expect(store.config(signal)).rejects.toThrow(`${directory}/config is not a file`)
    await store.close()
  } finally {
    rmSync(directory, { recursive: true })
  }
})

it('ignores a pipe in place of a lease without waiting for it', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'weft-hanging-'))
  const store = new DirectoryStore({ directory })
  const signal = AbortSignal.timeout(60_000)
  try {
    await store.create('10.5.1.0-24', '{"PublicIP":"192.0.2.1","PublicIPv6":null}', signal)
    for (let third = 2; third < 9; third++) makePipe(join(directory, 'subnets', `10.5.${third}.0-24`))
    expect((await store.list(signal)).entries.map(({ key }) => key)).toEqual(['10.5.1.0-24'])
    await store.close()
  } finally {
    rmSync(directory, { recursive: true })
  }
})
