// pinging.ts - a ping each millisecond between two containers, and how many of them were answered in the end.

import { expect } from 'vitest'
import type { Pod } from '../../lab/lab.ts'
import { eventually } from './event.ts'

export interface Pinged {
  readonly sent: number
  readonly lost: number
  /** Those that an ICMP error came for, or that could not be sent. */
  readonly errors: number
}

/** Pings until `stop`. */
export function pinging(from: Pod, to: Pod): { stop(): Promise<Pinged> } {
  const child = from.spawn(['ping', '-n', '-i', '0.001', '-W', '1', to.address])
  let said = ''
  child.stdout!.on('data', (text: Buffer) => (said += text.toString()))
  return {
    async stop() {
      child.kill('SIGINT')
      await eventually(() => expect(said).toMatch(/packets transmitted/))
      const numbers = new Set([...said.matchAll(/icmp_seq=(\d+) ttl=/g)].map((match) => Number(match[1])))
      // What was sent last may be on its way.
      const sent = Math.max(0, ...numbers)
      const errors = Number(/\+(\d+) errors/.exec(said)?.[1] ?? 0)
      return { sent, lost: sent - numbers.size, errors }
    },
  }
}
