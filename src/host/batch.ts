// batch.ts - runs many commands in one process of `ip` or `bridge`.

import { isWeftError } from '../base/errors.ts'
import type { Run } from './command.ts'

/**
 * Runs all lines as commands of `ip` or `bridge`, even after the kernel refused a line. Resolves with true if the
 * kernel refused no line, else with false; the caller must find out which line was refused. Rejects with a WeftError
 * for other failures, such as PERMISSION.
 */
export async function runBatch(run: Run, program: 'ip' | 'bridge', lines: readonly string[]): Promise<boolean> {
  if (lines.length === 0) return true
  try {
    await run(program, ['-force', '-batch', '-'], { input: `${lines.join('\n')}\n` })
    return true
  } catch (error) {
    if (!isWeftError(error, 'COMMAND')) throw error
    return false
  }
}
