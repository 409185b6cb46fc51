// requests.test.ts - the requests about routes, rules and entries are those that iproute2 sends for the same change.

import { endianness } from 'node:os'
import { describe, expect, it } from 'vitest'
import { wordsOf } from '../../../../src/host/ip-words.ts'
import type { Change, Device } from '../../../../src/host/kernel.ts'
import { messagesIn } from '../../../../src/host/netlink/message.ts'
import { entryRequest, type EntryChange } from '../../../../src/host/netlink/neighbours.ts'
import { lookUpRequest } from '../../../../src/host/netlink/route-lookups.ts'
import { routeRequest, type RouteRequest } from '../../../../src/host/netlink/routes.ts'
import { ruleRequest, type RuleChange } from '../../../../src/host/netlink/rules.ts'
import { parseAddress, parseNet, type Address, type Net } from '../../../../src/net/address.ts'
import { REQUESTS } from './recorded.ts'

const at = (text: string): Address => parseAddress(text)!
const net = (text: string): Net => parseNet(text)!
const d0 = { name: 'd0', index: 3 }
const vx = { name: 'vx', index: 4 }
const mac = '02:11:22:33:44:55'
const indexOf = ({ index }: Device): number => index ?? 0

const CASES: readonly Change[] = [
  { kind: 'add route', destination: net('10.5.1.0/24'), gateway: at('192.0.2.9'), device: d0, onlink: true },
  {
    kind: 'replace route',
    destination: net('10.5.2.0/24'),
    device: vx,
    source: at('192.0.2.1'),
    metric: 7,
    protocol: 'bird',
  },
  { kind: 'replace route', destination: net('10.5.3.0/24'), gateway: at('fe80::1'), device: d0 },
  { kind: 'add route', type: 'blackhole', destination: net('10.5.4.0/24'), metric: 4294967295, table: 1000 },
  { kind: 'delete route', destination: net('10.5.1.0/24'), gateway: at('192.0.2.9'), device: d0 },
  { kind: 'delete route', type: 'blackhole', destination: net('10.5.4.0/24'), metric: 4294967295, table: 1000 },
  { kind: 'add route', destination: net('::/0'), gateway: at('fe80::1'), device: d0, protocol: 'static' },
  { kind: 'replace route', destination: net('fd00:5:1::/64'), device: vx, metric: 1024 },
  { kind: 'delete route', type: 'unreachable', destination: net('fd00:5:9::/64') },
  { kind: 'add route', type: 'local', destination: net('10.9.0.1/32'), device: d0 },
  { kind: 'add route', destination: net('10.7.0.0/16'), device: d0, scope: 'global', table: 100 },
  { kind: 'replace route', destination: net('10.5.0.0/16'), device: vx, scope: 'link' },
  {
    kind: 'add rule',
    family: 'ipv4',
    priority: 219,
    iif: 'd0',
    from: net('10.5.0.0/16'),
    to: net('10.5.0.0/16'),
    action: 'blackhole',
  },
  { kind: 'add rule', family: 'ipv4', priority: 5, to: net('10.5.0.0/16'), action: { table: 1000 } },
  { kind: 'add rule', family: 'ipv6', priority: 6, from: net('fd00::/16'), action: { table: 100 } },
  { kind: 'delete rule', family: 'ipv6', priority: 6, from: net('fd00::/16'), action: { table: 100 } },
  {
    kind: 'delete rule',
    family: 'ipv4',
    priority: 219,
    iif: 'd0',
    from: net('10.5.0.0/16'),
    to: net('10.5.0.0/16'),
    action: 'blackhole',
  },
  { kind: 'replace neighbour', device: vx, address: at('10.5.2.0'), mac },
  { kind: 'delete neighbour', device: vx, address: at('10.5.2.0') },
  { kind: 'replace neighbour', device: vx, address: at('fd00:5:2::'), mac },
  { kind: 'replace forwarding', device: vx, mac, host: at('192.0.2.2') },
  { kind: 'delete forwarding', device: vx, mac, host: at('192.0.2.2') },
]

function requestOf(change: Change): Buffer | undefined {
  if (change.kind.endsWith('route')) return routeRequest(change as RouteRequest, indexOf)
  if (change.kind.endsWith('rule')) return ruleRequest(change as RuleChange)
  return entryRequest(change as EntryChange, indexOf)
}

describe.skipIf(endianness() === 'BE')('a request', () => {
  it.each(CASES.map((change) => [wordsOf(change), change] as const))('as iproute2 sends it: %s', (words, change) => {
    expect(requestOf(change)?.toString('hex')).toBe(REQUESTS[words])
  })
})

it('has a case for each recorded request', () => {
  expect(CASES.map(wordsOf).toSorted()).toEqual(Object.keys(REQUESTS).toSorted())
})

it('is not made for an interface that does not exist', () => {
  const device = { name: 'gone' }
  expect(requestOf({ kind: 'add route', destination: net('10.5.0.0/16'), device })).toBeUndefined()
  expect(requestOf({ kind: 'delete neighbour', address: at('10.5.0.0'), device })).toBeUndefined()
  expect(requestOf({ kind: 'delete forwarding', host: at('10.5.0.0'), mac, device })).toBeUndefined()
})

it('for a lookup names the protocol, the ports and the TOS of the packet', () => {
  const part = { protocol: 6, sport: 7, dport: 8285, tos: 16 }
  const message = messagesIn(lookUpRequest({ to: at('10.5.2.9'), part }, indexOf)!).next().value!
  const attributes = message.attributes(12)
  expect(message.u8(3)).toBe(16)
  expect([27, 28, 29].map((type) => attributes.bytes(type)?.toString('hex'))).toEqual(['06', '0007', '205d'])
})

it('for a lookup has the flag RTM_F_LOOKUP_TABLE only for IPv4, because the kernel refuses the flag for IPv6', () => {
  const flags = (to: string): number | undefined =>
    messagesIn(lookUpRequest({ to: at(to) }, indexOf)!)
      .next()
      .value?.u32(8)
  expect([flags('10.5.2.9'), flags('fd00:5:2::9')]).toEqual([0x1000, 0])
  expect(lookUpRequest({ to: at('10.5.2.9'), iif: { name: 'gone' } }, indexOf)).toBeUndefined()
  expect(lookUpRequest({ to: at('10.5.2.9'), oif: { name: 'gone' } }, indexOf)).toBeUndefined()
  const [bare, bound] = [{}, { oif: { name: 'eth0' } }].map((part) =>
    lookUpRequest({ to: at('10.5.2.9'), ...part }, () => 5),
  )
  // RTA_OIF (4) with the index of the interface.
  expect(bound!.subarray(bare!.length).toString('hex')).toBe('0800040005000000')
})
