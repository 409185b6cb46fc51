// filter.test.ts - the peer table and the filter of the dgram engine. engines.test.ts shows that the native engine does
// the same.

import { expect, it } from 'vitest'
import { netsOf, parseAddress, parseNet, type Address, type Nets } from '../../../../src/net/address.ts'
import { isFromHere, reasonToDrop } from '../../../../src/path/engine/filter.ts'
import { createPeerTable, hostOf } from '../../../../src/path/engine/peers.ts'
import { isIpv6Packet } from '../../../../src/path/engine/reference/packet.ts'
import { hostsAt } from '../../../support/peer-hosts.ts'

const ip = (text: string): Address => parseAddress(text)!
const nets = (...texts: string[]): Nets => netsOf(texts.map((text) => parseNet(text)!))
const net = { network: nets('10.5.0.0/16', 'fd00:5::/32'), subnet: nets('10.5.1.0/24', 'fd00:5:1::/64') }
const peer = (subnet: string, endpoint: string) => ({
  subnet: parseNet(subnet)!,
  ...hostsAt(ip(endpoint)),
  port: 8285,
})
const table = createPeerTable([
  peer('10.5.2.0/24', '192.0.2.9'),
  peer('10.5.2.0/24', '192.0.2.2'),
  peer('10.5.2.128/25', '192.0.2.3'),
  peer('fd00:5:2::/64', '192.0.2.2'),
  peer('fd00:5:2:0:8000::/65', '2001:db8::3'),
])

it('finds the peer with the longest prefix, and the later of two peers with one subnet', () => {
  for (const [address, endpoint] of [
    ['10.5.2.7', '192.0.2.2'],
    ['10.5.2.200', '192.0.2.3'],
    ['fd00:5:2::7', '192.0.2.2'],
    ['fd00:5:2:0:8000::7', '2001:db8::3'],
  ] as const)
    expect(hostOf(table.find(ip(address))!)).toBe(ip(endpoint))
  for (const nobodys of ['10.5.3.7', 'fd00:5:3::7', '::a05:207']) expect(table.find(ip(nobodys))).toBeUndefined()
  expect([table.hasEndpointAt(ip('192.0.2.3'), 'ipv4'), table.hasEndpointAt(ip('192.0.2.3'), 'ipv6')]).toEqual([
    true,
    false,
  ])
  expect([table.hasEndpointAt(ip('2001:db8::3'), 'ipv4'), table.hasEndpointAt(ip('2001:db8::3'), 'ipv6')]).toEqual([
    false,
    true,
  ])
  expect(table.hasEndpointAt(ip('192.0.2.4'), 'ipv4')).toBe(false)
})

const [OURS, OURS6, PEER] = ['10.5.1.2', 'fd00:5:1::2', '192.0.2.2']
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
  [PEER, 'fd00:5:2::7', OURS6, undefined, undefined],
  [PEER, '2001:db8::7', OURS6, undefined, undefined],
  ['192.0.2.3', '2001:db8::7', OURS6, UNKNOWN, UNKNOWN], // this peer has no IPv6 subnet
  ['2001:db8::3', 'fd00:5:2:0:8000::7', OURS6, undefined, undefined],
  ['192.0.2.8', 'fd00:5:2::7', OURS6, SPOOFED, undefined],
  ['192.0.2.8', '2001:db8::7', OURS6, UNKNOWN, UNKNOWN],
  [PEER, 'fd00:5:9::7', OURS6, UNKNOWN, UNKNOWN],
  [PEER, 'fd00:5:1::7', OURS6, SPOOFED, SPOOFED],
  [PEER, 'fd00:5:2::7', 'fd00:5:3::7', NOT_OURS, NOT_OURS],
])('from %s, %s to %s: strict %s, inner %s', (from, source, destination, strict, inner) => {
  const addresses = { from: ip(from), source: ip(source), destination: ip(destination) }
  const all = (['strict', 'inner', 'off'] as const).map((how) =>
    reasonToDrop({ verifySource: how, ...net }, table, addresses),
  )
  expect(all).toEqual([strict, inner, undefined])
})

it.each(['::', '::1', 'ff02::1', 'fe80::1', 'febf::1', '::ffff:10.5.2.7', '::10.5.2.7'])(
  'a packet from %s is refused with every VerifySource',
  (source) => {
    for (const verifySource of ['strict', 'inner', 'off'] as const) {
      const addresses = { from: ip(PEER), source: ip(source), destination: ip(OURS6) }
      expect(reasonToDrop({ verifySource, ...net }, table, addresses)).toBe(SPOOFED)
    }
  },
)

it.each([
  [PEER, '192.168.7.7', OURS, UNKNOWN],
  [PEER, '10.5.9.7', OURS, UNKNOWN],
  [PEER, '2001:db8::7', OURS6, UNKNOWN],
  [PEER, '10.5.2.7', OURS, undefined],
])('from a sender with a proved identity at %s: %s to %s: %s', (from, source, destination, reason) => {
  const addresses = { from: ip(from), source: ip(source), destination: ip(destination) }
  expect(reasonToDrop({ verifySource: 'strict', provesSender: true, ...net }, table, addresses)).toBe(reason)
})

it('refuses packets of a family that the node lacks', () => {
  const alone = { network: nets('10.5.0.0/16'), subnet: nets('10.5.1.0/24') }
  for (const source of ['2001:db8::7', 'fd00:5:9::7']) {
    const addresses = { from: ip(PEER), source: ip(source), destination: ip(OURS6) }
    expect(reasonToDrop({ verifySource: 'strict', ...alone }, table, addresses)).toBe(UNKNOWN)
  }
})

it('recognises a complete IPv6 packet', () => {
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
  ['fd00:5:1::7', true, true],
  ['fd00:5:2::7', false, true],
  ['2001:db8::7', true, true],
])('a packet from %s can originate here: %s, and with VerifySource off: %s', (source, expected, off) => {
  const all = (['strict', 'inner', 'off'] as const).map((verifySource) =>
    isFromHere({ verifySource, ...net }, ip(source)),
  )
  expect(all).toEqual([expected, expected, off])
})
