// core.test.ts - builds the native core's tests with sanitizers and runs them.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { execute, output } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { needs } from '../support/needs.ts'

needs('g++')

/** A slow machine takes its time to compile with sanitizers, and to run what comes of it. */
const SLOW = { timeoutMs: 600_000 }

const SOURCES = ['checksum', 'coalesce', 'egress', 'icmp', 'ingress', 'peers', 'segment'].map((name) =>
  join(packageRoot, `native/${name}.cc`),
)

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-core-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

// Compiling is most of it: at once, on as many cores as there are.
describe.concurrent('the native core', () => {
  it.each([
    ['address and undefined behaviour', ['-fsanitize=address,undefined', '-fno-sanitize-recover=all']],
    ['threads', ['-fsanitize=thread']],
    ['nothing, optimised as it is shipped', ['-O2']],
  ])(
    'keeps its rules, watched for %s',
    async (_title, flags) => {
      const program = join(folder, `core-${flags.length}-${flags[0]!.replaceAll(/\W/g, '')}`)
      const source = join(packageRoot, 'test/native/core_test.cc')
      const strict = ['-std=c++20', '-g', '-O1', '-Wall', '-Wextra', '-Werror', '-fno-exceptions']
      await output(['g++', ...strict, ...flags, source, ...SOURCES, '-o', program, '-lpthread'], SLOW)
      const seed = String(Date.now() % 1_000_000)
      const { code, stdout, stderr } = await execute([program, seed, flags[0] === '-O2' ? '60' : '8'], SLOW)
      expect({ code, said: (stdout + stderr).slice(-2_000) }).toEqual({ code: 0, said: `seed ${seed}: 0 failures\n` })
    },
    2 * SLOW.timeoutMs,
  )

  it(
    'neither allocates nor locks while it carries packets',
    async () => {
      const program = join(folder, 'core-steady')
      const source = join(packageRoot, 'test/native/core_steady.cc')
      await output(
        ['g++', '-std=c++20', '-O2', '-fno-exceptions', source, ...SOURCES, '-o', program, '-lpthread'],
        SLOW,
      )
      expect(await output([program], SLOW)).toBe('0 allocations, 0 locks\n')
    },
    2 * SLOW.timeoutMs,
  )
})
