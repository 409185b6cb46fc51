// vxlan.test.ts - VXLAN carried by weftd itself, together with hosts whose kernel carries it: the bytes, the traffic, and the choice
// between the two.

import { once } from 'node:events'
import { mkdirSync, readdirSync, readFileSync, writeFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import {
  createLab,
  EVENT_MS,
  packageRoot,
  whyNoVxlan,
  type Daemon,
  type Host,
  type Lab,
  type Pod,
} from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { parseIpv6 } from '../../src/net/ipv6.ts'
import type { Status } from '../../src/report/status.ts'
import { eventually } from '../support/event.ts'
import { answers, statusOf, subnetOf, tunAddress, weft, weftOf, withoutDeviceType } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { ipv6Packet } from '../support/packets.ts'
import { frames, UDP6, udp6IsRight, udpOf } from '../support/pcap.ts'
import { pinging } from '../support/pinging.ts'
import { freezeThread, threadNames } from '../support/service-manager.ts'

needs(HOSTS, 'ping', 'iperf3', 'tcpdump', 'nft', 'curl', 'ethtool', 'python3')

let lab: Lab
afterEach(() => lab?.close())

/** The bits per second of a stream that stalls after its first window. Every machine is faster. */
const STALLED = 2e6

type Way = 'kernel' | 'userspace' | undefined
const leases = (): string => join(lab.folder, 'leases')
const IPV6 = { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }
function configure(dataPath: Way, options: object = {}, network: object = {}): void {
  mkdirSync(leases(), { recursive: true })
  const backend = { Type: 'vxlan', ...(dataPath ? { DataPath: dataPath } : {}), ...options }
  writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', ...network, Backend: backend }))
}
/** Starts a daemon. It reads the configuration at its start, so each host may have a different one. */
async function start(
  host: Host,
  dataPath: Way,
  options: object = {},
  env = {},
  { network = {}, args = [] }: { network?: object; args?: readonly string[] } = {},
): Promise<Daemon> {
  configure(dataPath, options, network)
  const daemon = host.startDaemon({ args: ['--lease-dir', leases(), ...args], env })
  await daemon.line(/flannel is ready/)
  return daemon
}
const leaseOf = (host: Host): string =>
  readFileSync(join(leases(), 'subnets', subnetOf(host).replace('/', '-')), 'utf8')
/** Returns the lease of a host with IPv6, whose key has both subnets or only the IPv6 subnet. */
function leaseOfBoth(host: Host): string {
  const subnet = host.subnetEnv()['FLANNEL_IPV6_SUBNET']!.replace('::1/', '::-')
  const name = readdirSync(join(leases(), 'subnets')).find((each) => each.endsWith(`&${subnet}`)) ?? ''
  return readFileSync(join(leases(), 'subnets', name), 'utf8')
}
const macsOf = (host: Host): string[] => [...leaseOfBoth(host).matchAll(/"VtepMAC":"([^"]+)"/g)].map(([, mac]) => mac!)
/** Ranges from which no node draws the first subnets. */
const APART = { SubnetMin: '10.5.16.0', IPv6SubnetMin: 'fd00:5:0:10::' }
const macOf = (host: Host): string => /"VtepMAC":"([^"]+)"/.exec(leaseOf(host))![1]!

const WITHOUT_VXLAN = withoutDeviceType('vxlan')

async function needsKernelVxlan(skip: (condition: boolean, why?: string) => void): Promise<void> {
  const why = await whyNoVxlan()
  skip(why !== undefined, why)
}

/** Captures `count` datagrams on a host's eth0, and returns their frames. */
async function passing(host: Host, ip: 'ip' | 'ip6', count: number, traffic: () => Promise<void>): Promise<Buffer[]> {
  const filter = `${ip} and udp dst port 8472`
  const child = host.spawn([...`tcpdump -i eth0 -U --immediate-mode -s 0 -c ${count} -w -`.split(' '), filter])
  const found: Buffer[] = []
  const done = (async () => {
    for await (const frame of frames(child.stdout!)) found.push(Buffer.from(frame))
  })()
  await once(createInterface({ input: child.stderr! }), 'line') // tcpdump's line "listening on eth0"
  await traffic()
  await done
  return found
}
/** Returns the inner frames of captured datagrams, and their UDP source ports. */
const captured = async (host: Host, count: number, traffic: () => Promise<void>) =>
  (await passing(host, 'ip', count, traffic)).map((frame) => innerOf(frame, udpOf(frame)))
