// drops.test.ts - the parameter `after` of /drops.json, and the report of a daemon without a node.

import { expect, it } from 'vitest'
import { HEADLESS, noDrops, parseAfter } from '../../../src/report/drops.ts'

it.each([
  ['', []],
  ['0', [0]],
  ['1,2', [1, 2]],
  ['9007199254740991', [9_007_199_254_740_991]],
  ['9007199254740992', undefined],
  ['12345678901234567', undefined],
  ['1,', undefined],
  [',1', undefined],
  ['1,x', undefined],
  ['x1', undefined],
  ['1x', undefined],
  ['-1', undefined],
  ['1.5', undefined],
  ['1.0', undefined],
  ['1e5', undefined],
  [' 1', undefined],
])('after=%j is parsed as %j', (text, expected) => expect(parseAfter(text)).toEqual(expected))

it('the report of drops is empty without a node, and has every field', () => {
  expect(noDrops('now')).toEqual({
    schema: 1,
    at: 'now',
    device: null,
    devices: { ipv4: null, ipv6: null },
    engine: null,
    reasons: {},
    packets: [],
    next: [],
  })
  expect([...HEADLESS]).toEqual(['tx_drop_queue_full', 'rx_drop_socket_full'])
})
