// kernel-way.test.ts - hosts whose kernel carries the packets to proven peers (FastPath), beside hosts whose engine carries them.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { eventually } from '../support/event.ts'
import { answers, statusOf, subnetOf, tunAddress } from '../support/hosts.ts'
import { carriedByKernel, promoted, transfer } from '../support/kernel-way.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { numberedFlows } from '../support/numbered-flows.ts'
import { ipv4Packet, udpDatagram } from '../support/packets.ts'

needs(HOSTS, 'clang++', 'ethtool', 'python3', 'ping')

let lab: Lab
afterEach(() => lab?.close())

const CONFIG = { Network: '10.5.0.0/16', Backend: { Type: 'udp', FastPath: 'auto' } }

async function start(
  hosts: readonly Host[],
  { config = CONFIG, before = [] }: { readonly config?: object; readonly before?: readonly (readonly string[])[] } = {},
): Promise<Daemon[]> {
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases, { recursive: true })
  writeFileSync(join(leases, 'config'), JSON.stringify(config))
  const daemons = hosts.map((host, index) =>
    host.startDaemon({ args: ['--lease-dir', leases, '-v', '1'], before: before[index] ?? [] }),
  )
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  return daemons
}

const line = (subnet: string): RegExp => new RegExp(`FastPath: the kernel carries the packets to ${subnet}`)

/** Makes a lab of two hosts whose kernels carry the packets between their containers. */
async function promotedPods() {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const daemons = await start([a, b])
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await promoted(podA, podB.address, daemons)
  return { a, b, podA, podB, daemons }
}

/** Makes a lab of two hosts whose kernels carry the packets between the hosts. */
async function promotedHosts() {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const daemons = await start([a, b])
  await promoted(a, tunAddress(b), daemons)
  return { a, b, daemons }
}

it('the kernel carries TCP and UDP between containers of proven peers, with the right bytes', async () => {
  const { a, podA, podB } = await promotedPods()
  const before = await carriedByKernel(a)
  await transfer(podA, podB, podB.address, 8)
  await transfer(podB, podA, podA.address, 8)
  const [flow] = await numberedFlows(podA, podB, [{ to: podB.address, port: 7001, sizes: [20, 1000, 1444] }], 2_000)
  expect(flow).toMatchObject({ received: 2_000, late: 0, twice: 0 })
  const after = await carriedByKernel(a)
  expect(after.sent - before.sent).toBeGreaterThan(8_000)
  expect(after.received - before.received).toBeGreaterThan(5_000)
  const status = await statusOf(a)
  expect(status.dataPath?.fastPath).toMatchObject({ isActive: true, reason: null, promoted: 1, takenBack: 0 })
  expect(status.peers?.list.map((peer) => peer.way)).toEqual(['kernel'])
  // A packet that the programs do not understand passes the engine beside them: fragments, and a route that ends here.
  const long = await numberedFlows(podA, podB, [{ to: podB.address, port: 7002, sizes: [3_000] }], 200)
  expect(long).toMatchObject([{ received: 200, late: 0, twice: 0 }])
  const { stdout } = await podA.run(['ping', '-c', '1', '-t', '2', podB.address])
  expect(stdout).toMatch(/Time to live exceeded/)
})

it("the engine carries packets from a host's own address, which the peer's kernel does not accept", async () => {
  const { a, podB } = await promotedPods()
  await transfer(a, podB, podB.address, 4, a.address)
})

it('the kernel carries IPv6 packets inside IPv4', async () => {
  lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
  const [a, b] = lab.hosts as [Host, Host]
  const config = { ...CONFIG, EnableIPv6: true, IPv6Network: 'fd00:5::/48' }
  const daemons = await start([a, b], { config })
  const [podA, podB] = [await a.startPod(), await b.startPod()]
  await promoted(podA, podB.ipv6!, daemons, /FastPath: the kernel carries the packets to fd00/)
  const before = await carriedByKernel(a)
  await transfer(podA, podB, podB.ipv6!, 8)
  expect((await carriedByKernel(a)).sent - before.sent).toBeGreaterThan(4_000)
})