const innerOf = (frame: Buffer, udp: number) => ({ port: frame.readUInt16BE(udp), frame: frame.subarray(udp + 8) })
/** Does the same over IPv6, and returns whether the UDP checksum is present and right. */
const captured6 = async (host: Host, count: number, traffic: () => Promise<void>) =>
  (await passing(host, 'ip6', count, traffic)).map((frame) => ({
    ...innerOf(frame, UDP6),
    isRight: udp6IsRight(frame),
  }))

describe('a cluster of both', () => {
  beforeEach(({ skip }) => needsKernelVxlan(skip))

  it('has kernels and weftd exchange packets without noticing the difference', async () => {
    lab = await createLab({ hosts: 3 })
    const [a, b, c] = lab.hosts as [Host, Host, Host]
    await start(a, 'kernel')
    const daemon = await start(b, 'userspace')
    await start(c, 'kernel')
    await daemon.line(/VXLAN is carried by weftd itself: "DataPath" is "userspace"/)
    expect(readFileSync(b.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1450\n')
    expect(leaseOf(b)).toBe(
      `{"PublicIP":"${b.address}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"${macOf(b)}"}}`,
    )
    const [podA, podB, podC] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod, Pod]
    const pairs = [
      [podA, podB],
      [podB, podA],
      [podB, podC],
      [podC, podB],
    ] as const
    for (const [from, to] of pairs) await reach(from.namespace, to.address)
    // Hosts reach each other too, with the addresses of their devices.
    await reach(a.namespace, tunAddress(b))
    await reach(b.namespace, tunAddress(a))

    // The largest packet that fits, one byte more, and more than the maximum packet.
    for (const [from, to] of pairs) {
      const ping = (size: number, ...more: string[]) =>
        from.run(['ping', '-n', '-c', '1', '-W', '60', '-s', String(size), ...more, to.address])
      expect((await ping(1450 - 28, '-M', 'do')).code).toBe(0)
      const tooBig = await ping(1450 - 27, '-M', 'do')
      expect(tooBig.stdout + tooBig.stderr).toMatch(/message too long, mtu=1450/)
      expect((await ping(60_000)).code).toBe(0)
    }

    // The tunnel is a link and not a router: a packet that the kernel sends with TTL 2 arrives.
    await answersWithTtl(podA, podB, 3)
    await answersWithTtl(podB, podA, 3)

    for (const [from, to] of pairs) {
      const server = await iperfServer((command) => to.spawn(command))
      for (const args of [
        [],
        ['--length', '64K', '--parallel', '4'],
        ['--udp', '--bitrate', '50M', '--length', '1400'],
      ]) {
        const { bitsPerSecond } = await server.run(from.namespace, to.address, 1, args)
        expect(bitsPerSecond, args.join(' ')).toBeGreaterThan(STALLED)
      }
      await server.stop()
    }
  })

  /** Containers are one router away from the tunnel at each end, so the lowest TTL that arrives is 3. */
  async function answersWithTtl(from: Pod, to: Pod, ttl: number): Promise<void> {
    const ping = (value: number) => from.run(['ping', '-n', '-c', '1', '-W', '60', '-t', String(value), to.address])
    expect((await ping(ttl)).code).toBe(0)
    expect((await ping(ttl - 1)).stdout).toContain('Time to live exceeded')
  }

  it.each(['kernel', 'userspace'] as const)(
    'sends from the public IP if another interface of the host has it, as with flanneld: %s',
    async (way) => {
      lab = await createLab({ hosts: 2 })
      const [a, b] = lab.hosts as [Host, Host]
      await b.output(['ip', 'address', 'add', '203.0.113.7/32', 'dev', 'lo'])
      await a.output(['ip', 'route', 'add', '203.0.113.7', 'via', b.address])
      await start(a, 'userspace') // drops datagrams that do not come from a peer's public IP
      await start(b, way, {}, {}, { args: ['--public-ip', '203.0.113.7'] })
      expect(leaseOf(b)).toContain('"PublicIP":"203.0.113.7"')
      const [podA, podB] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
      await reach(podA.namespace, podB.address)
      await reach(podB.namespace, podA.address)
    },
  )

  it.each(['kernel', 'userspace'] as const)(
    'sends from the public IP also if another interface gets it later: %s',
    async (way) => {
      lab = await createLab({ hosts: 2 })
      const [a, b] = lab.hosts as [Host, Host]
      await a.output(['ip', 'route', 'add', '203.0.113.7', 'via', b.address])
      await start(a, 'userspace') // drops datagrams that do not come from a peer's public IP
      const daemon = await start(b, way, {}, {}, { args: ['--iface', b.address, '--public-ip', '203.0.113.7'] })
      await b.output(['ip', 'address', 'add', '203.0.113.7/32', 'dev', 'lo'])
      await daemon.line(/this host has the public IP 203\.0\.113\.7 now/)
      const [podA, podB] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
      await reach(podA.namespace, podB.address)
      await reach(podB.namespace, podA.address)
    },
  )

  it('carries congestion marks in both directions, as kernels do (RFC 6040)', async ({ skip }) => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    await start(a, 'kernel')
    const daemon = await start(b, 'userspace')
    const [podA, podB] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
    await reach(podA.namespace, podB.address)
    // Each host marks outgoing packets that support ECN, as a congested router does.
    const congested = `
      add table ip congested
      add chain ip congested out { type filter hook postrouting priority 0; }
      add rule ip congested out udp dport 8472 ip ecn != not-ect ip ecn set ce`
    const { code, stderr } = await a.run(['nft', '-f', '-'], { input: congested })
    skip(code !== 0, `no mark can be set here: ${stderr}`)
    await b.output(['nft', '-f', '-'], { input: congested })
    const ect0 = 2
    const marked = 3
    /** Sends a ping with this TOS, and returns the TOS of the requests that arrive. */
    const arriving = async (from: Pod, to: Pod, tos: number): Promise<number[]> => {
      const child = to.spawn('tcpdump -i eth0 -U --immediate-mode -c 3 -w - icmp[icmptype]=icmp-echo'.split(' '))
      const seen: number[] = []
      const done = (async () => {
        for await (const frame of frames(child.stdout!)) seen.push(frame.readUInt8(14 + 1))
      })()
      await once(createInterface({ input: child.stderr! }), 'line') // tcpdump's line "listening on eth0"
      await from.output(['ping', '-n', '-c', '3', '-i', '0.2', '-Q', String(tos), to.address])
      await done
      return seen
    }
    for (const [from, to] of [
      [podA, podB],
      [podB, podA],
    ] as const) {
      expect(await arriving(from, to, ect0)).toEqual([marked, marked, marked])
      expect(await arriving(from, to, 0xb8 | ect0)).toEqual(Array(3).fill(0xb8 | marked))
      expect(await arriving(from, to, 0)).toEqual([0, 0, 0]) // routers mark no packet without ECN
    }

    // A router marks a packet that does not support ECN. Its sender would not learn of it, so weftd drops and counts the packet.
    await a.output(['nft', 'flush', 'chain', 'ip', 'congested', 'out'])
    await a.output('nft add rule ip congested out udp dport 8472 ip ecn set ce'.split(' '))
    expect((await podA.run(['ping', '-n', '-c', '1', '-W', '1', podB.address])).code).toBe(1)
    expect(await podA.output(['ping', '-n', '-c', '1', '-Q', String(ect0), podB.address])).toContain(' 0% packet loss')
    const status = await b.output(['curl', '-s', '--unix-socket', b.statusSocket, 'http://weft/status.json'])
    expect((JSON.parse(status) as Status).dataPath!.drops).toMatchObject({ rx_drop_congestion: 1 })
    expect(await daemon.stop()).toBe(0)
  })

  it('sends what a kernel sends: every field of both headers', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    await start(a, 'kernel', { VNI: 0x12345 })
    await start(b, 'userspace', { VNI: 0x12345 })
    const [podA, podB] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
    await reach(podA.namespace, podB.address)
    const device = JSON.parse(await a.output('ip -j link show flannel.74565'.split(' '))) as [{ address: string }]
    expect(macOf(a)).toBe(device[0].address)
    const found = await captured(b, 8, () => answers(podA.namespace, podB.address, 4))
    const bytes = (mac: string): string => mac.replaceAll(':', '')
    const heads = found.map(({ frame }) => frame.subarray(0, 22).toString('hex'))
    const head = (to: Host, from: Host): string => `0800000001234500${bytes(macOf(to))}${bytes(macOf(from))}0800`
    // The kernel sends requests and weftd answers; they differ only in the addresses.
    expect(new Set(heads)).toEqual(new Set([head(b, a), head(a, b)]))
    for (const { frame } of found) expect(frame.readUInt16BE(22 + 2)).toBe(frame.length - 22)
    // The source port depends on the flow, and is not the listening port.
    for (const { port } of found) expect(port).not.toBe(8472)
  })

  it(
    'keeps a hundred connections under load while a host changes from one data path to the other and back',
    async () => {
      lab = await createLab({ hosts: 3 })
      const [a, b, c] = lab.hosts as [Host, Host, Host]
      await start(a, 'kernel')
      await start(b, 'userspace')
      let changing = await start(c, 'kernel')
      const mac = macOf(c)
      const [podA, podB, podC] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod, Pod]
      for (const pod of [podA, podB]) await reach(pod.namespace, podC.address)
      const program = [process.execPath, join(packageRoot, 'dist/test/support/conversations.js')]
      const server = podC.spawn([...program, 'answer', podC.address, '7000'])
      await once(createInterface({ input: server.stdout! }), 'line')
      const talkers = [podA, podB].map((pod) => {
        const child = pod.spawn([...program, 'talk', podC.address, '7000', '50'])
        let said = ''
        child.stderr!.on('data', (text: Buffer) => (said += text.toString()))
        let rounds = 0
        createInterface({ input: child.stdout! }).on('line', (line) => (rounds = Number(line)))
        return { child, rounds: () => rounds, said: () => said }
      })
      /** Waits until every connection of every client has advanced by some rounds. */
      async function goOn(): Promise<void> {
        const before = talkers.map(({ rounds }) => rounds())
        await eventually(() => {
          talkers.forEach(({ child, rounds, said }, index) => {
            if (child.exitCode !== null) throw new Error(`a talker ended: ${said()}`)
            expect(rounds()).toBeGreaterThan(before[index]! + 3)
          })
        })
      }
      await goOn()
      await iperfServer((command) => podC.spawn(command))
      const time = String((4 * EVENT_MS) / 1000)
      const load = podA.spawn(['iperf3', '--client', podC.address, '--time', time, '--bitrate', '200M'])
      load.stdout?.resume()
      for (const way of ['userspace', 'kernel', 'userspace'] as const) {
        expect(await changing.stop()).toBe(0)
        changing = await start(c, way)
        await goOn()
        expect(macOf(c)).toBe(mac)
        const shown = await c.output('ip -d link show flannel.1'.split(' '))
        expect(shown).toContain(way === 'kernel' ? 'vxlan id 1' : 'tun type tun')
      }
      for (const { child, said } of talkers) expect([child.exitCode, said()]).toEqual([null, ''])
      expect(load.exitCode, 'the load ended before the changes did').toBeNull()
    },
    4 * EVENT_MS,
  )

  it('with DirectRouting routes past the tunnel to hosts on the same link, and treats those routes as its own', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const direct = { DirectRouting: true }
    const daemon = await start(a, 'userspace', direct)
    await start(b, 'kernel', direct)
    const route = `${subnetOf(b)} via ${b.address} dev eth0`
    const routes = () => a.output('ip route show root 10.5.0.0/16'.split(' '))
    const wayOf = async (host: Host): Promise<unknown> => {
      const asked = ['curl', '-sS', '--unix-socket', host.statusSocket, 'http://weftd/status.json']
      return (JSON.parse(await host.output(asked)) as Status).peers!.list.map(({ way, endpoint }) => [way, endpoint])
    }
    await eventually(async () => expect(await routes()).toContain(route))
    await eventually(async () => expect(await wayOf(a)).toEqual([['direct', b.address]]))
    await eventually(async () => expect(await wayOf(b)).toEqual([['direct', a.address]]))
    await a.output(['ip', 'route', 'del', subnetOf(b)])
    await daemon.line(new RegExp(`Repaired: the route to ${subnetOf(b)} via`))
    expect(await routes()).toContain(route)
    const [podA, podB] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
    await reach(podA.namespace, podB.address)
    expect(daemon.lines.filter((line) => line.includes('bypass the tunnel'))).toEqual([])
  })
})

