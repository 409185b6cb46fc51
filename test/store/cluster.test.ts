// cluster.test.ts - an etcd cluster of three members in which a member is killed, frozen, left without the majority, or replaced.

import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { startEtcdCluster, type EtcdCluster, type EtcdMember } from '../../lab/etcd.ts'
import { EVENT_MS } from '../../lab/lab.ts'
import { isWeftError } from '../../src/base/errors.ts'
import { Secret } from '../../src/base/secret.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { sourceOf } from '../../src/control/lease/decode.ts'
import type { PeerView } from '../../src/control/lease/fail-static.ts'
import { followLeases } from '../../src/control/lease/follow.ts'
import { acquireLease, renewLease } from '../../src/control/lease/own-lease.ts'
import { EtcdStore } from '../../src/control/store/etcd/etcd.ts'
import type { Store } from '../../src/control/store/store.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { eventually } from '../support/event.ts'
import { ETCD, needs } from '../support/needs.ts'

needs(...ETCD)

/** The minimum number of leaders that are killed; more in `npm run test:soak`. */
const ROUNDS = process.env['WEFT_LONG'] === '1' ? 30 : 3

let cluster: EtcdCluster
let stores: Store[]
let over: AbortController

beforeEach(async () => {
  cluster = await startEtcdCluster()
  stores = []
  over = new AbortController()
})
afterEach(async () => {
  over.abort(new Error('the test is over'))
  await Promise.all(stores.map((store) => store.close()))
  await cluster.close()
})

function open(members: readonly EtcdMember[] = cluster.members): Store {
  const store = new EtcdStore({
    endpoints: members.map(({ endpoint }) => endpoint),
    prefix: '/coreos.com/network',
    certFile: '',
    keyFile: '',
    caFile: '',
    username: '',
    password: new Secret(''),
  })
  stores.push(store)
  return store
}

const rest = (...gone: EtcdMember[]): EtcdMember[] => cluster.members.filter((member) => !gone.includes(member))

/** Takes 10.5.`number`.0/24 for another host through the given members, as soon as one of the `awake` members leads. */
async function join(number: number, through: readonly EtcdMember[], awake = through): Promise<void> {
  // A member holds a put for 7 s before it refuses it because the leader is gone.
  await cluster.leader(awake)
  const key = `/coreos.com/network/subnets/10.5.${number}.0-24`
  const put = ['put', key, `{"PublicIP":"192.0.2.${number}","PublicIPv6":null}`]
  await eventually(() => cluster.ctl(put, through))
}

/** Follows the leases like the daemon, but without the listing every minute, which would repair what the watch missed. */
function follow(store: Store) {
  const began = performance.now()
  const lines: string[] = []
  const add = (line: string): void => void lines.push(line)
  const log = { info: add, warn: add, error: add, v: () => false }
  let view: PeerView = new Map()
  let listings = 0
  let failure: unknown
  void (async () => {
    const source = sourceOf(store)
    const list = async (signal: AbortSignal) => {
      const listing = await source.list(signal)
      listings++
      return listing
    }
    for await (const { leases } of followLeases(
      { ...source, list },
      { log, signal: over.signal, relistMs: 3_600_000, random: () => 1 },
    ))
      view = leases
  })().catch((error: unknown) => {
    if (!over.signal.aborted) failure = error
  })
  return {
    lines,
    get view() {
      return view
    },
    get listings() {
      return listings
    },
    /** Resolves when the view has exactly these leases. */
    until: (numbers: readonly number[]) =>
      eventually(() => {
        expect(failure).toBe(undefined)
        expect([...view.keys()].toSorted()).toEqual(numbers.map((number) => `10.5.${number}.0-24`).toSorted())
      }),
    /** Checks that the number of log lines per minute is small enough not to fill a disk, however long the test takes. */
    expectFewLines: () =>
      expect(lines.length).toBeLessThanOrEqual(10 * Math.ceil((performance.now() - began) / 60_000)),
  }
}

