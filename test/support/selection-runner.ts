// selection-runner.ts - vitest's runner, with the choice of tests that test/selection.json makes within a file.

import { relative } from 'node:path'
import { TestRunner } from 'vitest'
import { onlyOf } from './selection.ts'

export default class SelectionRunner extends TestRunner {
  override importFile(...[path, source]: Parameters<TestRunner['importFile']>): unknown {
    const only = source === 'collect' ? onlyOf(relative(process.cwd(), path)) : undefined
    // A pattern on the command line takes precedence.
    if (only !== undefined) this.config.testNamePattern ??= only
    return super.importFile(path, source)
  }
}
