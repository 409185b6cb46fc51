// listener.ts - the other end of `weft bench`: reads what one run at a time sends it, throws it away, and says how much it was.

import { randomBytes } from 'node:crypto'
import { createSocket, type Socket as Datagrams } from 'node:dgram'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import { messageOf, WeftError } from '../../base/errors.ts'
import { createBell } from '../../host/bell.ts'
import { busyClock } from './busy-clock.ts'
import {
  LIMITS,
  lineOf,
  readDatagramNumber,
  readGreeting,
  readRequest,
  type Arrived,
  type Counts,
  type Greeting,
  type InUse,
  type Received,
  type Request,
} from './conversation.ts'
import { readLine } from './lines.ts'
import { increase } from './result.ts'

/** Facts about this host, as far as a weftd tells; null when none does. */
interface Here {
  readonly inUse: InUse
  readonly drops: Counts
}

export interface ListenerOptions {
  readonly port: number
  readonly idleMs: number
  /** The reason why a host that comes from there, and will come by `inside` too, may not; undefined when it may. */
  refusal: (address: string, inside: string) => Promise<string | undefined>
  /** The facts about this host that concern the one at `address`, and what comes from it by `inside`. */
  here: (address: string, inside: string) => Promise<Here | null>
  /** A line for the operator. */
  say: (line: string) => void
}

/** The time that a connection has to say what it is for, and a leading one from one request to the next. */
const GREETING_MS = 2_000
const REQUEST_MS = (LIMITS.seconds + 30) * 1000
/** The time after which an answer is waited for no longer. */
const PATIENCE_MS = 3_000
/** When no datagram has come for so long after all were sent, none is under way any more. */
const STRAGGLERS_MS = 300
/** Each is said once, so that nobody fills the terminal. */
const MOST_REFUSED = 100
/**
 * The buffer for bursts that come while JavaScript does something else; the kernel gives as much of it as
 * net.core.rmem_max lets it.
 */
const RECEIVE_BUFFER_BYTES = 4 * 2 ** 20

interface Run {
  readonly mark: string
  /** The addresses that its connections and datagrams come from. */
  readonly addresses: ReadonlySet<string>
  readonly sockets: Set<Socket>
  onStream: (socket: Socket) => void
  onDatagram: (number: number) => void
}

/** Listens until nobody has come for so long. Rejects with the signal's reason; throws WeftError PORT_IN_USE, or PERMISSION. */
export async function listen(options: ListenerOptions, signal: AbortSignal): Promise<void> {
  const { port, idleMs } = options
  const now: { run: Run | undefined } = { run: undefined }
  /** Rings when a run begins or ends. */
  const news = createBell()
  const refused = new Set<string>()
  const connections = new Set<Socket>()
  const ears = HOSTS.map(earAt)

  /** Rejects when it does not say what it wants. */
  async function welcome(socket: Socket): Promise<void> {
    const address = socket.remoteAddress ?? ''
    const greeting = readGreeting(await readLine(socket, GREETING_MS))
    // Nothing is waited for between the look whether another run is under way and the beginning of this one.
    const why = (await refusalOf(address, greeting)) ?? busyWith(greeting)
    if (why !== undefined || !greeting) {
      socket.write(lineOf({ refused: why }))
      socket.destroySoon()
      const line = `${address} was refused: ${why}`
      if (!refused.has(line) && refused.size < MOST_REFUSED) {
        refused.add(line)
        options.say(line)
      }
    } else if (greeting.wants === 'run') await lead(socket, address, greeting.inside)
    else if (now.run) join(now.run, socket, greeting.wants)
  }

  async function refusalOf(address: string, greeting: Greeting | undefined): Promise<string | undefined> {
    if (!greeting) return 'it speaks no version of weft bench that this one knows'
    const { run } = now
    if (greeting.wants !== 'run') {
      return run?.mark === greeting.run && run.addresses.has(address)
        ? undefined
        : `what comes from ${address} belongs to no run`
    }
    return options.refusal(address, greeting.inside)
  }

  const busyWith = (greeting: Greeting | undefined): string | undefined =>
    greeting?.wants === 'run' && now.run ? `a run from ${[...now.run.addresses][0]} is under way` : undefined

  async function lead(socket: Socket, address: string, inside: string): Promise<void> {
    const run: Run = {
      mark: randomBytes(8).toString('hex'),
      addresses: new Set([address, inside]),
      sockets: new Set(),
      onStream: () => {},
      onDatagram: () => {},
    }
    now.run = run
    news.ring()
    options.say(`${address} measures`)
    try {
      await serve(run, socket, inside, options)
      options.say(`${address} has ended`)
    } catch (error) {
      if (!signal.aborted) options.say(`${address} went away: ${messageOf(error)}`)
    } finally {
      for (const each of run.sockets) each.destroy()
      socket.destroySoon()
      now.run = undefined
      news.ring()
    }
  }

  for (const { server, datagrams } of ears) {
    server.on('connection', (socket) => {
      connections.add(socket)
      socket.on('error', () => {}) // the reader is told
      socket.once('close', () => connections.delete(socket))
      welcome(socket).catch(() => socket.destroy())
    })
    datagrams.on('message', (datagram, { address }) => {
      const { run } = now
      const number = run?.addresses.has(address) ? readDatagramNumber(datagram, run.mark) : undefined
      if (number !== undefined) run?.onDatagram(number)
    })
  }
  try {
    for (const ear of ears) await bind(ear, port)
    for (;;) {
      const rang = await news.wait(signal, now.run ? undefined : idleMs)
      if (!rang && !now.run) return
    }
  } finally {
    for (const { server } of ears) server.close()
    for (const socket of connections) socket.destroy()
    for (const { datagrams } of ears) datagrams.close()
  }
}

