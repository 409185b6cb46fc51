// dgram-engine.ts - the engine in TypeScript: a TUN descriptor and node:dgram, one packet at a time.
//
// It is a short reference against which the native engine is tested, and it serves hosts on which threads are not wanted. It supports only
// IPv4 and no offloads.

import { createSocket } from 'node:dgram'
import { closeSync, readSync, writeSync } from 'node:fs'
import { LRUCache } from 'lru-cache'
import { WeftError } from '../../../base/errors.ts'
import { addon } from '../../../host/addon.ts'
import { formatAddress } from '../../../net/address.ts'
import { ipv4NetContains, parseIpv4, type Ipv4, type Ipv4Net } from '../../../net/ipv4.ts'
import type { Ipv6 } from '../../../net/ipv6.ts'
import { ENCAPSULATIONS, type Encapsulation } from '../encapsulation.ts'
import type { Engine, EngineConfig } from '../engine.ts'
import { isFromHere, reasonToDrop, type PacketAddresses, type UnknownSender } from '../filter.ts'
import { createPeerTable, decodePeers } from '../peers.ts'
import { engineStartError } from '../start-error.ts'
import { SLOT_NUMBERS } from '../traffic.ts'
import { createDropLog, type DropDetails } from './drops.ts'
import {
  clampMss,
  decrementTtl,
  fragmentationNeeded,
  fragmentsOf,
  icmpError,
  icmpLimit,
  isEchoRequestFrom,
  isForLink,
  ipv4PacketBytes,
  isIpv6Packet,
  isTcpSyn,
  mayFragment,
  NET_UNREACHABLE,
  reasonMalformed,
  TIME_EXCEEDED,
  type IcmpError,
} from './packet.ts'

const FLOW_CACHE_ENTRIES = 4096
/** The number of packets that are read from the TUN before the event loop handles other events. */
const READS_PER_TURN = 64
/** The requested size of the socket's receive buffer. The kernel grants at most net.core.rmem_max. */
const RECEIVE_BUFFER_BYTES = 4 << 20
const UNKNOWN_SENDERS = 64
const PATHS = 4096
/**
 * How long a path MTU is cached, in ms; the packet length that always fits, in bytes; the smallest plausible path MTU, below which the
 * kernel fragments datagrams; and the length of the outer headers.
 */
const {
  askEveryMs: ASK_PATH_EVERY_MS,
  alwaysFits: ALWAYS_FITS_BYTES,
  least: LEAST_MTU,
  outerBytes: OUTER_BYTES,
} = addon.layout.path

interface Endpoint {
  readonly address: string
  readonly port: number
  readonly limit: number
  /** True if the endpoint's own address is in a peer's subnet, because the kernel then routes datagrams to it back into the TUN. */
  readonly leadsInside: boolean
  readonly traffic: Traffic
}

interface Traffic {
  readonly numbers: [txPackets: number, txBytes: number, rxPackets: number, rxBytes: number]
  lastReceivedAt: number | undefined
}

function encapsulationOf({ encapsulation: name }: EngineConfig): Encapsulation {
  const known: Readonly<Record<string, Encapsulation>> = ENCAPSULATIONS
  const encapsulation = known[name]
  if (encapsulation) return encapsulation
  throw new WeftError('CONFIG', `the dgram engine does not speak ${name}`, { remedy: 'run weftd with --engine native' })
}

const readIpv6 = (bytes: Buffer, at: number): Ipv6 => (bytes.readBigUInt64BE(at) << 64n) | bytes.readBigUInt64BE(at + 8)

interface OwnIpv4 {
  readonly tunAddress: Ipv4
  readonly networkAddress: Ipv4
  readonly subnet: Ipv4Net
}

function ipv4Of({ tunAddress, networkAddress, network, subnet }: EngineConfig): OwnIpv4 {
  const own = { tunAddress: tunAddress.ipv4, networkAddress: networkAddress.ipv4, subnet: subnet.ipv4 }
  const isWhole = (some: { [K in keyof OwnIpv4]: OwnIpv4[K] | undefined }): some is OwnIpv4 =>
    Object.values(some).every((each) => each !== undefined)
  if (isWhole(own) && !network.ipv6) return own
  throw new WeftError('CONFIG', 'the dgram engine carries IPv4 alone', { remedy: 'run weftd with --engine native' })
}

