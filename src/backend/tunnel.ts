// tunnel.ts - a tunnel that the engine carries: a TUN device on one side, UDP sockets on the other, for each encapsulation.

import type { NetworkConfig } from '../config/network-config.ts'
import type { EncapsulationName } from '../dataplane/encapsulation.ts'
import type { Engine, EngineConfig } from '../dataplane/engine.ts'
import type { VerifySource } from '../dataplane/filter.ts'
import { encodePeers } from '../dataplane/peers.ts'
import { createTrafficSlots } from '../dataplane/traffic.ts'
import { WeftError } from '../errors.ts'
import type { Lease, OwnLease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net, ipv4NetContains, ipv4NetSize, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'
import type { BackendParts, DataPath } from './backend.ts'
import { watchExternal } from './external-watch.ts'
import { inTurn } from './in-turn.ts'
import { createPeerFilter, type PeerFilterOptions } from './peer-filter.ts'
import { createRouteSync, directHops, type NextHops } from './route-sync.ts'
import { createStrangerLog } from './strangers.ts'
import { createTunDevice, refuseForeignRoute } from './tun-device.ts'

export interface TunnelOptions extends BackendParts {
  readonly startEngine: (config: EngineConfig) => Promise<Engine>
}

/** What one tunnel has that others have not. */
export interface TunnelKind {
  readonly encapsulation: EncapsulationName
  /** What the encapsulation knows of this host, and of a peer; nothing where they are left out. */
  readonly ownEnd?: Uint8Array
  readonly endOf?: (peer: Lease) => Uint8Array
  /** Of the TUN, or a pattern such as `flannel%d`. */
  readonly tunName: string
  /** UDP, of all hosts. */
  readonly port: number
  /** What containers may send, in bytes. */
  readonly mtu: number
  /** Which packets from peers are let in. */
  readonly verifySource: VerifySource
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
  { config: { network }, external, startEngine, run, log }: TunnelOptions,
  { encapsulation, ownEnd, endOf, tunName, port, mtu, verifySource, ...kind }: TunnelKind,
  lease: OwnLease,
): Promise<DataPath> {
  await refuseForeignRoute(run, network)
  const verify = { verifySource, network, subnet: lease.subnet }
  const engine = await startEngine({
    encapsulation,
    ...(ownEnd ? { ownEnd } : {}),
    tunName,
    bindAddress: formatIpv4(external.address),
    port,
    mtu,
    tunAddress: lease.subnet.address,
    networkAddress: networkAddressFor(network, lease.subnet),
    filter: verify,
  })
  const routes = kind.directRouting ? createRouteSync({ network, run, log }) : undefined
  let direct: NextHops = new Map()
  const isOwnRoute = (destination: string): boolean => direct.has(destination)
  const device = createTunDevice({ name: engine.tunName, network, subnet: lease.subnet, mtu, run, log, isOwnRoute })
  try {
    await device.configure()
  } catch (error) {
    await engine.stop()
    throw error
  }
  for (const note of engine.notes) log.warn(note)
  if (log.v(1)) for (const detail of engine.details) log.info(detail)
  log.info(
    `Forwarding between ${engine.tunName} and UDP ${formatIpv4(external.address)}:${port} with the ${engine.kind} engine` +
      (engine.offloads.length > 0 ? `: ${engine.offloads.join(', ')}` : ''),
  )
  const filter = createPeerFilter({ ...kind.filter, lease, network, log })
  const strangers = createStrangerLog(verify, log)
  const watch = watchExternal(run, external)
  const slots = createTrafficSlots(() => engine.traffic())
  let applied: readonly Lease[] = []
  const isDirect = (subnet: Ipv4Net): boolean => direct.has(formatIpv4Net(subnet))
  return inTurn({
    mtu,
    fault: Promise.race([engine.fault, watch.moved]),
    async apply(leases, ownKey) {
      const peers = filter.usable(leases, ownKey)
      slots.keep(peers.map(({ key }) => key))
      const ends = peers.map((peer) => ({
        slot: slots.slotOf(peer.key),
        ...{ subnet: peer.subnet, endpoint: peer.attrs.publicIp, port },
        ...(endOf ? { encap: endOf(peer) } : {}),
      }))
      engine.setPeers(encodePeers(ends))
      applied = peers
      strangers.setPeers(ends)
      if (!routes) return
      direct = await directHops(run, peers)
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
    peers: () =>
      applied.map(({ key, subnet, attrs }) => ({
        key,
        endpoint: formatIpv4(attrs.publicIp) + (isDirect(subnet) ? '' : `:${port}`),
        probe: subnet.address,
      })),
    async traffic() {
      // What is routed past the tunnel the engine does not see.
      const past = new Set(applied.filter(({ subnet }) => isDirect(subnet)).map(({ key }) => key))
      return new Map([...slots.read()].filter(([key]) => !past.has(key)))
    },
    counters: () => ({ ...engine.counters(), peers_unusable: BigInt(filter.skipped()) }),
    threads: () => engine.threads(),
    look: () => strangers.name(engine.takeStrangers()),
    close: () => engine.stop(),
  })
}
