// backend-change.test.ts - changes the backend of a cluster from each one to each other one. Afterwards no packet uses the old backend, and
// with wireguard no packet is readable on the underlay.

import { writeFileSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, networkOf, whyNoVxlan, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { parseAddress, type Family } from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, subnetOf, weft } from '../support/hosts.ts'
import type { KubeApi } from '../support/kube-admin.ts'
import { openKubeRelay, type KubeRelay } from '../support/kube-relay.ts'
import { startKubeServer } from '../support/kube-server.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'

const lack = needs(HOSTS, ...ETCD, 'openssl', 'ping', 'tcpdump')

const NETWORK = '10.5.0.0/16'
/** The maximum length of ping's pattern. */
const TEXT = 'nobody reads it.'
const PATTERN = Buffer.from(TEXT).toString('hex')
const PINGS = 5

/** The devices of a backend that has one for each family. */
const VXLAN = { ipv4: ['flannel.1'], ipv6: ['flannel-v6.1'] } as const
const ONE = { ipv4: ['flannel0'], ipv6: ['flannel0'] } as const
/** The backends that this machine can run: the devices that each creates, and how its packets look on the underlay. */
const BACKENDS = {
  udp: { options: { Type: 'udp' }, devices: ONE, ports: { ipv4: [8285], ipv6: [8285] } },
  'vxlan by the kernel': {
    options: { Type: 'vxlan', DataPath: 'kernel' },
    devices: VXLAN,
    ports: { ipv4: [8472], ipv6: [8472] },
  },
  'vxlan by weftd': {
    options: { Type: 'vxlan', DataPath: 'userspace' },
    devices: VXLAN,
    ports: { ipv4: [8472], ipv6: [8472] },
  },
  'host-gw': { options: { Type: 'host-gw' }, devices: { ipv4: [], ipv6: [] }, ports: { ipv4: [0], ipv6: [0] } },
  wireguard: {
    options: { Type: 'wireguard', DataPath: 'userspace' },
    devices: { ipv4: ['flannel-wg'], ipv6: ['flannel-wg-v6'] },
    ports: { ipv4: [51_820], ipv6: [51_821] },
  },
} as const
type Name = keyof typeof BACKENDS
/** The source ports of WireGuard's lanes, in addition to its listening port. */
const LANES = { first: 52_060, last: 52_067 }

/** Returns a path that uses each ordered pair once (Hierholzer's algorithm), so each change starts from the result of the previous one. */
function walkOver(names: readonly Name[]): Name[] {
  const left = new Map(names.map((name) => [name, names.filter((other) => other !== name)]))
  const [stack, walk]: [Name[], Name[]] = [[names[0]!], []]
  while (stack.length > 0) {
    const next = left.get(stack.at(-1)!)!.shift()
    if (next === undefined) walk.push(stack.pop()!)
    else stack.push(next)
  }
  return walk.toReversed()
}

/** The families of the network now. */
let families: readonly Family[] = ['ipv4']
let lab: Lab
const labsMade: Lab[] = []
let etcd: Etcd | undefined
let api: KubeApi | undefined
let relay: KubeRelay | undefined
let hosts: readonly [Host, Host]
let pods: readonly [Pod, Pod] | undefined
const running = new Map<Host, Daemon>()

async function begin(of: readonly Family[]): Promise<void> {
  families = of
  labsMade.push((lab = await createLab({ hosts: 2, families: of })))
  hosts = lab.hosts as unknown as [Host, Host]
  pods = undefined
}
beforeAll(async () => {
  if (lack === undefined) await begin(['ipv4'])
})
afterAll(async () => {
  for (const each of labsMade) await each.close()
  await relay?.close()
  await api?.close()
  await etcd?.close()
})

/** A store of leases, with the hosts that use it. */
interface Bed {
  readonly configure: (backend: object) => Promise<unknown> | void
  readonly args: (host: Host) => readonly string[]
}
const configOf = (backend: object): string =>
  JSON.stringify({
    ...(families.includes('ipv4') ? { Network: NETWORK } : { EnableIPv4: false }),
    ...(families.includes('ipv6') ? { EnableIPv6: true, IPv6Network: 'fd00:5::/48' } : {}),
    Backend: backend,
  })

