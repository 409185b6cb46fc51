// vici-client.ts - sends requests to strongSwan's charon over VICI, and receives the answers.
//
// charon answers the requests of one connection in their order (strongSwan: src/libcharon/plugins/vici/README.md).
// After a failure weftd does not use the connection any more.

import { createConnection, type Socket } from 'node:net'
import { isWeftError, messageOf, WeftError } from '../../../base/errors.ts'
import { createTurn, limited } from '../../../host/bell.ts'
import { decodeMessage, encodeMessage, name, type ViciSection } from './vici-message.ts'

/** The packet types of VICI (strongSwan: src/libcharon/plugins/vici/README.md, "Packet types"). */
const CMD_REQUEST = 0
const CMD_RESPONSE = 1
const CMD_UNKNOWN = 2
const EVENT_REGISTER = 3
const EVENT_UNREGISTER = 4
const EVENT_CONFIRM = 5
const EVENT_UNKNOWN = 6
const EVENT = 7

/** The longest packet that charon accepts or sends, in bytes (strongSwan: src/libcharon/plugins/vici/README.md). */
const MOST_PACKET = 512 * 1024
/** The time limit in ms for an answer. charon answers within milliseconds, because no request waits for a peer. */
const ANSWER_MS = 10_000

interface Waiting {
  readonly resolve: (answer: { readonly type: number; readonly body: Buffer }) => void
  readonly reject: (reason: Error) => void
}

export class ViciClient {
  readonly #socket: Socket
  /** Resolves with the reason when the connection to charon ends. */
  readonly ended: Promise<Error>
  /** The requests that charon has not answered yet, the oldest first. */
  readonly #waiting: Waiting[] = []
  /** The received bytes of a packet that is not complete yet. */
  #received: Buffer = Buffer.alloc(0)
  readonly #receivers = new Map<string, (event: ViciSection) => void>()
  /** Runs one streaming command at a time, because charon's events do not name the command that caused them. */
  readonly #inTurn = createTurn()

  private constructor(socket: Socket) {
    this.#socket = socket
    this.ended = new Promise((resolve) => {
      const end = (reason: Error): void => {
        resolve(reason)
        socket.destroy()
        for (const { reject } of this.#waiting.splice(0)) reject(reason)
      }
      socket.on('error', (error) => end(isWeftError(error) ? error : unreachable(messageOf(error))))
      socket.on('close', () => end(unreachable('it closed the connection')))
      socket.on('data', (bytes) => {
        try {
          this.#receive(bytes)
        } catch (error) {
          end(error as Error)
        }
      })
    })
  }

  /** Connects to charon's socket. Rejects with WeftError COMMAND if no process answers at the socket. */
  static connect(path: string, signal: AbortSignal): Promise<ViciClient> {
    const late = (): WeftError => unreachable(`no answer within ${ANSWER_MS / 1000} s`)
    return limited(
      signal,
      ANSWER_MS,
      late,
      (limit) =>
        new Promise<ViciClient>((resolve, reject) => {
          const socket = createConnection({ path, signal: limit })
          socket.once('error', (error) => reject(unreachable(messageOf(error))))
          socket.once('connect', () => resolve(new ViciClient(socket)))
        }),
    )
  }

  /**
   * Sends a command and returns its answer. Rejects with WeftError COMMAND if charon refuses the command or does not
   * answer.
   */
  async request(command: string, message: ViciSection = {}): Promise<ViciSection> {
    const { type, body } = await this.#send(CMD_REQUEST, command, encodeMessage(message))
    if (type === CMD_UNKNOWN) throw new WeftError('COMMAND', `charon does not know the command ${command}`)
    if (type !== CMD_RESPONSE) throw new WeftError('COMMAND', `charon sent a wrong answer to ${command}`)
    const answer = decodeMessage(body)
    const { success, errmsg } = answer
    if (success === 'no')
      throw new WeftError('COMMAND', `charon refuses ${command}: ${typeof errmsg === 'string' ? errmsg : 'no reason'}`)
    return answer
  }

  /** Sends a command that charon answers with events called `event`, and returns the events. */
  stream(command: string, event: string, message: ViciSection = {}): Promise<readonly ViciSection[]> {
    return this.#inTurn(async () => {
      const events: ViciSection[] = []
      await this.listen(event, (each) => events.push(each))
      try {
        await this.request(command, message)
      } finally {
        this.#receivers.delete(event)
        await this.#send(EVENT_UNREGISTER, event)
      }
      return events
    })
  }

  /**
   * Calls `receive` for each event called `event` from now on. Rejects with WeftError COMMAND if charon does not know
   * the event.
   */
  async listen(event: string, receive: (event: ViciSection) => void): Promise<void> {
    const { type } = await this.#send(EVENT_REGISTER, event)
    if (type !== EVENT_CONFIRM) throw new WeftError('COMMAND', `charon does not know the event ${event}`)
    this.#receivers.set(event, receive)
  }

  get isOpen(): boolean {
    return !this.#socket.destroyed
  }

  close(): void {
    this.#socket.destroy()
  }

  #send(type: number, command: string, body: Buffer = Buffer.alloc(0)): Promise<{ type: number; body: Buffer }> {
    const content = Buffer.concat([Buffer.of(type), name(command), body])
    if (content.length > MOST_PACKET)
      return Promise.reject(new RangeError(`a VICI packet is longer than ${MOST_PACKET}`))
    const length = Buffer.alloc(4)
    length.writeUInt32BE(content.length)
    return new Promise((resolve, reject) => {
      if (this.#socket.destroyed) return reject(unreachable('the connection has ended'))
      const timer = setTimeout(
        () => this.#socket.destroy(unreachable(`no answer to ${command} within ${ANSWER_MS / 1000} s`)),
        ANSWER_MS,
      )
      const done = <T>(act: (value: T) => void) => {
        return (value: T): void => {
          clearTimeout(timer)
          act(value)
        }
      }
      this.#waiting.push({ resolve: done(resolve), reject: done(reject) })
      this.#socket.write(Buffer.concat([length, content]))
    })
  }

  #receive(bytes: Buffer): void {
    this.#received = Buffer.concat([this.#received, bytes])
    while (this.#received.length >= 4) {
      const length = this.#received.readUInt32BE()
      if (length === 0 || length > MOST_PACKET) throw unreachable('it sent an invalid VICI packet')
      if (this.#received.length < 4 + length) return
      const packet = this.#received.subarray(4, 4 + length)
      this.#received = this.#received.subarray(4 + length)
      this.#take(packet.readUInt8(), packet.subarray(1))
    }
  }

  #take(type: number, body: Buffer): void {
    if (type === EVENT) {
      const length = body.length > 0 ? body.readUInt8() : 0
      this.#receivers.get(body.subarray(1, 1 + length).toString())?.(decodeMessage(body.subarray(1 + length)))
      return
    }
    if (![CMD_RESPONSE, CMD_UNKNOWN, EVENT_CONFIRM, EVENT_UNKNOWN].includes(type))
      throw unreachable('it sent an unknown VICI packet')
    this.#waiting.shift()?.resolve({ type, body })
  }
}

const unreachable = (why: string): WeftError =>
  new WeftError('COMMAND', `strongSwan's charon does not answer: ${why}`, {
    remedy: "see charon's log; weftd connects again",
  })
