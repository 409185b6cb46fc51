// claim.ts - decides which of two overlapping keys wins, and creates a lease by that rule.
//
// A write to a store compares only one key. But two different keys can overlap: their prefix lengths differ, or they
// share the subnet of only one family. So a node lists the keys again after it created a key, and deletes its own key
// if an overlapping key wins. A settled key is a key that its node wrote again after its creation, because the node had
// found no older overlapping key. A settled key wins over a key that is not settled. Otherwise the key that was created
// first wins.

import { familyOf, formatNet, listed, netsOf, netsOverlap, type Net, type Nets } from '../../net/address.ts'
import type { Store, StoreEntry, Written } from '../store/store.ts'
import { decodeLease } from './decode.ts'
import { isOfOneNode, leaseKey, parseLeaseKey, type Lease, type LeaseAttrs } from './lease.ts'

export type FoundLease = Lease & { readonly entry: StoreEntry }

/** The subnets and attributes of the lease that a node wants to hold. */
interface Claim {
  readonly subnet: Nets
  readonly attrs: LeaseAttrs
  /** The leases that this node already has. */
  readonly own: readonly FoundLease[]
}

/** The lease key of another node that overlaps a subnet of this node, and that subnet. */
export interface Across {
  readonly key: string
  readonly subnet: Net
}

export const overlapText = ({ key, subnet }: Across): string =>
  `Subnet ${formatNet(subnet)} overlaps ${key}, which another node took first; picking another`

/**
 * Creates a lease for this node unless it overlaps a lease of another node. Some stores do not check for an overlap, so
 * the leases are listed again after the write.
 */
export async function createAlone(
  store: Store,
  value: string,
  claim: Claim,
  signal: AbortSignal,
): Promise<{ readonly written: Written } | { readonly written?: undefined; readonly across: Across | undefined }> {
  const { subnet, own } = claim
  const key = leaseKey(subnet)
  const ownKeys = new Set(own.map((lease) => lease.key))
  const isAcross = (other: string): boolean => !ownKeys.has(other) && netsOverlap(parseLeaseKey(other) ?? {}, subnet)
  const written = await store.create(key, value, signal, isAcross)
  if (!written) return { across: undefined }
  const { entries } = await store.list(signal)
  // If the key is missing, a node with an older lease of the subnet has overwritten and then deleted the key. In that
  // case the listing shows no overlap.
  if (!entries.some((entry) => entry.key === key && entry.value === value)) return { across: undefined }
  const across = firstAcross(entries, claim)
  if (!across) return { written }
  await store.delete(key, { ...written, value }, signal)
  return { across }
}

/**
 * Returns true if a key was written again after its creation. A node writes its key again only after it found that no
 * overlapping key is older.
 */
export const isSettled = ({ revision, created }: StoreEntry): boolean => revision !== created

/**
 * Returns a key of another node that overlaps a subnet of this node and wins over every key of this node with that
 * subnet. Returns undefined if no key of another node wins.
 */
export function firstAcross(entries: readonly StoreEntry[], { subnet, attrs, own }: Claim): Across | undefined {
  /**
   * The revision at which each key of this node was read. If a key has a different revision now, the key may belong to
   * another node.
   */
  const ours = new Map(own.map(({ key, entry }) => [key, entry.revision]))
  const overlapping = entries.flatMap((entry) => {
    const other = parseLeaseKey(entry.key)
    return other && netsOverlap(other, subnet) ? [{ entry, other }] : []
  })
  for (const net of listed(subnet)) {
    const wanted = netsOf([net])
    const there = overlapping.flatMap(({ entry, other }) => {
      if (!netsOverlap(other, wanted)) return []
      const owner = decodeOrUndefined(entry)
      const isOwn = ours.get(entry.key) === entry.revision || (owner !== undefined && isOfOneNode(owner.attrs, attrs))
      return [{ ...entry, isOwn, isSame: isSame(net, other[familyOf(net)]) }]
    })
    const mine = there.filter((each) => each.isOwn && each.isSame)
    const isMineSettled = mine.some(isSettled)
    const first = there.find((each) => {
      if (each.isOwn) return false
      return isSettled(each) === isMineSettled ? mine.every(({ created }) => each.created <= created) : isSettled(each)
    })
    if (first) return { key: first.key, subnet: net }
  }
  return undefined
}

export const isSame = (a: Net, b: Net | undefined): boolean => b !== undefined && formatNet(a) === formatNet(b)

export function decodeAll(entries: readonly StoreEntry[]): FoundLease[] {
  const leases: FoundLease[] = []
  for (const entry of entries) {
    const lease = decodeOrUndefined(entry)
    // Skip entries that cannot be decoded. LeaseView logs them.
    if (lease) leases.push({ ...lease, entry })
  }
  return leases
}

export function decodeOrUndefined({ key, value }: StoreEntry): Lease | undefined {
  try {
    return decodeLease(key, value)
  } catch {
    return undefined
  }
}
