// paths.ts - the paths between two hosts that the benchmark compares.
//
// The link below a path is a veth in one of three states:
//
//   plain   The veth passes whole superpackets, even inside vxlan. No real network does that.
//   wire    The veth passes only frames of at most the MTU, like a network card without segmentation. The kernel cuts superpackets
//           in software, for TCP, vxlan and UDP_SEGMENT alike, and GRO joins frames at the receiver. Checksums stay offloaded,
//           because every card can do that and UDP_SEGMENT needs it.
//   shaped  A wire with 1 Gbit/s and a queue of 20 ms (tc-tbf), so that packets queue in the link and not in the path.
//
// The ends are the hosts, or a container on each host. A container's packets go through its veth, a bridge and the path.
// bench/README.md explains `--peer` and `--old`.

import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve as absolute } from 'node:path'
import { createInterface } from 'node:readline'
import { createLab, subnetOfEnv, WIREGUARD_APART, type Host, type Lab, type Place, type Subnet } from '../lab/lab.ts'
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
  /** The TCP payload of a full packet, in bytes; undefined if the path has no subnets for containers. */
  readonly payloadBytes?: number | undefined
  readonly iperf: (seconds: number, args: readonly string[]) => Promise<IperfResult>
  /** Runs bench/native/traffic.cc in `from` against its server in `to`. Returns its numbers by name. */
  traffic(...args: readonly (string | number)[]): Promise<Readonly<Record<string, number>>>
  close(): Promise<void>
}

/** The second host's address on a path, and a subnet on each host for containers. */
interface Reach {
  readonly address: string
  /** The family of containers' packets. Default: IPv4. */
  readonly inner?: Family
  readonly subnets?: readonly [Subnet, Subnet]
}

type Setup = (from: Host, to: Host, lab: Lab) => Promise<Reach>

/** Gives two hosts without a daemon subnets for containers, and routes to them through `via`. */
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

/** Returns the setup of two daemons in a dual-stack network. Containers send packets of the family `inner`. */
const daemonsOfBoth = (backend: object, inner: Family): Setup =>
  daemonsOf({ EnableIPv6: true, IPv6Network: 'fd00:5::/48', Backend: backend }, { inner })

/** Returns the setup of two daemons with this network configuration. `checkout` is another folder of weft to run them from. */
function daemonsOf(
  config: object,
  {
    inner = 'ipv4',
    flags = [],
    checkout,
    joinsUdp = false,
    byWireguardGo = false,
  }: {
    readonly inner?: Family
    readonly flags?: readonly string[]
    readonly checkout?: string
    /** True to switch on rx-udp-gro-forwarding, so that weftd joins UDP. */
    readonly joinsUdp?: boolean
    /** True to replace the kernel's WireGuard device by wireguard-go. */
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
    // The tunnel's device has the first address of the subnet. host-gw has no such device, so it needs containers.
    const address =
      inner === 'ipv4' ? far.gateway.replace(/\.1\/\d+$/, '.0') : (far.ipv6Gateway ?? '').replace(/::1\/\d+$/, '::')
    return { address, subnets: [near, far], inner }
  }
}

/** Sets up kernel vxlan like flannel's vxlan backend: no learning, static neighbours and forwarding entries. */
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

/** Sets up native/naive.cc, a tunnel of the benchmark that moves one packet with each system call. */
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
/** The largest MTU behind IPv4 and UDP, in bytes. */
const UDP_MTU = 1500 - 20 - 8

/** Sets up nebula on two hosts with static addresses. The containers' subnets are nebula's unsafe routes. */
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
    // nebula reads YAML, and JSON is YAML.
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
/** The largest MTU that fits: IPv4, UDP, and nebula's header and tag of 16 bytes each. */
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
/** The paths by backend. All run weft's daemons, except nebula. The udp backend is the path `native`. */
export const BY_BACKEND: Readonly<Record<string, Setup>> = {
  'host-gw': daemons({ Type: 'host-gw' }),
  'vxlan-kernel': daemons({ Type: 'vxlan', DataPath: 'kernel' }),
  'vxlan-userspace': daemons({ Type: 'vxlan', DataPath: 'userspace' }),
  'wireguard-userspace': daemons({ Type: 'wireguard', DataPath: 'userspace' }),
  'wireguard-kernel': daemons({ Type: 'wireguard', DataPath: 'kernel' }),
  'wireguard-go': daemonsOf({ Backend: { Type: 'wireguard', DataPath: 'kernel' } }, { byWireguardGo: true }),
  nebula,
  // Measures the cost of the ingress filter.
  'native-unfiltered': daemons({ Type: 'udp', VerifySource: 'off' }),
  // Measures the gain of joining the UDP datagrams that a host forwards to its containers.
  'native-udp-joined': daemonsOf({ Backend: { Type: 'udp' } }, { joinsUdp: true }),
}
/** The paths by family, INNER-in-OUTER with the udp backend, and the kernel's vxlan, which carries IPv6 over IPv6. */
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

/** Returns the enabled features of ethtool(8) with which a device accepts superpackets. */
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

/** Makes two hosts, the path and the servers at its far end, and waits until the far end answers. */
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

/** The length of the IP header of each family, and of TCP's header with the timestamp that Linux sends. */
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
