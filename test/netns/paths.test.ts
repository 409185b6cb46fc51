// paths.test.ts - whatever kernel features the two ends have, and whichever families are inside and outside, a stream arrives byte for byte
// and every checksum on the wire is right.
//
// `npm test` runs a part. `npm run test:paths` runs everything: 10 GB without each feature, 72 random pairs of ends, and a million packets
// captured at each end.

import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, EVENT_MS, networkOf, packageRoot, type Host, type Lab } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { addon } from '../../src/host/addon.ts'
import type { Family } from '../../src/net/address.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { checkCapture, type Checked } from '../support/pcap.ts'
import { digestOf } from '../support/stream.ts'

needs(HOSTS, 'ethtool', 'iperf3', 'ping', 'tcpdump')

const ALL = process.env['WEFT_LONG'] === '1'
const FEATURES = addon.featureNames
const STREAM_BYTES = ALL ? 10e9 : 32 << 20
const RANDOM_BYTES = ALL ? 256 << 20 : 32 << 20
const RANDOM_PAIRS = ALL ? 72 : 2
const CAPTURED = ALL ? 1_000_000 : 10_000
/** The time limit in ms for 10 GB on a slow machine. */
const STREAM_MS = ALL ? 1_800_000 : 240_000

let lab: Lab | undefined
afterEach(() => lab?.close())

const seed = Number(process.env['WEFT_SEED'] ?? Date.now() % 2 ** 31)
let state = seed
/** Draws the features to switch off with a linear congruential generator: bit n selects feature n. */
function randomSet(): string[] {
  state = (state * 1_103_515_245 + 12_345) % 2 ** 31
  return FEATURES.filter((_, bit) => (state >> (bit + 8)) & 1)
}

/** The family of the packets and the family of their datagrams. */
type Way = readonly [inner: Family, outer: Family]
const IPV4: Way = ['ipv4', 'ipv4']
const WITH_IPV6: readonly Way[] = [
  ['ipv6', 'ipv4'],
  ['ipv4', 'ipv6'],
  ['ipv6', 'ipv6'],
]

/** Starts two daemons, each without the given features, on two hosts; returns the hosts and the second one's overlay address. */
async function join2(
  withouts: readonly (readonly string[])[],
  [inner, outer]: Way = IPV4,
): Promise<{ from: Host; to: Host; address: string }> {
  const isOfBoth = inner === 'ipv6' || outer === 'ipv6'
  lab = await createLab({ hosts: 2, underlay: 'veth', ...(isOfBoth ? { families: ['ipv4', 'ipv6'] } : {}) })
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  const both = isOfBoth ? { EnableIPv6: true, IPv6Network: 'fd00:5::/48' } : {}
  const config = { Network: '10.5.0.0/16', ...both, Backend: { Type: 'udp', Underlay: outer } }
  writeFileSync(join(leases, 'config'), JSON.stringify(config))
  const daemons = lab.hosts.map((host, index) => {
    const off = withouts[index]!.flatMap((feature) => ['--without', feature])
    return host.startDaemon({ args: ['--lease-dir', leases, ...off] })
  })
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  const [from, to] = lab.hosts as [Host, Host]
  const { FLANNEL_SUBNET = '', FLANNEL_IPV6_SUBNET = '' } = to.subnetEnv()
  const address = networkOf(inner === 'ipv4' ? FLANNEL_SUBNET : FLANNEL_IPV6_SUBNET).split('/')[0] ?? ''
  await reach(from.namespace, address)
  return { from, to, address }
}

/** Sends the stream from one host to the address on the other, and returns the digest there. */
async function streamDigest(from: Host, to: Host, address: string, bytes: number): Promise<string> {
  const program = join(packageRoot, 'dist/test/support/stream.js')
  const sender = to.spawn([process.execPath, program, 'send', address, '7000', String(bytes)])
  await once(createInterface({ input: sender.stdout! }), 'line')
  const digest = await from.output([process.execPath, program, 'receive', address, '7000'], { timeoutMs: STREAM_MS })
  await ended(sender)
  return digest.trim()
}

type Pair = [name: string, here: readonly string[], there: readonly string[], bytes: number, way: Way]
/** The features that are off at both ends. */
const OFF: readonly (readonly [name: string, off: readonly string[]])[] = [
  ['all features', []],
  ['no feature', FEATURES],
  ...(ALL ? FEATURES : []).map((name) => [`all but ${name}`, [name]] as const),
]
const pairs: readonly Pair[] = [
  ['all features', [], [], STREAM_BYTES, IPV4],
  ['no feature', FEATURES, FEATURES, STREAM_BYTES, IPV4],
  ...(ALL ? FEATURES : ['udp-gso', 'tun-tso']).map((name): Pair => [
    `all but ${name}`,
    [name],
    [name],
    STREAM_BYTES,
    IPV4,
  ]),
  ...WITH_IPV6.flatMap((way) =>
    OFF.map(([name, off]): Pair => [`${name}, ${way.join(' in ')}`, off, off, RANDOM_BYTES, way]),
  ),
  ...Array.from({ length: RANDOM_PAIRS }, (_, index): Pair => [
    `random pair ${index} of seed ${seed}`,
    randomSet(),
    randomSet(),
    RANDOM_BYTES,
    IPV4,
  ]),
]

