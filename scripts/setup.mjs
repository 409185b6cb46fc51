// setup.mjs - prepares a fresh clone for the demo, the tests and the benchmarks. If nothing is missing, the script
// changes nothing.
//
// The script has no npm dependencies, because it installs them. It installs Debian packages and npm packages, and
// compiles the addon and TypeScript; it skips each step that is not necessary. `node scripts/setup.mjs KIND...`
// installs the prerequisites of the given kinds of npm scripts (machine.mjs). Without KIND the script installs those of
// a developer's everyday commands.

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
import { dirname, join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { COMMON, find, installLine, isThere, KINDS, missingFor, packagesOf, sayLack } from './machine.mjs'
import { createProgress } from './progress.mjs'
import { undo } from './undo.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const color = process.stdout.isTTY && !process.env.NO_COLOR

/**
 * The system services that Debian enables when it installs these packages. Setup disables the services, because the
 * tests do not need them.
 */
const SERVICES = {
  'etcd-server': ['etcd.service'],
  prometheus: ['prometheus.service'],
  podman: ['podman.service', 'podman.socket', 'podman-restart.service', 'podman-auto-update.timer'],
}

function fail(message) {
  process.stderr.write(`setup: ${message}\n`)
  process.exit(1)
}

/** The progress bar. It is undefined until the number of setup steps is known. */
let progress

/** Runs a command. Returns its exit code or signal, and its output. */
function run(file, args, env) {
  return new Promise((resolve) => {
    const child = spawn(file, args, { cwd: root, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
    const output = []
    child.stdout.on('data', (data) => output.push(data))
    child.stderr.on('data', (data) => output.push(data))
    child.on('error', (error) => output.push(Buffer.from(`${error.message}\n`)))
    child.on('close', (code, signal) => resolve({ code, signal, output: Buffer.concat(output) }))
  })
}

/** How long setup waits for other programs that install Debian packages, such as the daily updates after a boot. */
const LOCK_MS = 600_000
/** Matches the line of apt-get if another process holds the lock of the package lists, of the archives or of dpkg. */
const LOCKED = /^E: Could not get lock \S+ It is held by process (\d+) \((.*)\)$/m

/**
 * Runs one step of setup and writes one line about the step. If the step fails, prints the whole output of the step and
 * ends the process; with `mayFail` it prints only apt-get's errors and returns false. If apt-get fails because another
 * process installs packages, waits for the end of that process and runs the step again.
 */
async function step(title, file, args, { env = {}, mayFail = false } = {}) {
  const began = performance.now()
  for (;;) {
    progress.now(title)
    const { code, signal, output } = await run(file, args, env)
    const tookMs = performance.now() - began
    if (code === 0) {
      const ok = color ? '\x1b[32mok\x1b[0m' : 'ok'
      process.stdout.write(`  ${ok} ${title}  ${(tookMs / 1000).toFixed(1)} s\n`)
      return true
    }
    const [, pid, name] = (file === apt && tookMs < LOCK_MS && LOCKED.exec(output.toString())) || []
    if (pid === undefined) {
      if (mayFail) {
        const errors = output.toString().match(/^E: .*$/gm) ?? []
        process.stdout.write([`  failed: ${title}`, ...errors, ''].join('\n'))
        return false
      }
      progress.end()
      process.stderr.write(output)
      fail(`${title} failed (${signal ?? `exit code ${code}`}): ${[file, ...args].join(' ')}`)
    }
    process.stdout.write(`  waiting for ${name} (process ${pid}), which installs packages\n`)
    // If the process is in another PID namespace, only apt-get shows when the process ends.
    do await setTimeout(200)
    while (existsSync(`/proc/${pid}`) && performance.now() - began < LOCK_MS)
  }
}

const apt = find('apt-get')
const mayInstall = apt !== undefined && process.getuid() === 0

/**
 * Returns true if only tests need the prerequisite `need`. If it cannot be installed, setup continues, and the tests
 * that need it are skipped with a message. All other prerequisites are required.
 */
const isOnlyForTests = (need, kinds) =>
  !need.toBuild && !need.for.some((kind) => kind !== 'test' && kinds.includes(kind))

/** Returns the missing prerequisites that are required, and the Debian packages of these and of all others. */
function packagesFor(missing, kinds) {
  const hindering = missing.filter((need) => !isOnlyForTests(need, kinds))
  const required = packagesOf(hindering)
  return { hindering, required, forTests: packagesOf(missing).filter((name) => !required.includes(name)) }
}

async function systemPackages(missing, kinds) {
  const { hindering, required, forTests } = packagesFor(missing, kinds)
  const skipFor = (lacking) =>
    process.stdout.write(`setup: ${sayLack(lacking)}; the tests that use it will be skipped\n`)
  if (!mayInstall || hindering.some((need) => need.package === undefined)) {
    if (hindering.length > 0) fail(sayLack(hindering))
    skipFor(missing)
    return
  }
  await withoutServices(async () => {
    // In other languages apt-get words its errors differently.
    const env = { DEBIAN_FRONTEND: 'noninteractive', LC_ALL: 'C.UTF-8' }
    const install = (packages, mayFail) => {
      const [, ...args] = installLine(packages).split(' ')
      return step(`install ${packages.join(' ')}`, apt, [...args, '-q'], { env, mayFail })
    }
    const isListed = await step('package lists', apt, ['update', '-q'], { env, mayFail: required.length === 0 })
    if (required.length > 0) await install(required, false)
    if (isListed && forTests.length > 0) await install(forTests, true)
  })
  const services = [...required, ...forTests].flatMap((name) => SERVICES[name] ?? [])
  if (services.length > 0 && find('systemctl')) spawnSync('systemctl', ['disable', ...services], { stdio: 'ignore' })
  const still = missing.filter((need) => !isThere(need))
  const needed = still.filter((need) => hindering.includes(need))
  if (needed.length > 0) fail(`installed, but still not found: ${needed.map(({ name }) => name).join(', ')}`)
  if (still.length > 0) skipFor(still)
}

/**
 * Calls `install` with a policy that prevents Debian packages from starting their services, because tests start their
 * own etcd (Debian policy manual 9.3.3.1). Removes the policy even if a signal interrupts setup. Otherwise no package
 * that this machine installs later could start its service.
 */
async function withoutServices(install) {
  const policy = '/usr/sbin/policy-rc.d'
  if (existsSync(policy)) return install()
  const remove = undo(() => rmSync(policy, { force: true }))
  writeFileSync(policy, '#!/bin/sh\nexit 101\n')
  chmodSync(policy, 0o755)
  await install()
  remove()
}

/**
 * True if the packages in node_modules are those of package-lock.json. npm lists the installed packages in
 * node_modules/.package-lock.json.
 */
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

/**
 * Returns the latest modification time of all files and folders under `paths`, in ms since 1970. Folders count because
 * a folder's time changes when a file in it is deleted.
 */
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
    return false // the addon was built for another machine
  }
}

async function buildAddon() {
  const began = Date.now() / 1000
  const gyp = join(root, 'node_modules/node-gyp/bin/node-gyp.js')
  // Use the C++ headers that were installed with Node.js if they exist, because node-gyp would otherwise download the
  // same headers.
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
  // Set the addon's time even if make did not rebuild the addon, for example because only an unused header changed.
  // With the old time every later setup would run make again.
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
    'scripts/machine.mjs',
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
  const missing = missingFor(kinds, wants.addon)
  const { required, forTests } = packagesFor(missing, kinds)
  const steps = [
    missing.length > 0 && mayInstall ? 1 + Number(required.length > 0) + Number(forTests.length > 0) : 0,
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
if (unknown !== undefined) fail(`unknown kind: ${unknown}; choose from ${KINDS.join(', ')}, or name none`)

// If two npm scripts start at the same time, the second script waits until the first has finished setup. flock locks
// the project's folder itself, so no lock file is left.
if (process.env.WEFT_SETUP_LOCKED === root || !find('flock')) {
  await setup(kinds.length > 0 ? kinds : COMMON)
} else {
  const child = spawnSync('flock', [root, process.execPath, fileURLToPath(import.meta.url), ...kinds], {
    stdio: 'inherit',
    env: { ...process.env, WEFT_SETUP_LOCKED: root },
  })
  process.exitCode = child.status ?? 1
}
