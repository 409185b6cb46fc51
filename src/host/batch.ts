// batch.ts - many lines for one process of `ip` or `bridge`.

import { isWeftError } from '../base/errors.ts'
import type { Run } from './command.ts'

/**
 * Does all of it, also what comes after a line that the kernel refuses: which those are is for the caller to look up. Resolves
 * with whether it took all. Rejects with a WeftError other than COMMAND, such as PERMISSION.
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
