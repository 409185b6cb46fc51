// subnet-manager.ts - the interface to the leases of a network (flannel: pkg/subnet/subnet.go, Manager).
//
// store-manager.ts implements it for compare-and-set stores, kube/kube-manager.ts for the Kubernetes API. All methods
// reject with a WeftError: STORE_UNAVAILABLE if a later attempt may succeed, STORE if an operator must act.

import type { Log } from '../../base/log.ts'
import type { Address, Addresses, Family, Nets } from '../../net/address.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { Claims } from '../store/store.ts'
import type { Lease, LeaseAttrs, OwnLease } from './lease.ts'

/**
 * An entry of the source of leases: a key with its lease, or with the reason why its value cannot be read as a lease.
 * If only one family cannot be read (`invalid`), `lease` lacks the address and the data of this family.
 */
export type Entry =
  | {
      readonly key: string
      readonly lease: Lease
      readonly invalid?: { readonly family: Family; readonly problem: string } | undefined
    }
  | { readonly key: string; readonly lease?: undefined; readonly problem: string }

export type Change = { readonly kind: 'put'; readonly entry: Entry } | { readonly kind: 'delete'; readonly key: string }

/**
 * A source of the leases of all nodes, including this node. A cursor marks a position in the source's history of
 * changes; callers must not interpret it.
 */
export interface LeaseSource<Cursor> {
  readonly name: string
  /** Lists all leases. A watch that starts at the returned cursor yields every later change. */
  list(signal: AbortSignal): Promise<{ readonly cursor: Cursor; readonly entries: readonly Entry[] }>
  /**
   * Yields the changes after `cursor` in order. An empty batch shows that the source still answers. A later watch can
   * start at the cursor of a batch, because all changes up to that cursor were delivered. The generator ends only by
   * throwing: WeftError GAP if the source no longer has these changes, another WeftError if the connection is lost, the
   * signal's reason if `signal` aborts.
   */
  watch(
    cursor: Cursor,
    signal: AbortSignal,
  ): AsyncIterable<{ readonly cursor: Cursor; readonly changes: readonly Change[] }>
  /** Returns true if cursor `a` marks a later position than cursor `b` in the history of the leases. */
  isAfter(a: Cursor, b: Cursor): boolean
  /**
   * Returns how long, in ms, weftd may postpone the periodic listing if there are `leases` leases and the watch makes
   * progress at least once a minute. Only a source whose listings are expensive has this method. For a source without
   * this method weftd lists all leases every minute.
   */
  trustedMs?(leases: number): number
}

/** A function that resolves with true if this node has or had the address. */
export type IsMine = (address: Address) => Promise<boolean>

export interface LeaseHolder {
  /**
   * Obtains a lease for this node: its existing lease, else a lease with the subnets `previous` of an earlier run if
   * they are free, else a new lease. Each attempt logs unexpected states to `log`. `isMine` checks if an address
   * belonged to this node earlier. If `isMine` is given, a lease that has the subnets `previous` but another public IP
   * can be recognised as this node's.
   */
  obtain(attrs: LeaseAttrs, previous: Nets, log: Log, signal: AbortSignal, isMine?: IsMine): Promise<OwnLease>
  /**
   * Writes this node's lease again with `attrs`, which postpones the lease's expiry. If the stored value is not a
   * lease, overwrites the value and logs the overwritten value to `log`. Rejects with LEASE_LOST if the lease is gone
   * or belongs to another node.
   */
  renew(lease: OwnLease, attrs: LeaseAttrs, log: Log, signal: AbortSignal): Promise<OwnLease>
  /**
   * Deletes the lease if it still belongs to this node. A manager whose leases end with their nodes, as in Kubernetes,
   * lacks this method.
   */
  release?(lease: OwnLease, signal: AbortSignal): Promise<void>
}

export interface SubnetManager {
  /** The manager's name in weft's messages: `etcd`, `directory` or `kubernetes`. */
  readonly name: string
  /** The name that flanneld's log uses for this manager. */
  readonly title: string
  /**
   * True if a controller assigns the subnets, as in Kubernetes. In that case weftd ignores the subnets of an earlier
   * run and the configured ranges.
   */
  readonly givesSubnets?: boolean
  /** Returns the JSON text of the network configuration. Rejects with CONFIG_MISSING if there is no configuration. */
  config(signal: AbortSignal): Promise<string>
  readonly source: LeaseSource<unknown>
  holder(config: NetworkConfig): LeaseHolder
  close(): Promise<void>

  /**
   * Stores the text `value`, called a claim, under `name` next to the leases. Returns the previous value, or undefined
   * if there was none. Not every subnet manager has this method.
   */
  claim?(name: string, value: string, signal: AbortSignal): Promise<string | undefined>
  /**
   * Returns all claims, the texts that hosts store next to the leases, or only the claims written after revision
   * `since` (control/store/store.ts).
   */
  claims?(since: bigint | undefined, signal: AbortSignal): Promise<Claims>
  /** Deletes the claim `name` (a text stored next to the leases) if its value is still `value`. */
  unclaim?(name: string, value: string, signal: AbortSignal): Promise<void>
  /** Returns the data that an earlier run of this node published in its lease. */
  published?(signal: AbortSignal): Promise<LeaseAttrs | undefined>
  /**
   * Returns the public IPs that an operator set for this node, for example by annotations. They take precedence over
   * --public-ip and --public-ipv6.
   */
  publicIp?(signal: AbortSignal): Promise<Addresses>
  /**
   * Returns the public IPs that this node must publish: `publicIp`, except the addresses that an operator replaced, for
   * example by annotations.
   */
  amend?(publicIp: Addresses, signal: AbortSignal): Promise<Addresses>
  /**
   * Reports that the node's network works, for example in a condition of the Kubernetes node. weftd calls `ready`
   * repeatedly; a call does nothing if the report was already made.
   */
  ready?(signal: AbortSignal): Promise<void>
}
