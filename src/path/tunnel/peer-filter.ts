// peer-filter.ts - which leases are peers of a backend. What is none is named once, for as long as it is there.
//
// Which of the leases that cannot be used beside each other counts depends on these leases and on no order in which they came. So
// only those are judged again that may differ, and those that they are in the way of, and the outcome is that of judging all.

import type { Log } from '../../base/log.ts'
import {
  hasFamily,
  isOfOneNode,
  leasesEqual,
  sideOf,
  type FamilyLease,
  type Lease,
  type OwnLease,
} from '../../control/lease/lease.ts'
import {
  familiesOf,
  FAMILY_NAMES,
  familyOf,
  formatAddress,
  formatNet,
  isOneHost,
  netContains,
  netText,
  type Family,
  type Net,
} from '../../net/address.ts'

/** Why no host can have the address of a family that a lease publishes, or undefined when one can. */
export function unusableReason({ attrs }: Lease, own: OwnLease, family: Family): string | undefined {
  const address = attrs.publicIp[family] ?? (family === 'ipv4' ? 0 : 0n)
  if (!isOneHost(address)) return `${formatAddress(address)} is no address of a host`
  if (isOfOneNode(attrs, own.attrs) || address === own.attrs.publicIp[family])
    return `${formatAddress(address)} is this node's own address`
  return undefined
}

/** Those of the families by which a peer's host can be reached. */
export const reachedBy = (peer: Lease, own: OwnLease, outers: readonly Family[]): readonly Family[] =>
  outers.filter((outer) => unusableReason(peer, own, outer) === undefined)

export interface PeerFilterOptions<N extends Net = Net> {
  /** The backend type that a peer's lease must have; any, where it is not given. */
  readonly type?: string
  readonly lease: OwnLease
  /** The cluster's network of one family: a subnet outside it would take packets from the host's own routes. */
  readonly network: N
  /** True when the network has another family too, with a filter of its own: that one judges the leases which have it alone. */
  readonly isOneOfTwo?: boolean
  /** The families by which peers' hosts can be reached, one of which is enough; the network's where it is left out. */
  readonly outers?: readonly Family[]
  readonly log: Log
  /** The reason why a lease that is otherwise a peer's is none. */
  readonly alsoUnusable?: (lease: Lease) => string | undefined
  readonly identity?: Identity | undefined
}

/**
 * The name by which the kernel knows a host, such as a MAC: of two hosts with the same, such as a virtual machine and
 * its clone, one would get the packets of both.
 */
interface Identity {
  /** `MAC` */
  readonly name: string
  readonly own: string
  readonly of: (lease: Lease) => string | undefined
  /** Says what to do about it, on one of the two hosts. */
  readonly remedy: string
}

export interface PeerFilter<L extends Lease = Lease> {
  /**
   * Takes leases by key over, less our own: all of them, or those of the keys alone that may differ from what was taken before. Who was
   * a peer before, by each key whose peer came, changed or went; undefined where all may have.
   */
  take(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: Iterable<string>,
  ): ReadonlyMap<string, L | undefined> | undefined
  /** The leases of peers, by key. */
  peers(): ReadonlyMap<string, L>
  /** Takes all, and returns those of peers. */
  usable(leases: ReadonlyMap<string, Lease>, ownKey: string): readonly L[]
  /** The number of leases that were no peers at the last call. */
  skipped(): number
}

/**
 * True when `a` was written after `b`: a host that is gone, or has another address now, no longer renews its old lease.
 * Of two that nobody wrote, or that were written at once, all nodes choose the same.
 */
function isNewer(a: Lease, b: Lease): boolean {
  const [x, y] = [a.revision ?? -1n, b.revision ?? -1n]
  return x === y ? a.key < b.key : x > y
}

/** Leases that cannot be used beside each other, by what they have in common. */
function createRivals<Name, L extends Lease>() {
  const newest = new Map<Name, L>()
  /** Hardly ever is there one. */
  const others = new Map<Name, readonly L[]>()
  function all(name: Name): readonly L[] {
    const first = newest.get(name)
    return first ? [first, ...(others.get(name) ?? [])] : []
  }
  function add(name: Name, lease: L): void {
    const first = newest.get(name)
    if (!first || isNewer(lease, first)) newest.set(name, lease)
    if (first) others.set(name, [...(others.get(name) ?? []), isNewer(lease, first) ? first : lease])
  }
  function remove(name: Name, { key }: Lease): void {
    const left = all(name).filter((each) => each.key !== key)
    newest.delete(name)
    others.delete(name)
    for (const lease of left) add(name, lease)
  }
  return { newest: (name: Name): L | undefined => newest.get(name), all, add, remove }
}

