// engines.test.ts - sends the same packets through the native engine and the dgram engine. Both must do the same.

import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { addon } from '../../src/host/addon.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { KINDS } from '../../src/path/catalog.ts'
import { ENCAPSULATIONS, type Encapsulation } from '../../src/path/engine/encapsulation.ts'
import { decrementTtl } from '../../src/path/engine/reference/packet.ts'
import type { ProbeJob, ProbeResult } from '../support/engine-probe.ts'
import type { HandoverResult } from '../support/handover-probe.ts'
import type { LendingResult } from '../support/lending-probe.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { ipv4Packet, udpDatagram } from '../support/packets.ts'

needs(HOSTS)

const CONTAINER = parseIpv4('10.5.1.2')!
const PEER = parseIpv4('10.5.2.7')!
const NOBODY = parseIpv4('10.5.3.7')!

/** Returns the command line that runs a command in a new network namespace. */
const inNamespace = (command: readonly string[]): string[] => [
  'unshare',
  '--net',
  '--mount',
  'sh',
  '-c',
  'mount -t sysfs sysfs /sys; exec "$@"',
  'sh',
  ...command,
]

const NOTHING: ProbeJob = {
  toTun: [],
  toUdp: [],
  fromUnknown: [],
  without: [],
  encapsulation: 'udp',
  verifySource: 'strict',
}

/** Runs an engine in a new network namespace, and returns what it did with the packets of `job`. */
async function probe(engine: string, job: Partial<ProbeJob>): Promise<ProbeResult> {
  const script = join(packageRoot, 'dist/test/support/engine-probe.js')
  const text = await output(inNamespace([process.execPath, script, engine]), {
    input: JSON.stringify({ ...NOTHING, ...job }),
  })
  return JSON.parse(text) as ProbeResult
}

const sorted = (packets: readonly string[]): string[] => packets.toSorted()

/** Returns the packet after its TTL was decremented `hops` times; undefined if the TTL expires. */
function forwarded(packet: Buffer, hops: number): Buffer | undefined {
  const copy = Buffer.from(packet)
  for (let hop = 0; hop < hops; hop++) if (!decrementTtl(copy)) return undefined
  return copy
}

/** Makes packets of all kinds that a container may send and that the kernel forwards with only the TTL changed. */
function packetsBetween(source: number, destination: number, seed: number, count: number): Buffer[] {
  const payload = fc.uint8Array({ minLength: 0, maxLength: 1400 }).map((bytes) => Buffer.from(bytes))
  const udp = fc
    .tuple(payload, fc.integer({ min: 1, max: 4 }))
    .map(([bytes, port]) => udpDatagram(source, destination, 1000 + port, 2000, bytes))
  const fields = fc.record({
    tos: fc.constantFrom(0, 0x10, 0xb8),
    ttl: fc.integer({ min: 4, max: 255 }),
    id: fc.integer({ min: 0, max: 0xffff }),
    fragment: fc.constantFrom(0, 0x4000, 0x2000, 0x0010),
    body: fc.oneof(
      fc.record({ protocol: fc.constant(17), payload: udp }),
      fc.record({ protocol: fc.constantFrom(6, 17, 47, 50, 132, 253), payload }),
    ),
  })
  return fc
    .sample(fields, { numRuns: count, seed })
    .map(({ body: { protocol, payload: whole }, ...rest }) => {
      // Every fragment except the last has a multiple of 8 bytes (RFC 791 section 3.2), and the first contains the
      // fields that firewalls need (RFC 3128).
      const hasMore = rest.fragment === 0x2000
      const bytes = hasMore ? Math.max(16, whole.length - (whole.length % 8)) : Math.max(1, whole.length)
      const body = Buffer.concat([whole, Buffer.alloc(16)]).subarray(0, bytes)
      return ipv4Packet({ source, destination, ...rest, protocol, payload: body })
    })
    .filter((packet) => packet.length <= 1472)
}

