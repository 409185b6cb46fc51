// conversations.ts - many TCP connections that exchange data all the time, to check that all of them survive.
//
// It runs as a program. `answer ADDRESS PORT` listens, prints `listening` and echoes everything. `talk ADDRESS PORT COUNT` opens `COUNT`
// connections, on each of which a number goes back and forth, and prints the lowest number of rounds of any connection five times a second.
// A connection that ends is an error.

import { once } from 'node:events'
import { createServer, connect, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'

/** The pause in ms between two rounds of a connection, which keeps the amount of data small. */
const PAUSE_MS = 20
const REPORT_MS = 200
const NUMBER_BYTES = 4

function answer(address: string, port: number): void {
  const server = createServer((socket) => socket.setNoDelay().pipe(socket))
  server.listen(port, address, () => process.stdout.write('listening\n'))
}

async function talk(host: string, port: number, count: number): Promise<void> {
  const rounds = Array.from({ length: count }, () => 0)
  const converse = async (socket: Socket, index: number): Promise<never> => {
    for (let number = 0; ; number++) {
      const said = Buffer.alloc(NUMBER_BYTES)
      said.writeUInt32BE(number)
      socket.write(said)
      let received: Buffer | null
      while ((received = socket.read(NUMBER_BYTES) as Buffer | null) === null) await once(socket, 'readable')
      if (!received.equals(said))
        throw new Error(`connection ${index} received ${received.toString('hex')} for ${said.toString('hex')}`)
      rounds[index] = number + 1
      await delay(PAUSE_MS)
    }
  }
  const hold = async (index: number): Promise<never> => {
    const socket = connect({ host, port, noDelay: true })
    await once(socket, 'connect')
    const ended = once(socket, 'end').then(() => {
      throw new Error(`connection ${index} ended`)
    })
    return Promise.race([converse(socket, index), ended])
  }
  setInterval(() => process.stdout.write(`${Math.min(...rounds)}\n`), REPORT_MS)
  await Promise.all(rounds.map((_, index) => hold(index)))
}

const [, , mode, address = '', port = '0', count = '0'] = process.argv
if (mode === 'answer') answer(address, Number(port))
if (mode === 'talk') await talk(address, Number(port), Number(count))
