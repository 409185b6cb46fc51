// etcd-versions.test.ts - the etcd store with a learner among its endpoints, and with a cluster that is being downgraded; also the
// health endpoints that etcd itself has. `npm run test:etcd` runs the tests of the store with each version of etcd.

import { setMaxListeners } from 'node:events'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { executeSync } from '../../lab/command.ts'
import { startEtcd, startEtcdCluster, type Etcd } from '../../lab/etcd.ts'
import { describeError } from '../../src/base/errors.ts'
import { Secret } from '../../src/base/secret.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { sourceOf } from '../../src/control/lease/decode.ts'
import { followLeases } from '../../src/control/lease/follow.ts'
import { acquireLease, renewLease } from '../../src/control/lease/own-lease.ts'
import { EtcdStore } from '../../src/control/store/etcd/etcd.ts'
import type { Store } from '../../src/control/store/store.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { eventually } from '../support/event.ts'
import { ETCD, needs } from '../support/needs.ts'

const lacks = needs(...ETCD)
const [, major = '0', minor = '0', patch = '0'] =
  /etcd Version: (\d+)\.(\d+)\.(\d+)/.exec(lacks === undefined ? executeSync(['etcd', '--version']) : '') ?? []
const version = `${major}.${minor}.${patch}`
/** Returns true if the etcd in PATH is of this version or later. */
const isSince = (line: number, fix: number): boolean =>
  Number(minor) > line || (Number(minor) === line && Number(patch) >= fix)

const PREFIX = '/x'
const network = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
const quiet = { info() {}, warn() {}, error() {}, v: () => false }

let over: AbortController
const cleanups: (() => unknown)[] = []
beforeEach(() => {
  over = new AbortController()
  setMaxListeners(0, over.signal)
})
afterEach(async () => {
  over.abort(new Error('the test is over'))
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup()
})

async function start(learnsFrom?: Etcd): Promise<Etcd> {
  const etcd = await startEtcd(learnsFrom ? { learnsFrom } : {})
  cleanups.push(() => etcd.close())
  return etcd
}

function open(...members: readonly Etcd[]): Store {
  const store = new EtcdStore({
    endpoints: members.map(({ endpoint }) => endpoint),
    prefix: PREFIX,
    certFile: '',
    keyFile: '',
    caFile: '',
    username: '',
    password: new Secret(''),
  })
  cleanups.push(() => store.close())
  return store
}

/** Acquires and renews a lease, and follows the leases until a lease of another host arrives. */
async function worksAsNode(store: Store, server: Etcd, number: number): Promise<void> {
  const options = { random: () => 0, log: quiet, signal: over.signal }
  const attrs = { publicIp: { ipv4: parseIpv4(`192.0.2.${number}`)! }, backendType: '' }
  const lease = await acquireLease(store, network, attrs, options)
  const renewed = await renewLease(store, lease, options)
  expect([renewed.key, renewed.revision > lease.revision]).toEqual([lease.key, true])
  let keys: readonly string[] = []
  void (async () => {
    for await (const { leases } of followLeases(sourceOf(store), {
      log: quiet,
      signal: over.signal,
      relistMs: 3_600_000,
      random: () => 1,
    }))
      keys = [...leases.keys()]
  })().catch(() => {})
  await eventually(() => expect(keys).toContain(lease.key))
  const other = `10.5.${number}.0-24`
  await server.ctl('put', `${PREFIX}/subnets/${other}`, '{"PublicIP":"192.0.2.250","PublicIPv6":null}')
  await eventually(() => expect(keys).toContain(other))
}

it('uses the voters of a cluster, and not its learner, until the learner is promoted', async () => {
  const voter = await start()
  await voter.ctl('put', `${PREFIX}/config`, '{"Network":"10.5.0.0/16"}')
  const learner = await start(voter)
  // The endpoints are tried in random order.
  for (const number of [201, 202, 203, 204]) await worksAsNode(open(learner, voter), voter, number)

  const alone = open(learner)
  const failure = await alone.list(over.signal).then(() => 'the learner answers', describeError)
  expect(failure).toMatch(/cannot be used: .*learner/)
  expect(failure).toContain('etcdctl member promote')

  const id = /^(\w+), .*, learner, /m.exec(await voter.ctl('member', 'list'))?.[1]
  await eventually(() => voter.ctl('member', 'promote', id!)) // etcd refuses this until the learner has all data
  await worksAsNode(alone, voter, 205)
})

it('works while the cluster is being downgraded', async ({ skip }) => {
  skip(!isSince(6, 0), `etcd ${version} has no downgrade; \`npm run test:etcd\` runs this test with etcd 3.6`)
  const etcd = await start()
  await etcd.ctl('put', `${PREFIX}/config`, '{"Network":"10.5.0.0/16"}')
  const store = open(etcd)
  const target = `3.${Number(minor) - 1}.0`
  await worksAsNode(store, etcd, 201)
  await eventually(() => etcd.ctl('downgrade', 'enable', target)) // etcd refuses this until it knows the version of its cluster
  await worksAsNode(store, etcd, 202)
  const statusOf = async (): Promise<string> => etcd.ctl('endpoint', 'status', '-w', 'json')
  // The storage has been moved to the older version, so a member of that version can take this one's place.
  await eventually(async () => expect(await statusOf()).toContain(`"storageVersion":"${target}"`))
  await worksAsNode(store, etcd, 203)
  await etcd.ctl('downgrade', 'cancel')
  await worksAsNode(store, etcd, 204)
})

it('has health endpoints that tell a voter, a learner and a member without a leader apart', async ({ skip }) => {
  const has = Number(minor) === 4 ? isSince(4, 29) : isSince(5, 11)
  skip(!has, `etcd ${version} has no /readyz; \`npm run test:etcd\` runs this test with newer versions`)
  const codes = (path: string, ...members: readonly { readonly endpoint: string }[]): Promise<readonly number[]> =>
    Promise.all(members.map(async ({ endpoint }) => (await fetch(`${endpoint}${path}`)).status))
  const voter = await start()
  const learner = await start(voter)
  await eventually(async () => expect(await codes('/readyz', voter, learner)).toEqual([200, 503]))
  expect(await codes('/livez', voter, learner)).toEqual([200, 200])

  const cluster = await startEtcdCluster()
  cleanups.push(() => cluster.close())
  const [first, ...others] = cluster.members
  await eventually(async () => expect(await codes('/readyz', first!)).toEqual([200]))
  await Promise.all(others.map((each) => each.kill()))
  await eventually(async () => expect(await codes('/readyz', first!)).toEqual([503]))
  expect(await codes('/livez', first!)).toEqual([200])
})
