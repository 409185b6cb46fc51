// explain-question.test.ts - weft explain finds the owner of an address: this host, a container, another node or none.

import { describe, expect, it } from 'vitest'
import { parseAddress, type Address } from '../../../../src/net/address.ts'
import { countPeers, type Status } from '../../../../src/report/status.ts'
import { directionOf, hasAnswer, isOnHost, sideOf } from '../../../../src/tool/doctor/explain-question.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { dualPeer, link, linkAddress, sound, soundDual, soundPeer, soundStatus } from '../../../support/facts.ts'

const ipOf = (text: string): Address => parseAddress(text)!
const at4 = (text: string, prefixLength: number) => linkAddress(ipOf(text) as number, prefixLength)
/** Describes the owner of an address; `node X` for another node, whose host has the address X. */
const owner = (address: string, status: Status, facts: Pick<Facts, 'links'>): string => {
  const side = sideOf(ipOf(address), status, facts)
  return side.kind === 'peer' ? `node ${side.peer.peer.publicIp}` : side.kind
}

describe('the owner of an address', () => {
  it.each([
    ['192.0.2.1', 'host'],
    ['172.17.0.1', 'host'],
    ['10.5.1.1', 'host'],
    ['10.5.1.0', 'here'],
    ['10.5.1.255', 'here'],
    ['10.5.2.0', 'node 192.0.2.2'],
    ['10.5.2.255', 'node 192.0.2.2'],
    ['10.5.3.0', 'unassigned'],
    ['10.5.0.255', 'unassigned'],
    // The host of a node is not in the network, even if its address is known.
    ['192.0.2.2', 'outside'],
    ['10.6.0.0', 'outside'],
    ['2001:db8::1', 'host'],
    ['fd00:5:0:1::1', 'host'],
    ['fd00:5:0:1::2', 'here'],
    ['fd00:5:0:2::2', 'node 192.0.2.2'],
    ['fd00:5:0:3::2', 'unassigned'],
    ['fd00:6::1', 'outside'],
  ])('%s is %s in a dual-stack network', (address, expected) =>
    expect(owner(address, soundDual.status, soundDual)).toBe(expected),
  )

  it.each(['fd00:5:0:1::2', 'fd00:5:0:2::2', 'fd00:5:0:3::2'])('%s is outside of an IPv4 network', (address) =>
    expect(owner(address, soundStatus, sound)).toBe('outside'),
  )

  it('is the node with the longest subnet, in any order of the nodes', () => {
    const [wide, narrow] = [
      { ...soundPeer, subnet: '10.5.4.0/22', publicIp: '192.0.2.4' },
      { ...soundPeer, subnet: '10.5.5.0/24', publicIp: '192.0.2.5' },
    ]
    for (const list of [
      [wide, narrow],
      [narrow, wide],
    ]) {
      const status = { ...soundStatus, peers: countPeers(list, 10) }
      expect(owner('10.5.5.9', status, sound)).toBe('node 192.0.2.5')
      expect(owner('10.5.6.9', status, sound)).toBe('node 192.0.2.4')
    }
  })

  it('is this host for each address of each interface', () => {
    const two = {
      ...link('eth1', 1500, '203.0.113.1'),
      addresses: { ipv4: [at4('203.0.113.1', 24), at4('203.0.113.7', 24)], ipv6: [] },
    }
    const none = { ...link('veth1', 1500, '0.0.0.0'), addresses: { ipv4: [], ipv6: [] } }
    const facts = { links: [none, two] }
    for (const address of ['203.0.113.1', '203.0.113.7']) expect(owner(address, soundStatus, facts)).toBe('host')
    expect(owner('203.0.113.8', soundStatus, facts)).toBe('outside')
  })

  it('is found from the other facts if this node has no lease, no peers or no configuration', () => {
    expect(owner('10.5.1.2', { ...soundStatus, node: null }, sound)).toBe('unassigned')
    expect(owner('10.5.2.2', { ...soundStatus, peers: null }, sound)).toBe('unassigned')
    expect(owner('10.5.3.2', { ...soundStatus, config: null }, sound)).toBe('outside')
    expect(owner('10.5.2.2', { ...soundStatus, config: null }, sound)).toBe('node 192.0.2.2')
  })
})

