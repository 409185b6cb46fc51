// simulation.ts - simulated nodes that run the daemon's own loops on a virtual store, in virtual time, with faults chosen by a seed.
//
// Each run ends with a minute without faults. Then every node's table must equal the store. During the run no subnet may have two owners,
// and no peer whose lease stayed in the store may leave a table.

import { setMaxListeners } from 'node:events'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { decodeLease } from '../../src/control/lease/decode.ts'
import { parseLeaseKey, type Lease } from '../../src/control/lease/lease.ts'
import { managerOf } from '../../src/control/lease/store-manager.ts'
import { runNode } from '../../src/daemon.ts'
import { hostKernel } from '../../src/host/netlink/host-kernel.ts'
import { addressText, netsOverlap } from '../../src/net/address.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { createNode } from '../../src/node/node.ts'
import type { Backend } from '../../src/path/contract.ts'
import { createHealth, type Health } from '../../src/report/health.ts'
import { ALONE, permitAll } from '../support/alone.ts'
import { EXTERNAL, planOf } from '../support/data-paths.ts'
import { nodeOptions } from '../support/options.ts'
import { randomFrom } from '../support/packet-model.ts'
import { createVirtualStore, LEASE_TTL_MS, type Connection, type Fault, type VirtualStore } from './virtual-store.ts'
import { takeOverTime, type Machine, type VirtualTime } from './virtual-time.ts'

const NODES = 5
/**
 * After the last fault every node agrees with the store within CONVERGED_MS (in ms), or within CONFIRMED_MS if it held
 * lost peers.
 */
const CONVERGED_MS = 16_000
const CONFIRMED_MS = 60_000
/** The time in ms within which a listing finds a change that no watch has reported. */
const LISTED_MS = 61_000
/** The time in ms within which a change arrives if there are no faults. */
const ARRIVED_MS = 1_000

/** The log lines that end the hold of lost peers. */
const HOLD_ENDS = /The store still lacks|had vanished are back/

interface Node {
  publicIp: string
  readonly connection: Connection
  readonly machine: Machine
  readonly lines: string[]
  /** The time at which the machine last resumed after a freeze or a suspension. */
  wokeAt: number
  stopping: AbortController
  ended: Promise<unknown>
  /** The health of the running process. */
  health: Health
  /** The number of holds of lost peers in earlier processes. */
  holdsBefore: number
  /** The lease of the open data path. */
  lease: Lease | undefined
  /** Ends the data path with a fault; undefined if there is none. */
  die: (() => void) | undefined
  table: Map<string, Lease>
  /** Peers in the table whose key has been in the store ever since. */
  steady: Set<string>
}

interface Outcome {
  readonly hits: ReadonlyMap<Fault, number>
  /** The number of times that a node held lost peers. */
  readonly holds: number
  /** Violated rules; empty if there are none. */
  readonly violations: readonly string[]
}

/** Seven subnets for five nodes, so a late node may find its subnet taken. */
const SUBNETS = 7
const config = parseNetworkConfig('{"Network":"10.5.0.0/24","SubnetLen":27}')
/** A lease that an operator wrote for a host outside the simulation. */
const FOREIGN = '10.6.0.0-24'
const foreignValue = (last: number): string => `{"PublicIP":"198.51.100.${last}","PublicIPv6":null}`

