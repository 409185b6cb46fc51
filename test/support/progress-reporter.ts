// progress-reporter.ts - shows the progress of a long run of tests with scripts/progress.mjs: the share of its files, and the current step.
//
// A long test reports its progress with an annotation of the type `step`, such as `35%, a link is down`. Without a terminal each annotation
// is a line. Hooks use long-step.ts.

import { relative } from 'node:path'
import type { TestAnnotation, UserConsoleLog } from 'vitest'
import type { Reporter, TestCase, TestModule, TestSpecification } from 'vitest/node'
import { createProgress, type Progress } from '../../scripts/progress.mjs'
import { stepIn } from './long-step.ts'

const nameOf = ({ relativeModuleId }: TestModule): string => relative('test', relativeModuleId)

export default class ProgressReporter implements Reporter {
  #progress: Progress | undefined
  /**
   * The progress of each started file: its tests, the finished ones, and the share of the running one. Files run in parallel.
   */
  readonly #shares = new Map<string, { readonly tests: number; done: number; part: number }>()

  onTestRunStart(specifications: readonly TestSpecification[]): void {
    this.#progress = createProgress(process.env['npm_lifecycle_event'] ?? 'test', { total: specifications.length })
  }

  onTestModuleCollected(module: TestModule): void {
    this.#shares.set(module.id, { tests: [...module.children.allTests()].length, done: 0, part: 0 })
    this.#show(nameOf(module))
  }

  onUserConsoleLog({ content }: UserConsoleLog): void {
    const step = stepIn(content)
    if (step !== undefined) this.#show(step)
  }

  onTestCaseReady(test: TestCase): void {
    this.#show(`${nameOf(test.module)}: ${test.name}`)
  }

  onTestCaseAnnotate(test: TestCase, { type, message }: TestAnnotation): void {
    if (type !== 'step') return
    const share = this.#shares.get(test.module.id)
    if (share) share.part = Number.parseInt(message, 10) / 100 || 0
    const line = `${nameOf(test.module)}: ${message}`
    this.#show(line)
    this.#progress?.plain(line)
  }

  onTestCaseResult(test: TestCase): void {
    const share = this.#shares.get(test.module.id)
    if (share) Object.assign(share, { done: share.done + 1, part: 0 })
  }

  onTestModuleEnd(module: TestModule): void {
    this.#shares.set(module.id, { tests: 1, done: 1, part: 0 })
  }

  onTestRunEnd(): void {
    this.#progress?.end()
  }

  #show(what: string): void {
    const shares = [...this.#shares.values()].map(({ tests, done, part }) => (tests > 0 ? (done + part) / tests : 0))
    this.#progress?.reach(
      shares.reduce((sum, share) => sum + share, 0),
      what,
    )
  }
}
