// path-mtu.test.ts - the MTU of a path between two hosts suddenly decreases, with either family outside and inside. The tests cover ICMP
// errors, segmentation, fragmentation, the recovery, and forged ICMP errors.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { PATIENCE } from '../../lab/command.ts'
import { createLab, EVENT_MS, labs, type Daemon, type Host, type Place, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import type { Family } from '../../src/net/address.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { internetChecksum } from '../../src/path/engine/reference/packet.ts'
import { eventually } from '../support/event.ts'
import { buildForge, type Forge } from '../support/forge.ts'
import { BUILD_MS } from '../support/native-program.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { ipv4Packet } from '../support/packets.ts'
import { pinging } from '../support/pinging.ts'

const lacks = needs(HOSTS, 'g++', 'ping', 'nft', 'nstat', 'ethtool')

let forge: Forge
beforeAll(async () => {
  if (!lacks) forge = await buildForge()
}, BUILD_MS)
afterAll(async () => {
  forge?.close()
  await Promise.all([...labs.open].map((lab) => lab.close()))
})

const MIB = 1 << 20
/** Receives a stream, and prints a line for each MiB. */
const SINK = `let size = 0, told = 0
require('node:net').createServer((socket) => socket.on('data', (bytes) => {
  size += bytes.length
  while (told < Math.floor(size / ${MIB})) console.log('MiB ' + ++told)
})).listen(7000, () => console.log('listening'))`
/** Sends a MiB for each line of input. */
const SOURCE = (address: string): string => `const socket = require('node:net').connect(7000, '${address}')
process.stdin.on('data', () => socket.write(Buffer.alloc(${MIB})))`

/** Makes a kernel forget the MTUs that it has learnt, as it does after ten minutes. */
async function forget(place: Place): Promise<void> {
  for (const family of ['-4', '-6']) await place.output(['ip', family, 'route', 'flush', 'cache'])
}

/**
 * Sends one ping and returns ping's output. It waits for the answer however slow the machine is; with several pings, ping gives the last
 * one a tenth of a second.
 */
async function ping(from: Place, to: string, ...more: string[]): Promise<string> {
  return (await from.run(['ping', '-n', '-c', '1', '-W', String(EVENT_MS / 1000), ...more, to])).stdout
}

/** Sends a packet with DF of `bytes` bytes including all headers, whatever MTU the sender has learnt; returns ping's output. */
async function probe(from: Place, to: string, bytes: number, ...more: string[]): Promise<string> {
  await forget(from)
  return ping(from, to, '-M', 'do', '-s', String(bytes - (to.includes(':') ? 48 : 28)), ...more)
}
/** Does the same with retries, because the packet may be lost. */
const tryProbe = (from: Place, to: string, bytes: number): Promise<string> => probe(from, to, bytes, '-W', '1')

/** Checks that three packets are answered, one after the other. */
async function areAnswered(from: Place, to: string, ...more: string[]): Promise<void> {
  for (let sent = 0; sent < 3; sent++) expect(await ping(from, to, ...more)).toContain('1 received')
}

/**
 * The time in ms in which a MiB arrives if its sender gets ICMP errors. A sender without ICMP errors doubles its
 * retransmission timeout again and again.
 */
const CROSSED_MS = 10_000 * PATIENCE

/** Checks that a stream arrives in time, and short packets next to it. */
async function crosses({ inside, other, otherAddress, stream }: Bed): Promise<void> {
  const began = performance.now()
  const pings = pinging(inside, other, { address: otherAddress, everyS: 0.1 })
  await stream()
  expect(performance.now() - began).toBeLessThan(CROSSED_MS)
  expect(await pings.stop()).toMatchObject({ lost: 0, errors: 0 })
}

/** Options of ping for long packets that may be fragmented. */
const WITHOUT_DF = ['-M', 'dont', '-s', '1400']

/** Returns a counter of /proc/net/snmp. */
async function ipCount(place: Place, name: string): Promise<number> {
  const [names = [], values = []] = (await place.output(['grep', '^Ip:', '/proc/net/snmp']))
    .split('\n')
    .map((line) => line.split(' '))
  return Number(values[names.indexOf(name)])
}

/** Returns the number of packets of a family that a host or container has reassembled. */
async function reassembled(place: Place, family: Family): Promise<number> {
  if (family === 'ipv4') return ipCount(place, 'ReasmOKs')
  return Number((await place.output(['grep', '^Ip6ReasmOKs', '/proc/net/snmp6'])).split(/\s+/)[1])
}

/** Returns a counter of `nstat`. */
const tcpCount = async (place: Place, name: string): Promise<number> =>
  Number(new RegExp(`^${name} +(\\d+)`, 'm').exec(await place.output(['nstat', '-asz', name]))?.[1])

interface Bed {
  readonly daemons: readonly Daemon[]
  readonly hosts: readonly [Host, Host, Host]
  readonly inside: Pod
  readonly other: Pod
  /** The address of the inner family. */
  readonly otherAddress: string
  readonly insideAddress: string
  /** Sends a MiB from one container to the other; later calls use the same connection. */
  readonly stream: () => Promise<void>
}

/** Creates two nodes with a container each, and a host that is not a node; `before` runs before the nodes start. */
async function open(
  {
    engine,
    backend,
    args = [],
    env = {},
    inner = 'ipv4',
    outer = 'ipv4',
  }: {
    readonly engine: string
    readonly backend: object
    readonly args?: readonly string[]
    readonly env?: Record<string, string>
    readonly inner?: Family
    readonly outer?: Family
  },
  before: (hosts: readonly [Host, Host, Host]) => Promise<unknown> = () => Promise.resolve(),
): Promise<Bed> {
  const isOfBoth = inner === 'ipv6' || outer === 'ipv6'
  const lab = await createLab({ hosts: 3, families: isOfBoth ? ['ipv4', 'ipv6'] : ['ipv4'] })
  const hosts = lab.hosts as unknown as readonly [Host, Host, Host]
  const nodes = hosts.slice(0, 2)
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  const both = { EnableIPv6: true, IPv6Network: 'fd00:5::/48' }
  const config = { Network: '10.5.0.0/16', ...(isOfBoth ? both : {}), Backend: backend }
  writeFileSync(join(leases, 'config'), JSON.stringify(config))
  await before(hosts)
  const started = nodes.map((host) =>
    host.startDaemon({ args: ['--lease-dir', leases, '--engine', engine, ...args], env }),
  )
  await Promise.all(started.map((daemon) => daemon.line(/flannel is ready/)))
  const [inside, other] = (await Promise.all(nodes.map((host) => host.startPod()))) as [Pod, Pod]
  const addressOf = (pod: Pod): string => (inner === 'ipv4' ? pod.address : pod.ipv6) ?? ''
  const [insideAddress, otherAddress] = [addressOf(inside), addressOf(other)]
  await reach(inside.namespace, otherAddress)

  const sink = other.spawn([process.execPath, '-e', SINK])
  let received = ''
  sink.stdout!.on('data', (text: Buffer) => (received += text.toString()))
  await eventually(() => expect(received).toContain('listening'))
  const source = inside.spawn([process.execPath, '-e', SOURCE(otherAddress)], { stdin: true })
  let sent = 0
  const stream = async (): Promise<void> => {
    source.stdin!.write('\n')
    sent++
    await eventually(() => expect(received).toContain(`MiB ${sent}\n`))
  }
  return { hosts, daemons: started, inside, other, insideAddress, otherAddress, stream }
}

/** Routes both hosts through the third one, which forwards on the interface it received from. */
async function throughRouter([a, b, router]: readonly [Host, Host, Host]): Promise<void> {
  for (const name of ['ip_forward=1', 'conf/all/send_redirects=0', 'conf/eth0/send_redirects=0'])
    await router.output(['sh', '-c', `echo ${name.split('=')[1]} > /proc/sys/net/ipv4/${name.split('=')[0]}`])
  await a.output(['ip', 'route', 'add', b.address, 'via', router.address])
  await b.output(['ip', 'route', 'add', a.address, 'via', router.address])
}

/** Does the same for IPv6; a forwarding host ignores IPv6 redirects. */
async function throughRouterBoth(hosts: readonly [Host, Host, Host]): Promise<void> {
  await throughRouter(hosts)
  const [a, b, router] = hosts
  await a.output(['ip', 'route', 'add', b.ipv6, 'via', router.ipv6])
  await b.output(['ip', 'route', 'add', a.ipv6, 'via', router.ipv6])
}

/** Sets the MTU of the router's routes to two hosts. */
const takes = (router: Host, hosts: readonly Host[], mtu: number): Promise<unknown> =>
  Promise.all(
    hosts.map(({ address }) => router.output(['ip', 'route', 'replace', address, 'dev', 'eth0', 'mtu', String(mtu)])),
  )

/** Does the same for both families. For IPv6 the MTU of a route applies to forwarded packets only if it is locked (net/ipv6/route.c). */
const takesBoth = async (router: Host, hosts: readonly Host[], mtu: number): Promise<void> => {
  await takes(router, hosts, mtu)
  for (const { ipv6 } of hosts)
    await router.output(['ip', 'route', 'replace', ipv6, 'dev', 'eth0', 'mtu', 'lock', String(mtu)])
}

/** Ways in which the router drops packets above 1280 bytes without an ICMP error, each with its end. */
const HOLES = {
  /** Longer packets are dropped. GSO is off, so that each datagram is a packet of its own, as on a wire. */
  length: async ([a, b, router]: readonly [Host, Host, Host]): Promise<void> => {
    for (const host of [a, b]) await host.output(['ethtool', '-K', 'eth0', 'tx-udp-segmentation', 'off'])
    await router.output(nft('forward', 'ip length gt 1280'))
  },
  /** Packets that may not be fragmented are dropped. */
  'no ICMP': async ([a, b, router]: readonly [Host, Host, Host]): Promise<void> => {
    await takes(router, [a, b], 1280)
    await router.output(nft('output', 'icmp type destination-unreachable'))
  },
}
const nft = (hook: string, what: string): string[] => [
  'nft',
  `table ip hole { chain hole { type filter hook ${hook} priority 0; ${what} drop; }; }`,
]
async function fillHole([a, b, router]: readonly [Host, Host, Host]): Promise<void> {
  await takes(router, [a, b], 1500)
  await router.output(['nft', 'delete', 'table', 'ip', 'hole'])
}

/** Makes the monotonic clock of a daemon jump ten minutes ahead on SIGUSR2. */
const CLOCK = {
  NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(`
const now = performance.now.bind(performance)
let ahead = 0
performance.now = () => now() + ahead
process.on('SIGUSR2', () => (ahead += 600_000))`)}`,
}

describe.concurrent('a path', () => {
  const BACKENDS = [
    { engine: 'native', backend: { Type: 'udp' }, overhead: 28 },
    { engine: 'dgram', backend: { Type: 'udp' }, overhead: 28 },
    { engine: 'native', backend: { Type: 'vxlan', DataPath: 'userspace' }, overhead: 50 },
  ]
  it.each(BACKENDS)('narrows from 1500 to 1280: $backend.Type, $engine', async ({ engine, backend, overhead }) => {
    const bed = await open({ engine, backend }, throughRouter)
    const { hosts, inside, other, stream } = bed
    const [a, b, router] = hosts
    const wide = 1500 - overhead
    const fits = 1280 - overhead
    expect(await probe(inside, other.address, wide)).toContain('1 received')

    await stream()

    await takes(router, [a, b], 1280)
    await crosses(bed)

    // With DF the sender gets an ICMP error, on either side.
    const isTold = (from: Pod, to: Pod) => async () =>
      expect(await tryProbe(from, to.address, fits + 1)).toContain(`Frag needed and DF set (mtu = ${fits})`)
    await eventually(isTold(inside, other))
    await eventually(isTold(other, inside))
    expect(await probe(inside, other.address, fits)).toContain('1 received')

    // Without DF the packet is fragmented, and the container reassembles it, not its host.
    await Promise.all([inside, other].map(forget)) // otherwise they would fragment what they send by themselves
    const counts = async (): Promise<number[]> => [await ipCount(b, 'ReasmReqds'), await ipCount(other, 'ReasmOKs')]
    const [byHost = 0, byContainer = 0] = await counts()
    await areAnswered(inside, other.address, ...WITHOUT_DF)
    expect(await counts()).toEqual([byHost, byContainer + 3])

    // The MTU is 1500 again, and the kernels have forgotten the smaller one, as they do after ten minutes.
    await takes(router, [a, b], 1500)
    await Promise.all([a, b].map(forget))
    await eventually(async () => expect(await tryProbe(inside, other.address, wide)).toContain('1 received'))
    await stream()
  })

  const FAMILIES = [
    { inner: 'ipv6', outer: 'ipv4', overhead: 28 },
    { inner: 'ipv4', outer: 'ipv6', overhead: 48 },
    { inner: 'ipv6', outer: 'ipv6', overhead: 48 },
  ] as const
  it.each(FAMILIES)('narrows from 1500 to 1280: $inner in datagrams of $outer', async ({ inner, outer, overhead }) => {
    const backend = { Type: 'udp', Underlay: outer }
    const bed = await open({ engine: 'native', backend, inner, outer }, throughRouterBoth)
    const { hosts, inside, other, insideAddress, otherAddress, stream } = bed
    const [a, b, router] = hosts
    const wide = 1452
    // An IPv6 sender never gets an MTU below 1280, which each link must support.
    const fits = inner === 'ipv6' ? 1280 : 1280 - overhead
    expect(await probe(inside, otherAddress, wide)).toContain('1 received')
    await stream()

    await takesBoth(router, [a, b], 1280)
    await crosses(bed)
    const isTold = (from: Pod, to: string) => async () =>
      expect(await tryProbe(from, to, fits + 1)).toMatch(
        new RegExp(`(Frag needed and DF set \\(mtu = |Packet too big: mtu=)${fits}\\b`),
      )
    await eventually(isTold(inside, otherAddress))
    await eventually(isTold(other, insideAddress))
    // A packet that may not be fragmented, and has at most 1280 bytes, is sent in a fragmented datagram.
    const before = await reassembled(b, outer)
    expect(await probe(inside, otherAddress, fits)).toContain('1 received')
    expect((await reassembled(b, outer)) - before).toBe(inner === 'ipv6' ? 1 : 0)
    if (inner === 'ipv4') {
      await Promise.all([inside, other].map(forget))
      const byContainer = await reassembled(other, 'ipv4')
      await areAnswered(inside, otherAddress, ...WITHOUT_DF)
      expect([await reassembled(b, outer), await reassembled(other, 'ipv4')]).toEqual([before, byContainer + 3])
    }

    await takesBoth(router, [a, b], 1500)
    await Promise.all([a, b].map(forget))
    await eventually(async () => expect(await tryProbe(inside, otherAddress, wide)).toContain('1 received'))
    await stream()
  })

  const SILENT = [
    { engine: 'native', backend: { Type: 'udp' }, overhead: 28, hole: 'length' },
    { engine: 'dgram', backend: { Type: 'udp' }, overhead: 28, hole: 'length' },
    { engine: 'native', backend: { Type: 'vxlan', DataPath: 'userspace' }, overhead: 50, hole: 'no ICMP' },
  ] as const
  it.each(SILENT)(
    'that drops long packets without ICMP errors is found with $hole: $backend.Type, $engine',
    async (given) => {
      const { engine, overhead, hole } = given
      const backend = { ...given.backend, ProbePathMTU: true }
      const bed = await open({ engine, backend, env: CLOCK }, async (three) => {
        await throughRouter(three)
        await HOLES[hole](three)
      })
      const { hosts, daemons, inside, other } = bed
      const fits = 1280 - overhead
      const found = new RegExp(
        `Packets of more than ${fits} bytes do not reach .*, and no router on the path reports it`,
      )
      await Promise.all(daemons.map((daemon) => daemon.line(found)))
      await crosses(bed)
      expect(await probe(inside, other.address, fits + 1)).toContain(`Frag needed and DF set (mtu = ${fits})`)
      expect(await probe(inside, other.address, fits)).toContain('1 received')

      // The router forwards long packets again, which weftd finds ten minutes later.
      await fillHole(hosts)
      for (const daemon of daemons) daemon.process.kill('SIGUSR2')
      await Promise.all(daemons.map((daemon) => daemon.line(/No packet is too long for the path to .* any more/)))
      await eventually(async () =>
        expect(await tryProbe(inside, other.address, 1500 - overhead)).toContain('1 received'),
      )
    },
  )

  it.each(['native', 'dgram'])('that drops long packets stalls a stream if no peer is probed: %s', async (engine) => {
    const { hosts, inside, other, stream } = await open({ engine, backend: { Type: 'udp' } }, async (three) => {
      await throughRouter(three)
      await HOLES.length(three)
    })
    expect(await inside.output(['cat', '/proc/sys/net/ipv4/tcp_mtu_probing'])).toBe('0\n')
    let crossed = false
    const crossing = stream().then(() => (crossed = true))
    // The sender retransmits the long packets, which are lost again.
    await eventually(async () => expect(await tcpCount(inside, 'TcpRetransSegs')).toBeGreaterThan(3))
    expect(crossed).toBe(false)
    expect(await ping(inside, other.address)).toContain('1 received')
    await fillHole(hosts)
    await crossing
  })

  it.each(['native', 'dgram'])(
    'gets the MTU that the kernel accepts, even from a forged ICMP error: %s',
    async (engine) => {
      // With one lane the datagrams' source port equals their destination port.
      const given = { engine, backend: { Type: 'udp' }, args: ['--workers', '1'] }
      const { hosts, inside, other, stream } = await open(given)
      const [a, b, forger] = hosts
      await stream()
      const quoted = ipv4Packet({
        source: parseIpv4(a.address)!,
        destination: parseIpv4(b.address)!,
        payload: Buffer.from([8285 >> 8, 8285 & 255, 8285 >> 8, 8285 & 255, 0, 100, 0, 0]),
      })
      const message = Buffer.concat([Buffer.from([3, 4, 0, 0, 0, 0, 0, 68]), quoted])
      message.writeUInt16BE(internetChecksum(message), 2)
      expect(await forge.send(forger, a, 0, [message], 1_000)).toBe(1_000)
      expect(await a.output(['ip', 'route', 'get', b.address])).toContain('mtu lock 552')
      // The path is slower, but keeps working.
      await eventually(async () => expect(await tryProbe(inside, other.address, 1472)).toContain('(mtu = 524)'))
      await stream()
      await forget(inside)
      await areAnswered(inside, other.address, ...WITHOUT_DF)
    },
  )
})
