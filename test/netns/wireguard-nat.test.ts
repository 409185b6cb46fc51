// wireguard-nat.test.ts - a node behind NAT: with a keepalive peers can reach it at the address that it last sent from; without one it must
// start the session.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { createLab, WIREGUARD_APART, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { watchDatagrams, watchHandshakes } from '../support/handshakes.ts'
import { answers, statusOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'nft', 'ping', 'tcpdump', 'wg', 'wireguard-go')

const PUBLIC = '192.168.77.201'
/** How long the NAT remembers a silent sender; the kernel's timers have whole seconds. */
const REMEMBERS_S = 3
/** The length in bytes of a data message without data, together with the UDP header. */
const KEEPALIVE_BYTES = 32 + 8

let lab: Lab
afterEach(() => lab?.close())

async function start(host: Host, options: object, ...iface: string[]): Promise<Daemon> {
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases, { recursive: true })
  const Backend = { Type: 'wireguard', DataPath: 'userspace', ...options }
  writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
  const daemon = host.startDaemon({
    args: ['--lease-dir', leases],
    iface: ['--iface', 'eth0', ...iface],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
    before: WIREGUARD_APART,
  })
  await daemon.line(/flannel is ready/)
  return daemon
}

/** Makes a host's packets leave from another address and any of these ports; only answers to them come in. */
async function translate(host: Host, ports: string): Promise<void> {
  const table = `table ip home {
    chain out { type nat hook postrouting priority srcnat; oif eth0 meta l4proto udp snat to ${PUBLIC}:${ports} random; }
    chain in { type filter hook input priority 0; iif eth0 meta l4proto udp ct state new drop; }
  }`
  await host.output(['nft', '-f', '-'], { input: `table ip home { }\ndelete table ip home\n${table}\n` })
}
/** Puts a NAT with the address PUBLIC in front of `host`. Only `other` needs to know the MAC address of the NAT. */
async function homeOf(host: Host, other: Host): Promise<void> {
  const [{ address: mac }] = JSON.parse(await host.output(['ip', '-j', 'link', 'show', 'eth0'])) as [
    { address: string },
  ]
  await other.output(['ip', 'neighbour', 'add', PUBLIC, 'lladdr', mac, 'dev', 'eth0'])
  await translate(host, '40000-40999')
  await remembers(host, REMEMBERS_S)
}
async function remembers(host: Host, seconds: number): Promise<void> {
  for (const timer of ['timeout', 'timeout_stream'])
    await host.output(['sysctl', '-qw', `net.netfilter.nf_conntrack_udp_${timer}=${seconds}`])
}
const placeOf = async (peer: string, by: Host): Promise<string | null | undefined> =>
  (await statusOf(by)).peers?.list.find(({ publicIp }) => publicIp === peer)?.endpoint

it.each(['userspace', 'kernel'])('stays reachable while all hosts are silent, for a node with %s', async (other) => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  await homeOf(a, b)
  const keepalive = { PersistentKeepaliveInterval: 1 }
  const daemons = [await start(b, { ...keepalive, DataPath: other }), await start(a, keepalive)]
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podB.namespace, podA.address) // as soon as the node behind NAT has sent something
  const keepalives = await watchDatagrams(b, `host ${PUBLIC} and udp port 51820 and udp[4:2] = ${KEEPALIVE_BYTES}`)
  await eventually(() => expect(keepalives.lines.length).toBeGreaterThan(2 * REMEMBERS_S))
  const ends = (await keepalives.stop()).map((line) => /\.201\.(\d+)\b/.exec(line)?.[1])
  expect(new Set(ends).size).toBe(1) // the NAT kept its entry all the time
  await answers(podB.namespace, podA.address)
  await answers(podA.namespace, podB.address)
  if (other === 'userspace') expect(await placeOf(a.address, b)).toBe(`${PUBLIC}:${ends[0]}`)

  // A NAT that restarts assigns other ports, and weftd follows.
  const again = await watchDatagrams(b, `src host ${PUBLIC} and udp src portrange 41000-41999`)
  await translate(a, '41000-41999')
  await remembers(a, 0)
  await eventually(() => expect(again.lines.length).toBeGreaterThan(0))
  await remembers(a, REMEMBERS_S)
  await again.stop()
  await reach(podB.namespace, podA.address)
  for (const { lines } of daemons) expect(lines.filter((line) => line.startsWith('E'))).toEqual([])
})

it('whose public address is not its interface’s reaches others although the NAT has forgotten it', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  await homeOf(a, b)
  const daemons = [await start(b, {}), await start(a, {}, '--public-ip', PUBLIC)]
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await reach(podA.namespace, podB.address)
  const handshakes = await watchHandshakes(b)
  for (const ports of ['41000-41999', '42000-42999', '43000-43999']) {
    await translate(a, ports)
    await remembers(a, 0)
    expect((await podA.run(['ping', '-n', '-c', '1', '-W', '1', podB.address])).code).toBe(1)
    await remembers(a, REMEMBERS_S)
    await reach(podA.namespace, podB.address)
    expect(await placeOf(PUBLIC, b)).toMatch(new RegExp(`^${PUBLIC}:${ports.slice(0, 2)}`))
  }
  expect(await handshakes()).toBe(0) // a packet that comes from a lane is answered to the old address until a handshake
  for (const { lines } of daemons) expect(lines.filter((line) => line.startsWith('E'))).toEqual([])
})
