// filter.test.ts - the source filter: a host without a lease sends all kinds of packets from the underlay. None reaches the TUN, peers keep
// talking, and each refused sender is logged once.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { createLab, EVENT_MS, networkOf, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { parseIpv6 } from '../../src/net/ipv6.ts'
import { eventually } from '../support/event.ts'
import { buildForge, type Forge } from '../support/forge.ts'
import { added, answers, statusOf, subnetOf, tunAddress } from '../support/hosts.ts'
import { BUILD_MS } from '../support/native-program.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { ipv4Packet, ipv6Packet, udpDatagram } from '../support/packets.ts'

const lacks = needs(HOSTS, 'g++', 'iperf3', 'ping')

let forge: Forge
beforeAll(async () => {
  if (!lacks) forge = await buildForge()
}, BUILD_MS)
afterAll(() => forge?.close())
let lab: Lab
afterEach(() => lab?.close())

const leases = (): string => join(lab.folder, 'leases')
function configure(backend: object, more: object = {}): void {
  mkdirSync(leases(), { recursive: true })
  writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend, ...more }))
}
async function start(host: Host, ...more: string[]): Promise<Daemon> {
  const daemon = host.startDaemon({ args: ['--lease-dir', leases(), ...more] })
  await daemon.line(/flannel is ready/)
  return daemon
}

const LONG = process.env['WEFT_LONG'] === '1'
/** The number of an attacker's datagrams to each engine: a million in total, or 50,000. */
const FORGED = LONG ? 250_000 : 12_500
/** The datagrams of a burst, most of which fit into a socket's buffer. */
const BURST = 2_500

/** Returns the kernel's count of datagrams that did not fit into the socket's buffer. */
async function overflow(host: Host, port: number): Promise<number> {
  const text = await host.output(['cat', '/proc/net/udp'])
  const own = text.split('\n').filter((line) => line.includes(`:${port.toString(16).toUpperCase()} 00000000:`))
  return own.reduce((sum, line) => sum + Number(line.trim().split(/\s+/).at(-1)), 0)
}

/** Yields damaged copies of a datagram; the header reveals each damage. */
function* mangled(datagram: Buffer, header: number): Generator<Buffer> {
  for (let bit = 0; bit < 20 * 8; bit++) {
    const copy = Buffer.from(datagram)
    copy.writeUInt8(copy.readUInt8(header + (bit >> 3)) ^ (1 << (bit & 7)), header + (bit >> 3))
    yield copy
  }
  for (let size = 0; size < datagram.length; size++) yield datagram.subarray(0, size)
}

const MARK = 6666
function packet(from: string, to: string): Buffer {
  const [source, destination] = [parseIpv4(from)!, parseIpv4(to)!]
  return ipv4Packet({ source, destination, payload: udpDatagram(source, destination, 1, MARK, Buffer.from(from)) })
}

/** An address in a subnet without a lease. */
const NOBODYS = '10.5.0.7'
/** Returns packets that an attacker may send to a container of the first host over IPv4, also with source addresses of the second. */
function packetsOf([victim, peer, attacker]: readonly [Host, Host, Host], ours: string, peers: string): Buffer[] {
  return [
    ...[peers, tunAddress(peer), NOBODYS, ours, tunAddress(victim)].map((source) => packet(source, ours)),
    ...[attacker.address, victim.address, peer.address, '8.8.8.8'].map((source) => packet(source, ours)),
    ...['127.0.0.1', '224.0.0.1', '255.255.255.255', '0.0.0.0'].map((source) => packet(source, ours)),
    ...[NOBODYS, peers, victim.address, '224.0.0.1', '255.255.255.255', '127.0.0.1'].map((to) => packet(peers, to)),
    packet(peers, tunAddress(victim)),
    packet(attacker.address, tunAddress(victim)),
  ]
}

