// test-arch.mjs - runs the C++ tests core_test, io_test and walk_test on every architecture of a release: `npm run
// test:arch [NAME...]`.
//
// Debian's cross compilers build the tests, and qemu-user runs them. s390x is big-endian, and arm has pointers of 32
// bits. NAME is the name of an architecture in Debian, such as armhf; without NAME all architectures are tested.

import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { compileAll, mustRun } from './compile.mjs'
import { createProgress } from './progress.mjs'
import { ARCHITECTURES } from './release/architectures.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const names = process.argv.slice(2)
const chosen = ARCHITECTURES.filter(({ debian }) => names.length === 0 || names.includes(debian))
const PROGRAMS = ['core_test', 'io_test', 'walk_test']
const SOURCES = ['native/crypto', 'native/core', 'native/io'].flatMap((area) =>
  readdirSync(join(root, area))
    .filter((name) => name.endsWith('.cc'))
    .map((name) => join(area, name)),
)
/** With -O1 the compiler takes half the time of -O2, and the emulated tests take as long as with -O2. */
const FLAGS = ['-std=c++20', '-O1', '-Wall', '-Wextra', '-Werror', '-fno-exceptions', '-Wno-psabi']
const DEFINES = ['-D_FILE_OFFSET_BITS=64', '-D_TIME_BITS=64'] // as in binding.gyp
const ROUNDS = '4'

/** Compiles and runs the tests for one architecture. The sources that all test programs share are compiled once. */
async function testOn({ debian, gnu, qemu }, folder, progress) {
  progress.now(`the sources for ${debian}`)
  const objects = await compileAll({
    command: ['nice', `${gnu}-g++`, ...FLAGS, ...DEFINES],
    sources: [...PROGRAMS.map((test) => `test/native/${test}.cc`), ...SOURCES],
    folder: join(folder, debian),
    cwd: root,
  })
  const shared = objects.slice(PROGRAMS.length)
  for (const [index, test] of PROGRAMS.entries()) {
    progress.now(`${test} on ${debian}`)
    const program = join(folder, `${debian}-${test}`)
    await mustRun([`${gnu}-g++`, objects[index], ...shared, '-o', program, '-lpthread'], root)
    process.stdout.write(`${debian}, ${test}: `)
    // Leave out the tests of the control messages UDP_SEGMENT and IPV6_TCLASS on s390x, because qemu-user 7.2 does not
    // convert the byte order of their values.
    const without = debian === 's390x' ? ['without-control-numbers'] : []
    const emulator = qemu ? [qemu, '-L', `/usr/${gnu}`] : []
    await mustRun(['nice', ...emulator, program, String(Date.now() % 1_000_000), ROUNDS, ...without], root)
  }
}

const progress = createProgress('test:arch', { total: chosen.length * (1 + PROGRAMS.length), pace: 'even' })
const folder = mkdtempSync(join(tmpdir(), 'weft-arch-'))
try {
  for (const architecture of chosen) await testOn(architecture, folder, progress)
} catch (error) {
  process.stderr.write(`test-arch: ${error.message}\n`)
  process.exitCode = 1
} finally {
  progress.end()
  rmSync(folder, { recursive: true, force: true })
}
