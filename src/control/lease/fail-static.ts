// fail-static.ts - decides which leases a node uses when leases vanish from the store or cannot be read. It does no
// I/O.
//
// If the value of a key cannot be read, the key keeps its previous lease. If most peers vanish at the same time,
// usually the store lost their leases, because the store was restored or wiped, or because the store's name now leads
// to another cluster. The hosts still run in such a case. So if more than half of the known leases, and more than two,
// vanish within the hold time (`holdMs`), the node keeps these leases. The node drops these leases if a listing after
// the hold time still lacks them. If fewer leases vanish, the node drops them immediately. In a network with few peers
// the loss of the node's own lease also counts as a sign. This node still runs, so probably nobody removed its lease on
// purpose, and the store lost it. If the own lease vanishes together with more than half of the peers' leases, the
// store probably lost those leases in the same way, and the node keeps these peers, even if they are only one or two.

import type { Log } from '../../base/log.ts'
import { addressKey, listed, type AddressKey, type Family } from '../../net/address.ts'
import { leasesEqual, type Lease } from './lease.ts'
import type { Change, Entry } from './subnet-manager.ts'

const FEW_LOSSES = 2

/**
 * The differences between two states of a node's leases (LeaseView). A lease that was written again with the same value
 * does not count as changed, so its routes stay.
 */
export interface ViewChange {
  readonly added: readonly Lease[]
  readonly changed: readonly Lease[]
  readonly removed: readonly Lease[]
  /** The keys whose lease was written again with the same value, as by a renewal. */
  readonly renewed: readonly string[]
}

interface ViewOptions {
  /** How long, in ms, most of the peers' leases must be missing before the node drops these peers. */
  readonly holdMs: number
  /**
   * Returns the key of this node's own lease. The loss of this key takes effect immediately, because the hold time
   * protects only peers.
   */
  readonly ownKey: () => string
  readonly log: Log
}

/** Returns the keys of the addresses that a lease publishes. */
const addressesOf = ({ attrs }: Lease): readonly AddressKey[] => listed(attrs.publicIp).map(addressKey)

/**
 * Copies the address and the data of a family from the node's previous lease into `lease`, and returns the new lease.
 * Returns `lease` unchanged if the previous lease belongs to another node or another backend.
 */
function withFamily(lease: Lease, family: Family, before: Lease | undefined): Lease {
  const { attrs } = lease
  if (before?.revision !== lease.revision || before?.attrs.backendType !== attrs.backendType) return lease
  const publicIp = { ...attrs.publicIp, [family]: before.attrs.publicIp[family] }
  const { backendData, backendV6Data } = before.attrs
  return { ...lease, attrs: { ...attrs, publicIp, ...(family === 'ipv4' ? { backendData } : { backendV6Data }) } }
}

/** All leases of the network by key, including this node's own. */
export type PeerView = ReadonlyMap<string, Lease>

/**
 * The leases that a node uses. They may differ from the leases in the store while leases are missing there. Times are
 * in ms of the caller's monotonic clock.
 */
export class LeaseView {
  readonly #options: ViewOptions
  readonly #leases = new Map<string, Lease>()
  /** The number of leases that publish each public address. */
  readonly #at = new Map<AddressKey, number>()
  /**
   * The leases that vanished within the last `holdMs`, in the order in which they vanished. While `#isHolding` is true,
   * they are still in `#leases`.
   */
  readonly #gone = new Map<string, { readonly lease: Lease; readonly at: number }>()
  #isHolding = false
  #holds = 0
  #ownLostAt = -Infinity
  /** The keys whose unreadable value was already logged, so that it is not logged again. */
  readonly #named = new Set<string>()

  constructor(options: ViewOptions) {
    this.#options = options
  }

  get leases(): PeerView {
    return this.#leases
  }

  get isOwnUnreadable(): boolean {
    return this.#named.has(this.#options.ownKey())
  }

  get held(): number {
    return this.#isHolding ? this.#gone.size : 0
  }

  get heldKeys(): readonly string[] {
    return this.#isHolding ? [...this.#gone.keys()] : []
  }

  get holds(): number {
    return this.#holds
  }

