// mutants.test.ts - what mutants say of a room, which are made of C++, and that each known survivor has a reason and stands in the code.

import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import { mutantsOf, nativeMutants } from '../../../scripts/mutants-native.mjs'
import { drawn, judge, LEAST_PERCENT, scoreTable } from '../../../scripts/mutants-score.mjs'

const mutant = (became: string, isKilled: boolean) => ({
  file: 'src/net/ipv4.ts',
  number: 7,
  line: 'return a < b',
  was: 'a < b',
  operator: 'relation',
  became,
  isKilled,
})
/** A room of which so many are killed, and so many not. */
const room = (killed: number, survived: number) => [
  ...Array.from({ length: killed }, (_, at) => mutant(String(at), true)),
  ...Array.from({ length: survived }, () => mutant('lives', false)),
]
const known = { file: 'src/net/ipv4.ts', line: 'return a < b', was: 'a < b', became: 'lives', reason: 'the same' }

describe('a room', () => {
  it.each([
    [LEAST_PERCENT, 100 - LEAST_PERCENT, false],
    [LEAST_PERCENT - 1, 101 - LEAST_PERCENT, true],
    [0, 0, false],
  ])('of which %i are noticed and %i are not is too low: %s', (killed, survived, isLow) => {
    expect(judge('net', room(killed, survived), [known], { isWhole: true }).isLow).toBe(isLow)
  })

  it('of which none was tried is too low, unless it may have none', () => {
    expect(judge('native/core', [], [], { isWhole: false, mayBeEmpty: false }).isLow).toBe(true)
    expect(judge('lease', [], [], { isWhole: false, mayBeEmpty: true }).isLow).toBe(false)
  })

  it('has survivors that nobody knows, and known ones that do not survive any more', () => {
    const unknown = (entry: object) =>
      judge('net', room(9, 1), [{ ...known, ...entry }], { isWhole: true }).unknown.length
    expect(unknown({})).toBe(0)
    for (const other of [{ file: 'src/net/ipv6.ts' }, { line: 'x' }, { was: 'x' }, { became: 'x' }])
      expect(unknown(other), JSON.stringify(other)).toBe(1)
    // What is left out stands for all of the line.
    const { was: _was, became: _became, ...line } = known
    expect(judge('net', room(9, 1), [line], { isWhole: true }).unknown).toEqual([])
    const stale = (isWhole: boolean) => judge('net', room(9, 0), [known], { isWhole }).stale
    expect([stale(true), stale(false)]).toEqual([[known], []])
    expect(judge('lease', [], [known], { isWhole: true }).stale).toEqual([])
  })

  it('is a line of the table', () => {
    const score = { ...judge('net', room(9, 1), [], { isWhole: true }), minutes: 1.25 }
    expect(scoreTable([score, { ...score, room: 'native/core' }])).toBe(
      'net          9/10  90.0%  0 known  1 unknown  1.3 min\nnative/core  9/10  90.0%  0 known  1 unknown  1.3 min',
    )
  })
})

describe('mutants of C++', () => {
  const made = (text: string): string[] =>
    mutantsOf(text, 'x.cc').map(
      ({ index, was, became }) => text.slice(0, index) + became + text.slice(index + was.length),
    )

  it.each([
    ['return a < b;', ['return a <= b;']],
    ['return a && !b;', ['return a || !b;', 'return a && b;']],
    ['if (a) b();', ['if (false && a) b();', 'if (true || a) b();']],
    ['  sum += 7;', ['  sum -= 7;', '  sum += 8;', '  ;']],
    ['return std::min(a, b);', ['return std::max(a, b);']],
    ['return true;', ['return false;']],
    // Not in comments, texts, lines of the preprocessor, types.
    ['// a < b', []],
    ['const char* text = "a < b";', []],
    ['#if A == 1', []],
    ['std::vector<int> all;', []],
    ['uint32_t* to;', []],
  ])('of %j are %j', (text, expected) => expect(made(text)).toEqual(expected))

  it('are drawn by the seed, the same each time', () => {
    const draw = (seed: string) => nativeMutants({ root: packageRoot, room: 'core', seed }).slice(0, 20)
    expect(draw('1')).toEqual(draw('1'))
    expect(draw('2')).not.toEqual(draw('1'))
    expect([drawn('a'), drawn('a') < 1, drawn('a') === drawn('b')]).toEqual([drawn('a'), true, false])
    for (const { file, index, was } of draw('1'))
      expect(readFileSync(join(packageRoot, file), 'utf8').slice(index, index + was.length)).toBe(was)
  })
})

it('each known survivor has a reason, and its line is there', () => {
  const all = JSON.parse(readFileSync(join(packageRoot, 'test/mutants.json'), 'utf8')) as Record<string, string>[]
  for (const entry of all) {
    expect(entry['reason'], JSON.stringify(entry)).toBeTruthy()
    const path = join(packageRoot, entry['file']!)
    expect(existsSync(path), entry['file']).toBe(true)
    const lines = readFileSync(path, 'utf8')
      .split('\n')
      .map((line) => line.replaceAll(/\s+/g, ' ').trim())
    expect(lines, `${entry['file']} has it no more`).toContain(entry['line'])
  }
})
