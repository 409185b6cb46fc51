// userspace.ts - WireGuard carried by the engine, for hosts whose kernel lacks it: a TUN with the name of the kernel's
// device, and the same messages as those of kernels and wireguard-go.

import type { Log } from '../../../base/log.ts'
import type { Secret } from '../../../base/secret.ts'
import type { OwnLease, Lease } from '../../../control/lease/lease.ts'
import type { Run } from '../../../host/command.ts'
import { findLink, ipJson } from '../../../host/links.ts'
import type { Family } from '../../../net/address.ts'
import { overheadBy } from '../../catalog.ts'
import type { DataPath } from '../../contract.ts'
import type { PeerFilterOptions } from '../../tunnel/peer-filter.ts'
import { openTunnel, type TunnelOptions } from '../../tunnel/tunnel.ts'
import { createKeeper, type KeeperPeer } from './keeper.ts'

interface UserspaceOptions {
  readonly parts: Omit<TunnelOptions, 'settings'>
  readonly name: string
  /** The families of inner packets, and those of the datagrams. */
  readonly families: readonly Family[]
  readonly outers: readonly [Family, Family?]
  readonly port: number
  /** The longest packet that containers may send, in bytes. */
  readonly mtu: number
  readonly privateKey: Secret
  /** The underlay family in which this host has no address now. */
  readonly awaited: Family | undefined
  readonly psk: Secret
  /** The keepalive interval in seconds; 0 disables it. */
  readonly keepalive: number
  readonly stampFile: string
  readonly hasLanes: () => boolean
  readonly peerOf: (lease: Lease) => KeeperPeer | undefined
  readonly filter: Pick<PeerFilterOptions, 'type' | 'alsoUnusable' | 'identity'>
  /** Checks, with each check of the device, whether the key file has changed. */
  readonly check: () => Promise<void>
  readonly log: Log
}

/** WireGuard's rule: a packet enters if it was encrypted with the key of the peer whose subnet contains its source. */
const SETTINGS = { tunnel: { verifySource: 'strict', clampMss: false, probePathMtu: false } } as const

const overheadOf = (outer: Family): number => overheadBy('wireguard', outer)

/** Removes the kernel's device of this name, which flanneld or another `DataPath` left and of which a TUN cannot be made. */
async function removeKernelDevice(name: string, run: Run, log: Log): Promise<void> {
  if (!(await findLink(run, name))) return
  const [link] = await ipJson<{ linkinfo?: { info_kind?: string } }>(run, ['-d', 'link', 'show', 'dev', name])
  if (link?.linkinfo?.info_kind !== 'wireguard') return
  log.info(`Deleting the kernel's device ${name}, which weftd replaces`)
  await run('ip', ['link', 'del', name])
}

export function openUserspace(
  options: UserspaceOptions,
  lease: OwnLease,
  leases: ReadonlyMap<string, Lease>,
): Promise<DataPath> {
  const { parts, name, families, outers, awaited, port, mtu, filter, check, log } = options
  const [outer, other] = outers
  const { privateKey, psk, keepalive, stampFile, hasLanes, peerOf } = options
  const keeper = createKeeper({ privateKey, psk, keepalive, stampFile, hasLanes, peerOf, log })
  return openTunnel(
    { ...parts, settings: SETTINGS },
    {
      encapsulation: 'wireguard',
      families,
      outer,
      other,
      awaited,
      port,
      mtu,
      tunName: name,
      clear: () => removeKernelDevice(name, parts.run, log),
      scope: 'link',
      filter,
      check,
      overhead: Math.max(...outers.map((family = outer) => overheadOf(family))),
      overheadOf,
      keeper,
      ownEnd: keeper.ownEnd,
      endOf: (peer) => keeper.endOf(peer),
    },
    lease,
    leases,
  ).catch((error: unknown) => {
    keeper.stop()
    throw error
  })
}
