// userspace.ts - WireGuard by the engine, for hosts whose kernel has none: a TUN of the device's name, and the messages that kernels
// and wireguard-go send and take.

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
  /** The parts of the tunnel; its options are WireGuard's, and none of the configuration. */
  readonly parts: Omit<TunnelOptions, 'settings'>
  readonly name: string
  /** The families that it carries, and those of its datagrams. */
  readonly families: readonly Family[]
  readonly outers: readonly [Family, Family?]
  readonly port: number
  /** The longest packet that containers may send, in bytes. */
  readonly mtu: number
  readonly privateKey: Secret
  /** The underlay family in which this host has no address now. */
  readonly awaited: Family | undefined
  readonly psk: Secret
  /** Seconds; 0: none. */
  readonly keepalive: number
  readonly stampFile: string
  readonly hasLanes: () => boolean
  readonly peerOf: (lease: Lease) => KeeperPeer | undefined
  readonly filter: Pick<PeerFilterOptions, 'type' | 'alsoUnusable' | 'identity'>
  /** Looks, from time to time, at what it was opened with. */
  readonly look: () => Promise<void>
  readonly log: Log
}

/** A packet is let in if the key that it is sealed with is that of the peer whose subnet it is from. */
const SETTINGS = { tunnel: { verifySource: 'strict', clampMss: false, probePathMtu: false } } as const

const overheadOf = (outer: Family): number => overheadBy('wireguard', outer)

/** Removes the kernel's device of this name, which flanneld or another `DataPath` left and of which a TUN cannot be made. */
async function removeKernelDevice(name: string, run: Run, log: Log): Promise<void> {
  if (!(await findLink(run, name))) return
  const [link] = await ipJson<{ linkinfo?: { info_kind?: string } }>(run, ['-d', 'link', 'show', 'dev', name])
  if (link?.linkinfo?.info_kind !== 'wireguard') return
  log.info(`Deleting the kernel's device ${name}, whose place weftd takes`)
  await run('ip', ['link', 'del', name])
}

export function openUserspace(
  options: UserspaceOptions,
  lease: OwnLease,
  leases: ReadonlyMap<string, Lease>,
): Promise<DataPath> {
  const { parts, name, families, outers, awaited, port, mtu, filter, look, log } = options
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
      look,
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
