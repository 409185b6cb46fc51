// cluster.test.ts - an etcd of three members that lose one: killed, frozen, without its majority, replaced.

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
import { createEtcdStore } from '../../src/control/store/etcd/etcd.ts'
import type { Store } from '../../src/control/store/store.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { eventually } from '../support/event.ts'
import { ETCD, needs } from '../support/needs.ts'

needs(...ETCD)

/** How many leaders are killed, at least; more in `npm run test:soak`. */
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
  const store = createEtcdStore({
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

/** Has another host take 10.5.`number`.0/24, by way of these members, when one of those that are `awake` leads. */
async function join(number: number, through: readonly EtcdMember[], awake = through): Promise<void> {
  // For a leader that is gone a member keeps a put for 7 s before it refuses it.
  await cluster.leader(awake)
  const key = `/coreos.com/network/subnets/10.5.${number}.0-24`
  const put = ['put', key, `{"PublicIP":"192.0.2.${number}","PublicIPv6":null}`]
  await eventually(() => cluster.ctl(put, through))
}

/** Follows the leases as the daemon does. The minute's listing is put off: it would mend what the watch missed. */
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
    /** Resolves when exactly these are known. */
    until: (numbers: readonly number[]) =>
      eventually(() => {
        expect(failure).toBe(undefined)
        expect([...view.keys()].toSorted()).toEqual(numbers.map((number) => `10.5.${number}.0-24`).toSorted())
      }),
    /** Logged at most so seldom that nobody has to fear for his disk, however long the test takes. */
    expectFewLines: () =>
      expect(lines.length).toBeLessThanOrEqual(10 * Math.ceil((performance.now() - began) / 60_000)),
  }
}

const network = parseNetworkConfig('{"Network":"10.5.0.0/16"}')

it('renews its lease and hears of every peer while each leader in turn is killed', async () => {
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
  // A busy machine may make the one that was killed the leader again.
  for (let round = 0; round < ROUNDS || killed.size < 2; round++) {
    const leader = await cluster.leader()
    await leader.kill()
    killed.add(leader)
    const number = 100 + round
    await join(number, rest(leader))
    peers.push(number)
    await follower.until(peers)
    // As the daemon does: what may pass is tried again, anything else would be an error.
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
  expect(follower.listings).toBe(1) // it resumed: no listing was needed, so nothing was skipped either
  follower.expectFewLines()
}, 1_200_000)

it('leaves a member that froze with its connections open', async () => {
  const follower = follow(open())
  await join(1, cluster.members)
  await follower.until([1])
  const peers = [1]
  const moved = (): boolean => follower.lines.some((line) => line.includes('watch channel'))
  // One after another, until it was the one with the watch.
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
  // The member itself is well and its connection open: only it can tell that what it knows may be old.
  await eventually(() => expect(follower.lines.join()).toMatch(/no leader/i))
  expect([...follower.view.keys()]).toEqual(['10.5.1.0-24'])
  expect(alone.process.exitCode).toBe(null)
  for (const other of others) other.thaw()
  await join(2, others, cluster.members)
  await follower.until([1, 2])
  expect(follower.listings).toBe(1)
  follower.expectFewLines()
})

it('goes on while each member is replaced by a new one without data', async () => {
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
  // The same cluster under new members: no reason to list again, let alone to hold or to drop a peer.
  expect(follower.listings).toBe(1)
  follower.expectFewLines()
})
