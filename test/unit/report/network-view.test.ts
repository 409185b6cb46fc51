// network-view.test.ts - the report about a network from the views of its nodes, with each cause once.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import {
  isNetworkWell,
  NETWORK_FINDINGS,
  type NetworkNode,
  type QueriedNode,
} from '../../../src/report/network-findings.ts'
import { cellLook, lookOf, MOST_IN_MATRIX, networkReport, wholeText } from '../../../src/report/network-view.ts'
import type { NodeView, Sight } from '../../../src/report/view.ts'

const AT = '2026-11-22T10:00:00.000Z'
const lease = (number: number): string => `10.5.${number}.0-24`

/** Returns the result of node `from`'s probes of node `to`; undefined for none. */
type Seeing = (from: number, to: number) => Partial<Sight> | undefined
const all: Seeing = () => ({})

/** Makes `count` nodes that all return their views. */
function nodesOf(
  count: number,
  seeing: Seeing,
  changed: (number: number) => Partial<Omit<QueriedNode, 'view'>> & { readonly view?: object } = () => ({}),
): QueriedNode[] {
  return Array.from({ length: count }, (_, at) => {
    const number = at + 1
    const seen = Array.from({ length: count }, (_each, other) => other + 1).flatMap((to): Sight[] => {
      const sight = to === number ? undefined : seeing(number, to)
      if (!sight) return []
      return [{ lease: lease(to), reach: 'reached', roundTripMs: 1, lossPercent: 0, passesBytes: null, ...sight }]
    })
    const view: NodeView = {
      schema: 1,
      at: AT,
      version: '1.0',
      hostname: `host${number}`,
      lease: lease(number),
      state: 'working',
      trouble: null,
      mtu: 1472,
      config: { network: '10.5.0.0/16' },
      peers: seen.length,
      seen,
    }
    const { view: other, ...rest } = changed(number)
    return {
      lease: lease(number),
      name: `host${number}`,
      subnet: `10.5.${number}.0/24`,
      publicIp: `192.0.2.${number}`,
      kind: 'told',
      why: null,
      clock: { aheadMs: 0, uncertainMs: 1 },
      ...rest,
      view: rest.kind !== undefined && rest.kind !== 'told' ? undefined : { ...view, ...other },
    } satisfies QueriedNode
  })
}
const report = (nodes: readonly QueriedNode[]) => networkReport(nodes, AT, 5)
const found = (nodes: readonly QueriedNode[]): readonly string[] =>
  report(nodes).findings.map(({ name, detail }) => `${name}: ${detail}`)
const call = (number: number): string => `host${number} (10.5.${number}.0/24 at 192.0.2.${number})`
const silent = (number: number) =>
  ({ kind: 'silent', why: 'it says nothing for 1.5 s', clock: undefined, name: `host${number}` }) as const

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
  expect(text(report(nodesOf(2, all)))).toBe('100% of the pairs that were probed reach each other')
})

describe('during a change of the backend', () => {
  /** The first of three nodes already runs wireguard. It and the other two, which run vxlan, cannot send packets to each other. */
  const seeing: Seeing = () => ({ reach: 'stored', roundTripMs: null, lossPercent: null })
  const halfWay = nodesOf(3, seeing, (number) => (number === 1 ? {} : { ...silent(number), otherType: 'vxlan' }))

  it('does not report an unprobed node as dead, and names the backends', () => {
    expect(found(halfWay)).toEqual([2, 3].map((number) => `backend-differs: ${call(number)} publishes vxlan`))
    expect(isNetworkWell(report(halfWay))).toBe(false)
  })

  it('still finds dead nodes among those that have changed', () => {
    const nodes = nodesOf(
      4,
      (_from, to) => (to === 4 ? { reach: 'stored' } : to === 3 ? { reach: 'silent' } : {}),
      (number) => (number === 3 ? silent(3) : number === 4 ? { ...silent(4), otherType: '' } : {}),
    )
    expect(found(nodes)).toEqual([
      `node-dead: ${call(3)}: 0 of 2 nodes reach it`,
      `backend-differs: ${call(4)} publishes udp, alloc or a cloud backend`,
    ])
  })
})

