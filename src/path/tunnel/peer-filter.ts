// peer-filter.ts - decides which leases are usable peers of a backend. It logs each unusable lease once while the lease
// exists.
//
// If leases conflict, for example because they have the same subnet, only one of them is used. Which one depends only
// on these leases, not on the order in which they arrived. So after a change the filter checks only the changed leases
// and the leases that conflict with them.

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
  FAMILY_NAMES,
  familiesOf,
  familyOf,
  formatAddress,
  formatNet,
  isOneHost,
  netContains,
  netKey,
  netText,
  type AddressKey,
  type Family,
  type Net,
} from '../../net/address.ts'

/**
 * Returns why the address that the lease publishes in this family cannot belong to another host; undefined if it can.
 */
export function unusableReason({ attrs }: Lease, own: OwnLease, family: Family): string | undefined {
  const address = attrs.publicIp[family]
  // In Kubernetes this is usual while weftd restarts on one node after the other to add a family to the network.
  if (address === undefined) return `its node publishes no ${FAMILY_NAMES[family]} address`
  if (!isOneHost(address)) return `${formatAddress(address)} is not the address of a host`
  if (isOfOneNode(attrs, own.attrs) || address === own.attrs.publicIp[family])
    return `${formatAddress(address)} is this node's own address`
  return undefined
}

/** Returns the families of `outers` over which this host can reach the peer's host. */
export const reachedBy = (peer: Lease, own: OwnLease, outers: readonly Family[]): readonly Family[] =>
  outers.filter((outer) => unusableReason(peer, own, outer) === undefined)

export interface PeerFilterOptions<N extends Net = Net> {
  /** The `BackendType` that a peer's lease must have; left out if all types are accepted. */
  readonly type?: string
  /**
   * Returns flanneld's log line for a lease of another type; left out if flanneld logs the line that is common to most
   * backends.
   */
  readonly otherType?: (lease: Lease) => string
  readonly lease: OwnLease
  /**
   * The network of one family. The filter refuses a lease with a subnet outside the network, because a route to the
   * subnet would divert packets from the host's own routes.
   */
  readonly network: N
  /**
   * True in a dual-stack network, which has one filter for each family. If a lease has only one family, only that
   * family's filter checks and logs it.
   */
  readonly isOneOfTwo?: boolean
  /**
   * The outer families over which this host can reach peers' hosts. A peer needs an address in at least one of these
   * families. Defaults to the network's family.
   */
  readonly outers?: readonly Family[]
  readonly log: Log
  /** Returns the backend's own reason why a lease is not usable; undefined if the backend accepts the lease. */
  readonly alsoUnusable?: (lease: Lease) => string | undefined
  /** A property whose value must be different for each peer's host; left out if the backend has no such property. */
  readonly identity?: Identity | undefined
}

/**
 * A property by which the kernel distinguishes peers' hosts, such as a MAC. If two hosts have the same value, as a
 * virtual machine and its clone may, one host would get the packets of both.
 */
interface Identity {
  /** The name of the property, such as `MAC`, as messages show it. */
  readonly name: string
  /** The value of the property that this node has. */
  readonly own: string
  /** Returns the value of the property that a lease publishes; undefined if the lease publishes no value. */
  readonly of: (lease: Lease) => string | undefined
  /**
   * The remedy in messages: how the operator gives one of two hosts with the same value, such as the same MAC, a new
   * value.
   */
  readonly remedy: string
}

/**
 * Returns true if lease `a` was written after lease `b`. The newer lease wins a conflict, because a host that is gone
 * or has another address no longer renews its old lease. If the revisions are equal, the keys decide, so that all nodes
 * make the same choice.
 */
function isNewer(a: Lease, b: Lease): boolean {
  const [x, y] = [a.revision ?? -1n, b.revision ?? -1n]
  return x === y ? a.key < b.key : x > y
}

/** Groups leases by a value that should be unique, such as the subnet, and finds the newest lease of each group. */
class LeaseConflicts<Value extends AddressKey, L extends Lease> {
  /** For each value, the newest of the leases that have the value. This lease wins the conflict. */
  readonly #newest = new Map<Value, L>()
  /** For each value that several leases have, all of these leases except the newest. */
  readonly #others = new Map<Value, readonly L[]>()

  newest(value: Value): L | undefined {
    return this.#newest.get(value)
  }

