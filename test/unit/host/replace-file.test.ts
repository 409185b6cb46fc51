// replace-file.test.ts - files are replaced atomically, with their mode, and only files are replaced.

import { execFileSync } from 'node:child_process'
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { replaceFile } from '../../../src/host/replace-file.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-replace-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

it('writes a file, and replaces a file or a link, with the mode', async () => {
  const path = join(folder, 'file')
  await replaceFile(path, 'one', 0o640)
  await replaceFile(path, 'two', 0o600)
  expect([readFileSync(path, 'utf8'), statSync(path).mode & 0o777]).toEqual(['two', 0o600])
  writeFileSync(join(folder, 'other'), 'theirs')
  symlinkSync('other', join(folder, 'link'))
  await replaceFile(join(folder, 'link'), 'three', 0o644)
  expect(readFileSync(join(folder, 'other'), 'utf8')).toBe('theirs')
  expect(readdirSync(folder).toSorted()).toEqual(['file', 'link', 'other'])
})

it('refuses a pipe, as it would a device, and a folder', async () => {
  const path = join(folder, 'pipe')
  execFileSync('mkfifo', [path])
  await expect(replaceFile(path, 'text', 0o644)).rejects.toThrow(`${path} is a device, a socket or a pipe, not a file`)
  expect(lstatSync(path).isFIFO()).toBe(true)
  mkdirSync(join(folder, 'folder'))
  await expect(replaceFile(join(folder, 'folder'), 'text', 0o644)).rejects.toMatchObject({ code: 'EISDIR' })
  expect(readdirSync(folder)).toEqual(['folder', 'pipe'])
})

it('keeps the content of the last of many simultaneous calls', async () => {
  const path = join(folder, 'file')
  for (let round = 0; round < 20; round++) {
    const texts = Array.from({ length: 5 }, (_, at) => `${round} ${at} ${'x'.repeat(5000 - 900 * at)}`)
    await Promise.all(texts.map((text) => replaceFile(path, text, 0o600)))
    expect(readFileSync(path, 'utf8')).toBe(texts.at(-1))
  }
  expect(readdirSync(folder)).toEqual(['file'])
})

it('keeps one complete content if two processes with one id write simultaneously', async () => {
  const path = join(folder, 'file')
  vi.resetModules()
  const other = await import('../../../src/host/replace-file.ts')
  expect(other.replaceFile).not.toBe(replaceFile)
  const texts = ['a'.repeat(3000), 'b'.repeat(2000)] as const
  for (let round = 0; round < 50; round++) {
    await Promise.all([replaceFile(path, texts[0], 0o600), other.replaceFile(path, texts[1], 0o600)])
    expect(texts).toContain(readFileSync(path, 'utf8'))
  }
})

it('continues after a failed write, and removes old temporary files, but not those of other writers', async () => {
  const path = join(folder, 'file')
  await expect(replaceFile(join(folder, 'none', 'file'), 'text', 0o644)).rejects.toMatchObject({ code: 'ENOENT' })
  mkdirSync(path)
  const failing = replaceFile(path, 'text', 0o644)
  const next = failing.catch(() => rmSync(path, { recursive: true })).then(() => replaceFile(path, 'one', 0o644))
  await expect(failing).rejects.toMatchObject({ code: 'EISDIR' })
  await next
  const old = new Date(Date.now() - 120_000)
  for (const name of ['.file.tmp1234', '.file.tmpabcd', '.other.tmp1234']) writeFileSync(join(folder, name), 'half')
  for (const name of ['.file.tmp1234', '.other.tmp1234']) utimesSync(join(folder, name), old, old)
  await replaceFile(path, 'two', 0o644)
  expect(readdirSync(folder).toSorted()).toEqual(['.file.tmpabcd', '.other.tmp1234', 'file'])
})
