// layout.test.ts - compares constants of the addon with their copies in TypeScript files that cannot load the addon.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../lab/lab.ts'
import { addon } from '../../src/host/addon.ts'
import { encodePeers, PEER_RECORD_BYTES } from '../../src/path/engine/peers.ts'
import { createDropLog } from '../../src/path/engine/reference/drops.ts'
import { icmpLimit } from '../../src/path/engine/reference/packet.ts'
import { SLOT_NUMBERS, TrafficSlots } from '../../src/path/engine/traffic.ts'

const { layout } = addon

describe('a peer record', () => {
  const record = Buffer.from(
    encodePeers([
      {
        subnet: { address: 0x0a050203, prefixLength: 24 },
        hosts: { ipv4: 0xc0000201, ipv6: 0x2001_0db8_0000_0000_0000_0000_0000_0002n },
        outer: 'ipv4',
        port: 0x1122,
        limit: 0x3344,
        encap: Uint8Array.from({ length: 16 }, (_, at) => 0x50 + at),
        slot: 0x00667788,
        isGone: true,
        isFromKnownPort: true,
      },
    ]),
  )
  it('has its fields at the offsets that C++ reads', () => {
    const at = layout.peerRecord
    expect(record).toHaveLength(at.bytes)
    expect(PEER_RECORD_BYTES).toBe(at.bytes)
    expect(record[at.subnetFamily]).toBe(4)
    expect(record[at.outer]).toBe(4)
    expect(record[at.prefixLength]).toBe(24)
    expect(record[at.flags]).toBe(at.isGone | at.isFromKnownPort)
    expect(record.readUInt16BE(at.port)).toBe(0x1122)
    expect(record.readUInt16BE(at.limit)).toBe(0x3344)
    expect(record.readUInt32BE(at.subnet)).toBe(0x0a050203)
    expect(record.readUInt32BE(at.ipv4)).toBe(0xc0000201)
    expect(record.toString('hex', at.encap, at.encap + 16)).toBe('505152535455565758595a5b5c5d5e5f')
    expect(record.toString('hex', at.ipv6, at.ipv6 + 16)).toBe('20010db8000000000000000000000002')
    expect(new Uint32Array(record.buffer.slice(record.byteOffset + at.slot, record.byteOffset + at.slot + 4))[0]).toBe(
      0x00667788,
    )
  })

  it('has the offsets in the table of peers.ts', () => {
    const { bytes, isGone, isFromKnownPort, ...offsets } = layout.peerRecord
    const text = readFileSync(join(packageRoot, 'src/path/engine/peers.ts'), 'utf8')
    const written = [...text.matchAll(/^\/\/ - Offset (\d+), \d+ bytes?:/gm)].map(([, offset]) => Number(offset))
    expect(written).toEqual(Object.values(offsets).toSorted((a, b) => a - b))
    expect([bytes, isGone, isFromKnownPort]).toEqual([64, 1, 2])
  })
})

it('traffic has the same number of slots and values', () => {
  expect(SLOT_NUMBERS).toBe(layout.traffic.numbers)
  const slots = new TrafficSlots(() => new Float64Array())
  const text = readFileSync(join(packageRoot, 'src/path/engine/traffic.ts'), 'utf8')
  expect(slots.slotOf('nobody')).toBe(0)
  expect(/MAX_SLOTS = 1 << (\d+)/.exec(text)?.[1]).toBe(String(Math.log2(layout.traffic.slots)))
})

it('the dgram engine has the same limits for kept drops', () => {
  const { kept, everyUs, headerBytes } = layout.drops
  let nowUs = 1e6
  const log = createDropLog(() => nowUs, 0)
  const add = (): void => log.add('tx_drop_ttl', Buffer.alloc(2 * headerBytes))
  for (let i = 0; i < 2 * kept; i++) add()
  expect(log.read().packets).toHaveLength(kept)
  expect(log.read().packets[0]?.headers).toHaveLength(headerBytes)
  const { next } = log.read()
  nowUs += everyUs - 1
  add()
  expect(log.read(next).packets).toHaveLength(0)
  nowUs += 1
  add()
  expect(log.read(next).packets).toHaveLength(1)
})

it('the dgram engine has the same limits for ICMP errors', () => {
  const { senderBurst, senderEveryMs, burst, everyMs } = layout.icmp
  const may = icmpLimit()
  const allowed = (sender: number, isOurs: boolean, now: number): number => {
    let count = 0
    for (let i = 0; i < 2 * burst; i++) if (may(sender, isOurs, now)) count++
    return count
  }
  expect(allowed(1, true, 1_000)).toBe(senderBurst)
  expect(allowed(1, true, 1_000 + senderEveryMs - 1)).toBe(0)
  expect(allowed(1, true, 1_000 + senderEveryMs)).toBe(1)
  let all = 0
  for (let sender = 2; sender < 900; sender++) if (may(sender, false, 1_000)) all++
  expect(all).toBe(burst)
  expect(may(1_000, false, 1_000 + everyMs - 0.5)).toBe(false)
  expect(may(1_000, false, 1_000 + everyMs)).toBe(true)
})
