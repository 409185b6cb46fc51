// lines.ts - opens TCP connections, and reads single lines from them. The bytes after a line remain in the socket for
// the next reader.

import { connect, type Socket } from 'node:net'

const LONGEST_BYTES = 16_384

/**
 * Reads one line. Rejects if the connection ends before the line does, if the line is too long, or if it takes longer
 * than `limitMs` milliseconds.
 */
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
          giveUp('EPROTO', 'it sent too long a line')
          return
        }
        parts.push(part)
      }
    }
    const timer = setTimeout(() => giveUp('ETIMEDOUT', `it sent nothing for ${limitMs / 1000} s`), limitMs)
    if (socket.destroyed || socket.readableEnded) onClosed()
    else {
      socket.on('readable', onReadable).once('end', onClosed).once('close', onClosed)
      onReadable()
    }
  })
}

export interface PathAddresses {
  /** The destination's IP address, IPv4 or IPv6. */
  readonly to: string
  /**
   * The source address, of the same family as the destination; undefined to let the kernel choose the source address.
   */
  readonly from: string | undefined
}

/**
 * Connects. Rejects with the kernel's error, or with ETIMEDOUT after `limitMs` milliseconds. The readers of the socket
 * must handle its later errors.
 */
export function connectTo({ to, from }: PathAddresses, port: number, limitMs: number): Promise<Socket> {
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
