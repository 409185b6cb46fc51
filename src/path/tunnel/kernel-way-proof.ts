// kernel-way-proof.ts - the proof that the kernel's way to a peer works: a TCP transfer whose digest the peer returns.
//
// Each node with a FastPath listens on its tunnel address, on the TCP port that has the number of the backend's UDP port. The node that
// wants to promote a peer connects to it and sends:
//
//   weft-proof 1 BYTES\n     and then BYTES random bytes. The peer answers with one line:
//   SHA256 CARRIED\n         the digest in hexadecimal, and how many packets its kernel took out of datagrams meanwhile.
//
// The connection stays open. The client sends `?` now and then, and the server answers `!`. If the server's kernel stops to take packets
// from datagrams, the server sends `bye` first. A server that dies sends nothing: its kernel continues for a minute.

import { createHash, randomBytes } from 'node:crypto'
import { createServer, connect, type Server, type Socket } from 'node:net'

/** The number of bytes of a proof. A sender's kernel makes superpackets of them, whose segments the proof tests too. */
export const PROOF_BYTES = 256 << 10
const MOST_BYTES = 1 << 20
/** The time in ms in which a proof must be complete. */
const PROOF_MS = 5_000
const MOST_CONNECTIONS = 1_024
/** The maximum number of connections from one peer, so that a peer cannot take the connections of all others. */
const MOST_OF_PEER = 8
/** The time in ms after which the server closes a connection on which the client asks nothing. */
const UNASKED_MS = 60_000
const QUESTION = '?'.codePointAt(0) ?? 0
const HEAD = /^weft-proof 1 (\d{1,7})\n/
const MOST_HEAD_BYTES = 32
/** The maximum number of bytes that a peer may send between two lines. */
const MOST_LINE_BYTES = 256

interface ProofServerOptions {
  /** True if a connection from this address may be served: it is a peer's tunnel address. */
  readonly isPeer: (address: string) => boolean
  /** The number of packets that the kernel has carried from the peer with this tunnel address. */
  readonly carriedFrom: (address: string) => number
}

/** Answers the proofs of peers. */
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

  /** Tells the connected peers that this host's kernel will no longer carry packets, and closes. */
  leave(): void {
    for (const socket of this.#open) socket.end('bye\n')
    this.#open.clear()
    this.close()
  }

  /** Closes without a word, so that the peers continue to send in the kernel's way. */
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
      // One answer for all questions of a chunk, so that a peer that does not read cannot fill memory.
      if (!bytes.includes(QUESTION)) return
      if (socket.writableLength > MOST_LINE_BYTES) return void socket.destroy()
      socket.write('!\n')
    })
  }
}

/** Why a proof failed. `refused`: no process listens. `silent`: no answer came in time. `wrong`: the bytes arrived damaged. */
export type ProofFailure = 'refused' | 'silent' | 'wrong' | 'not-carried' | 'left'

interface ProofTarget {
  readonly host: string
  readonly port: number
  readonly localAddress: string
}

/** The client's end of a proof, whose connection then shows that the peer's kernel still carries packets. */
export class ProofConnection {
  readonly #socket: Socket
  readonly #proven: Promise<undefined | ProofFailure>
  #answeredAt = 0
  #hasLeft = false
  #isClosed = false

  constructor({ host, port, localAddress }: ProofTarget, now: () => number = () => performance.now()) {
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
            this.#hasLeft = true
            end('left')
          } else if (line !== '!') {
            end(verdictOn(line, digest))
          }
        }
      })
    })
  }

  /** Resolves with the reason of a failure; with undefined if the bytes arrived, and the peer's kernel took them out of datagrams. */
  get proven(): Promise<undefined | ProofFailure> {
    return this.#proven
  }

  /** When the peer answered last, by the caller's clock. */
  get answeredAt(): number {
    return this.#answeredAt
  }

  /** True if the peer has said that its kernel no longer carries packets. */
  get hasLeft(): boolean {
    return this.#hasLeft
  }

  get isClosed(): boolean {
    return this.#isClosed
  }

  /** Asks the peer whether it is there. */
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
  // A comparison may take any time: only a peer that received the bytes can know the digest.
  if (got !== digest) return 'wrong'
  return Number(carried) > 0 ? undefined : 'not-carried'
}
