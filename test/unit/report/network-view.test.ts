// network-view.test.ts - the report about a network from the views of its nodes.

import { describe, expect, it } from 'vitest'
import { isNetworkWell, type NetworkNode, type QueriedNode } from '../../../src/report/network-findings.ts'
import { cellLook, lookOf, MOST_IN_MATRIX, wholeText } from '../../../src/report/network-view.ts'
import type { Sight } from '../../../src/report/view.ts'
import { all, AT, lease, nodesOf, report, silent, type Seeing } from '../../support/network-nodes.ts'

it('the network has no findings if all nodes reach each other', () => {
  const told = report(nodesOf(3, all))
  expect(told).toMatchObject({ schema: 1, at: AT, tookMs: 5, size: 3, whole: 1, findings: [] })
  expect(isNetworkWell(told)).toBe(true)
  expect(told.nodes[0]).toEqual({
    lease: lease(1),
    name: 'host1',
    subnet: '10.5.1.0/24',
    publicIp: '192.0.2.1',
    answer: 'told',
    why: null,
    version: '1.0',
    state: 'working',
    trouble: null,
    mtu: 1472,
    clockAheadMs: 0,
    seenBy: 2,
    reachedBy: 2,
    sees: 2,
    reaches: 2,
  })
  expect(told.matrix![1]).toEqual([['reached', 1, 0, null], null, ['reached', 1, 0, null]])
})

it('the network is healthy with a single node and without probes', () => {
  expect(report(nodesOf(1, all))).toMatchObject({ whole: 1, findings: [], matrix: [[null]] })
  const unasked = report(nodesOf(2, () => ({ reach: 'unknown' })))
  expect(unasked).toMatchObject({ whole: 1, findings: [] })
  const text = (of: Parameters<typeof wholeText>[0]): string => wholeText(of, (part) => `${part * 100}%`)
  expect(text(unasked)).toBe('no pair was probed yet')
  // Nodes with different backends do not probe each other.
  const apart = report(nodesOf(2, () => ({ reach: 'stored' })))
  expect(text(apart)).toBe('no pair was probed yet')
  expect(text(report(nodesOf(2, all)))).toBe('100% of the pairs whose state is known reach each other')
})

it('has no matrix for too many nodes, and ignores views of unknown nodes', () => {
  expect(report(nodesOf(MOST_IN_MATRIX + 1, () => undefined)).matrix).toBeNull()
  const view = {
    seen: [
      { lease: 'nobody', reach: 'silent' },
      { lease: lease(1), reach: 'silent' },
    ],
  }
  expect(report(nodesOf(1, all, () => ({ view })))).toMatchObject({ whole: 1, findings: [] })
})

describe('the summary of a network', () => {
  const text = (nodes: readonly QueriedNode[]): string => wholeText(report(nodes), (part) => `${part * 100}%`)
  const onlyThirdTo =
    (seen: Partial<Sight>): Seeing =>
    (from, to) =>
      from === 3 && to === 2 ? seen : undefined

  it('counts only pairs whose state is known', () => {
    const nodes = nodesOf(3, (from, to) => (to === 3 ? { reach: 'unknown' } : from === 1 ? { reach: 'silent' } : {}))
    // Node 1 does not reach node 2; nodes 2 and 3 reach node 1, and node 3 reaches node 2.
    expect(report(nodes).whole).toBe(0.75)
    expect(
      report(nodes).nodes.map(({ seenBy, reachedBy, sees, reaches }) => [seenBy, reachedBy, sees, reaches]),
    ).toEqual([
      [2, 2, 1, 0],
      [2, 1, 1, 1],
      [0, 0, 2, 2],
    ])
    expect(text(nodes)).toBe('75% of the pairs whose state is known reach each other')
  })

  it('counts the reached peers that the view of a large network omits', () => {
    // Each view lists one of two queried peers, and its node has `peers` peers.
    const nodes = (seen: Partial<Sight>, peers: number) =>
      nodesOf(
        3,
        (from, to) => (to === (from === 3 ? 2 : 3) ? seen : undefined),
        () => ({ view: { peers } }),
      )
    const counts = (of: readonly QueriedNode[]) => report(of).nodes.map(({ sees, reaches }) => [sees, reaches])
    expect(counts(nodes({}, 9))).toEqual([
      [2, 2],
      [2, 2],
      [2, 2],
    ])
    expect(counts(nodes({}, 2))).toEqual([
      [2, 2],
      [2, 2],
      [2, 2],
    ])
    // A node with one peer does not know the second queried peer.
    expect(counts(nodes({}, 1))).toEqual([
      [1, 1],
      [1, 1],
      [1, 1],
    ])
    // The omitted peer is the one that the view does not list.
    expect(report(nodes({}, 9)).nodes.map(({ seenBy }) => seenBy)).toEqual([2, 2, 2])
    expect(report(nodes({}, 9)).matrix?.map((row) => row?.filter((cell) => cell !== null).length)).toEqual([2, 2, 2])
    // A node with two peers does not know all of three queried peers, so it is unknown which ones the view omits.
    const onlyNext = (peers: number) =>
      nodesOf(
        4,
        (from, to) => (to === (from % 4) + 1 ? {} : undefined),
        () => ({ view: { peers } }),
      )
    expect(counts(onlyNext(2))).toEqual(Array.from({ length: 4 }, () => [1, 1]))
    expect(counts(onlyNext(3))).toEqual(Array.from({ length: 4 }, () => [3, 3]))
    // A view may list no peer.
    const empty = nodesOf(
      2,
      () => undefined,
      () => ({ view: { peers: 9 } }),
    )
    expect(counts(empty)).toEqual([
      [0, 0],
      [0, 0],
    ])
    // The state of peers that follow a silent one is unknown.
    expect(counts(nodes({ reach: 'silent' }, 9))).toEqual([
      [1, 0],
      [1, 0],
      [1, 0],
    ])
  })

  it('counts the pairs with different backends as not reached', () => {
    const nodes = nodesOf(4, (from, to) => (from < 3 === to < 3 ? {} : { reach: 'stored' }))
    expect(report(nodes).whole).toBeCloseTo(1 / 3)
    expect(text(nodes)).toMatch(/^33.* of the pairs whose state is known/)
  })

  it.each<[string, Partial<Sight>, string]>([
    ['reaches', {}, '100% of the pairs'],
    ['does not reach', { reach: 'silent' }, '0% of the pairs'],
    ['has not yet probed', { reach: 'unknown' }, 'no pair was probed yet'],
  ])('is right if the only result is of a node that %s another node', (_name, seen, begins) => {
    const flanneld = { kind: 'closed', why: 'no process listens', clock: undefined } as const
    const nodes = nodesOf(3, onlyThirdTo(seen), (number) => (number === 3 ? {} : flanneld))
    expect(text(nodes).startsWith(begins)).toBe(true)
    const idle = nodesOf(3, onlyThirdTo(seen))
    expect(text(idle).startsWith(begins)).toBe(true)
  })

  it('says whether a pair was probed, even in a network too large for a matrix', () => {
    const count = MOST_IN_MATRIX + 1
    expect(text(nodesOf(count, () => undefined))).toBe('no pair was probed yet')
    expect(text(nodesOf(count, onlyThirdTo({})))).toBe('100% of the pairs whose state is known reach each other')
    expect(report(nodesOf(MOST_IN_MATRIX, onlyThirdTo({}))).matrix).toHaveLength(MOST_IN_MATRIX)
  })
})

