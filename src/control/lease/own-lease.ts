// own-lease.ts - acquires, renews and releases this node's own lease in a compare-and-set store.
//
// A write succeeds only if the store is still in the state that the node read, so two nodes can never hold the same
// subnet. The loser of a race reads the store again and retries.

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

export function holderOf(store: Store, config: NetworkConfig): LeaseHolder {
  return {
    obtain: (attrs, previous, log, signal, isMine) =>
      acquireLease(store, config, attrs, { previous, ...(isMine ? { isMine } : {}), random: Math.random, log, signal }),
    renew: (lease, attrs, log, signal) => renewLease(store, lease, { attrs, log, signal }),
    release: (lease, signal) => releaseLease(store, lease, signal),
  }
}

export interface AcquireOptions {
  /** The subnets that an earlier run of weftd on this node wrote to subnet.env. */
  readonly previous?: Nets
  /**
   * Returns true if this node had an address in the past. Without this function only the current addresses count as the
   * node's.
   */
  readonly isMine?: IsMine
  readonly random: () => number
  readonly log: Log
  readonly signal: AbortSignal
}

/** The maximum number of characters that weftd logs of an invalid lease value. */
const SHOWN_VALUE = 200

/** Deletes this node's lease from the store, unless the key belongs to another node now. */
async function releaseLease(store: Store, { key, attrs }: OwnLease, signal: AbortSignal): Promise<void> {
  for (;;) {
    const { entries } = await store.list(signal)
    const own = decodeAll(entries).find((lease) => lease.key === key && isOfOneNode(lease.attrs, attrs))
    // weftd does not delete a reservation, because it belongs to the operator.
    if (!own || own.entry.isReservation || (await store.delete(key, own.entry, signal))) return
  }
}

/**
 * Acquires a lease for this node, with a subnet of each family that the configuration enables and for which the node
 * has an address. For each family `acquireLease` prefers the subnet of the node's existing lease, then the subnet of
 * weftd's previous run if that subnet is free, then a random free subnet. Rejects with WeftError OUT_OF_SUBNETS,
 * CONFIG, STORE or STORE_UNAVAILABLE.
 */
export async function acquireLease(
  store: Store,
  config: NetworkConfig,
  attrs: LeaseAttrs,
  options: AcquireOptions,
): Promise<OwnLease> {
  const ranges = rangesFor(config, attrs)
  // Each failed attempt adds a subnet to `refused`, so the loop ends with a lease or with OUT_OF_SUBNETS.
  const refused: Net[] = []
  for (;;) {
    options.signal.throwIfAborted()
    const lease = await tryAcquire({ store, config, ranges, attrs, refused, ...options })
    if (lease) return lease
  }
}

/**
 * Returns the configured range of subnets of each family for which the node has an address. Throws WeftError CONFIG if
 * the node has no address of a configured family.
 */
function rangesFor(config: NetworkConfig, { publicIp }: LeaseAttrs): readonly SubnetRange<Net>[] {
  const ranges = listed({
    ipv4: publicIp.ipv4 === undefined ? undefined : config.ipv4,
    ipv6: publicIp.ipv6 === undefined ? undefined : config.ipv6,
  })
  if (ranges.length > 0) return ranges
  const family = config.ipv4 ? 'IPv4' : 'IPv6'
  throw new WeftError('CONFIG', `the network is of ${family}, and this node has no ${family} address`, {
    remedy: 'give the host an address of that family, or enable the family of the host in the network configuration',
  })
}

interface Acquiring extends AcquireOptions {
  readonly store: Store
  readonly config: NetworkConfig
  readonly ranges: readonly SubnetRange<Net>[]
  readonly attrs: LeaseAttrs
  /**
   * The subnets that this node can no longer get, because another node holds them. Each failed attempt to acquire a
   * lease may add subnets.
   */
  readonly refused: Net[]
}

/** The keys and leases of the store at the beginning of one attempt to acquire a lease. */
interface Round {
  readonly entries: readonly StoreEntry[]
  readonly leases: readonly FoundLease[]
  /**
   * The leases of this node, in order of preference. A lease with more of the node's previous subnets comes earlier.
   * Among leases with equally many, a lease that fits the configuration comes earlier.
   */
  readonly own: readonly FoundLease[]
}

