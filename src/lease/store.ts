// store.ts - what weft asks of a store: a few primitive operations on one directory of keys.
//
// Everything that decides (allocation, reuse, renewal, following changes) stands above this interface and is
// written once, for every store, and for the simulated one of the tests. A store offers compare-and-set and
// a watch that can be resumed, and nothing else. All methods reject with WeftError: STORE_UNAVAILABLE when
// trying again may help, STORE when an operator must act.

/** One key below `<prefix>/subnets/`. `key` is the last component, `value` the bytes as text. */
export interface StoreEntry {
  readonly key: string
  readonly value: string
  /** Changes with every write of the key; what `update` and `delete` compare. */
  readonly revision: bigint
  /** Whether the key stays until somebody deletes it: an operator's reservation. */
  readonly isReservation: boolean
}

/** The whole directory as of `revision`; `watch(revision)` continues without a gap. */
export interface StoreListing {
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

/** Thrown into the consumer of `watch` when `after` can no longer be resumed from: list again. */
export class StoreGap extends Error {
  override readonly name = 'StoreGap'
}

export interface Written {
  readonly revision: bigint
  /** When the store will drop the key by itself, in ms since the epoch; undefined when never. */
  readonly expiresAt: number | undefined
}

export interface Store {
  /** For messages: `etcd` or `directory`. */
  readonly name: string
  /** The network configuration's JSON text; undefined when there is none. */
  config(signal: AbortSignal): Promise<string | undefined>
  list(signal: AbortSignal): Promise<StoreListing>
  /**
   * What changed after `after`. Ends only by throwing: StoreGap when `after` is lost, WeftError when the
   * connection is, the signal's reason when aborted.
   */
  watch(after: bigint, signal: AbortSignal): AsyncIterable<StoreBatch>
  /** Writes the key if it does not exist; undefined when it does. */
  create(key: string, value: string, ttlMs: number, signal: AbortSignal): Promise<Written | undefined>
  /**
   * Writes the key if its revision and value are still the expected ones; undefined when they are not. The value counts
   * because a store that was restored gives revisions out a second time. Without `ttlMs` the key never ends.
   */
  update(
    key: string,
    value: string,
    ttlMs: number | undefined,
    expected: Pick<StoreEntry, 'revision' | 'value'>,
    signal: AbortSignal,
  ): Promise<Written | undefined>
  /** Deletes the key if its revision is still `expected`; false when it is not. */
  delete(key: string, expected: bigint, signal: AbortSignal): Promise<boolean>
  /**
   * Makes `value` what stands under `name` beside the leases, in a place that flanneld never reads, and returns what
   * stood there before; undefined for nothing. Writes only what differs. It is gone after `ttlMs`, where the store can.
   */
  claim(name: string, value: string, ttlMs: number, signal: AbortSignal): Promise<string | undefined>
  close(): Promise<void>
}