export async function simulate(seed: number): Promise<Outcome> {
  const random = randomFrom(seed)
  const time = takeOverTime(Date.UTC(2026, 0, 1))
  const realRandom = Math.random
  Math.random = () => random.below(2 ** 30) / 2 ** 30
  const hits = new Map<Fault, number>()
  const violations: string[] = []
  const store = createVirtualStore(time, random, hits)
  const nodes = Array.from({ length: NODES }, (_, index) => newNode(store, time, `192.0.2.${index + 1}`))
  watchOwners(store, nodes, violations)
  store.onGone = (key) => {
    for (const { steady } of nodes) steady.delete(key)
  }
  store.put(FOREIGN, foreignValue(1))
  try {
    for (const node of nodes) {
      start(node, store, violations)
      await time.advance(random.below(200))
    }
    await time.advance(5_000)
    store.snapshot()
    const rounds = 4 + random.below(8)
    for (let round = 0; round < rounds; round++) await oneFault(random, time, store, nodes, violations, hits)
    for (const { connection } of nodes) {
      connection.setCut(false)
      connection.setUnrest(0)
      connection.setBehind(0)
    }
    store.setDown(false)
    // A node that was frozen learns the change only from its next listing.
    const lists = Math.max(...nodes.map(({ wokeAt }) => Math.max(wokeAt, store.unnoticedAt()))) + LISTED_MS
    if (store.unnoticedAt() > -Infinity) await time.advance(Math.max(0, lists - time.now()))
    await time.advance(CONVERGED_MS)
    const isHolding = ({ health }: Node): boolean => (health.snapshot()?.held ?? 0) > 0
    // A lease may expire at this very moment, so the last change gets time to arrive.
    const settle = async (): Promise<void> => {
      while (time.now() - store.changedAt() < ARRIVED_MS) await time.advance(ARRIVED_MS)
    }
    await settle()
    for (const node of nodes) if (!isHolding(node)) violations.push(...differences(node, store))
    if (!isFull(store)) violations.push(...twoOwners(nodes))
    await time.advance(CONFIRMED_MS - CONVERGED_MS)
    await settle()
    for (const node of nodes) violations.push(...differences(node, store))
  } finally {
    for (const { stopping } of nodes) stopping.abort(new Error('the simulation is over'))
    await time.advance(10)
    await Promise.all(nodes.map(({ ended }) => ended))
    time.restore()
    Math.random = realRandom
  }
  const holds = nodes.map(holdsOf).reduce((sum, each) => sum + each)
  return { hits, holds, violations: violations.map((text) => `seed ${seed}: ${text}`) }
}

const holdsOf = ({ health, holdsBefore }: Node): number => holdsBefore + (health.snapshot()?.holds ?? 0)

async function oneFault(
  random: ReturnType<typeof randomFrom>,
  time: VirtualTime,
  store: VirtualStore,
  nodes: Node[],
  violations: string[],
  hits: Map<Fault, number>,
): Promise<void> {
  const node = random.of(nodes)
  const { connection, machine } = node
  const strike = (fault: Fault, act: () => void): void => {
    hits.set(fault, (hits.get(fault) ?? 0) + 1)
    act()
  }
  /** Gives the subnet of an expired lease to a host outside the simulation. */
  const takeSubnet = (): void => {
    const { lease } = node
    if (lease && random.chance(0.5) && !store.entries().some(({ key }) => key === lease.key))
      strike('subnet taken', () => store.put(lease.key, foreignValue(250), LEASE_TTL_MS / 4))
  }
  switch (random.below(20)) {
    case 0:
      connection.setUnrest(0.3)
      await time.advance(random.below(120_000))
      connection.setUnrest(0)
      break
    case 1:
      connection.cutWatches(random.of(['watch cut', 'watch silent'] as const))
      break
    case 2: // changes that a disconnected watch has not seen yet are compacted away
      connection.setCut(true)
      churn(node, nodes, store)
      await time.advance(20_000)
      store.compact()
      connection.setCut(false)
      break
    case 3:
      connection.setCut(true)
      await time.advance(random.of([1_000, 30_000, 300_000]))
      connection.setCut(false)
      break
    case 4:
      store.setDown(true)
      await time.advance(random.of([500, 20_000, 600_000]))
      store.setDown(false)
      break
    case 5:
      await crash(node, random.of([0, 1_000, 100_000]), time, store, violations, hits)
      break
    case 6: // longer than the TTL of a lease, which expires; another host may take the subnet
      connection.setCut(true)
      await time.advance(1.1 * LEASE_TTL_MS)
      takeSubnet()
      connection.setCut(false)
      break
    case 7:
      if (store.entries().length > 0) store.remove(random.of(store.entries()).key)
      break
    case 8:
      strike('junk written', () =>
        store.put(
          random.of(['rubbish', '10.5.300.0-24', '10.7.1.0-24', FOREIGN, node.lease?.key ?? FOREIGN]),
          random.of(['', '{', '{"PublicIP":7}']),
        ),
      )
      break
    case 9:
      if (random.chance(0.5)) store.snapshot()
      else store.restore(random.chance(0.5))
      break
    case 10:
    case 11: {
      const ms = random.of([2_000, 60_000, 0.9 * LEASE_TTL_MS, 1.1 * LEASE_TTL_MS])
      if (random.chance(0.5)) strike('node frozen', () => machine.freeze(ms))
      else strike('node suspended', () => machine.suspend(ms))
      await time.advance(ms - 1)
      takeSubnet()
      await time.advance(1)
      node.wokeAt = time.now()
      break
    }
    case 12:
      strike('clock set', () => machine.setClock(random.of([-1, 1]) * random.of([60_000, 3_600_000])))
      break
    case 13: // with or without the node's own lease
      strike('store wiped', () => {
        for (const { key } of store.entries()) if (key !== node.lease?.key || random.chance(0.5)) store.remove(key)
      })
      break
    case 14:
      connection.setBehind(random.of([1_000, 10_000, 90_000]))
      if (random.chance(0.5)) churn(node, nodes, store)
      await time.advance(random.below(150_000))
      connection.setBehind(0)
      break
    case 15:
      if (node.die) strike('data path died', node.die)
      break
    case 16: {
      // The node takes the new address when it opens its next data path.
      const { die } = node
      if (!die) break
      strike('address changed', () => {
        const [, number = 0] = /\.(\d+)$/.exec(node.publicIp) ?? []
        node.publicIp = `192.0.2.${(Number(number) + 10) % 250}`
        die()
      })
      break
    }
    default: // a node restarts while all connections are disturbed
      for (const each of nodes) each.connection.setUnrest(0.1)
      await crash(node, 0, time, store, violations, hits)
      await time.advance(random.below(30_000))
      for (const each of nodes) each.connection.setUnrest(0)
  }
  await time.advance(random.of([0, 100, 3_000, 70_000]))
}

