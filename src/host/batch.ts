// batch.ts - runs many commands in one process of `ip` or `bridge`.

import { isWeftError } from '../base/errors.ts'
import type { Run } from './command.ts'

/**
 * Runs all lines, even after a line that the kernel refuses. Resolves with true if none was refused; the caller has to find out which one
 * was. Rejects with a WeftError other than COMMAND, such as PERMISSION.
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
