// fail-static.ts - which leases a node believes of what its source reports.
//
// One that cannot be read leaves its key as it was. When most peers vanish at once it is more often the store that lost
// them (restored, wiped, another cluster behind the same name) than the hosts. More than half of the known leases, and more
// than two, that go within the hold time are kept until a listing at least that much later lacks them still. Fewer go at
// once. Of fewer peers our own key tells: when it goes with more than half of them, it was the store. Pure.

import type { Log } from '../log.ts'
import { leasesEqual, type Lease } from './lease.ts'
import type { Change, Entry } from './subnet-manager.ts'

const FEW_LOSSES = 2

/** By value: a lease that is written again as it was has not changed, and must move no route. */
export interface ViewChange {
  readonly added: readonly Lease[]
  readonly changed: readonly Lease[]
  readonly removed: readonly Lease[]
}

export interface ViewOptions {
  /** How long the loss of most peers must last before it is believed. */
  readonly holdMs: number
  /** The key of this node's own lease, which is no peer: its loss is believed at once. */
  readonly ownKey: () => string
  readonly log: Log
}

/** All leases of the network by key, our own among them. */
export type PeerView = ReadonlyMap<string, Lease>

/** The view that a node has. Times are by a clock of the caller's, in ms, that never goes back. */
export class LeaseView {
  readonly #options: ViewOptions
  readonly #leases = new Map<string, Lease>()
  /** What went within the last hold time; while `#heldSince` is set, these are held, and stand in `#leases`. */
  readonly #gone = new Map<string, { readonly lease: Lease; readonly at: number }>()
  #heldSince: number | undefined
  /** When our own key went; and while leases are held, how many losses were few then. */
  #ownLostAt = -Infinity
  #heldFew: number | undefined
  /** Keys that cannot be read and were named. */
  readonly #named = new Set<string>()

  constructor(options: ViewOptions) {
    this.#options = options
  }

  get leases(): PeerView {
    return this.#leases
  }

  /** Whether what stands under this node's own key cannot be read. */
  get isOwnUnreadable(): boolean {
    return this.#named.has(this.#options.ownKey())
  }

  /** How many are kept though the source lacks them. */
  get held(): number {
    return this.#heldSince === undefined ? 0 : this.#gone.size
  }

  /** How long from now the loss can be confirmed at the earliest; undefined while nothing is held. */
  waitMs(now: number): number | undefined {
    return this.#heldSince === undefined ? undefined : Math.max(0, this.#heldSince + this.#options.holdMs - now)
  }

