// model.test.ts - what the page tells of a status: how each peer is, the verdict, what changed, the map's places.

import { describe, expect, it } from 'vitest'
import { formatIpv4 } from '../../../../src/net/ipv4.ts'
import {
  around,
  byNeed,
  CONDITIONS,
  changesOf,
  countsOf,
  countsText,
  factsOf,
  LOOKS,
  matching,
  medianOf,
  MOST_PLACES,
  pauseAfter,
  peersOf,
  placesOf,
  verdictOf,
} from '../../../../src/report/page/model.ts'
import {
  conditionOf,
  countPeers,
  type Condition,
  type PeerStatus,
  type SessionStatus,
  type Status,
} from '../../../../src/report/status.ts'
import { dualPeer, peerOfIpv6, silentSide, soundDual } from '../../../support/facts.ts'
import { peerWith, statusWith } from '../../../support/page-status.ts'

const peers = (status: Status): [Status, ReturnType<typeof peersOf>] => [status, peersOf(status)]

describe('a peer', () => {
  it.each([
    [{ state: 'stored', lossPercent: null }, 'stored'],
    [{ state: 'programmed', lossPercent: null }, 'programmed'],
    [{ state: 'programmed', lossPercent: 20 }, 'silent'],
    [{ state: 'answering', lossPercent: 10 }, 'answering'],
    [{ path: 'whole', passesBytes: 1472 }, 'answering'],
    [{ path: 'narrow', passesBytes: 1252 }, 'narrow'],
    [{ path: 'narrow', passesBytes: null }, 'narrow'],
    // Those who send more are told.
    [{ path: 'narrow', passesBytes: 1372, pathMtu: 1372 }, 'answering'],
    [{ path: 'narrow', passesBytes: 1252, pathMtu: 1372 }, 'narrow'],
    [{ state: 'programmed', lossPercent: 100, path: 'narrow', passesBytes: 1252 }, 'silent'],
  ] as const)('of %o is %s', (known, condition) => {
    expect(conditionOf(peerWith(1, known))).toBe(condition)
  })

  it('stands in the order of its subnet, in the list the worst first', () => {
    const status = statusWith([peerWith(10), peerWith(9, { state: 'stored' }), peerWith(2, { state: 'programmed' })])
    const all = peersOf(status)
    expect(all.map(({ subnet }) => subnet)).toEqual(['10.5.2.0/24', '10.5.9.0/24', '10.5.10.0/24'])
    expect(byNeed(all).map(({ condition }) => condition)).toEqual(['silent', 'stored', 'answering'])
    expect(countsText(countsOf(all))).toBe('1 not answering, 1 only stored, 1 answering')
  })

  it('without a subnet stands first, and nobody is there of a node that has no list', () => {
    const all = peersOf(statusWith([peerWith(1), peerWith(9, { subnet: 'junk' }), peerWith(0)]))
    expect(all.map(({ subnet }) => subnet)).toEqual(['junk', '10.5.0.0/24', '10.5.1.0/24'])
    expect(peersOf(statusWith([], { peers: null }))).toEqual([])
  })

  it('looks otherwise in each condition, and each has its name and what it means', () => {
    for (const part of ['sign', 'name', 'means'] as const)
      expect(new Set(CONDITIONS.map((condition) => LOOKS[condition][part]).filter(Boolean)).size, part).toBe(5)
    expect(countsText({ silent: 2, stored: 0, narrow: 0, programmed: 1_000, answering: 1 })).toBe(
      '2 not answering, 1,000 programmed, 1 answering',
    )
  })

  it('is found by a part of an address, by a subnet that has it, by its condition', () => {
    const all = peersOf(statusWith([peerWith(1), peerWith(2, { state: 'programmed' }), peerWith(200)]))
    const found = (text: string, condition: Condition | '' = ''): string[] =>
      matching(all, text, condition).map(({ subnet }) => subnet)
    expect(found('')).toHaveLength(3)
    expect(found(' 77.2')).toEqual(['10.5.2.0/24', '10.5.200.0/24'])
    expect(found('10.5.0.0/17')).toEqual(['10.5.1.0/24', '10.5.2.0/24'])
    expect(found('10.5.0.0/17', 'silent')).toEqual(['10.5.2.0/24'])
    expect(found('<script>')).toEqual([])
    const others = peersOf(
      statusWith([peerWith(1, { type: 'VxLan', endpoint: null }), peerWith(2, { subnet: 'Junk' })]),
    )
    const names = (text: string): string[] => matching(others, text, '').map(({ lease }) => lease)
    expect([names('vXlan '), names('jUNK'), names(':8285'), names('!')]).toEqual([
      ['10.5.1.0-24'],
      ['10.5.2.0-24'],
      ['10.5.2.0-24'],
      [],
    ])
  })
})

