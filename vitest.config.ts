// vitest.config.ts - the projects: `unit` and `unit-alone`, and after them `system`, whose tests use hosts, stores and programs. In `unit` many
// test files share a process; in the other projects each file has its own. The projects of the container image, the release, the page and
// others exist only if the environment names them.

import { defineConfig } from 'vitest/config'
import { PATIENCE } from './lab/command.ts'
import { usableCores } from './scripts/forecast.mjs'
import { isStepAlone } from './test/support/long-step.ts'
import { LongestFirst } from './test/support/longest-first.ts'
import { needsOwnProcess } from './test/support/own-process.ts'
import { filesOf, onlyOf, testFilesIn } from './test/support/selection.ts'

/** The limits for a test that hangs. Waits inside a test have their own limit of a minute (test/support/event.ts). */
const LIMITS = { testTimeout: 300_000 * PATIENCE, hookTimeout: 300_000 * PATIENCE }

/** True for tests that take long. They show one progress bar in place of vitest's own. */
const isLong = ['LONG', 'IMAGE', 'KUBELET', 'CLUSTER', 'PAGE', 'RELEASE', 'BROKEN'].some(
  (name) => process.env[`WEFT_${name}`],
)

/** The test files that need no hosts and no stores. */
const unitFiles = [...testFilesIn('test/unit', true), ...filesOf(['test/sim', 'test'])]
// selection-runner.ts sets the pattern of test names for its whole process, so a file with `only` must not share its process.
const alone = unitFiles.filter((file) => needsOwnProcess(file) || onlyOf(file) !== undefined)

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
    sequence: { sequencer: LongestFirst },
    ...LIMITS,
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: unitFiles.filter((file) => !alone.includes(file)),
          // To start a process takes more CPU time than the tests of most of these files.
          isolate: false,
          setupFiles: ['./test/support/same-process.ts'], // in addition to those of all projects
          maxWorkers: '100%',
        },
      },
      {
        extends: true,
        test: { name: 'unit-alone', include: alone, maxWorkers: '100%' },
      },
      {
        extends: true,
        test: {
          name: 'system',
          include: filesOf(['test/native', 'test/store', 'test/kube', 'test/netns']),
          // These tests mostly wait, so three files run simultaneously for each usable core. With more, weftd's own time limits would be
          // exceeded, such as six seconds for an answer of etcd.
          maxWorkers: Math.max(1, Math.round(3 * usableCores())),
          sequence: { groupOrder: 1 },
        },
      },
      ...['image', 'kubelet', 'cluster', 'page', 'release', 'broken']
        .filter((name) => process.env[`WEFT_${name.toUpperCase()}`])
        .map((name) => ({
          extends: true as const,
          test: { name, include: [`test/${name}/**/*.test.ts`], sequence: { groupOrder: 2 } },
        })),
    ],
  },
})
