// vitest.config.ts - projects one after another: quick tests in parallel; those that mostly wait, four at once; those that load
// the machine or take times, one by one. That of the container image is there when it is asked for.

import { defineConfig } from 'vitest/config'

/** What they wait for is an event or a time of the daemon's own, with room for a busy machine. */
const WAITING = [
  'test/netns/bad-input.test.ts',
  'test/netns/cleanup.test.ts',
  'test/netns/contract.test.ts',
  'test/netns/privileges.test.ts',
  'test/netns/service-manager.test.ts',
  'test/netns/several.test.ts',
  'test/netns/systemd.test.ts',
  'test/store/cluster.test.ts',
]
const LIMITS = { testTimeout: 60_000, hookTimeout: 60_000 }

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
          maxWorkers: '100%',
        },
      },
      {
        extends: true,
        // By default there is a worker less than cores, which of two leaves one.
        test: { name: 'waiting', include: WAITING, maxWorkers: 4, ...LIMITS, sequence: { groupOrder: 1 } },
      },
      {
        extends: true,
        test: {
          name: 'system',
          include: ['test/native/**/*.test.ts', 'test/store/**/*.test.ts', 'test/netns/**/*.test.ts'],
          exclude: WAITING,
          fileParallelism: false,
          ...LIMITS,
          sequence: { groupOrder: 2 },
        },
      },
      ...(process.env['WEFT_IMAGE']
        ? [
            {
              extends: true as const,
              test: {
                name: 'image',
                include: ['test/image/**/*.test.ts'],
                testTimeout: 60_000,
                sequence: { groupOrder: 3 },
              },
            },
          ]
        : []),
    ],
  },
})
