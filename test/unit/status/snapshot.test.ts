// snapshot.test.ts - what is told of a node, word for word.

import { expect, it } from 'vitest'
import { parseIpv4Net } from '../../../src/net/ipv4.ts'
import { detailsOf, summaryOf, troubleOf, type Snapshot } from '../../../src/status/snapshot.ts'
import { lookAtThreads, type Threads } from '../../../src/status/threads.ts'

const well: Snapshot = {
  ...{
    at: 200_000,
    subnet: { ipv4: parseIpv4Net('10.5.1.0/24')! },
    isOpen: true,
    threads: new Map(),
    peers: 2,
    held: 0,
    holds: 0,
  },
  ...{ store: 'etcd', isFailing: false, comparedAt: 190_000, followedSince: 0, repaired: 0 },
  ...{ isReady: true, subnetFile: '/run/flannel/subnet.env' },
}
const hung = [0, 1, 2, 3, 4, 5].reduce<Threads>(
  (threads, look) => lookAtThreads(threads, { 'weft-loop1': 7 }, 180_000 + look * 2_000),
  new Map(),
)

it.each<[string, Partial<Snapshot>, string | undefined, string]>([
  ['that is well', {}, undefined, '2 peers, etcd store reachable'],
  ['with one peer', { peers: 1 }, undefined, '1 peer, etcd store reachable'],
  [
    'whose data path is down',
    { isOpen: false },
    'the data path is down',
    'the data path is down, etcd store reachable',
  ],
  [
    'with a thread that hangs',
    { threads: hung },
    'the thread weft-loop1 has hung for 20 s',
    'the thread weft-loop1 hangs, etcd store reachable',
  ],
  ['whose store fails', { isFailing: true }, undefined, '2 peers, etcd store unreachable'],
  [
    'that never heard of its store',
    { comparedAt: undefined },
    'the leases were last compared 200 s ago',
    '2 peers, etcd store unreachable',
  ],
  [
    'that does not follow',
    { comparedAt: 10_000 },
    'the leases were last compared 190 s ago',
    '2 peers, etcd store reachable',
  ],
  [
    'that keeps peers',
    { held: 2, isFailing: true },
    undefined,
    '2 peers, 2 of them kept though the store lacks them, etcd store unreachable',
  ],
  [
    'without subnet.env',
    { isReady: false },
    undefined,
    '2 peers, etcd store reachable, /run/flannel/subnet.env is not written',
  ],
])('a node %s', (_title, differs, trouble, summary) => {
  const node = { ...well, ...differs }
  expect(troubleOf(node)).toBe(trouble)
  expect(summaryOf(node)).toBe(`subnet 10.5.1.0/24, ${summary}`)
})

it('tells in detail what changes all the time', () => {
  expect(detailsOf({ ...well, repaired: 1 })).toBe(
    'subnet 10.5.1.0/24, 2 peers, etcd store reachable; leases compared 10 s ago; 1 repair since the start',
  )
  expect(detailsOf({ ...well, comparedAt: undefined })).toMatch(/; leases not yet compared; 0 repairs since the start$/)
})

it('has trouble after three minutes without a comparison, and not before', () => {
  const since = (comparedAt: number | undefined, followedSince = 0) => troubleOf({ ...well, comparedAt, followedSince })
  expect([since(20_000), since(19_001), since(19_000)]).toEqual([
    ...[undefined, undefined, 'the leases were last compared 181 s ago'],
  ])
  expect([since(undefined, 20_000), since(undefined, 19_000)]).toEqual([
    ...[undefined, 'the leases were last compared 181 s ago'],
  ])
  // The path that is down is told before the thread that hangs in it, and that before the store.
  expect(troubleOf({ ...well, isOpen: false, threads: hung, comparedAt: 0 })).toBe('the data path is down')
  expect(troubleOf({ ...well, threads: hung, comparedAt: 0 })).toMatch(/^the thread weft-loop1 has hung/)
})
