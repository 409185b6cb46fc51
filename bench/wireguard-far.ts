// wireguard-far.ts - simulates the peers for bench/wireguard-peers.ts. `listen COUNT` acts as COUNT hosts with
// WireGuard, each with its own key and address. `send COUNT` sends a packet to the subnet of each peer, and repeats
// that until the program is ended.
//
// `listen` prints the public keys in the order of the peers, then `ready`, and `all` when each peer has received an
// encrypted packet. It answers handshakes as WireGuard does. To the first packet that is encrypted with new keys it
// replies immediately with a keepalive, while WireGuard would wait for a timer.

import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { macKeysOf, writeMacs } from '../src/path/backends/wireguard/cookie.ts'
import { hash, MAC_BYTES, seal } from '../src/path/backends/wireguard/crypto.ts'
import { INITIATION_BYTES, RESPONSE_BYTES } from '../src/path/backends/wireguard/messages.ts'
import { readFirst, Remote, writeSecond } from '../src/path/backends/wireguard/noise.ts'
import { keyPairOf, newKeyPair } from '../src/path/backends/wireguard/x25519.ts'

export const PORT = 51_820
export const hostOf = (number: number): string => `172.16.${number >> 8}.${number & 255}`
/** Returns the first three bytes of the container subnet of a peer, such as `10.1.2`. */
export const subnetOf = (number: number): string => `10.${1 + (number >> 8)}.${number & 255}`

const NOTHING = new Uint8Array(0)
const [TYPE_RESPONSE, TYPE_DATA] = [2, 4]
const DATA_HEAD = 16

/**
 * The number of packets that are sent without a pause, and the pause after them in ms. The packets must fit into the
 * queue of the TUN device.
 */
const BURST = { packets: 100, pauseMs: 10 }
/**
 * The pause in ms before the next packet to the same peer. It equals the time for which WireGuard retries a handshake
 * (REKEY_ATTEMPT_MS). So a handshake has succeeded or failed before the next packet requests a new handshake.
 */
const AGAIN_MS = 90_000

/**
 * Starts the host of one peer. Returns the host's public key in base64. Calls `onKeyed` when the first packet that is
 * encrypted with new keys arrives.
 */
async function host(number: number, onKeyed: () => void): Promise<string> {
  const own = keyPairOf(hash(`bench ${number}`))
  const socket = createSocket('udp4')
  let keepalive: Buffer | undefined
  socket.on('message', (datagram, { address, port }) => {
    if (datagram[0] === TYPE_DATA && keepalive) {
      socket.send(keepalive, port, address)
      keepalive = undefined
      onKeyed()
    }
    if (datagram.length !== INITIATION_BYTES) return
    const received = readFirst(own, datagram.subarray(8, -2 * MAC_BYTES), (key) => new Remote(own, key))
    const answer = received && writeSecond(received, newKeyPair(), undefined)
    if (!answer) return
    const theirs = datagram.readUInt32LE(4)
    const response = Buffer.alloc(RESPONSE_BYTES)
    response[0] = TYPE_RESPONSE
    response.writeUInt32LE(number, 4)
    response.writeUInt32LE(theirs, 8)
    response.set(answer.message, 12)
    writeMacs(response, macKeysOf(received.from.publicKey), undefined)
    socket.send(response, port, address)
    const head = Buffer.alloc(DATA_HEAD) // the first counter is 0
    head[0] = TYPE_DATA
    head.writeUInt32LE(theirs, 4)
    keepalive = Buffer.concat([head, seal(answer.keys.sendKey, NOTHING, NOTHING)])
  })
  socket.bind(PORT, hostOf(number))
  await once(socket, 'listening')
  return Buffer.from(own.publicKey).toString('base64')
}

async function listen(count: number): Promise<void> {
  let keyed = 0
  const onKeyed = (): void => {
    if (++keyed === count) process.stdout.write('all\n')
  }
  for (let number = 0; number < count; number++) process.stdout.write(`${await host(number, onKeyed)}\n`)
  process.stdout.write('ready\n')
}

async function send(count: number): Promise<never> {
  const socket = createSocket('udp4')
  for (;;) {
    for (let number = 0; number < count; number++) {
      socket.send('bench', 9, `${subnetOf(number)}.9`)
      if (number % BURST.packets === BURST.packets - 1) await delay(BURST.pauseMs)
    }
    await delay(AGAIN_MS)
  }
}

const [, , mode, count = ''] = process.argv
if (mode === 'listen') await listen(Number(count))
if (mode === 'send') await send(Number(count))