/** Returns a VXLAN header and an Ethernet header that are right for a host, with VNI 1. */
async function vxlanHeader(host: Host): Promise<Buffer> {
  const lease = await host.output(['cat', join(leases(), 'subnets', subnetOf(host).replace('/', '-'))])
  const mac = /"VtepMAC":"([^"]+)"/.exec(lease)![1]!.replaceAll(':', '')
  return Buffer.from(`0800000000000100${mac}020000000099`, 'hex')
}

/** Returns the MACs that a host publishes for its vxlan devices, IPv4 first, in hex; none for another backend. */
async function macsOf(host: Host): Promise<string[]> {
  const subnet = networkOf(host.subnetEnv()['FLANNEL_IPV6_SUBNET']!).replace('/', '-')
  const lease = await host.output(['sh', '-c', `cat ${join(leases(), 'subnets')}/*'&${subnet}'`])
  return [...lease.matchAll(/"VtepMAC":"([^"]+)"/g)].map(([, mac]) => mac!.replaceAll(':', ''))
}

/** Returns the kernel's count of packets that weftd wrote to the TUN. */
async function written(host: Host, device: string): Promise<number> {
  const text = await host.output(['ip', '-s', '-j', 'link', 'show', device])
  return (JSON.parse(text) as [{ stats64: { rx: { packets: number } } }])[0].stats64.rx.packets
}

const CASES = [
  { engine: 'native', backend: { Type: 'udp' }, port: 8285, device: 'flannel0' },
  { engine: 'dgram', backend: { Type: 'udp' }, port: 8285, device: 'flannel0' },
  { engine: 'native', backend: { Type: 'vxlan', DataPath: 'userspace' }, port: 8472, device: 'flannel.1' },
] as const

it.each(CASES)(
  'no packet of an attacker reaches $backend.Type with the $engine engine',
  async ({ engine, backend, port, device }) => {
    lab = await createLab({ hosts: 3 })
    const [victim, peer, attacker] = lab.hosts as [Host, Host, Host]
    configure(backend)
    // With one lane the earlier packets in its socket have been handled when a later packet arrives.
    const daemon = await start(victim, '--engine', engine, '--workers', '1')
    await start(peer, '--engine', engine)
    const [inside, other] = (await Promise.all([victim, peer].map((host) => host.startPod()))) as [Pod, Pod]
    await reach(other.namespace, inside.address)

    const [ours, peers] = [inside.address, other.address]
    const packets = packetsOf(lab.hosts as [Host, Host, Host], ours, peers)
    const header = backend.Type === 'vxlan' ? await vxlanHeader(victim) : undefined
    const enclose = (type: number, inner: Buffer): Buffer =>
      header ? Buffer.concat([header, Buffer.from([type >> 8, type & 255]), inner]) : inner
    const version6 = Buffer.concat([Buffer.from([0x60, 0, 0, 0, 0, 8, 17, 64]), Buffer.alloc(40, 0xfd)])
    const whole = packets.map((each) => enclose(0x0800, each))
    const damaged = [
      ...mangled(whole[0]!, header ? header.length + 2 : 0),
      Buffer.from('nothing'),
      Buffer.alloc(60, 0xff),
    ]
    const forged = [...whole, enclose(0x86dd, version6), ...damaged]

    // Without other traffic. The peer sends damaged datagrams too.
    const PINGS = 5
    const before = await written(victim, device)
    const lost = await overflow(victim, port)
    let taken = 0
    while (taken < FORGED) taken += await forge.send(attacker, victim, port, forged, BURST)
    taken += await forge.send(peer, victim, port, damaged, BURST)
    await answers(other.namespace, ours, PINGS)
    expect((await written(victim, device)) - before).toBe(PINGS)
    const unseen = (await overflow(victim, port)) - lost
    expect(unseen).toBeLessThan(taken / 2) // otherwise almost nothing was tested
    if (LONG) console.log(`${engine} ${backend.Type}: ${taken} forged, ${unseen} beyond the buffer, 0 in`)

    // A stream runs meanwhile, and must continue.
    const listen = `const socket = require('node:dgram').createSocket('udp4')
  socket.on('message', (text, { address }) => console.log(address)).bind(${MARK}, () => console.log('listening'))`
    const listeners = [inside, victim].map((place) => place.spawn([process.execPath, '-e', listen]))
    let received = ''
    for (const { stdout } of listeners) stdout!.on('data', (text: Buffer) => (received += text.toString()))
    await eventually(() => expect(received).toBe('listening\nlistening\n'))
    const server = await iperfServer((command) => inside.spawn(command))
    const alone = LONG ? (await server.run(other.namespace, ours, 3)).bitsPerSecond : 0
    const stream = { isOver: false }
    const streamed = server.run(other.namespace, ours, 3).finally(() => (stream.isOver = true))
    do await forge.send(attacker, victim, port, forged, BURST)
    while (!stream.isOver)
    const { bitsPerSecond } = await streamed
    expect(bitsPerSecond).toBeGreaterThan(0)
    if (LONG)
      console.log(`${engine} ${backend.Type}: ${bitsPerSecond / 1e9} Gbit/s beside them, ${alone / 1e9} without`)
    await server.stop()
    await other.output([
      process.execPath,
      '-e',
      `require('node:dgram').createSocket('udp4').send('x', ${MARK}, '${ours}', () => process.exit())`,
    ])
    await eventually(() => expect(received).toContain(peers))
    expect(received).toBe(`listening\nlistening\n${peers}\n`)

    // Each refused sender is logged once.
    await daemon.line(/Packets from 192\.168\.77\.3 are not let in: no lease assigns /)
    await daemon.line(
      new RegExp(
        `Packets from 192\\.168\\.77\\.3 are not let in: (they claim to be from |${peers}|${tunAddress(peer)} belongs to the node at 192\\.168\\.77\\.2)`,
      ),
    )
    expect(daemon.lines.filter((line) => line.includes('192.168.77.3 are not let in: no lease assigns'))).toHaveLength(
      1,
    )
    expect(daemon.lines.filter((line) => line.includes('Packets from 192.168.77.3'))).toHaveLength(2)
    expect(await daemon.stop()).toBe(0)
  },
)

