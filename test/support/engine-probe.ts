// engine-probe.ts - runs one engine inside a namespace, sends packets to both sides of it, and reports the packets that came out.
//
// It runs as a program: the engine's name as argument, a job as JSON on stdin, a result as JSON on stdout. It uses only real devices: the
// kernel forwards between the engine's TUN and a second TUN that this program reads and writes.
//
//   probe0 (this program) <-> kernel <-> flannel0 (the engine) <-> UDP 127.0.0.1:8285 <-> 127.0.0.1:9999 (this program)
//                                                                                    <-- 127.0.0.66 (an unknown sender)

import { createSocket } from 'node:dgram'
import { readSync, writeSync } from 'node:fs'
import { text } from 'node:stream/consumers'
import { output } from '../../lab/command.ts'
import { addon } from '../../src/host/addon.ts'
import { formatAddress } from '../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../src/net/ipv4.ts'
import type { TunnelSettings } from '../../src/path/catalog.ts'
import { ENCAPSULATIONS, type Encapsulation } from '../../src/path/engine/encapsulation.ts'
import type { Engine, EngineConfig } from '../../src/path/engine/engine.ts'
import { NativeEngine } from '../../src/path/engine/native-engine.ts'
import { encodePeers } from '../../src/path/engine/peers.ts'
import { DgramEngine } from '../../src/path/engine/reference/dgram-engine.ts'
import { SLOT_NUMBERS } from '../../src/path/engine/traffic.ts'
import { ipv4Packet } from './packets.ts'
import { hostsAt } from './peer-hosts.ts'

export interface ProbeJob {
  /** Packets for the TUN side and datagrams for the UDP side, in hex. */
  readonly toTun: readonly string[]
  readonly toUdp: readonly string[]
  readonly without: readonly string[]
  readonly encapsulation: keyof typeof ENCAPSULATIONS
  readonly verifySource: TunnelSettings['verifySource']
  /** Datagrams for the UDP side from the address of an unknown sender, sent before the others. */
  readonly fromUnknown: readonly string[]
  /** The number of the engine's own answers to wait for on each side, because nothing orders them after the last packet. */
  readonly answers?: { readonly fromTun: number; readonly fromUdp: number }
  /** Packets for the TUN side after all others, when the peer has moved to another port. */
  readonly afterMove?: readonly string[]
}

export interface ProbeResult {
  readonly fromTun: readonly string[]
  readonly fromUdp: readonly string[]
  /** The datagrams that arrived at the peer's other port. */
  readonly fromOther: readonly string[]
  readonly counters: Readonly<Record<string, number>>
  readonly offloads: readonly string[]
  /** The peer's counters: packets and bytes sent, packets and bytes accepted, and whether a packet of the peer was received. */
  readonly traffic: readonly number[]
  readonly unknownSenders: readonly { readonly reason: string; readonly from: string }[]
  /** The recorded drops, without the time; the headers are in hex. */
  readonly drops: readonly {
    readonly reason: string
    readonly packets: number
    readonly length: number
    readonly peer: string
    readonly encapBytes: number
    readonly headers: string
  }[]
}

const NETWORK = parseIpv4Net('10.5.0.0/16')!
const SUBNET = parseIpv4Net('10.5.1.0/24')!
/** The maximum number of packets under way. It is below the size of every buffer, however long the reader does not run. */
const WINDOW = 64
/** The slot in which the peer's traffic is counted. */
const SLOT = 300
/** Marks the last packet of each side. */
const SENTINEL = Buffer.from('the end of this side')

