// secret.test.ts - a secret is printed as <hidden> in every way.

import { format, inspect, isDeepStrictEqual } from 'node:util'
import { describe, expect, it } from 'vitest'
import { Secret, secretUrls, withoutUser } from '../../../src/base/secret.ts'

const secret = new Secret('sesame')

describe('a secret', () => {
  it.each([
    ['a text', String(secret)],
    ['a sum', ['x', secret].join('')],
    ['JSON', JSON.stringify({ a: [secret] })],
    ['inspect', inspect({ a: [secret] }, { depth: null, showHidden: true })],
    ['inspect of itself', inspect(secret, { customInspect: true })],
    ['format', format('%s %o %O %j', secret, secret, secret, secret)],
    ['a copy of its members', inspect(Object.assign({}, secret))],
    ['its members, as inspect has them', inspect(secret, { customInspect: false, showHidden: true })],
    ['an error', inspect(new Error('x', { cause: secret }))],
    ['its own error', inspect(Object.assign(new Error('x'), { secret }))],
  ])('is not in %s', (_where, text) => {
    expect(text).not.toContain('sesame')
  })

  it('shows that it exists', () => {
    expect([String(secret), JSON.stringify({ secret }), inspect(secret)]).toEqual([
      '<hidden>',
      '{"secret":"<hidden>"}',
      '<hidden>',
    ])
    expect([String(new Secret('')), new Secret('').isEmpty, secret.isEmpty]).toEqual(['', true, false])
  })

  it('is returned only by reveal', () => {
    expect(secret.reveal()).toBe('sesame')
  })

  it('equals another secret with the same value', () => {
    expect(isDeepStrictEqual({ a: secret }, { a: new Secret('sesame') })).toBe(true)
    expect(isDeepStrictEqual({ a: secret }, { a: new Secret('Sesame') })).toBe(false)
  })
})

const URLS: readonly [string, string][] = [
  ['http://u:sesame@h:1,https://u:sesame@h', 'http://h:1,https://h'],
  ['u:sesame@h:2379', 'h:2379'],
  ['http://sesame@h/', 'http://h/'],
  ['HTTPS://u:se/same@x@h/a', 'HTTPS://h/a'],
  ['//u:sesame@[::1]:5', '//[::1]:5'],
  ['http://u:it\'s-`se"same@h:1,u:"se\'same`@h:2', 'http://h:1,h:2'],
  ['http://it\'s"u`:sesame@h', 'http://h'],
  ['u:se//same@h', 'h'],
  ['http://[::1]:2379,10.0.0.1:2379, h:1/x', 'http://[::1]:2379,10.0.0.1:2379, h:1/x'],
  ['http://u:se,same,sesame@h:1,http://h:2', 'http://h:1,http://h:2'],
  ['http://h:1,http://u:se,sa:me@h:2/a,h:3', 'http://h:1,http://h:2/a,h:3'],
  ['http://u:1,sesame@h', 'http://h'],
  ['http://u,x:se,same@h', 'http://h'],
  ['http://u,x:se:sa,me@h', 'http://h'],
  ['http://u:se,s@me@h', 'http://h'],
  ['http://h:1,u:sesame@h:2,[::1]:3,//[::1]:4,u:sesame@h', 'http://h:1,h:2,[::1]:3,//[::1]:4,h'],
  ['', ''],
]

describe('URLs', () => {
  it.each<[string, string]>([...URLS, ['http://u:se same@h/a b', 'http://h/a b'], ['http:/u:sesame@h', 'h']])(
    '%s are shown as %s',
    (text, shown) => {
      expect([String(secretUrls(text)), secretUrls(text).reveal()]).toEqual([shown, text])
      expect(JSON.stringify(secretUrls('').with(text))).toBe(JSON.stringify(shown))
    },
  )

  it.each<[string, string]>([
    ...URLS,
    ['curl "http://u:sesame@h" u:sesame@h', 'curl "http://h" h'],
    ["curl --url=http://u:it's-sesame@h -u=u:`sesame@h x@y", 'curl --url=http://h -u=h x@y'],
    [`{"a":"http://u:it's@h","b":'u:se"same@h'}`, `{"a":"http://h","b":'h'}`],
    ['{"a":"http://h:1","b":"x@y","c":"http://u:se,same@h/b"}', '{"a":"http://h:1","b":"x@y","c":"http://h/b"}'],
    ["error:http://u:sesame@h url:'http://u:sesame@h'", "error:http://h url:'http://h'"],
  ])('in a text, %s, are shown as %s', (text, shown) => {
    expect(withoutUser(text)).toBe(shown)
  })

  it.each(['/', 'a:=', '//', '@', '"a:', '//u:p@', ':', 'a', ',', '//a,'])(
    'that repeat %j take little time',
    (part) => {
      const text = part.repeat(200_000)
      const before = process.cpuUsage()
      withoutUser(text)
      String(secretUrls(text))
      const { user, system } = process.cpuUsage(before)
      // An expression that tries all pairs of beginning and end takes minutes.
      expect((user + system) / 1e6).toBeLessThan(5)
    },
  )
})
