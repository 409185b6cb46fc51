// test-costs.mjs - measures the CPU time, the duration and the coverage of each test file, and writes these figures
// into test/selection.json: `node scripts/test-costs.mjs [FILE...]`.
//
// One line of test/selection.json is one test file. test/unit is one line, `unit`: all of its files are in `npm test`.
// A line has these members:
// - file: the file's path in test/.
// - in: "test" if `npm test` runs the file, "whole" if only `npm run test:whole` does; set by hand.
// - only: the tests of the file that `npm test` runs, as a regular expression for their full names; all tests if
//   missing; set by hand.
// - cpu: CPU seconds of the whole file and of all programs that it started.
// - part: CPU seconds of the tests that `npm test` runs, if the file has `only`.
// - seconds: the elapsed time of the file; with `only`, of the tests that `npm test` runs. The longest files start first.
// - hosts: true if the file's tests need hosts made of network namespaces.
// - rows: the rows of CONTRACT.md that no other test file covers.
// - functions: the number of named functions of src/ that no other test file calls; C++ is not counted.
// - why: the reason for the choice, if the figures do not show it; set by hand.
//
// A file without a line gets a line with `in` "whole". Run the script on a quiet machine. It runs the files one after
// another, each in its own vitest, and has the same prerequisites as `npm run test:whole`. The figures of 2026-11-27 for
// `npm test` are those of one run of `npm test` with WEFT_COSTS, in which the files ran beside each other. WEFT_COSTS makes
// test/support/record-cost.ts write the CPU seconds to a file, and NODE_V8_COVERAGE makes Node.js record which
// functions are called.

import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createProgress } from './progress.mjs'
import { undo } from './undo.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const TABLE = join(root, 'test/selection.json')
const work = mkdtempSync(join(tmpdir(), 'weft-costs-'))
undo(() => rmSync(work, { recursive: true, force: true }))

/**
 * One line of test/selection.json. The comment at the top of test-costs.mjs explains the members.
 * @typedef {{ file: string, in: string, only?: string, cpu?: number, part?: number, seconds?: number, hosts?: boolean,
 * rows?: string[], functions?: number, why?: string }} Entry
 */

/** @returns {Entry[]} */
const readTable = () => (existsSync(TABLE) ? JSON.parse(readFileSync(TABLE, 'utf8')) : [])

/** Lists the test files that have their own line in test/selection.json, and `unit` for all files in test/unit. */
function testFiles() {
  const below = (folder) =>
    readdirSync(join(root, 'test', folder))
      .filter((name) => name.endsWith('.test.ts'))
      .map((name) => join(folder, name))
  return ['unit', ...['', 'sim', 'native', 'store', 'kube', 'netns'].flatMap(below)]
}

/**
 * Runs the tests of one line of test/selection.json. Returns their CPU seconds, their elapsed seconds, and the
 * functions of src/ that they called; undefined if a test failed.
 */
