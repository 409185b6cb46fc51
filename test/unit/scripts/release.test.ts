// release.test.ts - `npm run release` refuses where it cannot tell of which time the files are to be, leaves release/ as it was where it
// fails, and says what is inside.

import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { execute } from '../../../lab/command.ts'
import { packageRoot } from '../../../lab/lab.ts'
import { debianPackages, library } from '../../../scripts/release/materials.mjs'

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
    ['of a clone that does not compile', '1', /^release: Command failed: .*tsc -p tsconfig\.json/],
  ])('is refused, and what was there stays, %s', async (_, time, line) => {
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

describe('what is said to be inside', () => {
  it.each([
    ['MIT', { license: { id: 'MIT' } }],
    ['BlueOak-1.0.0', { license: { id: 'BlueOak-1.0.0' } }],
    ['(MIT OR CC0-1.0)', { expression: '(MIT OR CC0-1.0)' }],
    ['Apache-2.0 WITH LLVM-exception', { expression: 'Apache-2.0 WITH LLVM-exception' }],
  ])('has the licence as SPDX writes it: %s', (license, told) => {
    const purl = 'pkg:npm/%40a/b@1.0.0'
    expect(library({ name: '@a/b', version: '1.0.0', license })).toMatchObject({ purl, licenses: [told] })
  })

  it('has every package of Debian, whatever its name', () => {
    const status = join(folder, 'var/lib/dpkg/status.d')
    mkdirSync(status, { recursive: true })
    for (const name of ['libdb5.3t64', 'libc6'])
      writeFileSync(join(status, name), `Package: ${name}\nVersion: 1:2+b1\nArchitecture: amd64\n`)
    expect(debianPackages(folder).map(({ purl }) => purl)).toEqual([
      'pkg:deb/debian/libc6@1%3A2%2Bb1?arch=amd64&distro=debian-13',
      'pkg:deb/debian/libdb5.3t64@1%3A2%2Bb1?arch=amd64&distro=debian-13',
    ])
  })
})
