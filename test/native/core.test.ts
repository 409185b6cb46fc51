// core.test.ts - builds the tests of native/ that need no Node with sanitizers and runs them.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { execute, output } from '../../lab/command.ts'
import { BUILD_MS, buildNative, buildOnAddon } from '../support/native-program.ts'
import { needs } from '../support/needs.ts'

needs('g++')

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-core-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/**
 * How a program is compiled, and what it is told: for how many rounds, or of which tests. With sanitizers to optimise takes three
 * times as long as it saves.
 */
const MEMORY = [
  'address and undefined behaviour',
  ['-O0', '-fsanitize=address,undefined', '-fno-sanitize-recover=all'],
  '2',
] as const
const THREADS = ['threads', ['-O0', '-fsanitize=thread'], 'threads'] as const
const NOTHING = ['nothing, optimised as it is shipped', ['-O2'], '60'] as const
/** `npm run test:fuzz` has the time. */
const LONG = process.env['WEFT_LONG'] === '1' ? [NOTHING] : []
/** The same with so many schedules. */
const FEW = [MEMORY[0], MEMORY[1], '100'] as const
const MANY = LONG.map(([title, flags]) => [title, flags, '100000'] as const)

/** A slow machine takes its time to run what is compiled with sanitizers. */
const SLOW = { timeoutMs: BUILD_MS }

// Compiling is most of it: at once, on as many cores as there are.
describe.concurrent.each([
  ['the pure core', 'core_test', [MEMORY, THREADS, ...LONG]],
  ['what sends, receives and writes', 'io_test', [MEMORY]],
  ['the walks of a packet', 'walk_test', [MEMORY]],
  ['what holds for every encapsulation', 'guarantees_test', [MEMORY]],
  ['the thread of a loop', 'loop_test', [MEMORY, THREADS]],
  ['the sessions of two hosts in trouble', 'session_model', [FEW, ...MANY]],
] as const)('%s', (_what, name, watched) => {
  it.each([...watched])(
    'keeps its rules, watched for %s',
    async (_title, flags, what) => {
      const program = join(folder, `${name}-${flags.join('').replaceAll(/\W/g, '')}`)
      // Lines without variables, for the stacks that the sanitizers print, are quicker to compile.
      await buildNative(name, program, ['-g1', ...flags])
      const seed = String(Date.now() % 1_000_000)
      const { code, stdout, stderr } = await execute([program, seed, what], SLOW)
      // What this user or kernel does not allow is left out, with a line that says so.
      const leftOut = /^skipped: .*\n/gm
      const all = stdout + stderr
      for (const [line] of all.matchAll(leftOut)) process.stdout.write(`${name}: ${line}`)
      const said = all.replaceAll(leftOut, '').slice(-2_000)
      expect({ code, said }).toEqual({ code: 0, said: `seed ${seed}: 0 failures\n` })
    },
    2 * BUILD_MS,
  )
})

it.concurrent(
  'neither allocates nor locks while it carries packets',
  async () => {
    const program = join(folder, 'core-steady')
    await buildOnAddon('core_steady', program)
    expect(await output([program], SLOW)).toBe('0 allocations, 0 locks\n')
  },
  2 * BUILD_MS,
)
