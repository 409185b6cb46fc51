// filter.test.ts - the peer table and the filter of the dgram engine; that the native one does the same, engines.test.ts shows.

import { expect, it } from 'vitest'
import { isFromHere, reasonToDrop } from '../../../src/dataplane/filter.ts'
import { createPeerTable } from '../../../src/dataplane/peers.ts'
import { isIpv6Packet } from '../../../src/dataplane/packet.ts'
import { parseIpv4, parseIpv4Net } from '../../../src/net/ipv4.ts'

const ip = (text: string): number => parseIpv4(text)!
const peer = (subnet: string, endpoint: string) => ({
  subnet: parseIpv4Net(subnet)!,
  endpoint: ip(endpoint),
  port: 8285,
})
const table = createPeerTable([
  peer('10.5.2.0/24', '192.0.2.9'),
  peer('10.5.2.0/24', '192.0.2.2'),
  peer('10.5.2.128/25', '192.0.2.3'),
])

it('finds the peer with the longest prefix, and of two for one subnet the last', () => {
  for (const [address, endpoint] of [
    ['10.5.2.7', '192.0.2.2'],
    ['10.5.2.200', '192.0.2.3'],
  ] as const)
    expect(table.find(ip(address))?.endpoint).toBe(ip(endpoint))
  expect(table.find(ip('10.5.3.7'))).toBeUndefined()
  expect(table.hasEndpointAt(ip('192.0.2.3'))).toBe(true)
  expect(table.hasEndpointAt(ip('192.0.2.4'))).toBe(false)
})

const [OURS, PEER] = ['10.5.1.2', '192.0.2.2']
const [UNKNOWN, SPOOFED, NOT_OURS] = ['rx_drop_unknown_sender', 'rx_drop_spoofed_source', 'rx_drop_destination']
it.each([
  [PEER, '10.5.2.7', OURS, undefined, undefined],
  [PEER, '10.5.2.0', '10.5.1.0', undefined, undefined],
  [PEER, '172.17.0.2', OURS, undefined, undefined],
  [PEER, '240.0.0.1', OURS, undefined, undefined],
  ['192.0.2.8', '10.5.2.7', OURS, SPOOFED, undefined],
  ['192.0.2.3', '10.5.2.7', OURS, SPOOFED, undefined],
  ['192.0.2.8', '172.17.0.2', OURS, UNKNOWN, UNKNOWN],
  [PEER, '10.5.9.7', OURS, UNKNOWN, UNKNOWN],
  [PEER, '10.5.1.7', OURS, SPOOFED, SPOOFED],
  [PEER, '10.5.1.0', OURS, SPOOFED, SPOOFED],
  [PEER, '127.0.0.1', OURS, SPOOFED, SPOOFED],
  [PEER, '224.0.0.1', OURS, SPOOFED, SPOOFED],
  [PEER, '255.255.255.255', OURS, SPOOFED, SPOOFED],
  [PEER, '0.0.0.0', OURS, SPOOFED, SPOOFED],
  [PEER, '10.5.2.7', '10.5.3.7', NOT_OURS, NOT_OURS],
  [PEER, '10.5.2.7', '224.0.0.1', NOT_OURS, NOT_OURS],
  [PEER, '10.5.2.7', '192.0.2.1', NOT_OURS, NOT_OURS],
])('from %s, %s to %s: strict %s, inner %s', (from, source, destination, strict, inner) => {
  const net = { network: parseIpv4Net('10.5.0.0/16')!, subnet: parseIpv4Net('10.5.1.0/24')! }
  const addresses = { from: ip(from), source: ip(source), destination: ip(destination) }
  const all = (['strict', 'inner', 'off'] as const).map((how) =>
    reasonToDrop({ verifySource: how, ...net }, table, addresses),
  )
  expect(all).toEqual([strict, inner, undefined])
})

it('knows a whole packet of IPv6', () => {
  const packet = Buffer.alloc(48)
  packet.writeUInt8(0x60, 0)
  packet.writeUInt8(8, 5)
  expect(isIpv6Packet(packet)).toBe(true)
  for (const size of [0, 1, 39, 47]) expect(isIpv6Packet(packet.subarray(0, size))).toBe(false)
  packet.writeUInt8(0x45, 0)
  expect(isIpv6Packet(packet)).toBe(false)
})

it.each([
  ['10.5.1.7', true, true],
  ['10.5.1.255', true, true],
  ['10.5.2.7', false, true],
  ['172.17.0.2', true, true],
])('what says that it is from %s can be from here: %s, and where nothing is asked: %s', (source, expected, off) => {
  const net = { network: parseIpv4Net('10.5.0.0/16')!, subnet: parseIpv4Net('10.5.1.0/24')! }
  const all = (['strict', 'inner', 'off'] as const).map((verifySource) =>
    isFromHere({ verifySource, ...net }, ip(source)),
  )
  expect(all).toEqual([expected, expected, off])
})