/**
 * Tries once to acquire a lease. Returns undefined if another node wrote to the store first; the caller then tries
 * again.
 */
async function tryAcquire(acquiring: Acquiring): Promise<OwnLease | undefined> {
  const { store, attrs, log, signal } = acquiring
  const { entries } = await store.list(signal)
  const leases = decodeAll(entries)
  const own = ownLeases(entries, leases, acquiring, await formerLeases(leases, acquiring))
  const round = { entries, leases, own }
  const [lease] = own
  if (!lease) return allocate(round, acquiring)
  if (fits(lease, acquiring)) {
    // The node may have two keys that each hold one of its previous subnets. If weftd reused only one of the two keys,
    // the node would lose the subnet of the other key.
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

/**
 * Renews a lease that this node already has. Returns undefined if the store has changed, so that the caller must read
 * the store again.
 */
async function reuse(lease: FoundLease, { entries, own }: Round, acquiring: Acquiring): Promise<OwnLease | undefined> {
  const { store, attrs, refused, log, signal } = acquiring
  const { key, subnet, entry } = lease
  const address = addressText(attrs.publicIp)
  log.info(`Found lease (${describeSubnets(subnet)}) for current IP (${address}), reusing`)
  // The process that created this lease may have ended before it checked if an overlapping key of another node is
  // older. So this process makes that check now.
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
 * Creates a lease that keeps as many subnets of this node's existing leases as possible. The existing leases are
 * deleted only after the new lease was created, so a kept subnet is never free, even if the process crashes in between.
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
    // If the other node has not yet confirmed its key by a second write (isSettled), the older lease of this node wins,
    // so this node overwrites the key. The other node may have crashed before it deleted that key.
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
    // Write the new key a second time, which confirms it (isSettled), before the old key is deleted. Until then the old
    // key proves that this node held the subnet first.
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
 * Deletes this node's leases except `key` and then writes `key` again. When a node deletes any key with a subnet,
 * flanneld on all hosts removes the route to that subnet (pkg/lease, LeaseWatcher). So the last event that flanneld
 * receives must be the write of `key`. Returns undefined if another process changed one of the leases.
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

/**
 * Returns the subnet in the family of `range` that this node had before, if one of the leases `own` has that subnet.
 */
function hadIn(range: SubnetRange<Net>, own: readonly Lease[], { previous = {} }: Acquiring): Net | undefined {
  const net = previous[familyOf(range.network)]
  return net && isCompatible(net, range) && own.some((lease) => hasSubnet(lease, net)) ? net : undefined
}

/** Returns the part of `subnet` that no existing lease of this node has. */
const newOf = (subnet: Nets, own: readonly Lease[]): Nets =>
  netsOf(listed(subnet).filter((net) => !own.some((lease) => hasSubnet(lease, net))))

/**
 * Finds leases that have this node's previous subnets, and whose public IP is an earlier address of this node, such as
 * an address from DHCP or a virtual IP. The node takes these leases over, because with new subnets its running
 * containers would lose the network.
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

/**
 * Returns the leases of this node, the preferred lease first (Round.own). They include `former`, the leases with an
 * earlier address of the node.
 */
function ownLeases(
  entries: readonly StoreEntry[],
  leases: readonly FoundLease[],
  acquiring: Acquiring,
  former: readonly FoundLease[],
): readonly FoundLease[] {
  const { attrs, previous = {} } = acquiring
  // If the node has several leases, flanneld takes the first one of the listing. weft prefers the node's previous
  // subnet, because the running containers have addresses of this subnet.
  const rank = (lease: Lease): number =>
    2 * listed(previous).filter((net) => hasSubnet(lease, net)).length + Number(fits(lease, acquiring))
  const isOwn = (lease: FoundLease): boolean => former.includes(lease) || isOfOneNode(lease.attrs, attrs)
  const own = leases.filter(isOwn).toSorted((a, b) => rank(b) - rank(a))
  if (own.length > 0 || !primary(previous)) return own
  // If the value under this node's previous key cannot be read, weftd overwrites the value, so that an operator's typo
  // does not move the node to another subnet. This is safe because a value without a public IP belongs to no node.
  const mine = netsOf(listed(previous).filter((net) => isWanted(net, acquiring)))
  if (!primary(mine)) return []
  const key = leaseKey(previous)
  const junk = entries.find((entry) => entry.key === key && !hasOwner(decodeOrUndefined(entry)))
  // A key without an etcd lease is usually a reservation by an operator. But a key whose value is unreadable counts as
  // an operator's mistake.
  return junk ? [{ key, subnet: previous, attrs, entry: { ...junk, isReservation: false } }] : []
}

/**
 * Returns true if the subnet fits one of `ranges`. These are the ranges of the families for which this node needs a
 * subnet.
 */
const isWanted = (net: Net, { ranges }: Acquiring): boolean => {
  const range = ranges.find(({ network }) => familyOf(network) === familyOf(net))
  return range !== undefined && isCompatible(net, range)
}

/**
 * Returns true if a lease of this node has the subnets that the configuration needs. The lease may also have a subnet
 * of a configured family for which the node has no address now, because the node's containers still use that subnet.
 */
function fits({ subnet }: Lease, { config, ranges }: Acquiring): boolean {
  return (
    ranges.every(({ network }) => subnet[familyOf(network)] !== undefined) &&
    (!subnet.ipv4 || (config.ipv4 !== undefined && isCompatible(subnet.ipv4, config.ipv4))) &&
    (!subnet.ipv6 || (config.ipv6 !== undefined && isCompatible(subnet.ipv6, config.ipv6)))
  )
}

/**
 * Chooses a subnet of each range. If no IPv6 subnet is free, returns only an IPv4 subnet. Throws WeftError
 * OUT_OF_SUBNETS if no IPv4 subnet is free, because flanneld reads a key without IPv4 as 0.0.0.0/0.
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

/** Chooses a subnet of one range. Throws WeftError OUT_OF_SUBNETS if no subnet of the range is free. */
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
  // The subnet of a key counts as taken even if the key's value cannot be read.
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
 * Renews this node's lease and publishes `attrs` in the lease. Rejects with WeftError LEASE_LOST if the key is gone or
 * belongs to another node. If the stored value is not a lease, as after an operator's typo, overwrites the value and
 * logs the overwritten value to `log`.
 */
export async function renewLease(
  store: Store,
  lease: OwnLease,
  options: { attrs?: LeaseAttrs; log?: Pick<Log, 'warn'>; signal: AbortSignal },
): Promise<OwnLease> {
  const { attrs = lease.attrs, log, signal } = options
  const value = encodeLeaseValue(attrs)
  const before = encodeLeaseValue(lease.attrs)
  let present = { value: before, revision: lease.revision, isReservation: lease.expiresAt === undefined }
  for (;;) {
    const written = await store.update(lease.key, value, present, signal)
    if (written) return { ...lease, attrs, unwritten: undefined, isNew: undefined, ...written }
    const entry = (await store.list(signal)).entries.find(({ key }) => key === lease.key)
    if (!entry) throw new WeftError('LEASE_LOST', `the lease of ${netsText(lease.subnet)} is gone from the store`)
    // If the store has the expected bytes under a new revision, the answer to an earlier write of this node was lost,
    // or an operator turned the lease into a reservation or the reservation into a lease. Keep the operator's choice.
    let { isReservation } = entry
    if (entry.value !== value && entry.value !== before) {
      const found = decodeOrUndefined(entry)
      const isOwn =
        found && (!hasOwner(found) || isOfOneNode(found.attrs, attrs) || isOfOneNode(found.attrs, lease.attrs))
      if (found && !isOwn)
        throw new WeftError('LEASE_LOST', `${netsText(lease.subnet)} is leased by another node now: ${entry.value}`)
      if (log) sayWrittenOver(entry, log)
      // A key without an etcd lease is usually a reservation. But if the key's value was unreadable, an operator may
      // have made a mistake, so the key stays a reservation only if it was a reservation before.
      if (!found) isReservation = present.isReservation
    }
    present = { ...entry, isReservation }
  }
}

function sayWrittenOver({ key, value }: StoreEntry, log: Pick<Log, 'warn'>): void {
  const shown = JSON.stringify(value.slice(0, SHOWN_VALUE))
  log.warn(`The value of this node's own key ${key} is not what it wrote, and is overwritten: ${shown}`)
}
