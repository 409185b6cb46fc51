// replace-file.test.ts - a file is replaced whole, with its mode, and nothing but a file is.

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
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { replaceFile } from '../../../src/host/replace-file.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-replace-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

it('writes a file, and writes over one and over a link to one, with the mode', async () => {
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

it('leaves a pipe, as it would a device, and a folder', async () => {
  const path = join(folder, 'pipe')
  execFileSync('mkfifo', [path])
  await expect(replaceFile(path, 'text', 0o644)).rejects.toThrow(`${path} is a device, a socket or a pipe, not a file`)
  expect(lstatSync(path).isFIFO()).toBe(true)
  mkdirSync(join(folder, 'folder'))
  await expect(replaceFile(join(folder, 'folder'), 'text', 0o644)).rejects.toMatchObject({ code: 'EISDIR' })
  expect(readdirSync(folder)).toEqual(['folder', 'pipe'])
})
