// format.test.ts - figures of the page in a person's units.

import { expect, it } from 'vitest'
import {
  bitRate,
  bytes,
  count,
  dropReason,
  duration,
  milliseconds,
  or,
  percent,
  short,
} from '../../../src/page/format.ts'

it.each([
  [bitRate(0), '0 bit/s'],
  [bitRate(125), '1.0 kbit/s'],
  [bitRate(1.25e9), '10.0 Gbit/s'],
  [bitRate(1e20), '800000000 Tbit/s'],
  [bytes(1023), '1023 B'],
  [bytes(1536), '1.5 KiB'],
  [short(999), '999'],
  [short(12_345), '12.3 k'],
  [duration(4.56), '4.6 s'],
  [duration(119), '119 s'],
  [duration(7100), '118 min'],
  [duration(86_400), '24 h'],
  [duration(864_000), '10 days'],
  [milliseconds(0.0712), '0.071 ms'],
  [milliseconds(250.7), '251 ms'],
  [count(1, 'peer'), '1 peer'],
  [count(10_000, 'peer'), '10,000 peers'],
  [percent(1), '100%'],
  [percent(0.99999), '99.9%'],
  [percent(0), '0%'],
  [or(null, String), '–'],
  [or(0, String), '0'],
  [dropReason('rx_drop_spoofed_source'), 'in: spoofed source'],
  [dropReason('tx_drop_ttl'), 'out: ttl'],
  [dropReason('else'), 'else'],
])('%s is %s', (text, wanted) => {
  expect(text).toBe(wanted)
})
