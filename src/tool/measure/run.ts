// run.ts - the measuring side of `weft bench`. It connects to a listener outside and inside the tunnel, sends data, and
// receives reports of how much data arrived.

import { randomBytes } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { isIPv6, type Socket } from 'node:net'
import { messageOf, WeftError } from '../../base/errors.ts'
import { pause } from '../../host/bell.ts'
import { busyClock } from './busy-clock.ts'
import {
  isReady,
  LIMITS,
  lineOf,
  readArrived,
  readEnded,
  readReceived,
  readRefusal,
  readWelcome,
  writeDatagramHeader,
  type Counts,
  type InUse,
  type Refusal,
} from './conversation.ts'
import { connectTo, readLine, type PathAddresses } from './lines.ts'
import { datagramRate, orderOf, PATHS, type Both, type PathName, type Plan } from './plan.ts'
import { median, type Samples, type TcpSample, type UdpSample } from './result.ts'

/** How long in ms a connection attempt, an answer or an echo may take. */
const PATIENCE_MS = 3_000
const WARM_UP_S = 0.3
/**
 * The number of bytes of one write to a stream. The bytes are random, so that a path with compression gets no
 * advantage.
 */
const WRITE_BYTES = 256 * 1024
/** The text of an echo request. The listener sends the same text back. */
const ECHO = '.\n'
/**
 * The pause in ms between two echo requests. During the pause the threads that forward the requests go to sleep, so
 * that each round trip is measured as on an idle host.
 */
const TRIP_PAUSE_MS = 10
const MOST_TRIPS_MS = 1_000
/**
 * The shortest delay of a Node.js timer, in ms. After each such delay the sender sends the datagrams that are due by
 * then.
 */
const TICK_MS = 1
/**
 * If the sender is late by at most MOST_BURST_MS milliseconds, it catches up by sending faster. If it is later, it
 * skips datagrams, because a larger burst would cause losses.
 */
const MOST_BURST_MS = 3
/**
 * The number of datagram buffers, which the sender uses in turn. At most half of the buffers wait in the socket's
 * queue, so the socket has sent a buffer's previous datagram before the sender reuses the buffer.
 */
const DATAGRAM_BUFFERS = 512

/**
 * A run of measurements against a listener. The listener's answers come over one connection outside the tunnel (the
 * leading connection).
 */
export class Run {
  /** The facts about the data path of the listener's host; null if the listener does not know them. */
  readonly there: InUse | null
  readonly #paths: Both<PathAddresses>
  readonly #port: number
  readonly #leading: Leading
  /** The run's identifier, which the listener assigned and which all streams and datagrams contain. */
  readonly #mark: string
  readonly #open: Set<Socket>
  readonly #echoes = new Map<PathName, Socket>()
  readonly #filling = randomBytes(WRITE_BYTES)
  /**
   * The sequence number of the first datagram of the next UDP sample. It is the sum of the maximum numbers of datagrams
   * of this run's earlier UDP samples.
   */
  #sentEver = 0

  private constructor(paths: Both<PathAddresses>, port: number, leading: Leading, welcome: Welcome) {
    this.there = welcome.inUse
    this.#paths = paths
    this.#port = port
    this.#leading = leading
    this.#mark = welcome.run
    this.#open = new Set([leading.socket])
  }

  /**
   * Begins a run: opens the connection for requests and answers (the leading connection) outside the tunnel. If the
   * listener refuses the run, resolves with the refusal. If the connection fails, rejects with the kernel's error.
   */
  static async begin(paths: Both<PathAddresses>, port: number, inside: string): Promise<Run | Refusal> {
    const leading = new Leading(await connectTo(paths.outside, port, PATIENCE_MS))
    try {
      const welcome = await leading.ask({ wants: 'run', inside }, (line) => readRefusal(line) ?? readWelcome(line))
      if (!('refused' in welcome)) return new Run(paths, port, leading, welcome)
      leading.socket.destroy()
      return welcome
    } catch (error) {
      leading.socket.destroy()
      throw error
    }
  }

