// peer-filter.ts - decides which leases are usable peers of a backend. Each unusable lease is logged once while it exists.
//
// Which of several conflicting leases wins depends only on these leases, not on the order in which they arrived. So after a change it is
// enough to judge the changed leases, and those that conflict with them, again.

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

/** Returns why the address that the lease publishes in this family cannot be another host's address; undefined if it can be. */
export function unusableReason({ attrs }: Lease, own: OwnLease, family: Family): string | undefined {
  const address = attrs.publicIp[family] ?? (family === 'ipv4' ? 0 : 0n)
  if (!isOneHost(address)) return `${formatAddress(address)} is not the address of a host`
  if (isOfOneNode(attrs, own.attrs) || address === own.attrs.publicIp[family])
    return `${formatAddress(address)} is this node's own address`
  return undefined
}

export const reachedBy = (peer: Lease, own: OwnLease, outers: readonly Family[]): readonly Family[] =>
  outers.filter((outer) => unusableReason(peer, own, outer) === undefined)

export interface PeerFilterOptions<N extends Net = Net> {
  /** The `BackendType` that a peer's lease must have; left out if all types are accepted. */
  readonly type?: string
  readonly lease: OwnLease
  /**
   * The network of one family. Leases with a subnet outside the network are refused, because their route would divert packets from the
   * host's own routes.
   */
  readonly network: N
  /**
   * True in a dual-stack network, which has one filter for each family. A lease with only one family is judged, and logged, only by that
   * family's filter.
   */
  readonly isOneOfTwo?: boolean
  /**
   * The outer families over which this host can reach peers' hosts. A peer needs an address in at least one of them. Defaults to the
   * network's family.
   */
  readonly outers?: readonly Family[]
  readonly log: Log
  /** Returns a backend's own reason why a lease is not usable; undefined if it has none. */
  readonly alsoUnusable?: (lease: Lease) => string | undefined
  readonly identity?: Identity | undefined
}

/**
 * A property by which the kernel distinguishes peers' hosts, such as a MAC. If two hosts have the same value, such as a virtual machine and
 * its clone, one of them would get the packets of both.
 */
interface Identity {
  /** The name of the property for messages, such as `MAC`. */
  readonly name: string
  readonly own: string
  readonly of: (lease: Lease) => string | undefined
  /** How the operator gives one of the two hosts another value, for messages. */
  readonly remedy: string
}

export interface PeerFilter<L extends Lease = Lease> {
  /**
   * Judges these leases, leaving out this node's own. `touched` lists the lease keys that may differ from the last call; if it is left out,
   * all may differ. Returns, by key, the earlier lease of each peer that was added (undefined), changed or removed. Returns undefined if
   * all peers may have changed.
   */
  take(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: Iterable<string>,
  ): ReadonlyMap<string, L | undefined> | undefined
  peers(): ReadonlyMap<string, L>
  usable(leases: ReadonlyMap<string, Lease>, ownKey: string): readonly L[]
  /** The number of leases that the last call found unusable. */
  skipped(): number
}

/**
 * True if lease `a` was written after lease `b`. The newer lease wins a conflict, because a host that is gone or has another address no
 * longer renews its old lease. If the revisions are equal, the keys decide, so that all nodes make the same choice.
 */
function isNewer(a: Lease, b: Lease): boolean {
  const [x, y] = [a.revision ?? -1n, b.revision ?? -1n]
  return x === y ? a.key < b.key : x > y
}

