// vxlan-entries.ts - the entries of the kernel's vxlan device for peers, as flannel sets them.
//
// Each peer has a neighbour entry, which maps the first address of the peer's subnet to the peer's MAC, and a
// forwarding entry, which maps that MAC to the peer's host. Both entries are static, so the kernel sends no ARP
// requests and floods no packets (pkg/backend/vxlan/device.go).

import type { Change, Device, HostKernel, KernelEvent } from '../../host/kernel.ts'
import { familyOf, type Address } from '../../net/address.ts'

export interface VxlanPeer {
  readonly address: Address
  /** The peer's MAC in lower case, such as `02:11:22:33:44:55`. */
  readonly mac: string
  readonly host: Address
}

export interface VxlanEntries {
  /** The neighbour entries: MACs by address. */
  readonly addresses: ReadonlyMap<Address, string>
  /** The forwarding entries: hosts by MAC. */
  readonly macs: ReadonlyMap<string, Address>
}

export const entriesOfPeers = (peers: Iterable<VxlanPeer>): VxlanEntries => {
  const [addresses, macs] = [new Map<Address, string>(), new Map<string, Address>()]
  for (const { address, mac, host } of peers) {
    addresses.set(address, mac)
    macs.set(mac, host)
  }
  return { addresses, macs }
}

/**
 * Returns true if the kernel reports an entry that is as weftd wants it. In that case this process made the change, or
 * no repair is needed.
 */
export function isAsWanted(event: KernelEvent, { addresses, macs }: VxlanEntries): boolean {
  if (event.of === 'forwarding') {
    const { mac, host, isPermanent } = event.forwarding
    return event.gone || !isPermanent ? macs.get(mac) !== host : macs.get(mac) === host
  }
  if (event.of !== 'neighbour') return false
  const { address, mac, states } = event.neighbour
  return event.gone || !states.includes('PERMANENT') ? !addresses.has(address) : addresses.get(address) === mac
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
    return {
      addresses: new Map(
        neighbours.flatMap(({ address, mac, states }) => (states.includes('PERMANENT') ? [[address, mac]] : [])),
      ),
      macs: new Map(forwarding.flatMap(({ mac, host }) => (host === undefined ? [] : [[mac, host]]))),
    }
  }

  /**
   * Sets the entries of `peers` without reading the existing entries first. Resolves with true if the kernel accepted
   * all entries.
   */
  put(peers: readonly VxlanPeer[]): Promise<boolean> {
    return this.#change([...peers.map((peer) => this.#forwardTo(peer)), ...peers.map((peer) => this.#resolve(peer))])
  }

  /** Adds the entries for `peers` that are not in `present`, and returns the number of added entries. */
  async putMissing(peers: readonly VxlanPeer[], { addresses, macs }: VxlanEntries): Promise<number> {
    const forward = peers.filter(({ mac, host }) => macs.get(mac) !== host)
    const resolve = peers.filter(({ address, mac }) => addresses.get(address) !== mac)
    const changes = [...forward.map((peer) => this.#forwardTo(peer)), ...resolve.map((peer) => this.#resolve(peer))]
    await this.#change(changes)
    return changes.length
  }

  /** Removes the given entries from the device. Resolves with true if the device had all of them. */
  remove({ addresses, macs }: VxlanEntries): Promise<boolean> {
    const device = this.#device
    return this.#change([
      ...[...addresses.keys()].map((address): Change => ({ kind: 'delete neighbour', device, address })),
      ...[...macs].map(([mac, host]): Change => ({ kind: 'delete forwarding', device, mac, host })),
    ])
  }

  /** Removes the entries of `present` except those of `peers`. */
  async keepOnly(peers: readonly VxlanPeer[], present: VxlanEntries): Promise<void> {
    const wanted = entriesOfPeers(peers)
    await this.remove({
      addresses: new Map([...present.addresses].filter(([address]) => !wanted.addresses.has(address))),
      macs: new Map([...present.macs].filter(([mac]) => !wanted.macs.has(mac))),
    })
  }

  /** Makes the changes. Resolves with true if the kernel accepted all of them. Rejects if weftd may not change entries. */
  async #change(changes: readonly Change[]): Promise<boolean> {
    if (changes.length === 0) return true
    const errors = (await this.#kernel.change(changes)).filter((error) => error !== undefined)
    const fault = errors.find((error) => error.code !== 'KERNEL')
    if (fault) throw fault
    return errors.length === 0
  }

  #forwardTo({ mac, host }: VxlanPeer): Change {
    return { kind: 'replace forwarding', device: this.#device, mac, host }
  }

  #resolve({ address, mac }: VxlanPeer): Change {
    return { kind: 'replace neighbour', device: this.#device, address, mac }
  }
}
