// vxlan-entries.ts - the entries of the kernel's vxlan device for peers, as flannel sets them.
//
// Each peer has a neighbour entry, which maps the first address of the peer's subnet to the peer's MAC, and a
// forwarding entry, which maps that MAC to the peer's host. Both entries are static, so the kernel sends no ARP
// requests and floods no packets (pkg/backend/vxlan/device.go).

import type { Change, Device, HostKernel, KernelEvent } from '../../host/kernel.ts'
import { addressKey, familyOf, type Address, type AddressKey } from '../../net/address.ts'

export interface VxlanPeer {
  readonly address: Address
  /** The peer's MAC in lower case, such as `02:11:22:33:44:55`. */
  readonly mac: string
  readonly host: Address
}

/** The neighbour and forwarding entries of a device. */
export class VxlanEntries {
  /** The MACs of the neighbour entries, by the key of the neighbour's address. */
  readonly #neighbours = new Map<AddressKey, { readonly address: Address; readonly mac: string }>()
  /** The addresses of the peers' hosts in the forwarding entries, by the peer's MAC. */
  readonly #hosts = new Map<string, Address>()

  /** Returns the entries that a device needs for `peers`. */
  static of(peers: Iterable<VxlanPeer>): VxlanEntries {
    const entries = new VxlanEntries()
    entries.replace([], peers)
    return entries
  }

  addNeighbour(address: Address, mac: string): void {
    this.#neighbours.set(addressKey(address), { address, mac })
  }

  addForwarding(mac: string, host: Address): void {
    this.#hosts.set(mac, host)
  }

  /** Replaces the entries of the peers `before` by those of the peers `now`. */
  replace(before: Iterable<VxlanPeer>, now: Iterable<VxlanPeer>): void {
    for (const { address, mac } of before) {
      this.#neighbours.delete(addressKey(address))
      this.#hosts.delete(mac)
    }
    for (const { address, mac, host } of now) {
      this.addNeighbour(address, mac)
      this.addForwarding(mac, host)
    }
  }

  macOf(address: Address): string | undefined {
    return this.#neighbours.get(addressKey(address))?.mac
  }

  hostOf(mac: string): Address | undefined {
    return this.#hosts.get(mac)
  }

  /** Lists the entries whose address or MAC has no entry in `others`. */
  without(others: VxlanEntries): VxlanEntries {
    const rest = new VxlanEntries()
    for (const { address, mac } of this.#neighbours.values())
      if (others.macOf(address) === undefined) rest.addNeighbour(address, mac)
    for (const [mac, host] of this.#hosts) if (others.hostOf(mac) === undefined) rest.addForwarding(mac, host)
    return rest
  }

  /** Returns the changes that remove these entries from `device`. */
  deletions(device: Device): Change[] {
    return [
      ...[...this.#neighbours.values()].map(({ address }): Change => ({ kind: 'delete neighbour', device, address })),
      ...[...this.#hosts].map(([mac, host]): Change => ({ kind: 'delete forwarding', device, mac, host })),
    ]
  }
}

/**
 * Returns true if the kernel's report about an entry matches the wanted entries. Then no repair is needed; often weftd
 * itself made the reported change.
 */
export function isAsWanted(event: KernelEvent, wanted: VxlanEntries): boolean {
  if (event.of === 'forwarding') {
    const { mac, host, isPermanent } = event.forwarding
    return (wanted.hostOf(mac) === host) === (isPermanent && !event.gone)
  }
  if (event.of !== 'neighbour') return false
  const { address, mac, states } = event.neighbour
  const found = wanted.macOf(address)
  return event.gone || !states.includes('PERMANENT') ? found === undefined : found === mac
}

export class VxlanEntryTable {
  readonly #device: Device
  /** This host's address in the family of the neighbour entries. */
  readonly #local: Address
  readonly #kernel: HostKernel

  constructor(device: Device, local: Address, kernel: HostKernel) {
    this.#device = device
    this.#local = local
    this.#kernel = kernel
  }

  /** Lists the device's static neighbour entries and its forwarding entries. */
  async read(): Promise<VxlanEntries> {
    const neighbours = await this.#kernel.neighbours(familyOf(this.#local), this.#device)
    const forwarding = await this.#kernel.forwarding(this.#device)
    const entries = new VxlanEntries()
    for (const { address, mac, states } of neighbours)
      if (states.includes('PERMANENT')) entries.addNeighbour(address, mac)
    for (const { mac, host } of forwarding) if (host !== undefined) entries.addForwarding(mac, host)
    return entries
  }

  /**
   * Sets the entries for `peers` without reading the existing entries first. Resolves with true if the kernel accepted
   * all entries.
   */
  async put(peers: readonly VxlanPeer[]): Promise<boolean> {
    const changes = [...peers.map((peer) => this.#forwardTo(peer)), ...peers.map((peer) => this.#resolve(peer))]
    return (await this.#change(changes)) === changes.length
  }

  /**
   * Adds the entries for `peers` that are not in `present`. Returns the number of entries that the kernel accepted. If
   * two of the peers have the same address or the same MAC, adds only the entry of the later peer, because the device
   * can have only one of the two entries.
   */
  async putMissing(peers: readonly VxlanPeer[], present: VxlanEntries): Promise<number> {
    const wanted = VxlanEntries.of(peers)
    const forward = peers.filter(({ mac, host }) => wanted.hostOf(mac) === host && present.hostOf(mac) !== host)
    const resolve = peers.filter(({ address, mac }) => wanted.macOf(address) === mac && present.macOf(address) !== mac)
    const changes = [...forward.map((peer) => this.#forwardTo(peer)), ...resolve.map((peer) => this.#resolve(peer))]
    return this.#change(changes)
  }

  /** Removes the given entries from the device. Resolves with true if the device had all of them. */
  async remove(entries: VxlanEntries): Promise<boolean> {
    const changes = entries.deletions(this.#device)
    return (await this.#change(changes)) === changes.length
  }

  /** Removes the entries of `present` from the device, except those for `peers`. */
  async keepOnly(peers: readonly VxlanPeer[], present: VxlanEntries): Promise<void> {
    await this.remove(present.without(VxlanEntries.of(peers)))
  }

  /**
   * Makes the changes. Resolves with the number of changes that the kernel accepted. Rejects if weftd lacks the
   * permission to change entries.
   */
  async #change(changes: readonly Change[]): Promise<number> {
    if (changes.length === 0) return 0
    const errors = (await this.#kernel.change(changes)).filter((error) => error !== undefined)
    const fault = errors.find((error) => error.code !== 'KERNEL')
    if (fault) throw fault
    return changes.length - errors.length
  }

  #forwardTo({ mac, host }: VxlanPeer): Change {
    return { kind: 'replace forwarding', device: this.#device, mac, host }
  }

  #resolve({ address, mac }: VxlanPeer): Change {
    return { kind: 'replace neighbour', device: this.#device, address, mac }
  }
}