async function main(kind: string): Promise<void> {
  const job = JSON.parse(await text(process.stdin)) as ProbeJob
  const encapsulation: Encapsulation = ENCAPSULATIONS[job.encapsulation]
  const config: EngineConfig = {
    encapsulation: job.encapsulation,
    tunName: 'flannel%d',
    bindAddresses: ['127.0.0.1'],
    port: 8285,
    mtu: 1472,
    tunAddress: { ipv4: SUBNET.address },
    networkAddress: { ipv4: NETWORK.address },
    network: { ipv4: NETWORK },
    subnet: { ipv4: SUBNET },
    settings: { verifySource: job.verifySource, clampMss: false, probePathMtu: false },
  }
  const engine: Engine =
    kind === 'dgram' ? await DgramEngine.start(config) : new NativeEngine(config, { without: job.without })
  const probe = addon.openTun('probe%d', false)
  await output(['sh', '-c', 'echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6']) // IPv6 solicitations would be counted
  const settings = `
    link set lo up
    link set dev ${engine.tunName} mtu 1472 txqueuelen 4000 up
    address add 10.5.1.0/32 dev ${engine.tunName}
    route add 10.5.0.0/16 dev ${engine.tunName}
    link set dev ${probe.name} mtu 1500 txqueuelen 4000 up
    address add 10.5.1.1/24 dev ${probe.name}`
  await output(['ip', '-batch', '-'], { input: settings })
  for (const sysctl of [
    'ip_forward=1',
    'conf.all.rp_filter=0',
    `conf.${engine.tunName}.rp_filter=0`,
    `conf.${probe.name}.rp_filter=0`,
  ]) {
    const [name = '', value = ''] = sysctl.split('=')
    await output(['sh', '-c', `echo ${value} > /proc/sys/net/ipv4/${name.replaceAll('.', '/')}`])
  }
  const peersAt = (port: number): Uint8Array =>
    encodePeers([{ subnet: parseIpv4Net('10.5.2.0/24')!, ...hostsAt(parseIpv4('127.0.0.1')!), port, slot: SLOT }])
  engine.setPeers(peersAt(9999))

  const fromTun: string[] = []
  const fromUdp: string[] = []
  const socket = createSocket('udp4')
  await new Promise<void>((resolve) => socket.bind(9999, '127.0.0.1', resolve))
  socket.setRecvBufferSize(4 << 20)
  const udpDone = new Promise<void>((resolve) => {
    socket.on('message', (packet) => (packet.includes(SENTINEL) ? resolve() : fromUdp.push(packet.toString('hex'))))
  })
  const buffer = Buffer.alloc(65536)
  let stopWatching = (): void => {}
  const tunDone = new Promise<void>((resolve) => {
    const watcher = addon.watchReadable(probe.fd, () => {
      for (;;) {
        let size
        try {
          size = readSync(probe.fd, buffer)
        } catch {
          return // EAGAIN
        }
        const packet = Buffer.from(buffer.subarray(0, size))
        if (packet.readUInt8(0) >> 4 !== 4) continue // the kernel's own IPv6 chatter
        if (packet.includes(SENTINEL)) resolve()
        else fromTun.push(packet.toString('hex'))
      }
    })
    stopWatching = () => watcher.stop()
  })
  const outsider = createSocket('udp4')
  await new Promise<void>((resolve) => outsider.bind(9999, '127.0.0.66', resolve))
  const send = (packet: Buffer, by = socket): Promise<void> =>
    new Promise((resolve, reject) => by.send(packet, 8285, '127.0.0.1', (error) => (error ? reject(error) : resolve())))

  const inside = parseIpv4('10.5.1.2')!
  const peer = parseIpv4('10.5.2.2')!
  // The dgram engine shares this event loop, so it gets a turn after each packet. Dropped and answered packets count as under way for good;
  // no job has a full window of them.
  const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))
  const settle = async (sent: number, arrived: readonly string[]): Promise<void> => {
    do await turn()
    while (sent - arrived.length > WINDOW)
  }
  for (const [index, hex] of job.toTun.entries()) {
    writeSync(probe.fd, Buffer.from(hex, 'hex'))
    await settle(index + 1, fromUdp)
  }
  writeSync(probe.fd, ipv4Packet({ source: inside, destination: peer, protocol: 253, payload: SENTINEL }))
  await udpDone
  for (const hex of job.fromUnknown) {
    await send(Buffer.from(hex, 'hex'), outsider)
    await turn()
  }
  for (const [index, hex] of job.toUdp.entries()) {
    await send(Buffer.from(hex, 'hex'))
    await settle(index + 1, fromTun)
  }
  const last = ipv4Packet({ source: peer, destination: inside, protocol: 253, payload: SENTINEL })
  await send(encapsulation.seal(last))
  await tunDone
  const { answers = { fromTun: 0, fromUdp: 0 }, afterMove = [] } = job
  while (fromTun.length < answers.fromTun || fromUdp.length < answers.fromUdp) await turn()

  const fromOther: string[] = []
  if (afterMove.length > 0) {
    const other = createSocket('udp4')
    await new Promise<void>((resolve) => other.bind(9998, '127.0.0.1', resolve))
    other.on('message', (packet) => fromOther.push(packet.toString('hex')))
    engine.setPeers(peersAt(9998))
    for (const hex of afterMove) writeSync(probe.fd, Buffer.from(hex, 'hex'))
    // The test checks the address at which they arrive.
    const before = fromUdp.length
    while (fromOther.length + fromUdp.length - before < afterMove.length) await turn()
    other.close()
  }

  // A thread counts a packet after it has sent it. So the counts are complete once the thread has made another round.
  const rounds = Object.entries(engine.threads())
  while (rounds.some(([name, gone]) => (engine.threads()[name] ?? 0) < gone + 2)) await turn()
  const counters = Object.fromEntries(Object.entries(engine.counters()).map(([name, count]) => [name, Number(count)]))
  const unknownSenders = engine.takeUnknownSenders().map(({ reason, from }) => ({ reason, from: formatAddress(from) }))
  const [silentMs = -1, ...counted] = [...engine.traffic().subarray(SLOT * SLOT_NUMBERS)].toReversed()
  const traffic = [...counted.toReversed(), Number(silentMs >= 0)]
  const drops = engine.drops().packets.map(({ reason, packets, length, encapBytes, ...rest }) => {
    const headers = Buffer.from(rest.headers).toString('hex')
    return { reason, packets, length, encapBytes, headers, peer: formatAddress(rest.peer) }
  })
  const result: ProbeResult = {
    fromTun,
    fromUdp,
    fromOther,
    counters,
    offloads: engine.offloads,
    unknownSenders,
    traffic,
    drops,
  }
  stopWatching()
  socket.close()
  outsider.close()
  await engine.stop()
  process.stdout.write(JSON.stringify(result), () => process.exit(0))
}

if (process.argv[2] !== undefined) await main(process.argv[2])
