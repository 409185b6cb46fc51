// kernel-path.ts - the common part of the data paths whose packets the kernel carries: host-gw, ipip, ipsec, vxlan and
// wireguard.
//
// A KernelPath decides which leases are peers and runs its operations one after another. `routed-path.ts` adds a route
// to each peer's subnet. The file of a backend adds the backend's device and next hops.

import type { Lease } from '../../control/lease/lease.ts'
import { createTurn } from '../../host/bell.ts'
import type { FollowedLink } from '../../host/links.ts'
import type { Addresses, Family } from '../../net/address.ts'
import type { DataPath, PathPeer, Probing } from '../contract.ts'
import { unusableIn, type PeerFilter } from '../tunnel/peer-filter.ts'

interface KernelFacts {
  readonly families: readonly Family[]
  /**
   * The backend's network device, which weftd still recognises after another program has renamed it; left out if the
   * backend has no device.
   */
  readonly device?: FollowedLink
  /**
   * This host's address in each family, from which the daemon sends probes to peers; empty if the daemon cannot probe
   * peers.
   */
  readonly probeSource: Addresses
  /** The filters that decide which leases are peers, one for each family. */
  readonly filters: readonly PeerFilter[]
}

export abstract class KernelPath implements DataPath {
  readonly families: readonly Family[]
  readonly probing: Probing
  /**
   * A fault would make weftd open the data path again. weftd can repair the kernel's objects without opening it again,
   * so this promise never resolves, unless a backend replaces it.
   */
  readonly fault: Promise<Error> = new Promise(() => {})
  protected readonly filters: readonly PeerFilter[]
  readonly #device: FollowedLink | undefined
  /**
   * Runs the operations one after another, because their callers do not coordinate. Otherwise an older list of peers
   * could be set after a newer one, and a repair could report objects as missing that another operation is just
   * creating.
   */
  protected readonly inTurn = createTurn()
  /**
   * True if the last `apply` failed, so that weftd does not know which peers the kernel has. In that case `peers` lists
   * no peers.
   */
  #isUnapplied = false

  constructor({ families, device, probeSource, filters }: KernelFacts) {
    this.families = families
    this.probing = { source: probeSource }
    this.filters = filters
    this.#device = device
  }

  apply(leases: ReadonlyMap<string, Lease>, ownKey: string, touched?: ReadonlySet<string>): Promise<void> {
    return this.inTurn(async () => {
      try {
        await this.setPeers(leases, ownKey, touched)
        this.#isUnapplied = false
      } catch (error) {
        this.#isUnapplied = true
        throw error
      }
    })
  }

  resync(): Promise<readonly string[]> {
    return this.inTurn(() => this.repair())
  }

  peers(): readonly PathPeer[] {
    return this.#isUnapplied ? [] : this.listPeers()
  }

  carrier(): ReturnType<DataPath['carrier']> {
    return { ...(this.#device ? { device: this.#device.name } : {}), engine: 'kernel', features: [] }
  }

  counters(): Readonly<Record<string, bigint>> {
    return {}
  }

  unusable(): ReadonlySet<string> {
    return unusableIn(this.filters)
  }

  close(): Promise<void> {
    return this.inTurn(() => this.end())
  }

  /** Makes the peers in the kernel equal to `leases` (DataPath.apply). */
  protected abstract setPeers(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: ReadonlySet<string>,
  ): Promise<void>
  protected abstract repair(): Promise<readonly string[]>
  protected abstract listPeers(): readonly PathPeer[]
  /**
   * Runs when the data path closes. Keeps the devices and the routes, as flanneld does, so that the kernel forwards
   * packets while weftd is stopped.
   */
  protected async end(): Promise<void> {}
}
