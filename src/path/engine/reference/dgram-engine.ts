// dgram-engine.ts - the engine in TypeScript: a TUN descriptor and node:dgram, one packet at a time.
//
// The file is a short reference against which the native engine is tested, and serves hosts on which threads are not
// wanted. It supports only IPv4 and no offloads.

import { createSocket, type Socket } from 'node:dgram'
import { closeSync, readSync, writeSync } from 'node:fs'
import { LRUCache } from 'lru-cache'
import type { Drops, ReadWatcher } from '../../../../native/addon.d.ts'
import { WeftError } from '../../../base/errors.ts'
import { addon } from '../../../host/addon.ts'
import { formatAddress, type Family } from '../../../net/address.ts'
import { ipv4NetContains, parseIpv4, type Ipv4, type Ipv4Net } from '../../../net/ipv4.ts'
import type { Ipv6 } from '../../../net/ipv6.ts'
import { ENCAPSULATIONS, type Encapsulation } from '../encapsulation.ts'
import type { Counters, Engine, EngineConfig } from '../engine.ts'
import { isFromHere, reasonToDrop, type PacketAddresses, type UnknownSender } from '../filter.ts'
import { createPeerTable, decodePeers, hostOf, type PeerTable } from '../peers.ts'
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
/** The number of packets that the engine reads from the TUN before the event loop handles other events. */
const READS_PER_TURN = 64
/** The requested size in bytes of the socket's receive buffer. The kernel grants at most net.core.rmem_max. */
const RECEIVE_BUFFER_BYTES = 4 << 20
const UNKNOWN_SENDERS = 64
const PATHS = 4096
/**
 * `askEveryMs` is how long, in ms, the engine caches a path MTU. `alwaysFits` is the length in bytes of a packet that
 * fits every path MTU that Linux accepts. `least` is the smallest plausible MTU in bytes for inner packets; if the MTU
 * is less, the kernel fragments the datagrams. `outerBytes` is the length of the outer headers in bytes.
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
  /**
   * True if the endpoint's own address is in a peer's subnet. The kernel then routes datagrams to the endpoint back
   * into the TUN.
   */
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

interface OpenTun {
  readonly fd: number
  readonly name: string
}

const nowUs = (): number => Math.round((performance.timeOrigin + performance.now()) * 1_000)

export class DgramEngine implements Engine {
  readonly kind = 'dgram'
  readonly offloads: readonly string[] = []
  readonly notes: readonly string[] = []
  readonly details: readonly string[] = []
  readonly fault: Promise<Error>
  readonly outers: readonly Family[] = ['ipv4']
  readonly #config: EngineConfig
  readonly #encapsulation: Encapsulation
  readonly #ipv4: OwnIpv4
  /** The rules that decide which packets from peers are accepted. */
  readonly #filter: Parameters<typeof reasonToDrop>[0]
  readonly #socket: Socket
  readonly #tun: number
  /** The index of the TUN device, by which the kernel names the device without a wait for its lock of all devices. */
  readonly #index: number
  /** The name of the TUN when the engine read the name last. */
  #lastName: string
  readonly #watcher: ReadWatcher
  readonly #buffer = Buffer.alloc(65536)
  #table: PeerTable
  /**
   * The endpoints to which the most recent packets went, by destination address; emptied when the peer table changes.
   */
  readonly #flows = new LRUCache<number, Endpoint>({ max: FLOW_CACHE_ENTRIES })
  /** The kernel's path MTU in bytes to each peer's address. */
  readonly #paths = new LRUCache<string, number>({ max: PATHS, ttl: ASK_PATH_EVERY_MS })
  readonly #counters: Record<string, bigint> = Object.fromEntries(addon.counterNames.map((name) => [name, 0n]))
  readonly #trafficBySlot: Traffic[] = []
  readonly #dropLog = createDropLog(nowUs, nowUs())
  /** The most recent senders whose packets were refused. */
  readonly #unknownSenders = new LRUCache<string, UnknownSender>({ max: UNKNOWN_SENDERS })
  /**
   * The rate limit of ICMP errors to containers, except errors about a packet's length, which `#mayReportSize` limits.
   * `#mayAnswerPeer` limits ICMP errors to peers.
   */
  readonly #mayAnswer = icmpLimit()
  readonly #mayReportSize = icmpLimit()
  readonly #mayAnswerPeer = icmpLimit()
  #running = true
  #reportFault: (error: Error) => void = () => {}

