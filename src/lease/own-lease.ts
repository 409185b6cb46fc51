// own-lease.ts - this node's own lease above a compare-and-set store: acquired, and renewed.
//
// Every write is conditional on what was read before it, so that two nodes can never both believe that a subnet is
// theirs; the loser of a race reads again and goes on.

import { ipv4For, type NetworkConfig } from '../config/network-config.ts'
import { WeftError } from '../errors.ts'
import type { Log } from '../log.ts'
import { addressText, netsOverlap, netText, primary, type Nets } from '../net/address.ts'
import { formatIpv4, formatIpv4Net, ipv4NetsOverlap, type Ipv4Net } from '../net/ipv4.ts'
import type { Store, StoreEntry, StoreListing, Written } from '../store/store.ts'
import { isCompatible, pickSubnet } from './allocate.ts'
import { decodeLease } from './decode.ts'
import {
  describeSubnets,
  encodeLeaseValue,
  isOfOneNode,
  leaseKey,
  parseLeaseKey,
  type Lease,
  type LeaseAttrs,
  type OwnLease,
} from './lease.ts'
import type { LeaseHolder } from './subnet-manager.ts'

/** How a node holds a lease by compare-and-set. */
export function holderOf(store: Store, config: NetworkConfig): LeaseHolder {
  return {
    obtain: (attrs, previous, log, signal) =>
      acquireLease(store, config, attrs, { previous, random: Math.random, log, signal }),
    renew: (lease, attrs, log, signal) => renewLease(store, lease, { attrs, log, signal }),
    release: (lease, signal) => releaseLease(store, lease, signal),
  }
}

export interface AcquireOptions {
  /** The subnet that this node had before, from subnet.env, if there was one. */
  readonly previous?: Nets
  readonly random: () => number
  readonly log: Log
  readonly signal: AbortSignal
}

/** So much of a value that is no lease is shown in the log. */
const SHOWN_VALUE = 200

/** Deletes it, unless another node has it meanwhile. */
async function releaseLease(store: Store, { key, attrs }: OwnLease, signal: AbortSignal): Promise<void> {
  for (;;) {
    const listing = await store.list(signal)
    const own = decodeAll(listing).find((lease) => lease.key === key && isOfOneNode(lease.attrs, attrs))
    // A reservation is the operator's.
    if (!own || own.entry.isReservation || (await store.delete(key, own.entry, signal))) return
  }
}

type FoundLease = Lease & { readonly entry: StoreEntry }

/**
 * A lease for this node: the one that its public IP has already, else the previous subnet if it is free, else a free
 * one at random. Rejects with WeftError OUT_OF_SUBNETS, CONFIG, STORE or STORE_UNAVAILABLE.
 */
export async function acquireLease(
  store: Store,
  config: NetworkConfig,
  attrs: LeaseAttrs,
  options: AcquireOptions,
): Promise<OwnLease> {
  // Each refusal takes a subnet from those that are tried, so that this ends, with a lease or with OUT_OF_SUBNETS.
  const refused: Ipv4Net[] = []
  for (;;) {
    options.signal.throwIfAborted()
    const lease = await tryAcquire(store, config, attrs, refused, options)
    if (lease) return lease
  }
}

