// effects.test.ts - the effect on packets names the affected peers, and the host's problems only if their effect is known.

import { expect, it } from 'vitest'
import { packetsText } from '../../../src/report/effects.ts'
import { readingOf, type Impairment } from '../../../src/report/states.ts'
import { countPeers, type PeerStatus } from '../../../src/report/status.ts'
import { dualPeer, silentSide, soundPeer, soundStatus } from '../../support/facts.ts'

const said = (impairments: readonly Impairment[], ...list: readonly PeerStatus[]): string =>
  packetsText({ state: impairments.length === 0 ? 'working' : 'impaired', impairments, peers: countPeers(list, 10) })
const peer = (name: string, part: Partial<PeerStatus> = {}): PeerStatus => ({ ...soundPeer, name, ...part })
const silent = { state: 'programmed', lossPercent: 100 } as const
const narrow = { path: 'narrow', passesBytes: 1372 } as const
const byConfig: Impairment = {
  by: 'store',
  what: 'no weftd can start with the network configuration in the store',
}
const ofUnknownPeers = readingOf({ state: 'impaired', impairments: [{ by: 'peers' }] }).packets
const byPeers: Impairment = { by: 'peers', what: '1 of 2 peers does not answer' }

it.each<[string, readonly Impairment[], readonly PeerStatus[], string]>([
  ['nothing', [], [peer('a')], 'all packets pass'],
  ['a silent peer', [byPeers], [peer('a', silent), peer('b')], 'packets to a (10.5.2.0/24) are lost'],
  [
    'a silent peer whose packets arrive',
    [byPeers],
    [peer('a', { ...silent, heardSecondsAgo: 3, unansweredSeconds: 9 }), peer('b')],
    'packets to a (10.5.2.0/24) may be lost, or the firewall there drops the echo requests',
  ],
  [
    'a peer that only short packets reach',
    [byPeers],
    [peer('a', narrow), peer('b')],
    'long packets to a (10.5.2.0/24) are lost, short ones pass',
  ],
  [
    'both',
    [byPeers],
    [peer('a', narrow), peer('b', silent)],
    'packets to b (10.5.2.0/24) are lost; long packets to a (10.5.2.0/24) are lost, short ones pass',
  ],
  [
    'a data path that cannot be repaired',
    [{ by: 'path', what: 'the data path cannot be checked or repaired: File exists' }],
    [peer('a')],
    'packets are lost if the data path is damaged; weftd tries to repair the data path at least every 30 seconds',
  ],
  [
    'a lease that cannot be renewed',
    [{ by: 'store', what: "this node's lease cannot be renewed: permission denied" }],
    [peer('a')],
    "packets pass only while the store has this node's lease; without it the other nodes send no packets to this node",
  ],
  ['an invalid configuration', [byConfig], [peer('a')], 'all packets pass, but no weftd can start'],
  [
    'an invalid configuration, and a lease that cannot be renewed',
    [byConfig, { by: 'store', what: "this node's lease cannot be renewed: permission denied" }],
    [peer('a')],
    "no weftd can start; packets pass only while the store has this node's lease; without it the other nodes send no packets to this node",
  ],
  [
    'an invalid configuration, and a host that does not forward',
    [byConfig, { by: 'host', what: 'this host does not forward IPv4' }],
    [peer('a')],
    'IPv4 packets of containers do not leave this host; no weftd can start',
  ],
  [
    'a store that does not answer, too',
    [byConfig, { by: 'store', what: 'the etcd store does not answer' }],
    [peer('a')],
    'packets to known nodes pass, but weftd does not learn of new nodes and cannot renew its lease',
  ],
  [
    'many',
    [byPeers],
    ['a', 'b', 'c', 'd', 'e'].map((name) => peer(name, silent)),
    'packets to a (10.5.2.0/24), b (10.5.2.0/24), c (10.5.2.0/24) and 2 more are lost',
  ],
  [
    'as many peers as one line names',
    [byPeers],
    ['a', 'b', 'c'].map((name) => peer(name, silent)),
    'packets to a (10.5.2.0/24), b (10.5.2.0/24), c (10.5.2.0/24) are lost',
  ],
  [
    'one family of a peer is silent',
    [byPeers],
    [{ ...dualPeer({}, silentSide), name: 'a' }],
    'packets to a (10.5.2.0/24) are lost',
  ],
  [
    'a peer whose packets arrive, but which is missing from the data path',
    [byPeers],
    [peer('a', { state: 'stored', type: 'vxlan', heardSecondsAgo: 3, unansweredSeconds: 9 })],
    'packets to a (10.5.2.0/24) are lost',
  ],
  [
    'a peer whose packets arrive, with one family missing from the data path and the other family silent',
    [byPeers],
    [{ ...dualPeer({ state: 'stored' }, silentSide), name: 'a', heardSecondsAgo: 3, unansweredSeconds: 9 }],
    'packets to a (10.5.2.0/24) are lost',
  ],
  [
    'a peer that only short packets reach, although its own packets arrive',
    [byPeers],
    [peer('a', { ...narrow, heardSecondsAgo: 3, unansweredSeconds: 9 })],
    'long packets to a (10.5.2.0/24) are lost, short ones pass',
  ],
  [
    'two problems of the host',
    [
      { by: 'host', what: 'this host does not forward IPv6' },
      { by: 'host', what: '/run/flannel/subnet.env is not written' },
    ],
    [],
    'IPv6 packets of containers do not leave this host; new containers do not start',
  ],
  ['peers that answer again', [byPeers], [peer('a')], ofUnknownPeers],
  [
    'no forwarding',
    [{ by: 'host', what: 'the kernel does not forward IPv4' }],
    [],
    'IPv4 packets of containers do not leave this host',
  ],
  [
    'no subnet.env',
    [{ by: 'host', what: '/run/flannel/subnet.env is not written' }],
    [],
    'new containers do not start',
  ],
  [
    'a duplicate node',
    [{ by: 'host', what: 'host9 uses the same public IP' }],
    [],
    'another host gets some of the packets for this host',
  ],
  [
    'an address that is gone',
    [{ by: 'host', what: 'IPv6 has no address on the external interface: eth0 has lost 2001:db8::1' }],
    [],
    'no packets reach other hosts over IPv6',
  ],
  [
    'a problem that an older page does not know',
    [{ by: 'host', what: 'something of tomorrow' }],
    [],
    'packets of containers do not leave this host, new containers do not start, or another host gets packets for this host',
  ],
  [
    'several causes',
    [{ by: 'store', what: 'the etcd store does not answer' }, byPeers],
    [peer('a', silent)],
    'packets to a (10.5.2.0/24) are lost; packets to known nodes pass, but weftd does not learn of new nodes and cannot renew its lease',
  ],
])('%s', (_name, impairments, list, words) => expect(said(impairments, ...list)).toBe(words))