const BEDS: Readonly<Record<string, () => Promise<Bed>>> = {
  async 'a directory'() {
    const folder = join(lab.folder, 'leases')
    mkdirSync(folder, { recursive: true })
    return {
      configure: (backend) => writeFileSync(join(folder, 'config'), configOf(backend)),
      args: () => ['--lease-dir', folder],
    }
  },
  async etcd() {
    const server = (etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' }))
    return {
      configure: (backend) => server.ctl('put', '/coreos.com/network/config', configOf(backend)),
      args: () => ['--etcd-endpoints', server.endpoint],
    }
  },
  async 'nodes of Kubernetes'() {
    api = await startKubeServer()
    relay = await openKubeRelay(lab, api)
    const { kubeconfig } = relay
    for (const host of hosts) await api.admin.addNode(host.name, subnetOf(host))
    const file = join(lab.folder, 'net-conf.json')
    return {
      configure: (backend) => writeFileSync(file, configOf(backend)),
      args: () => ['--kube-subnet-mgr', '--kubeconfig-file', kubeconfig, '--net-config-path', file],
    }
  },
}

async function start(host: Host, bed: Bed): Promise<Daemon> {
  const env = { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`), NODE_NAME: host.name }
  const daemon = host.startDaemon({ args: [...bed.args(host), '--healthz-port', '8081'], env })
  await daemon.line(/flannel is ready/)
  running.set(host, daemon)
  return daemon
}
async function stopAll(): Promise<void> {
  for (const daemon of running.values()) await daemon.stop()
  running.clear()
}

/** Ways to replace the running daemon by one with the new backend. */
const WAYS = {
  'is restarted': async (host: Host, bed: Bed) => {
    await running.get(host)!.stop()
    await start(host, bed)
  },
  'is taken over': async (host: Host, bed: Bed) => {
    const before = running.get(host)!
    await start(host, bed)
    await ended(before.process)
  },
} as const

/** The packets on a host's link, by kind. */
interface Captured {
  /** Packets whose inner content is readable, with any encapsulation. */
  readonly readable: number
  /** The UDP destination ports; 0 means packets without a tunnel. */
  readonly ports: ReadonlySet<number>
}

/** Captures on the first host's link while its container pings the other host's container. */
async function listenWhilePinging(isAnswered: boolean, family: Family): Promise<Captured> {
  const [from, to] = pods!.map((pod) => addressOf(pod, family)) as [string, string]
  const tap = hosts[0].spawn(['tcpdump', '-i', 'eth0', '-U', '--immediate-mode', '-s', '0', '-w', '-', 'ip or ip6'])
  const parts: Buffer[] = []
  tap.stdout!.on('data', (part: Buffer) => parts.push(part))
  await new Promise<void>((resolve) =>
    tap.stderr!.on('data', (text: Buffer) => text.includes('listening on') && resolve()),
  )
  const ping = ['ping', '-n', '-c', String(PINGS), '-i', '0.02', '-W', '0.3', '-s', '200', '-p', PATTERN]
  const { code } = await pods![0].run([...ping, to])
  if (isAnswered) expect(code).toBe(0)
  tap.kill('SIGINT')
  await ended(tap)
  const packets = packetsOf(Buffer.concat(parts))
  const macs = await Promise.all(hosts.map(macOf))
  return {
    readable: packets.filter((packet) => packet.includes(TEXT)).length,
    ports: new Set(packets.flatMap((packet) => portOf(packet, from, to, macs))),
  }
}

/** Returns the MAC address of a host's link in hexadecimal digits. */
const macOf = async (host: Host): Promise<string> =>
  (await host.output(['cat', '/sys/class/net/eth0/address'])).trim().replaceAll(':', '')

/** Splits a capture (pcap, as tcpdump writes it on this machine) into packets with their Ethernet headers. */
function packetsOf(pcap: Buffer): Buffer[] {
  const packets: Buffer[] = []
  for (let at = 24; at + 16 <= pcap.length;) {
    const end = at + 16 + pcap.readUInt32LE(at + 8)
    packets.push(pcap.subarray(at + 16, end))
    at = end
  }
  return packets
}

/**
 * Returns the port of a tunnel's datagram, or 0 for a packet between the containers that goes directly to one of these hosts. A packet
 * without a route goes to the default gateway instead.
 */
function portOf(frame: Buffer, from: string, to: string, macs: readonly string[]): readonly number[] {
  const packet = frame.subarray(14)
  const isIpv6 = packet[0]! >> 4 === 6
  const [at, length] = isIpv6 ? [8, 16] : [12, 4]
  const address = (where: number): string => packet.toString('hex', where, where + length)
  if ([address(at), address(at + length)].toSorted().join() === [from, to].map(hexOf).toSorted().join())
    return macs.includes(frame.toString('hex', 0, 6)) ? [0] : []
  if (packet[isIpv6 ? 6 : 9] !== 17) return []
  const port = packet.readUInt16BE((isIpv6 ? 40 : (packet[0]! & 15) * 4) + 2)
  return [port >= LANES.first && port <= LANES.last ? 51_820 : port]
}
/** Returns an address as hexadecimal digits. */
function hexOf(text: string): string {
  const address = parseAddress(text)!
  return address.toString(16).padStart(typeof address === 'number' ? 8 : 32, '0')
}
const addressOf = (pod: Pod, family: Family): string => (family === 'ipv4' ? pod.address : (pod.ipv6 ?? ''))
/** Returns the subnet of a host in this family. */
const netOf = (host: Host, family: Family): string =>
  networkOf(host.subnetEnv()[family === 'ipv4' ? 'FLANNEL_SUBNET' : 'FLANNEL_IPV6_SUBNET'] ?? '')
const TUNNELS: ReadonlySet<number> = new Set(
  Object.values(BACKENDS).flatMap(({ ports }) => [...ports.ipv4, ...ports.ipv6]),
)
const portsOf = (name: Name, family: Family): readonly number[] => {
  const { ports } = BACKENDS[name]
  // The lanes of both devices have the same ports.
  return name === 'wireguard' && family === 'ipv6' ? [...ports.ipv4, ...ports.ipv6] : ports[family]
}

/** Lists the devices of all backends on a host, and the devices of the routes to the other host's subnet. */
async function leftOn(host: Host, other: Host, family: Family): Promise<{ devices: string[]; routes: string[] }> {
  const flag = family === 'ipv4' ? '-4' : '-6'
  const [links, routes] = [await host.output(['ip', '-j', 'link']), await host.output(['ip', flag, '-j', 'route'])]
  const names = (JSON.parse(links) as { ifname: string }[]).map(({ ifname }) => ifname)
  const subnets = (JSON.parse(routes) as { dst: string; dev: string }[]).filter(
    ({ dst }) => dst === netOf(other, family),
  )
  return { devices: names.filter((name) => name.startsWith('flannel')), routes: subnets.map(({ dev }) => dev) }
}

async function check(from: Name, to: Name): Promise<void> {
  const change = `${from} to ${to}`
  const its = BACKENDS[to].devices
  for (const family of families) {
    await reach(pods![0].namespace, addressOf(pods![1], family))
    const { readable, ports } = await listenWhilePinging(true, family)
    const tunnels = [...ports].filter((port) => TUNNELS.has(port))
    expect(tunnels.length, change).toBeGreaterThan(0)
    // In a dual-stack network udp carries IPv6 in IPv4 datagrams.
    expect(portsOf(to, family), change).toEqual(expect.arrayContaining(tunnels))
    if (to === 'wireguard') expect(readable).toBe(0)
    for (const [host, other] of [hosts, hosts.toReversed()] as [Host, Host][]) {
      const { devices, routes } = await leftOn(host, other, family)
      const wanted = new Set(families.flatMap((each) => [...its[each]]))
      expect(devices.toSorted(), change).toEqual([...wanted].toSorted())
      const isRouted = to === 'host-gw' ? ['eth0'] : to === 'vxlan by the kernel' ? its[family] : []
      expect(routes, `${from} to ${to}`).toEqual([...isRouted])
      expect((await statusOf(host)).impairments.filter(({ by }) => by !== 'peers')).toEqual([])
    }
  }
}

/** Makes each change on one node after the other, and captures packets after each. */
async function goThrough(steps: readonly Name[], way: keyof typeof WAYS, bed: Bed): Promise<void> {
  const changes = steps.slice(1).map((to, at) => [steps[at]!, to] as const)
  for (const [from, to] of changes) {
    await bed.configure(BACKENDS[to].options)
    for (const [at, host] of hosts.entries()) {
      await WAYS[way](host, bed)
      if (at > 0) continue
      // At this time the other node still has the old backend.
      for (const family of families) {
        const { readable, ports } = await listenWhilePinging(false, family)
        const change = `${from} to ${to}, half-way, ${family}`
        if (to === 'wireguard') expect(readable, change).toBe(0)
        const old = portsOf(from, family).filter((port) => !portsOf(to, family).includes(port))
        expect(
          old.filter((port) => ports.has(port)),
          change,
        ).toEqual([])
      }
    }
    await check(from, to)
  }
}

/** Starts a node with the backend udp and a container on each host. */
async function startBoth(bed: Bed): Promise<void> {
  await bed.configure(BACKENDS.udp.options)
  for (const host of hosts) await start(host, bed)
  pods ??= [await hosts[0].startPod(), await hosts[1].startPod()]
  for (const family of families) await reach(pods[0].namespace, addressOf(pods[1], family))
}

describe.each(Object.keys(BEDS))('with leases in %s', (keeper) => {
  let bed: Bed
  it('starts with the first backend', async ({ skip }) => {
    const why = await whyNoVxlan()
    skip(why !== undefined, why)
    await stopAll()
    bed = await BEDS[keeper]!()
    await startBoth(bed)
  })

  const steps = walkOver(Object.keys(BACKENDS) as Name[])
  it.each(Object.keys(WAYS) as (keyof typeof WAYS)[])('no packet uses the old backend after a node %s', (way) =>
    goThrough(steps, way, bed),
  )
})

describe('a route that bypasses wireguard and that weft did not create', () => {
  let bed: Bed
  const way = (): string[] => [subnetOf(hosts[1]), 'via', hosts[1].address, 'dev', 'eth0', 'proto', 'static']
  const isReady = async (host: Host): Promise<string> =>
    (await host.run(['curl', '-s', '-o', '/dev/null', '-w', '%{http_code}', 'http://127.0.0.1:8081/readyz'])).stdout
  const isBypassed = async (host: Host): Promise<boolean> =>
    (await statusOf(host)).impairments.some(({ by }) => by === 'bypass')

  it('makes every report show a running node as impaired and not ready, until the route is removed', async () => {
    await stopAll()
    bed = await BEDS['a directory']!()
    await bed.configure(BACKENDS.wireguard.options)
    const [host, other] = hosts
    for (const each of hosts) await start(each, bed)
    pods ??= [await host.startPod(), await other.startPod()]
    await reach(pods[0].namespace, pods[1].address)
    await eventually(async () => expect(await isReady(host)).toBe('200'))
    await host.output(['ip', 'route', 'add', ...way()])
    await running
      .get(host)!
      .line(/^E.*Packets to other nodes leave this host unencrypted: by routes that weft did not make: /)
    await eventually(async () => expect(await isBypassed(host)).toBe(true))
    expect(await isReady(host)).toBe('503')
    const { code, stdout } = await weft(host, ['status'])
    expect([code, stdout]).toEqual([3, expect.stringMatching(/impaired by routes that bypass its data path/)])
    const found = await doctor(host)
    expect(found.names).toEqual(expect.arrayContaining(['path-bypassed', 'foreign-route']))
    const explained = await weft(host, ['explain', pods[0].address, pods[1].address])
    expect([explained.code, explained.stdout]).toEqual([
      3,
      expect.stringMatching(/route .*another route has precedence/),
    ])
    const metrics = await host.output(['curl', '-s', 'http://127.0.0.1:8081/metrics'])
    expect(metrics).toMatch(/^weft_working 0$/m)
    expect(metrics).toMatch(/^weft_impaired\{by="bypass"\} 1$/m)
    await host.output(['ip', 'route', 'del', ...way()])
    await eventually(async () => expect(await isBypassed(host)).toBe(false))
    expect(await isReady(host)).toBe('200')
  })

  it.each<[string, (own: string, theirs: string, via: string) => readonly [add: string, remove: string]]>([
    [
      'a rule for what containers send',
      (own, theirs, via) => [
        `ip route add ${theirs} via ${via} table 100; ip rule add from ${own} lookup 100 pref 100`,
        'ip rule del pref 100; ip route flush table 100',
      ],
    ],
    [
      'a rule for their bridge',
      (_own, theirs, via) => [
        `ip route add ${theirs} via ${via} table 100; ip rule add iif cni0 lookup 100 pref 100`,
        'ip rule del pref 100; ip route flush table 100',
      ],
    ],
    [
      'an address of another interface',
      (_own, theirs) => [
        `ip link add eth9 type veth peer name eth9b; ip address add ${theirs.replace('.0/', '.200/')} dev eth9; ip link set eth9 up; ip link set eth9b up`,
        'ip link del eth9',
      ],
    ],
  ])('is detected if it is %s', async (_what, commands) => {
    const [host, other] = hosts
    const [add, remove] = commands(subnetOf(host), subnetOf(other), other.address)
    await host.output(['sh', '-c', add])
    await eventually(async () => expect(await isBypassed(host)).toBe(true))
    await host.output(['sh', '-c', remove])
    await eventually(async () => expect(await isBypassed(host)).toBe(false))
    await reach(pods![0].namespace, pods![1].address)
  })

  it('is not reported for a policy rule that leaves the traffic in the tunnel, as VPNs use it', async () => {
    const [host, other] = hosts
    const rules = [
      `ip route add default via ${other.address} table 101`,
      'ip rule add pref 100 lookup main suppress_prefixlength 0',
      'ip rule add pref 101 not fwmark 0xca6c lookup 101',
    ]
    await host.output(['sh', '-c', rules.join('; ')])
    await WAYS['is restarted'](host, bed) // the restarted node becomes ready only without a bypass
    await host.output(['sh', '-c', 'ip rule del pref 100; ip rule del pref 101; ip route flush table 101'])
  })

  it('keeps a starting node from becoming ready until it is removed', async () => {
    const [host] = hosts
    await running.get(host)!.stop()
    await host.output(['ip', 'route', 'add', ...way()])
    const starting = start(host, bed)
    starting.catch(() => {}) // a failure below has more details
    await eventually(async () => expect(await isBypassed(host)).toBe(true))
    expect(await isReady(host)).toBe('503')
    await host.output(['ip', 'route', 'del', ...way()])
    await starting
    await eventually(async () => expect(await isReady(host)).toBe('200'))
  })

  it('is kept and not reported with "AllowBypass": true', async () => {
    const [host, other] = hosts
    await bed.configure({ ...BACKENDS.wireguard.options, AllowBypass: true })
    await host.output(['ip', 'route', 'add', ...way()])
    await WAYS['is restarted'](other, bed) // without AllowBypass `other` drops unencrypted packets
    await WAYS['is restarted'](host, bed)
    await reach(pods![0].namespace, pods![1].address)
    expect(await isBypassed(host)).toBe(false)
    await host.output(['ip', 'route', 'del', ...way()])
  })
})

describe("a route of an earlier run to the node's present subnet", () => {
  const BY_HOST = { ...BACKENDS['host-gw'].options }
  it.each(['host-gw', 'udp'] as const)('is removed when %s starts', async (name) => {
    const [host, other] = hosts
    const bed = await BEDS['a directory']!()
    await stopAll()
    await bed.configure(name === 'host-gw' ? BY_HOST : BACKENDS[name].options)
    for (const each of hosts) await start(each, bed)
    pods ??= [await host.startPod(), await other.startPod()]
    await running.get(host)!.stop()
    // A bridge that is created later would find the old route before its own route.
    await host.output(['ip', 'link', 'set', 'cni0', 'down'])
    await host.output(['ip', 'route', 'add', subnetOf(host), 'via', other.address, 'dev', 'eth0'])
    await host.output(['ip', 'link', 'set', 'cni0', 'up'])
    const daemon = await start(host, bed)
    expect(daemon.lines.join('\n')).toMatch(/Removed the route 10\.5\.\S+ via 192\.168\.77\.2 to eth0/)
    expect(await host.output(['ip', 'route', 'get', pods[0].address])).toMatch(/dev cni0/)
    await reach(pods[1].namespace, pods[0].address)
  })
})

describe('a backend whose routes other programs make', () => {
  /** Lists the routes to the other host's subnet, and the devices of backends. */
  const left = () => leftOn(hosts[0], hosts[1], 'ipv4')
  const AS_HOST_GW = {
    Type: 'extension',
    PostStartupCommand: 'ip link add flannel.1 type vxlan id 1 dstport 8472',
    SubnetAddCommand: 'ip route replace $SUBNET via $PUBLIC_IP dev eth0',
  }
  const TYPES = { alloc: { Type: 'alloc' }, extension: { Type: 'extension' } } as const

  it.each(
    Object.keys(TYPES).flatMap((to) =>
      (['host-gw', 'vxlan by the kernel', 'udp', 'wireguard'] as const).flatMap((from) =>
        (Object.keys(WAYS) as (keyof typeof WAYS)[]).map((way) => [to as keyof typeof TYPES, from, way] as const),
      ),
    ),
  )('%s leaves nothing of %s after the node %s', async (to, from, way) => {
    const bed = await BEDS['a directory']!()
    await stopAll()
    await bed.configure(BACKENDS[from].options)
    for (const host of hosts) await start(host, bed)
    if (from === 'host-gw') await eventually(async () => expect((await left()).routes).toEqual(['eth0']))
    await bed.configure(TYPES[to])
    await WAYS[way](hosts[0], bed)
    expect(await left()).toEqual({ devices: [], routes: [] })
  })

  it('keeps what its own commands made when it starts again', async () => {
    const [host] = hosts
    const bed = await BEDS['a directory']!()
    await bed.configure(TYPES.alloc)
    for (const each of hosts) await WAYS['is restarted'](each, bed)
    await bed.configure(AS_HOST_GW)
    await WAYS['is restarted'](hosts[1], bed)
    await hosts[1].output(['ip', 'link', 'del', 'flannel.1'])
    await WAYS['is restarted'](host, bed)
    const made = { devices: ['flannel.1'], routes: ['eth0'] }
    await eventually(async () => expect(await left()).toEqual(made))
    const again = { ...AS_HOST_GW, PostStartupCommand: 'true', SubnetAddCommand: 'true' }
    await bed.configure(again)
    await WAYS['is restarted'](host, bed)
    expect(await left()).toEqual(made)
    await host.output(['ip', 'link', 'del', 'flannel.1'])
    await host.output(['ip', 'route', 'del', subnetOf(hosts[1])])
  })
})

describe.each([
  ['IPv6', ['ipv6']],
  ['both families', ['ipv4', 'ipv6']],
] as const)('with a network of %s', (_name, of) => {
  let bed: Bed
  it('starts with the first backend', async ({ skip }) => {
    const why = await whyNoVxlan()
    skip(why !== undefined, why)
    await stopAll()
    await begin(of)
    bed = await BEDS['a directory']!()
    await startBoth(bed)
  })

  // From and to wireguard, whose packets must not be readable; in a dual-stack network also between the other backends.
  const steps: readonly Name[] = [
    ...(['udp', 'wireguard', 'host-gw', 'wireguard', 'vxlan by the kernel', 'wireguard', 'vxlan by weftd'] as const),
    ...(of.length > 1 ? (['vxlan by the kernel', 'host-gw', 'udp', 'vxlan by weftd', 'wireguard'] as const) : []),
    'udp',
  ]
  it.each(Object.keys(WAYS) as (keyof typeof WAYS)[])('no packet uses the old backend after a node %s', (way) =>
    goThrough(steps, way, bed),
  )
})

it('wireguard sends no packet unencrypted while it does not carry IPv6', async () => {
  await stopAll()
  await begin(['ipv4', 'ipv6'])
  const bed = await BEDS['a directory']!()
  await bed.configure(BACKENDS.wireguard.options)
  const daemon = await start(hosts[0], bed)
  await start(hosts[1], bed)
  pods = [await hosts[0].startPod(), await hosts[1].startPod()]
  for (const family of families) await reach(pods[0].namespace, addressOf(pods[1], family))
  await hosts[0].output('ip link set eth0 mtu 1300'.split(' '))
  await daemon.line(/Cannot carry IPv6, trying again: IPv6 needs an MTU of 1280/)
  expect((await listenWhilePinging(false, 'ipv6')).readable).toBe(0)
  await reach(pods[0].namespace, addressOf(pods[1], 'ipv4'))
  await hosts[0].output('ip link set eth0 mtu 1500'.split(' '))
  await reach(pods[0].namespace, addressOf(pods[1], 'ipv6'))
  // A node with a backend that does not encrypt removes the routes that block unencrypted packets.
  await bed.configure(BACKENDS.udp.options)
  for (const host of hosts) await WAYS['is restarted'](host, bed)
  for (const flag of ['-4', '-6'])
    expect(await hosts[0].output(['ip', flag, 'route', 'show', 'type', 'unreachable'])).toBe('')
  await stopAll()
})
