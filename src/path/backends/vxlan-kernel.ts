// vxlan-kernel.ts - VXLAN carried by the kernel: one device for each family; for each peer a neighbour entry, a forwarding entry and a
// route.
//
// The devices, entries and routes are those of flanneld (pkg/backend/vxlan).

import { sideOf, type Lease, type OwnLease } from '../../control/lease/lease.ts'
import { entriesOf } from '../../host/events.ts'
import { familiesOf, formatAddress, formatEndpoint, formatNet, listed, type Family } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import type { DataPath } from '../contract.ts'
import { RouteSync, type NextHop } from '../device/route-sync.ts'
import { inTurn } from '../in-turn.ts'
import { openFamilies } from '../tunnel/both-families.ts'
import { createDirectHops } from '../tunnel/direct-routing.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'
import type { TunnelOptions } from '../tunnel/tunnel-options.ts'
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
 * Checks that the kernel supports vxlan, and returns the carrier. It changes no device in use, because weftd may still carry the packets
 * itself. `setup` returns the result of the last `prepare`. Throws WeftError NO_DEVICE_TYPE if the kernel does not support vxlan.
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
        // The kernel binds a vxlan port on all addresses of the family.
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
      const entries: { [F in Family]?: () => VxlanEntries } = {}
      const watched = entriesOf(...devices)
      // The kernel also reports the changes that this process makes. They are filtered out, because each other change starts a check of all
      // entries.
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
  /** Called once with a function that returns the neighbour and forwarding entries that the device should have. */
  setWanted: (wanted: () => VxlanEntries) => void,
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
  const routes = new RouteSync({ network, ownDevice: name, run, log })
  const direct = directRouting ? createDirectHops(run, family) : undefined
  const identity = {
    name: 'MAC',
    own: mac,
    of: ({ attrs }: Lease) => vtepMacOf(attrs, family),
    remedy: `if both hosts exist, delete ${name} on one of the two and restart its daemon`,
  }
  const isOneOfTwo = familiesOf(config).length === 2
  const filter = new PeerFilter({ ...peersOf(family), lease, network, isOneOfTwo, log, identity })
  const hostOf = (peer: Lease): string => formatAddress(sideOf(peer, family).host)
  const subnetOf = (peer: Lease): string => formatNet(sideOf(peer, family).subnet)
  /** The next hops of all peers by subnet; `tunnelled` has the peers that are reached through the device, by subnet. */
  let hops: ReadonlyMap<string, NextHop> = new Map()
  let tunnelled: ReadonlyMap<string, VxlanPeer> = new Map()
  let wanted: VxlanEntries | undefined
  const entries = (): VxlanEntries => (wanted ??= entriesOfPeers(tunnelled.values()))
  setWanted(entries)

  /**
   * Sets entries and routes for the peers in `changed`, or for all peers if it is left out. A peer gets a direct route if `direct` has one
   * for it, otherwise it is reached through the device.
   */
  const assign = async (
    peers: ReadonlyMap<string, Lease>,
    changed: ReadonlyMap<string, Lease | undefined> | undefined,
  ): Promise<void> => {
    const before = tunnelled
    const [nextHops, next] = [new Map(changed && hops), new Map(changed && tunnelled)]
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
      await direct?.lookUp(peers, changed)
      await assign(peers, changed)
    },
    async resync() {
      const repaired = await opened.resync([...tunnelled.values()])
      const routed = await routes.resync()
      const moved = await direct?.lookUpAgain(filter.peers(), routes)
      if (moved && moved.size > 0) await assign(filter.peers(), moved)
      // If the device was repaired, only that is reported, because its routes were lost with it.
      return repaired.length > 0 ? repaired : routed
    },
    carrier: () => ({ device: name, engine: 'kernel', features: [] }),
    // The data path has no member `traffic`, because the kernel counts the packets of the device and not those of each peer.
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
    // Like flanneld, weftd keeps the device and its entries, so that the kernel forwards while the daemon is stopped.
    close: async () => {},
  })
}