/** One round; undefined when another node was faster. `refused`: subnets that the store did not give, whatever it lists; more are put there. */
async function tryAcquire(
  store: Store,
  config: NetworkConfig,
  attrs: LeaseAttrs,
  refused: Ipv4Net[],
  options: AcquireOptions,
): Promise<OwnLease | undefined> {
  const { log, signal } = options
  const range = ipv4For('a lease', config)
  const previous = options.previous?.ipv4
  const value = encodeLeaseValue(attrs)
  const address = addressText(attrs.publicIp)
  const listing = await store.list(signal)
  const leases = decodeAll(listing)

  // Upstream takes the first of the listing; where that is another than the node had, its containers would be cut off.
  const wasOurs = ({ subnet }: Lease): boolean =>
    previous !== undefined && subnet.ipv4 !== undefined && formatIpv4Net(subnet.ipv4) === formatIpv4Net(previous)
  const own = leases
    .filter((lease) => isOfOneNode(lease.attrs, attrs))
    .toSorted((a, b) => Number(wasOurs(b)) - Number(wasOurs(a)))
  for (const [at, lease] of own.entries()) {
    if (fits(lease, config)) {
      log.info(`Found lease (${describeSubnets(lease.subnet)}) for current IP (${address}), reusing`)
      const written = await store.update(lease.key, value, lease.entry, signal)
      const others = own.slice(at + 1).map(({ key }) => key)
      if (written && others.length > 0) {
        log.warn(
          `There are other leases of this node's public IP ${address} too: ${others.join(', ')}. ` +
            'Delete them, unless they are of other hosts, which need addresses of their own then',
        )
      }
      const { key, subnet } = lease
      return written && { key, subnet, attrs, ...written }
    }
    log.info(
      `Found lease (${describeSubnets(lease.subnet)}) for current IP (${address}) but not compatible with current config, deleting`,
    )
    if (!(await store.delete(lease.key, lease.entry, signal))) return undefined
  }

  // As while it runs: a node is not to move for a typo. Without a public IP nobody can hold a lease.
  const junk =
    previous &&
    isCompatible(previous, range) &&
    listing.entries.find(
      ({ key }) =>
        key === leaseKey({ ipv4: previous }) && !leases.some((lease) => lease.key === key && isSomebodys(lease)),
    )
  if (previous && junk) {
    const written = await store.update(junk.key, value, { ...junk, isReservation: false }, signal)
    if (written) sayWrittenOver(junk, log)
    return written && { key: junk.key, subnet: { ipv4: previous }, attrs, ...written }
  }

  const taken = [...takenByOthers(listing, leases, attrs), ...refused]
  let subnet: Ipv4Net | undefined
  const holder =
    previous &&
    leases.find((lease) => !isOfOneNode(lease.attrs, attrs) && netsOverlap(lease.subnet, { ipv4: previous }))
  if (previous && holder) {
    log.warn(
      `The subnet of an earlier run, ${formatIpv4Net(previous)}, is leased by ${addressText(holder.attrs.publicIp)} now ` +
        `(${holder.key}); taking another. Containers of the earlier run must be started again`,
    )
  } else if (previous && !taken.some((other) => ipv4NetsOverlap(other, previous))) {
    if (isCompatible(previous, range)) {
      log.info(`Found previously leased subnet (${formatIpv4Net(previous)}), reusing`)
      subnet = previous
    } else {
      log.error(
        `Found previously leased subnet (${formatIpv4Net(previous)}) that is not compatible with the Etcd network config, ignoring`,
      )
    }
  }
  if (!subnet) {
    log.info(`Picking subnet in range ${formatIpv4(range.subnetMin)} ... ${formatIpv4(range.subnetMax)}`)
    subnet = pickSubnet(range, taken, options.random)
  }
  if (!subnet) {
    throw new WeftError('OUT_OF_SUBNETS', 'out of subnets', {
      remedy: `all subnets of ${formatIpv4Net(range.network)} are leased; delete leases of nodes that are gone, or make the Network larger`,
    })
  }
  const key = leaseKey({ ipv4: subnet })
  const written = await store.create(key, value, signal)
  if (!written) {
    refused.push(subnet)
    log.info(`Subnet ${formatIpv4Net(subnet)} was taken by another node meanwhile; picking another`)
    return undefined
  }
  const across = await firstAcross(store, key, subnet, written, signal)
  if (across !== undefined) {
    refused.push(subnet)
    await store.delete(key, { ...written, value }, signal)
    log.info(`Subnet ${formatIpv4Net(subnet)} overlaps ${across}, which another node took first; picking another`)
    return undefined
  }
  log.info(`Allocated lease (${describeSubnets({ ipv4: subnet })}) to current node (${address}) `)
  return { key, subnet: { ipv4: subnet }, attrs, ...written }
}

/**
 * The key of a lease that overlaps the one that was just created, and was there first. Two keys can be created at once that no
 * comparison holds apart: where nodes go by different configurations, as while its SubnetLen changes.
 */