it('a peer whose kernel refuses the programs is not promoted, and reached as before', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  const only = '-all,+net_admin'
  const without = ['setpriv', '--bounding-set', only, '--inh-caps', only, '--no-new-privs']
  const [first, second] = await start([a, b], { before: [[], without] })
  await second!.line(
    /FastPath: weftd carries all packets: the kernel refuses eBPF programs: grant CAP_BPF and CAP_NET_ADMIN/,
  )
  const pings = a.spawn(['ping', '-q', '-i', '0.05', tunAddress(b)])
  // The second host's engine cannot finish the checksum of the proof's first packet, so no answer comes.
  await first!.line(/FastPath: weftd carries the packets to .*: the proof got no answer/)
  pings.kill()
  await transfer(a, b, tunAddress(b), 4)
  expect((await statusOf(a)).dataPath?.fastPath).toMatchObject({ isActive: true, promoted: 0 })
  expect((await statusOf(b)).dataPath?.fastPath).toMatchObject({ isActive: false })
})

it('a change of offloads takes peers back and proves them again, without a lost packet', async () => {
  const { a, b, podA, podB, daemons } = await promotedPods()
  const flows = numberedFlows(podA, podB, [{ to: podB.address, port: 7001, sizes: [200] }], 100_000)
  await a.output(['ethtool', '-K', 'eth0', 'tso', 'off'])
  await daemons[0]!.line(/FastPath: weftd carries the packets to .* again: the offloads of eth0 have changed/)
  await eventually(() => expect(daemons[0]!.lines.filter((each) => line(subnetOf(b)).test(each))).toHaveLength(2))
  expect(await flows).toMatchObject([{ received: 100_000, twice: 0 }])
  expect((await statusOf(a)).dataPath?.fastPath).toMatchObject({ promoted: 1, takenBack: 1 })
})

it('what strangers and liars send is dropped for the same reasons as by the engine', async () => {
  lab = await createLab({ hosts: 3 })
  const [a, b, stranger] = lab.hosts as [Host, Host, Host]
  const daemons = await start([a, b])
  await promoted(a, tunAddress(b), daemons)
  const [own, its] = [parseIpv4(tunAddress(a))! + 2, parseIpv4(tunAddress(b))! + 7]
  const forged = (source: number, destination: number): string =>
    ipv4Packet({
      source,
      destination,
      payload: udpDatagram(source, destination, 1, 2, Buffer.from('forged')),
    }).toString('hex')
  const nobody = parseIpv4('192.0.2.77')!
  const datagrams = [forged(its, own), forged(nobody, own), forged(own + 1, own), forged(its, its)]
  // SO_NO_CHECK (11) sends datagrams without a checksum, as the kernel's programs do.
  const send = `
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 11, 1)
for text in sys.argv[2:]:
    for number in range(10):
        s.sendto(bytes.fromhex(text), (sys.argv[1], 8285))
`
  const before = (await statusOf(a)).dataPath!.counters
  await stranger.output(['python3', '-c', send, a.address, ...datagrams])
  // The peer itself lies about the source, and about the destination.
  await b.output(['python3', '-c', send, a.address, forged(own + 1, own), forged(its, its)])
  await eventually(async () => {
    const { counters } = (await statusOf(a)).dataPath!
    const grown = (name: string): number => (counters[name] ?? 0) - (before[name] ?? 0)
    expect(grown('rx_drop_spoofed_source')).toBe(40) // its, own + 1 of both senders, its again
    expect(grown('rx_drop_unknown_sender')).toBe(10)
    expect(grown('rx_drop_destination')).toBe(10)
  })
})

it('a killed daemon leaves the way open, and the next one proves its peers again', async () => {
  const {
    b,
    podA,
    podB,
    daemons: [daemonA, daemonB],
  } = await promotedPods()
  await daemonB!.stop('SIGKILL')
  await answers(podA.namespace, podB.address, 5)
  await transfer(podA, podB, podB.address, 8)
  // Later weftd may carry the packets itself for a while: on a slow machine packets of the next daemon arrive before its proof.
  expect(daemonA!.lines.filter((each) => /carries the packets to .* again/.test(each))).toEqual([])
  const [again] = await start([b])
  await promoted(podA, podB.address, [again!])
  await transfer(podB, podA, podA.address, 8)
})

it('the configuration switches the way off', async () => {
  const { a, b, daemons } = await promotedHosts()
  for (const daemon of daemons) await daemon.stop()
  await start([a, b], { config: { ...CONFIG, Backend: { Type: 'udp', FastPath: 'off' } } })
  await eventually(async () => {
    for (const host of [a, b]) {
      expect((await statusOf(host)).dataPath?.fastPath).toBeNull()
      for (const place of [
        ['eth0', 'ingress'],
        ['flannel0', 'egress'],
      ])
        expect(await host.output(['tc', 'filter', 'show', 'dev', ...place])).not.toContain('weft')
    }
  })
  await transfer(a, b, tunAddress(b), 2)
})

