// network-findings.test.ts - the findings about a network, with each cause once.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import { isNetworkWell, NETWORK_FINDINGS } from '../../../src/report/network-findings.ts'
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

it('has the same findings as docs/weft-network.md', () => {
  const page = readFileSync(join(packageRoot, 'docs/weft-network.md'), 'utf8')
  const rows = [...page.matchAll(/^\| `([a-z-]+)` \| (\w+) \| (.*?) \| (.*) \|$/gm)].map(([, ...cells]) => cells)
  expect(rows).toEqual(
    Object.entries(NETWORK_FINDINGS).map(([name, { level, means, fix }]) => [name, level, means, fix]),
  )
})
