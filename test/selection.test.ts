// selection.test.ts - test/selection.json says for every test file whether `npm test` runs it.

import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { SELECTION } from './support/selection.ts'

const files = ['', 'sim', 'native', 'store', 'kube', 'netns'].flatMap((folder) =>
  readdirSync(join(import.meta.dirname, folder))
    .filter((name) => name.endsWith('.test.ts'))
    .map((name) => join(folder, name)),
)

it('has each test file once, and no other', () => {
  expect(
    SELECTION.map(({ file }) => file).toSorted(),
    'node scripts/test-costs.mjs FILE adds the line of a test file; remove the line of a file that is gone by hand',
  ).toEqual(['unit', ...files].toSorted())
})

it('has a figure for each file, and "test" or "whole"', () => {
  for (const entry of SELECTION) {
    expect(entry).toMatchObject({ in: expect.stringMatching(/^(test|whole)$/), cpu: expect.any(Number) })
    if (entry.only !== undefined) expect(() => new RegExp(entry.only!)).not.toThrow()
  }
})
