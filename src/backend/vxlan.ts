// vxlan.ts - the kernel's vxlan: one device, and for each peer a neighbour, a forwarding entry and a route.
//
// Options, device, entries, routes and lease are flanneld's (pkg/backend/vxlan).

import { WeftError } from '../errors.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { Run } from '../host/command.ts'
import { currentExternal, type ExternalInterface } from '../host/external-interface.ts'
import { routesFor } from '../host/links.ts'
import type { Lease, LeaseAttrs } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net } from '../net/ipv4.ts'
import type { Backend, DataPath } from './backend.ts'
import { watchExternal } from './external-watch.ts'
import { createPeerFilter } from './peer-filter.ts'
import { createRouteSync, type NextHop } from './route-sync.ts'
import { openVxlanDevice, type VxlanDevice, type VxlanPeer } from './vxlan-device.ts'

const TYPE = 'vxlan'
/** Outer IPv4 header, UDP, VXLAN and the inner Ethernet header (RFC 7348 section 5). */
const ENCAP_BYTES = 50
/** The kernel's own, from before IANA gave it 4789. */
const DEFAULT_PORT = 8472
const MAX_VNI = 2 ** 24 - 1

export interface VxlanConfig {
  readonly vni: number
  /** 0: the kernel's. */
  readonly port: number
  /** Of the underlay, in bytes; 0: the external interface's. */
  readonly mtu: number
  readonly gbp: boolean
  readonly learning: boolean
  readonly directRouting: boolean
}

/** The options of the `Backend` object. Throws WeftError CONFIG. */
export function vxlanConfig(backend: Readonly<Record<string, unknown>>): VxlanConfig {
  const given = (name: string): unknown => backend[name.toLowerCase()] ?? undefined
  function refuse(name: string, remedy: string): never {
    throw new WeftError('CONFIG', `Backend.${name} is ${JSON.stringify(given(name))}`, { remedy })
  }
  function number(name: string, fallback: number, most: number): number {
    const value = given(name) ?? fallback
    if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= most) return value
    return refuse(name, `give it a whole number from 0 to ${most}`)
  }
  function flag(name: string): boolean {
    const value = given(name) ?? false
    return typeof value === 'boolean' ? value : refuse(name, 'give it true or false')
  }
  return {
    vni: number('VNI', 1, MAX_VNI),
    port: number('Port', 0, 65_535),
    mtu: number('MTU', 0, 65_535),
    gbp: flag('GBP'),
    learning: flag('Learning'),
    directRouting: flag('DirectRouting'),
  }
}

/** The MAC of a lease's device, lower case; undefined when it publishes none that a host can have. */
export function vtepMacOf({ attrs: { backendData } }: Lease): string | undefined {
  const data = backendData as { readonly VtepMAC?: unknown } | null | undefined
  const mac = typeof data === 'object' && data !== null && typeof data.VtepMAC === 'string' ? data.VtepMAC : ''
  const isMac = /^([\da-f]{2}:){5}[\da-f]{2}$/i.test(mac)
  const isOneHosts = isMac && (Number.parseInt(mac.slice(0, 2), 16) & 1) === 0 && !/^[0:]+$/.test(mac)
  return isOneHosts ? mac.toLowerCase() : undefined
}

export interface VxlanBackendOptions {
  readonly config: NetworkConfig
  readonly external: ExternalInterface
  readonly run: Run
  readonly log: Log
}

export function createVxlanBackend({ config, external: found, run, log }: VxlanBackendOptions): Backend {
  let external = found
  let device: VxlanDevice | undefined
  const options = vxlanConfig(config.backend)
  const { vni, port, gbp, learning, directRouting } = options
  const name = `flannel.${vni}`
  log.info(`VXLAN config: VNI=${vni} Port=${port} GBP=${gbp} Learning=${learning} DirectRouting=${directRouting}`)
  return {
    name: TYPE,
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      const { address: local, name: underlay, mtu } = external
      const path = { local, underlay, port: port === 0 ? DEFAULT_PORT : port, mtu: (options.mtu || mtu) - ENCAP_BYTES }
      device = await openVxlanDevice({ name, vni, learning, gbp, ...path }, run, log, device?.mac)
      const data = { VNI: vni, VtepMAC: device.mac }
      return { publicIp: external.publicIp, backendType: TYPE, backendData: data }
    },
    async open(lease): Promise<DataPath> {
      const opened = device as VxlanDevice // by prepare, which comes first
      await opened.configure(lease.subnet.address, config.network)
      const routes = createRouteSync({ network: config.network, ownDevice: name, run, log })
      const filter = createPeerFilter({
        ...{ type: TYPE, lease, log },
        alsoUnusable: (peer) => (vtepMacOf(peer) === undefined ? 'it publishes no MAC of a vxlan device' : undefined),
      })
      const watch = watchExternal(run, external)
      const { mtu } = external
      let tunnelled: readonly VxlanPeer[] = []
      const twins = new Set<string>()
      /** A virtual machine that was cloned with its device, for one: packets for both would go to one of them. */
      function nameTwin({ key }: Lease, mac: string, host: string): void {
        if (twins.has(key)) return
        twins.add(key)
        log.warn(
          `Lease ${key} is not used: its MAC ${mac} is that of ${host}; delete ${name} on one of the two and restart its daemon`,
        )
      }

      return {
        mtu: (options.mtu || mtu) - ENCAP_BYTES,
        fault: watch.moved,
        async apply(leases, ownKey) {
          const peers = filter.usable(leases, ownKey)
          const hosts = peers.map(({ attrs }) => formatIpv4(attrs.publicIp))
          const ways = directRouting ? await routesFor(run, hosts) : undefined
          const entries = new Map<string, VxlanPeer>() // by MAC: the kernel has one entry for each
          const hops = new Map<string, NextHop>()
          for (const peer of peers) {
            const [host, address] = [formatIpv4(peer.attrs.publicIp), formatIpv4(peer.subnet.address)]
            const way = ways?.get(host)
            // A host that is reached without a router is routed to like host-gw's.
            if (way && way.gateway === undefined) {
              hops.set(formatIpv4Net(peer.subnet), { gateway: host, device: way.device })
              continue
            }
            const mac = vtepMacOf(peer) ?? ''
            const twin = mac === opened.mac ? { host: 'this node' } : entries.get(mac)
            if (twin) {
              nameTwin(peer, mac, twin.host)
              continue
            }
            entries.set(mac, { address, host, mac })
            hops.set(formatIpv4Net(peer.subnet), { gateway: address, device: name, onlink: true })
          }
          tunnelled = [...entries.values()]
          await opened.add(tunnelled)
          await routes.apply(hops)
          await opened.keepOnly(tunnelled)
        },
        async resync() {
          if (await watch.hasMoved()) return []
          const mended = await opened.resync(tunnelled)
          const routed = await routes.resync()
          // A device that goes takes its routes with it: one line says so.
          return mended.length > 0 ? mended : routed
        },
        counters: () => ({ peers_unusable: BigInt(filter.skipped()) }),
        threads: () => ({}),
        // As flanneld's: device and entries stay, and carry on while the daemon is away.
        close: async () => {},
      }
    },
  }
}
