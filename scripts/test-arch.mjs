// test-arch.mjs - runs the native core's tests on other, emulated architectures: `npm run test:arch`.
//
// The architectures are arm64, and s390x because it is big-endian. Debian's cross compilers build the tests and
// qemu-user runs them.

import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createProgress, runAloud } from './progress.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const ARCHITECTURES = [
  { name: 'arm64', compiler: 'aarch64-linux-gnu-g++', qemu: 'qemu-aarch64-static' },
  { name: 's390x', compiler: 's390x-linux-gnu-g++', qemu: 'qemu-s390x-static' },
]
const PROGRAMS = ['core_test', 'io_test', 'walk_test']
const SOURCES = ['native/crypto', 'native/core', 'native/io'].flatMap((area) =>
  readdirSync(join(root, area))
    .filter((name) => name.endsWith('.cc'))
    .map((name) => join(root, area, name)),
)
const ROUNDS = '4'

async function run(command, args) {
  const end = await runAloud(command, args).catch((error) => error.message)
  if (end !== 0) throw new Error(`${[command, ...args].join(' ')} failed${typeof end === 'string' ? `: ${end}` : ''}`)
}

const progress = createProgress('test:arch', { total: ARCHITECTURES.length * PROGRAMS.length, pace: 'even' })
const folder = mkdtempSync(join(tmpdir(), 'weft-arch-'))
try {
  for (const { name, compiler, qemu } of ARCHITECTURES) {
    for (const test of PROGRAMS) {
      progress.now(`${test} on ${name}`)
      const program = join(folder, `${name}-${test}`)
      const flags = ['-std=c++20', '-O2', '-Wall', '-Wextra', '-Werror', '-fno-exceptions', '-static']
      await run(compiler, [...flags, join(root, `test/native/${test}.cc`), ...SOURCES, '-o', program, '-lpthread'])
      process.stdout.write(`${name}, ${test}: `)
      // Leave out the tests of the control messages UDP_SEGMENT and IPV6_TCLASS on s390x, because qemu-user 7.2 does
      // not convert the byte order of their values.
      const without = name === 's390x' ? ['without-control-numbers'] : []
      await run(qemu, [program, String(Date.now() % 1_000_000), ROUNDS, ...without])
    }
  }
} catch (error) {
  process.stderr.write(`test-arch: ${error.message}\n`)
  process.exitCode = 1
} finally {
  progress.end()
  rmSync(folder, { recursive: true, force: true })
}
