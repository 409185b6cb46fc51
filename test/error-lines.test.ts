// error-lines.test.ts - docs/messages.md has every error and every warning that weft can print, and none that it cannot.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../lab/lab.ts'
import { messages as readEntries, page } from '../scripts/messages.mjs'

const read = (path: string): string => readFileSync(join(packageRoot, path), 'utf8')

const code = readdirSync(join(packageRoot, 'src'), { recursive: true, encoding: 'utf8' })
  .filter((path) => path.endsWith('.ts'))
  .map((path) => read(join('src', path)))
  .join('\n')

/** A value in a template literal, with at most one pair of braces inside. */
const HOLE = /\$\{(?:[^{}]|\{[^{}]*\})*\}/
const LITERAL = new RegExp(
  String.raw`\s*(?:'((?:\\.|[^'\\\n])*)'|"((?:\\.|[^"\\\n])*)"|${'`'}((?:\\.|${HOLE.source}|[^${'`'}\\])*)${'`'})`,
)
/** The string literals after `begin`; if several are concatenated, the first one. */
const literalsAfter = (begin: RegExp): string[] =>
  [...code.matchAll(new RegExp(begin.source + LITERAL.source, 'g'))].map(([, single, double, template]) =>
    (single ?? double ?? template ?? '').replaceAll(/\\(.)/g, '$1'),
  )

/** The words between the values of a text. */
const fixedParts = (text: string, hole: RegExp): string[] =>
  text
    .split(hole)
    .map((part) => part.trim())
    .filter((part) => /[a-z]{3}/.test(part))
/** The first words of a part, which identify it, because the page may shorten the rest. */
const beginningOf = (part: string): string => part.split(' ').slice(0, 4).join(' ')

const messages = [
  /new WeftError\((?:\s*'[A-Z_]+',)?/,
  /\bfail\(\s*'[A-Z_]+',/,
  /\b(?:invalid|usage|prefixed)\(/,
  /\.(?:warn|error)\(/,
  /\bnotes\.push\(/,
  /\bfailure(?::| =)(?=\s*(?:'[^'\n]*: '|"[^"\n]*: "|`[^`\n]*: `))/, // the tasks of node/exit-or-wait.ts
]
  .flatMap(literalsAfter)
  .filter((text) => fixedParts(text, HOLE).length > 0)

const sections = readEntries()
/** The lines of docs/messages.md, as weft prints them. */
const lines = sections.flatMap((section) => section.entries.map(({ line }) => line))
/** The code without quotes and without the plus between two lines of a text. */
const plainCode = code.replaceAll(/\\(['"`])/g, '$1').replaceAll(/['"`] \+\s+['"`]/g, '')

describe('docs/messages.md', () => {
  it('is what `node scripts/messages.mjs` writes', () => {
    expect(read('docs/messages.md')).toBe(page(sections))
  })

  it('has a cause and a remedy for each line', () => {
    const incomplete = sections.flatMap((section) => section.entries.filter(({ cause, remedy }) => !cause || !remedy))
    expect(incomplete).toEqual([])
  })

  it('has no remedy in which only the program knows what to fill in', () => {
    const remedies = sections.flatMap((section) => section.entries.map(({ remedy }) => remedy))
    expect(remedies.filter((remedy) => /\*[a-z ]+\*|…|<\.\.\.>/.test(remedy))).toEqual([])
  })

  it.each([...new Set(messages)])('has a row for the line of the code: %s', (message) => {
    for (const part of fixedParts(message, HOLE).map(beginningOf))
      expect(
        lines.some((line) => line.includes(part)),
        `no line has: ${part}`,
      ).toBe(true)
  })

  it.each(lines)('has no line that is not in the code: %s', (line) => {
    for (const part of fixedParts(line, /<[^<>]+>|\.\.\./)) expect(plainCode.includes(part), part).toBe(true)
  })

  it('has each line once', () => {
    expect(lines.filter((line, at) => lines.indexOf(line) !== at)).toEqual([])
    expect(Math.min(lines.length, messages.length)).toBeGreaterThan(100)
  })
})
