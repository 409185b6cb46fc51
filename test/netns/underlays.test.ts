// underlays.test.ts - udp in a dual-stack network: peers are reached over the preferred family, and over the other one when that fails,
// while connections continue. Only the published addresses of a peer are accepted.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { FAMILY_NAMES, type Family } from '../../src/net/address.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, weft } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'

needs(HOSTS, 'iperf3', 'nft', 'ping')

let lab: Lab
afterEach(() => lab?.close())

const IPV4_ALONE = { Network: '10.5.0.0/16' }
const BOTH = { ...IPV4_ALONE, EnableIPv6: true, IPv6Network: 'fd00:5::/48' }
function configure(network: object, backend: object = {}): void {
  mkdirSync(join(lab.folder, 'leases'), { recursive: true })
  writeFileSync(
    join(lab.folder, 'leases', 'config'),
    JSON.stringify({ ...network, Backend: { Type: 'udp', ...backend } }),
  )
}
const start = (host: Host): Daemon =>
  host.startDaemon({ args: ['--lease-dir', join(lab.folder, 'leases'), '--probe-interval', '1'] })

async function running(underlay?: string): Promise<readonly [Daemon, Daemon]> {
  lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
  configure(BOTH, underlay === undefined ? {} : { Underlay: underlay })
  const daemons = lab.hosts.map(start) as [Daemon, Daemon]
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  return daemons
}

/** Drops all packets of a family between a host and the others until the returned function is called. */
async function cut(host: Host, family: Family): Promise<() => Promise<unknown>> {
  const table = `${family === 'ipv4' ? 'ip' : 'ip6'} cut`
  const rules = `table ${table} {\nchain in {\ntype filter hook prerouting priority raw\niifname "eth0" drop\n}\n}\n`
  await host.output(['nft', '-f', '-'], { input: rules })
  return () => host.output(['nft', 'delete', 'table', ...table.split(' ')])
}

/** Returns the family over which the only peer of a host is reached. */
async function familyTo(host: Host): Promise<Family | undefined> {
  const endpoint = (await statusOf(host)).peers?.list[0]?.endpoint
  if (!endpoint) return undefined
  return endpoint.startsWith('[') ? 'ipv6' : 'ipv4'
}

/** Starts eight streams that run until they are ended. */
function eightStreams(from: Pod, to: Pod) {
  const args = ['--parallel', '8', '--time', '600', '--bitrate', '4M', '--forceflush']
  const client = from.spawn(['iperf3', '--client', to.address, ...args])
  /** The number of intervals in which each stream sent something, by its number. */
  const moved = new Map<string, number>()
  let error = ''
  client.stderr!.on('data', (text: Buffer) => void (error += text.toString()))
  createInterface({ input: client.stdout! }).on('line', (line) => {
    const [, stream, bytes] = /^\[ *(\d+)\] +[\d.]+-[\d.]+ +sec +([\d.]+) \w*Bytes /.exec(line) ?? []
    if (stream !== undefined) moved.set(stream, (moved.get(stream) ?? 0) + (Number(bytes) > 0 ? 1 : 0))
  })
  return {
    /** Waits until all streams have moved from here on. A retransmission may be late. */
    async goOn(): Promise<void> {
      const before = new Map(moved)
      await eventually(() => {
        expect(error).toBe('')
        expect([...moved].filter(([stream, count]) => count > (before.get(stream) ?? 0) + 2)).toHaveLength(8)
      })
    },
    end: () => client.kill('SIGINT'),
  }
}

const UNDERLAYS: readonly (readonly [underlay: string | undefined, first: Family, other: Family])[] = [
  ['ipv6', 'ipv6', 'ipv4'],
  [undefined, 'ipv4', 'ipv6'],
]
it.each(UNDERLAYS)(
  'eight streams continue over the other family, and switch back: Underlay %s',
  async (underlay, first, other) => {
    const daemons = await running(underlay)
    const [a, b] = lab.hosts as [Host, Host]
    const [from, to] = [await a.startPod(), await b.startPod()]
    const everyWay = async (): Promise<void> => {
      for (const address of [to.address, to.ipv6 ?? '']) await reach(from.namespace, address)
    }
    await everyWay()
    for (const host of [a, b]) await eventually(async () => expect(await familyTo(host)).toBe(first))
    const server = await iperfServer((command) => to.spawn(command))
    const streams = eightStreams(from, to)
    await streams.goOn()
    // Packets that arrived from a peer before its lease was known do not count.
    const unknownPackets = async (): Promise<unknown> =>
      Promise.all(
        [a, b].map(async (host) => {
          const { rx_drop_spoofed_source, rx_drop_unknown_sender } = (await statusOf(host)).dataPath!.counters
          return { rx_drop_spoofed_source, rx_drop_unknown_sender }
        }),
      )
    const before = await unknownPackets()

    const repair = await Promise.all([a, b].map((host) => cut(host, first)))
    const away = new RegExp(
      ` does not answer at .*, and is reached at .*: look at the routes and firewalls for ${FAMILY_NAMES[first]} `,
    )
    await Promise.all(daemons.map((daemon) => daemon.line(away)))
    for (const host of [a, b]) expect(await familyTo(host)).toBe(other)
    await everyWay()
    await streams.goOn()
    expect((await weft(a, ['events'])).stdout).toMatch(/ is now reached at \S+ instead of /)
    await eventually(async () => expect((await statusOf(a)).peers).toMatchObject({ answering: 1 }))

    for (const each of repair) await each()
    await Promise.all(
      daemons.map((daemon) => daemon.line(new RegExp(`answers over ${FAMILY_NAMES[first]} again, and is reached at `))),
    )
    for (const host of [a, b]) expect(await familyTo(host)).toBe(first)
    await streams.goOn()
    await everyWay()
    streams.end()
    await server.stop()
    expect(await unknownPackets()).toEqual(before)
    await eventually(async () => expect(await doctor(a)).toMatchObject({ code: 0, names: [] }))
    for (const { lines } of daemons)
      expect(lines.filter((line) => line.includes('is reached at') || /^W.* not let in/.test(line))).toHaveLength(2)
  },
)