it('a hand-over that switches FastPath off loses no packet', async () => {
  const { b, podA, podB, daemons } = await promotedPods()
  const towards = numberedFlows(podA, podB, [{ to: podB.address, port: 7001, sizes: [200] }], 100_000)
  const back = numberedFlows(podB, podA, [{ to: podA.address, port: 7002, sizes: [200] }], 100_000)
  await start([b], { config: { ...CONFIG, Backend: { Type: 'udp', FastPath: 'off' } } })
  await daemons[0]!.line(/carries the packets to .* again: the peer's weftd has ended/)
  expect(await Promise.all([towards, back])).toMatchObject([
    [{ received: 100_000, twice: 0 }],
    [{ received: 100_000, twice: 0 }],
  ])
})

it('a tc program in front ends the way', async () => {
  const { a, b, daemons } = await promotedHosts()
  const front = ['prio', '10', 'protocol', 'ip', 'u32', 'match', 'u8', '0', '0', 'flowid', '1:1']
  await a.output(['tc', 'filter', 'add', 'dev', 'eth0', 'ingress', ...front])
  await daemons[0]!.line(/FastPath: weftd carries all packets: the tc filter u32 with priority 10 runs before/)
  await daemons[1]!.line(/carries the packets to .* again: the peer's kernel has stopped to carry packets/)
  await transfer(b, a, tunAddress(a), 4)
  await a.output(['tc', 'filter', 'del', 'dev', 'eth0', 'ingress', 'prio', '10'])
})

it('a tc program behind changes nothing', async () => {
  const { a, b, daemons } = await promotedHosts()
  const behind = ['prio', '5000', 'protocol', 'ip', 'u32', 'match', 'u8', '0', '0', 'flowid', '1:1']
  await a.output(['tc', 'filter', 'add', 'dev', 'eth0', 'ingress', ...behind])
  const before = await carriedByKernel(a)
  await transfer(a, b, tunAddress(b), 4)
  await transfer(b, a, tunAddress(a), 4)
  expect((await carriedByKernel(a)).received - before.received).toBeGreaterThan(2_000)
  expect((await statusOf(a)).dataPath?.fastPath).toMatchObject({ isActive: true, promoted: 1, takenBack: 0 })
  expect(daemons[0]!.lines.filter((each) => /carries (the|all) packets/.test(each) && /weftd/.test(each))).toEqual([])
  // The programs leave packets with options to weftd. These packets pass the other program on their way.
  await a.output(['ping', '-c', '1', '-W', '5', '-R', tunAddress(b)])
})

it('a hand-over to another weftd loses no packet', async () => {
  const { b, podA, podB } = await promotedPods()
  const flows = numberedFlows(podA, podB, [{ to: podB.address, port: 7001, sizes: [200] }], 100_000)
  const [next] = await start([b])
  await promoted(podB, podA.address, [next!])
  expect(await flows).toMatchObject([{ received: 100_000, twice: 0 }])
})

it('merges received TCP segments that are longer than 9,000 bytes', async () => {
  lab = await createLab({ hosts: 2, mtu: 9216 })
  const [a, b] = lab.hosts as [Host, Host]
  // Without these offloads the sender splits superpackets itself, as a network card does.
  for (const host of [a, b]) await host.output(['ethtool', '-K', 'eth0', 'tso', 'off', 'gso', 'off'])
  const daemons = await start([a, b])
  await promoted(a, tunAddress(b), daemons)
  const joins = async (): Promise<boolean> => (await b.run(['ip', 'link', 'show', 'weft-joined', 'up'])).code === 0
  await eventually(async () => {
    await transfer(a, b, tunAddress(b), 16)
    expect(await joins()).toBe(true)
  })
  await transfer(a, b, tunAddress(b), 16)
  const count = async (what: string): Promise<number> =>
    Number(await b.output(['cat', `/sys/class/net/weft-joined/statistics/${what}`]))
  expect(await count('rx_packets')).toBeGreaterThan(1_000)
  expect(await count('rx_dropped')).toBe(0)
  expect((await statusOf(b)).dataPath?.fastPath).toMatchObject({ isActive: true, promoted: 1, takenBack: 0 })
})
