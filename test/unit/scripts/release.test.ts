// release.test.ts - `npm run release` refuses, before anything is made, where it cannot tell of which time the files are to be.

import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { execute } from '../../../lab/command.ts'
import { packageRoot } from '../../../lab/lab.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-release-'))
  for (const name of ['scripts', 'package.json'])
    cpSync(join(packageRoot, name), join(folder, name), { recursive: true })
  symlinkSync(join(packageRoot, 'node_modules'), join(folder, 'node_modules'))
  mkdirSync(join(folder, 'release'))
  writeFileSync(join(folder, 'release/kept'), '')
})
afterEach(() => rmSync(folder, { recursive: true }))

describe('a release', () => {
  it.each([
    [
      'without git and a time',
      '',
      /^release: git tells no commit \(.*not a git repository.*\); set SOURCE_DATE_EPOCH, /,
    ],
    ['of a time that is none', 'yesterday', /^release: SOURCE_DATE_EPOCH is not seconds since 1970: yesterday\n$/],
  ])('is refused %s', async (_, time, line) => {
    const { code, stderr } = await execute([
      ...['env', `SOURCE_DATE_EPOCH=${time}`, `GIT_CEILING_DIRECTORIES=${tmpdir()}`],
      ...[process.execPath, join(folder, 'scripts/release/main.mjs')],
    ])
    expect(code).toBe(1)
    expect(
      stderr
        .split('\n')
        .filter((each) => each.startsWith('release: '))
        .join('\n') + '\n',
    ).toMatch(line)
    expect(existsSync(join(folder, 'release/kept'))).toBe(true)
  })
})
