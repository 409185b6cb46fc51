// vitest.config.ts - projects one after another: tests that run in one process; then those of hosts, stores and programs. The projects of
// the container image, of a release and of the page in a browser exist only if they are asked for.

import { defineConfig } from 'vitest/config'
import { PATIENCE } from './lab/command.ts'
import { usableCores } from './scripts/forecast.mjs'
import { isStepAlone } from './test/support/long-step.ts'
import { filesOf } from './test/support/selection.ts'

/** Of a test that hangs; what it waits for has a limit of a minute for each event (test/support/event.ts). */
const LIMITS = { testTimeout: 300_000 * PATIENCE, hookTimeout: 300_000 * PATIENCE }

/** What takes more than minutes. It shows one bar, in place of vitest's own. */
const isLong = ['LONG', 'IMAGE', 'KUBELET', 'PAGE', 'RELEASE', 'BROKEN'].some((name) => process.env[`WEFT_${name}`])

export default defineConfig({
  test: {
    pool: 'forks',
    reporters: [
      ...(isLong ? ['./test/support/progress-reporter.ts'] : []),
      ['default', { summary: !isLong }],
      './test/support/summary-reporter.ts',
    ],
    onConsoleLog: (content) => !isStepAlone(content),
    passWithNoTests: false,
    runner: './test/support/selection-runner.ts',
    setupFiles: ['./test/support/record-cost.ts', './test/support/report-failure.ts'],
    expect: { poll: { timeout: 60_000 * PATIENCE, interval: 50 } },
    ...LIMITS,
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['test/unit/**/*.test.ts', ...filesOf(['test/sim', 'test'])],
          maxWorkers: '100%',
        },
      },
      {
        extends: true,
        test: {
          name: 'system',
          include: filesOf(['test/native', 'test/store', 'test/kube', 'test/netns']),
          // Much of their time is waiting: three files at once for each core that this process may use. More would let the limits of weftd
          // itself pass, such as six seconds for an answer of etcd.
          maxWorkers: Math.max(1, Math.round(3 * usableCores())),
          sequence: { groupOrder: 1 },
        },
      },
      ...['image', 'kubelet', 'page', 'release', 'broken']
        .filter((name) => process.env[`WEFT_${name.toUpperCase()}`])
        .map((name) => ({
          extends: true as const,
          test: { name, include: [`test/${name}/**/*.test.ts`], sequence: { groupOrder: 2 } },
        })),
    ],
  },
})