it('a container without privileges can send in the name of its node, until the rule in docs/firewalls.md drops its datagrams', async () => {
  lab = await createLab({ hosts: 2 })
  const [victim, peer] = lab.hosts as [Host, Host]
  configure({ Type: 'udp' })
  await Promise.all([start(victim), start(peer, '--ip-masq')])
  const [inside, other] = (await Promise.all([victim, peer].map((host) => host.startPod()))) as [Pod, Pod]
  await reach(other.namespace, inside.address)
  const listen = `require('node:dgram').createSocket('udp4')
  .on('message', (text, { address }) => console.log(address)).bind(${MARK}, () => console.log('listening'))`
  let received = ''
  inside.spawn([process.execPath, '-e', listen]).stdout!.on('data', (text: Buffer) => (received += text.toString()))
  await eventually(() => expect(received).toBe('listening\n'))

  const NOBODY = ['setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups', '--bounding-set', '-all']
  const send = (payload: Buffer, port: number, to: string): Promise<string> =>
    other.output([
      ...NOBODY,
      process.execPath,
      '-e',
      `require('node:dgram').createSocket('udp4').send(Buffer.from('${payload.toString('hex')}', 'hex'), ${port}, '${to}', () => process.exit())`,
    ])
  const sendFrom = (source: string): Promise<string> => send(packet(source, inside.address), 8285, victim.address)
  // The address of another container of the same node, and an address outside of the network.
  const forged = [other.address.replace(/\d+$/, '77'), '8.8.8.8']
  for (const source of forged) await sendFrom(source)
  await eventually(() => expect(received.trim().split('\n').toSorted()).toEqual(['listening', ...forged].toSorted()))

  const [rule = ''] =
    /^iptables -I FORWARD -p udp --dport 8285 -j DROP/m.exec(readFileSync('docs/firewalls.md', 'utf8')) ?? []
  await peer.output(rule.split(' '))
  for (const source of [other.address.replace(/\d+$/, '78'), '9.9.9.9']) await sendFrom(source)
  await send(Buffer.from('x'), MARK, inside.address)
  await eventually(() => expect(received).toMatch(new RegExp(`\n${other.address}\n`)))
  expect(received.trim().split('\n')).toHaveLength(4)
})

