// vxlan-config.ts - the vxlan data in leases, in the form that flanneld publishes (pkg/backend/vxlan), and the values
// that both the kernel's and weftd's VXLAN need.

import type { Lease, LeaseAttrs } from '../../control/lease/lease.ts'
import type { ExternalInterface } from '../../host/external-interface.ts'
import type { ByFamily, Family } from '../../net/address.ts'
import { KINDS, type Settings } from '../catalog.ts'
import type { NeededPart, PlannedPath } from '../contract.ts'

export const TYPE = 'vxlan'

const [[, NAME], , [, NAME_V6]] = KINDS.vxlan.devices
export const namesOf = (vni: number): Readonly<Record<Family, string>> => ({
  ipv4: NAME.replace('%d', String(vni)),
  ipv6: NAME_V6.replace('%d', String(vni)),
})

export interface VxlanSetup {
  /** The names of the vxlan devices, such as `flannel.1` and `flannel-v6.1`, for the network's families. */
  readonly names: ByFamily<string>
  readonly options: Settings<'vxlan'>
  readonly port: number
  /**
   * For each outer family, the longest inner packet, in bytes, that fits into a datagram. Containers may send packets
   * up to the smaller of the two lengths.
   */
  readonly mtus: Readonly<Record<Family, number>>
  /** This node's MAC for each family, which is published in the lease and used in the inner Ethernet header. */
  readonly macs: ByFamily<string>
  readonly external: ExternalInterface
}

/** The carrier of the packets: the kernel or weftd. weftd creates this object before the node has a lease. */
export interface VxlanCarrier {
  readonly tunNames?: readonly string[]
  /** Returns the port, the device and the MTU that the data path of `family` needs. */
  needs(family: Family): NeededPart
  /** Lists the data paths, one for each family of the network (Backend.plan). */
  plan(): readonly PlannedPath[]
}

/**
 * Returns the MAC in the attributes of a node's lease, in lower case; undefined if they contain no valid unicast MAC.
 */
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

export const peersOf = (family: Family) => ({
  type: TYPE,
  alsoUnusable: ({ attrs }: Lease): string | undefined =>
    vtepMacOf(attrs, family) === undefined ? 'it publishes no MAC of a vxlan device' : undefined,
})
