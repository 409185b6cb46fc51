// lines.ts - connections of which lines are read, and what follows a line is left for another reader.

import { connect, type Socket } from 'node:net'

/** The longest line that either end sends. */
const LONGEST_BYTES = 16_384

/** Reads up to a line's end; what stands behind it stays unread. Rejects when the connection ends first, or time is up. */
export function readLine(socket: Socket, limitMs: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const parts: Buffer[] = []
    let length = 0
    const end = (): void => {
      clearTimeout(timer)
      socket.off('readable', onReadable).off('end', onClosed).off('close', onClosed)
    }
    const giveUp = (code: string, message: string): void => {
      end()
      reject(Object.assign(socket.errored ?? new Error(message), socket.errored ? {} : { code }))
    }
    const onClosed = (): void => giveUp('ECONNRESET', 'it closed the connection')
    const onReadable = (): void => {
      for (let part = socket.read() as Buffer | null; part; part = socket.read() as Buffer | null) {
        const at = part.indexOf(10)
        length += part.length
        if (at >= 0) {
          if (at + 1 < part.length) socket.unshift(part.subarray(at + 1))
          end()
          resolve(Buffer.concat([...parts, part.subarray(0, at)]).toString())
          return
        }
        if (length > LONGEST_BYTES) {
          giveUp('EPROTO', 'it sends no lines')
          return
        }
        parts.push(part)
      }
    }
    const timer = setTimeout(() => giveUp('ETIMEDOUT', `it said nothing for ${limitMs / 1000} s`), limitMs)
    if (socket.destroyed || socket.readableEnded) onClosed()
    else {
      socket.on('readable', onReadable).once('end', onClosed).once('close', onClosed)
      onReadable()
    }
  })
}

export interface Way {
  /** An address of either family. */
  readonly to: string
  /** Of the same family; undefined where the kernel is to choose. */
  readonly from: string | undefined
}

/** Rejects with the kernel's error, or ETIMEDOUT. Its later errors are for whoever reads from it. */
export function connectTo({ to, from }: Way, port: number, limitMs: number): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const local = from === undefined ? {} : { localAddress: from }
    const socket = connect({ host: to, port, noDelay: true, ...local })
    const timer = setTimeout(
      () => socket.destroy(Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' })),
      limitMs,
    )
    socket.on('error', reject)
    socket.once('close', () => clearTimeout(timer))
    socket.once('connect', () => {
      clearTimeout(timer)
      resolve(socket)
    })
  })
}