/** Makes a change that a disconnected node does not see: deletes the lease of another node. */
function churn(out: Node, nodes: readonly Node[], store: VirtualStore): void {
  const other = nodes.find((node) => node !== out && node.lease)
  if (other?.lease) store.remove(other.lease.key)
}

async function crash(
  node: Node,
  downMs: number,
  time: VirtualTime,
  store: VirtualStore,
  violations: string[],
  hits: Map<Fault, number>,
): Promise<void> {
  hits.set('node crashed', (hits.get('node crashed') ?? 0) + 1)
  node.stopping.abort(new Error('crashed'))
  await time.advance(downMs + 1)
  await node.ended
  start(node, store, violations)
}

function newNode(store: VirtualStore, time: VirtualTime, publicIp: string): Node {
  return {
    publicIp,
    connection: store.connect(),
    machine: time.newMachine(),
    lines: [],
    wokeAt: -Infinity,
    stopping: new AbortController(),
    ended: Promise.resolve(),
    health: createHealth(),
    holdsBefore: 0,
    lease: undefined,
    die: undefined,
    table: new Map(),
    steady: new Set(),
  }
}

function start(node: Node, store: VirtualStore, violations: string[]): void {
  const say = (line: string): void => void node.lines.push(line)
  node.stopping = new AbortController()
  setMaxListeners(0, node.stopping.signal) // runDaemon does the same
  node.holdsBefore = holdsOf(node)
  node.health = createHealth()
  const previous = node.lease?.subnet ?? {}
  node.die = undefined
  node.table = new Map()
  node.steady.clear()
  const backend: Backend = {
    name: 'simulated',
    external: EXTERNAL,
    prepare: async () => ({ publicIp: { ipv4: parseIpv4(node.publicIp)! }, backendType: '' }),
    plan: planOf(async (lease) => {
      node.lease = lease
      node.table = new Map()
      node.steady.clear()
      return {
        families: ['ipv4'],
        unusable: () => new Set(),
        fault: new Promise((resolve) => {
          node.die = () => resolve(new Error('died'))
        }),
        async apply(leases, own) {
          const peers = new Map(leases)
          peers.delete(own)
          for (const key of node.steady) {
            if (key !== own && !peers.has(key))
              violations.push(`${node.publicIp} lost ${key}, which never left the store`)
          }
          const addresses = new Set([...peers.values()].map(({ attrs }) => addressText(attrs.publicIp)))
          // A node that has another subnet now is not lost.
          const lost = [...node.table].filter(
            ([key, { attrs }]) => key !== own && !peers.has(key) && !addresses.has(addressText(attrs.publicIp)),
          ).length
          if (lost > 2 && lost > peers.size && !HOLD_ENDS.test(node.lines.slice(-10).join(' ')))
            violations.push(`${node.publicIp} immediately removed ${lost} of ${node.table.size} peers`)
          node.table = new Map(peers)
          // Steady peers are those that the node knows to exist. While a node catches up, it may see an existing key deleted and put again,
          // for instance if the store was restored during a deletion.
          const current = store
            .entries()
            .filter((entry) => entry.created <= node.connection.seen() && ownerOf(entry.value) !== undefined)
          node.steady = new Set(
            current.map(({ key }) => key).filter((key) => peers.has(key) && node.connection.knowsLoss(key)),
          )
        },
        resync: async () => [],
        carrier: () => ({ engine: 'none', features: [] }),
        peers: () => [],
        counters: () => ({}),
        close: async () => {},
      }
    }),
  }
  const flags = { 'subnet-file': 'not written', 'subnet-lease-renew-margin': 5, 'probe-interval': 0 }
  const options = nodeOptions(flags)
  const log = { info: say, warn: say, error: say, v: () => false }
  const parts = { manager: managerOf(node.connection.store), config, backend, health: node.health }
  const run = (): Promise<never> => {
    const weftd = createNode({ options, store: '', kernel: hostKernel, log, stopping: node.stopping })
    return runNode(weftd, parts, previous, ALONE, undefined, permitAll)
  }
  node.ended = node.machine.run(run).catch((error: unknown) => error)
}

