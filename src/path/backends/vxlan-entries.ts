// vxlan-entries.ts - the entries of the kernel's vxlan device for peers, as flannel sets them.
//
// Each peer has a neighbour entry, which maps the first address of the peer's subnet to the peer's MAC, and a
// forwarding entry, which maps that MAC to the peer's host. Both entries are static, so the kernel sends no ARP
// requests and floods no packets (pkg/backend/vxlan/device.go).

import { runBatch } from '../../host/batch.ts'
import type { Run } from '../../host/command.ts'
import type { KernelEvent } from '../../host/kernel.ts'
import { ipFlag, ipJson, parseList, type Named } from '../../host/links.ts'
import { formatAddress, type Address } from '../../net/address.ts'

export interface VxlanPeer {
  readonly address: string
  /** The peer's MAC in lower case, such as `02:11:22:33:44:55`. */
  readonly mac: string
  readonly host: string
}

export interface VxlanEntries {
  readonly addresses: ReadonlyMap<string, string>
  readonly macs: ReadonlyMap<string, string>
}

export const entriesOfPeers = (peers: Iterable<VxlanPeer>): VxlanEntries => {
  const [addresses, macs] = [new Map<string, string>(), new Map<string, string>()]
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
    const isThere = host !== undefined && macs.get(mac) === formatAddress(host)
    return event.gone || !isPermanent ? !isThere : isThere
  }
  if (event.of !== 'neighbour') return false
  const { mac, states } = event.neighbour
  const address = formatAddress(event.neighbour.address)
  return event.gone || !states.includes('PERMANENT') ? !addresses.has(address) : addresses.get(address) === mac
}

interface JsonNeighbour {
  dst?: string
  lladdr?: string
}

interface JsonForwarding {
  mac?: string
  dst?: string
}

export class VxlanEntryTable {
  readonly #device: Named
  /** This host's address in the family of the neighbour entries. */
  readonly #local: Address
  readonly #run: Run

  constructor(device: Named, local: Address, run: Run) {
    this.#device = device
    this.#local = local
    this.#run = run
  }

  /**
   * Sets the entries of `peers` without reading the existing entries first. Resolves with true if the kernel accepted
   * all entries.
   */
  async put(peers: readonly VxlanPeer[]): Promise<boolean> {
    const isForwarded = await this.#forwardTo(peers)
    return (await this.#resolveTo(peers)) && isForwarded
  }

  /** Adds the entries for `peers` that the device lacks, and returns the number of added entries. */
  async putMissing(peers: readonly VxlanPeer[]): Promise<number> {
    const known = await this.#neighbours()
    const behind = await this.#forwarding()
    const forward = peers.filter(({ mac, host }) => behind.get(mac) !== host)
    const resolve = peers.filter(({ address, mac }) => known.get(address) !== mac)
    await this.#forwardTo(forward)
    await this.#resolveTo(resolve)
    return forward.length + resolve.length
  }

  /** Removes the given entries from the device. Resolves with true if the device had all of them. */
  async remove({ addresses, macs }: VxlanEntries): Promise<boolean> {
    const hadNeighbours = await runBatch(
      this.#run,
      'ip',
      [...addresses.keys()].map((address) => `neigh del ${address} dev ${this.#device.name}`),
    )
    const hadForwarding = await runBatch(
      this.#run,
      'bridge',
      [...macs].map(([mac, host]) => `fdb del ${mac} dev ${this.#device.name} dst ${host} self`),
    )
    return hadNeighbours && hadForwarding
  }

  /** Removes all entries except those of `peers`. */
  async keepOnly(peers: readonly VxlanPeer[]): Promise<void> {
    const wanted = entriesOfPeers(peers)
    const known = await this.#neighbours()
    const behind = await this.#forwarding()
    await this.remove({
      addresses: new Map([...known].filter(([address]) => !wanted.addresses.has(address))),
      macs: new Map([...behind].filter(([mac]) => !wanted.macs.has(mac))),
    })
  }

  /** Returns the device's neighbour entries, as a map from address to MAC. */
  async #neighbours(): Promise<Map<string, string>> {
    const args = [ipFlag(this.#local), 'neigh', 'show', 'dev', this.#device.name, 'nud', 'permanent']
    const entries = await ipJson<JsonNeighbour>(this.#run, args)
    return new Map(entries.map(({ dst = '', lladdr = '' }) => [dst, lladdr]))
  }

  /**
   * Returns the device's forwarding entries, as a map from MAC to the address of the host. The device has no entry for
   * the MAC 00:00:00:00:00:00, which would flood packets for unknown MACs.
   */
  async #forwarding(): Promise<Map<string, string>> {
    const text = await this.#run('bridge', ['-j', 'fdb', 'show', 'dev', this.#device.name])
    const entries = parseList<JsonForwarding>(text, `bridge -j fdb show dev ${this.#device.name}`)
    return new Map(entries.flatMap(({ mac = '', dst }) => (dst === undefined ? [] : [[mac, dst] as const])))
  }

  #forwardTo(peers: readonly VxlanPeer[]): Promise<boolean> {
    return runBatch(
      this.#run,
      'bridge',
      peers.map(({ mac, host }) => `fdb replace ${mac} dev ${this.#device.name} dst ${host} self permanent`),
    )
  }

  #resolveTo(peers: readonly VxlanPeer[]): Promise<boolean> {
    return runBatch(
      this.#run,
      'ip',
      peers.map(({ address, mac }) => `neigh replace ${address} lladdr ${mac} dev ${this.#device.name} nud permanent`),
    )
  }
}
