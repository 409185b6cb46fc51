// lint-native.mjs - checks that the C++ code has the format of .clang-format, no warnings of gcc and clang, and no long
// function. `--fix` formats the code.

import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { longFunctions } from './long-functions.mjs'

/** The maximum number of lines of a function of native/, from its opening brace to its closing brace. */
const MOST_LINES = 60

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const sources = ['native', 'test/native', 'bench/native']
  .filter((folder) => existsSync(join(root, folder)))
  .flatMap((folder) => readdirSync(join(root, folder), { recursive: true }).map((name) => join(folder, name)))
  .filter((path) => /\.(cc|h)$/.test(path))

function run(command, args) {
  const { status, error } = spawnSync(command, args, { cwd: root, stdio: 'inherit' })
  if (error) {
    process.stderr.write(`lint: ${command} cannot be run (${error.code}); install it with npm run setup\n`)
    process.exit(1)
  }
  return status === 0
}

function headers() {
  const inPrefix = join(dirname(dirname(process.execPath)), 'include/node')
  if (existsSync(join(inPrefix, 'node_api.h'))) return inPrefix
  return join(homedir(), '.cache/node-gyp', process.versions.node, 'include/node') // node-gyp's folder of headers
}

function compiles(compiler) {
  const addonApi = createRequire(import.meta.url)('node-addon-api').include_dir
  const flags = ['-std=c++20', '-fsyntax-only', '-fno-exceptions', '-Wall', '-Wextra', '-Werror', '-DNAPI_VERSION=8']
  flags.push('-DNODE_ADDON_API_DISABLE_CPP_EXCEPTIONS', '-isystem', headers(), '-isystem', join(root, addonApi))
  // Run the compiler for each source file separately and do not stop at a failure, so that the warnings of all files
  // are shown. A header is checked with the source files that include it.
  return sources
    .filter((path) => /^(native|bench\/native)\//.test(path) && path.endsWith('.cc'))
    .map((path) => run(compiler, [...flags, path]))
    .every(Boolean)
}

/** Reports the functions of a source file that are too long. Returns false if there are such functions. */
function hasShortFunctions(path) {
  const found = longFunctions(readFileSync(join(root, path), 'utf8'), MOST_LINES)
  for (const { line, lines } of found)
    process.stderr.write(`${path}:${line}: a function of ${lines} lines; at most ${MOST_LINES} are allowed\n`)
  return found.length === 0
}

const haveShortFunctions = () =>
  sources
    .filter((path) => path.startsWith('native/'))
    .map(hasShortFunctions)
    .every(Boolean)

if (process.argv.includes('--fix')) {
  process.exitCode = run('clang-format', ['-i', ...sources]) ? 0 : 1
} else {
  const fine = [
    run('clang-format', ['--dry-run', '-Werror', ...sources]),
    haveShortFunctions(),
    compiles('g++'),
    compiles('clang++'),
  ].every(Boolean)
  process.exitCode = fine ? 0 : 1
}
