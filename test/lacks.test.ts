// lacks.test.ts - where the machine has no programs and no rights, every test that needs them is a skip, and none fails.

import { mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { execute } from '../lab/command.ts'
import { EVENT_MS, packageRoot } from '../lab/lab.ts'

/** A slow machine loads some 70 test files in this time. */
const LIMIT_MS = 15 * EVENT_MS

it(
  'skips in every folder what the machine lacks, and fails nothing',
  async ({ skip }) => {
    const noUserNamespace = (await execute(['unshare', '--user', 'true'])).code !== 0
    skip(noUserNamespace, 'this user may not make a user namespace')
    const folder = mkdtempSync(join(tmpdir(), 'weft-lacks-'))
    try {
      symlinkSync(process.execPath, join(folder, 'node'))
      // coreutils and a shell are on every Debian (policy manual 3.8).
      for (const name of ['sh', 'env', 'mkfifo']) symlinkSync(join('/usr/bin', name), join(folder, name))
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
