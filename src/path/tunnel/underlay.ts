// underlay.ts - chooses the outer family of the datagrams to each peer, and knows the length of the longest packet that
// the path to the peer carries.
//
// The underlay is the network between the hosts. An outer family is the family of the datagrams that cross the
// underlay; an inner family is the family of the packets inside the datagrams.

import type { Lease, OwnLease } from '../../control/lease/lease.ts'
import { addon } from '../../host/addon.ts'
import {
  byFamily,
  FAMILIES,
  FAMILY_NAMES,
  familyOf,
  formatAddress,
  type Address,
  type Addresses,
  type Family,
} from '../../net/address.ts'
import { LEAST_MTU } from '../device/tun-device.ts'
import type { UdpEndpoint } from '../engine/engine.ts'
import { reachedBy } from './peer-filter.ts'
import type { TunnelKind } from './tunnel-options.ts'

export class Underlay {
  /** The outer families that the tunnel may use, the default family first. */
  readonly families: readonly Family[]
  /** The outer families, the port, the MTU and the encapsulation's overhead. */
  readonly #kind: TunnelKind
  /** This node's lease. When the node publishes new attributes, it replaces the member `attrs`. */
  readonly #own: OwnLease
  /** This host's address in each outer family, to which the engine binds its sockets. */
  readonly #bound: Map<Family, Address>
  /** The external interface's present address in the second outer family; undefined if the interface has none. */
  #second: Address | undefined
  /**
   * The outer family for each peer, by lease key, unless it is the first family in which both hosts have an address.
   */
  readonly #chosen: Map<string, Family>
  /**
   * The longest packets in bytes that the search for the path MTU found, by the packets' inner family and the peer's
   * lease key.
   */
  readonly #limits: { [F in Family]: ReadonlyMap<string, number> } = { ipv4: new Map(), ipv6: new Map() }

