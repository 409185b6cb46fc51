// filter.test.ts - who is let in: a host on the underlay that has no lease sends whatever it can think of, and nothing of it
// reaches the TUN, while peers talk on; who is turned away is named once.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { eventually } from '../support/event.ts'
import { added, answers, subnetOf, tunAddress } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { ipv4Packet, udpDatagram } from '../support/packets.ts'

needs(HOSTS, 'iperf3', 'ping')

let lab: Lab
afterEach(() => lab?.close())

const leases = (): string => join(lab.folder, 'leases')
function configure(backend: object): void {
  mkdirSync(leases(), { recursive: true })
  writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
}
async function start(host: Host, ...more: string[]): Promise<Daemon> {
  const daemon = host.startDaemon({ args: ['--lease-dir', leases(), ...more] })
  await daemon.line(/flannel is ready/)
  return daemon
}

const ROUNDS = 20
/** Each so many times over: what is sent to a socket at once is less than its buffer holds. */
async function send(from: Host, to: Host, port: number, datagrams: readonly Buffer[]): Promise<void> {
  const script = `const socket = (await import('node:dgram')).createSocket('udp4')
  for (let round = 0; round < ${ROUNDS}; round++)
    for (const datagram of process.argv.slice(1))
      await new Promise((sent) => socket.send(Buffer.from(datagram, 'hex'), ${port}, '${to.address}', sent))
  socket.close()`
  const hex = datagrams.map((each) => each.toString('hex'))
  await from.output([process.execPath, '--input-type=module', '-e', script, ...hex])
}

const MARK = 6666
function packet(from: string, to: string): Buffer {
  const [source, destination] = [parseIpv4(from)!, parseIpv4(to)!]
  return ipv4Packet({ source, destination, payload: udpDatagram(source, destination, 1, MARK, Buffer.from(from)) })
}

/** What a VXLAN header and a frame for a host look like to it: VNI 1. */
async function vxlanHeader(host: Host): Promise<Buffer> {
  const lease = await host.output(['cat', join(leases(), 'subnets', subnetOf(host).replace('/', '-'))])
  const mac = /"VtepMAC":"([^"]+)"/.exec(lease)![1]!.replaceAll(':', '')
  return Buffer.from(`0800000000000100${mac}020000000099`, 'hex')
}

/** Packets that came out of the TUN, by the kernel's count. */
async function written(host: Host, device: string): Promise<number> {
  const text = await host.output(['ip', '-s', '-j', 'link', 'show', device])
  return (JSON.parse(text) as [{ stats64: { rx: { packets: number } } }])[0].stats64.rx.packets
}

const CASES = [
  { engine: 'native', backend: { Type: 'udp' }, port: 8285, device: 'flannel0' },
  { engine: 'naive', backend: { Type: 'udp' }, port: 8285, device: 'flannel0' },
  { engine: 'dgram', backend: { Type: 'udp' }, port: 8285, device: 'flannel0' },
  { engine: 'native', backend: { Type: 'vxlan', DataPath: 'userspace' }, port: 8472, device: 'flannel.1' },
] as const

