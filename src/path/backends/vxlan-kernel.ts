// vxlan-kernel.ts - VXLAN by the kernel: a device for each family, and for each peer a neighbour, a forwarding entry and a route.
//
// Devices, entries and routes are flanneld's (pkg/backend/vxlan).

import { sideOf, type Lease, type OwnLease } from '../../control/lease/lease.ts'
import { entriesOf } from '../../host/events.ts'
import { familiesOf, formatAddress, formatEndpoint, formatNet, listed, type Family } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import type { DataPath } from '../contract.ts'
import { createRouteSync, type NextHop } from '../device/route-sync.ts'
import { inTurn } from '../in-turn.ts'
import { openFamilies } from '../tunnel/both-families.ts'
import { createDirectHops } from '../tunnel/direct-routing.ts'
import { createPeerFilter } from '../tunnel/peer-filter.ts'
import type { TunnelOptions } from '../tunnel/tunnel.ts'
import { peersOf, vtepMacOf, type VxlanCarrier, type VxlanSetup } from './vxlan-config.ts'
import {
  checkVxlan,
  entriesOfPeers,
  isAsWanted,
  openVxlanDevice,
  type VxlanEntries,
  type VxlanPeer,
} from './vxlan-device.ts'

type Parts = Pick<TunnelOptions<'vxlan'>, 'config' | 'run' | 'log'>

/**
 * Makes nothing yet: what carries until then may be in its place. `setup` is as was prepared last. Throws WeftError NO_DEVICE_TYPE where
 * the kernel has no vxlan.
 */
export async function prepareKernelVxlan(setup: () => VxlanSetup, parts: Parts): Promise<VxlanCarrier> {
  const { names, mtus } = setup()
  const { config, run, log } = parts
  const families = familiesOf(config)
  const leastMtu = (): number => Math.min(...families.map((family) => setup().mtus[family]))
  const devices = families.flatMap((family) => names[family] ?? [])
  const [first = ''] = devices
  await checkVxlan(run, first)
  return {
    needs(family) {
      const { options, port, external } = setup()
      return {
        // The kernel opens the port for all addresses of the family.
        ports: [
          {
            family,
            address: family === 'ipv4' ? '0.0.0.0' : '::',
            port,
            option: KINDS.vxlan.options.port.name,
            vxlan: { vni: options.vni, gbp: options.gbp },
          },
        ],
        device: { name: names[family] ?? '', type: 'vxlan', replaces: 'any' },
        sides: [{ family, mtu: leastMtu(), external: external.name }],
      }
    },
    open(lease) {
      /** Of each family what there is to be. */
      const entries: { [F in Family]?: () => VxlanEntries } = {}
      const watched = entriesOf(...devices)
      // Our own changes are reported too: they are no reason to look at all entries again.
      const isNews = (line: string): boolean =>
        watched.matters?.(line) !== false && !listed(entries).some((each) => isAsWanted(line, each()))
      return openFamilies({
        of: config,
        lease,
        watched: { ...watched, matters: isNews },
        run,
        log,
        mtu: Math.min(...families.map((family) => mtus[family])),
        external: () => setup().external,
        open: (family, own) => openFamily(family, setup(), parts, own, (wanted) => (entries[family] = wanted)),
      })
    },
  }
}

