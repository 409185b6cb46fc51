// hanging.test.ts - a lease directory whose file server is gone: the calls that hang there must not block anything else.

import { execFileSync } from 'node:child_process'
import { constants, linkSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { open, readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { DirectoryStore } from '../../src/control/store/directory/directory.ts'
import { eventually } from '../support/event.ts'

/** A named pipe hangs in the kernel like a file on a dead server: opening it waits until another process writes. */
function pipeIn(directory: string, name: string): string {
  const path = join(directory, name)
  execFileSync('mkfifo', [path])
  return path
}

it('blocks at most two of the threads that all files of the process share, and does not block a stop', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'weft-hanging-'))
  const pipe = pipeIn(directory, 'config')
  const [same, other] = [join(directory, 'same'), join(directory, 'other')]
  linkSync(pipe, same)
  writeFileSync(other, 'read')
  const store = new DirectoryStore({ directory })
  const stopping = new AbortController()
  try {
    await store.list(stopping.signal) // this creates the directories
    const asked = Array.from({ length: 8 }, () => store.config(stopping.signal).catch((error: unknown) => error))
    await nextTurn()
    expect(await Promise.all(Array.from({ length: 8 }, () => readFile(other, 'utf8')))).toEqual(Array(8).fill('read'))
    const reason = new Error('stop')
    stopping.abort(reason)
    expect(await Promise.all(asked)).toEqual(asked.map(() => reason))
    await store.close()
  } finally {
    // The process that waits for the pipe is released, and no other opens it afterwards.
    renameSync(other, pipe)
    await eventually(async () => (await open(same, constants.O_WRONLY | constants.O_NONBLOCK)).close())
    rmSync(directory, { recursive: true })
  }
})

it('ignores a pipe in place of a lease without waiting for it', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'weft-hanging-'))
  const store = new DirectoryStore({ directory })
  const signal = AbortSignal.timeout(60_000)
  try {
    await store.create('10.5.1.0-24', '{"PublicIP":"192.0.2.1","PublicIPv6":null}', signal)
    for (let third = 2; third < 9; third++) pipeIn(join(directory, 'subnets'), `10.5.${third}.0-24`)
    expect((await store.list(signal)).entries.map(({ key }) => key)).toEqual(['10.5.1.0-24'])
    await store.close()
  } finally {
    rmSync(directory, { recursive: true })
  }
})
