// fake-charon.ts - a server of VICI that keeps connections and shared keys as strongSwan's charon does.

import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { decodeMessage, encodeMessage, type ViciSection } from '../../src/path/backends/ipsec/vici-message.ts'

export class FakeCharon {
  readonly #folder = mkdtempSync(join(tmpdir(), 'weft-charon-'))
  readonly path = join(this.#folder, 'vici')
  readonly #sockets = new Set<Socket>()
  readonly #server: Server
  /** The connections by name. */
  readonly connections = new Map<string, ViciSection>()
  /** The shared keys by id. */
  readonly keys = new Map<string, ViciSection>()
  /** The events that answer `list-sas`. */
  associations: readonly ViciSection[] = []
  /** The names of all requests so far. */
  readonly requests: string[] = []
  /** The connections of the requests to negotiate keys so far. */
  readonly initiated: string[] = []
  /** Matches the requests that get no answer, and those that are refused: the command and the names in the message. */
  silent: RegExp | undefined
  refused: RegExp | undefined

  constructor() {
    this.#server = createServer((socket) => {
      this.#sockets.add(socket)
      socket.on('error', () => {})
      let received = Buffer.alloc(0)
      socket.on('data', (bytes: Buffer) => {
        received = Buffer.concat([received, bytes])
        while (received.length >= 4 && received.length >= 4 + received.readUInt32BE()) {
          const end = 4 + received.readUInt32BE()
          this.#answer(socket, received.subarray(4, end))
          received = received.subarray(end)
        }
      })
    })
  }

  async listen(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(this.path, resolve))
    return this
  }

  /** Ends all connections to clients, as charon does when it ends. */
  hangUp(): void {
    for (const socket of this.#sockets) socket.destroy()
    this.#sockets.clear()
  }

  /** Reports to all clients that the keys with a peer changed. */
  report(): void {
    const event = Buffer.concat([Buffer.from('\x0cchild-updown', 'latin1'), encodeMessage({ up: 'yes' })])
    for (const socket of this.#sockets) send(socket, 7, event)
  }

  close(): void {
    this.hangUp()
    this.#server.close()
    rmSync(this.#folder, { recursive: true, force: true })
  }

  #answer(socket: Socket, packet: Buffer): void {
    const [type = 0, length = 0] = packet
    const command = packet.subarray(2, 2 + length).toString()
    if (type !== 0) return send(socket, 5)
    const message = decodeMessage(packet.subarray(2 + length))
    const text = `${command} ${Object.keys(message).join(' ')}`
    this.requests.push(command)
    if (this.silent?.test(text)) return
    if (this.refused?.test(text)) return send(socket, 1, encodeMessage({ success: 'no', errmsg: 'refused' }))
    if (command === 'list-sas')
      for (const each of this.associations)
        send(socket, 7, Buffer.concat([Buffer.from('\x07list-sa', 'latin1'), encodeMessage(each)]))
    if (command === 'list-conns')
      for (const [each, connection] of this.connections)
        send(socket, 7, Buffer.concat([Buffer.from('\x09list-conn', 'latin1'), encodeMessage({ [each]: connection })]))
    send(socket, 1, encodeMessage(this.#take(command, message)))
  }

  #take(command: string, message: ViciSection): ViciSection {
    const { id, name, ike } = message as Record<string, string>
    if (command === 'initiate') this.initiated.push(ike ?? '')
    if (command === 'get-conns') return { conns: [...this.connections.keys()] }
    if (command === 'get-shared') return { keys: [...this.keys.keys()] }
    if (command === 'load-shared') this.keys.set(id ?? '', message)
    if (command === 'unload-shared' && !this.keys.delete(id ?? '')) return { success: 'no', errmsg: 'no such key' }
    if (command === 'unload-conn' && !this.connections.delete(name ?? '')) return { success: 'no', errmsg: 'not found' }
    if (command === 'load-conn')
      for (const [each, connection] of Object.entries(message)) this.connections.set(each, connection as ViciSection)
    return { success: 'yes' }
  }
}

/** The longest packet that charon sends, in bytes. charon discards a longer packet (strongSwan: vici_socket.c). */
const MOST_PACKET = 512 * 1024

function send(socket: Socket, type: number, body: Buffer = Buffer.alloc(0)): void {
  if (body.length + 1 > MOST_PACKET) return
  const length = Buffer.alloc(4)
  length.writeUInt32BE(body.length + 1)
  socket.write(Buffer.concat([length, Buffer.of(type), body]))
}
