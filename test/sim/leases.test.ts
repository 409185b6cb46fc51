// leases.test.ts - simulated hosts that start, crash and change their configuration simultaneously. No two hosts may use overlapping
// subnets of either family, and a host that switches one family keeps the subnet of the other. It runs 1,000 seeds, and more in `npm
// run test:soak` (seeds.ts). WEFT_SEED=… repeats one seed.

import { isDeepStrictEqual } from 'node:util'
import { expect, it } from 'vitest'
import { isWeftError } from '../../src/base/errors.ts'
import { parseNetworkConfig, type NetworkConfig } from '../../src/control/config/network-config.ts'
import { isCompatible } from '../../src/control/lease/allocate.ts'
import { decodeLease } from '../../src/control/lease/decode.ts'
import { isOfOneNode, parseLeaseKey, type LeaseAttrs, type OwnLease } from '../../src/control/lease/lease.ts'
import { holderOf } from '../../src/control/lease/own-lease.ts'
import { addressText, netsOverlap, netsText, type Nets } from '../../src/net/address.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { parseIpv6 } from '../../src/net/ipv6.ts'
import { randomFrom, type Random } from '../support/packet-model.ts'
import { isOneSeed, seeds, seedsLimitMs } from '../support/seeds.ts'
import { createVirtualStore, type Connection, type Fault, type VirtualStore } from './virtual-store.ts'
import { takeOverTime, type VirtualTime } from './virtual-time.ts'

const HOSTS = 5
/** Each network has seven subnets, so that hosts often draw the same one. */
const IPV4 = { Network: '10.5.0.0/24', SubnetLen: 27 }
const IPV6 = { EnableIPv6: true, IPv6Network: 'fd00:5::/61' }
const configOf = (members: object): NetworkConfig => parseNetworkConfig(JSON.stringify(members))
const CONFIGS = {
  only4: configOf(IPV4),
  both: configOf({ ...IPV4, ...IPV6 }),
  only6: configOf({ ...IPV6, EnableIPv4: false }),
  other6: configOf({ ...IPV4, ...IPV6, IPv6Network: 'fd00:6::/61' }),
  longer: configOf({ ...IPV4, ...IPV6, SubnetLen: 28, IPv6SubnetLen: 66 }),
  /** Three IPv6 subnets are too few for the five hosts. */
  scarce: configOf({ ...IPV4, ...IPV6, IPv6Network: 'fd00:7::/124' }),
} as const
type How = keyof typeof CONFIGS
const HOWS = Object.keys(CONFIGS) as How[]

interface Host {
  readonly number: number
  readonly connection: Connection
  how: How
  /** The lease that the host uses while it runs. */
  lease: OwnLease | undefined
  /** The subnets in the host's subnet.env. */
  previous: Nets
  /** The previous subnets that the configuration of each later start allowed. The host must keep them. */
  promised: Nets
  isReserved: boolean
  lines: string[]
}

interface Outcome {
  readonly violations: readonly string[]
  readonly counts: ReadonlyMap<string, number>
}

const attrsOf = ({ number }: Host, how: How): LeaseAttrs => ({
  publicIp: {
    ipv4: how === 'only6' ? undefined : parseIpv4(`192.0.2.${number}`)!,
    ipv6: how === 'only4' ? undefined : parseIpv6(`2001:db8::${number}`)!,
  },
  backendType: '',
})

