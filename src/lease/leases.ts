// leases.ts - the life of a lease, above any store: acquire, renew, and follow what others do.
//
// Every write is conditional on what was read before it, so that two nodes can never both believe that a subnet is
// theirs; the loser of a race reads again and goes on.

import type { NetworkConfig } from '../config/network-config.ts'
import { describeError, isWeftError, messageOf, WeftError } from '../errors.ts'
import { pause } from '../host/bell.ts'
import { seldom, type Log } from '../log.ts'
import { formatIpv4, formatIpv4Net, ipv4NetsOverlap, type Ipv4Net } from '../net/ipv4.ts'
import { isCompatible, pickSubnet } from './allocate.ts'
import {
  decodeLease,
  describeSubnets,
  encodeLeaseValue,
  leaseKey,
  parseLeaseKey,
  type Lease,
  type LeaseAttrs,
  type OwnLease,
} from './lease.ts'
import type { LeaseUpdate } from './peer-view.ts'
import { StoreGap, type Store, type StoreChange, type StoreEntry, type StoreListing } from './store.ts'

/** How long a lease lives without renewal: upstream's 24 hours. */
export const LEASE_TTL_MS = 24 * 3600 * 1000
/** A full listing replaces what was pieced together from changes this often, whatever happens. */
const RELIST_MS = 60_000
/** Fail-static: see `Losses`. */
export const HOLD_MS = 30_000
const FEW_LOSSES = 2
const BACKOFF_MIN_MS = 100
const BACKOFF_MAX_MS = 5_000

/** Time, as the loops see it; a simulation brings its own. */
export interface Clock {
  /** Milliseconds since any moment; never goes back. */
  now(): number
  /** Rejects when `signal` aborts. */
  sleep(ms: number, signal: AbortSignal): Promise<void>
}

const systemClock: Clock = {
  now: () => performance.now(),
  sleep: (ms, signal) => pause(signal, ms),
}

export interface AcquireOptions {
  /** The subnet that this node had before, from subnet.env. */
  readonly previous?: Ipv4Net
  readonly ttlMs: number
  readonly random: () => number
  readonly log: Log
  readonly signal: AbortSignal
}

type FoundLease = Lease & { readonly entry: StoreEntry }

/**
 * A lease for this node: the one that its public IP has already, else the previous subnet if it is free, else a free
 * one at random. Rejects with WeftError OUT_OF_SUBNETS, CONFIG, STORE or STORE_UNAVAILABLE.
 */
export async function acquireLease(
  store: Store,
  config: NetworkConfig,
  attrs: LeaseAttrs,
  options: AcquireOptions,
): Promise<OwnLease> {
  if (!config.enableIpv4) {
    throw new WeftError('CONFIG', 'the network configuration has EnableIPv4 false', {
      remedy: 'set it to true: leases are IPv4 subnets',
    })
  }
  // Each lost race means that another node got a subnet, so that this ends, with a lease or with OUT_OF_SUBNETS.
  for (;;) {
    options.signal.throwIfAborted()
    const lease = await tryAcquire(store, config, attrs, options)
    if (lease) return lease
  }
}

