// mutants.mjs - checks whether the tests notice small mistakes (mutants) in the code: `npm run test:mutants --
// [AREA...]`.
//
// An area is a folder of src/ or native/, or a file directly in src/. Stryker makes mutants of those files of src/ that
// do no I/O (test/support/pure-files.ts) and runs the unit tests of the same area. mutants-native.mjs does the same for
// native/core and native/encap. A mutant that no test notices survives. test/mutants.json lists the known survivors
// with reasons. The command fails if a mutant survives without an entry in test/mutants.json, if the tests of an area
// notice less than LEAST_PERCENT of its mutants, or if an entry matches no survivor. If an area has not changed, its
// mutants are not tested again, because build/mutants has the previous result.

import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { createNativeTrials, nativeMutants } from './mutants-native.mjs'
import { judge, LEAST_PERCENT, scoreTable } from './mutants-score.mjs'
import { mutateTypescript } from './mutants-stryker.mjs'
import { createProgress } from './progress.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const folder = join(root, 'build/mutants')
const knownPath = join(root, 'test/mutants.json')
process.chdir(root)

/**
 * Folders of src/ whose code contains many sentences for users. Stryker does not change sentences in these areas,
 * because no test checks their wording.
 */
const PROSE = new Set(['options', 'report', 'report/page', 'tool/doctor', 'tool/measure', 'tool/weft'])
const NATIVE = ['core', 'encap']
/** For each file of src/ whose tests are not only in the unit test of its name: the unit tests of other names. */
const MORE_TESTS = new Map([
  ['src/path/catalog.ts', ['test/unit/control/config/check.test.ts']],
  ['src/tool/doctor/filter-walk.ts', ['test/unit/tool/doctor/rule-effects.test.ts']],
  ['src/tool/doctor/firewall.ts', ['test/unit/tool/doctor/firewall-rules.test.ts']],
  ['src/tool/doctor/kernel-routes.ts', ['test/unit/tool/doctor/underlay.test.ts']],
  ['src/tool/doctor/nft-walk.ts', ['test/unit/tool/doctor/nft-rules.test.ts']],
])

/**
 * Prints an error of the command line and ends this process with exit code 2.
 * @param {string} message
 * @returns {never}
 */
function fail(message) {
  process.stderr.write(`test:mutants: ${message}\n`)
  process.exit(2)
}

const { isPure } = await import(join(root, 'dist/test/support/pure-files.js'))
const files = readdirSync('src', { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.ts') && isPure(file))
  .toSorted()
/** Returns the area of a source file: its folder, or for a file directly in src/ its name without the ending. */
const areaOf = (/** @type {string} */ file) => file.replace(file.includes('/') ? /\/[^/]*$/ : /\.ts$/, '')
const areas = [...new Set(files.map(areaOf)), ...NATIVE.map((area) => `native/${area}`)]

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    number: { type: 'string', default: '200' },
    share: { type: 'string', default: '1' },
    minutes: { type: 'string', default: 'Infinity' },
    seed: { type: 'string', default: '1' },
    survivors: { type: 'boolean' },
  },
})
const number = Number(values.number)
const minutes = Number(values.minutes)
const share = Number(values.share)
if (!(number >= 1)) fail(`--number ${values.number}: give it the number of mutants to try in each native area`)
if (!(share > 0 && share <= 1))
  fail(`--share ${values.share}: give it the fraction of the lines of src/ to try, such as 0.2`)
if (!(minutes > 0)) fail(`--minutes ${values.minutes}: give it the minutes after which no further area is started`)
const strange = positionals.find((area) => !areas.includes(area))
if (strange !== undefined) fail(`there is no area ${strange}; choose from ${areas.join(', ')}, or name none for all`)
const wanted = positionals.length > 0 ? positionals : areas

mkdirSync(folder, { recursive: true })
const known = JSON.parse(readFileSync(knownPath, 'utf8'))
const endsAt = performance.now() + minutes * 60_000
const isOver = () => performance.now() >= endsAt

/** @typedef {import('./mutants-score.mjs').Mutant} Mutant */

/**
 * Returns the unit tests that run for each mutant of an area: the tests of the same names as the files and those in
 * MORE_TESTS. If one of these tests is missing, also all other tests of the area's folder, except the tests that replace a
 * module, because the tests of an area share the modules. Other tests would take too long for each mutant.
 * @param {string} area @param {string[]} own The area's files in src/.
 */
function testsOf(area, own) {
  const named = own.flatMap((file) => [
    file.replace(/^src\/(.*)\.ts$/, 'test/unit/$1.test.ts'),
    ...(MORE_TESTS.get(file) ?? []),
  ])
  if (named.every((file) => existsSync(file))) return named
  const tests = join('test/unit', area)
  const others = readdirSync(tests)
    .filter((file) => file.endsWith('.test.ts'))
    .map((file) => join(tests, file))
    .filter((file) => !readFileSync(file, 'utf8').includes('vi.mock('))
  return [...new Set([...named.filter((file) => existsSync(file)), ...others])]
}