/** All addresses of each family. IPv6 has sockets of its own, so that IPv4 addresses look alike on every host. */
const HOSTS = ['0.0.0.0', '::'] as const

/** What hears the connections and datagrams of one family. */
interface Ear {
  readonly host: (typeof HOSTS)[number]
  readonly server: Server
  readonly datagrams: Datagrams
}

function earAt(host: Ear['host']): Ear {
  const server = createServer({ noDelay: true })
  server.maxConnections = LIMITS.streams + 16
  const kind = host === '::' ? ({ type: 'udp6', ipv6Only: true } as const) : ({ type: 'udp4' } as const)
  return { host, server, datagrams: createSocket({ ...kind, recvBufferSize: RECEIVE_BUFFER_BYTES }) }
}

async function bind({ host, server, datagrams }: Ear, port: number): Promise<void> {
  try {
    server.listen({ port, host, ipv6Only: true })
    await once(server, 'listening')
    datagrams.bind(port, host)
    await once(datagrams, 'listening')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    // A kernel that was booted without IPv6 has no such socket; nobody can come by it either.
    if (host === '::' && code === 'EAFNOSUPPORT') return
    const isTaken = code === 'EADDRINUSE'
    throw new WeftError(isTaken ? 'PORT_IN_USE' : 'PERMISSION', `cannot listen at port ${port}: ${messageOf(error)}`, {
      remedy: 'give another --port here and on the other host',
      cause: error,
    })
  }
}

/** A connection that carries what is measured. */
function join(run: Run, socket: Socket, what: 'stream' | 'echo'): void {
  run.sockets.add(socket)
  socket.once('close', () => run.sockets.delete(socket))
  if (what === 'echo') socket.pipe(socket)
  else run.onStream(socket)
}

/** Answers the leading connection until it ends the run. Rejects when it goes away. */
async function serve(run: Run, leading: Socket, inside: string, options: ListenerOptions): Promise<void> {
  const address = leading.remoteAddress ?? ''
  const before = await options.here(address, inside)
  const say = (message: object): void => void leading.write(lineOf(message))
  const next = async (): Promise<Request> => {
    const request = readRequest(await readLine(leading, REQUEST_MS))
    if (request) return request
    throw new Error('it asks for more than is allowed')
  }
  say({ run: run.mark, inUse: before?.inUse ?? null })
  for (;;) {
    const request = await next()
    switch (request.ask) {
      case 'tcp': {
        const received = countStreams(run, request.streams, request.seconds)
        say({ ready: true })
        say(await received)
        break
      }
      case 'udp': {
        const counting = countDatagrams(run, request.first, request.datagrams, options.port)
        say({ ready: true })
        const sent = await next()
        if (sent.ask !== 'sent') throw new Error('it asks for something else in between')
        say(await counting.end(sent.datagrams))
        break
      }
      case 'sent':
        throw new Error('it asks about something that was not started')
      case 'end': {
        const after = before && (await options.here(address, inside))
        say({ drops: after ? increase(before.drops, after.drops) : null })
        return
      }
    }
  }
}

