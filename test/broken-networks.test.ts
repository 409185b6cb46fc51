// broken-networks.test.ts - docs/broken-networks.md has every broken network, and the reports in it are the expected ones.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { FAULT_NAMES, FAULTS, READERS, type FaultName } from '../lab/broken.ts'
import { packageRoot } from '../lab/lab.ts'
import { firstOf, reportsOf, mustOf, SIDES, SOON_S, wrongOf, type Side } from './support/broken-table.ts'

const page = readFileSync(join(packageRoot, 'docs/broken-networks.md'), 'utf8')
const reports = reportsOf(page)

it('lists the eighteen broken networks of the code, each as seen from both sides', () => {
  expect(FAULT_NAMES).toHaveLength(18)
  expect(reports.map(({ name, side }) => `${name} ${side}`)).toEqual(
    FAULT_NAMES.flatMap((name) => SIDES.map((side) => `${name} ${side}`)),
  )
  for (const { title, does, remedy } of Object.values(FAULTS))
    expect(page).toContain(`| ${title} | ${does} | ${remedy} |`)
})

it.each(reports)('reports $name as expected and in time, as seen from $side', ({ name, side, reports: said }) => {
  const expected = FAULTS[name as FaultName][side as Side]
  expect(wrongOf(expected, said.words)).toEqual([])
  const first = firstOf(said)
  expect(first === undefined).toBe(
    READERS.every((reader) => mustOf(expected[reader as keyof typeof expected]).length === 0),
  )
  expect(first?.[1] ?? 0).toBeLessThan(SOON_S)
})