/** One round; undefined when another node was faster. */
async function tryAcquire(
  store: Store,
  config: NetworkConfig,
  attrs: LeaseAttrs,
  options: AcquireOptions,
): Promise<OwnLease | undefined> {
  const { log, signal, ttlMs, previous } = options
  const value = encodeLeaseValue(attrs)
  const address = formatIpv4(attrs.publicIp)
  const listing = await store.list(signal)
  const leases = decodeAll(listing)

  for (const lease of leases.filter(({ attrs: { publicIp } }) => publicIp === attrs.publicIp)) {
    if (!lease.subnet6 && isCompatible(lease.subnet, config)) {
      log.info(`Found lease (${describeSubnets(lease)}) for current IP (${address}), reusing`)
      const written = await store.update(
        lease.key,
        value,
        lease.entry.isReservation ? undefined : ttlMs,
        lease.entry,
        signal,
      )
      return written && { key: lease.key, subnet: lease.subnet, attrs, ...written }
    }
    log.info(
      `Found lease (${describeSubnets(lease)}) for current IP (${address}) but not compatible with current config, deleting`,
    )
    if (!(await store.delete(lease.key, lease.entry.revision, signal))) return undefined
  }

  const taken = takenByOthers(listing, leases, attrs)
  let subnet: Ipv4Net | undefined
  const holder =
    previous &&
    leases.find((lease) => lease.attrs.publicIp !== attrs.publicIp && ipv4NetsOverlap(lease.subnet, previous))
  if (previous && holder) {
    log.warn(
      `The subnet of an earlier run, ${formatIpv4Net(previous)}, is leased by ${formatIpv4(holder.attrs.publicIp)} now ` +
        `(${holder.key}); taking another. Containers of the earlier run must be started again`,
    )
  } else if (previous && !taken.some((other) => ipv4NetsOverlap(other, previous))) {
    if (isCompatible(previous, config)) {
      log.info(`Found previously leased subnet (${formatIpv4Net(previous)}), reusing`)
      subnet = previous
    } else {
      log.error(
        `Found previously leased subnet (${formatIpv4Net(previous)}) that is not compatible with the Etcd network config, ignoring`,
      )
    }
  }
  if (!subnet) {
    log.info(`Picking subnet in range ${formatIpv4(config.subnetMin)} ... ${formatIpv4(config.subnetMax)}`)
    subnet = pickSubnet(config, taken, options.random)
  }
  if (!subnet) {
    throw new WeftError('OUT_OF_SUBNETS', 'out of subnets', {
      remedy: `all subnets of ${formatIpv4Net(config.network)} are leased; delete leases of nodes that are gone, or make the Network larger`,
    })
  }
  const key = leaseKey(subnet)
  const written = await store.create(key, value, ttlMs, signal)
  if (!written) {
    log.info(`Subnet ${formatIpv4Net(subnet)} was taken by another node meanwhile; picking another`)
    return undefined
  }
  log.info(`Allocated lease (${describeSubnets({ subnet })}) to current node (${address}) `)
  return { key, subnet, attrs, ...written }
}

/** The subnets that are not free for this node. A key takes its subnet even when nobody can read its value. */
function takenByOthers(listing: StoreListing, leases: readonly FoundLease[], attrs: LeaseAttrs): Ipv4Net[] {
  const own = new Set(leases.filter(({ attrs: { publicIp } }) => publicIp === attrs.publicIp).map(({ key }) => key))
  const taken: Ipv4Net[] = []
  for (const { key } of listing.entries) {
    const subnets = own.has(key) ? undefined : parseLeaseKey(key)
    if (subnets) taken.push(subnets.subnet)
  }
  return taken
}

function decodeAll(listing: StoreListing): FoundLease[] {
  const leases: FoundLease[] = []
  for (const entry of listing.entries) {
    try {
      leases.push({ ...decodeLease(entry.key, entry.value), entry })
    } catch {
      // Nobody's lease as far as we can read; followLeases names it.
    }
  }
  return leases
}

/**
 * Renews a lease if the key is still as this node wrote it, from now on with `attrs`. Rejects with WeftError LEASE_LOST when it is gone or
 * another node's.
 */
