// tunnel.ts - a tunnel that the engine carries: a TUN device on one side, UDP sockets on the other, for each encapsulation.

import { ipv4For, type NetworkConfig } from '../../control/config/network-config.ts'
import type { EncapsulationName } from '../engine/encapsulation.ts'
import type { Engine, EngineConfig, OpenPath } from '../engine/engine.ts'
import { encodePeers, type Peer } from '../engine/peers.ts'
import { createTrafficSlots } from '../engine/traffic.ts'
import { addon } from '../../host/addon.ts'
import { findLink, isNamedBy } from '../../host/links.ts'
import type { BackendType, Settings, TunnelSettings } from '../kinds.ts'
import type { Ipv4Lease, Lease, OwnLease } from '../../control/lease/lease.ts'
import type { Log } from '../../base/log.ts'
import { familiesOf, formatAddress, formatNet, netAround, netContains, type Addresses } from '../../net/address.ts'
import { formatIpv4, ipv4NetSize, type Ipv4, type Ipv4Net } from '../../net/ipv4.ts'
import type { BackendParts, DataPath, PathSearching } from '../backend.ts'
import { watchExternal } from '../device/external-watch.ts'
import { inTurn } from '../in-turn.ts'
import { createPeerFilter, type PeerFilterOptions } from './peer-filter.ts'
import { createStrangerLog } from './strangers.ts'
import { adoptTun, createTunDevice, refuseForeignRoute } from '../device/tun-device.ts'
import { createWays, type PeerChanges, type Way } from './ways.ts'

/** Backends that have settings of a tunnel. */
type TunnelBackend = { [T in BackendType]: Settings<T> extends { tunnel: TunnelSettings } ? T : never }[BackendType]

export interface TunnelOptions<T extends TunnelBackend = TunnelBackend> extends BackendParts<T> {
  readonly startEngine: (config: EngineConfig) => Promise<Engine>
  readonly persistence: Persistence
}

/** The data path's life beyond this process: what is to outlive it, and what another one left. */
export interface Persistence {
  /** True when the device is to stay when the process ends, however it ends. */
  readonly persist: boolean
  /** The device of the daemon before. */
  readonly tunName?: string | undefined
  /** True when the engine opens several queues, which a device has or has not for all its life. */
  readonly isMultiQueue: boolean
  /**
   * Takes the path of the daemon before, if it was opened for the same: that daemon forwards no more then. If it was
   * not, what it held is free.
   */
  inherit(wanted: Pick<OpenPath, 'bindAddress' | 'port' | 'tunName'>): Promise<OpenPath | undefined>
}

/** The properties in which one tunnel differs from others. */
export interface TunnelKind {
  readonly encapsulation: EncapsulationName
  /** The bytes that stand around an inner packet, with the outer IPv4 header. */
  readonly overhead: number
  /** The encapsulation's facts about this host, and about a peer; none when left out. */
  readonly ownEnd?: Uint8Array
  readonly endOf?: (peer: Lease) => Uint8Array
  /** The name of the TUN, or a pattern such as `flannel%d`. */
  readonly tunName: string
  /** UDP, of all hosts. */
  readonly port: number
  /** The longest packet that containers may send, in bytes. */
  readonly mtu: number
  /** The filter of peers beside what all backends ask. */
  readonly filter?: Pick<PeerFilterOptions, 'type' | 'alsoUnusable'>
  /** True when peers that are reached without a router are routed to outside the tunnel. */
  readonly directRouting?: boolean
}

/**
 * The source of ICMP errors into the TUN: the network's own address, which no host has; the next subnet's where ours is
 * the first. The kernel refuses a packet from the TUN with an address of this host, whoever made it, and must go on to
 * do so.
 */
function networkAddressFor(network: Ipv4Net, subnet: Ipv4Net): Ipv4 {
  return network.address === subnet.address ? subnet.address + ipv4NetSize(subnet.prefixLength) : network.address
}

