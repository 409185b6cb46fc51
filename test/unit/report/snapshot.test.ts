// snapshot.test.ts - the texts about a node, word for word.

import { expect, it } from 'vitest'
import {
  detailsOf,
  isReached,
  isReadyNow,
  stateOf,
  summaryOf,
  troubleInFull,
  troubleOf,
  type Snapshot,
} from '../../../src/report/snapshot.ts'
import { lookAtThreads, type Threads } from '../../../src/report/threads.ts'
import { wellNode as well } from '../../support/snapshot.ts'

const hung = [0, 1, 2, 3, 4, 5].reduce<Threads>(
  (threads, look) => lookAtThreads(threads, { 'weft-loop1': 7 }, 180_000 + look * 2_000),
  new Map(),
)

/** The rest of a summary after the state, with `TROUBLE` in place of the problem. */
const OF_ALL = 'TROUBLE; subnet 10.5.1.0/24, 2 peers, etcd store reachable'

it.each<[string, Partial<Snapshot>, string | undefined, string]>([
  ['without problems', {}, undefined, 'subnet 10.5.1.0/24, 2 peers, etcd store reachable'],
  ['with one peer', { peers: 1 }, undefined, 'subnet 10.5.1.0/24, 1 peer, etcd store reachable'],
  ['whose data path is down', { isOpen: false }, 'the data path is down', `impaired by its data path: ${OF_ALL}`],
  [
    'whose data path could not be checked for less than ten seconds',
    { unchecked: { why: 'it is secret', since: 190_001 } },
    undefined,
    OF_ALL.replace('TROUBLE; ', ''),
  ],
  [
    'whose data path cannot be checked',
    { unchecked: { why: 'it is secret', since: 190_000 } },
    'the data path cannot be checked or repaired',
    `impaired by its data path: ${OF_ALL}`,
  ],
  [
    'with a thread that hangs',
    { threads: hung },
    'the thread weft-loop1 hangs',
    `impaired by a thread that hangs: ${OF_ALL}`,
  ],
  [
    'that lacks a family',
    { lacking: { ipv4: 'its address is secret' }, threads: hung },
    'the thread weft-loop1 hangs; IPv4 is not carried',
    `impaired by a thread that hangs and one family: ${OF_ALL}`,
  ],
  ['that lacks the other', { lacking: { ipv6: 'secret' } }, 'IPv6 is not carried', `impaired by one family: ${OF_ALL}`],
  [
    'whose store fails',
    { isFailing: true },
    'the etcd store does not answer',
    `impaired by its store: ${OF_ALL.replace('reachable', 'unreachable')}`,
  ],
  [
    'whose address is gone',
    { gone: { ipv4: 'its address is secret' } },
    'IPv4 has no address on the external interface',
    `impaired by its own host: ${OF_ALL}`,
  ],
  [
    'that never heard of its store',
    { comparedAt: undefined },
    'the leases may be out of date',
    `impaired by its store: ${OF_ALL.replace('reachable', 'unreachable')}`,
  ],
  ['that does not follow', { comparedAt: 10_000 }, 'the leases may be out of date', `impaired by its store: ${OF_ALL}`],
  [
    'whose store lost its configuration',
    { configProblem: { what: 'the network configuration is bad', why: 'it is secret' } },
    'the network configuration is bad',
    `impaired by its store: ${OF_ALL}`,
  ],
  [
    'whose store refuses to renew its lease',
    { unrenewed: 'it is secret' },
    "this node's lease cannot be renewed",
    `impaired by its store: ${OF_ALL}`,
  ],
  [
    'whose store fails, so that it cannot renew its lease',
    { isFailing: true, unrenewed: 'it is secret' },
    'the etcd store does not answer',
    `impaired by its store: ${OF_ALL.replace('reachable', 'unreachable')}`,
  ],
  ['that keeps peers', { held: 2 }, '2 peers kept although the store lacks them', `impaired by its store: ${OF_ALL}`],
  [
    'without subnet.env',
    { isReady: false, isPublished: false },
    '/run/flannel/subnet.env is not written',
    `impaired by its own host: ${OF_ALL}`,
  ],
  [
    'on a host that does not forward, with another of its address',
    { host: ['b uses the same public IP', 'the kernel does not forward IPv4'] },
    'b uses the same public IP; the kernel does not forward IPv4',
    `impaired by its own host: ${OF_ALL}`,
  ],
  [
    'whose rules fail',
    { rules: 'iptables: secret' },
    'the firewall rules cannot be set or repaired',
    `impaired by its firewall rules: ${OF_ALL}`,
  ],
  ['one of whose peers is silent', { silent: 1 }, '1 of 2 peers does not answer', `impaired by its peers: ${OF_ALL}`],
  [
    'whose peers are silent or unusable',
    { peers: 5, silent: 2, unusable: 2 },
    '2 of 5 peers do not answer; the leases of 2 of 5 peers cannot be used',
    `impaired by its peers: ${OF_ALL.replace('2 peers', '5 peers')}`,
  ],
  [
    'that has no route to a peer',
    { peers: 5, unset: 1 },
    'the data path lacks 1 of 5 peers',
    `impaired by its peers: ${OF_ALL.replace('2 peers', '5 peers')}`,
  ],
  [
    'whose only peer has no keys',
    { peers: 1, keyless: 1 },
    'charon has no keys for the only peer',
    `impaired by its peers: ${OF_ALL.replace('2 peers', '1 peer')}`,
  ],
  [
    'whose only peer is silent while the path is down',
    { peers: 1, silent: 1, isOpen: false },
    'the data path is down',
    `impaired by its data path: ${OF_ALL.replace('2 peers', '1 peer')}`,
  ],
  [
    'with a peer whose lease it cannot use, and with one that long packets do not reach',
    { unusable: 1, narrow: 1 },
    'the lease of 1 of 2 peers cannot be used; long packets do not reach 1 of 2 peers',
    `impaired by its peers: ${OF_ALL}`,
  ],
  [
    'whose only peer long packets do not reach',
    { peers: 1, narrow: 1 },
    'long packets do not reach the only peer',
    `impaired by its peers: ${OF_ALL.replace('2 peers', '1 peer')}`,
  ],
  [
    'with a route of another program',
    { pastPath: [{ what: 'a route bypasses the data path', why: 'it is secret' }] },
    'a route bypasses the data path',
    `impaired by routes that bypass its data path: ${OF_ALL}`,
  ],
  ['that stops', { leaving: 'it stops', isOpen: false }, 'it stops', `leaving: ${OF_ALL}`],
])('a node %s', (_title, differs, trouble, summary) => {
  const node = { ...well, ...differs }
  expect(troubleOf(node)).toBe(trouble)
  expect(summaryOf(node)).toBe(summary.replace('TROUBLE', trouble ?? ''))
})