describe('the verdict', () => {
  it.each([
    [
      statusWith([], { state: 'starting', trouble: 'waiting for a lease', dataPath: null }),
      'doubtful',
      'Starting',
      /^waiting for a lease\./,
    ],
    [
      statusWith([], { state: 'forwarding', trouble: 'waiting for a lease' }),
      'doubtful',
      'Forwarding as last known',
      /^waiting for a lease\. Packets: .* last known pass/,
    ],
    [
      statusWith([peerWith(1)], {
        state: 'impaired',
        impairments: [{ by: 'path', what: 'the data path is down' }],
        trouble: 'the data path is down',
      }),
      'bad',
      'Impaired by its data path',
      /^the data path is down\. Packets: none pass/,
    ],
    [
      statusWith([peerWith(1), peerWith(2, { state: 'programmed' })]),
      'bad',
      '1 of 2 peers does not answer',
      'The network is 50% whole.',
    ],
    [
      statusWith([peerWith(1), peerWith(2, { state: 'programmed' }), peerWith(3, { state: 'programmed' })]),
      'bad',
      '2 of 3 peers do not answer',
      'The network is 33.3% whole.',
    ],
    [statusWith([], { peers: null }), 'doubtful', 'No other nodes', /lease/],
    [statusWith([peerWith(2, { state: 'programmed' })]), 'bad', 'The only peer does not answer', /0% whole/],
    [statusWith([peerWith(1), peerWith(2, { state: 'stored' })]), 'bad', '1 peer cannot be reached', /data path/],
    [statusWith([]), 'doubtful', 'No other nodes', /lease/],
    [statusWith([peerWith(1), peerWith(2)]), 'good', 'The network is whole', 'All 2 peers answer.'],
    [statusWith([peerWith(1)]), 'good', 'The network is whole', 'The only peer answers.'],
    [
      statusWith([peerWith(1), peerWith(2, { state: 'programmed', lossPercent: null, probedSecondsAgo: null })]),
      'good',
      'The network is whole',
      '1 peer not asked yet.',
    ],
    [
      statusWith([peerWith(1, { state: 'programmed', lossPercent: null, probedSecondsAgo: null })]),
      'doubtful',
      'Not known yet',
      'No peer has been asked yet whether it answers.',
    ],
    [
      statusWith([peerWith(1, { state: 'programmed', lossPercent: null })], {}, false),
      'doubtful',
      'All peers are programmed',
      /not asked/,
    ],
  ] as const)('%#: %o', (status, tone, title, detail) => {
    const verdict = verdictOf(status)
    expect(verdict.tone).toBe(tone)
    expect(verdict.title).toMatch(title)
    expect(verdict.detail).toMatch(detail)
  })

  it('says that long packets do not reach a peer that answers, and how long one may be', () => {
    const narrow = { path: 'narrow', passesBytes: 1252 } as const
    expect(verdictOf(statusWith([peerWith(1), peerWith(2, narrow)]))).toEqual({
      tone: 'bad',
      title: 'Long packets do not reach 1 peer',
      detail: 'Containers send up to 1,472 bytes. 1,252 bytes pass. Connections open and then stall.',
    })
    const all = [peerWith(1, narrow), peerWith(2, { ...narrow, passesBytes: null })]
    expect(verdictOf(statusWith(all)).title).toBe('Long packets do not reach 2 of 2 peers')
    expect(peersOf(statusWith(all)).map(({ words }) => words)).toEqual(['narrow', 'narrow'])
    expect(factsOf(peersOf(statusWith(all))[0]!)).toContainEqual([
      'Longest packet',
      '1252 bytes, less than containers may send',
    ])
  })

  it('tells of its session, where packets are encrypted', () => {
    const keys = { publicKey: 'K=', attempts: 0, stale: 0, unconfirmed: 0, txBytes: 0, rxBytes: 0 }
    const told = (session: SessionStatus): readonly string[] =>
      factsOf(peersOf(statusWith([peerWith(1, { session })]))[0]!)
        .filter(([name]) => ['Last handshake', 'Keys', 'Public key'].includes(name))
        .map(([, text]) => text)
    expect(told({ ...keys, handshakeSecondsAgo: 75, ageSeconds: 75, failure: null })).toEqual([
      '75 s ago',
      '75 s old',
      'K=',
    ])
    expect(told({ ...keys, handshakeSecondsAgo: null, ageSeconds: null, failure: 'no-answer' })).toEqual([
      '–',
      'none now; the last handshake was not answered',
      'K=',
    ])
    expect(factsOf(peersOf(statusWith([peerWith(1)]))[0]!).map(([name]) => name)).not.toContain('Keys')
  })

  it('says that the store is away while all peers answer', () => {
    const status = statusWith([peerWith(1)])
    const impairments = [{ by: 'store', what: 'the etcd store does not answer' }] as const
    expect(verdictOf({ ...status, state: 'impaired', impairments })).toMatchObject({
      tone: 'bad',
      title: 'Impaired by its store',
      detail: expect.stringContaining('known nodes pass'),
    })
  })
})