/** The number of an attacker's datagrams of both families to each engine. */
const FORGED_OF_BOTH = LONG ? 1_000_000 : 20_000

const OF_BOTH: readonly (readonly [name: string, engine: string, backend: object, devices: readonly string[]])[] = [
  ['udp', 'native', { Type: 'udp' }, ['flannel0']],
  ['udp over IPv6', 'native', { Type: 'udp', Underlay: 'ipv6' }, ['flannel0']],
  ['vxlan', 'native', { Type: 'vxlan', DataPath: 'userspace' }, ['flannel.1', 'flannel-v6.1']],
]

it.each(OF_BOTH)(
  'no forged packet of either family reaches the TUN of %s by the %s engine, and each is counted',
  async (name, engine, backend, devices) => {
    lab = await createLab({ hosts: 4, families: ['ipv4', 'ipv6'] })
    const [victim, peer, old, attacker] = lab.hosts as [Host, Host, Host, Host]
    configure(backend, {
      SubnetMin: '10.5.16.0',
      SubnetMax: '10.5.239.0',
      EnableIPv6: true,
      IPv6Network: 'fd00:5::/48',
      IPv6SubnetMin: 'fd00:5:0:10::',
    })
    // A node without an IPv6 subnet, like a node of flanneld.
    const isUdp = name !== 'vxlan'
    mkdirSync(join(leases(), 'subnets'))
    if (isUdp)
      writeFileSync(
        join(leases(), 'subnets', '10.5.250.0-24'),
        JSON.stringify({ PublicIP: old.address, PublicIPv6: null }),
      )
    const daemon = await start(victim, '--engine', engine, '--workers', '1')
    await start(peer, '--engine', engine)
    if (isUdp) await daemon.line(added('10.5.250.0/24'))
    const [inside, other] = (await Promise.all([victim, peer].map((host) => host.startPod()))) as [Pod, Pod]
    const [ours, peers] = [inside.ipv6 ?? '', other.ipv6 ?? '']
    for (const address of [inside.address, ours]) await reach(other.namespace, address)
    // The kernel answers requests to its own device, and may send some itself.
    const six = (from: string, to = ours, payload: Buffer = Buffer.alloc(16), protocol = 17, hopLimit = 64): Buffer =>
      ipv6Packet(parseIpv6(from)!, parseIpv6(to)!, payload, { protocol, hopLimit })
    const bytes = (hex: string): Buffer => Buffer.from(hex.replaceAll(' ', ''), 'hex')
    const tunOf = (host: Host): string => host.subnetEnv()['FLANNEL_IPV6_SUBNET']!.replace('::1/64', '::')
    /** Packets whose source is not an address of the sender. */
    const forged = [
      peers,
      tunOf(peer),
      'fd00:5:0:1::7',
      ours,
      tunOf(victim),
      '2001:db8::7',
      attacker.ipv6,
      old.ipv6,
      victim.ipv6,
      'fe80::1',
      '::',
      '::1',
      'ff02::1',
      '::ffff:10.5.1.2',
      '::10.5.1.2',
    ].map((source) => six(source))
    const redirect = Buffer.concat([bytes('89 00 0000 00000000'), Buffer.alloc(32, 0xfd)])
    /** Invalid packets, which are dropped even from the peer. */
    const unsound = [
      ...[tunOf(victim), 'fe80::1', '::', '::1', 'ff02::1', '::ffff:10.5.1.2'].map((source) => six(source)),
      ...['fd00:5:0:1::7', 'ff02::1', 'fe80::1', '::1', victim.ipv6, peers].map((to) => six(peers, to)),
      // Router solicitation and advertisement, neighbour solicitation and advertisement, and redirect (RFC 4861), each in a form that a
      // link would accept.
      ...[133, 134, 135, 136, 137].map((type) =>
        six(peers, ours, Buffer.concat([Buffer.from([type, 0]), Buffer.alloc(38)]), 58, 255),
      ),
      six(peers, ours, redirect, 58, 255),
      six(peers, ours, bytes('11 02 00 01 00000000 00000000000000000000000000000000'), 43), // source route, type 0
      six(peers, ours, bytes('11 02 04 01 00000000 00000000000000000000000000000000'), 43), // a header that leads to another one
      six(
        peers,
        ours,
        Buffer.concat([
          ...Array.from({ length: 8 }, () => bytes('3c 00 01 04 00000000')),
          bytes('11 00 01 04 00000000'),
        ]),
        60,
      ),
      six(peers, ours, bytes('11 ff 01 04 00000000'), 60), // longer than the packet
      six(peers, ours, bytes('06 00 00 01 00000001 0001020304050607'), 44), // a first fragment that hides the TCP header
      six(peers, ours, bytes('06 00 00 08 00000001 0001020304050607'), 44), // a fragment that overlaps the first one
      six(peers, ours, bytes('3b 00 c2 04 00010000'), 0), // a jumbogram
      // Extension headers that are cut off.
      ...[0, 43, 44, 60].flatMap((protocol) =>
        [0, 1, 2, 7].map((size) => six(peers, ours, bytes('11 00 01 04 00000000').subarray(0, size), protocol)),
      ),
    ]
    const ipv4 = packetsOf([victim, peer, attacker], inside.address, other.address)
    const macs = await macsOf(victim)
    /** Returns the datagrams with their destinations, over IPv4 and over IPv6. */
    const sent = (four: readonly Buffer[], ipv6: readonly Buffer[]): [to: string, datagrams: Buffer[]][] => {
      if (name !== 'vxlan') return [victim.address, victim.ipv6].map((to) => [to, [...four, ...ipv6]])
      const frame = (mac: string, type: string, inner: Buffer): Buffer =>
        Buffer.concat([Buffer.from(`0800000000000100${mac}020000000099${type}`, 'hex'), inner])
      const framed = (mac = ''): Buffer[] => [
        ...four.map((inner) => frame(mac, '0800', inner)),
        ...ipv6.map((inner) => frame(mac, '86dd', inner)),
      ]
      // Each family also arrives in the tunnel of the other.
      return [
        [victim.address, framed(macs[0])],
        [victim.ipv6, framed(macs[1])],
      ]
    }
    const port = name === 'vxlan' ? 8472 : 8285
    const writtenToAll = async (): Promise<number> =>
      (await Promise.all(devices.map((device) => written(victim, device)))).reduce((sum, each) => sum + each)
    const drops = async (): Promise<[string, number][]> =>
      Object.entries((await statusOf(victim)).dataPath!.counters).filter(
        ([reason, count]) => reason.startsWith('rx_drop') && count > 0,
      )
    let taken = 0
    /** Sends `count` datagrams in bursts that mostly fit a socket's buffer. Each is dropped for some reason. */
    async function send(
      from: Host,
      all: readonly (readonly [string, readonly Buffer[]])[],
      count: number,
    ): Promise<void> {
      for (const [to, datagrams] of all)
        for (let left = Math.ceil(count / all.length); left > 0; left -= BURST) {
          taken += await forge.send(from, to, port, datagrams, Math.min(left, BURST))
          await eventually(async () => expect((await drops()).reduce((sum, [, each]) => sum + each, 0)).toBe(taken))
        }
    }

    const before = await writtenToAll()
    const PINGS = 5
    const whole = [...forged, ...unsound]
    const damaged4 = [...mangled(ipv4[0]!, 0), Buffer.from('nothing'), Buffer.alloc(60, 0xff)]
    const damaged6 = [...mangled(whole[0]!, 0), ...mangled(six(peers, ours, bytes('11 00 01 04 00000000'), 60), 20)]
    if (isUdp) {
      await send(old, sent([], whole), 10 * whole.length)
      await daemon.line(
        /Packets from 192\.168\.77\.3 are not let in: no lease assigns 2001:db8::7 to this sender|Packets from 192\.168\.77\.3 are not let in: fd00:5:/,
      )
    }
    await send(attacker, sent([...ipv4, ...damaged4], [...whole, ...damaged6]), FORGED_OF_BOTH)
    const few = name === 'vxlan' ? sent([], unsound).slice(-1) : sent([], unsound)
    await send(peer, few, 10 * unsound.length)
    if (isUdp)
      expect(
        (await drops())
          .map(([reason]) => reason)
          .filter((reason) => !reason.endsWith('socket_full'))
          .toSorted(),
      ).toEqual([
        'rx_drop_checksum',
        'rx_drop_destination',
        'rx_drop_fragment',
        'rx_drop_malformed',
        'rx_drop_not_ours',
        'rx_drop_options',
        'rx_drop_spoofed_source',
        'rx_drop_unknown_sender',
      ])
    for (const address of [inside.address, ours]) await answers(other.namespace, address, PINGS)
    expect((await writtenToAll()) - before).toBe(2 * PINGS)
    if (isUdp) {
      // A peer that is accepted over IPv4 is not accepted over IPv6, and receives no IPv6 packets.
      expect(await victim.run(['ping', '-c', '1', '-W', '1', 'fd00:5:0:fa00::1'])).toMatchObject({ code: 1 })
      const seen = (await statusOf(victim)).peers!.list.find(({ subnet }) => subnet === '10.5.250.0/24')
      expect(seen!.families).toMatchObject({ ipv6: null })
    }
    const unseen = new Map(await drops()).get('rx_drop_socket_full') ?? 0
    expect(unseen).toBeLessThan(taken / 2) // otherwise almost nothing was tested
    if (LONG) console.log(`${engine} ${name}: ${taken} forged, ${unseen} beyond the buffer, 0 in`)
    expect(await daemon.stop()).toBe(0)
  },
  LONG ? 20 * EVENT_MS : undefined,
)

