// contract-table.test.ts - CONTRACT.md has every row of flanneld's contract, and the tests that the rows name exist.

import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'

/** The sections in their order, and the number of rows of each. */
const SECTIONS = [
  ...([
    ['1', 29],
    ['2', 25],
    ['3', 16],
    ['4', 13],
    ['5', 12],
    ['6', 12],
    ['7', 12],
    ['8', 6],
    ['9', 12],
  ] as const),
  ...([
    ['10.1', 20],
    ['10.2', 9],
    ['11', 11],
    ['12', 7],
    ['13', 7],
    ['14', 11],
    ['16', 23],
    ['17.1', 8],
    ['17.2', 8],
    ['17.3', 8],
    ['17.4', 15],
    ['17.5', 4],
    ['17.6', 14],
    ['17.7', 7],
    ['17.8', 2],
    ['17.9', 3],
  ] as const),
]
/** Rows that weft does not have to satisfy: a crash of Go, and samples of other backends. */
const NOT_KEPT = new Set(['2.25', '14.8'])
const DIFFERENCES = '../docs/differences.md'

const read = (path: string): string => readFileSync(join(import.meta.dirname, path), 'utf8')
/** Rows as [number, what, pins], each pin as [file, words]. */
const rows = [...read('CONTRACT.md').matchAll(/^\| (\d+(?:\.\d+)+) \| (.*?) \| (.*) \|$/gm)].map(
  ([, number = '', what = '', cell = '']) => ({ number, what, cell }),
)
const pinsOf = (cell: string): [file: string, words: string][] =>
  cell.split(/; (?=`)/).map((pin) => {
    const [, file = '', words = ''] = /^`([^`]+)` "(.+)"$/.exec(pin) ?? []
    return [file, words.replaceAll(String.raw`\"`, '"')]
  })

const BEGIN = /^ *(?:it|test|describe)\b/gm
/** Returns the test that contains these words, or the next test if they are outside of any. */
function testAround(text: string, words: string): string {
  const at = text.indexOf(words)
  const begins = [...text.matchAll(BEGIN)].map(({ index }) => index)
  const isGroup = (index: number): boolean => /^ *describe/.test(text.slice(index))
  let from = begins.findLastIndex((index) => index <= at)
  while (from < 0 || (isGroup(begins[from]!) && from + 1 < begins.length)) from++
  return text.slice(begins[from], begins[from + 1])
}

describe('CONTRACT.md', () => {
  it('has every row of the contract once, in order', () => {
    const all = SECTIONS.flatMap(([section, count]) =>
      Array.from({ length: count }, (_, index) => `${section}.${index + 1}`),
    )
    expect(rows.map(({ number }) => number)).toEqual(all.filter((number) => !NOT_KEPT.has(number)))
  })

  it.each(rows)('names only existing tests in row $number, $what', ({ cell }) => {
    for (const [file, words] of pinsOf(cell)) {
      expect(existsSync(join(import.meta.dirname, file)) && file, cell).toMatch(
        /^(.+\.test\.ts|\.\.\/docs\/differences\.md)$/,
      )
      expect(read(file).includes(words), `${file} has no longer: ${words}`).toBe(true)
    }
  })

  it('names tests that run and that check something', () => {
    for (const { number, cell } of rows)
      for (const [file, words] of pinsOf(cell))
        if (file !== DIFFERENCES) {
          const block = testAround(read(file), words)
          expect(block, `${number}: ${words}`).toMatch(
            /\bexpect\w*[.(]|\b(until|line|reach|answers|repairsAfter|check)\(/,
          )
          expect(block, `${number}: ${words}`).not.toMatch(/^\s*(it|test|describe)\.(skip|todo)\b/)
        }
  })

  it('has a heading for each section', () => {
    const named = [...read('CONTRACT.md').matchAll(/^\| (\d+(?:\.\d+)?) \| [^|]+ \|$/gm)].map(([, section]) => section)
    expect(named).toEqual(SECTIONS.map(([section]) => section))
  })

  it('quotes only the sections of differences.md about what is different, missing or not kept', () => {
    const [, part = ''] = /^## What is different on purpose$(.*)/ms.exec(read(DIFFERENCES)) ?? []
    for (const { number, cell } of rows)
      for (const [file, words] of pinsOf(cell))
        if (file === DIFFERENCES) expect(part.includes(words), `${number}: ${words}`).toBe(true)
  })
})

describe('the tables of differences', () => {
  const differences = [...read(DIFFERENCES).matchAll(/^\| (?!flanneld \|)(.+?) \| .+ \| (.*) \|$/gm)].map(
    ([, title = '', pins = '']) => ({ title, pins }),
  )

  it.each(differences)('names only existing tests in the table: $title', ({ pins }) => {
    const names = [...pins.matchAll(/`([^`]+)`/g)].map(([, name = '']) => name)
    expect(names.length).toBeGreaterThan(0)
    const { scripts } = JSON.parse(read('../package.json')) as { scripts: Record<string, string> }
    for (const name of names) {
      const [, script] = /^npm run (.+)$/.exec(name) ?? []
      if (script !== undefined) expect(Object.keys(scripts)).toContain(script)
      else expect(name.endsWith('.test.ts') && existsSync(join(import.meta.dirname, '..', name)), name).toBe(true)
    }
  })
})