  private constructor(config: EngineConfig, encapsulation: Encapsulation, ipv4: OwnIpv4, socket: Socket, tun: OpenTun) {
    const { settings, network, subnet } = config
    this.#config = config
    this.#encapsulation = encapsulation
    this.#ipv4 = ipv4
    this.#filter = { ...settings, network, subnet }
    this.#socket = socket
    this.#tun = tun.fd
    this.#lastName = tun.name
    this.#index = addon.interfaceIndex(tun.name)
    this.fault = new Promise<Error>((resolve) => (this.#reportFault = resolve))
    this.#table = createPeerTable(decodePeers(config.peers?.() ?? new Uint8Array()))
    socket.on('message', (datagram, { address }) => this.#receive(datagram, address))
    socket.on('error', (error) => this.#reportFault(error))
    this.#watcher = addon.watchReadable(tun.fd, () => this.#readPackets())
  }

  /**
   * Opens the socket and the TUN, and starts the engine. Throws WeftError NO_TUN, PERMISSION, PORT_IN_USE, ADDRESS or
   * DEVICE; CONFIG if the network has IPv6 or the encapsulation is not udp.
   */
  static async start(config: EngineConfig): Promise<DgramEngine> {
    const encapsulation = encapsulationOf(config)
    const ipv4 = ipv4Of(config)
    const [bindAddress = ''] = config.bindAddresses
    const socket = createSocket({ type: 'udp4', recvBufferSize: RECEIVE_BUFFER_BYTES })
    let tun: OpenTun
    try {
      await new Promise<void>((resolve, reject) => {
        socket.once('error', reject)
        socket.bind({ port: config.port, address: bindAddress, exclusive: true }, () => {
          socket.off('error', reject)
          resolve()
        })
      })
      tun = addon.openTun(config.tunName, config.persistent ?? false)
    } catch (error) {
      socket.close()
      throw engineStartError(error, { ...config, bindAddress })
    }
    return new DgramEngine(config, encapsulation, ipv4, socket, tun)
  }

  get tunName(): string {
    if (this.#running) this.#lastName = addon.interfaceName(this.#index) || this.#lastName
    return this.#lastName
  }

  setPeers(records: Uint8Array): void {
    this.#table = createPeerTable(decodePeers(records))
    this.#flows.clear()
  }

  changePeers(records: Uint8Array): void {
    this.#table.change(decodePeers(records))
    this.#flows.clear()
  }

  counters(): Counters {
    return { ...this.#counters }
  }

  traffic(slot?: number): Float64Array {
    const now = performance.now()
    const rowOf = ({ numbers, lastReceivedAt }: Traffic): number[] => [
      ...numbers,
      lastReceivedAt === undefined ? -1 : now - lastReceivedAt,
    ]
    if (slot !== undefined) return Float64Array.from(this.#trafficBySlot[slot] ? rowOf(this.#trafficBySlot[slot]) : [])
    const all = new Float64Array(this.#trafficBySlot.length * SLOT_NUMBERS)
    // Use forEach, because it skips the empty places of the array: slots that never had traffic keep the number 0.
    this.#trafficBySlot.forEach((each, at) => all.set(rowOf(each), at * SLOT_NUMBERS))
    return all
  }

  drops(after?: Drops['next']): Drops {
    return this.#dropLog.read(after)
  }

  threads(): Readonly<Record<string, number>> {
    return {}
  }

  takeUnknownSenders(): readonly UnknownSender[] {
    const taken = [...this.#unknownSenders.values()]
    this.#unknownSenders.clear()
    return taken
  }

  async stop(): Promise<void> {
    if (!this.#running) return
    this.#running = false
    this.#watcher.stop()
    await new Promise<void>((resolve) => this.#socket.close(() => resolve()))
    closeSync(this.#tun)
  }

  #readPackets(): void {
    for (let reads = 0; reads < READS_PER_TURN; reads++) {
      const size = this.#readTun()
      if (size === undefined) return
      this.#count('tun_reads')
      this.#forward(this.#buffer.subarray(0, size))
    }
  }

  /**
   * Reads a packet from the TUN into `buffer` and returns its length. Returns undefined if no packet waits, or after an
   * error, which is counted.
   */
  #readTun(): number | undefined {
    try {
      return readSync(this.#tun, this.#buffer)
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'EAGAIN') return undefined
      if (code === 'EBADFD') {
        this.#watcher.stop() // the device was deleted
        this.#reportFault(error as Error)
      } else {
        this.#drop('tx_drop_tun', Buffer.alloc(0)) // the kernel dropped that packet
      }
      return undefined
    }
  }

  /** Forwards a packet from the TUN to a peer. */
  #forward(bytes: Buffer): void {
    const size = ipv4PacketBytes(bytes)
    if (size === undefined && isIpv6Packet(bytes) && isForLink(bytes)) return this.#count('tx_for_link')
    if (size === undefined)
      return this.#drop(
        bytes.length > 0 && bytes.readUInt8(0) >> 4 === 6 ? 'tx_drop_no_route' : 'tx_drop_malformed',
        bytes,
      )
    const packet = Buffer.from(bytes.subarray(0, size)) // send() needs the copy until the datagram has left
    const endpoint = this.#endpointFor(packet.readUInt32BE(16))
    if (!endpoint) {
      if (isForLink(packet)) return this.#count('tx_for_link')
      this.#drop('tx_drop_no_route', packet)
      return this.#answer(NET_UNREACHABLE, packet, 'tx_unreachable_sent')
    }
    const to = { peer: parseIpv4(endpoint.address) ?? 0 }
    // A datagram that this host sent to a peer was routed back into the TUN, so it must not be sent again;
    // native/core/circle.h explains the rule.
    if (endpoint.leadsInside && this.#table.hasEndpointAt(packet.readUInt32BE(16), 'ipv4'))
      return this.#drop('tx_drop_circle', packet, to)
    if (!decrementTtl(packet)) {
      this.#drop('tx_drop_ttl', packet, to)
      return this.#answer(TIME_EXCEEDED, packet, 'tx_time_exceeded_sent')
    }
    if (this.#config.settings.clampMss && isTcpSyn(packet))
      clampMss(packet, Math.min(this.#config.mtu, this.#mtuTo(endpoint)))
    const mtu = size > ALWAYS_FITS_BYTES ? this.#mtuTo(endpoint) : Infinity
    if (size <= mtu) return this.#send(packet, endpoint)
    if (!mayFragment(packet)) {
      // An echo request of this host may be longer than the limit that the path MTU search found, because it may be a
      // probe with which weftd tests whether longer packets reach the peer now.
      if (size <= this.#knownMtu(endpoint.address) && isEchoRequestFrom(this.#ipv4.tunAddress, packet))
        return this.#send(packet, endpoint)
      this.#drop('tx_drop_too_big', packet, to)
      return this.#answer(fragmentationNeeded(mtu), packet, 'tx_frag_needed_sent', this.#mayReportSize)
    }
    this.#count('tx_fragmented')
    for (const fragment of fragmentsOf(packet, mtu)) this.#send(fragment, endpoint)
  }

  /**
   * Sends a packet in a datagram to a peer, and counts the packet when the kernel has accepted or refused the datagram.
   */
  #send(packet: Buffer, endpoint: Endpoint): void {
    this.#socket.send(this.#encapsulation.seal(packet), endpoint.port, endpoint.address, (error) => {
      if (!error) {
        this.#count('tx_packets')
        this.#count('tx_bytes', packet.length)
        this.#count('tx_messages')
        endpoint.traffic.numbers[0]++
        endpoint.traffic.numbers[1] += packet.length
      } else {
        const { code } = error as NodeJS.ErrnoException
        const reason = code === 'EMSGSIZE' ? 'too_big' : code === 'ENOBUFS' ? 'socket_full' : 'refused'
        this.#drop(`tx_drop_${reason}`, packet, { peer: parseIpv4(endpoint.address) ?? 0 })
      }
    })
  }

  /** Handles a datagram from `address`: checks its packet and writes the packet to the TUN. */
  #receive(datagram: Buffer, address: string): void {
    this.#count('rx_messages')
    const bytes = this.#encapsulation.open(datagram)
    const size = bytes && ipv4PacketBytes(bytes)
    const from = parseIpv4(address) ?? 0
    if (bytes && this.#filter.verifySource !== 'off' && isIpv6Packet(bytes)) {
      const [source, destination] = [readIpv6(bytes, 8), readIpv6(bytes, 24)]
      return void this.#isRefused(bytes, { from, source, destination }, 'rx_drop_unknown_sender')
    }
    const { headerBytes } = this.#encapsulation
    if (!bytes) return this.#drop('rx_drop_malformed', datagram, { peer: from, encapBytes: headerBytes })
    if (size === undefined) return this.#drop('rx_drop_malformed', bytes, { peer: from })
    const packet = bytes.subarray(0, size)
    const malformed = reasonMalformed(packet)
    if (malformed !== undefined) return this.#drop(malformed, bytes, { peer: from })
    const addresses = { from, source: packet.readUInt32BE(12), destination: packet.readUInt32BE(16) }
    if (this.#isRefused(packet, addresses, reasonToDrop(this.#filter, this.#table, addresses))) return
    if (!decrementTtl(packet)) {
      this.#drop('rx_drop_ttl', packet, { peer: from })
      return this.#answerPeer(packet)
    }
    const { traffic, limit = Infinity } = this.#endpointFor(addresses.source) ?? {}
    if (traffic) {
      traffic.numbers[2]++
      traffic.numbers[3] += size
      traffic.lastReceivedAt = performance.now()
    }
    const { settings, mtu } = this.#config
    // A peer's SYN limits the segments that this host's containers will send, so the MSS in the SYN must fit into the
    // tunnel too.
    if (settings.clampMss && isTcpSyn(packet)) clampMss(packet, Math.min(mtu, this.#knownMtu(address), limit))
    if (!this.#writeTun(packet)) return this.#drop('rx_drop_tun', packet)
    this.#count('tun_writes')
    this.#count('rx_packets')
    this.#count('rx_bytes', size)
  }

  /**
   * Sends an ICMP error about an expired TTL to the peer whose subnet contains the packet's source. The error must not
   * go to the datagram's sender, which may be any host.
   */
  #answerPeer(packet: Buffer): void {
    const sender = packet.readUInt32BE(12)
    const peer = this.#endpointFor(sender)
    const error = peer && icmpError(TIME_EXCEEDED, this.#ipv4.tunAddress, packet)
    if (!error || !this.#mayAnswerPeer(sender, false, performance.now())) return
    const reply = this.#encapsulation.seal(error)
    this.#socket.send(reply, peer.port, peer.address, (failed) => failed ?? this.#count('rx_time_exceeded_sent'))
  }

  /** If `reason` is set, counts and records the packet as dropped and returns true; otherwise returns false. */
  #isRefused(packet: Buffer, addresses: PacketAddresses, reason: string | undefined): boolean {
    if (reason === undefined) return false
    this.#drop(reason, packet, { peer: addresses.from })
    this.#unknownSenders.set(`${reason} ${addresses.from}`, { ...addresses, reason })
    return true
  }

  /**
   * Writes into the TUN an ICMP error about a packet that came from the TUN, and counts the error, unless the rate
   * limit `may` refuses it.
   */
  #answer(about: IcmpError, packet: Buffer, counter: string, may = this.#mayAnswer): void {
    const error = icmpError(about, this.#ipv4.networkAddress, packet)
    if (!error) return
    const sender = packet.readUInt32BE(12)
    const isOurs = ipv4NetContains(this.#ipv4.subnet, sender)
    if (isFromHere(this.#filter, sender) && may(sender, isOurs, performance.now()) && this.#writeTun(error))
      this.#count(counter)
  }

  /** Returns the endpoint of the peer whose subnet contains the destination. */
  #endpointFor(destination: number): Endpoint | undefined {
    const known = this.#flows.get(destination)
    if (known) return known
    const peer = this.#table.find(destination)
    if (!peer) return undefined
    const { port, limit = 0 } = peer
    const host = hostOf(peer)
    const endpoint = {
      address: formatAddress(host),
      port,
      limit: limit >= ALWAYS_FITS_BYTES ? limit : Infinity,
      leadsInside: this.#table.find(host) !== undefined,
      traffic: this.#trafficOf(peer.slot),
    }
    this.#flows.set(destination, endpoint)
    return endpoint
  }

  #trafficOf(slot = 0): Traffic {
    return (this.#trafficBySlot[slot] ??= { numbers: [0, 0, 0, 0], lastReceivedAt: undefined })
  }

  /**
   * Returns the length in bytes of the longest packet that fits into the kernel's path MTU to a peer
   * (docs/path-mtu.md); Infinity if the path MTU is not known.
   */
  #knownMtu(address: string): number {
    let bytes = this.#paths.get(address)
    const [bindAddress = ''] = this.#config.bindAddresses
    if (bytes === undefined) this.#paths.set(address, (bytes = addon.pathMtu(bindAddress, address)))
    const { headerBytes, trailerBytes } = this.#encapsulation
    const mtu = bytes - OUTER_BYTES - headerBytes - trailerBytes
    return mtu >= LEAST_MTU ? mtu : Infinity
  }

  /** Returns the length in bytes of the longest packet that may be sent to a peer. */
  #mtuTo({ address, limit }: Endpoint): number {
    return Math.min(this.#knownMtu(address), limit)
  }

  /** Writes a packet to the TUN. Returns false if the kernel refused it. */
  #writeTun(packet: Buffer): boolean {
    try {
      writeSync(this.#tun, packet)
      return true
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EBADFD') this.#reportFault(error as Error)
      return false
    }
  }

  /** Counts a dropped packet, and keeps its headers for `drops`. */
  #drop(reason: string, bytes: Buffer, details?: DropDetails): void {
    this.#count(reason)
    this.#dropLog.add(reason, bytes, details)
  }

  #count(name: string, amount = 1): void {
    this.#counters[name] = (this.#counters[name] ?? 0n) + BigInt(amount)
  }
}
