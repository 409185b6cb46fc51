// test-arch.mjs - the native core's tests on other architectures, emulated: `npm run test:arch`.
//
// arm64, and s390x for its byte order. Cross compilers and qemu-user come from Debian; as root they are installed.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const ARCHITECTURES = [
  { name: 'arm64', compiler: 'aarch64-linux-gnu-g++', package: 'g++-aarch64-linux-gnu', qemu: 'qemu-aarch64-static' },
  { name: 's390x', compiler: 's390x-linux-gnu-g++', package: 'g++-s390x-linux-gnu', qemu: 'qemu-s390x-static' },
]
const PROGRAMS = ['core_test', 'io_test', 'walk_test']
const SOURCES = ['native/core', 'native/io'].flatMap((room) =>
  readdirSync(join(root, room))
    .filter((name) => name.endsWith('.cc'))
    .map((name) => join(root, room, name)),
)
const ROUNDS = '4'

const has = (command) => spawnSync('sh', ['-c', `command -v ${command}`]).status === 0

function run(command, args, options = {}) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', ...options })
  if (status === 0) return
  process.stderr.write(`test-arch: ${[command, ...args].join(' ')} failed${error ? `: ${error.message}` : ''}\n`)
  process.exit(1)
}

const wanted = ARCHITECTURES.flatMap(({ compiler, package: name, qemu }) => [
  ...(has(compiler) ? [] : [name]),
  ...(has(qemu) ? [] : ['qemu-user-static']),
])
const packages = [...new Set(wanted)]
if (packages.length > 0) {
  const install = ['apt-get', 'install', '-y', '-q', '--no-install-recommends', ...packages]
  if (process.getuid() !== 0 || !has('apt-get')) {
    process.stderr.write(`test-arch: it needs ${packages.join(' ')}; run: sudo ${install.join(' ')}\n`)
    process.exit(1)
  }
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  run('apt-get', ['update', '-q'], { env, stdio: ['ignore', 'ignore', 'inherit'] })
  run(install[0], install.slice(1), { env, stdio: ['ignore', 'ignore', 'inherit'] })
}

const folder = mkdtempSync(join(tmpdir(), 'weft-arch-'))
try {
  for (const { name, compiler, qemu } of ARCHITECTURES) {
    for (const test of PROGRAMS) {
      const program = join(folder, `${name}-${test}`)
      const flags = ['-std=c++20', '-O2', '-Wall', '-Wextra', '-Werror', '-fno-exceptions', '-static']
      run(compiler, [...flags, join(root, `test/native/${test}.cc`), ...SOURCES, '-o', program, '-lpthread'])
      process.stdout.write(`${name}, ${test}: `)
      // qemu-user 7.2 hands the control message of UDP_SEGMENT to the kernel without changing its byte order.
      const without = name === 's390x' ? ['without-udp-gso'] : []
      run(qemu, [program, String(Date.now() % 1_000_000), ROUNDS, ...without])
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
}
