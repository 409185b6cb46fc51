// setup.mjs - makes a fresh machine ready: Debian packages, npm packages, the addon, the compiled TypeScript.
//
// Plain Node without dependencies, since it is what installs them. Does only what is missing, and says nothing when
// nothing is. Usage: node scripts/setup.mjs [demo|test|bench|lint]

import { spawnSync } from 'node:child_process'
import { accessSync, constants, existsSync, mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const purpose = process.argv[2] ?? 'demo'

/** Commands that must be there, the Debian package of each, and what for. */
const TOOLS = [
  { command: 'g++', debian: 'g++', purposes: ['demo', 'test', 'bench', 'lint'] },
  { command: 'make', debian: 'make', purposes: ['demo', 'test', 'bench', 'lint'] },
  { command: 'python3', debian: 'python3', purposes: ['demo', 'test', 'bench', 'lint'] },
  { command: 'ip', debian: 'iproute2', purposes: ['demo', 'test', 'bench'] },
  { command: 'ping', debian: 'iputils-ping', purposes: ['demo', 'test', 'bench'] },
  { command: 'iperf3', debian: 'iperf3', purposes: ['demo', 'test', 'bench'] },
  { command: 'etcd', debian: 'etcd-server', purposes: ['test', 'bench'] },
  { command: 'etcdctl', debian: 'etcd-client', purposes: ['test', 'bench'] },
  { command: 'nft', debian: 'nftables', purposes: ['test'] },
  { command: 'iptables', debian: 'iptables', purposes: ['test'] },
  { command: 'tcpdump', debian: 'tcpdump', purposes: ['test'] },
  { command: 'clang++', debian: 'clang', purposes: ['lint'] },
  { command: 'clang-format', debian: 'clang-format', purposes: ['lint'] },
]

function has(command) {
  return [...(process.env.PATH ?? '').split(':'), '/usr/sbin', '/sbin'].some((folder) => {
    try {
      accessSync(join(folder, command), constants.X_OK)
      return true
    } catch {
      return false
    }
  })
}

function fail(message) {
  process.stderr.write(`setup: ${message}\n`)
  process.exit(1)
}

/** Runs a step quietly; shows everything it said when it fails. */
function step(title, command, args, options = {}) {
  const started = performance.now()
  process.stdout.write(`  ${title} ...`)
  const result = spawnSync(command, args, { cwd: root, encoding: 'utf8', maxBuffer: 64 << 20, ...options })
  if (result.status !== 0) {
    process.stdout.write(' failed\n')
    process.stderr.write(`${result.stdout ?? ''}${result.stderr ?? ''}${result.error?.message ?? ''}\n`)
    fail(`\`${[command, ...args].join(' ')}\` failed`)
  }
  process.stdout.write(` ${((performance.now() - started) / 1000).toFixed(1)} s\n`)
}

function installTools() {
  const missing = TOOLS.filter(({ command, purposes }) => purposes.includes(purpose) && !has(command))
  if (missing.length === 0) return
  const packages = [...new Set(missing.map(({ debian }) => debian))]
  const line = `apt-get update && apt-get install -y --no-install-recommends ${packages.join(' ')}`
  if (process.getuid() !== 0 || !has('apt-get')) {
    fail(`${missing.map(({ command }) => command).join(', ')} not found; install them, on Debian as root:\n  ${line}`)
  }
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  step('apt-get update', 'apt-get', ['update', '-qq'], { env })
  step(`apt-get install ${packages.join(' ')}`, 'apt-get', ['install', '-y', '-qq', '--no-install-recommends', ...packages], { env })
}

function modified(path) {
  return existsSync(path) ? statSync(path).mtimeMs : 0
}

/** The newest change of C++ in a folder. */
function newest(folder) {
  const sources = readdirSync(folder).filter((name) => /\.(cc|h)$/.test(name))
  return Math.max(...sources.map((name) => modified(join(folder, name))))
}

function installPackages() {
  // npm writes this file when it has installed what the lock file names.
  if (modified(join(root, 'node_modules/.package-lock.json')) >= modified(join(root, 'package-lock.json'))) return
  // The addon is built below, from sources that change more often than packages do.
  step('npm ci', 'npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'])
}

function buildAddon() {
  const built = join(root, 'build/Release/weft.node')
  const sources = Math.max(newest(join(root, 'native')), modified(join(root, 'binding.gyp')))
  if (modified(built) > sources) return
  const command = existsSync(join(root, 'build/Makefile')) && modified(join(root, 'build/Makefile')) > modified(join(root, 'binding.gyp')) ? 'build' : 'rebuild'
  step('build the native addon', 'npx', ['--no-install', 'node-gyp', command])
}

function compile() {
  const result = spawnSync(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '-p', 'tsconfig.json'], { cwd: root, encoding: 'utf8' })
  if (result.status !== 0) fail(`the TypeScript does not compile:\n${result.stdout}`)
}

/** One setup at a time: the folder is made by exactly one. A lock whose owner is gone is taken over. */
function withLock(body) {
  const lock = join(root, '.setup-lock')
  for (;;) {
    try {
      mkdirSync(lock)
      break
    } catch {
      const owner = Number(readdirSync(lock)[0] ?? 0)
      if (owner > 0 && existsSync(`/proc/${owner}`)) spawnSync('tail', ['--pid', String(owner), '-f', '/dev/null'])
      else rmSync(lock, { recursive: true, force: true })
    }
  }
  writeFileSync(join(lock, String(process.pid)), '')
  process.on('exit', () => rmSync(lock, { recursive: true, force: true }))
  body()
}

const [major, minor] = process.versions.node.split('.').map(Number)
if (major < 20 || (major === 20 && minor < 19)) fail(`Node.js ${process.versions.node} is too old; install 20.19 or later`)
if (process.platform !== 'linux') fail('weft runs on Linux only')
withLock(() => {
  installTools()
  installPackages()
  buildAddon()
  compile()
})
