// nearest.test.ts - finds the known word that a mistyped word means.

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
  it('gives a hint, or an empty text', () => {
    expect(meant('Prot', KEYS)).toBe('; did you mean Port?')
    expect(meant('Mode', KEYS)).toBe('')
  })
})
