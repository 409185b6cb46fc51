// lending-probe.ts - lends, takes back and stops a native engine in every order, and reports the results.
//
// It runs as a program inside a namespace; a result as JSON on stdout.

import { createSocket } from 'node:dgram'
import { closeSync, readFileSync } from 'node:fs'
import { output } from '../../lab/command.ts'
import { parseIpv4, parseIpv4Net } from '../../src/net/ipv4.ts'
import { fdsOf } from '../../src/node/restart/open-path.ts'
import type { Engine, EngineConfig, OpenPath } from '../../src/path/engine/engine.ts'
import { NativeEngine } from '../../src/path/engine/native-engine.ts'
import { encodePeers } from '../../src/path/engine/peers.ts'
import { ipv4Packet } from './packets.ts'
import { hostsAt } from './peer-hosts.ts'

export interface LendingResult {
  /** For each of two simultaneous calls, whether it had something to lend. */
  readonly twice: readonly boolean[]
  /** True if there is something to lend again after it was taken back. */
  readonly afterTakingBack: boolean
  /** True if packets that were counted before the engine was lent are counted once afterwards. */
  readonly countedOnce: boolean
  /** Whether anything is lent during a stop and after it; and whether the device exists then. */
  readonly whileStopping: readonly boolean[]
  readonly deviceAfterStopping: boolean
  /**
   * The fault that is reported after descriptors were closed meanwhile; whether they are lent then, and whether a stop completes.
   */
  readonly fault: string | undefined
  readonly afterFault: readonly boolean[]
  readonly countedAfterFault: boolean
  /** True if the engine forwards again after it was taken back before the lending was complete. */
  readonly takenBackAtOnce: boolean
  /** True if a peer's silence includes the time of the lending, at its end and during it. */
  readonly silentFor: readonly boolean[]
  /** For each address of the second family, whether the engine then has sockets of it that receive, or the error. */
  readonly rebound: readonly string[]
}

const SUBNET = parseIpv4Net('10.5.1.0/24')!
const NETWORK = parseIpv4Net('10.5.0.0/16')!
const SLOT = 1
const PEER = { subnet: parseIpv4Net('10.5.2.0/24')!, ...hostsAt(parseIpv4('127.0.0.1')!), port: 8285, slot: SLOT }
const config = (port: number): EngineConfig => ({
  encapsulation: 'udp',
  tunName: 'flannel%d',
  bindAddresses: ['127.0.0.1'],
  port,
  mtu: 1472,
  tunAddress: { ipv4: SUBNET.address },
  networkAddress: { ipv4: NETWORK.address },
  network: { ipv4: NETWORK },
  subnet: { ipv4: SUBNET },
  settings: { verifySource: 'strict', clampMss: false, probePathMtu: false },
  peers: () => encodePeers([PEER]),
})
const isThere = (name: string): boolean => readFileSync('/proc/net/dev', 'utf8').includes(`${name}:`)
const lend = async (engine: Engine): Promise<OpenPath | undefined> => engine.lend?.()
const isLent = async (engine: Engine): Promise<boolean> => (await lend(engine)) !== undefined
const dropped = (engine: Engine): bigint => engine.counters()['rx_drop_malformed'] ?? 0n
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

async function send(datagram: Buffer, port: number, to = '127.0.0.1'): Promise<void> {
  const socket = createSocket(to.includes(':') ? 'udp6' : 'udp4')
  await new Promise<void>((resolve) => socket.send(datagram, port, to, () => resolve()))
  socket.close()
}

/** Sends an invalid packet, and waits until it was counted. */
async function drop(engine: Engine, port: number, to?: string): Promise<void> {
  const before = dropped(engine)
  await send(Buffer.alloc(3), port, to)
  while (dropped(engine) === before) await turn()
}

/** Returns the time since the last packet of the peer, in ms; -1 before the first packet. */
const silentMs = (engine: Engine): number => engine.traffic(SLOT).at(-1) ?? -1