  all(value: Value): readonly L[] {
    const first = this.#newest.get(value)
    return first ? [first, ...(this.#others.get(value) ?? [])] : []
  }

  add(value: Value, lease: L): void {
    const first = this.#newest.get(value)
    if (!first || isNewer(lease, first)) this.#newest.set(value, lease)
    if (first) this.#others.set(value, [...(this.#others.get(value) ?? []), isNewer(lease, first) ? first : lease])
  }

  remove(value: Value, { key }: Lease): void {
    const left = this.all(value).filter((each) => each.key !== key)
    this.#newest.delete(value)
    this.#others.delete(value)
    for (const lease of left) this.add(value, lease)
  }
}

/** Returns the keys of the leases that at least one of these filters finds unusable. */
export function unusableIn(filters: Iterable<Pick<PeerFilter, 'unusable'>>): ReadonlySet<string> {
  const keys = new Set<string>()
  for (const filter of filters) for (const key of filter.unusable()) keys.add(key)
  return keys
}

/**
 * The type of a usable lease in a network of type N. If the family is not known at compile time, the type is `Lease`,
 * and callers use `sideOf`.
 */
type PeerOf<N extends Net> = N['address'] extends number
  ? FamilyLease<'ipv4'>
  : N['address'] extends bigint
    ? FamilyLease<'ipv6'>
    : Lease

/** A lease that must be checked again because this lease, or a lease that conflicts with it, has changed. */
interface Judged<L extends Lease> {
  /** The usable peer before the change; undefined if the lease was not a usable peer. */
  readonly before: L | undefined
  /** The reason why the lease is invalid, apart from conflicts with other leases; left out if the lease is valid. */
  readonly unsound?: string | undefined
}

export class PeerFilter<N extends Net = Net> {
  readonly #options: PeerFilterOptions<N>
  readonly #family: Family
  readonly #outers: readonly Family[]
  /** The key of this node's own lease, which is never a peer; undefined before the first call of `take`. */
  #ownKey: string | undefined
  #peers = new Map<string, PeerOf<N>>()
  /** The leases, by key, that are valid by themselves but lose against a newer lease. */
  #losing = new Map<string, PeerOf<N>>()
  /** The leases of `#peers` and `#losing`, grouped by subnet to find conflicts. */
  #bySubnet = new LeaseConflicts<AddressKey, PeerOf<N>>()
  /** The newest lease of each subnet, grouped by identity (such as the MAC) to find conflicts. */
  #byIdentity = new LeaseConflicts<string, PeerOf<N>>()
  /** The keys of the unusable leases. The reason for each was logged when the lease became unusable. */
  #skipped = new Set<string>()

  constructor(options: PeerFilterOptions<N>) {
    this.#options = options
    this.#family = familyOf(options.network)
    this.#outers = options.outers ?? [this.#family]
  }

  /**
   * Decides which of `leases` are peers, except this node's own lease. `touched` lists the lease keys that may differ
   * from the last call; if it is left out, all may differ. Returns a map from the key of each added, changed or removed
   * peer to the peer's earlier lease, which is undefined for an added peer. Returns undefined in place of the map if
   * all peers may have changed.
   */
  take(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: Iterable<string>,
  ): ReadonlyMap<string, PeerOf<N> | undefined> | undefined {
    const isWhole = touched === undefined || ownKey !== this.#ownKey
    this.#ownKey = ownKey
    if (!isWhole) return this.#takeTouched(leases, touched)
    this.#takeAll(leases)
    return undefined
  }

  peers(): ReadonlyMap<string, PeerOf<N>> {
    return this.#peers
  }

  usable(leases: ReadonlyMap<string, Lease>, ownKey: string): readonly PeerOf<N>[] {
    this.take(leases, ownKey)
    return [...this.#peers.values()]
  }

  /** Returns the keys of the leases that the last call of `take` found unusable. */
  unusable(): ReadonlySet<string> {
    return this.#skipped
  }

  #takeAll(leases: ReadonlyMap<string, Lease>): void {
    const { identity } = this.#options
    const logged = this.#skipped
    this.#peers = new Map()
    this.#losing = new Map()
    this.#skipped = new Set()
    this.#bySubnet = new LeaseConflicts()
    this.#byIdentity = new LeaseConflicts()
    const sound: PeerOf<N>[] = []
    for (const [key, lease] of leases) {
      if (key === this.#ownKey) continue
      const judged = this.#judgeAlone(lease)
      if (typeof judged === 'string') this.#decide(key, undefined, judged, logged)
      else if (judged) sound.push(judged)
    }
    for (const lease of sound) this.#bySubnet.add(this.#subnetKey(lease), lease)
    for (const lease of identity ? sound : []) {
      const isNewest = this.#bySubnet.newest(this.#subnetKey(lease)) === lease
      const name = isNewest ? identity?.of(lease) : undefined
      if (name !== undefined) this.#byIdentity.add(name, lease)
    }
    for (const lease of sound) this.#decide(lease.key, lease, this.#whyLosing(lease), logged)
  }

  #takeTouched(leases: ReadonlyMap<string, Lease>, touched: Iterable<string>): Map<string, PeerOf<N> | undefined> {
    const judged = new Map<string, Judged<PeerOf<N>>>()
    /** For each subnet that a changed lease has or had, the newest lease before the change. */
    const newestBefore = new Map<AddressKey, PeerOf<N> | undefined>()
    for (const key of new Set(touched)) {
      const before = this.#peers.get(key)
      const was = before ?? this.#losing.get(key)
      const lease = key === this.#ownKey ? undefined : leases.get(key)
      const alone = lease && this.#judgeAlone(lease)
      const is = typeof alone === 'string' ? undefined : alone
      judged.set(key, { before, unsound: typeof alone === 'string' ? alone : undefined })
      for (const each of [was, is]) {
        const subnet = each && this.#subnetKey(each)
        if (subnet !== undefined && !newestBefore.has(subnet)) newestBefore.set(subnet, this.#bySubnet.newest(subnet))
      }
      if (was) this.#bySubnet.remove(this.#subnetKey(was), was)
      if (is) this.#bySubnet.add(this.#subnetKey(is), is)
      this.#peers.delete(key)
      this.#losing.delete(key)
      if (is) this.#losing.set(key, is) // `#decide` moves it to `#peers` unless it loses
    }
    for (const key of this.#keysInConflict(newestBefore))
      if (!judged.has(key)) judged.set(key, { before: this.#peers.get(key) })
    return this.#decideEach(judged)
  }

  /**
   * Returns the keys of the leases that share a subnet or an identity with a changed lease. Also updates `#byIdentity`
   * for each subnet whose newest lease is no longer the same.
   */
  #keysInConflict(newestBefore: ReadonlyMap<AddressKey, PeerOf<N> | undefined>): Set<string> {
    const { identity } = this.#options
    const keys = new Set<string>()
    const identities = new Set<string>()
    for (const [subnet, before] of newestBefore) {
      for (const { key } of this.#bySubnet.all(subnet)) keys.add(key)
      const after = this.#bySubnet.newest(subnet)
      if (!identity || before === after) continue
      const was = before && identity.of(before)
      const is = after && identity.of(after)
      if (before && was !== undefined) this.#byIdentity.remove(was, before)
      if (after && is !== undefined) this.#byIdentity.add(is, after)
      for (const name of [was, is]) if (name !== undefined) identities.add(name)
    }
    for (const name of identities) for (const { key } of this.#byIdentity.all(name)) keys.add(key)
    return keys
  }

  /**
   * Decides for each checked lease whether it is a peer. Returns a map from the key of each added, changed or removed
   * peer to the peer's earlier lease, which is undefined for an added peer.
   */
  #decideEach(judged: ReadonlyMap<string, Judged<PeerOf<N>>>): Map<string, PeerOf<N> | undefined> {
    const changed = new Map<string, PeerOf<N> | undefined>()
    for (const [key, { before, unsound }] of judged) {
      const lease = this.#peers.get(key) ?? this.#losing.get(key)
      this.#peers.delete(key)
      this.#losing.delete(key)
      this.#decide(key, lease, unsound ?? (lease && this.#whyLosing(lease)), this.#skipped)
      const is = this.#peers.get(key)
      if (before !== is && !(before && is && leasesEqual(before, is))) changed.set(key, before)
    }
    return changed
  }

  /** Makes the lease a peer if `reason` is undefined. Logs the reason unless the key is in `logged`. */
  #decide(key: string, lease: PeerOf<N> | undefined, reason: string | undefined, logged: ReadonlySet<string>): void {
    if (reason && !logged.has(key)) this.#options.log.warn(reason)
    if (reason) this.#skipped.add(key)
    else this.#skipped.delete(key)
    if (lease) (reason === undefined ? this.#peers : this.#losing).set(key, lease)
  }

  /**
   * Checks the lease without a comparison with other leases. Returns the peer if the lease is valid, and the reason as
   * text if it is not. Returns undefined if the lease must be skipped without a log line, for example because the
   * filter of the second address family logs the reason.
   */
  #judgeAlone(lease: Lease): PeerOf<N> | string | undefined {
    const { type, lease: own, isOneOfTwo = false } = this.#options
    const { subnet, attrs } = lease
    if (isOneOfTwo && subnet[this.#family] === undefined) return undefined
    const isLoggedByOther = isOneOfTwo && familiesOf(subnet)[0] !== this.#family
    // Ignore a lease of another backend type. The message is flanneld's log line for such a lease, which must stay the
    // same (pkg/backend/route_network.go, vxlan_network.go).
    if (type !== undefined && attrs.backendType !== type)
      return isLoggedByOther
        ? undefined
        : (this.#options.otherType?.(lease) ??
            `Ignoring non-${type} subnet: ${netText(subnet)}, type=${attrs.backendType}`)
    // While another process with more or fewer address families is about to take over from this process, this node has
    // a second lease under another key. Skip this second lease without a log line.
    if (isOfOneNode(attrs, own.attrs) && this.#isOwnSubnet(lease)) return undefined
    const reason = this.#whyUnusable(lease)
    return reason === undefined && this.#isOfNetwork(lease) ? lease : `${this.#notUsed(lease)}: ${reason}`
  }

  /**
   * Returns why a lease of this backend type is unusable, apart from conflicts with other leases; undefined if it is
   * usable.
   */
  #whyUnusable(lease: Lease): string | undefined {
    const { lease: own, network, alsoUnusable, identity } = this.#options
    if (reachedBy(lease, own, this.#outers).length === 0) {
      const reason = unusableReason(lease, own, this.#outers[0] ?? this.#family)
      if (reason !== undefined) return reason
    }
    if (!this.#isWithin(lease, network)) return `its subnet is not within the network ${formatNet(network)}`
    const ownSubnet = own.subnet[this.#family]
    // Refuse the lease, because a route to its subnet would replace the route to the bridge of this node's containers,
    // and so divert these containers' packets.
    if (ownSubnet && this.#isWithin(lease, ownSubnet))
      return `its subnet is this node's ${formatNet(ownSubnet)}, or a part of it`
    const also = alsoUnusable?.(lease)
    if (also !== undefined) return also
    if (identity && identity.of(lease) === identity.own)
      return `its ${identity.name} ${identity.own} is that of this node; ${identity.remedy}`
    return undefined
  }

  /**
   * Returns why a valid lease loses against a newer lease; undefined if it wins. The reason is empty, and so not
   * logged, if both leases belong to the same host, because a host keeps its subnet under another key when the network
   * gets or loses a family.
   */
  #whyLosing(lease: PeerOf<N>): string | undefined {
    const { identity } = this.#options
    const first = this.#bySubnet.newest(this.#subnetKey(lease))
    if (first && first.key !== lease.key && isOfOneNode(first.attrs, lease.attrs)) return ''
    if (first && first.key !== lease.key)
      return this.#losesAgainst(first, lease, `subnet ${formatNet(this.#subnetOf(lease))}`)
    const name = identity?.of(lease)
    const newest = name === undefined ? undefined : this.#byIdentity.newest(name)
    if (!identity || !newest || isOfOneNode(newest.attrs, lease.attrs)) return undefined
    return `${this.#losesAgainst(newest, lease, `${identity.name} ${name}`)}; ${identity.remedy}`
  }

  #losesAgainst(newest: PeerOf<N>, lease: PeerOf<N>, what: string): string {
    return `${this.#notUsed(lease)}: its ${what} is that of ${this.#hostOf(newest)} too, whose lease is newer`
  }

  #notUsed({ key }: Lease): string {
    return `Lease ${key} is not used${this.#options.isOneOfTwo ? ` for ${FAMILY_NAMES[this.#family]}` : ''}`
  }

  #hostOf({ attrs }: Lease): string {
    return formatAddress(this.#outers.flatMap((outer) => attrs.publicIp[outer] ?? [])[0] ?? 0)
  }

  #subnetOf(lease: Lease): Net {
    return sideOf(lease, this.#family).subnet
  }

  #subnetKey(lease: Lease): AddressKey {
    return netKey(this.#subnetOf(lease))
  }

  #isWithin({ subnet }: Lease, whole: Net): boolean {
    const net = subnet[this.#family]
    return net !== undefined && netContains(whole, net.address) && net.prefixLength >= whole.prefixLength
  }

  #isOwnSubnet(lease: Lease): boolean {
    const ownSubnet = this.#options.lease.subnet[this.#family]
    return ownSubnet !== undefined && this.#isWithin(lease, ownSubnet)
  }

  /**
   * Narrows the type of a lease that has passed all other checks. Returns true if the lease has a subnet of the
   * filter's family, and an address of that family unless the datagrams use another family.
   */
  #isOfNetwork(lease: Lease): lease is PeerOf<N> {
    return this.#outers.some((outer) => outer !== this.#family) || hasFamily(lease, this.#family)
  }
}
