// store.ts - what weft asks of a store: a few primitive operations on one directory of flannel's keys.
//
// Everything that decides (allocation, reuse, renewal, following changes) stands above this interface and is
// written once, for every store, and for the simulated one of the tests. A store offers compare-and-set and
// a watch that can be resumed, and nothing else. All methods reject with WeftError: STORE_UNAVAILABLE when
// trying again may help, STORE when an operator must act.

/** A key that is not written again lives this long, unless the store is made with another time: upstream's 24 hours. */
export const LEASE_TTL_MS = 24 * 3600 * 1000

/** One key below `<prefix>/subnets/`. `key` is the last component, `value` the bytes as text. */
export interface StoreEntry {
  readonly key: string
  readonly value: string
  /** Changes with every write of the key, and is higher after a later one; what `update` and `delete` compare. */
  readonly revision: bigint
  /**
   * The revision at which the key came, and the same in all its life: of two keys, that with the lower one was there first. 0 where the
   * store lets none come that lies across another (see `create`).
   */
  readonly created: bigint
  /** Whether the key stays until somebody deletes it: an operator's reservation. */
  readonly isReservation: boolean
}

/** The whole directory as of `revision`; `watch(revision)` continues without a gap. */
interface StoreListing {
  readonly revision: bigint
  readonly entries: readonly StoreEntry[]
}

export type StoreChange =
  | { readonly kind: 'put'; readonly entry: StoreEntry }
  | { readonly kind: 'delete'; readonly key: string; readonly revision: bigint }

/**
 * Changes that belong together, in order; none to say that the store answers. `revision` is where to resume: everything up
 * to it was delivered.
 */
export interface StoreBatch {
  readonly revision: bigint
  readonly changes: readonly StoreChange[]
}

/** An entry as it was read; without `isReservation` it is none. */
export type Expected = Pick<StoreEntry, 'revision' | 'value'> & Partial<Pick<StoreEntry, 'isReservation'>>

export interface Written {
  readonly revision: bigint
  /** The time when the store will drop the key by itself, in ms since the epoch; undefined when never. */
  readonly expiresAt: number | undefined
  /** The reason why the key was kept alive as it was, and not written: the store is full. The operator must hear of it. */
  readonly unwritten?: string
}

/** The values that stand beside the leases, by name; all of them, or those that were written since another answer. */
export interface Claims {
  readonly revision: bigint
  readonly isWhole: boolean
  readonly values: ReadonlyMap<string, string>
}

export interface Store {
  /** The name for messages: `etcd` or `directory`. */
  readonly name: string
  /** flanneld's name, in its log, for a manager of subnets that are kept there. */
  readonly title: string
  /** The network configuration's JSON text. Rejects with CONFIG_MISSING when there is none, and says where to put it. */
  config(signal: AbortSignal): Promise<string>
  /** Puts another in its place, or the first. */
  setConfig(text: string, signal: AbortSignal): Promise<void>
  list(signal: AbortSignal): Promise<StoreListing>
  /**
   * The times when keys end unless they are written again, in ms since the epoch, by this host's clock; without reservations, and without
   * those that ended meanwhile. It costs a call for each: for an operator who asks, and no daemon.
   */
  ends(signal: AbortSignal): Promise<ReadonlyMap<string, number>>
  /**
   * Yields the changes after `after`. Ends only by throwing: WeftError GAP when `after` is lost, another one when the
   * connection is, the signal's reason when aborted.
   */
  watch(after: bigint, signal: AbortSignal): AsyncIterable<StoreBatch>
  /**
   * Writes the key if it does not exist; undefined when it does. It ends when it is not written for the store's time. A store that can
   * tell in the same moment returns undefined also where another key is there of which `isAcross` is true; with any other, whoever
   * creates looks at the listing after that, and of two the one that came first stays.
   */
  create(
    key: string,
    value: string,
    signal: AbortSignal,
    isAcross?: (key: string) => boolean,
  ): Promise<Written | undefined>
  /**
   * Writes the key if its revision and value are still the expected ones; undefined when they are not. The value counts
   * because a store that was restored gives revisions out a second time. A reservation stays one. A store that takes no write
   * but can make the key live on does that, if `value` is what stands there.
   */
  update(key: string, value: string, expected: Expected, signal: AbortSignal): Promise<Written | undefined>
  /** Deletes the key if its revision and value are still the expected ones; false when they are not. */
  delete(key: string, expected: Expected, signal: AbortSignal): Promise<boolean>
  /**
   * Makes `value` what stands under `name` beside the leases, in a place that flanneld never reads, and returns what
   * stood there before; undefined for nothing. Writes only what differs. It ends as a key does, where the store can.
   */
  claim(name: string, value: string, signal: AbortSignal): Promise<string | undefined>
  /**
   * What stands under all names there; where the store can tell, and `since` is the revision of an answer of before, only what was
   * written after that.
   */
  claims(since: bigint | undefined, signal: AbortSignal): Promise<Claims>
  /** Takes back what was claimed, if it is still this value. */
  unclaim(name: string, value: string, signal: AbortSignal): Promise<void>
  close(): Promise<void>
}
