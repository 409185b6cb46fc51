// pinging.test.ts - counting the answers in ping's output, for any number of pings.

import { expect, it } from 'vitest'
import { answeredIn } from './support/pinging.ts'

/** Returns the lines of answers, in which ping prints 16 bits of the number. */
const saidOf = (numbers: readonly number[]): string =>
  numbers.map((number) => `64 bytes from 10.5.2.2: icmp_seq=${number % 65_536} ttl=62 time=0.1 ms`).join('\n')
const upTo = (last: number): number[] => Array.from({ length: last }, (_, at) => at + 1)

it.each([
  { what: 'none', numbers: [], counted: { last: 0, answered: 0 } },
  { what: 'all', numbers: upTo(1_000), counted: { last: 1_000, answered: 1_000 } },
  { what: 'out of order, and twice', numbers: [2, 1, 4, 3, 3], counted: { last: 4, answered: 4 } },
  { what: 'more than there are numbers', numbers: upTo(200_000), counted: { last: 200_000, answered: 200_000 } },
  {
    what: 'lost before the numbers start again at 0',
    numbers: upTo(70_000).filter((number) => number < 1_000 || number >= 1_300),
    counted: { last: 70_000, answered: 69_700 },
  },
  {
    what: 'lost while they do, for longer than half of them',
    numbers: [...upTo(60_000), 110_000, 110_002, 110_001],
    counted: { last: 110_002, answered: 60_003 },
  },
])('counts answers: $what', ({ numbers, counted }) => {
  expect(answeredIn(saidOf(numbers))).toEqual(counted)
})
