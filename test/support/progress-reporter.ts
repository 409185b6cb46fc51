// progress-reporter.ts - how far a long run of tests is, by scripts/progress.mjs: how many of its files, and what goes on.
//
// A test that takes long says so by an annotation of the type `step`, of which each is a line where there is no terminal.

import { relative } from 'node:path'
import type { TestAnnotation } from 'vitest'
import type { ReportedHookContext, Reporter, TestCase, TestModule, TestSpecification } from 'vitest/node'
import { createProgress, type Progress } from '../../scripts/progress.mjs'

const nameOf = ({ relativeModuleId }: TestModule): string => relative('test', relativeModuleId)

export default class ProgressReporter implements Reporter {
  #progress: Progress | undefined
  /** Of each file that was begun, which share of its tests is done; files run beside each other. */
  readonly #shares = new Map<string, { done: number; readonly tests: number }>()

  onTestRunStart(specifications: readonly TestSpecification[]): void {
    this.#progress = createProgress(process.env['npm_lifecycle_event'] ?? 'test', { total: specifications.length })
  }

  onTestModuleCollected(module: TestModule): void {
    this.#shares.set(module.id, { done: 0, tests: [...module.children.allTests()].length })
    this.#show(nameOf(module))
  }

  onHookStart({ name, entity }: ReportedHookContext): void {
    const module = entity.type === 'module' ? entity : entity.module
    if (name === 'beforeAll') this.#show(`${nameOf(module)}: what prepares it`)
  }

  onTestCaseReady(test: TestCase): void {
    this.#show(`${nameOf(test.module)}: ${test.name}`)
  }

  onTestCaseAnnotate(test: TestCase, { type, message }: TestAnnotation): void {
    if (type !== 'step') return
    const line = `${nameOf(test.module)}: ${message}`
    this.#show(line)
    this.#progress?.plain(line)
  }

  onTestCaseResult(test: TestCase): void {
    const share = this.#shares.get(test.module.id)
    if (share) share.done++
  }

  onTestModuleEnd(module: TestModule): void {
    this.#shares.set(module.id, { done: 1, tests: 1 })
  }

  onTestRunEnd(): void {
    this.#progress?.end()
  }

  #show(what: string): void {
    const shares = [...this.#shares.values()].map(({ done, tests }) => (tests > 0 ? done / tests : 0))
    this.#progress?.reach(
      shares.reduce((sum, share) => sum + share, 0),
      what,
    )
  }
}
