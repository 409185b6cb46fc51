// flood.test.ts - packets that must not circulate for ever in a tunnel inside itself, and work that must continue while packets arrive
// without a pause.

import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { setPriority } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import type { Status } from '../../src/report/status.ts'
import { eventually } from '../support/event.ts'
import { buildForge, type Forge } from '../support/forge.ts'
import { added, removed, statusOf, subnetOf, tunAddress } from '../support/hosts.ts'
import { BUILD_MS } from '../support/native-program.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { ipv4Packet, udpDatagram } from '../support/packets.ts'

const lacks = needs(HOSTS, 'g++', 'ping', 'curl')

let forge: Forge
beforeAll(async () => {
  if (!lacks) forge = await buildForge()
}, BUILD_MS)
afterAll(() => forge?.close())
let lab: Lab
afterEach(() => lab?.close())

const leases = (): string => join(lab.folder, 'leases')
/** No node draws a subnet below SubnetMin, so the tests' own peers and unleased addresses are there. */
const SUBNET_MIN = '10.5.16.0'
function configure(backend: object, more: object = {}): void {
  mkdirSync(join(leases(), 'subnets'), { recursive: true })
  writeFileSync(
    join(leases(), 'config'),
    JSON.stringify({ Network: '10.5.0.0/16', SubnetMin: SUBNET_MIN, Backend: backend, ...more }),
  )
}
const NEW = '10.5.0.0/24'
const newLease = (): string => join(leases(), 'subnets', NEW.replace('/', '-'))
function putPeer(type: string, publicIp: string): void {
  const data = type === 'vxlan' ? { BackendData: { VNI: 1, VtepMAC: '02:00:00:00:00:07' } } : {}
  writeFileSync(newLease(), JSON.stringify({ PublicIP: publicIp, BackendType: type, ...data }))
}

it.each([
  { engine: 'native', backend: { Type: 'udp' }, device: 'flannel0' },
  { engine: 'dgram', backend: { Type: 'udp' }, device: 'flannel0' },
  { engine: 'native', backend: { Type: 'vxlan', DataPath: 'userspace' }, device: 'flannel.1' },
])(
  'packets to a peer whose public address is in its own subnet do not circulate: $backend.Type, $engine',
  async ({ engine, backend, device }) => {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts as [Host]
    configure(backend)
    const daemon = host.startDaemon({ args: ['--lease-dir', leases(), '--engine', engine] })
    await daemon.line(/flannel is ready/)
    putPeer(backend.Type, '10.5.0.9')
    await daemon.line(/Subnet added: 10\.5\.0\.0\/24|10\.5\.0\.9.*VtepMAC/)
    // Each ping waits a second for an answer. Only circulating packets could continue after that. The second ping is fragmented.
    const ping = (size: string) => host.run(['ping', '-n', '-c', '1', '-W', '1', '-s', size, '10.5.0.5'])
    expect((await Promise.all(['56', '1444'].map(ping))).map(({ code }) => code)).toEqual([1, 1])
    const [{ stats64 }] = JSON.parse(await host.output(['ip', '-s', '-j', 'link', 'show', device])) as [
      { stats64: { tx: { bytes: number; packets: number } } },
    ]
    expect(stats64.tx.packets).toBeGreaterThan(2) // the packet came back, and then no more
    expect(stats64.tx.bytes).toBeLessThan(70_000)
    expect(await daemon.stop()).toBe(0)
  },
)

it.each([
  { backend: { Type: 'udp', Underlay: 'ipv6' }, device: 'flannel0', args: [] },
  { backend: { Type: 'vxlan', DataPath: 'userspace' }, device: 'flannel-v6.1', args: [] },
  // A masquerading rule replaces the source of packets that this host sends into the network.
  { backend: { Type: 'udp', Underlay: 'ipv6' }, device: 'flannel0', args: ['--ip-masq'] },
])('packets of both families do not circulate either: $backend, $args', async ({ backend, device, args }) => {
  lab = await createLab({ hosts: 1, families: ['ipv4', 'ipv6'] })
  const [host] = lab.hosts as [Host]
  const both = { EnableIPv6: true, IPv6Network: 'fd00:5::/48', IPv6SubnetMin: 'fd00:5:0:10::' }
  configure(backend, both)
  const daemon = host.startDaemon({ args: ['--lease-dir', leases(), ...args] })
  await daemon.line(/flannel is ready/)
  const vxlan = { VNI: 1, VtepMAC: '02:00:00:00:00:07' }
  const data = backend.Type === 'vxlan' ? { BackendData: vxlan, BackendV6Data: vxlan } : {}
  // vxlan carries each family in datagrams of the same family.
  const publicIp = backend.Type === 'vxlan' ? '10.5.0.9' : '192.168.77.99'
  const lease = { PublicIP: publicIp, PublicIPv6: 'fd00:5::9', BackendType: backend.Type, ...data }
  writeFileSync(join(leases(), 'subnets', '10.5.0.0-24&fd00:5::-64'), JSON.stringify(lease))
  await daemon.line(backend.Type === 'vxlan' ? /fd00:5::9.*VtepMAC/ : added(NEW))
  const circles = async (): Promise<number> => (await statusOf(host)).dataPath!.counters['tx_drop_circle'] ?? 0
  let before = 0
  for (const to of ['10.5.0.5', 'fd00:5::5']) {
    expect((await host.run(['ping', '-n', '-c', '1', '-W', '1', to])).code).toBe(1)
    await eventually(async () => expect(await circles()).toBeGreaterThan(before))
    before = await circles()
    // With the outer headers this packet is too long to leave the device a second time.
    expect((await host.run(['ping', '-n', '-c', '1', '-W', '1', '-M', 'dont', '-s', '1400', to])).code).toBe(1)
  }
  const [{ stats64 }] = JSON.parse(await host.output(['ip', '-s', '-j', 'link', 'show', device])) as [
    { stats64: { tx: { bytes: number } } },
  ]
  expect(stats64.tx.bytes).toBeLessThan(70_000)
  expect(await daemon.stop()).toBe(0)
})

