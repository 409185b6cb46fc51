// network-findings.test.ts - the findings about a network, which name each cause once.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import { findingsOf, isNetworkWell, NETWORK_FINDINGS, type Edge } from '../../../src/report/network-findings.ts'
import { lookOf } from '../../../src/report/network-view.ts'
import { all, call, found, nodesOf, report, silent, type Seeing } from '../../support/network-nodes.ts'

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

  it('still reports a node that probes the changed node in vain, because it has not read the new lease', () => {
    const nodes = nodesOf(
      4,
      (from, to) => (to !== 4 ? {} : from === 1 ? { reach: 'silent', lossPercent: 100 } : { reach: 'stored' }),
      (number) => (number === 4 ? { ...silent(4), otherType: 'vxlan' } : {}),
    )
    expect(found(nodes)).toEqual([
      `pair-broken: host1 does not reach ${call(4)}`,
      `backend-differs: ${call(4)} publishes vxlan`,
    ])
  })
})

/** The result of probes that a peer does not answer. */
const unanswered = { reach: 'silent', roundTripMs: null, lossPercent: 100 } as const
/** Lists the nodes with the numbers `from` to `to`, as findings name them. */
const hosts = (from: number, to: number): string =>
  Array.from({ length: to - from + 1 }, (_, at) => `host${from + at}`).join(', ')

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

  it('a different member with the name of a property of all JavaScript objects', () => {
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
    // The query took so long that the difference may be 1,000 ms.
    [[0, 0, 1_001], []],
    [[0, 0, 1_002], [`${call(3)}: 1.0 s ahead of the others`]],
  ])('the wrong clocks among %j', (clocks, details) => {
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

describe('a node that does not return its view', () => {
  it('is dead if no other node probes it', () => {
    const nodes = nodesOf(
      2,
      () => undefined,
      (number) => (number === 2 ? silent(2) : {}),
    )
    expect(found(nodes)).toEqual([`node-dead: ${call(2)}`])
  })

  it('is not dead if the others cannot send packets to it, for example without its WireGuard key', () => {
    const nodes = nodesOf(
      4,
      (_from, to) => (to === 2 ? { reach: 'stored', roundTripMs: null, lossPercent: null } : {}),
      (number) => (number === 2 ? silent(2) : {}),
    )
    expect(found(nodes)).toEqual([`node-cut-off: ${call(2)}: is not reached by host1, host3, host4`])
  })

  it('has no finding of its own if the findings about broken pairs explain why it is silent', () => {
    const nodes = nodesOf(
      6,
      (from, to) => (from === 1 && to === 5 ? unanswered : {}),
      (number) => (number === 4 || number === 5 ? silent(number) : {}),
    )
    expect(found(nodes)).toEqual([
      `pair-broken: host1 does not reach ${call(5)}`,
      `node-refuses: ${call(4)}: ${silent(4).why}`,
    ])
  })
})

describe('attributes broken pairs', () => {
  /** Makes nodes of which each listed pair is broken in both directions, or in the first one only. */
  const brokenIn = (count: number, pairs: readonly (readonly [number, number])[], isOneWay = false) =>
    nodesOf(count, (from, to) =>
      pairs.some(([a, b]) => (from === a && to === b) || (!isOneWay && from === b && to === a)) ? unanswered : {},
    )

  it('to a node if two of its pairs and at least a quarter of its probes are broken', () => {
    const [toFirst, toSecond] = [
      [1, 3],
      [2, 3],
    ] as const
    // Node 3 has 8 results in a network of 5 nodes, and 10 in a network of 6.
    expect(found(brokenIn(5, [toFirst, toSecond], true))).toEqual([
      `node-cut-off: ${call(3)}: is not reached by host1, host2`,
    ])
    expect(found(brokenIn(6, [toFirst, toSecond], true))).toEqual([
      `pair-broken: host1 does not reach ${call(3)}`,
      `pair-broken: host2 does not reach ${call(3)}`,
    ])
  })

  it('to the pair if a small network has only one broken pair', () => {
    expect(found(brokenIn(3, [[1, 2]]))).toEqual([
      `pair-broken: host1 does not reach ${call(2)}`,
      `pair-broken: host2 does not reach ${call(1)}`,
    ])
  })

  it('to the first of two nodes with equally many broken pairs', () => {
    const chain = brokenIn(4, [
      [1, 2],
      [2, 3],
      [3, 4],
    ])
    expect(found(chain)).toEqual([
      `node-cut-off: ${call(2)}: does not reach host1, host3; is not reached by host1, host3`,
      `pair-broken: host3 does not reach ${call(4)}`,
      `pair-broken: host4 does not reach ${call(3)}`,
    ])
  })

  it.each([
    [5, []],
    [7, ['pair-broken: and 2 more']],
  ])('to the pairs, and names at most five of %d', (count, more) => {
    const pairs = Array.from({ length: count }, (_, at) => [2 * at + 1, 2 * at + 2] as const)
    const named = pairs.slice(0, 5).map(([from, to]) => `pair-broken: host${from} does not reach ${call(to)}`)
    expect(found(brokenIn(14, pairs, true))).toEqual([...named, ...more])
  })
})

it('looks at each pair a limited number of times, however many pairs are lossy', () => {
  /** Returns how often each pair was read in a network of `count` nodes whose pairs are all lossy. */
  const readsIn = (count: number): number => {
    const nodes = nodesOf(count, all)
    const sight = { lease: '', reach: 'reached', roundTripMs: 1, lossPercent: 50, passesBytes: null } as const
    let reads = 0
    const edges = nodes.flatMap((_, from) =>
      nodes.flatMap((_node, to): Edge[] =>
        from === to
          ? []
          : [
              {
                get from() {
                  reads++
                  return from
                },
                to,
                sight,
              },
            ],
      ),
    )
    const findings = findingsOf(nodes, report(nodes).nodes, edges)
    expect(findings.map(({ name }) => name)).toContain('node-lossy')
    return reads / edges.length
  }
  expect(readsIn(40)).toBeLessThan(1.2 * readsIn(20))
})

describe('limits the length of the findings', () => {
  it('names 20 of 30 nodes with lossy paths', () => {
    const lines = found(nodesOf(40, () => ({ lossPercent: 50 })))
    expect(lines.slice(19, 21)).toEqual([expect.stringContaining(`node-lossy: ${call(20)}`), 'node-lossy: and 10 more'])
    expect(lines).toHaveLength(21 + 6)
  })

  it.each([
    [6, hosts(2, 6)],
    [7, `${hosts(2, 6)} and 1 more`],
  ])('with %d nodes names at most five nodes in one finding', (count, names) => {
    const closed = { kind: 'closed', why: 'no weftd serves a status there', clock: undefined } as const
    expect(found(nodesOf(count, all, (number) => (number === 1 ? {} : closed)))).toEqual([`not-told: ${names}`])
  })

  it.each([
    [20, undefined],
    [23, 'node-impaired: and 3 more'],
  ])('names 20 of %d impaired nodes', (count, more) => {
    const view = { state: 'impaired', trouble: 'the data path is down' }
    const lines = found(nodesOf(count, all, () => ({ view })))
    expect(lines).toHaveLength(more === undefined ? 20 : 21)
    expect(lines[19]).toContain(call(20))
    expect(lines[20]).toBe(more)
  })
})

it('reports a silent pair as broken only, not as lossy or narrow too', () => {
  const last = { ...unanswered, passesBytes: 1300 }
  const nodes = nodesOf(6, (from, to) => (from === 2 && to === 5 ? last : {}))
  expect(found(nodes)).toEqual([`pair-broken: host2 does not reach ${call(5)}`])
})

it.each([
  [19.9, []],
  [20, [`node-lossy: host2 loses up to 20% of the probes to ${call(3)}`]],
  [33.3, [`node-lossy: host2 loses up to 33% of the probes to ${call(3)}`]],
])('a pair that loses %d%% of the probes has the findings %j', (lossPercent, lines) => {
  expect(found(nodesOf(5, (from, to) => (from === 2 && to === 3 ? { lossPercent } : {})))).toEqual(lines)
})

it("reports an impaired node's own problem even if it also has broken pairs", () => {
  const view = { state: 'impaired', trouble: 'its firewall rules' }
  const nodes = nodesOf(
    4,
    (_from, to) => (to === 4 ? unanswered : {}),
    (number) => (number === 2 ? { view } : {}),
  )
  expect(found(nodes)).toEqual([
    `node-cut-off: ${call(4)}: is not reached by host1, host2, host3`,
    `node-impaired: ${call(2)}: its firewall rules`,
  ])
})

it('begins a difference with the value that most nodes have, and names nodes by their hostname if they publish no name', () => {
  const old = { version: '0.2.0', mtu: 1400, config: { network: '10.4.0.0/14' }, hostname: 'old.example' }
  const nodes = nodesOf(4, all, (number) => (number === 1 ? { name: null, view: old } : {}))
  expect(found(nodes)).toEqual([
    'config-differs: network: 10.5.0.0/16 on host2, host3, host4; 10.4.0.0/14 on old.example',
    'version-differs: 1.0: host2, host3, host4; 0.2.0: old.example',
    'mtu-differs: 1472: host2, host3, host4; 1400: old.example',
  ])
})

it('has the same findings as docs/weft-network.md', () => {
  const page = readFileSync(join(packageRoot, 'docs/weft-network.md'), 'utf8')
  const rows = [...page.matchAll(/^\| `([a-z-]+)` \| (\w+) \| (.*?) \| (.*) \|$/gm)].map(([, ...cells]) => cells)
  expect(rows).toEqual(
    Object.entries(NETWORK_FINDINGS).map(([name, { level, means, fix }]) => [name, level, means, fix]),
  )
})