  /** Takes a whole listing over. */
  list(entries: readonly Entry[], now: number): ViewChange {
    const found = new Map<string, Lease>()
    for (const entry of entries) {
      const lease = this.#read(entry)
      if (lease) found.set(entry.key, lease)
    }
    const own = this.#options.ownKey()
    if (this.#leases.has(own) && !found.has(own)) this.#ownLostAt = now
    let survivors = 0
    for (const [key, lease] of this.#leases) {
      if (this.#isHeld(key)) continue
      if (!found.has(key)) this.#lose(lease, now)
      else if (key !== own) survivors++
    }
    for (const key of found.keys()) this.#gone.delete(key)
    this.#forgetMoved(found.values())
    const since = this.#heldSince
    if (since === undefined) this.#holdIfLarge(survivors, now)
    else if (!this.#isLarge(survivors, now))
      this.#release(`Leases that had vanished are back; ${this.#gone.size} are not, and are removed`)
    else if (now - since >= this.#options.holdMs)
      this.#release(`The store still lacks ${this.#gone.size} leases; they are removed now`)
    const went = [...this.#leases.keys()].filter((key) => !found.has(key) && !this.#isHeld(key))
    return this.#apply([...went.map((key) => [key, undefined] as const), ...found, ...this.#held()])
  }

  /** Takes changes over. The last one of a key counts: what lies between was never seen by anybody. */
  change(changes: readonly Change[], now: number): ViewChange {
    const last = new Map<string, Lease | undefined>()
    for (const change of changes) {
      const lease = change.kind === 'put' ? this.#read(change.entry, last) : undefined
      if (change.kind === 'delete') last.set(change.key, undefined)
      else if (lease) last.set(change.entry.key, lease)
    }
    const own = this.#options.ownKey()
    if (this.#leases.has(own) && last.has(own) && !last.get(own)) this.#ownLostAt = now
    let survivors = this.#leases.size - (this.#leases.has(own) ? 1 : 0)
    for (const [key, lease] of last) {
      const before = this.#leases.get(key)
      if (lease) {
        this.#gone.delete(key)
        if (!before && key !== own) survivors++
      } else if (before && !this.#isHeld(key)) {
        this.#lose(before, now)
        if (key !== own) survivors--
      }
    }
    const moved = this.#forgetMoved([...last.values()].filter((lease) => lease !== undefined))
    // What had gone before the rest followed comes back too.
    if (this.#heldSince === undefined) this.#holdIfLarge(survivors, now)
    const left = moved.filter((key) => !last.has(key)).map((key) => [key, undefined] as const)
    return this.#apply([...left, ...[...last].filter(([key]) => !this.#isHeld(key)), ...this.#held()])
  }

  /** The lease of an entry. One that cannot be read leaves its key as it was (`last` within a batch), and is named once. */
  #read(entry: Entry, last?: ReadonlyMap<string, Lease | undefined>): Lease | undefined {
    const { key } = entry
    if (entry.lease) {
      this.#named.delete(key)
      return entry.lease
    }
    if (!this.#named.has(key)) this.#options.log.warn(`Ignoring bad subnet node: ${key}: ${entry.problem}`)
    this.#named.add(key)
    return last?.has(key) ? last.get(key) : (this.#leases.get(key) ?? this.#gone.get(key)?.lease)
  }

  #isHeld(key: string): boolean {
    return this.#heldSince !== undefined && this.#gone.has(key)
  }

  #held(): (readonly [string, Lease])[] {
    return this.#heldSince === undefined ? [] : [...this.#gone].map(([key, { lease }]) => [key, lease] as const)
  }

  #lose(lease: Lease, now: number): void {
    if (lease.key !== this.#options.ownKey()) this.#gone.set(lease.key, { lease, at: now })
  }

  /** Whoever is there under another key has not vanished: the keys that it had. */
  #forgetMoved(present: Iterable<Lease>): string[] {
    const addresses = new Set([...present].map(({ attrs }) => attrs.publicIp))
    const moved = [...this.#gone].flatMap(([key, { lease }]) => (addresses.has(lease.attrs.publicIp) ? [key] : []))
    for (const key of moved) this.#gone.delete(key)
    return moved
  }

  #few(now: number): number {
    return this.#heldFew ?? (now - this.#ownLostAt < this.#options.holdMs ? 0 : FEW_LOSSES)
  }

  #isLarge(survivors: number, now: number): boolean {
    return this.#gone.size > this.#few(now) && this.#gone.size > survivors
  }

  #holdIfLarge(survivors: number, now: number): void {
    const { holdMs, log } = this.#options
    for (const [key, { at }] of this.#gone) {
      if (now - at < holdMs) break // in the order in which they went
      this.#gone.delete(key)
    }
    if (!this.#isLarge(survivors, now)) return
    this.#heldFew = this.#few(now)
    this.#heldSince = now
    log.error(
      `${this.#gone.size} of ${this.#gone.size + survivors} leases vanished from the store at once. Their hosts are ` +
        `still forwarded to; they are removed in ${holdMs / 1000} s if the store lacks them still. If it was ` +
        'restored or wiped, restart nothing: each weftd writes its lease again',
    )
  }

  #release(why: string): void {
    this.#options.log.warn(why)
    this.#heldSince = undefined
    this.#heldFew = undefined
    this.#gone.clear()
  }

  /** Puts leases, or removes those of keys that have none, and says what differs. */
  #apply(news: Iterable<readonly [string, Lease | undefined]>): ViewChange {
    const added: Lease[] = []
    const changed: Lease[] = []
    const removed: Lease[] = []
    for (const [key, lease] of news) {
      const before = this.#leases.get(key)
      if (lease && before && leasesEqual(before, lease)) continue
      if (lease) {
        this.#leases.set(key, lease)
        if (before) changed.push(lease)
        else added.push(lease)
      } else if (before) {
        this.#leases.delete(key)
        removed.push(before)
      }
    }
    return { added, changed, removed }
  }
}
