// inner-families.ts - the families of inner packets that a tunnel carries, each with its network, its peers and the
// carriers of their packets.
//
// A failure of one family does not stop the other family: the tunnel continues without the failed family until it can
// carry the family again.

import { describeError, messageOf } from '../../base/errors.ts'
import { seldom, type Log } from '../../base/log.ts'
import { sideOf, type Lease, type OwnLease } from '../../control/lease/lease.ts'
import {
  byFamily,
  familiesOf,
  FAMILY_NAMES,
  familyOf,
  formatEndpoint,
  isIpv4Net,
  netSize,
  netsOf,
  type Address,
  type Addresses,
  type ByFamily,
  type Family,
  type Net,
  type Nets,
} from '../../net/address.ts'
import type { PathSide } from '../contract.ts'
import type { PeerTraffic } from '../engine/engine.ts'
import type { TrafficSlots } from '../engine/traffic.ts'
import type { Carrier, FallbackCarrier, PeerChanges } from './carrier.ts'
import { PeerFilter, unusableIn } from './peer-filter.ts'
import type { TunnelKind, TunnelParts } from './tunnel-options.ts'
import type { Underlay } from './underlay.ts'

interface InnerFamilyParts {
  readonly network: Net
  readonly subnet: Net
  readonly filter: PeerFilter
  readonly tunnel: FallbackCarrier
  readonly earlier: readonly Carrier[]
}

/** One family of inner packets: its peers, and the carriers of the packets to these peers. */
export class InnerFamily {
  readonly family: Family
  readonly network: Net
  /** This node's subnet, which is a part of `network`. */
  readonly subnet: Net
  /** The filter that decides which leases are usable peers in this family. */
  readonly filter: PeerFilter
  /** The engine's tunnel, which carries the packets to all peers that no carrier in `#earlier` takes. */
  readonly #tunnel: FallbackCarrier
  /** The carriers, such as direct routes, that are tried before the tunnel, in this order. */
  readonly #earlier: readonly Carrier[]

  constructor({ network, subnet, filter, tunnel, earlier }: InnerFamilyParts) {
    this.family = familyOf(network)
    this.network = network
    this.subnet = subnet
    this.filter = filter
    this.#tunnel = tunnel
    this.#earlier = earlier
  }

  peers(): ReadonlyMap<string, Lease> {
    return this.filter.peers()
  }

  /** Returns true if the engine's tunnel carries the packets to the peer. */
  isTunnelled(peer: Lease): boolean {
    return this.#carrierOf(peer) === this.#tunnel
  }

  /** Returns true if a carrier has a route to `destination`, the text of a subnet of the network. */
  hasRoute(destination: string): boolean {
    return this.#earlier.some((carrier) => carrier.hasRoute?.(destination))
  }

  /** Describes how packets reach the peer. */
  pathSide(peer: Lease): PathSide {
    const carrier = this.#carrierOf(peer)
    return { endpoint: carrier.endpointOf(peer), probe: sideOf(peer, this.family).subnet.address, way: carrier.name }
  }

  /**
   * Gives the peers to all carriers except the tunnel, which must already have them. Only peers with a key in `changed`
   * differ from the last call; if `changed` is undefined, all may differ.
   */
  async applyPeers(changed: PeerChanges | undefined): Promise<void> {
    for (const carrier of this.#lastFirst()) await carrier.apply(this.peers(), changed)
  }

  /**
   * Returns the traffic with each peer, by lease key, that the peer's carrier counted. If `keys` is given, the result
   * may lack all peers except those with these lease keys.
   */
  traffic(keys?: ReadonlySet<string>): ReadonlyMap<string, PeerTraffic> {
    const counted = [...this.#earlier, this.#tunnel].flatMap((carrier) =>
      [...(carrier.traffic?.(keys) ?? [])].filter(([key]) => {
        const peer = this.peers().get(key)
        return peer !== undefined && this.#carrierOf(peer) === carrier
      }),
    )
    return new Map(counted)
  }

  /**
   * Returns the length in bytes of the longest packet that the peer's carrier accepts; undefined if this length is the
   * MTU of the tunnel.
   */
  pathMtu(peer: Lease): number | undefined {
    return this.#carrierOf(peer).pathMtu?.(peer)
  }

  /** Repairs the routes of the carriers, and returns a description of each repair. */
  async resync(): Promise<readonly string[]> {
    const repaired: string[] = []
    for (const carrier of this.#lastFirst()) repaired.push(...(await carrier.resync()))
    return repaired
  }

  #carrierOf(peer: Lease): FallbackCarrier {
    return this.#earlier.find((carrier) => carrier.takes(peer)) ?? this.#tunnel
  }

  /**
   * Returns the carriers (direct routes and other ways to the peers) in reverse order. In this order a peer that
   * changes from one carrier to another is added to the new carrier before the old carrier drops it.
   */
  #lastFirst(): readonly Carrier[] {
    return this.#earlier.toReversed()
  }
}

/**
 * Returns the source address of ICMP errors that the engine writes into the TUN. It must not be an address of this
 * host: the kernel refuses packets from the TUN with a local IPv4 source, and reverse path filters drop packets with a
 * local IPv6 source. So it is the network's first address or, if that is in this node's subnet, the first address of
 * the next subnet.
 */