const [HOST, HERE, HERE2, PEER, PEER2, FREE, WORLD] = [
  '192.0.2.1',
  '10.5.1.2',
  '10.5.1.3',
  '10.5.2.2',
  '10.5.2.3',
  '10.5.7.2',
  '198.51.100.1',
] as const

it.each([
  [HERE, PEER, 'out', true],
  [HOST, PEER, 'out', true],
  [PEER, HERE, 'in', true],
  [PEER, HOST, 'in', true],
  [HERE, HERE2, 'local', false],
  [HOST, HERE, 'local', false],
  [HERE, HOST, 'local', false],
  [HERE, WORLD, 'out', false],
  [WORLD, HERE, 'in', false],
  [WORLD, HOST, 'in', false],
  [HERE, FREE, 'out', false],
  [FREE, HERE, 'in', false],
  // Neither address is on this host, so weft explains the packet as one that this host forwards.
  [PEER, PEER2, 'out', false],
  [PEER, FREE, 'out', false],
  [WORLD, PEER, 'out', false],
] as const)(
  'the packet from %s to %s has the direction %s, and weft explains its answer: %s',
  (source, destination, direction, isExplained) => {
    const ends = [ipOf(source), ipOf(destination), soundStatus, sound] as const
    expect(directionOf(...ends)).toBe(direction)
    expect(hasAnswer(...ends)).toBe(isExplained)
  },
)

it('weft explains the answers of a dual-stack node over both families', () => {
  const status = { ...soundDual.status, peers: countPeers([dualPeer()], 10) }
  expect(hasAnswer(ipOf('fd00:5:0:1::2'), ipOf('fd00:5:0:2::2'), status, soundDual)).toBe(true)
  expect(hasAnswer(ipOf('2001:db8::1'), ipOf('fd00:5:0:3::2'), status, soundDual)).toBe(false)
})

describe('the addresses of this host and of the networks at its interfaces', () => {
  const has = (address: string, facts: Pick<Facts, 'links'> = soundDual): boolean =>
    isOnHost(ipOf(address), soundDual.status, facts)

  it.each([
    ['192.0.2.1', true],
    ['10.5.1.2', true],
    ['fd00:5:0:1::2', true],
    // A container of Docker, and another host of the underlay.
    ['172.17.0.9', true],
    ['192.0.2.77', true],
    ['fd00:17::9', true],
    ['2001:db8::77', true],
    ['10.5.2.2', false],
    ['10.5.7.2', false],
    ['198.51.100.1', false],
    ['2001:db8:1::1', false],
  ])('include %s: %s', (address, expected) => expect(has(address)).toBe(expected))

  it('do not include addresses of the network, although an interface has the prefix of the network', () => {
    // With udp the TUN device of flanneld has the prefix of the whole network.
    const tun = { ...link('flannel0', 1472, '10.5.1.0'), addresses: { ipv4: [at4('10.5.1.0', 16)], ipv6: [] } }
    const facts = { links: [...sound.links, tun] }
    expect([has('10.5.2.2', facts), has('10.5.7.2', facts)]).toEqual([false, false])
  })

  it('do not include all addresses if an interface has a prefix of 0 bits', () => {
    const [none, one] = [0, 1].map((prefixLength) => ({
      links: [{ ...link('wg0', 1420, '10.9.0.1'), addresses: { ipv4: [at4('10.9.0.1', prefixLength)], ipv6: [] } }],
    }))
    expect(has('10.8.0.1', none)).toBe(false)
    expect(has('10.8.0.1', one)).toBe(true)
    expect(has('198.51.100.1', one)).toBe(false)
  })

  it('include the networks of all addresses of an interface', () => {
    const ipv4 = [at4('203.0.113.1', 24), at4('198.51.100.9', 28)]
    const facts = { links: [{ ...link('eth1', 1500, '203.0.113.1'), addresses: { ipv4, ipv6: [] } }] }
    expect(has('203.0.113.200', facts)).toBe(true)
    expect(has('198.51.100.1', facts)).toBe(true)
    expect(has('198.51.100.16', facts)).toBe(false)
  })
})