describe('a dual-stack cluster of both', () => {
  beforeEach(({ skip }) => needsKernelVxlan(skip))
  const BOTH = ['ipv4', 'ipv6'] as const
  type Side = (typeof BOTH)[number]
  const addressOf = (pod: Pod, family: Side): string => (family === 'ipv4' ? pod.address : pod.ipv6) ?? ''
  /** The bytes of the headers in front of the ICMP and TCP payload. */
  const [MTU, PING, TCP] = [
    { ipv4: 1450, ipv6: 1430 },
    { ipv4: 28, ipv6: 48 },
    { ipv4: 40, ipv6: 60 },
  ] as const

  /** The first host uses the kernel's data path, the second weftd's. */
  async function running(engine: readonly string[] = [], network: object = IPV6, options: object = {}) {
    lab = await createLab({ hosts: 2, families: BOTH })
    const [a, b] = lab.hosts as [Host, Host]
    const kernel = await start(a, 'kernel', options, {}, { network })
    const ours = await start(b, 'userspace', options, {}, { network, args: engine })
    const pods = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
    return { a, b, pods, daemons: [kernel, ours] as const }
  }
  /** Sends TCP in one and in parallel connections, and datagrams of one packet and of many. */
  async function streams(from: Pod, to: Pod, family: Side): Promise<void> {
    const server = await iperfServer((command) => to.spawn(command))
    const longest = String(MTU.ipv6 - TCP[family] + 12) // the payload of UDP, with an MTU that fits both families
    for (const args of [
      [],
      ['--length', '64K', '--parallel', '4'],
      ['--udp', '--bitrate', '50M', '--length', longest],
      ['--udp', '--bitrate', '20M', '--length', '8000'],
    ]) {
      const { bitsPerSecond } = await server.run(from.namespace, addressOf(to, family), 1, args)
      expect(bitsPerSecond, `${family} ${args.join(' ')}`).toBeGreaterThan(STALLED)
    }
    await server.stop()
  }

  it('has kernels and weftd exchange packets over each family without noticing the difference', async () => {
    const { a, b, pods, daemons } = await running()
    const [podA, podB] = pods
    for (const host of [a, b]) expect(host.subnetEnv()['FLANNEL_MTU']).toBe('1430')
    const shown = await a.output('ip -d link show flannel-v6.1'.split(' '))
    expect(shown).toMatch(
      /vxlan id 1 local fd77::1 dev eth0 .*dstport 8472 nolearning.* noudp6zerocsumtx noudp6zerocsumrx/,
    )
    // Each family has its own MAC, and the device's MTU equals the kernel's.
    const macs = [...leaseOfBoth(b).matchAll(/"VtepMAC":"([^"]+)"/g)].map(([, mac]) => mac)
    expect([new Set(macs).size, macs.length]).toEqual([2, 2])
    for (const [device, mtu] of [
      ['flannel.1', 1450],
      ['flannel-v6.1', 1430],
    ])
      for (const host of [a, b]) expect(await host.output(`ip link show ${device}`.split(' '))).toContain(`mtu ${mtu} `)
    const neighbours = await a.output('bridge fdb show dev flannel-v6.1'.split(' '))
    expect(neighbours).toContain(`${macs[1]} dst fd77::2 self permanent`)

    for (const family of BOTH) {
      for (const [from, to] of [pods, pods.toReversed()] as [Pod, Pod][]) {
        await reach(from.namespace, addressOf(to, family))
        const ping = (size: number, ...more: string[]) =>
          from.run(['ping', '-n', '-c', '1', '-W', '60', '-s', String(size), ...more, addressOf(to, family)])
        expect((await ping(1430 - PING[family], '-M', 'do')).code).toBe(0)
        const tooBig = await ping(1430 - PING[family] + 1, '-M', 'do')
        expect(tooBig.stdout + tooBig.stderr).toMatch(/message too long, mtu[:=] ?1430/)
        expect((await ping(60_000)).code).toBe(0)
        // The tunnel is a link and not a router: a packet that the kernel sends with TTL 3 arrives, and a lower TTL does not.
        expect((await ping(8, '-t', '3')).code).toBe(0)
        expect((await ping(8, '-t', '2')).stdout).toMatch(/Time to live exceeded|Hop limit/)
        await streams(from, to, family)
      }
      // Hosts reach each other too, with the addresses of their devices.
      const [subnetA, subnetB] = [a, b].map((host) =>
        family === 'ipv4' ? tunAddress(host) : host.subnetEnv()['FLANNEL_IPV6_SUBNET']!.replace('::1/64', '::'),
      ) as [string, string]
      await reach(a.namespace, subnetB)
      await reach(b.namespace, subnetA)
    }
    expect(daemons.flatMap(({ lines }) => lines.filter((line) => /^[EF]/.test(line)))).toEqual([])
    expect((await statusOf(b)).dataPath).toMatchObject({
      engine: 'native',
      device: 'flannel.1',
      devices: { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' },
      families: ['ipv4', 'ipv6'],
    })
    expect(podA.ipv6).not.toBe(podB.ipv6)
  })

  it.each([
    [
      'without offloads of the engine',
      ['udp-gso', 'udp-gro', 'tun-header'].flatMap((name) => ['--without', name]),
      undefined,
    ],
    ["without offloads of the hosts' interfaces", [], 'tx off gro off gso off tso off'],
    ['and a smaller MTU', [], 'mtu'],
  ])('also does so %s', async (_what, engine, offloads) => {
    const { a, b, pods } = await running(engine, IPV6, offloads === 'mtu' ? { MTU: 1400 } : {})
    if (offloads === 'mtu') expect(b.subnetEnv()['FLANNEL_MTU']).toBe('1330')
    else if (offloads !== undefined)
      for (const host of [a, b]) await host.output(['ethtool', '-K', 'eth0', ...offloads.split(' ')])
    for (const family of BOTH)
      for (const [from, to] of [pods, pods.toReversed()] as [Pod, Pod][]) {
        await reach(from.namespace, addressOf(to, family))
        await streams(from, to, family)
      }
  })

  it('uses IPv6 only if the network has only IPv6', async () => {
    const { b, pods } = await running([], { Network: undefined, EnableIPv4: false, ...IPV6 })
    await reach(pods[0].namespace, pods[1].ipv6 ?? '')
    expect((await b.run(['ip', 'link', 'show', 'flannel.1'])).code).toBe(1)
    expect(leaseOfBoth(b)).toMatch(
      /^\{"PublicIP":"0\.0\.0\.0","PublicIPv6":"fd77::2","BackendType":"vxlan","BackendData":null,"BackendV6Data":\{"VNI":1,"VtepMAC":"[\da-f:]+"\}\}$/,
    )
  })

  it('sends over IPv6 what a kernel sends, with the UDP checksum that a kernel requires', async () => {
    const { a, b, pods } = await running()
    await reach(pods[0].namespace, pods[1].ipv6 ?? '')
    // Without offloads the captured packets equal those on a wire.
    for (const host of [a, b]) await host.output('ethtool -K eth0 tx off gro off'.split(' '))
    const macs = Object.fromEntries([a, b].map((host) => [host.name, macsOf(host)[1]!.replaceAll(':', '')]))
    const found = await captured6(a, 8, () => answers(pods[0].namespace, pods[1].ipv6!, 4))
    expect(found.map(({ isRight }) => isRight)).toEqual(Array(8).fill(true))
    const heads = found.map(({ frame }) => frame.subarray(0, 22).toString('hex'))
    const head = (to: Host, from: Host): string => `0800000000000100${macs[to.name]}${macs[from.name]}86dd`
    expect(new Set(heads)).toEqual(new Set([head(b, a), head(a, b)]))
    for (const { frame } of found) expect(frame.readUInt16BE(22 + 4)).toBe(frame.length - 22 - 40)
    for (const { port } of found) expect(port).not.toBe(8472)
  })

  it('counts the drops of each family, once, and watches the threads of both', async () => {
    const { b, pods, daemons } = await running(['--workers', '2'], { ...IPV6, ...APART })
    for (const family of BOTH) await reach(pods[1].namespace, addressOf(pods[0], family))
    const NOBODYS = ['10.5.1.9', 'fd00:5:0:1::9'] as const
    // Some pings that reached the peer may have arrived before its lease was known.
    const toNobody = (text: string): readonly string[] =>
      [...text.matchAll(/ > \[?([^\] ]+)\]? .*: no peer has the destination/g)]
        .map(([, to]) => to!)
        .filter((to) => (NOBODYS as readonly string[]).includes(to))
    const lost = async () => toNobody((await weft(b, ['capture', '--reason', 'no_route'])).stdout)
    const following = b.spawn(weftOf(b, ['capture', '--follow', '--reason', 'no_route']))
    let received = ''
    following.stdout!.on('data', (text: Buffer) => (received += text.toString()))
    const pinged: string[] = []
    for (const address of [...NOBODYS, ...NOBODYS]) {
      await pods[1].run(['ping', '-n', '-c', '1', '-W', '1', address])
      pinged.push(address)
      await eventually(async () => expect(await lost()).toEqual(pinged))
      await eventually(() => expect(toNobody(received)).toEqual(pinged))
    }
    following.kill('SIGINT')
    const { pid = 0 } = daemons[1].process
    const loops = [...threadNames(pid).values()].filter((name) => name.startsWith('weft-loop'))
    expect(loops).toHaveLength(4)
    // An unknown sender over IPv6 is logged.
    const packet = Buffer.concat([
      Buffer.from(`0800000000000100${macsOf(b)[1]!.replaceAll(':', '')}02000000009986dd`, 'hex'),
      ipv6Packet(parseIpv6('fd00:5:0:1::9')!, parseIpv6(pods[1].ipv6!)!, Buffer.alloc(16), { protocol: 17 }),
    ])
    const script = `require('node:dgram').createSocket('udp6').send(Buffer.from('${packet.toString('hex')}', 'hex'), 8472, 'fd77::2', () => process.exit())`
    await lab.hosts[0]!.output([process.execPath, '-e', script])
    await daemons[1].line(/Packets from fd77::1 are not let in: no lease assigns fd00:5:0:1::9 to this sender/)
    // A thread that hangs is named with its family.
    const thaw = await freezeThread(b, pid, loops[0]!)
    await daemons[1].line(new RegExp(`The thread IPv[46]: ${loops[0]} hangs`))
    await thaw()
    await daemons[1].line(new RegExp(`The thread IPv[46]: ${loops[0]} is alive again`))
  })
})