it('a peer that sends from another address than it publishes is logged once, and accepted with "inner"', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  configure({ Type: 'udp' })
  const strict = await start(a)
  await start(b, '--public-ip', '192.168.77.9')
  await strict.line(added(b))
  const ping = b.spawn(['ping', '-n', '-i', '0.2', tunAddress(a)])
  await strict.line(
    /Packets from 192\.168\.77\.2 are not let in: 10\.5\.\d+\.0 belongs to the node at 192\.168\.77\.9\. .*set "VerifySource": "inner"/,
  )
  expect(await written(a, 'flannel0')).toBe(0)
  expect(await strict.stop()).toBe(0)

  configure({ Type: 'udp', VERIFYSOURCE: 'inner' })
  const inner = await start(a)
  await inner.line(added(b))
  await eventually(async () => expect(await written(a, 'flannel0')).toBeGreaterThan(5))
  expect(inner.lines.filter((line) => line.includes('are not let in'))).toEqual([])
  ping.kill()
})

it('a wrong value of VerifySource is an error that lists the valid values', async () => {
  lab = await createLab({ hosts: 1 })
  configure({ Type: 'udp', VerifySource: 'yes' })
  const daemon = lab.hosts[0]!.startDaemon({ args: ['--lease-dir', leases()] })
  await daemon.line(/Backend\.VerifySource is "yes"; give it one of strict, inner, off, or leave it out/)
})
