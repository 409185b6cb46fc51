// paths.ts - makes the paths between two hosts that the benchmark compares, such as weft's udp backend and the kernel's
// vxlan.
//
// The link of a path is a veth in one of three states:
// - plain: the veth passes whole superpackets, even inside vxlan. No real network does that.
// - wire: the veth passes only frames of at most the MTU, like a network card without segmentation. The kernel segments
//   superpackets in software, for TCP, vxlan and UDP_SEGMENT alike, and GRO merges frames at the receiver. Checksums
//   stay offloaded, because every card can do that and UDP_SEGMENT needs it.
// - shaped: a wire with 1 Gbit/s and a queue of 20 ms (tc-tbf), so that packets queue in the link and not in the data
//   path that is measured.
//
// The ends of a path are the hosts, or a container on each host. A container's packets go through its veth, a bridge
// and the path. bench/README.md explains `--peer` and `--old`.

import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve as absolute } from 'node:path'
import { createInterface } from 'node:readline'
import {
  createLab,
  subnetOfEnv,
  WIREGUARD_APART,
  type Daemon,
  type Host,
  type Lab,
  type Place,
  type Subnet,
} from '../lab/lab.ts'
import { iperfServer, type IperfResult, reach } from '../lab/measure.ts'
import { WeftError } from '../src/base/errors.ts'
import { addon } from '../src/host/addon.ts'
import type { Family } from '../src/net/address.ts'
import { nativeProgram } from './native.ts'

export interface Path {
  readonly name: string
  readonly from: Place
  readonly to: Place
  readonly address: string
  /** The number of bytes of TCP payload in a full packet; undefined if containers cannot use the path. */
  readonly payloadBytes?: number | undefined
  readonly iperf: (seconds: number, args: readonly string[]) => Promise<IperfResult>
  /**
   * Runs bench/native/traffic.cc on the first host as the client of the traffic.cc server on the second host. Returns
   * the numbers that the client prints, by name.
   */
  traffic(...args: readonly (string | number)[]): Promise<Readonly<Record<string, number>>>
  close(): Promise<void>
}

/** The address at which the far end of a path can be reached, and for each host the subnet of its containers. */
interface Reach {
  readonly address: string
  /** The IP family of the packets that containers send; IPv4 by default. */
  readonly inner?: Family
  readonly subnets?: readonly [Subnet, Subnet]
}

type Setup = (from: Host, to: Host, lab: Lab) => Promise<Reach>

/**
 * Prepares two hosts that run no weftd: sets routes between the hosts' container subnets with the addresses in `via` as
 * next hops, and returns the two subnets.
 */
async function subnetsBy(hosts: readonly [Host, Host], via: readonly [string, string], mtu: number): Promise<Reach> {
  const [from, to] = hosts
  await from.output(['ip', 'route', 'add', '10.6.2.0/24', 'via', via[1]])
  await to.output(['ip', 'route', 'add', '10.6.1.0/24', 'via', via[0]])
  const subnet = (number: number): Subnet => ({ gateway: `10.6.${number}.1/24`, mtu: String(mtu) })
  return { address: via[1], subnets: [subnet(1), subnet(2)] }
}

const without = (features: readonly string[]): string[] => features.flatMap((feature) => ['--without', feature])

const weft = (engine: string, ...flags: string[]): Setup => daemons({ Type: 'udp' }, '--engine', engine, ...flags)

const daemons = (backend: object, ...flags: string[]): Setup => daemonsOf({ Backend: backend }, { flags })

/**
 * Returns a function that starts a weftd on each of two hosts, in a dual-stack network whose containers send packets of
 * the family `inner`.
 */
const daemonsOfBoth = (backend: object, inner: Family): Setup =>
  daemonsOf({ EnableIPv6: true, IPv6Network: 'fd00:5::/48', Backend: backend }, { inner })

/**
 * Returns a function that starts a weftd with the network configuration `config` on each of two hosts. If `checkout` is
 * given, the weftds run from that folder, which has another version of weft.
 */
