// setup.mjs - brings a fresh clone to where the demo, the tests and the benchmarks run; does nothing when it is there.
//
// Plain Node without a dependency, because it is what installs them. Four steps, each skipped when nothing is missing:
// system packages, npm packages, the addon, the TypeScript. `node scripts/setup.mjs KIND...` asks for what these need (KINDS,
// below), and for what a developer needs every day without a word.

import { spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createProgress } from './progress.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const COMMON = ['demo', 'test', 'bench', 'lint']
const KINDS = [...COMMON, 'build', 'fuzz', 'arch', 'image', 'vm', 'kube', 'page']
const RUN = ['demo', 'test', 'bench']
const color = process.stdout.isTTY && !process.env.NO_COLOR

/**
 * What is needed of the system, with its Debian package; `toBuild` only while the addon is not built. What is no command says
 * by itself whether it is there.
 */
const SYSTEM = [
  { command: 'make', package: 'make', for: KINDS, toBuild: true },
  { command: 'g++', package: 'g++', for: KINDS, toBuild: true },
  { command: 'python3', package: 'python3', for: KINDS, toBuild: true },
  { command: 'python3', package: 'python3', for: ['test'] }, // plays systemd's part
  { command: 'g++', package: 'g++', for: ['bench', 'test', 'lint'] }, // programs of their own; all that is C++
  { command: 'ip', package: 'iproute2', for: RUN },
  { command: 'ping', package: 'iputils-ping', for: RUN },
  { command: 'ethtool', package: 'ethtool', for: ['bench', 'test'] },
  { command: 'iperf3', package: 'iperf3', for: RUN },
  { command: 'unshare', package: 'util-linux', for: RUN },
  { command: 'iptables', package: 'iptables', for: ['test'] },
  { command: 'nft', package: 'nftables', for: ['test'] },
  { command: 'tcpdump', package: 'tcpdump', for: ['test'] },
  { command: 'wg', package: 'wireguard-tools', for: RUN },
  { command: 'wireguard-go', package: 'wireguard-go', for: RUN },
  { command: 'etcd', package: 'etcd-server', for: ['bench', 'test'] },
  { command: 'etcdctl', package: 'etcd-client', for: ['bench', 'test'] },
  { command: 'openssl', package: 'openssl', for: ['test'] },
  { command: 'promtool', package: 'prometheus', for: ['test'] },
  { command: 'curl', package: 'curl', for: ['test'] },
  { command: 'podman', package: 'podman', for: ['image'] },
  { command: 'runc', package: 'runc', for: ['image'] },
  { command: 'mmdebstrap', package: 'mmdebstrap', for: ['image'] },
  { command: 'clang++', package: 'clang', for: ['lint', 'fuzz'] },
  { command: 'clang-format', package: 'clang-format', for: ['lint'] },
  { what: "libFuzzer and clang's sanitizers", isThere: hasFuzzer, package: fuzzerPackage, for: ['fuzz'] },
  { command: 'aarch64-linux-gnu-g++', package: 'g++-aarch64-linux-gnu', for: ['arch'] },
  { command: 's390x-linux-gnu-g++', package: 'g++-s390x-linux-gnu', for: ['arch'] },
  { command: 'qemu-aarch64-static', package: 'qemu-user-static', for: ['arch'] },
  { command: 'qemu-s390x-static', package: 'qemu-user-static', for: ['arch'] },
  { command: 'qemu-system-x86_64', package: 'qemu-system-x86', for: ['vm'] },
  { command: 'busybox', package: 'busybox-static', for: ['vm'] },
  { command: 'cpio', package: 'cpio', for: ['vm'] },
  { command: 'modprobe', package: 'kmod', for: ['vm'] },
  { command: 'chromium', package: 'chromium', for: ['page'] },
  {
    what: 'fonts',
    isThere: () => existsSync('/usr/share/fonts/truetype/dejavu'),
    package: () => 'fonts-dejavu-core',
    for: ['page'],
  },
  // To build a kube-apiserver from its source (kube-apiserver.mjs), and to ask it as an operator does.
  { command: 'dpkg-source', package: 'dpkg-dev', for: ['kube'] },
  { command: 'rsync', package: 'rsync', for: ['kube'] },
  { command: 'jq', package: 'jq', for: ['kube'] },
  { command: 'go', package: 'golang-go', for: ['kube'] },
  { command: 'kubectl', package: 'kubernetes-client', for: ['kube'] },
  goLibrary('github.com/modern-go/reflect2', 'golang-github-modern-go-reflect2-dev'),
  goLibrary('github.com/json-iterator/go', 'golang-github-json-iterator-go-dev'),
]

