// timestamp-file.test.ts - the file of the last timestamp: what weftd logs if it cannot use the file, and that the file
// is stored durably.

import fs, {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { TimestampFile } from '../../../../../src/path/backends/wireguard/timestamp-file.ts'

let folder: string
let path: string
let warnings: string[]
let file: TimestampFile
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-stamps-'))
  path = join(folder, 'wgkey-flannel-wg.time')
  warnings = []
  const warn = (line: string): void => void warnings.push(line)
  file = new TimestampFile(path, { info: () => {}, warn, error: () => {}, v: () => false })
})
afterEach(() => {
  vi.restoreAllMocks()
  syncBuiltinESMExports()
  rmSync(folder, { recursive: true, force: true })
})

it('has the tick that was written last, and only its owner can read it', () => {
  file.write(100_000_000_000)
  file.write(100_000_000_600)
  expect([file.read(), warnings, existsSync(`${path}.new`)]).toEqual([100_000_000_600, [], false])
  expect(statSync(path).mode & 0o777).toBe(0o600)
})

it('is normal if it is missing', () => {
  expect([file.read(), warnings]).toEqual([-1, []])
})

it.each([
  ['empty', () => writeFileSync(path, '')],
  ['garbled', () => writeFileSync(path, '\0\0\0\0')],
  ['unreadable', () => mkdirSync(path)],
])('counts as missing if it is %s, and that is logged once', (what, make) => {
  make()
  expect([file.read(), file.read()]).toEqual([-1, -1])
  const why = what === 'unreadable' ? 'EISDIR: .*' : 'it contains no timestamp'
  expect(warnings).toEqual([
    expect.stringMatching(
      new RegExp(
        `^Cannot use ${path} \\(${why}\\): if the clock is behind, peers refuse handshakes of this node until`,
      ),
    ),
  ])
})

it('is on the disk before it is renamed, and the rename is on the disk before the call returns', () => {
  const steps: string[] = []
  const { fsyncSync, renameSync, fstatSync } = fs
  vi.spyOn(fs, 'fsyncSync').mockImplementation((of) => {
    steps.push(fstatSync(of).isDirectory() ? 'sync folder' : `sync file of ${fstatSync(of).size} bytes`)
    fsyncSync(of)
  })
  vi.spyOn(fs, 'renameSync').mockImplementation((from, to) => {
    steps.push('rename')
    renameSync(from, to)
  })
  syncBuiltinESMExports()
  file.write(1234)
  expect(steps).toEqual(['sync file of 4 bytes', 'rename', 'sync folder'])
})

it('keeps the earlier tick if the disk is full, and weftd logs the failure once', () => {
  file.write(100)
  symlinkSync('/dev/full', `${path}.new`)
  file.write(200)
  file.write(300)
  expect([readFileSync(path, 'utf8'), file.read()]).toEqual(['100', 100])
  expect(warnings).toEqual([expect.stringMatching(/^Cannot write .*\.time \(ENOSPC: .*\): if the clock is set back/)])
})