/**
 * Starts the engine in TypeScript. Throws WeftError NO_TUN, PERMISSION, PORT_IN_USE, ADDRESS or DEVICE; CONFIG if the network has IPv6 or
 * the encapsulation is not udp.
 */
export async function startDgramEngine(config: EngineConfig): Promise<Engine> {
  const encapsulation = encapsulationOf(config)
  const ipv4 = ipv4Of(config)
  const socket = createSocket({ type: 'udp4', recvBufferSize: RECEIVE_BUFFER_BYTES })
  let tun: { fd: number; name: string }
  try {
    await new Promise<void>((resolve, reject) => {
      socket.once('error', reject)
      socket.bind({ port: config.port, address: config.bindAddress, exclusive: true }, () => {
        socket.off('error', reject)
        resolve()
      })
    })
    tun = addon.openTun(config.tunName, config.persistent ?? false)
  } catch (error) {
    socket.close()
    throw engineStartError(error, config)
  }

  let reportFault: (error: Error) => void = () => {}
  const fault = new Promise<Error>((resolve) => {
    reportFault = resolve
  })
  const counters: Record<string, bigint> = Object.fromEntries(addon.counterNames.map((name) => [name, 0n]))
  const count = (name: string, amount = 1): void => {
    counters[name] = (counters[name] ?? 0n) + BigInt(amount)
  }

  const nowUs = (): number => Math.round((performance.timeOrigin + performance.now()) * 1_000)
  const dropLog = createDropLog(nowUs, nowUs())
  function drop(reason: string, bytes: Buffer, details?: DropDetails): void {
    count(reason)
    dropLog.add(reason, bytes, details)
  }

  const trafficBySlot: Traffic[] = []
  const trafficOf = (slot = 0): Traffic =>
    (trafficBySlot[slot] ??= { numbers: [0, 0, 0, 0], lastReceivedAt: undefined })
  const { settings, network, subnet } = config
  const filter = { ...settings, network, subnet }
  const { headerBytes, trailerBytes } = encapsulation
  let table = createPeerTable(decodePeers(config.peers?.() ?? new Uint8Array()))
  const flows = new LRUCache<number, Endpoint>({ max: FLOW_CACHE_ENTRIES })
  function endpointFor(destination: number): Endpoint | undefined {
    const known = flows.get(destination)
    if (known) return known
    const peer = table.find(destination)
    if (!peer) return undefined
    const { port, limit = 0 } = peer
    const endpoint = {
      address: formatAddress(peer.endpoint),
      port,
      limit: limit >= ALWAYS_FITS_BYTES ? limit : Infinity,
      leadsInside: table.find(peer.endpoint) !== undefined,
      traffic: trafficOf(peer.slot),
    }
    flows.set(destination, endpoint)
    return endpoint
  }

  function writeTun(packet: Buffer): boolean {
    try {
      writeSync(tun.fd, packet)
      return true
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EBADFD') reportFault(error as Error)
      return false
    }
  }

  const [mayAnswer, mayReportSize, mayAnswerPeer] = [icmpLimit(), icmpLimit(), icmpLimit()]
  function answer(about: IcmpError, packet: Buffer, counter: string, may = mayAnswer): void {
    const error = icmpError(about, ipv4.networkAddress, packet)
    if (!error) return
    const sender = packet.readUInt32BE(12)
    const isOurs = ipv4NetContains(ipv4.subnet, sender)
    if (isFromHere(filter, sender) && may(sender, isOurs, performance.now()) && writeTun(error)) count(counter)
  }

  // Forwards a packet from the TUN to a peer.
  function forward(bytes: Buffer): void {
    const size = ipv4PacketBytes(bytes)
    if (size === undefined && isIpv6Packet(bytes) && isForLink(bytes)) return count('tx_for_link')
    if (size === undefined)
      return drop(bytes.length > 0 && bytes.readUInt8(0) >> 4 === 6 ? 'tx_drop_no_route' : 'tx_drop_malformed', bytes)
    const packet = Buffer.from(bytes.subarray(0, size)) // send() needs the copy until the datagram has left
    const endpoint = endpointFor(packet.readUInt32BE(16))
    if (!endpoint) {
      if (isForLink(packet)) return count('tx_for_link')
      drop('tx_drop_no_route', packet)
      return answer(NET_UNREACHABLE, packet, 'tx_unreachable_sent')
    }
    const to = { peer: parseIpv4(endpoint.address) ?? 0 }
    // A datagram that this host sent to a peer was routed back into the TUN, so it must not be sent again; native/core/circle.h explains
    // the rule.
    if (endpoint.leadsInside && table.hasEndpointAt(packet.readUInt32BE(16), 'ipv4'))
      return drop('tx_drop_circle', packet, to)
    if (!decrementTtl(packet)) {
      drop('tx_drop_ttl', packet, to)
      return answer(TIME_EXCEEDED, packet, 'tx_time_exceeded_sent')
    }
    if (settings.clampMss && isTcpSyn(packet)) clampMss(packet, Math.min(config.mtu, mtuTo(endpoint)))
    const mtu = size > ALWAYS_FITS_BYTES ? mtuTo(endpoint) : Infinity
    if (size <= mtu) return send(packet, endpoint)
    if (!mayFragment(packet)) {
      // An echo request of this host may exceed the limit that a search found, because it may be a probe that tests whether longer packets
      // arrive again.
      if (size <= knownMtu(endpoint.address) && isEchoRequestFrom(ipv4.tunAddress, packet))
        return send(packet, endpoint)
      drop('tx_drop_too_big', packet, to)
      return answer(fragmentationNeeded(mtu), packet, 'tx_frag_needed_sent', mayReportSize)
    }
    count('tx_fragmented')
    for (const fragment of fragmentsOf(packet, mtu)) send(fragment, endpoint)
  }

  const paths = new LRUCache<string, number>({ max: PATHS, ttl: ASK_PATH_EVERY_MS })
  /**
   * Returns the longest packet in bytes that fits into the kernel's path MTU to a peer (docs/path-mtu.md); Infinity if the path MTU is not
   * known.
   */
  function knownMtu(address: string): number {
    let bytes = paths.get(address)
    if (bytes === undefined) paths.set(address, (bytes = addon.pathMtu(config.bindAddress, address)))
    const mtu = bytes - OUTER_BYTES - headerBytes - trailerBytes
    return mtu >= LEAST_MTU ? mtu : Infinity
  }

  const mtuTo = ({ address, limit }: Endpoint): number => Math.min(knownMtu(address), limit)

  function send(packet: Buffer, endpoint: Endpoint): void {
    socket.send(encapsulation.seal(packet), endpoint.port, endpoint.address, (error) => {
      if (!error) {
        count('tx_packets')
        count('tx_bytes', packet.length)
        count('tx_messages')
        endpoint.traffic.numbers[0]++
        endpoint.traffic.numbers[1] += packet.length
      } else {
        const { code } = error as NodeJS.ErrnoException
        const reason = code === 'EMSGSIZE' ? 'too_big' : code === 'ENOBUFS' ? 'socket_full' : 'refused'
        drop(`tx_drop_${reason}`, packet, { peer: parseIpv4(endpoint.address) ?? 0 })
      }
    })
  }

  // The following code handles datagrams from peers, whose packets go to the TUN.
  const unknownSenders = new LRUCache<string, UnknownSender>({ max: UNKNOWN_SENDERS })
  /** Counts and records the packet, and returns true, if `reason` is set; returns false otherwise. */
  function isRefused(packet: Buffer, addresses: PacketAddresses, reason: string | undefined): boolean {
    if (reason === undefined) return false
    drop(reason, packet, { peer: addresses.from })
    unknownSenders.set(`${reason} ${addresses.from}`, { ...addresses, reason })
    return true
  }
  socket.on('message', (datagram, { address }) => {
    count('rx_messages')
    const bytes = encapsulation.open(datagram)
    const size = bytes && ipv4PacketBytes(bytes)
    const from = parseIpv4(address) ?? 0
    if (bytes && filter.verifySource !== 'off' && isIpv6Packet(bytes)) {
      const [source, destination] = [readIpv6(bytes, 8), readIpv6(bytes, 24)]
      return void isRefused(bytes, { from, source, destination }, 'rx_drop_unknown_sender')
    }
    if (!bytes) return drop('rx_drop_malformed', datagram, { peer: from, encapBytes: headerBytes })
    if (size === undefined) return drop('rx_drop_malformed', bytes, { peer: from })
    const packet = bytes.subarray(0, size)
    const malformed = reasonMalformed(packet)
    if (malformed !== undefined) return drop(malformed, bytes, { peer: from })
    const addresses = { from, source: packet.readUInt32BE(12), destination: packet.readUInt32BE(16) }
    if (isRefused(packet, addresses, reasonToDrop(filter, table, addresses))) return
    if (!decrementTtl(packet)) {
      drop('rx_drop_ttl', packet, { peer: from })
      // The ICMP error goes to the peer whose subnet contains the packet's source. It must not go to the datagram's sender, which may be
      // any host.
      const sender = packet.readUInt32BE(12)
      const peer = endpointFor(sender)
      const error = peer && icmpError(TIME_EXCEEDED, ipv4.tunAddress, packet)
      if (!error || !mayAnswerPeer(sender, false, performance.now())) return
      const reply = encapsulation.seal(error)
      return socket.send(reply, peer.port, peer.address, (failed) => failed ?? count('rx_time_exceeded_sent'))
    }
    const { traffic, limit = Infinity } = endpointFor(addresses.source) ?? {}
    if (traffic) {
      traffic.numbers[2]++
      traffic.numbers[3] += size
      traffic.lastReceivedAt = performance.now()
    }
    // A peer's SYN limits the segments that this host's containers will send, so its MSS must fit into the tunnel too.
    if (settings.clampMss && isTcpSyn(packet)) clampMss(packet, Math.min(config.mtu, knownMtu(address), limit))
    if (!writeTun(packet)) return drop('rx_drop_tun', packet)
    count('tun_writes')
    count('rx_packets')
    count('rx_bytes', size)
  })
  socket.on('error', (error) => reportFault(error))

  const buffer = Buffer.alloc(65536)
  /**
   * Reads a packet from the TUN into `buffer` and returns its length. Returns undefined if no packet waits, or after an error, which is
   * counted.
   */
  function readTun(): number | undefined {
    try {
      return readSync(tun.fd, buffer)
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'EAGAIN') return undefined
      if (code === 'EBADFD') {
        watcher.stop() // the device was deleted
        reportFault(error as Error)
      } else {
        drop('tx_drop_tun', Buffer.alloc(0)) // the kernel dropped that packet
      }
      return undefined
    }
  }
  const watcher = addon.watchReadable(tun.fd, () => {
    for (let reads = 0; reads < READS_PER_TURN; reads++) {
      const size = readTun()
      if (size === undefined) return
      count('tun_reads')
      forward(buffer.subarray(0, size))
    }
  })

  let running = true
  return {
    kind: 'dgram',
    get tunName() {
      return (tun.name = (running && addon.tunName(tun.fd)) || tun.name)
    },
    offloads: [],
    notes: [],
    details: [],
    fault,
    setPeers(records) {
      table = createPeerTable(decodePeers(records))
      flows.clear()
    },
    changePeers(records) {
      table.change(decodePeers(records))
      flows.clear()
    },
    counters: () => ({ ...counters }),
    traffic(slot) {
      const now = performance.now()
      const rowOf = ({ numbers, lastReceivedAt }: Traffic): number[] => [
        ...numbers,
        lastReceivedAt === undefined ? -1 : now - lastReceivedAt,
      ]
      if (slot !== undefined) return Float64Array.from(trafficBySlot[slot] ? rowOf(trafficBySlot[slot]) : [])
      const all = new Float64Array(trafficBySlot.length * SLOT_NUMBERS)
      // forEach skips slots that never had traffic, so that their numbers stay 0.
      trafficBySlot.forEach((each, at) => all.set(rowOf(each), at * SLOT_NUMBERS))
      return all
    },
    drops: (after) => dropLog.read(after),
    threads: () => ({}),
    takeUnknownSenders() {
      const taken = [...unknownSenders.values()]
      unknownSenders.clear()
      return taken
    },
    async stop() {
      if (!running) return
      running = false
      watcher.stop()
      await new Promise<void>((resolve) => socket.close(() => resolve()))
      closeSync(tun.fd)
    },
  }
}
