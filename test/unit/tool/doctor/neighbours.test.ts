// neighbours.test.ts - weft doctor compares the neighbour tables with their limits, and suggests larger limits.

import { expect, it } from 'vitest'
import type { NeighbourTable } from '../../../../src/host/neighbours.ts'
import { countPeers } from '../../../../src/report/status.ts'
import { checkNeighbours } from '../../../../src/tool/doctor/neighbours.ts'
import { sound, soundPeer, soundStatus } from '../../../support/facts.ts'

const table = (entries: number, part: Partial<NeighbourTable> = {}): NeighbourTable => ({
  family: 'ipv4',
  entries,
  thresholds: [100, 500, 1000],
  ...part,
})
const withPeers = (count: number) => ({
  ...soundStatus,
  peers: countPeers(
    Array.from({ length: count }, () => soundPeer),
    10,
  ),
})
const check = (neighbours: NeighbourTable[] | undefined, peers = 1) =>
  checkNeighbours({ ...sound, status: withPeers(peers), neighbours })
const names = (...args: Parameters<typeof check>) => check(...args)?.map(({ name }) => name)

it.each([
  [500, 1, []],
  [501, 1, ['neighbours-many']],
  [899, 1, ['neighbours-many']],
  [900, 1, ['neighbours-full']],
  [7, 900, []],
  [7, 901, ['neighbours-many']],
  [950, 950, ['neighbours-full']],
])('judges %i entries and %i peers if the table has room for 1000 entries', (entries, peers, expected) => {
  expect(names([table(entries)], peers)).toEqual(expected)
})

it('names the family, the entries, the limits, and the peers only if they are the reason', () => {
  expect(check([table(600), table(7), table(950, { family: 'ipv6' })])).toMatchObject([
    {
      name: 'neighbours-many',
      detail:
        'IPv4: 600 entries, and net.ipv4.neigh.default.gc_thresh2 is 500, net.ipv4.neigh.default.gc_thresh3 is 1000',
    },
    { name: 'neighbours-full', detail: expect.stringMatching(/^IPv6: 950 .* net\.ipv6\.\S+3 is 1000$/) },
  ])
  expect(check([table(7)], 2000)![0]!.detail).toMatch(/^IPv4: 7 entries,.* is 1000; there are 2000 peers/)
})

it.each([
  ['twice the limit, as a power of two', 950, 1, 2048],
  ['room for twice the entries, because the table may already be over its limit', 1500, 1, 4096],
  ['room for twice the peers', 7, 3000, 8192],
  ['room for twice the entries and the peers together', 1100, 1000, 8192],
  ['just enough', 1023, 1, 2048],
  ['twice the limit, although twice the entries are fewer', 501, 1, 2048],
])('suggests %s', (_name, entries, peers, wanted) => {
  const name = 'net.ipv4.neigh.default.gc_thresh'
  expect(check([table(entries)], peers)![0]!.fix).toContain(
    `\`sysctl -w ${name}3=${wanted} ${name}2=${wanted / 2} ${name}1=${wanted / 4}\``,
  )
})

it('does not judge tables without limits, such as the tables in the namespace of a container', () => {
  expect(check(undefined)).toBeUndefined()
  expect(check([])).toBeUndefined()
  expect(check([table(2000, { thresholds: undefined })])).toBeUndefined()
  expect(names([table(2000, { thresholds: undefined }), table(950)])).toEqual(['neighbours-full'])
})

it('judges the entries without the status of weftd, or before weftd has read the peers', () => {
  for (const status of [undefined, { ...soundStatus, peers: null }]) {
    const found = checkNeighbours({ ...sound, status, neighbours: [table(7), table(950)] })
    expect(found).toMatchObject([{ name: 'neighbours-full', fix: expect.stringContaining('gc_thresh3=2048 ') }])
  }
})
