// run.ts - this end of `weft bench`: connects to a listener on both paths, sends, and hears from it what arrived.

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
import { connectTo, readLine, type Way } from './lines.ts'
import { datagramRate, orderOf, PATHS, type Both, type PathName, type Plan } from './plan.ts'
import { median, type Samples, type TcpSample, type UdpSample } from './result.ts'

/** The time that a connection, an answer or a byte that comes back may take. */
const PATIENCE_MS = 3_000
const WARM_UP_S = 0.3
/** One write of a stream. Random, since a way that packs what it carries is not to be flattered. */
const WRITE_BYTES = 256 * 1024
/** A request, and its answer: a line. */
const ECHO = '.\n'
/** Between two requests, so that all have gone to sleep in between, as on an idle host. */
const TRIP_PAUSE_MS = 10
const MOST_TRIPS_MS = 1_000
/** The least that a timer of Node.js waits, and so how often is looked how many datagrams are due. */
const TICK_MS = 1
/** A sender that is late by more than this does not catch up: such a burst would lose what an even sender does not. */
const MOST_BURST_MS = 3
/** Buffers in turn, each free again before its next turn as long as the kernel has taken what is older. */
const DATAGRAM_BUFFERS = 512

/** A run: the listener understood the connection, and let it in. */
export interface Run {
  readonly there: InUse | null
  /** A connection on a path whose bytes come back. Rejects with the kernel's error, or with why it is refused. */
  openEcho(path: PathName): Promise<void>
  roundTrips(path: PathName): Promise<number | undefined>
  tcp(path: PathName, streams: number, seconds: number): Promise<TcpSample>
  udp(path: PathName, seconds: number, bytes: number, bitsPerSecond: number): Promise<UdpSample>
  /** Ends the run, and returns what was dropped at the other end. */
  end(): Promise<Counts | null>
  close(): void
}

/** Begins a run, led from outside. A connection that is not made rejects with the kernel's error. */
export async function beginRun(ways: Both<Way>, port: number, inside: string): Promise<Run | Refusal> {
  const leading = await connectTo(ways.outside, port, PATIENCE_MS)
  const open = new Set<Socket>([leading])
  const ask = async <Answer>(
    request: object | undefined,
    read: (line: string) => Answer | undefined,
    limitMs = PATIENCE_MS,
  ): Promise<Answer> => {
    if (request) leading.write(lineOf(request))
    const line = await readLine(leading, limitMs).catch((error: unknown) => {
      throw new WeftError('COMMAND', `the other end of the bench is gone: ${messageOf(error)}`, {
        remedy: 'read what it prints there, and try again',
        cause: error,
      })
    })
    const answer = read(line)
    if (answer !== undefined) return answer
    throw new WeftError('COMMAND', 'the program that listens there does not understand this weft bench', {
      remedy: 'use the same version of weft on both hosts',
    })
  }
  const ready = (line: string): true | undefined => isReady(line) || undefined
  const close = (): void => {
    for (const socket of open) socket.destroy()
  }

  try {
    const welcome = await ask({ wants: 'run', inside }, (line) => readRefusal(line) ?? readWelcome(line))
    if ('refused' in welcome) {
      close()
      return welcome
    }
    const mark = welcome.run
    const echoes = new Map<PathName, Socket>()
    const filling = randomBytes(WRITE_BYTES)
    let sentEver = 0

    async function openTo(path: PathName, wants: 'stream' | 'echo'): Promise<Socket> {
      const socket = await connectTo(ways[path], port, PATIENCE_MS)
      open.add(socket)
      socket.once('close', () => open.delete(socket))
      socket.write(lineOf({ wants, run: mark }))
      return socket
    }

    return {
      there: welcome.inUse,
      close,
      async openEcho(path) {
        const socket = await openTo(path, 'echo')
        socket.write(ECHO)
        const line = await readLine(socket, PATIENCE_MS)
        if (`${line}\n` !== ECHO) throw new Error(readRefusal(line)?.refused ?? 'it does not send back what it gets')
        echoes.set(path, socket)
      },

      async roundTrips(path) {
        const socket = echoes.get(path)
        const start = performance.now()
        socket?.write(ECHO)
        try {
          if (socket) await readLine(socket, PATIENCE_MS)
        } catch {
          echoes.delete(path)
        }
        return echoes.has(path) ? performance.now() - start : undefined
      },

      async tcp(path, streams, seconds) {
        await ask({ ask: 'tcp', streams, seconds }, ready)
        const opened = await Promise.allSettled(Array.from({ length: streams }, () => openTo(path, 'stream')))
        const sockets = opened.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []))
        const work = busyClock()
        for (const socket of sockets) {
          const send = (): void => {
            while (socket.writable && socket.write(filling));
          }
          socket.on('drain', send)
          send()
        }
        try {
          // The listener says when it is over, and what it counted.
          const { bytes, seconds: took, busy } = await ask(undefined, readReceived, seconds * 1000 + 3 * PATIENCE_MS)
          return { bitsPerSecond: took > 0 ? (bytes * 8) / took : 0, busy: { here: work(), there: busy } }
        } finally {
          for (const socket of sockets) socket.resetAndDestroy()
        }
      },

      async udp(path, seconds, bytes, bitsPerSecond) {
        const perSecond = bitsPerSecond / 8 / bytes
        const most = Math.min(LIMITS.datagrams, Math.max(1, Math.round(perSecond * seconds)))
        const first = sentEver >>> 0
        await ask({ ask: 'udp', first, datagrams: most }, ready)
        const start = performance.now()
        const sent = await sendPaced(ways[path], {
          port,
          mark,
          first,
          most,
          perSecond,
          seconds,
          bytes,
          isOver: () => leading.destroyed,
        })
        const took = (performance.now() - start) / 1000
        sentEver += most
        // The listener waits as long as datagrams come in.
        const arrived = await ask({ ask: 'sent', datagrams: sent }, readArrived, seconds * 1000 + 3 * PATIENCE_MS)
        return { ...arrived, sent, seconds: took }
      },

      end: async () => (await ask({ ask: 'end' }, readEnded)).drops,
    }
  } catch (error) {
    close()
    throw error
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
  /** True when nobody wants to know any more. */
  readonly isOver: () => boolean
}

