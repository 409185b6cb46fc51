// mutants-stryker.mjs - runs Stryker on the pure files of one area of src/. Stryker also loads two plugins from here: one ignores prose, one
// reports progress.

import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Stryker } from '@stryker-mutator/core'
import { drawn } from './mutants-score.mjs'

/** The options of the current run. They are global because Stryker creates the plugins itself. */
const run = {
  isProse: /** @type {(text: string) => boolean} */ (() => false),
  onPlan: /** @type {(total: number) => void} */ (() => {}),
  onTested: () => {},
}

/** Matches a sentence, as opposed to a name or a firewall rule: three consecutive words of letters. */
const SENTENCE = /(^|\s)[\p{L}'’]+,? [\p{L}'’]+,? [\p{L}'’]+/u

/** True if the string belongs to an error or a line of the log. @param {any} path */
function isMessage(path) {
  return Boolean(
    path.findParent((/** @type {any} */ { node }) => {
      if (node.type === 'NewExpression') return node.callee.name === 'WeftError'
      return node.type === 'CallExpression' && node.callee.object?.name === 'log'
    }),
  )
}

/** Returns the text of a string, or of a template that contains only names and their fields. @param {any} path */
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

/** The number of lines in each block of a sample. Code that spans more lines is mutated only in a whole run. */
const LINES_TOGETHER = 8

/**
 * Returns the line ranges to mutate, in Stryker's format.
 * @param {string} file @param {number} share @param {string} seed
 */
function rangesOf(file, share, seed) {
  if (share >= 1) return [file]
  const count = readFileSync(file, 'utf8').split('\n').length
  return Array.from({ length: Math.ceil(count / LINES_TOGETHER) }, (_, at) => at * LINES_TOGETHER + 1)
    .filter((first) => drawn(`${seed} ${file} ${first}`) < share)
    .map((first) => `${file}:${first}-${first + LINES_TOGETHER - 1}`)
}

/** Stryker's text for a file that cannot be loaded, or that throws outside of a test. Such a mutant counts as noticed. */
const OUTSIDE = 'An error occurred outside of a test run'

/** Removes survivors in code that runs at import. Stryker knows no test that covers them, so it would not try new tests. @param {string} path */
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
 * Runs the mutants of these files with these tests. Results of unchanged files and tests are taken from the last run.
 * @param {{ root: string, folder: string, area: string, files: string[], tests: string[], hasProse: boolean, share: number, seed: string,
 *   onPlan: (total: number) => void, onTested: () => void }} options `hasProse`: all sentences are ignored, not only those of
 *   errors and log lines. `share`: the fraction of the lines that is mutated, chosen by the seed.
 */
export async function mutateTypescript({ root, folder, area, files, tests, hasProse, share, seed, onPlan, onTested }) {
  Object.assign(run, {
    isProse: hasProse ? (/** @type {string} */ text) => SENTENCE.test(text) : () => false,
    onPlan,
    onTested,
  })
  process.env.WEFT_MUTANTS_TESTS = tests.join(',')
  // Each sample has its own file, because Stryker would mix up its results with those of other lines.
  const incrementalFile = join(folder, `${area.replaceAll('/', '-')}${share < 1 ? `-${share}-${seed}` : ''}.json`)
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
    // Keep the addon, because tests that load it could not be imported otherwise.
    ignorePatterns: ['/build/*', '!/build/Release', '/dist', '/docs/images', '/bench/results'],
    // Stryker rewrites tsconfig.json with an API that TypeScript 7 lacks. The copy needs no rewriting.
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
      // Lines and columns count from 1.
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