it.each(['native', 'dgram'])(
  'during floods in both directions weftd follows peers that appear and disappear, and a stop: %s',
  async (engine) => {
    lab = await createLab({ hosts: 3 })
    const [a, b, outsider] = lab.hosts as [Host, Host, Host]
    configure({ Type: 'udp' })
    const start = (host: Host): Daemon => host.startDaemon({ args: ['--lease-dir', leases(), '--engine', engine] })
    const daemons = [start(a), start(b)]
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    await Promise.all([daemons[0]!.line(added(b)), daemons[1]!.line(added(a))])

    const listen = `require('node:dgram').createSocket('udp4').once('message', () => console.log('came')).bind(8285, '${outsider.address}', () => console.log('listening'))`
    const listener = outsider.spawn([process.execPath, '-e', listen])
    let received = ''
    listener.stdout!.on('data', (text: Buffer) => (received += text.toString()))
    await eventually(() => expect(received).toContain('listening'))

    const [ours, theirs, nobodys] = [tunAddress(a), tunAddress(b), '10.5.1.9'].map((address) => parseIpv4(address)!)
    const payload = Buffer.alloc(30)
    const inner = (source: number): Buffer =>
      ipv4Packet({ source, destination: ours!, payload: udpDatagram(source, ours!, 1, 9, payload) })
    const floods = [
      forge.flood(a, tunAddress(b), 9, [payload]), // from the TUN
      forge.flood(b, a, 8285, [inner(theirs!)]), // from a peer
      forge.flood(outsider, a, 8285, [inner(theirs!), inner(nobodys!), payload]), // from an unknown sender
    ]
    const forwarded = async (): Promise<number> => {
      const link = await a.output(['ip', '-s', '-j', 'link', 'show', 'flannel0'])
      return (JSON.parse(link) as [{ stats64: { tx: { packets: number } } }])[0].stats64.tx.packets
    }
    await eventually(async () => expect(await forwarded()).toBeGreaterThan(20_000))

    putPeer('udp', outsider.address)
    await daemons[0]!.line(added(NEW))
    const pinged = a.spawn(['ping', '-n', '-i', '0.2', '10.5.0.5'])
    await eventually(() => expect(received).toContain('came'))
    pinged.kill()
    rmSync(newLease())
    await daemons[0]!.line(removed(NEW))
    await eventually(async () => {
      // Most packets are lost in the flood before they reach the engine.
      const { stdout } = await a.run(['ping', '-n', '-c', '50', '-i', '0.01', '-W', '1', '10.5.0.5'])
      expect(stdout).toContain('Destination Net Unreachable')
    })

    expect(await daemons[0]!.stop()).toBe(0)
    for (const flood of floods) {
      expect(flood.exitCode).toBeNull()
      flood.kill()
    }
  },
)

it('during a flood of refused packets the lease is renewed and /livez answers', async () => {
  lab = await createLab({ hosts: 3 })
  const [a, b, outsider] = lab.hosts as [Host, Host, Host]
  configure({ Type: 'udp' })
  const start = (host: Host, ...more: string[]): Daemon =>
    host.startDaemon({ args: ['--lease-dir', leases(), '--workers', '2', '--nice', '-5', ...more] })
  const daemon = start(a, '--healthz-ip', '127.0.0.1', '--healthz-port', '8471')
  const other = start(b)
  await Promise.all([daemon, other].map((each) => each.line(/flannel is ready/)))
  await Promise.all([daemon.line(added(b)), other.line(added(a))])

  const [ours, nobodys] = [parseIpv4(tunAddress(a))!, parseIpv4('10.5.1.9')!]
  const payload = udpDatagram(nobodys, ours, 1, 9, Buffer.alloc(30))
  const refused = ipv4Packet({ source: nobodys, destination: ours, payload })
  // Two source ports, one for each lane (native/io/udp.h).
  const floods = [8525, 8526].map((port) => forge.flood(outsider, a, 8285, [refused], { port }))
  // The rate of the flood must not depend on other load of the machine.
  for (const { pid } of floods) setPriority(pid!, -5)
  const dropped = async (): Promise<number> => {
    const text = await a.output(['curl', '-s', '--unix-socket', a.statusSocket, 'http://weft/status.json'])
    return (JSON.parse(text) as Status).dataPath!.drops['rx_drop_unknown_sender'] ?? 0
  }
  await eventually(async () => expect(await dropped()).toBeGreaterThan(20_000))
  for (let times = 0; times < 3; times++) {
    const before = await dropped()
    // A renewal repairs the node's own key.
    writeFileSync(join(leases(), 'subnets', subnetOf(a).replace('/', '-')), 'junk')
    const renewals = daemon.lines.filter((line) => line.includes('Lease renewed')).length
    await eventually(() => {
      expect(daemon.lines.filter((line) => line.includes('Lease renewed')).length).toBeGreaterThan(renewals)
    })
    expect(await a.output(['curl', '-s', 'http://127.0.0.1:8471/livez'])).toMatch(/^weftd is alive/)
    await eventually(async () => expect(await dropped()).toBeGreaterThan(before + 2_000)) // the flood continued
  }
  for (const flood of floods) {
    expect(flood.exitCode).toBeNull()
    flood.kill()
  }
  await reach(b.namespace, tunAddress(a))
})
