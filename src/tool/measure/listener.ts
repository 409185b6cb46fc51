// listener.ts - `weft bench --listen`: receives and discards the data of one run at a time, and reports how much data
// arrived.

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

/** The facts about this host that its own weftd reports. */
interface Here {
  readonly inUse: InUse
  readonly drops: Counts
}

export interface ListenerOptions {
  readonly port: number
  readonly idleMs: number
  /**
   * Returns why a remote host may not use this listener; undefined if it may. `address` is the remote host's public
   * address, and `inside` its overlay address.
   */
  refusal: (address: string, inside: string) => Promise<string | undefined>
  /**
   * Returns the facts about this host that concern packets from the measuring host, which has these public and overlay
   * addresses; null if no weftd answers on this host.
   */
  here: (address: string, inside: string) => Promise<Here | null>
  say: (line: string) => void
}

/** How long in ms a new connection may take to send its first line. */
const GREETING_MS = 2_000
/** How long, in ms, the listener waits for the next request of a run. */
const REQUEST_MS = (LIMITS.seconds + 30) * 1000
/** How long in ms the listener waits for the first byte of a stream. */
const PATIENCE_MS = 3_000
/**
 * The pause in ms between two datagrams after which the listener assumes that no more datagrams arrive. It counts only
 * after the sender has reported that it has sent everything.
 */
const STRAGGLERS_MS = 300
/** The maximum number of different refusals that the listener prints, so that other hosts cannot flood the terminal. */
const MOST_REFUSED = 100
/**
 * The requested size of the UDP receive buffer in bytes. The buffer holds datagrams that arrive while JavaScript is
 * busy. The kernel reduces the size to net.core.rmem_max.
 */
const RECEIVE_BUFFER_BYTES = 4 * 2 ** 20

interface Run {
  readonly mark: string
  /**
   * The addresses of the measuring host, outside and inside the tunnel. Only connections and datagrams from these
   * addresses belong to the run.
   */
  readonly addresses: ReadonlySet<string>
  readonly sockets: Set<Socket>
  onStream: (socket: Socket) => void
  onDatagram: (number: number) => void
}

/**
 * Serves runs until none has begun for `idleMs` milliseconds. Rejects with the signal's reason, or with WeftError
 * PORT_IN_USE or PERMISSION.
 */
export async function listen(options: ListenerOptions, signal: AbortSignal): Promise<void> {
  const { port, idleMs } = options
  const now: { run: Run | undefined } = { run: undefined }
  const changed = createBell()
  const refused = new Set<string>()
  const connections = new Set<Socket>()
  const endpoints = HOSTS.map(endpointAt)

  /**
   * Reads the first line of a new connection, which says what the connection is for, and handles the connection
   * accordingly. Rejects if the line does not arrive within GREETING_MS.
   */
  async function welcome(socket: Socket): Promise<void> {
    const address = socket.remoteAddress ?? ''
    const greeting = readGreeting(await readLine(socket, GREETING_MS))
    // Check for another run (`busyWith`) only after `refusalOf` has resolved. Between this check and the start of the
    // run there is no `await`, so that no other run can begin in the meantime.
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
    if (!greeting) return 'its version of weft bench is not known here'
    const { run } = now
    if (greeting.wants !== 'run') {
      return run?.mark === greeting.run && run.addresses.has(address)
        ? undefined
        : `the connection from ${address} belongs to no run`
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
    changed.ring()
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
      changed.ring()
    }
  }

  for (const { server, datagrams } of endpoints) {
    server.on('connection', (socket) => {
      connections.add(socket)
      socket.on('error', () => {}) // the socket's readers also get the error
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
    for (const endpoint of endpoints) await bind(endpoint, port)
    for (;;) {
      const rang = await changed.wait(signal, now.run ? undefined : idleMs)
      if (!rang && !now.run) return
    }
  } finally {
    for (const { server } of endpoints) server.close()
    for (const socket of connections) socket.destroy()
    for (const { datagrams } of endpoints) datagrams.close()
  }
}

/**
 * The wildcard address of each family. The IPv6 socket is IPv6-only, so that an IPv4 client's address never appears as
 * `::ffff:192.0.2.1`.
 */
const HOSTS = ['0.0.0.0', '::'] as const

interface Endpoint {
  readonly host: (typeof HOSTS)[number]
  readonly server: Server
  readonly datagrams: Datagrams
}

function endpointAt(host: Endpoint['host']): Endpoint {
  const server = createServer({ noDelay: true })
  server.maxConnections = LIMITS.streams + 16
  const kind = host === '::' ? ({ type: 'udp6', ipv6Only: true } as const) : ({ type: 'udp4' } as const)
  return { host, server, datagrams: createSocket({ ...kind, recvBufferSize: RECEIVE_BUFFER_BYTES }) }
}

async function bind({ host, server, datagrams }: Endpoint, port: number): Promise<void> {
  try {
    server.listen({ port, host, ipv6Only: true })
    await once(server, 'listening')
    datagrams.bind(port, host)
    await once(datagrams, 'listening')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    // A kernel without IPv6 cannot open the IPv6 socket. Ignore the error, because no host can connect over IPv6 to
    // this kernel.
    if (host === '::' && code === 'EAFNOSUPPORT') return
    const isTaken = code === 'EADDRINUSE'
    throw new WeftError(isTaken ? 'PORT_IN_USE' : 'PERMISSION', `cannot listen on port ${port}: ${messageOf(error)}`, {
      remedy: 'give another --port here and on the other host',
      cause: error,
    })
  }
}

function join(run: Run, socket: Socket, what: 'stream' | 'echo'): void {
  run.sockets.add(socket)
  socket.once('close', () => run.sockets.delete(socket))
  if (what === 'echo') socket.pipe(socket)
  else run.onStream(socket)
}

/**
 * Answers the requests of a run, which arrive on its leading connection, until a request ends the run. Rejects if the
 * connection breaks.
 */
async function serve(run: Run, leading: Socket, inside: string, options: ListenerOptions): Promise<void> {
  const address = leading.remoteAddress ?? ''
  const before = await options.here(address, inside)
  const say = (message: object): void => void leading.write(lineOf(message))
  const next = async (): Promise<Request> => {
    const request = readRequest(await readLine(leading, REQUEST_MS))
    if (request) return request
    throw new Error('it sent an invalid request')
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
        if (sent.ask !== 'sent') throw new Error('it sent another request before this one was done')
        say(await counting.end(sent.datagrams))
        break
      }
      case 'sent':
        throw new Error('it ended a sample that was not started')
      case 'end': {
        const after = before && (await options.here(address, inside))
        say({ drops: after ? increase(before.drops, after.drops) : null })
        return
      }
    }
  }
}