async function simulate(seed: number): Promise<Outcome> {
  const random = randomFrom(seed)
  const time = takeOverTime(Date.UTC(2026, 0, 1))
  const realRandom = Math.random
  Math.random = () => random.below(2 ** 30) / 2 ** 30
  const violations: string[] = []
  const counts = new Map<string, number>()
  const count = (what: string): void => void counts.set(what, (counts.get(what) ?? 0) + 1)
  const store = createVirtualStore(time, random, new Map<Fault, number>(), { isLocked: random.chance(0.3) })
  const hosts = Array.from({ length: HOSTS }, (_, index): Host => ({
    number: index + 1,
    connection: store.connect(),
    how: random.of(HOWS),
    lease: undefined,
    previous: {},
    promised: {},
    isReserved: false,
    lines: [],
  }))
  const world = { store, hosts, time, random, violations, count }
  try {
    let running = hosts.map((host) => live(host, 2 + random.below(3), world))
    await untilOver(running, time)
    // At the end the store works without faults. Then each host must have the subnets of its configuration, and no second lease that
    // overlaps them.
    for (const { connection } of hosts) connection.setUnrest(0)
    await time.advance(30_000) // calls that the store applies late
    running = hosts.map((host) => live(host, 1, world))
    await untilOver(running, time)
    for (const { lease, number } of hosts) {
      if (!lease) continue
      const left = store
        .entries()
        .filter(({ key }) => key !== lease.key && netsOverlap(parseLeaseKey(key)!, lease.subnet))
        .filter(({ key, value }) => isOfOneNode(decodeLease(key, value).attrs, lease.attrs))
      for (const { key } of left) violations.push(`host ${number} has ${key} besides ${lease.key}`)
    }
  } finally {
    await time.advance(1)
    time.restore()
    Math.random = realRandom
  }
  return { violations: violations.map((text) => `seed ${seed}: ${text}`), counts }
}

async function untilOver(running: readonly Promise<void>[], time: VirtualTime): Promise<void> {
  const state = { isOver: false }
  const all = Promise.all(running).finally(() => (state.isOver = true))
  while (!state.isOver) await time.advance(1_000)
  await all
}

interface World {
  readonly store: VirtualStore
  readonly hosts: readonly Host[]
  readonly time: VirtualTime
  readonly random: Random
  readonly violations: string[]
  readonly count: (what: string) => void
}

/** Returns the subnets that a configuration could hand out. */
const compatibleOf = ({ ipv4, ipv6 }: Nets, range: NetworkConfig): Nets => ({
  ipv4: ipv4 && range.ipv4 && isCompatible(ipv4, range.ipv4) ? ipv4 : undefined,
  ipv6: ipv6 && range.ipv6 && isCompatible(ipv6, range.ipv6) ? ipv6 : undefined,
})

/** Waits in virtual time, which the simulation advances. */
const pause = (ms: number): Promise<void> => new Promise((resolve) => void setTimeout(resolve, ms))

/** Starts a daemon `starts` times, mostly with another configuration each time. Some starts crash halfway. */
async function live(host: Host, starts: number, world: World): Promise<void> {
  const { random, count, store } = world
  for (let start = 0; start < starts; start++) {
    await pause(random.below(100))
    host.lease = undefined
    if (random.chance(0.6)) host.how = random.of(HOWS)
    host.promised = compatibleOf(host.promised, CONFIGS[host.how])
    if (starts > 1) host.connection.setUnrest(random.of([0, 0, 0.2, 0.4]))
    const crashing = new AbortController()
    // The crash happens at a moment of virtual time, independent of the calls under way.
    if (starts > 1 && random.chance(0.4)) setTimeout(() => crashing.abort(new Error('crashed')), random.below(150))
    const lease = await obtain(host, crashing.signal, world).catch((error: unknown) => {
      if (!crashing.signal.aborted) throw error
      count('crashed')
      return undefined
    })
    if (!lease) continue
    accept(host, lease, world)
    await pause(random.below(200))
    const entry = store.entries().find(({ key }) => key === lease.key)
    if (entry && random.chance(0.15)) {
      store.put(entry.key, entry.value)
      host.isReserved = true
    }
  }
}

