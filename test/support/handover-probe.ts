// handover-probe.ts - runs one TUN and its sockets with several engines in turn, the first one in another process; reports which packets
// arrived under each engine.
//
// It runs as a program inside a namespace, with a result as JSON on stdout. With `run` and descriptors as JSON it is the other process,
// which has inherited the descriptors with these numbers, runs an engine until its stdin ends, and reports what it released.
//
//   kernel <-> flannel0 <-> the engine <-> UDP 127.0.0.1:8285 <-> 127.0.0.1:9999 (this program)

import { spawn } from 'node:child_process'
import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { text } from 'node:stream/consumers'
import { output } from '../../lab/command.ts'
import type { Descriptors, NativeEngine } from '../../native/addon.d.ts'
import { addon } from '../../src/host/addon.ts'
import { parseIpv4, parseIpv4Net } from '../../src/net/ipv4.ts'
import { encodePeers } from '../../src/path/engine/peers.ts'
import { ipv4Packet, udpDatagram } from './packets.ts'
import { hostsAt } from './peer-hosts.ts'

export interface HandoverResult {
  /** The packets that arrived in both directions, by engine. Packets that were sent before the engine ran come first. */
  readonly crossed: Readonly<Record<string, readonly string[]>>
  /** The threads of the engine that are left after each release. */
  readonly threadsLeft: readonly string[]
  /** The features that were granted, and those that the last release reported. */
  readonly granted: readonly string[]
  readonly released: readonly string[]
  /** Whether the device existed after the last release, and after the end. */
  readonly deviceKept: boolean
  readonly deviceLeft: boolean
}

const WORKERS = 2
const OURS = '10.5.1.0'
const PEERS = '10.5.2.7'

function run(descriptors: Descriptors): NativeEngine {
  const peer = { subnet: parseIpv4Net('10.5.2.0/24')!, ...hostsAt(parseIpv4('127.0.0.1')!), port: 9999 }
  const options = {
    encapsulation: 'udp',
    ownEnd: new Uint8Array(),
    mtu: 1472,
    tunAddress: { ipv4: parseIpv4(OURS)! },
    networkAddress: { ipv4: parseIpv4('10.5.0.0')! },
    filter: {
      verifySource: 'strict',
      network: { ipv4: parseIpv4Net('10.5.0.0/16')! },
      subnet: { ipv4: parseIpv4Net('10.5.1.0/24')! },
    } as const,
    clampMss: false,
    persistent: false,
    keepsSessions: false,
    nice: 0,
    pollUs: 0,
    peers: encodePeers([peer]),
  }
  return addon.runEngine(descriptors, options, (error) => {
    throw error
  })
}

const threads = (): string[] =>
  readdirSync('/proc/self/task')
    .map((id) => readFileSync(`/proc/self/task/${id}/comm`, 'utf8').trim())
    .filter((name) => name.startsWith('weft-'))

const device = (name: string): boolean => readFileSync('/proc/net/dev', 'utf8').includes(`${name}:`)

async function bound(port: number, address: string): Promise<Socket> {
  const socket = createSocket('udp4')
  await new Promise<void>((resolve) => socket.bind(port, address, resolve))
  return socket
}

/** The two ends of a path: the peer, and a program behind the TUN. */
interface Ends {
  /** Sends a packet in each direction. */
  send(name: string): Promise<void>
  /** Resolves when both packets have arrived. */
  arrived(name: string): Promise<void>
}

