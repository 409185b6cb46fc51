// mutants-stryker.mjs - runs the mutation tester Stryker on those files of one area of src/ that do no I/O. The file
// also has two plugins that Stryker loads: one plugin excludes sentences from mutation, the other reports progress.

import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Stryker } from '@stryker-mutator/core'
import { drawn } from './mutants-score.mjs'

/** The options of the current run, in a global variable because Stryker creates the plugins without arguments. */
const run = {
  isProse: /** @type {(text: string) => boolean} */ (() => false),
  onPlan: /** @type {(total: number) => void} */ (() => {}),
  onTested: () => {},
}

/**
 * Matches text with three consecutive words of letters. Such text is a sentence for people, not a name or a firewall
 * rule.
 */
const SENTENCE = /(^|\s)[\p{L}'’]+,? [\p{L}'’]+,? [\p{L}'’]+/u

/**
 * True if the string in the syntax tree is an argument of an error or of a log call.
 * @param {any} path
 */
function isMessage(path) {
  return Boolean(
    path.findParent((/** @type {any} */ { node }) => {
      if (node.type === 'NewExpression') return node.callee.name === 'WeftError'
      return node.type === 'CallExpression' && node.callee.object?.name === 'log'
    }),
  )
}

/**
 * Returns the text of a string literal, or of a template string that inserts only variables and their fields.
 * @param {any} path
 */
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
      /**
       * Called by Stryker for each syntax node. Returns why Stryker must not mutate the node, or undefined.
       * @param {any} path
       */
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
      /**
       * Called by Stryker with its plan for each mutant. Reports how many mutants Stryker will run.
       * @param {{ mutantPlans: { plan: string }[] }} event
       */
      onMutationTestingPlanReady({ mutantPlans }) {
        run.onPlan(mutantPlans.filter(({ plan }) => plan === 'Run').length)
      }
      onMutantTested() {
        run.onTested()
      }
    },
  },
]

/**
 * The number of lines in each block of a sample. Stryker mutates an expression only if it is inside one block, so
 * longer expressions are mutated only in a run without sampling.
 */
const LINES_TOGETHER = 8

/**
 * Returns the line ranges of a file that the sample includes, in Stryker's format `FILE:FIRST-LAST`.
 * @param {string} file @param {number} share @param {string} seed
 */
function rangesOf(file, share, seed) {
  if (share >= 1) return [file]
  const count = readFileSync(file, 'utf8').split('\n').length
  return Array.from({ length: Math.ceil(count / LINES_TOGETHER) }, (_, at) => at * LINES_TOGETHER + 1)
    .filter((first) => drawn(`${seed} ${file} ${first}`) < share)
    .map((first) => `${file}:${first}-${first + LINES_TOGETHER - 1}`)
}

/**
 * The text in Stryker's result if the changed file cannot be loaded or throws outside of a test. A mutant with this
 * result counts as noticed by the tests.
 */
const OUTSIDE = 'An error occurred outside of a test run'

/**
 * Deletes from Stryker's saved results the mutants in code that no test covered, and the survivors in code that runs at
 * import. Stryker would reuse these results even after tests were added.
 * @param {string} path
 */
function forgetUncovered(path) {
  if (!existsSync(path)) return
  const known = JSON.parse(readFileSync(path, 'utf8'))
  for (const file of Object.values(known.files))
    file.mutants = file.mutants.filter(
      (/** @type {{ static?: boolean, status: string }} */ { static: isStatic, status }) =>
        status !== 'NoCoverage' && !(isStatic && status === 'Survived'),
    )
  writeFileSync(path, JSON.stringify(known))
}

const collapse = (/** @type {string} */ text) => text.replaceAll(/\s+/g, ' ').trim()

/**
 * Makes mutants (small mistakes) of `files` with Stryker and runs the tests `tests` with each mutant. Takes the results
 * for unchanged files and tests from the last run.
 * @param {{ root: string, folder: string, area: string, files: string[], tests: string[], hasProse: boolean, share:
 * number, seed: string, onPlan: (total: number) => void, onTested: () => void }} options `hasProse`: true if no
 * sentence is mutated; if false, only sentences of errors and log lines are excluded. `share`: the fraction of the
 * lines to mutate, from 0 to 1. `seed`: a text that chooses these lines.
 */
export async function mutateTypescript({ root, folder, area, files, tests, hasProse, share, seed, onPlan, onTested }) {
  Object.assign(run, {
    isProse: hasProse ? (/** @type {string} */ text) => SENTENCE.test(text) : () => false,
    onPlan,
    onTested,
  })
  process.env.WEFT_MUTANTS_TESTS = tests.join(',')
  // Each sample has its own results file, because Stryker would confuse the results of two samples with different
  // lines.
  const incrementalFile = join(folder, `${area.replaceAll('/', '-')}${share < 1 ? `-${share}-${seed}` : ''}.json`)
  forgetUncovered(incrementalFile)
  const stryker = new Stryker({
    testRunner: 'vitest',
    vitest: { configFile: 'vitest.mutants.config.ts', related: false },
    plugins: ['@stryker-mutator/vitest-runner', fileURLToPath(import.meta.url)],
    ignorers: ['prose'],
    reporters: ['how-far'],
    mutate: files.flatMap((file) => rangesOf(file, share, seed)),
    coverageAnalysis: 'perTest',
    concurrency: availableParallelism(),
    timeoutMS: 10_000,
    incremental: true,
    incrementalFile,
    tempDirName: join(folder, `sandbox-${process.pid}`),
    // Stryker's copy of the project must contain the compiled addon, because test files that load the addon could not
    // be imported without it.
    ignorePatterns: ['/build/*', '!/build/Release', '/dist', '/docs/images', '/bench/results'],
    // Hide tsconfig.json from Stryker, which would rewrite the file with an API that TypeScript 7 lacks. The copied
    // tsconfig.json works unchanged.
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
      // Stryker's line and column numbers start at 1.
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
