// tunnel.ts - a tunnel that the engine carries: a TUN device on one side, UDP sockets on the other, for each encapsulation.

import type { NetworkConfig } from '../config/network-config.ts'
import type { EncapsulationName } from '../dataplane/encapsulation.ts'
import type { Engine, EngineConfig, OpenPath } from '../dataplane/engine.ts'
import { encodePeers, type Peer } from '../dataplane/peers.ts'
import { createTrafficSlots } from '../dataplane/traffic.ts'
import { WeftError } from '../errors.ts'
import { addon } from '../host/addon.ts'
import { findLink, isNamedBy } from '../host/links.ts'
import type { BackendType, Settings, TunnelSettings } from '../kinds.ts'
import type { Lease, OwnLease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net, ipv4NetContains, ipv4NetSize, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'
import type { BackendParts, DataPath, PathPeer, PathSearching } from './backend.ts'
import { watchExternal } from './external-watch.ts'
import { inTurn } from './in-turn.ts'
import { createPeerFilter, type PeerFilterOptions } from './peer-filter.ts'
import type { NextHops } from './route-sync.ts'
import { createStrangerLog } from './strangers.ts'
import { adoptTun, createTunDevice, refuseForeignRoute } from './tun-device.ts'

/** Backends that have settings of a tunnel. */
type TunnelBackend = { [T in BackendType]: Settings<T> extends { tunnel: TunnelSettings } ? T : never }[BackendType]

export interface TunnelOptions<T extends TunnelBackend = TunnelBackend> extends BackendParts<T> {
  readonly startEngine: (config: EngineConfig) => Promise<Engine>
  readonly persistence: Persistence
}

/** What is to outlive this process, and what another one left. */
export interface Persistence {
  /** Whether the device is to stay when the process ends, however it ends. */
  readonly persist: boolean
  /** The device of the daemon before. */
  readonly tunName?: string | undefined
  /** Whether the engine opens several queues, as a device has them or not for all its life. */
  readonly isMultiQueue: boolean
  /** What that daemon forwarded through, if it was opened for the same: it forwards no more then. If not, what it held is free. */
  inherit(wanted: Pick<OpenPath, 'bindAddress' | 'port' | 'tunName'>): Promise<OpenPath | undefined>
}

/** What one tunnel has that others have not. */
export interface TunnelKind {
  readonly encapsulation: EncapsulationName
  /** What stands before an inner packet, with the outer IPv4 header, in bytes. */
  readonly overhead: number
  /** What the encapsulation knows of this host, and of a peer; nothing where they are left out. */
  readonly ownEnd?: Uint8Array
  readonly endOf?: (peer: Lease) => Uint8Array
  /** Of the TUN, or a pattern such as `flannel%d`. */
  readonly tunName: string
  /** UDP, of all hosts. */
  readonly port: number
  /** What containers may send, in bytes. */
  readonly mtu: number
  /** Which leases are peers' beside what all backends ask. */
  readonly filter?: Pick<PeerFilterOptions, 'type' | 'alsoUnusable'>
  /** Whether peers that are reached without a router are routed to past the tunnel. */
  readonly directRouting?: boolean
}

/**
 * Where ICMP errors into the TUN come from: the network's own address, which no host has; the next subnet's where ours is the
 * first. A packet from the TUN with an address of this host the kernel refuses, whoever made it, and must go on to do so.
 */
function networkAddressFor(network: Ipv4Net, subnet: Ipv4Net): Ipv4 {
  return network.address === subnet.address ? subnet.address + ipv4NetSize(subnet.prefixLength) : network.address
}

/** What can be wrong between the network and this host's address. Throws WeftError CONFIG without IPv4. */
export function checkNetwork(backend: string, config: NetworkConfig, address: Ipv4, log: Log): void {
  if (!config.enableIpv4) {
    throw new WeftError('CONFIG', `the ${backend} backend needs IPv4, and EnableIPv4 is false`, {
      remedy: 'set "EnableIPv4": true',
    })
  }
  if (!ipv4NetContains(config.network, address)) return
  const mayLease = address >= config.subnetMin && address < config.subnetMax + ipv4NetSize(config.subnetLength)
  // Works as long as every peer is on a network that this host is on, since that route is longer.
  log.warn(
    `the network ${formatIpv4Net(config.network)} contains this node's own address ${formatIpv4(address)}` +
      `${mayLease ? ', and may lease it to containers' : ''}: datagrams to peers behind a router go into the tunnel; ` +
      'choose a Network that overlaps no network of the hosts',
  )
}

export async function openTunnel(
  { config: { network }, settings: { tunnel: settings }, external, startEngine, persistence, run, log }: TunnelOptions,
  { encapsulation, overhead, ownEnd, endOf, tunName, port, mtu, ...kind }: TunnelKind,
  lease: OwnLease,
  leases: ReadonlyMap<string, Lease>,
): Promise<DataPath> {
  const { persist, isMultiQueue } = persistence
  // What is one of ours by its name is looked at when nobody runs any more.
  await refuseForeignRoute(run, network, (name) => isNamedBy(tunName, name))
  const filter = createPeerFilter({ ...kind.filter, lease, network, log })
  let counted = (_slot?: number): Float64Array => new Float64Array() // of the engine that is not there yet
  const slots = createTrafficSlots((slot) => counted(slot))
  const applied = (): ReadonlyMap<string, Lease> => filter.peers()
  let limits: ReadonlyMap<string, number> = new Map()
  const endTo = (peer: Lease): Peer => ({
    slot: slots.slotOf(peer.key),
    ...{ subnet: peer.subnet, endpoint: peer.attrs.publicIp, port, limit: limits.get(peer.key) ?? 0 },
    ...(endOf ? { encap: endOf(peer) } : {}),
  })
  const ends = (): Peer[] => [...applied().values()].map(endTo)
  /** Takes leases over, and says which ends became different; undefined where all may have. */
  const take = (all: ReadonlyMap<string, Lease>, ownKey: string, touched?: Iterable<string>): Peer[] | undefined => {
    const changed = filter.take(all, ownKey, touched)
    if (!changed) {
      slots.keep(applied().keys())
      return undefined
    }
    const came = [...changed.keys()].flatMap((key) => applied().get(key) ?? [])
    const gone = [...changed].flatMap(([key, before]) => (before && !applied().has(key) ? before : []))
    for (const { key } of gone) slots.remove(key)
    for (const { key } of came) slots.add(key)
    // In this order: the subnet of one that goes may be another's from now on.
    return [...gone.map(({ subnet }): Peer => ({ subnet, endpoint: 0, port: 0, isGone: true })), ...came.map(endTo)]
  }
  take(leases, lease.key)
  const bindAddress = formatIpv4(external.address)
  const inherited = await persistence.inherit({ tunName, bindAddress, port })
  // From here on, where there is something inherited, packets wait.
  let adopted: string | undefined
  if (!inherited) {
    const { subnet } = lease
    adopted = await adoptTun(run, { name: tunName, last: persistence.tunName, network, subnet, isMultiQueue })
    await refuseForeignRoute(run, network, (name) => name === adopted)
  }
  const engine = await startEngine({
    encapsulation,
    ...(ownEnd ? { ownEnd } : {}),
    tunName: adopted ?? tunName,
    inherited,
    persistent: persist,
    peers: () => encodePeers(ends()),
    bindAddress,
    port,
    mtu,
    tunAddress: lease.subnet.address,
    networkAddress: networkAddressFor(network, lease.subnet),
    settings,
    network,
    subnet: lease.subnet,
  })
  counted = (slot) => engine.traffic(slot)
  // Loaded by those alone that ask for it: packets wait for a start.
  const sync = kind.directRouting ? await import('./route-sync.ts') : undefined
  const routes = sync?.createRouteSync({ network, run, log })
  let direct: NextHops = new Map()
  const isOwnRoute = (destination: string): boolean => direct.has(destination)
  async function end(): Promise<void> {
    await engine.stop()
    // A device that persists does not go with the engine; it is gone where it was deleted, which ended the engine.
    if (persist && (await findLink(run, engine.tunName))) await run('ip', ['link', 'del', 'dev', engine.tunName])
  }
  async function leave(): Promise<OpenPath | undefined> {
    if (engine.lend) return engine.lend()
    await engine.stop()
    return undefined
  }
  const device = createTunDevice({ name: engine.tunName, network, subnet: lease.subnet, mtu, run, log, isOwnRoute })
  try {
    await device.configure()
  } catch (error) {
    // A device that was there before stays: the other daemon may have taken it back.
    await (inherited || adopted !== undefined ? engine.stop() : end())
    throw error
  }
  for (const note of engine.notes) log.warn(note)
  if (log.v(1)) for (const detail of engine.details) log.info(detail)
  log.info(
    `Forwarding between ${engine.tunName} and UDP ${formatIpv4(external.address)}:${port} with the ${engine.kind} engine` +
      (engine.offloads.length > 0 ? `: ${engine.offloads.join(', ')}` : ''),
  )
  const strangers = createStrangerLog({ ...settings, network, subnet: lease.subnet }, log)
  strangers.setPeers(ends)
  const watch = watchExternal(run, external)
  const isDirect = (subnet: Ipv4Net): boolean => direct.has(formatIpv4Net(subnet))
  const pathPeer = ({ key, subnet, attrs }: Lease): PathPeer => ({
    key,
    endpoint: formatIpv4(attrs.publicIp) + (isDirect(subnet) ? '' : `:${port}`),
    probe: subnet.address,
  })
  const known = ({ attrs }: Lease): number => {
    const bytes = addon.pathMtu(bindAddress, formatIpv4(attrs.publicIp)) - overhead
    return bytes > 0 && bytes < mtu ? bytes : mtu
  }
  const pathSearch: PathSearching = {
    overhead,
    knownMtu(key) {
      const peer = applied().get(key)
      return peer && !isDirect(peer.subnet) ? known(peer) : undefined
    },
    limit(bytes) {
      const before = limits
      limits = bytes
      const differ = new Set([...before.keys(), ...bytes.keys()])
      const changed = [...differ].filter((key) => before.get(key) !== bytes.get(key))
      engine.changePeers(encodePeers(changed.flatMap((key) => applied().get(key) ?? []).map(endTo)))
    },
  }
  return inTurn({
    mtu,
    tunName: engine.tunName,
    fault: Promise.race([engine.fault, watch.moved]),
    async apply(all, ownKey, touched) {
      const changed = take(all, ownKey, touched)
      if (changed) {
        engine.changePeers(encodePeers(changed))
        strangers.changePeers(changed)
      } else {
        engine.setPeers(encodePeers(ends()))
        strangers.setPeers(ends)
      }
      if (!sync || !routes || changed?.length === 0) return
      direct = await sync.directHops(run, [...applied().values()])
      await routes.apply(direct)
    },
    async resync() {
      if (await watch.hasMoved()) return []
      // A device that is gone the engine reports as a fault.
      const mended = await device.resync()
      return routes ? [...mended, ...(await routes.resync())] : mended
    },
    carrier: () => ({ device: engine.tunName, engine: engine.kind, features: engine.offloads }),
    probeSource: lease.subnet.address,
    peers: () => [...applied().values()].map(pathPeer),
    peer(key) {
      const peer = applied().get(key)
      return peer && pathPeer(peer)
    },
    async traffic() {
      // What is routed past the tunnel the engine does not see.
      const past = new Set([...applied().values()].filter(({ subnet }) => isDirect(subnet)).map(({ key }) => key))
      return new Map([...slots.read()].filter(([key]) => !past.has(key)))
    },
    pathMtu(peer) {
      const bytes = isDirect(peer.subnet) ? mtu : Math.min(known(peer), limits.get(peer.key) ?? mtu)
      return bytes < mtu ? bytes : undefined
    },
    ...(settings.probePathMtu ? { pathSearch } : {}),
    counters: () => ({ ...engine.counters(), peers_unusable: BigInt(filter.skipped()) }),
    drops: (after) => engine.drops(after),
    threads: () => engine.threads(),
    look: () => strangers.name(engine.takeStrangers()),
    ...(persist ? { leave } : {}),
    ...(engine.takeBack ? { takeBack: async () => engine.takeBack?.() } : {}),
    close: end,
  })
}
