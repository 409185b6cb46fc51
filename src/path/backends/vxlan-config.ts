// vxlan-config.ts - what a lease of a vxlan network says of a host, as flanneld's (pkg/backend/vxlan), and what both ways of carrying
// it are given.

import type { Lease, LeaseAttrs, OwnLease } from '../../control/lease/lease.ts'
import type { ExternalInterface } from '../../host/external-interface.ts'
import type { ByFamily, Family } from '../../net/address.ts'
import { KINDS, type Settings } from '../catalog.ts'
import type { DataPath, NeededPart } from '../contract.ts'

export const TYPE = 'vxlan'

const [[, NAME], , [, NAME_V6]] = KINDS.vxlan.devices
/** The names of the devices, `flannel.1` and `flannel-v6.1`. */
export const namesOf = (vni: number): Readonly<Record<Family, string>> => ({
  ipv4: NAME.replace('%d', String(vni)),
  ipv6: NAME_V6.replace('%d', String(vni)),
})

/** The values that both ways of carrying need. */
export interface VxlanSetup {
  /** The names of the devices, `flannel.1` and `flannel-v6.1`, for the families that the network has. */
  readonly names: ByFamily<string>
  readonly options: Settings<'vxlan'>
  /** UDP, of both ends. */
  readonly port: number
  /** The longest packet that fits into a datagram of each family, in bytes: containers may send the least of them. */
  readonly mtus: Readonly<Record<Family, number>>
  /** Ours, of the inner Ethernet header. */
  readonly macs: ByFamily<string>
  readonly external: ExternalInterface
}

/** A way of carrying: what it has ready before there is a lease. */
export interface VxlanCarrier {
  /** The names of TUNs, as a backend's. */
  readonly tunNames?: readonly string[]
  /** The part of the host that one family needs. */
  needs(family: Family): NeededPart
  open(lease: OwnLease, leases: ReadonlyMap<string, Lease>): Promise<DataPath>
}

/** The MAC that a node publishes, lower case; undefined when it publishes none that a host can have. */
export function vtepMacOf(attrs: LeaseAttrs, family: Family): string | undefined {
  const data = (family === 'ipv4' ? attrs.backendData : attrs.backendV6Data) as
    | { readonly VtepMAC?: unknown }
    | null
    | undefined
  const mac = typeof data === 'object' && data !== null && typeof data.VtepMAC === 'string' ? data.VtepMAC : ''
  const isMac = /^([\da-f]{2}:){5}[\da-f]{2}$/i.test(mac)
  const isOneHosts = isMac && (Number.parseInt(mac.slice(0, 2), 16) & 1) === 0 && !/^[0:]+$/.test(mac)
  return isOneHosts ? mac.toLowerCase() : undefined
}

/** The leases that are peers'. */
export const peersOf = (family: Family) => ({
  type: TYPE,
  alsoUnusable: ({ attrs }: Lease): string | undefined =>
    vtepMacOf(attrs, family) === undefined ? 'it publishes no MAC of a vxlan device' : undefined,
})