it('with both families finds the path MTU to a peer over each family, and uses it', async () => {
  lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
  const [a, b] = lab.hosts as [Host, Host]
  // Longer packets are dropped without an ICMP error.
  const hole = `table inet hole {
    chain in { type filter hook prerouting priority -400; udp dport 8472 meta length gt 1400 drop; }
  }`
  for (const host of [a, b]) {
    await host.output(['ethtool', '-K', 'eth0', 'tx-udp-segmentation', 'off'])
    await host.output(['nft', '-f', '-'], { input: hole })
  }
  const [daemon] = (await Promise.all(
    [a, b].map((host) => start(host, 'userspace', { ProbePathMTU: true }, {}, { network: IPV6 })),
  )) as [Daemon]
  const [podA, podB] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
  const fits = { ipv4: 1400 - 50, ipv6: 1400 - 70 }
  await Promise.all(
    Object.values(fits).map((bytes) => daemon.line(new RegExp(`Packets of more than ${bytes} bytes do not reach`))),
  )
  for (const [address, bytes, headers] of [
    [podB.address, fits.ipv4, 28],
    [podB.ipv6!, fits.ipv6, 48],
  ] as const) {
    const probe = async (size: number) =>
      (await podA.run(['ping', '-n', '-c', '1', '-W', '5', '-M', 'do', '-s', String(size - headers), address])).stdout
    await eventually(async () => expect(await probe(bytes)).toContain('1 received'))
    await eventually(async () => expect(await probe(bytes + 1)).toMatch(new RegExp(`mtu ?[=:] ?${bytes}`)))
  }
  const { peers } = await statusOf(a)
  expect(Object.values(peers!.list[0]!.families).map((side) => side!.pathMtu)).toEqual([fits.ipv4, fits.ipv6])
  const server = await iperfServer((command) => podB.spawn(command))
  for (const address of [podB.address, podB.ipv6!])
    expect((await server.run(podA.namespace, address, 1)).bitsPerSecond).toBeGreaterThan(STALLED)
  await server.stop()
})

