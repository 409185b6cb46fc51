// peer-filter.ts - which leases are peers of a backend. What is none is named once, for as long as it is there.
//
// Which of the leases that cannot be used beside each other counts depends on these leases and on no order in which they came. So
// only those are judged again that may differ, and those that they are in the way of, and the outcome is that of judging all.

import { isIpv4Lease, isOfOneNode, leasesEqual, type Ipv4Lease, type Lease, type OwnLease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { netText } from '../net/address.ts'
import { formatIpv4, formatIpv4Net, ipv4NetContains, isOneHost, type Ipv4Net } from '../net/ipv4.ts'

/** Why no host can have the address that a lease publishes, or undefined when one can. */
export function unusableReason({ attrs }: Lease, own: OwnLease): string | undefined {
  const address = attrs.publicIp.ipv4 ?? 0
  if (!isOneHost(address)) return `${formatIpv4(address)} is no address of a host`
  if (isOfOneNode(attrs, own.attrs)) return `${formatIpv4(address)} is this node's own address`
  return undefined
}

export interface PeerFilterOptions {
  /** The backend type that a peer's lease must have; any, where it is not given. */
  readonly type?: string
  readonly lease: OwnLease
  /** Of the cluster: a subnet outside of it would take packets from the host's own routes. */
  readonly network: Ipv4Net
  readonly log: Log
  /** Why a lease that is otherwise a peer's is none. */
  readonly alsoUnusable?: (lease: Lease) => string | undefined
  readonly identity?: Identity | undefined
}

/**
 * What the kernel knows a host by, such as a MAC: of two hosts with the same, such as a virtual machine and its clone, one would get
 * the packets of both.
 */
export interface Identity {
  /** `MAC` */
  readonly name: string
  readonly own: string
  readonly of: (lease: Lease) => string | undefined
  /** What to do about it, on one of the two. */
  readonly remedy: string
}

export interface PeerFilter {
  /**
   * Takes leases by key over, less our own: all of them, or those of the keys alone that may differ from what was taken before. Who was
   * a peer before, by each key whose peer came, changed or went; undefined where all may have.
   */
  take(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: Iterable<string>,
  ): ReadonlyMap<string, Ipv4Lease | undefined> | undefined
  /** Those of peers, by key. */
  peers(): ReadonlyMap<string, Ipv4Lease>
  /** Takes all, and returns those of peers. */
  usable(leases: ReadonlyMap<string, Lease>, ownKey: string): readonly Ipv4Lease[]
  /** How many were none at the last call. */
  skipped(): number
}

/**
 * Whose lease was written last: a host that is gone, or has another address now, renews its old one no more. Of two that nobody wrote,
 * or that were written at once, all nodes choose the same.
 */
function isNewer(a: Lease, b: Lease): boolean {
  const [x, y] = [a.revision ?? -1n, b.revision ?? -1n]
  return x === y ? a.key < b.key : x > y
}

/** Leases that cannot be used beside each other, by what they have in common. */
function createRivals<Name>() {
  const newest = new Map<Name, Ipv4Lease>()
  /** Hardly ever is there one. */
  const others = new Map<Name, readonly Ipv4Lease[]>()
  function all(name: Name): readonly Ipv4Lease[] {
    const first = newest.get(name)
    return first ? [first, ...(others.get(name) ?? [])] : []
  }
  function add(name: Name, lease: Ipv4Lease): void {
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
  return { newest: (name: Name): Ipv4Lease | undefined => newest.get(name), all, add, remove }
}

const PREFIX_LENGTHS = 64
/** One number for a subnet. */
const numberOf = ({ subnet: { ipv4 } }: Ipv4Lease): number => ipv4.address * PREFIX_LENGTHS + ipv4.prefixLength

export function createPeerFilter(options: PeerFilterOptions): PeerFilter {
  const { type, lease: own, network, log, alsoUnusable, identity } = options
  let ownKey: string | undefined
  let peers = new Map<string, Ipv4Lease>()
  /** Those that only another one is in the way of. */
  let beaten = new Map<string, Ipv4Lease>()
  /** Of both. */
  let bySubnet = createRivals<number>()
  /** Of the newest of each subnet. */
  let byIdentity = createRivals<string>()
  let skipped = new Set<string>()
  const hostOf = ({ attrs }: Ipv4Lease): string => formatIpv4(attrs.publicIp.ipv4)
  const isWithin = ({ subnet: { ipv4 } }: Lease): boolean =>
    ipv4 !== undefined && ipv4NetContains(network, ipv4.address) && ipv4.prefixLength >= network.prefixLength
  /** The lease, if it is sound by itself; else why it is not used. */
  function judgeAlone(lease: Lease): Ipv4Lease | string {
    const { subnet, attrs } = lease
    // flanneld's words (pkg/backend/route_network.go, vxlan_network.go).
    if (type !== undefined && attrs.backendType !== type)
      return `Ignoring non-${type} subnet: ${netText(subnet)}, type=${attrs.backendType}`
    const reason =
      unusableReason(lease, own) ??
      (isWithin(lease) ? undefined : `its subnet is not within the network ${formatIpv4Net(network)}`) ??
      alsoUnusable?.(lease) ??
      (identity && identity.of(lease) === identity.own
        ? `its ${identity.name} ${identity.own} is that of this node; ${identity.remedy}`
        : undefined)
    return reason === undefined && isIpv4Lease(lease) ? lease : `Lease ${lease.key} is not used: ${reason}`
  }
  /** Why one that is sound by itself is not used, since another one is newer. */
  function whyBeaten(lease: Ipv4Lease): string | undefined {
    const say = (what: string, newest: Ipv4Lease, remedy: string): string =>
      `Lease ${lease.key} is not used: its ${what} is that of ${hostOf(newest)} too, whose lease is newer${remedy}`
    const first = bySubnet.newest(numberOf(lease))
    if (first && first.key !== lease.key) return say(`subnet ${formatIpv4Net(lease.subnet.ipv4)}`, first, '')
    const name = identity?.of(lease)
    const newest = name === undefined ? undefined : byIdentity.newest(name)
    // One host may have several leases.
    if (!identity || !newest || isOfOneNode(newest.attrs, lease.attrs)) return undefined
    return say(`${identity.name} ${name}`, newest, `; ${identity.remedy}`)
  }

  /** Makes a lease a peer, or not, and says why not, unless that was said. */
  function decide(
    key: string,
    lease: Ipv4Lease | undefined,
    reason: string | undefined,
    named: ReadonlySet<string>,
  ): void {
    if (reason !== undefined && !named.has(key)) log.warn(reason)
    if (reason === undefined) skipped.delete(key)
    else skipped.add(key)
    if (lease) (reason === undefined ? peers : beaten).set(key, lease)
  }

  function takeAll(leases: ReadonlyMap<string, Lease>): void {
    const named = skipped
    ;[peers, beaten, skipped] = [new Map(), new Map(), new Set()]
    ;[bySubnet, byIdentity] = [createRivals(), createRivals()]
    const sound: Ipv4Lease[] = []
    for (const [key, lease] of leases) {
      if (key === ownKey) continue
      const judged = judgeAlone(lease)
      if (typeof judged === 'string') decide(key, undefined, judged, named)
      else sound.push(judged)
    }
    for (const lease of sound) bySubnet.add(numberOf(lease), lease)
    for (const lease of identity ? sound : []) {
      const name = bySubnet.newest(numberOf(lease)) === lease ? identity?.of(lease) : undefined
      if (name !== undefined) byIdentity.add(name, lease)
    }
    for (const lease of sound) decide(lease.key, lease, whyBeaten(lease), named)
  }

  function takeTouched(
    leases: ReadonlyMap<string, Lease>,
    touched: Iterable<string>,
  ): Map<string, Ipv4Lease | undefined> {
    /** Whom it may make a peer or none, with what was one before and why it is none by itself. */
    const judged = new Map<string, { readonly before: Ipv4Lease | undefined; readonly unsound?: string | undefined }>()
    const newestBefore = new Map<number, Ipv4Lease | undefined>()
    for (const key of new Set(touched)) {
      const [before, lease] = [peers.get(key), key === ownKey ? undefined : leases.get(key)]
      const [was, alone] = [before ?? beaten.get(key), lease && judgeAlone(lease)]
      const is = typeof alone === 'string' ? undefined : alone
      judged.set(key, { before, unsound: typeof alone === 'string' ? alone : undefined })
      for (const each of [was, is]) {
        const subnet = each && numberOf(each)
        if (subnet !== undefined && !newestBefore.has(subnet)) newestBefore.set(subnet, bySubnet.newest(subnet))
      }
      if (was) bySubnet.remove(numberOf(was), was)
      if (is) bySubnet.add(numberOf(is), is)
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
    const changed = new Map<string, Ipv4Lease | undefined>()
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
  ): ReadonlyMap<string, Ipv4Lease | undefined> | undefined {
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
