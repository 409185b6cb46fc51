// vxlan-config.ts - what the hosts of a vxlan network agree on: the options, and what a lease says of a host; and what both
// ways of carrying it are given.
//
// flanneld's (pkg/backend/vxlan), but for DataPath, VerifySource and ProbePathMTU, which are ours.

import { backendOptions } from '../config/backend-options.ts'
import type { VerifySource } from '../dataplane/filter.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../lease/lease.ts'
import type { DataPath } from './backend.ts'
import { verifySource } from './strangers.ts'

export const TYPE = 'vxlan'
/** As many digits as fit a device's name behind `flannel.` (IFNAMSIZ), of the 24 bits of RFC 7348. */
const MAX_VNI = 9_999_999

export interface VxlanConfig {
  readonly vni: number
  /** 0: the kernel's. */
  readonly port: number
  /** Of the underlay, in bytes; 0: the external interface's. */
  readonly mtu: number
  readonly gbp: boolean
  readonly learning: boolean
  readonly directRouting: boolean
  /** Who carries the packets; undefined: the kernel where it can. */
  readonly dataPath: 'kernel' | 'userspace' | undefined
  /** Which packets from peers are let in, where weftd carries them. */
  readonly verifySource: VerifySource
  /** Whether connections of TCP are to begin with segments that fit, where weftd carries them. */
  readonly clampMss: boolean
  /** Whether the longest packet that reaches each peer is looked for, likewise. */
  readonly probePathMtu: boolean
}

/** What both ways of carrying are given. */
export interface VxlanSetup {
  /** Of the device, `flannel.1`. */
  readonly name: string
  readonly options: VxlanConfig
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

/** The options of the `Backend` object. Throws WeftError CONFIG. */
export function vxlanConfig(backend: Readonly<Record<string, unknown>>): VxlanConfig {
  const { number, flag, word } = backendOptions(backend)
  return {
    vni: number('VNI', 1, MAX_VNI),
    port: number('Port', 0, 65_535),
    mtu: number('MTU', 0, 65_535),
    gbp: flag('GBP'),
    learning: flag('Learning'),
    directRouting: flag('DirectRouting'),
    dataPath: word('DataPath', ['kernel', 'userspace']),
    verifySource: verifySource(backend),
    clampMss: flag('ClampMSS'),
    probePathMtu: flag('ProbePathMTU'),
  }
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