it('gives the reason why a family is not carried only to readers of the full status, and only for that problem', () => {
  const lacking = { ipv6: 'no device' }
  expect(troubleInFull({ ...well, lacking })).toBe('IPv6 is not carried: no device')
  expect(troubleInFull({ ...well, lacking, isOpen: false })).toBe('the data path is down')
  const gone = { ipv6: 'eth0 has lost its address fd00::1' }
  expect(troubleInFull({ ...well, gone })).toBe(
    'IPv6 has no address on the external interface: eth0 has lost its address fd00::1',
  )
  expect(troubleInFull(well)).toBeUndefined()
  expect([well, { ...well, lacking }, { ...well, isReady: false }].map(isReadyNow)).toEqual([true, false, false])
  // Starting weftd again would not restore an address.
  expect(isReadyNow({ ...well, gone })).toBe(true)
})

it('the state is working without reasons, or impaired with reasons', () => {
  expect(stateOf(well)).toEqual({ state: 'working', impairments: [] })
  const pastPath = [{ what: 'a route bypasses the data path', why: 'its packets are not encrypted' }]
  const what = 'a route bypasses the data path: its packets are not encrypted'
  expect(stateOf({ ...well, pastPath })).toEqual({ state: 'impaired', impairments: [{ by: 'bypass', what }] })
})

it('counts a store as reached for three minutes after weftd began to follow it, without a comparison', () => {
  const reached = (differs: Partial<Snapshot>) => isReached({ ...well, comparedAt: undefined, ...differs })
  expect([200_000, 20_000, 19_001, 19_000].map((followedSince) => reached({ followedSince }))).toEqual([
    true,
    true,
    true,
    false,
  ])
  expect(reached({ followedSince: 200_000, isFailing: true })).toBe(false)
})

it('adds details that change all the time', () => {
  expect(detailsOf({ ...well, repaired: 1 })).toBe(
    'subnet 10.5.1.0/24, 2 peers, etcd store reachable; leases compared 10 s ago; 1 repair since the start',
  )
  expect(detailsOf({ ...well, comparedAt: undefined })).toMatch(/; leases not yet compared; 0 repairs since the start$/)
})

it('reports a problem after three minutes without a comparison, and not earlier', () => {
  const since = (comparedAt: number | undefined, followedSince = 0) => troubleOf({ ...well, comparedAt, followedSince })
  expect([since(20_000), since(19_001), since(19_000)]).toEqual([undefined, undefined, 'the leases may be out of date'])
  expect([since(undefined, 20_000), since(undefined, 19_000)]).toEqual([undefined, 'the leases may be out of date'])
  // A closed data path comes before a thread that hangs in it, and both come before the store.
  expect(troubleOf({ ...well, isOpen: false, threads: hung, comparedAt: 0 })).toMatch(
    /^the data path is down; the leases/,
  )
  expect(troubleOf({ ...well, threads: hung, comparedAt: 0 })).toMatch(/^the thread weft-loop1 hangs; the leases/)
  expect(troubleInFull({ ...well, threads: hung, comparedAt: 0 })).toBe(
    'the thread weft-loop1 hangs: for 20 s; the leases may be out of date: last compared 200 s ago',
  )
})
