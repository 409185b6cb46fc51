// vxlan-kernel.ts - VXLAN by the kernel: one device, and for each peer a neighbour, a forwarding entry and a route.
//
// Device, entries and routes are flanneld's (pkg/backend/vxlan).

import { entriesOf } from '../host/events.ts'
import type { Lease } from '../lease/lease.ts'
import { formatIpv4, formatIpv4Net } from '../net/ipv4.ts'
import { watchExternal } from './external-watch.ts'
import { inTurn } from './in-turn.ts'
import { createPeerFilter } from './peer-filter.ts'
import { createDirectHops } from './direct-way.ts'
import { createRouteSync, type NextHop } from './route-sync.ts'
import type { TunnelOptions } from './tunnel.ts'
import { PEERS, vtepMacOf, type VxlanCarrier, type VxlanSetup } from './vxlan-config.ts'
import { checkVxlan, openVxlanDevice, type VxlanPeer } from './vxlan-device.ts'

/** Makes nothing yet: what carries until then may be in its place. Throws WeftError NO_DEVICE_TYPE where the kernel has no vxlan. */
export async function prepareKernelVxlan(
  { name, options, port, mtu, mac, external }: VxlanSetup,
  { config: { network }, run, log }: Pick<TunnelOptions<'vxlan'>, 'config' | 'run' | 'log'>,
): Promise<VxlanCarrier> {
  const { vni, learning, gbp, directRouting } = options
  const path = { local: external.address, underlay: external.name, port, mtu }
  await checkVxlan(run, name)
  return {
    async open(lease) {
      const opened = await openVxlanDevice({ name, vni, learning, gbp, ...path }, mac, run, log)
      await opened.configure(lease.subnet.address, network)
      const routes = createRouteSync({ network, ownDevice: name, run, log })
      const direct = directRouting ? createDirectHops(run) : undefined
      const identity = {
        ...{ name: 'MAC', own: mac, of: ({ attrs }: Lease) => vtepMacOf(attrs) },
        remedy: `where both are there, delete ${name} on one of the two and restart its daemon`,
      }
      const filter = createPeerFilter({ ...PEERS, lease, network, log, identity })
      const watch = watchExternal(run, external)
      let applied: readonly Lease[] = []
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
            const [host, address] = [formatIpv4(peer.attrs.publicIp), formatIpv4(peer.subnet.address)]
            entries.push({ address, host, mac: vtepMacOf(peer.attrs) ?? '' })
            hops.set(formatIpv4Net(peer.subnet), { gateway: address, device: name, onlink: true })
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
        probeSource: lease.subnet.address,
        peers: () =>
          applied
            .filter(({ subnet }) => routes.isSet(formatIpv4Net(subnet)))
            .map((peer) => ({
              ...{ key: peer.key, probe: peer.subnet.address },
              ...(direct?.has(peer)
                ? { endpoint: formatIpv4(peer.attrs.publicIp), way: 'direct' }
                : { endpoint: `${formatIpv4(peer.attrs.publicIp)}:${port}`, way: 'kernel' }),
            })),
        counters: () => ({ peers_unusable: BigInt(filter.skipped()) }),
        threads: () => ({}),
        // As flanneld's: device and entries stay, and carry on while the daemon is away.
        close: async () => {},
      })
    },
  }
}