function daemonsOf(
  config: object,
  {
    inner = 'ipv4',
    flags = [],
    checkout,
    joinsUdp = false,
    byKernel = false,
    byWireguardGo = false,
  }: {
    readonly inner?: Family
    readonly flags?: readonly string[]
    readonly checkout?: string
    /**
     * True to set the device feature rx-udp-gro-forwarding, with which weftd merges UDP datagrams into superpackets.
     */
    readonly joinsUdp?: boolean
    /** True to wait until the eBPF programs of FastPath carry the packets in both directions. */
    readonly byKernel?: boolean
    /** True to make the WireGuard device with the program wireguard-go instead of the kernel. */
    readonly byWireguardGo?: boolean
  },
): Setup {
  return async (from, to, lab) => {
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', ...config }))
    const started = [from, to].map((host) =>
      host.startDaemon({
        args: ['--lease-dir', leases, ...flags],
        env: {
          WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`),
          ...(byWireguardGo ? { WEFT_WIREGUARD_GO: '1' } : {}),
        },
        before: byWireguardGo ? WIREGUARD_APART : [],
        ...(checkout === undefined ? {} : { checkout }),
      }),
    )
    await Promise.all(started.map((daemon) => daemon.line(/flannel is ready/)))
    if (joinsUdp) {
      for (const host of [from, to]) await host.output(['ethtool', '-K', 'flannel0', 'rx-udp-gro-forwarding', 'on'])
      await Promise.all(started.map((daemon) => daemon.line(/Received UDP packets are joined/)))
    }
    const [near, far] = [from, to].map((host) => subnetOfEnv(host.subnetEnv())) as [Subnet, Subnet]
    // The first address of a host's subnet (.0) belongs to weft's tunnel device on that host, so the address answers
    // without containers. host-gw has no tunnel device, so its far end must be a container.
    const address =
      inner === 'ipv4' ? far.gateway.replace(/\.1\/\d+$/, '.0') : (far.ipv6Gateway ?? '').replace(/::1\/\d+$/, '::')
    if (byKernel) await promoted(from, started, address)
    return { address, subnets: [near, far], inner }
  }
}

/**
 * Sends packets until the eBPF programs of FastPath carry the packets between the two hosts in both directions. weftd
 * hands a peer over to the eBPF programs (promotes the peer) only if packets flow to the peer.
 */
async function promoted(from: Host, both: readonly Daemon[], address: string): Promise<void> {
  const pings = from.spawn(['ping', '-q', '-i', '0.05', address])
  await Promise.all(both.map((daemon) => daemon.line(/FastPath: the kernel carries the packets to/)))
  pings.kill()
}

/**
 * Makes a path with the kernel's vxlan as flannel's vxlan backend configures it: no MAC learning, and static neighbour
 * and forwarding entries.
 */
const vxlan: Setup = async (from, to) => {
  const ends = [
    { host: from, peer: to, number: 1, other: 2 },
    { host: to, peer: from, number: 2, other: 1 },
  ]
  for (const { host, peer, number, other } of ends) {
    const mac = (of: number): string => `02:00:00:00:00:0${of}`
    const link = ['id', '1', 'dstport', '8472', 'local', host.address, 'dev', 'eth0', 'nolearning']
    await host.output(['ip', 'link', 'add', 'flannel.1', 'address', mac(number), 'type', 'vxlan', ...link])
    await host.output(['ip', 'address', 'add', `10.6.0.${number}/24`, 'dev', 'flannel.1'])
    await host.output(['ip', 'link', 'set', 'flannel.1', 'up'])
    await host.output([
      'ip',
      'neighbour',
      'add',
      `10.6.0.${other}`,
      'lladdr',
      mac(other),
      'dev',
      'flannel.1',
      'nud',
      'permanent',
    ])
    await host.output(['bridge', 'fdb', 'add', mac(other), 'dev', 'flannel.1', 'dst', peer.address])
  }
  return subnetsBy([from, to], ['10.6.0.1', '10.6.0.2'], 1450)
}

/**
 * Makes a path with bench/native/naive.cc, a simple tunnel for comparison that moves only one packet per system call.
 */
const naive: Setup = async (from, to) => {
  const program = await nativeProgram('naive')
  const ends = [
    { host: from, peer: to, address: '10.6.0.1' },
    { host: to, peer: from, address: '10.6.0.2' },
  ]
  for (const { host, peer, address } of ends) {
    await ready(host, [program, host.address, peer.address], 'naive')
    await host.output(['ip', 'address', 'add', `${address}/24`, 'dev', 'naive0'])
    await host.output(['ip', 'link', 'set', 'naive0', 'mtu', String(UDP_MTU), 'up'])
  }
  return subnetsBy([from, to], ['10.6.0.1', '10.6.0.2'], UDP_MTU)
}
/**
 * The largest MTU, in bytes, of a tunnel whose packets get an IPv4 and a UDP header on a link with an MTU of 1500
 * bytes.
 */
const UDP_MTU = 1500 - 20 - 8

/**
 * Makes a path with the VPN nebula and static addresses. The container subnets are routes of the kind that nebula calls
 * unsafe_routes.
 */
const nebula: Setup = async (from, to, lab) => {
  const folder = join(lab.folder, 'nebula')
  mkdirSync(folder)
  const file = (name: string): string => join(folder, name)
  const certify = (...args: string[]): Promise<string> => from.output(['nebula-cert', ...args])
  await certify('ca', '-name', 'bench', '-out-crt', file('ca.crt'), '-out-key', file('ca.key'))
  const ends = [
    { host: from, peer: to, number: 1, other: 2 },
    { host: to, peer: from, number: 2, other: 1 },
  ]
  const own = (number: number): string => `10.99.0.${number}`
  for (const { host, peer, number, other } of ends) {
    const { name } = host
    const [crt, key] = [file(`${name}.crt`), file(`${name}.key`)]
    await certify(
      'sign',
      '-ca-crt',
      file('ca.crt'),
      '-ca-key',
      file('ca.key'),
      '-name',
      name,
      '-ip',
      `${own(number)}/24`,
      '-subnets',
      `10.6.${number}.0/24`,
      '-out-crt',
      crt,
      '-out-key',
      key,
    )
    const all = [{ port: 'any', proto: 'any', host: 'any' }]
    // nebula reads YAML; the configuration is JSON, which is valid YAML.
    const config = {
      pki: { ca: file('ca.crt'), cert: crt, key },
      static_host_map: { [own(other)]: [`${peer.address}:4242`] },
      lighthouse: { am_lighthouse: false, hosts: [] },
      listen: { host: '0.0.0.0', port: 4242 },
      tun: {
        dev: 'nebula1',
        mtu: NEBULA_MTU,
        unsafe_routes: [{ route: `10.6.${other}.0/24`, via: own(other), mtu: NEBULA_MTU }],
      },
      firewall: { outbound: all, inbound: all },
    }
    writeFileSync(file(`${name}.yml`), JSON.stringify(config))
    host.spawn(['nebula', '-config', file(`${name}.yml`)])
  }
  const subnet = (number: number): Subnet => ({ gateway: `10.6.${number}.1/24`, mtu: String(NEBULA_MTU) })
  return { address: own(2), subnets: [subnet(1), subnet(2)] }
}
/**
 * The largest MTU, in bytes, that fits into 1500 bytes together with an IPv4 header (20), a UDP header (8), nebula's
 * header (16) and nebula's authentication tag (16).
 */
const NEBULA_MTU = 1500 - 20 - 8 - 16 - 16

function peerProgram(command: string): Setup {
  return async (from, to) => {
    const ends = [
      { host: from, peer: to, number: 1 },
      { host: to, peer: from, number: 2 },
    ]
    await Promise.all(
      ends.map(({ host, peer, number }) => {
        const env = [`WEFT_HOST=${number}`, `WEFT_LOCAL=${host.address}`, `WEFT_REMOTE=${peer.address}`]
        return ready(host, ['env', ...env, 'sh', '-c', `exec ${command}`], '--peer')
      }),
    )
    return { address: '10.99.0.2' }
  }
}

function ready(place: Place, command: readonly string[], what: string): Promise<void> {
  const child = place.spawn(command)
  const said: string[] = []
  child.stderr?.on('data', (data: Buffer) => said.push(String(data)))
  return new Promise((resolve, reject) => {
    if (child.stdout) createInterface({ input: child.stdout }).on('line', (line) => line === 'ready' && resolve())
    child.once('exit', (code) => {
      const message = `${what} ended with ${code} before it printed ready: ${said.join('').trim()}`
      reject(new WeftError('COMMAND', message))
    })
  })
}

const SETUPS: Readonly<Record<string, Setup>> = {
  native: weft('native'),
  'native-bare': weft('native', ...without(addon.featureNames)),
  dgram: weft('dgram'),
  naive,
  vxlan,
  veth: (from, to) => subnetsBy([from, to], [from.address, to.address], 1500),
}

export const PATH_NAMES: readonly string[] = Object.keys(SETUPS)
/**
 * The data paths of the benchmark that differ in the backend. weftd runs on all of them except `nebula`. The path of
 * the udp backend is named `native`.
 */
export const BY_BACKEND: Readonly<Record<string, Setup>> = {
  'host-gw': daemons({ Type: 'host-gw' }),
  'vxlan-kernel': daemons({ Type: 'vxlan', DataPath: 'kernel' }),
  'vxlan-userspace': daemons({ Type: 'vxlan', DataPath: 'userspace' }),
  'wireguard-userspace': daemons({ Type: 'wireguard', DataPath: 'userspace' }),
  'wireguard-kernel': daemons({ Type: 'wireguard', DataPath: 'kernel' }),
  'wireguard-go': daemonsOf({ Backend: { Type: 'wireguard', DataPath: 'kernel' } }, { byWireguardGo: true }),
  nebula,
  // Compared with `native`, this path shows how much faster the eBPF programs of FastPath are than weftd's forwarding
  // threads.
  'native-bpf': daemonsOf({ Backend: { Type: 'udp', FastPath: 'auto' } }, { byKernel: true }),
  // Compared with `native`, this path shows the cost of the check of inner source addresses (VerifySource).
  'native-unfiltered': daemons({ Type: 'udp', VerifySource: 'off' }),
  // Compared with `native`, this path shows the gain if weftd merges the UDP datagrams that it forwards to containers.
  'native-udp-joined': daemonsOf({ Backend: { Type: 'udp' } }, { joinsUdp: true }),
}
/**
 * The data paths of the benchmark that differ in the IP families. A name INNER-in-OUTER has the families of the inner
 * packet and of the underlay, with the udp backend. `vxlan-ipv6` is the kernel's vxlan with IPv6 over IPv6.
 */
export const BY_FAMILY: Readonly<Record<string, Setup>> = {
  'ipv6-in-ipv4': daemonsOfBoth({ Type: 'udp', Underlay: 'ipv4' }, 'ipv6'),
  'ipv4-in-ipv6': daemonsOfBoth({ Type: 'udp', Underlay: 'ipv6' }, 'ipv4'),
  'ipv6-in-ipv6': daemonsOfBoth({ Type: 'udp', Underlay: 'ipv6' }, 'ipv6'),
  'vxlan-ipv6': daemonsOfBoth({ Type: 'vxlan', DataPath: 'kernel' }, 'ipv6'),
}
export const BACKEND_PATH_NAMES: readonly string[] = [
  'native',
  'host-gw',
  'vxlan-kernel',
  'vxlan-userspace',
  'wireguard-userspace',
  'wireguard-go',
]
export const OLD_PATH_NAME = 'old'
export const FEATURE_PATH_NAMES: readonly string[] = addon.featureNames.map((feature) => `native-${feature}`)

function setupFor(name: string, { peer, old }: Pick<PathOptions, 'peer' | 'old'>): Setup {
  const setup = SETUPS[name] ?? BY_BACKEND[name] ?? BY_FAMILY[name]
  if (setup) return setup
  if (name === 'peer' && peer !== undefined) return peerProgram(peer)
  if (name === OLD_PATH_NAME && old !== undefined) return oldDaemons(absolute(old))
  if (FEATURE_PATH_NAMES.includes(name)) return weft('native', ...without([name.slice('native-'.length)]))
  const all = [SETUPS, BY_BACKEND, BY_FAMILY].flatMap((setups) => Object.keys(setups))
  throw new WeftError('USAGE', `no such path: ${name}`, {
    remedy: `there are ${[...all, ...FEATURE_PATH_NAMES].join(', ')}, ${OLD_PATH_NAME} with --old, peer with --peer`,
  })
}

function oldDaemons(checkout: string): Setup {
  const lacking = ['bin/weftd', 'dist/src'].find((part) => !existsSync(join(checkout, part)))
  if (lacking !== undefined)
    throw new WeftError('USAGE', `--old: ${join(checkout, lacking)} is missing`, {
      remedy: `give it a checkout of weft, and run npm ci and npm run build there`,
    })
  return daemonsOf({ Backend: { Type: 'udp' } }, { checkout })
}

export const LINKS = ['plain', 'wire', 'shaped'] as const
export type Link = (typeof LINKS)[number]

/**
 * Returns the names of the enabled ethtool(8) features with which the host's eth0 accepts packets larger than its MTU
 * (superpackets).
 */
async function superpacketFeatures(host: Host): Promise<string[]> {
  const features = await host.output(['ethtool', '-k', 'eth0'])
  return [...features.matchAll(/^\s*(\S*segmentation\S*|tx-gso\S*): on/gm)].map((match) => match[1] ?? '')
}

async function makeWire(host: Host): Promise<void> {
  const off = (await superpacketFeatures(host)).flatMap((feature) => [feature, 'off'])
  await host.output(['ethtool', '-K', 'eth0', ...off, 'gro', 'on'])
  const left = await superpacketFeatures(host)
  if (left.length > 0)
    throw new WeftError('DEVICE', `--link wire: this kernel's veth cannot switch off ${left.join(', ')}`)
}

async function shape(host: Host): Promise<void> {
  const filter = ['rate', '1gbit', 'burst', '256kb', 'latency', '20ms']
  await host.output(['tc', 'qdisc', 'add', 'dev', 'eth0', 'root', 'tbf', ...filter])
}

export const ENDS = ['hosts', 'containers'] as const
export type Ends = (typeof ENDS)[number]

export interface PathOptions {
  readonly link: Link
  readonly ends: Ends
  readonly peer?: string | undefined
  readonly old?: string | undefined
}

/**
 * Makes two hosts, the named path between them, and the servers for the measurements on the second host. Resolves when
 * the second host answers over the path.
 */
export async function openPath(name: string, options: PathOptions): Promise<Path> {
  const { link, ends } = options
  const setup = setupFor(name, options)
  const families: readonly Family[] = name in BY_FAMILY ? ['ipv4', 'ipv6'] : ['ipv4']
  const lab = await createLab({ hosts: 2, underlay: 'veth', families })
  try {
    const hosts = lab.hosts as [Host, Host]
    if (link !== 'plain') for (const host of hosts) await makeWire(host)
    if (link === 'shaped') for (const host of hosts) await shape(host)
    const reached = await setup(...hosts, lab)
    const { from, to, address } =
      ends === 'hosts' ? hostEnds(hosts, reached) : await containerEnds(name, hosts, reached)
    await reach(from.namespace, address)
    const server = await iperfServer((command) => to.spawn(command))
    const program = await nativeProgram('traffic')
    await ready(to, [program, 'serve'], 'traffic serve')
    return {
      name,
      from,
      to,
      address,
      payloadBytes: payloadOf(reached),
      iperf: (seconds, args) => server.run(from.namespace, address, seconds, args),
      traffic: async (...args) =>
        JSON.parse(await from.output([program, ...args.map(String)])) as Record<string, number>,
      close: () => lab.close(),
    }
  } catch (error) {
    await lab.close()
    throw error
  }
}

/**
 * The length in bytes of an IP header of each family. TCP_BYTES is the length of a TCP header with the timestamp
 * option, which Linux always sends.
 */
const IP_BYTES: Readonly<Record<Family, number>> = { ipv4: 20, ipv6: 40 }
const TCP_BYTES = 32

function payloadOf({ subnets, inner = 'ipv4' }: Reach): number | undefined {
  return subnets && Number(subnets[0].mtu) - IP_BYTES[inner] - TCP_BYTES
}

type TwoEnds = Pick<Path, 'from' | 'to' | 'address'>

const hostEnds = ([from, to]: readonly [Host, Host], { address }: Reach): TwoEnds => ({ from, to, address })

async function containerEnds(name: string, hosts: readonly [Host, Host], { subnets, inner }: Reach): Promise<TwoEnds> {
  if (!subnets) {
    throw new WeftError('USAGE', `--ends containers: the path ${name} has no subnets for containers`, {
      remedy: 'measure it with --ends hosts',
    })
  }
  const [from, to] = [await hosts[0].startPod(subnets[0]), await hosts[1].startPod(subnets[1])]
  return { from, to, address: inner === 'ipv6' ? (to.ipv6 ?? '') : to.address }
}
