// vxlan-config.ts - what a lease of a vxlan network says of a host, as flanneld's (pkg/backend/vxlan), and what both ways of carrying
// it are given.

import type { ExternalInterface } from '../host/external-interface.ts'
import type { Settings } from '../kinds.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../lease/lease.ts'
import type { DataPath } from './backend.ts'

export const TYPE = 'vxlan'

/** What both ways of carrying are given. */
export interface VxlanSetup {
  /** Of the device, `flannel.1`. */
  readonly name: string
  readonly options: Settings<'vxlan'>
  /** UDP, of both ends. */
  readonly port: number
  /** What containers may send, in bytes. */
  readonly mtu: number
  /** Ours, of the inner Ethernet header. */
  readonly mac: string
  readonly external: ExternalInterface
}

/** A way of carrying: what it has ready before there is a lease. */
export interface VxlanCarrier {
  /** As a backend's. */
  readonly tunName?: string
  open(lease: OwnLease, leases: ReadonlyMap<string, Lease>): Promise<DataPath>
}

/** The MAC that a node publishes, lower case; undefined when it publishes none that a host can have. */
export function vtepMacOf({ backendData }: LeaseAttrs): string | undefined {
  const data = backendData as { readonly VtepMAC?: unknown } | null | undefined
  const mac = typeof data === 'object' && data !== null && typeof data.VtepMAC === 'string' ? data.VtepMAC : ''
  const isMac = /^([\da-f]{2}:){5}[\da-f]{2}$/i.test(mac)
  const isOneHosts = isMac && (Number.parseInt(mac.slice(0, 2), 16) & 1) === 0 && !/^[0:]+$/.test(mac)
  return isOneHosts ? mac.toLowerCase() : undefined
}

/** Which leases are peers'. */
export const PEERS = {
  type: TYPE,
  alsoUnusable: ({ attrs }: Lease): string | undefined =>
    vtepMacOf(attrs) === undefined ? 'it publishes no MAC of a vxlan device' : undefined,
}