async function firstAcross(
  store: Store,
  key: string,
  subnet: Ipv4Net,
  { revision }: Written,
  signal: AbortSignal,
): Promise<string | undefined> {
  const { entries } = await store.list(signal)
  return entries.find((entry) => {
    const other = entry.key === key || entry.revision > revision ? undefined : parseLeaseKey(entry.key)
    return other && netsOverlap(other, { ipv4: subnet })
  })?.key
}

/**
 * Whether the subnets of an own lease are as the configuration wants them. weft leases none of IPv6, but keeps that of a flanneld that was
 * here before: a subnet that is deleted for it is lost to the containers that have it.
 */
function fits({ subnet }: Lease, { ipv4, ipv6 }: NetworkConfig): boolean {
  if (!subnet.ipv4 || !ipv4 || !isCompatible(subnet.ipv4, ipv4)) return false
  return !subnet.ipv6 || (ipv6 !== undefined && isCompatible(subnet.ipv6, ipv6))
}

const isSomebodys = ({ attrs }: Lease): boolean => primary(attrs.publicIp) !== undefined

/** The subnets that are not free for this node. A key takes its subnet even when nobody can read its value. */
function takenByOthers(listing: StoreListing, leases: readonly FoundLease[], attrs: LeaseAttrs): Ipv4Net[] {
  const own = new Set(leases.filter((lease) => isOfOneNode(lease.attrs, attrs)).map(({ key }) => key))
  const taken: Ipv4Net[] = []
  for (const { key } of listing.entries) {
    const subnet = own.has(key) ? undefined : parseLeaseKey(key)
    if (subnet?.ipv4) taken.push(subnet.ipv4)
  }
  return taken
}

function decodeAll(listing: StoreListing): FoundLease[] {
  const leases: FoundLease[] = []
  for (const entry of listing.entries) {
    const lease = decodeOrUndefined(entry)
    // Undefined: nobody's lease as far as we can read; whoever follows names it.
    if (lease) leases.push({ ...lease, entry })
  }
  return leases
}

/**
 * Renews a lease if the key is not gone and not another node's, from now on with `attrs`; else rejects with WeftError LEASE_LOST. What
 * stands there and is nobody's lease, a typo or junk, is written over and said to `log`.
 */
export async function renewLease(
  store: Store,
  lease: OwnLease,
  options: { attrs?: LeaseAttrs; log?: Pick<Log, 'warn'>; signal: AbortSignal },
): Promise<OwnLease> {
  const { attrs = lease.attrs, log, signal } = options
  const value = encodeLeaseValue(attrs)
  const before = encodeLeaseValue(lease.attrs)
  // One that never ends is a reservation.
  let present = { value: before, revision: lease.revision, isReservation: lease.expiresAt === undefined }
  for (;;) {
    const written = await store.update(lease.key, value, present, signal)
    if (written) return { ...lease, attrs, unwritten: undefined, ...written }
    const entry = (await store.list(signal)).entries.find(({ key }) => key === lease.key)
    if (!entry) throw new WeftError('LEASE_LOST', `the lease of ${netText(lease.subnet)} is gone from the store`)
    // Our own bytes under another revision: an earlier write of ours whose answer was lost, or an operator who made the
    // lease a reservation, which it stays.
    let isReservation = present.isReservation || entry.isReservation
    if (entry.value !== value && entry.value !== before) {
      const found = decodeOrUndefined(entry)
      const isOwn =
        found && (!isSomebodys(found) || isOfOneNode(found.attrs, attrs) || isOfOneNode(found.attrs, lease.attrs))
      if (found && !isOwn)
        throw new WeftError('LEASE_LOST', `${netText(lease.subnet)} is leased by another node now: ${entry.value}`)
      if (log) sayWrittenOver(entry, log)
      // Whoever puts junk by hand does not mean to reserve the subnet by it.
      if (!found) isReservation = present.isReservation
    }
    present = { ...entry, isReservation }
  }
}

function sayWrittenOver({ key, value }: StoreEntry, log: Pick<Log, 'warn'>): void {
  const shown = JSON.stringify(value.slice(0, SHOWN_VALUE))
  log.warn(`What stood under this node's own key ${key} is not what it wrote, and is written over: ${shown}`)
}

function decodeOrUndefined({ key, value }: StoreEntry): Lease | undefined {
  try {
    return decodeLease(key, value)
  } catch {
    return undefined
  }
}