it.each([
  [[], undefined],
  [[3], 3],
  [[1, 3], 2],
  [[9, 1, 3], 3],
  [[4, 1, 9, 2], 3],
] as const)('the median of the round trips %j is %j, of those that answer', (times, median) => {
  const list = times.map((roundTripMs, at) => peerWith(at + 1, { roundTripMs }))
  expect(medianOf(peersOf(statusWith([...list, peerWith(99, { state: 'programmed', roundTripMs: 1000 })])))).toBe(
    median,
  )
})

describe('what changed', () => {
  const before = statusWith([peerWith(1), peerWith(2)])
  it('is nothing between two that are alike', () => {
    expect(changesOf(peers(before), peers(statusWith([peerWith(1, { txBytes: 99 }), peerWith(2)])))).toEqual([])
  })

  it('names peers that came, went, or are otherwise, and the node', () => {
    const after = statusWith([peerWith(2, { state: 'programmed' }), peerWith(3)], {
      state: 'impaired',
      impairments: [{ by: 'path', what: 'why' }],
      trouble: 'why',
    })
    expect(changesOf(peers(before), peers(after))).toEqual([
      'This node is impaired by its data path: why',
      '10.5.2.0/24: not answering',
      '10.5.3.0/24: new',
      '10.5.1.0/24: gone',
    ])
  })

  it('is the node alone where nothing troubles it', () => {
    const impaired = { state: 'impaired', impairments: [{ by: 'path', what: 'why' }] } as const
    expect(changesOf(peers(statusWith([], impaired)), peers(statusWith([], { trouble: null })))).toEqual([
      `This node is ${before.state}`,
    ])
  })

  it.each([
    [3, '10.5.0.0/24, 10.5.1.0/24, 10.5.2.0/24: not answering'],
    [4, '4 peers: not answering'],
    [9, '9 peers: not answering'],
  ])('of %i peers is told as %s', (number, told) => {
    const many = (state: 'answering' | 'programmed') =>
      statusWith(Array.from({ length: number }, (_, at) => peerWith(at, { state })))
    expect(changesOf(peers(many('answering')), peers(many('programmed')))).toEqual([told])
  })
})