  /**
   * Returns how many ms remain until a listing can confirm that the missing leases are gone; undefined if the node
   * keeps no missing lease.
   */
  waitMs(now: number): number | undefined {
    const [oldest] = this.#isHolding ? this.#gone.values() : []
    return oldest && Math.max(0, oldest.at + this.#options.holdMs - now)
  }

  /** Applies a complete listing of the leases. `now` is in ms of a monotonic clock. */
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
    if (this.#isHolding) this.#confirm(survivors, now)
    else this.#holdIfLarge(survivors, now)
    const went = [...this.#leases.keys()].filter((key) => !found.has(key) && !this.#isHeld(key))
    return this.#apply([...went.map((key) => [key, undefined] as const), ...found, ...this.#held()])
  }

  /**
   * Applies a batch of changes of the leases. Only the last change of each key counts. `now` is in ms of a monotonic
   * clock.
   */
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
    const isNews = (address: AddressKey): boolean => news.has(address)
    const moved = this.#forgetMoved(hasLost ? this.#isPresentBut(last, isNews) : isNews)
    this.#endIfAllAreBack()
    const wasHolding = this.#isHolding
    if (!wasHolding) this.#holdIfLarge(survivors, now)
    const left = moved.map((key) => [key, undefined] as const)
    // If this change makes the number of vanished leases too large (#isLarge), the node keeps the missing leases. In
    // that case also restore the leases that were dropped within the last `holdMs`.
    const back = wasHolding ? [] : this.#held()
    return this.#apply([...left, ...[...last].filter(([key]) => !this.#isHeld(key)), ...back])
  }

  /**
   * Returns the lease of an entry. If the entry cannot be read, logs the reason once, and returns the previous lease of
   * the entry's key. If only one family cannot be read, also logs the reason once, and takes only this family from the
   * previous lease. The previous lease comes from `last`, which has the earlier changes of the batch; if `last` lacks
   * the key, the previous lease comes from the current leases.
   */
  #read(entry: Entry, last?: ReadonlyMap<string, Lease | undefined>): Lease | undefined {
    const { key, lease } = entry
    const problem = lease ? entry.invalid?.problem : entry.problem
    if (problem === undefined) {
      this.#named.delete(key)
      return lease
    }
    if (!this.#named.has(key)) this.#options.log.warn(`Ignoring bad subnet node: ${key}: ${problem}`)
    this.#named.add(key)
    const before = last?.has(key) ? last.get(key) : (this.#leases.get(key) ?? this.#gone.get(key)?.lease)
    return lease && entry.invalid ? withFamily(lease, entry.invalid.family, before) : before
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

  /**
   * Returns a function that returns true if some lease publishes the given address after the batch. That lease is in
   * the batch, or it is a current lease that the batch does not change. Vanished leases that the node keeps do not
   * count.
   */
  #isPresentBut(
    batch: ReadonlyMap<string, unknown>,
    isNews: (address: AddressKey) => boolean,
  ): (address: AddressKey) => boolean {
    const absent = new Map<AddressKey, number>()
    const leave = (lease: Lease | undefined): void => {
      for (const address of lease ? addressesOf(lease) : []) absent.set(address, (absent.get(address) ?? 0) + 1)
    }
    for (const key of batch.keys()) leave(this.#leases.get(key))
    for (const key of this.#gone.keys()) if (!batch.has(key)) leave(this.#leases.get(key))
    return (address) => isNews(address) || (this.#at.get(address) ?? 0) > (absent.get(address) ?? 0)
  }

  /**
   * Removes a vanished key from `#gone` if its node has a lease under another key, because such a node only got a new
   * subnet. Returns the removed keys.
   */
  #forgetMoved(isPresent: (address: AddressKey) => boolean): string[] {
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
      if (now - at < holdMs) break // the map is in the order in which the leases vanished
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

  /**
   * Drops the leases that were missing for `holdMs`. Also drops the leases that vanished later, unless their number
   * alone is too large (#isLarge). In that case the node keeps them until they were missing for `holdMs` too.
   */
  #confirm(survivors: number, now: number): void {
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

  /** Sets each key to its lease, or removes the key if its lease is undefined. Returns the differences. */
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
        this.#leases.set(key, lease) // the revision is new even if the value is the same
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
