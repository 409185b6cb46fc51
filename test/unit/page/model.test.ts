// model.test.ts - what the page tells of a status: how each peer is, the verdict, what changed, the map's places.

import { describe, expect, it } from 'vitest'
import {
  around,
  byNeed,
  changesOf,
  conditionOf,
  countsOf,
  countsText,
  matching,
  MOST_PLACES,
  pauseAfter,
  peersOf,
  placesOf,
  verdictOf,
  type Condition,
} from '../../../src/page/model.ts'
import { formatIpv4 } from '../../../src/net/ipv4.ts'
import type { Status } from '../../../src/status/status.ts'
import { peerWith, statusWith } from '../../support/page-status.ts'

const peers = (status: Status): [Status, ReturnType<typeof peersOf>] => [status, peersOf(status)]

describe('a peer', () => {
  it.each([
    [{ state: 'stored', lossPercent: null }, 'stored'],
    [{ state: 'programmed', lossPercent: null }, 'programmed'],
    [{ state: 'programmed', lossPercent: 20 }, 'silent'],
    [{ state: 'answering', lossPercent: 10 }, 'answering'],
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

  it('is found by a part of an address, by a subnet that has it, by its condition', () => {
    const all = peersOf(statusWith([peerWith(1), peerWith(2, { state: 'programmed' }), peerWith(200)]))
    const found = (text: string, condition: Condition | '' = ''): string[] =>
      matching(all, text, condition).map(({ subnet }) => subnet)
    expect(found('')).toHaveLength(3)
    expect(found(' 77.2')).toEqual(['10.5.2.0/24', '10.5.200.0/24'])
    expect(found('10.5.0.0/17')).toEqual(['10.5.1.0/24', '10.5.2.0/24'])
    expect(found('10.5.0.0/17', 'silent')).toEqual(['10.5.2.0/24'])
    expect(found('<script>')).toEqual([])
  })
})

describe('the verdict', () => {
  it.each([
    [
      statusWith([], { state: 'starting', trouble: 'waiting for a lease', dataPath: null }),
      'doubtful',
      'Starting',
      'waiting for a lease',
    ],
    [
      statusWith([], { state: 'starting', trouble: 'waiting for a lease' }),
      'doubtful',
      'Forwarding as last known',
      'waiting for a lease',
    ],
    [
      statusWith([peerWith(1)], { state: 'impaired', trouble: 'the data path is down' }),
      'bad',
      /does not do its work/,
      'the data path is down',
    ],
    [
      statusWith([peerWith(1), peerWith(2, { state: 'programmed' })]),
      'bad',
      '1 of 2 peers does not answer',
      'The network is 50% whole.',
    ],
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
      statusWith([peerWith(1, { state: 'programmed', lossPercent: null })], {}, false),
      'doubtful',
      'All peers are programmed',
      /Nobody asks/,
    ],
  ] as const)('%#: %o', (status, tone, title, detail) => {
    const verdict = verdictOf(status)
    expect(verdict.tone).toBe(tone)
    expect(verdict.title).toMatch(title)
    expect(verdict.detail).toMatch(detail)
  })

  it('says that the store is away while all peers answer', () => {
    const status = statusWith([peerWith(1)])
    expect(verdictOf({ ...status, store: { ...status.store, reachable: false } }).title).toMatch(/store/)
  })
})

describe('what changed', () => {
  const before = statusWith([peerWith(1), peerWith(2)])
  it('is nothing between two that are alike', () => {
    expect(changesOf(peers(before), peers(statusWith([peerWith(1, { txBytes: 99 }), peerWith(2)])))).toEqual([])
  })

  it('names peers that came, went, or are otherwise, and the node', () => {
    const after = statusWith([peerWith(2, { state: 'programmed' }), peerWith(3)], { state: 'impaired', trouble: 'why' })
    expect(changesOf(peers(before), peers(after))).toEqual([
      'This node is impaired: why',
      '10.5.2.0/24: not answering',
      '10.5.3.0/24: new',
      '10.5.1.0/24: gone',
    ])
  })

  it('counts many', () => {
    const many = (state: 'answering' | 'programmed') =>
      statusWith(Array.from({ length: 9 }, (_, at) => peerWith(at, { state })))
    expect(changesOf(peers(many('answering')), peers(many('programmed')))).toEqual(['9 peers: not answering'])
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
