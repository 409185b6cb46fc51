// vitest.mutants.config.ts - the tests that scripts/mutants.mjs has Stryker run: those it names, with one seed for every property.

import { defineConfig } from 'vitest/config'
import type { Reporter, TestModule, Vitest } from 'vitest/node'

/**
 * A file that a mistake keeps from being loaded has no test that fails, which Stryker takes for none that noticed: what was thrown is told as
 * an error outside of a test, which it does not.
 */
class LoadErrors implements Reporter {
  #vitest: Vitest | undefined

  onInit(vitest: Vitest): void {
    this.#vitest = vitest
  }

  onTestModuleEnd(module: TestModule): void {
    for (const { message } of module.errors()) this.#vitest?.state.catchError(new Error(message), 'Load Error')
  }
}

export default defineConfig({
  test: {
    include: (process.env['WEFT_MUTANTS_TESTS'] ?? '').split(','),
    isolate: false, // Each run has a worker of its own; its files share what they import.
    setupFiles: ['./test/support/one-seed.ts'],
    reporters: [new LoadErrors()],
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
})
