// mutants.mjs - whether the tests notice small mistakes: `npm run test:mutants -- [ROOM...]`.
//
// Mutants are the pure files of src/ (test/support/pure-files.ts), by Stryker and the unit tests of the same room, and native/core and
// native/encap, by mutants-native.mjs. A mutant that no test notices has survived. test/mutants.json says which survivors are
// known, and why; any other makes this fail, and so does a room of which fewer are noticed than LEAST_PERCENT, and an entry
// that nothing stands for any more. What did not change since the last run is not run again (build/mutants).

import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
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

/** Where the tests of a room are not at the paths of its files. */
const TESTS = { net: ['net/nets'] }
/** Rooms that are full of sentences for people: how those are worded is no behaviour. */
const PROSE = new Set(['options', 'report', 'report/page', 'tool/doctor', 'tool/measure', 'tool/weft'])
const NATIVE = ['core', 'encap']

/** @param {string} message @returns {never} */
function fail(message) {
  process.stderr.write(`test:mutants: ${message}\n`)
  process.exit(2)
}

const { isPure } = await import(join(root, 'dist/test/support/pure-files.js'))
const files = readdirSync('src', { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.ts') && isPure(file))
  .toSorted()
/** Its folder; of a file on top of src/ its name. */
const roomOf = (/** @type {string} */ file) => file.replace(file.includes('/') ? /\/[^/]*$/ : /\.ts$/, '')
const rooms = [...new Set(files.map(roomOf)), ...NATIVE.map((room) => `native/${room}`)]

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
if (!(number >= 1)) fail(`--number ${values.number}: it takes how many mutants of each native room are tried`)
if (!(share > 0 && share <= 1))
  fail(`--share ${values.share}: it takes what part of the lines of src/ is tried, such as 0.2`)
if (!(minutes > 0)) fail(`--minutes ${values.minutes}: it takes the minutes after which no further room is begun`)
const strange = positionals.find((room) => !rooms.includes(room))
if (strange !== undefined) fail(`there is no room ${strange}; it takes ${rooms.join(', ')}, or nothing for all`)
const wanted = positionals.length > 0 ? positionals : rooms

mkdirSync(folder, { recursive: true })
const known = JSON.parse(readFileSync(knownPath, 'utf8'))
const endsAt = performance.now() + minutes * 60_000
const isOver = () => performance.now() >= endsAt

/** @typedef {import('./mutants-score.mjs').Mutant} Mutant */

/** @param {string} room @returns {Promise<Mutant[]>} */
async function tryTypescript(room) {
  const own = files.filter((file) => roomOf(file) === room).map((file) => `src/${file}`)
  // A test that is at no such path may start processes, which would be for each mutant.
  const tests = (TESTS[room] ?? own.map((file) => file.slice('src/'.length, -'.ts'.length))).map(
    (name) => `test/unit/${name}.test.ts`,
  )
  let done = 0
  /** @type {ReturnType<typeof createProgress> | undefined} */
  let progress
  try {
    return await mutateTypescript({
      root,
      folder,
      room,
      files: own,
      tests,
      hasProse: PROSE.has(room),
      share,
      seed: values.seed,
      onPlan: (total) => {
        progress = createProgress('test:mutants', { total, pace: 'even' })
        progress.now(room)
      },
      onTested: () => progress?.reach(++done, room),
    })
  } finally {
    progress?.end()
  }
}

/** @type {Awaited<ReturnType<typeof createNativeTrials>> | undefined} */
let trials
/** @param {string} room @returns {Promise<Mutant[]>} */
async function tryNative(room) {
  const progress = createProgress('test:mutants', { total: number, pace: 'even' })
  progress.now(`${room}: build`, 0)
  trials ??= await createNativeTrials({ root, folder })
  const path = join(folder, `${room.replaceAll('/', '-')}.json`)
  const kept = existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : {}
  /** @type {Record<string, boolean | null>} By mutant; null for one that does not compile. */
  const outcomes = kept.state === trials.state ? kept.outcomes : {}
  const results = []
  for (const mutant of nativeMutants({ root, room: room.split('/')[1], seed: values.seed })) {
    if (results.length === number || isOver()) break
    const key = `${mutant.file} ${mutant.index} ${mutant.was} ${mutant.became}`
    progress.reach(results.length, `${room}: ${mutant.file.split('/').at(-1)}, line ${mutant.number}`)
    if (!(key in outcomes)) {
      outcomes[key] = (await trials.isNoticed(mutant)) ?? null
      writeFileSync(path, JSON.stringify({ state: trials.state, outcomes }))
    }
    const isKilled = outcomes[key]
    if (isKilled !== null) results.push({ ...mutant, isKilled })
  }
  progress.end()
  return results
}

/** @type {import('./mutants-score.mjs').Score[]} */
const scores = []
const left = []
for (const room of wanted) {
  if (isOver()) {
    left.push(room)
    continue
  }
  const isNative = room.startsWith('native/')
  const began = performance.now()
  const mutants = await (isNative ? tryNative(room) : tryTypescript(room))
  const minutesTaken = (performance.now() - began) / 60_000
  if (isNative && mutants.length === 0 && isOver()) {
    left.push(room)
    continue
  }
  // A sample has not met every known one. A room of types alone has none; of C++ none are left where nothing compiles any more.
  const about = { isWhole: !isNative && share === 1, mayBeEmpty: !isNative }
  const score = { ...judge(room, mutants, known, about), minutes: minutesTaken }
  scores.push(score)
  process.stdout.write(`${scoreTable([score])}\n`)
  if (values.survivors) for (const each of score.survivors) process.stdout.write(`${JSON.stringify(each)}\n`)
}

process.stdout.write(`\n${scoreTable(scores)}\n`)
if (left.length > 0) process.stdout.write(`not begun, since the time was over: ${left.join(', ')}\n`)
for (const { unknown, stale, isLow, room } of scores) {
  for (const { file, number: line, was, became } of unknown)
    process.stdout.write(
      `survived, and test/mutants.json has no reason: ${file}:${line}: ${was} became ${became || 'nothing'}\n`,
    )
  for (const entry of stale) process.stdout.write(`in test/mutants.json, but no survivor: ${JSON.stringify(entry)}\n`)
  if (isLow) process.stdout.write(`${room}: less than ${LEAST_PERCENT}% were noticed\n`)
}
const isGood =
  scores.length > 0 && scores.every(({ unknown, stale, isLow }) => unknown.length + stale.length === 0 && !isLow)
process.exitCode = isGood ? 0 : 1
