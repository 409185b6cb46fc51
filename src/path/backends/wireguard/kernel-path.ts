// kernel-path.ts - the data path of the families that the kernel's WireGuard device carries.

import { isDeepStrictEqual } from 'node:util'
import { describeError, messageOf } from '../../../base/errors.ts'
import type { Log } from '../../../base/log.ts'
import type { Secret } from '../../../base/secret.ts'
import type { NetworkConfig } from '../../../control/config/network-config.ts'
import { sideOf, type Lease } from '../../../control/lease/lease.ts'
import type { HostKernel } from '../../../host/kernel.ts'
import type { FollowedLink } from '../../../host/links.ts'
import { familiesOf, FAMILY_NAMES, type ByFamily, type Family, type Net } from '../../../net/address.ts'
import type { Adapting, Counting, DataPath, PathPeer, PathSide, PathTraffic } from '../../contract.ts'
import type { TunDevice } from '../../device/tun-device.ts'
import type { PeerFilter, PeerFilterOptions } from '../../tunnel/peer-filter.ts'
import { KernelPath } from '../kernel-path.ts'
import { endpointText, isSamePeer, type WireguardDevice, type WireguardPeer } from '../wireguard-device.ts'

export interface KernelOptions {
  readonly config: NetworkConfig
  readonly kernel: HostKernel
  readonly log: Log
  /** A log that drops repeated lines, because weftd tries to open the device again and again. */
  readonly calm: Log
  readonly name: string
  readonly families: readonly Family[]
  /** The UDP port, and the name of the option that sets it. */
  readonly port: { readonly number: number; readonly option: string }
  /** The longest packet in bytes that containers may send. `external` names the interface that limits this length. */
  readonly mtu: number
  readonly external: string
  readonly keyFile: string
  readonly privateKey: Secret
  readonly ownKey: string
  readonly psk: Secret
  /** The interval in seconds between keepalive packets; 0 switches keepalive packets off. */
  readonly keepalive: number
  /** Returns the WireGuard peer for a lease; undefined if the lease publishes no WireGuard key. */
  readonly endOf: (lease: Lease, family: Family) => WireguardPeer | undefined
  readonly filterOf: (family: Family) => Pick<PeerFilterOptions, 'type' | 'alsoUnusable' | 'identity'>
  /** Checks whether the key file has changed. weftd calls this function at each check of the device. */
  readonly check: () => Promise<void>
}

/** The part of the data path that carries one family. */
export interface FamilyPart {
  readonly family: Family
  readonly subnet: Net
  /** The address, MTU and route of the device in this family. */
  readonly device: TunDevice
  /** Sets the address, the MTU and the route of the device. Rejects if a foreign route has the network. */
  readonly setUp: () => Promise<void>
  readonly filter: PeerFilter
}

/**
 * The families that weftd cannot set up on this host now, although the other family works, each with the reason. weftd
 * tries these families again.
 */
export class RefusedFamilies {
  readonly #reasons = new Map<Family, string>()
  readonly #calm: Log

  constructor(calm: Log) {
    this.#calm = calm
  }

  get reasons(): ByFamily<string> {
    return Object.fromEntries(this.#reasons)
  }

  has(family: Family): boolean {
    return this.#reasons.has(family)
  }

  /**
   * Runs `act` for each part whose family is not refused. If only some of these parts fail, logs their failures and
   * marks their families as refused. Rejects with the first failure if all of them fail.
   */
  async each<Part extends { readonly family: Family }>(
    parts: readonly Part[],
    act: (part: Part) => Promise<void>,
  ): Promise<void> {
    const tried = parts.filter(({ family }) => !this.has(family))
    const failures: (readonly [Family, unknown])[] = []
    for (const part of tried) await act(part).catch((error: unknown) => void failures.push([part.family, error]))
    const [first] = failures
    if (first && failures.length === tried.length) throw first[1]
    for (const [family, error] of failures) this.refuse(family, error)
  }

  /** Logs the reason, and marks the family as refused. */
  refuse(family: Family, error: unknown): void {
    this.#reasons.set(family, messageOf(error))
    this.#calm.error(`Cannot carry ${FAMILY_NAMES[family]}, trying again: ${describeError(error)}`)
  }

  restore(family: Family): void {
    this.#reasons.delete(family)
  }
}

export class WireguardPath extends KernelPath implements Counting {
  readonly counting: Counting = this
  readonly adapting: Adapting
  override readonly fault: Promise<Error>
  readonly #link: FollowedLink
  readonly #log: Log
  readonly #opened: WireguardDevice
  readonly #kernel: HostKernel
  readonly #parts: readonly FamilyPart[]
  readonly #refused: RefusedFamilies
  readonly #endOf: KernelOptions['endOf']
  readonly #checkKey: KernelOptions['check']
  #reportFault!: (reason: Error) => void
  /** The peers that the device should have, by public key. */
  #peers = new Map<string, WireguardPeer>()
  /**
   * The WireGuard peer for each usable lease and family, with the subnet of only this lease. The keys of the outer map
   * are the public keys, and those of the inner maps are the family and the lease key. A host with two leases, or with
   * both families, is one WireGuard peer, because it has one key.
   */
  readonly #ends = new Map<string, Map<string, WireguardPeer>>()
  /** The public key of each usable lease, by the family and the lease key. */
  readonly #publicKeys = new Map<string, string>()
  /** The families whose subnets the WireGuard peers have; empty if weftd does not know which peers the kernel has. */
  #setFamilies: readonly Family[] = []
  /** The families whose subnets the WireGuard peers have had since the device was opened. */
  readonly #onceSet = new Set<Family>()
  /** The usable leases that the last `apply` set, each with the family for which weftd uses the lease. */
  #applied: readonly (readonly [Lease, Family])[] = []
  /**
   * The endpoints that the device reported last, by public key. The endpoint of a peer that has moved, for example
   * behind NAT, differs from the endpoint in the peer's lease.
   */
  readonly #moved = new Map<string, string>()