/** Sends datagrams evenly for so long; resolves with how many the kernel took. */
async function sendPaced({ to, from }: Way, paced: Paced): Promise<number> {
  const { port, mark, first, most, perSecond, seconds, bytes, isOver } = paced
  const socket = createSocket(isIPv6(to) ? 'udp6' : 'udp4')
  socket.on('error', () => {}) // the kernel reports that nobody listens; only what arrives counts
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
    // Datagrams that wait in the queue still go with the socket.
    return sent - socket.getSendQueueCount()
  } finally {
    socket.close()
  }
}

/** All samples of a plan: the round trips first, while nothing else is under way. `tell` hears what comes next. */
export async function measure(
  run: Run,
  plan: Plan,
  bytes: number,
  tell: (what: string) => void,
  signal: AbortSignal,
): Promise<Samples> {
  const roundTripsMs: Both<number[]> = { outside: [], inside: [] }
  const tcp: Both<TcpSample[]> = { outside: [], inside: [] }
  const udp: Both<UdpSample[]> = { outside: [], inside: [] }

  tell('round trips')
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
        tell(`${what} ${path}, pair ${pair + 1} of ${plan.pairs}`)
        signal.throwIfAborted()
        await sample(path)
      }
  }
  // JavaScript is slower at first, and so is a path: what would be the first sample of each is thrown away.
  for (const path of PATHS) await run.tcp(path, plan.streams, Math.min(WARM_UP_S, plan.seconds))
  await inPairs('TCP', async (path) => void tcp[path].push(await run.tcp(path, plan.streams, plan.seconds)))
  const rateOf = (path: PathName): number => median(tcp[path].map(({ bitsPerSecond }) => bitsPerSecond)) ?? 0
  const rate = datagramRate(plan, { outside: rateOf('outside'), inside: rateOf('inside') })
  await inPairs('UDP', async (path) => void udp[path].push(await run.udp(path, plan.seconds, bytes, rate)))
  return { roundTripsMs, tcp, udp, datagramBytes: bytes }
}
