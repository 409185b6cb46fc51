// userspace.ts - WireGuard carried by weftd's engine, for hosts whose kernel does not support WireGuard. The TUN device
// has the name that the kernel's WireGuard device would have. The handshake messages and the encrypted datagrams have
// the same format as those of the kernel and of wireguard-go.

import type { Log } from '../../../base/log.ts'
import type { Secret } from '../../../base/secret.ts'
import type { OwnLease, Lease } from '../../../control/lease/lease.ts'
import { removeAll } from '../../../host/kernel-errors.ts'
import type { HostKernel } from '../../../host/kernel.ts'
import type { Family } from '../../../net/address.ts'
import { overheadBy } from '../../catalog.ts'
import type { DataPath } from '../../contract.ts'
import type { PeerFilterOptions } from '../../tunnel/peer-filter.ts'
import type { TunnelOptions } from '../../tunnel/tunnel-options.ts'
import { Tunnel } from '../../tunnel/tunnel.ts'
import { sessionClock } from './session-clock.ts'
import { WireguardSessionManager, type PublishedPeer } from './session-manager.ts'

interface UserspaceOptions {
  readonly parts: Omit<TunnelOptions, 'settings'>
  readonly name: string
  /**
   * The families of the inner packets that the TUN device carries; `outers` lists the families of the UDP datagrams.
   */
  readonly families: readonly Family[]
  readonly outers: readonly [Family, Family?]
  readonly port: number
  /** The longest packet in bytes that containers may send. */
  readonly mtu: number
  readonly privateKey: Secret
  readonly psk: Secret
  /** The interval in seconds between keepalive packets; 0 switches keepalive packets off. */
  readonly keepalive: number
  readonly stampFile: string
  readonly hasLanes: () => boolean
  readonly peerOf: (lease: Lease) => PublishedPeer | undefined
  readonly filter: Pick<PeerFilterOptions, 'type' | 'alsoUnusable' | 'identity'>
  /** Checks whether the key file has changed. weftd calls this function at each check of the device. */
  readonly check: () => Promise<void>
  readonly log: Log
}

/**
 * These settings enforce WireGuard's rule: the receiver accepts a packet only if it was encrypted with the key of the
 * peer whose subnet contains the packet's source.
 */
const SETTINGS = { tunnel: { verifySource: 'strict', clampMss: false, probePathMtu: false } } as const

const overheadOf = (outer: Family): number => overheadBy('wireguard', outer)

/**
 * Deletes a WireGuard device of the kernel that has the TUN's name, because the TUN cannot be created while the device
 * exists. flanneld, or weftd with another `DataPath`, left the device.
 */
async function removeKernelDevice(name: string, kernel: HostKernel, log: Log): Promise<void> {
  const link = await kernel.link(name)
  if (link?.type !== 'wireguard') return
  log.info(`Deleting the kernel's device ${name}, which weftd replaces`)
  await removeAll(kernel, [{ kind: 'delete link', device: link }])
}

export function openUserspace(
  options: UserspaceOptions,
  lease: OwnLease,
  leases: ReadonlyMap<string, Lease>,
): Promise<DataPath> {
  const { parts, name, families, outers, port, mtu, filter, check, log } = options
  const [outer, other] = outers
  const { privateKey, psk, keepalive, stampFile, hasLanes, peerOf } = options
  const sessionManager = new WireguardSessionManager({
    privateKey,
    psk,
    keepalive,
    stampFile,
    hasLanes,
    peerOf,
    log,
    clock: sessionClock,
  })
  return Tunnel.open(
    { ...parts, settings: SETTINGS },
    {
      encapsulation: 'wireguard',
      families,
      outer,
      other,
      port,
      mtu,
      tunName: name,
      clear: () => removeKernelDevice(name, parts.kernel, log),
      scope: 'link',
      filter,
      check,
      overhead: Math.max(...outers.map((family = outer) => overheadOf(family))),
      overheadOf,
      sessionManager,
      ownEnd: sessionManager.ownEnd,
      endOf: (peer) => sessionManager.endOf(peer),
    },
    lease,
    leases,
  ).catch((error: unknown) => {
    sessionManager.stop()
    throw error
  })
}
