// own-process.ts - finds the test files that must run in a process of their own.

import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

/**
 * Matches code that replaces modules, timers or functions (vitest's `vi`), or changes the environment, the working directory or the
 * signal handlers of its process. Such a change would affect the tests of other files in the same process. same-process.ts finds some of
 * the changes that this expression does not match.
 */
const CHANGE = new RegExp(
  [
    String.raw`\b(?:vi|globalThis)\b`,
    String.raw`\b(?:Math|Date|performance|console|fs|stdout|stderr)\.\w+ = `,
    String.raw`\.prototype\.\w+ = `,
    String.raw`\bprocess\.(?:chdir|umask|emit|on|once|addListener|prependListener|removeAllListeners)\(`,
    String.raw`\bprocess\.(?:exitCode|env(?:\.\w+|\[[^\]]+\])?) (?:\?\?|\|\|)?= `,
    String.raw`\b(?:delete process|assign\(process)\b`,
  ].join('|'),
)

/** Matches an import of another file of test/. */
const IMPORT = /(?:from|import\(?) ?'(\.{1,2}\/[^']*\.ts)'/g

/** Returns true if the file, or a file of test/ that it imports, changes its process (CHANGE). */
export function needsOwnProcess(file: string, seen: Set<string> = new Set()): boolean {
  if (seen.has(file)) return false
  seen.add(file)
  const text = readFileSync(file, 'utf8')
  return (
    CHANGE.test(text) ||
    [...text.matchAll(IMPORT)]
      .map(([, path]) => join(dirname(file), path!))
      .some((path) => path.startsWith('test/') && needsOwnProcess(path, seen))
  )
}