it.each<[string | null, string | null, string | null]>([
  ['host2', 'other', 'host2'],
  [null, 'other', 'other'],
  [null, null, null],
])('a node with the name %s in its lease and the hostname %s has the name %s', (name, hostname, shown) => {
  const nodes = nodesOf(2, all, (number) => (number === 2 ? { name, view: { hostname } } : {}))
  expect(report(nodes).nodes[1]!.name).toBe(shown)
})

it('shows no name, version, state or clock of a node that has no name and returns no view', () => {
  const nodes = nodesOf(2, all, (number) => (number === 2 ? { ...silent(2), name: null } : {}))
  const unknown = { name: null, version: null, state: null, trouble: null, mtu: null, clockAheadMs: null }
  expect(report(nodes).nodes[1]).toMatchObject({ ...unknown, seenBy: 1, reachedBy: 1, sees: null, reaches: null })
})

it.each([
  // The median is the right clock, in whatever order the nodes answer.
  [
    [0, 5_000, 0],
    [0, 5_000, 0],
  ],
  [
    [5_000, -3, 5_001, 4_999],
    [1, -5_002, 2, 0],
  ],
  // Only the nodes that answered have a clock.
  [
    [undefined, undefined, undefined, 700, 710, 690],
    [null, null, null, 0, 10, -10],
  ],
])('compares the clocks %j with their median: %j', (clocks, ahead) => {
  const nodes = nodesOf(clocks.length, all, (number) => {
    const aheadMs = clocks[number - 1]
    return { clock: aheadMs === undefined ? undefined : { aheadMs, uncertainMs: 1 } }
  })
  expect(report(nodes).nodes.map(({ clockAheadMs }) => clockAheadMs)).toEqual(ahead)
})

it.each<[Partial<NetworkNode>, string, string]>([
  [{}, 'good', 'working'],
  [{ seenBy: 0, reachedBy: 0, sees: 0, reaches: 0 }, 'good', 'working'],
  [{ reachedBy: 3 }, 'bad', 'working'],
  [{ reaches: 3 }, 'bad', 'working'],
  [{ reachedBy: 3, reaches: 3 }, 'bad', 'working'],
  [{ state: 'impaired' }, 'bad', 'impaired'],
  [{ state: 'starting', seenBy: 0, reachedBy: 0, sees: 0, reaches: 0 }, 'bad', 'starting'],
  [{ state: null }, 'bad', '-'],
  [{ answer: 'closed', state: null }, 'dim', 'no status'],
  [{ answer: 'closed', state: null, reachedBy: 3 }, 'bad', 'no status'],
  [{ answer: 'refused', state: null }, 'bad', 'refuses'],
  [{ answer: 'junk', state: null }, 'bad', 'unreadable'],
  [{ answer: 'silent', state: null }, 'bad', 'silent'],
  [{ answer: 'silent', state: null, reachedBy: 0 }, 'bad', 'silent'],
])('shows a node with %j as %s: %s', (known, tone, text) => {
  const node = { ...report(nodesOf(5, all)).nodes[0]!, ...known }
  expect(lookOf(node)).toEqual([tone, text])
})

it.each([
  [null, 1472, 'dim', '?'],
  [['unknown', null, null, null], 1472, 'dim', 'not probed'],
  [['stored', null, null, null], 1472, 'bad', 'stored'],
  [['silent', 1, 100, null], 1472, 'bad', 'silent'],
  [['reached', null, null, null], 1472, 'good', 'reached'],
  [['reached', 1, 0, 1472], 1472, 'good', '1 ms'],
  [['reached', 1, 10, 1472], 1472, 'doubtful', '1 ms, 10% lost'],
  [['reached', 1, 10, 1300], 1472, 'bad', '1 ms, 10% lost, 1300 B'],
  [['reached', 1, 0, 1300], null, 'good', '1 ms'],
] as const)('shows a cell %j with MTU %s as %s: %s', (cell, mtu, tone, text) => {
  expect(cellLook(cell, mtu, (ms) => `${ms} ms`)).toEqual([tone, text])
})
