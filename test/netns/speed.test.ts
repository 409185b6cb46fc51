// speed.test.ts - the reasons why the native engine is fast, as counts that do not depend on the machine's load: few system calls for a
// backlog, and unsegmented packets from containers, whatever happens to another peer. `npm run bench` measures the speed.

import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab, type Place } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { statusOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ethtool', 'iperf3', 'ping')

let lab: Lab
beforeEach(async () => {
  lab = await createLab({ hosts: 3 })
})
afterEach(() => lab.close())

/** Starts a daemon with this engine and a container on each host; the first container reaches the others. */
async function joinAll() {
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
  const daemons = lab.hosts.map((host) => host.startDaemon({ args: ['--lease-dir', leases] }))
  await Promise.all(daemons.map((each) => each.line(/flannel is ready/)))
  const [sender, receiver] = lab.hosts as [Host, Host]
  const [from, to, ...others] = await Promise.all(lab.hosts.map((host) => host.startPod()))
  for (const pod of [to!, ...others]) await reach(from!.namespace, pod.address)
  return { daemon: daemons[0]!, sender, receiver, from: from!, to: to!, other: others[0] }
}

const offloads = ({ lines }: Daemon): string[] =>
  /with the native engine: (.*)/.exec(lines.find((line) => line.includes('Forwarding between'))!)?.[1]!.split(', ') ??
  []

interface Stats {
  readonly packets: number
  readonly bytes: number
}
interface Mean extends Stats {
  readonly mean: number
}
/** Returns the statistics of a device, in which a superpacket counts as one. */
async function stats(place: Place, device: string): Promise<{ readonly tx: Stats; readonly rx: Stats }> {
  const [link] = JSON.parse(await place.output(['ip', '-s', '-j', 'link', 'show', device])) as [
    { readonly stats64: { readonly tx: Stats; readonly rx: Stats } },
  ]
  return link.stats64
}

const SENT = 60
const FEW = 15

/** Returns a program for node:dgram that has a `socket`. */
const program = (script: string) =>
  [process.execPath, '-e', `const socket = require('node:dgram').createSocket('udp4')\n${script}`] as const
/** Returns a program that sends SENT packets of 64 bytes to port 7000. */
const burst = (address: string) =>
  program(`let left = ${SENT}
  for (let number = 0; number < ${SENT}; number++)
    socket.send(Buffer.alloc(64), 7000, '${address}', () => --left === 0 && socket.close())`)
/** Returns the number of packets that a host has forwarded. */
const forwarded = async (host: Host): Promise<number> =>
  Number(/^Ip: (?:\d+ ){5}(\d+)/m.exec(await host.output(['cat', '/proc/net/snmp']))![1])

/** Stops the daemon during a burst, so that it finds the whole burst in its device's queue. */
async function backlog(daemon: Daemon, sender: Host, from: Place, address: string): Promise<void> {
  const before = await forwarded(sender)
  daemon.process.kill('SIGSTOP')
  await from.output(burst(address))
  await expect.poll(() => forwarded(sender)).toBeGreaterThanOrEqual(before + SENT)
  daemon.process.kill('SIGCONT')
}

it('sends and writes waiting packets in few system calls', async () => {
  const { daemon, sender, receiver, from, to } = await joinAll()
  // Received UDP is joined if the device's offload is on.
  const takesJoined = offloads(daemon).includes('tun-uso')
  if (takesJoined) {
    await receiver.output(['ethtool', '-K', 'flannel0', 'rx-udp-gro-forwarding', 'on'])
    await eventually(async () => expect((await statusOf(receiver)).dataPath!.features).toContain('coalesce-udp'))
  }
  const listener = to.spawn(
    program(`let count = 0
    socket.on('message', () => ++count === ${SENT} && console.log('all'))
    socket.bind(7000, () => console.log('listening'))`),
  )
  const said = createInterface({ input: listener.stdout! })
  await once(said, 'line')

  const [atEth0, atTun] = [await stats(sender, 'eth0'), await stats(receiver, 'flannel0')]
  const all = once(said, 'line')
  await backlog(daemon, sender, from, to.address)
  await all

  const sent = (await stats(sender, 'eth0')).tx.packets - atEth0.tx.packets
  const written = (await stats(receiver, 'flannel0')).rx.packets - atTun.rx.packets
  console.log(`${SENT} packets in ${sent} messages and ${written} writes; ${offloads(daemon).join(', ')}`)
  if (offloads(daemon).includes('udp-gso')) expect(sent).toBeLessThanOrEqual(FEW)
  if (takesJoined) expect(written).toBeLessThanOrEqual(FEW)
})

/** Measures the packets of a stream between two containers along its way. */
async function streamed({ sender, receiver, from, to }: Awaited<ReturnType<typeof joinAll>>) {
  await iperfServer((command) => receiver.spawn(['ip', 'netns', 'exec', to.namespace, ...command]))
  const look = async () => [
    (await stats(from, 'eth0')).tx,
    (await stats(sender, 'flannel0')).tx,
    (await stats(sender, 'eth0')).tx,
    (await stats(receiver, 'flannel0')).rx,
  ]
  const before = await look()
  await from.output(['iperf3', '--client', to.address, '--bytes', '100M'])
  const [made, read, sent, written] = (await look()).map(({ packets, bytes }, index) => ({
    packets: packets - before[index]!.packets,
    mean: Math.round((bytes - before[index]!.bytes) / (packets - before[index]!.packets)),
    bytes: bytes - before[index]!.bytes,
  })) as [Mean, Mean, Mean, Mean]
  console.log(...Object.entries({ made, read, sent, written }).map(([n, s]) => `${n} ${s.packets} of ${s.mean} bytes`))
  return { made, read, sent, written }
}

it('superpackets of containers reach the engine unsegmented, and are sent and written unsegmented', async () => {
  const all = await joinAll()
  const { made, read, sent, written } = await streamed(all)
  expect(read.bytes).toBeGreaterThan(50 << 20) // the client ends before its last packets have left
  expect(read.packets).toBeLessThan(1.1 * made.packets)
  // Even a slow sender makes superpackets of at least two segments (tcp_min_tso_segs), and these stay together.
  expect(made.mean).toBeGreaterThan(1.5 * 1472)
  if (offloads(all.daemon).includes('udp-gso')) expect(sent.mean).toBeGreaterThan(1.5 * 1472)
  if (offloads(all.daemon).includes('coalesce-tcp')) expect(written.mean).toBeGreaterThan(1.5 * 1472)
})

it('a peer behind a blackhole route does not delay the others, and is served fully when the route is gone', async () => {
  const all = await joinAll()
  const { daemon, sender, from, to, other } = all
  const gso = offloads(daemon).includes('udp-gso')
  const host = lab.hosts[2]!
  const messages = async (): Promise<number> => (await stats(sender, 'eth0')).tx.packets
  const arrived = async (): Promise<number> => (await stats(host, 'flannel0')).rx.bytes

  await sender.output(['ip', 'route', 'add', 'blackhole', host.address])
  const [before, read] = [await arrived(), (await stats(sender, 'flannel0')).tx.packets]
  await backlog(daemon, sender, from, other!.address)
  await reach(from.namespace, to.address) // it waited behind the backlog
  expect((await stats(sender, 'flannel0')).tx.packets - read).toBeGreaterThan(SENT)
  expect((await arrived()) - before).toBeLessThan(SENT * 64)
  const { made, sent } = await streamed(all)
  expect(made.mean).toBeGreaterThan(1.5 * 1472)
  if (gso) expect(sent.mean).toBeGreaterThan(1.5 * 1472)

  await sender.output(['ip', 'route', 'del', 'blackhole', host.address])
  await reach(from.namespace, other!.address)
  const [sentBefore, arrivedBefore] = [await messages(), await arrived()]
  await backlog(daemon, sender, from, other!.address)
  await expect.poll(arrived).toBeGreaterThanOrEqual(arrivedBefore + SENT * 64)
  if (gso) expect((await messages()) - sentBefore).toBeLessThanOrEqual(FEW)
})