describe('the map', () => {
  it('has a place for each peer, while there is room', () => {
    const all = peersOf(statusWith([peerWith(1), peerWith(2, { state: 'stored' })]))
    expect(placesOf(all)).toMatchObject([
      { name: '10.5.1.0/24', condition: 'answering' },
      { name: '10.5.2.0/24', condition: 'stored' },
    ])
  })

  it('has places of single peers as long as there is room, and no larger subnets than that takes', () => {
    const all = peersOf(statusWith([0, 1, 2, 3].map((number) => peerWith(number))))
    expect(placesOf(all, 4)).toEqual(
      all.map((peer) => ({
        key: peer.lease,
        name: peer.subnet,
        condition: 'answering',
        peers: [peer],
        isGroup: false,
      })),
    )
    const told = (most: number) =>
      placesOf(all, most).map(({ key, name, peers: members, isGroup }) => [
        key === name && isGroup,
        name,
        members.length,
      ])
    expect(told(3)).toEqual(told(2))
    expect(told(2)).toEqual([
      [true, '10.5.0.0/23', 2],
      [true, '10.5.2.0/23', 2],
    ])
    expect(told(1)).toEqual([[true, '10.5.0.0/22', 4]])
  })

  it('has a place for those too whose subnet is none', () => {
    const all = peersOf(statusWith([peerWith(0), peerWith(1), peerWith(2, { subnet: 'junk' })]))
    const told = (most: number) => placesOf(all, most).map(({ name, peers: members }) => [name, members.length])
    expect(told(2)).toEqual([
      ['0.0.0.0/23', 1],
      ['10.5.0.0/23', 2],
    ])
    expect(told(1)).toEqual([['0.0.0.0/4', 3]])
  })

  it('joins ten thousand into larger subnets, each as the worst of its peers', () => {
    const list = Array.from({ length: 10_000 }, (_, at) =>
      peerWith(at, {
        subnet: `${formatIpv4(0x0a000000 + at * 256)}/24`,
        state: at === 5000 ? 'programmed' : 'answering',
      }),
    )
    const places = placesOf(peersOf(statusWith(list)))
    expect(places.length).toBeLessThanOrEqual(MOST_PLACES)
    expect(places.length).toBeGreaterThan(MOST_PLACES / 4)
    expect(places.reduce((sum, place) => sum + place.peers.length, 0)).toBe(10_000)
    expect(places.filter(({ condition }) => condition !== 'answering')).toHaveLength(1)
    expect(places[0]!.name).toBe('10.0.0.0/18')
  })

  it('sets peers around the node, within the map, and two across from each other', () => {
    expect(around(0, 2).x).toBeLessThan(0.2)
    expect(around(1, 2).x).toBeGreaterThan(0.8)
    // Clockwise, as the hands go: from the left over the top.
    const quarters = [0, 1, 2, 3].map((at) => around(at, 4))
    expect(quarters.map(({ x }) => Math.round(x * 100))).toEqual([11, 50, 89, 50])
    expect(quarters.map(({ y }) => Math.round(y * 100))).toEqual([50, 14, 50, 86])
    for (let at = 0; at < 12; at++) {
      const { x, y } = around(at, 12)
      expect(Math.min(x, y)).toBeGreaterThan(0.05)
      expect(Math.max(x, y)).toBeLessThan(0.95)
    }
  })
})

it('asks once a second, and less often where that takes long', () => {
  expect([0, 20, 500].map(pauseAfter)).toEqual([1000, 980, 9500])
})

