// kernel-way-proof.ts - the test connection (proof) to a peer: a TCP transfer whose digest the peer returns. The
// transfer shows that the eBPF programs of both hosts carry packets undamaged.
//
// Each node with a FastPath listens on its tunnel address, on the TCP port that has the number of the backend's UDP
// port. A node that tests a peer connects to the peer and sends a line, and then BYTES random bytes:
//
//   weft-proof 1 BYTES\n
//
// The peer answers with one line: the digest in hexadecimal, and the number of packets that its eBPF programs received
// from the node during the transfer:
//
//   SHA256 CARRIED\n
//
// The connection stays open. The client sends `?` at intervals, and the server answers `!`. Before the server's eBPF
// programs are detached, the server sends `bye`. A killed process sends no `bye`, and its eBPF programs continue for a
// minute.

import { createHash, randomBytes } from 'node:crypto'
import { createServer, connect, type Server, type Socket } from 'node:net'

/**
 * The number of random bytes of a test connection. The sender's kernel puts these bytes into superpackets, so the test
 * also covers the segments of superpackets.
 */
export const PROOF_BYTES = 256 << 10
const MOST_BYTES = 1 << 20
/** A test connection that takes longer than this time, in ms, has failed. */
const PROOF_MS = 5_000
const MOST_CONNECTIONS = 1_024
/** The maximum number of connections from one peer, so that one peer cannot use up MOST_CONNECTIONS. */
const MOST_OF_PEER = 8
/** The time in ms after which the server closes a connection on which the client sends no `?`. */
const UNASKED_MS = 60_000
const QUESTION = '?'.codePointAt(0) ?? 0
const HEAD = /^weft-proof 1 (\d{1,7})\n/
const MOST_HEAD_BYTES = 32
/**
 * The maximum length in bytes of a peer's line, and the maximum number of bytes that may wait to be sent on a
 * connection.
 */
const MOST_LINE_BYTES = 256

interface ProofServerOptions {
  /** Returns true if the address is the tunnel address of a peer, so that the server may serve the connection. */
  readonly isPeer: (address: string) => boolean
  /** Returns the number of packets that the eBPF programs have received from the peer with this tunnel address. */
  readonly carriedFrom: (address: string) => number
  /** Called with each `?` of the peer with this tunnel address, whose test of this host has succeeded. */
  readonly hasTested: (address: string) => void
}

/** Serves the test connections of peers. */
export class ProofServer {
  readonly #options: ProofServerOptions
  readonly #servers: Server[] = []
  readonly #open = new Set<Socket>()

  constructor(options: ProofServerOptions) {
    this.#options = options
  }

