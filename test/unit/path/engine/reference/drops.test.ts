// drops.test.ts - the dropped packets that the dgram engine keeps for each direction.

import { expect, it } from 'vitest'
import { createDropLog } from '../../../../../src/path/engine/reference/drops.ts'

it('keeps the headers of the last drops of each direction, and returns only later ones on request', () => {
  let now = 1_000
  const log = createDropLog(() => now, 5)
  expect(log.read()).toEqual({ next: [5, 5], packets: [] })
  const bytes = Buffer.alloc(200, 7)
  log.add('rx_drop_ttl', bytes, { peer: 9 })
  now = 2_000
  log.add('tx_drop_malformed', bytes.subarray(0, 3))
  bytes.fill(1) // the owner of the bytes may change them
  const first = log.read()
  const [sent, received] = [
    { atUs: 2_000, reason: 'tx_drop_malformed', packets: 1, length: 3, peer: 0, encapBytes: 0 },
    { atUs: 1_000, reason: 'rx_drop_ttl', packets: 1, length: 200, peer: 9, encapBytes: 0 },
  ]
  expect(first).toEqual({
    next: [6, 6],
    packets: [
      { ...sent, headers: Buffer.alloc(3, 7) },
      { ...received, headers: Buffer.alloc(128, 7) },
    ],
  })
  expect(log.read(first.next)).toEqual({ next: [6, 6], packets: [] })
  for (let number = 0; number < 300; number++) {
    now += 1_000
    log.add('rx_drop_tun', Buffer.from([number & 255]))
  }
  const second = log.read(first.next)
  expect(second.packets.map(({ headers }) => headers[0])).toEqual(
    Array.from({ length: 256 }, (_, at) => (at + 44) & 255),
  )
  expect(log.read([6, second.next[1]! - 2]).packets).toHaveLength(2)
  expect(log.read().packets).toHaveLength(257)
})

it('keeps the first burst of a flood, and then one packet per millisecond', () => {
  let now = 1_000
  const log = createDropLog(() => now, 0)
  for (; now < 11_000; now++) log.add('rx_drop_ttl', Buffer.alloc(1))
  expect(log.read().next).toEqual([0, 256 + 9])
})

it('keeps only reasons with a direction, and reports no more header bytes than it kept', () => {
  const log = createDropLog(() => 0, 0)
  log.add('other_drop', Buffer.alloc(8))
  log.add('rx_drop_ttl', Buffer.alloc(200), { encapBytes: 22 })
  log.add('rx_drop_ttl', Buffer.alloc(8), { encapBytes: 22 })
  log.add('rx_drop_ttl', Buffer.alloc(200))
  expect(log.read().packets.map(({ encapBytes, peer }) => [encapBytes, peer])).toEqual([
    [22, 0],
    [8, 0],
    [0, 0],
  ])
  expect(log.read([0]).next).toEqual([0, 3])
  expect(log.read([0]).packets).toHaveLength(3)
})