describe('a stream arrives byte for byte', () => {
  const digests = new Map<number, string>()
  const expected = (bytes: number): string => {
    if (!digests.has(bytes)) digests.set(bytes, digestOf(bytes))
    return digests.get(bytes)!
  }
  it.each(pairs)(
    'with %s',
    async (_name, here, there, bytes, way) => {
      const wanted = expected(bytes)
      const { from, to, address } = await join2([here, there], way)
      const off = `off here: ${here.join(' ')}; off there: ${there.join(' ')}`
      expect(await streamDigest(from, to, address, bytes), off).toBe(wanted)
    },
    STREAM_MS + EVENT_MS,
  )
})

interface Capture {
  /** The counts so far. The kernel skips packets while tcpdump or this process is behind. */
  readonly checked: Readonly<Checked>
  readonly stop: () => Promise<void>
}

/** Captures the traffic of a host's eth0 until stopped; resolves when tcpdump is ready. */
async function capture(host: Host, outer = false): Promise<Capture> {
  // In immediate mode tcpdump prints the last packets too, before the second is over.
  const tcpdump = ['tcpdump', '-i', 'eth0', '-U', '--immediate-mode', '-B', '65536', '-s', '0', '-w', '-']
  const child = host.spawn([...tcpdump, 'udp', 'port', '8285'])
  const checked: Checked = { packets: 0, bad: 0, datagrams: 0, badDatagrams: 0 }
  const done = checkCapture(child.stdout!, checked, { outer })
  await once(createInterface({ input: child.stderr! }), 'line') // tcpdump's line "listening on eth0"
  return {
    checked,
    async stop() {
      child.kill('SIGINT')
      await done
    },
  }
}

describe('every checksum on the wire is right', () => {
  it.each([
    ['by UDP_SEGMENT', [], false],
    ...WITH_IPV6.map((way) => [`by UDP_SEGMENT, ${way.join(' in ')}`, [], false, way] as const),
    ['past a device that cannot offload checksums, ipv6 in ipv6', [], true, ['ipv6', 'ipv6']],
    // Without checksum offload the kernel refuses UDP_SEGMENT with EIO, and the outer checksums are computed.
    ['past a device that cannot offload checksums', [], true],
    ['without TSO on the TUN', ['tun-tso'], false],
    ['without checksums left open by the kernel', ['tun-csum'], false],
  ] as const)(
    '%s',
    async (_name, without, outer, way?: Way) => {
      const { from, to, address } = await join2([without, without], way)
      if (outer) for (const host of [from, to]) await host.output(['ethtool', '-K', 'eth0', 'tx', 'off'])
      const captures = await Promise.all([from, to].map((host) => capture(host, outer)))
      const fewest = (): number => Math.min(...captures.map(({ checked }) => checked.packets))
      const iperf = async (bytes: number, ...args: string[]): Promise<void> => {
        // Each run has its own server, because a server is still busy when its client has ended.
        const server = await iperfServer((command) => to.spawn(command))
        await from.output(['iperf3', '--client', address, '--bytes', String(Math.ceil(bytes)), ...args])
        await server.stop()
      }
      // TCP in both directions until enough packets were captured, at a rate that the capture can follow; then UDP of odd size.
      for (const [part, ...direction] of [[0.5], [1, '--reverse']] as const)
        do await iperf((CAPTURED * 1420) / 2, '--bitrate', outer ? '500M' : '1500M', ...direction)
        while (fewest() < CAPTURED * part)
      const before = fewest()
      do await iperf(333 * 1000, '--udp', '--length', '333', '--bitrate', '20M')
      while (fewest() < before + 500)
      for (const { checked, stop } of captures) {
        await stop()
        expect(checked).toMatchObject({ bad: 0, badDatagrams: 0 })
        if (ALL) console.log(`${checked.packets} packets in ${checked.datagrams} captured datagrams: none bad`)
      }
    },
    STREAM_MS,
  )

  it('finds a wrong checksum', async () => {
    const { from, to, address } = await join2([[], []])
    const { checked, stop } = await capture(to)
    // Sends a packet with a wrong checksum into the tunnel, as another peer would.
    const script = `
      const inner = Buffer.from('45000020000000004011f9c80a0501020a05020204d2162e000cbeef6f6f7073', 'hex')
      require('node:dgram').createSocket('udp4').send(inner, 8285, '${to.address}', () => process.exit())`
    await from.output([process.execPath, '-e', script])
    await reach(from.namespace, address)
    await expect.poll(() => checked.packets).toBeGreaterThan(1)
    await stop()
    expect(checked.bad).toBe(1)
  })
})
