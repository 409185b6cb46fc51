// kernel-way.test.ts - the program that takes packets out of datagrams (native/bpf) beside the native engine: the same datagrams through
// both. What the program carries, the engine accepts, and the packet is the same. All else goes on to the engine.

import { closeSync } from 'node:fs'
import { release } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { addon } from '../../src/host/addon.ts'
import { parseIpv4, parseIpv4Net } from '../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../src/net/ipv6.ts'
import { internetChecksum, decrementTtl } from '../../src/path/engine/reference/packet.ts'
import { encodeConfig, encodePeer, IS_LITTLE, MAPS, peerKey } from '../../src/path/tunnel/kernel-way-maps.ts'
import { instructionsOf, programsIn } from '../../src/path/tunnel/kernel-way-object.ts'
import type { ProbeResult } from '../support/engine-probe.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { ipv4Packet, ipv6Packet, udpDatagram } from '../support/packets.ts'
import { hostsAt } from '../support/peer-hosts.ts'

const lack = needs(HOSTS, 'clang++')

const address = (text: string): number => parseIpv4(text)!
const [OWN_HOST, PEER_HOST, STRANGER] = [address('127.0.0.1'), address('127.0.0.1'), address('127.0.0.66')]
const [CONTAINER, PEER] = [address('10.5.1.2'), address('10.5.2.7')]
const PORT = 8285
const TC_ACT_UNSPEC = -1
const TC_ACT_REDIRECT = 7
const FAR_AWAY_NS = 1n << 62n

const fds: number[] = []
let program = 0
let config = 0
const keep = (fd: number): number => {
  fds.push(fd)
  return fd
}

const CONFIG = {
  untilNs: FAR_AWAY_NS,
  uplink: 1,
  tunnel: 1,
  join: 0,
  ownHost: OWN_HOST,
  port: PORT,
  proofPort: PORT,
  subnets: { ipv4: parseIpv4Net('10.5.1.0/24')!, ipv6: parseIpv6Net('fd00:5:0:1::/64')! },
  leavesSyn: false,
  leavesProbes: false,
}

beforeAll(() => {
  if (lack !== undefined) return
  const object = addon.kernelWayObject()
  if (!object) throw new Error('this addon was built without clang')
  const maps = Object.fromEntries(
    Object.entries(MAPS).map(([name, map]) => [name, keep(addon.createMap({ ...map, name }))]),
  )
  const ingress = programsIn(object, IS_LITTLE).get('tc/ingress')!
  program = keep(addon.loadProgram(instructionsOf(ingress, maps, IS_LITTLE), 'weft_test'))
  config = maps['config']!
  configure({})
  const peer = { ...hostsAt(PEER_HOST), port: 9999, slot: 1 }
  for (const subnet of [parseIpv4Net('10.5.2.0/24')!, parseIpv6Net('fd00:5:0:2::/64')!]) {
    const map = maps[typeof subnet.address === 'number' ? 'peers4' : 'peers6']!
    addon.updateMap(map, peerKey(subnet), encodePeer({ ...peer, subnet }, 1472, 0))
  }
})
afterAll(() => fds.forEach((fd) => closeSync(fd)))

function configure(changed: Partial<typeof CONFIG>): void {
  addon.updateMap(config, new Uint8Array(4), encodeConfig({ ...CONFIG, ...changed }))
}

interface Outer {
  readonly from?: number
  readonly to?: number
  readonly port?: number
  readonly checksum?: number
  readonly tos?: number
  readonly fragment?: number
  readonly options?: Buffer
  /** How much longer the UDP header says that the datagram is. */
  readonly longer?: number
}

/** Returns an Ethernet frame with the packet inside UDP, as the sender's program makes it. */
function frame(packet: Buffer, outer: Outer = {}): Buffer {
  const { from = PEER_HOST, to = OWN_HOST, port = PORT, checksum = 0, tos = 0, fragment = 0x4000, longer = 0 } = outer
  const udp = Buffer.alloc(8)
  udp.writeUInt16BE(9999, 0)
  udp.writeUInt16BE(port, 2)
  udp.writeUInt16BE(8 + packet.length + longer, 4)
  udp.writeUInt16BE(checksum, 6)
  const payload = Buffer.concat([udp, packet])
  const { options = Buffer.alloc(0) } = outer
  const ip = ipv4Packet({ source: from, destination: to, tos, fragment, options, payload })
  return Buffer.concat([Buffer.alloc(12), Buffer.from([0x08, 0x00]), ip])
}

/** Returns the packet that the program takes out of the frame; undefined if the frame goes on to the engine unchanged. */
function takenFrom(bytes: Buffer): Buffer | undefined {
  const { result, packet } = addon.testProgram(program, bytes, new Uint8Array(192))
  if (result === TC_ACT_REDIRECT) return packet.subarray(14)
  expect(result).toBe(TC_ACT_UNSPEC)
  expect(packet.equals(bytes)).toBe(true)
  return undefined
}