/** A library of Go's as Debian packs it, of which there is source alone. */
function goLibrary(path, name) {
  const isThere = () => existsSync(join('/usr/share/gocode/src', path))
  return { what: `${path} for Go`, isThere, package: () => name, for: ['kube'] }
}

/** Clang's folder of a version, which has the version for its name; undefined when there is no clang. */
function clangFolder() {
  const clang = find('clang++')
  return clang && spawnSync(clang, ['-print-resource-dir'], { encoding: 'utf8' }).stdout.trim()
}

/** Whether clang can link a fuzzer: what it takes is in a package of its own since version 14. */
function hasFuzzer() {
  const folder = clangFolder()
  const libraries = folder && join(folder, 'lib')
  // libclang_rt.fuzzer-x86_64.a, or libclang_rt.fuzzer.a in a folder of the target's.
  return (
    existsSync(libraries ?? '') &&
    readdirSync(libraries, { recursive: true }).some((path) => /libclang_rt\.fuzzer(-\w+)?\.a$/.test(path))
  )
}

/** That of the clang that is there; the one without a number goes with Debian's `clang`. */
function fuzzerPackage() {
  const folder = clangFolder()
  return folder ? `libclang-rt-${Number.parseInt(basename(folder), 10)}-dev` : 'libclang-rt-dev'
}

/** The services that these packages enable: nobody who runs a test has asked for them. */
const SERVICES = {
  'etcd-server': ['etcd.service'],
  prometheus: ['prometheus.service'],
  podman: ['podman.service', 'podman.socket', 'podman-restart.service', 'podman-auto-update.timer'],
}

/** The command's path; the sbin folders count too, which an ordinary user's PATH lacks on Debian. */
function find(command) {
  const folders = [...(process.env.PATH ?? '').split(':'), '/usr/sbin', '/sbin']
  return folders.map((folder) => join(folder, command)).find((path) => existsSync(path))
}

const isThere = (need) => (need.isThere ? need.isThere() : find(need.command) !== undefined)
const nameOf = ({ what, command }) => what ?? command

function fail(message) {
  process.stderr.write(`setup: ${message}\n`)
  process.exit(1)
}

/** How far setup is; there once it is known how many steps there are. */
let progress