/** Returns groups of leases, by a value (`Name`) that they share and that should be unique. The newest lease of each group wins. */
function createConflicts<Name, L extends Lease>() {
  const newest = new Map<Name, L>()
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
 * Returns a number that is unique for each subnet, as key of a map. V8 hashes a bigint by its low 64 bits, which are 0 for all /64 subnets,
 * so the high bits are mixed into them. Otherwise each lookup would compare all entries.
 */
const numberOf = (net: Net): number | bigint =>
  typeof net.address === 'number'
    ? net.address * 64 + net.prefixLength
    : (BigInt(net.prefixLength) << 128n) | (net.address ^ (net.address >> 64n))

/**
 * The type of a usable lease in a network of type N. If the family is not known at compile time, it is `Lease`, and callers use `sideOf`.
 */
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
  let losing = new Map<string, L>()
  /** The leases that are valid by themselves, grouped by subnet; includes leases that lose against a newer one. */
  let bySubnet = createConflicts<number | bigint, L>()
  /** The newest lease of each subnet, grouped by identity (such as the MAC). */
  let byIdentity = createConflicts<string, L>()
  let skipped = new Set<string>()
  const hostOf = ({ attrs }: Lease): string =>
    formatAddress(outers.flatMap((outer) => attrs.publicIp[outer] ?? [])[0] ?? 0)
  const subnetOf = (lease: Lease): Net => sideOf(lease, family).subnet
  const keyOf = (lease: Lease): number | bigint => numberOf(subnetOf(lease))
  /** Narrows the type of a lease that has passed all other checks, and so has a subnet of the family and a usable outer address. */
  const isOfNetwork = (lease: Lease): lease is L => outers.some((outer) => outer !== family) || hasFamily(lease, family)
  const isWithin = ({ subnet: { [family]: net } }: Lease, whole: Net): boolean =>
    net !== undefined && netContains(whole, net.address) && net.prefixLength >= whole.prefixLength
  const notUsed = ({ key }: Lease): string =>
    `Lease ${key} is not used${isOneOfTwo ? ` for ${FAMILY_NAMES[family]}` : ''}`
  /**
   * Returns the lease if it is valid by itself, that is, apart from conflicts; otherwise the reason as text. Returns undefined if the lease
   * must be skipped silently, for example because the filter of the other family logs the reason.
   */
  function judgeAlone(lease: Lease): L | string | undefined {
    const { subnet, attrs } = lease
    if (isOneOfTwo && subnet[family] === undefined) return undefined
    const isLoggedByOther = isOneOfTwo && familiesOf(subnet)[0] !== family
    // The text is a log line of flanneld, which must stay the same (pkg/backend/route_network.go, vxlan_network.go).
    if (type !== undefined && attrs.backendType !== type)
      return isLoggedByOther ? undefined : `Ignoring non-${type} subnet: ${netText(subnet)}, type=${attrs.backendType}`
    // This node has a second lease under another key while a successor with more or fewer families is about to take over. That lease is
    // skipped without a log line.
    if (isOfOneNode(attrs, own.attrs) && ownSubnet && isWithin(lease, ownSubnet)) return undefined
    const reason =
      (reachedBy(lease, own, outers).length > 0 ? undefined : unusableReason(lease, own, outers[0] ?? family)) ??
      (isWithin(lease, network) ? undefined : `its subnet is not within the network ${formatNet(network)}`) ??
      // A route to this subnet would divert the packets of this node's own containers, because it would replace the route of their bridge.
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
   * Returns why a valid lease loses against a newer lease; undefined if it wins. The reason is empty, and so not logged, if both leases
   * belong to the same host: it keeps its subnet under another key when the network gets or loses a family.
   */
  function whyLosing(lease: L): string | undefined {
    const reasonFor = (what: string, newest: L, remedy: string): string =>
      `${notUsed(lease)}: its ${what} is that of ${hostOf(newest)} too, whose lease is newer${remedy}`
    const first = bySubnet.newest(keyOf(lease))
    if (first && first.key !== lease.key && isOfOneNode(first.attrs, lease.attrs)) return ''
    if (first && first.key !== lease.key) return reasonFor(`subnet ${formatNet(subnetOf(lease))}`, first, '')
    const name = identity?.of(lease)
    const newest = name === undefined ? undefined : byIdentity.newest(name)
    if (!identity || !newest || isOfOneNode(newest.attrs, lease.attrs)) return undefined
    return reasonFor(`${identity.name} ${name}`, newest, `; ${identity.remedy}`)
  }

  function decide(key: string, lease: L | undefined, reason: string | undefined, logged: ReadonlySet<string>): void {
    if (reason && !logged.has(key)) log.warn(reason)
    if (reason) skipped.add(key)
    else skipped.delete(key)
    if (lease) (reason === undefined ? peers : losing).set(key, lease)
  }

  function takeAll(leases: ReadonlyMap<string, Lease>): void {
    const logged = skipped
    ;[peers, losing, skipped] = [new Map(), new Map(), new Set()]
    ;[bySubnet, byIdentity] = [createConflicts(), createConflicts()]
    const sound: L[] = []
    for (const [key, lease] of leases) {
      if (key === ownKey) continue
      const judged = judgeAlone(lease)
      if (typeof judged === 'string') decide(key, undefined, judged, logged)
      else if (judged) sound.push(judged)
    }
    for (const lease of sound) bySubnet.add(keyOf(lease), lease)
    for (const lease of identity ? sound : []) {
      const name = bySubnet.newest(keyOf(lease)) === lease ? identity?.of(lease) : undefined
      if (name !== undefined) byIdentity.add(name, lease)
    }
    for (const lease of sound) decide(lease.key, lease, whyLosing(lease), logged)
  }

  function takeTouched(leases: ReadonlyMap<string, Lease>, touched: Iterable<string>): Map<string, L | undefined> {
    /** The leases that the changes may affect, by key: the earlier peer, and why the lease is not valid by itself (undefined if it is). */
    const judged = new Map<string, { readonly before: L | undefined; readonly unsound?: string | undefined }>()
    const newestBefore = new Map<number | bigint, L | undefined>()
    for (const key of new Set(touched)) {
      const [before, lease] = [peers.get(key), key === ownKey ? undefined : leases.get(key)]
      const [was, alone] = [before ?? losing.get(key), lease && judgeAlone(lease)]
      const is = typeof alone === 'string' ? undefined : alone
      judged.set(key, { before, unsound: typeof alone === 'string' ? alone : undefined })
      for (const each of [was, is]) {
        const subnet = each && keyOf(each)
        if (subnet !== undefined && !newestBefore.has(subnet)) newestBefore.set(subnet, bySubnet.newest(subnet))
      }
      if (was) bySubnet.remove(keyOf(was), was)
      if (is) bySubnet.add(keyOf(is), is)
      peers.delete(key)
      losing.delete(key)
      if (is) losing.set(key, is) // until `decide`
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
      const lease = peers.get(key) ?? losing.get(key)
      peers.delete(key)
      losing.delete(key)
      decide(key, lease, unsound ?? (lease && whyLosing(lease)), skipped)
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