function icmpSourceIn(network: Net, subnet: Net): Address {
  if (network.address !== subnet.address) return network.address
  return isIpv4Net(subnet) ? subnet.address + Number(netSize(subnet)) : subnet.address + netSize(subnet)
}

/** Returns the engine's tunnel as the carrier of the packets of one family. */
function tunnelCarrier(family: Family, underlay: Underlay, slots: TrafficSlots): FallbackCarrier {
  return {
    name: 'tunnel',
    endpointOf(peer) {
      const { address, port } = underlay.endpointOf(peer)
      return formatEndpoint(address, port)
    },
    traffic: (keys) => slots.read(keys),
    pathMtu: (peer) => underlay.pathMtu(peer, family),
  }
}

export class InnerFamilies {
  /**
   * The families in which the network and this node's lease have a subnet, even if the tunnel cannot carry a family
   * now.
   */
  readonly all: readonly InnerFamily[]
  /** For each family that the tunnel cannot carry now, the reason. */
  readonly #lacking: { [F in Family]?: string } = {}
  /** A log that drops repeated lines, for failures that last for days. */
  readonly #calm: Log

  private constructor(all: readonly InnerFamily[], log: Log) {
    this.all = all
    this.#calm = seldom(log)
  }

  static async create(
    { config, kernel, log }: Pick<TunnelParts, 'config' | 'kernel' | 'log'>,
    kind: TunnelKind,
    lease: OwnLease,
    underlay: Underlay,
    slots: TrafficSlots,
  ): Promise<InnerFamilies> {
    const all: InnerFamily[] = []
    for (const family of kind.families) {
      const network = config[family]?.network
      const subnet = lease.subnet[family]
      if (!network || !subnet) continue
      const filter = new PeerFilter({
        ...kind.filter,
        lease,
        network,
        outers: underlay.families,
        // True in a dual-stack network, because each of the two families then has a filter of its own.
        isOneOfTwo: familiesOf(config).length > 1,
        log,
      })
      // Import this module only if it is needed, because packets wait until the tunnel is open and the import takes
      // time.
      const direct = kind.directRouting ? await import('./direct-routing.ts') : undefined
      const earlier = direct ? [direct.createDirectCarrier({ network, kernel, log })] : []
      const tunnel = tunnelCarrier(family, underlay, slots)
      all.push(new InnerFamily({ network, subnet, filter, tunnel, earlier }))
    }
    return new InnerFamilies(all, log)
  }

  /** For each family that the tunnel cannot carry now, the reason. */
  get lacking(): ByFamily<string> {
    return this.#lacking
  }

  get networks(): Nets {
    return netsOf(this.all.map(({ network }) => network))
  }

  get subnets(): Nets {
    return netsOf(this.all.map(({ subnet }) => subnet))
  }

  /** The addresses of the TUN device: in each family the first address of this node's subnet. */
  get ownAddresses(): Addresses {
    return byFamily(this.all.map(({ subnet }) => subnet.address))
  }

  get icmpSources(): Addresses {
    return byFamily(this.all.map(({ network, subnet }) => icmpSourceIn(network, subnet)))
  }

  of(family: Family): InnerFamily | undefined {
    return this.all.find((each) => each.family === family)
  }

  /** Returns the families that the tunnel can carry now. */
  carried(): readonly InnerFamily[] {
    return this.all.filter(({ family }) => this.#lacking[family] === undefined)
  }

  /**
   * Runs `act` for each carried family. If only some families fail, logs their failures and continues with the rest.
   * Rejects if all families fail.
   */
  async each(act: (inner: InnerFamily) => Promise<void>): Promise<void> {
    const all = this.carried()
    const done = await Promise.allSettled(all.map(act))
    const failures = all.flatMap(({ family }, at) => {
      const result = done[at]
      return result?.status === 'rejected' ? [[family, result.reason as unknown] as const] : []
    })
    const [first] = failures
    if (first && failures.length === all.length) throw first[1]
    for (const [family, error] of failures) this.lack(family, error)
  }

  /** Records and logs that the tunnel cannot carry the family. */
  lack(family: Family, error: unknown): void {
    this.#lacking[family] = messageOf(error)
    this.#calm.error(`Cannot carry ${FAMILY_NAMES[family]}, trying again: ${describeError(error)}`)
  }

  /** Records that the tunnel can carry the family again. */
  restore(family: Family): void {
    delete this.#lacking[family]
  }

  peers(): ReadonlyMap<string, Lease> {
    return new Map(this.all.flatMap((inner) => [...inner.peers()]))
  }

  /** Returns the lease keys of the peers in any of the given families. */
  keys(families: readonly InnerFamily[] = this.all): ReadonlySet<string> {
    return new Set(families.flatMap((inner) => [...inner.peers().keys()]))
  }

  hasPeer(key: string): boolean {
    return this.all.some((inner) => inner.peers().has(key))
  }

  /** Returns the families in which the lease with this key is a usable peer, each with the lease. */
  withPeer(key: string): readonly (readonly [InnerFamily, Lease])[] {
    return this.all.flatMap((inner) => {
      const peer = inner.peers().get(key)
      return peer ? [[inner, peer] as const] : []
    })
  }

  /** Returns the keys of the leases that are unusable in at least one family. */
  unusable(): ReadonlySet<string> {
    return unusableIn(this.all.map(({ filter }) => filter))
  }
}
