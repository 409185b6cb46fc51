// tunnel-options.ts - the options of a tunnel whose packets an engine of weft carries.

import type { Lease } from '../../control/lease/lease.ts'
import type { Family, Nets } from '../../net/address.ts'
import type { BackendType, Settings, TunnelSettings } from '../catalog.ts'
import type { BackendParts } from '../contract.ts'
import type { EncapsulationName } from '../engine/encapsulation.ts'
import type { Engine, EngineConfig, OpenPath } from '../engine/engine.ts'
import type { PeerFilterOptions } from './peer-filter.ts'
import type { SessionManager } from './session-manager.ts'

type TunnelBackend = { [T in BackendType]: Settings<T> extends { tunnel: TunnelSettings } ? T : never }[BackendType]

export interface TunnelOptions<T extends TunnelBackend = TunnelBackend> extends BackendParts<T> {
  readonly startEngine: (config: EngineConfig) => Promise<Engine>
  readonly persistence: Persistence
}

/** The parts of the backend's options that a tunnel uses. */
export interface TunnelParts extends Omit<TunnelOptions, 'settings'> {
  readonly settings: { readonly tunnel: TunnelSettings }
}

/** The devices and queues that survive a restart of the daemon. */
export interface Persistence {
  /** True if the TUN device must stay when this process ends, even if the process is killed. */
  readonly persist: boolean
  /** The names of the TUN devices that the earlier process had. */
  readonly tunNames: readonly string[]
  /**
   * True if the engine opens several TUN queues. An existing TUN device with one queue cannot be used for several
   * queues, nor vice versa.
   */
  readonly isMultiQueue: boolean
  /**
   * Takes over the predecessor's open descriptors if they were opened with the same options; the predecessor then no
   * longer forwards. If the options differ, closes the descriptors that the predecessor passed and returns undefined.
   */
  inherit(
    wanted: Pick<OpenPath, 'bindAddresses' | 'port' | 'tunName'> & { readonly subnets: Nets },
  ): Promise<OpenPath | undefined>
}

/** The properties in which the tunnels of different backends differ. */
export interface TunnelKind {
  readonly encapsulation: EncapsulationName
  /**
   * The families of inner packets that the tunnel can carry. Of these families it carries those in which the node has a
   * subnet.
   */
  readonly families: readonly Family[]
  /** The family of the datagrams, unless a peer is reached over the family `other`. */
  readonly outer: Family
  /**
   * The outer family for peers that do not answer over the family `outer` or have no address in that family; left out
   * if all datagrams use one family.
   */
  readonly other?: Family | undefined
  /**
   * The number of bytes that the encapsulation adds to an inner packet, with the longest outer header that the tunnel
   * may use.
   */
  readonly overhead: number
  /**
   * Returns the number of bytes that the encapsulation adds with an outer header of this family. If left out, the
   * number is `overhead`.
   */
  readonly overheadOf?: (outer: Family) => number
  /**
   * The encapsulation's data about this host, such as its MAC. `endOf` returns the data about a peer. Both are left out
   * if the encapsulation needs no data.
   */
  readonly ownEnd?: Uint8Array
  readonly endOf?: (peer: Lease) => Uint8Array
  /** The name of the TUN device, or a pattern such as `flannel%d`, for which the kernel chooses a free number. */
  readonly tunName: string
  /** The UDP port of the network configuration, on which all nodes receive datagrams. */
  readonly port: number
  /** The longest packet in bytes that containers may send. */
  readonly mtu: number
  /** The backend's own checks of peers' leases, in addition to the checks that all backends share. */
  readonly filter?: Pick<PeerFilterOptions, 'type' | 'alsoUnusable' | 'identity'>
  /** The scope of the kernel's route to the network; left out for the scope `global`. */
  readonly scope?: 'link'
  /** The object that negotiates keys with peers; left out if the encapsulation has no keys. */
  readonly sessionManager?: SessionManager
  /** Checks objects that only the backend knows, such as a key file. Called at each check of the device. */
  readonly check?: () => Promise<void>
  /**
   * Removes a kernel device that has the name of the TUN device. An earlier process made that device when the kernel
   * carried the packets. Called only when no other process forwards, because a process that forwards would create the
   * device again.
   */
  readonly clear?: () => Promise<void>
  /**
   * True if eBPF programs may carry the packets to a peer after a test connection to this peer succeeded
   * (kernel-way-proof.ts).
   */
  readonly fastPath?: boolean
  /** True if packets to peers on the same link use a route to the peer's host instead of the tunnel. */
  readonly directRouting?: boolean
}
