// vitest.mutants.config.ts - the configuration for Stryker (scripts/mutants.mjs). It runs the named tests, with one seed for all properties.

import { defineConfig } from 'vitest/config'
import type { Reporter, TestModule, Vitest } from 'vitest/node'

/**
 * Reports errors at import as errors outside of a test. Otherwise Stryker would count a mutant that breaks the import as not noticed, because
 * no test failed.
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
    isolate: false, // each run has its own worker, whose files share their imports
    setupFiles: ['./test/support/one-seed.ts'],
    reporters: [new LoadErrors()],
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
})
