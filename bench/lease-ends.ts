// lease-ends.ts - the sender and the receiver for bench/leases.ts. Each runs as a program in the network namespace of a
// host.
//
// `listen` takes the place of a weftd and receives the overlay's datagrams on UDP port 8285. It prints the arrival time
// of the first packet for each inner subnet (/24). For each line on stdin it prints the longest pause between two
// packets so far. `send` reads lines from stdin: `ADDRESS` makes it send a packet each millisecond to an inner address,
// and `-ADDRESS` makes it stop. Times are in ms of CLOCK_MONOTONIC, which all network namespaces share.

import { createSocket } from 'node:dgram'
import { createInterface } from 'node:readline'

const now = (): number => Number(process.hrtime.bigint()) / 1e6
const INNER_DESTINATION = 16

function listen(): void {
  const seen = new Set<string>()
  let last = 0
  let longest = 0
  createSocket('udp4')
    .on('message', (packet) => {
      const at = now()
      const subnet = packet.subarray(INNER_DESTINATION, INNER_DESTINATION + 3).join('.')
      if (last > 0) longest = Math.max(longest, at - last)
      last = at
      if (seen.has(subnet)) return
      seen.add(subnet)
      process.stdout.write(`${subnet} ${at}\n`)
    })
    .bind(8285, () => process.stdout.write('listening\n'))
  createInterface({ input: process.stdin }).on('line', () => {
    process.stdout.write(`gap ${longest}\n`)
    longest = last = 0
  })
}

function send(): void {
  const socket = createSocket('udp4')
  socket.on('error', () => {}) // net unreachable until there is a peer
  const targets = new Set<string>()
  createInterface({ input: process.stdin }).on('line', (line) => {
    if (line.startsWith('-')) targets.delete(line.slice(1))
    else targets.add(line)
  })
  let next = now()
  setInterval(() => {
    for (; next <= now(); next += 1) for (const target of targets) socket.send('x', 9, target)
  }, 1)
}

if (process.argv[2] === 'listen') listen()
if (process.argv[2] === 'send') send()
