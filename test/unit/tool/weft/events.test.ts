// events.test.ts - the values of --since.

import { expect, it } from 'vitest'
import { isWeftError } from '../../../../src/base/errors.ts'
import { sinceOf } from '../../../../src/tool/weft/events.ts'

const NOW = Date.parse('2026-11-23T12:00:00Z')

it.each([
  ['90s', 90],
  ['30m', 1_800],
  ['1.5min', 90],
  ['12h', 43_200],
  ['7d', 604_800],
  ['0s', 0],
])('%s means %d seconds ago', (text, seconds) => expect(sinceOf(text, NOW)).toBe(NOW - seconds * 1000))

it('accepts a time of day, in the time zone of the host unless it names a zone', () => {
  expect(sinceOf('2026-11-23T03:00:00Z', NOW)).toBe(Date.parse('2026-11-23T03:00:00Z'))
  expect(sinceOf('2026-11-23T03:00', NOW)).toBe(new Date(2026, 10, 23, 3).getTime())
  expect(sinceOf('2026-11-23 03:00', NOW)).toBe(new Date(2026, 10, 23, 3).getTime())
  expect(sinceOf('', NOW)).toBe(-Infinity)
})

it.each(['30', 'm', '-5m', '5 m', '5w', '1e9s', 'yesterday', '2026-13-01', '23', '2026-11-23T99:00', '5constructor'])(
  'refuses %j, and lists the accepted forms',
  (text) => {
    try {
      sinceOf(text, NOW)
      expect.unreachable()
    } catch (error) {
      expect(isWeftError(error, 'USAGE') && [error.message, error.remedy]).toEqual([
        `--since is ${text}`,
        'write the time as 30m, 12h, 7d, or 2026-11-23T03:00',
      ])
    }
  },
)