/**
 * Counts the bytes that arrive on `streams` streams in the `seconds` seconds after the first byte. Then closes the
 * streams.
 */
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
      // Reset the connections, because data that is still in flight would disturb the next sample.
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

/** Counts the datagrams of one sample. A datagram that arrives twice counts once. */
function countDatagrams(run: Run, first: number, most: number, port: number): { end(sent: number): Promise<Arrived> } {
  const seen = new Uint8Array((most >> 3) + 1)
  const full = dropsOfSockets(port)
  let [datagrams, reordered, highest] = [0, 0, -1]
  let onArrival = (): void => {}
  run.onDatagram = (number) => {
    const at = (number - first) >>> 0 // numbers wrap around at 2^32
    if (at >= most) return
    const bit = 1 << (at & 7)
    const byte = seen[at >> 3] ?? 0
    if (byte & bit) return
    seen[at >> 3] = byte | bit
    datagrams++
    if (at < highest) reordered++
    else highest = at
    onArrival()
  }
  return {
    async end(sent) {
      await new Promise<void>((resolve) => {
        let timer: NodeJS.Timeout | undefined
        // A delayed timer may fire before Node.js has read datagrams that already arrived. setImmediate lets Node.js
        // read them before the next check.
        const look = (before: number): void => {
          const now = datagrams
          if (now >= sent || now === before) resolve()
          else timer = setTimeout(() => setImmediate(look, now), STRAGGLERS_MS)
        }
        onArrival = () => {
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
 * Returns how many datagrams the kernel discarded at a port because the socket buffer was full: the last column of
 * /proc/net/udp (net/ipv4/udp.c, udp4_format_sock) and of /proc/net/udp6 (net/ipv6/datagram.c,
 * __ip6_dgram_sock_seq_show).
 */
function dropsOfSockets(port: number): number {
  const own = `:${port.toString(16).toUpperCase().padStart(4, '0')}`
  const dropsIn = (table: string): number => {
    if (!existsSync(table)) return 0 // a kernel without IPv6
    const lines = readFileSync(table, 'utf8').split('\n')
    const columns = lines.map((line) => line.trim().split(/\s+/)).find(([, local]) => local?.endsWith(own))
    return Number(columns?.at(-1) ?? 0)
  }
  return dropsIn('/proc/net/udp') + dropsIn('/proc/net/udp6')
}
