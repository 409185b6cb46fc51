// udp.ts - the flagship: a TUN device on one side, a UDP socket on the other, raw IP packets in the datagrams.
//
// Device, address, MTU, route and wire format are flanneld's (pkg/backend/udp), so that both can be in one network.

import { WeftError } from '../errors.ts'
import type { NetworkConfig } from '../config/network-config.ts'
import type { Engine, EngineConfig } from '../dataplane/engine.ts'
import { encodePeers, type Peer } from '../dataplane/peers.ts'
import type { Run } from '../host/command.ts'
import { currentExternal, type ExternalInterface } from '../host/external-interface.ts'
import { findLink, routesTo, routesWithin, type Route } from '../host/links.ts'
import { setSysctl } from '../host/sysctl.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../lease/lease.ts'
import type { Log } from '../log.ts'
import { formatIpv4, formatIpv4Net, ipv4NetContains, ipv4NetSize, parseIpv4Net, type Ipv4 } from '../net/ipv4.ts'
import type { Backend, Network } from './backend.ts'

const DEFAULT_PORT = 8285
/** Outer IPv4 header and UDP header. */
const ENCAP_BYTES = 28
const TUN_NAME = 'flannel%d'
/** Packets that the TUN queues. The kernel's 500 loses bursts: 64-byte packets without loss went from 155 to 290 kpps. */
const QUEUE_LENGTH = 4000

/** So many routes are named in one line. */
const HIDING_NAMED = 5

export interface UdpOptions {
  readonly config: NetworkConfig
  readonly external: ExternalInterface
  readonly startEngine: (config: EngineConfig) => Promise<Engine>
  readonly workers: number
  readonly without: readonly string[]
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

/** Why a lease cannot be a peer of ours, or undefined when it can. Its backend does not matter, as for flanneld. */
export function unusableReason({ attrs: { publicIp } }: Lease, own: OwnLease): string | undefined {
  const top = publicIp >>> 24
  if (top === 0 || top === 127 || top >= 224) return `${formatIpv4(publicIp)} is no address of a host`
  if (publicIp === own.attrs.publicIp) return `${formatIpv4(publicIp)} is this node's own address`
  return undefined
}

/** What can be wrong between the network and this host's address. Throws WeftError CONFIG when it cannot work. */
function checkNetwork(config: NetworkConfig, address: Ipv4, log: Log): void {
  if (!config.enableIpv4) {
    throw new WeftError('CONFIG', 'the udp backend needs IPv4, and EnableIPv4 is false', {
      remedy: 'set "EnableIPv4": true',
    })
  }
  if (!ipv4NetContains(config.network, address)) return
  const problem = `the network ${formatIpv4Net(config.network)} contains this node's own address ${formatIpv4(address)}`
  const remedy = 'choose a Network that overlaps no network of the hosts'
  if (address >= config.subnetMin && address < config.subnetMax + ipv4NetSize(config.subnetLength)) {
    throw new WeftError('CONFIG', `${problem}, and may lease it to containers`, { remedy })
  }
  // Works as long as every peer is on a network that this host is on, since that route is longer.
  log.warn(`${problem}: datagrams to peers behind a router go into the tunnel; ${remedy}`)
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
    async open(lease: OwnLease): Promise<Network> {
      await refuseForeignRoute(run, config)
      const mtu = external.mtu - ENCAP_BYTES
      const engine = await options.startEngine({
        tunName: TUN_NAME,
        bindAddress: formatIpv4(external.address),
        port,
        mtu,
        tunAddress: lease.subnet.address,
        workers: options.workers,
        without: options.without,
      })
      try {
        await configureDevice(run, engine, config, lease, mtu)
      } catch (error) {
        await engine.stop()
        throw error
      }
      for (const note of engine.notes) log.warn(note)
      log.info(
        `Forwarding between ${engine.tunName} and UDP ${formatIpv4(external.address)}:${port} with the ${engine.kind} engine` +
          (engine.offloads.length > 0 ? `: ${engine.offloads.join(', ')}` : ''),
      )
      log.info('Watching for new subnet leases')
      return openNetwork({ ...options, external }, engine, lease, mtu, port)
    },
  }
}

const ownerOf = ({ device }: Route): string => (device === '' ? 'nowhere (a blackhole or the like)' : device)

/** Another route to the network with the same metric as ours would take its place, silently (netlink EEXIST). */
async function refuseForeignRoute(run: Run, config: NetworkConfig): Promise<void> {
  const foreign = (await routesTo(run, config.network)).find(({ metric }) => metric === 0)
  if (!foreign) return
  const network = formatIpv4Net(config.network)
  throw new WeftError('DEVICE', `${network} is already routed to ${ownerOf(foreign)}`, {
    remedy: `stop the daemon that did it, or remove the route with \`ip route del ${network}\``,
  })
}