/**
 * A number that is different for each subnet. V8 hashes a bigint by its low 64 bits alone, which are the same for all subnets of 64 bits:
 * so the high ones are mixed in, or each look into a map would walk through all of them.
 */
const numberOf = (net: Net): number | bigint =>
  typeof net.address === 'number'
    ? net.address * 64 + net.prefixLength
    : (BigInt(net.prefixLength) << 128n) | (net.address ^ (net.address >> 64n))

/** A lease of a peer in a network of N: of one whose family is not known there, whoever asks says it (`sideOf`). */
type PeerOf<N extends Net> = N['address'] extends number
  ? FamilyLease<'ipv4'>
  : N['address'] extends bigint
    ? FamilyLease<'ipv6'>
    : Lease

export function createPeerFilter<N extends Net>(options: PeerFilterOptions<N>): PeerFilter<PeerOf<N>> {
  type L = PeerOf<N>
  const { type, lease: own, network, isOneOfTwo = false, log, alsoUnusable, identity } = options
  const family = familyOf(network)
  const { outers = [family] } = options
  const ownSubnet = own.subnet[family]
  let ownKey: string | undefined
  let peers = new Map<string, L>()
  /** The leases that are sound, and not used because of another one. */
  let beaten = new Map<string, L>()
  /** The rivals for each subnet, beaten ones too. */
  let bySubnet = createRivals<number | bigint, L>()
  /** The rivals for each identity, among the newest of each subnet. */
  let byIdentity = createRivals<string, L>()
  let skipped = new Set<string>()
  const hostOf = ({ attrs }: Lease): string =>
    formatAddress(outers.flatMap((outer) => attrs.publicIp[outer] ?? [])[0] ?? 0)
  const subnetOf = (lease: Lease): Net => sideOf(lease, family).subnet
  const keyOf = (lease: Lease): number | bigint => numberOf(subnetOf(lease))
  /** With a reason for the others: by then it has a subnet of the family, and an address of the outer one. */
  const isOfNetwork = (lease: Lease): lease is L => outers.some((outer) => outer !== family) || hasFamily(lease, family)
  const isWithin = ({ subnet: { [family]: net } }: Lease, whole: Net): boolean =>
    net !== undefined && netContains(whole, net.address) && net.prefixLength >= whole.prefixLength
  const notUsed = ({ key }: Lease): string =>
    `Lease ${key} is not used${isOneOfTwo ? ` for ${FAMILY_NAMES[family]}` : ''}`
  /** The lease, if it is sound by itself; else why it is not used, or nothing where that is the other family's to say. */
  function judgeAlone(lease: Lease): L | string | undefined {
    const { subnet, attrs } = lease
    if (isOneOfTwo && subnet[family] === undefined) return undefined
    const isOthersToSay = isOneOfTwo && familiesOf(subnet)[0] !== family
    // flanneld's words (pkg/backend/route_network.go, vxlan_network.go).
    if (type !== undefined && attrs.backendType !== type)
      return isOthersToSay ? undefined : `Ignoring non-${type} subnet: ${netText(subnet)}, type=${attrs.backendType}`
    // This node's own lease by another key, which a weftd writes that is about to take over with one family more, or less.
    if (isOfOneNode(attrs, own.attrs) && ownSubnet && isWithin(lease, ownSubnet)) return undefined
    const reason =
      (reachedBy(lease, own, outers).length > 0 ? undefined : unusableReason(lease, own, outers[0] ?? family)) ??
      (isWithin(lease, network) ? undefined : `its subnet is not within the network ${formatNet(network)}`) ??
      // A route there would lead our own containers' packets away: one to the same subnet takes the place of a bridge's.
      (ownSubnet && isWithin(lease, ownSubnet)
        ? `its subnet is this node's ${formatNet(ownSubnet)}, or a part of it`
        : undefined) ??
      alsoUnusable?.(lease) ??
      (identity && identity.of(lease) === identity.own
        ? `its ${identity.name} ${identity.own} is that of this node; ${identity.remedy}`
        : undefined)
    return reason === undefined && isOfNetwork(lease) ? lease : `${notUsed(lease)}: ${reason}`
  }
  /**
   * The reason why a lease that is sound by itself is not used: another one is newer. Empty where that is the same host's, which took its
   * subnet along to another key when the network got or lost a family: no conflict.
   */
  function whyBeaten(lease: L): string | undefined {
    const say = (what: string, newest: L, remedy: string): string =>
      `${notUsed(lease)}: its ${what} is that of ${hostOf(newest)} too, whose lease is newer${remedy}`
    const first = bySubnet.newest(keyOf(lease))
    if (first && first.key !== lease.key && isOfOneNode(first.attrs, lease.attrs)) return ''
    if (first && first.key !== lease.key) return say(`subnet ${formatNet(subnetOf(lease))}`, first, '')
    const name = identity?.of(lease)
    const newest = name === undefined ? undefined : byIdentity.newest(name)
    // One host may have several leases.
    if (!identity || !newest || isOfOneNode(newest.attrs, lease.attrs)) return undefined
    return say(`${identity.name} ${name}`, newest, `; ${identity.remedy}`)
  }

  /** Makes a lease a peer, or not, and says why not, unless that was said. */
  function decide(key: string, lease: L | undefined, reason: string | undefined, named: ReadonlySet<string>): void {
    if (reason && !named.has(key)) log.warn(reason)
    if (reason) skipped.add(key)
    else skipped.delete(key)
    if (lease) (reason === undefined ? peers : beaten).set(key, lease)
  }

  function takeAll(leases: ReadonlyMap<string, Lease>): void {
    const named = skipped
    ;[peers, beaten, skipped] = [new Map(), new Map(), new Set()]
    ;[bySubnet, byIdentity] = [createRivals(), createRivals()]
    const sound: L[] = []
    for (const [key, lease] of leases) {
      if (key === ownKey) continue
      const judged = judgeAlone(lease)
      if (typeof judged === 'string') decide(key, undefined, judged, named)
      else if (judged) sound.push(judged)
    }
    for (const lease of sound) bySubnet.add(keyOf(lease), lease)
    for (const lease of identity ? sound : []) {
      const name = bySubnet.newest(keyOf(lease)) === lease ? identity?.of(lease) : undefined
      if (name !== undefined) byIdentity.add(name, lease)
    }
    for (const lease of sound) decide(lease.key, lease, whyBeaten(lease), named)
  }

  function takeTouched(leases: ReadonlyMap<string, Lease>, touched: Iterable<string>): Map<string, L | undefined> {
    /** The leases that may become or cease to be peers, with what was a peer before, and why each is none by itself. */
    const judged = new Map<string, { readonly before: L | undefined; readonly unsound?: string | undefined }>()
    const newestBefore = new Map<number | bigint, L | undefined>()
    for (const key of new Set(touched)) {
      const [before, lease] = [peers.get(key), key === ownKey ? undefined : leases.get(key)]
      const [was, alone] = [before ?? beaten.get(key), lease && judgeAlone(lease)]
      const is = typeof alone === 'string' ? undefined : alone
      judged.set(key, { before, unsound: typeof alone === 'string' ? alone : undefined })
      for (const each of [was, is]) {
        const subnet = each && keyOf(each)
        if (subnet !== undefined && !newestBefore.has(subnet)) newestBefore.set(subnet, bySubnet.newest(subnet))
      }
      if (was) bySubnet.remove(keyOf(was), was)
      if (is) bySubnet.add(keyOf(is), is)
      peers.delete(key)
      beaten.delete(key)
      if (is) beaten.set(key, is) // until it is judged
    }
    const judge = ({ key }: Lease): void => void (judged.has(key) || judged.set(key, { before: peers.get(key) }))
    const identities = new Set<string>()
    for (const [subnet, before] of newestBefore) {
      for (const lease of bySubnet.all(subnet)) judge(lease)
      const after = bySubnet.newest(subnet)
      if (!identity || before === after) continue
      const [was, is] = [before && identity.of(before), after && identity.of(after)]
      if (before && was !== undefined) byIdentity.remove(was, before)
      if (after && is !== undefined) byIdentity.add(is, after)
      for (const name of [was, is]) if (name !== undefined) identities.add(name)
    }
    for (const name of identities) for (const lease of byIdentity.all(name)) judge(lease)
    const changed = new Map<string, L | undefined>()
    for (const [key, { before, unsound }] of judged) {
      const lease = peers.get(key) ?? beaten.get(key)
      peers.delete(key)
      beaten.delete(key)
      decide(key, lease, unsound ?? (lease && whyBeaten(lease)), skipped)
      const is = peers.get(key)
      if (before !== is && !(before && is && leasesEqual(before, is))) changed.set(key, before)
    }
    return changed
  }

  function take(
    leases: ReadonlyMap<string, Lease>,
    key: string,
    touched?: Iterable<string>,
  ): ReadonlyMap<string, L | undefined> | undefined {
    const isWhole = touched === undefined || key !== ownKey
    ownKey = key
    if (!isWhole) return takeTouched(leases, touched)
    takeAll(leases)
    return undefined
  }

  return {
    take,
    peers: () => peers,
    usable(leases, key) {
      take(leases, key)
      return [...peers.values()]
    },
    skipped: () => skipped.size,
  }
}
