// packet-model.ts - a simple model of the native core's work on packets, and random packets for comparing the two.
//
// The model shares no code with src/ or native/, so that one mistake cannot affect both.

/** The virtio header before a packet (virtio 1.2 section 5.1.6), in this machine's byte order. */
export interface Virtio {
  readonly needsChecksum: boolean
  readonly type: 'none' | 'tcp4' | 'tcp6' | 'udp'
  readonly segmentBytes: number
  readonly checksumStart: number
  readonly checksumOffset: number
}

const TYPES = { none: 0, tcp4: 1, tcp6: 4, udp: 5 } as const
export const NO_OFFLOAD: Virtio = {
  needsChecksum: false,
  type: 'none',
  segmentBytes: 0,
  checksumStart: 0,
  checksumOffset: 0,
}

const TCP = 6
const UDP = 17
const FIN = 1
const PSH = 8
const ACK = 16
const CWR = 128
const DONT_FRAGMENT = 0x4000

const bigEndian = new Uint8Array(new Uint16Array([1]).buffer)[0] === 0

export function encodeVirtio(virtio: Virtio): Buffer {
  const words = new Uint16Array([0, virtio.segmentBytes, virtio.checksumStart, virtio.checksumOffset])
  return Buffer.concat([Buffer.from([virtio.needsChecksum ? 1 : 0, TYPES[virtio.type]]), Buffer.from(words.buffer)])
}

export function decodeVirtio(bytes: Buffer): Virtio {
  const word = (at: number): number => (bigEndian ? bytes.readUInt16BE(at) : bytes.readUInt16LE(at))
  const type = (Object.keys(TYPES) as (keyof typeof TYPES)[]).find((name) => TYPES[name] === bytes[1])
  if (type === undefined) throw new Error(`a write of the unknown type ${bytes[1]}`)
  const needsChecksum = bytes[0] === 1
  return { needsChecksum, type, segmentBytes: word(4), checksumStart: word(6), checksumOffset: word(8) }
}

/** Ones' complement sum of 16-bit words (RFC 1071). */
function sum(parts: readonly Uint8Array[]): number {
  let total = 0
  for (const part of parts) {
    for (let i = 0; i < part.length; i += 2) total += part[i]! * 256 + (part[i + 1] ?? 0)
  }
  while (total > 0xffff) total = (total % 0x10000) + Math.floor(total / 0x10000)
  return total
}

interface Shape {
  readonly version: 4 | 6
  readonly protocol: number
  readonly ipBytes: number
}

function shapeOf(packet: Buffer): Shape {
  return packet[0]! >> 4 === 4
    ? { version: 4, protocol: packet[9]!, ipBytes: (packet[0]! & 15) * 4 }
    : { version: 6, protocol: packet[6]!, ipBytes: 40 }
}

function pseudoHeader(packet: Buffer, { version, protocol }: Shape, transportBytes: number): Buffer {
  const tail = Buffer.alloc(8)
  tail.writeUInt32BE(transportBytes, 0)
  tail.writeUInt32BE(protocol, 4)
  return Buffer.concat([version === 4 ? packet.subarray(12, 20) : packet.subarray(8, 40), tail])
}

/** Sets the right lengths and checksums in a TCP or UDP packet. */
function complete(packet: Buffer): Buffer {
  const shape = shapeOf(packet)
  const { version, protocol, ipBytes } = shape
  if (version === 4) {
    packet.writeUInt16BE(packet.length, 2)
    packet.writeUInt16BE(0, 10)
    packet.writeUInt16BE(0xffff - sum([packet.subarray(0, ipBytes)]), 10)
  } else packet.writeUInt16BE(packet.length - 40, 4)
  const transport = packet.subarray(ipBytes)
  if (protocol === UDP) transport.writeUInt16BE(transport.length, 4)
  const field = protocol === UDP ? 6 : 16
  transport.writeUInt16BE(0, field)
  const checksum = 0xffff - sum([pseudoHeader(packet, shape, transport.length), transport])
  transport.writeUInt16BE(checksum === 0 && protocol === UDP ? 0xffff : checksum, field)
  return packet
}

/** Returns the packets into which a superpacket is cut: RFC 9293, RFC 3168 section 6.1.2, RFC 768. */
export function cut(virtio: Virtio, superpacket: Buffer): Buffer[] {
  const { version, protocol, ipBytes } = shapeOf(superpacket)
  const headerBytes = ipBytes + (protocol === TCP ? (superpacket[ipBytes + 12]! >> 4) * 4 : 8)
  const header = superpacket.subarray(0, headerBytes)
  const payload = superpacket.subarray(headerBytes)
  const packets: Buffer[] = []
  for (let at = 0; at < payload.length; at += virtio.segmentBytes) {
    const packet = Buffer.concat([header, payload.subarray(at, at + virtio.segmentBytes)])
    const isLast = at + virtio.segmentBytes >= payload.length
    if (version === 4) packet.writeUInt16BE((superpacket.readUInt16BE(4) + packets.length) % 0x10000, 4)
    if (protocol === TCP) {
      packet.writeUInt32BE((superpacket.readUInt32BE(ipBytes + 4) + at) % 2 ** 32, ipBytes + 4)
      let flags = packet[ipBytes + 13]!
      if (!isLast) flags &= ~(FIN | PSH)
      if (at > 0) flags &= ~CWR
      packet[ipBytes + 13] = flags
    }
    packets.push(complete(packet))
  }
  return packets
}

