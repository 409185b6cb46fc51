// model.test.ts - the content of the page from a status: peers, verdict, changes, and places of the map.

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
  linesOf,
  LOOKS,
  matching,
  medianOf,
  MOST_PLACES,
  pauseAfter,
  peersOf,
  placesOf,
  verdictOf,
} from '../../../../src/report/page/model.ts'
import { PEER_EVENTS, type PeerEvent } from '../../../../src/report/peer-events.ts'
import {
  conditionOf,
  countPeers,
  type Condition,
  type PeerStatus,
  type SessionStatus,
  type Status,
  type StatusEvent,
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
    // Senders of longer packets get an ICMP error.
    [{ path: 'narrow', passesBytes: 1372, pathMtu: 1372 }, 'answering'],
    [{ path: 'narrow', passesBytes: 1252, pathMtu: 1372 }, 'narrow'],
    [{ state: 'programmed', lossPercent: 100, path: 'narrow', passesBytes: 1252 }, 'silent'],
  ] as const)('of %o is %s', (known, condition) => {
    expect(conditionOf(peerWith(1, known))).toBe(condition)
  })

  it('is sorted by subnet, and in the list by condition, the worst first', () => {
    const status = statusWith([peerWith(10), peerWith(9, { state: 'stored' }), peerWith(2, { state: 'programmed' })])
    const all = peersOf(status)
    expect(all.map(({ subnet }) => subnet)).toEqual(['10.5.2.0/24', '10.5.9.0/24', '10.5.10.0/24'])
    expect(byNeed(all).map(({ condition }) => condition)).toEqual(['silent', 'stored', 'answering'])
    expect(countsText(countsOf(all))).toBe('1 not answering, 1 only stored, 1 answering')
  })

  it('without a subnet comes first, and a node without a list has no peers', () => {
    const all = peersOf(statusWith([peerWith(1), peerWith(9, { subnet: 'junk' }), peerWith(0)]))
    expect(all.map(({ subnet }) => subnet)).toEqual(['junk', '10.5.0.0/24', '10.5.1.0/24'])
    expect(peersOf(statusWith([], { peers: null }))).toEqual([])
  })

  it('has a different sign, name and meaning in each condition', () => {
    for (const part of ['sign', 'name', 'means'] as const)
      expect(new Set(CONDITIONS.map((condition) => LOOKS[condition][part]).filter(Boolean)).size, part).toBe(5)
    expect(countsText({ silent: 2, stored: 0, narrow: 0, programmed: 1_000, answering: 1 })).toBe(
      '2 not answering, 1,000 programmed, 1 answering',
    )
  })

  it('is found by a part of an address, by a larger subnet, and by its condition', () => {
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
      /^waiting for a lease\. Effect: .* last known nodes pass/,
    ],
    [
      statusWith([peerWith(1)], {
        state: 'impaired',
        impairments: [{ by: 'path', what: 'the data path is down' }],
        trouble: 'the data path is down',
      }),
      'bad',
      'Impaired by its data path',
      /^the data path is down\. Effect: no packets pass/,
    ],
    [
      statusWith([peerWith(1), peerWith(2, { state: 'programmed' })], {
        impairments: [
          { by: 'peers', what: 'one does not answer' },
          { by: 'store', what: 'the store does not answer' },
        ],
        trouble: 'one does not answer; the store does not answer',
      }),
      'bad',
      'Impaired by its peers and its store',
      /^one does not answer; the store does not answer\. Effect: packets to 10\.5\.2\.0\/24 are lost/,
    ],
    [
      statusWith([peerWith(1), peerWith(2, { state: 'programmed' })]),
      'bad',
      '1 of 2 peers does not answer',
      'This node reaches 50% of the network.',
    ],
    [
      statusWith([peerWith(1), peerWith(2, { state: 'programmed' }), peerWith(3, { state: 'programmed' })]),
      'bad',
      '2 of 3 peers do not answer',
      'This node reaches 33.3% of the network.',
    ],
    [statusWith([], { peers: null }), 'doubtful', 'No other nodes', /lease/],
    [statusWith([peerWith(2, { state: 'programmed' })]), 'bad', 'The only peer does not answer', /reaches 0% of/],
    [statusWith([peerWith(1), peerWith(2, { state: 'stored' })]), 'bad', '1 peer cannot be reached', /data path/],
    [statusWith([]), 'doubtful', 'No other nodes', /lease/],
    [statusWith([peerWith(1), peerWith(2)]), 'good', 'The network works', 'All 2 peers answer.'],
    [statusWith([peerWith(1)]), 'good', 'The network works', 'The only peer answers.'],
    [
      statusWith([peerWith(1), peerWith(2, { state: 'programmed', lossPercent: null, probedSecondsAgo: null })]),
      'good',
      'The network works',
      '1 peer not probed yet.',
    ],
    [
      statusWith([peerWith(1, { state: 'programmed', lossPercent: null, probedSecondsAgo: null })]),
      'doubtful',
      'Not known yet',
      'No peer has been probed yet.',
    ],
    [
      statusWith([peerWith(1, { state: 'programmed', lossPercent: null })], {}, false),
      'doubtful',
      'All peers are programmed',
      /does not probe/,
    ],
  ] as const)('%#: %o', (status, tone, title, detail) => {
    const verdict = verdictOf(status)
    expect(verdict.tone).toBe(tone)
    expect(verdict.title).toMatch(title)
    expect(verdict.detail).toMatch(detail)
  })

  it('reports that long packets do not reach an answering peer, and the length that does', () => {
    const narrow = { path: 'narrow', passesBytes: 1252 } as const
    expect(verdictOf(statusWith([peerWith(1), peerWith(2, narrow)]))).toEqual({
      tone: 'bad',
      title: 'Long packets do not reach 1 peer',
      detail: 'Containers send up to 1,472 bytes. 1,252 bytes pass. Connections open and then stall.',
    })
    const all = [peerWith(1, narrow), peerWith(2, { ...narrow, passesBytes: null })]
    expect(verdictOf(statusWith(all)).title).toBe('Long packets do not reach 2 of 2 peers')
    expect(peersOf(statusWith(all)).map(({ words }) => words)).toEqual(['narrow', 'narrow'])
  })

  it.each([
    ['the shortest known length', [1372, 1252, null], '1,472 bytes. 1,252 bytes pass. Connections'],
    ['no length while none is known', [null, null], '1,472 bytes. Connections'],
  ])('names %s that passes to all peers', (_name, lengths, told) => {
    const list = lengths.map((passesBytes, at) => peerWith(at, { path: 'narrow', passesBytes }))
    expect(verdictOf(statusWith(list)).detail).toBe(`Containers send up to ${told} open and then stall.`)
  })

  it.each([
    [{ path: null }, '–', '–'],
    [{ path: 'whole', passesBytes: 1472 }, 'as long as containers may send', '–'],
    [{ path: 'narrow', passesBytes: null }, 'less than containers may send', '–'],
    [{ path: 'narrow', passesBytes: 1252 }, '1252 bytes, less than containers may send', '–'],
    [{ path: 'narrow', passesBytes: 1372, pathMtu: 1372 }, '1372 bytes, less than containers may send', '1372 bytes'],
  ] as const)('lists the longest packet and the path MTU of a peer with %o', (known, longest, mtu) => {
    const facts = new Map(factsOf(peersOf(statusWith([peerWith(1, known)]))[0]!))
    expect([facts.get('Longest packet'), facts.get('Path MTU')]).toEqual([longest, mtu])
  })

  it('lists the facts of its session if packets are encrypted', () => {
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

  it('reports that the store does not answer although all peers do', () => {
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
  [[null], undefined],
  [[1, null, 3], 2],
] as const)('the median of the round trips %j is %j, of those that answer', (times, median) => {
  const list = times.map((roundTripMs, at) => peerWith(at + 1, { roundTripMs }))
  expect(medianOf(peersOf(statusWith([...list, peerWith(99, { state: 'programmed', roundTripMs: 1000 })])))).toBe(
    median,
  )
})

describe('the changes', () => {
  const before = statusWith([peerWith(1), peerWith(2)])
  it('are empty between two equal statuses', () => {
    expect(changesOf(peers(before), peers(statusWith([peerWith(1, { txBytes: 99 }), peerWith(2)])))).toEqual([])
  })

  it('name new, removed and changed peers, and the node', () => {
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

  it('name the node without a reason if it has no problem', () => {
    const impaired = { state: 'impaired', impairments: [{ by: 'path', what: 'why' }] } as const
    expect(changesOf(peers(statusWith([], impaired)), peers(statusWith([], { trouble: null })))).toEqual([
      `This node is ${before.state}`,
    ])
  })

  it.each([
    ['forwarding', 'This node is forwarding as last known: why'],
    ['leaving', 'This node is leaving: why'],
  ] as const)('name the state %s of a node that was working', (state, told) => {
    expect(changesOf(peers(statusWith([])), peers(statusWith([], { state, trouble: 'why' })))).toEqual([told])
  })

  it('name peers that do not answer, but do not also name the state impaired, which these peers cause', () => {
    const after = statusWith([peerWith(1), peerWith(2, { state: 'programmed' })])
    expect(after.state).toBe('impaired')
    expect(changesOf(peers(before), peers(after))).toEqual(['10.5.2.0/24: not answering'])
  })

  it.each([
    [3, '10.5.0.0/24, 10.5.1.0/24, 10.5.2.0/24: not answering'],
    [4, '4 peers: not answering'],
    [9, '9 peers: not answering'],
  ])('of %i peers are described as %s', (number, told) => {
    const many = (state: 'answering' | 'programmed') =>
      statusWith(Array.from({ length: number }, (_, at) => peerWith(at, { state })))
    expect(changesOf(peers(many('answering')), peers(many('programmed')))).toEqual([told])
  })
})

describe('the lines of the log', () => {
  const event = (at: string, known: Partial<PeerEvent> = {}): PeerEvent => ({
    at,
    what: 'silent',
    peer: '10.5.2.0/24',
    publicIp: '192.0.2.2',
    family: 'ipv4',
    afterSeconds: null,
    movedFrom: null,
    bytes: null,
    roundTripMs: null,
    usualMs: null,
    ...known,
  })

  it('and the events of peers are in the order of their times', () => {
    const line = (at: string, level: StatusEvent['level']): StatusEvent => ({ at, level, text: 'a line' })
    // In the order of texts, a time with a fraction of a second comes before the same second without a fraction.
    const log = [line('2026-11-23T03:00:00Z', 'info'), line('2026-11-23T03:02:30Z', 'warn')]
    const events = [
      event('2026-11-23T03:00:00.500Z'),
      event('2026-11-23T03:02:30.500Z', { what: 'back', family: 'ipv6', afterSeconds: 150 }),
    ]
    expect(linesOf(log, events)).toEqual([
      log[0],
      { at: events[0]!.at, level: 'error', text: '10.5.2.0/24 at 192.0.2.2: no longer answers' },
      log[1],
      {
        at: events[1]!.at,
        level: 'info',
        text: '10.5.2.0/24 at 192.0.2.2: answers over IPv6 again, after 3 min',
      },
    ])
  })

  it('show losses of packets as errors, other changes as warnings, and recoveries as notes', () => {
    const levels = PEER_EVENTS.map((what) => [what, linesOf([], [event('2026-11-23T03:00:00Z', { what })])[0]!.level])
    expect(Object.fromEntries(levels)).toEqual({
      silent: 'error',
      'one-way': 'error',
      narrow: 'error',
      moved: 'warn',
      rerouted: 'warn',
      slow: 'warn',
      back: 'info',
      whole: 'info',
      usual: 'info',
    })
  })
})

describe('the map', () => {
  it('has a place for each peer, up to the maximum', () => {
    const all = peersOf(statusWith([peerWith(1), peerWith(2, { state: 'stored' })]))
    expect(placesOf(all)).toMatchObject([
      { name: '10.5.1.0/24', condition: 'answering' },
      { name: '10.5.2.0/24', condition: 'stored' },
    ])
  })

  it('has single peers up to the maximum, and beyond it the smallest sufficient subnets', () => {
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

  it('has a place also for peers with an invalid subnet', () => {
    const all = peersOf(statusWith([peerWith(0), peerWith(1), peerWith(2, { subnet: 'junk' })]))
    const told = (most: number) => placesOf(all, most).map(({ name, peers: members }) => [name, members.length])
    expect(told(2)).toEqual([
      ['0.0.0.0/23', 1],
      ['10.5.0.0/23', 2],
    ])
    expect(told(1)).toEqual([['0.0.0.0/4', 3]])
  })

  it('groups ten thousand peers into larger subnets, each with its worst condition', () => {
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

  it('places peers around the node, inside the map, and two peers opposite each other', () => {
    expect(around(0, 2).x).toBeLessThan(0.2)
    expect(around(1, 2).x).toBeGreaterThan(0.8)
    // Clockwise, from the left over the top.
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

it('fetches the status once a second, and less often if that takes long', () => {
  expect([0, 20, 500].map(pauseAfter)).toEqual([1000, 980, 9500])
})

describe('with both families', () => {
  const statusOf = (...list: PeerStatus[]): Status => ({ ...soundDual.status, peers: countPeers(list, 10) })
  const stored = { state: 'stored', endpoint: null, way: null } as const
  const other = (number: number, peer: PeerStatus): PeerStatus => ({
    ...peer,
    lease: `10.5.${number}.0-24`,
    subnet: `10.5.${number}.0/24`,
    ipv6Subnet: `fd00:5:0:${number}::/64`,
  })

  it.each([
    ['equal families', dualPeer(), 'answering', 'The network works'],
    ['both silent', dualPeer(silentSide, silentSide), 'not answering', 'The only peer does not answer'],
    ['IPv6 silent', dualPeer({}, silentSide), 'IPv6 not answering', 'The only peer does not answer over IPv6'],
    ['IPv4 silent', dualPeer(silentSide), 'IPv4 not answering', 'The only peer does not answer over IPv4'],
    ['IPv6 not set', dualPeer({}, stored), 'IPv6 only stored', '1 peer cannot be reached over IPv6'],
    [
      'IPv6 not probed',
      dualPeer({}, { state: 'programmed', lossPercent: null, probedSecondsAgo: null }),
      'IPv6 programmed',
      'Not known yet',
    ],
    ['IPv6 only', peerOfIpv6(silentSide), 'not answering', 'The only peer does not answer'],
  ])('%s: the peer and the verdict name the family', (_name, peer, words, title) => {
    const status = statusOf(peer)
    expect([peersOf(status)[0]!.words, verdictOf(status).title]).toEqual([words, title])
  })

  it('the verdict names a family only if all peers have the same', () => {
    const [six, four, none] = [dualPeer({}, silentSide), dualPeer(silentSide), dualPeer(silentSide, silentSide)]
    const titles = [
      [six, other(3, six)],
      [six, other(3, four)],
      [six, other(3, none)],
      [other(3, dualPeer()), six],
    ].map((list) => verdictOf(statusOf(...list)).title)
    expect(titles).toEqual([
      '2 of 2 peers do not answer over IPv6',
      '2 of 2 peers do not answer',
      '2 of 2 peers do not answer',
      '1 of 2 peers does not answer over IPv6',
    ])
  })

  it('the failure of a family is a change, and so is that of the other family later', () => {
    const told = (before: PeerStatus, after: PeerStatus) => changesOf(peers(statusOf(before)), peers(statusOf(after)))
    expect(told(dualPeer(), dualPeer({}, silentSide))).toEqual(['10.5.2.0/24: IPv6 not answering'])
    expect(told(dualPeer({}, silentSide), dualPeer(silentSide, silentSide))).toEqual(['10.5.2.0/24: not answering'])
  })

  it('a fact of a peer is listed once if both families agree, and else for each family', () => {
    const [peer] = peersOf(statusOf(dualPeer({ roundTripMs: 2 })))
    expect(factsOf(peer!)).toEqual([
      ['State', 'answering'],
      ['Packets go to, IPv4', '192.0.2.2:8472'],
      ['Packets go to, IPv6', '[2001:db8::2]:8472'],
      ['Packets go through', 'a tunnel of the kernel'],
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
        ['Packets go through, IPv6', '–'],
      ]),
    )
    const one = factsOf(peersOf(statusWith([peerWith(1)]))[0]!)
    expect(one.slice(0, 2)).toEqual([
      ['Packets go to', '192.168.77.1:8285'],
      ['Packets go through', 'the tunnel of weftd'],
    ])
  })

  it.each([
    ['answers', {}],
    ['is only in the store', { state: 'stored', endpoint: null, way: null }],
  ] as const)('a family without a session, which %s, has a dash for each fact of the session', (_how, side) => {
    const session: SessionStatus = {
      publicKey: 'K=',
      handshakeSecondsAgo: 75,
      ageSeconds: 75,
      attempts: 0,
      failure: null,
      stale: 0,
      unconfirmed: 0,
      txBytes: 0,
      rxBytes: 0,
    }
    expect(factsOf(peersOf(statusOf(dualPeer({ session }, side)))[0]!).slice(-6)).toEqual([
      ['Last handshake, IPv4', '75 s ago'],
      ['Last handshake, IPv6', '–'],
      ['Keys, IPv4', '75 s old'],
      ['Keys, IPv6', '–'],
      ['Public key, IPv4', 'K='],
      ['Public key, IPv6', '–'],
    ])
  })

  it('a peer is found by its IPv6 subnet and address', () => {
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
