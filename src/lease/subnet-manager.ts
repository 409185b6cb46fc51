// subnet-manager.ts - what a node asks of whoever keeps the leases; upstream's word (pkg/subnet/subnet.go, Manager).
//
// Above a compare-and-set store (store-manager.ts), or any other place from which a node has its subnet. All methods reject
// with WeftError: STORE_UNAVAILABLE when trying again may help, STORE when an operator must act.

import type { NetworkConfig } from '../config/network-config.ts'
import type { Log } from '../log.ts'
import type { Nets } from '../net/address.ts'
import type { Ipv4 } from '../net/ipv4.ts'
import type { Lease, LeaseAttrs, OwnLease } from './lease.ts'

/** What stands under one key: a lease, or something that cannot be read as one, and why. */
export type Entry =
  | { readonly key: string; readonly lease: Lease }
  | { readonly key: string; readonly lease?: undefined; readonly problem: string }

export type Change = { readonly kind: 'put'; readonly entry: Entry } | { readonly kind: 'delete'; readonly key: string }

/** Where the leases of all nodes come from, our own too. What a cursor is means something to its source only. */
export interface LeaseSource<Cursor> {
  /** For messages. */
  readonly name: string
  /** All there are; `watch(cursor)` goes on from there without a gap. */
  list(signal: AbortSignal): Promise<{ readonly cursor: Cursor; readonly entries: readonly Entry[] }>
  /**
   * What changed after `cursor`, in order; no changes to say that the source answers. The new cursor is where to resume:
   * everything up to it was delivered. Ends only by throwing: WeftError GAP when `cursor` is lost, another one when the
   * connection is, the signal's reason when aborted.
   */
  watch(
    cursor: Cursor,
    signal: AbortSignal,
  ): AsyncIterable<{ readonly cursor: Cursor; readonly changes: readonly Change[] }>
  /** Whether the changes up to `a` go further than those up to `b`. */
  isAfter(a: Cursor, b: Cursor): boolean
  /**
   * Where listings are dear: for how long one of so many leases is good while the watch goes forward each minute. Left out, all
   * are listed each minute.
   */
  trustedMs?(leases: number): number
}

/** How this node comes to its own lease, and keeps it. */
export interface LeaseHolder {
  /**
   * A lease for this node: its own from before if there is one, else `previous`, its subnet of an earlier run, if there was one and it
   * is free. What is odd is said to `log`, again at each try.
   */
  obtain(attrs: LeaseAttrs, previous: Nets, log: Log, signal: AbortSignal): Promise<OwnLease>
  /**
   * Writes the lease again, with `attrs` from now on, and over what is nobody's lease, which is said to `log`. Rejects with
   * LEASE_LOST when it is gone or another node's.
   */
  renew(lease: OwnLease, attrs: LeaseAttrs, log: Log, signal: AbortSignal): Promise<OwnLease>
  /** Gives it back, as far as it is this node's still. Left out where it is not this node's to give. */
  release?(lease: OwnLease, signal: AbortSignal): Promise<void>
}

export interface SubnetManager {
  /** For messages: `etcd`, `directory`, `kubernetes`. */
  readonly name: string
  /** What flanneld's log calls it. */
  readonly title: string
  /** Whether others give the nodes their subnets: then neither an earlier one counts nor a range to draw from. */
  readonly givesSubnets?: boolean
  /** The network configuration's JSON text. Rejects with CONFIG_MISSING when there is none. */
  config(signal: AbortSignal): Promise<string>
  readonly source: LeaseSource<unknown>
  holder(config: NetworkConfig): LeaseHolder
  close(): Promise<void>

  // What not every manager has. Whoever would use it sees whether it is there.

  /** Makes `value` what stands under `name` beside the leases, and returns what stood there before; undefined for nothing. */
  claim?(name: string, value: string, signal: AbortSignal): Promise<string | undefined>
  /** What this node published at an earlier time. */
  published?(signal: AbortSignal): Promise<LeaseAttrs | undefined>
  /** The public IP that an operator gave this node there; it goes before the flag. */
  publicIp?(signal: AbortSignal): Promise<Ipv4 | undefined>
  /** What this node is to publish instead of `attrs`, if an operator said so there. */
  amend?(attrs: LeaseAttrs, signal: AbortSignal): Promise<LeaseAttrs>
  /** Hears that the node is in the network, again and again: it does what is still to do about that. */
  ready?(signal: AbortSignal): Promise<void>
}