const hello = (source = PEER, destination = CONTAINER): Buffer =>
  udpDatagram(source, destination, 1, 2, Buffer.from('hello'))
const sound = (changed: Partial<Parameters<typeof ipv4Packet>[0]> = {}): Buffer =>
  ipv4Packet({ source: PEER, destination: CONTAINER, payload: hello(), ...changed })

function hopLater(packet: Buffer, hops = 1): Buffer {
  const copy = Buffer.from(packet)
  for (let hop = 0; hop < hops; hop++) decrementTtl(copy)
  return copy
}

describe('the program ingress', () => {
  it('takes a sound packet out of its datagram, and lowers the TTL', () => {
    expect(takenFrom(frame(sound()))).toEqual(hopLater(sound()))
  })

  it('takes an IPv6 packet out of its datagram, and lowers the hop limit', () => {
    const [from, to] = [parseIpv6('fd00:5:0:2::7')!, parseIpv6('fd00:5:0:1::2')!]
    const packet = ipv6Packet(from, to, hello())
    const later = Buffer.from(packet)
    later[7]!--
    // The kernel can change the header of the datagram into that of an IPv6 packet since Linux 6.3 (bpf_skb_adjust_room
    // with BPF_F_ADJ_ROOM_DECAP_L3_IPV6).
    const [major = 0, minor = 0] = release().split('.').map(Number)
    const isAble = major > 6 || (major === 6 && minor >= 3)
    expect(takenFrom(frame(packet))).toEqual(isAble ? later : undefined)
    expect(takenFrom(frame(ipv6Packet(from, to, hello(), { hopLimit: 1 })))).toBeUndefined()
    expect(takenFrom(frame(ipv6Packet(from, to, hello(), { protocol: 58 })))).toBeUndefined()
    expect(takenFrom(frame(ipv6Packet(from, parseIpv6('fd00:5:0:3::2')!, hello())))).toBeUndefined()
    expect(takenFrom(frame(ipv6Packet(parseIpv6('fd00:5:0:3::2')!, to, hello())))).toBeUndefined()
    expect(takenFrom(frame(ipv6Packet(parseIpv6('fd00:5:0:1::9')!, to, hello())))).toBeUndefined()
  })

  it.each([
    ['a datagram of an engine, which has a checksum', frame(sound(), { checksum: 1 })],
    ['another port', frame(sound(), { port: PORT + 1 })],
    ['another destination', frame(sound(), { to: STRANGER })],
    ['a fragment of a datagram', frame(sound(), { fragment: 0x2000 })],
    ['a congestion mark on the outer header', frame(sound(), { tos: 3 })],
    ['options in the outer header', frame(sound(), { options: Buffer.from([1, 1, 1, 0]) })],
    ['a UDP length that contradicts the IP length', frame(sound(), { longer: 1 })],
    ['a datagram from an unknown host', frame(sound(), { from: STRANGER })],
    ['a source of another subnet', frame(sound({ source: address('10.5.3.7') }))],
    ['a source outside the network', frame(sound({ source: address('192.0.2.9') }))],
    ["a source in this node's own subnet", frame(sound({ source: address('10.5.1.9') }))],
    ['a destination that is not here', frame(sound({ destination: address('10.5.2.8') }))],
    ['a multicast destination', frame(sound({ destination: address('224.0.0.1') }))],
    ['the last hop', frame(sound({ ttl: 1 }))],
    ['a fragment', frame(sound({ fragment: 0x2000, payload: Buffer.alloc(64) }))],
    ['a later fragment', frame(sound({ fragment: 8 }))],
    ['options', frame(sound({ options: Buffer.from([1, 1, 1, 0]) }))],
    ['a source route', frame(sound({ options: Buffer.from([131, 3, 4, 0]) }))],
    ['a TCP header that is too short', frame(sound({ protocol: 6, payload: Buffer.alloc(12) }))],
    ['a TCP header of an impossible length', frame(sound({ protocol: 6, payload: Buffer.alloc(40) }))],
    ['a wrong checksum of the inner header', frame(wrongChecksum(sound()))],
    ['a length that is more than the datagram has', frame(otherLength(sound(), 1))],
    ['a length that is less than the datagram has', frame(otherLength(sound(), -1))],
    ['an empty datagram', frame(Buffer.alloc(0))],
    ['another IP version', frame(Buffer.alloc(40, 0x55))],
  ])('leaves to the engine: %s', (_what, bytes) => {
    expect(takenFrom(bytes)).toBeUndefined()
  })

  it('leaves all packets to the engine if no process has confirmed the maps in time', () => {
    configure({ untilNs: 1n })
    expect(takenFrom(frame(sound()))).toBeUndefined()
    configure({})
  })

  it('leaves datagrams from other addresses to the engine, because they must pass the packet filter of the host', () => {
    expect(takenFrom(frame(sound(), { from: STRANGER }))).toBeUndefined()
  })

  it('leaves each SYN to an engine that lowers the MSS', () => {
    const segment = (flags: number): Buffer => {
      const tcp = Buffer.alloc(20)
      tcp.writeUInt8(0x50, 12)
      tcp.writeUInt8(flags, 13)
      return sound({ protocol: 6, payload: tcp })
    }
    configure({ leavesSyn: true })
    expect(takenFrom(frame(segment(2)))).toBeUndefined()
    expect(takenFrom(frame(segment(16)))).toEqual(hopLater(segment(16)))
    configure({})
    expect(takenFrom(frame(segment(2)))).toEqual(hopLater(segment(2)))
  })
})

