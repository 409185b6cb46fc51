// peers.test.ts - the records of peers, with each field at the offset that C++ reads.

import { endianness } from 'node:os'
import fc from 'fast-check'
import { expect, it } from 'vitest'
import {
  familyOf,
  formatNet,
  listed,
  netContains,
  parseAddress,
  parseNet,
  type Net,
} from '../../../../src/net/address.ts'
import { ipv4Net, parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { ipv6Net } from '../../../../src/net/ipv6.ts'
import {
  createPeerTable,
  decodePeers,
  encodePeers,
  PEER_RECORD_BYTES,
  type Peer,
} from '../../../../src/path/engine/peers.ts'
import { hostsAt } from '../../../support/peer-hosts.ts'

const peer = { subnet: parseIpv4Net('10.5.2.0/24')!, ...hostsAt(parseIpv4('192.0.2.2')!), port: 8285 } satisfies Peer
const six = { subnet: parseNet('fd00:5:2:8000::/49')!, ...hostsAt(parseAddress('2001:db8::2')!), port: 8285 }

it.each<[string, Partial<Peer>]>([
  ['no optional field', {}],
  ['a limit', { limit: 1_252 }],
  ['a slot', { slot: 0x01020304 }],
  ['both', { limit: 65_535, slot: 1 }],
  ['the flag for the well-known port', { isFromKnownPort: true }],
  ['the flag of a removed peer', { isGone: true }],
])('a record with %s has exactly the same values after encoding and decoding', (_, more) => {
  const both = { ...peer, ...hostsAt(parseIpv4('192.0.2.2')!, parseAddress('2001:db8::2')) }
  const { hosts, outer } = peer
  for (const each of [peer, six, { ...six, hosts, outer }, both, { ...both, outer: 'ipv6' } as const]) {
    const peers = [peer, { ...each, ...more }, six]
    expect(decodePeers(encodePeers(peers))).toStrictEqual(peers)
  }
})

it('has each field at the offset that C++ reads', () => {
  const bytes = Buffer.from(encodePeers([{ ...peer, limit: 0x0102, slot: 0x01020304, encap: Uint8Array.of(7, 8, 9) }]))
  expect(bytes).toHaveLength(PEER_RECORD_BYTES)
  expect(bytes.toString('hex', 0, 12)).toBe('04180400205d01020a050200')
  expect(bytes.toString('hex', 60, 64)).toBe('c0000202')
  expect(bytes.toString('hex', 40, 44)).toBe('07080900')
  const both = Buffer.from(encodePeers([six]))
  expect(both.toString('hex', 0, 8)).toBe('06310600205d0000')
  expect(both.toString('hex', 8, 40)).toBe('fd00000500028000000000000000000020010db8000000000000000000000002')
  // The slot has the byte order of this host.
  expect(bytes.toString('hex', 56, 60)).toBe(endianness() === 'LE' ? '04030201' : '01020304')
})

it('refuses a length that is not a whole number of records', () => {
  expect(decodePeers(new Uint8Array(0))).toEqual([])
  for (const size of [1, PEER_RECORD_BYTES - 1, PEER_RECORD_BYTES + 1])
    expect(() => decodePeers(new Uint8Array(size))).toThrow('not a whole number of records')
})

it('a table after any changes equals a table of the remaining peers', () => {
  // Use few addresses and lengths, so that peers replace each other, contain each other and share hosts.
  const subnet = fc
    .tuple(fc.integer({ min: 0, max: 7 }), fc.constantFrom(30, 31, 32), fc.constantFrom('ipv4', 'ipv6', 'short ipv6'))
    .map(([low, bits, kind]): Net => {
      if (kind === 'ipv4') return ipv4Net(0x0a05_0000 + low, bits)
      // The short IPv6 subnets have the prefix lengths of IPv4 subnets.
      return kind === 'ipv6' ? ipv6Net(0x0a05_0000n + BigInt(low), 96 + bits) : ipv6Net(BigInt(low) << 96n, bits)
    })
  const hosts = fc.constantFrom<Peer['hosts']>({ ipv4: 1 }, { ipv4: 2 }, { ipv6: 3n }, { ipv4: 1, ipv6: 3n })
  const change = fc.record({ subnet, hosts, isGone: fc.boolean() })
  const made = ({ isGone, ...rest }: { isGone: boolean } & Pick<Peer, 'subnet' | 'hosts'>): Peer => {
    const peerMade = { ...rest, outer: rest.hosts.ipv4 === undefined ? 'ipv6' : 'ipv4', port: 8285 } as const
    return isGone ? { ...peerMade, isGone } : peerMade
  }
  fc.assert(
    fc.property(fc.array(change), fc.array(fc.array(change, { maxLength: 4 })), (first, rounds) => {
      const table = createPeerTable(first.map(made))
      const all = new Map<string, Peer>()
      const put = (peers: readonly Peer[]): void => {
        for (const each of peers) {
          const key = formatNet(each.subnet)
          if (each.isGone) all.delete(key)
          else all.set(key, each)
        }
        for (let at = 0; at < 24; at++) {
          const low = BigInt(at % 8)
          const address = at < 8 ? 0x0a05_0000 + at : at < 16 ? 0x0a05_0000n + low : low << 96n
          const those = [...all.values()].filter((each) => netContains(each.subnet, address))
          const [longest] = those.toSorted((a, b) => b.subnet.prefixLength - a.subnet.prefixLength)
          expect(table.find(address)).toEqual(longest)
        }
        for (const family of ['ipv4', 'ipv6'] as const) {
          const those = [...all.values()].filter(({ subnet: net }) => familyOf(net) === family)
          const known = new Set(those.flatMap((each) => listed(each.hosts)))
          for (const host of [1, 2, 3, 2n, 3n, 4n]) expect(table.hasEndpointAt(host, family)).toBe(known.has(host))
        }
      }
      put(first.map(made))
      for (const round of rounds) {
        table.change(round.map(made))
        put(round.map(made))
      }
    }),
  )
})