it('a peer that restarts while the first family fails is reached over the other one, and a peer that is down stays on its family', async () => {
  const [, second] = await running('ipv6')
  const [a, b] = lab.hosts as [Host, Host]
  await reach(a.namespace, b.subnetEnv()['FLANNEL_SUBNET']!.replace(/\.1\/.*/, '.0'))
  const repair = await Promise.all([a, b].map((host) => cut(host, 'ipv6')))
  for (const host of [a, b]) await eventually(async () => expect(await familyTo(host)).toBe('ipv4'))
  // The state for the next process is written shortly after the choice, and a killed process writes nothing more.
  const known = (): unknown => JSON.parse(readFileSync(`${b.subnetFile}.last-known`, 'utf8'))
  await eventually(() => expect(known()).toMatchObject({ others: [expect.any(String)] }))
  await second.stop('SIGKILL')
  await eventually(async () => expect((await statusOf(a)).peers).toMatchObject({ answering: 0 }))
  expect(b.subnetEnv()['FLANNEL_MTU']).toBe('1452')
  const again = start(b)
  await again.line(/flannel is ready/)
  for (const host of [a, b]) expect(await familyTo(host)).toBe('ipv4')
  expect(b.subnetEnv()['FLANNEL_MTU']).toBe('1452') // it fits both families
  await reach(a.namespace, b.subnetEnv()['FLANNEL_SUBNET']!.replace(/\.1\/.*/, '.0'))
  for (const each of repair) await each()
})

it('a weftd with sockets of one family hands over to a weftd with both, which hands over to a weftd with one', async () => {
  lab = await createLab({ hosts: 2, families: ['ipv4', 'ipv6'] })
  const [a, b] = lab.hosts as [Host, Host]
  configure(BOTH)
  await start(b).line(/flannel is ready/)
  let daemon: Daemon | undefined
  const upgrade = async (network: object, sockets: RegExp): Promise<void> => {
    const before = daemon
    configure(network)
    daemon = start(a)
    await daemon.line(sockets)
    await daemon.line(/flannel is ready/)
    if (before) await ended(before.process)
  }
  const ONE = /Forwarding between flannel0 and UDP 192\.168\.77\.1:8285 with/
  await upgrade(IPV4_ALONE, ONE)
  const [from, to] = [await a.startPod(), await b.startPod()]
  await reach(from.namespace, to.address)
  const pings = [pinging(from, to, { everyS: 0.01 }), pinging(to, from, { everyS: 0.01 })]
  const isBoundByIpv6 = async (): Promise<boolean> => /:205D /.test(await a.output(['cat', '/proc/net/udp6'])) // port 8285
  for (const [network, sockets] of [
    [BOTH, /Forwarding between flannel0 and UDP 192\.168\.77\.1:8285 and \[fd77::1\]:8285 with/],
    [IPV4_ALONE, ONE],
  ] as const) {
    await upgrade(network, sockets)
    expect(await isBoundByIpv6()).toBe(network === BOTH)
    await reach(to.namespace, from.address)
  }
  for (const each of pings) expect((await each.stop()).lost).toBe(0)
})

it('a peer that is reached over the other family stays there from the first packet of the next weftd', async () => {
  let [first] = await running()
  const [a, b] = lab.hosts as [Host, Host]
  const [from, to] = [await a.startPod(), await b.startPod()]
  await reach(from.namespace, to.address)
  await Promise.all([a, b].map((host) => cut(host, 'ipv4')))
  for (const host of [a, b]) await eventually(async () => expect(await familyTo(host)).toBe('ipv6'))
  await reach(from.namespace, to.address)
  const pings = [pinging(from, to, { everyS: 0.01 }), pinging(to, from, { everyS: 0.01 })]
  for (let round = 0; round < 2; round++) {
    const before = first
    first = start(a)
    await first.line(/flannel is ready/)
    await ended(before.process)
    // The family was not probed again, and is not left before the first one is steady.
    await eventually(async () => expect((await statusOf(a)).peers).toMatchObject({ answering: 1 }))
    expect(await familyTo(a)).toBe('ipv6')
    expect(first.lines.filter((line) => line.includes('is reached at'))).toEqual([])
  }
  for (const each of pings) {
    const { sent, lost } = await each.stop()
    expect(sent).toBeGreaterThan(50)
    expect(lost).toBe(0)
  }
})
