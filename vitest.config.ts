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
/** Of a test that hangs; what it waits for has a limit of a minute for each event (test/support/event.ts). */
const LIMITS = { testTimeout: 300_000, hookTimeout: 300_000 }

export default defineConfig({
  test: {
    pool: 'forks',
    reporters: ['default', './test/support/summary-reporter.ts'],
    passWithNoTests: false,
    setupFiles: ['./test/support/report-failure.ts'],
    expect: { poll: { timeout: 60_000, interval: 50 } },
    ...LIMITS,
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['test/unit/**/*.test.ts', 'test/sim/**/*.test.ts', 'test/*.test.ts'],
          maxWorkers: '100%',
        },
      },
      {
        extends: true,
        // By default there is a worker less than cores, which of two leaves one.
        test: { name: 'waiting', include: WAITING, maxWorkers: 4, sequence: { groupOrder: 1 } },
      },
      {
        extends: true,
        test: {
          name: 'system',
          include: ['test/native/**/*.test.ts', 'test/store/**/*.test.ts', 'test/netns/**/*.test.ts'],
          exclude: WAITING,
          fileParallelism: false,
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
                sequence: { groupOrder: 3 },
              },
            },
          ]
        : []),
    ],
  },
})