describe('finds', () => {
  it.each([3, 20, 200])('one dead node of %d once', (count) => {
    const nodes = nodesOf(
      count,
      (_from, to) => (to === 2 ? { reach: 'silent' } : {}),
      (number) => (number === 2 ? silent(2) : {}),
    )
    expect(found(nodes)).toEqual([`node-dead: ${call(2)}: 0 of ${count - 1} nodes reach it`])
    expect(isNetworkWell(report(nodes))).toBe(false)
  })

  it('a running node that others do not reach, once', () => {
    expect(found(nodesOf(5, (_from, to) => (to === 3 ? { reach: 'silent' } : {})))).toEqual([
      `node-cut-off: ${call(3)}: is not reached by host1, host2, host4, host5`,
    ])
    const both = nodesOf(9, (from, to) => (to === 3 || from === 3 ? { reach: 'silent' } : {}))
    expect(found(both)).toEqual([
      `node-cut-off: ${call(3)}: does not reach host1, host2, host4, host5, host6 and 3 more; is not reached by host1, host2, host4, host5, host6 and 3 more`,
    ])
  })

  it('a pair that does not reach each other, in addition to other problems', () => {
    const isCut = (from: number, to: number): boolean => [from, to].includes(2) && [from, to].includes(5)
    expect(found(nodesOf(6, (from, to) => (isCut(from, to) ? { reach: 'silent' } : {})))).toEqual([
      `pair-broken: host2 does not reach ${call(5)}`,
      `pair-broken: host5 does not reach ${call(2)}`,
    ])
    const more = nodesOf(9, (from, to) => (isCut(from, to) || to === 7 ? { reach: 'stored' } : {}))
    expect(found(more).map((line) => line.split(':')[0])).toEqual(['node-cut-off', 'pair-broken', 'pair-broken'])
  })

  it('two halves that do not reach each other, in a few lines', () => {
    const lines = found(nodesOf(40, (from, to) => (from <= 20 === to <= 20 ? {} : { reach: 'silent' })))
    expect(lines.length).toBeLessThan(30)
  })

  it('nodes without a view: a note if their port is closed, a warning if they refuse or are silent though others reach them', () => {
    const kinds = { 2: 'closed', 3: 'refused', 4: 'junk', 5: 'silent' } as const
    const nodes = nodesOf(6, all, (number) => {
      const kind = kinds[number as 2]
      return kind === undefined ? {} : { kind, why: `why ${kind}`, clock: undefined }
    })
    expect(found(nodes)).toEqual([
      `node-refuses: ${call(3)}: why refused`,
      `node-refuses: ${call(4)}: why junk`,
      `node-refuses: ${call(5)}: why silent`,
      'not-told: host2',
    ])
    // A firewall may drop the query alone.
    expect(NETWORK_FINDINGS['node-refuses'].fix).toContain('accept the TCP port of --status-network')
    expect(isNetworkWell(report(nodes))).toBe(true)
    expect(report(nodes).matrix!.map((row) => row === null)).toEqual([false, true, true, true, true, false])
  })

  it('a differing member whose name every JavaScript object has', () => {
    const nodes = nodesOf(3, all, (number) => (number === 3 ? { view: { config: { constructor: 'x' } } } : {}))
    expect(found(nodes)).toContain('config-differs: constructor: none on host1, host2; x on host3')
  })

  it('the cause if a node is impaired only by its peers, and the node if nothing else explains it', () => {
    const impaired = { view: { state: 'impaired', trouble: null } }
    const isCut = (from: number, to: number): boolean => from === 4 || to === 4
    const cut = nodesOf(
      4,
      (from, to) => (isCut(from, to) ? { reach: 'silent' } : {}),
      () => impaired,
    )
    expect(found(cut).filter((each) => each.startsWith('node-impaired'))).toEqual([])
    expect(found(cut)).not.toEqual([])
    expect(report(cut).nodes.map((node) => lookOf(node))).toEqual([1, 2, 3, 4].map(() => ['bad', 'impaired']))
    const odd = nodesOf(3, all, (number) => (number === 3 ? impaired : {}))
    expect(found(odd)).toEqual([`node-impaired: ${call(3)}: it gives no reason`])
  })

  it('an impaired node, and different configurations, versions and MTUs', () => {
    const nodes = nodesOf(4, all, (number) =>
      number === 4
        ? {
            view: {
              state: 'impaired',
              trouble: 'the data path is down',
              version: '1.1',
              mtu: 1400,
              config: { network: '10.6.0.0/16', 'backend.port': '1' },
            },
          }
        : {},
    )
    expect(found(nodes)).toEqual([
      `node-impaired: ${call(4)}: the data path is down`,
      'config-differs: network: 10.5.0.0/16 on host1, host2, host3; 10.6.0.0/16 on host4',
      'config-differs: backend.port: none on host1, host2, host3; 1 on host4',
      'version-differs: 1.0: host1, host2, host3; 1.1: host4',
      'mtu-differs: 1472: host1, host2, host3; 1400: host4',
    ])
    // A node that waits for its configuration does not count as different.
    expect(found(nodesOf(2, all, (number) => (number === 2 ? { view: { config: {} } } : {})))).toEqual([])
  })

  it.each([
    [[0, 0, 5_000], [`${call(3)}: 5.0 s ahead of the others`]],
    [[0, 0, -90_000], [`${call(3)}: 90.0 s behind the others`]],
    // All others differ, so this node's clock is wrong.
    [[0, 5_000, 5_010, 4_990], [`${call(1)}: 5.0 s behind the others`]],
    [[0, 0, 1_000], []],
    [[0, 0, 1_002], [`${call(3)}: 1.0 s ahead of the others`]],
  ])('the wrong ones of the clocks %j', (clocks, details) => {
    const nodes = nodesOf(clocks.length, all, (number) => ({ clock: { aheadMs: clocks[number - 1]!, uncertainMs: 1 } }))
    expect(found(nodes)).toEqual(details.map((detail) => `clock-off: ${detail}`))
  })

  it('no wrong clock if only the query was slow', () => {
    const clocks = [0, 0, 2_000]
    const nodes = nodesOf(3, all, (number) => ({ clock: { aheadMs: clocks[number - 1]!, uncertainMs: 1_200 } }))
    expect(found(nodes)).toEqual([])
  })

  it('loss and narrow paths', () => {
    expect(
      found(nodesOf(4, (from, to) => (to === 2 && from !== 2 ? { lossPercent: 30 } : { lossPercent: 10 }))),
    ).toEqual([`node-lossy: ${call(2)}: loses up to 30% of the probes from host1, host3, host4`])
    expect(found(nodesOf(4, (from) => (from === 2 ? { passesBytes: 1300 } : { passesBytes: 1472 })))).toEqual([
      `node-narrow: ${call(2)}: gets no more than 1300 bytes to host1, host3, host4`,
    ])
    expect(found(nodesOf(5, (from, to) => (from === 2 && to === 3 ? { passesBytes: 1300 } : {})))).toEqual([
      `node-narrow: host2 gets no more than 1300 bytes to ${call(3)}`,
    ])
  })
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
  const onlyFirstTo =
    (seen: Partial<Sight>): Seeing =>
    (from, to) =>
      from === 1 && to === 2 ? seen : undefined

  it('counts only pairs that were probed', () => {
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
    expect(text(nodes)).toBe('75% of the pairs that were probed reach each other')
  })

  it.each<[string, Partial<Sight>, string]>([
    ['reaches', {}, '100% of the pairs'],
    ['does not reach', { reach: 'silent' }, '0% of the pairs'],
    ['has not yet probed', { reach: 'unknown' }, 'no pair was probed yet'],
  ])('needs only one node that %s another node', (_name, seen, begins) => {
    const flanneld = { kind: 'closed', why: 'no process listens', clock: undefined } as const
    const nodes = nodesOf(3, onlyFirstTo(seen), (number) => (number === 1 ? {} : flanneld))
    expect(text(nodes).startsWith(begins)).toBe(true)
    const idle = nodesOf(3, onlyFirstTo(seen))
    expect(text(idle).startsWith(begins)).toBe(true)
  })

  it('says whether any pair was probed in a network without a matrix', () => {
    const count = MOST_IN_MATRIX + 1
    expect(text(nodesOf(count, () => undefined))).toBe('no pair was probed yet')
    expect(text(nodesOf(count, onlyFirstTo({})))).toBe('100% of the pairs that were probed reach each other')
    expect(report(nodesOf(MOST_IN_MATRIX, onlyFirstTo({}))).matrix).toHaveLength(MOST_IN_MATRIX)
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

it('shows no name, version, state and clock of a nameless node that returns no view', () => {
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

it('has the same findings as docs/weft-network.md', () => {
  const page = readFileSync(join(packageRoot, 'docs/weft-network.md'), 'utf8')
  const rows = [...page.matchAll(/^\| `([a-z-]+)` \| (\w+) \| (.*?) \| (.*) \|$/gm)].map(([, ...cells]) => cells)
  expect(rows).toEqual(
    Object.entries(NETWORK_FINDINGS).map(([name, { level, means, fix }]) => [name, level, means, fix]),
  )
})
