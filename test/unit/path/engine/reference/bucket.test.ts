// bucket.test.ts - a burst, then one event per interval, and a full burst again after enough time.

import { expect, it } from 'vitest'
import { createBucket } from '../../../../../src/path/engine/reference/bucket.ts'

it('allows a burst, then one event per interval, and a full burst after a pause', () => {
  const may = createBucket(10, 3)
  const often = (now: number): number => [1, 2, 3, 4, 5].filter(() => may(now)).length
  expect([0, 9, 10, 19, 20].map(often)).toEqual([3, 0, 1, 0, 1])
  // After 20 intervals two events are allowed; after 30 the whole burst, and later never more.
  expect([40, 1_000].map(often)).toEqual([2, 3])
})

it('with a burst of one allows one event per interval', () => {
  const may = createBucket(10, 1)
  expect([0, 0, 9, 10, 10, 20].map(may)).toEqual([true, false, false, true, false, true])
})
