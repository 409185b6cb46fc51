// vxlan-kernel.ts - VXLAN by the kernel: one device, and for each peer a neighbour, a forwarding entry and a route.
//
// Device, entries and routes are flanneld's (pkg/backend/vxlan).

import { ipv4For } from '../config/network-config.ts'
import { entriesOf } from '../host/events.ts'
import type { Ipv4Lease, Lease } from '../lease/lease.ts'
import { formatIpv4, formatIpv4Net } from '../net/ipv4.ts'
import { watchExternal } from './external-watch.ts'
import { inTurn } from './in-turn.ts'
import { createPeerFilter } from './peer-filter.ts'
import { createDirectHops } from './direct-way.ts'
import { createRouteSync, type NextHop } from './route-sync.ts'
import type { TunnelOptions } from './tunnel.ts'
import { PEERS, TYPE, vtepMacOf, type VxlanCarrier, type VxlanSetup } from './vxlan-config.ts'
import { checkVxlan, openVxlanDevice, type VxlanPeer } from './vxlan-device.ts'

const NEEDS = `the ${TYPE} backend`

/** Makes nothing yet: what carries until then may be in its place. Throws WeftError NO_DEVICE_TYPE where the kernel has no vxlan. */
export async function prepareKernelVxlan(
  { name, options, port, mtu, mac, external }: VxlanSetup,
  { config, run, log }: Pick<TunnelOptions<'vxlan'>, 'config' | 'run' | 'log'>,
): Promise<VxlanCarrier> {
  const { vni, learning, gbp, directRouting } = options
  const path = { local: external.address, underlay: external.name, port, mtu }
  await checkVxlan(run, name)
  return {
    async open(lease) {
      const opened = await openVxlanDevice({ name, vni, learning, gbp, ...path }, mac, run, log)
      const { network } = ipv4For(NEEDS, config)
      const { address: own } = ipv4For(NEEDS, lease.subnet)
      await opened.configure(own, network)
      const routes = createRouteSync({ network, ownDevice: name, run, log })
      const direct = directRouting ? createDirectHops(run) : undefined
      const identity = {
        ...{ name: 'MAC', own: mac, of: ({ attrs }: Lease) => vtepMacOf(attrs) },
        remedy: `where both are there, delete ${name} on one of the two and restart its daemon`,
      }
      const filter = createPeerFilter({ ...PEERS, lease, network, log, identity })
      const watch = watchExternal(run, external)
      let applied: readonly Ipv4Lease[] = []
      let tunnelled: readonly VxlanPeer[] = []
      return inTurn({
        mtu,
        watched: entriesOf(name),
        fault: watch.moved,
        async apply(leases, ownKey) {
          applied = filter.usable(leases, ownKey)
          await direct?.look(filter.peers())
          const entries: VxlanPeer[] = []
          const hops = new Map<string, NextHop>(direct?.hops())
          for (const peer of applied) {
            if (direct?.has(peer)) continue
            const [host, address] = [formatIpv4(peer.attrs.publicIp.ipv4), formatIpv4(peer.subnet.ipv4.address)]
            entries.push({ address, host, mac: vtepMacOf(peer.attrs) ?? '' })
            hops.set(formatIpv4Net(peer.subnet.ipv4), { gateway: address, device: name, onlink: true })
          }
          tunnelled = entries
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
        carrier: () => ({ device: name, engine: 'kernel', features: [] }),
        // The kernel counts by device and not by peer.
        probeSource: own,
        peers: () =>
          applied
            .filter(({ subnet }) => routes.isSet(formatIpv4Net(subnet.ipv4)))
            .map((peer) => ({
              ...{ key: peer.key, probe: peer.subnet.ipv4.address },
              ...(direct?.has(peer)
                ? { endpoint: formatIpv4(peer.attrs.publicIp.ipv4), way: 'direct' }
                : { endpoint: `${formatIpv4(peer.attrs.publicIp.ipv4)}:${port}`, way: 'kernel' }),
            })),
        counters: () => ({ peers_unusable: BigInt(filter.skipped()) }),
        threads: () => ({}),
        // As flanneld's: device and entries stay, and carry on while the daemon is away.
        close: async () => {},
      })
    },
  }
}
