// nearest.test.ts - finds the known word that a mistyped word means.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { meant, nearest } from '../../../src/base/nearest.ts'

const KEYS = ['Network', 'SubnetLen', 'SubnetMin', 'SubnetMax', 'Backend', 'Port', 'VNI']

describe('nearest', () => {
  it.each<[string, string | undefined, string]>([
    ['Bakcend', 'Backend', 'two letters are exchanged'],
    ['Prot', 'Port', 'the same, in a short word'],
    ['Netwok', 'Network', 'one is left out'],
    ['Neetwork', 'Network', 'one is put in'],
    ['backemd', 'Backend', 'one is another, in another case'],
    ['SubnetLength', 'SubnetLen', 'three are put in, of twelve'],
    ['SubnetMix', 'SubnetMin', 'of two as near the first'],
    ['VN', 'VNI', 'one of three'],
    ['V', undefined, 'two of three'],
    ['Ports', 'Port', 'one at the end'],
    ['Sport', 'Port', 'one at the head'],
    ['Mode', undefined, 'it is like none'],
    ['', undefined, 'it is empty'],
    ['x'.repeat(65), undefined, 'it is longer than any'],
  ])('finds for %s: %s', (word, expected) => expect(nearest(word, KEYS)).toBe(expected))

  it('finds the nearest word at any place of the list', () => {
    expect(nearest('MTUs', ['MUT', 'MTU'])).toBe('MTU')
    expect(nearest('Networks', ['IPv6Network', 'Network'])).toBe('Network')
    expect(nearest('a', [])).toBeUndefined()
  })
  it('measures a distance that neither order changes, and in which each edit counts one', () => {
    /** The restricted Damerau-Levenshtein distance by its definition. */
    const distance = (a: string, b: string): number => {
      if (a === '' || b === '') return a.length + b.length
      const [i, j] = [a.length - 1, b.length - 1]
      const isSwap = i > 0 && j > 0 && a[i] === b[j - 1] && a[i - 1] === b[j]
      return Math.min(
        distance(a.slice(0, i), b) + 1,
        distance(a, b.slice(0, j)) + 1,
        distance(a.slice(0, i), b.slice(0, j)) + (a[i] === b[j] ? 0 : 1),
        isSwap ? distance(a.slice(0, i - 1), b.slice(0, j - 1)) + 1 : Infinity,
      )
    }
    const words = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 6 })
    fc.assert(
      fc.property(words, words, (word, one) => {
        const most = Math.max(1, Math.floor(Math.max(word.length, one.length) / 3))
        expect(nearest(word, [one])).toBe(distance(word, one) > most ? undefined : one)
      }),
      { numRuns: 2_000 },
    )
  })
  it('searches for a word of 64 letters, and of no more', () => {
    const [most, more] = ['x'.repeat(64), 'x'.repeat(65)]
    expect([nearest(most, [most]), nearest(more, [more])]).toEqual([most, undefined])
  })
  it('gives a hint, or an empty text', () => {
    expect(meant('Prot', KEYS)).toBe('; did you mean Port?')
    expect(meant('Mode', KEYS)).toBe('')
  })
})
