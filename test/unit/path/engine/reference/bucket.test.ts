// bucket.test.ts - a burst at once, then one in so long, and the burst again only after as long as that takes.

import { expect, it } from 'vitest'
import { createBucket } from '../../../../../src/path/engine/reference/bucket.ts'

it('gives its burst, then one each time, and is full again after a rest', () => {
  const may = createBucket(10, 3)
  const often = (now: number): number => [1, 2, 3, 4, 5].filter(() => may(now)).length
  expect([0, 9, 10, 19, 20].map(often)).toEqual([3, 0, 1, 0, 1])
  // 20 rests give two; 30 the whole, and more give no more.
  expect([40, 1_000].map(often)).toEqual([2, 3])
})

it('of a burst of one gives one each time', () => {
  const may = createBucket(10, 1)
  expect([0, 0, 9, 10, 10, 20].map(may)).toEqual([true, false, false, true, false, true])
})