const outward = packetsBetween(CONTAINER, PEER, 1, 2_000)
const inward = packetsBetween(PEER, CONTAINER, 2, 2_000)
const hex = (packets: readonly Buffer[]): string[] => packets.map((packet) => packet.toString('hex'))

const encapsulations = Object.keys(ENCAPSULATIONS) as (keyof typeof ENCAPSULATIONS)[]
const engines = ['native', 'dgram'].flatMap((engine) => encapsulations.map((name) => [engine, name] as const))

describe.each(engines)('the %s engine with the encapsulation %s', (engine, encapsulation) => {
  const { headerBytes, seal, open }: Encapsulation = ENCAPSULATIONS[encapsulation]

  it('carries every packet in both directions and changes only the TTL', async () => {
    const result = await probe(engine, { encapsulation, toTun: hex(outward), toUdp: hex(inward.map(seal)) })
    // The TTL is decremented twice: by the kernel, which forwards between the TUNs, and by the engine.
    expect(sorted(result.fromUdp)).toEqual(sorted(hex(outward.map((packet) => seal(forwarded(packet, 2)!)))))
    expect(sorted(result.fromTun)).toEqual(sorted(hex(inward.map((packet) => forwarded(packet, 2)!))))
    expect(result.counters['tx_packets']).toBe(outward.length + 1)
    expect(result.counters['rx_packets']).toBe(inward.length + 1)
    const { tx_packets, tx_bytes, rx_packets, rx_bytes } = result.counters
    expect(result.traffic).toEqual([tx_packets, tx_bytes, rx_packets, rx_bytes, 1])
  })

  it("sends to a peer's current address, also after a change in the middle of a conversation", async () => {
    const packets = outward.slice(0, 50)
    const { fromUdp, fromOther } = await probe(engine, { encapsulation, toTun: hex(packets), afterMove: hex(packets) })
    const sent = sorted(hex(packets.map((packet) => seal(forwarded(packet, 2)!))))
    expect(sorted(fromUdp)).toEqual(sent)
    expect(sorted(fromOther)).toEqual(sent)
  })

  it('delivers datagrams longer than its MTU whole', async () => {
    const long = [1473, 1480, 1500].map((bytes) => {
      const payload = udpDatagram(PEER, CONTAINER, 1, 2, Buffer.alloc(bytes - 28, bytes))
      return ipv4Packet({ source: PEER, destination: CONTAINER, fragment: 0x4000, payload })
    })
    const { fromTun } = await probe(engine, { encapsulation, toUdp: hex(long.map(seal)) })
    expect(sorted(fromTun)).toEqual(sorted(hex(long.map((packet) => forwarded(packet, 2)!))))
  })

  it('sends ICMP errors for unknown destinations and expired TTLs', async () => {
    const datagram = udpDatagram(CONTAINER, NOBODY, 1, 2, Buffer.from('hello, whoever'))
    const lost = ipv4Packet({ source: CONTAINER, destination: NOBODY, payload: datagram })
    const late = ipv4Packet({ source: CONTAINER, destination: PEER, ttl: 2, payload: datagram })
    const icmpError = ipv4Packet({
      source: CONTAINER,
      destination: NOBODY,
      protocol: 1,
      payload: Buffer.from([3, 1, 0, 0, 0, 0, 0, 0]),
    })
    const lateInward = ipv4Packet({
      source: PEER,
      destination: CONTAINER,
      ttl: 1,
      payload: udpDatagram(PEER, CONTAINER, 1, 2, Buffer.from('hello')),
    })
    const forged = ipv4Packet({
      source: NOBODY,
      destination: CONTAINER,
      ttl: 1,
      payload: udpDatagram(NOBODY, CONTAINER, 1, 2, Buffer.from('hello')),
    })
    // The packet's source belongs to a peer. An ICMP error about it would go to that peer, so none may be sent.
    const forgedOutward = ipv4Packet({ source: PEER, destination: NOBODY, payload: datagram })
    const { fromTun, fromUdp, counters, drops } = await probe(engine, {
      toTun: hex([forgedOutward, lost, late, icmpError]),
      toUdp: hex([seal(forged), seal(lateInward)]),
      encapsulation,
      answers: { fromTun: 2, fromUdp: 1 },
    })
    const answers = fromTun
      .map((text) => Buffer.from(text, 'hex'))
      .map((packet) => [packet.readUInt8(20), packet.readUInt8(21), packet.readUInt8(8), packet.readUInt32BE(12)])
    // The engine sends TTL 8, and the kernel decrements it.
    expect(answers).toEqual([
      [3, 0, 7, parseIpv4('10.5.0.0')],
      [11, 0, 7, parseIpv4('10.5.0.0')],
    ])
    expect(
      fromUdp
        .map((text) => open(Buffer.from(text, 'hex'))!)
        .map((packet) => [packet.readUInt8(20), packet.readUInt32BE(12), packet.readUInt32BE(16)]),
    ).toEqual([[11, parseIpv4('10.5.1.0'), PEER]])
    expect(counters).toMatchObject({
      tx_drop_no_route: 3,
      tx_unreachable_sent: 1,
      tx_drop_ttl: 1,
      tx_time_exceeded_sent: 1,
      rx_drop_ttl: 1,
      rx_drop_unknown_sender: 1, // no ICMP error is sent
      rx_time_exceeded_sent: 1,
    })
    // Each drop is kept as it reached the engine, after the kernel has decremented the TTL, and in order for each
    // direction.
    const out = [forgedOutward, lost, late, icmpError].map((packet) => forwarded(packet, 1)!)
    const kept = (reason: string, packet: Buffer, peer = '0.0.0.0') => ({
      reason,
      peer,
      packets: 1,
      length: packet.length,
      encapBytes: 0,
      headers: packet.toString('hex'),
    })
    expect(drops).toEqual([
      kept('tx_drop_no_route', out[0]!),
      kept('tx_drop_no_route', out[1]!),
      kept('tx_drop_ttl', out[2]!, '127.0.0.1'),
      kept('tx_drop_no_route', out[3]!),
      kept('rx_drop_unknown_sender', forged, '127.0.0.1'),
      kept('rx_drop_ttl', lateInward, '127.0.0.1'),
    ])
  })

  it.each(KINDS.udp.options.tunnel.verifySource.words)(
    'accepts packets of known senders with genuine sources: %s',
    async (verifySource) => {
      const text = (address: string): number => parseIpv4(address)!
      const cases = [
        // did a peer send it?, source, destination, the verifySource values that accept it
        [true, '10.5.2.0', '10.5.1.0'],
        [true, '10.5.2.7', '10.5.1.2'],
        [true, '192.0.2.9', '10.5.1.2'],
        [true, '10.5.3.7', '10.5.1.2', 'off'],
        [true, '10.5.1.7', '10.5.1.2', 'off'],
        [true, '10.5.2.7', '10.5.2.8', 'off'],
        [true, '10.5.2.7', '192.0.2.9', 'off'],
        [true, '10.5.2.7', '224.0.0.1', 'off'],
        [true, '127.0.0.1', '10.5.1.2', 'off'],
        [false, '10.5.2.7', '10.5.1.2', 'inner'],
        [false, '10.5.3.7', '10.5.1.2', 'off'],
        [false, '192.0.2.9', '10.5.1.2', 'off'],
      ] as const
      const isIn = (allowed?: 'off' | 'inner'): boolean =>
        allowed === undefined || verifySource === 'off' || verifySource === allowed
      const packets = cases.map(([byPeer, from, to, allowed], id) => {
        const [source, destination] = [text(from), text(to)]
        const payload = udpDatagram(source, destination, 1, 2, Buffer.from(`number ${id}`))
        return { byPeer, isIn: isIn(allowed), packet: ipv4Packet({ source, destination, id, payload }) }
      })
      const sent = (by: boolean): string[] =>
        hex(packets.filter(({ byPeer }) => byPeer === by).map((each) => seal(each.packet)))
      // Send no IPv6 packet with verifySource `off`: there is no IPv6 peer, and the two engines treat an IPv6 packet
      // differently then.
      const version6 = Buffer.concat([Buffer.from([0x60, 0, 0, 0, 0, 8, 17, 64]), Buffer.alloc(40, 0xfd)])
      const toUdp = [...sent(true), ...(verifySource === 'off' ? [] : hex([seal(version6)]))]
      const { fromTun, counters, unknownSenders } = await probe(engine, {
        encapsulation,
        verifySource,
        toUdp,
        fromUnknown: sent(false),
      })
      const [sender, spoofed, destination] = ['rx_drop_unknown_sender', 'rx_drop_spoofed_source', 'rx_drop_destination']
      const counted = { off: [0, 0, 0], inner: [4, 2, 3], strict: [4, 3, 3] }[verifySource]
      expect([sender, spoofed, destination].map((name) => counters[name])).toEqual(counted)
      const letIn = packets.filter((each) => each.isIn)
      expect(counters['rx_packets']).toBe(letIn.length + 1)
      // With verifySource `off` packets enter that the kernel then drops, so the arrived packets are not compared.
      const forContainer = letIn.map((each) => each.packet).filter((packet) => packet.readUInt32BE(16) === CONTAINER)
      if (verifySource !== 'off')
        expect(sorted(fromTun)).toEqual(sorted(hex(forContainer.map((packet) => forwarded(packet, 2)!))))
      const named = unknownSenders.map(({ reason, from }) => `${reason} ${from}`)
      const here = [sender, spoofed, destination].map((reason) => `${reason} 127.0.0.1`)
      const inner = [...here, `${sender} 127.0.0.66`]
      const expected = { off: [], inner, strict: [...inner, `${spoofed} 127.0.0.66`] }[verifySource]
      expect(sorted(named)).toEqual(sorted(expected))
    },
  )

  it('drops and counts datagrams without a valid packet', async () => {
    const good = ipv4Packet({
      source: PEER,
      destination: CONTAINER,
      payload: udpDatagram(PEER, CONTAINER, 1, 2, Buffer.from('fine')),
    })
    const change = (at: number, byte: number): Buffer => {
      const packet = Buffer.from(good)
      packet.writeUInt8(byte, at)
      return packet
    }
    const evil = [
      ...Array.from({ length: 20 }, (_, size) => good.subarray(0, size)),
      change(0, 0x05),
      change(0, 0xf5),
      change(0, 0x40),
      change(0, 0x44),
      change(0, 0x4f), // versions 0 and 15, IHL 0, 4, 15
      change(2, 0xff),
      change(3, 19), // lengths above and below the correct one
    ]
    const damaged = [1, 4, 8, 10, 13].map((at) => change(at, good.readUInt8(at) ^ 0x10))
    const fields = { source: PEER, destination: CONTAINER, payload: Buffer.alloc(41) }
    // The fragments: beyond the maximum packet length, not a multiple of 8 bytes, empty, the second block of a TCP
    // header, and a first fragment that is too short.
    const fragments = [
      ipv4Packet({ ...fields, fragment: 0x1fff }),
      ipv4Packet({ ...fields, fragment: 0x2000 }),
      ipv4Packet({ ...fields, fragment: 0x0001, payload: Buffer.alloc(0) }),
      ipv4Packet({ ...fields, fragment: 0x0001, protocol: 6 }),
      ipv4Packet({ ...fields, fragment: 0x2000, protocol: 6, payload: Buffer.alloc(8) }),
    ]
    const options = ['830704c000020100', '890704c000020100', '44000500', '44010500', '44050500', '01010144'].map(
      (text) => ipv4Packet({ ...fields, options: Buffer.from(text, 'hex') }),
    )
    const header = seal(Buffer.alloc(0))
    const short = Array.from(header, (_, size) => header.subarray(0, size))
    const dropped = [...evil, ...damaged, ...fragments, ...options]
    const toUdp = hex([...short, ...[...dropped, good].map(seal)])
    const { fromTun, counters, drops } = await probe(engine, { encapsulation, toUdp })
    const cut = short.map((datagram) => [
      'rx_drop_malformed',
      datagram.length,
      Math.min(headerBytes, datagram.length),
      datagram.toString('hex'),
    ])
    const bare = [
      ...evil.map((datagram) => ['rx_drop_malformed', datagram] as const),
      ...damaged.map((datagram) => ['rx_drop_checksum', datagram] as const),
      ...fragments.map((datagram) => ['rx_drop_fragment', datagram] as const),
      ...options.map((datagram) => ['rx_drop_options', datagram] as const),
    ].map(([reason, datagram]) => [reason, datagram.length, 0, datagram.subarray(0, 128).toString('hex')])
    expect(drops.map((each) => [each.reason, each.length, each.encapBytes, each.headers])).toEqual([...cut, ...bare])
    expect(fromTun).toEqual(hex([forwarded(good, 2)!]))
    expect(counters['rx_drop_malformed']).toBe(short.length + evil.length)
    expect(counters).toMatchObject({
      rx_drop_checksum: damaged.length,
      rx_drop_fragment: fragments.length,
      rx_drop_options: options.length,
    })
  })

  it('accepts unusual but valid packets: harmless options, fragments, a checksum of 0xffff', async () => {
    const fields = { source: PEER, destination: CONTAINER, payload: Buffer.alloc(40, 7) }
    const odd = [
      ipv4Packet({ ...fields, options: Buffer.from('01010100', 'hex') }),
      ipv4Packet({ ...fields, options: Buffer.from('94040000', 'hex') }),
      ipv4Packet({ ...fields, fragment: 0x2000 }),
      ipv4Packet({ ...fields, fragment: 0x0005 }),
      ipv4Packet({ ...fields, fragment: 0x4005 }),
    ]
    // flanneld's way to decrement the TTL may write a checksum of 0.
    const zero = ipv4Packet(fields)
    zero.writeUInt16BE(zero.readUInt16BE(10), 4)
    zero.writeUInt16BE(0xffff, 10)
    const { counters } = await probe(engine, { encapsulation, toUdp: hex([...odd, zero].map(seal)) })
    expect(counters['rx_packets']).toBe(odd.length + 2)
  })
})

