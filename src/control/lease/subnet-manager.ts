// subnet-manager.ts - the interface to the leases of a network (flannel: pkg/subnet/subnet.go, Manager).
//
// store-manager.ts implements it for compare-and-set stores, kube/kube-manager.ts for the Kubernetes API. All methods reject with a
// WeftError: STORE_UNAVAILABLE if a later attempt may succeed, STORE if an operator must act.

import type { Log } from '../../base/log.ts'
import type { Address, Addresses, Nets } from '../../net/address.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { Claims } from '../store/store.ts'
import type { Lease, LeaseAttrs, OwnLease } from './lease.ts'

/**
 * An entry of the source of leases: a key with its lease, or with the reason why its value cannot be read as a lease.
 */
export type Entry =
  | { readonly key: string; readonly lease: Lease }
  | { readonly key: string; readonly lease?: undefined; readonly problem: string }

export type Change = { readonly kind: 'put'; readonly entry: Entry } | { readonly kind: 'delete'; readonly key: string }

/**
 * A source of the leases of all nodes, including this node. A cursor marks a position in the history of that source;
 * callers must not interpret it.
 */
export interface LeaseSource<Cursor> {
  /** The name of the source in weft's messages. */
  readonly name: string
  /** Lists all leases. A watch that starts at the returned cursor yields every later change. */
  list(signal: AbortSignal): Promise<{ readonly cursor: Cursor; readonly entries: readonly Entry[] }>
  /**
   * Yields the changes after `cursor` in order. An empty batch shows that the source still answers. All changes up to a
   * batch's own cursor were delivered, so a later watch can start there. The generator ends only by throwing: WeftError
   * GAP if the source no longer has these changes, another WeftError if the connection is lost, the signal's reason if
   * `signal` aborts.
   */
  watch(
    cursor: Cursor,
    signal: AbortSignal,
  ): AsyncIterable<{ readonly cursor: Cursor; readonly changes: readonly Change[] }>
  /** True if cursor `a` marks a later position than cursor `b` in the history of the leases. */
  isAfter(a: Cursor, b: Cursor): boolean
  /**
   * Returns for how long, in ms, weftd may postpone the periodic listing after a listing with this number of leases, while the watch makes
   * progress at least once a minute. Only a source whose
   * listings are expensive has this method. Without it weftd lists all leases every minute.
   */
  trustedMs?(leases: number): number
}

/** A function that resolves with true if this node has or had the address. */
export type IsMine = (address: Address) => Promise<boolean>

/** Obtains, renews and releases the lease of this node. */
export interface LeaseHolder {
  /**
   * Obtains a lease for this node: its existing lease, else a lease with the subnets `previous` of an earlier run if
   * they are free, else a new one. Each attempt logs unexpected states to `log`. `isMine` checks if an address belonged
   * to this node earlier. With it a lease that has the subnets `previous` but another public IP is recognised as this
   * node's.
   */
  obtain(attrs: LeaseAttrs, previous: Nets, log: Log, signal: AbortSignal, isMine?: IsMine): Promise<OwnLease>
  /**
   * Writes this node's lease again, with `attrs`, which extends its life. If the stored value is not a lease, overwrites it and logs that
   * to `log`. Rejects with LEASE_LOST if the lease is gone or belongs to another node.
   */
  renew(lease: OwnLease, attrs: LeaseAttrs, log: Log, signal: AbortSignal): Promise<OwnLease>
  /**
   * Deletes the lease if it still belongs to this node. A manager whose leases end with their nodes, as in Kubernetes, lacks this method.
   */
  release?(lease: OwnLease, signal: AbortSignal): Promise<void>
}

export interface SubnetManager {
  /** The manager's name in weft's messages: `etcd`, `directory` or `kubernetes`. */
  readonly name: string
  /** The name that flanneld's log uses for this manager. */
  readonly title: string
  /**
   * True if a controller assigns the subnets, as in Kubernetes. Then the subnets of an earlier run and the configured ranges are ignored.
   */
  readonly givesSubnets?: boolean
  /** Returns the JSON text of the network configuration. Rejects with CONFIG_MISSING if there is none. */
  config(signal: AbortSignal): Promise<string>
  readonly source: LeaseSource<unknown>
  holder(config: NetworkConfig): LeaseHolder
  close(): Promise<void>

  // The following methods are optional. Callers must check that the manager has them.

  /**
   * Stores the text `value` under `name` next to the leases. Such a text is called a claim. Returns the previous value,
   * or undefined if there was none.
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
   * Returns the public IPs that this node must publish: `publicIp`, unless an operator set others, for example by
   * annotations.
   */
  amend?(publicIp: Addresses, signal: AbortSignal): Promise<Addresses>
  /**
   * Reports that the node's network works, unless that was reported already, for example in a condition of the
   * Kubernetes node. weftd calls it repeatedly.
   */
  ready?(signal: AbortSignal): Promise<void>
}
