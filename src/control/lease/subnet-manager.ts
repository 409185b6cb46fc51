// subnet-manager.ts - what a node asks of whoever keeps the leases; upstream's word (pkg/subnet/subnet.go, Manager).
//
// Above a compare-and-set store (store-manager.ts), or any other place from which a node has its subnet. All methods reject
// with WeftError: STORE_UNAVAILABLE when trying again may help, STORE when an operator must act.

import type { Log } from '../../base/log.ts'
import type { Address, Addresses, Nets } from '../../net/address.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { Claims } from '../store/store.ts'
import type { Lease, LeaseAttrs, OwnLease } from './lease.ts'

/** The value under one key: a lease, or something that cannot be read as one, and why. */
export type Entry =
  | { readonly key: string; readonly lease: Lease }
  | { readonly key: string; readonly lease?: undefined; readonly problem: string }

export type Change = { readonly kind: 'put'; readonly entry: Entry } | { readonly kind: 'delete'; readonly key: string }

/** The source of all nodes' leases, our own too. A cursor means something to its source only. */
export interface LeaseSource<Cursor> {
  /** The name for messages. */
  readonly name: string
  /** All there are; `watch(cursor)` goes on from there without a gap. */
  list(signal: AbortSignal): Promise<{ readonly cursor: Cursor; readonly entries: readonly Entry[] }>
  /**
   * Yields the changes after `cursor`, in order; an empty batch says that the source answers. The new cursor is where
   * to resume: everything up to it was delivered. Ends only by throwing: WeftError GAP when `cursor` is lost, another
   * one when the connection is, the signal's reason when aborted.
   */
  watch(
    cursor: Cursor,
    signal: AbortSignal,
  ): AsyncIterable<{ readonly cursor: Cursor; readonly changes: readonly Change[] }>
  /** True when the changes up to `a` go further than those up to `b`. */
  isAfter(a: Cursor, b: Cursor): boolean
  /**
   * The time for which a listing of so many leases is good while the watch goes forward each minute, where listings are
   * dear. Without it all leases are listed each minute.
   */
  trustedMs?(leases: number): number
}

/** Resolves with true if this node has or had the address. */
export type IsMine = (address: Address) => Promise<boolean>

/** Gets this node its own lease, and keeps it. */
export interface LeaseHolder {
  /**
   * A lease for this node: its own from before if there is one, else `previous`, its subnet of an earlier run, if there was one and it
   * is free. Oddities are logged to `log`, again at each try. `isMine` checks whether a lease of `previous` with another public IP is this
   * node's own.
   */
  obtain(attrs: LeaseAttrs, previous: Nets, log: Log, signal: AbortSignal, isMine?: IsMine): Promise<OwnLease>
  /**
   * Writes the lease again, with `attrs` from now on, and over what is nobody's lease, which is said to `log`. Rejects with
   * LEASE_LOST when it is gone or another node's.
   */
  renew(lease: OwnLease, attrs: LeaseAttrs, log: Log, signal: AbortSignal): Promise<OwnLease>
  /** Gives it back, as far as it is this node's still. Left out where it is not this node's to give. */
  release?(lease: OwnLease, signal: AbortSignal): Promise<void>
}

export interface SubnetManager {
  /** The name for messages: `etcd`, `directory`, `kubernetes`. */
  readonly name: string
  /** flanneld's name for it, in its log. */
  readonly title: string
  /** True when others give the nodes their subnets: an earlier subnet or a range to draw from does not count then. */
  readonly givesSubnets?: boolean
  /** The network configuration's JSON text. Rejects with CONFIG_MISSING when there is none. */
  config(signal: AbortSignal): Promise<string>
  readonly source: LeaseSource<unknown>
  holder(config: NetworkConfig): LeaseHolder
  close(): Promise<void>

  // Optional members. Callers check that they are there.

  /** Makes `value` what stands under `name` beside the leases, and returns what stood there before; undefined for nothing. */
  claim?(name: string, value: string, signal: AbortSignal): Promise<string | undefined>
  /** What stands there under all names, or was written after the revision of an answer of before (control/store/store.ts). */
  claims?(since: bigint | undefined, signal: AbortSignal): Promise<Claims>
  /** Takes that back, if it is still this value. */
  unclaim?(name: string, value: string, signal: AbortSignal): Promise<void>
  /** The attributes that this node published at an earlier time. */
  published?(signal: AbortSignal): Promise<LeaseAttrs | undefined>
  /** The public IPs that an operator gave this node there; they go before the flags. */
  publicIp?(signal: AbortSignal): Promise<Addresses>
  /** What this node is to publish instead of these, where an operator said so there. */
  amend?(publicIp: Addresses, signal: AbortSignal): Promise<Addresses>
  /** Hears that the node is in the network, again and again: it does what is still to do about that. */
  ready?(signal: AbortSignal): Promise<void>
}