describe('of both families', () => {
  const statusOf = (...list: PeerStatus[]): Status => ({ ...soundDual.status, peers: countPeers(list, 10) })
  const stored = { state: 'stored', endpoint: null, way: null } as const
  const other = (number: number, peer: PeerStatus): PeerStatus => ({
    ...peer,
    lease: `10.5.${number}.0-24`,
    subnet: `10.5.${number}.0/24`,
    ipv6Subnet: `fd00:5:0:${number}::/64`,
  })

  it.each([
    ['alike', dualPeer(), 'answering', 'The network is whole'],
    ['both silent', dualPeer(silentSide, silentSide), 'not answering', 'The only peer does not answer'],
    ['IPv6 silent', dualPeer({}, silentSide), 'IPv6 not answering', 'The only peer does not answer by IPv6'],
    ['IPv4 silent', dualPeer(silentSide), 'IPv4 not answering', 'The only peer does not answer by IPv4'],
    ['IPv6 not set', dualPeer({}, stored), 'IPv6 only stored', '1 peer cannot be reached by IPv6'],
    [
      'IPv6 not asked',
      dualPeer({}, { state: 'programmed', lossPercent: null, probedSecondsAgo: null }),
      'IPv6 programmed',
      'Not known yet',
    ],
    ['of IPv6 alone', peerOfIpv6(silentSide), 'not answering', 'The only peer does not answer'],
  ])('%s: the peer and the verdict say which', (_name, peer, words, title) => {
    const status = statusOf(peer)
    expect([peersOf(status)[0]!.words, verdictOf(status).title]).toEqual([words, title])
  })

  it('the verdict names a family only where it is that of all', () => {
    const [six, four, none] = [dualPeer({}, silentSide), dualPeer(silentSide), dualPeer(silentSide, silentSide)]
    const titles = [
      [six, other(3, six)],
      [six, other(3, four)],
      [six, other(3, none)],
      [other(3, dualPeer()), six],
    ].map((list) => verdictOf(statusOf(...list)).title)
    expect(titles).toEqual([
      '2 of 2 peers do not answer by IPv6',
      '2 of 2 peers do not answer',
      '2 of 2 peers do not answer',
      '1 of 2 peers does not answer by IPv6',
    ])
  })

  it('a family that breaks is a change, and so is the other one after it', () => {
    const told = (before: PeerStatus, after: PeerStatus) => changesOf(peers(statusOf(before)), peers(statusOf(after)))
    expect(told(dualPeer(), dualPeer({}, silentSide))).toEqual(['10.5.2.0/24: IPv6 not answering'])
    expect(told(dualPeer({}, silentSide), dualPeer(silentSide, silentSide))).toEqual(['10.5.2.0/24: not answering'])
  })

  it('the facts of a peer are told once where both are alike, and by family where not', () => {
    const [peer] = peersOf(statusOf(dualPeer({ roundTripMs: 2 })))
    expect(factsOf(peer!)).toEqual([
      ['State', 'answering'],
      ['Packets go to, IPv4', '192.0.2.2:8472'],
      ['Packets go to, IPv6', '[2001:db8::2]:8472'],
      ['By way of', 'a tunnel of the kernel'],
      ['Round trip, IPv4', '2.0 ms'],
      ['Round trip, IPv6', '1.0 ms'],
      ['Loss of the last probes', '0%'],
      ['Probed', '3 s ago'],
      ['Longest packet', '–'],
      ['Path MTU', '–'],
    ])
    const broken = factsOf(peersOf(statusOf(dualPeer({}, stored)))[0]!)
    expect(broken).toEqual(
      expect.arrayContaining([
        ['State, IPv6', 'only stored'],
        ['By way of, IPv6', '–'],
      ]),
    )
    const one = factsOf(peersOf(statusWith([peerWith(1)]))[0]!)
    expect(one.slice(0, 2)).toEqual([
      ['Packets go to', '192.168.77.1:8285'],
      ['By way of', 'the tunnel of weftd'],
    ])
  })

  it('a peer is found by what it has of IPv6', () => {
    const all = peersOf(statusOf(dualPeer(), other(3, dualPeer())))
    const found = (text: string) => matching(all, text, '').map(({ subnet }) => subnet)
    expect(found('fd00:5:0:3::/64')).toEqual(['10.5.3.0/24'])
    expect(found('fd00:5::/48')).toHaveLength(2)
    expect(found('fd00:5:0:2')).toEqual(['10.5.2.0/24'])
    expect(found('2001:DB8::2')).toHaveLength(2)
    expect(found('[2001:db8::2]:84')).toHaveLength(2)
    expect(found('10.5.2.0/24')).toEqual(['10.5.2.0/24'])
  })
})
