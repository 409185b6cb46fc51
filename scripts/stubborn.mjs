// stubborn.mjs - runs the tests repeatedly, with and without CPU load and CPU limits: `npm run test:stubborn -- [N]
// [FILE...]`.
//
// Without FILE it runs `npm test` N times (default 4). Of each four runs, three run while an endless loop occupies each
// core, and the fourth is limited to a quarter of a core. With FILE it runs these test files N times (default 20), and
// changes the mode after each run: idle machine, busy machine, half a core, busy machine. At the end the script lists
// the failed runs and the files that have their output.

import { spawn } from 'node:child_process'
import {
  createWriteStream,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createProgress } from './progress.mjs'
import { undo } from './undo.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const folder = join(root, 'build/stubborn')
const PERIOD_US = 100_000
const PREFIX = 'stubborn-'

function fail(message) {
  process.stderr.write(`test:stubborn: ${message}\n`)
  process.exit(2)
}

const [first, ...others] = process.argv.slice(2)
const counted = first !== undefined && /^\d+$/.test(first)
const files = counted ? others : process.argv.slice(2)
const missing = files.find((file) => !existsSync(join(root, file)))
if (missing !== undefined)
  fail(`there is no ${missing}; give it a number and test files, such as 8 test/sim/simulation.test.ts`)
const times = counted ? Number(first) : files.length > 0 ? 20 : 4
if (times < 1) fail('the number of runs must be 1 or more')
const MODES =
  files.length > 0 ? ['quiet', 'busy', 'half a core', 'busy'] : ['busy', 'busy', 'busy', 'a quarter of a core']
/** The modes that limit a test run to a share of one CPU core, with this share. */
const SHARES = { 'half a core': 0.5, 'a quarter of a core': 0.25 }

/** Starts an endless loop on each CPU core, to make the machine busy. Returns a function that ends the loops. */
function keepBusy() {
  const loops = Array.from({ length: availableParallelism() }, () =>
    // With --pdeathsig the kernel ends the loop if this script is killed.
    spawn('setpriv', ['--pdeathsig', 'KILL', 'sh', '-c', 'while :; do :; done'], { stdio: 'ignore' }),
  )
  return undo(() => loops.forEach((loop) => loop.kill('SIGKILL')))
}

/**
 * Makes a new cgroup in the cgroup `parent`, and first removes empty cgroups that interrupted runs left in `parent`.
 */
function newCgroup(parent) {
  for (const name of readdirSync(parent).filter((each) => each.startsWith(PREFIX)))
    try {
      rmdirSync(join(parent, name))
    } catch (error) {
      if (error.code !== 'EBUSY') throw error
    }
  return mkdtempSync(join(parent, PREFIX))
}

/**
 * Makes a cgroup that may use only the share `share` of one CPU core, in version 1 or 2 of cgroups (cgroups(7)).
 * Returns the path of the cgroup's folder.
 */
function limitedCgroup(share) {
  const mounts = readFileSync('/proc/mounts', 'utf8').split('\n')
  const v1 = mounts.find((line) => / cgroup [^ ]*\bcpu\b/.test(line))?.split(' ')[1]
  const v2 = mounts.find((line) => / cgroup2 /.test(line))?.split(' ')[1]
  try {
    if (v1 !== undefined) {
      const cgroup = newCgroup(v1)
      writeFileSync(join(cgroup, 'cpu.cfs_period_us'), String(PERIOD_US))
      writeFileSync(join(cgroup, 'cpu.cfs_quota_us'), String(PERIOD_US * share))
      return cgroup
    }
    if (v2 === undefined) return fail('a share of a core needs cgroups, and none are mounted here')
    writeFileSync(join(v2, 'cgroup.subtree_control'), '+cpu')
    const cgroup = newCgroup(v2)
    writeFileSync(join(cgroup, 'cpu.max'), `${PERIOD_US * share} ${PERIOD_US}`)
    return cgroup
  } catch (error) {
    return fail(`a share of a core needs a cgroup, which this user cannot make: ${error.message}; run it as root`)
  }
}

/** Waits until the last process of a run has left the cgroup, and then removes the cgroup. */
async function removeCgroup(cgroup) {
  for (;;) {
    try {
      return rmdirSync(cgroup)
    } catch (error) {
      if (error.code !== 'EBUSY') throw error
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }
}

/**
 * Runs the tests once and writes their output to `path`. Resolves with the result, the duration in seconds, the failed
 * tests and the last line of output.
 */
async function run(mode, path) {
  const command =
    files.length > 0
      ? [process.execPath, join(root, 'node_modules/vitest/vitest.mjs'), 'run', ...files]
      : ['npm', 'test']
  const stopBusy = mode === 'busy' ? keepBusy() : () => {}
  const cgroup = SHARES[mode] === undefined ? undefined : limitedCgroup(SHARES[mode])
  const enter = cgroup === undefined ? [] : ['sh', '-c', 'echo $$ > "$0"; exec "$@"', join(cgroup, 'cgroup.procs')]
  const [file, ...args] = ['setpriv', '--pdeathsig', 'TERM', ...enter, ...command]
  const began = performance.now()
  // A missing prerequisite is an error only if the user named test files. `npm test` without names skips the tests that
  // this machine cannot run.
  const required = files.length > 0 ? process.env['WEFT_REQUIRE'] : ''
  const child = spawn(file, args, {
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
    env: { ...process.env, NO_COLOR: '1', WEFT_REQUIRE: required },
  })
  const stopRun = undo(
    () => child.exitCode === null && child.signalCode === null && process.kill(-child.pid, 'SIGTERM'),
  )
  const log = createWriteStream(path)
  let text = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (part) => {
      text += part
      log.write(part)
    })
  }
  const code = await new Promise((resolve) => child.on('close', resolve))
  log.end()
  stopRun()
  stopBusy()
  if (cgroup !== undefined) await removeCgroup(cgroup)
  const failures = [...new Set([...text.matchAll(/^ *FAIL +(.*)$/gm)].map(([, name]) => name))]
  const summary = text.trimEnd().split('\n').at(-1) ?? ''
  return { green: code === 0, seconds: Math.round((performance.now() - began) / 1000), failures, summary }
}

rmSync(folder, { recursive: true, force: true })
mkdirSync(folder, { recursive: true })
const red = []
const progress = createProgress('test:stubborn', { total: times, pace: 'even' })
for (let index = 0; index < times; index++) {
  const mode = MODES[index % MODES.length]
  const path = join(folder, `${index + 1}-${mode.replaceAll(' ', '-')}.log`)
  progress.now(mode)
  const { green, seconds, failures, summary } = await run(mode, path)
  process.stdout.write(`${index + 1}/${times} ${mode}: ${summary}, ${seconds} s\n`)
  if (!green) red.push({ index, mode, path, failures })
}
progress.end()
for (const { index, mode, path, failures } of red) {
  process.stdout.write(`\nnot green: run ${index + 1} (${mode}), ${relative(process.cwd(), path)}\n`)
  for (const name of failures) process.stdout.write(`  ${name}\n`)
}
process.stdout.write(`${times - red.length} of ${times} runs green\n`)
process.exitCode = red.length === 0 ? 0 : 1
