// recent.test.ts - the recent increase covers the last minute, independently of earlier counts.

import { expect, it } from 'vitest'
import { createRecent, RECENT_MS } from '../../../src/report/recent.ts'

const STEP = 10_000

it('is undefined before the first record, and then the increase since that record', () => {
  const recent = createRecent()
  expect(recent.until({ tx_packets: 7 }, 5)).toBeUndefined()
  recent.keep({ tx_packets: 7, rx_packets: 1, tx_drop_refused: 100, rx_drop_ttl: 3 }, 1_000)
  expect(recent.until({ tx_packets: 9, rx_packets: 4, tx_drop_refused: 104, rx_drop_ttl: 3 }, 3_500)).toEqual({
    seconds: 2.5,
    packets: 5,
    drops: { tx_drop_refused: 4 },
  })
})

it('ignores increases older than a minute, and compares with the newest possible record', () => {
  const recent = createRecent()
  // Each step drops one packet.
  for (let step = 0; step < 100; step++) recent.keep({ tx_drop_refused: step }, step * STEP)
  const now = 99 * STEP
  expect(recent.until({ tx_drop_refused: 99 }, now)).toMatchObject({ seconds: 60, drops: { tx_drop_refused: 6 } })
  const almost = recent.until({ tx_drop_refused: 99 }, now + STEP - 1)
  expect(almost).toMatchObject({ seconds: (RECENT_MS + STEP - 1) / 1000, drops: { tx_drop_refused: 6 } })
  expect(recent.until({ tx_drop_refused: 99 }, now + RECENT_MS)!.drops).toEqual({})
})

it('adds received and sent packets, and counts an unknown number as 0', () => {
  const recent = createRecent()
  recent.keep({ tx_packets: 10, rx_packets: 20 }, 1_000.2)
  expect(recent.until({ tx_packets: 11, rx_packets: 25 }, 2_000.3)).toEqual({ seconds: 1, packets: 6, drops: {} })
  expect(recent.until({ tx_packets: 11 }, 2_000)!.packets).toBe(1)
  expect(recent.until({ rx_packets: 25 }, 2_000)!.packets).toBe(5)
  expect(recent.until({}, 2_000)!.packets).toBe(0)
})

it('in the first minute, compares with the first record', () => {
  const recent = createRecent()
  for (let step = 0; step < 5; step++) recent.keep({ tx_packets: step }, step * STEP)
  expect(recent.until({ tx_packets: 5 }, 5 * STEP)).toMatchObject({ seconds: 50, packets: 5 })
})

it('treats a counter that decreased as reset', () => {
  const recent = createRecent()
  recent.keep({ tx_drop_refused: 50 }, 0)
  expect(recent.until({ tx_drop_refused: 3, tx_drop_ttl: 2 }, STEP)!.drops).toEqual({
    tx_drop_refused: 3,
    tx_drop_ttl: 2,
  })
  recent.keep({}, STEP) // no data path
  expect(recent.until({}, 2 * STEP)!.drops).toEqual({})
})
