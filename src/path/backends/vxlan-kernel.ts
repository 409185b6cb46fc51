// vxlan-kernel.ts - VXLAN carried by the kernel: one device for each family; for each peer a neighbour entry, a forwarding entry and a
// route.
//
// The devices, entries and routes are those of flanneld (pkg/backend/vxlan).

import type { Lease, OwnLease } from '../../control/lease/lease.ts'
import { entriesOf } from '../../host/events.ts'
import { familiesOf, formatAddress, formatEndpoint, listed, type Family, type Net } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import type { PathSide } from '../contract.ts'
import type { NextHop } from '../device/route-sync.ts'
import { checkFamily } from '../device/tun-device.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'
import type { TunnelOptions } from '../tunnel/tunnel-options.ts'
import { RoutedPath, type RoutedParts } from './kernel-path.ts'
import { peersOf, vtepMacOf, type VxlanCarrier, type VxlanSetup } from './vxlan-config.ts'
import { checkVxlan, openVxlanDevice, type VxlanDevice } from './vxlan-device.ts'
import { entriesOfPeers, isAsWanted, type VxlanEntries, type VxlanPeer } from './vxlan-entries.ts'

type Parts = Pick<TunnelOptions<'vxlan'>, 'config' | 'run' | 'log'>

/**
 * Checks that the kernel supports vxlan, and returns the kernel as the carrier of the packets. Changes no device,
 * because an earlier weftd may still carry the packets itself. `setup` returns the result of the last `prepare`. Throws
 * WeftError NO_DEVICE_TYPE if the kernel does not support vxlan.
 */
export async function prepareKernelVxlan(setup: () => VxlanSetup, parts: Parts): Promise<VxlanCarrier> {
  const { names, mtus } = setup()
  const { config, run } = parts
  const families = familiesOf(config)
  const leastMtu = (): number => Math.min(...families.map((family) => setup().mtus[family]))
  const devices = families.flatMap((family) => names[family] ?? [])
  const [first = ''] = devices
  await checkVxlan(run, first)
  return {
    needs(family) {
      const { options, port, external } = setup()
      return {
        // The kernel binds a vxlan port on all addresses of the family, so the check uses the wildcard address.
        ports: [
          {
            family,
            address: family === 'ipv4' ? '0.0.0.0' : '::',
            port,
            option: KINDS.vxlan.options.port.name,
            vxlan: { vni: options.vni, gbp: options.gbp },
          },
        ],
        device: {
          name: names[family] ?? '',
          type: 'vxlan',
          networks: { [family]: config[family]?.network },
          replaces: 'any',
        },
        sides: [{ family, mtu: leastMtu(), external: external.name }],
      }
    },
    plan() {
      const open: { [F in Family]?: VxlanPath } = {}
      const watched = entriesOf(() => families.map((family) => open[family]?.carrier().device ?? names[family] ?? ''))
      // Ignore reports about changes that this process made itself, because every other report starts a check of all
      // entries.
      const isNews = (line: string): boolean =>
        watched.matters?.(line) !== false && !listed(open).some((path) => isAsWanted(line, path.entries()))
      const shared = { ...watched, matters: isNews }
      return families.map((family) => ({
        families: [family],
        mtu: mtus[family],
        external: { families: [family], isBound: true },
        watched: shared,
        async open(own) {
          checkFamily(family, leastMtu(), setup().external)
          const path = await openFamily(family, setup(), parts, own)
          open[family] = path
          return path
        },
      }))
    },
  }
}