describe('who carries it', () => {
  it('is weftd if the kernel has no vxlan; weftd logs that, and keeps its MAC after a restart', async () => {
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const env = WITHOUT_VXLAN
    const daemon = await start(a, undefined, {}, env)
    await daemon.line(
      /VXLAN is carried by weftd itself: this kernel has no device of type vxlan \(.*Unknown device type\.\)\)$/,
    )
    await start(b, 'userspace')
    await reach(a.namespace, tunAddress(b))
    const mac = macOf(a)
    expect(await daemon.stop()).toBe(0)
    // If nothing of the device is left on the host, the MAC comes from the lease.
    await a.output('ip link del flannel.1'.split(' '))
    rmSync(`${a.subnetFile}.last-known`)
    await start(a, undefined, {}, env)
    expect(macOf(a)).toBe(mac)
    await reach(b.namespace, tunAddress(a))
  })

  it('is weftd for both families if the kernel has no vxlan, and a host keeps its MACs and subnets if it changes the data path', async ({
    skip,
  }) => {
    await needsKernelVxlan(skip)
    lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
    const [a, b] = lab.hosts as [Host, Host]
    const without = WITHOUT_VXLAN
    let changing = await start(a, undefined, {}, without, { network: IPV6 })
    await changing.line(/VXLAN is carried by weftd itself: this kernel has no device of type vxlan/)
    await start(b, 'kernel', {}, {}, { network: IPV6 })
    const [podA, podB] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
    const lease = leaseOfBoth(a)
    const kinds = (): Promise<string[]> =>
      Promise.all(
        ['flannel.1', 'flannel-v6.1'].map(async (name) => {
          const [link] = JSON.parse(await a.output(`ip -d -j link show ${name}`.split(' '))) as [
            { linkinfo: { info_kind: string } },
          ]
          return link.linkinfo.info_kind
        }),
      )
    for (const way of ['tun', 'vxlan', 'tun'] as const) {
      for (const address of [podB.address, podB.ipv6!]) await reach(podA.namespace, address)
      expect([await kinds(), leaseOfBoth(a)]).toEqual([[way, way], lease])
      // The next daemon takes over from the running one.
      const next = await start(a, way === 'tun' ? 'kernel' : 'userspace', {}, {}, { network: IPV6 })
      await changing.line(/Ending: another weftd has taken over/)
      await ended(changing.process)
      changing = next
    }
    for (const address of [podA.address, podA.ipv6!]) await reach(podB.namespace, address)
  })

  it('is the kernel if it supports vxlan; weftd ends if the kernel is required and does not support it', async ({
    skip,
  }) => {
    await needsKernelVxlan(skip)
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts as [Host]
    const daemon = await start(host, undefined)
    await daemon.line(/VXLAN is carried by the kernel$/)
    await daemon.stop()
    const asked = await start(host, undefined, { ProbePathMTU: true })
    await asked.line(/VXLAN is carried by the kernel, .*: "ProbePathMTU" is ignored$/)
    await asked.stop()
    await host.output('ip link del flannel.1'.split(' '))
    rmSync(join(leases(), 'subnets'), { recursive: true })
    configure('kernel')
    const env = WITHOUT_VXLAN
    const refused = host.startDaemon({ args: ['--lease-dir', leases()], env })
    await refused.line(/this kernel has no device of type vxlan \(.*\); load its module \(`modprobe vxlan`\)/)
    await ended(refused.process)
    expect(refused.process.exitCode).toBe(1)
  })

  it('needs the native engine', async () => {
    lab = await createLab({ hosts: 1 })
    configure('userspace')
    const daemon = lab.hosts[0]!.startDaemon({ args: ['--lease-dir', leases(), '--engine', 'dgram'] })
    await daemon.line(/the dgram engine does not speak vxlan; run weftd with --engine native/)
    await ended(daemon.process)
    expect(daemon.process.exitCode).toBe(1)
  })

  it('reaches a kernel without the offloads of the TUN', async ({ skip }) => {
    await needsKernelVxlan(skip)
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    await start(a, 'kernel')
    configure('userspace')
    const daemon = b.startDaemon({ args: ['--lease-dir', leases(), '--without', 'tun-header'] })
    await daemon.line(/flannel is ready/)
    const [podA, podB] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
    await reach(podA.namespace, podB.address)
    for (const [from, to] of [
      [podA, podB],
      [podB, podA],
    ] as const) {
      const server = await iperfServer((command) => to.spawn(command))
      expect((await server.run(from.namespace, to.address, 1)).bitsPerSecond).toBeGreaterThan(STALLED)
      await server.stop()
    }
  })
})