it.each(CASES)(
  'nothing of an attacker reaches $backend.Type with the $engine engine',
  async ({ engine, backend, port, device }) => {
    lab = await createLab({ hosts: 3 })
    const [victim, peer, attacker] = lab.hosts as [Host, Host, Host]
    configure(backend)
    // One lane: whatever is in its socket before another packet is done with when that has come.
    const daemon = await start(victim, '--engine', engine, '--workers', '1')
    await start(peer, '--engine', engine)
    const [inside, other] = (await Promise.all([victim, peer].map((host) => host.startPod()))) as [Pod, Pod]
    await reach(other.namespace, inside.address)

    const [ours, peers] = [inside.address, other.address]
    const nobodys = '10.5.0.7' // the first subnet is leased to nobody
    const packets = [
      ...[peers, tunAddress(peer), nobodys, ours, tunAddress(victim)].map((source) => packet(source, ours)),
      ...[attacker.address, victim.address, peer.address, '8.8.8.8'].map((source) => packet(source, ours)),
      ...['127.0.0.1', '224.0.0.1', '255.255.255.255', '0.0.0.0'].map((source) => packet(source, ours)),
      ...[nobodys, peers, victim.address, '224.0.0.1', '255.255.255.255', '127.0.0.1'].map((to) => packet(peers, to)),
      packet(peers, tunAddress(victim)),
      packet(attacker.address, tunAddress(victim)),
    ]
    const header = backend.Type === 'vxlan' ? await vxlanHeader(victim) : undefined
    const enclose = (type: number, inner: Buffer): Buffer =>
      header ? Buffer.concat([header, Buffer.from([type >> 8, type & 255]), inner]) : inner
    const version6 = Buffer.concat([Buffer.from([0x60, 0, 0, 0, 0, 8, 17, 64]), Buffer.alloc(40, 0xfd)])
    const whole = packets.map((each) => enclose(0x0800, each))
    const mangled = [
      whole[0]!.subarray(0, 19),
      whole[0]!.subarray(0, -1),
      Buffer.from('nothing'),
      Buffer.alloc(60, 0xff),
    ]
    const forged = [...whole, enclose(0x86dd, version6), ...mangled]

    // With nothing else on the way.
    const PINGS = 5
    const before = await written(victim, device)
    await send(attacker, victim, port, forged)
    await answers(other.namespace, ours, PINGS)
    expect((await written(victim, device)) - before).toBe(PINGS)

    // While there is a stream, which goes on.
    const listen = `const socket = require('node:dgram').createSocket('udp4')
  socket.on('message', (text, { address }) => console.log(address)).bind(${MARK}, () => console.log('listening'))`
    const listeners = [inside, victim].map((place) => place.spawn([process.execPath, '-e', listen]))
    let heard = ''
    for (const { stdout } of listeners) stdout!.on('data', (text: Buffer) => (heard += text.toString()))
    await eventually(() => expect(heard).toBe('listening\nlistening\n'))
    const server = await iperfServer((command) => inside.spawn(command))
    const stream = { isOver: false }
    const streamed = server.run(other.namespace, ours, 3).finally(() => (stream.isOver = true))
    do await send(attacker, victim, port, forged)
    while (!stream.isOver)
    expect((await streamed).bitsPerSecond).toBeGreaterThan(0)
    await server.stop()
    await other.output([
      process.execPath,
      '-e',
      `require('node:dgram').createSocket('udp4').send('x', ${MARK}, '${ours}', () => process.exit())`,
    ])
    await eventually(() => expect(heard).toContain(peers))
    expect(heard).toBe(`listening\nlistening\n${peers}\n`)

    // What there is to say is said, and once.
    await daemon.line(/Packets from 192\.168\.77\.3 are not let in: no lease says that /)
    await daemon.line(
      new RegExp(
        `Packets from 192\\.168\\.77\\.3 are not let in: (they claim to be from |${peers}|${tunAddress(peer)} belongs to the node at 192\\.168\\.77\\.2)`,
      ),
    )
    expect(daemon.lines.filter((line) => line.includes('192.168.77.3 are not let in: no lease says'))).toHaveLength(1)
    expect(daemon.lines.filter((line) => line.includes('Packets from 192.168.77.3'))).toHaveLength(2)
    expect(await daemon.stop()).toBe(0)
  },
)

it('a peer that sends from another address than it publishes is named once, and let in by "inner"', async () => {
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

it('a wrong value is an error that says what may stand there', async () => {
  lab = await createLab({ hosts: 1 })
  configure({ Type: 'udp', VerifySource: 'yes' })
  const daemon = lab.hosts[0]!.startDaemon({ args: ['--lease-dir', leases()] })
  await daemon.line(/Backend\.VerifySource is "yes"; give it one of strict, inner, off, or leave it out/)
})