async function openFamily(
  family: Family,
  { names, options, port, mtus, macs, external }: VxlanSetup,
  { config, run, log }: Parts,
  lease: OwnLease,
  /** Told once by what to know which entries there are to be. */
  tell: (wanted: () => VxlanEntries) => void,
): Promise<DataPath> {
  const { vni, learning, gbp, directRouting } = options
  const [name, mac, local] = [names[family], macs[family], external.address[family]]
  const [network, subnet] = [config[family]?.network, lease.subnet[family]]
  if (name === undefined || mac === undefined || local === undefined || !network || !subnet)
    throw new Error(`${family} is none of this node's families`)
  const mtu = mtus[family]
  const link = { local, underlay: external.name, underlayIndex: external.index, port, mtu }
  const opened = await openVxlanDevice({ name, vni, learning, gbp, ...link }, mac, run, log)
  await opened.configure(subnet.address, network)
  const routes = createRouteSync({ network, ownDevice: name, run, log })
  const direct = directRouting ? createDirectHops(run, family) : undefined
  const identity = {
    name: 'MAC',
    own: mac,
    of: ({ attrs }: Lease) => vtepMacOf(attrs, family),
    remedy: `if both hosts exist, delete ${name} on one of the two and restart its daemon`,
  }
  const isOneOfTwo = familiesOf(config).length === 2
  const filter = createPeerFilter({ ...peersOf(family), lease, network, isOneOfTwo, log, identity })
  const hostOf = (peer: Lease): string => formatAddress(sideOf(peer, family).host)
  const subnetOf = (peer: Lease): string => formatNet(sideOf(peer, family).subnet)
  /** By subnet, the next hops to peers, and the peers of which the device has entries. */
  let hops: ReadonlyMap<string, NextHop> = new Map()
  let tunnelled: ReadonlyMap<string, VxlanPeer> = new Map()
  let wanted: VxlanEntries | undefined
  const entries = (): VxlanEntries => (wanted ??= entriesOfPeers(tunnelled.values()))
  tell(entries)

  /** Assigns the peers of `changed`, or all peers if it is left out, to the tunnel or to direct routes, as `direct` decides. */
  const place = async (
    peers: ReadonlyMap<string, Lease>,
    changed: ReadonlyMap<string, Lease | undefined> | undefined,
  ): Promise<void> => {
    const before = tunnelled
    const [nextHops, next] = [new Map(changed && hops), new Map(changed && tunnelled)]
    /** The subnets whose assignment may have changed. */
    const subnets = new Set<string>()
    for (const [key, was] of changed ?? [])
      for (const peer of [was, peers.get(key)]) if (peer) subnets.add(subnetOf(peer))
    for (const each of subnets) {
      nextHops.delete(each)
      next.delete(each)
    }
    for (const key of (changed ?? peers).keys()) {
      const peer = peers.get(key)
      if (!peer) continue
      const destination = subnetOf(peer)
      const hop = direct?.hops().get(destination)
      const address = formatAddress(sideOf(peer, family).subnet.address)
      if (!hop) next.set(destination, { address, host: hostOf(peer), mac: vtepMacOf(peer.attrs, family) ?? '' })
      nextHops.set(destination, hop ?? { gateway: address, device: name, onlink: true })
    }
    ;[hops, tunnelled, wanted] = [nextHops, next, undefined]
    if (!changed) {
      await opened.add([...next.values()])
      await routes.apply(hops)
      return opened.keepOnly([...next.values()])
    }
    const among = (all: ReadonlyMap<string, VxlanPeer>): VxlanPeer[] =>
      [...subnets].flatMap((each) => all.get(each) ?? [])
    if (!(await opened.put(among(next)))) await opened.add([...next.values()])
    await routes.apply(hops, subnets)
    const old = entriesOfPeers(among(before))
    const had = await opened.remove({
      addresses: new Map([...old.addresses].filter(([of]) => !entries().addresses.has(of))),
      macs: new Map([...old.macs].filter(([of]) => !entries().macs.has(of))),
    })
    if (!had) await opened.keepOnly([...next.values()])
  }

  return inTurn({
    mtu,
    watched: entriesOf(name),
    fault: new Promise(() => {}),
    async apply(leases, ownKey, touched) {
      const changed = filter.take(leases, ownKey, touched)
      const peers = filter.peers()
      await direct?.look(peers, changed)
      await place(peers, changed)
    },
    async resync() {
      const mended = await opened.resync([...tunnelled.values()])
      const routed = await routes.resync()
      const moved = await direct?.lookAgain(filter.peers(), routes)
      if (moved && moved.size > 0) await place(filter.peers(), moved)
      // A device that goes takes its routes with it: one line says so.
      return mended.length > 0 ? mended : routed
    },
    carrier: () => ({ device: name, engine: 'kernel', features: [] }),
    // The kernel counts by device and not by peer.
    probeSource: { [family]: subnet.address },
    peers: () =>
      [...filter.peers().values()]
        .filter((peer) => routes.isSet(subnetOf(peer)))
        .map((peer) => ({
          key: peer.key,
          [family]: {
            probe: sideOf(peer, family).subnet.address,
            ...(direct?.has(peer)
              ? { endpoint: hostOf(peer), way: 'direct' }
              : { endpoint: formatEndpoint(sideOf(peer, family).host, port), way: 'kernel' }),
          },
        })),
    counters: () => ({ peers_unusable: BigInt(filter.skipped()) }),
    threads: () => ({}),
    // Device and entries stay, as flanneld's, and carry on while the daemon is away.
    close: async () => {},
  })
}