it.for(['kernel', 'userspace'] as const)(
  'loses no packet over overlapping restarts if weft chooses the data path: %s',
  async (carrier, { skip }) => {
    if (carrier === 'kernel') await needsKernelVxlan(skip)
    lab = await createLab({ hosts: 2 })
    const [a, b] = lab.hosts as [Host, Host]
    const env = carrier === 'kernel' ? {} : WITHOUT_VXLAN
    let daemon = await start(a, undefined, {}, env)
    await daemon.line(carrier === 'kernel' ? /VXLAN is carried by the kernel$/ : /VXLAN is carried by weftd itself/)
    await start(b, 'userspace')
    const [podA, podB] = (await Promise.all(lab.hosts.map((host) => host.startPod()))) as [Pod, Pod]
    await reach(podA.namespace, podB.address)
    const pings = [pinging(podA, podB), pinging(podB, podA)]
    for (let restarts = 0; restarts < 3; restarts++) {
      const next = await start(a, undefined, {}, env)
      await daemon.line(/Ending: another weftd has taken over/)
      await ended(daemon.process)
      daemon = next
    }
    for (const each of pings) expect(await each.stop()).toMatchObject({ lost: 0, errors: 0 })
  },
)

it('names the device that has the port, and leaves no device of its own', async ({ skip }) => {
  const why = await whyNoVxlan()
  skip(why !== undefined, why)
  lab = await createLab({ hosts: 1 })
  const [host] = lab.hosts as [Host]
  await host.output(['ip', 'link', 'add', 'cilium_vxlan', 'type', 'vxlan', 'external', 'dstport', '8472'])
  await host.output(['ip', 'link', 'set', 'cilium_vxlan', 'up'])
  configure('kernel')
  const daemon = host.startDaemon({ args: ['--lease-dir', leases()] })
  await daemon.line(
    /Error registering network: UDP port 0\.0\.0\.0:8472 is taken by the device cilium_vxlan \(vxlan\); remove that device .*, or set another "Port" in Backend/,
  )
  await ended(daemon.process)
  expect(daemon.process.exitCode).toBe(1)
  expect((await host.run(['ip', 'link', 'show', 'dev', 'flannel.1'])).code).toBe(1)
  // A device on another port does not conflict.
  const other = await start(host, 'kernel', { Port: 8473 })
  expect(await other.stop()).toBe(0)
})
