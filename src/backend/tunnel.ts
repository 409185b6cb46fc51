// tunnel.ts - a tunnel that the engine carries: a TUN device on one side, UDP sockets on the other, for each encapsulation.

import { ipv4For, type NetworkConfig } from '../config/network-config.ts'
import type { EncapsulationName } from '../dataplane/encapsulation.ts'
import type { Engine, EngineConfig, OpenPath } from '../dataplane/engine.ts'
import { encodePeers, type Peer } from '../dataplane/peers.ts'
import { createTrafficSlots } from '../dataplane/traffic.ts'
import { addon } from '../host/addon.ts'
import { findLink, isNamedBy } from '../host/links.ts'
import type { BackendType, Settings, TunnelSettings } from '../kinds.ts'
import type { Ipv4Lease, Lease, OwnLease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net, ipv4NetContains, ipv4NetSize, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'
import type { BackendParts, DataPath, PathSearching } from './backend.ts'
import { watchExternal } from './external-watch.ts'
import { inTurn } from './in-turn.ts'
import { createPeerFilter, type PeerFilterOptions } from './peer-filter.ts'
import { createStrangerLog } from './strangers.ts'
import { adoptTun, createTunDevice, refuseForeignRoute } from './tun-device.ts'
import { createWays, type PeerChanges, type Way } from './ways.ts'

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
  const { network, subnetLength, subnetMin, subnetMax } = ipv4For(`the ${backend} backend`, config)
  if (!ipv4NetContains(network, address)) return
  const mayLease = address >= subnetMin && address < subnetMax + ipv4NetSize(subnetLength)
  // Works as long as every peer is on a network that this host is on, since that route is longer.
  log.warn(
    `the network ${formatIpv4Net(network)} contains this node's own address ${formatIpv4(address)}` +
      `${mayLease ? ', and may lease it to containers' : ''}: datagrams to peers behind a router go into the tunnel; ` +
      'choose a Network that overlaps no network of the hosts',
  )
}

export async function openTunnel(
  { config, settings: { tunnel: settings }, external, startEngine, persistence, run, log }: TunnelOptions,
  { encapsulation, overhead, ownEnd, endOf, tunName, port, mtu, ...kind }: TunnelKind,
  lease: OwnLease,
  leases: ReadonlyMap<string, Lease>,
): Promise<DataPath> {
  const { persist, isMultiQueue } = persistence
  const { network } = ipv4For('a tunnel', config)
  const subnet = ipv4For('a tunnel', lease.subnet)
  // What is one of ours by its name is looked at when nobody runs any more.
  await refuseForeignRoute(run, network, (name) => isNamedBy(tunName, name))
  const filter = createPeerFilter({ ...kind.filter, lease, network, log })
  let counted = (_slot?: number): Float64Array => new Float64Array() // of the engine that is not there yet
  const slots = createTrafficSlots((slot) => counted(slot))
  const applied = (): ReadonlyMap<string, Ipv4Lease> => filter.peers()
  let limits: ReadonlyMap<string, number> = new Map()
  const endTo = (peer: Ipv4Lease): Peer => ({
    slot: slots.slotOf(peer.key),
    ...{ subnet: peer.subnet.ipv4, endpoint: peer.attrs.publicIp.ipv4, port, limit: limits.get(peer.key) ?? 0 },
    ...(endOf ? { encap: endOf(peer) } : {}),
  })
  const ends = (): Peer[] => [...applied().values()].map(endTo)
  /** The ends that became different. */
  const changedEnds = (changed: PeerChanges): Peer[] => {
    const came = [...changed.keys()].flatMap((key) => applied().get(key) ?? [])
    const gone = [...changed].flatMap(([key, before]) => (before && !applied().has(key) ? before : []))
    for (const { key } of gone) slots.remove(key)
    for (const { key } of came) slots.add(key)
    // In this order: the subnet of one that goes may be another's from now on.
    return [
      ...gone.map((peer): Peer => ({ subnet: peer.subnet.ipv4, endpoint: 0, port: 0, isGone: true })),
      ...came.map(endTo),
    ]
  }
  filter.take(leases, lease.key)
  slots.keep(applied().keys())
  // Loaded by those alone that ask for it: packets wait for a start.
  const direct = kind.directRouting
    ? (await import('./direct-way.ts')).createDirectWay({ network, run, log })
    : undefined
  const isOwnRoute = (destination: string): boolean => direct?.hops().has(destination) ?? false
  const bindAddress = formatIpv4(external.address)
  const inherited = await persistence.inherit({ tunName, bindAddress, port })
  // From here on, where there is something inherited, packets wait.
  let adopted: string | undefined
  if (!inherited) {
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
    tunAddress: subnet.address,
    networkAddress: networkAddressFor(network, subnet),
    settings,
    network,
    subnet,
  })
  counted = (slot) => engine.traffic(slot)
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
  const device = createTunDevice({ name: engine.tunName, network, subnet, mtu, run, log, isOwnRoute })
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
  const strangers = createStrangerLog({ ...settings, network, subnet }, log)
  strangers.setPeers(ends)
  const watch = watchExternal(run, external)
  const known = ({ attrs }: Ipv4Lease): number => {
    const bytes = addon.pathMtu(bindAddress, formatIpv4(attrs.publicIp.ipv4)) - overhead
    return bytes > 0 && bytes < mtu ? bytes : mtu
  }
  /** By the engine, which has every peer: what one sends through the tunnel is let in, however it is sent to. */
  const through: Way = {
    name: 'tunnel',
    takes: () => true,
    async apply(peers, changed) {
      if (changed) {
        const differ = changedEnds(changed)
        engine.changePeers(encodePeers(differ))
        strangers.changePeers(differ)
      } else {
        slots.keep(peers.keys())
        engine.setPeers(encodePeers(ends()))
        strangers.setPeers(ends)
      }
    },
    endpointOf: ({ attrs }) => `${formatIpv4(attrs.publicIp.ipv4)}:${port}`,
    traffic: () => slots.read(),
    pathMtu(peer) {
      const bytes = Math.min(known(peer), limits.get(peer.key) ?? mtu)
      return bytes < mtu ? bytes : undefined
    },
    // A device that is gone the engine reports as a fault.
    resync: () => device.resync(),
  }
  const ways = createWays(direct ? [direct] : [], through, applied)
  const pathSearch: PathSearching = {
    overhead,
    knownMtu(key) {
      const peer = applied().get(key)
      return peer && ways.of(peer) === through ? known(peer) : undefined
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
    apply: (all, ownKey, touched) => ways.apply(filter.take(all, ownKey, touched)),
    resync: async () => ((await watch.hasMoved()) ? [] : ways.resync()),
    carrier: () => ({ device: engine.tunName, engine: engine.kind, features: engine.offloads }),
    probeSource: subnet.address,
    peers: () => [...applied().values()].map((peer) => ways.pathPeer(peer)),
    peer(key) {
      const peer = applied().get(key)
      return peer && ways.pathPeer(peer)
    },
    traffic: async () => ways.traffic(),
    pathMtu({ key }) {
      const peer = applied().get(key)
      return peer && ways.pathMtu(peer)
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
