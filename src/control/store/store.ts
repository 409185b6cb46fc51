// store.ts - the interface of a store: a few primitive operations on one directory of flannel's keys.
//
// All decisions (allocation, reuse, renewal, following changes) are made above this interface, once for every store and for the simulated
// store of the tests. A store offers compare-and-set and a watch that can be resumed. All methods reject with a WeftError:
// STORE_UNAVAILABLE if a later attempt may succeed, STORE if an operator must act.

/** The lifetime of a key after its last write: flannel's 24 hours. A store can be made with another lifetime. */
export const LEASE_TTL_MS = 24 * 3600 * 1000

/** One key below `<prefix>/subnets/`. `key` is the last component, `value` the bytes as text. */
export interface StoreEntry {
  readonly key: string
  readonly value: string
  /** Increases with every write of the key. `update` and `delete` compare it. */
  readonly revision: bigint
  /**
   * The revision at which the key was created; writes do not change it. Of two keys, the one with the lower value was created first. It is 0
   * in a store that refuses a new key which overlaps an existing key (see `create`).
   */
  readonly created: bigint
  /** True if the key is an operator's reservation: it stays until it is deleted. */
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
 * Changes that were delivered together, in order. An empty batch shows that the store answers. `revision` is where to resume: all changes
 * up to it were delivered.
 */
export interface StoreBatch {
  readonly revision: bigint
  readonly changes: readonly StoreChange[]
}

/** The state in which an entry was read. `isReservation` defaults to false. */
export type Expected = Pick<StoreEntry, 'revision' | 'value'> & Partial<Pick<StoreEntry, 'isReservation'>>

export interface Written {
  readonly revision: bigint
  /** The time when the store will drop the key by itself, in ms since the epoch; undefined when never. */
  readonly expiresAt: number | undefined
  /** If the store is full, it can extend the key's life but not write the value. This is the reason, for the log. */
  readonly unwritten?: string
}

/** The claims, which are stored beside the leases, by name: all claims, or those written after an earlier answer. */
export interface Claims {
  readonly revision: bigint
  readonly isWhole: boolean
  readonly values: ReadonlyMap<string, string>
}

export interface Store {
  /** The store's name in messages: `etcd` or `directory`. */
  readonly name: string
  /** The name that flanneld's log uses for a subnet manager of this store. */
  readonly title: string
  /** Returns the JSON text of the network configuration. Rejects with CONFIG_MISSING, whose remedy says where to put it. */
  config(signal: AbortSignal): Promise<string>
  /** Writes the network configuration. */
  setConfig(text: string, signal: AbortSignal): Promise<void>
  list(signal: AbortSignal): Promise<StoreListing>
  /**
   * Returns the time when each key expires, in ms since the epoch by this host's clock; reservations are not in it. It costs one call per
   * key, so only the operator's tool uses it, not the daemon.
   */
  ends(signal: AbortSignal): Promise<ReadonlyMap<string, number>>
  /**
   * Yields the changes after revision `after`. It ends only by throwing: WeftError GAP if the store no longer has these changes, another
   * WeftError if the connection is lost, the signal's reason if aborted.
   */
  watch(after: bigint, signal: AbortSignal): AsyncIterable<StoreBatch>
  /**
   * Writes the key if it does not exist, and returns undefined if it does. The key expires if it is not written again within the store's
   * lifetime. A store that can check all keys in the same transaction also returns undefined if `isAcross` is true of an existing key. With
   * other stores the caller lists the keys afterwards, and of two overlapping keys the one created first stays.
   */
  create(
    key: string,
    value: string,
    signal: AbortSignal,
    isAcross?: (key: string) => boolean,
  ): Promise<Written | undefined>
  /**
   * Writes the key if its revision and value are still the expected ones, and returns undefined if they are not. The value is compared too,
   * because a restored store issues the same revisions a second time. A reservation stays a reservation. A full store that refuses writes
   * may extend the life of the key instead, if its value is already `value`.
   */
  update(key: string, value: string, expected: Expected, signal: AbortSignal): Promise<Written | undefined>
  /** Deletes the key if its revision and value are still the expected ones, and returns false if they are not. */
  delete(key: string, expected: Expected, signal: AbortSignal): Promise<boolean>
  /**
   * Stores `value` under `name` beside the leases, in a place that flanneld never reads. Returns the previous value, or undefined if there
   * was none. Writes only if the value differs. A claim expires like a key, if the store supports that.
   */
  claim(name: string, value: string, signal: AbortSignal): Promise<string | undefined>
  /**
   * Returns all claims. If `since` is the revision of an earlier answer and the store supports it, returns only the claims written after that
   * revision.
   */
  claims(since: bigint | undefined, signal: AbortSignal): Promise<Claims>
  /** Deletes a claim if its value is still `value`. */
  unclaim(name: string, value: string, signal: AbortSignal): Promise<void>
  close(): Promise<void>
}