async function openEnds(): Promise<Ends> {
  const peer = await bound(9999, '127.0.0.1')
  const inside = await bound(5000, OURS)
  const waiting = new Map<string, () => void>()
  const seen = new Set<string>()
  const note = (key: string): void => {
    seen.add(key)
    waiting.get(key)?.()
  }
  peer.on('message', (packet) => note(`out ${packet.subarray(28).toString()}`))
  inside.on('message', (payload) => note(`in ${payload.toString()}`))
  const sent = (socket: Socket, bytes: Buffer, port: number, address: string): Promise<void> =>
    new Promise((resolve, reject) => socket.send(bytes, port, address, (error) => (error ? reject(error) : resolve())))
  const seenOf = (key: string): Promise<void> =>
    seen.has(key) ? Promise.resolve() : new Promise((resolve) => waiting.set(key, resolve))
  return {
    async send(name) {
      await sent(inside, Buffer.from(name), 5000, PEERS)
      const [source, destination] = [parseIpv4(PEERS)!, parseIpv4(OURS)!]
      const payload = udpDatagram(source, destination, 5000, 5000, Buffer.from(name))
      await sent(peer, ipv4Packet({ source, destination, payload }), 8285, '127.0.0.1')
    },
    async arrived(name) {
      await Promise.all([seenOf(`out ${name}`), seenOf(`in ${name}`)])
    },
  }
}

/** Runs the first engine in a process of its own, which has only the descriptors. */
async function inAnotherProcess(descriptors: Descriptors, meanwhile: () => Promise<void>): Promise<Descriptors> {
  const numbers: number[] = []
  const numbered = (fd: number): number => numbers.push(fd) + 2 // after stdin, stdout and stderr
  const loops = descriptors.loops.map(({ tun, sockets: { ipv4 } }) => {
    const { receiver, sender } = ipv4!
    const numbers4 = { receiver: numbered(receiver), ...(sender === undefined ? {} : { sender: numbered(sender) }) }
    return { tun: numbered(tun), sockets: { ipv4: numbers4 } }
  })
  const child = spawn(process.execPath, [process.argv[1]!, 'run', JSON.stringify({ ...descriptors, loops })], {
    stdio: ['pipe', 'pipe', 'inherit', ...numbers],
  })
  await meanwhile()
  const said = text(child.stdout!)
  child.stdin!.end()
  const [code] = (await once(child, 'exit')) as [number]
  if (code !== 0) throw new Error(`the other process ended with ${code}`)
  const { features } = JSON.parse(await said) as Descriptors
  return { ...descriptors, features }
}

async function main(): Promise<void> {
  const opened = addon.openDescriptors({
    tunName: 'flannel%d',
    bindAddress: '127.0.0.1',
    port: 8285,
    workers: WORKERS,
    features: addon.featureNames,
  })
  const { tunName } = opened
  await output(['sh', '-c', 'echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6'])
  const settings = `
    link set lo up
    link set dev ${tunName} mtu 1472 up
    address add ${OURS}/32 dev ${tunName}
    route add 10.5.0.0/16 dev ${tunName}`
  await output(['ip', '-batch', '-'], { input: settings })
  const ends = await openEnds()
  const crossed: Record<string, string[]> = {}
  const threadsLeft: string[] = []
  const cross = async (engine: string): Promise<void> => {
    await ends.arrived(`before ${engine}`)
    await ends.send(engine)
    await ends.arrived(engine)
    crossed[engine] = [`before ${engine}`, engine]
  }

  // A packet that is sent while no engine runs waits in the descriptors.
  await ends.send('before the first')
  let descriptors: Descriptors = await inAnotherProcess(opened, () => cross('the first'))
  for (const name of ['the second', 'the third']) {
    await ends.send(`before ${name}`)
    const engine = run(descriptors)
    await cross(name)
    descriptors = await engine.release()
    threadsLeft.push(...threads())
  }
  const deviceKept = device(tunName)
  await run(descriptors).stop()
  const result: HandoverResult = {
    crossed,
    threadsLeft,
    granted: opened.features,
    released: descriptors.features,
    deviceKept,
    deviceLeft: device(tunName),
  }
  process.stdout.write(JSON.stringify(result), () => process.exit(0))
}

async function other(descriptors: Descriptors): Promise<void> {
  const engine = run(descriptors)
  await text(process.stdin)
  process.stdout.write(JSON.stringify(await engine.release()))
}

if (process.argv[2] === 'run') await other(JSON.parse(process.argv[3]!) as Descriptors)
else await main()
