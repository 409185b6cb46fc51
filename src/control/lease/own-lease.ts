// own-lease.ts - acquires, renews and releases this node's own lease in a compare-and-set store.
//
// Every write is conditional on the state that was read before it, so two nodes can never hold the same subnet. The loser of a race reads
// the store again and retries.

import { describeError, isWeftError, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import {
  addressText,
  formatAddress,
  formatNet,
  familyOf,
  listed,
  netsOf,
  netsOverlap,
  netsText,
  primary,
  type Net,
  type Nets,
} from '../../net/address.ts'
import type { NetworkConfig, SubnetRange } from '../config/network-config.ts'
import type { Store, StoreEntry, Written } from '../store/store.ts'
import { isCompatible, pickSubnet } from './allocate.ts'
import {
  createAlone,
  decodeAll,
  decodeOrUndefined,
  firstAcross,
  isSame,
  isSettled,
  overlapText,
  type Across,
  type FoundLease,
} from './claim.ts'
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
import type { IsMine, LeaseHolder } from './subnet-manager.ts'

/** Returns the lease holder of a compare-and-set store. */
export function holderOf(store: Store, config: NetworkConfig): LeaseHolder {
  return {
    obtain: (attrs, previous, log, signal, isMine) =>
      acquireLease(store, config, attrs, { previous, ...(isMine ? { isMine } : {}), random: Math.random, log, signal }),
    renew: (lease, attrs, log, signal) => renewLease(store, lease, { attrs, log, signal }),
    release: (lease, signal) => releaseLease(store, lease, signal),
  }
}

export interface AcquireOptions {
  /** The subnets of this node's earlier run, from subnet.env. */
  readonly previous?: Nets
  /** Checks whether this node had an address. If it is left out, the node had only the addresses that it has now. */
  readonly isMine?: IsMine
  readonly random: () => number
  readonly log: Log
  readonly signal: AbortSignal
}

/** The maximum number of characters of an invalid lease value that are logged. */
const SHOWN_VALUE = 200

/** Deletes the lease, unless it belongs to another node now. */
async function releaseLease(store: Store, { key, attrs }: OwnLease, signal: AbortSignal): Promise<void> {
  for (;;) {
    const { entries } = await store.list(signal)
    const own = decodeAll(entries).find((lease) => lease.key === key && isOfOneNode(lease.attrs, attrs))
    // A reservation belongs to the operator.
    if (!own || own.entry.isReservation || (await store.delete(key, own.entry, signal))) return
  }
}

/**
 * Acquires a lease for this node. It has a subnet of each family that the configuration enables and for which the node has an address. In
 * order of preference each subnet is the one of the node's existing lease, the one of the earlier run if it is free, or a random free one.
 * Rejects with WeftError OUT_OF_SUBNETS, CONFIG, STORE or STORE_UNAVAILABLE.
 */
export async function acquireLease(
  store: Store,
  config: NetworkConfig,
  attrs: LeaseAttrs,
  options: AcquireOptions,
): Promise<OwnLease> {
  const ranges = rangesFor(config, attrs)
  // Each round that fails refuses one more subnet, so the loop ends with a lease or with OUT_OF_SUBNETS.
  const refused: Net[] = []
  for (;;) {
    options.signal.throwIfAborted()
    const lease = await tryAcquire({ store, config, ranges, attrs, refused, ...options })
    if (lease) return lease
  }
}

/** Returns the ranges for this node's subnets, one for each family. Throws WeftError CONFIG if the node has no address of any of them. */
function rangesFor(config: NetworkConfig, { publicIp }: LeaseAttrs): readonly SubnetRange<Net>[] {
  const ranges = listed({
    ipv4: publicIp.ipv4 === undefined ? undefined : config.ipv4,
    ipv6: publicIp.ipv6 === undefined ? undefined : config.ipv6,
  })
  if (ranges.length > 0) return ranges
  const family = config.ipv4 ? 'IPv4' : 'IPv6'
  throw new WeftError('CONFIG', `the network is of ${family}, and this node has no ${family} address`, {
    remedy: 'give the host one, or enable the family that it has in the network configuration',
  })
}

interface Acquiring extends AcquireOptions {
  readonly store: Store
  readonly config: NetworkConfig
  readonly ranges: readonly SubnetRange<Net>[]
  readonly attrs: LeaseAttrs
  /** Subnets that the store refused. Rounds add to the list. */
  readonly refused: Net[]
}

/** The content of the store at the beginning of a round. */
interface Round {
  readonly entries: readonly StoreEntry[]
  readonly leases: readonly FoundLease[]
  /** This node's leases. Those with most of its previous subnets come first, and among these the ones that fit the configuration. */
  readonly own: readonly FoundLease[]
}

/** Tries once to acquire a lease. Returns undefined if another node was faster, so that the caller tries again. */
async function tryAcquire(acquiring: Acquiring): Promise<OwnLease | undefined> {
  const { store, attrs, log, signal } = acquiring
  const { entries } = await store.list(signal)
  const leases = decodeAll(entries)
  const own = ownLeases(entries, leases, acquiring, await formerLeases(leases, acquiring))
  const round = { entries, leases, own }
  const [lease] = own
  if (!lease) return allocate(round, acquiring)
  if (fits(lease, acquiring)) {
    // Another key of this node may hold another of its previous subnets.
    const had = acquiring.ranges.flatMap((range) => hadIn(range, own, acquiring) ?? [])
    const isBest = had.every((net) => hasSubnet(lease, net))
    return isBest ? reuse(lease, round, acquiring) : allocate(round, acquiring)
  }
  const kept = netsOf(listed(lease.subnet).filter((net) => isWanted(net, acquiring)))
  const found = `Found lease (${describeSubnets(lease.subnet)}) for current IP (${addressText(attrs.publicIp)}) but not compatible with current config`
  if (primary(kept)) {
    log.info(`${found}, keeping ${netsText(kept)}`)
    return allocate(round, acquiring)
  }
  log.info(`${found}, deleting`)
  await store.delete(lease.key, lease.entry, signal)
  return undefined
}

/** Renews a lease that this node already has. */
async function reuse(lease: FoundLease, { entries, own }: Round, acquiring: Acquiring): Promise<OwnLease | undefined> {
  const { store, attrs, refused, log, signal } = acquiring
  const { key, subnet, entry } = lease
  const address = addressText(attrs.publicIp)
  log.info(`Found lease (${describeSubnets(subnet)}) for current IP (${address}), reusing`)
  // The process that created the lease may have ended before it checked for an overlapping older key.
  const across = isSettled(entry) ? undefined : firstAcross(entries, { subnet, attrs, own })
  if (across) {
    refused.push(across.subnet)
    await store.delete(key, entry, signal)
    log.info(overlapText(across))
    return undefined
  }
  const before = own.filter((other) => netsOverlap(other.subnet, subnet))
  const isReservation = before.some((other) => other.entry.isReservation)
  const value = encodeLeaseValue(attrs)
  const settled = await store.update(key, value, { ...entry, isReservation }, signal)
  if (!settled) return undefined
  if (!hasOwner(decodeOrUndefined(entry))) sayWrittenOver(entry, log)
  const written = await replaceOthers(before, { key, value, isReservation }, settled, acquiring)
  if (!written) return undefined
  const others = own.filter((other) => !before.includes(other)).map((other) => other.key)
  if (others.length > 0) {
    log.warn(
      `There are other leases of this node's public IP ${address} too: ${others.join(', ')}. ` +
        'Delete them, unless they are of other hosts, which need addresses of their own then',
    )
  }
  return { key, subnet, attrs, ...written }
}

/**
 * Creates a lease that keeps as many subnets of the node's own leases as possible. The old leases stay until the new one exists, so a kept
 * subnet is never free, even if the process crashes in between.
 */
async function allocate(round: Round, acquiring: Acquiring): Promise<OwnLease | undefined> {
  const { store, attrs, refused, log, signal } = acquiring
  const { entries, own } = round
  const subnet = chooseSubnets(round, acquiring)
  const key = leaseKey(subnet)
  const same = own.find((lease) => lease.key === key)
  if (same) return reuse(same, round, acquiring)

  const value = encodeLeaseValue(attrs)
  const claim = { subnet, attrs, own }
  const giveUp = (across: Across): undefined => {
    refused.push(across.subnet)
    log.info(overlapText(across))
  }
  const before = firstAcross(entries, claim)
  if (before) return giveUp(before)
  const there = entries.find((entry) => entry.key === key)
  if (there) {
    // An unsettled key that overlaps this node's older lease loses. Its process may have ended before it noticed.
    if (isSettled(there)) refused.push(...listed(subnet))
    else if (await store.update(key, value, { ...there, isReservation: false }, signal)) sayWrittenOver(there, log)
    return undefined
  }
  const created = await createAlone(store, value, claim, signal)
  if (!created.written) {
    if (created.across) return giveUp(created.across)
    refused.push(...listed(newOf(subnet, own))) // the next listing shows whether this node still has its other subnets
    log.info(`Subnet ${netsText(subnet)} was taken by another node meanwhile; picking another`)
    return undefined
  }
  let { written } = created
  const old = own.filter((lease) => netsOverlap(lease.subnet, subnet))
  if (old.length > 0) {
    // The new key is settled before the old key goes, because the old key proves that this node came first.
    const isReservation = old.some(({ entry }) => entry.isReservation)
    const settled = await store.update(key, value, { ...written, value, isReservation }, signal)
    const last = settled && (await replaceOthers(old, { key, value, isReservation }, settled, acquiring))
    if (!last) return undefined
    written = last
  }
  log.info(`Allocated lease (${describeSubnets(subnet)}) to current node (${addressText(attrs.publicIp)}) `)
  return { key, subnet, attrs, ...written, ...(own.length === 0 ? { isNew: true } : {}) }
}

/**
 * Deletes the node's other leases and then writes `key` again. flanneld removes a peer's subnet when any key with that subnet is deleted
 * (pkg/lease, LeaseWatcher), so the last event that it receives must be a write. Returns undefined if one of the leases was changed by
 * another process.
 */
async function replaceOthers(
  leases: readonly FoundLease[],
  { key, value, isReservation }: Pick<StoreEntry, 'key' | 'value' | 'isReservation'>,
  written: Written,
  { store, signal }: Acquiring,
): Promise<Written | undefined> {
  const others = leases.filter((lease) => lease.key !== key)
  for (const other of others) if (!(await store.delete(other.key, other.entry, signal))) return undefined
  return others.length > 0 ? store.update(key, value, { ...written, value, isReservation }, signal) : written
}

const hasSubnet = ({ subnet }: Lease, net: Net): boolean => isSame(net, subnet[familyOf(net)])

/** Returns the previous subnet of a range if one of these leases has it. */
function hadIn(range: SubnetRange<Net>, own: readonly Lease[], { previous = {} }: Acquiring): Net | undefined {
  const net = previous[familyOf(range.network)]
  return net && isCompatible(net, range) && own.some((lease) => hasSubnet(lease, net)) ? net : undefined
}

/** Returns the subnets that none of the node's own leases has. */
const newOf = (subnet: Nets, own: readonly Lease[]): Nets =>
  netsOf(listed(subnet).filter((net) => !own.some((lease) => hasSubnet(lease, net))))

/**
 * Finds the leases of this node's previous subnets whose public IP is an earlier address of the node, such as one by DHCP or a virtual IP.
 * No other node owns such a lease. If the node drew another subnet instead, its containers would be cut off.
 */
async function formerLeases(
  leases: readonly FoundLease[],
  { attrs, previous = {}, isMine, log }: Acquiring,
): Promise<readonly FoundLease[]> {
  const former: FoundLease[] = []
  if (!isMine) return former
  for (const lease of leases) {
    if (isOfOneNode(lease.attrs, attrs) || !listed(previous).some((net) => hasSubnet(lease, net))) continue
    const holders = listed(lease.attrs.publicIp)
    const known = await Promise.all(holders.map((address) => isMine(address)))
    if (holders.length === 0 || !known.every(Boolean)) continue
    const [was, is] = [addressText(lease.attrs.publicIp), addressText(attrs.publicIp)]
    log.info(
      `The lease ${lease.key} is this node's own, under its earlier public IP ${was}; it is published with ${is}`,
    )
    former.push(lease)
  }
  return former
}

/** Returns the leases of Round.own, which include `former`. */
function ownLeases(
  entries: readonly StoreEntry[],
  leases: readonly FoundLease[],
  acquiring: Acquiring,
  former: readonly FoundLease[],
): readonly FoundLease[] {
  const { attrs, previous = {} } = acquiring
  // flanneld takes the first lease of the listing. If the node had another subnet, that would cut its containers off.
  const rank = (lease: Lease): number =>
    2 * listed(previous).filter((net) => hasSubnet(lease, net)).length + Number(fits(lease, acquiring))
  const isOwn = (lease: FoundLease): boolean => former.includes(lease) || isOfOneNode(lease.attrs, attrs)
  const own = leases.filter(isOwn).toSorted((a, b) => rank(b) - rank(a))
  if (own.length > 0 || !primary(previous)) return own
  // An unreadable value under this node's previous key is overwritten, as while the node runs, so that a typo does not move the node. A value
  // without a public IP belongs to no node.
  const mine = netsOf(listed(previous).filter((net) => isWanted(net, acquiring)))
  if (!primary(mine)) return []
  const key = leaseKey(previous)
  const junk = entries.find((entry) => entry.key === key && !hasOwner(decodeOrUndefined(entry)))
  // Junk without an etcd lease is a mistake of an operator, not a reservation.
  return junk ? [{ key, subnet: previous, attrs, entry: { ...junk, isReservation: false } }] : []
}

/** True if the subnet is in one of the ranges for this node. */
const isWanted = (net: Net, { ranges }: Acquiring): boolean => {
  const range = ranges.find(({ network }) => familyOf(network) === familyOf(net))
  return range !== undefined && isCompatible(net, range)
}

/**
 * True if an own lease has the subnets that the configuration wants. A subnet of a family for which the node has no address now is kept if
 * the configuration has the family, because its containers would lose it.
 */
function fits({ subnet }: Lease, { config, ranges }: Acquiring): boolean {
  return (
    ranges.every(({ network }) => subnet[familyOf(network)] !== undefined) &&
    (!subnet.ipv4 || (config.ipv4 !== undefined && isCompatible(subnet.ipv4, config.ipv4))) &&
    (!subnet.ipv6 || (config.ipv6 !== undefined && isCompatible(subnet.ipv6, config.ipv6)))
  )
}

/**
 * Chooses a subnet for each range. If no IPv6 subnet is free, the node gets only IPv4. A node never gets only IPv6 for lack of an IPv4
 * subnet, because flanneld reads a key without IPv4 as 0.0.0.0/0. Throws WeftError OUT_OF_SUBNETS.
 */
function chooseSubnets(round: Round, acquiring: Acquiring): Nets {
  const nets: Net[] = []
  for (const range of acquiring.ranges) {
    try {
      nets.push(chooseSubnet(range, round, acquiring))
    } catch (error) {
      if (nets.length === 0 || !isWeftError(error, 'OUT_OF_SUBNETS')) throw error
      acquiring.log.error(`This node continues without an IPv6 subnet: ${describeError(error)}`)
    }
  }
  return netsOf(nets)
}

/** Chooses a subnet of one range. Throws WeftError OUT_OF_SUBNETS. */
function chooseSubnet(range: SubnetRange<Net>, { entries, leases, own }: Round, acquiring: Acquiring): Net {
  const { network, subnetMin, subnetMax, subnetLength } = range
  const family = familyOf(network)
  const { previous: before = {}, attrs, refused, random, log } = acquiring
  const isRefused = (net: Net): boolean => refused.some((other) => isSame(other, net))
  const kept = [hadIn(range, own, acquiring), ...own.map(({ subnet }) => subnet[family])].find(
    (net) => net !== undefined && isCompatible(net, range) && !isRefused(net),
  )
  if (kept) return kept

  const ownKeys = new Set(own.map(({ key }) => key))
  const taken = refused.filter((net) => familyOf(net) === family)
  // A key takes its subnet even if its value cannot be read.
  for (const { key } of entries) {
    const net = ownKeys.has(key) ? undefined : (parseLeaseKey(key) ?? {})[family]
    if (net) taken.push(net)
  }

  const previous = before[family]
  if (previous) {
    const mine = netsOf([previous])
    const isOthers = (lease: FoundLease): boolean => !own.includes(lease) && !isOfOneNode(lease.attrs, attrs)
    const holder = leases.find((lease) => isOthers(lease) && netsOverlap(lease.subnet, mine))
    if (holder) {
      log.warn(
        `The subnet of an earlier run, ${formatNet(previous)}, is leased by ${addressText(holder.attrs.publicIp)} now ` +
          `(${holder.key}); taking another. Containers of the earlier run must be started again`,
      )
    } else if (!taken.some((other) => netsOverlap(netsOf([other]), mine))) {
      if (isCompatible(previous, range)) {
        log.info(`Found previously leased subnet (${formatNet(previous)}), reusing`)
        return previous
      }
      log.error(
        `Found previously leased subnet (${formatNet(previous)}) that is not compatible with the Etcd network config, ignoring`,
      )
    }
  }

  const [which, name] = family === 'ipv4' ? ['subnet', 'Network'] : ['ipv6 subnet', 'IPv6Network']
  log.info(`Picking ${which} in range ${formatAddress(subnetMin)} ... ${formatAddress(subnetMax)}`)
  const drawn = pickSubnet(range, taken, random)
  if (drawn) return drawn
  throw new WeftError('OUT_OF_SUBNETS', 'out of subnets', {
    remedy: `all subnets of /${subnetLength} in ${formatNet(network)} are leased; delete leases of nodes that are gone, or make the ${name} larger`,
  })
}

const hasOwner = (lease: Lease | undefined): boolean =>
  lease !== undefined && primary(lease.attrs.publicIp) !== undefined

/**
 * Renews this node's lease and publishes `attrs` in it. Rejects with WeftError LEASE_LOST if the key is gone or belongs to another node. A
 * value that is not a lease, such as a typo, is overwritten and logged to `log`.
 */
export async function renewLease(
  store: Store,
  lease: OwnLease,
  options: { attrs?: LeaseAttrs; log?: Pick<Log, 'warn'>; signal: AbortSignal },
): Promise<OwnLease> {
  const { attrs = lease.attrs, log, signal } = options
  const value = encodeLeaseValue(attrs)
  const before = encodeLeaseValue(lease.attrs)
  // A lease without an end is a reservation.
  let present = { value: before, revision: lease.revision, isReservation: lease.expiresAt === undefined }
  for (;;) {
    const written = await store.update(lease.key, value, present, signal)
    if (written) return { ...lease, attrs, unwritten: undefined, isNew: undefined, ...written }
    const entry = (await store.list(signal)).entries.find(({ key }) => key === lease.key)
    if (!entry) throw new WeftError('LEASE_LOST', `the lease of ${netsText(lease.subnet)} is gone from the store`)
    // If the bytes are our own under another revision, the answer to an earlier write was lost, or an operator made the lease a
    // reservation. It stays a reservation.
    let isReservation = present.isReservation || entry.isReservation
    if (entry.value !== value && entry.value !== before) {
      const found = decodeOrUndefined(entry)
      const isOwn =
        found && (!hasOwner(found) || isOfOneNode(found.attrs, attrs) || isOfOneNode(found.attrs, lease.attrs))
      if (found && !isOwn)
        throw new WeftError('LEASE_LOST', `${netsText(lease.subnet)} is leased by another node now: ${entry.value}`)
      if (log) sayWrittenOver(entry, log)
      // Junk without an etcd lease is a mistake of an operator, not a reservation.
      if (!found) isReservation = present.isReservation
    }
    present = { ...entry, isReservation }
  }
}

function sayWrittenOver({ key, value }: StoreEntry, log: Pick<Log, 'warn'>): void {
  const shown = JSON.stringify(value.slice(0, SHOWN_VALUE))
  log.warn(`The value of this node's own key ${key} is not what it wrote, and is overwritten: ${shown}`)
}