/** Everything about the device that is not its existence; said as a whole, so that saying it again changes nothing. */
async function configureDevice(
  run: Run,
  engine: Engine,
  config: NetworkConfig,
  lease: OwnLease,
  mtu: number,
): Promise<void> {
  const device = engine.tunName
  const address = `${formatIpv4(lease.subnet.address)}/32`
  // gso_max_size stays what it is, though a superpacket of 64 KiB is more than one message: the kernel cuts in software
  // what a container sends in larger ones than the device takes (gso_features_check in net/core/dev.c).
  await run('ip', ['link', 'set', 'dev', device, 'mtu', String(mtu), 'txqueuelen', String(QUEUE_LENGTH), 'up'])
  await run('ip', ['address', 'replace', address, 'dev', device])
  // ICMP errors come out of the TUN from the TUN's own address, which the kernel takes for a forgery unless told.
  await setSysctl(`net/ipv4/conf/${device}/accept_local`, '1')
  await run('ip', ['route', 'replace', formatIpv4Net(config.network), 'dev', device])
}

function describeChange(before: ExternalInterface, now: ExternalInterface): string | undefined {
  if (now.address !== before.address)
    return `the address of ${now.name} changed from ${formatIpv4(before.address)} to ${formatIpv4(now.address)}`
  if (now.mtu !== before.mtu) return `the MTU of ${now.name} changed from ${before.mtu} to ${now.mtu}`
  return undefined
}

function openNetwork(options: UdpOptions, engine: Engine, lease: OwnLease, mtu: number, port: number): Network {
  const { config, external, log, run } = options
  let skipped = new Set<string>()
  let hidden = new Set<string>()
  let moved!: (reason: Error) => void
  const externalMoved = new Promise<Error>((resolve) => (moved = resolve))
  /**
   * Routes to a part of the network come before ours to the whole. Those to our own containers must; any other takes
   * peers' packets out of the tunnel. Somebody may want that, so it is named and left alone.
   */
  function nameHiding(routes: readonly Route[]): void {
    const hiding = new Set<string>()
    for (const route of routes) {
      const net = parseIpv4Net(route.destination)
      const isOwn = net && net.prefixLength >= lease.subnet.prefixLength && ipv4NetContains(lease.subnet, net.address)
      if (net && !isOwn && net.prefixLength > config.network.prefixLength && route.device !== engine.tunName)
        hiding.add(`${route.destination} to ${ownerOf(route)}`)
    }
    const name = (found: string[]): string =>
      found.slice(0, HIDING_NAMED).join(', ') + (found.length > HIDING_NAMED ? `, ... (${found.length})` : '')
    const came = [...hiding].filter((route) => !hidden.has(route))
    const went = [...hidden].filter((route) => !hiding.has(route))
    if (came.length > 0)
      log.warn(`Packets bypass the tunnel by routes that others made: ${name(came)}; remove them unless that is wanted`)
    if (went.length > 0) log.info(`Routes that bypassed the tunnel are gone: ${name(went)}`)
    hidden = hiding
  }

  return {
    mtu,
    fault: Promise.race([engine.fault, externalMoved]),
    async apply(leases, ownKey) {
      const peers: Peer[] = []
      const unusable = new Set<string>()
      for (const peer of leases.values()) {
        if (peer.key === ownKey) continue
        const reason = unusableReason(peer, lease)
        if (reason === undefined) {
          peers.push({ subnet: peer.subnet, endpoint: peer.attrs.publicIp, port })
          continue
        }
        unusable.add(peer.key)
        if (!skipped.has(peer.key)) log.warn(`Lease ${peer.key} is not used: ${reason}`)
      }
      skipped = unusable
      engine.setPeers(encodePeers(peers))
    },
    async resync() {
      const device = engine.tunName
      const change = describeChange(external, await currentExternal(run, external))
      if (change !== undefined) {
        moved(new Error(change)) // sockets, segment sizes and the lease are made for what was
        return []
      }
      const link = await findLink(run, device)
      if (!link) return [] // the engine reports that as a fault
      const network = formatIpv4Net(config.network)
      const within = await routesWithin(run, config.network)
      nameHiding(within)
      const routes = within.filter(({ destination, metric }) => destination === network && metric === 0)
      const wrong: string[] = []
      if (!link.up) wrong.push(`${device} was down`)
      if (link.mtu !== mtu) wrong.push(`${device} had MTU ${link.mtu}`)
      if (!link.addresses.some(({ address }) => address === lease.subnet.address))
        wrong.push(`${device} had lost its address`)
      const other = routes.find((route) => route.device !== device)
      if (other) wrong.push(`${network} was routed to ${ownerOf(other)}`)
      else if (routes.length === 0) wrong.push(`the route to ${network} was gone`)
      if (wrong.length > 0) await configureDevice(run, engine, config, lease, mtu)
      return wrong
    },
    counters: () => ({ ...engine.counters(), peers_unusable: BigInt(skipped.size) }),
    threads: () => engine.threads(),
    close: () => engine.stop(),
  }
}
