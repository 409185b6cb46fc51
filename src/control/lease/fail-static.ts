// fail-static.ts - which leases a node believes of what its source reports.
//
// One that cannot be read leaves its key as it was. When most peers vanish at once it is more often the store that lost
// them (restored, wiped, another cluster behind the same name) than the hosts. More than half of the known leases, and more
// than two, that go within the hold time are kept until a listing at least that much later lacks them still, whoever of
// them is back meanwhile. Fewer go at once. Of fewer peers our own key tells: when it goes with more than half of them, it
// was the store. Pure.

import type { Log } from '../../base/log.ts'
import { listed, type Address } from '../../net/address.ts'
import { leasesEqual, type Lease } from './lease.ts'
import type { Change, Entry } from './subnet-manager.ts'

const FEW_LOSSES = 2

/** Leases are compared by value: one that is written again as it was has not changed, and must move no route. */
export interface ViewChange {
  readonly added: readonly Lease[]
  readonly changed: readonly Lease[]
  readonly removed: readonly Lease[]
  /** Keys whose lease says the same, but was written again since. */
  readonly renewed: readonly string[]
}

interface ViewOptions {
  /** The loss of most peers must last this long before it is believed. */
  readonly holdMs: number
  /** The key of this node's own lease, which is no peer: its loss is believed at once. */
  readonly ownKey: () => string
  readonly log: Log
}

/** By each of which a node is known under whatever key it has: it may have one of them no more. */
const addressesOf = ({ attrs }: Lease): readonly Address[] => listed(attrs.publicIp)

/** All leases of the network by key, our own among them. */
export type PeerView = ReadonlyMap<string, Lease>

/** The view that a node has. Times are by a clock of the caller's, in ms, that never goes back. */
export class LeaseView {
  readonly #options: ViewOptions
  readonly #leases = new Map<string, Lease>()
  /** The number of leases that publish each address. */
  readonly #at = new Map<Address, number>()
  /**
   * Leases that went within the last hold time, in the order in which they went. While `#isHolding`, they are still in
   * `#leases`.
   */
  readonly #gone = new Map<string, { readonly lease: Lease; readonly at: number }>()
  #isHolding = false
  #holds = 0
  /** The time when our own key went. */
  #ownLostAt = -Infinity
  /** Keys that cannot be read and were named. */
  readonly #named = new Set<string>()

  constructor(options: ViewOptions) {
    this.#options = options
  }

  get leases(): PeerView {
    return this.#leases
  }

  /** True when the value under this node's own key cannot be read. */
  get isOwnUnreadable(): boolean {
    return this.#named.has(this.#options.ownKey())
  }

  /** The number of leases that are kept though the source lacks them. */
  get held(): number {
    return this.#isHolding ? this.#gone.size : 0
  }

  /** Their keys. */
  get heldKeys(): readonly string[] {
    return this.#isHolding ? [...this.#gone.keys()] : []
  }

  /** The number of times that leases began to be held. */
  get holds(): number {
    return this.#holds
  }

