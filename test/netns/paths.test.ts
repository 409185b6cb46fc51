// paths.test.ts - whatever kernel features the two ends have or lack, a stream arrives byte for byte and every checksum
// on the wire is right.
//
// `npm test` takes a slice; `npm run test:paths` takes all: 10 GB with each feature off, 72 random pairs of ends, a
// million packets captured at each end.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, packageRoot, type Host, type Lab } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { checkCapture, type Checked } from '../support/pcap.ts'
import { digestOf } from '../support/stream.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ethtool', 'iperf3', 'ping', 'tcpdump')

const ALL = process.env['WEFT_LONG'] === '1'
const FEATURES = [
  'tun-header',
  'tun-csum',
  'tun-tso',
  'tun-uso',
  'udp-gso',
  'udp-gro',
  'coalesce-tcp',
  'coalesce-udp',
  'two-threads',
]
const STREAM_BYTES = ALL ? 10e9 : 32 << 20
const RANDOM_BYTES = ALL ? 256 << 20 : 32 << 20
const RANDOM_PAIRS = ALL ? 72 : 2
const CAPTURED = ALL ? 1_000_000 : 10_000
const TIMEOUT_MS = ALL ? 300_000 : 60_000

let lab: Lab | undefined
afterEach(() => lab?.close())

const seed = Number(process.env['WEFT_SEED'] ?? Date.now() % 2 ** 31)
let state = seed
/** A feature set by a linear congruential generator: bit n is feature n, of those that are off. */
function randomSet(): string[] {
  state = (state * 1_103_515_245 + 12_345) % 2 ** 31
  return FEATURES.filter((_, bit) => (state >> (bit + 8)) & 1)
}

/** Two hosts with a daemon each that lacks the given features; returns them and the second one's overlay address. */
async function join2(withouts: readonly (readonly string[])[]): Promise<{ from: Host; to: Host; address: string }> {
  lab = await createLab({ hosts: 2, underlay: 'veth' })
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
  const daemons = lab.hosts.map((host, index) => {
    const off = withouts[index]!.flatMap((feature) => ['--without', feature])
    return host.startDaemon({ args: ['--lease-dir', leases, ...off] })
  })
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  const [from, to] = lab.hosts as [Host, Host]
  const address = (to.subnetEnv()['FLANNEL_SUBNET'] ?? '').replace(/\.1\/\d+$/, '.0')
  await reach(from.namespace, address)
  return { from, to, address }
}

/** Sends the stream from the host with the address to the other and returns the digest there. */
async function streamDigest(from: Host, to: Host, address: string, bytes: number): Promise<string> {
  const program = join(packageRoot, 'dist/test/support/stream.js')
  const sender = to.spawn([process.execPath, program, 'send', address, '7000', String(bytes)])
  await once(createInterface({ input: sender.stdout! }), 'line')
  const digest = await from.output([process.execPath, program, 'receive', address, '7000'], { timeoutMs: TIMEOUT_MS })
  await ended(sender)
  return digest.trim()
}

const pairs: [string, readonly string[], readonly string[], number][] = [
  ['all features', [], [], STREAM_BYTES],
  ['no feature', FEATURES, FEATURES, STREAM_BYTES],
  ...(ALL ? FEATURES : ['udp-gso', 'tun-tso']).map((name): [string, string[], string[], number] => [
    `all but ${name}`,
    [name],
    [name],
    STREAM_BYTES,
  ]),
  ...Array.from({ length: RANDOM_PAIRS }, (_, index): [string, string[], string[], number] => [
    `random pair ${index} of seed ${seed}`,
    randomSet(),
    randomSet(),
    RANDOM_BYTES,
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
    async (_name, here, there, bytes) => {
      const wanted = expected(bytes)
      const { from, to, address } = await join2([here, there])
      const off = `off here: ${here.join(' ')}; off there: ${there.join(' ')}`
      expect(await streamDigest(from, to, address, bytes), off).toBe(wanted)
    },
    TIMEOUT_MS,
  )
})

/** Captures what crosses eth0 of a host until stopped; resolves when it sees packets. */
async function capture(host: Host, options: { outer: boolean; few?: boolean }): Promise<() => Promise<Checked>> {
  // Without immediate mode the last second may stay in the kernel; with it the buffer holds few packets.
  const mode = options.few ? ['--immediate-mode'] : ['-B', '262144']
  const tcpdump = ['tcpdump', '-i', 'eth0', '-U', ...mode, '-s', '0', '-w', '-', 'udp', 'port', '8285']
  const child = spawn('ip', ['netns', 'exec', host.namespace, ...tcpdump], { stdio: ['ignore', 'pipe', 'pipe'] })
  const said = createInterface({ input: child.stderr })
  const lines: string[] = []
  said.on('line', (line) => lines.push(line))
  const result = checkCapture(child.stdout, options)
  await once(said, 'line') // listening on eth0
  return async () => {
    child.kill('SIGINT')
    const checked = await result
    const dropped = /(\d+) packets? dropped by kernel/.exec(lines.join('\n'))?.[1]
    expect(dropped, 'tcpdump kept up with the traffic').toBe('0')
    return checked
  }
}

describe('every checksum on the wire is right', () => {
  it.each([
    ['by UDP_SEGMENT', [], false],
    // Without checksum offload on the way the kernel refuses UDP_SEGMENT with EIO, and outer checksums are real.
    ['past a device that cannot offload checksums', [], true],
    ['without TSO on the TUN', ['tun-tso'], false],
    ['without checksums left open by the kernel', ['tun-csum'], false],
  ] as const)(
    '%s',
    async (_name, without, outer) => {
      const { from, to, address } = await join2([without, without])
      if (outer) for (const host of [from, to]) await host.output(['ethtool', '-K', 'eth0', 'tx', 'off'])
      const server = await iperfServer((command) => to.spawn(command))
      const captures = await Promise.all([from, to].map((host) => capture(host, { outer })))
      // Both ways at a rate that the capture can keep up with, then UDP of odd size.
      const megabits = outer ? 500 : 1500 // a capture of single datagrams costs more
      const seconds = Math.ceil((CAPTURED * 1420 * 8) / 2 / (megabits * 0.8e6))
      for (const direction of [[], ['--reverse']]) {
        await server.run(from.namespace, address, seconds, ['--bitrate', `${megabits}M`, ...direction])
      }
      await server.run(from.namespace, address, 1, ['--udp', '--length', '333', '--bitrate', '20M'])
      for (const stop of captures) {
        const checked = await stop()
        expect(checked.packets).toBeGreaterThan(CAPTURED)
        expect(checked).toMatchObject({ bad: 0, badDatagrams: 0 })
        if (ALL) console.log(`${checked.packets} packets in ${checked.datagrams} captured datagrams: none bad`)
      }
    },
    TIMEOUT_MS,
  )

  it('finds a wrong one', async () => {
    const { from, to, address } = await join2([[], []])
    const stop = await capture(to, { outer: false, few: true })
    // A packet whose checksum is wrong, put into the tunnel as another peer would.
    const script = `
      const inner = Buffer.from('45000020000000004011f9c80a0501020a05020204d2162e000cbeef6f6f7073', 'hex')
      require('node:dgram').createSocket('udp4').send(inner, 8285, '${to.address}', () => process.exit())`
    await from.output([process.execPath, '-e', script])
    await reach(from.namespace, address)
    const checked = await stop()
    expect(checked.bad).toBe(1)
    expect(checked.packets).toBeGreaterThan(1)
  })
})