/** Options of runEngine() that the scripts below insert into their code. */
const FILTER = `{ verifySource: 'strict', network: { address: 0, prefixLength: 16 }, subnet: { address: 0, prefixLength: 24 } }`

describe('the native engine', () => {
  it.each([...addon.featureNames, addon.featureNames.join(' ')])(
    'carries the same packets without %s',
    async (features) => {
      const without = features.split(' ')
      const result = await probe('native', {
        toTun: hex(outward.slice(0, 300)),
        toUdp: hex(inward.slice(0, 300)),
        without,
      })
      expect(result.offloads.filter((name) => without.includes(name))).toEqual([])
      expect(sorted(result.fromUdp)).toEqual(sorted(hex(outward.slice(0, 300).map((packet) => forwarded(packet, 2)!))))
      expect(sorted(result.fromTun)).toEqual(sorted(hex(inward.slice(0, 300).map((packet) => forwarded(packet, 2)!))))
    },
  )

  it('hands its descriptors over without loss of the packets that arrive between two engines', async () => {
    const script = join(packageRoot, 'dist/test/support/handover-probe.js')
    const result = JSON.parse(await output(inNamespace([process.execPath, script]))) as HandoverResult
    expect(result.crossed).toEqual({
      // this engine runs in another process than the one that opened its descriptors
      'the first': ['before the first', 'the first'],
      'the second': ['before the second', 'the second'],
      'the third': ['before the third', 'the third'],
    })
    expect(result).toMatchObject({ threadsLeft: [], deviceKept: true, deviceLeft: false })
    expect(result.granted).toContain('tun-header')
    expect(result.released).toEqual(result.granted)
  })

  it('leaves no offloads on a persistent TUN for a process that opens the TUN without a header', async () => {
    const script = `
      const addon = require('node-gyp-build')(process.argv[1])
      const { closeSync } = require('node:fs')
      const openAs = {
        all: () => addon.openDescriptors({ ...asked, features: addon.featureNames }).loops[0],
        'no header': () => addon.openDescriptors({ ...asked, features: without('tun-header') }).loops[0],
        'no checksums': () => addon.openDescriptors({ ...asked, features: without('tun-csum') }).loops[0],
        dgram: () => ({ tun: addon.openTun('w0', true).fd, sockets: {} }),
      }
      const without = (left) => addon.featureNames.filter((name) => name !== left)
      const asked = { tunName: 'w0', bindAddress: '127.0.0.1', port: 0, workers: 1 }
      async function featuresAs(kind, isKept) {
        const { tun, sockets } = openAs[kind]()
        const features = await addon.activeFeatures('w0')
        addon.setTunPersistent(tun, isKept)
        for (const fd of [tun, sockets.ipv4?.receiver]) if (fd !== undefined) closeSync(fd)
        return features
      }
      async function main() {
        const offloading = await featuresAs('all', false)
        for (const kind of ['no header', 'no checksums', 'dgram', 'all']) {
          const fresh = await featuresAs(kind, false)
          await featuresAs('all', true)
          console.log(kind, await featuresAs(kind, false) === fresh, fresh === offloading)
        }
      }
      main()`
    expect(await output(['unshare', '--net', process.execPath, '-e', script, packageRoot])).toBe(
      'no header true false\nno checksums true false\ndgram true false\nall true true\n',
    )
  })

  it('refuses an unknown encapsulation and closes the descriptors', async () => {
    const script = `
      const addon = require('node-gyp-build')(process.argv[1])
      const asked = { tunName: 'w%d', bindAddress: '127.0.0.1', port: 0, workers: 1, features: [] }
      const opened = addon.openDescriptors(asked)
      try {
        const options = { encapsulation: 'none such', ownEnd: new Uint8Array(), mtu: 1472, tunAddress: 1, networkAddress: 2, filter: ${FILTER}, clampMss: false, persistent: false, nice: 0, pollUs: 0, peers: new Uint8Array() }
        addon.runEngine(opened, options, () => {})
      } catch ({ code }) {
        console.log(code, require('node:fs').readFileSync('/proc/net/dev', 'utf8').includes(opened.tunName + ':'))
      }`
    expect(await output(['unshare', '--net', process.execPath, '-e', script, packageRoot])).toBe(
      'EPROTONOSUPPORT false\n',
    )
  })

  it('reports that it gets no thread, and closes the descriptors', async () => {
    // The limit on processes does not apply to root (kernel/fork.c, copy_process), except to root of a user namespace.
    // So another user runs this.
    const user = '65533'
    const capabilities = [
      '--inh-caps=-all,+net_admin,+dac_override',
      '--ambient-caps=-all,+net_admin,+dac_override',
      '--bounding-set=-all,+net_admin,+dac_override',
    ]
    const before =
      process.env['WEFT_UNPRIVILEGED'] === '1'
        ? []
        : ['setpriv', '--reuid', user, '--regid', user, '--clear-groups', ...capabilities]
    const script = `
      const addon = require('node-gyp-build')(process.argv[1])
      const asked = { tunName: 'w%d', bindAddress: '127.0.0.1', port: 0, workers: 1, features: addon.featureNames }
      const opened = addon.openDescriptors(asked)
      require('node:child_process').execFileSync('prlimit', ['--pid', process.pid, '--nproc=1'])
      try {
        const options = { encapsulation: 'udp', ownEnd: new Uint8Array(), mtu: 1472, tunAddress: 1, networkAddress: 2, filter: ${FILTER}, clampMss: false, persistent: false, nice: 0, pollUs: 0, peers: new Uint8Array() }
        addon.runEngine(opened, options, () => {})
      } catch ({ code, syscall }) {
        console.log(code, syscall, require('node:fs').readFileSync('/proc/net/dev', 'utf8').includes(opened.tunName + ':'))
      }`
    expect(await output(['unshare', '--net', ...before, process.execPath, '-e', script, packageRoot])).toBe(
      'EAGAIN pthread_create false\n',
    )
  })

  it('reports each fault in an event of its own, and its handlers run before the next event', async () => {
    const script = `
      const addon = require('node-gyp-build')(process.argv[1])
      const asked = { tunName: 'w%d', bindAddress: '127.0.0.1', port: 0, workers: 1, features: addon.featureNames }
      const options = { encapsulation: 'udp', ownEnd: new Uint8Array(), mtu: 1472, tunAddress: 1, networkAddress: 2, filter: ${FILTER}, clampMss: false, persistent: false, nice: 0, pollUs: 0, peers: new Uint8Array() }
      const told = []
      const start = () => {
        const opened = addon.openDescriptors(asked)
        const onFault = ({ syscall }) => {
          told.push(syscall)
          Promise.resolve().then(() => {
            told.push('heard')
            if (told.length === 4) console.log(told.join(', ')), process.exit()
          })
        }
        addon.runEngine(opened, options, onFault)
        return opened.tunName
      }
      const commands = [start(), start()].map((name) => 'link del ' + name + '\\n')
      // The command breaks both engines in one call, so both failures happen before the event loop handles an event.
      require('node:child_process').execFileSync('ip', ['-batch', '-'], { input: commands.join('') })`
    expect(await output(['unshare', '--net', process.execPath, '-e', script, packageRoot])).toBe(
      'read from the TUN, heard, read from the TUN, heard\n',
    )
  })

  /**
   * Runs JavaScript in a worker thread in a network namespace until the worker ends, and returns the process's output.
   */
  async function endOfWorker(work: string): Promise<string> {
    const worker = `
      const { parentPort, workerData } = require('node:worker_threads')
      const addon = require('node-gyp-build')(workerData)
      const asked = { tunName: 'w%d', bindAddress: '127.0.0.1', port: 0, workers: 2, features: addon.featureNames }
      const options = { encapsulation: 'udp', ownEnd: new Uint8Array(), mtu: 1472, tunAddress: 1, networkAddress: 2, filter: ${FILTER}, clampMss: false, persistent: false, nice: 0, pollUs: 0, peers: new Uint8Array() }
      const start = () => addon.runEngine(addon.openDescriptors(asked), options, () => {})
      ${work}`
    const script = `
      const { Worker } = require('node:worker_threads')
      const worker = new Worker(${JSON.stringify(worker)}, { eval: true, workerData: process.argv[1] })
      worker.on('message', () => worker.terminate())
      worker.on('error', (error) => console.log(String(error)))
      worker.on('exit', (code) => {
        const fs = require('node:fs')
        const threads = fs.readdirSync('/proc/self/task').map((id) => fs.readFileSync('/proc/self/task/' + id + '/comm', 'utf8'))
        console.log('ended with', code, threads.filter((name) => name.startsWith('weft-')).length, fs.readFileSync('/proc/net/dev', 'utf8').includes(' w0:'))
      })`
    return output(['unshare', '--net', process.execPath, '-e', script, packageRoot])
  }

  it.each([
    ['a watch', `addon.watchReadable(addon.openTun('t%d', false).fd, () => {}); process.exit(3)`, 3],
    [
      'a watch that was just stopped',
      `addon.watchReadable(addon.openTun('t%d', false).fd, () => {}).stop(); process.exit(3)`,
      3,
    ],
    ['an engine', `start(); process.exit(3)`, 3],
    ['an engine, terminated from outside', `start(); parentPort.postMessage('up'); setInterval(() => {}, 1000)`, 1],
    ['an engine that is being stopped', `start().stop(); process.exit(3)`, 3],
    ['an engine that is being released', `start().release(); process.exit(3)`, 3],
    [
      'a pending lock',
      `const fs = require('node:fs'), file = require('node:os').tmpdir() + '/weft-lock-' + process.pid
      addon.lockFile(fs.openSync(file, 'w')); fs.unlinkSync(file); process.exit(3)`,
      3,
    ],
  ])('outlives the end of a worker thread that has %s', async (what, work, code) => {
    // JavaScript owns the descriptors of a released engine, so the end of the worker may leave them open.
    const left = what === 'an engine that is being released'
    expect(await endOfWorker(work)).toMatch(left ? /^ended with 3 0 / : `ended with ${code} 0 false\n`)
  })

  it('resolves a second call of stop, rejects a release after a stop, and reports why a descriptor cannot be watched', async () => {
    const script = `
      const addon = require('node-gyp-build')(process.argv[1])
      const asked = { tunName: 'w%d', bindAddress: '127.0.0.1', port: 0, workers: 2, features: addon.featureNames }
      const options = { encapsulation: 'udp', ownEnd: new Uint8Array(), mtu: 1472, tunAddress: 1, networkAddress: 2, filter: ${FILTER}, clampMss: false, persistent: false, nice: 0, pollUs: 0, peers: new Uint8Array() }
      const codeOf = async (call) => { try { return typeof (await call()) } catch ({ code }) { return code } }
      ;(async () => {
        const told = []
        const engine = addon.runEngine(addon.openDescriptors(asked), options, () => {})
        for (const call of ['stop', 'stop', 'release', 'release', 'stop']) told.push(await codeOf(() => engine[call]()))
        engine.setPeers(new Uint8Array())
        told.push(engine.takeUnknownSenders().length, engine.traffic().length, engine.drops([]).packets.length, Object.keys(engine.askThreads()).length)
        const file = require('node:fs').openSync('/etc/passwd')
        for (const fd of [file, 999]) told.push(await codeOf(async () => addon.watchReadable(fd, () => {})))
        console.log(told.join(' '))
      })()`
    expect(await output(['unshare', '--net', process.execPath, '-e', script, packageRoot])).toBe(
      'undefined undefined EBADF EBADF undefined 0 0 0 0 EPERM EBADF\n',
    )
  })

  it('lends its descriptors and takes them back once, not after a stop, and reports a failure as a fault', async () => {
    const script = join(packageRoot, 'dist/test/support/lending-probe.js')
    const told = JSON.parse(await output(inNamespace([process.execPath, script]))) as LendingResult
    expect(told).toEqual({
      twice: [true, false],
      afterTakingBack: true,
      countedOnce: true,
      whileStopping: [false, false],
      deviceAfterStopping: false,
      fault: 'EBADF',
      afterFault: [false, true],
      countedAfterFault: true,
      takenBackAtOnce: true,
      silentFor: [true, true],
      rebound: [
        'ipv4',
        'cannot reach peers from fd00:9::1: UDP port fd00:9::1:8287 is taken',
        'cannot reach peers from fd00:9::1: UDP port fd00:9::1:8287 is taken: ipv4',
        'true: ipv4 ipv6',
        'cannot reach peers from fd00:9::7: fd00:9::7 is not an address of this host: ipv4 ipv6',
        'true: ipv4 ipv6',
        'false: ipv4 ipv6',
      ],
    })
  })

  it('leaves no thread when its environment ends', async () => {
    const script = `
      const addon = require('node-gyp-build')(process.argv[1])
      const features = addon.featureNames
      const asked = { tunName: 'w%d', bindAddress: '127.0.0.1', port: 0, workers: 2, features }
      const options = { encapsulation: 'udp', ownEnd: new Uint8Array(), mtu: 1472, tunAddress: 1, networkAddress: 2, filter: ${FILTER}, clampMss: false, persistent: false, nice: 0, pollUs: 0, peers: new Uint8Array() }
      const start = () => addon.runEngine(addon.openDescriptors(asked), options, () => {})
      start()
      start()
      process.exit(7)`
    await expect(output(['unshare', '--net', process.execPath, '-e', script, packageRoot])).rejects.toThrow(
      'ended with 7',
    )
  })
})