function measure(file, isPart) {
  const costs = join(work, 'costs')
  const coverage = join(work, 'coverage')
  for (const path of [costs, coverage]) rmSync(path, { recursive: true, force: true })
  const began = performance.now()
  const { status, stdout } = spawnSync(
    process.execPath,
    [join(root, 'node_modules/vitest/vitest.mjs'), 'run', `test/${file}`],
    {
      cwd: root,
      encoding: 'utf8',
      maxBuffer: 1e9,
      env: {
        ...process.env,
        WEFT_COSTS: costs,
        WEFT_PATIENCE: process.env.WEFT_PATIENCE ?? '3',
        WEFT_SELECTION: isPart ? '1' : '',
        ...(isPart ? {} : { NODE_V8_COVERAGE: coverage }),
      },
    },
  )
  if (status !== 0) {
    process.stdout.write(stdout)
    process.stderr.write(`test/${file} failed; a file that fails is not measured, and its line stays\n`)
    process.exitCode = 1
    return undefined
  }
  // Test files may share a process. Each line has the CPU seconds of its process since the start of the process, so only
  // the last line of a process counts.
  const cpuOf = new Map(
    readFileSync(costs, 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
      .map(({ pid, cpu }) => [pid, cpu]),
  )
  return {
    cpu: [...cpuOf.values()].reduce((sum, cpu) => sum + cpu, 0),
    seconds: (performance.now() - began) / 1000,
    functions: isPart ? new Set() : calledFunctions(coverage),
  }
}

/**
 * Reads the coverage files that V8 wrote to `folder`. Returns the named functions of src/ that were called, as
 * `src/FILE:NAME`. Functions in dist/src/X.js count as functions of src/X.ts.
 */
function calledFunctions(folder) {
  const called = new Set()
  for (const name of readdirSync(folder)) {
    let report
    try {
      report = JSON.parse(readFileSync(join(folder, name), 'utf8'))
    } catch {
      continue // The process was killed while it wrote.
    }
    for (const { url, functions } of report.result) {
      const [, file] =
        /\/(?:dist\/)?src\/([^?]*)\.[jt]s/.exec(url.replace(`file://${root}`, '').replace(root, '')) ?? []
      if (file === undefined || url.includes('node_modules')) continue
      for (const { functionName, ranges } of functions)
        if (isNamed(functionName) && ranges[0].count > 0) called.add(`${file}:${functionName}`)
    }
  }
  return called
}

/**
 * True for a named function, and false for V8's functions that set the fields of classes, such as
 * `<instance_members_initializer>`.
 */
const isNamed = (name) => name !== '' && !name.startsWith('<')

/** Returns for each test file the rows of test/CONTRACT.md that this file covers and no other test file covers. */
function contractRows() {
  const rows = new Map()
  for (const [, row, cell] of readFileSync(join(root, 'test/CONTRACT.md'), 'utf8').matchAll(
    /^\| ([\d.]+) \|.*\| (.*) \|$/gm,
  )) {
    const files = [
      ...new Set([...cell.matchAll(/`([^`]+\.test\.ts)`/g)].map(([, file]) => file.replace(/^unit\/.*/, 'unit'))),
    ]
    if (files.length === 1) rows.set(files[0], [...(rows.get(files[0]) ?? []), row])
  }
  return rows
}

/**
 * True if the file's tests are skipped on a machine that cannot simulate hosts with network namespaces
 * (test/support/needs.ts).
 */
const needsHosts = (file) =>
  file !== 'unit' && /\bneeds\(.*\bHOSTS\b/.test(readFileSync(join(root, 'test', file), 'utf8'))

const round = (value) => Math.round(value * 10) / 10
const known = new Map(readTable().map((entry) => [entry.file, entry]))
const wanted = process.argv.slice(2).map((path) => path.replace(/^test\//, ''))
const files = testFiles()
const unknown = wanted.find((file) => !files.includes(file))
if (unknown !== undefined) {
  const isHelp = /^(-h|--help)$/.test(unknown)
  const why = unknown.startsWith('unit/')
    ? 'the files of test/unit are measured together: name unit'
    : `there is no test/${unknown}`
  const usage =
    'Usage: node scripts/test-costs.mjs [FILE...], such as test/netns/ipip.test.ts; without FILE, every test file\n'
  process[isHelp ? 'stdout' : 'stderr'].write(`${isHelp ? '' : `test-costs: ${why}\n`}${usage}`)
  process.exit(isHelp ? 0 : 2)
}
const measured = wanted.length > 0 ? wanted : files
const progress = createProgress('test-costs', { total: measured.length, pace: 'even' })
/**
 * The functions of src/ that the tests of each test file called, by the name of the test file.
 * @type {Map<string, Set<string>>}
 */
const functions = new Map()
for (const file of measured) {
  progress.now(file)
  const before = known.get(file) ?? { file, in: 'whole' }
  const whole = measure(file, false)
  const part = whole && before.only !== undefined ? measure(file, true) : undefined
  if (!whole || (before.only !== undefined && !part)) continue
  functions.set(file, whole.functions)
  known.set(file, {
    file,
    in: before.in,
    ...(before.only !== undefined && { only: before.only }),
    cpu: round(whole.cpu),
    ...(part && { part: round(part.cpu) }),
    seconds: round(part?.seconds ?? whole.seconds),
    ...(needsHosts(file) && { hosts: true }),
    ...(before.functions !== undefined && { functions: before.functions }),
    ...(before.why !== undefined && { why: before.why }),
  })
  process.stdout.write(`${file}: ${round(whole.cpu)} s of CPU${part ? `, ${round(part.cpu)} s in npm test` : ''}\n`)
}
progress.end()

const rows = contractRows()
const table = files
  .filter((file) => known.has(file))
  .map((file) => {
    const { why, functions: before, rows: old, ...entry } = known.get(file)
    // If the user named test files, the lines of all other files in test/selection.json keep their values.
    const alone = wanted.length > 0 && !wanted.includes(file) ? old : file === 'unit' ? undefined : rows.get(file)
    // The number of functions that only one test file calls can be computed only if all files were measured in this
    // run.
    const only =
      functions.size < files.length
        ? before
        : [...functions.get(file)].filter((name) =>
            files.every((other) => other === file || !functions.get(other).has(name)),
          ).length
    return {
      ...entry,
      ...(alone && { rows: alone }),
      ...(only !== undefined && { functions: only }),
      ...(why !== undefined && { why }),
    }
  })
const text = (entry) =>
  `  {${Object.entries(entry)
    .map(([key, value]) => `${JSON.stringify(key)}: ${JSON.stringify(value)}`)
    .join(', ')}}`
writeFileSync(TABLE, `[\n${table.map(text).join(',\n')}\n]\n`)
