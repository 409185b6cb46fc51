// speed.test.ts - what makes the native engine fast, as counts that no load of the machine changes: a backlog crosses in
// few system calls, and the kernel hands it what containers send uncut. How fast it is, `npm run bench` says.

import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab, type Place } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'iperf3', 'ping')

let lab: Lab
beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
})
afterEach(() => lab.close())

/** Two hosts with a daemon of this engine each, and a container on each. */
async function join2(engine: string) {
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
  const daemons = lab.hosts.map((host) => host.startDaemon({ args: ['--lease-dir', leases, '--engine', engine] }))
  await Promise.all(daemons.map((each) => each.line(/flannel is ready/)))
  const [sender, receiver] = lab.hosts as [Host, Host]
  const [from, to] = [await sender.startPod(), await receiver.startPod()]
  await reach(from.namespace, to.address)
  return { daemon: daemons[0]!, sender, receiver, from, to }
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
/** Of a device; a superpacket counts as one. */
async function stats(place: Place, device: string): Promise<{ readonly tx: Stats; readonly rx: Stats }> {
  const [link] = JSON.parse(await place.output(['ip', '-s', '-j', 'link', 'show', device])) as [
    { readonly stats64: { readonly tx: Stats; readonly rx: Stats } },
  ]
  return link.stats64
}

const SENT = 60
const FEW = 15

it.each([
  ['native', 'few', FEW],
  ['naive', `${SENT}`, Infinity],
] as const)('the %s engine sends and writes a backlog of %s packets', async (engine, _title, atMost) => {
  const { daemon, sender, receiver, from, to } = await join2(engine)
  const program = (script: string) =>
    [process.execPath, '-e', `const socket = require('node:dgram').createSocket('udp4')\n${script}`] as const
  const listener = to.spawn(
    program(`let count = 0
    socket.on('message', () => ++count === ${SENT} && console.log('all'))
    socket.bind(7000, () => console.log('listening'))`),
  )
  const said = createInterface({ input: listener.stdout! })
  await once(said, 'line')
  const forwarded = async (): Promise<number> =>
    Number(/^Ip: (?:\d+ ){5}(\d+)/m.exec(await sender.output(['cat', '/proc/net/snmp']))![1])

  // The backlog: all packets are in the device's queue before the engine may read the first.
  const [before, atEth0, atTun] = [await forwarded(), await stats(sender, 'eth0'), await stats(receiver, 'flannel0')]
  daemon.process.kill('SIGSTOP')
  await from.output(
    program(`let left = ${SENT}
    for (let number = 0; number < ${SENT}; number++)
      socket.send(Buffer.alloc(64), 7000, '${to.address}', () => --left === 0 && socket.close())`),
  )
  await expect.poll(forwarded).toBeGreaterThanOrEqual(before + SENT)
  const all = once(said, 'line')
  daemon.process.kill('SIGCONT')
  await all

  const sent = (await stats(sender, 'eth0')).tx.packets - atEth0.tx.packets
  const written = (await stats(receiver, 'flannel0')).rx.packets - atTun.rx.packets
  console.log(`${engine}: ${SENT} packets in ${sent} messages and ${written} writes; ${offloads(daemon).join(', ')}`)
  if (engine === 'naive') return expect(Math.min(sent, written)).toBeGreaterThanOrEqual(SENT)
  if (offloads(daemon).includes('udp-gso')) expect(sent).toBeLessThanOrEqual(atMost)
  if (offloads(daemon).includes('coalesce-udp')) expect(written).toBeLessThanOrEqual(atMost)
})

it('superpackets of containers reach the engine whole, and leave and are written as such', async () => {
  const { daemon, sender, receiver, from, to } = await join2('native')
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
  expect(read.bytes).toBeGreaterThan(50 << 20) // the client ends before the last of it has left
  expect(read.packets).toBeLessThan(1.1 * made.packets)
  // However slow the sender, it makes superpackets of two segments at least (tcp_min_tso_segs), and two stay one.
  expect(made.mean).toBeGreaterThan(1.5 * 1472)
  if (offloads(daemon).includes('udp-gso')) expect(sent.mean).toBeGreaterThan(1.5 * 1472)
  if (offloads(daemon).includes('coalesce-tcp')) expect(written.mean).toBeGreaterThan(1.5 * 1472)
})
