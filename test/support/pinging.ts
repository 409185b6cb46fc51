// pinging.ts - pings between two containers, a thousand a second by default, and the number that was answered in the end.
//
// Two sources count the losses, and neither counts too few. One is ping itself, whose socket holds only 204 answers, fewer than arrive
// after a pause of seconds. The other is the counters of the container's kernel, which include the pings of others.

import { expect } from 'vitest'
import { EVENT_MS, type Pod } from '../../lab/lab.ts'
import { eventually } from './event.ts'

interface Pinged {
  readonly sent: number
  readonly lost: number
  /** The number of pings that got an ICMP error or could not be sent. */
  readonly errors: number
  /** When answers were missing: the times of the last answer before and of the first answer after, and the number of missing answers. */
  readonly gaps: readonly string[]
}

const COUNTERS = 'cat /proc/net/snmp /proc/net/snmp6'

/** Returns the echo requests of this family that a namespace sent without getting an answer, from the output of COUNTERS. */
function unanswered(counters: string, isIpv6: boolean): number {
  if (isIpv6) {
    const of = (name: string): number => Number(new RegExp(`^Icmp6${name}\\s+(\\d+)`, 'm').exec(counters)![1])
    return of('OutEchos') - of('InEchoReplies')
  }
  const [names, values] = [...counters.matchAll(/^Icmp: (.*)/gm)].map((line) => line[1]!.split(' '))
  const of = (name: string): number => Number(values![names!.indexOf(name)])
  return of('OutEchos') - of('InEchoReps')
}

/** ping prints the lower 16 bits of a request's number. Answers overtake one another by far fewer numbers. */
const NUMBERS = 65_536
const MOST_BEHIND = 8_192

/** Returns the number of the last answered request and the number of answers, from ping's output. */
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

/** Returns the gaps in the output of `ping -D`, which prints the time before each answer. Answers that overtake others count as gaps too. */
function gapsIn(said: string): readonly string[] {
  const gaps: string[] = []
  let [before, at] = [0, '']
  for (const [, time = '', number] of said.matchAll(/^\[(\d+\.\d+)\].* icmp_seq=(\d+) ttl=/gm)) {
    const missing = Number(number) - before - 1
    const now = new Date(Number(time) * 1_000).toISOString().slice(11, -1)
    if (at !== '' && missing > 0) gaps.push(`${missing} between ${at} and ${now}`)
    ;[before, at] = [Number(number), now]
  }
  return gaps
}

/** Pings until `stop`, every `everyS` seconds. */
export function pinging(
  from: Pod,
  to: Pod,
  { address = to.address, everyS = 0.001 } = {},
): { stop(): Promise<Pinged> } {
  const isIpv6 = address.includes(':')
  const child = from.spawn(['sh', '-c', `${COUNTERS}; exec ping -n -D -i ${everyS} -W 1 ${address}`])
  let said = ''
  child.stdout!.on('data', (text: Buffer) => (said += text.toString()))
  return {
    async stop() {
      // Before its first line, ping handles no signal.
      await eventually(() => expect(said).toMatch(/^PING /m))
      child.kill('SIGINT')
      await eventually(() => expect(said).toMatch(/packets transmitted/))
      // Requests before an answered one are answered or lost. A single ping is used, because `reach` may leave pings under way.
      const one = ['ping', '-n', '-c', '1', '-W', String(EVENT_MS / 6_000), address]
      await eventually(() => from.output(one))
      const after = unanswered(await from.output(['sh', '-c', COUNTERS]), isIpv6)
      // The last requests may have been under way when ping ended.
      const { last: sent, answered } = answeredIn(said)
      const number = (pattern: RegExp): number => Number(pattern.exec(said)?.[1] ?? 0)
      const byKernel = after - unanswered(said, isIpv6) + number(/\+(\d+) duplicates/)
      return {
        sent,
        lost: Math.max(0, Math.min(sent - answered, byKernel)),
        errors: number(/\+(\d+) errors/),
        gaps: gapsIn(said),
      }
    },
  }
}
