// vxlan-path.ts - the data path of one family whose packets the kernel's vxlan device carries.

import type { Lease } from '../../control/lease/lease.ts'
import type { KernelEvent } from '../../host/kernel.ts'
import { addressKey, formatAddress, formatEndpoint, type Family } from '../../net/address.ts'
import type { PathSide } from '../contract.ts'
import type { NextHop } from '../device/route-sync.ts'
import { RoutedPath, type RoutedParts } from './routed-path.ts'
import { vtepMacOf } from './vxlan-config.ts'
import type { VxlanDevice } from './vxlan-device.ts'
import { VxlanEntries, type VxlanPeer } from './vxlan-entries.ts'

/**
 * The data path of one family. For each peer without a direct route, the vxlan device has a neighbour entry and a
 * forwarding entry.
 */
export class VxlanPath extends RoutedPath {
  readonly #family: Family
  readonly #opened: VxlanDevice
  readonly #port: number
  /** The neighbour and forwarding entries that the device should have. */
  #wanted = new VxlanEntries()

  constructor(parts: RoutedParts, opened: VxlanDevice, port: number) {
    super(parts)
    this.#family = parts.family
    this.#opened = opened
    this.#port = port
  }

  /** Returns the neighbour and forwarding entries that the device should have. */
  entries(): VxlanEntries {
    return this.#wanted
  }

  /** Returns true if a report of the kernel is about a neighbour or forwarding entry of this data path's device. */
  owns(event: KernelEvent): boolean {
    const entry = event.of === 'neighbour' ? event.neighbour : event.of === 'forwarding' ? event.forwarding : undefined
    return entry !== undefined && entry.deviceIndex === this.#opened.link.index
  }

  protected hopTo(peer: Lease): NextHop {
    return { gateway: formatAddress(this.sideOf(peer).subnet.address), device: this.#opened.link, onlink: true }
  }

  protected sideTo(peer: Lease): PathSide {
    const { host, subnet } = this.sideOf(peer)
    return { endpoint: formatEndpoint(host, this.#port), probe: subnet.address, way: 'kernel' }
  }

  protected override repairDevice(): Promise<readonly string[]> {
    return this.#opened.resync(this.#peersIn(this.tunnelled))
  }

  /** Sets the peers' entries before the routes that use them. Removes unused entries afterwards. */
  protected override async setRoutes(
    subnets: ReadonlySet<string> | undefined,
    before: ReadonlyMap<string, Lease>,
  ): Promise<void> {
    const { entries: table } = this.#opened
    if (!subnets) {
      const peers = this.#peersIn(this.tunnelled)
      this.#wanted = VxlanEntries.of(peers)
      const present = await table.read()
      await table.putMissing(peers, present)
      await super.setRoutes(subnets, before)
      return table.keepOnly(peers, present)
    }
    const old = this.#peersIn(before, subnets)
    const changed = this.#peersIn(this.tunnelled, subnets)
    const now = [...this.#sharing(old, changed), ...changed]
    this.#wanted.replace(old, now)
    if (!(await table.put(now))) await table.putMissing(this.#peersIn(this.tunnelled), await table.read())
    await super.setRoutes(subnets, before)
    if (!(await table.remove(VxlanEntries.of(old).without(this.#wanted))))
      await table.keepOnly(this.#peersIn(this.tunnelled), await table.read())
  }

  /**
   * Returns the present peers that have the MAC or the address of a peer in `old`, except a MAC or an address that a
   * peer in `changed` has too. The entries of the returned peers must stay. Two leases of one host have the same MAC.
   * Two subnets of different lengths may have the same first address.
   */
  #sharing(old: readonly VxlanPeer[], changed: readonly VxlanPeer[]): readonly VxlanPeer[] {
    const macs = new Set(old.map(({ mac }) => mac))
    const addresses = new Set(old.map(({ address }) => addressKey(address)))
    for (const { mac, address } of changed) {
      macs.delete(mac)
      addresses.delete(addressKey(address))
    }
    if (macs.size + addresses.size === 0) return []
    return this.#peersIn(this.tunnelled).filter(
      ({ mac, address }) => macs.has(mac) || addresses.has(addressKey(address)),
    )
  }

  #peersIn(peers: ReadonlyMap<string, Lease>, subnets: Iterable<string> = peers.keys()): VxlanPeer[] {
    return [...subnets].flatMap((subnet) => {
      const peer = peers.get(subnet)
      return peer ? [this.#peerOf(peer)] : []
    })
  }

  #peerOf(peer: Lease): VxlanPeer {
    return {
      address: this.sideOf(peer).subnet.address,
      host: this.sideOf(peer).host,
      mac: vtepMacOf(peer.attrs, this.#family) ?? '',
    }
  }
}
