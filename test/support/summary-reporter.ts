// summary-reporter.ts - says every skip aloud and ends with one line: `12 passed, 0 failed, 1 skipped`.

import type { Reporter, TestCase, TestModule } from 'vitest/node'

export default class SummaryReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandledErrors: readonly unknown[]): void {
    let passed = 0
    let failed = unhandledErrors.length
    const skipped: TestCase[] = []
    for (const module of modules) {
      // A file that could not be collected has no tests to fail.
      if (module.state() === 'failed' && module.errors().length > 0) failed++
      for (const test of module.children.allTests()) {
        const { state } = test.result()
        if (state === 'passed') passed++
        else if (state === 'failed') failed++
        else skipped.push(test)
      }
    }
    const lines = skipped.map((test) => {
      const { note } = test.result() as { note?: string }
      return `skipped: ${test.fullName}: ${note ?? 'no reason given'}`
    })
    if (passed + failed === 0) {
      lines.push('no test was run')
      process.exitCode = 1
    }
    lines.push(`${passed} passed, ${failed} failed, ${skipped.length} skipped`)
    // After what other reporters still print at the end of the run.
    process.once('exit', () => process.stdout.write(`${lines.join('\n')}\n`))
  }
}