  /** The time from now until a loss can be confirmed; undefined while nothing is held. */
  waitMs(now: number): number | undefined {
    const [oldest] = this.#isHolding ? this.#gone.values() : []
    return oldest && Math.max(0, oldest.at + this.#options.holdMs - now)
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
      if (found.has(key)) survivors += key === own ? 0 : 1
      else if (!this.#isHeld(key)) this.#lose(lease, now)
    }
    for (const key of found.keys()) this.#gone.delete(key)
    const addresses = new Set([...found.values()].flatMap(addressesOf))
    this.#forgetMoved((address) => addresses.has(address))
    this.#endIfAllAreBack()
    if (this.#isHolding) this.#believe(survivors, now)
    else this.#holdIfLarge(survivors, now)
    const went = [...this.#leases.keys()].filter((key) => !found.has(key) && !this.#isHeld(key))
    return this.#apply([...went.map((key) => [key, undefined] as const), ...found, ...this.#held()])
  }

  /** Takes changes over. The last one of a key counts: what lies between was never seen by anybody. */
  change(changes: readonly Change[], now: number): ViewChange {
    const last = new Map<string, Lease | undefined>()
    for (const change of changes) {
      if (change.kind === 'put') last.set(change.entry.key, this.#read(change.entry, last))
      else last.set(change.key, undefined)
    }
    const own = this.#options.ownKey()
    if (this.#leases.has(own) && last.has(own) && !last.get(own)) this.#ownLostAt = now
    let hasLost = false
    let survivors = this.#leases.size - (this.#leases.has(own) ? 1 : 0)
    for (const [key, lease] of last) {
      const before = this.#leases.get(key)
      if (lease) {
        this.#gone.delete(key)
        if (!before && key !== own) survivors++
      } else if (before && !this.#isHeld(key)) {
        this.#lose(before, now)
        hasLost = true
        if (key !== own) survivors--
      }
    }
    const news = new Set([...last.values()].flatMap((lease) => (lease ? addressesOf(lease) : [])))
    const isNews = (address: Address): boolean => news.has(address)
    const moved = this.#forgetMoved(hasLost ? this.#isPresentBut(last, isNews) : isNews)
    this.#endIfAllAreBack()
    const wasHolding = this.#isHolding
    if (!wasHolding) this.#holdIfLarge(survivors, now)
    const left = moved.map((key) => [key, undefined] as const)
    // What had gone before the rest followed comes back too.
    const back = wasHolding ? [] : this.#held()
    return this.#apply([...left, ...[...last].filter(([key]) => !this.#isHeld(key)), ...back])
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
    return this.#isHolding && this.#gone.has(key)
  }

  #held(): (readonly [string, Lease])[] {
    return this.#isHolding ? [...this.#gone].map(([key, { lease }]) => [key, lease] as const) : []
  }

  #lose(lease: Lease, now: number): void {
    if (lease.key !== this.#options.ownKey()) this.#gone.set(lease.key, { lease, at: now })
  }

  /** True when an address is among the news of a batch, or in the view under a key that the batch does not have. */
  #isPresentBut(
    batch: ReadonlyMap<string, unknown>,
    isNews: (address: Address) => boolean,
  ): (address: Address) => boolean {
    const absent = new Map<Address, number>()
    const leave = (lease: Lease | undefined): void => {
      for (const address of lease ? addressesOf(lease) : []) absent.set(address, (absent.get(address) ?? 0) + 1)
    }
    for (const key of batch.keys()) leave(this.#leases.get(key))
    for (const key of this.#gone.keys()) if (!batch.has(key)) leave(this.#leases.get(key))
    return (address) => isNews(address) || (this.#at.get(address) ?? 0) > (absent.get(address) ?? 0)
  }

  /** Whoever is there under another key has not vanished: the keys that it had. */
  #forgetMoved(isPresent: (address: Address) => boolean): string[] {
    const moved = [...this.#gone].flatMap(([key, { lease }]) => (addressesOf(lease).some(isPresent) ? [key] : []))
    for (const key of moved) this.#gone.delete(key)
    return moved
  }

  #isLarge(survivors: number, now: number): boolean {
    const few = now - this.#ownLostAt < this.#options.holdMs ? 0 : FEW_LOSSES
    return this.#gone.size > few && this.#gone.size > survivors
  }

  #holdIfLarge(survivors: number, now: number): void {
    const { holdMs, log } = this.#options
    for (const [key, { at }] of this.#gone) {
      if (now - at < holdMs) break // in the order in which they went
      this.#gone.delete(key)
    }
    if (!this.#isLarge(survivors, now)) return
    this.#isHolding = true
    this.#holds++
    for (const [key, { lease }] of this.#gone) this.#gone.set(key, { lease, at: now })
    log.error(
      `${this.#gone.size} of ${this.#gone.size + survivors} leases vanished from the store at once. Their hosts are ` +
        `still forwarded to; they are removed in ${holdMs / 1000} s if the store lacks them still. If it was ` +
        'restored or wiped, restart nothing: each weftd writes its lease again',
    )
  }

  /** Lets go of what was held for its time, and of what went meanwhile, unless that is a large loss by itself. */
  #believe(survivors: number, now: number): void {
    const before = this.#gone.size
    for (const [key, { at }] of this.#gone) if (now - at >= this.#options.holdMs) this.#gone.delete(key)
    if (this.#gone.size === before) return
    if (!this.#isLarge(survivors, now)) this.#gone.clear()
    this.#isHolding = this.#gone.size > 0
    this.#options.log.warn(`The store still lacks ${before - this.#gone.size} leases; they are removed now`)
  }

  #endIfAllAreBack(): void {
    if (!this.#isHolding || this.#gone.size > 0) return
    this.#isHolding = false
    this.#options.log.warn('All leases that had vanished are back')
  }

  /** Puts leases, or removes those of keys that have none, and says what differs. */
  #apply(news: Iterable<readonly [string, Lease | undefined]>): ViewChange {
    const added: Lease[] = []
    const changed: Lease[] = []
    const removed: Lease[] = []
    const renewed: string[] = []
    for (const [key, lease] of news) {
      const before = this.#leases.get(key)
      if (lease) {
        const isSame = before && leasesEqual(before, lease)
        if (isSame && before.revision === lease.revision) continue
        this.#leases.set(key, lease) // when it says the same, it was written again all the same
        this.#count(lease, 1)
        if (before) this.#count(before, -1)
        if (!before) added.push(lease)
        else if (isSame) renewed.push(key)
        else changed.push(lease)
      } else if (before) {
        this.#leases.delete(key)
        this.#count(before, -1)
        removed.push(before)
      }
    }
    return { added, changed, removed, renewed }
  }

  #count(lease: Lease, change: number): void {
    for (const address of addressesOf(lease)) {
      const now = (this.#at.get(address) ?? 0) + change
      if (now === 0) this.#at.delete(address)
      else this.#at.set(address, now)
    }
  }
}