/** Runs a step, which becomes one line; shows its whole output, and ends setup, only when it fails. */
function step(title, file, args, { env = {} } = {}) {
  return new Promise((resolve) => {
    const began = performance.now()
    const seconds = () => `${((performance.now() - began) / 1000).toFixed(1)} s`
    progress.now(title)
    const child = spawn(file, args, { cwd: root, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
    const output = []
    child.stdout.on('data', (data) => output.push(data))
    child.stderr.on('data', (data) => output.push(data))
    child.on('error', (error) => output.push(Buffer.from(`${error.message}\n`)))
    child.on('close', (code, signal) => {
      if (code === 0) {
        process.stdout.write(`  ${color ? '\x1b[32mok\x1b[0m' : 'ok'} ${title}  ${seconds()}\n`)
        return resolve()
      }
      progress.end()
      process.stderr.write(Buffer.concat(output))
      fail(`${title} failed (${signal ?? `exit code ${code}`}): ${[file, ...args].join(' ')}`)
    })
  })
}

/** What is wanted of the system and not there. */
function missingOfSystem(kinds, mustBuild) {
  const wanted = SYSTEM.filter((need) => need.for.some((kind) => kinds.includes(kind)) && (mustBuild || !need.toBuild))
  return wanted.filter((need) => !isThere(need))
}

const apt = find('apt-get')
const mayInstall = apt !== undefined && process.getuid() === 0

async function systemPackages(missing, kinds) {
  const packages = [...new Set(missing.map((need) => (need.isThere ? need.package() : need.package)))]
  const install = `apt-get install -y --no-install-recommends ${packages.join(' ')}`
  if (mayInstall) {
    await withoutServices(async () => {
      const env = { DEBIAN_FRONTEND: 'noninteractive' }
      await step('package lists', apt, ['update', '-q'], { env })
      await step(
        `install ${packages.join(' ')}`,
        apt,
        ['install', '-y', '-q', '--no-install-recommends', ...packages],
        { env },
      )
    })
    const services = packages.flatMap((name) => SERVICES[name] ?? [])
    if (services.length > 0 && find('systemctl')) spawnSync('systemctl', ['disable', ...services], { stdio: 'ignore' })
    const still = missing.filter((need) => !isThere(need))
    if (still.length > 0) fail(`installed, but still not found: ${still.map(nameOf).join(', ')}`)
    return
  }
  const names = missing.map(nameOf).join(', ')
  const remedy = apt
    ? `run: sudo apt-get update && sudo ${install}`
    : `install the packages that Debian calls ${packages.join(' ')}`
  // The tests skip, and say so, what needs a program that only they use; all else is needed by what was asked for.
  if (missing.some((need) => need.toBuild || need.for.some((kind) => kind !== 'test' && kinds.includes(kind)))) {
    fail(`not installed: ${names}; ${remedy}`)
  }
  process.stdout.write(`setup: not installed: ${names}; the tests that use them will be skipped; ${remedy}\n`)
}

/** Keeps packages from starting their daemons: the tests run an etcd of their own (Debian policy manual 9.3.3.1). */
async function withoutServices(install) {
  const policy = '/usr/sbin/policy-rc.d'
  if (existsSync(policy)) return install()
  const remove = () => rmSync(policy, { force: true })
  process.once('exit', remove)
  writeFileSync(policy, '#!/bin/sh\nexit 101\n')
  chmodSync(policy, 0o755)
  await install()
  process.off('exit', remove)
  remove()
}

/** Whether node_modules holds what package-lock.json names: npm writes what it installed beside it. */
function npmPackagesFit() {
  const read = (path) => JSON.parse(readFileSync(join(root, path), 'utf8')).packages
  const hidden = 'node_modules/.package-lock.json'
  if (!existsSync(join(root, hidden))) return false
  const wanted = read('package-lock.json')
  const installed = read(hidden)
  return Object.entries(wanted).every(
    ([path, entry]) =>
      path === '' ||
      (installed[path]
        ? installed[path].version === entry.version && installed[path].integrity === entry.integrity
        : entry.optional === true),
  )
}

/** The time of the newest file or folder below `paths`, in ms; a folder's time tells of a deleted file. */
function newest(paths, wanted = () => true) {
  let latest = 0
  const visit = (path) => {
    const stat = statSync(path, { throwIfNoEntry: false })
    if (!stat) return
    if (stat.isDirectory()) {
      latest = Math.max(latest, stat.mtimeMs)
      for (const name of readdirSync(path)) visit(join(path, name))
    } else if (wanted(path)) latest = Math.max(latest, stat.mtimeMs)
  }
  for (const path of paths) visit(join(root, path))
  return latest
}

const addonPath = join(root, 'build/Release/weft.node')

function addonFits() {
  const built = statSync(addonPath, { throwIfNoEntry: false })
  if (!built || built.mtimeMs < newest(['native', 'binding.gyp'], (path) => !path.endsWith('.d.ts'))) return false
  try {
    createRequire(import.meta.url)(addonPath)
    return true
  } catch {
    return false // built for another machine
  }
}

async function buildAddon() {
  const began = Date.now() / 1000
  const gyp = join(root, 'node_modules/node-gyp/bin/node-gyp.js')
  // Distributions put the headers beside the program; node-gyp would download them again.
  const prefix = dirname(dirname(process.execPath))
  const headers = existsSync(join(prefix, 'include/node/node_api.h')) ? [`--nodedir=${prefix}`] : []
  const makefile = statSync(join(root, 'build/Makefile'), { throwIfNoEntry: false })
  const configured =
    makefile !== undefined && makefile.mtimeMs > newest(['binding.gyp', 'package.json']) && existsSync(addonPath)
  await step('build the addon', process.execPath, [
    gyp,
    ...(configured ? ['build'] : ['configure', 'build']),
    '--jobs=max',
    ...headers,
  ])
  // A change that make sees no work in (a comment in a header nobody includes) must not be a reason for ever.
  utimesSync(addonPath, began, began)
}

const stamp = join(root, 'dist/.built')

function typescriptFits() {
  const built = statSync(stamp, { throwIfNoEntry: false })
  const sources = [
    'src',
    'lab',
    'bench',
    'test',
    'native/addon.d.ts',
    'scripts/build-page.mjs',
    'scripts/progress.mjs',
    'tsconfig.json',
    'vitest.config.ts',
  ]
  return built !== undefined && built.mtimeMs >= newest(sources, (path) => /\.(ts|json|html|css|mjs)$/.test(path))
}

async function buildTypescript() {
  const began = Date.now() / 1000
  await step('build the TypeScript', process.execPath, [
    join(root, 'node_modules/typescript/bin/tsc'),
    '-p',
    'tsconfig.json',
  ])
  await step('build the page', process.execPath, [join(root, 'scripts/build-page.mjs')])
  mkdirSync(dirname(stamp), { recursive: true })
  writeFileSync(stamp, '')
  utimesSync(stamp, began, began)
}

async function setup(kinds) {
  const [major, minor] = process.versions.node.split('.').map(Number)
  if (process.platform !== 'linux') fail('weft runs on Linux only')
  if (major < 20 || (major === 20 && minor < 19)) {
    fail(`Node ${process.versions.node} is too old; install Node 20.19 or newer`)
  }
  const wants = { addon: !addonFits(), npm: !npmPackagesFit(), typescript: !typescriptFits() }
  const missing = missingOfSystem(kinds, wants.addon)
  const steps = [
    missing.length > 0 && mayInstall ? 2 : 0,
    Number(wants.npm),
    Number(wants.addon),
    wants.typescript ? 2 : 0,
  ]
  progress = createProgress('setup', { total: steps.reduce((sum, count) => sum + count) })
  if (missing.length > 0) await systemPackages(missing, kinds)
  if (wants.npm) {
    const npm = process.env.npm_execpath
    const [file, args] = npm ? [process.execPath, [npm]] : ['npm', []]
    await step('install the npm packages', file, [...args, 'ci', '--ignore-scripts', '--no-audit', '--no-fund'])
  }
  if (wants.addon) await buildAddon()
  if (wants.typescript) await buildTypescript()
  progress.end()
}

const kinds = process.argv.slice(2)
const unknown = kinds.find((kind) => !KINDS.includes(kind))
if (unknown !== undefined) fail(`unknown: ${unknown}; it takes ${KINDS.join(', ')} or nothing`)

// Two npm scripts may start at once: the second waits for the first. flock needs no lock file and leaves none behind.
if (process.env.WEFT_SETUP_LOCKED === root || !find('flock')) {
  await setup(kinds.length > 0 ? kinds : COMMON)
} else {
  const child = spawnSync('flock', [root, process.execPath, fileURLToPath(import.meta.url), ...kinds], {
    stdio: 'inherit',
    env: { ...process.env, WEFT_SETUP_LOCKED: root },
  })
  process.exitCode = child.status ?? 1
}