  /** Listens on an address of this host. Rejects with the error of listen(2). */
  async listen(host: string, port: number): Promise<void> {
    const server = createServer((socket) => this.#serve(socket))
    server.maxConnections = MOST_CONNECTIONS
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen({ host, port }, () => {
        server.off('error', reject)
        server.on('error', () => {})
        resolve()
      })
    })
    server.unref()
    this.#servers.push(server)
  }

  /**
   * Informs the connected peers by `bye` that this host's eBPF programs will no longer carry packets, and closes the
   * connections.
   */
  leave(): void {
    for (const socket of this.#open) socket.end('bye\n')
    this.#open.clear()
    this.close()
  }

  /**
   * Closes the test connections without sending `bye`. So the peers' eBPF programs continue to send packets to this
   * host.
   */
  close(): void {
    for (const server of this.#servers.splice(0)) server.close()
    for (const socket of this.#open) socket.destroy()
    this.#open.clear()
  }

  #serve(socket: Socket): void {
    const address = socket.remoteAddress ?? ''
    socket.on('error', () => {})
    const others = [...this.#open].filter(({ remoteAddress }) => remoteAddress === address).length
    if (others >= MOST_OF_PEER || !this.#options.isPeer(address)) return void socket.destroy()
    this.#open.add(socket)
    socket.on('close', () => this.#open.delete(socket))
    socket.setTimeout(PROOF_MS, () => socket.destroy())
    const before = this.#options.carriedFrom(address)
    const hash = createHash('sha256')
    let head = Buffer.alloc(0)
    let left: number | undefined
    socket.on('data', (chunk: Buffer) => {
      let bytes = chunk
      if (left === undefined) {
        head = Buffer.concat([head, chunk])
        const end = head.indexOf('\n') + 1
        const found = end > 0 && end <= MOST_HEAD_BYTES ? HEAD.exec(head.toString('latin1', 0, end)) : null
        left = Number(found?.[1] ?? 0)
        if (end === 0 && head.length < MOST_HEAD_BYTES) return void (left = undefined)
        if (left === 0 || left > MOST_BYTES) return void socket.destroy()
        bytes = head.subarray(end)
      }
      if (left > 0) {
        const data = bytes.subarray(0, left)
        hash.update(data)
        left -= data.length
        bytes = bytes.subarray(data.length)
        if (left > 0) return
        socket.setTimeout(UNASKED_MS)
        const carried = this.#options.carriedFrom(address) - before
        socket.write(`${hash.digest('hex')} ${Math.max(carried, 0)}\n`)
      }
      // Send only one `!` for all `?` of a chunk, so that a peer that does not read the answers cannot fill this
      // process's memory.
      if (!bytes.includes(QUESTION)) return
      if (socket.writableLength > MOST_LINE_BYTES) return void socket.destroy()
      this.#options.hasTested(address) // only a client whose test succeeded sends `?`
      socket.write('!\n')
    })
  }
}

/**
 * Why a test connection failed. `refused`: no process listens. `silent`: no answer came within PROOF_MS. `wrong`: the
 * bytes arrived damaged. `not-carried`: the peer's eBPF programs received none of the packets. `left`: the peer sent
 * `bye`.
 */
export type ProofFailure = 'refused' | 'silent' | 'wrong' | 'not-carried' | 'left'

interface ProofTarget {
  readonly host: string
  readonly port: number
  readonly localAddress: string
  /** Called when the peer sends `bye`, because its eBPF programs will no longer carry packets. */
  readonly left: () => void
}

/**
 * The client's end of a test connection. After the test, the connection shows that the peer's eBPF programs still carry
 * packets.
 */
export class ProofConnection {
  readonly #socket: Socket
  readonly #proven: Promise<undefined | ProofFailure>
  #answeredAt = 0
  #isClosed = false

  constructor({ host, port, localAddress, left }: ProofTarget, now: () => number = () => performance.now()) {
    const data = randomBytes(PROOF_BYTES)
    const digest = createHash('sha256').update(data).digest('hex')
    const socket = connect({ host, port, localAddress, noDelay: true })
    this.#socket = socket
    socket.unref()
    socket.on('connect', () => {
      socket.write(`weft-proof 1 ${data.length}\n`)
      socket.write(data)
    })
    let text = ''
    this.#proven = new Promise((resolve) => {
      const timer = setTimeout(() => end('silent'), PROOF_MS)
      timer.unref()
      const end = (failure?: ProofFailure): void => {
        clearTimeout(timer)
        if (failure) this.close()
        resolve(failure)
      }
      socket.on('error', (error: NodeJS.ErrnoException) => end(error.code === 'ECONNREFUSED' ? 'refused' : 'silent'))
      socket.on('close', () => {
        this.#isClosed = true
        end('silent')
      })
      socket.on('data', (chunk: Buffer) => {
        text += chunk.toString('latin1')
        const lines = text.split('\n')
        text = lines.pop() ?? ''
        if (text.length > MOST_LINE_BYTES) return end('wrong')
        for (const line of lines) {
          this.#answeredAt = now()
          if (line === 'bye') {
            end('left')
            left()
          } else if (line !== '!') {
            end(verdictOn(line, digest))
          }
        }
      })
    })
  }

  /**
   * Resolves with the reason if the test fails. Resolves with undefined if the bytes arrived and the peer's eBPF
   * programs received the packets.
   */
  get proven(): Promise<undefined | ProofFailure> {
    return this.#proven
  }

  /** The time of the peer's last answer, in ms of the clock `now`. */
  get answeredAt(): number {
    return this.#answeredAt
  }

  get isClosed(): boolean {
    return this.#isClosed
  }

  /** Sends a `?`, which a running peer answers. */
  ask(): void {
    if (!this.#isClosed && this.#socket.writableLength < MOST_LINE_BYTES) this.#socket.write('?')
  }

  close(): void {
    this.#isClosed = true
    this.#socket.destroy()
  }
}

function verdictOn(line: string, digest: string): ProofFailure | undefined {
  const [got = '', carried = ''] = line.split(' ')
  // The comparison needs no constant time, because only a peer that received the bytes can know the digest.
  if (got !== digest) return 'wrong'
  return Number(carried) > 0 ? undefined : 'not-carried'
}
