// test-all.mjs - `npm run test:all [-- SCRIPT...]`: runs every test script of package.json, or the given ones, one
// after another, and ends with a table of results and times.
//
// The run can be interrupted and repeated: build/test-all records the scripts that have passed, and these are not run
// again as long as no file of the project changes. `-- --again` also runs the scripts that have passed. The output of
// each script is in build/test-all/NAME.log.

import { spawn, spawnSync } from 'node:child_process'
import { createWriteStream, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createProgress } from './progress.mjs'
import { undo } from './undo.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const folder = join(root, 'build/test-all')
const STATE = join(folder, 'state.json')

/**
 * The test scripts in the order in which they run, with their approximate duration in minutes on two cores. Only the
 * progress bar and the first line of output use the durations.
 */
const MINUTES = {
  'test:whole': 25,
  'test:paths': 10,
  'test:fuzz': 7,
  'test:arch': 10,
  'test:page': 2,
  'test:etcd': 8,
  'test:kube': 8,
  'test:kubelet': 15,
  'test:cluster': 25,
  'image:test': 6,
  'test:broken': 15,
  'test:vm': 45,
  'release:test': 40,
  'test:stubborn': 70,
  'test:soak': 120,
  'test:mutants': 120,
}

/**
 * The result of an npm script: its exit code, its last line of output, and its duration in seconds.
 * @typedef {{ code: number, line: string, seconds: number }} Result
 */

/** Lists the test scripts in package.json, except `test:all`. Scripts that MINUTES does not list come last. */
function testScripts() {
  const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
  const names = Object.keys(scripts).filter((name) => /^test:|:test$/.test(name) && name !== 'test:all')
  const place = (name) => Object.keys(MINUTES).indexOf(name)
  const known = names.filter((name) => place(name) >= 0).toSorted((a, b) => place(a) - place(b))
  return [...known, ...names.filter((name) => place(name) < 0)]
}

/**
 * Returns git's hash of all files of the project, including uncommitted changes. Recorded results are valid only for
 * this hash. Returns an empty text if the folder is not a git repository.
 */
function treeName() {
  const index = join(folder, `index-${process.pid}`)
  const git = (...args) =>
    spawnSync('git', args, { cwd: root, encoding: 'utf8', env: { ...process.env, GIT_INDEX_FILE: index } })
  rmSync(index, { force: true })
  const added = git('add', '--all').status === 0
  const { status, stdout } = git('write-tree')
  rmSync(index, { force: true })
  return added && status === 0 ? stdout.trim() : ''
}

/**
 * Returns the results of the npm scripts that passed in an earlier run, by the script's name. Returns no results if the
 * earlier run tested a different git tree than `tree`.
 * @returns {Record<string, Result>}
 */
function keptResults(tree) {
  if (tree === '') return {}
  try {
    const state = JSON.parse(readFileSync(STATE, 'utf8'))
    return state.tree === tree
      ? Object.fromEntries(Object.entries(state.results).filter(([, { code }]) => code === 0))
      : {}
  } catch {
    return {}
  }
}

/**
 * Runs an npm script until it ends. Resolves with its exit code, its last line of output and its duration in seconds.
 * @returns {Promise<Result>}
 */
async function run(name) {
  const log = createWriteStream(join(folder, `${name.replace(':', '-')}.log`))
  const began = performance.now()
  // Start the npm script in its own process group, so that at an interruption all processes that the script started can
  // be ended together.
  const child = spawn('npm', ['run', '--silent', name], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
    env: { ...process.env, NO_COLOR: '1' },
  })
  const finished = undo(
    () => child.exitCode === null && child.signalCode === null && process.kill(-child.pid, 'SIGTERM'),
  )
  let end = ''
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text) => {
      log.write(text)
      end = (end + text).slice(-4_000)
    })
  const code = await new Promise((resolve) => {
    child.on('error', () => resolve(127)).on('close', (status) => resolve(status ?? 1))
  })
  finished()
  log.end()
  const line = end.trimEnd().split('\n').at(-1) ?? ''
  return { code, line, seconds: Math.round((performance.now() - began) / 1000) }
}

const time = (seconds) =>
  seconds < 3600
    ? `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`
    : `${Math.floor(seconds / 3600)}:${String(Math.floor((seconds % 3600) / 60)).padStart(2, '0')}:${String(seconds % 60).padStart(2, '0')}`

/**
 * Returns a table with one row per test script: its result, its duration as h:mm:ss or m:ss, and its last line of
 * output.
 */
function table(names, results) {
  return names.map((name) => {
    const result = results[name]
    if (result === undefined) return `${name.padEnd(14)} not run`
    const verdict = result.code === 0 ? 'passed' : `FAILED (exit code ${result.code})`
    return `${name.padEnd(14)} ${verdict.padEnd(8)} ${time(result.seconds).padStart(8)}  ${result.line.slice(0, 100)}`
  })
}

mkdirSync(folder, { recursive: true })
const names = testScripts()
const words = process.argv.slice(2)
const chosen = words.filter((word) => word !== '--again')
const strange = chosen.find((name) => !names.includes(name))
if (strange !== undefined) {
  process.stderr.write(`test:all: there is no test script ${strange}; choose from ${names.join(', ')}\n`)
  process.exit(2)
}
const wanted = chosen.length > 0 ? names.filter((name) => chosen.includes(name)) : names
const tree = treeName()
const results = keptResults(tree)

/**
 * Records the results of this run, and keeps the results that another run of test:all recorded meanwhile for the same
 * tree.
 * @param {Record<string, Result>} own
 * @param {readonly string[]} forgotten The scripts whose recorded results are removed.
 */
function record(own, forgotten = []) {
  if (tree === '') return
  const kept = Object.entries(keptResults(tree)).filter(([name]) => !forgotten.includes(name))
  const text = JSON.stringify({ tree, results: { ...Object.fromEntries(kept), ...own } }, undefined, 1)
  // Another run may read the file at the same time, so it is replaced as a whole.
  writeFileSync(`${STATE}-${process.pid}`, text)
  renameSync(`${STATE}-${process.pid}`, STATE)
}

if (words.includes('--again')) {
  for (const name of wanted) delete results[name]
  record({}, wanted)
}
const left = wanted.filter((name) => results[name] === undefined)
const minutes = left.reduce((sum, name) => sum + (MINUTES[name] ?? 10), 0)
process.stdout.write(
  `${left.length} of ${wanted.length} test scripts will run, which takes about ${(minutes / 60).toFixed(1)} hours on two quiet cores.` +
    ` You can interrupt it: the next \`npm run test:all\` continues here if no file has changed.\n`,
)
if (tree === '') process.stdout.write('Without git the results of an interrupted run are not kept.\n')
const progress = createProgress('test:all', { total: 60 * minutes, pace: 'seconds' })
const showTable = undo(() => {
  progress.end()
  process.stdout.write(`${table(names, results).join('\n')}\n`)
})
/** @type {Record<string, Result>} */
const own = {}
for (const name of left) {
  progress.now(name, 60 * (MINUTES[name] ?? 10))
  const result = await run(name)
  results[name] = result
  own[name] = result
  record(own)
  process.stdout.write(`${table([name], results)[0]}\n`)
  if (result.code !== 0)
    process.stdout.write(`  see ${relative(process.cwd(), join(folder, `${name.replace(':', '-')}.log`))}\n`)
}
showTable()
const failed = wanted.filter((name) => results[name]?.code !== 0)
process.stdout.write(`${wanted.length - failed.length} passed, ${failed.length} failed, 0 skipped\n`)
process.exitCode = failed.length === 0 ? 0 : 1