export async function renewLease(
  store: Store,
  lease: OwnLease,
  options: { attrs?: LeaseAttrs; ttlMs: number; log: Log; signal: AbortSignal },
): Promise<OwnLease> {
  const { attrs = lease.attrs } = options
  const value = encodeLeaseValue(attrs)
  const before = encodeLeaseValue(lease.attrs)
  let held = before
  let revision = lease.revision
  // A reservation stays one: it is written without an end.
  let ttlMs = lease.expiresAt === undefined ? undefined : options.ttlMs
  for (;;) {
    const written = await store.update(lease.key, value, ttlMs, { revision, value: held }, options.signal)
    if (written) return { ...lease, attrs, ...written }
    const entry = (await store.list(options.signal)).entries.find(({ key }) => key === lease.key)
    if (!entry) throw new WeftError('LEASE_LOST', `the lease of ${formatIpv4Net(lease.subnet)} is gone from the store`)
    if (entry.value !== value && entry.value !== before) {
      throw new WeftError('LEASE_LOST', `${formatIpv4Net(lease.subnet)} is leased by another node now: ${entry.value}`)
    }
    // Our own bytes under another revision: an earlier write of ours whose answer was lost, or an operator who made the
    // lease a reservation.
    held = entry.value
    revision = entry.revision
    if (entry.isReservation) ttlMs = undefined
  }
}

/** What following leases knows of itself, for whoever reports on the daemon. */
export interface FollowState {
  /** When the whole store was last compared with what is known, by the clock's `now`; undefined before the first. */
  listedAt: number | undefined
  /** Whether the last thing that was asked of the store failed. */
  failing: boolean
  /** Leases that the store no longer has and that are kept until a second listing confirms it. */
  held: number
}

export interface FollowOptions {
  readonly log: Log
  readonly signal: AbortSignal
  readonly relistMs?: number
  /** The key of this node's own lease, which is no peer: of its loss the node must hear at once. */
  readonly ownKey?: () => string
  /** How long the loss of most peers must last before it is believed. */
  readonly holdMs?: number
  /** Kept up to date here. */
  readonly state?: FollowState
  readonly random?: () => number
  readonly clock?: Clock
}

/**
 * Every lease of the network, our own too: a snapshot, then changes, and a snapshot again after each gap and every
 * minute. Goes on until `signal` aborts, whatever happens to the store; then rejects with its reason.
 */
export async function* followLeases(store: Store, options: FollowOptions): AsyncGenerator<LeaseUpdate, never> {
  const { log, signal, relistMs = RELIST_MS, holdMs = HOLD_MS, random = Math.random, clock = systemClock } = options
  const state = options.state ?? { listedAt: undefined, failing: false, held: 0 }
  const losses = new Losses(holdMs, options.ownKey ?? (() => ''), log)
  const decoder = new Decoder((key) => losses.lost(key), log)
  let after: bigint | undefined
  let relistAt = 0
  let failures = 0 // since the watch last proved good
  const calm = seldom(log, () => clock.now())
  for (;;) {
    signal.throwIfAborted()
    try {
      if (after === undefined || clock.now() >= relistAt) {
        // Should this fail, changes can be followed all the same until it is tried again.
        relistAt = clock.now() + BACKOFF_MAX_MS
        const listing = await store.list(signal)
        after = listing.revision
        state.listedAt = clock.now()
        state.failing = false
        const leases = losses.snapshot(decoder.known, decoder.snapshot(listing.entries), clock.now())
        relistAt = clock.now() + (losses.waitMs(clock.now()) ?? relistMs)
        state.held = losses.held
        yield { kind: 'snapshot', leases }
      }
      const relist = new AbortController()
      void clock.sleep(Math.max(0, relistAt - clock.now()), AbortSignal.any([signal, relist.signal])).then(
        () => relist.abort(),
        () => {},
      )
      try {
        for await (const batch of store.watch(after, AbortSignal.any([signal, relist.signal]))) {
          after = batch.revision
          state.failing = false
          if (batch.changes.length === 0) continue
          failures = 0
          const update = losses.changes(decoder.known, decoder.changes(batch.changes), clock.now())
          state.held = losses.held
          yield update
          // Whether the loss is real is asked as soon as it may be believed, not at the next full minute.
          const waitMs = losses.waitMs(clock.now())
          if (waitMs !== undefined && clock.now() + waitMs < relistAt) {
            relistAt = clock.now() + waitMs
            break
          }
        }
      } catch (error) {
        if (!relist.signal.aborted || signal.aborted) throw error
        failures = 0
      } finally {
        relist.abort()
      }
    } catch (error) {
      signal.throwIfAborted()
      const gap = error instanceof StoreGap
      if (!gap && !isWeftError(error)) throw error
      const text = gap
        ? `${store.name} watch for leases fell behind (${error.message}), re-listing and resuming`
        : `${store.name} watch channel for leases closed (${describeError(error)}), reconnecting from rev ${after ?? 0n}...`
      if (gap) calm.warn(text)
      else calm.error(text)
      if (gap) after = undefined
      state.failing = !gap
      failures++
      // A gap is made good at once; only a store that answers every watch with one has to wait like any other.
      if (gap && failures === 1) continue
      const backoffMs = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** Math.min(failures - 1, 10))
      // Jitter on the upper half: nodes that lost one store must not come back in step.
      await clock.sleep(backoffMs * (0.5 + random() / 2), signal)
    }
  }
}

