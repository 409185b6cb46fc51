// lease-files.test.ts - makes the lease directory: reports that it was missing, and the true reason if it cannot be made.

import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { LeaseFiles } from '../../../../../src/control/store/directory/lease-files.ts'

let folder: string
let made: string[]
beforeEach(() => {
  made = []
  folder = mkdtempSync(join(tmpdir(), 'weft-lease-files-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

async function use(path: string): Promise<void> {
  const files = new LeaseFiles(path, (each) => made.push(each))
  await files.doing(new AbortController().signal, async () => {}).finally(() => files.close())
}

it('reports a directory that it made, with parents, and none that existed', async () => {
  const path = join(folder, 'a/b')
  await use(path)
  expect([made, existsSync(join(path, 'subnets'))]).toEqual([[path], true])
  mkdirSync(join(folder, 'empty'))
  await use(join(folder, 'empty'))
  await use(path)
  expect(made).toEqual([path])
})

it('ends with an error for a directory that cannot exist', async () => {
  await expect(use('/proc/nonexistent/x')).rejects.toMatchObject({
    code: 'STORE_UNAVAILABLE',
    message: expect.stringMatching(/\/proc\/nonexistent\/x cannot be used: ENOENT/) as string,
  })
})

it.skipIf(process.getuid?.() !== 0)('names a read-only file system', async () => {
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'ro', 'tmpfs', folder])
  try {
    for (const path of [folder, join(folder, 'new')])
      await expect(use(path)).rejects.toMatchObject({
        code: 'STORE',
        message: expect.stringContaining('EROFS') as string,
        remedy: 'mount its file system read-write, or name another directory with --lease-dir',
      })
  } finally {
    execFileSync('umount', [folder])
  }
})
