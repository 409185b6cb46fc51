// make-folder.test.ts - makes folders with their parents, and reports the true reason if a folder cannot be made.

import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { makeFolder } from '../../../src/host/make-folder.ts'

let folder: string
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'weft-make-folder-'))))
afterEach(() => rmSync(folder, { recursive: true }))

it('makes parents, and accepts a folder that exists', async () => {
  const path = join(folder, 'a/b/c')
  expect([await makeFolder(path), await makeFolder(path), existsSync(path)]).toEqual([true, false, true])
})

it('refuses a file in place of a folder, and a path below a file', async () => {
  const file = join(folder, 'file')
  writeFileSync(file, '')
  await expect(makeFolder(file)).rejects.toMatchObject({ code: 'EEXIST' })
  await expect(makeFolder(join(file, 'x'))).rejects.toMatchObject({ code: 'ENOTDIR' })
})

it('ends for a folder that cannot exist', async () => {
  await expect(makeFolder('/proc/nonexistent/x')).rejects.toMatchObject({ code: 'ENOENT' })
})

it.skipIf(process.getuid?.() !== 0)('names a read-only file system', async () => {
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'ro', 'tmpfs', folder])
  try {
    await expect(makeFolder(join(folder, 'a/b'))).rejects.toMatchObject({ code: 'EROFS' })
  } finally {
    spawnSync('umount', [folder])
  }
})