/**
 * Tests the mutants (small mistakes) of a folder of src/ with Stryker.
 * @param {string} area
 * @returns {Promise<Mutant[]>}
 */
async function tryTypescript(area) {
  const own = files.filter((file) => areaOf(file) === area).map((file) => `src/${file}`)
  const tests = testsOf(area, own)
  let done = 0
  /** @type {ReturnType<typeof createProgress> | undefined} */
  let progress
  try {
    return await mutateTypescript({
      root,
      folder,
      area,
      files: own,
      tests,
      hasProse: PROSE.has(area),
      share,
      seed: values.seed,
      onPlan: (total) => {
        progress = createProgress('test:mutants', { total, pace: 'even' })
        progress.now(area)
      },
      onTested: () => progress?.reach(++done, area),
    })
  } finally {
    progress?.end()
  }
}

/**
 * The build of the unchanged C++ code; undefined until mutants of C++ code are tested for the first time.
 * @type {Awaited<ReturnType<typeof createNativeTrials>> | undefined}
 */
let trials
/**
 * Tests the mutants (small mistakes) of a folder of native/.
 * @param {string} area
 * @returns {Promise<Mutant[]>}
 */
async function tryNative(area) {
  const progress = createProgress('test:mutants', { total: number, pace: 'even' })
  progress.now(`${area}: build`, 0)
  trials ??= await createNativeTrials({ root, folder })
  const { state, isNoticed } = trials
  const path = join(folder, `${area.replaceAll('/', '-')}.json`)
  const kept = existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : {}
  /**
   * For each mutant, by a text that identifies it: true if a test noticed the mutant, false if no test noticed it, null
   * if the mutant does not compile.
   * @type {Record<string, boolean | null>}
   */
  const outcomes = kept.state === state ? kept.outcomes : {}
  /** @type {Mutant[]} */
  const results = []
  const left = nativeMutants({ root, area: area.split('/')[1], seed: values.seed })
  let beingTested = 0
  /** Tests one mutant after another in the worker's own folder of build/mutants. Other workers test other mutants. */
  const work = async (/** @type {number} */ worker) => {
    while (results.length + beingTested < number && !isOver()) {
      const mutant = left.shift()
      if (mutant === undefined) return
      const key = `${mutant.file} ${mutant.index} ${mutant.was} ${mutant.became}`
      progress.reach(results.length, `${area}: ${mutant.file.split('/').at(-1)}, line ${mutant.number}`)
      if (!(key in outcomes)) {
        beingTested++
        const isKilled = await isNoticed(mutant, worker)
        beingTested--
        outcomes[key] = isKilled ?? null
        writeFileSync(path, JSON.stringify({ state, outcomes }))
      }
      const isKilled = outcomes[key]
      if (isKilled !== null) results.push({ ...mutant, isKilled })
    }
  }
  await Promise.all(Array.from({ length: availableParallelism() }, (_, worker) => work(worker)))
  progress.end()
  return results
}

/** @type {import('./mutants-score.mjs').Score[]} */
const scores = []
const left = []
for (const area of wanted) {
  if (isOver()) {
    left.push(area)
    continue
  }
  const isNative = area.startsWith('native/')
  const began = performance.now()
  const mutants = await (isNative ? tryNative(area) : tryTypescript(area))
  const minutesTaken = (performance.now() - began) / 60_000
  if (isNative && mutants.length === 0 && isOver()) {
    left.push(area)
    continue
  }
  // A sample of mutants does not contain every known survivor, so it cannot show that an entry is stale. An area of
  // TypeScript may have no mutants, because it may contain only types, but C++ code always has some.
  const about = { isWhole: !isNative && share === 1, mayBeEmpty: !isNative }
  const score = { ...judge(area, mutants, known, about), minutes: minutesTaken }
  scores.push(score)
  process.stdout.write(`${scoreTable([score])}\n`)
  if (values.survivors) for (const each of score.survivors) process.stdout.write(`${JSON.stringify(each)}\n`)
}

process.stdout.write(`\n${scoreTable(scores)}\n`)
if (left.length > 0) process.stdout.write(`not started, because the time was over: ${left.join(', ')}\n`)
for (const { unknown, stale, isLow, area } of scores) {
  for (const { file, number: line, was, became } of unknown)
    process.stdout.write(
      `survived, and test/mutants.json has no reason: ${file}:${line}: ${was} became ${became || 'nothing'}\n`,
    )
  for (const entry of stale)
    process.stdout.write(`in test/mutants.json, but not a survivor: ${JSON.stringify(entry)}\n`)
  if (isLow) process.stdout.write(`${area}: less than ${LEAST_PERCENT}% were noticed\n`)
}
const isGood =
  scores.length > 0 && scores.every(({ unknown, stale, isLow }) => unknown.length + stale.length === 0 && !isLow)
process.exitCode = isGood ? 0 : 1
