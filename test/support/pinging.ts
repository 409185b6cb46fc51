// pinging.ts - pings between two containers, a thousand a second unless told otherwise, and how many of them were answered in the end.
//
// What was lost is told by two, of whom neither says too little: ping itself, whose socket has room for 204 answers, fewer than a pause of
// seconds keeps back; and the counters of the container's kernel, which others' pings are in too.

import { expect } from 'vitest'
import { EVENT_MS, type Pod } from '../../lab/lab.ts'
import { eventually } from './event.ts'

interface Pinged {
  readonly sent: number
  readonly lost: number
  /** The number of those that an ICMP error came for, or that could not be sent. */
  readonly errors: number
}

const COUNTERS = 'cat /proc/net/snmp /proc/net/snmp6'

/** The echo requests of this family that a namespace sent and has no answer to, by what COUNTERS prints. */
function unanswered(counters: string, isIpv6: boolean): number {
  if (isIpv6) {
    const of = (name: string): number => Number(new RegExp(`^Icmp6${name}\\s+(\\d+)`, 'm').exec(counters)![1])
    return of('OutEchos') - of('InEchoReplies')
  }
  const [names, values] = [...counters.matchAll(/^Icmp: (.*)/gm)].map((line) => line[1]!.split(' '))
  const of = (name: string): number => Number(values![names!.indexOf(name)])
  return of('OutEchos') - of('InEchoReps')
}

/** Numbers of requests are told by their lower 16 bits; answers overtake one another by fewer than so many. */
const NUMBERS = 65_536
const MOST_BEHIND = 8_192

/** The number of the last request that was answered, by what ping printed, and how many were. */
export function answeredIn(said: string): { readonly last: number; readonly answered: number } {
  const numbers = new Set<number>()
  let last = 0
  for (const [, low] of said.matchAll(/icmp_seq=(\d+) ttl=/g)) {
    const ahead = (((Number(low) - last) % NUMBERS) + NUMBERS) % NUMBERS
    const number = last + (ahead < NUMBERS - MOST_BEHIND ? ahead : ahead - NUMBERS)
    numbers.add(number)
    last = Math.max(last, number)
  }
  return { last, answered: numbers.size }
}

/** Pings until `stop`, every `everyS` seconds. */
export function pinging(
  from: Pod,
  to: Pod,
  { address = to.address, everyS = 0.001 } = {},
): { stop(): Promise<Pinged> } {
  const isIpv6 = address.includes(':')
  const child = from.spawn(['sh', '-c', `${COUNTERS}; exec ping -n -i ${everyS} -W 1 ${address}`])
  let said = ''
  child.stdout!.on('data', (text: Buffer) => (said += text.toString()))
  return {
    async stop() {
      // Before it pings it has no answer to a signal but its end.
      await eventually(() => expect(said).toMatch(/^PING /m))
      child.kill('SIGINT')
      await eventually(() => expect(said).toMatch(/packets transmitted/))
      // What was sent before one that is answered is answered or lost. It is a single one: those that `reach` sends may be on their way.
      const one = ['ping', '-n', '-c', '1', '-W', String(EVENT_MS / 6_000), address]
      await eventually(() => from.output(one))
      const after = unanswered(await from.output(['sh', '-c', COUNTERS]), isIpv6)
      // The last ones that ping sent may have been on their way when it ended.
      const { last: sent, answered } = answeredIn(said)
      const number = (pattern: RegExp): number => Number(pattern.exec(said)?.[1] ?? 0)
      const byKernel = after - unanswered(said, isIpv6) + number(/\+(\d+) duplicates/)
      return {
        sent,
        lost: Math.max(0, Math.min(sent - answered, byKernel)),
        errors: number(/\+(\d+) errors/),
      }
    },
  }
}
