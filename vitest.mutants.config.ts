// vitest.mutants.config.ts - the tests that scripts/mutants.mjs has Stryker run: those it names, with one seed for every property.

import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: (process.env['WEFT_MUTANTS_TESTS'] ?? '').split(','),
    isolate: false, // Each run has a worker of its own; its files share what they import.
    setupFiles: ['./test/support/one-seed.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
})
