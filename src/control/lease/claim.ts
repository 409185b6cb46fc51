// claim.ts - which of the keys that lie across each other goes first, and a lease created by that.
//
// A store compares one key. Two keys may have one subnet all the same: of two lengths, or with another subnet of the other family beside
// it. So whoever creates a key lists again, and gives it up for one that goes before it. A key that was written again since it came goes
// before one that was not: its node wrote it when it had found that it was the first, and may have the subnet by a new key. Of two
// alike the one that came first goes before.

import { familyOf, formatNet, listed, netsOf, netsOverlap, type Net, type Nets } from '../../net/address.ts'
import type { Store, StoreEntry, Written } from '../store/store.ts'
import { decodeLease } from './decode.ts'
import { isOfOneNode, leaseKey, parseLeaseKey, type Lease, type LeaseAttrs } from './lease.ts'

export type FoundLease = Lease & { readonly entry: StoreEntry }

/** What a node is to have. */
interface Claim {
  readonly subnet: Nets
  readonly attrs: LeaseAttrs
  /** Its leases until now, whose subnets are its own. */
  readonly own: readonly FoundLease[]
}

/** A key of another node, and what of ours it lies across. */
export interface Across {
  readonly key: string
  readonly subnet: Net
}

export const overlapText = ({ key, subnet }: Across): string =>
  `Subnet ${formatNet(subnet)} overlaps ${key}, which another node took first; picking another`

/**
 * Creates a lease unless another node's lies across it. A key with two subnets is compared with no other that has one of them, nor is one
 * of another length: what was created so at once is found by a listing after that, and of two the one that was there first stays.
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
  const across = firstAcross((await store.list(signal)).entries, claim)
  if (!across) return { written }
  await store.delete(key, { ...written, value }, signal)
  return { across }
}

/** Whether it was written again since it came, which its node does only when it has found that it was the first. */
export const isSettled = ({ revision, created }: StoreEntry): boolean => revision !== created

/**
 * What lies across one of the subnets, and goes before every key by which the node has that: a settled one before any other, since a node
 * that has a subnet may have it by a new key, and of two alike that which came first.
 */
export function firstAcross(entries: readonly StoreEntry[], { subnet, attrs, own }: Claim): Across | undefined {
  /** As they were read: somebody else may have what stood under such a key. */
  const ours = new Map(own.map(({ key, entry }) => [key, entry.revision]))
  for (const net of listed(subnet)) {
    const wanted = netsOf([net])
    const there = entries.flatMap((entry) => {
      const other = parseLeaseKey(entry.key)
      if (!other || !netsOverlap(other, wanted)) return []
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
    // Undefined: nobody's lease as far as we can read; whoever follows names it.
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