// The following functions make random packets.

/** Random numbers from a seed (mulberry32): `below(n)` is 0 to n - 1, `chance(p)` is true with probability p. */
export interface Random {
  below(limit: number): number
  chance(probability: number): boolean
  of<T>(choices: readonly T[]): T
}

export function randomFrom(seed: number): Random {
  let state = seed >>> 0
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
  const below = (limit: number): number => Math.floor(next() * limit)
  return { below, chance: (probability) => next() < probability, of: (choices) => choices[below(choices.length)]! }
}

const noise = Buffer.from(Array.from({ length: 70_000 }, (_, index) => (index * 2_654_435_761) >>> 13))

interface Flow {
  readonly version: 4 | 6
  readonly protocol: number
  readonly source: number
  readonly port: number
  readonly segmentBytes: number
  readonly ipOptions: Buffer
  readonly tcpOptions: Buffer
  tos: number
  ttl: number
  id: number
  fragmentBits: number
  sequence: number
  acknowledgement: number
  window: number
}

function randomFlow(random: Random): Flow {
  return {
    version: random.chance(0.6) ? 4 : 6,
    protocol: random.of([TCP, TCP, TCP, UDP, UDP, 1, 58, 132]),
    source: random.below(4),
    port: 1000 + random.below(3),
    segmentBytes: 1 + random.below(random.of([20, 300, 1400])),
    ipOptions: random.chance(0.1) ? Buffer.alloc(8, 1) : Buffer.alloc(0),
    tcpOptions: random.of([Buffer.alloc(0), Buffer.alloc(12, 1), Buffer.alloc(40, 1)]),
    tos: random.of([0, 0, 2, 3, 0xb8]),
    ttl: random.of([64, 63, 2]),
    id: random.below(0x10000),
    fragmentBits: random.of([DONT_FRAGMENT, DONT_FRAGMENT, 0]),
    sequence: random.chance(0.1) ? 2 ** 32 - 1000 : random.below(2 ** 32),
    acknowledgement: random.below(1000),
    window: 500,
  }
}

/** Returns the flow's next packet with `payloadBytes` and right checksums. */
function packetOf(flow: Flow, payloadBytes: number, flags: number): Buffer {
  const { ipOptions } = flow
  const ip = Buffer.alloc(flow.version === 4 ? 20 + ipOptions.length : 40)
  if (flow.version === 4) {
    ip[0] = 0x40 | (ip.length / 4)
    ip[1] = flow.tos
    ip.writeUInt16BE(flow.id, 4)
    ip.writeUInt16BE(flow.fragmentBits, 6)
    ip[8] = flow.ttl
    ip[9] = flow.protocol
    ip.set([10, 5, 1, flow.source, 10, 5, 2, 2], 12)
    ip.set(ipOptions, 20)
  } else {
    ip.writeUInt32BE(0x60000000 | (flow.tos << 20), 0)
    ip[6] = flow.protocol
    ip[7] = flow.ttl
    ip[23] = flow.source
    ip[39] = 2
  }
  const transport = Buffer.alloc(flow.protocol === TCP ? 20 + flow.tcpOptions.length : 8)
  transport.writeUInt16BE(flow.port, 0)
  transport.writeUInt16BE(80, 2)
  if (flow.protocol === TCP) {
    transport.writeUInt32BE(flow.sequence, 4)
    transport.writeUInt32BE(flow.acknowledgement, 8)
    transport[12] = (transport.length / 4) << 4
    transport[13] = flags
    transport.writeUInt16BE(flow.window, 14)
    transport.set(flow.tcpOptions, 20)
  }
  const from = flow.sequence % 4000
  const packet = Buffer.concat([ip, transport, noise.subarray(from, from + payloadBytes)])
  flow.id = (flow.id + 1) % 0x10000
  flow.sequence = (flow.sequence + payloadBytes) % 2 ** 32
  if (flow.protocol === TCP || flow.protocol === UDP) return complete(packet)
  if (flow.version === 4) {
    packet.writeUInt16BE(packet.length, 2)
    packet.writeUInt16BE(0xffff - sum([packet.subarray(0, ip.length)]), 10)
  } else packet.writeUInt16BE(packet.length - 40, 4)
  return packet
}

