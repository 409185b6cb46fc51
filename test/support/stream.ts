// stream.ts - a long TCP stream with known bytes, and the digest of what arrives.
//
// It runs as a program. `send ADDRESS PORT BYTES` listens, prints `listening` and sends to each client. `receive ADDRESS PORT` connects and
// prints the SHA-1 of everything until the end.

import { createCipheriv, createHash } from 'node:crypto'
import { createServer, connect } from 'node:net'

const BLOCK_BYTES = 8 << 20
const SLICE_BYTES = 256 << 10

/** Yields slices of one random block, each with a different offset, so a lost, duplicated or displaced slice changes the digest. */
function* slices(bytes: number): Generator<Buffer> {
  const block = createCipheriv('aes-128-ctr', Buffer.alloc(16, 7), Buffer.alloc(16)).update(Buffer.alloc(BLOCK_BYTES))
  let place = 0
  for (let left = bytes; left > 0; left -= SLICE_BYTES) {
    place = (place * 1_103_515_245 + 12_345) % 2 ** 31
    const from = place % (BLOCK_BYTES - SLICE_BYTES)
    yield block.subarray(from, from + Math.min(SLICE_BYTES, left))
  }
}

/** Returns the line that the receiver of `bytes` bytes must print. */
export function digestOf(bytes: number): string {
  const hash = createHash('sha1')
  for (const slice of slices(bytes)) hash.update(slice)
  return hash.digest('hex')
}

function send(address: string, port: number, bytes: number): void {
  const server = createServer((socket) => {
    server.close()
    const source = slices(bytes)
    const more = (): void => {
      for (;;) {
        const { value, done } = source.next()
        if (done) return void socket.end()
        if (!socket.write(value)) return
      }
    }
    socket.on('drain', more)
    more()
  })
  server.listen(port, address, () => process.stdout.write('listening\n'))
}

function receive(host: string, port: number): void {
  const hash = createHash('sha1')
  const onread = {
    buffer: Buffer.alloc(1 << 20),
    callback(size: number, buffer: Uint8Array): boolean {
      hash.update(buffer.subarray(0, size))
      return true
    },
  }
  connect({ host, port, onread }).on('end', () => process.stdout.write(`${hash.digest('hex')}\n`))
}

const [, , mode, address = '', port = '0', bytes = '0'] = process.argv
if (mode === 'send') send(address, Number(port), Number(bytes))
if (mode === 'receive') receive(address, Number(port))