  /**
   * `narrow` has the families for which the MTU is too small, each with the reason. When the MTU grows, weftd opens the
   * data path again.
   */
  constructor(
    options: KernelOptions,
    link: FollowedLink,
    opened: WireguardDevice,
    parts: readonly FamilyPart[],
    narrow: ByFamily<string>,
    refused: RefusedFamilies,
  ) {
    super({
      families: options.families,
      device: link,
      probeSource: Object.fromEntries(parts.map(({ family, subnet }) => [family, subnet.address])),
      filters: parts.map(({ filter }) => filter),
    })
    this.fault = new Promise((resolve) => (this.#reportFault = resolve))
    this.adapting = {
      get lacking() {
        return { ...narrow, ...refused.reasons }
      },
      get isOutdated() {
        return familiesOf(refused.reasons).length > 0
      },
      renew: () => this.inTurn(() => this.#renew()),
    }
    this.#link = link
    this.#log = options.log
    this.#opened = opened
    this.#kernel = options.kernel
    this.#parts = parts
    this.#refused = refused
    this.#endOf = options.endOf
    this.#checkKey = options.check
  }

  override carrier(): ReturnType<DataPath['carrier']> {
    return {
      ...super.carrier(),
      devices: Object.fromEntries(this.#parts.map(({ family }) => [family, this.#link.name])),
    }
  }

  async traffic(): Promise<ReadonlyMap<string, PathTraffic>> {
    const traffic = await this.#opened.traffic()
    const byLease = new Map<string, PathTraffic>()
    for (const [peer, family] of this.#applied) {
      const passed = traffic.get(this.#endOf(peer, family)?.publicKey ?? '')
      if (!passed) continue
      const { session, endpoint, ...counted } = passed
      if (endpoint !== undefined) this.#moved.set(session.publicKey, endpoint)
      byLease.set(peer.key, { ...counted, sessions: { ...byLease.get(peer.key)?.sessions, [family]: session } })
    }
    return byLease
  }

  protected async setPeers(
    leases: ReadonlyMap<string, Lease>,
    ownLeaseKey: string,
    touched?: ReadonlySet<string>,
  ): Promise<void> {
    const carried = this.#settable()
    const changes = this.#parts.map((part) => [part, part.filter.take(leases, ownLeaseKey, touched)] as const)
    const known = changes.flatMap(([part, changed]) => (changed ? [[part, changed] as const] : []))
    const isKnown = known.length === changes.length && isDeepStrictEqual(carried.map(familyIn), this.#setFamilies)
    // If setting the peers fails, the next call sets all peers.
    this.#setFamilies = []
    if (isKnown) await this.#change(known.filter(([part]) => carried.includes(part)))
    else await this.#replaceAll(carried)
    this.#setFamilies = carried.map(familyIn)
    for (const family of this.#setFamilies) this.#onceSet.add(family)
    this.#applied = carried.flatMap(({ filter, family }) =>
      [...filter.peers().values()].map((peer) => [peer, family] as const),
    )
  }

  /** Sets all WireGuard peers with the subnets of the families in `parts`. */
  async #replaceAll(parts: readonly FamilyPart[]): Promise<void> {
    this.#ends.clear()
    this.#publicKeys.clear()
    for (const part of parts) for (const key of part.filter.peers().keys()) this.#look(part, key)
    this.#peers = new Map([...this.#ends].flatMap(([publicKey]) => this.#entryOf(publicKey)))
    await this.#opened.setPeers([...this.#peers.values()])
    this.#moved.clear()
  }

  /** Sets only the WireGuard peers whose leases have changed. */
  async #change(changes: readonly (readonly [FamilyPart, ReadonlyMap<string, unknown>])[]): Promise<void> {
    const publicKeys = new Set<string>()
    for (const [part, changed] of changes)
      for (const key of changed.keys()) for (const publicKey of this.#look(part, key)) publicKeys.add(publicKey)
    const wanted = new Map<string, WireguardPeer | undefined>()
    for (const publicKey of publicKeys) {
      const [before, now] = [this.#peers.get(publicKey), this.#entryOf(publicKey)[0]?.[1]]
      if (before === now || (before && now && isSamePeer(before, now))) continue
      wanted.set(publicKey, now)
      if (now) this.#peers.set(publicKey, now)
      else this.#peers.delete(publicKey)
    }
    await this.#opened.changePeers(wanted)
    for (const publicKey of wanted.keys()) this.#moved.delete(publicKey)
  }

  /**
   * Notes the WireGuard peer for a lease in one family, or forgets it if the lease is no longer usable. Returns the
   * public keys that the lease had before and has now.
   */
  #look({ filter, family }: FamilyPart, key: string): readonly string[] {
    const place = `${family} ${key}`
    const before = this.#publicKeys.get(place)
    if (before !== undefined) {
      const ends = this.#ends.get(before)
      ends?.delete(place)
      if (ends?.size === 0) this.#ends.delete(before)
      this.#publicKeys.delete(place)
    }
    const peer = filter.peers().get(key)
    const end = peer && this.#endOf(peer, family)
    if (peer && end) {
      const ends = this.#ends.get(end.publicKey) ?? new Map<string, WireguardPeer>()
      this.#ends.set(end.publicKey, ends.set(place, { ...end, allowedIps: [sideOf(peer, family).subnet] }))
      this.#publicKeys.set(place, end.publicKey)
    }
    return [before, end?.publicKey].filter((publicKey) => publicKey !== undefined)
  }

  /**
   * Returns the WireGuard peer with a public key and the subnets of all its leases; an empty list if it has no lease.
   */
  #entryOf(publicKey: string): readonly (readonly [string, WireguardPeer])[] {
    // Sort the leases, so that the endpoint does not depend on the order in which they changed.
    const ends = [...(this.#ends.get(publicKey) ?? [])].toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, end]) => end)
    const last = ends.at(-1)
    return last ? [[publicKey, { ...last, allowedIps: ends.flatMap(({ allowedIps }) => allowedIps) }]] : []
  }

  protected async repair(): Promise<readonly string[]> {
    if (!(await this.#link.follow(this.#kernel, this.#log))) {
      this.#reportFault(new Error(`${this.#link.name} is gone`))
      return []
    }
    await this.#checkKey()
    const repaired: string[] = []
    await this.#refused.each(this.#parts, async ({ device }) => void repaired.push(...(await device.resync())))
    const others = await this.#opened.setPeers([...this.#peers.values()])
    return others > 0 ? [...repaired, `${others} settings of ${this.#link.name} had changed`] : repaired
  }

  protected listPeers(): readonly PathPeer[] {
    const byKey = new Map<string, PathPeer>()
    for (const [peer, family] of this.#applied) {
      if (this.#refused.has(family)) continue
      const end = this.#endOf(peer, family)
      const endpoint = end ? (this.#moved.get(end.publicKey) ?? endpointText(end.endpoint)) : ''
      const side: PathSide = { endpoint, probe: sideOf(peer, family).subnet.address, way: 'kernel' }
      byKey.set(peer.key, { ...byKey.get(peer.key), key: peer.key, [family]: side })
    }
    return [...byKey.values()]
  }

  protected override end(): Promise<void> {
    return this.#opened.close()
  }

  /**
   * Returns the parts with whose subnets the peers are set: all but those whose family the host has refused since the
   * start. A family that a repair could not set up keeps its subnets, so that packets pass if the reason was temporary.
   */
  #settable(): readonly FamilyPart[] {
    return this.#parts.filter(({ family }) => !this.#refused.has(family) || this.#onceSet.has(family))
  }

  /** Tries to carry the refused families again. The caller then sets the peers again. */
  async #renew(): Promise<void> {
    for (const { family, setUp } of this.#parts) {
      if (!this.#refused.has(family)) continue
      try {
        await setUp()
        this.#refused.restore(family)
        this.#log.info(`${FAMILY_NAMES[family]} is carried again`)
      } catch (error) {
        this.#refused.refuse(family, error)
      }
    }
  }
}

const familyIn = ({ family }: FamilyPart): Family => family
