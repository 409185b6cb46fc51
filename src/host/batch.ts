// batch.ts - runs many commands in one process of `ip`.

import { isWeftError } from '../base/errors.ts'
import type { Run } from './command.ts'

/**
 * Runs all lines as commands of `ip`, even after a command has failed. Resolves with true if all commands succeeded,
 * and with false if at least one failed; the caller must find out which commands failed. Rejects with a WeftError for
 * other failures, such as PERMISSION.
 */
export async function runBatch(run: Run, lines: readonly string[]): Promise<boolean> {
  if (lines.length === 0) return true
  try {
    await run('ip', ['-force', '-batch', '-'], { input: `${lines.join('\n')}\n` })
    return true
  } catch (error) {
    if (!isWeftError(error, 'COMMAND')) throw error
    return false
  }
}