/**
 * True if no subnet is free. Then a node without a lease waits and forwards without one. Writes that were applied late may hold the last
 * subnets.
 */
const isFull = (store: VirtualStore): boolean =>
  store.entries().filter(({ key }) => key.startsWith('10.5.0.')).length >= SUBNETS

/** Lists the differences between a node's table and the store. */
function differences(node: Node, store: VirtualStore): string[] {
  // A node that started when no subnet was free has no data path yet.
  if (node.die === undefined && isFull(store)) return []
  const found: string[] = []
  const own = store.entries().find(({ key }) => key === node.lease?.key)
  if (!own?.value.includes(`"${node.publicIp}"`) && !isFull(store))
    found.push(`${node.publicIp} does not own ${node.lease?.key}`)
  const wanted = new Map<string, string>()
  const unreadable = new Set<string>()
  for (const { key, value } of store.entries()) {
    if (key === node.lease?.key) continue
    try {
      wanted.set(key, addressText(decodeLease(key, value).attrs.publicIp))
    } catch {
      // A node that knew the lease keeps its old value; a node that did not know it has none.
      unreadable.add(key)
    }
  }
  for (const [key, address] of wanted) {
    const has = node.table.get(key)
    if (!has) found.push(`${node.publicIp} lacks ${key}`)
    else if (addressText(has.attrs.publicIp) !== address) found.push(`${node.publicIp} has ${key} at a wrong address`)
  }
  for (const key of node.table.keys())
    if (!wanted.has(key) && !unreadable.has(key)) found.push(`${node.publicIp} still has ${key}`)
  return found.map((text) => `${text}; its log: ${node.lines.slice(-8).join(' | ')}`)
}

/** Lists pairs of nodes that both forward for one subnet. */
function twoOwners(nodes: readonly Node[]): string[] {
  const found: string[] = []
  for (const [index, one] of nodes.entries())
    for (const other of nodes.slice(index + 1))
      if (one.lease && other.lease && netsOverlap(one.lease.subnet, other.lease.subnet))
        found.push(`${one.publicIp} and ${other.publicIp} both forward for ${one.lease.key}`)
  return found
}

/** Returns the owner of a lease: a node's address without the part that an address change modifies. */
const ownerOf = (value: string): string | undefined =>
  /"PublicIP":"([^"]+)"/.exec(value)?.[1]?.replace(/^(192\.0\.2\.)\d*(\d)$/, '$1$2')

/** Checks every write: no subnet may get a second owner before the first lease has expired. */
function watchOwners(store: VirtualStore, nodes: readonly Node[], violations: string[]): void {
  /** A junk value does not name its owner. The node that held the subnet may overwrite it. */
  const mayOverwrite = (key: string, me: string): boolean =>
    nodes.some(({ lease, publicIp }) => lease?.key === key && ownerOf(`"PublicIP":"${publicIp}"`) === me)
  store.onWrite = (before, after, all) => {
    const mine = parseLeaseKey(after.key)
    const me = ownerOf(after.value)
    if (!mine || me === undefined || after.key === FOREIGN) return
    const holder = before && ownerOf(before.value)
    if (before && holder !== me && (holder !== undefined || !mayOverwrite(after.key, me)))
      violations.push(`${me} took ${after.key}, which ${holder} held`)
    for (const other of all) {
      const subnet = other.key === after.key ? undefined : parseLeaseKey(other.key)
      if (subnet && netsOverlap(subnet, mine)) violations.push(`${after.key} lies across ${other.key}`)
    }
  }
}