it('names no peers before weftd knows the peers', () => {
  expect(packetsText({ state: 'impaired', impairments: [byPeers], peers: null })).toBe(ofUnknownPeers)
})

it('a silent peer counts as sending if a packet arrived within three probe intervals', () => {
  const peers = countPeers([peer('a', { ...silent, heardSecondsAgo: 50, unansweredSeconds: 90 })], 20)
  expect(packetsText({ state: 'impaired', impairments: [byPeers], peers })).toMatch(/^packets to a .* may be lost/)
})

it.each([
  [
    'vxlan',
    ['vxlan', 'wireguard', ''],
    'b (10.5.2.0/24), c (10.5.2.0/24) run wireguard, udp, alloc or a cloud backend',
  ],
  ['vxlan', ['vxlan', 'vxlan', 'wireguard'], 'c (10.5.2.0/24) runs wireguard'],
  ['udp', ['', '', ''], undefined],
  ['one of tomorrow', ['one of tomorrow', 'vxlan', 'vxlan'], 'b (10.5.2.0/24), c (10.5.2.0/24) run vxlan'],
])('a node with the backend %s names the peers with another backend: %j', (backendType, types, words) => {
  const peers = countPeers(
    types.map((type, at) => peer('abc'.charAt(at), { state: 'stored', type })),
    10,
  )
  const config = { ...soundStatus.config!, backendType }
  const lost = 'packets to a (10.5.2.0/24), b (10.5.2.0/24), c (10.5.2.0/24) are lost'
  expect(packetsText({ state: 'impaired', impairments: [byPeers], peers, config })).toBe(
    words === undefined ? lost : `${lost}; ${words}, this node runs ${backendType}`,
  )
})

it('reports that a peer with another backend is the cause', () => {
  const stored = { state: 'stored', type: 'vxlan' } as const
  const list = [
    peer('op-b', stored),
    peer('c', { state: 'stored', type: 'wireguard' }),
    peer('d', { type: 'wireguard' }),
  ]
  const config = { ...soundStatus.config!, backendType: 'wireguard' }
  const peers = countPeers(list, 10)
  expect(packetsText({ state: 'impaired', impairments: [byPeers], peers, config })).toBe(
    'packets to op-b (10.5.2.0/24), c (10.5.2.0/24) are lost; op-b (10.5.2.0/24) runs vxlan, this node runs wireguard',
  )
})
