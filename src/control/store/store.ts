// store.ts - the interface of a store: a few primitive operations on one directory of flannel's keys.
//
// The code that calls this interface makes all decisions (allocation, reuse, renewal, following changes). So all
// stores, and the simulated store of the tests, share this code. A store offers compare-and-set and a watch that can be
// resumed. All methods reject with a WeftError: STORE_UNAVAILABLE if a later attempt may succeed, STORE if an operator
// must act.

/**
 * How long a key lives after its last write, in ms, unless a store is created with another lifetime: 24 hours, as in
 * flannel.
 */
export const LEASE_TTL_MS = 24 * 3600 * 1000

/**
 * A key below `<prefix>/subnets/` and its value. `key` is only the last component of the path; `value` is the stored
 * bytes as text.
 */
export interface StoreEntry {
  readonly key: string
  readonly value: string
  /**
   * A number that increases with every write of the key. `update` and `delete` compare this number with the expected
   * revision.
   */
  readonly revision: bigint
  /**
   * The revision at which the key was created; later writes do not change it. Of two keys, the key with the lower
   * number was created first. The number is 0 in a store whose `create` refuses overlapping keys.
   */
  readonly created: bigint
  /** True if an operator reserved the key. A reservation never expires. */
  readonly isReservation: boolean
}

/** All keys and values of the directory as of `revision`. `watch(revision)` delivers every later change. */
interface StoreListing {
  readonly revision: bigint
  readonly entries: readonly StoreEntry[]
}

export type StoreChange =
  | { readonly kind: 'put'; readonly entry: StoreEntry }
  | { readonly kind: 'delete'; readonly key: string; readonly revision: bigint }

/**
 * Changes that the store delivered together, in order. An empty batch shows that the store still answers. A later watch
 * can resume at `revision`, because all changes up to it were delivered.
 */
export interface StoreBatch {
  readonly revision: bigint
  readonly changes: readonly StoreChange[]
}

/** The state that an entry must still have for a write to succeed. */
export type Expected = Pick<StoreEntry, 'revision' | 'value'> & Partial<Pick<StoreEntry, 'isReservation'>>

export interface Written {
  readonly revision: bigint
  /**
   * The time when the store deletes the key unless the key is written again, in ms since 1970; undefined if the key
   * never expires.
   */
  readonly expiresAt: number | undefined
  /**
   * Why the store could only extend the key's life and not write the value, for example because the store is full;
   * undefined if the value was written.
   */
  readonly unwritten?: string
}

/**
 * The claims by name. A claim is a text that a host stores next to the leases. `values` holds all claims, or only the
 * claims that were written after an earlier listing.
 */
export interface Claims {
  readonly revision: bigint
  readonly isWhole: boolean
  readonly values: ReadonlyMap<string, string>
}

export interface Store {
  /** The store's name in weft's messages: `etcd` or `directory`. */
  readonly name: string
  /** The name that flanneld's log uses for a subnet manager of this store. */
  readonly title: string
  /**
   * Returns the JSON text of the network configuration. Rejects with CONFIG_MISSING if there is no configuration; the
   * error's remedy says where to write the configuration.
   */
  config(signal: AbortSignal): Promise<string>
  setConfig(text: string, signal: AbortSignal): Promise<void>
  list(signal: AbortSignal): Promise<StoreListing>
  /**
   * Returns the time when each key expires, in ms since 1970 by this host's clock, without the reservations, which
   * never expire. This costs one call per key, so only the operator's tool calls `ends`, not the daemon.
   */
  ends(signal: AbortSignal): Promise<ReadonlyMap<string, number>>
  /**
   * Yields the changes after revision `after`. The generator ends only by throwing: WeftError GAP if the store no
   * longer has these changes, another WeftError if the connection is lost, the signal's reason if `signal` aborts.
   */
  watch(after: bigint, signal: AbortSignal): AsyncIterable<StoreBatch>
  /**
   * Creates a key. Returns undefined if the key exists. The key expires unless it is written again within the store's
   * lifetime. Some stores can check all keys in the same transaction; these also return undefined if an existing key
   * overlaps the new key (`isAcross` returns true for it). With any other store the caller must list the keys
   * afterwards; of two overlapping keys the key that was created first stays.
   */
  create(
    key: string,
    value: string,
    signal: AbortSignal,
    isAcross?: (key: string) => boolean,
  ): Promise<Written | undefined>
  /**
   * Writes a key if its revision and value are still `expected`; returns undefined if they are not. The value is
   * compared too, because a restored store uses the same revisions again. A reservation stays a reservation. If the
   * stored value already is `value`, a store without free space may extend the key's life and write nothing.
   */
  update(key: string, value: string, expected: Expected, signal: AbortSignal): Promise<Written | undefined>
  /** Deletes a key if its revision and value are still `expected`, and returns true. Returns false otherwise. */
  delete(key: string, expected: Expected, signal: AbortSignal): Promise<boolean>
  /**
   * Stores the text `value` under `name` next to the leases (a claim), at a path that flanneld never reads. Returns the
   * previous value, or undefined if there was none. Writes only if the value differs. A claim expires like the key of a
   * lease, if the store supports that.
   */
  claim(name: string, value: string, signal: AbortSignal): Promise<string | undefined>
  /**
   * Returns all claims, the texts that hosts store next to the leases. If `since` is the revision of an earlier answer
   * and the store supports partial answers, returns only the claims that were written after that revision.
   */
  claims(since: bigint | undefined, signal: AbortSignal): Promise<Claims>
  /** Deletes the claim `name` (a text that a host stored next to the leases) if its value is still `value`. */
  unclaim(name: string, value: string, signal: AbortSignal): Promise<void>
  close(): Promise<void>
}
