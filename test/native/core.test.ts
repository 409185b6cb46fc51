// core.test.ts - compiles the C++ tests of native/ that do not need Node.js, with sanitizers, and runs them.

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
 * Compiler flags of a build, and the program's arguments: a number of rounds, or a choice of tests. The builds are not
 * optimised, because optimising a build with sanitizers takes three times as long as it saves.
 */
const MEMORY = [
  'address and undefined behaviour',
  ['-O0', '-fsanitize=address,undefined', '-fno-sanitize-recover=all'],
  '2',
] as const
const THREADS = ['threads', ['-O0', '-fsanitize=thread'], 'threads'] as const
const NOTHING = ['nothing, optimised as it is shipped', ['-O2'], '60'] as const
/** `npm run test:fuzz` sets WEFT_LONG, which adds builds that take longer. */
const LONG = process.env['WEFT_LONG'] === '1' ? [NOTHING] : []
/** session_model gets a number of schedules instead of rounds. */
const FEW = [MEMORY[0], MEMORY[1], '100'] as const
const MANY = LONG.map(([title, flags]) => [title, flags, '100000'] as const)

/** Programs with sanitizers are slow on a slow machine, so they get as much time as a compilation. */
const SLOW = { timeoutMs: BUILD_MS }

// Most of the time goes to compiling, so the programs are compiled in parallel.
describe.concurrent.each([
  ['the I/O-free core', 'core_test', [MEMORY, THREADS, ...LONG]],
  ['sending, receiving and writing', 'io_test', [MEMORY]],
  ['egress and ingress', 'walk_test', [MEMORY]],
  ['the guarantees of every encapsulation', 'guarantees_test', [MEMORY]],
  ['the thread of a loop', 'loop_test', [MEMORY, THREADS]],
  ['the sessions of two hosts in trouble', 'session_model', [FEW, ...MANY]],
] as const)('%s', (_what, name, watched) => {
  it.each([...watched])(
    'passes its tests under sanitizers: %s',
    async (_title, flags, what) => {
      const program = join(folder, `${name}-${flags.join('').replaceAll(/\W/g, '')}`)
      // -g1 omits debug information about variables. It compiles faster, and is enough for the stacks that sanitizers
      // print.
      await buildNative(name, program, ['-g1', ...flags])
      const seed = String(Date.now() % 1_000_000)
      const { code, stdout, stderr } = await execute([program, seed, what], SLOW)
      // A program prints such a line for each test that it skips, because this user or kernel does not allow it.
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