/** Warns of a network that has this host's own address. */
export function checkNetwork(config: NetworkConfig, own: Addresses, log: Log): void {
  for (const family of familiesOf(config)) {
    const [range, address] = [config[family], own[family]]
    if (!range || address === undefined || !netContains(range.network, address)) continue
    const last = netAround(range.subnetMax, range.subnetLength)
    const mayLease = address >= range.subnetMin && (address < range.subnetMax || netContains(last, address))
    // Works as long as every peer is on a network that this host is on, since that route is longer.
    log.warn(
      `the network ${formatNet(range.network)} contains this node's own address ${formatAddress(address)}` +
        `${mayLease ? ', and may lease it to containers' : ''}: datagrams to peers behind a router go into the tunnel; ` +
        'choose a Network that overlaps no network of the hosts',
    )
  }
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
  // A device that is ours by its name is looked at when nobody runs any more.
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
    // Peers that go come first: the subnet of one that goes may be another's from now on.
    return [
      ...gone.map((peer): Peer => ({ subnet: peer.subnet.ipv4, endpoint: 0, port: 0, isGone: true })),
      ...came.map(endTo),
    ]
  }
  filter.take(leases, lease.key)
  slots.keep(applied().keys())
  /** The ways before that of the engine, in order. Loaded by those alone that ask for them: packets wait for a start. */
  const beside: Way[] = []
  if (kind.directRouting) beside.push((await import('./direct-way.ts')).createDirectWay({ network, run, log }))
  const isOwnRoute = (destination: string): boolean => beside.some((way) => way.hasRoute?.(destination))
  const bindAddress = formatIpv4(ipv4For('a tunnel', external.address))
  const inherited = await persistence.inherit({ tunName, bindAddress, port })
  // From here on packets wait, if there is something inherited.
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
    tunAddress: { ipv4: subnet.address },
    networkAddress: { ipv4: networkAddressFor(network, subnet) },
    settings,
    network: { ipv4: network },
    subnet: { ipv4: subnet },
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
    `Forwarding between ${engine.tunName} and UDP ${bindAddress}:${port} with the ${engine.kind} engine` +
      (engine.offloads.length > 0 ? `: ${engine.offloads.join(', ')}` : ''),
  )
  const strangers = createStrangerLog({ ...settings, network: { ipv4: network }, subnet: { ipv4: subnet } }, log)
  strangers.setPeers(ends)
  const watch = watchExternal(run, external, ['ipv4'])
  const known = ({ attrs }: Ipv4Lease): number => {
    const bytes = addon.pathMtu(bindAddress, formatIpv4(attrs.publicIp.ipv4)) - overhead
    return bytes > 0 && bytes < mtu ? bytes : mtu
  }
  /** The engine has every peer: a packet that one sends through the tunnel is let in, by whichever way packets go to it. */
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
  const ways = createWays(beside, through, applied)
  const pathSearch: PathSearching = {
    overhead,
    knownMtu(key) {
      const peer = applied().get(key)
      return peer && ways.of(peer) === through ? known(peer) : undefined
    },
    ...(settings.probePathMtu ? { limit } : {}),
  }
  function limit(bytes: ReadonlyMap<string, number>): void {
    const before = limits
    limits = bytes
    const differ = new Set([...before.keys(), ...bytes.keys()])
    const changed = [...differ].filter((key) => before.get(key) !== bytes.get(key))
    engine.changePeers(encodePeers(changed.flatMap((key) => applied().get(key) ?? []).map(endTo)))
  }
  return inTurn({
    mtu,
    tunName: engine.tunName,
    fault: Promise.race([engine.fault, watch.moved]),
    apply: (all, ownKey, touched) => ways.apply(filter.take(all, ownKey, touched)),
    resync: async () => ((await watch.hasMoved()) ? [] : ways.resync()),
    gone: watch.gone,
    carrier: () => ({ device: engine.tunName, engine: engine.kind, features: engine.offloads }),
    probeSource: { ipv4: subnet.address },
    families: ['ipv4'],
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
    pathSearch,
    counters: () => ({ ...engine.counters(), peers_unusable: BigInt(filter.skipped()) }),
    drops: (after) => engine.drops(after),
    threads: () => engine.threads(),
    look: () => strangers.name(engine.takeStrangers()),
    ...(persist ? { leave } : {}),
    ...(engine.takeBack ? { takeBack: async () => engine.takeBack?.() } : {}),
    close: end,
  })
}
