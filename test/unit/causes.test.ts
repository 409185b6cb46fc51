// causes.test.ts - what the demo shows of the logs of many daemons.

import { expect, it } from 'vitest'
import { causesIn } from '../../lab/causes.ts'

const line = (level: string, text: string, at = 5): string =>
  `${level}1126 10:00:0${at}.000000   ${at}00 daemon.ts:${at}] ${text}`

it('shows a cause that all daemons have in common once, and then the causes of few daemons', () => {
  const both = line('E', 'Error registering network: bridge is not installed; install the package iproute2')
  expect(
    causesIn([
      [line('I', 'begins'), line('E', 'the disk is full; free some'), both, both.replace('10:00', '10:01')],
      [line('W', 'slow'), both.replace(' 500 ', ' 501 ')],
      [],
    ]),
  ).toEqual([
    'Error registering network: bridge is not installed; install the package iproute2',
    'the disk is full; free some',
  ])
})

it('shows warnings if there is no error, and nothing if there are neither errors nor warnings', () => {
  expect(causesIn([[line('W', 'no rules'), line('I', 'begins')], [line('W', 'no rules')]])).toEqual(['no rules'])
  expect(causesIn([[line('I', 'begins')], []])).toEqual([])
})

it('shows three at most', () => {
  expect(causesIn([['1', '2', '3', '4'].map((text) => line('E', text))])).toHaveLength(3)
})
