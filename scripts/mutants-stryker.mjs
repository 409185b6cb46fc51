// mutants-stryker.mjs - Stryker on the pure files of one room of src/, and what Stryker loads for it: who ignores prose, who tells how far it is.

import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Stryker } from '@stryker-mutator/core'
import { drawn } from './mutants-score.mjs'

/** Of the run that is going on, for the plugins below, which Stryker makes by itself. */
const run = {
  isProse: /** @type {(text: string) => boolean} */ (() => false),
  onPlan: /** @type {(total: number) => void} */ (() => {}),
  onTested: () => {},
}

/** A sentence, as opposed to a name or a rule of a firewall: three words of letters in a row. */
const SENTENCE = /(^|\s)[\p{L}'’]+,? [\p{L}'’]+,? [\p{L}'’]+/u

/** @param {any} path Where a string stands. Whether that is within what makes an error or a line of the log. */
function isMessage(path) {
  return Boolean(
    path.findParent((/** @type {any} */ { node }) => {
      if (node.type === 'NewExpression') return node.callee.name === 'WeftError'
      return node.type === 'CallExpression' && node.callee.object?.name === 'log'
    }),
  )
}

/** @param {any} path The text of a string, or of a template whose holes are no more than names and their fields. */
function textOf({ node }) {
  if (node.type === 'StringLiteral') return node.value
  if (node.type !== 'TemplateLiteral') return undefined
  const isPlain = node.expressions.every((/** @type {any} */ { type }) =>
    ['Identifier', 'MemberExpression'].includes(type),
  )
  return isPlain ? node.quasis.map((/** @type {any} */ { value }) => value.cooked).join('x') : undefined
}

export const strykerPlugins = [
  {
    kind: 'Ignore',
    name: 'prose',
    value: {
      /** @param {any} path */
      shouldIgnore(path) {
        const text = textOf(path)
        if (text !== undefined && (isMessage(path) || run.isProse(text))) return 'a text for people'
        return undefined
      },
    },
  },
  {
    kind: 'Reporter',
    name: 'how-far',
    injectableClass: class {
      /** @param {{ mutantPlans: { plan: string }[] }} event */
      onMutationTestingPlanReady({ mutantPlans }) {
        run.onPlan(mutantPlans.filter(({ plan }) => plan === 'Run').length)
      }
      onMutantTested() {
        run.onTested()
      }
    },
  },
]

/** Of a sample, so many lines stay together: what spans more is mutated in a whole run alone. */
const LINES_TOGETHER = 8

/**
 * Which lines are mutated, as Stryker names them.
 * @param {string} file @param {number} share @param {string} seed
 */
function rangesOf(file, share, seed) {
  if (share >= 1) return [file]
  const count = readFileSync(file, 'utf8').split('\n').length
  return Array.from({ length: Math.ceil(count / LINES_TOGETHER) }, (_, at) => at * LINES_TOGETHER + 1)
    .filter((first) => drawn(`${seed} ${file} ${first}`) < share)
    .map((first) => `${file}:${first}-${first + LINES_TOGETHER - 1}`)
}

/** What Stryker says of a file that cannot be loaded, or that throws when no test runs: that fails too. */
const OUTSIDE = 'An error occurred outside of a test run'

/** What runs as a file is loaded no test is known to cover: Stryker would not ask a new test about one that survived. @param {string} path */
function forgetStaticSurvivors(path) {
  if (!existsSync(path)) return
  const known = JSON.parse(readFileSync(path, 'utf8'))
  for (const file of Object.values(known.files))
    file.mutants = file.mutants.filter(
      (/** @type {{ static?: boolean, status: string }} */ { static: isStatic, status }) =>
        !isStatic || status !== 'Survived',
    )
  writeFileSync(path, JSON.stringify(known))
}

const collapse = (/** @type {string} */ text) => text.replaceAll(/\s+/g, ' ').trim()

/**
 * The mutants of these files, judged by these tests. What neither the files nor the tests changed about is taken from the last run.
 * @param {{ root: string, folder: string, room: string, files: string[], tests: string[], hasProse: boolean, share: number, seed: string,
 *   onPlan: (total: number) => void, onTested: () => void }} options `hasProse`: sentences are ignored wherever they stand.
 *   `share`: of the lines, drawn by the seed.
 */
export async function mutateTypescript({ root, folder, room, files, tests, hasProse, share, seed, onPlan, onTested }) {
  Object.assign(run, {
    isProse: hasProse ? (/** @type {string} */ text) => SENTENCE.test(text) : () => false,
    onPlan,
    onTested,
  })
  process.env.WEFT_MUTANTS_TESTS = tests.join(',')
  // A sample knows nothing of the lines beside it, whose outcomes of before it would take for its own.
  const incrementalFile = join(folder, `${room.replaceAll('/', '-')}${share < 1 ? `-${share}-${seed}` : ''}.json`)
  forgetStaticSurvivors(incrementalFile)
  const stryker = new Stryker({
    testRunner: 'vitest',
    vitest: { configFile: 'vitest.mutants.config.ts', related: false },
    plugins: ['@stryker-mutator/vitest-runner', fileURLToPath(import.meta.url)],
    ignorers: ['prose'],
    reporters: ['how-far'],
    mutate: files.flatMap((file) => rangesOf(file, share, seed)),
    coverageAnalysis: 'perTest',
    concurrency: 1,
    timeoutMS: 10_000,
    incremental: true,
    incrementalFile,
    tempDirName: join(folder, `sandbox-${process.pid}`),
    // The addon stays: a test that imports what loads it could not be loaded itself.
    ignorePatterns: ['/build/*', '!/build/Release', '/dist', '/docs/images', '/bench/results'],
    // It rewrites tsconfig.json by the API of a TypeScript before 7; the copy needs no rewriting.
    tsconfigFile: 'none',
    allowEmpty: true,
    logLevel: 'error',
    allowConsoleColors: false,
  })
  const results = await stryker.runMutationTest()
  const texts = new Map()
  return results
    .filter(({ status }) => status !== 'Ignored')
    .map(({ fileName, location: { start, end }, replacement, mutatorName, status, statusReason }) => {
      const file = fileName.slice(root.length + 1)
      if (!texts.has(file)) texts.set(file, readFileSync(fileName, 'utf8').split('\n'))
      // Both count from 1.
      const part = texts.get(file).slice(start.line - 1, end.line)
      const line = collapse(part[0])
      part[part.length - 1] = part.at(-1).slice(0, end.column - 1)
      part[0] = part[0].slice(start.column - 1)
      return {
        file,
        number: start.line,
        line,
        was: collapse(part.join('\n')),
        became: collapse(replacement),
        operator: mutatorName,
        isKilled: ['Killed', 'Timeout'].includes(status) || statusReason?.startsWith(OUTSIDE) === true,
      }
    })
}