const network = parseNetworkConfig('{"Network":"10.5.0.0/16"}')

it('renews its lease and learns of every peer while each leader in turn is killed', async () => {
  const store = open()
  const quiet = { info() {}, warn() {}, error() {}, v: () => false }
  const options = { random: () => 0, log: quiet, signal: over.signal }
  const attrs = { publicIp: { ipv4: parseIpv4('192.0.2.200')! }, backendType: '' }
  let lease = await acquireLease(store, network, attrs, options)
  const own = Number(lease.key.split('.')[2])
  const follower = follow(store)
  await follower.until([own])
  const peers = [own]
  const killed = new Set<EtcdMember>()
  // On a busy machine a member that was killed may become the leader again.
  for (let round = 0; round < ROUNDS || killed.size < 2; round++) {
    const leader = await cluster.leader()
    await leader.kill()
    killed.add(leader)
    const number = 100 + round
    await join(number, rest(leader))
    peers.push(number)
    await follower.until(peers)
    // Retries transient errors, as the daemon does. Any other error fails the test.
    for (const { revision } = lease; lease.revision === revision;) {
      try {
        lease = await renewLease(store, lease, { ...options, signal: AbortSignal.timeout(EVENT_MS) })
      } catch (error) {
        if (!isWeftError(error) || error.code !== 'STORE_UNAVAILABLE') throw error
        await delay(100)
      }
    }
    await leader.start()
  }
  expect(follower.listings).toBe(1) // the watch resumed: without a second listing it cannot have skipped a change
  follower.expectFewLines()
}, 1_200_000)

it('uses another member if a member hangs with its connections open', async () => {
  const follower = follow(open())
  await join(1, cluster.members)
  await follower.until([1])
  const peers = [1]
  const moved = (): boolean => follower.lines.some((line) => line.includes('watch channel'))
  // Freezes the members in turn until the one that serves the watch is frozen.
  for (const [index, frozen] of cluster.members.entries()) {
    await frozen.freeze()
    await join(index + 2, rest(frozen))
    peers.push(index + 2)
    await follower.until(peers)
    frozen.thaw()
    if (moved()) break
  }
  expect(moved()).toBe(true)
  expect(follower.listings).toBe(1)
  follower.expectFewLines()
})

it('notices that its member lost the majority, keeps the peers, and catches up', async () => {
  const [alone] = cluster.members as [EtcdMember]
  const follower = follow(open([alone]))
  await join(1, cluster.members)
  await follower.until([1])
  const others = rest(alone)
  for (const other of others) await other.freeze()
  // The member itself works and its connection is open, so only the member can report that its data may be old.
  await eventually(() => expect(follower.lines.join()).toMatch(/no leader/i))
  expect([...follower.view.keys()]).toEqual(['10.5.1.0-24'])
  expect(alone.process.exitCode).toBe(null)
  for (const other of others) other.thaw()
  await join(2, others, cluster.members)
  await follower.until([1, 2])
  expect(follower.listings).toBe(1)
  follower.expectFewLines()
})

it('continues while each member is replaced by a new one without data', async () => {
  const follower = follow(open())
  await join(1, cluster.members)
  await follower.until([1])
  const before = await cluster.ctl(['member', 'list'])
  const peers = [1]
  for (const [index, member] of cluster.members.entries()) {
    await member.replace()
    await join(index + 2, [member], cluster.members)
    peers.push(index + 2)
    await follower.until(peers)
  }
  const ids = (list: string): string[] =>
    list
      .trim()
      .split('\n')
      .map((line) => line.split(',')[0]!)
  const after = ids(await cluster.ctl(['member', 'list']))
  expect(after).toHaveLength(3)
  expect(after.filter((id) => ids(before).includes(id))).toEqual([])
  expect(follower.lines.filter((line) => line.includes('watch channel'))).not.toEqual([])
  // The cluster is the same although all members are new, so weftd must not list again, hold peers or drop one.
  expect(follower.listings).toBe(1)
  follower.expectFewLines()
})
