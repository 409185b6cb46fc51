// eavesdrop.test.ts - counts the demo's pings on the cable, also if weftd sends several as one superpacket.

import { expect, it } from 'vitest'
import { pingsIn } from '../../lab/eavesdrop.ts'

/** A frame of Ethernet, IPv4 and UDP whose UDP payload has this length. */
function frame(payload: number): Buffer {
  const bytes = Buffer.alloc(14 + 20 + 8 + payload)
  bytes[14] = 0x45
  bytes.writeUInt16BE(8 + payload, 14 + 20 + 4)
  return bytes
}
/** The length of the WireGuard message with one ping. */
const PING = 1_000 + 28 + 32

it.each([
  ['a ping', PING, 1],
  ['three pings in a superpacket', 3 * PING, 3],
  ['two pings, and a probe behind them', 2 * PING + 128, 2],
  ['a probe', 128, 0],
  ['a probe as long as the MTU', 1_420 + 32, 0],
])('counts %s', (_what, payload, count) => expect(pingsIn(frame(payload))).toBe(count))

it('counts no ping in a truncated frame', () => expect(pingsIn(frame(PING).subarray(0, 20))).toBe(0))