async function openFamily(
  family: Family,
  { names, options, port, mtus, macs, external }: VxlanSetup,
  { config, run, log }: Parts,
  lease: OwnLease,
): Promise<VxlanPath> {
  const { vni, learning, gbp, directRouting } = options
  const [name, mac, local] = [names[family], macs[family], external.address[family]]
  const [network, subnet] = [config[family]?.network, lease.subnet[family]]
  if (name === undefined || mac === undefined || local === undefined || !network || !subnet)
    throw new Error(`${family} is none of this node's families`)
  const mtu = mtus[family]
  const link = { local, underlay: external.name, underlayIndex: external.index, port, mtu }
  const opened = await openVxlanDevice({ name, own: subnet.address, vni, learning, gbp, ...link }, mac, run, log)
  await opened.configure(subnet.address, network)
  const identity = {
    name: 'MAC',
    own: mac,
    of: ({ attrs }: Lease) => vtepMacOf(attrs, family),
    remedy: `if both hosts exist, delete ${opened.link.name} on one of the two and restart its daemon`,
  }
  const isOneOfTwo = familiesOf(config).length === 2
  const filter = new PeerFilter<Net>({ ...peersOf(family), lease, network, isOneOfTwo, log, identity })
  const parts = { family, network, device: opened.link, probeSource: subnet.address, filter, directRouting, run, log }
  return new VxlanPath(parts, opened, port)
}

/**
 * The data path of one family. For each peer without a direct route, the device has a neighbour entry and a forwarding
 * entry.
 */
class VxlanPath extends RoutedPath {
  readonly #family: Family
  readonly #opened: VxlanDevice
  readonly #port: number
  /**
   * The entries that the device should have; undefined after the set of peers has changed, until they are computed
   * again.
   */
  #wanted: VxlanEntries | undefined

  constructor(parts: RoutedParts, opened: VxlanDevice, port: number) {
    super(parts)
    this.#family = parts.family
    this.#opened = opened
    this.#port = port
  }

  /** Returns the neighbour and forwarding entries that the device should have. */
  entries(): VxlanEntries {
    return (this.#wanted ??= entriesOfPeers(this.#peersIn(this.tunnelled)))
  }

  protected hopTo(peer: Lease): NextHop {
    return { gateway: formatAddress(this.sideOf(peer).subnet.address), device: this.#opened.link, onlink: true }
  }

  protected sideTo(peer: Lease): PathSide {
    const { host, subnet } = this.sideOf(peer)
    return { endpoint: formatEndpoint(host, this.#port), probe: subnet.address, way: 'kernel' }
  }

  protected override repairDevice(): Promise<readonly string[]> {
    return this.#opened.resync(this.#peersIn(this.tunnelled))
  }

  /** Sets the peers' entries before the routes that use them. Removes unused entries afterwards. */
  protected override async setRoutes(
    subnets: ReadonlySet<string> | undefined,
    before: ReadonlyMap<string, Lease>,
  ): Promise<void> {
    const { entries: table } = this.#opened
    this.#wanted = undefined
    if (!subnets) {
      await table.putMissing(this.#peersIn(this.tunnelled))
      await super.setRoutes(subnets, before)
      return table.keepOnly(this.#peersIn(this.tunnelled))
    }
    if (!(await table.put(this.#peersIn(this.tunnelled, subnets))))
      await table.putMissing(this.#peersIn(this.tunnelled))
    await super.setRoutes(subnets, before)
    const old = entriesOfPeers(this.#peersIn(before, subnets))
    const had = await table.remove({
      addresses: new Map([...old.addresses].filter(([address]) => !this.entries().addresses.has(address))),
      macs: new Map([...old.macs].filter(([mac]) => !this.entries().macs.has(mac))),
    })
    if (!had) await table.keepOnly(this.#peersIn(this.tunnelled))
  }

  #peersIn(peers: ReadonlyMap<string, Lease>, subnets: Iterable<string> = peers.keys()): VxlanPeer[] {
    return [...subnets].flatMap((subnet) => {
      const peer = peers.get(subnet)
      return peer ? [this.#peerOf(peer)] : []
    })
  }

  #peerOf(peer: Lease): VxlanPeer {
    return {
      address: formatAddress(this.sideOf(peer).subnet.address),
      host: this.hostOf(peer),
      mac: vtepMacOf(peer.attrs, this.#family) ?? '',
    }
  }
}