  close(): void {
    for (const socket of this.#open) socket.destroy()
  }

  /**
   * Opens the connection on which the round trips of a path are measured (the echo connection). Rejects with the
   * kernel's error, or with the reason why the listener refuses the connection.
   */
  async openEcho(path: PathName): Promise<void> {
    const socket = await this.#openTo(path, 'echo')
    socket.write(ECHO)
    const line = await readLine(socket, PATIENCE_MS)
    if (`${line}\n` !== ECHO) throw new Error(readRefusal(line)?.refused ?? 'it does not send the data back')
    this.#echoes.set(path, socket)
  }

  /**
   * Measures one round trip of a path in ms, on the path's echo connection. Returns undefined if that connection
   * failed.
   */
  async roundTrips(path: PathName): Promise<number | undefined> {
    const socket = this.#echoes.get(path)
    const start = performance.now()
    socket?.write(ECHO)
    try {
      if (socket) await readLine(socket, PATIENCE_MS)
    } catch {
      this.#echoes.delete(path)
    }
    return this.#echoes.has(path) ? performance.now() - start : undefined
  }

  /** Sends as much data as `streams` connections can carry in `seconds` seconds. */
  async tcp(path: PathName, streams: number, seconds: number): Promise<TcpSample> {
    await this.#leading.ask({ ask: 'tcp', streams, seconds }, ready)
    const opened = await Promise.allSettled(Array.from({ length: streams }, () => this.#openTo(path, 'stream')))
    const sockets = opened.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []))
    const work = busyClock()
    for (const socket of sockets) {
      const send = (): void => {
        while (socket.writable && socket.write(this.#filling));
      }
      socket.on('drain', send)
      send()
    }
    try {
      // Wait longer than the sample takes, because the listener decides when the sample ends, and only then reports how
      // many bytes arrived.
      const limitMs = seconds * 1000 + 3 * PATIENCE_MS
      const { bytes, seconds: took, busy } = await this.#leading.ask(undefined, readReceived, limitMs)
      return { bitsPerSecond: took > 0 ? (bytes * 8) / took : 0, busy: { here: work(), there: busy } }
    } finally {
      for (const socket of sockets) socket.resetAndDestroy()
    }
  }

  /** Sends datagrams of `bytes` bytes at the rate `bitsPerSecond` for `seconds` seconds. */
  async udp(path: PathName, seconds: number, bytes: number, bitsPerSecond: number): Promise<UdpSample> {
    const perSecond = bitsPerSecond / 8 / bytes
    const most = Math.min(LIMITS.datagrams, Math.max(1, Math.round(perSecond * seconds)))
    const first = this.#sentEver >>> 0
    await this.#leading.ask({ ask: 'udp', first, datagrams: most }, ready)
    const start = performance.now()
    const sent = await sendPaced(this.#paths[path], {
      port: this.#port,
      mark: this.#mark,
      first,
      most,
      perSecond,
      seconds,
      bytes,
      isOver: () => this.#leading.socket.destroyed,
    })
    const took = (performance.now() - start) / 1000
    this.#sentEver += most
    // Wait longer than the sample takes, because the listener answers only when no more datagrams arrive.
    const limitMs = seconds * 1000 + 3 * PATIENCE_MS
    const arrived = await this.#leading.ask({ ask: 'sent', datagrams: sent }, readArrived, limitMs)
    return { ...arrived, sent, seconds: took }
  }

  /** Ends the run. Returns how many packets the listener's host dropped; null if the listener does not know. */
  async end(): Promise<Counts | null> {
    return (await this.#leading.ask({ ask: 'end' }, readEnded)).drops
  }

  async #openTo(path: PathName, wants: 'stream' | 'echo'): Promise<Socket> {
    const socket = await connectTo(this.#paths[path], this.#port, PATIENCE_MS)
    this.#open.add(socket)
    socket.once('close', () => this.#open.delete(socket))
    socket.write(lineOf({ wants, run: this.#mark }))
    return socket
  }
}

type Welcome = NonNullable<ReturnType<typeof readWelcome>>

const ready = (line: string): true | undefined => isReady(line) || undefined

/** The leading connection of a run, over which the listener receives requests and sends answers. */
class Leading {
  readonly socket: Socket

  constructor(socket: Socket) {
    this.socket = socket
  }

  /**
   * Sends `request`, if there is one, and reads the next answer. Rejects with WeftError COMMAND if `read` does not
   * accept the answer.
   */
  async ask<Answer>(
    request: object | undefined,
    read: (line: string) => Answer | undefined,
    limitMs = PATIENCE_MS,
  ): Promise<Answer> {
    if (request) this.socket.write(lineOf(request))
    const line = await readLine(this.socket, limitMs).catch((error: unknown) => {
      throw new WeftError('COMMAND', `the listener is gone: ${messageOf(error)}`, {
        remedy: 'read the output of the listener on the other host, and try again',
        cause: error,
      })
    })
    const answer = read(line)
    if (answer !== undefined) return answer
    throw new WeftError('COMMAND', 'the program that listens there is not a weft bench of this version', {
      remedy: 'use the same version of weft on both hosts',
    })
  }
}

interface Paced {
  readonly port: number
  readonly mark: string
  readonly first: number
  readonly most: number
  readonly perSecond: number
  readonly seconds: number
  readonly bytes: number
  readonly isOver: () => boolean
}

/** Sends datagrams at an even rate. Resolves with the number of datagrams that the kernel accepted. */
async function sendPaced({ to, from }: PathAddresses, paced: Paced): Promise<number> {
  const { port, mark, first, most, perSecond, seconds, bytes, isOver } = paced
  const socket = createSocket(isIPv6(to) ? 'udp6' : 'udp4')
  socket.on('error', () => {}) // ICMP errors do not matter, because the listener counts what arrives
  try {
    if (from !== undefined) {
      socket.bind(0, from)
      await once(socket, 'listening')
    }
    socket.connect(port, to)
    await once(socket, 'connect')
    const buffers = Array.from({ length: DATAGRAM_BUFFERS }, () => randomBytes(bytes))
    let sent = 0
    const start = performance.now()
    let paid = start
    await new Promise<void>((resolve) => {
      const tick = (): void => {
        const now = performance.now()
        paid = Math.max(paid, now - MOST_BURST_MS)
        while (sent < most && paid < now && socket.getSendQueueCount() < DATAGRAM_BUFFERS / 2) {
          const buffer = buffers[sent % DATAGRAM_BUFFERS]
          if (!buffer) break
          writeDatagramHeader(buffer, mark, (first + sent) >>> 0)
          socket.send(buffer)
          sent++
          paid += 1000 / perSecond
        }
        if (sent < most && now - start < seconds * 1000 && !isOver()) setTimeout(tick, TICK_MS)
        else resolve()
      }
      tick()
    })
    // Do not count the datagrams that are still in the socket's queue, because closing the socket discards them.
    return sent - socket.getSendQueueCount()
  } finally {
    socket.close()
  }
}

/**
 * Takes all samples of a plan. Measures the round trips first, while the path is idle. Calls `report` with the name of
 * each step.
 */
export async function measure(
  run: Run,
  plan: Plan,
  bytes: number,
  report: (what: string) => void,
  signal: AbortSignal,
): Promise<Samples> {
  const roundTripsMs: Both<number[]> = { outside: [], inside: [] }
  const tcp: Both<TcpSample[]> = { outside: [], inside: [] }
  const udp: Both<UdpSample[]> = { outside: [], inside: [] }

  report('round trips')
  const until = performance.now() + Math.min(MOST_TRIPS_MS, plan.seconds * 1000)
  do {
    for (const path of PATHS) {
      await pause(signal, TRIP_PAUSE_MS)
      const took = await run.roundTrips(path)
      if (took !== undefined) roundTripsMs[path].push(took)
    }
  } while (performance.now() < until)

  const inPairs = async (what: string, sample: (path: PathName) => Promise<void>): Promise<void> => {
    for (let pair = 0; pair < plan.pairs; pair++)
      for (const path of orderOf(pair)) {
        report(`${what} ${path}, pair ${pair + 1} of ${plan.pairs}`)
        signal.throwIfAborted()
        await sample(path)
      }
  }
  // Take one sample per path and discard its result, because JavaScript and the path are slow at first.
  for (const path of PATHS) await run.tcp(path, plan.streams, Math.min(WARM_UP_S, plan.seconds))
  await inPairs('TCP', async (path) => void tcp[path].push(await run.tcp(path, plan.streams, plan.seconds)))
  const rateOf = (path: PathName): number => median(tcp[path].map(({ bitsPerSecond }) => bitsPerSecond)) ?? 0
  const rate = datagramRate(plan, { outside: rateOf('outside'), inside: rateOf('inside') })
  await inPairs('UDP', async (path) => void udp[path].push(await run.udp(path, plan.seconds, bytes, rate)))
  return { roundTripsMs, tcp, udp, datagramBytes: bytes }
}
