// selection.test.ts - test/selection.json says for every test file whether `npm test` runs it.

import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import type { TestSpecification, Vitest } from 'vitest/node'
import { LongestFirst } from './support/longest-first.ts'
import { needsOwnProcess } from './support/own-process.ts'
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

it('gives a process of its own to each file that changes its process, and to no other', () => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-own-process-'))
  const file = join(folder, 'x.test.ts')
  const decide = (code: string): boolean => {
    writeFileSync(file, code)
    return needsOwnProcess(file)
  }
  const changes = [
    'vi.useFakeTimers()',
    'Math.random = () => 0',
    "process.env['A'] = '1'",
    "process.env.A ??= '1'",
    'Object.assign(process.env, {})',
    "delete process.env['A']",
    "process.chdir('/')",
    "process.on('SIGTERM', end)",
    'Array.prototype.at = at',
  ]
  try {
    expect(changes.filter((code) => !decide(code))).toEqual([])
    const reads = "const home = process.env['HOME']\nif (process.exitCode === 1) expect(Math.random()).toBe(1)"
    expect(decide(reads)).toBe(false)
  } finally {
    rmSync(folder, { recursive: true })
  }
  expect(needsOwnProcess('test/unit/node/loops/lease.test.ts')).toBe(true) // test/support/node-rig.ts has virtual time
  expect(needsOwnProcess('test/unit/net/nets.test.ts')).toBe(false)
})

it('starts the longest files of a project first', async () => {
  const [unit, system] = [0, 1].map((groupOrder) => ({ name: `${groupOrder}`, config: { sequence: { groupOrder } } }))
  const inProject = (project: unknown, names: readonly string[]): TestSpecification[] =>
    names.map((file) => ({ project, moduleId: join('/w/test', file) }) as TestSpecification)
  const [long, short, unknown] = ['native/core.test.ts', 'native/echo.test.ts', 'unit/net/nets.test.ts'] as const
  const context = {
    config: { root: '/w' },
    cache: { getFileTestResults: () => undefined, getFileStats: () => ({ size: 1 }) },
  }
  const order = new LongestFirst(context as unknown as Vitest)
  const given = [...inProject(system, [short, long]), ...inProject(unit, [unknown, short, long])]
  const sorted = await order.sort(given) // oxlint-disable-line unicorn/no-array-sort -- the name is vitest's
  expect(sorted).toEqual([...inProject(unit, [long, short, unknown]), ...inProject(system, [long, short])])
})
