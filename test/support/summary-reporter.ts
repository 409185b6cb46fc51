// summary-reporter.ts - prints every skip with its reason, and ends with one line: `12 passed, 0 failed, 1 skipped`.
//
// A skip without a reason fails the run, because the reader of `1 skipped` must know what is missing. With WEFT_REQUIRE, which
// scripts/tasks.mjs sets for tests that were requested by name, a skip because of the machine (needs.ts) fails too. A feature that the
// kernel lacks is always a skip.
//
// A test that loops without a pause keeps its own process from noticing its timeout. Then this reporter ends the run and names the test.

import { readFileSync } from 'node:fs'
import type { Reporter, TestCase, TestModule, TestSuite, Vitest } from 'vitest/node'
import { PATIENCE } from '../../lab/command.ts'
import { isLack } from '../../scripts/machine.mjs'
import { IS_SELECTION, onlyOf } from './selection.ts'

/**
 * The time in ms without a finished test after which the run is ended. It exceeds the limit of any test and its hooks
 * (vitest.config.ts), so some test ends within it unless none can.
 */
const SILENCE_MS = (process.env['WEFT_LONG'] === '1' ? 7_200_000 : 900_000) * PATIENCE

export default class SummaryReporter implements Reporter {
  readonly #running = new Set<string>()
  #silence: NodeJS.Timeout | undefined
  /** True if tests of a file were chosen by name or by line; the others need no reason. */
  #isChoice = false

  onInit({ config }: Vitest): void {
    this.#isChoice = config.testNamePattern !== undefined || process.argv.some((word) => /\.ts:\d+$/.test(word))
  }

  onTestModuleStart({ relativeModuleId }: TestModule): void {
    this.#running.add(relativeModuleId)
    this.#restartTimer()
  }

  onTestCaseResult(): void {
    this.#restartTimer()
  }

  onTestModuleEnd({ relativeModuleId }: TestModule): void {
    this.#running.delete(relativeModuleId)
    this.#restartTimer()
  }

  #restartTimer(): void {
    clearTimeout(this.#silence)
    this.#silence = setTimeout(() => this.#give(), SILENCE_MS).unref()
  }

  /** Ends the run and the processes of the tests, which may not react to a message. */
  #give(): void {
    const names = [...this.#running].join(', ')
    process.stdout.write(`no test ended for ${SILENCE_MS / 60_000} minutes; still running: ${names}\n`)
    for (const child of readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8').split(' '))
      if (child !== '') process.kill(Number(child), 'SIGKILL')
    process.exit(1)
  }

  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly unknown[]): void {
    clearTimeout(this.#silence)
    let passed = 0
    let failed = unhandledErrors.length
    let skipped = 0
    let leftOut = 0
    const lines: string[] = []
    /** The tests of a file that are skipped, or could not run, for one reason. */
    const groups = new Map<string, { where: string; note: string; tests: TestCase[] }>()
    const isRequired = Boolean(process.env['WEFT_REQUIRE'])
    const fail = (line: string, count = 1): void => {
      failed += count
      lines.push(line)
      process.exitCode = 1
    }
    for (const module of modules) {
      // A file that could not be collected has no tests that fail, and after a failed hook no test runs.
      for (const part of [module, ...module.children.allSuites()]) if (part.errors().length > 0) failed++
      for (const test of module.children.allTests()) {
        const result = test.result()
        if (result.state === 'passed') passed++
        else if (result.state === 'failed') failed++
        else if (result.state === 'pending') fail(`not run to its end: ${test.fullName}`)
        else {
          const note = result.note ?? (isBelowFailure(test) ? 'what prepares it failed' : undefined)
          if (note !== undefined) {
            const where = module.relativeModuleId
            const group = groups.get(`${where}: ${note}`) ?? { where, note, tests: [] }
            groups.set(`${where}: ${note}`, { ...group, tests: [...group.tests, test] })
          } else if (this.#isChoice) skipped++
          else if (isLeftOut(test)) leftOut++
          else fail(`skipped without a reason, which is a failure: ${test.fullName}`)
        }
      }
    }
    for (const { where, note, tests } of groups.values()) {
      const line = `${tests.length === 1 ? tests[0]!.fullName : `${tests.length} tests`}, ${where}: ${note}`
      if (isRequired && isLack(note)) fail(`could not run, which is a failure: ${line}`, tests.length)
      else {
        skipped += tests.length
        lines.push(`skipped: ${line}`)
      }
    }
    if (passed + failed === 0) {
      lines.push('no test was run')
      process.exitCode = 1
    }
    if (IS_SELECTION)
      lines.push(
        `These are the tests of test/selection.json. \`npm run test:whole\` has all, ${leftOut} more in these files.`,
      )
    lines.push(`${passed} passed, ${failed} failed, ${skipped} skipped`)
    // Write these lines at the exit, after the last lines of other reporters.
    process.once('exit', () => process.stdout.write(`${lines.join('\n')}\n`))
  }
}

/** True for a test that test/selection.json leaves to `npm run test:whole`. */
function isLeftOut({ module, fullName }: TestCase): boolean {
  const only = onlyOf(module.relativeModuleId)
  return only !== undefined && !only.test(fullName.replaceAll(' > ', ' '))
}

function isBelowFailure(test: TestCase): boolean {
  for (let part: TestModule | TestSuite = test.parent; ; part = part.parent) {
    if (part.errors().length > 0) return true
    if (part.type === 'module') return false
  }
}