/** Whether a peer that sent a packet before the lending counts as silent since then, during the lending and after it. */
async function silence(engine: Engine, port: number): Promise<boolean[]> {
  await send(
    ipv4Packet({ source: PEER.subnet.address + 9, destination: SUBNET.address + 2, payload: Buffer.alloc(8) }),
    port,
  )
  while (silentMs(engine) < 0) await turn()
  await engine.lend?.()
  const before = silentMs(engine)
  const began = performance.now()
  while (performance.now() - began < 50) await turn()
  const isLonger = [silentMs(engine) >= before + 50]
  engine.takeBack?.()
  return [...isLonger, silentMs(engine) >= before + 50]
}

/** Binds the second family to addresses that fail and to addresses that do not, the first time at the start. */
async function rebind(): Promise<string[]> {
  const port = 8287
  for (const each of ['fd00:9::1', 'fd00:9::2'])
    await output(['ip', 'address', 'add', `${each}/128`, 'dev', 'lo', 'nodad'])
  const other = createSocket('udp6')
  await new Promise<void>((resolve) => other.bind(port, 'fd00:9::1', resolve))
  const engine = new NativeEngine({ ...config(port), bindAddresses: ['127.0.0.1', 'fd00:9::1'] }, { workers: 2 })
  // On older kernels the engine also notes missing features of the TUN device.
  const told = [engine.outers.join(' '), ...engine.notes.filter((note) => note.startsWith('cannot reach'))]
  const to = async (address: string, receiving: readonly string[]): Promise<void> => {
    const isDone = await engine.rebind(address).catch((error: unknown) => (error as Error).message)
    for (const each of receiving) await drop(engine, port, each)
    told.push(`${String(isDone)}: ${engine.outers.join(' ')}`)
  }
  await to('fd00:9::1', ['127.0.0.1'])
  other.close()
  await to('fd00:9::1', ['127.0.0.1', 'fd00:9::1'])
  await to('fd00:9::7', ['127.0.0.1', 'fd00:9::1'])
  await to('fd00:9::2', ['127.0.0.1', 'fd00:9::2'])
  await engine.lend()
  await to('fd00:9::1', [])
  engine.takeBack()
  await drop(engine, port, 'fd00:9::2')
  await engine.stop()
  return told
}

async function main(): Promise<void> {
  await output(['ip', 'link', 'set', 'lo', 'up'])
  const first = new NativeEngine(config(8285), { workers: 2 })
  await drop(first, 8285)
  const silentFor = await silence(first, 8285)
  const twice = await Promise.all([isLent(first), isLent(first)])
  first.takeBack?.()
  first.takeBack?.()
  const countedOnce = dropped(first) === 1n
  await drop(first, 8285)
  const afterTakingBack = await isLent(first)
  first.takeBack?.()
  const lending = isLent(first)
  first.takeBack?.()
  await lending
  await drop(first, 8285)
  const takenBackAtOnce = dropped(first) === 3n

  const late = lend(first)
  const stopped = first.stop()
  const whileStopping = [(await late) !== undefined, await isLent(first)]
  await stopped
  await first.stop()
  const deviceAfterStopping = isThere(first.tunName)

  const second = new NativeEngine(config(8286), { workers: 1 })
  await drop(second, 8286)
  const lent = await lend(second)
  fdsOf(lent ? [lent] : []).forEach((fd) => closeSync(fd))
  second.takeBack?.()
  const { code: fault } = (await second.fault) as NodeJS.ErrnoException
  const countedAfterFault = dropped(second) === 1n
  const lentAgain = await isLent(second)
  await second.stop()
  const rebound = await rebind()
  const result: LendingResult = {
    twice,
    afterTakingBack,
    countedOnce,
    whileStopping,
    deviceAfterStopping,
    fault,
    countedAfterFault,
    takenBackAtOnce,
    silentFor,
    rebound,
    afterFault: [lentAgain, true],
  }
  process.stdout.write(JSON.stringify(result), () => process.exit(0))
}

await main()
