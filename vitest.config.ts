// vitest.config.ts - two projects: quick tests in parallel, and those that load the machine one after another. A third,
// of the container image, is there when it is asked for.

import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    pool: 'forks',
    reporters: ['default', './test/support/summary-reporter.ts'],
    passWithNoTests: false,
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['test/unit/**/*.test.ts', 'test/sim/**/*.test.ts', 'test/*.test.ts'],
          testTimeout: 20_000,
        },
      },
      {
        extends: true,
        test: {
          name: 'system',
          include: ['test/native/**/*.test.ts', 'test/store/**/*.test.ts', 'test/netns/**/*.test.ts'],
          fileParallelism: false,
          testTimeout: 60_000,
          hookTimeout: 60_000,
          // After the unit tests, so that nothing else runs while times are taken.
          sequence: { groupOrder: 1 },
        },
      },
      ...(process.env['WEFT_IMAGE']
        ? [
            {
              extends: true as const,
              test: { name: 'image', include: ['test/image/**/*.test.ts'], testTimeout: 60_000 },
            },
          ]
        : []),
    ],
  },
})