/** Counts what so many streams bring within so many seconds from the first byte on, and closes them then. */
function countStreams(run: Run, streams: number, seconds: number): Promise<Received> {
  return new Promise((resolve) => {
    const own = new Set<Socket>()
    let bytes = 0
    let closed = 0
    let isOver = false
    let startedAt: number | undefined
    let work = busyClock()
    const end = (): void => {
      if (isOver) return
      isOver = true
      clearTimeout(timer)
      run.onStream = () => {}
      const took = startedAt === undefined ? 0 : (performance.now() - startedAt) / 1000
      const busy = startedAt === undefined ? 0 : work()
      // Data that is still on its way is of no use, and would disturb the next measurement.
      for (const socket of own) socket.resetAndDestroy()
      resolve({ bytes, seconds: took, busy })
    }
    let timer = setTimeout(end, seconds * 1000 + PATIENCE_MS)
    run.onStream = (socket) => {
      own.add(socket)
      socket.on('data', (part: Buffer) => {
        bytes += part.length
        if (startedAt !== undefined) return
        startedAt = performance.now()
        work = busyClock()
        clearTimeout(timer)
        timer = setTimeout(end, seconds * 1000)
      })
      socket.once('close', () => {
        if (++closed === streams) end()
      })
      socket.resume()
    }
  })
}

/** Counts the datagrams of a sample, each once. */
function countDatagrams(run: Run, first: number, most: number, port: number): { end(sent: number): Promise<Arrived> } {
  const seen = new Uint8Array((most >> 3) + 1)
  const full = dropsOfSockets(port)
  let [datagrams, reordered, highest] = [0, 0, -1]
  let onNews = (): void => {}
  run.onDatagram = (number) => {
    const at = (number - first) >>> 0 // beyond 2^32 they begin anew
    if (at >= most) return
    const bit = 1 << (at & 7)
    const byte = seen[at >> 3] ?? 0
    if (byte & bit) return
    seen[at >> 3] = byte | bit
    datagrams++
    if (at < highest) reordered++
    else highest = at
    onNews()
  }
  return {
    async end(sent) {
      await new Promise<void>((resolve) => {
        let timer: NodeJS.Timeout | undefined
        // A timer that is late comes before what has arrived meanwhile and was not read.
        const look = (before: number): void => {
          const now = datagrams
          if (now >= sent || now === before) resolve()
          else timer = setTimeout(() => setImmediate(look, now), STRAGGLERS_MS)
        }
        onNews = () => {
          if (datagrams < sent) return
          clearTimeout(timer)
          resolve()
        }
        look(-1)
      })
      run.onDatagram = () => {}
      return { datagrams, reordered, overflowed: dropsOfSockets(port) - full }
    },
  }
}

/**
 * The number of datagrams that the sockets at this port had no room for: the last column of /proc/net/udp
 * (net/ipv4/udp.c, udp4_format_sock), and so of IPv6 (net/ipv6/datagram.c, __ip6_dgram_sock_seq_show).
 */
function dropsOfSockets(port: number): number {
  const own = `:${port.toString(16).toUpperCase().padStart(4, '0')}`
  const dropsIn = (table: string): number => {
    if (!existsSync(table)) return 0 // of a kernel without IPv6
    const lines = readFileSync(table, 'utf8').split('\n')
    const columns = lines.map((line) => line.trim().split(/\s+/)).find(([, local]) => local?.endsWith(own))
    return Number(columns?.at(-1) ?? 0)
  }
  return dropsIn('/proc/net/udp') + dropsIn('/proc/net/udp6')
}