  /**
   * `addresses` are the addresses of the external interface. `overOther` lists the lease keys of the peers that are
   * reached over the second outer family. Throws an Error if the external interface lacks an address in an outer family
   * of `kind`.
   */
  constructor(kind: TunnelKind, own: OwnLease, addresses: Addresses, overOther: readonly string[]) {
    this.#kind = kind
    this.#own = own
    const { outer, other } = kind
    this.families = other === undefined ? [outer] : [outer, other]
    this.#bound = new Map(
      this.families.map((family) => {
        const local = addresses[family]
        if (local === undefined) throw new Error(`the external interface has no address of ${FAMILY_NAMES[family]}`)
        return [family, local]
      }),
    )
    this.#second = other && addresses[other]
    this.#chosen = new Map(other === undefined ? [] : overOther.map((key) => [key, other]))
  }

  /** This host's addresses in the outer families, the default family first. */
  get addresses(): readonly Address[] {
    return [...this.#bound.values()]
  }

  /** The lease keys of the peers for which weftd chose an outer family other than the default. */
  get chosen(): readonly string[] {
    return [...this.#chosen.keys()]
  }

  /** Takes the present addresses of the external interface. */
  follow(addresses: Addresses): void {
    const { other } = this.#kind
    this.#second = other && addresses[other]
  }

  /**
   * Returns this host's present address in the second outer family if the engine has no sockets at this address.
   * `outers` are the outer families for which the engine has sockets.
   */
  unbound(outers: readonly Family[]): Address | undefined {
    const { other } = this.#kind
    const isBound = other && outers.includes(other) && this.#bound.get(other) === this.#second
    return isBound ? undefined : this.#second
  }

  /** The external interface's present address in the second outer family; undefined if the interface has none. */
  get second(): Address | undefined {
    return this.#second
  }

  /** Records that the engine has sockets at this address of the second outer family. */
  bind(address: Address): void {
    this.#bound.set(familyOf(address), address)
  }

  endpointOf(peer: Lease): UdpEndpoint {
    const { sessionManager, port } = this.#kind
    return sessionManager?.endpointOf(peer) ?? { address: peer.attrs.publicIp[this.#outerOf(peer)] ?? 0, port }
  }

  /**
   * Returns the addresses from which the peer's datagrams may come. In the outer family of this host's datagrams to the
   * peer, this is the address to which they are sent. In the other outer family, it is the address in the peer's lease.
   */
  hostsOf(peer: Lease): Addresses {
    const { address } = this.endpointOf(peer)
    const published = this.#reachedBy(peer).flatMap((family) => peer.attrs.publicIp[family] ?? [])
    return byFamily([address, ...published])
  }

  /** Returns true if this host can reach the peer over both outer families. */
  reachesOverBoth(peer: Lease): boolean {
    return this.#reachedBy(peer).length > 1
  }

  /** Makes `family` the outer family for a peer. */
  choose(key: string, family: Family): void {
    if (family === this.#kind.outer) this.#chosen.delete(key)
    else this.#chosen.set(key, family)
    // Forget the limits of the peer's packets, because the path MTU search found them over the earlier outer family,
    // and the path over the new family may differ.
    for (const inner of FAMILIES)
      this.#limits[inner] = new Map([...this.#limits[inner]].filter(([each]) => each !== key))
  }

  /** Makes the tunnel use the default outer family for a peer again, and keeps the limits of the peer's packets. */
  forgetChoice(key: string): void {
    this.#chosen.delete(key)
  }

  /**
   * Returns the length in bytes of the longest packet to a peer that the path MTU search found; undefined if the search
   * found no limit.
   */
  limitOf(key: string, inner: Family): number | undefined {
    return this.#limits[inner].get(key)
  }

  /**
   * Sets the lengths in bytes of the longest packets that the path MTU search found, by lease key. Returns the keys
   * whose limit has changed.
   */
  setLimits(bytes: ReadonlyMap<string, number>, inner: Family): readonly string[] {
    const before = this.#limits[inner]
    this.#limits[inner] = bytes
    const keys = new Set([...before.keys(), ...bytes.keys()])
    return [...keys].filter((key) => before.get(key) !== bytes.get(key))
  }

  /**
   * Returns the length in bytes of the longest packet to the peer according to the kernel's path MTU. Ignores the
   * limits that weftd's own search for the path MTU found.
   */
  knownMtu(peer: Lease, inner: Family): number {
    const { mtu, overhead, overheadOf = () => overhead } = this.#kind
    const outer = this.#outerOf(peer)
    const local = formatAddress(this.#bound.get(outer) ?? 0)
    const bytes = addon.pathMtu(local, formatAddress(this.endpointOf(peer).address)) - overheadOf(outer)
    return bytes > 0 && bytes < mtu ? Math.max(bytes, this.#leastMtu(inner)) : mtu
  }

  /**
   * Returns the length in bytes of the longest packet that reaches the peer without fragmentation; undefined if this
   * length is the MTU of the tunnel.
   */
  pathMtu(peer: Lease, inner: Family): number | undefined {
    const { mtu } = this.#kind
    const found = Math.max(this.limitOf(peer.key, inner) ?? mtu, this.#leastMtu(inner))
    const bytes = Math.min(this.knownMtu(peer, inner), found)
    return bytes < mtu ? bytes : undefined
  }

  /**
   * Returns the outer family of datagrams to a peer. Each peer has a usable address in at least one outer family,
   * because the filter skips all other leases.
   */
  #outerOf(peer: Lease): Family {
    const { sessionManager, outer } = this.#kind
    if (sessionManager) return familyOf(sessionManager.endpointOf(peer).address)
    const can = this.#reachedBy(peer)
    return can.find((family) => family === this.#chosen.get(peer.key)) ?? can[0] ?? outer
  }

  /**
   * Returns the smallest path MTU in bytes that weftd uses for inner packets of a family: at most 1280 for IPv6,
   * because hosts ignore smaller MTUs in ICMPv6 errors. If the path MTU is even smaller, the kernel fragments the
   * datagrams.
   */
  #leastMtu(inner: Family): number {
    return inner === 'ipv6' ? Math.min(LEAST_MTU, this.#kind.mtu) : 0
  }

  #reachedBy(peer: Lease): readonly Family[] {
    return reachedBy(peer, this.#own, this.families)
  }
}
