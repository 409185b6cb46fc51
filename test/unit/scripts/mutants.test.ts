// mutants.test.ts - the score of an area, the mutants of C++ code, and that each known survivor has a reason and exists in the code.

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
/** Makes an area with these numbers of killed and surviving mutants. */
const area = (killed: number, survived: number) => [
  ...Array.from({ length: killed }, (_, at) => mutant(String(at), true)),
  ...Array.from({ length: survived }, () => mutant('lives', false)),
]
const known = { file: 'src/net/ipv4.ts', line: 'return a < b', was: 'a < b', became: 'lives', reason: 'the same' }

describe('an area', () => {
  it.each([
    [LEAST_PERCENT, 100 - LEAST_PERCENT, false],
    [LEAST_PERCENT - 1, 101 - LEAST_PERCENT, true],
    [0, 0, false],
  ])('with %i noticed and %i surviving mutants is too low: %s', (killed, survived, isLow) => {
    expect(judge('net', area(killed, survived), [known], { isWhole: true }).isLow).toBe(isLow)
  })

  it('without mutants is too low, unless it may be empty', () => {
    expect(judge('native/core', [], [], { isWhole: false, mayBeEmpty: false }).isLow).toBe(true)
    expect(judge('lease', [], [], { isWhole: false, mayBeEmpty: true }).isLow).toBe(false)
  })

  it('has unknown survivors, and known ones that no longer survive', () => {
    const unknown = (entry: object) =>
      judge('net', area(9, 1), [{ ...known, ...entry }], { isWhole: true }).unknown.length
    expect(unknown({})).toBe(0)
    for (const other of [{ file: 'src/net/ipv6.ts' }, { line: 'x' }, { was: 'x' }, { became: 'x' }])
      expect(unknown(other), JSON.stringify(other)).toBe(1)
    // An omitted field matches all mutants of the line.
    const { was: _was, became: _became, ...line } = known
    expect(judge('net', area(9, 1), [line], { isWhole: true }).unknown).toEqual([])
    const stale = (isWhole: boolean) => judge('net', area(9, 0), [known], { isWhole }).stale
    expect([stale(true), stale(false)]).toEqual([[known], []])
    expect(judge('lease', [], [known], { isWhole: true }).stale).toEqual([])
  })

  it('has a line in the table', () => {
    const score = { ...judge('net', area(9, 1), [], { isWhole: true }), minutes: 1.25 }
    expect(scoreTable([score, { ...score, area: 'native/core' }])).toBe(
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
    // There are no mutants in comments, strings, preprocessor lines and types.
    ['// a < b', []],
    ['const char* text = "a < b";', []],
    ['#if A == 1', []],
    ['std::vector<int> all;', []],
    ['uint32_t* to;', []],
  ])('of %j are %j', (text, expected) => expect(made(text)).toEqual(expected))

  it('are chosen by the seed, reproducibly', () => {
    const draw = (seed: string) => nativeMutants({ root: packageRoot, area: 'core', seed }).slice(0, 20)
    expect(draw('1')).toEqual(draw('1'))
    expect(draw('2')).not.toEqual(draw('1'))
    expect([drawn('a'), drawn('a') < 1, drawn('a') === drawn('b')]).toEqual([drawn('a'), true, false])
    for (const { file, index, was } of draw('1'))
      expect(readFileSync(join(packageRoot, file), 'utf8').slice(index, index + was.length)).toBe(was)
  })
})

it('each known survivor has a reason, and its line exists', () => {
  const all = JSON.parse(readFileSync(join(packageRoot, 'test/mutants.json'), 'utf8')) as Record<string, string>[]
  for (const entry of all) {
    expect(entry['reason'], JSON.stringify(entry)).toBeTruthy()
    const path = join(packageRoot, entry['file']!)
    expect(existsSync(path), entry['file']).toBe(true)
    const lines = readFileSync(path, 'utf8')
      .split('\n')
      .map((line) => line.replaceAll(/\s+/g, ' ').trim())
    expect(lines, `${entry['file']} no longer has this line`).toContain(entry['line'])
  }
})
