// subnet-manager.ts - the interface to the leases of a network (flannel: pkg/subnet/subnet.go, Manager).
//
// It is implemented for compare-and-set stores (store-manager.ts) and for the Kubernetes API (kube/kube-manager.ts). All methods reject with
// a WeftError: STORE_UNAVAILABLE if a later attempt may succeed, STORE if an operator must act.

import type { Log } from '../../base/log.ts'
import type { Address, Addresses, Nets } from '../../net/address.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { Claims } from '../store/store.ts'
import type { Lease, LeaseAttrs, OwnLease } from './lease.ts'

/** The value of a key: a lease, or the reason why it cannot be read as a lease. */
export type Entry =
  | { readonly key: string; readonly lease: Lease }
  | { readonly key: string; readonly lease?: undefined; readonly problem: string }

export type Change = { readonly kind: 'put'; readonly entry: Entry } | { readonly kind: 'delete'; readonly key: string }

/** The source of the leases of all nodes, including this one. A cursor is opaque to callers. */
export interface LeaseSource<Cursor> {
  /** The source's name in messages. */
  readonly name: string
  /** Lists all leases. `watch(cursor)` continues from there without a gap. */
  list(signal: AbortSignal): Promise<{ readonly cursor: Cursor; readonly entries: readonly Entry[] }>
  /**
   * Yields the changes after `cursor` in order. An empty batch shows that the source answers. The new cursor is where to resume: all changes
   * up to it were delivered. It ends only by throwing: WeftError GAP if the source no longer has these changes, another WeftError if the
   * connection is lost, the signal's reason if aborted.
   */
  watch(
    cursor: Cursor,
    signal: AbortSignal,
  ): AsyncIterable<{ readonly cursor: Cursor; readonly changes: readonly Change[] }>
  /** True if cursor `a` is later than cursor `b`. */
  isAfter(a: Cursor, b: Cursor): boolean
  /**
   * Returns how long a listing with this number of leases stays valid while the watch advances every minute, in ms. A source with expensive
   * listings has it. Without it all leases are listed every minute.
   */
  trustedMs?(leases: number): number
}

/** Resolves with true if this node has or had the address. */
export type IsMine = (address: Address) => Promise<boolean>

/** Obtains and keeps this node's own lease. */
export interface LeaseHolder {
  /**
   * Obtains a lease for this node: its existing lease if there is one, else a lease of `previous`, the subnets of an earlier run, if they are
   * free. Unexpected states are logged to `log` at each attempt. `isMine` checks whether a lease of `previous` with another public IP is
   * this node's own.
   */
  obtain(attrs: LeaseAttrs, previous: Nets, log: Log, signal: AbortSignal, isMine?: IsMine): Promise<OwnLease>
  /**
   * Writes the lease again, with `attrs`. Overwrites a value that is not a lease, and logs that to `log`. Rejects with LEASE_LOST if the
   * lease is gone or belongs to another node.
   */
  renew(lease: OwnLease, attrs: LeaseAttrs, log: Log, signal: AbortSignal): Promise<OwnLease>
  /** Deletes the lease if it is still this node's own. A manager whose leases end with their nodes does not have it. */
  release?(lease: OwnLease, signal: AbortSignal): Promise<void>
}

export interface SubnetManager {
  /** The manager's name in messages: `etcd`, `directory`, `kubernetes`. */
  readonly name: string
  /** The name that flanneld's log uses for this manager. */
  readonly title: string
  /** True if a controller assigns the subnets. An earlier subnet and the ranges of the configuration do not count then. */
  readonly givesSubnets?: boolean
  /** Returns the JSON text of the network configuration. Rejects with CONFIG_MISSING if there is none. */
  config(signal: AbortSignal): Promise<string>
  readonly source: LeaseSource<unknown>
  holder(config: NetworkConfig): LeaseHolder
  close(): Promise<void>

  // Callers must check that an optional member exists.

  /** Stores `value` under `name` beside the leases. Returns the previous value, or undefined if there was none. */
  claim?(name: string, value: string, signal: AbortSignal): Promise<string | undefined>
  /** Returns all claims, or those written after revision `since` (control/store/store.ts). */
  claims?(since: bigint | undefined, signal: AbortSignal): Promise<Claims>
  /** Deletes a claim if its value is still `value`. */
  unclaim?(name: string, value: string, signal: AbortSignal): Promise<void>
  /** Returns the attributes that an earlier run of this node published. */
  published?(signal: AbortSignal): Promise<LeaseAttrs | undefined>
  /** Returns the public IPs that an operator set for this node in the source. They take precedence over the flags. */
  publicIp?(signal: AbortSignal): Promise<Addresses>
  /** Returns the public IPs to publish. An operator may override `publicIp` in the source. */
  amend?(publicIp: Addresses, signal: AbortSignal): Promise<Addresses>
  /** Called repeatedly while the node is in the network. Reports that to the source if it does not know yet. */
  ready?(signal: AbortSignal): Promise<void>
}
