// peers.test.ts - records of peers, field by field where C++ reads them.

import { endianness } from 'node:os'
import { expect, it } from 'vitest'
import { decodePeers, encodePeers, PEER_RECORD_BYTES, type Peer } from '../../../src/dataplane/peers.ts'
import { parseIpv4, parseIpv4Net } from '../../../src/net/ipv4.ts'

const peer: Peer = { subnet: parseIpv4Net('10.5.2.0/24')!, endpoint: parseIpv4('192.0.2.2')!, port: 8285 }

it.each<[string, Partial<Peer>]>([
  ['nothing else', {}],
  ['a limit', { limit: 1_252 }],
  ['a slot', { slot: 0x01020304 }],
  ['both', { limit: 65_535, slot: 1 }],
])('a record with %s says the same when it is read back, and no more', (_, more) => {
  expect(decodePeers(encodePeers([peer, { ...peer, ...more }]))).toStrictEqual([peer, { ...peer, ...more }])
})

it('has each field where C++ reads it', () => {
  const bytes = Buffer.from(encodePeers([{ ...peer, limit: 0x0102, slot: 0x01020304, encap: Uint8Array.of(7, 8, 9) }]))
  expect(bytes).toHaveLength(PEER_RECORD_BYTES)
  expect(bytes.toString('hex', 0, 12)).toBe('04180400205d01020a050200')
  expect(bytes.toString('hex', 24, 28)).toBe('c0000202')
  expect(bytes.toString('hex', 40, 44)).toBe('07080900')
  // In the order of this host.
  expect(bytes.toString('hex', 56, 60)).toBe(endianness() === 'LE' ? '04030201' : '01020304')
})

it('is a whole number of records', () => {
  expect(decodePeers(new Uint8Array(0))).toEqual([])
  for (const size of [1, PEER_RECORD_BYTES - 1, PEER_RECORD_BYTES + 1])
    expect(() => decodePeers(new Uint8Array(size))).toThrow('not a whole number of records')
})
