// lacks.test.ts - on a machine without programs and privileges every test that needs them is skipped, and none fails.

import { mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { execute } from '../lab/command.ts'
import { EVENT_MS, packageRoot } from '../lab/lab.ts'

/** The time in ms in which a slow machine loads some 70 test files. */
const LIMIT_MS = 15 * EVENT_MS

it(
  'skips in every folder the tests that the machine cannot run, and fails none',
  async ({ skip }) => {
    const noUserNamespace = (await execute(['unshare', '--user', 'true'])).code !== 0
    skip(noUserNamespace, 'this user may not make a user namespace')
    const folder = mkdtempSync(join(tmpdir(), 'weft-lacks-'))
    try {
      symlinkSync(process.execPath, join(folder, 'node'))
      // every Debian has coreutils and a shell (policy manual 3.8)
      for (const name of ['sh', 'env', 'mkfifo', 'touch', 'chmod'])
        symlinkSync(join('/usr/bin', name), join(folder, name))
      const vitest = join(packageRoot, 'node_modules/vitest/vitest.mjs')
      const { code, stdout, stderr } = await execute(
        [
          'env',
          '-i',
          '-C',
          packageRoot,
          `PATH=${folder}`,
          `HOME=${folder}`,
          'NO_COLOR=1',
          '/usr/bin/unshare',
          '--user',
          process.execPath,
          vitest,
          'run',
          '--project',
          'system',
        ],
        { timeoutMs: LIMIT_MS },
      )
      const failures = [...(stdout + stderr).matchAll(/^ *FAIL .*\n.*/gm)].map(([lines]) => lines)
      expect({ code, failures }).toEqual({ code: 0, failures: [] })
      expect(stdout).toMatch(/\n\d+ passed, 0 failed, [1-9]\d{2,} skipped\n$/)
    } finally {
      rmSync(folder, { recursive: true })
    }
  },
  2 * LIMIT_MS,
)