/** Changes, with the leases behind the keys that were deleted. */
type Changes = Extract<LeaseUpdate, { kind: 'changes' }> & { readonly lost: readonly Lease[] }

/** Decodes entries; one that cannot be read leaves its key as it was and is named once. */
class Decoder {
  /** What a key was that went a moment ago: it may come back unreadable. */
  readonly #lost: (key: string) => Lease | undefined
  readonly #log: Log
  #known = new Map<string, Lease>()
  readonly #named = new Set<string>()

  constructor(lost: (key: string) => Lease | undefined, log: Log) {
    this.#lost = lost
    this.#log = log
  }

  /** The leases in the store as far as they were delivered. */
  get known(): ReadonlyMap<string, Lease> {
    return this.#known
  }

  snapshot(entries: readonly StoreEntry[]): ReadonlyMap<string, Lease> {
    const next = new Map<string, Lease>()
    for (const entry of entries) {
      const lease = this.#decode(entry) ?? this.#known.get(entry.key) ?? this.#lost(entry.key)
      if (lease) next.set(entry.key, lease)
    }
    this.#known = next
    return new Map(next)
  }

  changes(changes: readonly StoreChange[]): Changes {
    // The last change of a key counts: what lies between was never seen by anybody.
    const last = new Map<string, Lease | undefined>()
    const before = new Map<string, Lease | undefined>()
    for (const change of changes) {
      const key = change.kind === 'put' ? change.entry.key : change.key
      if (!before.has(key)) before.set(key, this.#known.get(key))
      if (change.kind === 'delete') {
        last.set(key, undefined)
        this.#known.delete(key)
        continue
      }
      const lease = this.#decode(change.entry) ?? (this.#known.has(key) ? undefined : this.#lost(key))
      if (!lease) continue
      last.set(key, lease)
      this.#known.set(key, lease)
    }
    const puts: Lease[] = []
    const deletes: string[] = []
    for (const [key, lease] of last) {
      if (lease) puts.push(lease)
      else deletes.push(key)
    }
    const lost = deletes.flatMap((key) => before.get(key) ?? [])
    return { kind: 'changes', puts, deletes, lost }
  }

  #decode(entry: StoreEntry): Lease | undefined {
    try {
      const lease = decodeLease(entry.key, entry.value)
      this.#named.delete(entry.key)
      return lease
    } catch (error) {
      if (!this.#named.has(entry.key)) this.#log.warn(`Ignoring bad subnet node: ${entry.key}: ${messageOf(error)}`)
      this.#named.add(entry.key)
      return undefined
    }
  }
}

/**
 * Fail-static: when most peers vanish at once it is more often the store that lost them (restored, wiped, another
 * cluster behind the same name) than the hosts. More than half of the known leases, and more than two, that go within
 * the hold time are kept until a listing at least that much later lacks them still. Fewer go at once.
 */
class Losses {
  readonly #holdMs: number
  readonly #ownKey: () => string
  readonly #log: Log
  /** What went within the last hold time, or is held. */
  readonly #gone = new Map<string, { readonly lease: Lease; readonly at: number }>()
  #heldSince: number | undefined

