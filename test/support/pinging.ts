// pinging.ts - pings between two containers, a thousand a second unless told otherwise, and how many of them were answered in the end.

import { expect } from 'vitest'
import type { Pod } from '../../lab/lab.ts'
import { eventually } from './event.ts'

export interface Pinged {
  readonly sent: number
  readonly lost: number
  /** The number of those that an ICMP error came for, or that could not be sent. */
  readonly errors: number
}

/** Pings until `stop`, every `everyS` seconds. */
export function pinging(
  from: Pod,
  to: Pod,
  { address = to.address, everyS = 0.001 } = {},
): { stop(): Promise<Pinged> } {
  const child = from.spawn(['ping', '-n', '-i', String(everyS), '-W', '1', address])
  let said = ''
  child.stdout!.on('data', (text: Buffer) => (said += text.toString()))
  return {
    async stop() {
      // Before it pings it has no answer to a signal but its end.
      await eventually(() => expect(said).toMatch(/^PING /))
      child.kill('SIGINT')
      await eventually(() => expect(said).toMatch(/packets transmitted/))
      const numbers = new Set([...said.matchAll(/icmp_seq=(\d+) ttl=/g)].map((match) => Number(match[1])))
      // The last ones that were sent may be on their way.
      const sent = Math.max(0, ...numbers)
      const errors = Number(/\+(\d+) errors/.exec(said)?.[1] ?? 0)
      return { sent, lost: sent - numbers.size, errors }
    },
  }
}