/** Returns a batch of received packets: mostly flows in order, and some packets that must not be joined. */
export function randomBatch(random: Random, size: number): Buffer[] {
  const flows = Array.from({ length: 1 + random.below(4) }, () => randomFlow(random))
  let flow = flows[0]!
  return Array.from({ length: size }, () => {
    if (random.chance(0.2)) flow = random.of(flows)
    const odd = random.chance(0.12) ? random.below(14) : -1
    let flags = ACK
    if (odd === 0) flags |= PSH
    if (odd === 1) flags |= 1 << random.below(8)
    if (odd === 2) flow.sequence = random.below(2 ** 32)
    if (odd === 3) flow.window++
    if (odd === 4) flow.acknowledgement++
    if (odd === 5) flow.tos ^= 3
    if (odd === 6) flow.ttl ^= 1
    if (odd === 7) flow.id = random.below(0x10000)
    const payload = odd === 8 ? random.below(flow.segmentBytes + 1) : flow.segmentBytes
    const fragmentBits = flow.fragmentBits
    if (odd === 9) flow.fragmentBits = random.of([0x2000, 0x0010, 0x2010])
    const packet = packetOf(odd === 10 ? { ...flow, ipOptions: Buffer.alloc(4, 1) } : flow, payload, flags)
    flow.fragmentBits = fragmentBits
    const { ipBytes, protocol } = shapeOf(packet)
    if (odd === 11) packet[ipBytes + random.below(packet.length - ipBytes)]! ^= 1 << random.below(8) // damaged on the way
    if (odd === 12 && protocol === UDP) packet.writeUInt16BE(0, ipBytes + 6)
    if (odd === 13) return Buffer.concat([packet, Buffer.alloc(random.below(9))]) // longer than its header says
    return packet
  })
}

/** Returns a superpacket as a TUN with TSO and USO delivers it: the checksum is incomplete, and PSH, FIN and CWR may be set. */
export function randomSuperpacket(random: Random): { virtio: Virtio; packet: Buffer } {
  const flow = { ...randomFlow(random), protocol: random.of([TCP, TCP, UDP]) }
  const flags = ACK | (random.chance(0.3) ? PSH : 0) | (random.chance(0.1) ? FIN : 0) | (random.chance(0.1) ? CWR : 0)
  const count = 1 + random.below(random.chance(0.1) ? 44 : 6)
  const payload = (count - 1) * flow.segmentBytes + 1 + random.below(flow.segmentBytes)
  const packet = packetOf(flow, Math.min(payload, 65_000), flags)
  const { version, ipBytes, protocol } = shapeOf(packet)
  if (protocol === UDP && flow.segmentBytes > 1 && payload > 1 && random.chance(0.2)) {
    // The first packet's checksum becomes zero, which UDP sends as 0xffff (RFC 768).
    const first = cut({ ...NO_OFFLOAD, segmentBytes: flow.segmentBytes }, packet)[0]!
    const data = ipBytes + 8
    packet.writeUInt16BE(sum([packet.subarray(data, data + 2), first.subarray(ipBytes + 6, ipBytes + 8)]), data)
  }
  const field = protocol === UDP ? 6 : 16
  packet.writeUInt16BE(sum([pseudoHeader(packet, shapeOf(packet), packet.length - ipBytes)]), ipBytes + field)
  const type = protocol === UDP ? 'udp' : version === 4 ? 'tcp4' : 'tcp6'
  const offload = { needsChecksum: true, checksumStart: ipBytes, checksumOffset: field }
  return { virtio: { ...offload, type, segmentBytes: flow.segmentBytes }, packet }
}

// The following functions compare packets.

/**
 * Returns the key of packets whose order must be kept: addresses, protocol and ports; only the addresses for fragments and packets without
 * ports.
 */
export function flowKey(packet: Buffer): string {
  const { version, protocol, ipBytes } = shapeOf(packet)
  const addresses = packet.toString('hex', version === 4 ? 12 : 8, version === 4 ? 20 : 40)
  const isFragment = version === 4 && (packet.readUInt16BE(6) & 0x3fff) !== 0
  const ports =
    (protocol === TCP || protocol === UDP) && !isFragment ? packet.toString('hex', ipBytes, ipBytes + 4) : ''
  return `${version} ${protocol} ${addresses} ${ports}`
}

/**
 * Returns the packet without the parts that joining may change: the identification, and therefore the header checksum, of an IPv4 packet
 * with DF (RFC 6864 section 4.1).
 */
export function comparable(packet: Buffer): string {
  if (packet[0]! >> 4 !== 4 || (packet.readUInt16BE(6) & DONT_FRAGMENT) === 0) return packet.toString('latin1')
  const copy = Buffer.from(packet)
  copy.writeUInt16BE(0, 4)
  copy.writeUInt16BE(0, 10)
  return copy.toString('latin1')
}

/** Returns the packet without bytes after its own length. */
export const trimmed = (packet: Buffer): Buffer =>
  packet.subarray(0, packet[0]! >> 4 === 4 ? packet.readUInt16BE(2) : 40 + packet.readUInt16BE(4))
