// udp.ts - the flagship: a TUN device on one side, a UDP socket on the other, raw IP packets in the datagrams.
//
// Port and wire format are flanneld's (pkg/backend/udp), so that both can be in one network.

import { WeftError } from '../errors.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { Engine, EngineConfig } from '../dataplane/engine.ts'
import { encodePeers } from '../dataplane/peers.ts'
import type { Run } from '../host/command.ts'
import { currentExternal, type ExternalInterface } from '../host/external-interface.ts'
import type { LeaseAttrs, OwnLease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net, ipv4NetContains, ipv4NetSize, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'
import type { Backend, DataPath } from './backend.ts'
import { watchExternal } from './external-watch.ts'
import { createPeerFilter } from './peer-filter.ts'
import { createTunDevice, refuseForeignRoute, type TunDevice } from './tun-device.ts'

const DEFAULT_PORT = 8285
/** Outer IPv4 header and UDP header. */
const ENCAP_BYTES = 28
const TUN_NAME = 'flannel%d'

export interface UdpOptions {
  readonly config: NetworkConfig
  readonly external: ExternalInterface
  readonly startEngine: (config: EngineConfig) => Promise<Engine>
  readonly run: Run
  readonly log: Log
}

/** The UDP port from the `Backend` object; throws WeftError CONFIG when it is none. */
export function udpPort(backend: Readonly<Record<string, unknown>>): number {
  const entry = Object.entries(backend).find(([key]) => key.toLowerCase() === 'port')
  const port = entry?.[1] ?? DEFAULT_PORT
  if (typeof port !== 'number' || !Number.isInteger(port) || port < 0 || port > 65535) {
    throw new WeftError('CONFIG', `Backend.Port is ${JSON.stringify(port)}`, {
      remedy: 'give it a number from 1 to 65535',
    })
  }
  return port === 0 ? DEFAULT_PORT : port
}

/**
 * Where ICMP errors into the TUN come from: the network's own address, which no host has; the next subnet's where ours is the
 * first. A packet from the TUN with an address of this host the kernel refuses, whoever made it, and must go on to do so.
 */
function networkAddressFor(network: Ipv4Net, subnet: Ipv4Net): Ipv4 {
  return network.address === subnet.address ? subnet.address + ipv4NetSize(subnet.prefixLength) : network.address
}

/** What can be wrong between the network and this host's address. Throws WeftError CONFIG without IPv4. */
function checkNetwork(config: NetworkConfig, address: Ipv4, log: Log): void {
  if (!config.enableIpv4) {
    throw new WeftError('CONFIG', 'the udp backend needs IPv4, and EnableIPv4 is false', {
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

export function createUdpBackend(options: UdpOptions): Backend {
  const { config, log, run } = options
  let { external } = options
  const port = udpPort(config.backend)
  return {
    name: 'udp',
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      checkNetwork(config, external.address, log)
      // No backend type: flanneld's udp publishes none, and the bytes must be the same.
      return { publicIp: external.publicIp, backendType: '' }
    },
    async open(lease: OwnLease): Promise<DataPath> {
      await refuseForeignRoute(run, config.network)
      const mtu = external.mtu - ENCAP_BYTES
      const engine = await options.startEngine({
        encapsulation: 'udp',
        tunName: TUN_NAME,
        bindAddress: formatIpv4(external.address),
        port,
        mtu,
        tunAddress: lease.subnet.address,
        networkAddress: networkAddressFor(config.network, lease.subnet),
      })
      const { network } = config
      const device = createTunDevice({ name: engine.tunName, network, subnet: lease.subnet, mtu, run, log })
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
      return openDataPath({ ...options, external }, engine, device, lease, mtu, port)
    },
  }
}

function openDataPath(
  { external, log, run }: UdpOptions,
  engine: Engine,
  device: TunDevice,
  lease: OwnLease,
  mtu: number,
  port: number,
): DataPath {
  const filter = createPeerFilter({ lease, log })
  const watch = watchExternal(run, external)
  return {
    mtu,
    fault: Promise.race([engine.fault, watch.moved]),
    async apply(leases, ownKey) {
      const peers = filter.usable(leases, ownKey)
      engine.setPeers(encodePeers(peers.map(({ subnet, attrs }) => ({ subnet, endpoint: attrs.publicIp, port }))))
    },
    // A device that is gone the engine reports as a fault.
    resync: async () => ((await watch.hasMoved()) ? [] : device.resync()),
    counters: () => ({ ...engine.counters(), peers_unusable: BigInt(filter.skipped()) }),
    threads: () => engine.threads(),
    close: () => engine.stop(),
  }
}