  constructor(holdMs: number, ownKey: () => string, log: Log) {
    this.#holdMs = holdMs
    this.#ownKey = ownKey
    this.#log = log
  }

  get held(): number {
    return this.#heldSince === undefined ? 0 : this.#gone.size
  }

  /** The lease that went within the last hold time, or is held. */
  lost(key: string): Lease | undefined {
    return this.#gone.get(key)?.lease
  }

  /** How long from now the loss can be confirmed at the earliest; undefined while nothing is held. */
  waitMs(now: number): number | undefined {
    return this.#heldSince === undefined ? undefined : Math.max(0, this.#heldSince + this.#holdMs - now)
  }

  /** What to make known of a listing: its leases and those that are held. */
  snapshot(
    before: ReadonlyMap<string, Lease>,
    after: ReadonlyMap<string, Lease>,
    now: number,
  ): ReadonlyMap<string, Lease> {
    let survivors = 0
    const own = this.#ownKey()
    for (const [key, lease] of before) {
      if (after.has(key)) survivors += key === own ? 0 : 1
      else this.#lose(lease, now)
    }
    for (const key of after.keys()) this.#gone.delete(key)
    const since = this.#heldSince
    if (since === undefined) this.#decide(survivors, now)
    else if (!this.#isLarge(survivors))
      this.#end(`Leases that had vanished are back; ${this.#gone.size} are not, and are removed`)
    else if (now - since >= this.#holdMs)
      this.#end(`The store still lacks ${this.#gone.size} leases; they are removed now`)
    return this.#heldSince === undefined ? after : this.#withHeld(after)
  }

  /** The same for changes, of which `after` is the result. */
  changes(after: ReadonlyMap<string, Lease>, update: Changes, now: number): LeaseUpdate {
    for (const lease of update.lost) this.#lose(lease, now)
    for (const { key } of update.puts) this.#gone.delete(key)
    if (this.#heldSince !== undefined)
      return { ...update, deletes: update.deletes.filter((key) => key === this.#ownKey()) }
    this.#decide(after.has(this.#ownKey()) ? after.size - 1 : after.size, now)
    // What had gone before the rest followed comes back too.
    return this.#heldSince === undefined ? update : { kind: 'snapshot', leases: this.#withHeld(after) }
  }

  #lose(lease: Lease, now: number): void {
    if (lease.key !== this.#ownKey()) this.#gone.set(lease.key, { lease, at: now })
  }

  #isLarge(survivors: number): boolean {
    return this.#gone.size > FEW_LOSSES && this.#gone.size > survivors
  }

  #decide(survivors: number, now: number): void {
    for (const [key, { at }] of this.#gone) {
      if (now - at < this.#holdMs) break // in the order in which they went
      this.#gone.delete(key)
    }
    if (!this.#isLarge(survivors)) return
    this.#heldSince = now
    this.#log.error(
      `${this.#gone.size} of ${this.#gone.size + survivors} leases vanished from the store at once. Their hosts are ` +
        `still forwarded to; they are removed in ${this.#holdMs / 1000} s if the store lacks them still. If it was ` +
        'restored or wiped, restart nothing: each weftd writes its lease again',
    )
  }

  #end(why: string): void {
    this.#log.warn(why)
    this.#heldSince = undefined
    this.#gone.clear()
  }

  #withHeld(after: ReadonlyMap<string, Lease>): ReadonlyMap<string, Lease> {
    return new Map([...after, ...[...this.#gone].map(([key, { lease }]) => [key, lease] as const)])
  }
}
