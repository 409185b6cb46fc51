// selection.ts - the choice of tests for `npm test`, from test/selection.json; scripts/test-costs.mjs describes that file.

import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

/** One line of test/selection.json. */
interface Selected {
  /** The path of the test file below test/. */
  readonly file: string
  /** `test` if `npm test` runs the file, else `whole`. */
  readonly in: 'test' | 'whole'
  /** The tests that `npm test` runs, as a regular expression for their names with those of the suites around them; all if missing. */
  readonly only?: string
  /** The duration in seconds of the tests that `npm test` runs in this file. */
  readonly seconds?: number
}

export const SELECTION = JSON.parse(readFileSync('test/selection.json', 'utf8')) as readonly Selected[]

/** True in `npm test`, false in `npm run test:whole` and whenever a file is named. */
export const IS_SELECTION = process.env['WEFT_SELECTION'] === '1'

const chosen = SELECTION.filter((entry) => entry.in === 'test')

const isTestFile = (path: string): boolean => path.endsWith('.test.ts')

/** Lists the test files of a folder; with `recursive` also the test files of its subfolders. */
export const testFilesIn = (folder: string, recursive = false): string[] =>
  readdirSync(folder, { recursive, encoding: 'utf8' })
    .filter((name) => isTestFile(name))
    .map((name) => join(folder, name))

/** Lists the test files of these folders that run: in `npm test` the chosen files, otherwise all. */
export const filesOf = (folders: readonly string[]): string[] =>
  IS_SELECTION
    ? chosen.map(({ file }) => `test/${file}`).filter((file) => isTestFile(file) && folders.includes(dirname(file)))
    : folders.flatMap((folder) => testFilesIn(folder))

/** Returns the pattern of the tests that run in this file; undefined if all of them run. */
export function onlyOf(file: string): RegExp | undefined {
  const only = IS_SELECTION ? chosen.find((entry) => `test/${entry.file}` === file)?.only : undefined
  return only === undefined ? undefined : new RegExp(only)
}