/** Obtains a lease like node/loops/lease; returns undefined if no subnet is left. */
async function obtain(host: Host, signal: AbortSignal, { count }: World): Promise<OwnLease | undefined> {
  const add = (line: string): void => void host.lines.push(line)
  const log = { info: add, warn: add, error: add, v: () => false }
  for (;;) {
    try {
      const holder = holderOf(host.connection.store, CONFIGS[host.how])
      return await holder.obtain(attrsOf(host, host.how), host.previous, log, signal)
    } catch (error) {
      signal.throwIfAborted()
      if (isWeftError(error, 'OUT_OF_SUBNETS')) return void count('out of subnets')
      if (!isWeftError(error, 'STORE_UNAVAILABLE')) throw error
    }
    await pause(50)
  }
}

function accept(host: Host, lease: OwnLease, { hosts, store, violations, count }: World): void {
  const { previous, promised, how, number } = host
  const say = (text: string): void => void violations.push(`${text}; its log: ${host.lines.slice(-8).join(' | ')}`)
  host.lease = lease
  host.previous = host.promised = lease.subnet
  const what = `host ${number} (${how}) has ${netsText(lease.subnet)}`
  for (const other of hosts)
    if (other !== host && other.lease && netsOverlap(other.lease.subnet, lease.subnet))
      say(`${what}, and host ${other.number} ${netsText(other.lease.subnet)}`)

  const { ipv4, ipv6 } = CONFIGS[how]
  for (const [range, subnet] of [
    [ipv4, lease.subnet.ipv4],
    [ipv6, lease.subnet.ipv6],
  ])
    if (how === 'scarce' && !lease.subnet.ipv6 && lease.subnet.ipv4) count('without IPv6')
    else if ((range === undefined) !== (subnet === undefined)) say(`${what}, which is not what its configuration says`)
  const { subnet } = lease
  const keeps4 = promised.ipv4 !== undefined && isDeepStrictEqual(promised.ipv4, subnet.ipv4)
  const keeps6 = promised.ipv6 !== undefined && isDeepStrictEqual(promised.ipv6, subnet.ipv6)
  if ((promised.ipv4 && !keeps4) || (promised.ipv6 && !keeps6)) say(`${what}, and had ${netsText(promised)}`)
  const word = (before: unknown, now: unknown): string =>
    now ? (before ? 'kept' : 'switched on') : before ? 'switched off' : 'still off'
  if (keeps4) count(`IPv6 ${word(previous.ipv6, subnet.ipv6)}`)
  if (keeps6) count(`IPv4 ${word(previous.ipv4, subnet.ipv4)}`)
  const entry = store.entries().find(({ key }) => key === lease.key)
  if (!entry) return say(`${what}, which the store has not`)
  const { attrs } = decodeLease(entry.key, entry.value)
  if (!isOfOneNode(attrs, attrsOf(host, how))) say(`${what}, which is ${addressText(attrs.publicIp)}'s`)
  const isKept = keeps4 || keeps6
  if (host.isReserved && isKept && !entry.isReservation) say(`${what}, which was reserved`)
  if (host.isReserved && isKept) count('reservation kept')
  host.isReserved &&= isKept
}

const EVENTS = [
  'crashed',
  'IPv4 kept',
  'IPv6 kept',
  'reservation kept',
  'IPv6 switched on',
  'IPv6 switched off',
  'IPv4 switched on',
  'IPv4 switched off',
  'without IPv6',
]

const SEEDS = 1_000

it(
  'gives no two nodes overlapping subnets, and a switch of one family keeps the subnet of the other',
  async ({ annotate }) => {
    const first = Math.floor(Date.now() / 1000) % 1_000_000
    const total = new Map<string, number>()
    let ran = 0
    for await (const seed of seeds(first, { count: SEEDS, annotate })) {
      ran++
      const { violations, counts } = await simulate(seed)
      for (const [what, number] of counts) total.set(what, (total.get(what) ?? 0) + number)
      expect(violations).toEqual([])
    }
    if (isOneSeed) return
    for (const what of EVENTS) expect(total.get(what) ?? 0, what).toBeGreaterThan(ran / 200)
  },
  seedsLimitMs(SEEDS),
)