function wrongChecksum(packet: Buffer): Buffer {
  const copy = Buffer.from(packet)
  copy.writeUInt16BE(copy.readUInt16BE(10) ^ 1, 10)
  return copy
}

function otherLength(packet: Buffer, by: number): Buffer {
  const copy = Buffer.from(packet)
  copy.writeUInt16BE(packet.length + by, 2)
  copy.writeUInt16BE(0, 10)
  copy.writeUInt16BE(internetChecksum(copy.subarray(0, 20)), 10)
  return copy
}

/** Runs the native engine in a new network namespace, and returns what it did with these packets from the peer. */
async function engineWith(packets: readonly Buffer[]): Promise<ProbeResult> {
  const script = join(packageRoot, 'dist/test/support/engine-probe.js')
  const inside = ['sh', '-c', 'mount -t sysfs sysfs /sys; exec "$@"', 'sh', process.execPath, script, 'native']
  const job = {
    toTun: [],
    toUdp: packets.map((packet) => packet.toString('hex')),
    fromUnknown: [],
    without: [],
    encapsulation: 'udp',
    verifySource: 'strict',
  }
  return JSON.parse(
    await output(['unshare', '--net', '--mount', ...inside], { input: JSON.stringify(job) }),
  ) as ProbeResult
}

/** The number of packets for one run of the engine. The probe waits if 64 packets do not arrive, and the engine may drop all of them. */
const BATCH = 60

/** Makes packets to a container, of which most have something changed: bits of the header, or the whole of an address. */
function randomPackets(count: number): Buffer[] {
  const addresses = fc
    .constantFrom('10.5.2.7', '10.5.2.0', '10.5.3.7', '10.5.1.9', '192.0.2.9', '127.0.0.1')
    .map(address)
  const fields = fc.record({
    source: fc.oneof({ arbitrary: fc.constant(PEER), weight: 8 }, addresses),
    ttl: fc.constantFrom(1, 2, 3, 63, 64, 128, 254, 255),
    tos: fc.constantFrom(0, 1, 2, 3, 0xb8),
    fragment: fc.constantFrom(0, 0, 0, 0x4000, 0x4000, 0x4000, 0x2000, 0x0010),
    protocol: fc.constantFrom(6, 17, 17, 47, 253),
    options: fc.constantFrom(
      ...['', '', '', '', '', '', '01010100', '83030400', '44000000'].map((text) => Buffer.from(text, 'hex')),
    ),
    payload: fc.uint8Array({ minLength: 8, maxLength: 64 }).map((bytes) => Buffer.from(bytes)),
    flip: fc.option(fc.record({ at: fc.integer({ min: 0, max: 23 }), bit: fc.integer({ min: 0, max: 7 }) }), {
      freq: 1,
    }),
    repaired: fc.boolean(),
  })
  return fc.sample(fields, { numRuns: count, seed: 7 }).map(({ flip, repaired, ...rest }, id) => {
    const packet = ipv4Packet({ ...rest, destination: CONTAINER, id })
    if (flip) packet[flip.at]! ^= 1 << flip.bit
    if (flip && repaired && packet.readUInt8(0) === 0x45) {
      packet.writeUInt16BE(0, 10)
      packet.writeUInt16BE(internetChecksum(packet.subarray(0, 20)), 10)
    }
    return packet
  })
}

it('what the program takes, the engine accepts, with the same bytes', async () => {
  const packets = randomPackets(4 * BATCH)
  const results = await Promise.all(
    [0, 1, 2, 3].map((batch) => engineWith(packets.slice(batch * BATCH, (batch + 1) * BATCH))),
  )
  const [fromTun, drops] = [results.flatMap((each) => each.fromTun), results.flatMap((each) => each.drops)]
  const dropped = new Set(drops.map(({ headers }) => headers))
  let taken = 0
  for (const packet of packets) {
    const got = takenFrom(frame(packet))
    if (!got) continue
    taken++
    const text = packet.toString('hex')
    expect(got.toString('hex')).toBe(hopLater(packet).toString('hex'))
    expect(dropped.has(text), text).toBe(false)
    // The kernel of the probe routes each packet that the engine accepts, and lowers the TTL once more.
    const isRouted = packet.readUInt8(8) > 2 && packet.readUInt32BE(16) === CONTAINER
    if (isRouted) expect(fromTun, text).toContain(hopLater(packet, 2).toString('hex'))
  }
  expect(taken).toBeGreaterThan(30)
  expect(drops.length).toBeGreaterThan(30)
})
