// peer-filter.ts - decides which leases are peers of a backend. Each lease that is not usable is logged once while it
// exists.
//
// If several leases conflict, the result depends only on these leases, not on the order in which they came. So after a
// change only the changed leases and those that conflict with them are judged again; the result is the same as that of
// judging all.

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

/** Returns why the published address of this family cannot belong to another host; undefined if it can. */
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
  /** The backend type that a peer's lease must have; left out if every type is accepted. */
  readonly type?: string
  readonly lease: OwnLease
  /** The cluster's network of one family. A subnet outside it would divert packets from the host's own routes. */
  readonly network: N
  /**
   * True in a dual-stack network, in which each family has its own filter. Leases with only one family are judged by
   * the filter of that family.
   */
  readonly isOneOfTwo?: boolean
  /** The families over which peers' hosts can be reached; one suffices. Defaults to the family of the network. */
  readonly outers?: readonly Family[]
  readonly log: Log
  /** Returns another reason why a lease is not usable, or undefined. */
  readonly alsoUnusable?: (lease: Lease) => string | undefined
  readonly identity?: Identity | undefined
}

/**
 * A name by which the kernel distinguishes hosts, such as a MAC. If two hosts have the same name, such as a virtual
 * machine and its clone, one of them would get the packets of both.
 */
interface Identity {
  /** The name of the property, such as `MAC`. */
  readonly name: string
  readonly own: string
  readonly of: (lease: Lease) => string | undefined
  /** The remedy, to be applied on one of the two hosts. */
  readonly remedy: string
}

export interface PeerFilter<L extends Lease = Lease> {
  /**
   * Takes over the leases except our own. `touched` lists the keys that may differ from the last call; all may differ
   * if it is left out. Returns the earlier peer for each key whose peer came, changed or went; undefined if all may
   * have changed.
   */
  take(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: Iterable<string>,
  ): ReadonlyMap<string, L | undefined> | undefined
  peers(): ReadonlyMap<string, L>
  usable(leases: ReadonlyMap<string, Lease>, ownKey: string): readonly L[]
  /** The number of leases that were not usable at the last call. */
  skipped(): number
}

/**
 * True if `a` was written after `b`. The newer lease wins, because a host that is gone or has another address no longer
 * renews its old lease. If both are equally old, all nodes make the same choice.
 */
function isNewer(a: Lease, b: Lease): boolean {
  const [x, y] = [a.revision ?? -1n, b.revision ?? -1n]
  return x === y ? a.key < b.key : x > y
}

/** Groups of leases that conflict because they share a name. The newest of a group wins. */
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
 * Returns a number that is unique for each subnet. V8 hashes a bigint by its low 64 bits, which are the same for all
 * /64 subnets, so the high bits are mixed in. Otherwise each lookup in a map would compare all entries.
 */
const numberOf = (net: Net): number | bigint =>
  typeof net.address === 'number'
    ? net.address * 64 + net.prefixLength
    : (BigInt(net.prefixLength) << 128n) | (net.address ^ (net.address >> 64n))

/** The type of a peer's lease in a network of N. If the family is not known at compile time, callers use `sideOf`. */
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
  /** The valid leases of each subnet, including those that lose. */
  let bySubnet = createConflicts<number | bigint, L>()
  /** The leases of each identity, among the newest of each subnet. */
  let byIdentity = createConflicts<string, L>()
  let skipped = new Set<string>()
  const hostOf = ({ attrs }: Lease): string =>
    formatAddress(outers.flatMap((outer) => attrs.publicIp[outer] ?? [])[0] ?? 0)
  const subnetOf = (lease: Lease): Net => sideOf(lease, family).subnet
  const keyOf = (lease: Lease): number | bigint => numberOf(subnetOf(lease))
  /** True if the lease is of type L. By then it is known to have a subnet of the family and a usable outer address. */
  const isOfNetwork = (lease: Lease): lease is L => outers.some((outer) => outer !== family) || hasFamily(lease, family)
  const isWithin = ({ subnet: { [family]: net } }: Lease, whole: Net): boolean =>
    net !== undefined && netContains(whole, net.address) && net.prefixLength >= whole.prefixLength
  const notUsed = ({ key }: Lease): string =>
    `Lease ${key} is not used${isOneOfTwo ? ` for ${FAMILY_NAMES[family]}` : ''}`
  /**
   * Returns the lease if it is valid by itself; otherwise why not, or undefined if the filter of the other family logs
   * the reason.
   */
  function judgeAlone(lease: Lease): L | string | undefined {
    const { subnet, attrs } = lease
    if (isOneOfTwo && subnet[family] === undefined) return undefined
    const isLoggedByOther = isOneOfTwo && familiesOf(subnet)[0] !== family
    // The next log line is flanneld's (pkg/backend/route_network.go, vxlan_network.go).
    if (type !== undefined && attrs.backendType !== type)
      return isLoggedByOther ? undefined : `Ignoring non-${type} subnet: ${netText(subnet)}, type=${attrs.backendType}`
    // A lease of this node under another key: a successor that is about to take over with more or fewer families writes
    // one.
    if (isOfOneNode(attrs, own.attrs) && ownSubnet && isWithin(lease, ownSubnet)) return undefined
    const reason =
      (reachedBy(lease, own, outers).length > 0 ? undefined : unusableReason(lease, own, outers[0] ?? family)) ??
      (isWithin(lease, network) ? undefined : `its subnet is not within the network ${formatNet(network)}`) ??
      // A route to this subnet would divert our own containers' packets, because it would replace the route of a
      // bridge.
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
   * Returns why a valid lease loses against a newer one. The reason is empty if the newer lease is of the same host,
   * which kept its subnet under another key when the network got or lost a family.
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
    /**
     * The leases that may become or cease to be peers, each with the earlier peer, and the reason if it is invalid by
     * itself.
     */
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
